"""Changes that take longer than a page: begun once, made to their end, told to whoever has begun them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from redbeat.errors import CalendarError, StoreUnavailable
from redbeat.store.changes import ChangeRecord
from redbeat.web import changes as module
from redbeat.web.changes import MAX_AT_WORK, MAX_KEPT, MAX_OF_USER, Changes, Ending
from redbeat.web.threads import TooBusy
from tests.support.deadlines import patience
from tests.support.polling import eventually


class Shared:
    """What several processes know of each other's changes, as Redis keeps it for them."""

    def __init__(self) -> None:
        self.records: dict[str, ChangeRecord] = {}
        self.written = list[str]()

    def claim(self, id: str, record: ChangeRecord) -> bool:  # noqa: A002
        return self.records.setdefault(id, record) is record

    def write(self, id: str, record: ChangeRecord) -> None:  # noqa: A002
        self.records[id] = record
        self.written.append(record.told)

    def read(self, id: str) -> ChangeRecord | None:  # noqa: A002
        return self.records.get(id)


def told(outcome: Any) -> Ending:
    return Ending(str(outcome))


def failed(exc: Exception) -> Ending:
    return Ending(str(exc), status=422)


def changes_of(shared: Shared | None = None) -> Changes:
    """The changes of a process that shares what it knows with others."""
    records = shared or Shared()
    return Changes(lambda: records, failed)


@pytest.fixture
def gate() -> Any:
    """What the changes of a test wait for; it is opened at the end in any case."""
    made = threading.Event()
    yield made
    made.set()


def held(gate: threading.Event, done: list[int]) -> Callable[[Callable[[str], None]], str]:
    def work(tell: Callable[[str], None]) -> str:
        tell("waiting")
        gate.wait(patience(20))
        done.append(1)
        return "made"

    return work


def test_one_click_begins_one_change_which_goes_on_and_is_its_users(gate: threading.Event) -> None:
    changes, done = changes_of(), list[int]()
    first = changes.make("anna", "Apply", held(gate, done), told, once="click", wait_seconds=0)
    again = changes.make("anna", "Apply", held(gate, done), told, once="click", wait_seconds=0)
    other = changes.make("bob", "Apply", held(gate, done), told, once="click", wait_seconds=0)
    assert (first is again, first is other, first.is_done) == (True, False, False)
    eventually(lambda: first.told == "waiting")
    assert changes.find(first.id, "anna") is first
    assert changes.find(first.id, "bob") is None
    gate.set()
    eventually(lambda: first.is_done and other.is_done)
    assert (first.ending, len(done)) == (Ending("made"), 2)
    assert changes.make("anna", "Apply", held(gate, done), told, once="click") is first
    assert len(done) == 2


def test_what_is_quick_is_there_at_once_and_an_error_is_kept() -> None:
    changes = changes_of()

    def fail(_tell: Any) -> None:
        raise CalendarError("no such day", "a")

    quick = changes.make("anna", "Change", lambda _tell: 5, told, wait_seconds=patience(20))
    broken = changes.make("anna", "Change", fail, told, wait_seconds=patience(20))
    assert (quick.is_done, quick.ending, str(broken.problem)) == (True, Ending("5"), "no such day")


def test_there_are_bounds_of_what_is_made_at_a_time_and_of_what_is_kept(gate: threading.Event) -> None:
    changes, done = changes_of(), list[int]()
    made = [changes.make("anna", "x", held(gate, done), told, wait_seconds=0) for _ in range(MAX_OF_USER)]
    with pytest.raises(TooBusy):
        changes.make("anna", "x", held(gate, done), told, wait_seconds=0)
    others = [
        f"ben {number}" for number in range(MAX_AT_WORK - MAX_OF_USER)
    ]  # whose places anna doesn't take
    assert others
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


def test_another_process_is_told_now_and_then_and_begins_nothing_again(
    gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TELL_SECONDS", 0.01)
    shared, done = Shared(), list[int]()
    first, second = changes_of(shared), changes_of(shared)
    made = first.make("anna", "Apply", held(gate, done), told, once="click", wait_seconds=0)
    again = second.make("anna", "Apply", held(gate, done), told, once="click", wait_seconds=patience(20))
    assert (made.is_elsewhere, again.is_elsewhere, again.id == made.id) == (False, True, True)
    eventually(lambda: "waiting" in shared.written)
    assert second.find(made.id, "bob") is None
    gate.set()
    eventually(lambda: shared.records[made.id].is_done)
    found = second.find(made.id, "anna")
    assert isinstance(found, ChangeRecord)
    assert (found.told, found.status, done) == ("made", 303, [1])


def test_what_could_not_be_told_is_told_once_it_can_be_and_a_change_that_may_be_elsewhere_is_not_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "TELL_SECONDS", 0.01)
    shared, is_away = Shared(), [True]

    class Away(Shared):
        def claim(self, id: str, record: ChangeRecord) -> bool:  # noqa: A002
            if is_away[0]:
                raise StoreUnavailable("away")
            return shared.claim(id, record)

        def write(self, id: str, record: ChangeRecord) -> None:  # noqa: A002
            if is_away[0]:
                raise StoreUnavailable("away")
            shared.write(id, record)

    changes, done = changes_of(Away()), list[int]()

    def work(_tell: Any) -> None:
        done.append(1)
        is_away[0] = True

    with pytest.raises(StoreUnavailable):
        changes.make("anna", "Apply", work, told, once="click", wait_seconds=patience(20))
    is_away[0] = False
    made = changes.make("anna", "Apply", work, told, once="click", wait_seconds=patience(20))
    assert (made.is_done, done) == (True, [1])
    is_away[0] = False
    eventually(lambda: shared.records[made.id].is_done)
