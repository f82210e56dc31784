"""What beat's log is told, how often, and in which words."""

from __future__ import annotations

import json
import logging
import traceback
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from redbeat import errors
from redbeat.beat.log import STANDBY_SECONDS, Reports
from redbeat.beat.planner import Run, plan_run
from redbeat.config.urls import sanitize_url
from redbeat.connection import get_redis
from redbeat.decoder import RedBeatJSONDecoder
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.errors import ConfigurationError, LockLost, RedBeatError
from redbeat.log.text import shorten
from redbeat.store.records import Claimed
from tests.support.ticks import memory_app

INTERVAL = {"__type__": "interval", "every": 60}


def told(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """What beat's log was told, not those of others."""
    return [record for record in caplog.records if record.name == "celery.beat"]


def decoded(**schedule: Any) -> Any:
    return json.loads(json.dumps(schedule), cls=RedBeatJSONDecoder)


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
def test_a_mistyped_key_of_a_schedule_is_found_with_the_nearest_name(
    schedule: dict[str, Any], key: str, nearest: str
) -> None:
    assert decoded(**schedule).typos == f"{key} (did you mean {nearest}?)"


@pytest.mark.parametrize("extra", [{}, {"comment": "of ours"}, {"x": 1, "tenant": "blue"}, {"": 1}])
@pytest.mark.parametrize(
    "schedule", [INTERVAL, {"__type__": "crontab"}, {"__type__": "rrule", "freq": 3}], ids=repr
)
def test_keys_of_somebody_else_are_no_typos(schedule: dict[str, Any], extra: dict[str, Any]) -> None:
    assert not getattr(decoded(**schedule, **extra), "typos", "")


def run_of(app: Celery, **schedule: Any) -> Run:
    definition = json.dumps({"task": "t", "schedule": schedule})
    claimed = Claimed("redbeat:x", "1.5", definition, score="1.5")
    run = plan_run(RedBeatSchedulerEntry, app, claimed, 1_800_000_000)
    assert isinstance(run, Run)
    return run


def test_a_typo_is_logged_once_and_another_one_again(app: Celery, caplog: pytest.LogCaptureFixture) -> None:
    reports = Reports()
    for key in ("relativ", "relativ", "relativ", "relatives"):
        reports.report_typos(run_of(app, **INTERVAL, **{key: True}))
    reports.report_typos(run_of(app, **INTERVAL, comment="of ours"))
    assert [record.getMessage() for record in told(caplog)] == [
        f"beat: The entry redbeat:x has keys RedBeat doesn't know: {key} (did you mean relative?)."
        for key in ("relativ", "relatives")
    ]
    assert {record.levelno for record in told(caplog)} == {logging.WARNING}


def test_a_standby_says_once_a_minute_who_it_waits_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="celery.beat")
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr("redbeat.beat.log.time", SimpleNamespace(monotonic=lambda: clock.now))
    candidacy: Any = SimpleNamespace(describe_holder=lambda: f"somebody at {clock.now:.0f}")
    reports = Reports()
    for passed in range(int(2.5 * STANDBY_SECONDS)):
        clock.now = 1000.0 + passed
        reports.report_standby(candidacy)
    logged = [record.getMessage() for record in told(caplog)]
    assert logged == [
        f"beat: Standing by: somebody at {1000 + minute * STANDBY_SECONDS:.0f}." for minute in range(3)
    ]


def test_a_trouble_is_logged_when_it_comes_and_when_it_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    reports = Reports()
    for trouble in ("a", "a", "", "", "a", "b"):
        reports.report_trouble(trouble)
    assert [record.getMessage()[-1] for record in told(caplog)] == ["a", "a", "b"]


@pytest.mark.parametrize("name", sorted(errors.__all__))
def test_the_repr_of_an_error_has_its_message(name: str) -> None:
    kind = getattr(errors, name)
    with_key = (errors.EntryError, errors.StoreCorrupt, errors.CalendarError, errors.FileError)
    needs_key = issubclass(kind, with_key)
    error = kind("what happened", *(["redbeat:x"] if needs_key else []))
    assert isinstance(error, RedBeatError)
    assert repr(error) == f"{name}('what happened')"
    assert str(error) == "what happened"


def test_the_repr_of_a_lost_lock_has_its_message_only() -> None:
    assert repr(LockLost("gone", "redbeat::lock", "another")) == "LockLost('gone')"


@pytest.mark.parametrize(
    "name", ["password", "Password", "PASSWORD", "ssl_password", "SSL_Password", "sentinel_password"]
)
@pytest.mark.parametrize("separator", ["?", "?db=1&"])
def test_a_password_in_the_query_of_a_url_is_masked(name: str, separator: str) -> None:
    masked = sanitize_url(f"rediss://h:1/2{separator}{name}=hunter2&ssl_cert_reqs=none")
    assert masked == f"rediss://h:1/2{separator}{name}=**&ssl_cert_reqs=none"


@pytest.mark.parametrize(
    "url",
    [
        "redis://:hunter2@h:1/abc",
        "redis://user:hunter2@h/1x",
        "redis://:hunter2@h/abc?password=hunter2",
        "redis://:hunter2/more@h:1/1",
        "rediss://:more/hunter2@h/abc",
    ],
)
def test_a_database_that_is_no_number_is_refused_without_the_password(url: str) -> None:
    with pytest.raises(ConfigurationError, match="redbeat_redis_url") as caught:
        get_redis(memory_app(redbeat_redis_url=url))
    shown = "".join(traceback.format_exception(caught.value, chain=True))
    assert "number" in str(caught.value)
    assert "hunter2" not in shown + repr(caught.value)


def test_a_long_text_is_cut_and_a_short_one_is_not() -> None:
    assert shorten("x" * 500) == "x" * 500
    assert shorten("x" * 501) == "x" * 500 + "..."
    assert shorten("abc", 2) == "ab..."
    assert len(shorten("x" * 3_000_000)) < 600
