"""An entry as a Python object: what can be made, what is refused in words, what may be copied."""

from __future__ import annotations

import copy
import json
import pickle
import re
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery, _state  # no other name
from celery.app import app_or_default
from celery.schedules import BaseSchedule, crontab, schedule

from redbeat import RedBeatSchedulerEntry
from redbeat.errors import ConfigurationError, EntryCorrupt, EntryError
from redbeat.schedules import cron, rrule
from redbeat.store.records import KeyType, Stored

NOON = datetime(2026, 6, 1, 12, tzinfo=timezone.utc)

pickled_app = Celery("pickled", set_as_current=False, broker="redis://127.0.0.1:1")


def entry(app: Celery, **fields: Any) -> RedBeatSchedulerEntry:
    return RedBeatSchedulerEntry(**{"name": "x", "task": "t", "schedule": schedule(60), "app": app, **fields})


def test_it_is_made_with_arguments_in_the_order_of_2x(app: Celery) -> None:
    made = RedBeatSchedulerEntry("x", "t", schedule(5), [1], {"a": 2}, False, {"queue": "q"}, app=app)
    assert (made.name, made.task, made.schedule) == ("x", "t", schedule(5))
    assert (made.args, made.kwargs, made.enabled, made.options) == ([1], {"a": 2}, False, {"queue": "q"})
    assert made.key == "redbeat:x" == RedBeatSchedulerEntry.generate_key(app, "x")


VALUES: list[tuple[Any, BaseSchedule, dict[str, Any]]] = [
    (3600, schedule(3600), {"__type__": "interval", "every": 3600, "relative": False}),
    (0.5, schedule(0.5), {"__type__": "interval", "every": 0.5, "relative": False}),
    (timedelta(hours=1), schedule(3600), {"__type__": "interval", "every": 3600, "relative": False}),
    (schedule(60), schedule(60), {"__type__": "interval", "every": 60, "relative": False}),
    ("0 9 LW * *", cron("0 9 LW * *"), {"__type__": "cron", "expression": "0 9 LW * *"}),
    (
        "0 9 * * wed",
        crontab("0", "9", "wed"),
        {
            "__type__": "crontab", "minute": "0", "hour": "9", "day_of_week": "wed", "day_of_month": "*",
            "month_of_year": "*",
        },
    ),
]  # fmt: skip


@pytest.mark.parametrize(("value", "made", "stored"), VALUES)
def test_what_is_given_or_assigned_is_made_a_schedule_and_can_be_saved(
    app: Celery, value: Any, made: Any, stored: dict[str, Any]
) -> None:
    changed = entry(app)
    changed.schedule = value
    assert type(changed.schedule) is type(made)
    assert changed.schedule == made == entry(app, schedule=value).schedule
    assert changed.schedule.app is app
    write = changed.plan_save(Stored("redbeat:x"), NOON)
    assert write is not None
    assert json.loads(write.definition)["schedule"] == stored


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("hourly", "schedule: cron 'hourly': it has 1 field instead of five"),
        ({"evry": 60}, "schedule: must have just one of {cron: ...}, {every: ...}, "),
        ([60], "schedule must be a schedule, a timedelta, a number of seconds, a cron expression, "),
        *((value, "") for value in (True, object(), 1e300, float("nan"))),
    ],
)
def test_what_is_no_schedule_is_refused_and_changes_nothing(app: Celery, wrong: Any, words: str) -> None:
    made = entry(app)
    with pytest.raises(EntryError, match=f"^x: {re.escape(words)}") as caught:
        made.schedule = wrong
    assert caught.value.key == "x"
    assert made.schedule == schedule(60)
    with pytest.raises(EntryError) as at_first:
        entry(app, schedule=wrong)
    assert str(at_first.value) == str(caught.value)


def test_a_relative_interval_is_made_in_the_constructor(app: Celery) -> None:
    for relative in (True, False):
        assert entry(app, schedule=60, relative=relative).schedule.relative is relative


def test_an_entry_may_be_without_a_schedule_until_it_is_saved(app: Celery) -> None:
    made = entry(app, schedule=None)
    assert made.schedule is None
    made.schedule = 60
    made.schedule = None
    with pytest.raises(EntryError, match="redbeat:x: schedule must be"):
        made.plan_save(Stored("redbeat:x"), NOON)


def test_an_update_from_another_entry_takes_its_schedule(app: Celery) -> None:
    made, other = entry(app), entry(app, schedule="0 9 LW * *", args=[1])
    made.update(other)
    assert (made.schedule, made.args) == (cron("0 9 LW * *"), [1])
    made.schedule = 5
    assert other.schedule == cron("0 9 LW * *")


def test_options_that_are_not_given_are_empty(app: Celery) -> None:
    made = entry(app)
    assert (made.args or [], made.kwargs, made.options, made.enabled) == ([], {}, {}, True)
    assert made.total_run_count == 0


def test_the_key_follows_the_prefix_of_the_app(app: Celery) -> None:
    app.conf.redbeat_key_prefix = "mine-"
    assert entry(app).key == "mine-x"


def test_a_forgotten_app_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_state, "default_app", None)
    monkeypatch.setattr(_state._tls, "current_app", None)  # noqa: SLF001 - Celery has no other name for it
    monkeypatch.delenv("CELERY_BROKER_URL", raising=False)
    with pytest.raises(ConfigurationError, match=r"redbeat_redis_url isn't set.*pass app=, or -A to celery"):
        RedBeatSchedulerEntry("x", "t", schedule(5)).save()


def test_the_current_app_is_used_where_none_is_given(monkeypatch: pytest.MonkeyPatch, app: Celery) -> None:
    monkeypatch.setattr(_state._tls, "current_app", app)  # noqa: SLF001 - Celery has no other name for it
    assert app_or_default() is app
    assert RedBeatSchedulerEntry("x", "t", schedule(5)).app is app


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": ""}, "An entry must have a name, a non-empty string."),
        ({"name": None}, "An entry must have a name"),
        ({"name": True}, "An entry must have a name"),
        ({"task": None}, "redbeat:x: task must be the name of a task, not None."),
        ({"task": "\ud800"}, "redbeat:x: task must be the name of a task"),
        ({"schedule": None}, "redbeat:x: schedule must be a schedule, a timedelta or a number"),
        ({"args": "abc"}, "redbeat:x: args must be a list or a tuple, not text."),
        ({"args": {"a": 1}}, "redbeat:x: args must be a list or a tuple"),
        ({"kwargs": [1]}, "redbeat:x: kwargs and options must be dicts"),
        ({"options": "queue"}, "redbeat:x: kwargs and options must be dicts"),
        ({"enabled": "maybe"}, "redbeat:x: enabled must be True or False, not 'maybe'."),
        ({"args": [object()]}, "redbeat:x: can't be stored as JSON: .*not JSON serializable"),
        ({"options": {"priority": float("nan")}}, "redbeat:x: can't be stored as JSON: "),
        ({"kwargs": {"at": {"__type__": "datetime"}}}, "redbeat:x: couldn't be read again: datetime: 'year'"),
        ({"args": [{"__type__": "interval", "every": 0}]}, "redbeat:x: couldn't be read again: interval: "),
        ({"kwargs": {"__type__": "interval", "every": 5}}, "redbeat:x: couldn't .*: definition: kwargs"),
        ({"args": [{"a": '"__type__"', "__type__": "weekday"}]}, "redbeat:x: couldn't .* again: weekday: "),
        ({"options": {"headers": [1]}}, "redbeat:x: options: headers must be a dict, not a list."),
        ({"options": {"countdown": "soon"}}, "redbeat:x: options: countdown: must be a number of seconds"),
        ({"schedule": BaseSchedule()}, "redbeat:x: can't be stored as JSON: .*register_schedule"),
        ({"schedule": schedule(0)}, "redbeat:x: its schedule .* can't be used: an interval must be longer"),
        ({"schedule": schedule(-1, relative=True)}, "redbeat:x: its schedule .* can't be used: "),
        ({"schedule": schedule(timedelta(days=3_640_000))}, "redbeat:x: its schedule .* can't be used: "),
    ],
)
def test_what_cannot_be_stored_is_refused_in_words(app: Celery, change: dict[str, Any], message: str) -> None:
    with pytest.raises(EntryError, match=message):
        entry(app, **change).plan_save(Stored("redbeat:x"), NOON)


def test_a_key_that_holds_no_hash_is_not_written_over(app: Celery) -> None:
    with pytest.raises(EntryCorrupt, match="holds no hash; delete it first"):
        entry(app).plan_save(Stored("redbeat:x", type=KeyType("string")), NOON)


@pytest.mark.parametrize("definition", ["{oops", '{"schedule": {"__type__": "interval"}}'])
def test_a_definition_that_cannot_be_decoded_is_one_kind_of_error(app: Celery, definition: str) -> None:
    with pytest.raises(EntryCorrupt, match=r"^redbeat:x: definition: "):
        RedBeatSchedulerEntry.load_definition("redbeat:x", app, definition)


def test_a_definition_given_is_decoded_without_a_look_at_the_server(app: Celery) -> None:
    text = '{"schedule": {"__type__": "crontab", "hour": 7}}'
    assert RedBeatSchedulerEntry.load_definition("k", app, text) == {"schedule": crontab(hour=7)}


@pytest.mark.parametrize("meta", ["", None])
def test_a_missing_meta_is_an_entry_that_never_ran(meta: str | None) -> None:
    assert RedBeatSchedulerEntry.decode_meta(meta) == {"last_run_at": None}


@pytest.mark.parametrize(
    "rule", [3600, "0 9 LW * *", crontab(hour=[7, 13]), rrule("DAILY", dtstart=NOON, byhour=7)], ids=repr
)
@pytest.mark.parametrize(
    "duplicate",
    [copy.copy, copy.deepcopy, lambda made: pickle.loads(pickle.dumps(made))],
    ids=["copy", "deepcopy", "pickle"],
)
def test_it_can_be_copied_and_pickled(rule: Any, duplicate: Any) -> None:
    made = entry(pickled_app, args=[1], options={"headers": {"a": 1}}, enabled=False)
    made.schedule, made.total_run_count = rule, 5
    found = duplicate(made)
    assert type(found) is RedBeatSchedulerEntry
    assert found.app.main == "pickled"
    names = "name task schedule args kwargs options enabled total_run_count key last_run_at"
    for name in names.split():
        assert getattr(found, name) == getattr(made, name)
    found.schedule = 5
    assert (found.schedule, made.schedule) == (schedule(5), entry(pickled_app, schedule=rule).schedule)


def test_what_it_is_due_by_is_counted_from_its_last_run(app: Celery) -> None:
    made = entry(app, last_run_at=NOON, total_run_count=1)
    assert (made.due_at, made.score) == (NOON + timedelta(minutes=1), NOON.timestamp() + 60)
    made.last_run_at = NOON.replace(tzinfo=None)
    assert made.due_at == NOON + timedelta(minutes=1)


def test_a_rule_that_has_ended_has_no_due_time(app: Celery) -> None:
    made = entry(app, schedule=rrule("DAILY", dtstart=NOON, count=1), last_run_at=NOON, total_run_count=1)
    assert (made.due_at, made.score, tuple(made.is_due())) == (None, -1.0, (False, None))


def test_an_entry_that_has_never_run_is_due_at_its_rules_first_occurrence(app: Celery) -> None:
    made = entry(app, schedule=rrule("DAILY", dtstart=NOON), last_run_at=NOON)
    assert made.due_at == NOON
    made.total_run_count = 1
    assert made.due_at == NOON + timedelta(days=1)


def test_is_due_answers_as_celerys_entries_do(app: Celery) -> None:
    tomorrow = datetime.now(timezone.utc) + timedelta(days=1)
    waiting = entry(app, last_run_at=tomorrow, total_run_count=1).is_due()
    assert not waiting.is_due
    assert waiting.next == pytest.approx(86_460, abs=60)
    assert entry(app, last_run_at=NOON - timedelta(days=4000)).is_due().is_due
    disabled = entry(app, last_run_at=NOON - timedelta(days=4000), enabled=False)
    assert tuple(disabled.is_due()) == (False, 5.0)
