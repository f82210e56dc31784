"""What is assigned to an entry's attribute ``schedule`` becomes one, as in the constructor."""

from __future__ import annotations

import copy
import json
import pickle
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery
from celery.schedules import crontab, schedule

from redbeat import RedBeatSchedulerEntry
from redbeat.errors import EntryError
from redbeat.schedules import cron
from redbeat.store.records import Stored

NOON = datetime(2026, 6, 1, 12, tzinfo=timezone.utc)
WRONG = [True, object(), "no cron", 1e300, float("nan"), [60], {"evry": 60}]

pickled_app = Celery("pickled", set_as_current=False, broker="redis://127.0.0.1:1")


def entry(app: Celery, rule: Any = 60, **fields: Any) -> RedBeatSchedulerEntry:
    return RedBeatSchedulerEntry("x", "t", rule, app=app, **fields)


@pytest.mark.parametrize(
    ("value", "made", "stored"),
    [
        (3600, schedule(3600), {"__type__": "interval", "every": 3600, "relative": False}),
        (0.5, schedule(0.5), {"__type__": "interval", "every": 0.5, "relative": False}),
        (timedelta(hours=1), schedule(3600), {"__type__": "interval", "every": 3600, "relative": False}),
        ("0 9 LW * *", cron("0 9 LW * *"), {"__type__": "cron", "expression": "0 9 LW * *"}),
        (
            "0 9 * * wed",
            crontab("0", "9", "wed"),
            {
                "__type__": "crontab",
                "minute": "0",
                "hour": "9",
                "day_of_week": "wed",
                "day_of_month": "*",
                "month_of_year": "*",
            },
        ),
    ],
)
def test_what_is_assigned_is_made_a_schedule_and_can_be_saved(
    app: Celery, value: Any, made: Any, stored: dict[str, Any]
) -> None:
    changed = entry(app)
    changed.schedule = value
    assert type(changed.schedule) is type(made)
    assert changed.schedule == made == entry(app, value).schedule
    assert changed.schedule.app is app
    write = changed.plan_save(Stored("redbeat:x"), NOON)
    assert write is not None
    assert json.loads(write.definition)["schedule"] == stored


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_value_is_refused_with_the_name_and_changes_nothing(app: Celery, wrong: Any) -> None:
    made = entry(app)
    with pytest.raises(EntryError, match=r"^x: ") as caught:
        made.schedule = wrong
    assert caught.value.key == "x"
    assert made.schedule == schedule(60)
    with pytest.raises(EntryError) as at_first:
        entry(app, wrong)
    assert str(at_first.value) == str(caught.value)


def test_a_relative_interval_is_made_in_the_constructor(app: Celery) -> None:
    assert [entry(app, 60, relative=relative).schedule.relative for relative in (True, False)] == [
        True,
        False,
    ]


def test_an_entry_may_be_without_a_schedule_until_it_is_saved(app: Celery) -> None:
    made = entry(app, None)
    assert made.schedule is None
    made.schedule = 60
    made.schedule = None
    with pytest.raises(EntryError, match="redbeat:x: schedule must be"):
        made.plan_save(Stored("redbeat:x"), NOON)


def test_an_update_from_another_entry_takes_its_schedule(app: Celery) -> None:
    made, other = entry(app), entry(app, "0 9 LW * *", args=[1])
    made.update(other)
    assert (made.schedule, made.args) == (cron("0 9 LW * *"), [1])
    made.schedule = 5
    assert other.schedule == cron("0 9 LW * *")


@pytest.mark.parametrize(
    "duplicate",
    [copy.copy, copy.deepcopy, lambda made: pickle.loads(pickle.dumps(made))],
    ids=["copy", "deepcopy", "pickle"],
)
@pytest.mark.parametrize("value", [3600, "0 9 LW * *"])
def test_a_copy_has_what_was_assigned_and_can_be_given_another(duplicate: Any, value: Any) -> None:
    made = entry(pickled_app)
    made.schedule = value
    found = duplicate(made)
    assert found.schedule == made.schedule == entry(pickled_app, value).schedule
    found.schedule = 5
    assert (found.schedule, made.schedule) == (schedule(5), entry(pickled_app, value).schedule)
