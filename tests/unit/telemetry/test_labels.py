"""Which labels runs are counted under: however many entries there are, the labels are few."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from typing import Any

import pytest
from celery import Celery

from redbeat.store.figures import BOUNDS, Labels
from redbeat.telemetry.metrics import labels
from redbeat.telemetry.metrics.labels import (
    ALL_OTHERS,
    MAX_ASKED,
    MAX_ASKED_NAME,
    MAX_PAIRS,
    LabelBook,
    queue_finder,
)
from tests.support.lua_headers import FOLDER


def queue_of(_task: str, options: Mapping[str, Any]) -> str:
    return str(options.get("queue", "celery"))


def give(book: LabelBook, name: str, task: str = "add", *, is_asked: bool = False, **options: Any) -> Labels:
    return book.known[book.id_of(name, task, options, is_asked=is_asked)]


def test_the_first_entries_that_run_have_labels_of_their_own() -> None:
    book = LabelBook(queue_of, 2)
    assert [give(book, name).entry for name in ("a", "b", "c", "a", "d")] == ["a", "b", "other", "a", "other"]
    assert give(book, "c", queue="slow") == Labels("add", "slow", "other")


def test_an_entry_that_asks_for_it_has_its_own_in_any_case() -> None:
    book = LabelBook(queue_of, 1)
    assert [give(book, name).entry for name in "ab"] == ["a", "other"]
    assert give(book, "c", is_asked=True) == Labels("add", "celery", "c", is_asked=True)


def test_a_million_entries_tasks_and_queues_have_few_labels(caplog: pytest.LogCaptureFixture) -> None:
    book = LabelBook(queue_of, 200)
    for number in range(20_000):
        book.id_of(f"e{number}", f"t{number}", {"queue": f"q{number}"}, is_asked=number % 2 == 0)
    assert len(book.known) == 200 + MAX_ASKED + MAX_PAIRS + 1
    assert give(book, "one more", "another task") == ALL_OTHERS
    [told] = [record for record in caplog.records if "ask for metrics of their own" in record.getMessage()]
    assert str(MAX_ASKED) in told.getMessage()


@pytest.mark.parametrize("name", ["x" * 101, "half a \ud800 character"])
def test_a_name_that_is_unfit_is_no_label(name: str) -> None:
    book = LabelBook(queue_of, 200)
    assert give(book, name).entry == "other"
    assert give(book, "a", task=name) == ALL_OTHERS if len(name) < 100 else give(book, "b", task=name)


def test_every_beat_gives_the_labels_that_another_one_has_given() -> None:
    first, second = LabelBook(queue_of, 2), LabelBook(queue_of, 2)
    ids = [first.id_of(name, "add", {}, is_asked=False) for name in ("a", "b", "c")]
    second.load({id_: one for id_, one in first.known.items() if id_})
    assert [second.id_of(name, "add", {}, is_asked=False) for name in ("c", "b", "a")] == ids[::-1]
    assert not second.unsaved, "nothing is new"


def test_the_labels_of_an_entry_that_is_gone_go_to_another_one() -> None:
    book = LabelBook(queue_of, 1)
    gone, before = book.id_of("a", "add", {}, is_asked=False), book.version
    assert give(book, "b").entry == "other"
    book.forget({gone})
    assert book.version != before, "who remembers ids asks again"
    assert give(book, "b").entry == "b"


def test_an_entry_whose_task_is_another_one_now_is_counted_under_that() -> None:
    book = LabelBook(queue_of, 1)
    old = give(book, "a", "old")
    assert old == Labels("old", "celery", "a")
    assert book.is_current(old)
    assert give(book, "a", "new") == Labels("new", "celery", "other"), "as long as there is no room"
    assert not book.is_current(old), "so that there will be"
    book.forget({old.id})
    assert give(book, "a", "new") == Labels("new", "celery", "a")


def test_random_uses_keep_to_the_limits() -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    chance, book = random.Random(seed), LabelBook(queue_of, 5)
    for _ in range(5_000):
        if chance.random() < 0.01:
            book.forget(set(chance.sample(sorted(book.known), 3)))
        name, task = f"e{chance.randrange(40)}", f"t{chance.randrange(3)}"
        found = give(book, name, task, is_asked=chance.random() < 0.01)
        assert (found.task, found.entry) in ((task, name), (task, "other"))
        unasked = [one for one in book.known.values() if one.entry != "other" and not one.is_asked]
        assert len(unasked) <= 5
        assert all(one.id == id_ for id_, one in book.known.items() if id_)


def test_the_queue_is_the_one_that_celery_routes_to() -> None:
    app = Celery("routed", set_as_current=False)
    app.conf.update(task_default_queue="usual", task_routes={"slow.*": {"queue": "slow"}})

    @app.task(name="own", queue="mine")
    def own() -> None: ...

    find = queue_finder(app)
    assert [find(task, {}) for task in ("add", "slow.add", "own")] == ["usual", "slow", "mine"]
    assert find("add", {"queue": "given"}) == "given"


def test_a_router_that_fails_costs_the_label_only() -> None:
    def route(*_args: Any, **_kwargs: Any) -> Any:
        raise KeyError("no route")

    app = Celery("routed", set_as_current=False)
    app.conf.task_routes = (route,)
    assert queue_finder(app)("add", {}) == ""


def test_the_bounds_of_the_script_are_those_that_are_shown() -> None:
    text = (FOLDER / "count_figures.lua").read_text("utf-8")
    found = {
        what: tuple(float(bound) for bound in bounds.split(", "))
        for what, bounds in re.findall(r"^local (\w+)_bounds = \{(.+)\}$", text, re.MULTILINE)
    }
    shown = {what: tuple(map(float, bounds)) for what, bounds in BOUNDS.items()}
    assert found == {"late": shown["late"], "length": shown["ran"]}
    assert shown["wait"] == shown["ran"]
    assert labels.OTHER == "other"


def test_an_entry_that_goes_to_another_queue_is_counted_under_that() -> None:
    book = LabelBook(queue_of, 5)
    old = give(book, "a", queue="slow")
    assert give(book, "a", queue="quick") == Labels("add", "quick", "a")
    assert not book.is_current(old)


def test_a_task_a_queue_and_an_entry_called_other_have_no_second_labels_of_all_others() -> None:
    book = LabelBook(queue_of, 5)
    assert book.id_of("other", "other", {"queue": "other"}, is_asked=True) == ""
    assert give(book, "other", is_asked=True) == Labels("add", "celery", "other")


def test_the_longest_name_that_asks_for_labels_is_bounded() -> None:
    book = LabelBook(queue_of, 5)
    assert give(book, "x" * MAX_ASKED_NAME, is_asked=True).entry != "other"
    assert give(book, "x" * (MAX_ASKED_NAME + 1), is_asked=True).entry == "other"
