"""Another number while a change is under way, two commands at once, Ctrl-C: it is said what happens."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis

from redbeat.errors import ReshardRefused
from redbeat.reshard.resharding import Resharding
from tests.conftest import MakeApp
from tests.integration.reshard.test_hidden import hidden_keys
from tests.integration.reshard.test_resharding import Killed, Mortal, reshard
from tests.support.apps import celery_command, write_app
from tests.support.logs import has_traceback
from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.resharded import fill, read_all
from tests.support.servers import Server

ENTRIES = 2_000
LAYOUT = "redbeat::layout"


@pytest.fixture
def raw(valkey: Server) -> Iterator[redis.Redis]:
    with valkey.client(db=1, decode_responses=False) as client:
        yield client


@pytest.fixture
def directory(tmp_path: Path, valkey: Server) -> Path:
    write_app(tmp_path, "module", valkey.url(0), redbeat_redis_url=valkey.url(1))
    return tmp_path


def command(directory: Path, shards: int) -> Process:
    return celery_command(directory, "module", "redbeat", "reshard", "--to", str(shards), "--yes")


@pytest.mark.parametrize("state", [b"moving", b"settling"])
def test_the_old_number_has_to_wait_as_any_other_and_comes_then(
    make_app: MakeApp, raw: redis.Redis, chance: random.Random, state: bytes
) -> None:
    fill(raw, chance, 40)
    reshard(make_app, 9)
    before, _ = read_all(raw)

    class Dying(Mortal):
        def on_round_trip(self) -> None:  # type: ignore[override]
            if raw.hget(LAYOUT, "state") == state:
                self.left = min(self.left, 4) - 1
            if self.left < 0:
                raise Killed

    store = Dying(make_app())
    with pytest.raises(Killed):
        Resharding(store.config.app, 4, store).run()
    for other in (9, 5, None):
        for what in (Resharding(make_app(), other).plan, Resharding(make_app(), other).run):
            with pytest.raises(ReshardRefused, match=r"4 shards is under way \(from 9 shards\).*--to 4\."):
                what()
    reshard(make_app, 4)
    reshard(make_app, 9)
    assert read_all(raw) == (before, [])


def test_of_two_commands_at_once_one_makes_the_change_and_the_other_says_so(
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


def test_ctrl_c_leaves_nothing_hidden_and_the_same_command_goes_on(
    directory: Path, raw: redis.Redis, chance: random.Random
) -> None:
    fill(raw, chance, ENTRIES)
    before, _ = read_all(raw)
    interrupted = 0
    for _ in range(3):
        with command(directory, 4) as mover:
            left = raw.scard("redbeat::left")
            eventually(lambda: raw.scard("redbeat::left") > left or not mover.is_running, 60, 0.002)  # noqa: B023
            mover.signal(signal.SIGINT)
            code = mover.wait()
        assert code in (0, 130), mover.output()
        assert hidden_keys(raw) == [], mover.output()
        if code == 130:
            interrupted += 1
            assert "reshard --to 4 goes on" in mover.output()
        assert not has_traceback(mover.output()), mover.output()
        if code == 0:
            break
    assert interrupted
    with command(directory, 4) as mover:
        assert mover.wait() == 0, mover.output()
    raw.delete("redbeat::audit")
    assert read_all(raw) == (before, [])
