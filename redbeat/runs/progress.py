"""How far a run in progress is, in words. Pure.

Invariant: times are in UTC and say so; sentences have neither a capital at their beginning nor a stop at
their end.
"""

from __future__ import annotations

from datetime import datetime

from redbeat.runs.run import Run
from redbeat.schedules.timezones import moment_of, shown
from redbeat.store.records import Held

#: said of runs on their queues while that is so
UNTRACKED = "no live worker tracks runs, so nobody knows whether it was begun"


def progress_in_words(run: Run) -> str:
    """Return how far a run in progress is, on which worker, and since when."""
    where = "" if run.worker is None else f" on {run.worker}"
    overdue = ", longer than its max_runtime" if run.is_overdue else ""
    if run.state == "sent":
        return f"it is on its queue{_since(run.sent_at)}"
    if run.state == "started":
        return f"it is at work{where}{_since(run.started_at)}{overdue}"
    if run.state == "retrying":
        when = "" if run.retry_at is None else f", which may begin from {shown(run.retry_at)} on"
        return f"it waits for attempt {run.attempt}{when}, after one{where}{overdue}"
    if run.state == "spawned":
        return f"its own task is over, and its workflow goes on{_since(run.started_at)}{overdue}"
    return "it has just ended"


def hold_in_words(run: Run, now: datetime) -> str:
    """Return until when a run holds its entry at most, and what would make that longer; '': it doesn't."""
    if run.held_until is None:
        return ""
    if run.held_until <= now:
        return "it holds the entry until a beat gives it up"
    unless = {
        "started": "its worker renews its lease",
        "retrying": "a worker begins that attempt",
        "spawned": "tasks of its workflow are at work then",
    }.get(str(run.state), "a worker begins it")
    return f"it holds the entry until {shown(run.held_until)} at most, unless {unless}"


def holder_in_words(held: Held) -> str:
    """Return which run holds another one back, what it does, and which one waits for it already."""
    since = "" if held.since is None else shown(moment_of(held.since))
    if held.state == "retrying":
        what = "waits for its next attempt" + (since and f", which may begin from {since} on")
    elif held.state == "reserved":
        what = "is being published"
    elif held.state == "spawned":
        what = "has its own task behind it, and its workflow at work" + (since and f" since {since}")
    else:
        where = f"in progress on {held.worker}" if held.worker else "on its queue"
        what = f"is {where}" + (since and f" since {since}")
    if held.behind is None:
        return f"the run {held.by} {what}"
    waits = f"another run waits already, {held.behind}"
    return waits if held.behind == held.by else f"{waits}, for the run {held.by}, which {what}"


def _since(moment: datetime | None) -> str:
    return "" if moment is None else f" since {shown(moment)}"
