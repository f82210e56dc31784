"""Processes that save, read and delete entries all the time while the schedule is resharded."""

from __future__ import annotations

import json
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat import later
from redbeat.config.config import ensure_conf
from redbeat.errors import EntryError, FileError, LayoutChanged
from redbeat.manifest.format import Declared
from redbeat.manifest.plan import apply_plan, make_plan
from redbeat.reshard.resharding import Resharding
from redbeat.schedulers import RedBeatScheduler
from redbeat.store.later import LaterStore
from redbeat.store.layouts import change_layout, look_up_layout, read_layout
from redbeat.store.runs import Answer, Delivery, End, Runs
from redbeat.store.store import Store
from redbeat.web import asgi_app
from tests.conftest import SEED, MakeApp
from tests.integration.reshard.resharded import Repeated, read_all
from tests.support.programs import Program
from tests.support.servers import Server
from tests.support.stored import store as store_message


@pytest.fixture
def server(valkey: Server) -> Server:
    """One kind is enough."""
    return valkey


def hourly(app: Celery, name: str, seconds: int = 3600) -> Entry:
    return Entry(name, "echo", timedelta(seconds=seconds), app=app)


def reshard_under_load(
    make_app: MakeApp, server: Server, layouts: Iterable[int | None], steps: Sequence[Callable[[], object]]
) -> dict[bytes, Any]:
    """Reshard to each layout while threads repeat a step each; return what is stored then.

    One of them rests meanwhile, so that it begins afterwards with what it knows of the former layout. Every
    thread gets on after every reshard, and then all is in its place.
    """
    with Repeated(steps) as working, server.client(db=1, decode_responses=False) as raw:
        for number, shards in enumerate(layouts):
            with working.locks[number % len(steps)]:
                report = Resharding(make_app(), shards).run()
            assert report.unmerged == []
            assert report.unmoved == {}
            wanted = [count + 3 for count in working.counts]
            while any(now < then for now, then in zip(working.counts, wanted, strict=True)):
                working.check()
                time.sleep(0.005)
            with ExitStack() as all_rest:
                for lock in working.locks:
                    all_rest.enter_context(lock)
                check_places(raw)
        working.stop()
        assert raw.keys("*:mover") + raw.keys("*:moving*") + raw.keys("*:arriving*") == []
        return check_places(raw)


def check_places(raw: redis.Redis) -> dict[bytes, Any]:
    """Return what is stored, and fail if an entry is in a wrong place."""
    found, wrong = read_all(raw)
    own = {f"left: {key!r}" for key in (b"redbeat::audit", b"redbeat::tokens")}
    assert [one for one in wrong if one not in own] == []
    return found


def chances(count: int) -> list[random.Random]:
    return [random.Random(f"{SEED} writer {number}") for number in range(count)]


@pytest.mark.parametrize("rounds", [4, pytest.param(40, marks=pytest.mark.long_form)])
def test_entries_saved_and_deleted_under_reshards_are_neither_lost_nor_doubled_nor_revived(
    make_app: MakeApp, server: Server, rounds: int, chance: random.Random
) -> None:
    """Each of three processes has entries of its own, and finds them as it has left them."""
    expected: dict[str, int] = {}

    def step_of(number: int, app: Celery, chosen: random.Random) -> Callable[[], object]:
        def step() -> None:
            name = f"{number}-{chosen.randrange(25)}"
            if name not in expected or chosen.random() < 0.3:
                expected[name] = chosen.randrange(1000, 9000)
                hourly(app, name, expected[name]).save()
                return
            entry = Entry.from_key(ensure_conf(app).keys.entry(name), app=app)
            assert entry.schedule.run_every == timedelta(seconds=expected[name]), name
            if chosen.random() < 0.5:
                entry.delete()
                del expected[name]

        return step

    steps = [step_of(number, make_app(), chosen) for number, chosen in enumerate(chances(3))]
    layouts: list[int | None] = [4]
    while len(layouts) < rounds:
        layouts.append(chance.choice([one for one in (None, 1, 2, 4, 16) if one != layouts[-1]]))
    found = reshard_under_load(make_app, server, layouts, steps)
    assert {key.decode() for key in found if not key.startswith(b":")} == expected.keys()
    members = {key.split()[1].decode() for key in found if key.startswith(b":schedule ")}
    assert members == expected.keys()


def move_after_location(
    app: Celery, other: Celery, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let the one entry leave for a shard right after ``app`` has located it for the next time."""
    undivided = read_layout(Store(other))
    moving = replace(undivided, shards=4, generation=1, is_moving=True)
    assert change_layout(Store(other), undivided, moving) == moving
    look_up_layout(Store(app))
    locate = Store.locate

    def locate_before_it_moves(store: Store, names: Sequence[str], **options: bool) -> list[str]:
        found = locate(store, names, **options)
        monkeypatch.undo()
        assert found == ["redbeat:report"]
        Resharding(other, 4).run()
        # as long as others are on their way
        client.hset("redbeat::layout", mapping={"generation": 1, "state": "moving"})
        for key in client.keys("*:generation"):
            client.set(key, "1 4")
        return found

    monkeypatch.setattr(Store, "locate", locate_before_it_moves)


def test_entry_moved_between_location_and_save_exists_once(
    make_app: MakeApp, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    hourly(make_app(), "report").save()
    app, other = make_app(), make_app()
    move_after_location(app, other, client, monkeypatch)
    hourly(app, "report", 7200).save()
    assert [key for key in client.keys("*report") if "::" not in key] == ["{redbeat:0}:report"]
    assert client.exists("redbeat::schedule") == 0


def test_run_moved_between_location_and_its_end_ends(
    make_app: MakeApp, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    hourly(make_app(), "report").save()
    app, other = make_app(), make_app()
    delivery = Delivery("report", "id-1", "1000.000000", "token", "celery@here")
    assert Runs(Store(app)).begin(delivery, 30_000).answer is Answer.GO
    move_after_location(app, other, client, monkeypatch)
    Runs(Store(app)).end([End(delivery, "succeeded", run_seconds=1.0)])
    assert client.keys("*:running:*") == ["{redbeat:0}::running:report"]
    record = json.loads(str(client.hget("{redbeat:0}::running:report", "id-1")))
    assert (record["state"], record["outcome"]) == ("ended", "succeeded")


def test_entry_known_by_a_former_layout_is_found_and_changed(make_app: MakeApp) -> None:
    entry = hourly(make_app(redbeat_shards=4), "report").save()
    Resharding(make_app(), None).run()
    entry.reschedule()
    assert Entry.from_key("redbeat:report", app=make_app()).due_at == entry.due_at


NAMES = [f"entry-{number}" for number in range(50)]
#: what a way to write does with a name's seconds, and how many names it writes at once
Way = tuple[Callable[[dict[str, int]], object], int]


def ways_to_write(make_app: MakeApp) -> list[Way]:
    def fields(values: dict[str, int]) -> dict[str, dict[str, object]]:
        return {name: {"task": "echo", "schedule": timedelta(seconds=one)} for name, one in values.items()}

    def entries(app: Celery, values: dict[str, int]) -> list[Entry]:
        return [hourly(app, name, one) for name, one in values.items()]

    saving, many, applying, asking = (make_app() for _ in range(4))
    updating = RedBeatScheduler(make_app(redbeat_lock_key=None), lazy=True)
    statics = make_app(redbeat_lock_key=None, redbeat_statics_owner="one")
    schedulers = [RedBeatScheduler(statics, lazy=True)]

    def declare(values: dict[str, int]) -> None:
        statics.conf.beat_schedule = {**statics.conf.beat_schedule, **fields(values)}
        try:
            schedulers[0].setup_schedule()
        except LayoutChanged:  # as a beat does when one of its shards is gone
            schedulers[0] = RedBeatScheduler(statics, lazy=True)

    def apply(values: dict[str, int]) -> None:
        declared = Declared(
            entries={name: {"task": "echo", "schedule": {"every": f"{one}s"}} for name, one in values.items()}
        )
        apply_plan(lambda: make_plan(applying, declared, "billing", take_over=True))

    program = Program(asking, ("admin",), asgi_app(asking))

    def ask(values: dict[str, int]) -> None:
        for name, one in values.items():
            body = {"task": "echo", "schedule": {"every": f"{one}s"}}
            answer = program.ask("PUT", f"/entries/{name}", body)
            assert answer.status_code in (200, 201, 409, 412, 503), answer.text

    return [
        (lambda values: [one.save() for one in entries(saving, values)], 1),
        (lambda values: Entry.save_many(entries(many, values)), 8),
        (lambda values: updating.update_from_dict(fields(values)), 8),
        (declare, 2),
        (apply, 3),
        (ask, 2),
    ]


@pytest.mark.parametrize("rounds", [1, pytest.param(4, marks=pytest.mark.long_form)])
def test_entries_written_in_six_ways_under_reshards_exist_once(
    make_app: MakeApp, server: Server, rounds: int
) -> None:
    began, written = time.time(), defaultdict[str, set[int]](set)

    def step_of(way: Way, number: int, chosen: random.Random) -> Callable[[], object]:
        write, count = way

        def step() -> None:
            # the last digit says who has written it
            values = {
                name: chosen.randrange(1000, 9000) * 10 + number for name in chosen.sample(NAMES, count)
            }
            for name, seconds in values.items():
                written[name].add(seconds)
            try:
                write(values)
            except (EntryError, FileError) as exc:  # another writer was first
                if "changed" not in str(exc):
                    raise
            time.sleep(0.1 * chosen.random())  # else none of the others gets anywhere

        return step

    ways = ways_to_write(make_app)
    steps = [step_of(way, number, chances(6)[number]) for number, way in enumerate(ways)]
    found = reshard_under_load(make_app, server, [4, None] * rounds, steps)
    scores = {key.split()[1].decode(): score for key, score in found.items() if key.startswith(b":schedule ")}
    assert len(scores) == len(NAMES)
    for name, score in scores.items():
        seconds = json.loads(found[name.encode()][b"definition"])["schedule"]["every"]
        assert seconds in written[name], name
        assert began + seconds - 1 <= score <= time.time() + seconds + 1, name


def test_delayed_task_replaced_or_cancelled_under_reshards_exists_once(
    make_app: MakeApp, server: Server
) -> None:
    expected: dict[str, int] = {}

    def step_of(place: int, app: Celery, chosen: random.Random) -> Callable[[], object]:
        def step() -> None:
            some = [f"id-{3 * number + place}" for number in chosen.sample(range(13), chosen.randrange(1, 5))]
            if chosen.random() < 0.3:
                assert set(later.cancel(some, app=app)) == {one for one in some if expected.pop(one, None)}
            else:
                number = chosen.randrange(10**5, 10**6)
                store_message(app, *some, args=[number])
                expected.update(dict.fromkeys(some, number))

        return step

    steps = [step_of(place, make_app(), chosen) for place, chosen in enumerate(chances(3))]
    reshard_under_load(make_app, server, [4, 16, None], steps)
    found = {one.task_id: one.texts for one in LaterStore(make_app()).first(None)}
    assert found.keys() == expected.keys()
    for task_id, texts in found.items():
        assert texts is not None
        assert str(expected[task_id]) in texts.message + texts.body, task_id
