"""All that is wrong with an entry's values is found at once, each at its field."""

from __future__ import annotations

from typing import Any

from celery import Celery

from redbeat.entries.problems import find_problems
from redbeat.entries.raw import raw_fields
from redbeat.store.records import Stored

GOOD: dict[str, Any] = {
    "name": "a: b",
    "task": "t",
    "schedule": {"every": "30s"},
    "args": [1],
    "enabled": True,
}


def test_nothing_is_wrong_with_good_values(app: Celery) -> None:
    assert find_problems(GOOD, app) == {}


def test_each_wrong_field_is_named(app: Celery) -> None:
    wrong = {
        "name": "", "task": None, "schedule": {"cron": "61 * * * *"}, "args": {},
        "kwargs": [], "enabled": "yes", "jitter": "soon", "timezone": "Mars", "max_runs": 0,
        "misfire": "never", "overlap": 5, "start_time": "yesterday", "options": {"headers": 1},
    }  # fmt: skip
    problems = find_problems({**GOOD, **wrong}, app)
    assert set(problems) == set(wrong)
    assert problems["jitter"].startswith("'soon' is no length of time")
    assert problems["args"] == "It must be a list, not an object."
    assert all(words[0].isupper() or words[0] in "'\"" for words in problems.values()), problems


def test_what_two_fields_have_together_is_at_one_of_them(app: Celery) -> None:
    both = {**GOOD, "jitter": 60, "expires_after": 30, "revoke_overdue": True}
    assert set(find_problems(both, app)) == {"expires_after", "revoke_overdue"}


def test_a_field_that_there_is_not_is_told_once(app: Celery) -> None:
    problems = find_problems({**GOOD, "scedule": 5}, app)
    assert "did you mean" in problems[""].lower()


def test_what_can_be_read_of_a_broken_entry_is_there() -> None:
    def fields(definition: str | None, policy: str | None = None) -> dict[str, Any]:
        return raw_fields(Stored("k", definition=definition, policy=policy))

    assert fields('{"name": "n", "task": null, "other": 1}', '{"jitter": "x"}') == {
        "name": "n",
        "jitter": "x",
    }
    assert fields("{", '{"jitter": 5}') == {"jitter": 5}
    assert fields("[" * 100_000) == fields("5") == fields(None) == raw_fields(None) == {}
