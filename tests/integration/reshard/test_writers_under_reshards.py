"""Processes that save, read and delete entries all the time while the schedule is divided again and again."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from datetime import timedelta

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.config.config import ensure_conf
from redbeat.keys import Keys
from redbeat.layout import Layout
from redbeat.reshard.resharding import Resharding
from redbeat.store.generations import Generations
from redbeat.store.layouts import Layouts
from redbeat.store.store import Store
from tests.conftest import SEED, MakeApp

NUMBERS = [None, 1, 2, 4, 16]


class Writer(threading.Thread):
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
def test_nothing_that_was_saved_is_lost_or_doubled_and_nothing_deleted_comes_back(
    make_app: MakeApp, client: redis.Redis, rounds: int, chance: random.Random
) -> None:
    is_over = threading.Event()
    writers = [Writer(make_app(), number, is_over) for number in range(3)]
    for writer in writers:
        writer.start()
    try:
        for _ in range(rounds):
            shards = chance.choice(NUMBERS)
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


@pytest.mark.parametrize("is_one_of_many", [False, True], ids=["one", "many"])
def test_an_entry_that_moves_between_two_looks_of_who_saves_it_is_there_once(
    make_app: MakeApp, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, is_one_of_many: bool
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
    Entry.save_many([later]) if is_one_of_many else later.save()
    assert [key for key in client.keys("*report") if "::" not in key] == ["{redbeat:0}:report"]
    assert client.exists("redbeat::schedule") == 0


@pytest.mark.parametrize("is_one_of_many", [False, True], ids=["one", "many"])
def test_an_entry_is_saved_where_it_is_if_another_thread_learns_of_a_layout_meanwhile(
    make_app: MakeApp, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, is_one_of_many: bool
) -> None:
    Entry("report", "echo", timedelta(hours=1), app=make_app()).save()
    app, other = make_app(), make_app()
    Resharding(other, 4).run()
    Layouts(Store(app)).look()
    located = Store.located

    def located_before_it_ends(store: Store, keys: Sequence[str]) -> list[str]:
        found = located(store, keys)
        monkeypatch.undo()
        Resharding(other, None).run()
        Layouts(Store(app)).look()
        return found

    monkeypatch.setattr(Store, "located", located_before_it_ends)
    later = Entry("report", "echo", timedelta(hours=2), app=app)
    Entry.save_many([later]) if is_one_of_many else later.save()
    assert [key for key in client.keys("*report") if "::" not in key] == ["redbeat:report"]
    assert client.zrange("redbeat::schedule", 0, -1) == ["redbeat:report"]


def test_an_entry_is_found_by_who_changes_it_and_knows_a_former_layout(make_app: MakeApp) -> None:
    entry = Entry("report", "echo", timedelta(hours=1), app=make_app(redbeat_shards=4)).save()
    Resharding(make_app(), None).run()
    entry.reschedule()
    assert Entry.from_key("redbeat:report", app=make_app()).due_at == entry.due_at
