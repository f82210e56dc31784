"""The operations about one entry that have a button on its page: run now, backfill, and every new one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.routing import BaseRoute

from redbeat.access import Right
from redbeat.entries.backfill import told_of_beginnings
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.wording import one_line
from redbeat.log.text import counted
from redbeat.operations.editing import fields_of
from redbeat.operations.hiding import hide, hiding_of
from redbeat.operations.running import Backfilled, Triggered, backfill_entry, trigger_entry
from redbeat.operations.table import OPERATIONS
from redbeat.web.pages.entry_form import json_of
from redbeat.web.pages.entry_more import EntryAction, Query, routes_of
from redbeat.web.visit import Visit

#: how many due times of a backfill are listed
MOST_LISTED = 200
#: operations with buttons elsewhere
_ELSEWHERE = {f"entry.{name}" for name in ("pause", "resume", "put", "set", "delete", "rerun", "give_up")}


def _own_arguments(visit: Visit, entry: RedBeatSchedulerEntry) -> dict[str, str]:
    shown = hide(fields_of(entry), hiding_of(visit.app))
    options = shown.get("options")
    queue = options.get("queue") if isinstance(options, Mapping) else None
    return {
        "args": json_of(shown.get("args") or []),
        "kwargs": json_of(shown.get("kwargs") or {}),
        "queue": str(queue or ""),
    }


def _sent(run: Triggered) -> tuple[str, Query]:
    words = f"Sent {one_line(run.task, 200)}; its task id is {run.task_id}."
    if run.is_repeated:
        words = f"This form has sent it already, once; its task id is {run.task_id}."
    return words, {"sent": run.task_id}


def _runs_to_send(
    visit: Visit, entry: RedBeatSchedulerEntry, found: Backfilled, given: Mapping[str, Any]
) -> dict[str, Any]:
    dues = found.runs
    return {
        "count": len(dues),
        "what": counted(len(dues), "run", "runs"),
        "dues": dues[:MOST_LISTED],
        "begun": told_of_beginnings([(entry, dues)], given["begin"], visit.zone).strip() if dues else "",
        "is_to_come": "end" in given and given["end"] > visit.now,
    }


def _backfilled(found: Backfilled) -> tuple[str, Query]:
    return f"Sent {counted(len(found.runs), 'run', 'runs')}.", {}


_OWN = (
    EntryAction(trigger_entry, ("entry", "run"), "Run now", "play", _own_arguments, _sent),
    EntryAction(
        *(backfill_entry, ("entry", "backfill"), "Backfill", "skip"),
        words=_backfilled,
        preview="entry_backfill.html",
        show=_runs_to_send,
    ),
)
_KNOWN = {*_ELSEWHERE, *(one.operation.name for one in _OWN)}
#: all of them, in the order of their buttons
ACTIONS = (
    *_OWN,
    *(
        EntryAction(one, ("entry", "more", one.name), one.command.capitalize())
        for one in OPERATIONS
        if one.name.startswith("entry.") and one.right is not Right.READ and one.name not in _KNOWN
    ),
)

ROUTES: list[BaseRoute] = [route for one in ACTIONS for route in routes_of(one)]
