"""Processes that save, read and delete entries all the time while the schedule is divided again and again."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import timedelta

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat import later
from redbeat.config.config import ensure_conf
from redbeat.errors import EntryError, FileError, LayoutChanged, MessageNotStored
from redbeat.keys import Keys
from redbeat.layout import Layout
from redbeat.manifest.format import Declared
from redbeat.manifest.plan import apply_plan, make_plan
from redbeat.reshard.resharding import Resharding
from redbeat.schedulers import RedBeatScheduler
from redbeat.store.generations import Generations
from redbeat.store.later import LaterStore
from redbeat.store.layouts import Layouts
from redbeat.store.store import Store
from redbeat.web import asgi_app
from tests.conftest import SEED, MakeApp
from tests.support.programs import Program
from tests.support.resharded import (
    read_all,
)
from tests.support.servers import Server
from tests.support.stored import store as store_message

LAYOUTS = [None, 1, 2, 4, 16]


class RandomWriter(threading.Thread):
    """One process, as it were, with entries of its own.

    Attributes:
        expected: of each of its names that exist the seconds of its interval.
        error: what it ended with.
    """

    def __init__(self, app: Celery, number: int, is_over: threading.Event) -> None:
        super().__init__()
        self._app, self._is_over = app, is_over
        self._chance = random.Random(f"{SEED} writer {number}")
        self._names = [f"{number}-{place}" for place in range(25)]
        self.expected: dict[str, int] = {}
        self.steps = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        """Do random things with entries until it is over."""
        try:
            while not self._is_over.is_set():
                self._step(self._chance.choice(self._names))
                self.steps += 1
        except BaseException as exc:  # noqa: BLE001 - it is raised in the main thread
            self.error = exc

    def _step(self, name: str) -> None:
        if name not in self.expected or self._chance.random() < 0.3:
            seconds = self._chance.randrange(1000, 9000)
            Entry(name, "echo", timedelta(seconds=seconds), app=self._app).save()
            self.expected[name] = seconds
            return
        entry = Entry.from_key(ensure_conf(self._app).keys.entry(name), app=self._app)
        assert entry.schedule.run_every == timedelta(seconds=self.expected[name]), name
        if self._chance.random() < 0.5:
            entry.delete()
            del self.expected[name]


@pytest.mark.parametrize("rounds", [4, pytest.param(40, marks=pytest.mark.long_form)])
def test_entries_saved_and_deleted_under_reshards_are_neither_lost_nor_doubled_nor_revived(
    make_app: MakeApp, client: redis.Redis, rounds: int, chance: random.Random
) -> None:
    is_over = threading.Event()
    writers = [RandomWriter(make_app(), number, is_over) for number in range(3)]
    for writer in writers:
        writer.start()
    try:
        for _ in range(rounds):
            shards = chance.choice(LAYOUTS)
            Resharding(make_app(), shards).run()
            steps = [writer.steps for writer in writers]
            while any(w.is_alive() and w.steps <= s + 5 for w, s in zip(writers, steps, strict=True)):
                is_over.wait(0.005)
    finally:
        is_over.set()
        for writer in writers:
            writer.join()
    for writer in writers:
        if writer.error is not None:
            raise writer.error
    layout = Layout(Keys(), shards, 1)
    homes = layout.keys if shards else Keys()
    expected = {homes.entry(name) for writer in writers for name in writer.expected}
    found = {key for key in client.scan_iter(_type="hash") if "::" not in key}
    assert found == expected
    parts = layout.parts if shards else [Keys()]
    members = [member for part in parts for member in client.zrange(part.schedule, 0, -1)]
    assert sorted(members) == sorted(expected)


def test_entry_moved_between_location_and_save_exists_once(
    make_app: MakeApp, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    Entry("report", "echo", timedelta(hours=1), app=make_app()).save()
    app, other = make_app(), make_app()
    generations = Generations(Store(other))
    moving = generations.begin(generations.read(), None, 4)
    assert moving is not None
    Layouts(Store(app)).look()
    locate = Layouts.locate

    def locate_before_it_moves(layouts: Layouts, names: Sequence[str], **options: bool) -> list[str]:
        found = locate(layouts, names, **options)
        monkeypatch.undo()
        assert found == ["redbeat:report"]
        Resharding(other, 4).run()
        # as long as others are on their way
        client.hset("redbeat::layout", mapping={"generation": 1, "state": "moving"})
        for key in client.keys("*:generation"):
            client.set(key, "1 4")
        return found

    monkeypatch.setattr(Layouts, "locate", locate_before_it_moves)
    later = Entry("report", "echo", timedelta(hours=2), app=app)
    later.save()
    assert [key for key in client.keys("*report") if "::" not in key] == ["{redbeat:0}:report"]
    assert client.exists("redbeat::schedule") == 0


def test_entry_known_by_a_former_layout_is_found_and_changed(make_app: MakeApp) -> None:
    entry = Entry("report", "echo", timedelta(hours=1), app=make_app(redbeat_shards=4)).save()
    Resharding(make_app(), None).run()
    entry.reschedule()
    assert Entry.from_key("redbeat:report", app=make_app()).due_at == entry.due_at


NUMBERS = [4, 16, None]
NAMES = [f"entry-{number}" for number in range(50)]


@pytest.fixture
def server(valkey: Server) -> Server:
    """One kind is enough."""
    return valkey


class Writer(threading.Thread):
    """One process, as it were, that writes some names again and again.

    Attributes:
        written: the seconds of the intervals that it has given to each name.
        error: what it ended with.
    """

    def __init__(
        self, number: int, write: Callable[[dict[str, int]], object], is_over: threading.Event, count: int
    ) -> None:
        super().__init__()
        self._write, self._is_over, self._count = write, is_over, count
        self._number, self._chance = number, random.Random(f"{SEED} writer {number}")
        self.written: defaultdict[str, set[int]] = defaultdict(set)
        self.steps = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        """Write until it is over."""
        try:
            while not self._is_over.is_set():
                # so that the value says who has written it
                values = {
                    name: self._chance.randrange(1000, 9000) * 10 + self._number
                    for name in self._chance.sample(NAMES, self._count)
                }
                for name, seconds in values.items():
                    self.written[name].add(seconds)
                try:
                    self._write(values)
                except (EntryError, FileError) as exc:  # another writer was first
                    if "changed" not in str(exc):
                        raise
                self.steps += 1
                self._is_over.wait(0.1 * self._chance.random())  # else none of the others gets anywhere
        except BaseException as exc:  # noqa: BLE001 - it is raised in the main thread
            self.error = exc


def writers_of(make_app: MakeApp, is_over: threading.Event) -> list[Writer]:
    """Return a writer for each way to write entries."""

    def entries(app: Celery, values: dict[str, int]) -> list[Entry]:
        return [Entry(name, "echo", timedelta(seconds=one), app=app) for name, one in values.items()]

    def fields(values: dict[str, int]) -> dict[str, dict[str, object]]:
        return {name: {"task": "echo", "schedule": timedelta(seconds=one)} for name, one in values.items()}

    def scheduler_of(app: Celery) -> RedBeatScheduler:
        return RedBeatScheduler(app, lazy=True)

    apps = [make_app(redbeat_lock_key=None) if number in (2, 3) else make_app() for number in range(8)]
    apps[4].conf.redbeat_lock_key = apps[5].conf.redbeat_lock_key = None
    schedulers = [scheduler_of(app) for app in apps[2:6]]
    owners = ["one", "two"]

    def declare(place: int, values: dict[str, int]) -> None:
        app = apps[4 + place]
        app.conf.beat_schedule = {**app.conf.beat_schedule, **fields(values)}
        try:
            schedulers[2 + place].setup_schedule()
        except LayoutChanged:  # as a beat does when one of its parts isn't one any more
            schedulers[2 + place] = scheduler_of(app)

    def apply(values: dict[str, int]) -> None:
        declared = Declared(
            entries={name: {"task": "echo", "schedule": {"every": f"{one}s"}} for name, one in values.items()}
        )
        apply_plan(lambda: make_plan(apps[6], declared, "billing", take_over=True))

    program = Program(apps[7], ("admin",), asgi_app(apps[7]))

    def ask(values: dict[str, int]) -> None:
        for name, one in values.items():
            answer = program.ask(
                "PUT", f"/entries/{name}", {"task": "echo", "schedule": {"every": f"{one}s"}}
            )
            assert answer.status_code in (200, 201, 409, 412, 503), answer.text

    for place, owner in enumerate(owners):
        apps[4 + place].conf.redbeat_statics_owner = owner
    writes: list[tuple[Callable[[dict[str, int]], object], int]] = [
        (lambda values: [one.save() for one in entries(apps[0], values)], 1),
        (lambda values: Entry.save_many(entries(apps[1], values)), 8),
        (lambda values: schedulers[0].update_from_dict(fields(values)), 8),
        (lambda values: schedulers[1].update_from_dict(fields(values)), 3),
        (lambda values: declare(0, values), 2),
        (lambda values: declare(1, values), 2),
        (apply, 3),
        (ask, 2),
    ]
    return [Writer(number, write, is_over, count) for number, (write, count) in enumerate(writes)]


@pytest.mark.parametrize("rounds", [1, pytest.param(4, marks=pytest.mark.long_form)])
def test_entries_written_in_eight_ways_under_reshards_exist_once(
    make_app: MakeApp, server: Server, rounds: int
) -> None:
    began = time.time()
    is_over = threading.Event()
    writers = writers_of(make_app, is_over)
    for writer in writers:
        writer.start()
    try:
        for shards in NUMBERS * rounds:
            steps = [writer.steps for writer in writers]
            report = Resharding(make_app(), shards).run()
            assert report.unmerged == []
            assert report.unmoved == {}
            print(shards, f"{report.seconds:.1f} s", report.moved, [writer.steps for writer in writers])
            enough = [count + 1 for count in steps]
            while any(w.is_alive() and w.steps < wanted for w, wanted in zip(writers, enough, strict=True)):
                is_over.wait(0.005)
    finally:
        is_over.set()
        for writer in writers:
            writer.join()
    for writer in writers:
        if writer.error is not None:
            raise writer.error
    print([writer.steps for writer in writers])
    with server.client(db=1, decode_responses=False) as raw:
        raw.delete("redbeat::audit", "redbeat::tokens")
        found, wrong = read_all(raw)
        assert wrong == []
        assert raw.keys("*:mover") + raw.keys("*:moving*") + raw.keys("*:arriving*") == []
        scores = raw.zrange("redbeat::schedule", 0, -1, withscores=True)
    assert len(scores) == len({member for member, _ in scores})
    for member, score in scores:
        name = member.decode().removeprefix("redbeat:")
        definition = json.loads(found[name.encode()][b"definition"])
        seconds = definition["schedule"]["every"]
        assert seconds in set().union(*(writer.written[name] for writer in writers)), name
        assert began + seconds - 1 <= score <= time.time() + seconds + 1, name


def test_delayed_task_replaced_or_cancelled_under_reshards_exists_once(
    make_app: MakeApp, server: Server, client: redis.Redis, chance: random.Random
) -> None:
    ids = [f"id-{number}" for number in range(40)]
    is_over, errors = threading.Event(), list[BaseException]()
    steps = [0, 0, 0]
    last: list[dict[str, int | None]] = [{}, {}, {}]

    def write(place: int, app: Celery) -> None:
        mine, chooser = ids[place::3], random.Random(f"{SEED} {place}")
        try:
            while not is_over.is_set():
                some = chooser.sample(mine, chooser.randrange(1, 5))
                if chooser.random() < 0.3:
                    expected = {one for one in some if last[place].get(one) is not None}
                    assert set(later.cancel(some, app=app)) == expected
                    last[place] |= dict.fromkeys(some)
                else:
                    number = chooser.randrange(10**6)
                    store_message(app, *some, args=[number])
                    last[place] |= dict.fromkeys(some, number)
                steps[place] += 1
        except MessageNotStored as exc:
            errors.append(exc)
        except BaseException as exc:  # noqa: BLE001 - it is raised in the main thread
            errors.append(exc)

    threads = [threading.Thread(target=write, args=(place, make_app())) for place in range(3)]
    for thread in threads:
        thread.start()
    try:
        for shards in [4, 16, None, 16, 4, None]:
            before = list(steps)
            Resharding(make_app(), shards).run()
            while not errors and any(now <= then + 3 for now, then in zip(steps, before, strict=True)):
                is_over.wait(0.005)
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    for error in errors:
        raise error
    with server.client(db=1, decode_responses=False) as raw:
        assert read_all(raw)[1] == []
    expected = {key: value for one in last for key, value in one.items() if value is not None}
    found = {one.task_id: one.texts for one in LaterStore(make_app()).first(None)}
    assert found.keys() == expected.keys()
    for task_id, number in expected.items():
        texts = found[task_id]
        assert texts is not None
        assert str(number) in texts.message + texts.body, task_id
