"""Schedulers in forked children: real processes, really killed, without a second of imports each."""

from __future__ import annotations

import functools
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import amqp.transport
import pytest
import redis.connection

from redbeat.delivery.amqp import Confirms
from redbeat.schedulers import RedBeatScheduler
from redbeat.store.store import Store
from tests.faults.bursts import Burst, Layout, Tally

_PATIENCE_SECONDS = 60


def _kill_this_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


#: exit code of a child that goes on after its fuse has blown
BLOWN = 3


class Fuse:
    """Ends this process by SIGKILL, or calls `act`, at its `touches`-th touch; 0: never."""

    def __init__(self, touches: int, act: Callable[[], None] | None = None) -> None:
        self._left = touches
        self._act = act or _kill_this_process
        self._is_armed = False
        self.is_blown = False
        #: exit code of a child whose fuse has blown
        self.code = BLOWN if act else -signal.SIGKILL

    def touch(self) -> None:
        if self._is_armed:
            self._left -= 1
            if self._left == 0:
                self.is_blown = True
                self._act()

    @contextmanager
    def armed(self) -> Iterator[None]:
        """Only in this block it counts."""
        self._is_armed = True
        try:
            yield
        finally:
            self._is_armed = False


Wiring = Callable[[Fuse, pytest.MonkeyPatch], None]


def between_round_trips(fuse: Fuse, patch: pytest.MonkeyPatch) -> None:
    """Touch the fuse before and after every round trip to the schedule."""
    patch.setattr(Store, "on_round_trip", staticmethod(fuse.touch))


def between_messages(fuse: Fuse, patch: pytest.MonkeyPatch) -> None:
    """Touch the fuse before and after each message, too: where they are sent at once, one by one."""
    between_round_trips(fuse, patch)
    _touch_around(fuse, patch, RedBeatScheduler, "apply_async")


def between_confirms(fuse: Fuse, patch: pytest.MonkeyPatch) -> None:
    """Touch the fuse around each write of messages to RabbitMQ, too, and at each look for their confirms.

    Two messages are written at a time, after the first of the batch.
    """
    between_round_trips(fuse, patch)
    send_now = Confirms.send

    def send(confirms: Confirms, *args: Any, **kwargs: Any) -> None:
        send_now(confirms, *args, **kwargs)
        if len(confirms._unwritten) >= 2:  # noqa: SLF001 - of ours
            confirms.write(_PATIENCE_SECONDS)

    patch.setattr(Confirms, "send", send)
    _touch_around(fuse, patch, amqp.transport.TCPTransport, "write")
    _touch_around(fuse, patch, Confirms, "_note_confirmed")


def on_the_wire(fuse: Fuse, patch: pytest.MonkeyPatch) -> None:
    """Touch the fuse before and after every sending to, and every reading from a Redis server."""
    for name in ("send_packed_command", "read_response"):
        _touch_around(fuse, patch, redis.connection.AbstractConnection, name)


def at_replies(fuse: Fuse, patch: pytest.MonkeyPatch) -> None:
    """Touch the fuse when a Redis server has done what it was told, and nobody has heard of it yet."""
    original = redis.connection.AbstractConnection.read_response

    def reading(*args: Any, **kwargs: Any) -> Any:
        reply = original(*args, **kwargs)
        fuse.touch()
        return reply

    patch.setattr(redis.connection.AbstractConnection, "read_response", reading)


def _touch_around(fuse: Fuse, patch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def touching(*args: Any, **kwargs: Any) -> Any:
        fuse.touch()
        result = original(*args, **kwargs)
        fuse.touch()
        return result

    patch.setattr(owner, name, touching)


def run_child(work: Callable[[], int | None], watch: Callable[[], None] | None = None) -> int:
    """Run `work` in a forked process; return what it returned, or the exit code; negative: a signal.

    `watch` is called again and again meanwhile, by this process, and once when it has ended.
    """
    pid = os.fork()
    if pid:
        while watch and os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            watch()
            time.sleep(0.001)
        if watch:
            watch()
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 1
    try:  # whatever happens: this process must not return into the test run
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_PATIENCE_SECONDS)
        code = work() or 0
    except BaseException:  # noqa: BLE001 - it is printed, and the parent sees the exit code
        traceback.print_exc()
    finally:
        os._exit(code)


def run_children(works: Sequence[Callable[[], int | None]]) -> list[int]:
    """Run all of them, each in a forked process of its own, at the same time; return their codes."""
    with ThreadPoolExecutor(len(works)) as starters:
        return list(starters.map(run_child, works))


def run_scheduler(layout: Layout, burst: Burst, fuse: Fuse, **settings: Any) -> None:
    """Tick a scheduler until the burst is out, and close it."""
    with fuse.armed():
        scheduler = RedBeatScheduler(layout.make_app(**settings))
        # again where the reply got lost: the next look finds that the lock is its own
        while not scheduler.stand_for_leader():
            pass
    while not burst.is_out():
        with fuse.armed():
            delay_seconds = scheduler.tick()
        time.sleep(min(delay_seconds, 0.01))  # only where something must surface first: a lease
    with fuse.armed():
        scheduler.close()


def is_hit(
    layout: Layout,
    burst: Burst,
    fuse: Fuse,
    wire: Wiring,
    watch: Callable[[], None] | None = None,
    **settings: Any,
) -> bool:
    """Send a burst from a scheduler in a child; return True if it had as many steps as the fuse."""

    def work() -> int:
        run_scheduler(layout, burst, fuse, **settings)
        return BLOWN if fuse.is_blown else 0

    with pytest.MonkeyPatch.context() as patch:
        wire(fuse, patch)
        code = run_child(work, watch)
    assert code in (0, fuse.code), f"the scheduler ended with {code}"
    return code != 0


def hit_every_step(
    layout: Layout,
    burst: Burst,
    steps: Iterable[int],
    hit: Callable[[int], bool],
    check: Callable[[], None] = lambda: None,
    **settings: Any,
) -> Tally:
    """Send the burst with a fault at each of the steps, until there are fewer or a promise is broken.

    Arguments:
        hit: sends the burst with a fault at a step; returns False if it was out before.
        check: called after each burst.
    """
    burst.write()
    run_scheduler(layout, burst, Fuse(0), **settings)  # what it imports the children need not
    total = Tally()
    for step in steps:
        burst.write()
        was_hit = hit(step)
        tally = burst.tally(kills=int(was_hit))
        total += tally
        check()
        if not was_hit or not tally.is_good(layout):
            print(f"the last step was {step}")
            break
    return total
