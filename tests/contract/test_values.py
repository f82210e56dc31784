"""Values that programs give to entries and settings: what 2.4.2 takes is taken, and sent in the same way."""

from __future__ import annotations

import json
import logging
import math
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from celery.schedules import schedule
from kombu.utils import json as kombu_json

from redbeat import RedBeatScheduler, RedBeatSchedulerEntry
from redbeat.config.config import RedBeatConfig
from redbeat.errors import ConfigurationError
from redbeat.policy.policy import NO_POLICY
from tests.contract import values
from tests.support.servers import Server

#: what 2.4.2 saves, and then fails with at each run
FAILS_IN_2X = {"option expires '60'", "option countdown '5'", "option eta 'soon'"}


def in_order(outcome: Any) -> str:
    return json.dumps(outcome, sort_keys=True)  # NaN is not equal to itself


def test_values_that_2x_saves_and_sends_are_saved_and_sent_likewise(
    redbeat2_python: Path, server: Server
) -> None:
    words = [redbeat2_python, Path(values.__file__), server.url(1)]
    done = subprocess.run(
        words, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    theirs, ours = json.loads(done.stdout), json.loads(json.dumps(values.outcomes(server.url(2))))
    assert theirs.keys() == ours.keys()
    differing = {
        name: (their, ours[name])
        for name, their in theirs.items()
        if "refused" not in their and in_order(their) != in_order(ours[name])
    }
    assert differing.keys() == FAILS_IN_2X
    assert {ours[name].get("refused") for name in FAILS_IN_2X} == {"EntryError"}
    refused = {name for name, our in ours.items() if "refused" in our}
    assert refused == FAILS_IN_2X


#: what kombu encodes with its type
TYPED = [
    *(one for one in values.ARGUMENTS if isinstance(one, (values.UUID, values.Decimal, bytes))),
    *(values.date(2026, 1, 2), values.time(3, 4)),
]


def test_arguments_reach_the_worker_as_kombu_sends_them(
    server: Server, make_app: Callable[..., Celery]
) -> None:
    app = make_app()
    given = [*TYPED, float("nan"), values.timedelta(minutes=5), {2, 1}]
    RedBeatSchedulerEntry("entry", "echo", schedule(60), args=given, kwargs={"x": given[0]}, app=app).save()
    loaded = RedBeatSchedulerEntry.from_key("redbeat:entry", app=app)
    args, kwargs = kombu_json.loads(kombu_json.dumps([loaded.args, loaded.kwargs]))
    assert args[: len(TYPED)] == TYPED
    assert math.isnan(args[-3])
    assert args[-2:] == [300.0, [1, 2]]
    assert kwargs == {"x": given[0]}
    loaded.save()
    assert RedBeatSchedulerEntry.from_key("redbeat:entry", app=app).args[: len(TYPED)] == TYPED


AT = values.datetime(2023, 11, 14, 22, 13, 20, tzinfo=values.timezone.utc)
STORED: list[tuple[dict[str, Any], Any, dict[str, Any]]] = [
    ({"name": "another"}, {}, {"name": "entry", "key": "redbeat:entry"}),
    ({"kwargs": []}, {}, {"kwargs": {}}),
    ({"args": {}}, {}, {"args": []}),
    ({"options": []}, {}, {"options": {}}),
    ({"options": {"headers": []}}, {}, {"options": {"headers": {}}}),
    ({"enabled": 0}, {}, {"enabled": False}),
    ({"enabled": "0"}, {}, {"enabled": False}),
    ({"enabled": "True"}, {}, {"enabled": True}),
    ({"enabled": None}, {}, {"enabled": False}),
    ({}, {"last_run_at": AT.timestamp()}, {"last_run_at": AT}),
    ({}, {"last_run_at": f"{AT.timestamp():.0f}"}, {"last_run_at": AT}),
    (
        {},
        {"last_run_at": {"__type__": "datetime", "year": 2026, "month": 1, "day": 2}, "total_run_count": "5"},
        {"last_run_at": values.datetime(2026, 1, 2, tzinfo=values.timezone.utc), "total_run_count": 5},
    ),
    ({}, [], {"last_run_at": None, "total_run_count": 0, "policy": NO_POLICY}),
    ({}, {"last_run_at": None, "total_run_count": 5.0}, {"total_run_count": 5}),
    ({"max_runs": -1, "timezone": ""}, {}, {"max_runs": None, "timezone": None}),
    ({"metrics": {}}, {}, {"metrics": False}),
    ({"revoke_overdue": True}, {}, {"revoke_overdue": False}),
]


@pytest.mark.parametrize(("definition", "meta", "expected"), STORED)
def test_entries_that_other_programs_wrote_are_read(
    make_app: Callable[..., Celery],
    client: redis.Redis,
    definition: dict[str, Any],
    meta: Any,
    expected: dict[str, Any],
) -> None:
    usual = {
        "name": "entry",
        "task": "echo",
        "schedule": {"__type__": "interval", "every": 60, "relative": False},
    }
    fields = {"definition": json.dumps({**usual, **definition}), "meta": json.dumps(meta), "policy": "[]"}
    client.hset("redbeat:entry", mapping=fields)
    entry = RedBeatSchedulerEntry.from_key("redbeat:entry", app=make_app())
    assert {name: getattr(entry, name) for name in expected} == expected
    entry.save()
    kept = json.loads(client.hget("redbeat:entry", "definition") or "{}")
    own = definition.keys() - {"name", "args", "kwargs", "options", "enabled"}
    assert {name: kept[name] for name in own} == {name: definition[name] for name in own}


def test_a_subclass_of_schedule_is_stored_as_its_interval_with_one_warning(
    make_app: Callable[..., Celery], client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    class Elastic(values.Own):
        pass

    app = make_app()
    scores = set()
    for name in ("first", "second", "first"):
        entry = RedBeatSchedulerEntry(name, "echo", Elastic(45), app=app).save()
        scores.add(client.zscore("redbeat::schedule", entry.key))
        assert json.loads(client.hget(entry.key, "definition") or "")["schedule"]["every"] == 45
    assert len(scores) == 2, "saving the same again has moved its due time"
    told = [record for record in caplog.records if "Elastic" in record.getMessage()]
    assert [record.levelno for record in told] == [logging.WARNING]
    assert "register_schedule" in told[0].getMessage()


URL = "redis://127.0.0.1:6379/1"
SETTINGS: list[tuple[str, Any, str, Any]] = [
    ("redbeat_lock_timeout", "60", "lock_timeout", 60),
    ("redbeat_takeover_after", "12.5", "takeover_after", 12.5),
    ("redbeat_sentry", "False", "sentry", False),
    ("redbeat_redis_use_ssl", {"ssl_check_hostname": "no"}, "redis_use_ssl", {"ssl_check_hostname": False}),
    ("redbeat_redis_url", "", "redis_url", "redis://127.0.0.1:6379/7"),
    ("redbeat_redis_options", {"retry_period": "-1"}, "redbeat_redis_options", {"retry_period": -1}),
    (
        "redbeat_redis_options",
        {"sentinels": [("a", "26379")], "sentinel_kwargs": {"socket_timeout": "3", "password": "5"}},
        "redbeat_redis_options",
        {"sentinels": [("a", 26379)], "sentinel_kwargs": {"socket_timeout": 3, "password": "5"}},
    ),
]


@pytest.mark.parametrize(("name", "value", "attribute", "expected"), SETTINGS)
def test_settings_may_be_texts_as_an_environment_gives_them(
    name: str, value: Any, attribute: str, expected: Any
) -> None:
    app = Celery("values", broker="redis://127.0.0.1:6379/7", set_as_current=False)
    app.conf.update({"redbeat_redis_url": URL, name: value})
    found = getattr(RedBeatConfig(app), attribute)
    assert (found, type(found)) == (expected, type(expected))


def test_an_option_that_cannot_be_used_is_named_without_the_password() -> None:
    app = Celery("values", broker=URL, set_as_current=False)
    app.conf.redbeat_redis_options = {"socket_timeout": "soon", "password": "secret"}
    with pytest.raises(ConfigurationError, match=r"redbeat_redis_options.*socket_timeout") as caught:
        RedBeatConfig(app)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("interval", ["soon", "None", -1, math.nan, math.inf, values.timedelta(minutes=5)])
def test_a_loop_interval_that_is_no_time_is_an_error_that_names_it(interval: Any) -> None:
    app = Celery("values", broker=URL, set_as_current=False)
    app.conf.beat_max_loop_interval = interval
    with pytest.raises(ConfigurationError, match=re.escape(f"beat_max_loop_interval: {interval!r}")):
        RedBeatScheduler(app=app, lazy=True)


def test_a_schedule_without_a_prefix_is_kept_by_the_recipe(
    redbeat2_python: Path,
    server: Server,
    client: redis.Redis,
    make_app: Callable[..., Celery],
    tmp_path: Path,
) -> None:
    program = (
        "import sys; from celery import Celery; from redbeat import RedBeatSchedulerEntry as Entry;"
        "app = Celery(broker=sys.argv[1]);"
        "app.conf.update(redbeat_redis_url=sys.argv[1], redbeat_key_prefix='');"
        "Entry('report', 'echo', 60, args=[1], app=app).save()"
    )
    environment = {"PATH": "/usr/bin:/bin", "URL": server.url(1)}
    for words in ([redbeat2_python, "-c", program, server.url(1)], [redbeat2_python, RECIPE]):
        done = subprocess.run(
            words, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, done.stderr
    entry = RedBeatSchedulerEntry.from_key("report", app=make_app())
    assert (entry.key, entry.args) == ("redbeat:report", [1])
    assert client.zscore("redbeat::schedule", entry.key) == client.zscore(":schedule", "report")


RECIPE = Path(__file__).parents[2] / "docs/recipes/copy_without_prefix.py"
