"""The pages of the endpoint.

Invariant: all are answered from memory, but for ``/status``, which reads Redis: once at a time, at most once
a second, and for some seconds at most.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any

from redbeat.config.config import ensure_conf
from redbeat.connection.retry import call_briefly
from redbeat.errors import RedBeatError
from redbeat.leadership.status import State, Status, ask_status, document_of, judge
from redbeat.process.memory import Memory
from redbeat.telemetry.endpoint import Page, Response
from redbeat.telemetry.figures import OwnFigures
from redbeat.telemetry.gathering import View
from redbeat.telemetry.health import Health
from redbeat.telemetry.metrics import Exposition

#: how long ``/status`` waits for Redis
STATUS_SECONDS = 3.0

#: how long an answer that takes some effort is given again
KEPT_SECONDS = 1.0

#: the form of the metrics that is asked for; every other header gets Prometheus' own
OPENMETRICS = "application/openmetrics-text"


def pages_of(
    app: Any, health: Health, views: Callable[[], Sequence[View]], own: OwnFigures
) -> dict[str, Page]:
    """Return the pages of one beat, by their paths.

    Arguments:
        views: returns what this beat shows now of the schedule, or of its shards.
        own: what it shows of itself.
    """

    def answer_health(_accept: str) -> Response:
        problem = health.find_hang()
        return _verdict("stuck" if problem else "healthy", health.role, problem)

    def answer_readiness(_accept: str) -> Response:
        problem = health.find_obstacle()
        return _verdict("not ready" if problem else "ready", health.role, problem)

    def answer_status(_form: str) -> Response:
        found: Status | None = None
        try:
            found = call_briefly(lambda: ask_status(app), STATUS_SECONDS)
            state, problem = judge(found)
        except RedBeatError as exc:
            state, problem = State.UNREACHABLE, exc.plain
        document = document_of(ensure_conf(app), found, state, problem)
        shown = views()
        document["overdue"] = [name for view in shown for name in view.overdue.names] if shown else None
        return _json(state is State.HEALTHY, document)

    status = shared(answer_status)
    return {
        "/healthz": answer_health,
        "/readyz": answer_readiness,
        "/status": lambda _accept: status(""),
        "/metrics": _metrics_page(views, own),
    }


def _verdict(status: str, role: str, problem: str) -> Response:
    return _json(not problem, {"status": status, "role": role, "problem": problem or None})


def _json(is_well: bool, document: dict[str, Any]) -> Response:
    code = HTTPStatus.OK if is_well else HTTPStatus.SERVICE_UNAVAILABLE
    # names may have surrogates, which other programs refuse
    body = json.dumps(document, ensure_ascii=False).encode(errors="replace")
    return Response(code, "application/json", body + b"\n")


def _metrics_page(views: Callable[[], Sequence[View]], own: OwnFigures) -> Page:
    try:
        expose = Exposition(views, own).text
    except ImportError:
        sentence = b"There are no metrics: install celery-redbeat[metrics], and start beat again.\n"
        missing = Response(HTTPStatus.NOT_IMPLEMENTED, "text/plain; charset=utf-8", sentence)
        return lambda _accept: missing
    metrics = shared(lambda form: Response(HTTPStatus.OK, *expose(form)))
    # two forms only, as each is made by itself
    return lambda accept: metrics(OPENMETRICS if OPENMETRICS in accept else "")


def shared(make: Page) -> Page:
    """Return a page that is made once at a time, and given to all requests of a second, in each form."""
    making = threading.Lock()
    kept = Memory[str, tuple[float, Response]](4)

    def give(form: str) -> Response:
        with making:
            made_at, response = kept.get(form, (0.0, None))
            if response is None or time.monotonic() >= made_at + KEPT_SECONDS:
                response = make(form)
                kept[form] = time.monotonic(), response
            return response

    return give
