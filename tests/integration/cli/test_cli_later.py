"""`celery redbeat later`: stored messages listed, shown, counted, cancelled, and given to the broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

import pytest
import redis
from celery import Celery

import redbeat.later
from redbeat.entries.audit import find_records
from redbeat.process import exit_codes as exits
from tests.conftest import MakeApp
from tests.integration.cli.conftest import Call
from tests.integration.later.conftest import add_tasks, queued, stored_ids
from tests.support.command_line import call
from tests.support.hostile import HOSTILE, find_orders
from tests.support.schedule import LOCK
from tests.support.servers import Server
from tests.support.ticks import leader

TIMEZONE = "Europe/Berlin"
ETA = datetime(2099, 3, 1, 8, 30, tzinfo=timezone.utc)


@pytest.fixture
def app(make_app: MakeApp, server: Server) -> Celery:
    app = make_app(timezone=TIMEZONE, redbeat_durable_after=1, result_backend=server.url(0))
    redbeat.later.install(app)
    add_tasks(app)
    return app


@pytest.fixture
def stored(app: Celery) -> Iterator[None]:
    """Two messages, the later one of them pickled."""
    app.tasks["add"].apply_async((1,), {"y": 2}, task_id="first", eta=ETA, priority=3)
    app.tasks["add"].apply_async((3,), task_id="second", eta=ETA.replace(year=2100), serializer="pickle")
    return


@pytest.mark.usefixtures("stored")
def test_they_are_listed_in_the_user_s_zone_the_next_one_first(ask: Call) -> None:
    lines = ask("later", "list").stdout.splitlines()
    assert "eta, Europe/Berlin" in lines[0]
    assert [line.split()[0] for line in lines[2:]] == ["first", "second"]
    assert "2099-03-01 09:30:00" in lines[2]
    assert "[1] {'y': 2}" in lines[2]
    assert "(3,)" in lines[3], "of what isn't JSON, what Celery says of it"
    documents = [json.loads(line) for line in ask("later", "list", "--json").stdout.splitlines()]
    assert documents[0] == {
        "task_id": "first",
        "task": "add",
        "eta": "2099-03-01T08:30:00+00:00",
        "args": [1],
        "kwargs": {"y": 2},
        "content_type": "application/json",
        "exchange": "",
        "routing_key": "celery",
        "priority": 3,
        "expires": None,
        "retries": 0,
        "root_id": "first",
        "parent_id": None,
        "group": None,
        "problem": None,
        "error": None,
    }
    assert documents[1]["content_type"] == "application/x-python-serialize"
    second = ask("later", "list", "--offset", "1", "--json").stdout.splitlines()
    assert [json.loads(line)["task_id"] for line in second] == ["second"]
    shown = ask("later", "list", "--limit", "1")
    assert "--limit 0 shows all, --offset 1 the next" in shown.stderr


@pytest.mark.usefixtures("stored")
def test_they_are_counted_and_shown_one_by_one(ask: Call) -> None:
    assert ask("later", "count").stdout == "2\n"
    assert json.loads(ask("later", "count", "--json").stdout) == {"count": 2}
    shown = ask("later", "show", "first").stdout
    assert "2099-03-01 09:30:00 Europe/Berlin" in shown
    assert "priority" in shown
    missing = ask("later", "show", "third", code=exits.NO_INPUT)
    assert "Not stored at redis://" in missing.stderr
    assert json.loads(ask("later", "show", "second", "--json").stdout)["kwargs"] == "{}"


@pytest.mark.usefixtures("stored")
def test_they_are_cancelled_when_somebody_agrees_and_the_audit_list_knows(ask: Call, app: Celery) -> None:
    assert "give --yes" in ask("later", "cancel", "first", code=exits.USAGE).stderr
    assert stored_ids(app) == ["first", "second"]
    assert ask("later", "cancel", "first", "--yes").stdout == "Cancelled 1 message.\n"
    assert stored_ids(app) == ["second"]
    assert app.AsyncResult("first").status == "REVOKED"
    done = ask("later", "cancel", "second", "third", "second", "--yes", "--json", code=exits.NO_INPUT)
    assert json.loads(done.stdout) == {"cancelled": ["second"], "missing": ["third"]}
    verbs = [(record.verb, list(record.names)) for record in find_records(app)]
    assert ("later cancel", ["first"]) in verbs


def test_without_any_it_says_so(ask: Call) -> None:
    assert ask("later", "list").stdout == "There are no stored messages.\n"
    assert ask("later", "list", "--json").stdout == ""
    assert ask("later", "count").stdout == "0\n"
    assert ask("later", "release", "--all", "--yes").stdout == "Published 0 messages.\n"


@pytest.mark.usefixtures("stored")
def test_released_messages_are_on_the_queue_with_their_etas(
    ask: Call, app: Celery, broker: redis.Redis
) -> None:
    assert ask("later", "release", code=exits.USAGE)
    assert ask("later", "release", "first", "--yes").stdout == "Published 1 message.\n"
    assert stored_ids(app) == ["second"]
    assert json.loads(ask("later", "release", "--all", "--yes", "--json").stdout)["released"] == 1
    messages = queued(broker, "celery", "celery\x06\x163")
    assert sorted((one["headers"]["id"], one["headers"]["eta"][:4]) for one in messages) == [
        ("first", "2099"),
        ("second", "2100"),
    ]
    assert stored_ids(app) == []
    assert "Not stored" in ask("later", "release", "first", "--yes", code=exits.NO_INPUT).stderr


@pytest.mark.usefixtures("stored")
def test_nothing_is_released_while_a_beat_leads(ask: Call, app: Celery, broker: redis.Redis) -> None:
    with leader(app):
        done = ask("later", "release", "--all", "--yes", code=exits.TRY_AGAIN)
    assert "stop all beats" in done.stderr
    assert stored_ids(app) == ["first", "second"]
    assert queued(broker) == []


@pytest.mark.usefixtures("stored")
def test_what_cannot_be_released_stays_and_is_told_of(ask: Call, app: Celery, client: redis.Redis) -> None:
    client.hset("redbeat::later:first", "message", "garbage")
    client.delete("redbeat::body:second")
    done = ask("later", "release", "--all", "--yes", code=exits.TRY_AGAIN)
    assert "Published 0 messages." in done.stdout
    assert "first: its message can't be read" in done.stdout
    assert "second: its message can't be read: its body isn't in Redis any more" in done.stdout
    assert stored_ids(app) == ["first", "second"]


@pytest.mark.usefixtures("stored")
def test_what_cannot_be_read_is_listed_with_the_reason(ask: Call, client: redis.Redis) -> None:
    client.hset("redbeat::later:first", "message", '{"task_id": 5}')
    client.zadd("redbeat::later", {"redbeat::later:gone": 1, "stranger": 2})
    lines = ask("later", "list").stdout.splitlines()
    assert len(lines) == 6
    assert "its message can't be read" in " ".join(lines)
    documents = [json.loads(line) for line in ask("later", "list", "--json").stdout.splitlines()]
    assert {one["task_id"] for one in documents} >= {"gone", "second"}


@pytest.mark.parametrize("text", HOSTILE)
def test_nobody_s_text_takes_over_the_terminal(text: str, app: Celery, ask: Call) -> None:
    app.send_task(text, (text,), {"key": text}, task_id=text, eta=ETA)
    for arguments in (["list"], ["show", text]):
        done = ask("later", *arguments)
        assert not find_orders(done.stdout + done.stderr)


def test_the_schedule_s_own_list_leaves_them_out(ask: Call, app: Celery, add: Any) -> None:
    app.tasks["add"].apply_async((1,), task_id="first", eta=ETA)
    add("report")
    names = [json.loads(line)["name"] for line in ask("list", "--json").stdout.splitlines()]
    assert names == ["report"]
    assert ask("count").stdout.split()[0] == "1"


@pytest.mark.usefixtures("stored")
def test_downgrade_knows_them(ask: Call, client: redis.Redis, app: Celery) -> None:
    document = json.loads(ask("downgrade", "--json").stdout)
    assert (document["messages"], document["entries"]) == (2, 0)
    done = ask("downgrade", "--yes")
    assert "2 stored messages (celery redbeat later list): 2.x doesn't know them" in done.stdout
    assert stored_ids(app) == ["first", "second"]
    assert not client.exists(LOCK)


@pytest.mark.usefixtures("stored")
def test_purge_leaves_them_alone(ask: Call, app: Celery) -> None:
    ask("purge", "--yes")
    assert stored_ids(app) == ["first", "second"]


def findings(app: Celery) -> dict[str, dict[str, Any]]:
    found = json.loads(call(app, "doctor", "--json").stdout)["findings"]
    return {one["kind"]: one for one in found if one["kind"] != "persistence"}


@pytest.mark.usefixtures("stored")
def test_the_doctor_finds_nothing_wrong_with_them(app: Celery) -> None:
    assert not {"unscheduled", "unscheduled-message", "orphan-body", "late-messages"} & findings(app).keys()


@pytest.mark.usefixtures("stored")
def test_the_doctor_finds_those_that_nobody_will_send_and_mends_them(
    app: Celery, client: redis.Redis
) -> None:
    client.zrem("redbeat::later", "redbeat::later:first")
    client.delete("redbeat::later:second")
    found = findings(app)
    assert found["unscheduled-message"]["about"] == ":later:first"
    assert found["orphan-body"]["about"] == "redbeat::body:second"
    done = call(app, "doctor", "--fix")
    assert "redbeat::later:first: put among the stored messages, at its time." in done.stdout
    assert "redbeat::body:second: deleted." in done.stdout
    assert client.zscore("redbeat::later", "redbeat::later:first") == ETA.timestamp()
    assert client.exists("redbeat::body:second", "redbeat::later:second") == 0


@pytest.mark.usefixtures("stored")
def test_the_doctor_tells_of_those_that_are_late(app: Celery, client: redis.Redis) -> None:
    client.zadd("redbeat::later", {"redbeat::later:first": 1})
    assert "1 stored message should have been sent" in findings(app)["late-messages"]["problem"]
