"""`celery redbeat why`: what has really happened to runs, told by the command."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery import Celery, Task
from click.testing import CliRunner, Result

from redbeat import RedBeatScheduler, RedBeatSchedulerEntry
from redbeat.calendars import Calendar
from redbeat.cli import redbeat
from tests.conftest import MakeApp
from tests.integration.conftest import MakeScheduler
from tests.support.command_line import call
from tests.support.schedule import SCHEDULE, messages, meta_json, monitoring, server_now, write_raw
from tests.support.servers import Server

Ask = Callable[..., Result]
Answer = Callable[..., dict[str, Any]]
SCORES = {"ZCOUNT", "ZRANGEBYSCORE"}
HOURLY = {"__type__": "crontab", "minute": "0"}


@pytest.fixture
def ask(app: Celery) -> Ask:
    """`celery redbeat why`, in this process."""

    def run(*arguments: str, app: Celery = app) -> Result:
        return CliRunner().invoke(redbeat, ["why", *arguments], obj=SimpleNamespace(app=app, no_color=True))

    return run


@pytest.fixture
def answer(ask: Ask) -> Answer:
    """What it answers with --json."""

    def run(*arguments: str, **options: Any) -> dict[str, Any]:
        done = ask(*arguments, "--json", **options)
        assert done.exit_code == 0, done.output
        document: dict[str, Any] = json.loads(done.output)
        return document

    return run


def hour(client: redis.Redis, ago: int = 0) -> datetime:
    """The latest full hour by the server's clock, or so many before it."""
    now = datetime.fromtimestamp(server_now(client), timezone.utc)
    return now.replace(minute=0, second=0, microsecond=0) - timedelta(hours=ago)


def write_hourly(client: redis.Redis, due: datetime, **fields: Any) -> None:
    """The entry `report`: it has run the hour before, and is due at `due`."""
    meta = meta_json(due - timedelta(hours=1), 5)
    write_raw(client, "report", score=due.timestamp() + 1e-3, meta=meta + " ", schedule=HOURLY, **fields)
    client.zadd(SCHEDULE, {"redbeat:report": due.timestamp()})


def test_a_run_that_was_sent(
    answer: Answer, ask: Ask, client: redis.Redis, broker: redis.Redis, scheduler: RedBeatScheduler
) -> None:
    write_hourly(client, hour(client))
    scheduler.tick()
    found = answer("report")
    [message] = messages(broker)
    assert (found["verdict"], found["at"]) == ("sent", hour(client).isoformat())
    assert found["run"]["task_id"] == message["headers"]["id"]
    assert message["headers"]["id"] in ask("report").output
    assert ask("report").output.startswith(
        f"report at {hour(client):%Y-%m-%d %H}:00:00 UTC: sent, its message"
    )


def test_runs_that_were_missed_are_covered_by_the_next(
    answer: Answer, client: redis.Redis, scheduler: RedBeatScheduler
) -> None:
    due = hour(client, 1)  # the latest is some minutes late, whatever the time: two are missed
    write_hourly(client, hour(client, 3))
    scheduler.tick()
    covered = answer("report", "--at", due.isoformat())
    assert covered["verdict"] in ("merged", "unknown")  # unknown within the first second of an hour
    assert covered["run"]["due"] == hour(client).isoformat()


def test_a_run_that_was_skipped(answer: Answer, client: redis.Redis, scheduler: RedBeatScheduler) -> None:
    write_hourly(client, hour(client, 2), misfire_grace_time=0.001)
    scheduler.tick()
    assert answer("report", "--at", hour(client, 2).isoformat())["verdict"] == "skipped"
    assert answer("report", "--at", hour(client, 1).isoformat())["verdict"] == "skipped"


def test_a_run_that_its_calendar_excludes(
    answer: Answer, client: redis.Redis, scheduler: RedBeatScheduler, app: Celery
) -> None:
    days = [(hour(client, 40).date(), hour(client).date() + timedelta(days=2))]
    Calendar("holidays", days, app=app).save()
    write_hourly(client, hour(client), exclude="holidays")
    before = answer("report")
    assert (before["verdict"], "holidays" in before["reason"]) == ("excluded", True)
    scheduler.tick()
    recorded = answer("report")
    assert (recorded["verdict"], recorded["run"]["outcome"]) == ("skipped", "skipped")
    assert "holidays" in recorded["reason"]


def test_a_run_that_cannot_be_sent_and_one_that_cannot_be_used(
    answer: Answer, client: redis.Redis, scheduler: RedBeatScheduler
) -> None:
    write_hourly(client, hour(client), options={"serializer": "yml"})
    scheduler.tick()
    failed = answer("report")
    assert (failed["verdict"], "No encoder installed for yml" in failed["reason"]) == ("unsent", True)
    assert "tried again at" in failed["reason"]
    client.flushdb()
    write_raw(client, "report", "{}", score=hour(client).timestamp())
    scheduler.tick()
    for at in ([], ["--at", hour(client).isoformat()]):
        assert answer("report", *at)["verdict"] == "quarantined"


def test_an_entry_that_is_paused(answer: Answer, client: redis.Redis, app: Celery) -> None:
    write_hourly(client, hour(client))
    RedBeatSchedulerEntry.get("report", app).pause(note="the printer burns")
    found = answer("report")
    assert (found["verdict"], "the printer burns" in found["reason"]) == ("paused", True)
    client.hset(
        "redbeat:report", "definition", json.dumps({"task": "t", "schedule": HOURLY, "enabled": False})
    )
    client.hdel("redbeat:report", "policy")
    assert answer("report")["verdict"] == "disabled"


def test_no_beat_leads(
    answer: Answer, client: redis.Redis, make_scheduler: MakeScheduler, app: Celery
) -> None:
    write_hourly(client, hour(client))
    assert answer("report")["verdict"] == "no-leader"
    make_scheduler(app)
    assert answer("report")["verdict"] == "waiting"


def test_an_entry_that_is_finished(answer: Answer, client: redis.Redis, scheduler: RedBeatScheduler) -> None:
    write_hourly(client, hour(client, 1), max_runs=6, misfire="earliest")
    scheduler.tick()
    assert answer("report", "--at", hour(client, 1).isoformat())["verdict"] == "sent"
    after = hour(client, -1)
    assert answer("report", "--at", after.isoformat())["verdict"] == "finished"


def test_what_is_too_long_ago_and_what_is_not_recorded(
    make_app: MakeApp, answer: Answer, client: redis.Redis, make_scheduler: MakeScheduler
) -> None:
    app = make_app(redbeat_history=1)
    write_hourly(client, hour(client, 1))
    make_scheduler(app).tick()
    found = answer("report", "--at", hour(client, 9).isoformat(), app=app)
    assert found["verdict"] == "too-long-ago"
    client.delete("redbeat::history:report")
    app = make_app(redbeat_history=0)
    assert answer("report", "--at", hour(client, 9).isoformat(), app=app)["verdict"] == "history-off"
    assert answer("report", app=app)["verdict"] == "sent"


def test_an_entry_that_was_saved_just_now_has_no_run_that_is_missing(answer: Answer, app: Celery) -> None:
    RedBeatSchedulerEntry("new", "t", 60, app=app).save()
    assert answer("new")["verdict"] == "not-there-yet"


def test_an_unknown_run_may_be_one_that_no_beat_was_there_for(answer: Answer, client: redis.Redis) -> None:
    write_hourly(client, hour(client))
    client.lpush("redbeat::history:report", *(f'{{"at":{n},"due":{n}}}' for n in (1.5e9, server_now(client))))
    assert "no beat was at work then" in answer("report", "--at", hour(client, 5).isoformat())["reason"]


def test_a_time_that_is_none_of_its_schedule(ask: Ask, client: redis.Redis) -> None:
    write_hourly(client, hour(client, -1))
    at = hour(client, 5) + timedelta(minutes=7)
    lines = ask("report", "--at", at.isoformat()).output.splitlines()
    assert re.fullmatch(r"report at .*: no time, the schedule has no such time", lines[0])
    assert [line.split()[0] for line in lines[2:]] == ["before", "after", "messages", "Judged"]
    assert f"{hour(client, 5):%Y-%m-%d %H}:00:00 UTC" in lines[2]


def test_a_time_without_an_offset_is_by_the_clocks_that_times_are_shown_in(
    answer: Answer, app: Celery
) -> None:
    RedBeatSchedulerEntry("report", "t", "30 7 * * *", timezone="Asia/Tokyo", app=app).save()
    assert answer("report", "--at", "2026-01-30 22:30")["at"] == "2026-01-30T22:30:00+00:00"
    asked = answer("report", "--at", "2026-01-31 07:30", "--tz", "Asia/Tokyo")
    assert asked["at"] == "2026-01-30T22:30:00+00:00"
    assert answer("report", "--at", "2026-01-30T22:30Z")["at"] == "2026-01-30T22:30:00+00:00"


def test_triggered_runs_are_told_as_such(answer: Answer, client: redis.Redis, app: Celery) -> None:
    write_hourly(client, hour(client, -1))
    RedBeatSchedulerEntry.get("report", app).backfill(hour(client, 3), hour(client, 3))
    assert "by hand" in answer("report", "--at", hour(client, 3).isoformat())["reason"]


def test_wrong_questions(ask: Ask, client: redis.Redis) -> None:
    write_hourly(client, hour(client))
    missing = ask("reprt")
    assert (missing.exit_code, missing.output.count("\n")) == (66, 1)
    assert "Error: There is no entry 'reprt' in redbeat::schedule" in missing.output
    assert "Did you mean report?" in missing.output
    soon = ask("report", "--at", "soon")
    assert (soon.exit_code, soon.output.count("\n")) == (64, 1)
    for beyond in ("0001-01-01T00:00+01:00", "9999-12-31T23:59:59-10:00"):
        done = ask("report", "--at", beyond)
        assert (done.exit_code, done.output.count("\n")) == (64, 1)


def test_nothing_is_written(
    server: Server, ask: Ask, client: redis.Redis, scheduler: RedBeatScheduler
) -> None:
    write_hourly(client, hour(client))
    scheduler.tick()
    ask("report")
    with monitoring(server, with_scripts=True) as commands:
        ask("report")
    asked = {command.split()[0].upper() for command in commands if "redbeat" in command}
    of_entries = {"EVALSHA", "TYPE", "EXISTS", "HMGET", "HSTRLEN", "ZSCORE", "GET", "PTTL", "LRANGE"}
    assert asked <= of_entries | {"HGETALL"} | SCORES


# -- which way the entry's messages go

PROGRAM = "         Judged by the code that this program has; what beat's log says holds."


def test_it_says_that_messages_are_compiled(
    app: Celery, client: redis.Redis, ask: Ask, answer: Answer
) -> None:
    write_raw(client, "entry", schedule=HOURLY)
    assert f"messages compiled\n{PROGRAM}" in ask("entry").output
    assert answer("entry")["messages"] == {"compiled": True, "reason": None}


def test_it_says_why_messages_go_one_by_one(
    app: Celery, client: redis.Redis, ask: Ask, answer: Answer
) -> None:
    write_raw(client, "entry", schedule=HOURLY, options={"countdown": 10})
    assert f"messages one by one: the option 'countdown'\n{PROGRAM}" in ask("entry").output
    assert answer("entry")["messages"] == {"compiled": False, "reason": "the option 'countdown'"}


def test_it_names_all_that_is_in_the_way(make_app: MakeApp, client: redis.Redis, answer: Answer) -> None:
    app = make_app(task_send_sent_event=True, task_compression="zlib")
    write_raw(client, "entry", schedule=HOURLY, options={"task_id": "one"}, jitter=5)
    assert answer("entry", app=app)["messages"]["reason"] == (
        "task_send_sent_event is set; task_compression is 'zlib'; the option 'task_id'; its policy has jitter"
    )


def test_a_task_of_ones_own_class_is_named(app: Celery, client: redis.Redis, answer: Answer) -> None:
    class Shop(Task):
        def apply_async(self, *args: Any, **kwargs: Any) -> Any:
            return super().apply_async(*args, **kwargs)

    @app.task(name="echo", base=Shop)
    def echo() -> None: ...

    write_raw(client, "entry", task="echo", schedule=HOURLY)
    reason = f"{__name__}.{Shop.__qualname__} overrides apply_async"
    assert answer("entry")["messages"] == {"compiled": False, "reason": reason}


def test_the_scheduler_of_the_setting_is_judged(
    make_app: MakeApp, client: redis.Redis, answer: Answer
) -> None:
    app = make_app(beat_scheduler=f"{__name__}.ShopScheduler")
    write_raw(client, "entry", schedule=HOURLY)
    reason = f"{__name__}.ShopScheduler overrides apply_async"
    assert answer("entry", app=app)["messages"] == {"compiled": False, "reason": reason}


class ShopScheduler(RedBeatScheduler):
    def apply_async(self, *args: Any, **kwargs: Any) -> Any:
        return super().apply_async(*args, **kwargs)


def test_without_the_application_nothing_is_said_of_messages(
    app: Celery, server: Server, client: redis.Redis
) -> None:
    write_raw(client, "entry", schedule=HOURLY)
    done = call(app, "--url", server.url(1), "why", "entry")
    assert done.exit_code == 0, done.output
    assert "messages" not in done.output
    done = call(app, "--url", server.url(1), "why", "entry", "--json")
    assert json.loads(done.output)["messages"] is None


def test_tasks_that_cannot_be_imported_are_said_beside_the_answer(
    make_app: MakeApp, client: redis.Redis, ask: Ask
) -> None:
    app = make_app(imports=["no_such_module"])
    write_raw(client, "entry", schedule=HOURLY)
    done = ask("entry", app=app)
    assert done.exit_code == 0
    assert "Which way its messages go isn't known: ModuleNotFoundError" in done.output
