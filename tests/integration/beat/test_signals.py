"""Signals fire in beat: each event at least once, in order, and no run waits for a receiver."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from redbeat import RedBeatSchedulerEntry as Entry
from tests.conftest import MakeApp
from tests.support.apps import celery_beat, write_app
from tests.support.command_line import call
from tests.support.logs import has_traceback
from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.schedule import LOCK, calls_of, messages, sent_names, server_now, write_raw
from tests.support.servers import Server

EVENTS, TOLD = "redbeat::events", "redbeat::events-read"

#: receivers that note on a list what they were told, and by whom
RECEIVERS = """
import os
from redbeat import signals

def text_of(value):
    return str(vars(value) if hasattr(value, "task_id") else value)

def note_all(sender, signal, **arguments):
    assert sender is app
    told = {name: text_of(one) for name, one in arguments.items()}
    runs_client().rpush("told", json.dumps({"signal": signal.name, "pid": os.getpid(), **told}))

for one in signals.ALL.values():
    one.connect(note_all)
"""

#: one that is at work until somebody pushes to the list "go"
SLOW = (
    RECEIVERS
    + """
@signals.run_ended.connect
def work(entry, **kwargs):
    runs_client().rpush("began", entry)
    assert runs_client().blpop("go", timeout=120)
    runs_client().rpush("finished", entry)
"""
)


class Ground:
    """A schedule with its broker, and beats on it."""

    def __init__(self, server: Server, directory: Path, client: redis.Redis, broker: redis.Redis) -> None:
        self.server, self.directory, self.client, self.broker = server, directory, client, broker

    def write(self, extra: str = RECEIVERS, **settings: Any) -> None:
        url, schedule_url = self.server.url(0), self.server.url(1)
        write_app(self.directory, "module", url, redbeat_redis_url=schedule_url, extra=extra, **settings)

    @contextmanager
    def beat(self, *, is_telling: bool = True) -> Iterator[Process]:
        """A beat; with `is_telling` it tells from now on."""
        with celery_beat(self.directory, "module") as process:
            if is_telling:
                eventually(lambda: self.client.exists(TOLD))
            yield process

    def add(self, event: str, entry: str, **run: Any) -> None:
        run.setdefault("outcome", "succeeded")
        run = {"task_id": f"id-of-{entry}", "due": "1769844600.000000", **run}
        self.client.xadd(EVENTS, {"event": event, "entry": entry, "run": json.dumps(run)})

    def told(self, *names: str) -> list[dict[str, Any]]:
        """What the receivers were told by these signals, in order; by default by all but leader_changed."""
        found: Any = self.broker.lrange("told", 0, -1)
        told = [json.loads(one) for one in found]
        return [
            one for one in told if (one["signal"] in names if names else one["signal"] != "leader_changed")
        ]

    def told_entries(self) -> list[str]:
        return [one["entry"] for one in self.told()]


@pytest.fixture
def ground(server: Server, tmp_path: Path, client: redis.Redis, broker: redis.Redis) -> Ground:
    return Ground(server, tmp_path, client, broker)


# -- what is told


UNREADABLE: list[dict[str, Any]] = [
    {"event": "run_ended", "entry": "a", "run": "{oops"},
    {"event": "run_ended", "entry": "b", "run": "[]"},
    {"event": "run_sent", "key": "redbeat:b", "run": '{"due": 1}'},
    {"event": "run_ended"},
    {"event": "of_a_later_version", "entry": "c", "run": "{}"},
    {"event": "entry_paused", "entry": "d", "details": '{"until": "never"}'},
]


def test_each_event_after_the_start_is_signalled_once_in_order_with_its_arguments(ground: Ground) -> None:
    ground.write()
    ground.add("run_ended", "before the start")
    with ground.beat() as beat:
        for fields in UNREADABLE:
            ground.client.xadd(EVENTS, fields)
        record = '{"at":1769844601.5,"due":1769844600,"outcome":"skipped","why":"it is late"}'
        ground.client.xadd(EVENTS, {"event": "run_skipped", "key": "redbeat:report", "run": record})
        ground.add("run_started", "report", worker="celery@a", attempt=2, wait="0.500000", at="1769844601")
        ground.add("run_overdue", "report", worker="celery@a", started="1769844601.000000")
        ground.add("run_ended", "report", outcome="failed", error="ValueError: no", ran=1.25)
        eventually(lambda: len(ground.told()) == 4)
        assert not has_traceback(beat.output())
    told = ground.told()
    assert {one["entry"] for one in told} == {"report"}
    moment = "datetime.datetime(2026, 1, 31, 7, 30, "
    due = ["'task_id': 'id-of-report'", f"'due': {moment}tzinfo="]
    started_at = f"'started_at': {moment}1, tzinfo="
    expected = {
        "run_skipped": ["'task_id': None", "'why': 'it is late'"],
        "run_started": [*due, started_at, "'worker': 'celery@a', 'attempt': 2, 'wait_seconds': 0.5"],
        "run_overdue": [*due, started_at, "'is_overdue': True"],
        "run_ended": [*due, "'outcome': 'failed'", "'run_seconds': 1.25", "'error': 'ValueError: no'"],
    }
    assert [one["signal"] for one in told] == [*expected]
    for one, words in zip(told, expected.values(), strict=True):
        assert not [text for text in words if text not in one["run"]], one


def test_pauses_quarantines_and_skipped_runs_are_signalled(ground: Ground, make_app: MakeApp) -> None:
    app = make_app()
    ground.write()
    Entry.save_many([Entry(name, "echo", 3600, app=app) for name in ("report", "other", "last")])
    with ground.beat():
        Entry.get("report", app).pause("broken", by="ann")
        assert Entry.pause_many(["report", "other"], app, note="tonight").changed == ("other",)
        write_raw(ground.client, "bad", "{oops")
        assert call(app, "pause", "last", "--yes", "--until", "1h").exit_code == 0
        write_raw(ground.client, "late", score=server_now(ground.client) - 7000, misfire="skip")
        eventually(lambda: len(ground.told()) == 5)
    told = {one["entry"]: one for one in ground.told()}
    assert {"note": "broken", "by": "ann", "until": "None"}.items() <= told["report"].items()
    assert {"note": "tonight", "until": "None"}.items() <= told["other"].items()
    assert told["late"]["signal"] == "run_skipped"
    assert "misfire: skip" in told["late"]["run"]
    assert told["last"]["until"].endswith("+00:00")
    assert told["bad"]["signal"] == "entry_quarantined"
    assert "redbeat:bad" in told["bad"]["reason"]


@pytest.mark.few_cases(1)
@pytest.mark.parametrize("settings", [{}, {"redbeat_lookahead": 0}, {"redbeat_lock_key": None}])
def test_sent_runs_are_signalled_once(ground: Ground, settings: dict[str, Any]) -> None:
    ground.write(beat_schedule={"often": {"task": "echo", "schedule": 0.3}}, **settings)
    with ground.beat():
        eventually(lambda: len(ground.told("run_sent")) >= 10)
    runs = [one["run"] for one in ground.told("run_sent")]
    told = [re.findall(r"'task_id': '(.*?)'", run)[0] for run in runs]
    sent = [message["headers"]["id"] for message in messages(ground.broker)]
    first = sent.index(told[0])
    assert told == sent[first : first + len(told)]
    assert first <= 10, "telling begins with beat's first second"


def test_events_while_no_beat_ran_are_signalled_by_the_next_leader(ground: Ground) -> None:
    ground.write()
    with ground.beat() as first:
        pass
    ground.add("run_ended", "meanwhile")
    with ground.beat() as second:
        eventually(lambda: ground.told_entries() == ["meanwhile"])
    leaders = ground.told("leader_changed")
    assert [one["pid"] for one in leaders] == [first.pid, second.pid]
    assert (leaders[0]["previous"], leaders[0]["shards"]) == ("None", "()")
    assert f"pid={second.pid}, since=" in leaders[1]["leader"]
    assert f"pid={first.pid}, since=" in leaders[1]["previous"]
    assert 0 < ground.client.pttl(TOLD) <= 7 * 24 * 3600 * 1000


# -- receivers that misbehave


def test_slow_receiver_delays_no_run(ground: Ground) -> None:
    ground.write(SLOW, beat_schedule={"often": {"task": "echo", "schedule": 0.2}})
    with ground.beat() as beat:
        ground.add("run_ended", "slow")
        eventually(lambda: ground.broker.llen("began") == 1)
        sent = len(sent_names(ground.broker))
        began = time.monotonic()
        eventually(lambda: len(sent_names(ground.broker)) >= sent + 20)
        assert ground.broker.llen("finished") == 0
        print(f"20 runs in {time.monotonic() - began:.1f} s; 4 s are due")
        ground.broker.rpush("go", 1)
        eventually(lambda: ground.broker.llen("finished") == 1)
        assert beat.is_running


@pytest.mark.slow
def test_slow_receiver_may_finish_when_beat_ends(ground: Ground) -> None:
    ground.write(SLOW)
    with ground.beat() as beat:
        ground.add("run_ended", "one")
        ground.add("run_ended", "two")
        eventually(lambda: ground.broker.llen("began") == 1)
        beat.signal(signal.SIGTERM)
        eventually(lambda: not ground.client.exists(LOCK), message="another beat can go on at once")
        ground.broker.rpush("go", 1)
        assert beat.wait() == 0
    assert ground.broker.lrange("finished", 0, -1) == ["one"]
    with ground.beat():
        ground.broker.rpush("go", 2)
        eventually(lambda: ground.broker.lrange("finished", 0, -1) == ["one", "two"])
    assert ground.broker.lrange("began", 0, -1) == ["one", "two"]


# -- at least once, by one beat


@pytest.mark.slow
def test_event_is_signalled_again_when_beat_is_killed_amid_its_receiver(ground: Ground) -> None:
    ground.write(SLOW)
    with ground.beat() as beat:
        for name in ("one", "two", "three"):
            ground.add("run_ended", name)
        ground.broker.rpush("go", 1)
        eventually(lambda: ground.broker.lrange("began", 0, -1) == ["one", "two"])
        beat.kill()
    with ground.beat():
        ground.broker.rpush("go", *range(9))
        eventually(lambda: ground.broker.lrange("finished", 0, -1)[-1:] == ["three"])
    finished: Any = ground.broker.lrange("finished", 0, -1)
    assert list(dict.fromkeys(finished)) == ["one", "two", "three"]
    assert finished.count("two") == 1, "it had not finished the first time"
    assert finished.count("three") == 1


# -- who leads


@pytest.mark.slow
def test_new_leader_is_signalled_with_the_one_before(ground: Ground) -> None:
    ground.write()
    with ground.beat() as first:
        first.wait_for("beat: Acquired lock")
        with ground.beat() as second:
            second.wait_for("beat: Acquiring lock...")
            eventually(lambda: len(ground.told("leader_changed")) == 1)
            first.stop()
            eventually(lambda: len(ground.told("leader_changed")) == 2)
            with ground.beat() as third:
                third.wait_for("beat: Acquiring lock...")
                second.kill()
                eventually(lambda: len(ground.told("leader_changed")) == 3)
    told = ground.told("leader_changed")
    assert [one["pid"] for one in told] == [first.pid, second.pid, third.pid]
    assert all(f"pid={one['pid']}, since=" in one["leader"] for one in told)
    assert (told[0]["previous"], told[0]["shards"]) == ("None", "()")
    assert f"pid={first.pid}, since=" in told[1]["previous"], "it has released the lock"
    assert f"pid={second.pid}, since=" in told[2]["previous"], "it was silent"


# -- what it costs


def test_no_events_are_read_without_receivers(ground: Ground) -> None:
    ground.write("", beat_schedule={"often": {"task": "echo", "schedule": 0.2}})
    ground.add("run_ended", "report")
    before = calls_of(ground.client, "xread")
    with ground.beat(is_telling=False):
        eventually(lambda: len(sent_names(ground.broker)) > 15)
    assert not ground.client.exists(TOLD)
    assert calls_of(ground.client, "xread") == before
