"""What is known of entries: lists, counts, next runs, why a run did not happen, and where runs go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Annotated, Any

from redbeat.access import Right
from redbeat.diagnostics.facts import read_facts
from redbeat.diagnostics.routes import Destination, find_destination, way_of
from redbeat.entries.documents import Overview, overview_of
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.marks import marks_of, zone_for
from redbeat.entries.query import STATES, is_wanted
from redbeat.entries.runs import Last, read_last
from redbeat.entries.search import read_listed
from redbeat.entries.timeline import first_of_all
from redbeat.entries.upcoming import next_runs
from redbeat.entries.validation import MAX_PRIORITY
from redbeat.errors import EntryError
from redbeat.log.text import printable
from redbeat.operations.actor import Actor
from redbeat.operations.operation import Moment, Option, given_values, operation
from redbeat.operations.selection import Cursor, Match, NameOfEntry, look_at_each
from redbeat.operations.showing import hide_in_sentence, why

#: for how long a server looks at entries for the next runs of all of them, seconds; of how many it says that
#: not all are known
NEXT_SECONDS, MAX_UNTOLD = 3.0, 100

After = Annotated[Moment | None, Option("Only runs later than this. Default: now.", ahead=True)]


@dataclass(frozen=True)
class Filters:
    """Which entries are listed or counted."""

    match: Match = None
    task: Annotated[
        str | None, Option("Only entries whose task matches; * and ? are wildcards.", is_pattern=True)
    ] = None
    state: Annotated[str | None, Option("Only entries in this state.", choices=(*STATES,))] = None
    enabled: Annotated[bool | None, Option("Only enabled entries, or only disabled ones.")] = None
    due_before: Annotated[
        Moment | None, Option("Only entries whose next run is due at this time or before.", ahead=True)
    ] = None


@dataclass(frozen=True)
class EntryList:
    """Entries with the outcomes of their last runs."""

    entries: Sequence[tuple[RedBeatSchedulerEntry, Last]]
    next: str | None


@dataclass(frozen=True)
class Count:
    """How many entries there are.

    Attributes:
        next: the path to go on with; null: that was all.
    """

    count: int
    next: str | None


@operation("entries.list", Right.READ, "list", "GET /entries")
def list_entries(
    actor: Actor,
    filters: Filters,
    *,
    limit: Annotated[int, Option("At most this many.", least=1, most=1000)] = 100,
    cursor: Cursor = None,
) -> EntryList:
    """The entries, the next to run first."""
    found, following = look_at_each(actor.app, filters.match, _wanted_by(actor, filters), cursor, limit)
    entries = [one.entry for one in found]
    lasts = read_last(actor.app, [entry.key for entry in entries])
    return EntryList([*zip(entries, lasts, strict=True)], following)


@operation("entries.count", Right.READ, "count", "GET /count")
def count_entries(actor: Actor, filters: Filters, *, cursor: Cursor = None) -> Count:
    """How many entries there are; with filters a part at a time."""
    if cursor is None and filters == Filters():
        return Count(RedBeatSchedulerEntry.count(actor.app), None)
    counted, is_counted = 0, _wanted_by(actor, filters)

    def count_wanted(entry: RedBeatSchedulerEntry) -> bool:
        nonlocal counted
        counted += is_counted(entry)
        return False  # none is kept

    _, following = look_at_each(actor.app, filters.match, count_wanted, cursor, 1)
    return Count(counted, following)


def _wanted_by(actor: Actor, filters: Filters) -> Callable[[RedBeatSchedulerEntry], bool]:
    latest = None if filters.due_before is None else actor.time(filters.due_before)
    return partial(
        is_wanted, task=filters.task, enabled=filters.enabled, state=filters.state, due_before=latest
    )


@operation("entry.show", Right.READ, "show", "GET /entries/{name}")
def show_entry(actor: Actor, name: NameOfEntry) -> Overview:
    """All about one entry."""
    return overview_of(read_listed(actor.app, name), actor.app.timezone)


# -- next runs


@dataclass(frozen=True)
class NextRun:
    """A run that is to come.

    Attributes:
        seconds: until then.
        marks: what is worth knowing of it, each with its ``kind`` and ``words``.
    """

    due: datetime
    seconds: float
    marks: Sequence[dict[str, str]]


@dataclass(frozen=True)
class NextRuns:
    """The next runs of an entry."""

    name: str
    state: str
    runs: Sequence[NextRun]


@dataclass(frozen=True)
class NextOfEntry:
    """The next run of one of all entries; ``seconds``: until then."""

    name: str
    due: datetime
    seconds: float


@dataclass(frozen=True)
class NextOfAll:
    """The next runs of all entries together.

    Attributes:
        untold: of which entries not all runs are known, and why.
        is_complete: false: not all entries were looked at in time.
    """

    runs: Sequence[NextOfEntry]
    untold: Sequence[str]
    is_complete: bool


@operation("entry.next", Right.READ, "next", "GET /entries/{name}/next")
def next_of_entry(
    actor: Actor,
    name: NameOfEntry,
    *,
    count: Annotated[int, Option("How many runs.", least=1, most=1000)] = 10,
    after: After = None,
) -> NextRuns:
    """The next runs of an entry.

    Raises:
        EntryNotFound: there is no such entry.
        EntryError: it is invalid.
    """
    entry = read_listed(actor.app, name)
    if entry.schedule is None:
        error = hide_in_sentence(actor.app, entry.stored, entry.error)
        reason = error.removeprefix(f"{printable(entry.key)}: ")
        raise EntryError(f"{entry.key}: is invalid, so it has no runs: {reason}", entry.key)
    now, zone, since = actor.now, zone_for(entry), None if after is None else actor.time(after)
    dues = next_runs(entry, count, since, zone, now)
    runs = [
        NextRun(due, (due - now).total_seconds(), [mark._asdict() for mark in marks])
        for due, marks in zip(dues, marks_of(entry, dues, zone, since or now), strict=True)
    ]
    return NextRuns(name, str(entry.state), runs)


@operation("entries.next", Right.READ, "next", "GET /next", is_heavy=True)
def next_of_all(
    actor: Actor,
    *,
    count: Annotated[int, Option("How many runs.", least=1, most=100)] = 10,
    after: After = None,
    match: Match = None,
) -> NextOfAll:
    """The next runs of all entries together."""
    since = None if after is None else actor.time(after)
    found = first_of_all(actor.app, count, since, match, max_seconds=NEXT_SECONDS)
    runs = [NextOfEntry(name, due, (due - actor.now).total_seconds()) for due, name, _ in found.runs]
    return NextOfAll(runs, found.untold[:MAX_UNTOLD], found.is_complete)


# -- why and route


@dataclass(frozen=True)
class Why:
    """Why a run did or did not happen.

    Attributes:
        at: the time that it is about.
        run: the record that says so; null: it is concluded.
        before, after: the schedule's times next to it.
        messages: whether its messages are compiled, and why not; null: that isn't known.
    """

    name: str
    verdict: str
    at: datetime | None
    reason: str
    run: dict[str, Any] | None
    before: datetime | None
    after: datetime | None
    messages: dict[str, Any] | None


@dataclass(frozen=True)
class Routing:
    """Options of a message that decide where it goes, tried in place of the entry's."""

    queue: Annotated[str | None, Option("The queue for its messages. Default: what task_routes says.")] = None
    exchange: Annotated[str | None, Option("The exchange for its messages. Default: the queue's.")] = None
    exchange_type: Annotated[
        str | None,
        Option("The type of the exchange: direct, topic, fanout or headers."),
    ] = None
    routing_key: Annotated[str | None, Option("The routing key of its messages. Default: the queue's.")] = (
        None
    )
    priority: Annotated[int | None, Option("The priority of its messages.", least=0, most=MAX_PRIORITY)] = (
        None
    )


@operation("entry.why", Right.READ, "why", "GET /entries/{name}/why")
def explain_run(
    actor: Actor,
    name: NameOfEntry,
    *,
    at: Annotated[
        Moment | None,
        Option("When the run was due. Default: the latest time of the schedule before now."),
    ] = None,
) -> Why:
    """Why a run did or did not happen."""
    facts = read_facts(actor.app, name)
    answer = why(actor, facts, None if at is None else actor.time(at))
    run = None if answer.run is None else answer.run.to_dict()
    known = (answer.verdict, answer.at, answer.reason, run, answer.before, answer.after)
    return Why(name, *known, way_of(actor.app, facts.entry))


@operation("entry.route", Right.READ, "route", "GET /entries/{name}/route")
def route_entry(actor: Actor, name: NameOfEntry, routing: Routing) -> Destination:
    """Where the runs of an entry go."""
    read_listed(actor.app, name)  # else it is taken for a task's name
    return find_destination(actor.app, name, given_values(**vars(routing)))
