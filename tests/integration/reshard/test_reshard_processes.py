"""Beat and reshard processes during a reshard: each run is sent once, and only one command moves entries."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path

import pytest
import redis
from celery import Celery

from redbeat.reshard.resharding import Resharding
from tests.integration.reshard.resharded import fill, hidden_keys, read_all
from tests.support.apps import celery_beat, celery_command, write_app
from tests.support.logs import has_traceback
from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.schedule import messages, meta_json, write_raw
from tests.support.servers import Server

#: of entries that make up for all that they miss, so that each of their runs is to be sent once
COUNT, EVERY_SECONDS = 200, 2.0


def write_steady(client: redis.Redis, beginning: float) -> None:
    """Write entries by hand whose due times are spread; the first is due at `beginning`, UNIX seconds."""
    for number in range(COUNT):
        due = beginning + EVERY_SECONDS * number / COUNT + 0.000123
        schedule = {"__type__": "interval", "every": EVERY_SECONDS}
        last_run_at = datetime.fromtimestamp(due - EVERY_SECONDS, timezone.utc)
        write_raw(client, f"entry-{number}", score=due, schedule=schedule, meta=meta_json(last_run_at))
        client.hset(f"redbeat:entry-{number}", "policy", '{"misfire": "all"}')


def sent_dues(broker: redis.Redis) -> dict[str, list[float]]:
    """When the runs of each entry were due whose messages are on the queue."""
    dues: dict[str, list[float]] = {}
    for headers in (message["headers"] for message in messages(broker)):
        due = datetime.fromisoformat(headers["redbeat_due"]).timestamp()
        dues.setdefault(headers["redbeat_entry"], []).append(due)
    return dues


def app_of(server: Server) -> Celery:
    app = Celery("test", set_as_current=False)
    app.conf.update(broker_url=server.url(0), redbeat_redis_url=server.url(1))
    return app


@contextmanager
def beats(directory: Path, count: int) -> Iterator[list[Process]]:
    with ExitStack() as at_end:
        started = [celery_beat(directory, "module") for _ in range(count)]
        for beat in started:
            at_end.callback(beat.kill)
        yield started


@pytest.mark.slow
@pytest.mark.few_cases(1)
@pytest.mark.parametrize("count", [1, 2])
def test_beat_processes_send_each_run_once_during_reshards(
    server: Server,
    client: redis.Redis,
    broker: redis.Redis,
    tmp_path: Path,
    chance: random.Random,
    count: int,
) -> None:
    write_steady(client, time.time() + 1)
    Resharding(app_of(server), 3).run()
    write_app(tmp_path, "module", server.url(0), redbeat_redis_url=server.url(1), redbeat_shards=3)
    with beats(tmp_path, count) as running:
        eventually(lambda: len(sent_dues(broker)) == COUNT, 60, message="they don't begin")
        for shards in chance.sample([2, 5, 8, 16], 2):
            report = Resharding(app_of(server), shards).run()
            print(report)
            assert report.unled == []
        sent = broker.llen("celery")
        eventually(lambda: broker.llen("celery") > sent + 2 * COUNT, 60, message="they don't go on")
        for beat in running:
            assert beat.is_running
            assert not has_traceback(beat.output()), beat.output()
    for name, dues in sent_dues(broker).items():
        gaps = [later - earlier for earlier, later in pairwise(sorted(dues))]
        assert gaps == pytest.approx([EVERY_SECONDS] * len(gaps), abs=0.001), name


ENTRIES = 2_000


@pytest.fixture
def directory(tmp_path: Path, server: Server) -> Path:
    write_app(tmp_path, "module", server.url(0), redbeat_redis_url=server.url(1))
    return tmp_path


def command(directory: Path, shards: int) -> Process:
    return celery_command(directory, "module", "redbeat", "reshard", "--to", str(shards), "--yes")


@pytest.mark.slow
def test_two_reshard_commands_at_once_make_one_change(
    directory: Path, raw: redis.Redis, chance: random.Random
) -> None:
    fill(raw, chance, ENTRIES)
    before, _ = read_all(raw)
    with ExitStack() as at_end:
        movers = [at_end.enter_context(command(directory, 4)) for _ in range(2)]
        eventually(lambda: raw.hget("redbeat::layout", "state") or not all(one.is_running for one in movers))
        other = at_end.enter_context(command(directory, 7))
        codes = [mover.wait() for mover in movers]
        outputs = [mover.output() for mover in [*movers, other]]
        assert 0 in codes, outputs
        assert {*codes} <= {0, 75}, outputs
        for code, output in zip(codes, outputs, strict=False):
            assert code == 0 or "this one stops" in output or "changed once more" in output, output
        assert other.wait() in (0, 75), outputs  # 0: it came last
        assert not any(map(has_traceback, outputs)), outputs
    raw.delete("redbeat::audit")
    assert read_all(raw) == (before, [])
    assert [*raw.scan_iter("*}::mover")] == []


@pytest.mark.slow
def test_ctrl_c_in_a_reshard_command_leaves_nothing_hidden(
    directory: Path, raw: redis.Redis, chance: random.Random
) -> None:
    fill(raw, chance, ENTRIES)
    before, _ = read_all(raw)
    code, shards = 0, 0
    for shards in [4, 7] * 5:  # a reshard may be over before the signal arrives
        with command(directory, shards) as mover:
            left = raw.scard("redbeat::left")
            eventually(lambda: raw.scard("redbeat::left") > left or not mover.is_running, 60, 0.002)  # noqa: B023
            mover.signal(signal.SIGINT)
            code = mover.wait()
        assert code in (0, 130), mover.output()
        assert hidden_keys(raw) == [], mover.output()
        assert not has_traceback(mover.output()), mover.output()
        if code == 130:
            assert f"reshard --to {shards} goes on" in mover.output()
            break
    assert code == 130, "no reshard was interrupted"
    with command(directory, shards) as mover:
        assert mover.wait() == 0, mover.output()
    raw.delete("redbeat::audit")
    assert read_all(raw) == (before, [])
