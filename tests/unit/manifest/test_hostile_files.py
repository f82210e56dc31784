"""Files that are meant to harm, or that YAML takes for something else: each ends in a sentence."""

from __future__ import annotations

import json
from typing import Any

import pytest
from celery import Celery

from redbeat.errors import FileError
from redbeat.manifest.format import Declared, read_file, write_file
from redbeat.manifest.plan import entry_of


def bomb(link: str) -> str:
    """Nine times nine values, nine times over, behind aliases."""
    lines = ["x-0: &a0 {k: [1, 2, 3, 4, 5, 6, 7, 8, 9]}"]
    lines += [f"x-{level}: &a{level} {link % ', '.join([f'*a{level - 1}'] * 9)}" for level in range(1, 10)]
    return "\n".join([*lines, "entries: {a: {task: echo, schedule: {every: 1h}, kwargs: *a9}}"])


def of(fields: str) -> str:
    return f"entries:\n  a: {{task: echo, schedule: {{every: 1h}}, {fields}}}"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param(bomb("{k: [%s]}"), "line 7: its aliases (*) expand to too many values.", id="lists"),
        pytest.param(
            bomb("{<<: [%s]}"), "line 7: its aliases (*) expand to too many values.", id="merge keys"
        ),
        pytest.param(of("args: &x [*x]"), "line 2: *x contains itself.", id="circle"),
        pytest.param(of(f"args: {'[' * 200_000}"), "line 2: is nested too deeply.", id="depth"),
        pytest.param(f"entries: {'- ' * 200_000}", "line 1:", id="depth of blocks"),
        pytest.param(f'{{"x": {"1" * 5000}}}', "no valid JSON: Exceeds the limit", id="digits"),
        pytest.param(of("kwargs: {on: 1}"), "a: kwargs: True: True must be text; put it", id="key on"),
        pytest.param(of("options: {1: 1}"), "a: options: 1: 1 must be text; put it into", id="key 1"),
        pytest.param("entries: {a: {stored: }}", "a: stored: must be a mapping, as export", id="no state"),
        pytest.param("entries: {a: {stored: {}}}", "a: stored: must be a mapping, as", id="empty state"),
    ],
)
def test_what_can_t_be_read_ends_in_a_sentence(text: str, reason: str) -> None:
    with pytest.raises(FileError) as caught:
        read_file(text, "file")
    assert reason in str(caught.value)


def test_a_name_that_stands_there_twice_is_told_with_its_line() -> None:
    with pytest.raises(FileError) as caught:
        read_file("entries: {}\nentries: {}", "file")
    assert (str(caught.value), caught.value.line) == ("file, line 2: entries appears twice.", 2)


def test_aliases_for_ordinary_use_may_stand_for_much() -> None:
    text = "x-a: &a [1, 2, 3]\nx-b: &b {task: echo, schedule: 5, args: *a}\nentries:\n"
    found = read_file(text + "".join(f"  e{number}: {{<<: *b, enabled: no}}\n" for number in range(5000)))
    assert found.entries["e4999"] == {"task": "echo", "schedule": 5, "args": [1, 2, 3], "enabled": False}


@pytest.mark.parametrize("text", ["12:30", "-1:30", "12:30:45.5", "1:30"])
def test_a_time_of_day_is_text_and_no_number_of_base_60(text: str) -> None:
    entries = read_file(of(f"args: [{text}, 10, -1.5, 0x1f, 1_000, 1.0e+3, .5, .inf]")).entries
    assert entries["a"]["args"] == [text, 10, -1.5, 31, 1000, 1000.0, 0.5, float("inf")]
    declared = Declared(entries=entries)
    assert read_file(write_file(declared)).entries == entries


@pytest.mark.parametrize("depth", [300, 600, 900])
def test_values_that_are_too_deep_for_yaml_are_written_all_the_same(depth: int) -> None:
    deep: Any = json.loads("[" * depth + "]" * depth)
    entries = {"a": {"task": "echo", "schedule": 5, "args": deep}}
    assert read_file(write_file(Declared(entries=entries))).entries == entries


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"last_run_at": "0001-01-01T00:00+23:00"}, "last_run_at: is out of range: 0001-01-01"),
        ({"last_run_at": "9999-12-31T23:59-23:00"}, "last_run_at: is out of range: 9999-12-31"),
    ],
)
def test_a_time_that_is_out_of_range_is_told(fields: dict[str, Any], reason: str) -> None:
    app = Celery("test", set_as_current=False)
    app.conf.redbeat_redis_url = "redis://127.0.0.1:1"
    declared = Declared(entries={"a": {"task": "echo", "schedule": 5, **fields}})
    with pytest.raises(FileError, match=reason):
        entry_of(declared, "a", app)
