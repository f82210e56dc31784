"""What is done with runs: sent once more, one, those that are ticked or all that have failed; and given up.

Invariant: nothing is sent or given up before the user has confirmed it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from dateutil.parser import isoparse
from starlette.responses import Response
from starlette.routing import BaseRoute

from redbeat.access import Right
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.rerun import Reruns, find_reruns
from redbeat.entries.wording import one_line
from redbeat.errors import EntryError
from redbeat.log.text import counted
from redbeat.operations.running import MAX_SENT, RerunMany, give_up, rerun_entry, rerun_failed
from redbeat.runs.run import Run
from redbeat.schedules.timezones import in_utc
from redbeat.web.jobs import Ending, Result, Tell
from redbeat.web.pages.changing import make_change
from redbeat.web.pages.entries_chosen import show_failures
from redbeat.web.pages.runs import FILTERS, ONCE_MORE, SHOWN, SPANS, choices_with
from redbeat.web.routes import action, page
from redbeat.web.visit import Visit, checked_pattern


def _back(visit: Visit, notice: str, sent: str | None = None) -> Response:
    """Return to the list as it was, or to the page of the entry on which the button stands."""
    visit.dashboard.jobs.forget("runs")
    if visit.query.get("back") == "entry":
        return visit.see("entry", notice=notice, name=visit.typed("name"), sent=sent)
    return visit.see("runs", notice=notice, **_kept(visit))


def _kept(visit: Visit) -> dict[str, str | None]:
    """Return what the list was asked for."""
    return {field: visit.query.get(field) or None for field in FILTERS}


def _due_of(text: str) -> datetime:
    try:
        return in_utc(isoparse(text))
    except (ValueError, OverflowError):
        raise EntryError("due: must be a time such as 2030-12-24T18:00:00+00:00.", "") from None


def do_rerun(visit: Visit) -> Response:
    """Send one run once more."""
    name, due = visit.typed("name"), visit.typed("due")
    if not visit.is_confirmed:
        question = "Send this run once more?"
        more = f"{name}, the run that was due at {due}. It has the same due time, and a task id of its own."
        return _ask(visit, "rerun-one", question, "Send once more", more, [("name", name), ("due", due)])
    run = rerun_entry(visit.actor, name, due=_due_of(due))
    return _back(visit, f"Sent once more; its task id is {run.task_id}.", run.task_id)


def do_give_up(visit: Visit) -> Response:
    """End runs in progress as lost."""
    name, task_ids = visit.typed("name"), visit.names("task_id")
    if not visit.is_confirmed:
        question = f"Give up {counted(len(task_ids), 'run', 'runs')} of {name}?"
        fields = [("name", name), *(("task_id", task_id) for task_id in task_ids)]
        more = "It ends as lost, and what waits for it goes. No task is terminated."
        return _ask(visit, "give-up", question, "Give up", more, fields)
    done = give_up(visit.actor, name, task_ids).runs
    left = len(task_ids) - len(done)
    notice = f"Gave up {counted(len(done), 'run', 'runs')}."
    if left:
        notice += f" {counted(left, 'run has', 'runs have')} gone on or ended meanwhile."
    return _back(visit, notice)


def _ask(visit: Visit, path: str, question: str, label: str, more: str, fields: Any) -> Response:
    """Return the page that asks, where there is no script."""
    return visit.ask(
        question,
        label,
        visit.link("runs", path, **visit.query),
        fields,
        back=visit.link("runs", **_kept(visit)),
        more=more,
        tone="danger primary" if path == "give-up" else "primary",
    )


def show_rerun(visit: Visit) -> Response:
    """Return the page that says what would be sent once more."""
    since, match = visit.query.get("since", "").strip() or "1d", visit.pattern("match")
    errors, result = dict[str, str](), Result[Reruns]()
    begin = visit.time("since", errors) or visit.now - timedelta(days=1)
    if not errors:

        def look(_tell: Tell[Reruns]) -> Reruns:
            return find_reruns(RedBeatSchedulerEntry, visit.app, begin, match or "*")

        result = visit.dashboard.jobs.read("reruns", (since, match), look)
    found = result.found
    runs: list[Run] = [] if found is None else [run for listed in found.runs.values() for run in listed]
    return visit.render(
        "rerun_part.html" if visit.is_fragment else "rerun.html",
        422 if errors else 200,
        title="Send failed runs once more",
        result=result,
        found=found,
        runs=runs[:SHOWN],
        total=len(runs),
        what=counted(len(runs), "run", "runs"),
        entries=counted(0 if found is None else len(found.runs), "entry", "entries"),
        since=since,
        match=match,
        errors=errors,
        spans=choices_with(SPANS[1:], since),
        most=MAX_SENT,
        here=visit.link("runs", "rerun", since=since, match=match or None),
    )


def do_rerun_failed(visit: Visit) -> Response:
    """Send all runs once more that have failed since a time."""
    since, errors = visit.typed("since"), dict[str, str]()
    match = checked_pattern("match", visit.typed("match"))
    if not visit.is_confirmed:
        return visit.see("runs", "rerun", since=since or None, match=match or None)
    begin = visit.time("since", errors)
    if begin is None:
        raise EntryError(f"since: {errors.get('since', 'give a time, such as 1d.')}", "")
    return _rerun_failed(visit, "Sending what has failed", since=begin, match=match or None)


def do_rerun_chosen(visit: Visit) -> Response:
    """Send the ticked runs once more, except runs that were sent once more already."""
    values = visit.names("run")
    chosen = [_run_of(value) for value in values]
    if not chosen:
        return _back(visit, "No run was ticked.")
    if not visit.is_confirmed:
        question = f"Send {counted(len(chosen), 'run', 'runs')} once more?"
        names = ", ".join(dict.fromkeys(one_line(name, 80) for name, _ in chosen[:10]))
        more = f"{names}{' and others' if len(chosen) > 10 else ''}. {ONCE_MORE}"
        return _ask(visit, "rerun-chosen", question, "Send once more", more, [("run", one) for one in values])
    what = f"Sending {counted(len(chosen), 'run', 'runs')}"
    return _rerun_failed(visit, what, since=min(due for _, due in chosen), chosen=chosen)


def _rerun_failed(visit: Visit, what: str, **chosen: Any) -> Response:
    """Send the failed runs once more that ``rerun_failed`` finds with these arguments."""
    actor, kept = visit.actor, _kept(visit)

    def send(tell: Tell[str]) -> Ending:
        tell(what)
        return _ending(kept, rerun_failed(actor, **chosen))

    return make_change(visit, "Send once more", send)


def _run_of(text: str) -> tuple[str, datetime]:
    """Return the name and the due time of a run that was ticked."""
    try:
        name, due = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        name = due = None
    if not isinstance(name, str) or not isinstance(due, str):
        raise EntryError("run: must be a name and a due time.", "")
    return name, _due_of(due)


def _ending(kept: Mapping[str, str | None], done: RerunMany) -> Ending:
    told, forgets = f"Sent {counted(done.sent, 'run', 'runs')} once more", ("runs", "reruns")
    if not done.failed:
        return Ending(f"{told}.", ("runs",), kept, forgets=forgets)

    def show(visit: Visit) -> Response:
        return show_failures(visit, told if done.sent else "", done.failed, visit.link("runs"))

    entries, first = counted(len(done.failed), "entry", "entries"), next(iter(done.failed.values()))
    words = f"{told}. Not all of {entries} could be sent. Of the first one: {first}"
    return Ending(words, ("runs",), kept, 200, show, forgets)


ROUTES: list[BaseRoute] = [
    action("/runs/rerun-one", do_rerun, right=Right.RUN),
    action("/runs/rerun-chosen", do_rerun_chosen, right=Right.RUN),
    action("/runs/give-up", do_give_up, right=Right.RUN),
    page("/runs/rerun", show_rerun, right=Right.RUN),
    action("/runs/rerun", do_rerun_failed, right=Right.RUN),
]
