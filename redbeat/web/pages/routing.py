"""Routes: where the runs of an entry go and by which rule, and where those of all of them do."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response
from starlette.routing import BaseRoute

from redbeat.diagnostics.routes import (
    Destination,
    Survey,
    find_destination,
    hint_at_nothing,
    in_words,
    parts_of,
    survey_routes,
)
from redbeat.errors import ConfigurationError, EntryError
from redbeat.web.jobs import Result, Tell
from redbeat.web.pages.entry_form import read_priority
from redbeat.web.routes import page
from redbeat.web.visit import Visit

#: for how long entries are looked at, how old that may be, and how long workers are asked; seconds
SURVEY_SECONDS, FRESH_SECONDS, WORKERS_SECONDS = 30.0, 60.0, 2.0
#: the options that may be tried in place of the entry's
TRIED = ("queue", "exchange", "routing_key", "priority")


def show_routes(visit: Visit) -> Response:
    """Return the page, or its part that changes."""
    workers = visit.query.get("workers") == "yes"
    name = visit.query.get("name", "").strip()
    given = {option: visit.query.get(option, "").strip() for option in TRIED}
    found: Destination | None = None
    problem = ""
    if name and not visit.is_fragment:
        try:
            found = find_destination(visit.app, name, _tried(given))
        except (ConfigurationError, EntryError, ValueError) as exc:
            problem = str(exc)
    parts = parts_of(found.route) if found is not None else []
    values = {part: value for part, value, _ in parts}
    is_nothing = found is not None and not found.is_entry and not found.is_task_known
    return visit.render(
        "routes_part.html" if visit.is_fragment else "routes.html",
        title="Routes",
        name=name,
        given=given,
        found=found,
        where=in_words(found.route) if found is not None else "",
        parts=parts,
        now_at={option: str(values.get(option.replace("_", " ")) or "as it is") for option in TRIED},
        hint=hint_at_nothing(visit.app, name) if is_nothing else "",
        problem=problem,
        workers=workers,
        result=_survey(visit, workers=workers),
        here=visit.link("routes", workers="yes" if workers else None),
    )


def _tried(given: dict[str, str]) -> dict[str, Any]:
    tried: dict[str, Any] = {option: text for option, text in given.items() if text}
    if "priority" in tried:
        tried["priority"] = read_priority(tried["priority"])
    return tried


def _survey(visit: Visit, *, workers: bool, is_wanted: bool = False) -> Result[Survey]:
    def survey(tell: Tell[Survey]) -> Survey:
        seconds = WORKERS_SECONDS if workers else None
        return survey_routes(visit.app, workers_seconds=seconds, max_seconds=SURVEY_SECONDS, tell=tell)

    return visit.dashboard.jobs.read(
        "routes", workers, survey, fresh_seconds=FRESH_SECONDS, is_wanted=is_wanted
    )


def look_again(visit: Visit) -> Response:
    """Have the entries looked at anew; it changes nothing."""
    workers = visit.query.get("workers") == "yes"
    _survey(visit, workers=workers, is_wanted=True)
    return visit.see("routes", workers="yes" if workers else None)


ROUTES: list[BaseRoute] = [
    page("/routes", show_routes),
    page("/routes/look", look_again),
]
