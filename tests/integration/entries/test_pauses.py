"""Many entries that rest and go on: what rests already is left alone, whoever else writes meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.entries.pauses import PauseResult
from redbeat.store.store import Store
from tests.support.schedule import write_raw

UTC = timezone.utc
LATER = datetime(2098, 1, 1, tzinfo=UTC)


@pytest.fixture
def names(app: Celery) -> list[str]:
    """Two that run, one that is paused with a note, one that is disabled."""
    names = ["run-1", "run-2", "paused", "disabled"]
    Entry.save_many(Entry(name, "echo", 60, enabled=name != "disabled", app=app) for name in names)
    Entry.get("paused", app).pause("the printer is broken", LATER, "ada")
    return names


def raw(client: redis.Redis, name: str) -> Any:
    return client.hgetall(f"redbeat:{name}")


@pytest.mark.also_sharded
def test_what_rests_already_stays_exactly_as_it_is(
    app: Celery, client: redis.Redis, names: list[str]
) -> None:
    before = {name: raw(client, name) for name in ("paused", "disabled")}
    done = Entry.pause_many(names, app, note="a deployment", until=LATER + timedelta(1), by="bob")
    assert done == PauseResult(("run-1", "run-2"), ("paused", "disabled"))
    assert {name: raw(client, name) for name in before} == before
    entry = Entry.get("run-1", app)
    assert (entry.enabled, entry.paused, entry.pause_note, entry.paused_by, entry.paused_until) == (
        False, True, "a deployment", "bob", LATER + timedelta(1),
    )  # fmt: skip


@pytest.mark.also_sharded
def test_only_what_a_pause_has_stopped_goes_on(app: Celery, names: list[str]) -> None:
    assert Entry.resume_many(names, app) == PauseResult(("paused",), ("run-1", "run-2", "disabled"))
    entry = Entry.get("paused", app)
    assert (entry.enabled, entry.policy) == (True, Entry("x", "t", 1, app=app).policy)
    assert not Entry.get("disabled", app).enabled


@pytest.mark.also_sharded
@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ({"note": "a deployment"}, ["run-1", "run-2"]),
        ({"note": "*printer*"}, ["paused"]),
        ({"by": "ada"}, ["paused"]),
        ({"note": "a deployment", "by": "ada"}, []),
        ({"by": "[ab]*"}, ["run-1", "run-2", "paused"]),
        ({}, ["run-1", "run-2", "paused"]),
    ],
    ids=str,
)
def test_a_note_and_a_person_select_what_goes_on(
    app: Celery, names: list[str], selection: dict[str, Any], expected: list[str]
) -> None:
    Entry.pause_many(names, app, note="a deployment", by="bob")
    assert list(Entry.resume_many(names, app, **selection).changed) == expected


def test_one_that_can_not_be_used_stops_none_of_the_others(
    app: Celery, client: redis.Redis, names: list[str]
) -> None:
    write_raw(client, "spoilt", "no json")
    done = Entry.pause_many(["spoilt", "nobody", *names], app)
    assert done.changed == ("run-1", "run-2")
    assert list(done.failed) == ["spoilt"]
    assert "no valid JSON" in done.failed["spoilt"]


@pytest.mark.also_sharded
def test_a_time_that_is_over_is_refused_and_changes_nothing(app: Celery, names: list[str]) -> None:
    done = Entry.pause_many(names, app, until=datetime(2020, 1, 1))
    assert (done.changed, list(done.failed)) == ((), ["run-1", "run-2"])
    assert "is in the past" in done.failed["run-1"]
    assert Entry.get("run-1", app).enabled


Meddle = Callable[[Entry], object]


@pytest.mark.also_sharded
@pytest.mark.parametrize(
    ("meddle", "expected"),
    [
        (lambda entry: entry.pause("mine", by="ada"), PauseResult((), ("run-1",))),
        (lambda entry: entry.update(enabled=False), PauseResult((), ("run-1",))),
        (lambda entry: entry.update(jitter=5), PauseResult(("run-1",))),
        (lambda entry: entry.delete(), PauseResult()),
    ],
    ids=["pause", "disable", "change", "delete"],
)
def test_who_is_faster_is_not_overwritten(
    app: Celery, names: list[str], monkeypatch: pytest.MonkeyPatch, meddle: Meddle, expected: PauseResult
) -> None:
    """Between the reading and the writing somebody else writes."""
    read, meddlers = Store.read_at, [meddle]

    def read_and_be_late(self: Store, keys: Any) -> Any:
        found = read(self, keys)
        if meddlers:
            meddlers.pop()(Entry.get("run-1", app))
        return found

    monkeypatch.setattr(Store, "read_at", read_and_be_late)
    assert Entry.pause_many(["run-1"], app, note="theirs", by="bob") == expected
    stored = list(Entry.list(app, match="run-1"))
    if expected.changed:
        assert (stored[0].pause_note, stored[0].jitter) == ("theirs", 5)
    elif stored:
        assert stored[0].paused_by != "bob"
        assert not stored[0].enabled
