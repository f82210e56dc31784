"""Values of a wrong type are refused where they come in, in a sentence that names them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.errors import EntryError

NO_INTERVAL = r"x: schedule: {} seconds is no interval"


def entry(app: Celery, **fields: Any) -> RedBeatSchedulerEntry:
    return RedBeatSchedulerEntry(**{"name": "x", "task": "t", "schedule": 60, "app": app, **fields})


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"schedule": float("nan")}, NO_INTERVAL.format("nan")),
        ({"schedule": float("inf")}, NO_INTERVAL.format("inf")),
        ({"schedule": float("-inf")}, NO_INTERVAL.format("-inf")),
        ({"schedule": 10**20}, NO_INTERVAL.format(10**20)),
        ({"schedule": 1e300}, NO_INTERVAL.format(r"1e\+300")),
        ({"last_run_at": "x"}, "x: last_run_at must be a datetime, not 'x'."),
        ({"last_run_at": [1]}, "x: last_run_at must be a datetime"),
        ({"last_run_at": "x" * 10**6}, "x: last_run_at must be a datetime, not 'xxx"),
        ({"total_run_count": "x"}, "x: total_run_count must be a whole number, not 'x'."),
        ({"total_run_count": 1.5}, "x: total_run_count must be a whole number, not 1.5."),
        ({"total_run_count": True}, "x: total_run_count must be a whole number, not True."),
    ],
    ids=lambda value: str(value)[:40],
)
def test_an_entry_is_not_made_of_wrong_types(app: Celery, fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(EntryError, match=f"^{sentence}") as caught:
        entry(app, **fields)
    assert len(str(caught.value)) < 200


def test_an_entry_is_made_without_them(app: Celery) -> None:
    assert entry(app, last_run_at=None).total_run_count == 0
    assert entry(app, total_run_count=None, last_run_at=datetime.now()).total_run_count == 0


@pytest.mark.parametrize("last_run_at", ["x", "y"])
def test_reschedule_takes_a_datetime(app: Celery, last_run_at: Any) -> None:
    with pytest.raises(EntryError, match=f"redbeat:x: last_run_at must be a datetime, not {last_run_at!r}"):
        entry(app, last_run_at=datetime.now(timezone.utc)).reschedule(last_run_at)


@pytest.mark.parametrize("key", [True, None, ["redbeat:x"]])
def test_from_key_takes_a_string(app: Celery, key: Any) -> None:
    with pytest.raises(EntryError, match="from_key takes an entry's key or its name, a string, not "):
        RedBeatSchedulerEntry.from_key(key, app=app)


MANY: dict[str, tuple[Callable[[Celery], Any], str]] = {
    "a class": (
        lambda _app: RedBeatSchedulerEntry,
        "save_many takes many entries, such as a list of them, not <class",
    ),
    "one entry": (entry, "save_many takes many entries, such as a list of them, not <"),
    "a number": (lambda _app: 5, "save_many takes entries, such as a list of them, not 5"),
    "None": (lambda _app: None, "save_many takes entries, such as a list of them, not None"),
}


@pytest.mark.parametrize("given", MANY)
def test_save_many_takes_an_iterable(app: Celery, given: str) -> None:
    make, sentence = MANY[given]
    with pytest.raises(TypeError, match=sentence):
        RedBeatSchedulerEntry.save_many(make(app))


def test_save_many_takes_no_classes(app: Celery) -> None:
    given: Any = [RedBeatSchedulerEntry]
    with pytest.raises(EntryError, match=r"save_many takes entries, RedBeatSchedulerEntry .*, not <class"):
        RedBeatSchedulerEntry.save_many(given)


@pytest.mark.parametrize("names", [5, None])
def test_delete_many_takes_an_iterable(app: Celery, names: Any) -> None:
    with pytest.raises(TypeError, match=f"delete_many takes names, such as a list of them, not {names}"):
        RedBeatSchedulerEntry.delete_many(names, app=app)
