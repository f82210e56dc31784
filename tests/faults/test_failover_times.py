"""How long nobody leads: real beats with default settings, the leader ended in every way that there is.

Measured from the event to the next message of a one-second entry. Each of its seconds has one message.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.faults.rounds import EVERY_SECOND, IS_LONG, check_every_second
from tests.support.apps import celery_beat, write_app
from tests.support.deadlines import patience
from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.schedule import LOCK
from tests.support.servers import Server

STANDBYS = 20 if IS_LONG else 1

HANGING_HANDLER = """
import os, time
from celery.signals import before_task_publish

@before_task_publish.connect
def hang(**kwargs):
    if os.path.exists("hang-" + str(os.getpid())):
        time.sleep(3600)
"""


@contextmanager
def beats(folder: Path, server: Server, count: int = 2, **settings: object) -> Iterator[list[Process]]:
    """Beats of one app, the leader first: it has sent, and the others stand by. All is checked afterwards."""
    defaults = {"redbeat_redis_url": server.url(1), "beat_schedule": EVERY_SECOND}
    extra = str(settings.pop("extra", ""))
    write_app(folder, "module", server.url(0), extra=extra, **{**defaults, **settings})
    with ExitStack() as stack:
        leader = stack.enter_context(celery_beat(folder, "module"))
        leader.wait_for("Sending due task")
        standbys = [stack.enter_context(celery_beat(folder, "module")) for _ in range(count - 1)]
        for standby in standbys:
            standby.wait_for("Standing by")
        yield [leader, *standbys]
    with server.client() as broker:
        check_every_second(broker)


def seconds_to_next_message(server: Server, happen: Callable[[], object]) -> float:
    """How long after `happen()` the next message is on the queue."""
    with server.client() as broker:
        happen()
        happened = time.monotonic()
        before = broker.llen("celery")
        eventually(lambda: broker.llen("celery") > before, interval=0.01)
        return time.monotonic() - happened


@pytest.mark.slow
def test_sigterm_of_the_leader_costs_no_more_than_a_second(server: Server, tmp_path: Path) -> None:
    with beats(tmp_path, server) as [leader, standby]:
        seconds = seconds_to_next_message(server, lambda: leader.signal(signal.SIGTERM))
        standby.wait_for("Sending due task")
        print(f"SIGTERM to the next message: {seconds:.2f} s")
        assert seconds <= patience(1.5)


def test_a_killed_leader_is_replaced_within_ten_seconds(server: Server, tmp_path: Path) -> None:
    with beats(tmp_path, server, count=STANDBYS + 1) as [leader, *standbys]:
        seconds = seconds_to_next_message(server, leader.kill)
        print(f"kill -9 to the next message: {seconds:.2f} s")
        assert seconds <= patience(10)
        took_over = [standby for standby in standbys if "Took the lock over" in standby.output()]
        assert len(took_over) == 1


@pytest.mark.parametrize("when_lost", ["exit", pytest.param("standby", marks=pytest.mark.slow)])
def test_a_paused_leader_publishes_nothing_after_takeover(
    server: Server, tmp_path: Path, when_lost: str
) -> None:
    with beats(tmp_path, server, redbeat_lock_lost=when_lost) as [leader, standby]:
        seconds = seconds_to_next_message(server, lambda: leader.signal(signal.SIGSTOP))
        print(f"SIGSTOP to the next message: {seconds:.2f} s")
        assert seconds <= patience(10)
        standby.wait_for("Took the lock over")
        sent = leader.output().count("Sending due task")
        leader.signal(signal.SIGCONT)
        if when_lost == "exit":
            assert leader.wait() not in (0, None)
            assert "LockNotOwnedError" in leader.output() or "LockLost" in leader.output()
        else:
            leader.wait_for("It stands by.")
            assert standby.stop() == 0
            eventually(lambda: leader.output().count("Sending due task") > sent)
        with server.client(db=1) as client:
            assert client.get(LOCK)
        if when_lost == "exit":
            assert leader.output().count("Sending due task") == sent


@pytest.mark.slow
def test_a_lock_deleted_by_hand_is_taken_back_by_the_one_that_had_it(server: Server, tmp_path: Path) -> None:
    with beats(tmp_path, server), server.client(db=1) as client:
        longest = max(seconds_to_next_message(server, lambda: client.delete(LOCK)) for _ in range(3))
        print(f"the longest gap between a deletion and a message: {longest:.2f} s")
        assert longest <= patience(2)


@pytest.mark.slow
def test_a_leader_whose_main_thread_hangs_gives_the_lock_up(server: Server, tmp_path: Path) -> None:
    settings = {"redbeat_lock_timeout": 8, "extra": HANGING_HANDLER}
    with beats(tmp_path, server, **settings) as [leader, standby]:
        seconds = seconds_to_next_message(
            server, lambda: (tmp_path / f"hang-{leader.pid}").touch() or time.sleep(1.2)
        )
        print(f"a handler that hangs: {seconds:.2f} s to the next message")
        leader.wait_for("has done nothing for")
        standby.wait_for("Sending due task")
        assert seconds <= patience(10)
        assert "gives up the lock" in leader.output()
