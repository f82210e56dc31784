"""Pause, resume, run and delete entries: one from its page or its row, or all that are ticked in the list.

Invariant: the outcome of each is told, and what can't be undone is asked first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from starlette.responses import Response
from starlette.routing import BaseRoute

from redbeat.access import Right
from redbeat.diagnostics.hints import hint_at_beat_schedule
from redbeat.entries.search import entries_called
from redbeat.entries.wording import in_words_of, one_line
from redbeat.errors import ArgumentInvalid, EntryError
from redbeat.log.text import closed
from redbeat.operations import editing, pausing
from redbeat.operations.running import request_of_form, trigger_entries
from redbeat.operations.selection import Selection
from redbeat.web.pages.entries import View, lines_of
from redbeat.web.routes import action, page
from redbeat.web.visit import Visit

#: of how many failures each is said
MAX_TOLD = 200


class Outcome(NamedTuple):
    """The outcome for entries: the changed ones, why others failed, and those left as they were."""

    changed: Sequence[str]
    failed: Mapping[str, str] = {}
    left: Sequence[str] = ()


def _pause(visit: Visit, names: list[str]) -> Outcome:
    problems, note = dict[str, str](), visit.typed("note").strip()
    until = visit.time("until", problems, ahead=True)
    if problems:
        raise ArgumentInvalid("until", problems["until"])
    result = pausing.pause_entries(visit.actor, Selection(names), note=note or None, until=until)
    return Outcome(result.changed, result.failed, result.left)


def _resume(visit: Visit, names: list[str]) -> Outcome:
    result = pausing.resume_entries(visit.actor, Selection(names))
    return Outcome(result.changed, result.failed, result.left)


def _trigger(visit: Visit, names: list[str]) -> Outcome:
    request = request_of_form(visit.typed("once"), {})
    result = trigger_entries(visit.actor, Selection(names, is_whole=True), request=request)
    sent = [name for name in result.sent if name not in result.repeated]
    untried = dict.fromkeys(result.left, f"Not tried: {result.reason}")
    return Outcome(sent, {**result.failed, **untried}, result.repeated)


def _delete(visit: Visit, names: list[str]) -> Outcome:
    found = entries_called(visit.app, names)
    there = [name for name, entry in zip(names, found, strict=True) if entry is not None]
    try:
        editing.delete_entries(visit.actor, Selection(names))
    except EntryError as exc:
        return Outcome([], dict.fromkeys(names, str(exc)))
    return Outcome(there)


@dataclass(frozen=True)
class Verb:
    """What may be done with entries.

    Attributes:
        label: of its button; ``tone`` is its look.
        more: what is said below the question.
        done: the words before what was changed, and ``left`` those behind what was left as it was.
    """

    right: Right
    label: str
    more: str
    act: Callable[[Visit, list[str]], Outcome]
    done: str
    left: str = ""
    tone: str = "primary"


VERBS = {
    "pause": Verb(
        Right.PAUSE,
        "Pause",
        "Nothing is sent until they are resumed. Those that are paused or disabled stay as they are.",
        _pause,
        "Paused",
        "paused or disabled already",
    ),
    "resume": Verb(
        Right.PAUSE,
        "Resume",
        "Each is due at its next time from now on. Those that aren't paused stay as they are.",
        _resume,
        "Resumed",
        "not paused",
    ),
    "trigger": Verb(
        Right.RUN,
        "Run now",
        "The task of each is sent once, at once. Their schedules stay as they are.",
        _trigger,
        "Sent a run of",
        "sent a run by this form before",
    ),
    "delete": Verb(
        Right.DELETE,
        "Delete",
        "Their histories and counts of runs go, too. The only way back is a file that was exported before.",
        _delete,
        "Deleted",
        tone="danger primary",
    ),
}


def _ask(visit: Visit, verb: str, names: Sequence[str], problem: str = "") -> Response:
    """Return the page that asks about entries before anything is done."""
    if not names:
        return visit.see("entries", notice="Nothing was chosen.", **View.of(visit.query).here())
    lines = lines_of(visit, names)
    there = {line["name"] for line in lines}
    return visit.render(
        "entries_confirm.html",
        422 if problem else 200,
        title=f"{VERBS[verb].label} {_which(names)}?",
        verb=verb,
        words=VERBS[verb],
        names=names,
        lines=lines,
        gone=[name for name in names if name not in there],
        hint=hint_at_beat_schedule(visit.app, names) if verb == "delete" else "",
        running=sum(line["running"] for line in lines) if verb == "delete" else 0,
        address=visit.link("entries", verb, **View.of(visit.query).here(), back=visit.query.get("back")),
        back=_back(visit, names),
        problem=problem,
        typed={"note": visit.typed("note"), "until": visit.typed("until")},
    )


def _act(visit: Visit, verb: str) -> Response:
    """Do what the form asks for, if that is confirmed."""
    names = list(dict.fromkeys(visit.names()))
    if not names or not visit.is_confirmed:
        return _ask(visit, verb, names)
    try:
        outcome = VERBS[verb].act(visit, names)
    except ArgumentInvalid as exc:
        return _ask(visit, verb, names, in_words_of(exc.reason, visit.zone))
    return _answer(visit, names, VERBS[verb], outcome)


def _place(visit: Visit, names: Sequence[str]) -> tuple[str, Mapping[str, object]]:
    """Return the page from which entries were chosen, and its query."""
    if visit.query.get("back") == "entry" and len(names) == 1:
        return "entry", {"name": names[0]}
    return "entries", View.of(visit.query).here()


def _back(visit: Visit, names: Sequence[str]) -> str:
    place, query = _place(visit, names)
    return visit.link(place, **query)


def _answer(visit: Visit, names: Sequence[str], verb: Verb, outcome: Outcome) -> Response:
    """Tell the outcome: beside the entries' rows, in a notice, or on a page if not all was done."""
    changed, left = outcome.changed, outcome.left
    failed = {name: in_words_of(words, visit.zone) for name, words in outcome.failed.items()}
    known = {*changed, *failed, *left}
    gone = [name for name in names if name not in known]
    parts = [f"{verb.done} {_which(changed)}"] if changed else []
    if left:
        parts.append(f"{'1 entry was' if len(left) == 1 else f'{len(left):,} entries were'} {verb.left}")
    told = "; ".join(parts)
    if visit.is_fragment:
        tone = "good" if changed else "warn"
        if failed:
            told, tone = next(iter(failed.values())), "danger"
        view = View.of(visit.query)
        response = visit.render("entries_rows.html", lines=lines_of(visit, names), pages=None, view=view)
        text = closed(told or f"{_one(names[0])} is gone")
        response.headers["HX-Trigger"] = json.dumps({"redbeat-toast": {"text": text, "tone": tone}})
        return response
    if failed or gone:
        return show_failures(visit, told, failed, _back(visit, names), gone)
    place, query = (
        _place(visit, names) if verb is not VERBS["delete"] else ("entries", View.of(visit.query).here())
    )
    return visit.see(place, notice=f"{told[:1].upper()}{told[1:]}." if told else "", **query)


def show_failures(
    visit: Visit, told: str, failed: Mapping[str, str], back: str, gone: Sequence[str] = ()
) -> Response:
    """Return the page that says what was done, and why not all.

    Arguments:
        told: what was done.
        failed: why entries failed, by their names.
        back: the page to go on with.
        gone: the names of entries that are missing by now.
    """
    return visit.render(
        "result.html",
        title="Not all was done",
        told=told,
        failed=dict(list(failed.items())[:MAX_TOLD]),
        rest=max(len(failed) - MAX_TOLD, 0),
        gone=gone[:MAX_TOLD],
        back=back,
    )


def _which(names: Sequence[str]) -> str:
    return _one(names[0]) if len(names) == 1 else f"{len(names):,} entries"


def _one(name: str) -> str:
    return one_line(name, 100)


def _routes_of(verb: str) -> list[BaseRoute]:
    def ask(visit: Visit) -> Response:
        return _ask(visit, verb, visit.request.query_params.getlist("name"))

    path, right = f"/entries/{verb}", VERBS[verb].right
    return [page(path, ask, right=right), action(path, partial(_act, verb=verb), right=right)]


ROUTES = [route for verb in VERBS for route in _routes_of(verb)]
