"""The schedule as a whole: status, timeline, doctor, purge, audit and routes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal, TypedDict, cast

from redbeat.access import Right
from redbeat.config.config import ensure_conf
from redbeat.diagnostics.doctor import examine
from redbeat.diagnostics.findings import Finding
from redbeat.diagnostics.fixes import Orphan, find_orphans, purge_orphans, repair
from redbeat.diagnostics.routes import Destination, find_destination_of_task
from redbeat.entries.timeline import Counting, chart_from
from redbeat.errors import ArgumentInvalid, RedBeatError
from redbeat.leadership.status import LATE_AFTER_SECONDS, document_of, judge, read_status
from redbeat.operations.actor import Actor
from redbeat.operations.operation import Moment, Option, given_values, operation
from redbeat.operations.reading import MAX_UNTOLD, Routing
from redbeat.operations.selection import Match
from redbeat.operations.showing import audit, hide_in_findings

#: for how long entries are looked at for a timeline, and leftovers for a purge; seconds
TIMELINE_SECONDS, PURGE_SECONDS = 3.0, 10.0
#: how many leftovers one call removes
MAX_PURGED = 10_000

DryRun = Annotated[bool, Option("Change nothing, and answer what would be done.")]
MaxSeconds = Annotated[float, Option("Stop looking after this many seconds.", least=1, most=20)]


class ShardForm(TypedDict):
    """The status of one shard."""

    shard: int | None
    leader: dict[str, Any] | None
    obstacle: str | None
    lock_key: str | None
    last_tick: datetime | None
    entries: int
    backlog: int
    oldest_due: datetime | None
    node: str | None
    problem: str | None


class StatusForm(TypedDict, total=False):
    """The status of the schedule. Only one with shards has shards, beats, is_moving and hint."""

    state: str
    exit_code: int
    problem: str | None
    server: str
    now: datetime
    lock_key: str | None
    leader: dict[str, Any] | None
    obstacle: str | None
    last_tick: datetime | None
    backlog: int
    oldest_due: datetime | None
    stored_messages: int | None
    overdue_messages: int
    oldest_message: datetime | None
    standbys: list[dict[str, Any]] | None
    shards: list[ShardForm]
    unread_shards: list[int | None]
    beats: list[dict[str, Any]] | None
    is_moving: bool
    hint: str | None


@operation("schedule.status", Right.READ, "status", "GET /status")
def show_status(
    actor: Actor,
    *,
    late_after: Annotated[
        float, Option("The schedule is late if anything is older than this, in seconds.", least=0, most=1e6)
    ] = LATE_AFTER_SECONDS,
) -> StatusForm:
    """Who leads, and whether the schedule is late."""
    found = read_status(actor.app)
    state, problem = judge(found, late_after)
    return cast(StatusForm, document_of(ensure_conf(actor.app), found, state, problem))


class RowForm(TypedDict):
    """The runs of an entry by columns."""

    name: str
    runs: list[int]


class TimelineForm(TypedDict):
    """How many runs fall into which time; is_complete is false where time was too short for all entries."""

    begin: datetime
    end: datetime
    column_seconds: float
    total: list[int]
    entries: list[RowForm]
    is_complete: bool
    entries_seen: int
    untold: list[str]


@operation("schedule.timeline", Right.READ, "timeline", "GET /timeline", is_heavy=True)
def show_timeline(
    actor: Actor,
    *,
    hours: Annotated[float, Option("Hours to show.", least=0.25, most=24 * 366)] = 24.0,
    start: Annotated[Moment | None, Option("Start of the chart. Default: now.")] = None,
    by: Annotated[
        Literal["load", "next", "task", "prefix"],
        Option(
            "What a row stands for: an entry, the busiest first (load) or the next to run first (next); a "
            "task; or all entries with the same prefix, the name up to the first of . : / _ -"
        ),
    ] = "load",
    match: Match = None,
    columns: Annotated[int, Option("At most this many columns.", least=5, most=1000)] = 96,
    rows: Annotated[int, Option("At most this many rows; the total has all.", least=0, most=1000)] = 40,
) -> TimelineForm:
    """How many runs fall into which time."""
    begin = None if start is None else actor.time(start)
    chart = chart_from(begin or actor.now, actor.app.timezone, hours, columns)
    counting = Counting(actor.app, chart, begin, by=by, match=match, max_rows=rows)
    ends_at, is_complete = time.perf_counter() + TIMELINE_SECONDS, True
    for _ in counting.steps():
        if time.perf_counter() >= ends_at:
            is_complete = False
            break
    found = counting.found
    made: Any = {
        **found.to_dict(),
        "is_complete": is_complete,
        "entries_seen": found.looked_at,
        "untold": found.untold[:MAX_UNTOLD],
    }
    return made  # type: ignore[no-any-return]


class DiagnosisForm(TypedDict):
    """What the doctor has found."""

    severity: str | None
    exit_code: int
    server: str | None
    entries: int
    findings: list[dict[str, Any]]
    more: dict[str, Any]
    repairs: list[str] | None


@operation("schedule.doctor", Right.READ, "doctor", "GET /doctor", is_heavy=True)
def show_doctor(
    actor: Actor,
    *,
    workers: Annotated[
        float | None,
        Option("Ask workers for their queues, and wait this many seconds.", least=0.1, most=5),
    ] = None,
    max_seconds: MaxSeconds = 10.0,
) -> DiagnosisForm:
    """What is wrong, and what to do about it."""
    found = examine(actor.app, is_dashboard=True, workers_seconds=workers, max_seconds=max_seconds)
    return cast(DiagnosisForm, hide_in_findings(actor.app, found).to_dict())


@operation("schedule.fix", Right.ADMIN, "doctor", "PUT /doctor/fix", is_heavy=True)
def fix_schedule(actor: Actor, *, dry_run: DryRun = False, max_seconds: MaxSeconds = 10.0) -> DiagnosisForm:
    """Repair what loses no definition."""
    found = examine(actor.app, is_dashboard=True, max_seconds=max_seconds)
    done = fix_findings(actor, found.findings, dry_run=dry_run)
    return cast(DiagnosisForm, hide_in_findings(actor.app, found).to_dict(done))


@operation("findings.fix", Right.ADMIN, "doctor")
def fix_findings(actor: Actor, findings: Sequence[Finding], *, dry_run: bool = False) -> list[str]:
    """Repair findings, as far as they can be; return a sentence for each.

    Each is looked at once more before it is repaired: what has changed meanwhile is left alone.
    """
    targets = [finding.target for finding in findings if finding.is_fixable]
    if dry_run or not targets:
        return list(repair(actor.app, findings, dry_run))
    with actor.doing("doctor --fix", targets):
        return list(repair(actor.app, findings))


@dataclass(frozen=True)
class Leftover:
    """What a deleted entry has left behind."""

    kind: str
    name: str
    text: str


@dataclass(frozen=True)
class Purged:
    """What deleted entries have left behind, and how much of it was removed."""

    leftovers: Sequence[Leftover]
    removed: int
    is_dry_run: bool


@operation("orphans.purge", Right.ADMIN, "purge", "PUT /purge", is_destructive=True, is_heavy=True)
def purge(
    actor: Actor,
    *,
    dry_run: DryRun = False,
    orphans: Sequence[Orphan] | None = None,
    progress: Callable[[int], object] = lambda _done: None,
) -> Purged:
    """Remove what deleted entries have left behind.

    Arguments:
        orphans: only these, which the command line has shown; None: those that are found in time.
    """
    found = _find_orphans(actor) if orphans is None else orphans
    leftovers, removed = [Leftover(*one) for one in found], 0
    if found and not dry_run:
        with actor.doing("purge", [one.name for one in found], Counter(one.kind for one in found)):
            removed = purge_orphans(actor.app, found, progress)
    return Purged(leftovers, removed, dry_run)


def _find_orphans(actor: Actor) -> Sequence[Orphan]:
    ends_at, found = time.monotonic() + PURGE_SECONDS, list[Orphan]()
    for one in find_orphans(actor.app):
        found.append(one)
        if len(found) >= MAX_PURGED or time.monotonic() >= ends_at:
            break
    return found


class AuditRecordForm(TypedDict):
    """A change, or that it has failed; see :class:`redbeat.store.audit.AuditRecord`."""

    id: str
    at: datetime
    user: str
    host: str | None
    source: str
    verb: str
    names: list[str]
    count: int
    details: dict[str, Any]
    before: dict[str, Any]
    outcome: str | None
    of: str | None


@dataclass(frozen=True)
class AuditPage:
    """Records, the newest first.

    Attributes:
        before: what to give as ``before`` for older ones; null: there are none.
    """

    records: Sequence[AuditRecordForm]
    before: str | None


@operation("audit.list", Right.READ, "audit", "GET /audit")
def list_audit(
    actor: Actor,
    *,
    name: Annotated[str | None, Option("Only changes of this entry, calendar or token.")] = None,
    user: Annotated[
        str | None, Option("Only changes by this user; * and ? are wildcards.", is_pattern=True)
    ] = None,
    verb: Annotated[
        str | None,
        Option(
            "Only changes by this command, such as 'calendar set'; * and ? are wildcards.", is_pattern=True
        ),
    ] = None,
    since: Annotated[
        Moment | None, Option("Only changes since this time: 1d, yesterday 9:00, or a time.")
    ] = None,
    before: Annotated[
        str | None, Option("Only records older than this: `before` of the previous answer.")
    ] = None,
    limit: Annotated[int, Option("At most this many.", least=1, most=1000)] = 100,
) -> AuditPage:
    """Who has changed what, the latest change first.

    Raises:
        ArgumentInvalid: ``before`` is not the id of a record.
    """
    begin = None if since is None else actor.time(since)
    try:
        found = audit(actor, name=name, user=user, verb=verb, since=begin, before_id=before, limit=limit + 1)
    except RedBeatError:  # some are a ValueError, too
        raise
    except ValueError:
        raise ArgumentInvalid("before", "must be the id of a record.") from None
    records: Any = [record.to_dict() for record in found[:limit]]
    return AuditPage(records, found[limit - 1].id if len(found) > limit else None)


# -- routes


@operation("task.route", Right.READ, "route", "GET /routes")
def route_task(
    actor: Actor,
    *,
    task: Annotated[str, Option("The name of the task.")],
    routing: Routing,
) -> Destination:
    """Where a call of a task goes; nothing is sent.

    Raises:
        ConfigurationError: the routes of the application fail.
    """
    return find_destination_of_task(actor.app, task, given_values(**vars(routing)))
