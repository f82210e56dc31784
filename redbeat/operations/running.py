"""Runs that a user asks for, repeats or gives up."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any

from redbeat.access import Right
from redbeat.entries.backfill import trigger_once
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.rerun import choose_run, find_reruns, rerun_each, rerun_one
from redbeat.entries.runs import (
    IN_PROGRESS,
    SOUGHT,
    find_running,
    find_runs,
    give_up_runs,
    read_history,
    with_histories,
)
from redbeat.entries.search import read_listed
from redbeat.entries.sending import naming_the_broker
from redbeat.errors import (
    AccessDenied,
    ArgumentInvalid,
    BrokerUnavailable,
    EntryBusy,
    EntryError,
    EntryNotFound,
    LockNotAcquired,
    RunNotSent,
)
from redbeat.history import FAILED_OUTCOMES, PastRun
from redbeat.log.text import counted
from redbeat.operations.actor import Actor
from redbeat.operations.editing import whole
from redbeat.operations.operation import Moment, Option, given_values, operation
from redbeat.operations.selection import Enough, Match, NameOfEntry, Rest, Selection, for_each
from redbeat.runs.run import Run

#: how many runs one backfill, or one request for all that have failed, sends at most
MAX_SENT = 1000
#: states and outcomes of runs that are found without looking at each entry
ALL_KNOWN = (*IN_PROGRESS, *FAILED_OUTCOMES)

Args = Annotated[
    list[Any] | None, Option("Positional arguments for this run: '[1, 2]'. Default: the entry's.")
]
Kwargs = Annotated[
    dict[str, Any] | None, Option("Keyword arguments for this run: '{\"x\": 1}'. Default: the entry's.")
]
Queue = Annotated[str | None, Option("The queue for this run. Default: the entry's.")]
DryRun = Annotated[bool, Option("Send nothing, and answer what would be sent.")]
Request = Annotated[
    str | None,
    Option(
        "Any text of the client's own, of up to 255 characters. Of several requests with the same key within "
        "a day the first sends the run, and the others answer its task id.",
        header="Idempotency-Key",
    ),
]
Progress = Callable[[int], object]


# -- trigger


@dataclass(frozen=True)
class Triggered:
    """A run that was sent.

    Attributes:
        name: the entry's.
        task_id: None: it would be sent.
        is_repeated: an earlier request with the same key has sent it.
    """

    name: str
    task: str
    task_id: str | None = None
    is_repeated: bool = False


@dataclass(frozen=True, kw_only=True)
class TriggeredMany(Rest):
    """Runs that were sent.

    Attributes:
        sent: the task id of each entry's run, by its name; null: it would be sent.
        repeated: of these an earlier request with the same key has sent the run.
    """

    sent: dict[str, str | None]
    repeated: Sequence[str]


@operation("entry.trigger", Right.RUN, "trigger", "PUT /entries/{name}/trigger")
def trigger_entry(
    actor: Actor,
    name: NameOfEntry,
    *,
    args: Args = None,
    kwargs: Kwargs = None,
    queue: Queue = None,
    request: Request = None,
    dry_run: DryRun = False,
    is_recorded: bool = True,
) -> Triggered:
    """Run an entry now, once.

    Its schedule stays as it is, and so does a pause. What is hidden in the arguments is sent as it is stored.

    Arguments:
        is_recorded: write an audit record of this run, if it is sent.

    Raises:
        EntryNotFound: there is no such entry.
        EntryError: the request has sent a run with other arguments, or a value is invalid.
        LockNotAcquired: the same request is being carried out at this moment.
        RunNotSent: the broker or the task refuses it.
    """
    entry, overrides = RedBeatSchedulerEntry.get(name, actor.app), given_values(args=args, kwargs=kwargs)
    routing, task = given_values(queue=queue), str(entry.task)
    actor.require_call(task, {**(entry.options or {}), **routing})
    given = whole(actor, {**overrides, **routing}, entry)
    if dry_run:
        return Triggered(name, task)
    record = actor.doing("trigger", [name], given, task) if is_recorded else nullcontext()
    sending = _sending(actor, name, record)
    if request is not None:
        return Triggered(name, task, *trigger_once(entry, f"{actor.user.name}\n{request}", given, sending))
    with sending:
        return Triggered(name, task, str(entry.trigger(**given).id))


@contextmanager
def _sending(actor: Actor, name: str, record: AbstractContextManager[None]) -> Iterator[None]:
    """Name the broker in errors of what is sent, also in the audit record."""
    with record, naming_the_broker(actor.app, name):
        yield


@operation("entries.trigger", Right.RUN, "trigger", "PUT /trigger")
def trigger_entries(
    actor: Actor,
    entries: Selection,
    *,
    args: Args = None,
    kwargs: Kwargs = None,
    queue: Queue = None,
    request: Request = None,
    dry_run: DryRun = False,
    sent: Callable[[Triggered], object] = lambda _run: None,
) -> TriggeredMany:
    """Run many entries now, each once.

    The command line writes one audit record for all of them; elsewhere each has its own, as its task says
    which arguments are hidden.

    Arguments:
        sent: called with each run.
    """
    overrides, selected = given_values(args=args, kwargs=kwargs, queue=queue), entries.find(actor)

    def send(name: str) -> Triggered:
        run = trigger_entry(
            actor, name, **overrides, request=request, dry_run=dry_run, is_recorded=not actor.has_shell
        )
        if not dry_run:
            sent(run)
        return run

    is_one_record = actor.has_shell and selected.names and not dry_run
    details = given_values(match=entries.match, **overrides)
    with actor.doing("trigger", selected.names, details) if is_one_record else nullcontext():
        done, rest = for_each(selected, send)
    task_ids = {name: run.task_id for name, run in done.items()}
    repeated = [name for name, run in done.items() if run.is_repeated]
    return TriggeredMany(sent=task_ids, repeated=repeated, **vars(rest))


def request_of_form(once: str, overrides: Mapping[str, Any]) -> str | None:
    """Return the request of a form, which sends a run once; with other values it sends another run.

    Arguments:
        once: the token of the form; '': each call sends a run.
    """
    return f"{once}\n{json.dumps(overrides, sort_keys=True, default=str)}" if once else None


# -- backfill


@dataclass(frozen=True)
class Backfilled:
    """Runs of a past span.

    Attributes:
        name: the entry's.
        runs: the due times of those that were sent, or would be.
    """

    name: str
    is_dry_run: bool
    runs: Sequence[datetime]


@dataclass(frozen=True, kw_only=True)
class BackfilledMany(Rest):
    """Runs of a past span of many entries.

    Attributes:
        runs: the due times of those that were sent, or would be, by the entry's name.
        held: of those that failed, the entries whose run in progress lets no other one start.
    """

    runs: dict[str, Sequence[datetime]]
    is_dry_run: bool
    held: Sequence[str]


From = Annotated[Moment, Option("Send runs that were due at this time or later.", called="from")]
To = Annotated[Moment | None, Option("Send runs that were due by this time. Default: now.", called="to")]
Limit = Annotated[int, Option("Send nothing if there are more.", least=1, most=MAX_SENT)]


@operation("entry.backfill", Right.RUN, "backfill", "PUT /entries/{name}/backfill")
def backfill_entry(
    actor: Actor,
    name: NameOfEntry,
    *,
    begin: From,
    end: To = None,
    dry_run: DryRun = False,
    limit: Limit = MAX_SENT,
    progress: Progress | None = None,
) -> Backfilled:
    """Send runs of a past span, each once.

    Runs that a backfill has sent before are left out.

    Raises:
        ArgumentInvalid: the end is before the beginning.
        EntryNotFound: there is no such entry.
        EntryError: there are more than ``limit``.
        RunNotSent: the broker or the task refuses one.
    """
    first, last = _span(actor, begin, end)
    entry = _entry_that_may_run(actor, name)
    if dry_run:
        return Backfilled(name, True, entry.backfill(first, last, True, limit=limit, progress=progress))
    with actor.doing("backfill", [name], {"from": first, "to": last}), naming_the_broker(actor.app, name):
        return Backfilled(name, False, entry.backfill(first, last, limit=limit, progress=progress))


@operation("entries.backfill", Right.RUN, "backfill", "PUT /backfill")
def backfill_entries(
    actor: Actor,
    entries: Selection,
    *,
    begin: From,
    end: To = None,
    dry_run: DryRun = False,
    limit: Limit = MAX_SENT,
    progress: Progress = lambda _done: None,
) -> BackfilledMany:
    """Send runs of a past span of many entries, each once.

    Arguments:
        progress: called with how many runs were found or sent.

    Raises:
        ArgumentInvalid: the end is before the beginning.
    """
    first, last = _span(actor, begin, end)
    count, held = 0, list[str]()

    def send(name: str) -> Sequence[datetime]:
        nonlocal count
        runs = backfill_entry(actor, name, begin=first, end=last, dry_run=True, limit=limit).runs
        if count and count + len(runs) > limit:
            raise Enough
        if runs and not dry_run:
            try:
                runs = backfill_entry(actor, name, begin=first, end=last, limit=limit).runs
            except EntryBusy:
                held.append(name)
                raise
        count += len(runs)
        progress(count)
        return runs

    done, rest = for_each(entries.find(actor), send)
    runs = {name: dues for name, dues in done.items() if dues}
    return BackfilledMany(runs=runs, is_dry_run=dry_run, held=held, **vars(rest))


def _span(actor: Actor, begin: Moment, end: Moment | None) -> tuple[datetime, datetime]:
    first = actor.time(begin)
    last = actor.now if end is None else actor.time(end)
    if last < first:
        raise ArgumentInvalid("to", "must not be before the beginning.")
    return first, last


def _entry_that_may_run(actor: Actor, name: str) -> RedBeatSchedulerEntry:
    """Return an entry that the actor may run as it is."""
    entry = RedBeatSchedulerEntry.get(name, actor.app)
    actor.require_call(str(entry.task), entry.options)
    return entry


# -- rerun


@dataclass(frozen=True)
class Rerun:
    """A run that is sent once more.

    Attributes:
        name: the entry's.
        due: when it was due.
        outcome: how it had ended.
        rerun_of: its task id.
        task_id: that of the new run; None: it would be sent.
    """

    name: str
    due: datetime
    outcome: str | None
    rerun_of: str | None
    task_id: str | None

    @classmethod
    def of(cls, run: Run, task_id: str | None = None) -> Rerun:
        """Return what is told of ``run``, which is sent once more with this task id."""
        return cls(run.name, run.due, run.outcome, run.task_id, task_id)


@dataclass
class RerunMany:
    """Runs that are sent once more.

    Attributes:
        sent: their number.
        failed: why others weren't, by the entries' names.
        held: of these, the ones that wait for another run of their entry.
    """

    is_dry_run: bool
    sent: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    held: dict[str, str] = field(default_factory=dict)


@operation("entry.rerun", Right.RUN, "rerun", "PUT /entries/{name}/rerun")
def rerun_entry(
    actor: Actor,
    name: NameOfEntry,
    *,
    due: Annotated[
        Moment | None, Option("The run that was due at this time. Default: the last that has failed.")
    ] = None,
    dry_run: DryRun = False,
) -> Rerun:
    """Send a run once more.

    Raises:
        EntryNotFound: there is no such entry.
        EntryError: no such run is known.
        EntryBusy: the entry's overlap policy holds it back.
        RunNotSent: the broker or the task refuses it.
    """
    entry, moment = _entry_that_may_run(actor, name), None if due is None else actor.time(due)
    run = choose_run(entry, moment)
    if dry_run:
        return Rerun.of(run)
    details = {"due": moment or run.due, "task_id": run.task_id}
    with actor.doing("rerun", [name], details), naming_the_broker(actor.app, name):
        run, result = rerun_one(entry, moment)
    return Rerun.of(run, str(result.id))


@operation("runs.rerun", Right.RUN, "rerun", "PUT /rerun")
def rerun_failed(
    actor: Actor,
    *,
    since: Annotated[Moment, Option("Runs that have failed since this time, such as 1d.")],
    match: Match = None,
    dry_run: DryRun = False,
    chosen: Collection[tuple[str, datetime]] | None = None,
    limit: int | None = MAX_SENT,
    progress: Callable[[Run, str], object] = lambda _run, _task_id: None,
) -> RerunMany:
    """Send all failed runs once more.

    Runs that were sent once more already are left out.

    Arguments:
        chosen: only these, by their names and due times.
        limit: at most so many; None: all.
        progress: called with each run that was sent, and its new task id.

    Raises:
        BrokerUnavailable: it says how many runs were sent.
    """
    begin = actor.time(since)
    found = find_reruns(RedBeatSchedulerEntry, actor.app, begin, match or "*", chosen)
    result = RerunMany(dry_run, failed=found.failed)

    def note(run: Run, task_id: str) -> None:
        result.sent += 1
        progress(run, task_id)

    details = given_values(since=begin, match=match, runs=sum(map(len, found.runs.values())))
    with nullcontext() if dry_run or not found.runs else actor.doing("rerun", [*found.runs], details):
        for name, runs in found.runs.items():
            entry, some = found.entries[name], runs if limit is None else runs[: limit - result.sent]
            try:
                actor.require_call(str(entry.task), entry.options)
                if dry_run:
                    result.sent += len(some)
                    continue
                with naming_the_broker(actor.app, name):
                    held = rerun_each(entry, some, note)
            except BrokerUnavailable as exc:
                exc.add(f"{counted(result.sent, 'run was', 'runs were')} sent once more.")
                raise
            except (AccessDenied, EntryError, LockNotAcquired, RunNotSent) as exc:
                result.failed[name] = str(exc)
                continue
            if held:
                result.failed[name] = result.held[name] = held
    return result


# -- runs in progress and past ones


@dataclass(frozen=True)
class Runs:
    """Runs.

    Attributes:
        count: how many there are; ``runs`` may have fewer of them.
    """

    runs: Sequence[Run]
    count: int


@dataclass(frozen=True)
class History:
    """The last runs of an entry, the newest first."""

    name: str
    history: Sequence[PastRun]


Since = Annotated[
    Moment | None, Option("Past runs that have ended since this time: 1d, yesterday 9:00, or a time.")
]
Most = Annotated[int, Option("At most this many.", least=1, most=1000)]


@operation("runs.list", Right.READ, "runs", "GET /runs")
def list_runs(
    actor: Actor,
    *,
    match: Match = None,
    state: Annotated[
        list[str] | None,
        Option("Only these, with commas between; default: running.", most=20, choices=ALL_KNOWN),
    ] = None,
    since: Since = None,
    limit: Most = 100,
) -> Runs:
    """Runs in progress, and runs that have failed."""
    begin = None if since is None else actor.time(since)
    states = set(state or (["running"] if begin is None else ALL_KNOWN))
    # a past run may be "sent", too, and looking for these would be a look at the history of each entry
    sought = ["running" if one == "sent" else one for one in states]
    found = find_runs(actor.app, sought, match=match, since=begin)
    if "sent" in states and "running" not in states:
        is_overdue = "overdue" in states
        found = [
            run
            for run in found
            if not run.is_running or run.state in states or (is_overdue and run.is_overdue)
        ]
    return Runs(with_histories(actor.app, found[:limit]), len(found))


@operation("entry.runs", Right.READ, "runs", "GET /entries/{name}/runs")
def list_runs_of_entry(
    actor: Actor,
    name: NameOfEntry,
    *,
    state: Annotated[
        list[str] | None,
        Option("Only these; default: running, and all with since.", most=20, choices=(*SOUGHT,)),
    ] = None,
    since: Since = None,
    limit: Most = 100,
) -> Runs:
    """Runs of an entry.

    It may have been deleted: its runs are known for a while.

    Raises:
        EntryNotFound: there is no such entry, and there are no such runs.
    """
    begin = None if since is None else actor.time(since)
    found = find_runs(actor.app, state, name=name, since=begin)
    if not found:
        read_listed(actor.app, name)
    return Runs(with_histories(actor.app, found[:limit]), len(found))


@operation("entry.history", Right.READ, "show", "GET /entries/{name}/history")
def read_history_of_entry(actor: Actor, name: NameOfEntry, *, limit: Most = 100) -> History:
    """The outcomes of its last runs.

    Raises:
        EntryNotFound: there is no such entry.
    """
    entry = read_listed(actor.app, name)
    return History(name, read_history(entry, limit))


@operation("run.give_up", Right.RUN, "runs", "DELETE /entries/{name}/runs/{task_id}")
def give_up_run(
    actor: Actor, name: NameOfEntry, *, task_id: Annotated[str, Option("The task id of the run.")]
) -> Runs:
    """Give up a run in progress.

    Raises:
        EntryNotFound: there is no such run in progress.
    """
    done = give_up(actor, name, [task_id])
    if not done.runs:
        raise EntryNotFound(f"{name}: the run {task_id} is not in progress.", name)
    return done


@operation("entry.give_up", Right.RUN, "runs", "DELETE /entries/{name}/runs")
def give_up(
    actor: Actor,
    name: NameOfEntry,
    task_ids: Collection[str] | None = None,
    *,
    by: str | None = None,
) -> Runs:
    """Give up all its runs in progress.

    They end as lost, and what waits for them goes; no task is terminated.

    Arguments:
        task_ids: only these.
        by: who does it, where that isn't the actor.
    """
    found = find_running(actor.app, name, ["running"])
    runs = [run for run in found if task_ids is None or run.task_id in task_ids]
    if not runs:
        return Runs([], 0)
    details = {"task_ids": [run.task_id for run in runs]}
    with actor.doing("runs --give-up", [name], details if by is None else {**details, "by": by}):
        done = give_up_runs(actor.app, runs, by or actor.user.name)
    return Runs(done, len(done))
