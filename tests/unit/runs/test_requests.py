"""Requests for runs are tracked, and those for other messages are Celery's own."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any, cast

import pytest
from billiard.exceptions import SoftTimeLimitExceeded
from billiard.pool import Pool
from celery import Celery
from celery.concurrency.solo import TaskPool
from celery.contrib.testing.worker import start_worker
from celery.signals import worker_process_init
from celery.utils.imports import symbol_by_name
from celery.worker.request import Request, create_request_cls

import redbeat
from redbeat.delivery.guard import find_obstacle
from redbeat.runs import publishing
from redbeat.runs.boundary import Harmless
from redbeat.runs.deliveries import Ticket, read_delivery
from redbeat.runs.gate import SAY_AGAIN_SECONDS, SILENT_SECONDS, SILENT_TIMES, Silence
from redbeat.runs.keeper import Keeper
from redbeat.runs.outcomes import Told
from redbeat.runs.processes import has_ended
from redbeat.runs.publishing import Present, at_work
from redbeat.runs.request import Requests, Station, TrackedRequest
from redbeat.runs.tracking import KeepRuns, TrackRuns, is_tracked
from redbeat.store.runs import Delivery
from tests.support.polling import eventually
from tests.support.ticks import memory_app

DUE = "2026-01-01T00:00:00.000000+00:00"
RUN = {"redbeat_entry": "report", "redbeat_due": DUE}
DELIVERY = Delivery("report", "an-id", "1767225600.000000", "token", "celery@test")


@pytest.fixture
def station(app: Celery) -> Station:
    controller = SimpleNamespace(pool=TaskPool(app=app), consumer=None, hostname="celery@test")
    return Station(controller, Keeper(app, "celery@test", {}, 30))


def message(**headers: Any) -> Any:
    body = json.dumps([[], {}, {}])
    values = {"id": "an-id", "task": "job", "lang": "py", **headers}
    return SimpleNamespace(
        headers=values,
        body=body,
        payload=json.loads(body),
        content_type="application/json",
        content_encoding="utf-8",
        delivery_info={},
        properties={},
    )


def quick_class(app: Celery, station: Station) -> Any:
    """What Celery makes of a task's request, in a worker that has started."""
    task = app.tasks["job"]
    return create_request_cls(
        symbol_by_name(task.Request), task, station.controller.pool, "celery@test", None, app=app
    )


class Own(Request):
    made = 0

    def __new__(cls, *args: Any, **kwargs: Any) -> Own:
        Own.made += 1
        return cast("Own", object.__new__(cls))

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.mark = "own"


@pytest.fixture
def job(app: Celery) -> Any:
    @app.task(name="job")
    def job() -> None:
        pass

    return job


def test_a_request_for_a_run_is_tracked_and_still_of_celerys_class(
    app: Celery, job: Any, station: Station
) -> None:
    Requests(app, station).put()
    quick = quick_class(app, station)
    request = quick(message(**RUN), app=app, task=job, hostname="celery@test")
    assert isinstance(request, TrackedRequest)
    assert isinstance(request, quick)
    again = quick(message(**RUN), app=app, task=job, hostname="celery@test")
    assert type(again) is type(request)
    assert again._redbeat_run.delivery.token != request._redbeat_run.delivery.token  # noqa: SLF001


def test_a_request_class_of_the_users_own_is_kept(app: Celery, job: Any, station: Station) -> None:
    job.Request = Own
    Requests(app, station).put()
    quick = quick_class(app, station)
    for headers in ({}, RUN):
        before = Own.made
        request = quick(message(**headers), app=app, task=job, hostname="celery@test")
        assert isinstance(request, Own)
        assert request.mark == "own"
        assert Own.made == before + 1


def test_a_class_that_is_no_request_of_celerys_is_left_alone(
    app: Celery, job: Any, station: Station, caplog: pytest.LogCaptureFixture
) -> None:
    job.Request = dict
    Requests(app, station).put()
    assert job.Request is dict
    assert "aren't tracked" in caplog.text


class Hostile(Exception):
    """Not even its class can be looked at."""

    __class__ = property(lambda _: 1 / 0)  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("method", "arguments", "outcome"),
    [
        ("on_failure", (SimpleNamespace(exception=ValueError("no")),), "failed"),
        ("on_failure", (SimpleNamespace(exception=Hostile()),), "failed"),
        ("on_success", ((0, "done", 0.0, Told(1.0)),), "succeeded"),
        ("on_timeout", (False, 1), "failed"),
    ],
    ids=["failure", "hostile exception", "success", "timeout"],
)
def test_outcome_is_recorded_when_the_user_s_request_class_raises(
    app: Celery,
    job: Any,
    station: Station,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    arguments: Any,
    outcome: str,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise LookupError("of the user")

    ends: list[Any] = []
    monkeypatch.setattr(station.keeper, "end", ends.append)
    job.Request = type("Failing", (Request,), {method: fail})
    Requests(app, station).put()
    request = job.Request(message(**RUN), app=app, task=job, hostname="celery@test")
    with pytest.raises(LookupError, match="of the user"):
        getattr(request, method)(*arguments)
    assert [end.outcome for end in ends] == [outcome]


def test_request_classes_are_given_back_when_the_worker_ends(app: Celery, job: Any, station: Station) -> None:
    before = job.Request, app.Task.Request
    requests = Requests(app, station)
    requests.put()
    assert (job.Request, app.Task.Request) != before
    requests.take_back()
    assert (job.Request, app.Task.Request) == before


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"redbeat_due": DUE},
        {"redbeat_entry": "report"},
        {"redbeat_entry": "report", "redbeat_due": "soon"},
        {**RUN, "retries": 10**400},
        {**RUN, "redbeat_entry": "\ud800"},
        {**RUN, "id": "an\0id"},
    ],
    ids=ascii,
)
def test_message_without_valid_run_headers_keeps_the_request_of_celery(
    headers: dict[str, Any], app: Celery, job: Any, station: Station
) -> None:
    assert read_delivery({"id": "an-id", **headers}, "celery@test", is_soft=False) is None
    Requests(app, station).put()
    quick = quick_class(app, station)
    request = quick(message(**headers), app=app, task=job, hostname="celery@test")
    calls: list[Any] = []
    request.execute_using_pool(SimpleNamespace(apply_async=lambda *args, **_: calls.append(args)))
    assert not calls, "it goes the quick way, which has its pool built in"
    assert quick.on_success.__module__ == "celery.worker.request"
    assert isinstance(request, TrackedRequest) is ("redbeat_entry" in headers)


def test_a_delivery_has_what_the_message_says() -> None:
    headers = {**RUN, "id": "an-id", "retries": 2, "redbeat_root": "root", "redbeat_overlap": "skip"}
    found = read_delivery(headers, "celery@test", is_soft=True)
    assert found is not None
    assert found._replace(token="") == Delivery(
        "report", "an-id", "1767225600.000000", "", "celery@test", 3, "root", True, "skip"
    )
    assert len(found.token) == 16
    root = read_delivery({**headers, "redbeat_root": "an-id", "redbeat_overlap": "new"}, "w", is_soft=False)
    assert root is not None
    assert (root.root, root.overlap) == ("", "new"), "an unknown value doesn't let runs overlap"
    for value in (7, ["skip"], "\ud800"):
        other = read_delivery({**headers, "redbeat_overlap": value}, "w", is_soft=False)
        assert other is not None
        assert other.overlap == "unknown", value


# -- messages that have expired

PAST, SOON = "2026-01-01T01:00:00+00:00", "2300-01-01T00:00:00+00:00"
LATE = {"expires": PAST, "redbeat_queue_timeout": 3600.0}


@pytest.mark.parametrize(
    ("headers", "is_redelivered", "acks_late", "has_expired", "is_left"),
    [
        (LATE, True, True, False, True),
        ({**LATE, "redbeat_expires_after": 1e10}, True, True, False, True),
        (LATE, False, True, True, False),
        (LATE, True, False, True, False),
        ({**LATE, "redbeat_expires_after": 7200.0}, True, True, True, False),
        ({"expires": PAST}, True, True, True, False),
        ({**LATE, "expires": SOON}, True, True, False, False),
    ],
)
def test_an_expired_message_is_left_to_the_gate_if_its_run_may_have_begun(
    app: Celery,
    job: Any,
    station: Station,
    headers: Any,
    is_redelivered: bool,
    acks_late: bool,
    has_expired: bool,
    is_left: bool,
) -> None:
    Requests(app, station).put()
    job.acks_late = acks_late
    one = message(**RUN, **headers)
    one.delivery_info = {"redelivered": is_redelivered}
    request = quick_class(app, station)(one, app=app, task=job, hostname="celery@test")
    assert bool(request.maybe_expire()) is has_expired
    assert request._redbeat_run.ticket(request).is_expired is is_left  # noqa: SLF001


# -- what a run's task publishes


def published(run: Present | None, **headers: Any) -> dict[str, Any]:
    publishing.listen()
    with at_work(run):
        publishing.before_task_publish.send(sender="job", headers=headers, properties={}, body=None)
        publishing.after_task_publish.send(sender="job", headers=headers, body=None)
    return headers


def present(app: Celery, **headers: Any) -> Present:
    return Present(app, Ticket(DELIVERY, {**RUN, **headers}, None, 30_000, is_acked_early=True))


def test_a_published_message_with_the_run_s_id_is_its_next_attempt(app: Celery) -> None:
    expires = {"redbeat_queue_timeout": 60.0, "expires": PAST}
    ticket = Ticket(DELIVERY, {**RUN, "redbeat_root": "root"}, PAST, 30_000, is_acked_early=True)
    run = Present(app, ticket)
    sent = published(run, id="an-id", redbeat_root=None, **expires)
    until = datetime.fromisoformat(sent.pop("expires")) - datetime.now(timezone.utc)
    assert 0 < until.total_seconds() <= 60, "it may wait as long on its queue as the first"
    follows = {"redbeat_follows": DELIVERY.token, "redbeat_queue_timeout": 60.0}
    assert sent == {"id": "an-id", **RUN, "redbeat_root": "root", **follows}
    assert run.successor_seconds == 0


def test_other_published_messages_belong_to_a_run_only_if_it_tracks_its_workflow(app: Celery) -> None:
    assert published(None, id="other") == {"id": "other"}
    assert published(present(app), id="other") == {"id": "other"}
    workflow = present(app, redbeat_tracks="workflow", redbeat_overlap="skip")
    child = {"redbeat_tracks": "workflow", "redbeat_overlap": "skip", "redbeat_root": "an-id"}
    assert published(workflow, id="other") == {"id": "other", **RUN, **child}, "also without Redis"
    own = {"id": "other", "redbeat_entry": "another", "redbeat_due": DUE}
    assert published(workflow, **own) == own


def test_beats_quick_way_is_open_though_workers_listen_to_what_is_published() -> None:
    app = memory_app()
    publishing.listen()
    assert find_obstacle(app) == ""


def test_a_process_that_is_no_worker_imports_nothing_of_one() -> None:
    program = (
        "import sys, threading, celery, redbeat; app = celery.Celery('web'); redbeat.track_runs(app); "
        "assert not {'celery.worker.request', 'redbeat.runs.request'} & set(sys.modules); "
        "assert threading.active_count() == 1"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"redbeat_redis_url": "redis://127.0.0.1:1/0"}, ""),
        ({}, "Runs aren't tracked: redbeat_redis_url"),
    ],
    ids=["redis unreachable", "no redis url"],
)
def test_a_worker_runs_its_tasks_where_tracking_fails(
    settings: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = memory_app(worker_hijack_root_logger=False, **settings)
    redbeat.track_runs(app)
    done: list[str] = []

    @app.task(name="job")
    def job(who: str) -> None:
        done.append(who)

    # it sets the root logger's level, for all tests after this one
    with start_worker(app, perform_ping_check=False, pool="solo", loglevel="WARNING"):
        app.send_task("job", ["a run"], headers=RUN)
        app.send_task("job", ["another caller"])
        eventually(lambda: done == ["a run", "another caller"])
    assert said in caplog.text
    assert app.Task.Request == "celery.worker.request:Request", "all is as before"


def test_an_app_is_tracked_once(app: Celery) -> None:
    assert not is_tracked(app)
    receivers = len(worker_process_init.receivers or ())
    for _ in range(3):
        redbeat.track_runs(app)
    assert is_tracked(app)
    assert {TrackRuns} <= app.steps["worker"]
    assert app.steps["consumer"] == {KeepRuns}
    assert len(worker_process_init.receivers) == receivers + 1
    assert not is_tracked(memory_app())


@pytest.fixture
def what() -> str:
    """Something that no other test has failed to do."""
    return f"doing {secrets.token_hex(4)}"


def test_an_error_is_logged_once_for_each_kind(what: str, caplog: pytest.LogCaptureFixture) -> None:
    for error in (ValueError("one"), ValueError("two"), KeyError("three")):
        with Harmless(what):
            raise error
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
    assert f"{what} failed, and the task goes on: ValueError: one" in caplog.text
    assert "three" in caplog.text


@pytest.mark.parametrize("error", [SoftTimeLimitExceeded, SystemExit, KeyboardInterrupt, GeneratorExit])
def test_what_is_meant_for_the_task_goes_on(error: type[BaseException], what: str) -> None:
    with pytest.raises(error), Harmless(what):
        raise error


def test_gates_without_an_answer_for_long_are_warned_of_once_an_hour(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 1000.0
    silence = Silence(lambda: now)

    def warned(silent_gates: int) -> int:
        for _ in range(silent_gates):
            silence.note_silence()
        return caplog.text.count("Runs are begun without asking")

    for _ in range(10):
        assert warned(SILENT_TIMES - 1) == 0
        silence.note_answer()  # now and then is enough
        now += SILENT_SECONDS
    assert warned(SILENT_TIMES - 1) == 0
    assert warned(10 * SILENT_TIMES) == 1
    silence.note_answer()
    now += SAY_AGAIN_SECONDS
    assert warned(1) == 1
    now += SILENT_SECONDS
    assert warned(2) == 2, "after some gates, in a long time"


def test_what_waits_in_a_pipe_of_all_processes_says_nothing_and_the_end_of_one_does() -> None:
    made: Any = Pool(1, threads=False)  # so nobody reads what its processes say
    pool = SimpleNamespace(_pool=made)
    [process] = made._pool  # noqa: SLF001
    try:
        made.apply_async(time.sleep, (600,))
        eventually(lambda: made._outqueue._reader.poll(0))  # noqa: SLF001
        assert not has_ended(pool, process.pid)
    finally:
        os.kill(process.pid, signal.SIGKILL)
    eventually(lambda: has_ended(pool, process.pid))
    process.join()


def test_nobody_can_know_it_of_threads_or_of_a_process_without_a_name() -> None:
    with Pool(1) as made:
        assert not has_ended(SimpleNamespace(_pool=made), None)
    assert not has_ended(SimpleNamespace(), os.getpid())
    assert not has_ended(SimpleNamespace(_pool=None), os.getpid())
