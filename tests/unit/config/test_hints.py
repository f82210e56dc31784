"""Names that are nearly known: told with the nearest one, once, and at little cost."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from celery import Celery
from celery.schedules import schedule

from redbeat import RedBeatSchedulerEntry
from redbeat.beat.log import Reports
from redbeat.beat.planner import Run, plan_run
from redbeat.config.suggestions import did_you_mean, find_typos
from redbeat.decoder import RedBeatJSONDecoder
from redbeat.errors import EntryError
from redbeat.policy.policy import FIELDS, NO_POLICY
from redbeat.schedules import timezones as zones
from redbeat.store.records import Claimed

INTERVAL = {"__type__": "interval", "every": 60}


def entry(app: Celery, **arguments: Any) -> RedBeatSchedulerEntry:
    return RedBeatSchedulerEntry("x", "t", schedule(60), app=app, **arguments)


@pytest.mark.parametrize(
    ("argument", "nearest"),
    [
        ("timezon", "timezone"), ("max_run", "max_runs"), ("jiter", "jitter"),
        ("total_runs", "total_run_count"), ("last_run", "last_run_at"), ("shedule", "schedule"),
        ("enable", "enabled"),
    ],
)  # fmt: skip
def test_an_unknown_argument_is_refused_with_the_nearest(app: Celery, argument: str, nearest: str) -> None:
    with pytest.raises(EntryError) as caught:
        entry(app, **{argument: 1})
    assert str(caught.value) == f"x: an entry has no argument '{argument}'. Did you mean {nearest}?"
    assert caught.value.key == "x"


def test_an_argument_that_is_near_nothing_is_refused_without_a_guess(app: Celery) -> None:
    with pytest.raises(EntryError, match=r"^x: an entry has no argument 'zzz'\.$"):
        entry(app, zzz=1)


@pytest.mark.parametrize(
    ("field", "hint"),
    [("timezon", " Did you mean timezone?"), ("jiter", " Did you mean jitter?"), ("zzz", "")],
)
def test_a_policy_with_an_unknown_field_is_refused_whole(app: Celery, field: str, hint: str) -> None:
    made = entry(app)
    with pytest.raises(EntryError) as caught:
        made.set_policy({"jitter": 5, field: 1, "max_runs": 3})
    assert str(caught.value) == f"x: a policy has no field '{field}'.{hint}"
    assert made.policy == NO_POLICY


def test_a_calendar_itself_is_no_field_of_a_policy(app: Celery) -> None:
    with pytest.raises(EntryError, match="a policy has no field 'calendar'"):
        entry(app).set_policy({"calendar": None})


def run_of(
    app: Celery, name: str = "x", policy: dict[str, Any] | None = None, extra: dict[str, Any] | None = None
) -> Run:
    """What a beat makes of an entry that stands in Redis so."""
    definition = {"task": "t", "schedule": INTERVAL, **(extra or {})}
    text = None if policy is None else json.dumps(policy)
    claimed = Claimed(f"redbeat:{name}", "1.5", json.dumps(definition), policy=text, score="1.5")
    run = plan_run(RedBeatSchedulerEntry, app, claimed, 1_800_000_000)
    assert isinstance(run, Run)
    return run


@pytest.mark.parametrize(
    ("schedule", "key", "nearest"),
    [
        ({"__type__": "crontab", "minutes": "5"}, "minutes", "minute"),
        ({"__type__": "crontab", "day_of_weeks": "1"}, "day_of_weeks", "day_of_week"),
        ({"__type__": "crontab", "Hour": "1"}, "Hour", "hour"),
        ({**INTERVAL, "relativ": True}, "relativ", "relative"),
        ({"__type__": "rrule", "freq": 3, "byweekdays": [1]}, "byweekdays", "byweekday"),
        ({"__type__": "rrule", "freq": 3, "untill": 4e9}, "untill", "until"),
    ],
)
def test_a_schedules_typo_is_found_with_the_nearest(schedule: dict[str, Any], key: str, nearest: str) -> None:
    decoded = json.loads(json.dumps(schedule), cls=RedBeatJSONDecoder)
    assert decoded.typos == f"{key} (did you mean {nearest}?)"


@pytest.mark.parametrize("place", ["policy", "extra"])
@pytest.mark.parametrize(
    ("key", "nearest"), [("timezon", "timezone"), ("max_run", "max_runs"), ("jiter", "jitter")]
)
def test_a_key_that_is_nearly_known_is_one_warning_for_each_entry(
    app: Celery, caplog: pytest.LogCaptureFixture, place: str, key: str, nearest: str
) -> None:
    reports = Reports()
    for name in ("x", "x", "y", "x", "y"):
        reports.report_typos(run_of(app, name, **{place: {key: 1}}))
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (
            logging.WARNING,
            f"beat: The entry redbeat:{name} has keys that are ignored: {key} (did you mean {nearest}?).",
        )
        for name in "xy"
    ]
    caplog.clear()
    reports.report_typos(run_of(app, "x", **{place: {"jittr": 1}}))
    assert len(caplog.records) == 1, "another one is news"


def test_all_typos_of_an_entry_are_in_one_warning(app: Celery, caplog: pytest.LogCaptureFixture) -> None:
    rule = {**INTERVAL, "relativ": True}
    Reports().report_typos(run_of(app, policy={"jiter": 5}, extra={"max_run": 1, "schedule": rule}))
    [line] = [record.getMessage() for record in caplog.records]
    for typo in ("jiter (did you mean jitter?)", "max_run (did you mean max_runs?)", "relativ (did you"):
        assert typo in line


@pytest.mark.parametrize(
    "keys",
    [
        {}, {"comment": "of ours"}, {"tenant": "blue", "x": 1}, {"": 1}, {"tags": []},
        {"time": "9:00", "expires": 5},
    ],
)  # fmt: skip
@pytest.mark.parametrize("rule", [INTERVAL, {"__type__": "crontab"}, {"__type__": "rrule", "freq": 3}])
def test_keys_of_somebody_else_are_not_reported(
    app: Celery, caplog: pytest.LogCaptureFixture, rule: dict[str, Any], keys: dict[str, Any]
) -> None:
    Reports().report_typos(run_of(app, policy=keys, extra={**keys, "schedule": {**keys, **rule}}))
    assert not caplog.records


def test_known_keys_are_not_reported(app: Celery, caplog: pytest.LogCaptureFixture) -> None:
    fields = {"jitter": 5, "max_runs": 3, "timezone": "UTC"}
    known = {"name": "x", "args": [], "kwargs": {}, "options": {}, "enabled": True}
    Reports().report_typos(run_of(app, policy=fields, extra=fields | known))
    assert not caplog.records


def test_of_the_names_only_short_ones_are_compared_and_not_too_many() -> None:
    assert find_typos(["x" * 63], ["x" * 64]) == f"{'x' * 63} (did you mean {'x' * 64}?)"
    assert find_typos(["x" * 65], ["x" * 64]) == ""
    assert find_typos(["jitter" * 2_000_000, "jiter"], FIELDS) == "jiter (did you mean jitter?)"
    foreign = [f"{number}" for number in range(20)]
    assert find_typos([*foreign[:19], "jiter"], FIELDS) == "jiter (did you mean jitter?)"
    assert find_typos([*foreign, "jiter"], FIELDS) == ""


def test_of_a_long_name_the_beginning_is_compared() -> None:
    assert did_you_mean("x" * 64 + "y" * 10_000_000, ["x" * 64]) == f" Did you mean {'x' * 64}?"


def test_the_hint_for_an_unknown_zone_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def guess(name: str, known: Any) -> str:
        asked.append(name)
        return did_you_mean(name, known)

    monkeypatch.setattr(zones, "did_you_mean", guess)
    for name in ("Europe/Berlln", "Europe/Berlln", "Europe/Pariss", "Europe/Berlln", "Europe/Pariss"):
        nearest = "Europe/Berlin" if "Ber" in name else "Europe/Paris"
        with pytest.raises(ValueError, match=f"^unknown time zone '{name}'. Did you mean {nearest}\\?$"):
            zones.zone_called(name)
    assert asked == ["Europe/Berlln", "Europe/Pariss"]
