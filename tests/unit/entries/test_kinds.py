"""A field of a wrong type is told in the same words, whichever way the entry comes."""

from __future__ import annotations

from collections import UserDict
from typing import Any

import pytest
from celery import Celery
from celery.schedules import schedule

from redbeat import RedBeatSchedulerEntry
from redbeat.entries.validation import find_kind_problem, find_problem
from redbeat.errors import EntryError

APP = Celery("kinds", broker="redis://127.0.0.1:1/0", set_as_current=False)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("args", "ab", "must be a list, not 'ab'"),
        ("kwargs", [], "must be an object, not []"),
        ("options", 5, "must be an object, not 5"),
        ("enabled", "no", "must be true or false, not 'no'"),
    ],
)
def test_what_is_read_and_what_is_given_are_refused_in_the_same_words(
    field: str, value: Any, words: str
) -> None:
    definition = {"name": "x", "task": "t", "schedule": schedule(60), field: value}
    assert find_problem(definition, {}) == f"definition: {field}: {words}."
    fields = {"name": "x", "task": "t", "schedule": 60, field: value}
    with pytest.raises(EntryError, match=f"^x: {field} "):
        RedBeatSchedulerEntry.from_dict(fields, app=APP)
    assert find_kind_problem(field, value) == words


def test_none_is_missing_and_true_is_no_number() -> None:
    assert find_kind_problem("args", None) is None
    assert find_kind_problem("kwargs", UserDict()) is None
    assert find_kind_problem("total_run_count", True) == "must be a whole number, not True"


def test_other_programs_may_write_1_and_0_for_true_and_false() -> None:
    for enabled in (0, 1):
        definition = {"name": "x", "task": "t", "schedule": schedule(60), "enabled": enabled}
        assert find_problem(definition, {}) is None
