"""Signals fire in beat: each event at least once, in order, and no run waits for a receiver."""

from __future__ import annotations

import importlib.util
import json
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis

from redbeat import RedBeatSchedulerEntry as Entry
from tests.conftest import MakeApp
from tests.support.apps import (
    GREENLETS,
    celery_beat,
    celery_worker,
    patched_beat,
    stop_worker,
    write_app,
)
from tests.support.command_line import call
from tests.support.logs import has_traceback
from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.schedule import (
    LOCK,
    calls_of,
    messages,
    meta_json,
    sent_names,
    server_time,
    write_raw,
)
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
        write_app(
            self.directory, "module", self.server.url(0), redbeat_redis_url=self.server.url(1), extra=extra,
            **settings,
        )  # fmt: skip

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


def test_each_event_is_told_once_and_in_order_with_its_arguments(ground: Ground) -> None:
    ground.write()
    with ground.beat() as beat:
        record = '{"at":1769844601.5,"due":1769844600,"outcome":"skipped","why":"it is late"}'
        ground.client.xadd(EVENTS, {"event": "run_skipped", "key": "redbeat:report", "run": record})
        ground.add("run_started", "report", worker="celery@a", attempt=2, wait="0.500000", at="1769844601")
        ground.add("run_overdue", "report", worker="celery@a", started="1769844601.000000")
        ground.add(
            "run_ended", "report", outcome="failed", error="ValueError: no", worker="celery@a", ran=1.25
        )
        eventually(lambda: len(ground.told()) == 4)
        assert not has_traceback(beat.output())
    told = ground.told()
    assert [one["signal"] for one in told] == ["run_skipped", "run_started", "run_overdue", "run_ended"]
    assert {one["entry"] for one in told} == {"report"}
    skipped, started, overdue, ended = (one["run"] for one in told)
    for run in (started, overdue, ended):
        assert "'task_id': 'id-of-report'" in run
        assert "'due': datetime.datetime(2026, 1, 31, 7, 30, tzinfo=" in run
    assert "'task_id': None" in skipped
    assert "'why': 'it is late'" in skipped
    assert "'outcome': None" in started
    assert "'started_at': datetime.datetime(2026, 1, 31, 7, 30, 1, tzinfo=" in started
    assert "'worker': 'celery@a', 'attempt': 2, 'wait_seconds': 0.5" in started
    assert "'is_overdue': True" in overdue
    assert "'started_at': datetime.datetime(2026, 1, 31, 7, 30, 1, tzinfo=" in overdue
    assert "'outcome': 'failed'" in ended
    assert "'run_seconds': 1.25" in ended
    assert "'error': 'ValueError: no'" in ended


def test_pauses_and_quarantines_are_told_of(ground: Ground, make_app: MakeApp) -> None:
    app = make_app()
    ground.write()
    Entry("report", "echo", 3600, app=app).save()
    Entry("other", "echo", 3600, app=app).save()
    with ground.beat():
        Entry.get("report", app).pause("broken", by="ann")
        assert Entry.pause_many(["report", "other"], app, note="tonight").changed == ("other",)
        write_raw(ground.client, "bad", "{oops")
        Entry("last", "echo", 3600, app=app).save()
        assert call(app, "pause", "last", "--yes", "--until", "1h").exit_code == 0
        eventually(lambda: len(ground.told()) == 4)
    told = {one["entry"]: one for one in ground.told()}
    assert (told["report"]["note"], told["report"]["by"], told["report"]["until"]) == (
        "broken",
        "ann",
        "None",
    )
    assert (told["other"]["note"], told["other"]["until"]) == ("tonight", "None")
    assert told["last"]["until"].endswith("+00:00")
    assert told["bad"]["signal"] == "entry_quarantined"
    assert "redbeat:bad" in told["bad"]["reason"]


@pytest.mark.few_cases(1)
@pytest.mark.parametrize("settings", [{}, {"redbeat_lookahead": 0}, {"redbeat_lock_key": None}])
def test_runs_that_beat_sends_are_told_of_each_once(ground: Ground, settings: dict[str, Any]) -> None:
    ground.write(beat_schedule={"often": {"task": "echo", "schedule": 0.3}}, **settings)
    with ground.beat():
        eventually(lambda: len(ground.told("run_sent")) >= 10)
    runs = [one["run"] for one in ground.told("run_sent")]
    told = [re.findall(r"'task_id': '(.*?)'", run)[0] for run in runs]
    sent = [message["headers"]["id"] for message in messages(ground.broker)]
    first = sent.index(told[0])
    assert told == sent[first : first + len(told)]
    assert first <= 10, "telling begins with beat's first second"


def test_runs_that_beat_leaves_out_are_told_of_with_the_reason(ground: Ground) -> None:
    ground.write()
    now = server_time(ground.client)
    with ground.beat():
        meta = meta_json(now - timedelta(hours=5), 1)
        policy = {"misfire": "all", "misfire_limit": 1}
        score = (now - timedelta(hours=4)).timestamp()
        write_raw(ground.client, "late", score=score, meta=meta, **policy)
        eventually(lambda: len(ground.told()) == 2)
    told = {one["signal"]: one for one in ground.told()}
    assert told.keys() == {"run_skipped", "run_sent"}
    assert "older than the limit of 1 (misfire_limit)" in told["run_skipped"]["run"]
    assert "'outcome': 'skipped'" in told["run_skipped"]["run"]
    assert "'task_id': None" in told["run_skipped"]["run"]
    assert "'count': 4" in told["run_skipped"]["run"]


@pytest.mark.few_cases(3)
@pytest.mark.parametrize(
    "settings",
    [{}, {"redbeat_lookahead": 0}, {"redbeat_lock_key": None}, {"redbeat_delivery": "at_most_once"}],
)
@pytest.mark.parametrize("is_elsewhere", [False, True], ids=["same server", "broker elsewhere"])
def test_runs_that_others_hold_back_are_told_of_wherever_the_broker_is(
    ground: Ground, other: Server, make_app: MakeApp, settings: dict[str, Any], is_elsewhere: bool
) -> None:
    broker_url = other.url(0) if is_elsewhere else ground.server.url(0)
    write_app(
        ground.directory, "module", broker_url, ground.server.url(0), RECEIVERS,
        redbeat_redis_url=ground.server.url(1), **settings,
    )  # fmt: skip
    with ground.beat():
        Entry("often", "echo", 0.5, overlap="skip", app=make_app()).save()
        eventually(lambda: len(ground.told("run_skipped")) >= 3)
    [sent] = ground.told("run_sent")
    [task_id] = re.findall(r"'task_id': '(.*?)'", sent["run"])
    for one in ground.told("run_skipped"):
        assert f"'why': 'the run {task_id} was on its queue since " in one["run"]
        assert "'outcome': 'skipped'" in one["run"]


@pytest.mark.parametrize("after_finish", ["keep", "delete"])
def test_the_last_run_of_an_entry_is_told_of_as_any_other(
    ground: Ground, make_app: MakeApp, after_finish: Any
) -> None:
    ground.write()
    with ground.beat():
        Entry("once", "echo", 0.1, one_off=True, after_finish=after_finish, app=make_app()).save()
        eventually(lambda: len(ground.told("run_sent")) == 1)
    [message] = messages(ground.broker)
    assert f"'task_id': '{message['headers']['id']}'" in ground.told("run_sent")[0]["run"]


def test_a_quarantine_is_told_of_once_though_the_entry_is_tried_again(ground: Ground) -> None:
    ground.write(beat_max_loop_interval=1)
    with ground.beat():
        write_raw(ground.client, "bad", "{oops")
        eventually(lambda: ground.told_entries() == ["bad"])
        score = ground.client.zscore("redbeat::schedule", "redbeat:bad")
        eventually(lambda: ground.client.zscore("redbeat::schedule", "redbeat:bad") != score)
        ground.add("run_started", "after")
        eventually(lambda: "after" in ground.told_entries())
    assert ground.told_entries() == ["bad", "after"]


def test_an_event_that_can_not_be_read_is_left_out(ground: Ground) -> None:
    ground.write()
    with ground.beat():
        for fields in (
            {"event": "run_ended", "entry": "a", "run": "{oops"},
            {"event": "run_ended", "entry": "b", "run": "[]"},
            {"event": "run_sent", "key": "redbeat:b", "run": '{"due": 1}'},
            {"event": "run_ended"},
            {"event": "of_a_later_version", "entry": "c", "run": "{}"},
            {"event": "entry_paused", "entry": "d", "details": '{"until": "never"}'},
            {"nothing": "of this"},
        ):
            ground.client.xadd(EVENTS, fields)
        ground.add("run_started", "report")
        eventually(lambda: ground.told_entries() == ["report"])


def test_telling_begins_at_the_end_of_what_was_there_before(ground: Ground) -> None:
    ground.write()
    ground.add("run_ended", "long ago")
    with ground.beat():
        ground.add("run_ended", "now")
        eventually(lambda: ground.told_entries() == ["now"])


def test_what_has_happened_while_no_beat_ran_is_told_later(ground: Ground) -> None:
    ground.write()
    with ground.beat():
        pass
    ground.add("run_ended", "meanwhile")
    with ground.beat():
        eventually(lambda: ground.told_entries() == ["meanwhile"])
    assert 0 < ground.client.pttl(TOLD) <= 7 * 24 * 3600 * 1000


# -- receivers that misbehave


def test_a_receiver_that_is_at_work_delays_no_run(ground: Ground) -> None:
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


def test_receivers_that_fail_or_want_to_end_beat_stop_nobody(ground: Ground) -> None:
    ground.write(
        """
from redbeat import signals

@signals.run_ended.connect
def broken_receiver(entry, **kwargs):
    raise ValueError("no chat today")

@signals.run_started.connect
def ending_receiver(entry, **kwargs):
    raise SystemExit(3)
"""
        + RECEIVERS
    )
    with ground.beat() as beat:
        for event in ("run_ended", "run_started", "run_overdue"):
            ground.add(event, event, outcome="failed")
        eventually(lambda: {"run_ended", "run_overdue"} <= set(ground.told_entries()))
        beat.wait_for("broken_receiver")
        beat.wait_for("ending_receiver")
        assert "of run_started has raised an error" in beat.output()
        assert "SystemExit: 3" in beat.output()
        assert "no chat today" in beat.output()
        assert beat.is_running


def test_a_receiver_that_is_at_work_has_time_to_finish_when_beat_ends(ground: Ground) -> None:
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


# -- beats of every kind


@pytest.mark.few_cases(1)
@pytest.mark.parametrize("library", GREENLETS)
def test_where_threads_are_greenlets_a_receiver_delays_no_run_either(ground: Ground, library: str) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} isn't installed")
    ground.write(SLOW, beat_schedule={"often": {"task": "echo", "schedule": 0.2}})
    with patched_beat(ground.directory, "module", library) as beat:
        eventually(lambda: ground.client.exists(TOLD))
        ground.add("run_ended", "slow")
        eventually(lambda: ground.broker.llen("began") == 1)
        sent = len(sent_names(ground.broker))
        eventually(lambda: len(sent_names(ground.broker)) >= sent + 20)
        assert ground.broker.llen("finished") == 0
        ground.broker.rpush("go", 1)
        eventually(lambda: ground.broker.llen("finished") == 1)
        assert beat.stop() == 0
        assert not has_traceback(beat.output()), beat.output()


@pytest.mark.few_cases(1)
@pytest.mark.parametrize("pool", ["solo", "prefork"])
def test_the_beat_inside_a_worker_tells_and_ends_with_it(ground: Ground, pool: str) -> None:
    ground.write()
    arguments = ["-B", "--scheduler", "redbeat.RedBeatScheduler", "-s", str(ground.directory / "none")]
    with celery_worker(ground.directory, "module", *arguments, "-P", pool, "-c", "1") as worker:
        eventually(lambda: ground.client.exists(TOLD))
        ground.add("run_ended", "report")
        eventually(lambda: ground.told_entries() == ["report"])
        eventually(lambda: len(ground.told("leader_changed")) == 1)
        stop_worker(worker)
    assert not ground.client.exists(LOCK)


# -- at least once, by one beat


def test_an_event_is_told_again_when_beat_is_killed_amid_its_receiver(ground: Ground) -> None:
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


def test_beats_without_a_lock_tell_each_event_once(ground: Ground) -> None:
    ground.write(redbeat_lock_key=None)
    names = [f"entry-{number}" for number in range(300)]
    with ground.beat(), ground.beat() as second:
        second.wait_for("beat: Starting...")
        for name in names:
            ground.add("run_ended", name)
        eventually(lambda: set(ground.told_entries()) >= set(names))
        eventually(lambda: " " not in (ground.client.get(TOLD) or " "), message="all are noted as told")
    assert Counter(ground.told_entries()) == dict.fromkeys(names, 1)


def test_beats_without_a_lock_go_on_with_what_a_killed_one_had_taken(ground: Ground) -> None:
    ground.write(SLOW, redbeat_lock_key=None)
    with ground.beat() as first:
        for name in ("one", "two"):
            ground.add("run_ended", name)
        eventually(lambda: ground.broker.llen("began") == 1)
        with ground.beat():
            first.kill()
            told, _, claim = str(ground.client.get(TOLD)).partition(" ")
            assert claim, "for a minute they are the first one's"
            ground.client.set(TOLD, f"{told} {claim.split()[0]} 1.000")
            ground.broker.rpush("go", 1, 2)
            eventually(lambda: ground.broker.lrange("finished", 0, -1) == ["one", "two"])


def test_a_standby_tells_nothing(ground: Ground) -> None:
    ground.write()
    with ground.beat() as first, ground.beat() as second:
        first.wait_for("beat: Acquired lock")
        second.wait_for("beat: Acquiring lock...")
        for number in range(50):
            ground.add("run_ended", f"entry-{number}")
        eventually(lambda: len(ground.told()) == 50)
        assert {one["pid"] for one in ground.told()} == {first.pid}


# -- who leads


def test_a_new_leader_is_told_of_with_the_one_before(ground: Ground) -> None:
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


@pytest.mark.few_cases(1)
def test_a_leader_of_shards_is_told_of_once_with_all_that_it_has_taken(ground: Ground) -> None:
    ground.write(redbeat_shards=4)
    with ground.beat(is_telling=False) as first:
        eventually(lambda: len(ground.told("leader_changed")) == 1)
        first.stop()
        with ground.beat(is_telling=False) as second:
            eventually(lambda: len(ground.told("leader_changed")) == 2)
            second.stop()
    told = ground.told("leader_changed")
    assert [one["shards"] for one in told] == ["(0, 1, 2, 3)"] * 2
    assert f"pid={first.pid}, since=" in told[1]["previous"]


# -- what it costs


def test_nothing_is_read_where_nobody_listens(ground: Ground) -> None:
    ground.write("", beat_schedule={"often": {"task": "echo", "schedule": 0.2}})
    ground.add("run_ended", "report")
    before = calls_of(ground.client, "xread")
    with ground.beat(is_telling=False):
        eventually(lambda: len(sent_names(ground.broker)) > 15)
    assert not ground.client.exists(TOLD)
    assert calls_of(ground.client, "xread") == before


def test_listening_costs_one_small_command_a_second(ground: Ground) -> None:
    ground.write()
    with ground.beat():
        before, began = calls_of(ground.client, "xread"), time.monotonic()
        eventually(lambda: time.monotonic() > began + 5)
        calls, seconds = calls_of(ground.client, "xread") - before, time.monotonic() - began
    print(f"{calls} looks in {seconds:.1f} s")
    assert 2 <= calls <= seconds + 2


def test_redis_away_is_no_news_and_what_happened_is_told_when_it_is_back(
    ground: Ground, second: Server, tmp_path: Path
) -> None:
    write_app(
        tmp_path, "module", ground.server.url(0), redbeat_redis_url=second.url(0), extra=RECEIVERS,
        redbeat_redis_options={"retry_period": -1},
    )  # fmt: skip
    with celery_beat(tmp_path, "module") as beat, second.client() as client:
        eventually(lambda: client.exists(TOLD))
        run = json.dumps({"task_id": "x", "due": 1, "outcome": "lost"})
        sent = client.xadd(EVENTS, {"event": "run_ended", "entry": "before", "run": run})
        eventually(lambda: client.get(TOLD) == sent)
        assert ground.told_entries() == ["before"]
        client.save()
        second.kill()
        beat.wait_for("Retrying Redis connection")
        second.restart()
        client.xadd(EVENTS, {"event": "run_ended", "entry": "after", "run": run})
        eventually(lambda: ground.told_entries() == ["before", "after"])
        assert "Signals can't be sent" not in beat.output()
        assert not has_traceback(beat.output())
