"""Stored messages are listed where they are asked for, and only there."""

from __future__ import annotations

import json
from datetime import datetime, timezone

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.keys import Keys
from tests.support.command_line import call
from tests.support.stored import make_late, store


@pytest.fixture
def filled(app: Celery) -> Celery:
    """An app with an entry and three stored messages."""
    RedBeatSchedulerEntry("report", "tasks.report", 60, app=app).save()
    for number, task_id in enumerate(("one", "two", "three")):
        store(app, task_id, args=[number], seconds=7200 * (number + 1))
    return app


def test_a_list_leaves_stored_messages_out_unless_it_is_asked_for_them(filled: Celery) -> None:
    assert "one" not in call(filled, "list").stdout
    [line] = call(filled, "list", "--json").stdout.splitlines()
    assert json.loads(line)["name"] == "report"
    assert call(filled, "count").stdout == "1\n"
    asked = call(filled, "list", "--later")
    assert asked.stdout == call(filled, "later", "list").stdout
    assert "report " not in asked.stdout.replace("tasks.report", "")
    found = [json.loads(line) for line in call(filled, "list", "--later", "--json").stdout.splitlines()]
    assert [one["task_id"] for one in found] == ["one", "two", "three"]
    [line] = call(filled, "list", "--later", "--json", "--limit", "1", "--offset", "1").stdout.splitlines()
    assert json.loads(line)["task_id"] == "two"


@pytest.mark.parametrize(
    "options", [["--state", "due"], ["--match", "o*"], ["--sort", "name"], ["--reverse"], ["--disabled"]]
)
def test_stored_messages_are_not_chosen_as_entries_are(filled: Celery, options: list[str]) -> None:
    done = call(filled, "list", "--later", *options)
    assert (done.exit_code, "--later takes --limit" in done.output) == (64, True)


def test_whatever_stands_in_redis_is_listed(filled: Celery, client: redis.Redis) -> None:
    keys = Keys()
    store(filled, "dates", args=[datetime(2098, 1, 1, tzinfo=timezone.utc)])
    client.hset(keys.stored_message("broken"), "message", '{"task": 1, "expires_at": []}')
    client.zadd(keys.later, {keys.stored_message("broken"): "inf", keys.stored_message("gone"): -1})
    make_late(client, "one", 5.0)
    for arguments in (["list", "--later"], ["later", "list"], ["later", "show", "broken"]):
        for form in ([], ["--json"]):
            done = call(filled, *arguments, *form)
            assert done.exit_code == 0, done.output
    assert "never" in call(filled, "later", "list").stdout
    shown = json.loads(call(filled, "later", "show", "dates", "--json").stdout)
    assert shown["args"] == [{"__type__": "datetime", "__value__": "2098-01-01T00:00:00+00:00"}]
