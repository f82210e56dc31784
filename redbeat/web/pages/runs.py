"""The list of runs: those in progress, those that have failed or were lost, and others."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from starlette.responses import Response
from starlette.routing import BaseRoute

from redbeat.entries.runs import (
    IN_PROGRESS,
    FoundRuns,
    read_states,
    remark_on,
    search_runs,
    with_histories,
)
from redbeat.history import FAILED_OUTCOMES, OUTCOMES
from redbeat.runs.progress import UNTRACKED
from redbeat.store.runs import Runs
from redbeat.store.store import Store
from redbeat.web.jobs import Result, Tell
from redbeat.web.routes import page
from redbeat.web.visit import Visit

#: how many runs are shown, at first and at most
SHOWN, MOST = 50, 1000
#: for how long runs are looked for, seconds
SEARCH_SECONDS = 30.0
#: what may be chosen of time
SPANS = (("", "any time"), ("15m", "15 min"), ("1h", "1 h"), ("6h", "6 h"), ("1d", "1 day"), ("7d", "7 days"))
#: all that has gone wrong
FAILED = ",".join(FAILED_OUTCOMES)
#: what is listed if nobody chooses, and what 'all' stands for
USUAL, ALL = ("running", *FAILED_OUTCOMES), ("running", *OUTCOMES)
_CHOICES = (
    ("", "in progress, failed and lost"),
    ("running", "in progress"),
    (FAILED, "failed, lost, never started"),
    ("all", "all, also what went well"),
    *((state, f"only {state}") for state in IN_PROGRESS if state != "running"),
    *((outcome, f"only {outcome.replace('_', ' ')}") for outcome in OUTCOMES if outcome != "sent"),
)
#: by what runs are looked for
FILTERS = ("state", "since", "match", "name")
#: what is said before runs are sent once more
ONCE_MORE = (
    "Each has the same due time, and a task id of its own. What was sent once more already is left out."
)


def show_runs(visit: Visit) -> Response:
    """Return the page, or its part that changes."""
    filters = {field: visit.query.get(field, "").strip() for field in FILTERS}
    filters["match"] = visit.pattern("match")
    limit = min(max(visit.number("limit"), SHOWN), MOST)
    result, errors = Result[FoundRuns](), dict[str, str]()
    try:
        states = {"": USUAL, "all": ALL}.get(filters["state"]) or read_states(filters["state"])
    except ValueError as exc:
        errors["state"] = str(exc)
    since = visit.time("since", errors)
    if not errors:
        result = _search(visit, states, since, filters, limit)
    runs = result.found.runs if result.found is not None else ()
    choices, spans = choices_with(_CHOICES, filters["state"]), choices_with(SPANS, filters["since"])
    kept = {field: value for field, value in filters.items() if value}
    return visit.render(
        "runs_part.html" if visit.is_fragment else "runs.html",
        422 if errors else 200,
        title="Runs",
        result=result,
        rows=[(run, remark_on(run, visit.now, visit.zone)) for run in runs],
        filters=filters,
        errors=errors,
        choices=choices,
        spans=spans,
        here=visit.link("runs", **kept, limit=limit if limit > SHOWN else None),
        more=visit.link("runs", **kept, limit=min(limit * 4, MOST)) if limit < MOST else None,
        listed=dict(choices)[filters["state"]],
        within=dict(spans)[filters["since"]],
        value_of=lambda run: json.dumps([run.name, run.due.isoformat()]),
        untracked=UNTRACKED
        if any(run.state == "sent" for run in runs) and not Runs(Store(visit.app)).has_workers()
        else "",
        failed_outcomes=FAILED_OUTCOMES,
        once_more=ONCE_MORE,
        kept=kept,
        all_failed=visit.link(
            "runs", "rerun", since=filters["since"] or "1d", match=filters["match"] or None
        ),
    )


def _search(
    visit: Visit, states: Sequence[str], since: datetime | None, filters: Mapping[str, str], limit: int
) -> Result[FoundRuns]:
    def search(tell: Tell[FoundRuns]) -> FoundRuns:
        ends_at = time.monotonic() + SEARCH_SECONDS
        for found in search_runs(
            visit.app,
            states,
            name=filters["name"] or None,
            match=filters["match"] or None,
            since=since,
            most=limit,
        ):
            tell(found)
            if time.monotonic() > ends_at:
                break
        return replace(found, runs=with_histories(visit.app, found.runs))

    visit.now  # noqa: B018 - asked for here, not in the job's thread
    return visit.dashboard.jobs.read("runs", (*filters.items(), limit), search)


def choices_with(choices: Sequence[tuple[str, str]], value: str) -> list[tuple[str, str]]:
    """Return choices, and the one that came from elsewhere."""
    is_known = any(value == known for known, _ in choices)
    return [*choices] if is_known else [*choices, (value, value.replace("_", " "))]


ROUTES: list[BaseRoute] = [page("/runs", show_runs)]
