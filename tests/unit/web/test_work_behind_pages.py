"""Work behind pages: jobs, changes that take long, and the threads that ask Redis."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery

from redbeat.errors import EntryError, StoreUnavailable
from redbeat.store.changes import ChangeRecord, ChangeRecords
from redbeat.store.store import Store
from redbeat.web import dashboard
from redbeat.web.background import Background, Result, TooBusy
from redbeat.web.changes import MAX_AT_WORK, MAX_KEPT, MAX_OF_USER, Changes, Ending
from tests.support.dashboards import Browser, dashboard_of
from tests.support.deadlines import patience
from tests.support.polling import eventually


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What work waits for; opened at the end in any case."""
    event = threading.Event()
    yield event
    event.set()


def held(gate: threading.Event, done: list[int]) -> Any:
    """Return work that says how far it is and waits at the gate."""

    def work(tell: Callable[[str], None]) -> str:
        tell("half")
        assert gate.wait(patience(30))
        done.append(1)
        return "all"

    return work


def settled(jobs: Background, kind: str, key: str, work: Any = None, **options: Any) -> Result[Any]:
    """Return what a job has found when it is done."""
    found = jobs.result_of(kind, key, work, wait_seconds=patience(30), **options)
    while found.is_awaited:
        found = jobs.result_of(kind, key, work, wait_seconds=patience(30), fresh_seconds=999)
    return found


def test_long_job_runs_once_and_shows_what_it_has_so_far(gate: threading.Event) -> None:
    jobs, made = Background(), list[int]()
    work = held(gate, made)
    eventually(lambda: jobs.result_of("kind", "a", work).found)
    early = jobs.result_of("kind", "a", work, is_wanted=True)
    assert (early.found, early.is_whole, early.is_awaited) == ("half", False, True)
    gate.set()
    assert settled(jobs, "kind", "a", work).found == "all"
    assert made == [1]


def test_failed_job_says_why_and_keeps_the_result_before_it(caplog: pytest.LogCaptureFixture) -> None:
    jobs = Background()

    def refuse(_tell: Any) -> int:
        raise EntryError("A sentence.", "key")

    def break_(_tell: Any) -> int:
        raise ZeroDivisionError("secret")

    settled(jobs, "kind", "key", lambda _tell: 42)
    found = settled(jobs, "kind", "key", refuse, is_wanted=True)
    assert (found.found, found.problem, found.is_awaited) == (42, "A sentence.", False)
    assert "A sentence." not in caplog.text
    found = settled(jobs, "kind", "key", break_, is_wanted=True)
    assert ("secret" in found.problem, "ZeroDivisionError" in caplog.text) == (False, True)
    assert settled(jobs, "kind", "key", lambda _tell: 43, is_wanted=True).problem == ""


def told(outcome: Any) -> Ending:
    return Ending(str(outcome))


@pytest.fixture
def changes(fake_app: Celery) -> Changes:
    return Changes(lambda: ChangeRecords(Store(fake_app)), told)


def test_click_begins_one_change_of_its_user(changes: Changes, gate: threading.Event) -> None:
    done = list[int]()
    first = changes.make("anna", "Apply", held(gate, done), told, once="click", wait_seconds=0)
    again = changes.make("anna", "Apply", held(gate, done), told, once="click", wait_seconds=0)
    other = changes.make("bob", "Apply", held(gate, done), told, once="click", wait_seconds=0)
    assert (first is again, first is other, first.is_done) == (True, False, False)
    eventually(lambda: first.told == "half")
    assert changes.find(first.id, "anna") is first
    assert changes.find(first.id, "bob") is None
    gate.set()
    eventually(lambda: first.is_done and other.is_done)
    assert (first.ending, len(done)) == (Ending("all"), 2)
    assert changes.make("anna", "Apply", held(gate, done), told, once="click") is first
    assert len(done) == 2


def test_changes_at_a_time_and_kept_changes_are_limited(changes: Changes, gate: threading.Event) -> None:
    done = list[int]()
    made = [changes.make("anna", "x", held(gate, done), told, wait_seconds=0) for _ in range(MAX_OF_USER)]
    with pytest.raises(TooBusy):
        changes.make("anna", "x", held(gate, done), told, wait_seconds=0)
    others = [f"ben {number}" for number in range(MAX_AT_WORK - MAX_OF_USER)]  # anna leaves them places
    made += [changes.make(one, "x", held(gate, done), told, wait_seconds=0) for one in others]
    with pytest.raises(TooBusy):
        changes.make("carl", "x", held(gate, done), told, wait_seconds=0)
    gate.set()
    eventually(lambda: all(one.is_done for one in made))
    for _ in range(MAX_KEPT + 5):
        last = changes.make("anna", "x", lambda _tell: None, told, wait_seconds=patience(20))
    kept = changes.find(made[0].id, "anna")
    assert isinstance(kept, ChangeRecord), "others still know of it"
    assert changes.find(last.id, "anna") is last


def test_page_that_says_that_redis_is_away_connects_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connected: list[float] = []

    def connect(_app: Any, seconds: float) -> Any:
        connected.append(seconds)  # with a cluster each time takes as long
        raise StoreUnavailable("Redis can't be reached.")

    monkeypatch.setattr(dashboard, "get_hasty_redis", connect)
    app = Celery("test", broker="memory://", set_as_current=False)
    app.conf.redbeat_redis_url = "redis-cluster://localhost"
    answer = Browser(dashboard_of(app)).get("/")
    assert (answer.status_code, "be reached" in answer.text) == (503, True)
    assert len(connected) == 1
