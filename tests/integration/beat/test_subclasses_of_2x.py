"""Subclasses that were written for celery-redbeat 2.x: each method that they override is called, or named.

The programs are of the kinds that public projects have. They run as they are under 2.4.2, too.
"""

from __future__ import annotations

import base64
import json
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import redis
from celery.schedules import schedstate, schedule

from redbeat import RedBeatScheduler, RedBeatSchedulerEntry
from tests.conftest import MakeApp
from tests.integration.conftest import MakeScheduler
from tests.support.apps import celery_beat, write_app
from tests.support.logs import errors_in, has_traceback
from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.schedule import LOCK, field, messages, score_of, sent_names, server_now, write_raw
from tests.support.servers import Server

IMPORTS = """
from celery.schedules import schedstate
from celery.utils.log import get_logger
from redbeat import RedBeatScheduler, RedBeatSchedulerEntry, schedulers
from redbeat.schedulers import (
    LUA_EXTEND_TO_SCRIPT, RedBeatJSONEncoder, ScheduleEntry, ensure_conf, get_redis, json, logger,
)
from redis.exceptions import ConnectionError, LockError
"""

#: a loop of its own, with the lock that beat has, from a factory
OWN_LOOP = """
class Sched:
    def __new__(cls, *args, **kwargs):
        class Impl(RedBeatScheduler):
            def tick(self, min=min, **kwargs):
                if self.lock_key and self.lock is not None:
                    try:
                        self.lock.extend(int(self.lock_timeout))
                    except Exception:
                        lock = get_redis(self.app).lock(self.lock_key, timeout=self.lock_timeout, sleep=0.1)
                        if not lock.acquire(blocking=True, blocking_timeout=5):
                            return self.max_interval
                        self.lock = lock
                remaining = []
                for entry in self.schedule.values():
                    seconds = self.maybe_due(entry, **self._maybe_due_kwargs)
                    if seconds:
                        remaining.append(seconds)
                return min(remaining + [self.max_interval])
        return Impl(*args, **kwargs)
"""

#: takes the same lock by redis-py where beat has lost it, and goes on with the tick of RedBeat
TAKES_IT_BACK = """
class Sched(RedBeatScheduler):
    def tick(self, *args, **kwargs):
        if self.lock_key and self.lock is None and not self._take():
            return 0.5
        try:
            return super().tick(*args, **kwargs)
        except LockError:
            self.lock = None
            self._take()
        except ConnectionError:
            pass
        return 0.5

    def _take(self):
        client = get_redis(self.app)
        lock = client.lock(self.lock_key, timeout=self.lock_timeout, sleep=self.max_interval)
        lock.lua_extend = client.register_script(LUA_EXTEND_TO_SCRIPT)
        if not lock.acquire(blocking=False):
            return False
        self.lock = lock
        return True
"""

#: an entry that never calls our constructor, reads and records by itself, put in place by assignment
OWN_ENTRY = """
class OwnEntry(RedBeatSchedulerEntry):
    def __init__(self, name=None, task=None, schedule=None, args=None, kwargs=None, enabled=True, **clsargs):
        ScheduleEntry.__init__(
            self, name=name, task=task, schedule=schedule, args=args, kwargs=kwargs, **clsargs
        )
        self.enabled = enabled
        ensure_conf(self.app)

    @classmethod
    def from_key(cls, key, app=None):
        client = get_redis(app)
        meta = cls.decode_meta(client.hget(key, "meta"))
        return cls(app=app, **cls.decode_definition(client.hget(key, "definition")), **meta)

    def _next_instance(self, last_run_at=None, only_update_last_run_at=False):
        entry = ScheduleEntry._next_instance(self, last_run_at=last_run_at)
        if only_update_last_run_at:
            entry.total_run_count = self.total_run_count
        meta = {"last_run_at": entry.last_run_at, "total_run_count": entry.total_run_count}
        with get_redis(self.app).pipeline() as pipe:
            pipe.hset(self.key, "meta", json.dumps(meta, cls=RedBeatJSONEncoder))
            pipe.zadd(self.app.redbeat_conf.schedule_key, {entry.key: entry.score})
            pipe.execute()
        return entry

    __next__ = next = _next_instance

RedBeatScheduler.Entry = OwnEntry
schedulers.logger = get_logger("celery.beat")

class Sched(RedBeatScheduler):
    pass
"""


PROGRAMS = {
    "own loop": OWN_LOOP,
    "takes the lock back": TAKES_IT_BACK,
    "own entry": OWN_ENTRY,
}


@pytest.fixture
def beat(server: Server, tmp_path: Path, program: str) -> Iterator[Process]:
    """A beat of the program, which has an entry that is due every 0.3 s."""
    settings = {
        "redbeat_redis_url": server.url(1),
        "beat_schedule": {"often": {"task": "echo", "schedule": 0.3}},
    }
    write_app(tmp_path, "module", server.url(0), extra=IMPORTS + PROGRAMS[program], **settings)
    with celery_beat(tmp_path, "module", scheduler="module.Sched") as beat:
        yield beat


@pytest.mark.parametrize("program", PROGRAMS)
def test_program_of_2x_sends_records_and_stops(
    beat: Process, client: redis.Redis, broker: redis.Redis, tmp_path: Path, program: str
) -> None:
    eventually(lambda: len(messages(broker)) >= 4 or not beat.is_running)
    assert beat.is_running, beat.output()
    with celery_beat(tmp_path, "module", scheduler="module.Sched") as standby:
        standby.wait_for("beat: Acquiring lock...")
        sent = len(messages(broker))
        eventually(lambda: len(messages(broker)) >= sent + 3)
        assert "Sending due task" not in standby.output()
    beat.signal(signal.SIGTERM)
    assert beat.wait() == 0, beat.output()
    assert not has_traceback(beat.output()), beat.output()
    assert client.get(LOCK) is None, beat.output()
    count = field(client, "often", "meta")["total_run_count"]
    assert count == len(messages(broker)), beat.output()
    assert beat.output().count("_next_instance is not called") == ("entry" in program)
    assert beat.output().count("tick sends runs by itself") == ("loop" in program)


@pytest.mark.slow
@pytest.mark.parametrize("program", ["own loop", "takes the lock back"])
def test_program_of_2x_goes_on_when_its_lock_was_deleted(
    beat: Process, client: redis.Redis, broker: redis.Redis
) -> None:
    eventually(lambda: messages(broker))
    client.delete(LOCK)
    sent = len(messages(broker))
    eventually(lambda: len(messages(broker)) >= sent + 3 or not beat.is_running)
    assert client.get(LOCK) is not None, beat.output()
    write_raw(client, "bad", options={"expires": "60"})  # due at once, and Celery cannot read that
    beat.wait_for("Couldn't send bad")
    assert "Sending due task bad" not in beat.output()


# -- overrides, in a scheduler that the test ticks


Overrides = dict[str, Callable[..., Any]]


def subclass(calls: list[str], entry: Overrides | None = None, **methods: Callable[..., Any]) -> type:
    """Return a scheduler class with these methods, which note their calls, and those of its entry class."""
    own_entry = type("OwnEntry", (RedBeatSchedulerEntry,), _noting_all(calls, entry or {}))
    own = {"Entry": own_entry} if entry else {}
    return type("Sched", (RedBeatScheduler,), {**_noting_all(calls, methods), **own})


def _noting_all(calls: list[str], methods: Overrides) -> Overrides:
    def noting(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            return method(self, *args, **kwargs)

        return noted

    return {name: noting(name, method) for name, method in methods.items()}


TickDue = Callable[..., RedBeatScheduler]


@pytest.fixture
def tick_due(make_scheduler: MakeScheduler, client: redis.Redis) -> TickDue:
    """Tick a scheduler of a class, or with methods, that has an entry which is due."""

    def make(kind: type | None = None, ticks: int = 1, **methods: Callable[..., Any]) -> RedBeatScheduler:
        scheduler = make_scheduler(scheduler=kind or type("Sched", (RedBeatScheduler,), methods))
        write_raw(client, "entry", score=server_now(client) - 5.5)
        for _ in range(ticks):
            scheduler.tick()
        return scheduler

    return make


def copied_maybe_due(self: Any, entry: Any, **kwargs: Any) -> Any:
    """As people copy that of 2.x, to add something: here an argument, and a field of the hash."""
    is_due, seconds = entry.is_due()
    if is_due:
        entry.args = [{"schedule_id": entry.name}]
        result = self.apply_async(entry, **kwargs)
        self.store.client.hset(entry.key, "task_ids", json.dumps([result.id]))
    return seconds


#: in the order in which they are called
ALL = ["maybe_due", "is_due", "apply_entry", "apply_async", "reserve"]
CALLED: dict[str, tuple[Overrides, Overrides, list[str]]] = {
    "maybe_due copied": ({"maybe_due": copied_maybe_due}, {}, ["maybe_due"]),
    "all": (
        {name: getattr(RedBeatScheduler, name) for name in ALL if name != "is_due"},
        {"is_due": RedBeatSchedulerEntry.is_due},
        ALL,
    ),
    "Entry.is_due of its own": ({}, {"is_due": lambda _entry: schedstate(True, 1.0)}, ["is_due"]),
    "reserve of its own": ({"reserve": lambda _self, entry: next(entry)}, {}, ["reserve"]),
}


@pytest.mark.parametrize("case", CALLED)
def test_override_is_called_once_for_each_run(
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    case: str,
) -> None:
    methods, entry, expected = CALLED[case]
    calls: list[str] = []
    scheduler = make_scheduler(scheduler=subclass(calls, entry, **methods))
    due = server_now(client) - 5.5
    for name in ("a", "b"):
        write_raw(client, name, score=due)
    scheduler.tick()
    scheduler.tick()
    assert calls == expected * 2
    assert sorted(sent_names(broker)) == ["a", "b"]
    assert len({message["headers"]["id"] for message in messages(broker)}) == 2
    for name in ("a", "b"):
        assert field(client, name, "meta")["total_run_count"] == 1
        assert (score_of(client, name) or 0) > due + 3000
        assert client.hget(f"redbeat:{name}", "error") is None


DECLINED: dict[str, tuple[Overrides, Overrides]] = {
    "maybe_due returns nothing": ({"maybe_due": lambda _self, _entry, **_kwargs: None}, {}),
    "Entry.is_due": ({}, {"is_due": lambda _entry: schedstate(False, 0.2)}),
}


@pytest.mark.parametrize("case", DECLINED)
def test_run_that_an_override_does_not_send_stays_due(
    make_scheduler: MakeScheduler, client: redis.Redis, broker: redis.Redis, case: str
) -> None:
    methods, entry = DECLINED[case]
    kind = subclass([], entry, **methods)
    scheduler = make_scheduler(scheduler=kind)
    write_raw(client, "entry", score=server_now(client) - 5.5)
    for _ in range(3):
        scheduler.tick()
    assert messages(broker) == []
    assert not client.hexists("redbeat:entry", "meta")
    assert client.hget("redbeat:entry", "error") is None
    for name in methods:
        setattr(kind, name, getattr(RedBeatScheduler, name))
    for name in entry:
        setattr(kind.Entry, name, getattr(RedBeatSchedulerEntry, name))  # type: ignore[attr-defined]
    eventually(lambda: scheduler.tick() is not None and sent_names(broker) == ["entry"])
    assert field(client, "entry", "meta")["total_run_count"] == 1


def test_run_for_which_apply_entry_sends_nothing_is_recorded(
    tick_due: TickDue, client: redis.Redis, broker: redis.Redis
) -> None:
    tick_due(ticks=2, apply_entry=lambda *_args, **_kwargs: None)
    assert messages(broker) == []
    assert field(client, "entry", "meta")["total_run_count"] == 1


def test_mixin_sends_one_message_for_each_tenant(
    make_scheduler: MakeScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    """As that of tenant-schemas-celery does, which renames the entries of beat_schedule, too."""
    tenants = ["north", "south", "west"]

    class Mixin:
        def apply_entry(self, entry: Any, producer: Any = None) -> None:
            for tenant in tenants:
                entry.options.setdefault("headers", {})["_schema_name"] = tenant
                assert self.apply_async(entry, producer=producer, advance=False).id  # type: ignore[attr-defined]

        def update_from_dict(self, dict_: Any) -> None:
            renamed = {f"{name}@all": fields for name, fields in dict_.items()}
            super().update_from_dict(renamed)  # type: ignore[misc]

    kind = type("Tenants", (Mixin, RedBeatScheduler), {})
    scheduler = make_scheduler(scheduler=kind, beat_schedule={"report": {"task": "echo", "schedule": 3600}})
    assert client.exists("redbeat:report@all")
    client.zadd("redbeat::schedule", {"redbeat:report@all": server_now(client) - 5.5})
    scheduler.tick()
    sent = messages(broker)
    assert [message["headers"]["_schema_name"] for message in sent] == tenants
    assert len({message["headers"]["id"] for message in sent}) == 3
    assert field(client, "report@all", "meta")["total_run_count"] == 1


def test_error_caught_by_an_override_fails_its_run(
    tick_due: TickDue, client: redis.Redis, broker: redis.Redis
) -> None:
    def apply_entry(self: Any, entry: Any, producer: Any = None) -> None:
        entry.options["serializer"] = "missing"
        with suppress(Exception):
            self.apply_async(entry, producer=producer, advance=False)

    tick_due(apply_entry=apply_entry)
    assert messages(broker) == []
    assert not client.hexists("redbeat:entry", "meta")
    assert "missing" in field(client, "entry", "error")["reason"]


def test_override_that_writes_to_its_entry_loses_no_message(
    tick_due: TickDue, client: redis.Redis, broker: redis.Redis
) -> None:
    """It disables the entry after its last run, as people do who count runs themselves."""

    def maybe_due(self: Any, entry: Any, **kwargs: Any) -> Any:
        seconds = RedBeatScheduler.maybe_due(self, entry, **kwargs)
        write_raw(client, "entry", score=None, enabled=False)
        return seconds

    tick_due(ticks=3, maybe_due=maybe_due)
    assert sent_names(broker) == ["entry"]
    assert field(client, "entry", "meta")["total_run_count"] == 1
    assert field(client, "entry", "definition")["enabled"] is False


def test_due_at_of_a_subclass_decides_the_next_run(
    tick_due: TickDue, client: redis.Redis, broker: redis.Redis
) -> None:
    class Later(RedBeatSchedulerEntry):
        @property
        def due_at(self) -> datetime | None:
            found = super().due_at
            return None if found is None else found + timedelta(days=100)

    scheduler = tick_due(Entry=Later)
    assert sent_names(broker) == ["entry"]
    assert score_of(client, "entry") == pytest.approx(server_now(client) + 3600 + 100 * 86400, abs=60)
    Later("other", "echo", schedule(60), app=scheduler.app).save()
    assert score_of(client, "other") == pytest.approx(server_now(client) + 60 + 100 * 86400, abs=60)


def test_from_key_and_save_of_a_subclass_are_called(
    make_scheduler: MakeScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    class Own(RedBeatSchedulerEntry):
        @classmethod
        def from_key(cls, key: str, app: Any = None) -> RedBeatSchedulerEntry:
            entry = super().from_key(key, app=app)
            entry.kwargs = {**entry.kwargs, "tenant": "north"}
            return entry

        def save(self) -> RedBeatSchedulerEntry:  # type: ignore[override]
            client.sadd("saved", self.name)
            return super().save()

    kind = type("Sched", (RedBeatScheduler,), {"Entry": Own})
    scheduler = make_scheduler(scheduler=kind, beat_schedule={"static": {"task": "echo", "schedule": 3600}})
    assert client.smembers("saved") == {"static"}
    write_raw(client, "entry", score=server_now(client) - 5.5)
    scheduler.tick()
    (message,) = messages(broker)
    _, kwargs, _ = json.loads(base64.b64decode(message["body"]))
    assert kwargs == {"tenant": "north"}


def test_own_fields_of_a_definition_reach_the_constructor_of_a_subclass(
    tick_due: TickDue, client: redis.Redis, broker: redis.Redis
) -> None:
    class Counting(RedBeatSchedulerEntry):
        def __init__(self, *args: Any, max_runs: int = -1, **clsargs: Any) -> None:
            self.tenant = clsargs.get("tenant")
            super().__init__(*args, **clsargs)
            self.max_runs = max_runs

    scheduler = tick_due(Entry=Counting)
    client.delete("redbeat:entry")
    write_raw(client, "entry", max_runs=-1, tenant="north", score=server_now(client) - 5.5)
    entry = Counting.from_key("redbeat:entry", app=scheduler.app)
    assert (entry.max_runs, entry.tenant) == (-1, "north")  # type: ignore[attr-defined]
    scheduler.tick()
    assert sent_names(broker) == ["entry", "entry"]
    entry.save()
    assert field(client, "entry", "definition")["max_runs"] == -1


#: remedies to the methods of the scheduler that beat does not call, and to those of its entries
NOT_CALLED = {
    "maybe_due": ("schedule", "get_schedule", "populate_heap", "schedules_equal"),
    "update_from_dict": ("merge_inplace",),
    "producer": ("connection", "_ensure_connected"),
    "entry class": ("is_due",),
}
NOT_CALLED_OF_ENTRY = {"reserve": ("_next_instance", "__next__", "next"), "due_at": ("score",)}


def test_override_that_is_not_called_is_an_error_that_names_the_remedy(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    def override(kind: type, names: dict[str, tuple[str, ...]]) -> type:
        return type("Own", (kind,), {name: lambda *_: None for name in chain(*names.values())})

    kind: Any = override(RedBeatScheduler, NOT_CALLED)
    kind.Entry = override(RedBeatSchedulerEntry, NOT_CALLED_OF_ENTRY)
    scheduler = kind(make_app(redbeat_lock_key=None))
    scheduler.run_under(MagicMock())
    scheduler.close()
    lines = errors_in(caplog)
    for remedy, names in [*NOT_CALLED.items(), *NOT_CALLED_OF_ENTRY.items()]:
        for name in names:
            [line] = [one for one in lines if f"Own.{name} is not called" in one]
            assert remedy in line


def test_scheduler_without_init_stores_and_sends(
    make_app: MakeApp, client: redis.Redis, broker: redis.Redis
) -> None:
    scheduler = RedBeatScheduler.__new__(RedBeatScheduler)
    scheduler.app, scheduler.lock = make_app(), MagicMock()
    scheduler.update_from_dict({"entry": {"task": "echo", "schedule": schedule(3600)}})
    client.zadd("redbeat::schedule", {"redbeat:entry": server_now(client) - 5})
    entry = RedBeatSchedulerEntry.from_key("redbeat:entry", app=scheduler.app)
    entry.reschedule(entry.last_run_at and entry.last_run_at - timedelta(hours=2))
    scheduler.tick()
    assert len(messages(broker)) == 1
    assert field(client, "entry", "meta")["total_run_count"] == 1
    scheduler.close()
