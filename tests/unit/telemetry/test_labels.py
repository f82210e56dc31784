"""Labels of metrics are bounded however many entries run; dashboard and alerts name metrics that exist."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import yaml
from celery import Celery

from redbeat.cli import redbeat as commands
from redbeat.store.figures import BOUNDS, Labels
from redbeat.telemetry import labels
from redbeat.telemetry.gathering import Gathering
from redbeat.telemetry.labels import (
    ALL_OTHERS,
    MAX_ASKED,
    MAX_ASKED_NAME,
    MAX_PAIRS,
    LabelBook,
    queue_finder,
)
from redbeat.telemetry.metrics import METRICS, SHARD_LABEL
from tests.support.logs import errors_in
from tests.support.scripts import SCRIPTS


def queue_of(_task: str, options: Mapping[str, Any]) -> str:
    return str(options.get("queue", "celery"))


def give(book: LabelBook, name: str, task: str = "add", *, is_asked: bool = False, **options: Any) -> Labels:
    return book.known[book.id_of(name, task, options, is_asked=is_asked)]


def test_first_entries_and_those_that_ask_have_labels_of_their_own() -> None:
    book = LabelBook(queue_of, 2)
    assert [give(book, name).entry for name in ("a", "b", "c", "a", "d")] == ["a", "b", "other", "a", "other"]
    assert give(book, "c", queue="slow") == Labels("add", "slow", "other")
    assert give(book, "e", is_asked=True) == Labels("add", "celery", "e", is_asked=True)
    assert book.id_of("other", "other", {"queue": "other"}, is_asked=True) == ""
    none = LabelBook(queue_of, 0)
    assert [give(none, "a", is_asked=is_asked).entry for is_asked in (False, True)] == ["other"] * 2


def test_labels_are_bounded_for_any_number_of_entries_tasks_and_queues() -> None:
    book = LabelBook(queue_of, 200)
    for number in range(20_000):
        book.id_of(f"e{number}", f"t{number}", {"queue": f"q{number}"}, is_asked=number % 2 == 0)
    assert len(book.known) == 200 + MAX_ASKED + MAX_PAIRS + 1
    assert give(book, "one more", "another task") == ALL_OTHERS


@pytest.mark.parametrize(
    ("name", "is_asked", "has_label"),
    [
        ("x" * 101, False, False),
        ("half a \ud800 character", False, False),
        ("x" * MAX_ASKED_NAME, True, True),
        ("x" * (MAX_ASKED_NAME + 1), True, False),
    ],
)
def test_name_that_is_too_long_or_not_text_is_not_a_label(name: str, is_asked: bool, has_label: bool) -> None:
    found = give(LabelBook(queue_of, 200), name, is_asked=is_asked)
    assert (found.entry == name) is has_label


def test_labels_given_by_another_beat_have_the_same_ids() -> None:
    first, second = LabelBook(queue_of, 2), LabelBook(queue_of, 2)
    ids = [first.id_of(name, "add", {}, is_asked=False) for name in ("a", "b", "c")]
    second.load({id_: one for id_, one in first.known.items() if id_})
    assert [second.id_of(name, "add", {}, is_asked=False) for name in ("c", "b", "a")] == ids[::-1]
    assert not second.unsaved, "nothing is new"


def test_labels_of_a_forgotten_entry_are_free() -> None:
    book = LabelBook(queue_of, 1)
    gone, before = book.id_of("a", "add", {}, is_asked=False), book.version
    assert give(book, "b").entry == "other"
    book.forget({gone})
    assert book.version != before, "who remembers ids asks again"
    assert give(book, "b").entry == "b"


@pytest.mark.parametrize(
    ("change", "fresh"),
    [({"task": "new"}, Labels("new", "celery", "a")), ({"queue": "slow"}, Labels("add", "slow", "a"))],
)
def test_entry_with_another_task_or_queue_is_counted_under_it(change: dict[str, str], fresh: Labels) -> None:
    book = LabelBook(queue_of, 1)
    old = give(book, "a")
    assert book.is_current(old)
    give(book, "a", **change)
    assert not book.is_current(old)
    book.forget({old.id})
    assert give(book, "a", **change) == fresh


def test_queue_label_is_the_queue_that_celery_routes_to() -> None:
    app = Celery("routed", set_as_current=False)
    app.conf.update(task_default_queue="usual", task_routes={"slow.*": {"queue": "slow"}})

    @app.task(name="own", queue="mine")
    def own() -> None: ...

    find = queue_finder(app)
    assert [find(task, {}) for task in ("add", "slow.add", "own")] == ["usual", "slow", "mine"]
    assert find("add", {"queue": "given"}) == "given"


def test_router_that_fails_leaves_the_queue_label_empty() -> None:
    def route(*_args: Any, **_kwargs: Any) -> Any:
        raise KeyError("no route")

    app = Celery("routed", set_as_current=False)
    app.conf.task_routes = (route,)
    assert queue_finder(app)("add", {}) == ""


def test_buckets_of_the_script_are_those_shown() -> None:
    text = SCRIPTS["end_run"].source
    found = {
        what: tuple(float(bound) for bound in bounds.split(", "))
        for what, bounds in re.findall(r"^local (\w+)_bounds = \{(.+)\}$", text, re.MULTILINE)
    }
    shown = {what: tuple(map(float, bounds)) for what, bounds in BOUNDS.items()}
    assert found == {"late": shown["late"], "length": shown["ran"]}
    assert shown["wait"] == shown["ran"]
    assert labels.OTHER == "other"


def test_error_while_metrics_are_gathered_is_logged_and_gathering_goes_on(
    app: Celery, caplog: pytest.LogCaptureFixture
) -> None:
    leaderships = Mock(side_effect=[KeyError("a bug"), (), ()])
    gathering = Gathering(app, leaderships, LabelBook(queue_of, 1), is_shown=True)
    for _ in range(2):
        gathering.gather()
    failed, again = errors_in(caplog)
    assert "KeyError: 'a bug'" in failed
    assert "gathered again" in again


# -- dashboard.json and alerts.yml


MONITORING = Path(__file__).parents[3] / "redbeat" / "telemetry" / "monitoring"
DASHBOARD = json.loads((MONITORING / "dashboard.json").read_text("utf-8"))
RULES = yaml.safe_load((MONITORING / "alerts.yml").read_text("utf-8"))["groups"][0]["rules"]


def test_dashboard_and_alerts_name_existing_metrics_labels_and_commands() -> None:
    endings = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_sum", "_count"]}
    served = {f"{name}{end}": one for name, one in METRICS.items() for end in endings[one.type]}
    shown = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
    used = re.findall(
        r"\b(redbeat_\w+)(?:\{(.*?)\})?", "\n".join([*shown, *(rule["expr"] for rule in RULES)])
    )
    for name, matchers in used:
        labels = set(re.findall(r"(\w+)[=!]", matchers))
        assert labels <= {*served[name].labels, SHARD_LABEL, "job"}, (name, labels)
    missing = METRICS.keys() - {served[name].name for name in re.findall(r"\bredbeat_\w+", str(shown))}
    assert missing == {"redbeat_entries_counted_timestamp_seconds"}
    assert all('job="$job"' in expr for expr in shown)
    texts = " ".join(rule["annotations"]["description"] for rule in RULES)
    assert set(re.findall(r"`celery -A proj redbeat (\w+)", texts)) <= set(commands.commands)


def test_dashboard_names_no_data_source_of_its_own() -> None:
    assert DASHBOARD["uid"] is None
    assert set(re.findall(r'"uid": "([^"]*)"', json.dumps(DASHBOARD))) == {"${datasource}"}
