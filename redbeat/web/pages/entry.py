"""One entry: its fields in words and as JSON, its next runs, those in progress, and those past."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import datetime
from typing import Any

from starlette.responses import Response
from starlette.routing import BaseRoute

from redbeat.diagnostics.facts import Facts, read_facts
from redbeat.diagnostics.why import Answer, told_by
from redbeat.entries.describe import description_of, zones_in_words
from redbeat.entries.documents import Overview, document_of, overview_of, policy_rows, raw_fields, read_object
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.marks import Mark, marks_of, zone_for
from redbeat.entries.query import STATES
from redbeat.entries.search import read_listed
from redbeat.entries.upcoming import next_run_in_words
from redbeat.entries.wording import in_words_of, label_of, one_line
from redbeat.errors import AccessDenied, EntryError, EntryNotFound
from redbeat.history import FAILED_OUTCOMES, PastRun
from redbeat.operations.hiding import Hiding, hide, hide_in, hiding_of, is_too_deep, may_hide
from redbeat.operations.showing import hide_in_sentence, why
from redbeat.runs.figures import Figures
from redbeat.web.pages.entry_actions import ACTIONS
from redbeat.web.pages.looks import SLOTS
from redbeat.web.routes import page
from redbeat.web.visit import Visit

#: how many next and past runs are shown, and how many somebody may ask for
RUNS, MORE_RUNS = 10, 100


def show_entry(visit: Visit) -> Response:
    """Show the page of an entry, or for htmx the part of it that changes."""
    entry = read_listed(visit.app, visit.query.get("name", ""))
    count = MORE_RUNS if visit.query.get("more") else RUNS
    problems = dict[str, str]()
    after = visit.time("after", problems, ahead=True)
    found = overview_of(entry, visit.zone, next_runs=count, last_runs=max(count, SLOTS), after=after)
    facts = None
    with suppress(EntryNotFound):  # its hash is gone
        facts = read_facts(visit.app, str(entry.name))
    error = hide_in_sentence(visit.app, entry.stored, entry.error or found.problem)
    sent = visit.query.get("sent", "")
    task_ids = [*(run.task_id for run in found.running), *(run.task_id for run in found.history)]
    template = "entry_live.html" if visit.is_fragment else "entry.html"
    return visit.render(
        template,
        title=one_line(entry.name, 200),
        found=found,
        entry=entry,
        name=str(entry.name),
        own_url=visit.link("entry", **dict(visit.query)),
        has_more=count == RUNS,
        state_words=STATES.get(str(entry.state), ""),
        figures_words=figures_in_words(found.figures),
        zones_words=zones_in_words(entry, visit.zone),
        error=in_words_of(one_line(error, 2000), visit.zone),
        description=description_of(entry, visit.zone),
        next_words=", ".join(filter(None, next_run_in_words(entry, visit.zone, visit.now))),
        next_runs=_marked(visit, entry, found, after or visit.now),
        after=after,
        after_problem=problems.get("after", ""),
        history=[(run, _reason(visit, facts, run)) for run in found.past[:count]],
        failed_outcomes=FAILED_OUTCOMES,
        last_sent=next((run for run in found.history if run.is_sent), None),
        outcomes=[run.outcome for run in reversed(found.history[:SLOTS])],
        sent=sent if sent in task_ids else "",
        why_not=why_not_run(visit, entry),
        actions=[one for one in ACTIONS if visit.user.may(one.operation.right)],
        own_zone=label_of(zone_for(entry)),
        **({} if visit.is_fragment else {"answer": _answer(visit, facts), **_fields(visit, entry)}),
    )


def _fields(visit: Visit, entry: RedBeatSchedulerEntry) -> dict[str, Any]:
    """Return what the page alone shows, as it changes with an edit only."""
    hiding = hiding_of(visit.app)
    document = {**document_of(entry), **({} if not entry.problem else raw_fields(entry.stored))}
    error = hide_in_sentence(visit.app, entry.stored, entry.error) or None
    shown = {**hide(document, hiding), "error": error}
    raw, is_kept_back = raw_text(entry, hiding)
    return {
        "is_json": visit.query.get("as") == "json",
        "document": shown,
        "arguments": [
            (name, one_line(json.dumps(shown[name], ensure_ascii=False, default=str), 4000))
            for name in ("args", "kwargs", "options")
            if shown.get(name)
        ],
        "policy": policy_rows(entry, visit.zone) if not entry.problem else [],
        "raw": raw,
        "is_kept_back": is_kept_back,
    }


def raw_text(entry: RedBeatSchedulerEntry, hiding: Hiding) -> tuple[str, bool]:
    """Return what stands in Redis of an entry that can't be used, and whether it is kept back.

    What isn't JSON can't be hidden in part: if it may have a hidden argument, none of it is shown.
    """
    stored = entry.stored
    if stored is None or not entry.problem:
        return "", False
    texts, is_kept_back = [], False
    for field, text in (("definition", stored.definition), ("policy", stored.policy), ("meta", stored.meta)):
        if not text:
            continue
        value = read_object(text)
        shown = None if value is None else hide(value, hiding)
        if is_too_deep(shown) or (shown is None and may_hide(text, hiding)):
            is_kept_back = True
        elif shown is not None:
            texts.append(f"{field}: {json.dumps(hide_in(shown, hiding), indent=2, ensure_ascii=False)}")
        else:
            texts.append(f"{field}: {text[:100_000]}")
    return "\n".join(texts), is_kept_back


def figures_in_words(figures: Figures) -> str:
    """Return how many of an entry's last runs have succeeded, and how many have failed since."""
    if figures.runs == 1:
        return "the only run that is recorded " + ("succeeded" if figures.succeeded else "didn't")
    words = f"{figures.succeeded} of the last {figures.runs} runs"
    row = figures.failures_in_a_row
    if not row:
        return words
    return f"{words}; the last one failed" if row == 1 else f"{words}; the last {row} failed"


def _marked(
    visit: Visit, entry: RedBeatSchedulerEntry, found: Overview, since: datetime
) -> list[tuple[datetime, list[Mark]]]:
    try:
        marks = marks_of(entry, found.next_runs, visit.zone, since) if found.next_runs else []
    except (EntryError, ValueError, OverflowError):  # it takes too long: the runs are known all the same
        marks = [[] for _ in found.next_runs]
    return list(zip(found.next_runs, marks, strict=True))


def _reason(visit: Visit, facts: Facts | None, run: PastRun) -> str:
    """Return why a run of the past went so."""
    reason = told_by(facts, run, with_id=False).reason if facts is not None else run.why or run.error
    return in_words_of(one_line(reason, 1000), visit.zone)


def _answer(visit: Visit, facts: Facts | None) -> tuple[Answer | None, str]:
    """Return why the run at the time that somebody asks for did or did not happen, and its words."""
    problems = dict[str, str]()
    at = visit.time("at", problems)
    if at is None or facts is None:
        return None, problems.get("at", "")
    answer = why(visit.actor, facts, at)
    return answer, in_words_of(one_line(answer.reason, 1000), visit.zone)


def why_not_run(visit: Visit, entry: RedBeatSchedulerEntry) -> str:
    """Return why the entry's task can't be run or changed from here; '': it can."""
    if not (visit.may("run") or visit.may("edit")) or entry.task is None:
        return ""
    try:
        visit.actor.require_call(str(entry.task), entry.options)
    except AccessDenied as exc:
        return str(exc)
    return ""


ROUTES: list[BaseRoute] = [page("/entry", show_entry)]
