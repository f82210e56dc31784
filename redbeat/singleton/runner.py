"""The keeper: holds a lock for a command, and tells its warden how long the command may live.

Owns one ``redbeat-singleton``'s way from waiting to running and back.

::

                 free, released or run out                    the command has ended
    waiting ------------------------------> holding --> running -------------------> out, lock released
     ^   |                                   |   lock not renewed    |
     +---+ looks once a second               |   for too long, or    |
     ^                                       v   another's           v
     +---------------------------------------+-----------------------+  (or out: lock_lost = "exit")
                                                   the command is stopped first

Invariant: the command runs only while the lock, by this machine's clock, can't be anybody else's. The lock is
that of beat (``lock.py``), but nothing fences what the command does. So it is never taken from a holder that
is silent, and one that has vanished before its time (data lost, deleted by hand) is held for its whole time
before the command is started: by then whoever held it has stopped theirs.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any, TypeVar

from redbeat.config.config import ensure_conf
from redbeat.connection.client import get_hasty_redis
from redbeat.connection.retry import call_briefly, is_transient
from redbeat.errors import CommandFailed, LockLost, RedBeatError, StoreUnavailable
from redbeat.leadership.lock import LeaderLock
from redbeat.log.logger import logger
from redbeat.singleton.watchdog import WardenProcess, now
from redbeat.store.store import Store

__all__ = ["SIGNALLED", "Keeper", "Times"]


Answer = TypeVar("Answer")

#: what is passed on to the command
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

#: a lock that is another's is looked at so often: when it is about to run out, and otherwise; seconds
MIN_LOOK_SECONDS, LOOK_SECONDS = 0.02, 1.0

#: until what Redis didn't answer is tried again, seconds
RETRY_SECONDS = 0.5

#: looks further apart say nothing of what was between them, seconds
MAX_LOOK_GAP_SECONDS = 3.0

#: how long a renewal may take, less where the lock itself lives shorter, and how long a look that has to
#: connect first; seconds
MAX_CALL_SECONDS, ACQUIRE_SECONDS = 2.5, 5.0

#: one that waits says this often who for, seconds
STANDBY_SECONDS = 60.0

_REMEDY = (
    "What runs as another user can't be stopped in time: let the singleton run as that user, or as root."
)

#: what a shell adds to the number of a signal that has ended a program
SIGNALLED = 128


@dataclass(frozen=True)
class Times:
    """How long a lock lives, and what follows from that; all in seconds.

    Attributes:
        timeout: the lock's time to live.
        grace: how long the command may take to end when the lock is lost, from SIGTERM to SIGKILL.
    """

    timeout: float
    grace: float

    @property
    def renewal(self) -> float:
        """The time between two renewals."""
        return min(2.0, self.timeout / 5)

    @property
    def margin(self) -> float:
        """So long before the lock's end the command must be gone."""
        return min(0.5, self.timeout / 10)

    @property
    def is_sound(self) -> bool:
        """Whether one renewal may fail, and the command still has its grace."""
        return self.timeout >= self.smallest_timeout()

    def smallest_timeout(self) -> float:
        """Return the shortest time to live for which two renewals, the grace and the margin have room."""
        if self.grace <= 2.5:
            return 2 * self.grace
        return (self.grace + 0.5) / 0.6 if self.grace <= 5.5 else self.grace + 4.5


class Keeper:
    """One lock, one command.

    Arguments:
        app: whose ``redbeat_*`` settings say how Redis is reached; its key prefix is made of the lock's key.
        key: the lock's key in Redis.
        command: the program and its arguments.
        times: how long the lock lives.
        exits_when_lost: end when the lock is lost, instead of waiting for it again.
    """

    def __init__(
        self, app: Any, key: str, command: list[str], times: Times, *, exits_when_lost: bool = False
    ) -> None:
        self._app = app
        self._key = key
        self._mark = ensure_conf(app).keys.released
        self._command = command
        self._times = times
        self._exits_when_lost = exits_when_lost
        self._call_seconds = min(MAX_CALL_SECONDS, times.timeout / 2)
        self._trouble = ""
        self._was_well = False
        #: what was seen of the lock doesn't tell whether a holder's command may still run
        self._is_in_doubt = False
        #: who held the lock when it was seen last
        self._holder = ""
        self._tell_at = 0.0
        self._lives_until = 0.0
        self._is_running = False
        self._signal = 0
        self._early_signals: list[int] = []

    def run(self) -> int | None:
        """Wait for the lock, run the command, and return its exit code; 128 and more for a signal.

        Returns None when the lock was lost and the command stopped, and ``exits_when_lost``.

        Raises:
            CommandFailed: it can't be started, or its warden was killed.
            RedBeatError: Redis refuses, and always has.
        """
        with (
            _handling_signals(self._note_signal) as wakeup,
            WardenProcess(self._command, self._times.grace, self._times.margin) as ward,
        ):
            self._wakeup, self._ward = wakeup, ward
            while True:
                logger.info("singleton: Acquiring lock %s...", self._key)
                self._tell_at = 0.0
                lock = self._acquire()
                self._is_in_doubt = True  # until the lock is released again
                code = self._hold(lock) if lock is not None else None
                if code is None and self._signal:
                    code = SIGNALLED + self._signal
                if code is not None or self._exits_when_lost:
                    return code

    def _note_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._is_running:
            self._ward.tell(f"signal {number}")
        else:
            self._early_signals.append(number)
        if not self._is_running or number != signal.SIGHUP:  # many programs go on after that
            self._signal = number

    # -- waiting

    def _acquire(self) -> LeaderLock | None:
        """Wait for the lock; None: a signal has ended that."""
        lock: LeaderLock | None = None
        looked_at = 0.0
        while not self._signal:
            try:
                if lock is None:
                    lock = self._bounded(self._connect, ACQUIRE_SECONDS)
                asked_at = now()
                is_ours = self._bounded(lock.acquire, ACQUIRE_SECONDS)
                if is_ours:
                    self._lives_until = asked_at + self._times.timeout
                    self._settle(lock, time.monotonic() - looked_at < MAX_LOOK_GAP_SECONDS)
                else:
                    self._holder = self._bounded(partial(lock.holder, self._mark), ACQUIRE_SECONDS)
                    self._tell_holder(lock)
                self._note_well()
                if is_ours:
                    return lock
            except LockLost:  # it ran out before the answer came
                self._is_in_doubt = True
                self._wait(RETRY_SECONDS)
            except RedBeatError as exc:
                self._note_trouble(exc)
                # it may be ours, and ends by itself then: released, it would be taken for nobody's
                lock, self._is_in_doubt = None, True
                self._wait(RETRY_SECONDS)
            else:
                self._is_in_doubt = False
                looked_at = time.monotonic()
                # when it runs out, and no earlier than that
                self._wait(min(max(lock.seen_until - looked_at, MIN_LOOK_SECONDS), LOOK_SECONDS))
        return None

    def _tell_holder(self, lock: LeaderLock) -> None:
        """Log, now and then, who is waited for."""
        if self._holder and now() >= self._tell_at:
            self._tell_at = now() + STANDBY_SECONDS
            logger.info("singleton: Standing by: %s.", self._bounded(lock.describe_holder, ACQUIRE_SECONDS))

    def _connect(self) -> LeaderLock:
        store = Store(self._app, get_hasty_redis(self._app))
        return LeaderLock(store, self._key, self._times.timeout)

    def _settle(self, lock: LeaderLock, is_fresh: bool) -> None:
        """Find out from when on nobody else's command can be running."""
        moment = time.monotonic()
        has_run_out = lock.seen_until == 0 or (is_fresh and lock.seen_until <= moment)
        # by the one that was seen: another's mark is old, and came back with a snapshot or from a replica
        released_by = self._bounded(lambda: lock.take_mark(self._mark), ACQUIRE_SECONDS)
        was_released = released_by and released_by == self._holder and not self._is_in_doubt
        if was_released or (has_run_out and not self._is_in_doubt):
            self._start_at = 0.0
            logger.info("singleton: Acquired lock %s", self._key)
            return
        self._start_at = now() + self._times.timeout
        logger.warning(
            "singleton: Acquired lock %s. Somebody may still be running the command, as the lock had "
            "vanished before its time, or Redis had been away: it is started in %g s.",
            self._key,
            self._times.timeout,
        )

    # -- holding

    def _hold(self, lock: LeaderLock) -> int | None:
        """Keep the lock and run the command; return its exit code, None where that isn't to be the end."""
        renew_at = 0.0
        while True:
            if now() >= renew_at:
                try:
                    self._renew(lock)
                    renew_at = now() + self._times.renewal
                except LockLost as exc:
                    self._give_way(exc)
                    return None
                except RedBeatError as exc:
                    self._note_trouble(exc)
                    renew_at = now() + RETRY_SECONDS
            if not self._is_running:
                if self._signal or now() >= self._lives_until:
                    if now() >= self._start_at:
                        self._release(lock)
                    else:  # whoever gets it would take it for nobody's
                        self._leave()
                    return None
                if now() >= self._start_at:
                    self._start()
            elif now() >= self._gone_at():  # the warden itself is paused
                self._ward.kill()
            own_at = (self._gone_at(),) if self._is_running else (self._start_at, self._lives_until)
            for event, value in self._wait(max(min(renew_at, *own_at) - now(), MIN_LOOK_SECONDS)):
                self._note(event, value)
                if event == "failed":
                    self._release(lock)
                    raise CommandFailed(f"{self._command[0]} can't be started: {value}.")
                if event == "ended":
                    status, cause, *survivor = value.split()
                    if survivor:
                        self._leave()
                    else:
                        self._release(lock)
                    return int(status) if cause == "itself" else None

    def _start(self) -> None:
        self._ward.tell(f"start {self._lives_until!r}")
        self._is_running = True
        for number in self._early_signals:  # they came after the last look at them
            self._ward.tell(f"signal {number}")
        self._early_signals.clear()

    def _gone_at(self) -> float:
        """Return when the command must be gone."""
        return self._lives_until - self._times.margin

    def _renew(self, lock: LeaderLock) -> None:
        asked_at = now()
        left = self._gone_at() - asked_at if self._is_running else self._call_seconds
        was_gone = self._bounded(lock.renew, min(max(left, MIN_LOOK_SECONDS), self._call_seconds))
        self._note_well()
        if was_gone:
            logger.warning("singleton: The lock %s was gone and is taken back.", self._key)
        self._lives_until = asked_at + self._times.timeout
        if self._is_running:
            self._ward.tell(f"lives {self._lives_until!r}")

    def _give_way(self, loss: LockLost) -> None:
        """End the command without grace: another may be starting it."""
        logger.error("singleton: The lock %s is another's now: %s.", self._key, loss.holder)
        if self._is_running:
            self._ward.kill()
        while self._is_running:
            for event, value in self._wait(None):
                self._note(event, value)

    def _note(self, event: str, value: str) -> None:
        program = self._command[0]
        if event == "started":
            logger.info("singleton: Started %s (process %s)", program, value)
        elif event == "denied":
            logger.error("singleton: %s, or what it has started, can't be signalled. %s", program, _REMEDY)
        elif event == "ending":
            logger.error(
                "singleton: The lock %s couldn't be renewed and runs out: stopping %s.", self._key, program
            )
        elif event == "gone":
            raise CommandFailed(
                f"The process that watches over {program} was killed, and {program} with it. The lock "
                f"{self._key} ends within {self._times.timeout:g} s."
            )
        else:
            self._is_running = False
        if event == "ended":
            status, _, *survivor = value.split()
            logger.info("singleton: %s has ended with %s", program, status)
            if survivor:
                logger.error("singleton: A process that it has left can't be killed. %s", _REMEDY)

    def _release(self, lock: LeaderLock) -> None:
        logger.info("singleton: Releasing lock %s", self._key)
        try:
            if lock.give_up(self._mark):
                self._holder, self._is_in_doubt = lock.token, False
        except RedBeatError as exc:
            logger.warning("singleton: The lock couldn't be released, it ends by itself: %s", exc)

    def _leave(self) -> None:
        """Let the lock end by itself: somebody may still be running the command."""
        logger.info("singleton: The lock %s isn't released, it ends by itself.", self._key)

    # -- Redis

    def _bounded(self, call: Callable[[], Answer], seconds: float) -> Answer:
        """Return ``call()``, StoreUnavailable when Redis hasn't answered in time."""
        return call_briefly(call, seconds)  # type: ignore[no-any-return]

    def _note_well(self) -> None:
        if self._trouble:
            logger.info("singleton: Redis is back.")
        self._trouble, self._was_well = "", True

    def _note_trouble(self, exc: RedBeatError) -> None:
        """Log ``exc`` once, and go on; raise it where that never was better: the settings are wrong."""
        is_passing = isinstance(exc, StoreUnavailable) or (exc.__cause__ and is_transient(exc.__cause__))
        if not is_passing and not self._was_well:
            raise exc
        if not self._trouble:
            logger.warning("singleton: Trying again until Redis is back: %s", exc)
        self._trouble = str(exc)

    def _wait(self, seconds: float | None) -> list[tuple[str, str]]:
        """Wait for the warden's news, a signal, or until ``seconds`` are over; return the news."""
        news = self._ward.wait(seconds, self._wakeup)
        self._ward.reap_strangers()
        return news


@contextmanager
def _handling_signals(handler: Callable[[int, FrameType | None], None]) -> Iterator[int]:
    """Let ``handler`` deal with what isn't ignored; yield a file that can be read when a signal has come."""
    wakeup, waker = os.pipe()
    os.set_blocking(wakeup, False)
    os.set_blocking(waker, False)
    waker_before = signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number, previous in before.items():
        if previous is not signal.SIG_IGN:  # nohup's hang-up
            signal.signal(number, handler)
    try:
        yield wakeup
    finally:
        for number, previous in before.items():
            signal.signal(number, previous or signal.SIG_DFL)
        signal.set_wakeup_fd(waker_before)
        os.close(wakeup)
        os.close(waker)
