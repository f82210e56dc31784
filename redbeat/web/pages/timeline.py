"""The timeline: the runs of the hours to come, or of a time in the past beside how they ended.

Invariant: counting leaves the processor to others after every slice, and ends when its budget is used up;
what it has found by then says how many entries it covers.
"""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

from starlette.responses import Response
from starlette.routing import BaseRoute

from redbeat.entries.timeline import Counting, Timeline, chart_from
from redbeat.entries.wording import local_time
from redbeat.log.text import is_utf8
from redbeat.web.charts.heatmap import FATES, draw_heat_map
from redbeat.web.jobs import READ_WAIT_SECONDS, Pace, Result, Tell
from redbeat.web.routes import page
from redbeat.web.visit import Visit

#: the spans to choose from: hours and label
SPANS = {6: "6 hours", 24: "24 hours", 168: "7 days"}
#: how rows are chosen, and what they are called
BY = {"load": "Busiest entries", "next": "Next entries", "task": "Tasks", "prefix": "Prefixes"}
#: how many characters the name of a row with a link has at most
MAX_LINKED = 1000
#: how many columns and rows a chart has at most
MAX_COLUMNS, MAX_ROWS = 96, 60
#: how much processor time one chart may take; each time that a user asks for more it is doubled
BUDGET_SECONDS, MAX_DOUBLINGS = 15.0, 5
#: how often the job tells what it has found so far, and what is younger isn't made anew; seconds
TELL_SECONDS, FRESH_SECONDS = 0.7, 10.0


def show_timeline(visit: Visit) -> Response:
    """Return the page, or its chart alone."""
    problems = dict[str, str]()
    hours, by = visit.number("hours"), visit.query.get("by", "")
    hours, by = hours if hours in SPANS else 24, by if by in BY else "load"
    typed, match = visit.query.get("start", "").strip(), visit.pattern("match")
    start = visit.time("start", problems)
    # by full minutes, so that the same chart is asked for again; a time of today's is one that stays
    start = start and start.replace(second=0, microsecond=0)
    doublings = min(visit.number("more"), MAX_DOUBLINGS)
    result = _count(visit, hours, by, start, match, doublings)
    found = result.found
    given = {"hours": hours if hours != 24 else None, "by": by if by != "load" else None}
    given |= {"match": match or None, "start": typed or None}
    neighbours = {}
    for name, hours_on in (("earlier", -hours), ("later", hours)):
        moment = local_time((start or visit.now) + timedelta(hours=hours_on), visit.zone)
        neighbours[name] = visit.link("timeline", **{**given, "start": moment.isoformat(timespec="minutes")})
    return visit.render(
        "timeline_part.html" if visit.is_fragment else "timeline.html",
        title="Timeline",
        hours=hours,
        by=by,
        spans=[(label, visit.link("timeline", **{**given, "hours": span})) for span, label in SPANS.items()],
        span=SPANS[hours],
        rows_by=[*BY.items()],
        match=match,
        typed=typed,
        problem=problems.get("start", ""),
        result=result,
        found=found,
        map=None if found is None else draw_heat_map(found, visit.zone),
        hidden_rows=0 if found is None else max(found.row_count - len(found.rows), 0),
        fates=FATES,
        link_of=partial(_link_of, visit, by),
        percent=100 * found.looked_at // found.entries if found is not None and found.entries else 0,
        now_url=visit.link("timeline", **{**given, "start": None}),
        url=visit.link("timeline", **given, more=doublings or None),
        more_url=visit.link("timeline", **given, more=doublings + 1) if doublings < MAX_DOUBLINGS else None,
        neighbours=neighbours,
    )


def _count(
    visit: Visit, hours: int, by: str, start: datetime | None, match: str, doublings: int
) -> Result[Timeline]:
    """Return the timeline that was made last, and have another one made if it is old."""
    app, zone, now = visit.app, visit.zone, visit.now

    def count(tell: Tell[Timeline]) -> Timeline:
        chart = chart_from(start or now, zone, hours, MAX_COLUMNS)
        counting = Counting(
            app, chart, start, by=by, match=match or None, max_rows=MAX_ROWS, with_outcomes=True
        )
        pace, told_at = Pace(BUDGET_SECONDS * 2**doublings), 0.0
        for _ in counting.steps():
            pace.rest()
            if pace.is_over:
                break
            if counting.found.looked_at and time.monotonic() > told_at + TELL_SECONDS:
                tell(replace(counting.found))
                told_at = time.monotonic()
        return counting.found

    # a page that is shown again has something to show already
    waiting = 0.0 if visit.is_fragment else READ_WAIT_SECONDS
    key = (hours, by, start, zone, match, doublings)
    return visit.dashboard.jobs.read(
        "timeline", key, count, fresh_seconds=FRESH_SECONDS, wait_seconds=waiting
    )


def _link_of(visit: Visit, by: str, name: str) -> str:
    """Return the link of a row; '': it has none, as its name can't stand in an address."""
    if not is_utf8(name) or len(name) > MAX_LINKED:
        return ""
    if by in ("load", "next"):
        return visit.link("entry", name=name)
    return visit.link("entries", **{"match" if by == "prefix" else "task": name})


ROUTES: list[BaseRoute] = [page("/timeline", show_timeline)]
