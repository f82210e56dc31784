"""``trigger``, ``backfill``, ``rerun`` and ``runs --give-up``: runs that somebody asks for, or gives up."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from redbeat.access import Right
from redbeat.entries.backfill import Sent, sent_by
from redbeat.entries.backfill import trigger_once as trigger_once_now
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.rerun import choose_run, failed_runs, rerun_each, rerun_one
from redbeat.entries.runs import find_runs, give_up_runs
from redbeat.entries.sending import naming_the_broker
from redbeat.errors import AccessDenied, EntryError, LockNotAcquired, RunNotSent
from redbeat.operations.actor import Actor
from redbeat.operations.editing import whole
from redbeat.runs.run import Run

#: how many runs one backfill, or one request for all that have failed, sends at most
MAX_SENT = 1000


@dataclass
class Rerun:
    """What became of runs that were to be sent once more.

    Attributes:
        sent: their number.
        failed: why others weren't, by the entries' names.
    """

    sent: int = 0
    failed: dict[str, str] = field(default_factory=dict)


def trigger(actor: Actor, name: str, overrides: Mapping[str, Any]) -> str:
    """Send the task of an entry now, once; return the task id.

    Arguments:
        overrides: ``args``, ``kwargs`` and ``queue`` for this run; None: the entry's. What is hidden in them
            is sent as it is stored.
    """
    entry, given = _asked(actor, name, overrides)
    with actor.doing("trigger", [name], given, entry.task), naming_the_broker(actor.app, name):
        return str(entry.trigger(**given).id)


def check_trigger(actor: Actor, name: str, overrides: Mapping[str, Any]) -> None:
    """Raise what ``trigger`` would, as far as that can be told without sending anything."""
    _asked(actor, name, overrides)


def trigger_once(actor: Actor, name: str, request: str, overrides: Mapping[str, Any]) -> Sent:
    """Send the task of an entry now, unless the same request has done so within a day.

    Arguments:
        request: what tells it from other requests of the same user.
        overrides: as ``trigger`` takes them.

    Raises:
        EntryError: it has sent a run with other arguments.
        LockNotAcquired: it is being sent at this moment.
    """
    entry, given = _asked(actor, name, overrides)
    of_user = f"{actor.user.name}\n{request}"
    sent = sent_by(entry, of_user, given)
    if sent is not None:
        return sent
    with actor.doing("trigger", [name], given, entry.task), naming_the_broker(actor.app, name):
        return trigger_once_now(entry, of_user, given)


def trigger_by_form(actor: Actor, name: str, once: str, overrides: Mapping[str, Any]) -> Sent:
    """Send the task of an entry now, once, however often the same form is sent.

    Arguments:
        once: what tells one form from another; '': each call sends a run.
        overrides: as ``trigger`` takes them; with others, from the same form, another run is sent.
    """
    if not once:
        return Sent(trigger(actor, name, overrides))
    return trigger_once(actor, name, f"{once}\n{json.dumps(overrides, sort_keys=True)}", overrides)


def _asked(
    actor: Actor, name: str, overrides: Mapping[str, Any]
) -> tuple[RedBeatSchedulerEntry, dict[str, Any]]:
    """Return an entry that the actor may run so, and what its run is given in place of its own."""
    actor.require(Right.RUN)
    entry = RedBeatSchedulerEntry.get(name, actor.app)
    asked = {one: overrides[one] for one in ("args", "kwargs", "queue") if overrides.get(one) is not None}
    queue = {"queue": asked["queue"]} if "queue" in asked else {}
    actor.require_call(str(entry.task), {**(entry.options or {}), **queue})
    return entry, whole(actor, asked, entry)


def backfill(
    actor: Actor, name: str, begin: datetime, end: datetime, *, dry_run: bool, limit: int = MAX_SENT
) -> Sequence[datetime]:
    """Send the runs that an entry's schedule has in a span, each once; return their due times.

    Raises:
        EntryError: there are more than ``limit``.
    """
    entry = _that_may_run(actor, name)
    if dry_run:
        return entry.backfill(begin, end, True, limit=limit)
    with (
        actor.doing("backfill", [name], {"from": begin, "to": end}),
        naming_the_broker(actor.app, name),
    ):
        return entry.backfill(begin, end, limit=limit)


def rerun(actor: Actor, name: str, due: datetime | None) -> tuple[Run, str]:
    """Send a run of an entry once more; return which one, and its new task id.

    Arguments:
        due: None: the last one that has failed.
    """
    entry = _that_may_run(actor, name)
    with actor.doing("rerun", [name], {"due": due}), naming_the_broker(actor.app, name):
        run, result = rerun_one(entry, due)
    return run, str(result.id)


def find_rerun(actor: Actor, name: str, due: datetime | None) -> Run:
    """Return the run that ``rerun`` would send once more, or raise what it would."""
    return choose_run(_that_may_run(actor, name), due)


def _that_may_run(actor: Actor, name: str) -> RedBeatSchedulerEntry:
    """Return an entry that the actor may run as it is."""
    actor.require(Right.RUN)
    entry = RedBeatSchedulerEntry.get(name, actor.app)
    actor.require_call(str(entry.task), entry.options)
    return entry


def rerun_failed(actor: Actor, since: datetime, match: str = "*", *, dry_run: bool = False) -> Rerun:
    """Send all runs once more that have failed since a time, but those that somebody has repeated already."""
    actor.require(Right.RUN)
    result = Rerun()
    listed = failed_runs(actor.app, since, match)
    if not dry_run and listed:
        with actor.doing("rerun", sorted(listed), {"since": since, "match": match}):
            _rerun_all(actor, listed, result, dry_run=False)
    else:
        _rerun_all(actor, listed, result, dry_run=dry_run)
    return result


def rerun_chosen(actor: Actor, chosen: Collection[tuple[str, datetime]]) -> Rerun:
    """Send runs that have failed once more, by their names and due times, but those repeated already.

    One that isn't known to have failed is left, and so are those of which ``MAX_SENT`` are sent.
    """
    actor.require(Right.RUN)
    result, wanted = Rerun(), {(name, round(due.timestamp(), 3)) for name, due in chosen}
    found = failed_runs(actor.app, min(due for _, due in chosen)) if chosen else {}
    listed = {
        name: mine
        for name, runs in found.items()
        if (mine := [run for run in runs if (name, round(run.due.timestamp(), 3)) in wanted])
    }
    for name in {name for name, _ in wanted} - listed.keys():
        result.failed[name] = f"{name}: no run is known that was due then and has failed."
    if listed:
        with actor.doing("rerun", sorted(listed), {"runs": sum(map(len, listed.values()))}):
            _rerun_all(actor, listed, result, dry_run=False)
    return result


def _rerun_all(actor: Actor, listed: Mapping[str, Sequence[Run]], result: Rerun, *, dry_run: bool) -> None:
    for name, runs in listed.items():
        try:
            entry = RedBeatSchedulerEntry.get(name, actor.app)
            actor.require_call(str(entry.task), entry.options)
            with naming_the_broker(actor.app, name):
                done = rerun_each(entry, runs[: MAX_SENT - result.sent], dry_run=dry_run)
        except (AccessDenied, EntryError, LockNotAcquired, RunNotSent) as exc:  # the others go on
            result.failed[name] = str(exc)
            continue
        result.sent += len(done.sent)
        if done.left:
            result.failed[name] = done.left[0][1]


def give_up(actor: Actor, name: str, task_ids: Sequence[str] | None = None) -> Sequence[Run]:
    """End runs in progress of an entry as lost; return those that have ended so.

    Arguments:
        task_ids: None: all of them.
    """
    actor.require(Right.RUN)
    found = [run for run in find_runs(actor.app, ["running"], name=name) if run.is_running]
    chosen = [run for run in found if task_ids is None or run.task_id in task_ids]
    if not chosen:
        return []
    with actor.doing("runs --give-up", [name], {"task_ids": [run.task_id for run in chosen]}):
        return give_up_runs(actor.app, chosen, actor.user.name)
