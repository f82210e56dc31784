"""The threads that talk to Redis for workers: nothing is lost that has to wait, and nobody waits for them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat.errors import StoreUnavailable
from redbeat.runs import gate, keeper, publishing
from redbeat.runs.caller import REST_SECONDS, Caller, UnansweredError, caller_of
from redbeat.runs.deliveries import Ticket
from redbeat.runs.keeper import Keeper
from redbeat.runs.outcomes import Busy, Duplicate
from redbeat.runs.publishing import Present, at_work
from redbeat.store.runs import Delivery, End, Runs
from tests.conftest import MakeApp
from tests.faults.children import run_child
from tests.support.deadlines import patience
from tests.support.polling import eventually
from tests.support.progress import NAMES, Progress
from tests.support.proxy import Proxy
from tests.support.servers import Server

WORKER = "celery@kept"


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy((server.host, server.port)) as made:
        yield made


@pytest.fixture
def by_proxy(make_app: MakeApp, server: Server, proxy: Proxy) -> Celery:
    return make_app(redbeat_redis_url=proxy.url(server.url(1)))


@pytest.fixture
def kept(by_proxy: Celery) -> Iterator[Keeper]:
    made = Keeper(by_proxy, WORKER, {"pool": "test"}, 1.0)
    made.start()
    yield made
    made.stop()


@pytest.fixture(autouse=True)
def long_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine an answer may take long."""
    monkeypatch.setattr(gate, "ASK_SECONDS", 20)


@dataclass(eq=False)
class Execution:
    """A delivery that a worker has begun long ago."""

    delivery: Delivery
    accepted_at: float = field(default_factory=lambda: time.monotonic() - 5)
    is_over: bool = False
    asked: list[str] = field(default_factory=list)
    untold_seconds: float = 0.0
    is_untold: bool = False

    def has_ended(self) -> bool:
        return self.is_untold

    def terminate(self, why: str) -> None:
        self.asked.append(why)


def present(app: Celery, delivery: Delivery) -> Present:
    return Present(app, Ticket(delivery, {}, None, 30_000, is_acked_early=True))


def pass_gate(app: Celery, delivery: Delivery, *, is_acked_early: bool, **ticket: bool) -> tuple[bool, Any]:
    """Return whether the task began, and what the gate returned."""
    began: list[str] = []
    app.set_current()
    made = Ticket(delivery, {}, None, 30_000, is_acked_early, **ticket)
    told = gate.pass_gate(made, lambda: (0, began.append("the task"), 0.0))
    return bool(began), told


def away(proxy: Proxy) -> None:
    proxy.refuse()
    proxy.drop()


def test_outcomes_wait_for_redis_and_the_oldest_are_forgotten(
    kept: Keeper,
    proxy: Proxy,
    progress: Progress,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(keeper, "MAX_KEPT", 3)
    caplog.set_level("INFO", "celery.redbeat")
    deliveries = [progress.started(f"job-{number}", f"id-{number}") for number in range(5)]
    eventually(lambda: WORKER in progress.runs.workers())
    away(proxy)
    kept.end(End(deliveries[0], "succeeded"))
    eventually(lambda: "can't be tracked" in caplog.text)
    for delivery in deliveries[1:]:
        kept.end(End(delivery, "succeeded"))
    eventually(lambda: "the oldest are forgotten" in caplog.text)
    proxy.heal()

    def outcomes() -> list[Any]:
        return [progress.history(f"job-{number}")[0].get("outcome") for number in range(5)]

    eventually(lambda: outcomes()[2:] == ["succeeded", "succeeded", "succeeded"])
    assert outcomes()[0] is None
    eventually(lambda: "tracked again" in caplog.text)
    assert caplog.text.count("can't be tracked") == 1


def test_an_outcome_that_the_server_refuses_keeps_no_other_back(
    kept: Keeper, progress: Progress, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    spoilt = progress.delivery("spoilt", "id")
    client.set(NAMES.about("spoilt").running, "no hash")
    well = progress.started("well", "id")
    kept.end(End(spoilt, "succeeded"))
    kept.end(End(well, "failed", "ValueError: no"))
    eventually(lambda: progress.history("well")[0].get("outcome") == "failed")
    eventually(lambda: "noting the outcome of a run of spoilt failed" in caplog.text)
    assert client.xlen(NAMES.failures) == 1, "what was delivered twice counts once"
    after = progress.started("after", "id")
    kept.end(End(after, "succeeded"))
    eventually(lambda: progress.history("after")[0].get("outcome") == "succeeded")


@pytest.mark.slow
def test_a_worker_ends_within_seconds_while_redis_is_away(
    kept: Keeper, proxy: Proxy, progress: Progress, caplog: pytest.LogCaptureFixture
) -> None:
    delivery = progress.started("job", "id")
    eventually(lambda: WORKER in progress.runs.workers())
    proxy.freeze()
    kept.end(End(delivery, "succeeded"))
    began = time.monotonic()
    kept.stop()
    assert time.monotonic() - began < keeper.LAST_SECONDS + 2 * keeper.SOCKET_SECONDS + 5
    assert "can't be noted" in caplog.text or "can't be tracked" in caplog.text


@pytest.mark.parametrize("is_untold", [False, True])
def test_run_is_renewed_only_while_its_request_is_there_and_not_long_after_an_untold_end(
    kept: Keeper, progress: Progress, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, is_untold: bool
) -> None:
    monkeypatch.setattr(keeper, "UNTOLD_SECONDS", 1e-3)
    delivery = progress.started("job", "id")
    client.zadd(NAMES.deadlines, {f"id\0{NAMES.about('job').running}": 1.0})
    held = Execution(delivery)
    kept.hold(held)
    eventually(lambda: (progress.deadline_of("job", "id") or 0) > 1.0)
    held.is_untold = is_untold
    if not is_untold:
        del held

    def is_left_alone() -> bool:
        client.zadd(NAMES.deadlines, {f"id\0{NAMES.about('job').running}": 1.0})
        time.sleep(0.5)  # five renewals
        return progress.deadline_of("job", "id") == 1.0

    eventually(is_left_alone)


def test_beat_asks_to_terminate_until_the_run_has_ended(
    kept: Keeper, progress: Progress, client: redis.Redis
) -> None:
    delivery = progress.started("job", "id")
    running = NAMES.about("job").running
    client.hset(running, "id", json.dumps({**progress.running("job")["id"], "terminate": "replaced"}))
    held = Execution(delivery)
    kept.hold(held)
    eventually(lambda: held.asked[:2] == ["replaced", "replaced"])
    held.is_over = True
    kept.end(End(delivery, "revoked"))
    eventually(lambda: progress.running("job") == {})


# -- asking where tasks run


def running(runs: Runs) -> str:
    return "answered" if runs.workers() is not None else ""


def test_who_asks_waits_no_longer_than_he_said(by_proxy: Celery, proxy: Proxy) -> None:
    caller = Caller(by_proxy)
    assert caller.inquire(running, 20) == "answered"
    proxy.freeze()
    began = time.monotonic()
    with pytest.raises(UnansweredError, match="hasn't answered within 50 ms"):
        caller.inquire(running, 0.05)
    assert 0.05 <= time.monotonic() - began < patience(1)
    began = time.monotonic()
    for _ in range(100):
        with pytest.raises(UnansweredError):
            caller.inquire(running, 10)
    assert time.monotonic() - began < patience(20), "while an answer is missing nobody waits"
    proxy.thaw()
    eventually(lambda: caller.inquire(running, 20) == "answered", retry_on=(UnansweredError,))


def test_after_an_error_nobody_waits_for_some_seconds(by_proxy: Celery, proxy: Proxy) -> None:
    caller = Caller(by_proxy)
    assert caller.inquire(running, 20) == "answered"
    away(proxy)
    with pytest.raises(UnansweredError):
        caller.inquire(running, 20)
    failed_at = time.monotonic()
    proxy.heal()
    with pytest.raises(UnansweredError, match="away"):
        caller.inquire(running, 20)
    assert caller.inquire(running, 20, is_patient=True) == "answered"
    assert time.monotonic() - failed_at < REST_SECONDS + 60
    assert caller.inquire(running, 20) == "answered", "an answer ends the rest"


def test_forked_process_asks_by_a_thread_of_its_own(by_proxy: Celery) -> None:
    def ask() -> None:
        assert caller_of(by_proxy).inquire(running, 20) == "answered"

    ask()
    assert run_child(ask, lambda: None) == 0
    ask()


def test_owner_is_unknown_while_redis_is_away(by_proxy: Celery, proxy: Proxy, progress: Progress) -> None:
    run = present(by_proxy, progress.started("job", "id"))
    assert gate.is_mine(), "outside of runs"
    with at_work(run):
        assert gate.is_mine()
        away(proxy)
        with pytest.raises(StoreUnavailable, match="Nobody can tell"):
            gate.is_mine()


@pytest.mark.parametrize(("overlap", "is_mine"), [("skip", False), ("allow", True)])
def test_overdue_run_has_its_entry_only_where_runs_may_overlap(
    app: Celery, progress: Progress, overlap: str, is_mine: bool
) -> None:
    with at_work(present(app, progress.started("job", "id", overlap=overlap, max=5))):
        assert gate.is_mine()
        progress.settle(at=progress.now + 10)
        before = progress.running("job")["id"]
        assert before["overdue"]
        assert gate.is_mine() is is_mine
    assert progress.running("job")["id"] == before, "asking changes nothing"


def test_run_begun_without_redis_takes_its_lease_when_its_task_asks(app: Celery, progress: Progress) -> None:
    progress.send("job", "id")
    delivery = progress.delivery("job", "id")
    with at_work(present(app, delivery)):
        assert gate.is_mine()
    assert progress.running("job")["id"]["delivery"] == delivery.token


@pytest.mark.parametrize("is_redelivered", [True, False])
def test_message_that_comes_once_more_waits_longer_for_the_gate(
    by_proxy: Celery, proxy: Proxy, progress: Progress, is_redelivered: bool
) -> None:
    """Its run may have been given up, and another one may have begun since."""
    progress.started("job", "other", 2000.0, overlap="skip")
    delivery = progress.delivery("job", "id", overlap="skip")
    assert caller_of(by_proxy).inquire(running, 20) == "answered"
    proxy.freeze()
    later = threading.Timer(0.5, proxy.thaw)
    later.start()
    began, _ = pass_gate(by_proxy, delivery, is_acked_early=False, is_redelivered=is_redelivered)
    later.join()
    assert began is not is_redelivered


@pytest.mark.parametrize(("overlap", "is_expired"), [("skip", False), ("skip", True), ("", False)])
def test_message_that_comes_once_more_is_not_begun_after_a_later_attempt_has_ended(
    app: Celery, progress: Progress, monkeypatch: pytest.MonkeyPatch, overlap: str, is_expired: bool
) -> None:
    """Its worker was killed after the task had asked for a retry, before the message was acknowledged."""
    monkeypatch.setattr(publishing, "PATIENCE_SECONDS", 20)
    first = progress.started("job", "id")
    second = progress.delivery("job", "id", attempt=2, follows=first.token, overlap=overlap)
    assert progress.begin(second) == "go"
    progress.end(second, "succeeded")
    progress.started("job", "other", 2000.0)
    again = progress.delivery("job", "id", overlap=overlap)
    flags = {"is_acked_early": False, "is_expired": is_expired, "is_redelivered": True}
    began, _ = pass_gate(app, again, **flags)
    # a run that may overlap is begun as without tracking, unless it has expired
    assert began is not (bool(overlap) or is_expired)
    assert [*progress.running("job")] == ["other"]
    assert progress.history("job")[1]["outcome"] == "succeeded"


@pytest.mark.parametrize("is_acked_early", [True, False])
def test_message_delivered_twice_is_not_begun_or_counted_twice(
    app: Celery, progress: Progress, monkeypatch: pytest.MonkeyPatch, is_acked_early: bool
) -> None:
    monkeypatch.setattr(publishing, "PATIENCE_SECONDS", 20)
    monkeypatch.setattr(gate, "RENEWED_SECONDS", 0.0)
    first = progress.started("job", "id", overlap="skip")
    again = progress.delivery("job", "id", overlap="skip")
    renewal = threading.Timer(0.3, lambda: progress.runs.renew([(first, 1.0)], 60_000, WORKER, '"pool":"x"'))
    renewal.start()
    try:
        began, told = pass_gate(app, again, is_acked_early=is_acked_early)
    finally:
        renewal.join()
    assert not began
    assert type(told[1].exception.exc) is (Duplicate if is_acked_early else Busy)
    progress.end(first, "failed", error="ValueError: no")
    assert progress.failing("job") == [1]
    assert len(progress.history("job")) == 1
    assert progress.running("job") == {}


# -- a user that may not do all that tracking takes


@pytest.mark.parametrize("missing", ["-hget", "-@all"])
def test_missing_rights_are_reported_once_and_outcomes_are_kept(
    make_app: MakeApp,
    server: Server,
    progress: Progress,
    client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    missing: str,
) -> None:
    monkeypatch.setattr(keeper, "RETRY_SECONDS", 0.05)
    rights = ["reset", "on", ">secret", "~*", "&*", "+@all", missing]
    client.execute_command("ACL", "SETUSER", "worker", *rights)
    options = {"username": "worker", "password": "secret"}
    app = make_app(redbeat_redis_url=server.url(1), redbeat_redis_options=options)
    limited = Keeper(app, WORKER, {"pool": "test"}, 1.0)
    deliveries = [progress.started(f"job-{number}", "id") for number in range(3)]
    limited.start()
    try:
        for delivery in deliveries:
            limited.end(End(delivery, "succeeded"))
        eventually(lambda: "lacks rights" in caplog.text)
        client.execute_command("ACL", "LOG", "RESET")
        limited.end(End(deliveries[2], "failed"))
        eventually(lambda: client.execute_command("ACL", "LOG"))
        [said] = [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
        assert "worker.acl" in said.getMessage()
        client.execute_command("ACL", "SETUSER", "worker", "+@all")
        limited.end(End(deliveries[1], "succeeded"))
        eventually(lambda: progress.history("job-1")[0].get("outcome") == "succeeded")
    finally:
        limited.stop()
        client.execute_command("ACL", "DELUSER", "worker")
