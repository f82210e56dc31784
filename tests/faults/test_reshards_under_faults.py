"""The schedule divided anew again and again, by commands that are killed, under beats that are killed, too.

Writers go on meanwhile, some with settings of another layout, one that writes raw to former places.
"""

from __future__ import annotations

import json
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import redbeat.later
from redbeat import RedBeatSchedulerEntry
from redbeat.later import batch
from tests.faults.bursts import Queue, RedisQueue
from tests.faults.rounds import IS_LONG, TALLY
from tests.faults.shards import (
    LOCK_SECONDS,
    SILENT_SECONDS,
    Crew,
    Scene,
    Taker,
    starter,
)
from tests.support.apps import celery_command
from tests.support.logs import has_traceback
from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.resharded import part_of, read_all
from tests.support.schedule import SELDOM
from tests.support.servers import Server

ENTRIES = 30
#: beside those that are due once a second, so that a reshard takes its time; these never run
STILL = 5_000 if IS_LONG else 1_500
#: so many at least, and others as long as there is time
RESHARDS, SECONDS = 3, 300.0 if IS_LONG else 0.0
KINDS: list[int | None] = [None, 1, 2, 4, 7, 16]
#: after so long a beat that looks moves on what a mover that was killed has left hidden
HIDDEN_SECONDS = 8.0
SECONDS_A_YEAR = 365 * 86400.0


class Resharder:
    """`celery redbeat reshard`, killed again and again, until it is done."""

    def __init__(self, directory: Path, scene: Scene, chance: random.Random) -> None:
        self._directory, self._scene, self._chance = directory, scene, chance
        self.kills = self.done = 0
        self.process: Process | None = None

    def _start(self, shards: int | None) -> Process:
        words = ["redbeat", "reshard", "--to", str(shards or "none"), "--yes"]
        env = {"SHARDS": str(self._scene.shards or 0)}
        return celery_command(self._directory, "module", *words, env=env)

    def run(self, shards: int | None, meanwhile: Callable[[], None]) -> None:
        """Divide the schedule into so many shards."""
        self._scene.layouts.append(shards)
        most_kills = self._chance.choice([0, 1, 3])
        for kill in range(most_kills + 1):
            with self._start(shards) as process:
                if kill < most_kills:
                    state = self._chance.choice(["moving", "moving", "moving", "settling", ""])
                    self._await(process, state, meanwhile)
                    until = time.monotonic() + self._chance.choice([0.0, 0.1, 1.0]) * self._chance.random()
                    while process.is_running and time.monotonic() < until:
                        meanwhile()
                    if process.is_running:
                        if process.kill() != -signal.SIGKILL:
                            break  # it has just ended by itself
                        self.kills += 1
                        assert not has_traceback(process.output()), process.output()
                        meanwhile()
                        continue
                while process.is_running:
                    meanwhile()
                assert process.returncode == 0, process.output()
                assert not has_traceback(process.output()), process.output()
        assert self._scene.shards == shards
        self.done += 1

    def _await(self, process: Process, state: str, meanwhile: Callable[[], None]) -> None:
        """Wait for a state of the layout, or the end.

        It mostly comes at once, and the instant is to be met; but beats that are paused must go on some time.
        """
        client = self._scene.client

        def has_come() -> bool:
            return not process.is_running or (client.hget("redbeat::layout", "state") or "") == state

        def has_come_soon() -> bool:
            ends_at = time.monotonic() + 1.0
            while not (is_there := has_come()) and time.monotonic() < ends_at:
                time.sleep(0.001)
            if not is_there:
                meanwhile()
            return is_there

        eventually(has_come_soon, interval=0.0)


class Writer:
    """Saves, changes, deletes and triggers entries of its own, and stores and cancels messages.

    Attributes:
        saved: what each of its entries is to have as arguments; those that were deleted aren't here.
        sent: the task ids that must have been sent, each once.
        cancelled: those that must not.
    """

    def __init__(self, scene: Scene, chance: random.Random, number: int, shards: int | None) -> None:
        self._app = scene.app(redbeat_shards=shards, redbeat_durable_after=0)
        self._scene = scene
        redbeat.later.install(self._app)
        self._chance, self._number, self._count = chance, number, 0
        self.saved: dict[str, list[int]] = {}
        self.deleted: set[str] = set()
        self.sent: set[str] = set()
        self.cancelled: set[str] = set()
        self._stored: list[str] = []
        self.counts: Counter[str] = Counter()
        self.slowest_seconds = 0.0

    def act(self) -> None:
        """Do one thing."""
        acts = [
            self._save,
            self._save_many,
            self._change,
            self._delete,
            self._trigger,
            self._store,
            self._cancel,
        ]
        act = self._chance.choice(acts)
        self.counts[act.__name__.strip("_")] += 1
        self._count += 1
        began = time.monotonic()
        act()
        self.slowest_seconds = max(self.slowest_seconds, time.monotonic() - began)

    def _entry(self, name: str) -> RedBeatSchedulerEntry:
        return RedBeatSchedulerEntry(name, "echo", SECONDS_A_YEAR, args=[self._count], app=self._app)

    def _new_name(self, number: int = 0) -> str:
        return f"of-{self._number}-{self._count}-{number}"

    def _save(self) -> None:
        name = self._new_name()
        self._entry(name).save()
        self.saved[name] = [self._count]

    def _save_many(self) -> None:
        names = [self._new_name(number) for number in range(5)]
        RedBeatSchedulerEntry.save_many([*map(self._entry, names)])
        self.saved.update({name: [self._count] for name in names})

    def _change(self) -> None:
        if self.saved:
            name = self._chance.choice([*self.saved])
            self._entry(name).save()
            self.saved[name] = [self._count]

    def _delete(self) -> None:
        if self.saved:
            name = self._chance.choice([*self.saved])
            self._entry(name).delete()
            del self.saved[name]
            self.deleted.add(name)

    def _trigger(self) -> None:
        if self.saved:
            name = self._chance.choice([*self.saved])
            self.sent.add(str(self._entry(name).trigger().id))

    def _store(self) -> None:
        ids = [f"message-{self._number}-{self._count}-{number}" for number in range(3)]
        countdown = self._chance.choice([0.01, 0.3, 2.0, 3600.0])
        with batch():
            for task_id in ids:
                options: dict[str, Any] = {"compression": "gzip"} if self._chance.random() < 0.3 else {}
                self._app.send_task("echo", [1], task_id=task_id, countdown=countdown, **options)
        if countdown < 60:
            self.sent.update(ids)
        else:
            self._stored += ids

    def _cancel(self) -> None:
        if self._stored:
            task_id = self._stored.pop(self._chance.randrange(len(self._stored)))
            cancelled = redbeat.later.cancel(task_id, self._app)
            assert cancelled == [task_id], (
                places_of(self._scene, task_id),
                self._app.redbeat_conf.layout,
                self._scene.client.hgetall("redbeat::layout"),
            )
            self.cancelled.add(task_id)


class Foreign:
    """A program in another language that knows the layout of some time ago, and writes to that.

    Attributes:
        names: of its entries, each due once.
    """

    def __init__(self, scene: Scene) -> None:
        self._client = scene.client
        self.shards: int | None = None
        self.names: list[str] = []

    def act(self) -> None:
        name = f"foreign-{len(self.names)}"
        part = part_of(name.encode(), self.shards).decode()
        definition = {
            "name": name,
            "task": "echo",
            "schedule": SELDOM,
            "args": [],
            "kwargs": {},
            "enabled": True,
        }
        self._client.hset(f"{part}{name}", "definition", json.dumps(definition))
        self._client.zadd(f"{part}:schedule", {f"{part}{name}": 1.0})
        self.names.append(name)


class Writers:
    """All of them, each in a thread of its own."""

    def __init__(self, writers: list[Writer], foreign: Foreign, pause_seconds: float) -> None:
        self.errors: list[BaseException] = []
        self._has_ended = threading.Event()
        self._pause_seconds = pause_seconds
        acts = [writer.act for writer in writers] + [foreign.act]
        self._threads = [threading.Thread(target=self._run, args=(act,)) for act in acts]

    def __enter__(self) -> Writers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._has_ended.set()
        for thread in self._threads:
            thread.join()

    def _run(self, act: Callable[[], None]) -> None:
        try:
            while not self._has_ended.wait(self._pause_seconds):
                act()
        except BaseException as exc:  # noqa: BLE001 - the test fails of it
            self.errors.append(exc)


def check_all_came(scene: Scene, taker: Taker, sent: set[str], names: set[str]) -> bool:
    """Fail if something that was stored, triggered or written raw isn't sent, and say what."""
    late = names - {one.entry for one in [*taker.sent]}
    missing = sent - taker.others.keys() or late
    assert not missing, f"{len(missing)} are missing:" + "".join(
        f"\n{one}: {places_of(scene, one)}" for one in sorted(missing)[:5]
    )
    return True


def places_of(scene: Scene, name: str) -> list[str]:
    """The keys of an entry or a stored message, and the sorted sets that have it."""
    client, found = scene.client, list[str]()
    for key in client.scan_iter(f"*{name}", count=10_000):
        reads = {"hash": client.hgetall, "list": lambda key: client.lrange(key, 0, -1)}
        found.append(f"{key}: {reads.get(client.type(key), client.type)(key)}")
    for key in client.scan_iter("*", count=10_000, _type="zset"):
        found += [f"{key}: {one}" for one in client.zscan_iter(key, f"*{name}", count=10_000)]
    return found


@pytest.fixture(params=["one server", "two servers"])
def broker(request: pytest.FixtureRequest, valkey: Server) -> Queue:
    """On two servers a run may be sent twice, with the same id."""
    return RedisQueue(valkey if request.param == "one server" else request.getfixturevalue("redis"), 1)


@pytest.mark.slow
@pytest.mark.few_cases(1)
def test_reshards_that_are_killed_under_beats_that_are_killed_lose_and_double_nothing(
    valkey: Server,
    broker: Queue,
    chance: random.Random,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    record_property: Any,
) -> None:
    where = request.node.callspec.params["broker"]
    # a beat whose lock is lost stands by, as those in shards do in any case
    settings = {"redbeat_lock_timeout": LOCK_SECONDS, "redbeat_lock_lost": "standby"}
    with valkey.client(db=1) as client, valkey.client(db=1, decode_responses=False) as raw:
        scene = Scene(client, {"redbeat_redis_url": valkey.url(1), **settings}, broker, layouts=[None])
        scene.save(ENTRIES)
        app = scene.app()
        still = [f"still-{number}" for number in range(STILL)]
        RedBeatSchedulerEntry.save_many(
            RedBeatSchedulerEntry(name, "echo", SECONDS_A_YEAR, app=app) for name in still
        )
        start = starter(tmp_path, scene)
        resharder, foreign = Resharder(tmp_path, scene, chance), Foreign(scene)
        writers = [
            Writer(scene, random.Random(chance.random()), number, chance.choice(KINDS)) for number in range(8)
        ]
        with Taker(broker) as taker, Crew(chance, start, 3) as crew:
            crew.start(2)
            eventually(lambda: taker.sent)
            ends_at = time.monotonic() + SECONDS
            resharder.run(chance.choice(KINDS[1:]), meanwhile=lambda: crew.suffer(0.1))
            # from now on also those write that have another setting
            with Writers(writers, foreign, 0.1 if IS_LONG else 0.2) as at_work:
                while resharder.done < RESHARDS or time.monotonic() < ends_at:
                    foreign.shards = scene.shards
                    shards = chance.choice([one for one in KINDS if one != scene.shards])
                    resharder.run(shards, meanwhile=lambda: crew.suffer(0.1))
                    crew.suffer(chance.uniform(0, 2))
                    assert not at_work.errors, at_work.errors
            crew.recover()
            scene.await_runs_of(taker, time.time() + 1)
            sent = set().union(*(writer.sent for writer in writers))
            print(f"{resharder.done} reshards by {scene.layouts}, killed {resharder.kills} times")
            eventually(partial(check_all_came, scene, taker, sent, {*foreign.names}), 30, 0.5)
            crew.end()
        of_foreign = Counter(one.entry for one in taker.sent if one.entry.startswith("foreign-"))
        taker.sent = [one for one in taker.sent if one.entry not in of_foreign]
        verdict = scene.judge(taker, crew)
        found, wrong = read_all(raw)
    print(f"{dict(crew.faults)}; {verdict}; {len(of_foreign)} foreign entries")
    print(sum((writer.counts for writer in writers), Counter()), max(one.slowest_seconds for one in writers))
    faults = resharder.kills + crew.faults.total()
    record_property(TALLY, [f"reshards that are killed under beats: {where}", verdict.counts(faults)])
    verdict.check(is_exactly_once=where == "one server", most_silent=SILENT_SECONDS + HIDDEN_SECONDS)
    if where == "one server":
        assert {name: count for name, count in of_foreign.items() if count > 1} == {}
        assert {task_id: taker.others[task_id] for task_id in sent if taker.others[task_id] > 1} == {}
    # beats have left what is theirs; and what triggers is told too late that the entry has moved
    assert [one for one in wrong if not one.startswith("left: ") and ":history:of-" not in one] == []
    assert not [name for name in still if f":schedule {name}".encode() not in found]
    for writer in writers:
        check_is_as_told(writer, taker, found)


def check_is_as_told(writer: Writer, taker: Taker, found: dict[bytes, Any]) -> None:
    """Fail unless all is there that it has saved, and nothing that it has taken away."""
    for name, args in writer.saved.items():
        assert json.loads(found[name.encode()][b"definition"])["args"] == args, name
        assert f":schedule {name}".encode() in found, name
    assert not [name for name in writer.deleted if name.encode() in found]
    assert not writer.cancelled & taker.others.keys()
