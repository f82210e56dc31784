"""Requests for runs are tracked, and those for other messages are Celery's own."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from celery import Celery
from celery.concurrency.solo import TaskPool
from celery.utils.imports import symbol_by_name
from celery.worker.request import Request, create_request_cls

from redbeat.broker.originals import Originals
from redbeat.runs import publishing
from redbeat.runs.deliveries import Ticket, read_delivery
from redbeat.runs.keeper import Keeper
from redbeat.runs.publishing import Present, at_work
from redbeat.runs.request import Requests, Station, TrackedRequest
from redbeat.store.runs import Delivery
from tests.support.stopwatch import lines_run
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


def test_a_request_for_another_message_is_of_celerys_own_class(
    app: Celery, job: Any, station: Station
) -> None:
    requests = Requests(app, station)
    requests.put()
    quick = quick_class(app, station)
    request = quick(message(), app=app, task=job, hostname="celery@test")
    assert type(request) is quick
    assert not isinstance(request, TrackedRequest)
    for name in ("execute_using_pool", "on_success"):
        assert getattr(quick, name).__module__ == "celery.worker.request"
    assert type(request).on_failure is Request.on_failure


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


def test_tasks_that_are_defined_later_are_tracked_too(app: Celery, job: Any, station: Station) -> None:
    Requests(app, station).put()

    @app.task(name="later")
    def later() -> None:
        pass

    made = create_request_cls(
        app.tasks["later"].Request, app.tasks["later"], station.controller.pool, "celery@test", None, app=app
    )
    assert isinstance(
        made(message(**RUN), app=app, task=app.tasks["later"], hostname="celery@test"), TrackedRequest
    )


def test_what_was_put_in_is_taken_out_again(app: Celery, job: Any, station: Station) -> None:
    before = job.Request, app.Task.Request
    requests = Requests(app, station)
    requests.put()
    assert (job.Request, app.Task.Request) != before
    requests.take_back()
    assert (job.Request, app.Task.Request) == before


def test_a_class_that_is_no_request_of_celerys_is_left_alone(
    app: Celery, job: Any, station: Station, caplog: pytest.LogCaptureFixture
) -> None:
    job.Request = dict
    Requests(app, station).put()
    assert job.Request is dict
    assert "aren't tracked" in caplog.text


@pytest.mark.parametrize(
    "headers",
    [
        {"redbeat_due": DUE},
        {"redbeat_entry": "report"},
        {"redbeat_entry": "report", "redbeat_due": "soon"},
        {"redbeat_entry": "report", "redbeat_due": 5},
        {"redbeat_entry": "", "redbeat_due": DUE},
        {**RUN, "retries": "many"},
        {**RUN, "retries": 10**400},
        {**RUN, "retries": -1},
        {**RUN, "redbeat_entry": "\ud800"},
        {**RUN, "id": "an-id\ud800"},
        {**RUN, "id": "an\0id"},
        {**RUN, "id": ""},
        {**RUN, "redbeat_root": "\udcff"},
    ],
    ids=ascii,
)
def test_a_message_that_says_half_or_what_cant_be_kept_is_no_runs(
    headers: dict[str, Any], app: Celery, job: Any, station: Station
) -> None:
    assert read_delivery({"id": "an-id", **headers}, "celery@test", is_soft=False) is None
    assert read_delivery({**RUN, "id": "an-id"}, "celery@\ud800", is_soft=False) is None
    Requests(app, station).put()
    request = quick_class(app, station)(message(**headers), app=app, task=job, hostname="celery@test")
    calls: list[Any] = []
    request.execute_using_pool(SimpleNamespace(apply_async=lambda *args, **_: calls.append(args)))
    assert not calls, "it goes the quick way, which has its pool built in"


def test_a_run_of_an_entry_with_a_nul_in_its_name_is_one() -> None:
    found = read_delivery({**RUN, "id": "an-id", "redbeat_entry": "a\0b"}, "celery@test", is_soft=False)
    assert found is not None
    assert found.name == "a\0b"


def test_a_delivery_has_what_the_message_says() -> None:
    headers = {**RUN, "id": "an-id", "retries": 2, "redbeat_root": "root", "redbeat_overlap": "skip"}
    found = read_delivery(headers, "celery@test", is_soft=True)
    assert found is not None
    assert found._replace(token="") == Delivery(
        "report", "an-id", "1767225600.000000", "", "celery@test", 3, "root", True, "skip"
    )
    assert len(found.token) == 16
    root = read_delivery({**headers, "redbeat_root": "an-id", "redbeat_overlap": "no"}, "w", is_soft=False)
    assert root is not None
    assert (root.root, root.overlap) == ("", "")


def test_what_other_messages_cost_is_small_beside_their_requests(
    app: Celery, job: Any, station: Station
) -> None:
    one, plain = message(), quick_class(app, station)
    Requests(app, station).put()
    tracked = quick_class(app, station)

    def cost(made: Any) -> int:
        made(one, app=app, task=job, hostname="celery@test")  # what the first one only does
        return lines_run(lambda: made(one, app=app, task=job, hostname="celery@test"))

    assert cost(plain) <= cost(tracked) <= cost(plain) + 10


class Hostile(Exception):
    @property
    def __class__(self) -> Any:
        raise RuntimeError("not even that")

    @__class__.setter
    def __class__(self, _value: Any) -> None:
        pass


def test_no_exception_keeps_an_outcome_from_being_noted(
    app: Celery, job: Any, station: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[Any] = []
    monkeypatch.setattr(station.keeper, "end", ends.append)
    Requests(app, station).put()
    request = quick_class(app, station)(message(**RUN), app=app, task=job, hostname="celery@test")
    request._redbeat_end(SimpleNamespace(exception=Hostile()))  # noqa: SLF001
    assert [end.outcome for end in ends] == ["failed"]


# -- messages that have expired

PAST, SOON = "2026-01-01T01:00:00+00:00", "2300-01-01T00:00:00+00:00"
LATE = {"expires": PAST, "redbeat_queue_timeout": 3600.0}


@pytest.mark.parametrize(
    ("headers", "is_redelivered", "acks_late", "is_left"),
    [
        (LATE, True, True, True),
        ({**LATE, "redbeat_expires_after": 1e10}, True, True, True),
        (LATE, False, True, False),
        (LATE, True, False, False),
        ({**LATE, "redbeat_expires_after": 7200.0}, True, True, False),
        ({**LATE, "redbeat_expires_after": "soon"}, True, True, False),
        ({"expires": PAST}, True, True, False),
    ],
)
def test_a_message_that_has_expired_is_left_to_the_gate_if_its_run_may_have_been_begun(
    app: Celery,
    job: Any,
    station: Station,
    headers: Any,
    is_redelivered: bool,
    acks_late: bool,
    is_left: bool,
) -> None:
    Requests(app, station).put()
    job.acks_late = acks_late
    one = message(**RUN, **headers)
    one.delivery_info = {"redelivered": is_redelivered}
    request = quick_class(app, station)(one, app=app, task=job, hostname="celery@test")
    assert bool(request.maybe_expire()) is not is_left
    assert request._redbeat_run.ticket(request).is_expired is is_left  # noqa: SLF001


@pytest.mark.parametrize("expires", [None, SOON])
def test_a_message_that_comes_once_more_in_time_has_not_expired(
    app: Celery, job: Any, station: Station, expires: str | None
) -> None:
    Requests(app, station).put()
    job.acks_late = True
    one = message(**RUN, redbeat_queue_timeout=3600.0, expires=expires)
    one.delivery_info = {"redelivered": True}
    request = quick_class(app, station)(one, app=app, task=job, hostname="celery@test")
    assert not request.maybe_expire()
    assert not request._redbeat_run.ticket(request).is_expired  # noqa: SLF001


# -- what a run's task publishes


def published(run: Present | None, **headers: Any) -> dict[str, Any]:
    publishing.listen()
    with at_work(run):
        publishing.before_task_publish.send(sender="job", headers=headers, properties={}, body=None)
        publishing.after_task_publish.send(sender="job", headers=headers, body=None)
    return headers


def present(app: Celery, **headers: Any) -> Present:
    return Present(app, Ticket(DELIVERY, {**RUN, **headers}, None, 30_000, is_acked_early=True))


def test_a_message_that_is_sent_elsewhere_stays_as_it_is() -> None:
    assert published(None, id="an-id") == {"id": "an-id"}


def test_a_message_that_a_run_sends_stays_as_it_is(app: Celery) -> None:
    run = present(app)
    assert published(run, id="other") == {"id": "other"}
    assert run.successor_seconds is None


def test_a_message_with_the_runs_own_id_is_its_next_attempt(app: Celery) -> None:
    run = present(app, redbeat_root="root", redbeat_manual=True)
    sent = published(run, id="an-id", redbeat_root=None)
    follows = {"redbeat_follows": DELIVERY.token}
    assert sent == {"id": "an-id", **RUN, "redbeat_root": "root", "redbeat_manual": True, **follows}
    assert run.successor_seconds == 0


def test_a_message_of_another_entry_keeps_its_own(app: Celery) -> None:
    own = {"id": "other", "redbeat_entry": "another", "redbeat_due": DUE}
    assert published(present(app, redbeat_tracks="workflow"), **own) == own


def test_a_message_of_a_workflow_is_its_part_also_without_redis(app: Celery) -> None:
    sent = published(present(app, redbeat_tracks="workflow", redbeat_overlap="skip"), id="other")
    expected = {"redbeat_tracks": "workflow", "redbeat_overlap": "skip", "redbeat_root": "an-id"}
    assert sent == {"id": "other", **RUN, **expected}


def test_messages_of_other_protocols_are_left_alone(app: Celery) -> None:
    publishing.listen()
    with at_work(present(app)):
        publishing.before_task_publish.send(sender="job", headers=None, body={"id": "an-id"})


def test_beats_quick_way_is_open_though_workers_listen_to_what_is_published() -> None:
    app = memory_app()
    publishing.listen()
    assert Originals(app).find_obstacle() == ""
