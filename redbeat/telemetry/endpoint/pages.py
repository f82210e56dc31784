"""The pages of the endpoint: what is asked under which path, and answered how.

Invariant: all are answered from memory, but for ``/status``, which reads Redis: once at a time, at most once
a second, and it isn't waited for long.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from http import HTTPStatus
from typing import Any

from redbeat.config.config import ensure_conf
from redbeat.errors import RedBeatError, StoreUnavailable
from redbeat.leadership.status import State, Status, ask_status, document_of, judge
from redbeat.log.text import whole_characters
from redbeat.process.memory import Memory
from redbeat.telemetry.endpoint.condition import Condition
from redbeat.telemetry.endpoint.exchange import Page, Request, Response, text_response
from redbeat.telemetry.endpoint.health import Signs, find_hang, find_obstacle
from redbeat.telemetry.metrics.gathering import View
from redbeat.telemetry.metrics.own_figures import OwnFigures

#: how long ``/status`` waits for Redis
STATUS_SECONDS = 3.0

#: how long an answer that takes some effort is given again
KEPT_SECONDS = 1.0

#: after such an answer no other is made for this many times the processor time that it took
REST_FACTOR = 4.0

#: the form of the metrics that is asked for; every other header gets Prometheus' own
OPENMETRICS = "application/openmetrics-text"

#: makes the metrics in the form that an Accept header asks for; returns the content type and the body
Metrics = Callable[[str], tuple[str, bytes]]


def pages_of(
    app: Any,
    condition: Condition,
    metrics: Metrics | None = None,
    views: Callable[[], Sequence[View]] = tuple,
) -> dict[str, Page]:
    """Return the pages of one beat.

    Arguments:
        metrics: None: there are none, as what makes them isn't installed.
        views: returns what this beat shows now of the schedule, or of its shards.
    """

    def answer_health(_request: Request) -> Response:
        signs = condition.read()
        problem = find_hang(signs)
        return _verdict("stuck" if problem else "healthy", _role_of(signs), problem)

    def answer_readiness(_request: Request) -> Response:
        signs = condition.read()
        problem = find_obstacle(signs)
        return _verdict("not ready" if problem else "ready", _role_of(signs), problem)

    status = Shared(StatusPage(app, views))
    return {
        "/healthz": answer_health,
        "/readyz": answer_readiness,
        "/status": lambda _request: status.give(""),
        "/metrics": _metrics_page(metrics),
    }


def metrics_of(views: Callable[[], Sequence[View]], own: OwnFigures) -> Metrics | None:
    """Return what makes the text of the metrics; None: prometheus-client isn't installed.

    Arguments:
        views: returns what this beat shows now of the schedule, or of its shards.
        own: what it shows of itself.
    """
    try:
        from redbeat.telemetry.metrics.exposition import Exposition
    except ImportError:
        return None
    return Exposition(views, own).text


def _role_of(signs: Signs) -> str:
    return "stopping" if signs.is_stopping else signs.role.value


def _verdict(status: str, role: str, problem: str) -> Response:
    return _json(not problem, {"status": status, "role": role, "problem": problem or None})


def _json(is_well: bool, document: dict[str, Any]) -> Response:
    code = HTTPStatus.OK if is_well else HTTPStatus.SERVICE_UNAVAILABLE
    return Response(code, "application/json", json.dumps(_whole(document)).encode() + b"\n")


def _whole(value: Any) -> Any:
    """Return ``value``, of a document, with whole characters: what is in Redis may not be UTF-8."""
    if isinstance(value, str):
        return whole_characters(value)
    if isinstance(value, dict):
        return {name: _whole(member) for name, member in value.items()}
    return [_whole(member) for member in value] if isinstance(value, list) else value


def _metrics_page(metrics: Metrics | None) -> Page:
    if metrics is None:
        sentence = "There are no metrics: install celery-redbeat[metrics], and start beat again."
        return lambda _request: text_response(HTTPStatus.NOT_IMPLEMENTED, sentence)
    shared = Shared(lambda form: Response(HTTPStatus.OK, *metrics(form)))
    # two forms only, as each is made by itself
    return lambda request: shared.give(
        OPENMETRICS if OPENMETRICS in request.headers.get("accept", "") else ""
    )


class Shared:
    """An answer that takes some effort: it is made once at a time, and given to all who ask within a second.

    Arguments:
        make: makes it in the form that is asked for.
    """

    def __init__(self, make: Callable[[str], Response]) -> None:
        self._make = make
        self._making = threading.Lock()
        self._kept = Memory[str, tuple[float, Response]](4)  # form to when it was made, monotonic
        self._rest_until = 0.0

    def give(self, form: str) -> Response:
        """Return the answer in this form; an error of ``make`` is the caller's."""
        with self._making:
            made_at, response = self._kept.get(form, (0.0, None))
            if response is not None and time.monotonic() - made_at < KEPT_SECONDS:
                return response
            time.sleep(max(self._rest_until - time.monotonic(), 0))
            began = time.thread_time()
            response = self._make(form)
            now = time.monotonic()
            self._rest_until = now + REST_FACTOR * (time.thread_time() - began)
            self._kept[form] = now, response
            return response


class StatusPage:
    """What ``celery redbeat status --json`` prints, and which entries are overdue.

    A thread reads Redis. As long as one waits for an answer there is no other, however long that takes.
    """

    def __init__(self, app: Any, views: Callable[[], Sequence[View]]) -> None:
        self._app = app
        self._views = views
        self._reading: Future[Status] | None = None

    def __call__(self, _form: str) -> Response:
        """Return the answer."""
        found: Status | None = None
        try:
            found = self._read()
        except RedBeatError as exc:
            state = State.UNREACHABLE
            problem = exc.plain
        else:
            state, problem = judge(found)
        document = document_of(ensure_conf(self._app), found, state, problem)
        views = self._views()
        document["overdue"] = [name for view in views for name in view.overdue.names] if views else None
        return _json(state is State.HEALTHY, document)

    def _read(self) -> Status:
        if self._reading is None or self._reading.done():
            reading: Future[Status] = Future()
            threading.Thread(target=self._ask, args=(reading,), name="redbeat-status", daemon=True).start()
            self._reading = reading
        try:
            return self._reading.result(STATUS_SECONDS)
        except FutureTimeoutError:
            raise StoreUnavailable(f"Redis hasn't answered within {STATUS_SECONDS:g} s.") from None

    def _ask(self, reading: Future[Status]) -> None:
        try:
            reading.set_result(ask_status(self._app))
        except BaseException as exc:  # noqa: BLE001 - it is raised where it is waited for
            reading.set_exception(exc)
