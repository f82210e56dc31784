"""What the doctor finds about entries, their tasks and their queues; provoked on a real server."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from click.testing import Result

from redbeat import RedBeatSchedulerEntry
from tests.conftest import MakeApp
from tests.integration.conftest import MakeScheduler
from tests.support.apps import celery_worker, write_app
from tests.support.command_line import call
from tests.support.doctoring import (
    LATER,
    Ask,
    only,
)
from tests.support.schedule import (
    SCHEDULE,
    field,
    write_raw,
)
from tests.support.servers import Server


@pytest.mark.parametrize(
    ("definition", "reason", "excerpt"),
    [
        ('{"task": "echo", "schedule": {"__type__": "interval", "every": }}', "no valid JSON", '"every": }}'),
        ('{"schedule": {"__type__": "interval", "every": 5}}', "task: is missing.", '{"schedule"'),
        ('{"task": 5, "schedule": {"__type__": "interval", "every": 5}}', "task: must be", '"task": 5,'),
        (
            '{"task": "echo", "schedule": {"__type__": "crontab", "minute": "61"}}',
            "61 > 59",
            '"crontab", "minute"',
        ),
    ],
)
def test_entries_that_cannot_be_used(
    findings: Any, client: redis.Redis, definition: str, reason: str, excerpt: str
) -> None:
    write_raw(client, "bad", definition, score=LATER)
    found = only(findings(), "quarantined", "error")
    assert found["about"] == "bad"
    assert reason in found["problem"]
    assert excerpt in found["excerpt"]


def test_a_key_that_holds_no_hash_must_be_deleted_first(findings: Any, client: redis.Redis) -> None:
    client.set("redbeat:bad", "x")
    client.zadd(SCHEDULE, {"redbeat:bad": LATER})
    assert only(findings(), "quarantined", "error")["advice"] == "Delete the key and save it again."


def test_a_quarantined_entry_says_since_when(
    findings: Any, client: redis.Redis, make_scheduler: MakeScheduler
) -> None:
    write_raw(client, "bad", "{}")
    make_scheduler().tick()
    since = field(client, "bad", "error")["since"][:19].replace("T", " ")
    assert since in only(findings(), "quarantined", "error")["advice"]


def test_a_quarantined_entry_whose_times_cannot_be_computed_is_named_once(
    findings: Any, client: redis.Redis, make_scheduler: MakeScheduler
) -> None:
    write_raw(client, "bad", schedule={"__type__": "interval", "every": 86_400 * 3_640_000})
    make_scheduler().tick()
    assert only(findings(), "quarantined", "error")["about"] == "bad"


def test_a_run_that_cannot_be_sent(findings: Any, client: redis.Redis, make_scheduler: MakeScheduler) -> None:
    write_raw(client, "bad", options={"serializer": "yml"})
    make_scheduler().tick()
    found = findings()
    assert "1 times so far" in found.pop("failing")[0]["problem"]
    assert "No encoder installed for yml" in only(found, "unserialisable", "error")["problem"]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"options": {"expires": "soon"}}, "options: expires: must be "),
        ({"options": {"expires": "60"}}, "options: expires: must be "),
        ({"options": {"expires": {"a": 1}}}, "options: expires: must be "),
        ({"options": {"compression": "squeeze"}}, "squeeze"),
        ({"kwargs": {"x": {"__type__": "interval", "every": 5}}}, "schedule"),
        ({"options": {"headers": {"x": {"__type__": "crontab"}}}}, "crontab"),
    ],
)
def test_runs_that_cannot_be_written_as_a_message(
    findings: Any, client: redis.Redis, fields: dict[str, Any], reason: str
) -> None:
    write_raw(client, "bad", score=LATER, **fields)
    found = only(findings(), "unserialisable", "error")
    assert found["about"] == "bad"
    assert reason in found["problem"]


def test_statics_that_celery_redbeat_2_has_removed(findings: Any, make_scheduler: MakeScheduler) -> None:
    statics = {name: {"task": "echo", "schedule": 3600} for name in ("kept", "lost")}
    app = make_scheduler(beat_schedule=statics).app
    assert "removed-static" not in findings()
    app.redbeat_redis.srem("redbeat::statics", "lost")  # as 2.4.2 does it with what it doesn't have
    app.redbeat_redis.delete("redbeat:lost")
    app.redbeat_redis.zrem(SCHEDULE, "redbeat:lost")
    found = findings()
    assert [one["about"] for one in found["removed-static"]] == ["lost"]
    assert "Stop all beats of 2.x" in found["removed-static"][0]["advice"]


def test_missing_calendars(findings: Any, client: redis.Redis) -> None:
    write_raw(client, "bad", score=LATER, exclude="holidays")
    assert "no calendar 'holidays'" in only(findings(), "calendar", "error")["problem"]


def test_mistyped_keys(findings: Any, client: redis.Redis) -> None:
    write_raw(client, "bad", score=LATER, schedule={"__type__": "crontab", "minutes": "5"})
    assert "did you mean minute?" in only(findings(), "unknown-key", "warning")["problem"]


def test_entries_that_never_run_again(findings: Any, client: redis.Redis, app: Celery) -> None:
    entry = RedBeatSchedulerEntry("over", "echo", 60, max_runs=1, app=app).save()
    next(entry)
    assert "max_runs=1" in only(findings(), "never-again", "note")["problem"]
    client.flushdb()
    write_raw(client, "stopped", score=-1)
    assert "though its schedule has a time" in only(findings(), "never-again", "warning")["problem"]
    client.flushdb()
    write_raw(client, "disabled", score=-1, enabled=False)
    assert findings() == {}


def test_schedules_without_a_time(findings: Any, client: redis.Redis) -> None:
    february = {"__type__": "crontab", "minute": "0", "hour": "0", "day_of_month": "30", "month_of_year": "2"}
    write_raw(client, "bad", score=LATER, schedule=february)
    assert only(findings(), "no-time", "warning")["about"] == "bad"


def test_unknown_tasks(findings: Any, client: redis.Redis, app: Celery) -> None:
    write_raw(client, "a", score=LATER, task="ecko")
    assert findings(app=app) == {}  # it has no tasks of its own where beat runs

    @app.task(name="echo", shared=False)
    def echo() -> None:
        """Do nothing."""

    assert "Did you mean echo?" in only(findings(app=app), "unknown-task", "warning")["problem"]


def test_modules_that_cannot_be_imported(findings: Any) -> None:
    found = only(findings(imports=["there_is_no_such_module"]), "tasks-unknown", "warning")
    assert "there_is_no_such_module" in found["problem"]


def test_queues_that_nobody_consumes(
    tmp_path: Path, server: Server, findings: Any, client: redis.Redis, app: Celery
) -> None:
    app.conf.task_routes = {"routed": {"queue": "special"}}
    write_raw(client, "plain", score=LATER)
    assert only(findings("--workers", "0.5", app=app), "no-worker", "warning")["about"] == "workers"
    write_raw(client, "routed", score=LATER, task="routed")
    write_raw(client, "optional", score=LATER, options={"queue": "other"})
    write_app(tmp_path, "worked", server.url(0))
    with celery_worker(tmp_path, "worked"):
        found = findings("--workers", app=app)
    problems = {finding["about"]: finding["problem"] for finding in found.pop("no-consumer")}
    assert problems.keys() == {"special", "other"}
    assert problems["other"] == (
        "The runs of optional go to this queue, and no worker takes from it (1 worker answered)."
    )
    assert found == {}


# -- whom beat calls


def test_entries_whose_services_are_not_called(findings: Any, client: redis.Redis, app: Celery) -> None:
    def save(name: str, url: str, **values: Any) -> None:
        RedBeatSchedulerEntry(name, "echo", 60, ping_url=url, app=app, **values).save()

    save("off", "https://hc-ping.com/secret", enabled=False)
    save("called", "https://known.example/secret")
    assert findings(redbeat_ping_hosts=["known.example"]) == {}
    for number in range(7):
        save(f"a{number}", f"http://pings.local:{8000 + number}/secret")
    found = only(findings(redbeat_ping_hosts=["known.example"]), "ping-hosts", "warning")
    assert found["about"] == "redbeat_ping_hosts"
    assert "the hosts of 7 ping_urls" in found["problem"]
    named = re.findall(r"a(\d) \(pings\.local:800(\d)\)", found["problem"])
    assert len(named) == 5
    assert all(name == port for name, port in named)
    assert found["problem"].endswith(" and 2 more.")
    assert "secret" not in json.dumps(found)
    assert "8 ping_urls" in only(findings(), "ping-hosts", "warning")["problem"], "the default is none"


def test_without_the_application_a_host_that_is_missing_is_a_note(server: Server, app: Celery) -> None:
    RedBeatSchedulerEntry("a", "echo", 60, ping_url="https://hc-ping.com/secret", app=app).save()
    done = call(app, "--url", server.url(1), "doctor", "--json")
    [found] = [one for one in json.loads(done.output)["findings"] if one["kind"] == "ping-hosts"]
    assert (found["severity"], done.exit_code) == ("note", 0)
    assert "of 1 ping_url, so nobody is told of the runs of a (hc-ping.com)." in found["problem"]


# -- which way messages go


def ways_in(done: Result) -> list[tuple[str, str]]:
    """Each finding about the way of messages."""
    found = json.loads(done.output)["findings"]
    return [(one["severity"], one["problem"]) for one in found if one["kind"] == "one-by-one"]


def test_entries_whose_messages_go_one_by_one_are_counted_by_their_reasons(
    ask: Ask, client: redis.Redis
) -> None:
    for number in range(30):
        write_raw(client, f"quick-{number}", score=LATER)
        write_raw(client, f"late-{number}", score=LATER, options={"countdown": 5})
    for number in range(69):
        write_raw(client, f"moved-{number}", score=LATER, jitter=5)
    assert ways_in(ask("--json")) == [], "99 are no reason to say anything"
    write_raw(client, "moved-again", score=LATER, jitter=5)
    reasons = "its policy has jitter (70); the option 'countdown' (30)"
    assert ways_in(ask("--json")) == [("note", f"Those of 100 of 130 entries go one by one: {reasons}.")]


def test_what_lets_all_messages_go_one_by_one_is_told_once(ask: Ask, client: redis.Redis) -> None:
    for number in range(100):
        write_raw(client, f"entry-{number}", score=LATER, jitter=5)
    [(severity, problem)] = ways_in(ask("--json", task_compression="zlib"))
    assert (severity, problem) == ("note", "Those of all entries go one by one: task_compression is 'zlib'.")


def test_many_reasons_take_few_words(ask: Ask, client: redis.Redis) -> None:
    for number in range(100):
        write_raw(client, f"entry-{number}", score=LATER, options={f"option-{number}": 1})
    [(_, problem)] = ways_in(ask("--json"))
    assert problem.startswith("Those of 100 of 100 entries go one by one: ")
    assert problem.endswith("; and 95 more reasons.")


@pytest.mark.parametrize("routes", ["nosuch.module.Router", [("half",)]], ids=["no module", "half a pair"])
def test_routes_that_cannot_be_used_are_an_error(routes: Any, findings: Any, client: redis.Redis) -> None:
    write_raw(client, "entry", score=LATER)
    [found] = findings(task_routes=routes)["task-routes"]
    assert (found["severity"], found["about"]) == ("error", "task_routes")
    assert found["problem"].startswith("No message can be sent, as it can't be used: ")


def test_static_entries_are_checked_before_a_beat_has_stored_them(ask: Ask, make_app: MakeApp) -> None:
    app = make_app(
        beat_schedule={
            "wrong": {"task": "echo", "schedule": "61 * * * *"},
            "no-dict": 5,
            "unknown": {"task": "ecco", "schedule": 60},
            "good": {"task": "echo", "schedule": 60},
        }
    )

    @app.task(name="echo", shared=False)
    def echo() -> None:
        """Do nothing."""

    found = json.loads(ask("--json", app=app).output)["findings"]
    assert {(one["kind"], one["about"]) for one in found if one["about"] in app.conf.beat_schedule} == {
        ("static", "wrong"),
        ("static", "no-dict"),
        ("unknown-task", "unknown"),
    }
    RedBeatSchedulerEntry("unknown", "ecco", 60, app=app).save()
    found = json.loads(ask("--json", app=app).output)["findings"]
    assert [one["about"] for one in found if one["kind"] == "unknown-task"] == ["unknown"], "once"


def test_an_entry_that_is_recreated_more_often_than_it_is_due_is_found(
    findings: Any, make_app: MakeApp, client: redis.Redis
) -> None:
    app = make_app()
    for name, times in (("recreated", 4), ("moved", 1)):
        for _ in range(times):
            RedBeatSchedulerEntry(name, "echo", 3600, app=app).save().delete()
        RedBeatSchedulerEntry(name, "echo", 3600, app=app).save()
    found = only(findings(), "recreated", "warning")
    assert found["about"] == "recreated"
    assert "deleted 4 times" in found["problem"]
    entry = next(RedBeatSchedulerEntry.from_key("recreated", app=app))
    assert "recreated" not in [one["kind"] for one in findings()]
    entry.delete()
    assert client.zrange("redbeat::unrun", 0, -1) == ["moved"]
