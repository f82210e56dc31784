"""The schedule as a whole: status, timeline, doctor, purge, audit and routes."""

from __future__ import annotations

import time
from collections.abc import Sequence

from redbeat.access import Right
from redbeat.declared.modules import load_tasks
from redbeat.diagnostics.doctor import examine
from redbeat.diagnostics.routes import find_route
from redbeat.entries.timeline import GROUPS, Counting, chart_from
from redbeat.entries.wording import one_line
from redbeat.errors import ConfigurationError, RedBeatError
from redbeat.leadership.status import LATE_AFTER_SECONDS, document_of, judge, read_status
from redbeat.operations import purging, repairing
from redbeat.operations.showing import audit, hide_in_findings
from redbeat.web.api.cursors import path_with
from redbeat.web.api.entries import MOST_UNTOLD, ROUTING
from redbeat.web.api.kinds import BACK, FLAG, PATTERN, TEXT, Field, number, one_of, whole
from redbeat.web.api.operations import Answer, Body, Call, Operation
from redbeat.web.api.problems import Refusal
from redbeat.web.api.schemas import of

#: for how long entries are looked at for a timeline, seconds
TIMELINE_SECONDS = 3.0


def show_status(call: Call) -> Answer:
    """Say who leads, and whether the schedule is late."""
    found = read_status(call.app)
    state, problem = judge(found, call.query["late_after"])
    return Answer(document_of(call.config, found, state, problem))


def show_timeline(call: Call) -> Answer:
    """Count when which entries run."""
    start, group, match = call.query["start"], call.query["by"], call.query["match"]
    chart = chart_from(start or call.now, call.app.timezone, call.query["hours"], call.query["columns"])
    counting = Counting(call.app, chart, start, match=match, max_rows=call.query["rows"])
    ends_at, is_complete = time.perf_counter() + TIMELINE_SECONDS, True
    for _ in counting.steps():
        if time.perf_counter() >= ends_at:
            is_complete = False
            break
    found = counting.found()
    about = {
        "is_complete": is_complete,
        "entries_seen": found.looked_at,
        "untold": found.untold[:MOST_UNTOLD],
    }
    return Answer({**found.to_dict(group), **about})


def show_doctor(call: Call) -> Answer:
    """Find out what is wrong."""
    found = examine(
        call.app,
        is_dashboard=True,
        workers_seconds=call.query["workers"],
        max_seconds=call.query["max_seconds"],
    )
    return Answer(hide_in_findings(call.app, found).to_dict())


def fix(call: Call) -> Answer:
    """Repair what can be repaired without losing a definition."""
    call.actor.require(Right.ADMIN)
    found = examine(call.app, is_dashboard=True, max_seconds=call.body["max_seconds"])
    done = repairing.fix(call.actor, found.findings, dry_run=call.body["dry_run"])
    return Answer(hide_in_findings(call.app, found).to_dict(done))


def purge(call: Call) -> Answer:
    """Remove what deleted entries have left behind."""
    dry_run = call.body["dry_run"]
    found, removed = purging.purge(call.actor, dry_run=dry_run)
    left = [{"kind": one.kind, "name": one.name, "text": one.text} for one in found]
    return Answer({"leftovers": left, "removed": removed, "is_dry_run": dry_run})


def list_audit(call: Call) -> Answer:
    """List who has changed what, the latest change first."""
    given, limit, since = call.query, call.query["limit"], call.query["since"]
    try:
        found = audit(
            call.actor,
            name=given["name"],
            user=given["user"],
            verb=given["verb"],
            since=since,
            before_id=given["before"],
            limit=limit + 1,
        )
    except RedBeatError:
        raise
    except ValueError:
        raise Refusal(400, "before: must be the id of a record.", field="before") from None
    last = found[limit - 1].id if len(found) > limit else None
    following = None if last is None else path_with("/audit", {**given, "since": since, "before": last})
    records = [record.to_dict() for record in found[:limit]]
    return Answer({"records": records, "before": last, "next": following})


def route_task(call: Call) -> Answer:
    """Say where a call of a task goes."""
    task = call.query["task"]
    tried = {name: value for name, value in call.query.items() if value is not None and name != "task"}
    try:
        load_tasks(call.app)
        found = find_route(call.app, task, [], {}, tried)
    except RedBeatError:
        raise
    except Exception as exc:  # the application's own code
        raise ConfigurationError(f"Where {one_line(task)} goes can't be told: {one_line(repr(exc))}") from exc
    about = {"name": task, "task": task, "is_task_known": task in call.app.tasks}
    return Answer({**about, **found.to_dict()})


_DRY_RUN = Field("dry_run", FLAG, "Change nothing, and answer what would be done.", default=False)
_MAX_SECONDS = Field("max_seconds", number(1, 20), "Stop looking after so many seconds.", default=10.0)

OPERATIONS: Sequence[Operation] = (
    Operation(
        *(
            "GET",
            "/status",
            "status",
            Right.READ,
            "Who leads, and whether the schedule is late.",
            show_status,
        ),
        {200: of("Status")},
        (
            Field(
                "late_after",
                number(0, 1e6),
                "It is late if anything is older than this.",
                default=LATE_AFTER_SECONDS,
            ),
        ),
    ),
    Operation(
        *("GET", "/timeline", "timeline", Right.READ, "How many runs fall into which time.", show_timeline),
        {200: of("Timeline")},
        (
            Field("hours", number(0.25, 24 * 366), "How many hours.", default=24.0),
            Field("start", BACK, "When it begins. Default: now."),
            Field("by", one_of([*GROUPS]), "What a row stands for.", default="load"),
            Field("match", PATTERN, "Only entries whose name matches."),
            Field("columns", whole(5, 1000), "At most so many columns.", default=96),
            Field("rows", whole(0, 1000), "At most so many rows; the total has all.", default=40),
        ),
        is_heavy=True,
    ),
    Operation(
        *("GET", "/doctor", "doctor", Right.READ, "What is wrong, and what to do about it.", show_doctor),
        {200: of("Diagnosis")},
        (
            Field("workers", number(0.1, 5), "Ask workers for their queues, and wait so many seconds."),
            _MAX_SECONDS,
        ),
        is_heavy=True,
    ),
    Operation(
        *("PUT", "/doctor/fix", "doctor", Right.ADMIN, "Repair what loses no definition.", fix),
        {200: of("Diagnosis")},
        body=Body((_DRY_RUN, _MAX_SECONDS)),
        is_heavy=True,
    ),
    Operation(
        *("PUT", "/purge", "purge", Right.ADMIN, "Remove what deleted entries have left behind.", purge),
        {200: of("Purged")},
        body=Body((_DRY_RUN,)),
        is_heavy=True,
    ),
    Operation(
        *("GET", "/audit", "audit", Right.READ, "Who has changed what, the latest change first.", list_audit),
        {200: of("Audit")},
        (
            Field("name", TEXT, "Only changes of this entry, calendar or token."),
            Field("user", PATTERN, "Only changes by this user; * and ? are wildcards."),
            Field("verb", PATTERN, "Only changes by this command; likewise."),
            Field("since", BACK, "Only changes within this time, as 1d, or since a time."),
            Field("before", TEXT, "Only older ones than this: `before` of the answer before."),
            Field("limit", whole(1, 1000), "At most so many.", default=100),
        ),
    ),
    Operation(
        *("GET", "/routes", "route", Right.READ, "Where a call of a task goes; nothing is sent.", route_task),
        {200: of("Route")},
        (Field("task", TEXT, "The name of the task.", is_needed=True), *ROUTING),
    ),
)
