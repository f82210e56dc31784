"""`celery redbeat doctor` itself: bounded, reading only, in one sentence when Redis is away."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import redis
from celery import Celery
from click.testing import CliRunner

from redbeat import RedBeatSchedulerEntry
from redbeat.calendars import Calendar
from redbeat.cli import redbeat
from redbeat.diagnostics.checks import examine
from tests.integration.conftest import MakeScheduler
from tests.support.doctoring import (
    LATER,
    READING,
    Ask,
    everything,
)
from tests.support.schedule import (
    SCHEDULE,
    monitoring,
    write_raw,
)
from tests.support.servers import Server
from tests.support.stopwatch import Stopwatch
from tests.support.ticks import make_due, memory_app


def test_a_beat_that_does_not_wait_for_redis_is_noted(ask: Ask) -> None:
    done = ask(redbeat_redis_options={})
    assert done.exit_code == 0
    assert "retry_period isn't set, so beat ends as soon as Redis can't be reached" in done.output
    assert "Set redbeat_redis_options = {'retry_period': 60}" in done.output


def test_a_healthy_new_schedule_has_no_finding(
    ask: Ask, app: Celery, make_scheduler: MakeScheduler, client: redis.Redis
) -> None:
    app.conf.redbeat_redis_options = {"retry_period": 5}
    done = ask(app=app)
    assert (done.exit_code, done.output) == (0, "Nothing is wrong; 0 entries looked at.\n")
    app.conf.beat_schedule = {"static": {"task": "celery.ping", "schedule": 3600}}
    Calendar("holidays", ["2026-12-25"], app=app).save()
    RedBeatSchedulerEntry("report", "celery.ping", 3600, exclude="holidays", app=app).save()
    make_due(app, "report")
    scheduler = make_scheduler(app=app)
    scheduler.tick()
    done = ask(app=app)
    assert (done.exit_code, done.output) == (0, "Nothing is wrong; 2 entries looked at.\n")


def test_nothing_is_written_without_fix(
    server: Server, ask: Ask, app: Celery, client: redis.Redis, sick: None
) -> None:
    ask(app=app)
    before = everything(client)
    for arguments in ([], ["--json"], ["--fix", "--dry-run"], ["--workers", "0.1"]):
        with monitoring(server, with_scripts=True) as commands:
            ask(*arguments, app=app)
        on_schedule = [command for command in commands if "redbeat" in command]
        assert {command.split()[0].upper() for command in on_schedule} <= READING, arguments
    assert everything(client) == before


def test_the_codes_are_in_the_help(ask: Ask) -> None:
    assert "0 nothing but notes, 1 warnings, 2 errors" in " ".join(ask("--help").output.split())


def test_a_server_that_is_away_is_one_sentence() -> None:
    context = SimpleNamespace(app=memory_app(redbeat_redis_url="redis://127.0.0.1:1/0"), no_color=True)
    for command in (["doctor"], ["doctor", "--fix"], ["why", "report"]):
        done = CliRunner().invoke(redbeat, command, obj=context)
        assert done.exit_code == 69
        assert done.output.startswith("Error: Redis at redis://127.0.0.1:1/0 can't be used")
        assert done.output.count("\n") == 1


def test_a_server_that_hangs_is_not_waited_for_long(second: Server) -> None:
    app = memory_app(redbeat_redis_url=second.url(0), redbeat_redis_options={"retry_period": -1})
    with second.client() as admin:
        admin.client_pause(60_000)
    with Stopwatch() as watch:
        done = CliRunner().invoke(redbeat, ["doctor"], obj=SimpleNamespace(app=app, no_color=True))
    assert done.exit_code == 69
    assert watch.asleep_seconds < 8


def test_a_large_schedule_is_left_when_time_is_up(ask: Ask, app: Celery, client: redis.Redis) -> None:
    with client.pipeline(transaction=False) as pipeline:
        for number in range(30_000):
            write_raw(pipeline, f"e{number}", score=LATER + number)
        pipeline.execute()
    found = examine(app, max_seconds=0.2)
    [unseen] = [finding for finding in found.findings if finding.kind == "unseen"]
    assert unseen.problem.startswith("Not all was looked at within 0.2 s:")
    assert f"{30_000 - found.seen} of 30000 entries" in unseen.problem
    assert 0 < found.seen < 30_000
    with Stopwatch() as watch:
        ask("--max-seconds", "1", app=app)
    assert watch.processor_seconds + watch.asleep_seconds < 6


def test_many_findings_of_a_kind_are_cut_short_for_people(ask: Ask, client: redis.Redis) -> None:
    client.zadd(SCHEDULE, {f"redbeat:gone{number}": LATER for number in range(25)})
    done = ask()
    assert done.output.count("its hash is gone") == 10
    assert "… and 15 more of missing-hash; --all shows them." in done.output
    assert ask("--all").output.count("its hash is gone") == 25


def test_what_is_only_counted_is_told_apart_from_what_all_shows(
    ask: Ask, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redbeat.diagnostics.checks.MAX_OF_A_KIND", 15)
    client.zadd(SCHEDULE, {f"redbeat:gone-{number}": LATER for number in range(20)})
    counted = "… and 5 more of missing-hash, which aren't listed"
    assert "… and 5 more of missing-hash; --all shows them.\n" in ask().output
    assert counted in ask().output
    everything = ask("--all").output
    assert everything.count("It is in the schedule") == 15
    assert counted in everything
    assert "--all shows them" not in everything


def test_many_warnings_of_a_kind_drown_no_error_and_what_is_left_out_stands_beside_them(
    ask: Ask, client: redis.Redis, app: Celery
) -> None:
    @app.task(name="known", shared=False)
    def known() -> None:
        """Do nothing."""

    for number in range(12):
        write_raw(client, f"strange{number:02}", score=LATER, task="workers.only")
    client.zadd(SCHEDULE, {"redbeat:zz-gone": LATER})
    lines = ask(app=app).output.splitlines()
    assert lines[0].startswith("error: redbeat:zz-gone")
    kinds = [line for line in lines if line.startswith(("warning:", "…")) and "2.x" not in line]
    assert [line.startswith("warning: strange") for line in kinds[:4]] == [True, True, True, False]
    assert kinds[3] == "… and 9 more of unknown-task; --all shows them."


def test_wrong_options_are_64(ask: Ask) -> None:
    assert ask("--dry-run").exit_code == 64
    assert ask("--workers", "-1").exit_code == 64
