"""The schedule divided anew again and again, by commands that are killed, under beats that are killed, too.

Writers go on meanwhile, some with settings of another layout, one that writes raw to former places.
"""

from __future__ import annotations

import json
import random
import signal
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
from tests.faults.rounds import IS_LONG
from tests.faults.shards import (
    LOCK_SECONDS,
    SILENT_SECONDS,
    Crew,
    Scene,
    Taker,
    starter,
)
from tests.integration.reshard.resharded import Repeated, part_of, read_all
from tests.support.apps import celery_command
from tests.support.logs import has_traceback
from tests.support.polling import eventually
from tests.support.processes import Process
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
        for _ in range(self._chance.choice([0, 1, 3])):
            if not self._kill_one(shards, meanwhile):
                break  # it has just ended by itself
        else:
            with self._start(shards) as process:
                while process.is_running:
                    meanwhile()
            self._check(process)
        assert self._scene.shards == shards
        self.done += 1

    def _kill_one(self, shards: int | None, meanwhile: Callable[[], None]) -> bool:
        """Kill a command at some instant; return False if it has ended before."""
        with self._start(shards) as process:
            state = self._chance.choice(["moving", "moving", "moving", ""])
            self._await(process, state, meanwhile)
            until = time.monotonic() + self._chance.choice([0.0, 0.1, 1.0]) * self._chance.random()
            while process.is_running and time.monotonic() < until:
                meanwhile()
            is_killed = process.is_running and process.kill() == -signal.SIGKILL
        self.kills += is_killed
        if not is_killed:
            self._check(process)
        assert not has_traceback(process.output()), process.output()
        return is_killed

    def _check(self, process: Process) -> None:
        assert process.returncode == 0, process.output()
        assert not has_traceback(process.output()), process.output()

    def _await(self, process: Process, state: str, meanwhile: Callable[[], None]) -> None:
        """Wait for a state of the layout, or the end.

        It mostly comes at once, and the instant is to be met; but beats that are paused must go on some time.
        """
        client = self._scene.client

        def has_come_soon() -> bool:
            ends_at = time.monotonic() + 1.0
            while process.is_running and (client.hget("redbeat::layout", "state") or "") != state:
                if time.monotonic() >= ends_at:
                    meanwhile()
                    return False
                time.sleep(0.001)
            return True

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
        redbeat.later.install(self._app)
        self._chance, self._number, self._count = chance, number, 0
        self.saved: dict[str, list[int]] = {}
        self.deleted: set[str] = set()
        self.sent: set[str] = set()
        self.cancelled: set[str] = set()
        self._stored: list[str] = []

    def act(self) -> None:
        """Do one thing."""
        self._count += 1
        acts = [self._save_many, self._store, self._cancel]
        of_one = [self._save, self._delete, self._trigger]
        act = self._chance.choice([*acts, lambda: self._save(f"of-{self._number}-{self._count}"), *of_one])
        if act not in of_one:
            act()
        elif self.saved:
            act(self._chance.choice([*self.saved]))

    def _entry(self, name: str) -> RedBeatSchedulerEntry:
        return RedBeatSchedulerEntry(name, "echo", SECONDS_A_YEAR, args=[self._count], app=self._app)

    def _save(self, name: str) -> None:
        self._entry(name).save()
        self.saved[name] = [self._count]

    def _save_many(self) -> None:
        names = [f"of-{self._number}-{self._count}-{number}" for number in range(5)]
        RedBeatSchedulerEntry.save_many([*map(self._entry, names)])
        self.saved.update({name: [self._count] for name in names})

    def _delete(self, name: str) -> None:
        self._entry(name).delete()
        del self.saved[name]
        self.deleted.add(name)

    def _trigger(self, name: str) -> None:
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
            assert redbeat.later.cancel(task_id, self._app) == [task_id]
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
        definition = {"name": name, "task": "echo", "schedule": SELDOM}
        self._client.hset(f"{part}{name}", "definition", json.dumps(definition))
        self._client.zadd(f"{part}:schedule", {f"{part}{name}": 1.0})
        self.names.append(name)


def check_all_came(scene: Scene, taker: Taker, sent: set[str], names: set[str]) -> bool:
    """Fail if something that was stored, triggered or written raw isn't sent, and say where it is."""
    missing = (sent - taker.others.keys()) | (names - {one.entry for one in [*taker.sent]})
    assert not missing, {one: [*scene.client.scan_iter(f"*{one}", count=10_000)] for one in missing}
    return True


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
            acts = [writer.act for writer in writers] + [foreign.act]
            with Repeated(acts, 0.1 if IS_LONG else 0.2) as at_work:
                while resharder.done < RESHARDS or time.monotonic() < ends_at:
                    foreign.shards = scene.shards
                    shards = chance.choice([one for one in KINDS if one != scene.shards])
                    resharder.run(shards, meanwhile=lambda: crew.suffer(0.1))
                    crew.suffer(chance.uniform(0, 2))
                    at_work.check()
            crew.recover()
            scene.await_runs_of(taker, time.time() + 1)
            sent = set().union(*(writer.sent for writer in writers))
            print(f"{resharder.done} reshards: {scene.layouts}")
            eventually(partial(check_all_came, scene, taker, sent, {*foreign.names}), 30, 0.5)
            crew.end()
        of_foreign = Counter(one.entry for one in taker.sent if one.entry.startswith("foreign-"))
        taker.sent = [one for one in taker.sent if one.entry not in of_foreign]
        verdict = scene.judge(taker, crew)
        found, wrong = read_all(raw)
    kills = Counter(resharder=resharder.kills)
    verdict.note(f"reshards that are killed under beats: {where}", record_property, kills, crew.faults)
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
