"""Runs: those in progress and past ones, and those that somebody asks for."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from datetime import datetime

from redbeat.access import Right
from redbeat.entries.backfill import Sent
from redbeat.entries.documents import iso
from redbeat.entries.rerun import document_of_rerun
from redbeat.entries.runs import IN_PROGRESS, SOUGHT, find_runs, with_histories
from redbeat.history import FAILED_OUTCOMES
from redbeat.operations import running
from redbeat.operations.running import MAX_SENT
from redbeat.runs.run import Run
from redbeat.web.api.entries import found_entry
from redbeat.web.api.kinds import ARRAY, BACK, FLAG, OBJECT, PATTERN, TEXT, Field, texts, whole
from redbeat.web.api.operations import IDEMPOTENCY_KEY, Answer, Body, Call, Operation
from redbeat.web.api.problems import Refusal
from redbeat.web.api.schemas import of

#: what is found without looking at each entry
ALL_KNOWN = (*IN_PROGRESS, *FAILED_OUTCOMES)
_KEY = re.compile(r"[\x21-\x7e]([\x20-\x7e]{0,253}[\x21-\x7e])?")


def runs_of_all(call: Call) -> Answer:
    """List runs of all entries."""
    since = call.query["since"]
    states = set(call.query["state"] or (["running"] if since is None else ALL_KNOWN))
    # a past run may be "sent", too, and looking for these would be a look at the history of each entry
    sought = ["running" if state == "sent" else state for state in states]
    found = find_runs(call.app, sought, match=call.query["match"], since=since)
    is_any = "sent" not in states or "running" in states
    return _listed(call, [run for run in found if is_any or not run.is_running or _is_in(run, states)])


def _is_in(run: Run, states: Collection[str]) -> bool:
    return run.state in states or (run.is_overdue and "overdue" in states)


def runs_of_entry(call: Call) -> Answer:
    """List runs of an entry; it may have been deleted."""
    since = call.query["since"]
    found = find_runs(call.app, call.query["state"], name=call.name, since=since)
    if not found:
        found_entry(call)  # raises where there is none
    return _listed(call, found)


def _listed(call: Call, found: Sequence[Run]) -> Answer:
    limit = call.query["limit"]
    shown = with_histories(call.app, found[:limit])
    return Answer({"runs": [run.to_dict() for run in shown], "count": len(found)})


def history_of_entry(call: Call) -> Answer:
    """List what is recorded of the last runs of an entry."""
    records = found_entry(call).history(call.query["limit"])
    return Answer({"name": call.name, "history": [run.to_dict() for run in records]})


def trigger_entry(call: Call) -> Answer:
    """Send an entry now, once."""
    if call.body["dry_run"]:
        running.check_trigger(call.actor, call.name, call.body)
        return Answer({"name": call.name, "task_id": None, "is_repeated": False})
    sent = send_one(call, call.name)
    return Answer({"name": call.name, "task_id": sent.task_id, "is_repeated": sent.is_repeated})


def send_one(call: Call, name: str) -> Sent:
    """Send one run of the entry ``name``; with a key of the caller's own, once."""
    key = call.headers[IDEMPOTENCY_KEY]
    if key and not _KEY.fullmatch(key):
        raise Refusal(400, f"{IDEMPOTENCY_KEY} must be 1 to 255 printable characters of ASCII.")
    if key:
        return running.trigger_once(call.actor, name, key, call.body)
    return Sent(running.trigger(call.actor, name, call.body))


def span_in(call: Call) -> tuple[datetime, datetime]:
    """Return the span of time in the body of a backfill."""
    begin, end = call.body["from"], call.body["to"] or call.now
    if end < begin:
        raise Refusal(422, "to: must not be before from.", field="to")
    return begin, end


def backfill_entry(call: Call) -> Answer:
    """Send the runs that an entry's schedule has in a span, each once."""
    begin, end = span_in(call)
    dues: Sequence[datetime] = running.backfill(
        call.actor, call.name, begin, end, dry_run=call.body["dry_run"], limit=call.body["limit"]
    )
    return Answer({"name": call.name, "is_dry_run": call.body["dry_run"], "runs": [iso(due) for due in dues]})


def rerun_entry(call: Call) -> Answer:
    """Send a run of an entry once more."""
    due = call.body["due"]
    if call.body["dry_run"]:
        return Answer(document_of_rerun(running.find_rerun(call.actor, call.name, due), None))
    return Answer(document_of_rerun(*running.rerun(call.actor, call.name, due)))


def rerun_failed(call: Call) -> Answer:
    """Send all runs once more that have failed since a time."""
    since = call.body["since"]
    dry_run = call.body["dry_run"]
    done = running.rerun_failed(call.actor, since, call.body["match"] or "*", dry_run=dry_run)
    return Answer({"sent": done.sent, "failed": dict(done.failed), "is_dry_run": dry_run})


def give_up_run(call: Call) -> Answer:
    """End one run in progress as lost."""
    return _given_up(call, [call.place["task_id"]])


def give_up_runs(call: Call) -> Answer:
    """End all runs in progress of an entry as lost."""
    return _given_up(call, None)


def _given_up(call: Call, task_ids: Sequence[str] | None) -> Answer:
    done = running.give_up(call.actor, call.name, task_ids)
    if not done and task_ids is not None:
        found_entry(call)
        raise Refusal(404, "There is no such run in progress.", entry=call.name)
    return Answer({"runs": [run.to_dict() for run in done], "count": len(done)})


_LIMIT = Field("limit", whole(1, 1000), "At most so many.", default=100)
_SINCE = Field("since", BACK, "Past runs that have ended within this time, as 1d, or since a time.")
_DRY_RUN = Field("dry_run", FLAG, "Send nothing, and answer what would be sent.", default=False)
OF_TRIGGER = (
    Field("args", ARRAY, "Positional arguments for this run. Default: the entry's."),
    Field("kwargs", OBJECT, "Keyword arguments for this run. Default: the entry's."),
    Field("queue", TEXT, "The queue for this run. Default: the entry's."),
    _DRY_RUN,
)
OF_BACKFILL = (
    Field("from", BACK, "Runs that were due at this time or later.", is_needed=True),
    Field("to", BACK, "And by this time. Default: now."),
    _DRY_RUN,
    Field("limit", whole(1, MAX_SENT), "Send nothing if there are more.", default=MAX_SENT),
)

OPERATIONS: Sequence[Operation] = (
    Operation(
        *("GET", "/runs", "runs", Right.READ, "Runs in progress, and runs that have failed.", runs_of_all),
        {200: of("Runs")},
        (
            Field("match", PATTERN, "Only of entries whose name matches."),
            Field("state", texts(20, ALL_KNOWN), "Only these, with commas between; default: running."),
            _SINCE,
            _LIMIT,
        ),
    ),
    Operation(
        *("GET", "/entries/{name}/runs", "runs", Right.READ, "Runs of an entry.", runs_of_entry),
        {200: of("Runs")},
        (
            Field("state", texts(20, [*SOUGHT]), "Only these; default: running, and all with since."),
            _SINCE,
            _LIMIT,
        ),
    ),
    Operation(
        *(
            "GET",
            "/entries/{name}/history",
            "show",
            Right.READ,
            "What became of its last runs.",
            history_of_entry,
        ),
        {200: of("History")},
        (_LIMIT,),
    ),
    Operation(
        *(
            "DELETE",
            "/entries/{name}/runs/{task_id}",
            "runs",
            Right.RUN,
            "Give up a run in progress.",
            give_up_run,
        ),
        {200: of("Runs")},
    ),
    Operation(
        *(
            "DELETE",
            "/entries/{name}/runs",
            "runs",
            Right.RUN,
            "Give up all its runs in progress.",
            give_up_runs,
        ),
        {200: of("Runs")},
    ),
    Operation(
        *("PUT", "/entries/{name}/trigger", "trigger", Right.RUN, "Run an entry now, once.", trigger_entry),
        {200: of("Triggered")},
        body=Body(OF_TRIGGER),
        headers=(IDEMPOTENCY_KEY,),
    ),
    Operation(
        *(
            "PUT",
            "/entries/{name}/backfill",
            "backfill",
            Right.RUN,
            "Send runs of a past span, each once.",
            backfill_entry,
        ),
        {200: of("Backfilled")},
        body=Body(OF_BACKFILL, is_needed=True),
    ),
    Operation(
        *("PUT", "/entries/{name}/rerun", "rerun", Right.RUN, "Send a run once more.", rerun_entry),
        {200: of("Rerun")},
        body=Body(
            (Field("due", BACK, "The run that was due then. Default: the last that has failed."), _DRY_RUN)
        ),
    ),
    Operation(
        *("PUT", "/rerun", "rerun", Right.RUN, "Send all failed runs once more.", rerun_failed),
        {200: of("Reruns")},
        body=Body(
            (
                Field(
                    "since", BACK, "Runs that have failed within this time, as 1d, or since.", is_needed=True
                ),
                Field("match", PATTERN, "Only of entries whose name matches."),
                _DRY_RUN,
            ),
            is_needed=True,
        ),
    ),
)
