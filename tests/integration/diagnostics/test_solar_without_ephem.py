"""Where the package `ephem` isn't installed, an entry with a solar schedule is told, and nobody else is."""

from __future__ import annotations

import json
import sys

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.errors import EntryCorrupt, EntryError
from tests.support.command_line import call
from tests.support.schedule import write_raw
from tests.support.servers import Server
from tests.support.ticks import leader

SUNSET = {"__type__": "solar", "event": "sunset", "lat": 52.5, "lon": 13.4}
HINT = "solar: it needs the package ephem: pip install ephem"


@pytest.fixture
def server(valkey: Server) -> Server:
    """One kind is enough."""
    return valkey


@pytest.fixture(autouse=True)
def entries(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ephem", None)
    write_raw(client, "evening", schedule=SUNSET, score=1)
    write_raw(client, "hourly", score=2)


@pytest.mark.parametrize(
    "command",
    [
        *("list", "list --json", "export", "doctor", "timeline", "downgrade", "show hourly", "why evening"),
        *("pause --match * --yes", "resume --match * --yes", "show evening", "resume evening", "status"),
        "delete evening --yes",
    ],
)
def test_no_command_ends_with_a_traceback(app: Celery, command: str) -> None:
    done = call(app, *command.split())
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception


def test_the_entry_is_told_and_the_others_shown(app: Celery, client: redis.Redis) -> None:
    listed = {one["name"]: one for one in map(json.loads, call(app, "list", "--json").stdout.splitlines())}
    assert set(listed) == {"evening", "hourly"}
    assert HINT in json.dumps(listed["evening"])
    assert HINT not in json.dumps(listed["hourly"])
    assert HINT in call(app, "doctor").output
    assert "2.x has no schedules of type 'solar'" in call(app, "downgrade").output
    call(app, "pause", "--match", "*", "--yes")
    assert not Entry.get("hourly", app).enabled
    done = call(app, "downgrade", "--yes")
    assert done.exit_code == 0, done.output
    assert client.hkeys("redbeat::downgraded") == ["redbeat:evening"]


def test_reading_and_making_it_are_errors_of_ours(app: Celery) -> None:
    with pytest.raises(EntryCorrupt, match=HINT):
        Entry.from_key("evening", app)
    with pytest.raises(EntryError, match=HINT):
        Entry.from_dict({"name": "x", "task": "echo", "schedule": SUNSET}, app)


def test_adding_one_is_refused_in_one_line(app: Celery) -> None:
    done = call(app, "add", "x", "echo", "--solar", "sunset,52.5,13.4")
    assert done.exit_code == 64
    assert "it needs the package ephem: pip install ephem" in done.output
    assert "\\n" not in done.output


def test_a_beat_quarantines_it_and_runs_the_others(app: Celery, client: redis.Redis) -> None:
    with leader(app) as scheduler:
        scheduler.tick()
    assert HINT in client.hget("redbeat:evening", "error")
    assert json.loads(client.hget("redbeat:hourly", "meta"))["total_run_count"] == 1
