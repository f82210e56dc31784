"""Jobs behind pages: one of a kind at a time, only while somebody asks, and honest about their age."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from redbeat.errors import EntryError
from redbeat.web import background
from redbeat.web.background import Background, Result
from tests.support.deadlines import patience
from tests.support.polling import eventually


@pytest.fixture
def let_go() -> Iterator[threading.Event]:
    """Held jobs end with their test."""
    event = threading.Event()
    yield event
    event.set()


def held(let_go: threading.Event, made: list[str], name: str = "a") -> Any:
    def work(tell: Any) -> str:
        made.append(name)
        tell(f"half of {name}")
        assert let_go.wait(patience(30))
        return f"all of {name}"

    return work


def settled(jobs: Background, kind: str, key: str, work: Any = None, **options: Any) -> Result[Any]:
    """What a job has found when it is done."""
    found = jobs.result_of(kind, key, work, wait_seconds=patience(30), **options)
    return (
        found
        if not found.is_awaited
        else eventually(
            lambda: not (one := jobs.result_of(kind, key, work, fresh_seconds=999)).is_awaited and one
        )
    )


def test_a_quick_job_is_done_when_the_page_is_shown() -> None:
    found = settled(Background(), "kind", "key", lambda _tell: 42)
    assert (found.found, found.is_whole, found.is_awaited, found.problem) == (42, True, False, "")


def test_a_long_job_is_made_once_and_shows_what_it_has_so_far(let_go: threading.Event) -> None:
    jobs, made = Background(), list[str]()
    work = held(let_go, made)
    while jobs.result_of("kind", "a", work).found is None:
        pass
    early = jobs.result_of("kind", "a", work, is_wanted=True)
    assert (early.found, early.is_whole, early.is_awaited) == ("half of a", False, True)
    let_go.set()
    assert settled(jobs, "kind", "a", work).found == "all of a"
    assert made == ["a"]


def test_jobs_of_one_kind_come_after_each_other_and_those_of_another_beside(let_go: threading.Event) -> None:
    jobs, made = Background(), list[str]()
    jobs.result_of("kind", "a", held(let_go, made, "a"))
    later = jobs.result_of("kind", "b", held(let_go, made, "b"))
    assert (later.found, later.is_awaited) == (None, True)
    assert settled(jobs, "other", "c", lambda _tell: "c").found == "c"
    let_go.set()
    assert settled(jobs, "kind", "a", held(let_go, made, "a"), fresh_seconds=999).found == "all of a"
    assert settled(jobs, "kind", "b", held(let_go, made, "b")).found == "all of b"
    assert made == ["a", "b"]


def test_a_job_that_somebody_wants_is_made_when_another_of_its_kind_is_done(let_go: threading.Event) -> None:
    jobs, made = Background(), list[str]()
    settled(jobs, "kind", "a", lambda _tell: "old")
    jobs.result_of("kind", "b", held(let_go, made, "b"), wait_seconds=0)
    later = jobs.result_of("kind", "a", lambda _tell: "new", is_wanted=True, wait_seconds=0)
    assert (later.found, later.is_awaited) == ("old", True)
    let_go.set()
    # who waits asks for what is there, and gets what was wanted
    assert settled(jobs, "kind", "a", lambda _tell: "other", fresh_seconds=999).found == "new"


def test_a_job_that_took_long_rests_unless_somebody_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs, made = Background(), list[int]()

    def work(_tell: Any) -> int:
        made.append(1)
        return len(made)

    monkeypatch.setattr(background, "REST", 1e12)
    assert settled(jobs, "kind", "key", work).found == 1
    assert settled(jobs, "kind", "key", work).found == 1
    assert settled(jobs, "kind", "key", work, is_wanted=True).found == 2
    assert jobs.last("kind", "key").found == 2
    jobs.forget("kind")
    assert jobs.last("kind", "key").found is None
    assert settled(jobs, "kind", "key", work).found == 3


def test_a_job_that_fails_says_why_and_what_was_found_before_stays(caplog: pytest.LogCaptureFixture) -> None:
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
    assert found.problem == "This is a defect of the dashboard; its log says more."
    assert "ZeroDivisionError" in caplog.text
    assert settled(jobs, "kind", "key", lambda _tell: 43, is_wanted=True).problem == ""


def test_a_job_that_nobody_asks_for_any_more_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "LEFT_SECONDS", -1)
    ended = threading.Event()

    def work(tell: Any) -> int:
        try:
            while True:
                tell(1)
        finally:
            ended.set()

    jobs = Background()
    jobs.result_of("kind", "key", work, wait_seconds=0)
    assert ended.wait(patience(30))
    assert settled(jobs, "kind", "other", lambda _tell: 42).found == 42


def test_a_job_that_nobody_asks_for_makes_way_for_another_of_its_kind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(background, "LEFT_FOR_ANOTHER_SECONDS", 0.01)

    def work(tell: Any) -> int:
        while True:
            tell(1)

    jobs = Background()
    jobs.result_of("kind", "key", work, wait_seconds=0)
    assert jobs.result_of("kind", "key", work, wait_seconds=0).is_awaited
    # asked again and again, it would go on for ever; the other one is asked for alone
    assert eventually(lambda: jobs.result_of("kind", "other", lambda _tell: 42).found) == 42


def test_only_the_latest_results_are_kept() -> None:
    jobs = Background()
    for number in range(2 * background.MAX_KEPT):
        settled(jobs, "kind", str(number), lambda _tell: 42)
    kept = [number for number in range(2 * background.MAX_KEPT) if jobs.last("kind", str(number)).is_whole]
    assert kept == list(range(background.MAX_KEPT, 2 * background.MAX_KEPT))


def test_a_result_that_is_large_is_forgotten_when_its_time_is_over() -> None:
    jobs = Background()
    for key, kept_seconds in (("a", 0.0), ("b", 999)):
        settled(jobs, "kind", key, lambda _tell: 42, kept_seconds=kept_seconds)
    assert [jobs.last("kind", key).is_whole for key in ("a", "b")] == [False, True]
    jobs.forget("kind", "c")
    assert jobs.last("kind", "b").is_whole
