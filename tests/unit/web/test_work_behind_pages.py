"""Work behind pages: jobs, changes that take long, and the threads that ask Redis."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery

from redbeat.errors import EntryError, StoreUnavailable
from redbeat.store.changes import ChangeRecord, ChangeRecords
from redbeat.store.store import Store
from redbeat.web import dashboard
from redbeat.web.jobs import (
    MAX_CHANGES,
    MAX_OUTCOMES,
    MAX_QUEUED,
    MAX_READS,
    Change,
    Ending,
    Jobs,
    Result,
    TooBusy,
)
from redbeat.web.names import read_names
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


@pytest.fixture
def jobs(fake_app: Celery) -> Jobs:
    return Jobs(lambda: ChangeRecords(Store(fake_app)))


def settled(jobs: Jobs, key: str, work: Any = None, **options: Any) -> Result[Any]:
    """Return the result of a read when it is done."""
    found = jobs.read("kind", key, work, wait_seconds=patience(30), **options)
    while found.is_awaited:
        found = jobs.read("kind", key, work, wait_seconds=patience(30), fresh_seconds=999)
    return found


def test_long_read_runs_once_and_shows_what_it_has_so_far(jobs: Jobs, gate: threading.Event) -> None:
    made = list[int]()
    work = held(gate, made)
    eventually(lambda: jobs.read("kind", "a", work).found)
    early = jobs.read("kind", "a", work, is_wanted=True)
    assert (early.found, early.is_whole, early.is_awaited) == ("half", False, True)
    gate.set()
    assert settled(jobs, "a", work).found == "all"
    assert made == [1]


def test_failed_read_says_why_and_keeps_the_result_before_it(
    jobs: Jobs, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_tell: Any) -> int:
        raise EntryError("A sentence.", "key")

    def break_(_tell: Any) -> int:
        raise ZeroDivisionError("secret")

    settled(jobs, "key", lambda _tell: 42)
    found = settled(jobs, "key", refuse, is_wanted=True)
    assert (found.found, found.problem, found.is_awaited) == (42, "A sentence.", False)
    assert "A sentence." not in caplog.text
    found = settled(jobs, "key", break_, is_wanted=True)
    assert ("secret" in found.problem, "ZeroDivisionError" in caplog.text) == (False, True)
    assert settled(jobs, "key", lambda _tell: 43, is_wanted=True).problem == ""


def test_read_that_nobody_asks_for_ends_when_another_one_waits(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redbeat.web.jobs.LEFT_FOR_ANOTHER_SECONDS", 0.0)
    monkeypatch.setattr("redbeat.web.jobs.LEFT_SECONDS", patience(60))

    def work(tell: Callable[[str], None]) -> None:
        while True:
            tell("half")
            time.sleep(0.001)

    for number in range(MAX_READS):
        eventually(lambda number=number: jobs.read("kind", number, work).found)
    assert settled(jobs, "another", lambda _tell: "all").found == "all"


def test_names_are_read_while_long_reads_work(fake_app: Celery, jobs: Jobs, gate: threading.Event) -> None:
    for number in range(MAX_READS):
        eventually(lambda number=number: jobs.read("kind", number, held(gate, [])).found)
    eventually(lambda: read_names(fake_app, jobs).is_whole)


def ending(gate: threading.Event, done: list[int]) -> Any:
    """Return the same as a change."""
    work = held(gate, done)
    return lambda tell: Ending(work(tell))


def test_reads_that_wait_for_others_have_few_threads(jobs: Jobs, gate: threading.Event) -> None:
    done = list[int]()
    for number in range(3 * MAX_QUEUED):
        assert jobs.read("many", number, held(gate, done), wait_seconds=0).is_awaited
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("redbeat-web-many") == MAX_QUEUED
    gate.set()
    last = 3 * MAX_QUEUED - 1
    eventually(lambda: jobs.read("many", last, held(gate, done), wait_seconds=0, fresh_seconds=999).is_whole)


def test_form_begins_one_change_of_its_user(jobs: Jobs, gate: threading.Event) -> None:
    done = list[int]()
    first = jobs.change("anna", "Apply", ending(gate, done), once="form", wait_seconds=0)
    again = jobs.change("anna", "Apply", ending(gate, done), once="form", wait_seconds=0)
    other = jobs.change("bob", "Apply", ending(gate, done), once="form", wait_seconds=0)
    assert (first is again, first is other, first.is_at_work) == (True, False, True)
    eventually(lambda: first.progress == "half")
    assert jobs.find(first.id, "anna") is first
    assert jobs.find(first.id, "bob") is None
    gate.set()
    eventually(lambda: not (first.is_at_work or other.is_at_work))
    assert (first.result, len(done)) == (Ending("all"), 2)
    assert jobs.change("anna", "Apply", ending(gate, done), once="form") is first
    assert len(done) == 2


def test_form_that_another_process_has_begun_begins_no_change(
    jobs: Jobs, fake_app: Celery, gate: threading.Event
) -> None:
    done, elsewhere = list[int](), Jobs(lambda: ChangeRecords(Store(fake_app)))
    first = elsewhere.change("anna", "Apply", ending(gate, done), once="form", wait_seconds=0)
    again = jobs.change("anna", "Apply", ending(gate, done), once="form", wait_seconds=0)
    assert (again.id, again.is_at_work) == (first.id, True)
    gate.set()

    def is_seen() -> bool:
        record = jobs.find(first.id, "anna")
        return isinstance(record, ChangeRecord) and (record.is_done, record.told) == (True, "all")

    eventually(is_seen)
    assert len(done) == 1


def test_changes_at_a_time_and_kept_changes_are_limited(jobs: Jobs, gate: threading.Event) -> None:
    done = list[int]()
    made = [jobs.change("anna", "x", ending(gate, done), wait_seconds=0) for _ in range(MAX_CHANGES)]
    with pytest.raises(TooBusy):
        jobs.change("carl", "x", ending(gate, done), wait_seconds=0)
    gate.set()
    eventually(lambda: not any(one.is_at_work for one in made))
    for _ in range(MAX_OUTCOMES + 5):
        last = jobs.change("anna", "x", lambda _tell: Ending(""), wait_seconds=patience(20))
    eventually(lambda: isinstance(jobs.find(made[0].id, "anna"), ChangeRecord))  # others still know of it
    assert isinstance(jobs.find(last.id, "anna"), Change)


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
