"""`celery redbeat downgrade`, and what knows of the entries that it has taken out of the schedule."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

import pytest
import redis
from celery import Celery
from celery.schedules import crontab

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.calendars import Calendar
from redbeat.diagnostics.downgrade import examine, put_all_away
from redbeat.process import exit_codes as exits
from redbeat.schedules import clocked, cron
from tests.support.command_line import call
from tests.support.logs import errors_in
from tests.support.schedule import LOCK, SCHEDULE, STATICS, meta_json, server_now, write_raw
from tests.support.ticks import leader

DOWNGRADED = "redbeat::downgraded"
CHRISTMAS = datetime(2099, 12, 24, 18, tzinfo=timezone.utc)


def put_away(app: Celery, *names: str) -> None:
    Entry.save_many([Entry(name, "echo", cron("0 9 L-1 * *"), app=app) for name in names])
    done = call(app, "downgrade", "--yes")
    assert done.exit_code == 0, done.output


def findings(app: Celery) -> list[dict[str, Any]]:
    """What the doctor says, besides that the tests' server keeps nothing and that retry_period is unset."""
    found = json.loads(call(app, "doctor", "--json").stdout)["findings"]
    return [one for one in found if one["kind"] not in ("persistence", "retry-period")]


def everything(client: redis.Redis) -> dict[str, Any]:
    return {key: client.dump(key) for key in client.scan_iter()}


def test_without_yes_all_is_shown_and_nothing_written(app: Celery, client: redis.Redis) -> None:
    Entry("plain", "echo", 60, app=app).save()
    Entry("last", "echo", cron("0 9 L-1 * *"), app=app).save()
    Entry("once", "echo", clocked(CHRISTMAS), app=app).save()
    Entry("ending", "echo", 60, end_time=CHRISTMAS, jitter=5, app=app).save()
    before = everything(client)
    done = call(app, "downgrade")
    assert done.exit_code == 0
    assert "can't run 2 entries of 4" in done.stdout
    assert "last: 2.x ends with an error: 2.x has no schedules of type 'cron'." in done.stdout
    assert "once: 2.x ends with an error: 2.x has no schedules of type 'clocked'." in done.stdout
    assert "ending: would go on running after its end_time, 2099-12-24 18:00:00 UTC" in done.stdout
    assert "plain" not in done.stdout
    elsewhere = call(app, "downgrade", "--tz", "Asia/Kathmandu").stdout
    assert "its end_time, 2099-12-24 23:45:00 Asia/Kathmandu" in elsewhere
    assert everything(client) == before
    document = json.loads(call(app, "downgrade", "--json").stdout)
    assert [one["name"] for one in document["unreadable"]] == ["last", "once"]
    assert (document["is_dry_run"], document["taken"], document["entries"]) == (True, [], 4)
    assert everything(client) == before


def test_a_schedule_that_2_x_can_run_is_said_to_be_one(app: Celery, client: redis.Redis) -> None:
    Entry("plain", "echo", crontab(), app=app).save()
    done = call(app, "downgrade", "--yes")
    assert done.exit_code == 0
    assert "celery-redbeat 2.x runs the schedule as it is: 1 entry." in done.stdout
    assert not client.exists(DOWNGRADED)


#: fields of a policy to what 2.x would do otherwise
OTHERWISE: list[tuple[dict[str, Any], str]] = [
    ({"timezone": "Asia/Tokyo"}, "by other clocks than those of its timezone, Asia/Tokyo"),
    ({"start_time": CHRISTMAS}, "would run before its start_time, 2099-12-24 18:00:00 UTC"),
    ({"end_time": CHRISTMAS}, "would go on running after its end_time, 2099-12-24 18:00:00 UTC"),
    ({"max_runs": 5}, "would go on running after its 5 runs (max_runs)"),
    ({"one_off": True}, "would go on running after its one run (one_off)"),
    ({"after_finish": "delete"}, "wouldn't be deleted when it is finished"),
    ({"after_finish": "disable"}, "wouldn't be disabled when it is finished"),
    ({"jitter": 9}, "without its jitter of up to 9 s"),
    ({"expires_after": 30}, "its messages wouldn't expire after 30 s"),
    ({"misfire": "skip"}, "by one run (misfire is skip)"),
    ({"misfire": "all", "misfire_limit": 7}, "by one run (misfire_limit is 7)"),
    ({"misfire_grace_time": 30}, "would run however late it is"),
    ({"run_missed": True}, "would make up for what it missed while it was disabled by one run"),
    ({"exclude": "holidays"}, "would run on the days of its calendar holidays, too"),
    ({"overlap": "skip"}, "would send a run also while another one is in progress (overlap is skip)"),
    ({"max_runtime": 90}, "wouldn't tell of a run that takes longer than 90 s (max_runtime)"),
    ({"max_runtime": 90, "revoke_overdue": True}, "wouldn't tell of, and revoke, a run"),
    ({"queue_timeout": 60}, "its messages wouldn't expire after 60 s on a queue (queue_timeout)"),
    ({"pause_after_failures": 3}, "wouldn't be paused after 3 failures in a row (pause_after_failures)"),
]


@pytest.mark.parametrize(("policy", "words"), OTHERWISE)
def test_each_field_of_a_policy_is_told_in_words(app: Celery, policy: dict[str, Any], words: str) -> None:
    Calendar("holidays", ["2026-12-25"], app=app).save()
    Entry("bounded", "echo", crontab(), app=app, **policy).save()
    [what] = json.loads(call(app, "downgrade", "--json").stdout)["ignored"]
    assert what["name"] == "bounded"
    assert any(words in sentence for sentence in what["what"]), what


def test_a_pause_stays_one_and_only_its_end_is_told(app: Celery) -> None:
    Entry("until", "echo", 60, app=app, max_runs=3).save().pause(until=CHRISTMAS)
    Entry("for-good", "echo", 60, app=app, max_runs=3).save().pause()
    found = json.loads(call(app, "downgrade", "--json").stdout)["ignored"]
    assert found == [
        {"name": "until", "what": ["would stay paused after 2099-12-24 18:00:00 UTC: it ends no pauses"]}
    ]


def test_an_entry_whose_enabled_is_null_is_disabled_here_and_there(app: Celery, client: redis.Redis) -> None:
    interval = {"__type__": "interval", "every": 60, "relative": False}
    write_raw(client, "null", {"name": "null", "task": "echo", "schedule": interval, "enabled": None})
    assert Entry.get("null", app).state == "disabled"
    found = json.loads(call(app, "downgrade", "--json").stdout)
    assert (found["ignored"], found["unreadable"], found["entries"]) == ([], [], 1)


def test_without_a_lock_beats_of_version_3_are_to_be_stopped_by_hand(app: Celery) -> None:
    app.conf.redbeat_lock_key = None
    assert "stop all of them first" in call(app, "downgrade").stderr


def test_a_leader_of_version_3_is_to_be_stopped_first(app: Celery, client: redis.Redis) -> None:
    Entry("last", "echo", cron("0 9 L-1 * *"), app=app).save()
    with leader(app):
        assert "stop all of them first" in call(app, "downgrade").stderr
        done = call(app, "downgrade", "--yes")
        assert done.exit_code == exits.TRY_AGAIN
        assert "stop all beats of version 3 first" in done.stderr
        assert client.zscore(SCHEDULE, "redbeat:last") is not None
        assert not client.exists(DOWNGRADED)
    client.set(LOCK, "0" * 32)  # a beat of 2.x, which may be about to end by it
    assert call(app, "downgrade", "--yes").exit_code == 0
    assert client.zscore(SCHEDULE, "redbeat:last") is None


def test_what_has_changed_since_it_was_read_is_left_alone(app: Celery, client: redis.Redis) -> None:
    put_away(app, "other")
    Entry("last", "echo", cron("0 9 L-1 * *"), app=app).save()
    obstacles = examine(app).obstacles
    Entry("last", "echo", 60, app=app).save()
    assert [is_away for _, is_away in put_all_away(app, obstacles)] == [False]
    assert client.zscore(SCHEDULE, "redbeat:last") is not None
    assert set(client.hkeys(DOWNGRADED)) == {"redbeat:other"}


def test_list_show_count_export_and_doctor_know_what_is_away(app: Celery, client: redis.Redis) -> None:
    Entry("plain", "echo", 60, app=app).save()
    put_away(app, "last")
    listed = [json.loads(line) for line in call(app, "list", "--json").stdout.splitlines()]
    assert {one["name"]: one["state"] for one in listed} == {"plain": "scheduled", "last": "downgraded"}
    assert "downgraded" in call(app, "show", "last").stdout
    client.hset("redbeat:last", "meta", meta_json(datetime(2020, 1, 1, tzinfo=timezone.utc), 1))
    assert "taken out for celery-redbeat 2.x" in " ".join(call(app, "why", "last").stdout.split())
    assert Entry.get("last", app).state == "downgraded"
    assert call(app, "count").stdout.strip() == "2"
    assert [one.name for one in Entry.list(app, state="downgraded")] == ["last"]
    assert "last:" in call(app, "export").stdout
    assert {one["kind"]: one["severity"] for one in findings(app)} == {"downgraded": "note"}
    call(app, "doctor", "--fix")
    assert client.zscore(SCHEDULE, "redbeat:last") is None
    assert "taken out for it already" in call(app, "downgrade").stdout


def test_the_doctor_notes_what_2_x_couldnt_run(app: Celery) -> None:
    Entry("last", "echo", cron("0 9 L-1 * *"), app=app).save()
    Entry("ending", "echo", 60, end_time=CHRISTMAS, app=app).save()
    [found] = findings(app)
    assert (found["kind"], found["severity"]) == ("downgrade", "note")
    assert "couldn't run 1 entry (last)" in found["problem"]
    assert "would run 1 entry (ending) differently" in found["problem"]


def test_purge_forgets_what_was_deleted_while_it_was_away(app: Celery, client: redis.Redis) -> None:
    put_away(app, "last", "gone")
    client.delete("redbeat:gone")
    done = call(app, "purge", "--yes", "--json")
    assert json.loads(done.stdout)["removed"] == 1
    assert set(client.hkeys(DOWNGRADED)) == {"redbeat:last"}


def test_clear_removes_what_is_away_too(app: Celery, client: redis.Redis) -> None:
    put_away(app, "last")
    Entry.clear(app)
    assert not client.exists("redbeat:last")
    with leader(app):
        assert client.zcard(SCHEDULE) == 0


@pytest.mark.parametrize("lock_key", ["redbeat::lock", None])
def test_the_next_leader_brings_all_back_before_its_first_tick(
    app: Celery, client: redis.Redis, lock_key: str | None
) -> None:
    app.conf.redbeat_lock_key = lock_key
    put_away(app, "last", "other", "static")
    scores = client.hgetall(DOWNGRADED)
    client.hset(
        DOWNGRADED, mapping={"redbeat:static": f"{scores['redbeat:static']} static", "redbeat:odd": "x"}
    )
    write_raw(client, "odd", score=None)
    client.hset(DOWNGRADED, "elsewhere", "5")
    app.conf.beat_schedule = {"static": {"task": "echo", "schedule": cron("0 9 L-1 * *")}}
    with leader(app):
        assert not client.exists(DOWNGRADED)
        for name in ("last", "other", "static"):
            assert client.zscore(SCHEDULE, f"redbeat:{name}") == float(scores[f"redbeat:{name}"])
        assert client.zscore(SCHEDULE, "redbeat:odd") == 0, "a score that can't be read: it is due"
        assert client.zscore(SCHEDULE, "elsewhere") is None
        assert client.smembers(STATICS) == {"static"}


def test_where_nothing_can_be_remembered_nothing_is_taken_out(app: Celery, client: redis.Redis) -> None:
    Entry("last", "echo", cron("0 9 L-1 * *"), app=app).save()
    client.set(DOWNGRADED, "a string")
    done = call(app, "downgrade", "--yes")
    assert done.exit_code == exits.TRY_AGAIN
    assert f"{DOWNGRADED} holds something that is no hash" in done.stderr
    assert client.zscore(SCHEDULE, "redbeat:last") is not None


def test_something_else_under_the_key_keeps_nobody_from_leading(
    app: Celery, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    client.set(DOWNGRADED, "a string")
    Entry("plain", "echo", 60, app=app).save()
    with leader(app) as scheduler:
        scheduler.tick()
    assert client.get(DOWNGRADED) == "a string"
    assert errors_in(caplog) == []
    assert call(app, "list").exit_code == 0


@pytest.mark.parametrize(("misfire", "runs"), [("latest", 1), ("all", 3), ("skip", 0)])
def test_runs_that_were_missed_while_away_follow_the_entry_s_misfire(
    app: Celery, client: redis.Redis, misfire: str, runs: int
) -> None:
    Entry("minutely", "echo", cron("* * * * *"), app=app, misfire=misfire, misfire_limit=3).save()
    client.zadd(SCHEDULE, {"redbeat:minutely": server_now(client) // 60 * 60 - 3600})
    assert call(app, "downgrade", "--yes").exit_code == 0
    with leader(app) as scheduler:
        while scheduler.tick() == 0:
            pass
    # a minute may begin meanwhile
    assert runs <= Entry.get("minutely", app).total_run_count <= runs + 1


def test_the_doctor_names_a_score_that_is_none(app: Celery, client: redis.Redis) -> None:
    put_away(app, "bad", "good")
    client.hset(DOWNGRADED, "redbeat:bad", "nan")
    found = {one["severity"]: one["problem"] for one in findings(app) if one["kind"] == "downgraded"}
    assert set(found) == {"note", "warning"}
    assert "bad" in found["warning"]
    assert "no valid score" in found["warning"]
    assert "good" not in found["warning"]
    assert call(app, "list").exit_code == call(app, "show", "bad").exit_code == 0
