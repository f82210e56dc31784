"""Pause, resume, run and delete entries: one from its page or its row, or all that are ticked in the list.

Invariant: what became of each is told, and what can't be undone is asked first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from starlette.responses import Response
from starlette.routing import BaseRoute

from redbeat.access import Right
from redbeat.diagnostics.hints import hint_at_beat_schedule
from redbeat.entries.search import Row, read_rows
from redbeat.entries.wording import in_words_of, one_line
from redbeat.errors import ArgumentInvalid, BrokerUnavailable, EntryError, RedBeatError, StoreUnavailable
from redbeat.log.text import closed
from redbeat.operations import editing, pausing
from redbeat.operations.running import request_of_form, trigger_entry
from redbeat.operations.selection import Selection
from redbeat.schedules.times import read_time
from redbeat.web.pages.entries import View, lines_of
from redbeat.web.routes import action, page
from redbeat.web.visit import Visit

#: of how many failures each is said
MAX_TOLD = 200


def pause_entries(visit: Visit) -> Response:
    """Ask about entries that are to be paused; or pause them."""
    names, note, typed = _chosen(visit), visit.typed("note").strip(), visit.typed("until").strip()
    if not names or not visit.is_confirmed:
        return _ask(visit, "pause", names)
    try:
        until = read_time(typed, visit.now, visit.zone, ahead=True) if typed else None
        result = pausing.pause_entries(visit.actor, Selection(names), note=note or None, until=until)
    except ArgumentInvalid as exc:
        problem = in_words_of(exc.reason, visit.zone)
        return _ask(visit, "pause", names, note=note, until=typed, problem=problem)
    except ValueError as exc:
        return _ask(visit, "pause", names, note=note, until=typed, problem=str(exc))
    left = f"{_counted(result.left)} paused or disabled already"
    return _answer(visit, names, "Paused", result.changed, result.failed, result.left, left)


def resume_entries(visit: Visit) -> Response:
    """Ask about entries that are to be resumed; or resume them."""
    names = _chosen(visit)
    if not names or not visit.is_confirmed:
        return _ask(visit, "resume", names)
    result = pausing.resume_entries(visit.actor, Selection(names))
    left = f"{_counted(result.left)} not paused"
    return _answer(visit, names, "Resumed", result.changed, result.failed, result.left, left)


def run_entries(visit: Visit) -> Response:
    """Ask about entries that are to run now; or send a run of each."""
    names = _chosen(visit)
    if not names or not visit.is_confirmed:
        return _ask(visit, "trigger", names)
    sent, repeated, failed, end = list[str](), list[str](), dict[str, str](), ""
    for name in names:
        if end:
            failed[name] = f"Not tried: {end}"
            continue
        try:
            run = trigger_entry(visit.actor, name, request=request_of_form(visit.typed("once"), {}))
            (repeated if run.is_repeated else sent).append(name)
        except (BrokerUnavailable, StoreUnavailable) as exc:
            failed[name] = end = str(exc)  # each further one would take as long to fail
        except RedBeatError as exc:
            failed[name] = str(exc)
    left = f"{_counted(repeated)} sent a run by this form before"
    return _answer(visit, names, "Sent a run of", sent, failed, repeated, left)


def delete_entries(visit: Visit) -> Response:
    """Ask about entries that are to be deleted; or delete them."""
    names = _chosen(visit)
    if not names or not visit.is_confirmed:
        return _ask(visit, "delete", names)
    found = read_rows(visit.app, [Row(name) for name in names])
    there = [name for name, entry in zip(names, found, strict=True) if entry is not None]
    try:
        editing.delete_entries(visit.actor, Selection(names))
    except EntryError as exc:
        return _answer(visit, names, "Deleted", [], dict.fromkeys(names, str(exc)))
    return _answer(visit, names, "Deleted", there, {})


@dataclass(frozen=True)
class Verb:
    """How a verb is called on its button and in its question, and what is to be known before."""

    label: str
    more: str
    tone: str = "primary"


VERBS = {
    "pause": Verb(
        "Pause",
        "Nothing is sent until they are resumed. Those that are paused or disabled stay as they are.",
    ),
    "resume": Verb(
        "Resume", "Each is due at its next time from now on. Those that aren't paused stay as they are."
    ),
    "trigger": Verb("Run now", "The task of each is sent once, at once. Their schedules stay as they are."),
    "delete": Verb(
        "Delete",
        "Their histories and counts of runs go, too. The only way back is a file that was exported before.",
        "danger primary",
    ),
}


def ask_about_pause(visit: Visit) -> Response:
    """Ask for the note and the end of a pause."""
    return _ask(visit, "pause", visit.request.query_params.getlist("name"))


def ask_about_delete(visit: Visit) -> Response:
    """Ask whether an entry is to be deleted."""
    return _ask(visit, "delete", visit.request.query_params.getlist("name"))


def _ask(visit: Visit, verb: str, names: Sequence[str], problem: str = "", **typed: str) -> Response:
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
        typed={"note": "", "until": "", **typed},
    )


def _place(visit: Visit, names: Sequence[str]) -> tuple[str, Mapping[str, object]]:
    """Return the page from which entries were chosen, and its query."""
    if visit.query.get("back") == "entry" and len(names) == 1:
        return "entry", {"name": names[0]}
    return "entries", View.of(visit.query).here()


def _back(visit: Visit, names: Sequence[str]) -> str:
    place, query = _place(visit, names)
    return visit.link(place, **query)


def _answer(
    visit: Visit,
    names: Sequence[str],
    done: str,
    changed: Sequence[str],
    failed: Mapping[str, str],
    left: Sequence[str] = (),
    about_left: str = "",
) -> Response:
    """Tell the outcome: beside the entries' rows, in a notice, or on a page if not all was done."""
    failed = {name: in_words_of(words, visit.zone) for name, words in failed.items()}
    known = {*changed, *failed, *left}
    gone = [name for name in names if name not in known]
    told = "; ".join([*([f"{done} {_which(changed)}"] if changed else []), *([about_left] if left else [])])
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
        return visit.render(
            "entries_result.html",
            title="Not all was done",
            told=told,
            failed=dict(list(failed.items())[:MAX_TOLD]),
            rest=max(len(failed) - MAX_TOLD, 0),
            gone=gone[:MAX_TOLD],
            back=_back(visit, names),
        )
    place, query = _place(visit, names) if done != "Deleted" else ("entries", View.of(visit.query).here())
    return visit.see(place, notice=f"{told[:1].upper()}{told[1:]}." if told else "", **query)


def _chosen(visit: Visit) -> list[str]:
    """Return the names that were ticked, each once."""
    return list(dict.fromkeys(visit.names()))


def _counted(names: Sequence[str]) -> str:
    return "1 entry was" if len(names) == 1 else f"{len(names):,} entries were"


def _which(names: Sequence[str]) -> str:
    return _one(names[0]) if len(names) == 1 else f"{len(names):,} entries"


def _one(name: str) -> str:
    return one_line(name, 100)


ROUTES: list[BaseRoute] = [
    page("/entries/pause", ask_about_pause, right=Right.PAUSE),
    action("/entries/pause", pause_entries, right=Right.PAUSE),
    action("/entries/resume", resume_entries, right=Right.PAUSE),
    action("/entries/trigger", run_entries, right=Right.RUN),
    page("/entries/delete", ask_about_delete, right=Right.DELETE),
    action("/entries/delete", delete_entries, right=Right.DELETE),
]
