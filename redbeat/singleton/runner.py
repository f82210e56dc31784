"""The runner: holds a lock for a command, and tells the watchdog how long the command may live.

Owns the states of one ``redbeat-singleton``. Each state is a class, and each step returns the next state::

    Waiting   the lock is another's            -> Holding   it is free, released, or has run out
                                               -> Out       a signal
    Holding   held, nothing is started yet     -> Running   nobody else's command can be running any more
                                               -> Stopped   a signal, or the lock couldn't be renewed
                                               -> Waiting   the lock is another's
    Running   held, the command runs           -> Stopped   it has ended, by itself or by the watchdog, as the
                                                            lock couldn't be renewed
                                               -> Waiting   the lock is another's: the command is killed first
    Stopped   held, and to be released         -> Out       the command has ended by itself
                                               -> Waiting   it hasn't

After a signal, and with ``lock_lost = "exit"``, Out comes instead of a second Waiting.

Invariant: the command runs only while, by this machine's clock, nobody else can hold the lock. The lock is
the same as beat's (``lock.py``), but what the command does isn't fenced. So the lock is never taken from a
silent holder. And if it has vanished before its time (data lost, deleted by hand), the new holder waits for
its full time before it starts the command: by then the former holder has stopped its own.
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
from redbeat.config.timing import Timing
from redbeat.connection.retry import call_briefly, is_transient
from redbeat.errors import CommandFailed, LockLost, RedBeatError, StoreUnavailable
from redbeat.leadership.lock import LeaderLock
from redbeat.log.logger import logger
from redbeat.singleton.watchdog import Ended, WatchdogProcess, now
from redbeat.store.lock_tokens import holder_in_words
from redbeat.store.store import Store

Answer = TypeVar("Answer")

#: signals that are passed on to the command
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

#: the time between two looks at another's lock: when it is about to run out, and otherwise
MIN_LOOK_SECONDS, LOOK_SECONDS = 0.02, 1.0

#: how long to wait before a command that failed is sent to Redis again
RETRY_SECONDS = 0.5

#: looks at the lock that are further apart don't show what happened between them
MAX_LOOK_GAP_SECONDS = 3.0

#: how long a renewal may take, unless the lock lives shorter, and how long a look that may have to connect
#: first
MAX_CALL_SECONDS, ACQUIRE_SECONDS = 2.5, 5.0

#: how often it is logged who holds the lock
STANDBY_SECONDS = 60.0

_REMEDY = (
    "What runs as another user can't be stopped in time: let the singleton run as that user, or as root."
)

#: the exit code of a program that a signal has ended is this and the signal's number, as in a shell
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
        """How long before the lock's end the command must be gone."""
        return min(0.5, self.timeout / 10)

    @property
    def call(self) -> float:
        """How long a renewal may take."""
        return min(MAX_CALL_SECONDS, self.timeout / 2)

    @property
    def is_sound(self) -> bool:
        """Whether one renewal may fail, and the command has its full grace all the same."""
        return self.timeout >= self.smallest_timeout()

    def smallest_timeout(self) -> float:
        """Return the shortest time to live for which two renewals, the grace and the margin have room."""
        if self.grace <= 2.5:
            return 2 * self.grace
        return (self.grace + 0.5) / 0.6 if self.grace <= 5.5 else self.grace + 4.5


@dataclass
class Waiting:
    """The lock is another's, or hasn't been asked for yet.

    Attributes:
        seen: the token that the lock had at the last look, '' for none; None: a holder that wasn't seen may
            still be running its command.
        lock: None: there is no connection to Redis, or none that is good.
        looked_at: when that look was, a monotonic time.
        tell_at: when to say next who is waited for, by :func:`now`.
    """

    seen: str | None
    lock: LeaderLock | None = None
    looked_at: float = 0.0
    tell_at: float = 0.0


@dataclass
class Held:
    """The lock is this runner's; all times by :func:`now`.

    Attributes:
        lives_until: when it runs out unless it is renewed.
        renew_at: when it is to be renewed.
    """

    lock: LeaderLock
    lives_until: float
    renew_at: float


@dataclass
class Holding(Held):
    """The command doesn't run yet, as until ``start_at`` somebody else's may still run."""

    start_at: float


class Running(Held):
    """The command runs, or the watchdog was told to start it."""


@dataclass(frozen=True)
class Stopped:
    """The command has ended, and the lock is to be released.

    Attributes:
        exit_code: the command's; None: the singleton goes on.
        is_clear: nobody's command can be running, so the next holder may start it at once.
    """

    lock: LeaderLock
    exit_code: int | None
    is_clear: bool


@dataclass(frozen=True)
class Out:
    """The end, with what :meth:`Runner.run` returns."""

    exit_code: int | None


State = Waiting | Holding | Running | Stopped | Out


class Runner:
    """One lock, one command.

    Arguments:
        app: whose ``redbeat_*`` settings say how Redis is reached; its key prefix is made of the lock's key.
        key: the lock's key in Redis.
        command: the program and its arguments.
        times: how long the lock lives.
        exits_when_lost: end when the lock is lost, instead of waiting for it again.
    """

    _wakeup: int
    _watchdog: WatchdogProcess

    def __init__(
        self, app: Any, key: str, command: list[str], times: Times, *, exits_when_lost: bool = False
    ) -> None:
        self._app = app
        self._key = key
        self._mark = ensure_conf(app).base_keys.released
        self._command = command
        self._times = times
        self._exits_when_lost = exits_when_lost
        self._state: State = Waiting(seen="")
        self._trouble = ""
        self._was_well = False
        #: the signal that ends this runner; 0: none has come
        self._signal = 0
        #: signals that have come before the command was started
        self._early_signals: list[int] = []

    def run(self) -> int | None:
        """Wait for the lock, run the command, and return its exit code; 128 and more for a signal.

        Returns None when the lock was lost and the command stopped, and ``exits_when_lost``.

        Raises:
            CommandFailed: it can't be started, or its watchdog was killed.
            RedBeatError: Redis refuses, and always has.
        """
        with (
            _handling_signals(self._note_signal) as self._wakeup,
            WatchdogProcess(self._command, self._times.grace, self._times.margin) as self._watchdog,
        ):
            self._state = self._begin_waiting(seen="")
            while not isinstance(self._state, Out):
                self._state = self._step(self._state)
            return self._state.exit_code

    def _step(self, state: Waiting | Holding | Running | Stopped) -> State:
        if isinstance(state, Waiting):
            return self._look(state)
        if isinstance(state, Holding):
            return self._hold(state)
        if isinstance(state, Running):
            return self._watch(state)
        return self._end(state)

    def _note_signal(self, number: int, _frame: FrameType | None) -> None:
        is_running = isinstance(self._state, Running)
        if is_running:
            self._watchdog.tell(f"signal {number}")
        else:
            self._early_signals.append(number)
        if not is_running or number != signal.SIGHUP:  # many programs reload their settings and go on
            self._signal = number

    # -- waiting

    def _begin_waiting(self, seen: str | None) -> Waiting:
        logger.info("singleton: Acquiring lock %s...", self._key)
        return Waiting(seen)

    def _look(self, state: Waiting) -> Waiting | Holding | Out:
        """Take the lock if it may be taken."""
        if self._signal:
            return Out(SIGNALLED + self._signal)
        try:
            if state.lock is None:
                state.lock = _bounded(self._connect, ACQUIRE_SECONDS)
            lock, asked_at = state.lock, now()
            if _bounded(lock.acquire, ACQUIRE_SECONDS):
                holding = Holding(lock, asked_at + self._times.timeout, 0.0, self._find_start(lock, state))
                self._note_well()
                return holding
            # the mark alone may be an old one: it is asked only where the holder came after the look
            state.seen = lock.seen.token or _bounded(partial(lock.holder, self._mark), ACQUIRE_SECONDS)
            self._tell_holder(state, lock)
            self._note_well()
        except LockLost:  # it was taken, and ran out before the answer came
            state.seen = None
            self._wait(RETRY_SECONDS)
        except RedBeatError as exc:
            self._note_trouble(exc)
            # it may have been taken; it isn't released then but ends by itself, as a release says that
            # nothing runs
            state.lock = state.seen = None
            self._wait(RETRY_SECONDS)
        else:
            state.looked_at = time.monotonic()
            # look again when it runs out, not earlier
            self._wait(min(max(lock.expires_at - state.looked_at, MIN_LOOK_SECONDS), LOOK_SECONDS))
        return state

    def _tell_holder(self, state: Waiting, lock: LeaderLock) -> None:
        """Log, once a minute at most, who holds the lock."""
        if state.seen and now() >= state.tell_at:
            state.tell_at = now() + STANDBY_SECONDS
            logger.info("singleton: Standing by: %s.", _bounded(lock.describe_holder, ACQUIRE_SECONDS))

    def _connect(self) -> LeaderLock:
        store = Store.hasty(self._app)
        return LeaderLock(store.apart(), self._key, Timing(self._times.timeout))

    def _find_start(self, lock: LeaderLock, before: Waiting) -> float:
        """Return the time, by :func:`now`, after which nobody else's command can be running; 0.0: now."""
        moment = time.monotonic()
        is_fresh = moment - before.looked_at < MAX_LOOK_GAP_SECONDS
        has_run_out = lock.expires_at == 0 or (is_fresh and lock.expires_at <= moment)
        # only a mark of the holder that was seen counts: another one is old, from a snapshot or a late
        # replica
        released_by = _bounded(lambda: lock.take_mark(self._mark), ACQUIRE_SECONDS)
        was_released = released_by and released_by == before.seen
        if before.seen is not None and (was_released or has_run_out):
            logger.info("singleton: Acquired lock %s", self._key)
            return 0.0
        logger.warning(
            "singleton: Acquired lock %s. The command may still be running elsewhere, as the lock had "
            "vanished before its time, or Redis had been away: it is started in %g s.",
            self._key,
            self._times.timeout,
        )
        return now() + self._times.timeout

    # -- holding

    def _hold(self, state: Holding) -> State:
        """Keep the lock until the command may be started."""
        try:
            self._renew(state, self._times.call)
        except LockLost as exc:
            return self._give_way(exc)
        if self._signal or now() >= state.lives_until:
            # not released before start_at, as a release says that nobody's command is running
            return Stopped(state.lock, None, is_clear=now() >= state.start_at)
        if now() >= state.start_at:
            return self._start(state)
        self._wait_until(state.renew_at, state.start_at, state.lives_until)
        return state

    def _start(self, state: Holding) -> Running:
        self._watchdog.tell(f"start {state.lives_until!r}")
        self._state = running = Running(state.lock, state.lives_until, state.renew_at)
        for number in self._early_signals:  # those that came since _signal was checked
            self._watchdog.tell(f"signal {number}")
        self._early_signals.clear()
        return running

    def _watch(self, state: Running) -> State:
        """Keep the lock while the command runs."""
        try:
            self._renew(state, min(max(self._gone_at(state) - now(), MIN_LOOK_SECONDS), self._times.call))
        except LockLost as exc:
            return self._give_way(exc)
        if now() >= self._gone_at(state):  # the watchdog hasn't done it, as it is paused itself
            self._watchdog.kill()
        for word, value in self._wait_until(state.renew_at, self._gone_at(state)):
            if word == "failed":
                self._release(state.lock)
                raise CommandFailed(f"{self._command[0]} can't be started: {value}.")
            if word == "ended":
                ended = Ended.of(value)
                exit_code = ended.status if ended.cause == "itself" else None
                return Stopped(state.lock, exit_code, is_clear=not ended.has_survived)
        return state

    def _gone_at(self, state: Running) -> float:
        """Return when the command must be gone."""
        return state.lives_until - self._times.margin

    def _renew(self, state: Held, patience_seconds: float) -> None:
        """Renew the lock if it is time to.

        Raises:
            LockLost: it is another's.
        """
        asked_at = now()
        if asked_at < state.renew_at:
            return
        try:
            was_gone = _bounded(state.lock.renew, patience_seconds)
        except LockLost:
            raise
        except RedBeatError as exc:
            self._note_trouble(exc)
            state.renew_at = now() + RETRY_SECONDS
            return
        self._note_well()
        if was_gone:
            logger.warning("singleton: The lock %s was gone and is taken back.", self._key)
        state.lives_until = asked_at + self._times.timeout
        if isinstance(state, Running):
            self._watchdog.tell(f"lives {state.lives_until!r}")
        state.renew_at = now() + self._times.renewal

    def _give_way(self, loss: LockLost) -> Waiting | Out:
        """Kill the command at once, if it runs, as another machine may be starting it."""
        logger.error("singleton: %s holds the lock %s now.", holder_in_words(loss.holder), self._key)
        if isinstance(self._state, Running):
            self._watchdog.kill()
            while not any(word in ("ended", "failed") for word, _ in self._wait(None)):
                pass
        return self._go_back(seen=None)

    # -- stopped

    def _end(self, state: Stopped) -> Waiting | Out:
        """Release the lock, if nobody's command can be running."""
        if not state.is_clear:
            logger.info("singleton: The lock %s isn't released, it ends by itself.", self._key)
        token = state.lock.token
        is_released = state.is_clear and self._release(state.lock)
        return self._go_back(token if is_released else None, state.exit_code)

    def _go_back(self, seen: str | None, exit_code: int | None = None) -> Waiting | Out:
        """Wait for the lock again, unless this is the end."""
        if exit_code is None and self._signal:
            exit_code = SIGNALLED + self._signal
        if exit_code is not None or self._exits_when_lost:
            return Out(exit_code)
        return self._begin_waiting(seen)

    def _release(self, lock: LeaderLock) -> bool:
        """Release ``lock``; return whether this runner held it."""
        logger.info("singleton: Releasing lock %s", self._key)
        try:
            return bool(lock.give_up(self._mark))
        except RedBeatError as exc:
            logger.warning("singleton: The lock couldn't be released, it ends by itself: %s", exc)
            return False

    # -- what the watchdog tells

    def _note(self, word: str, value: str) -> None:
        """Log a report of the watchdog.

        Raises:
            CommandFailed: it was killed.
        """
        program = self._command[0]
        if word == "started":
            logger.info("singleton: Started %s (process %s)", program, value)
        elif word == "denied":
            logger.error("singleton: %s, or what it has started, can't be signalled. %s", program, _REMEDY)
        elif word == "ending":
            logger.error(
                "singleton: The lock %s couldn't be renewed and runs out: stopping %s.", self._key, program
            )
        elif word == "gone":
            raise CommandFailed(
                f"The process that watches over {program} was killed."
                if isinstance(self._state, Waiting)
                else f"The process that watches over {program} was killed, and {program} with it. The lock "
                f"{self._key} ends within {self._times.timeout:g} s."
            )
        elif word == "ended":
            ended = Ended.of(value)
            logger.info("singleton: %s has ended with %s", program, ended.status)
            if ended.has_survived:
                logger.error("singleton: A process that it has left can't be killed. %s", _REMEDY)

    def _wait_until(self, *moments: float) -> list[tuple[str, str]]:
        """Wait until the first of ``moments``, by :func:`now`, or for a report; return the reports."""
        return self._wait(max(min(moments) - now(), MIN_LOOK_SECONDS))

    def _wait(self, seconds: float | None) -> list[tuple[str, str]]:
        """Wait ``seconds`` for a report of the watchdog, or a signal; log the reports and return them."""
        news = self._watchdog.wait(seconds, self._wakeup)
        self._watchdog.reap_strangers()
        for word, value in news:
            self._note(word, value)
        return news

    # -- Redis

    def _note_well(self) -> None:
        if self._trouble:
            logger.warning("singleton: Redis is back.")
        self._trouble, self._was_well = "", True

    def _note_trouble(self, exc: RedBeatError) -> None:
        """Log ``exc`` once, or raise it if Redis has always refused, as the settings are wrong then."""
        is_passing = isinstance(exc, StoreUnavailable) or (exc.__cause__ and is_transient(exc.__cause__))
        if not is_passing and not self._was_well:
            raise exc
        if not self._trouble:
            logger.warning("singleton: Trying again until Redis is back: %s", exc)
        self._trouble = str(exc)


def _bounded(call: Callable[[], Answer], seconds: float) -> Answer:
    """Return ``call()``; raise StoreUnavailable if that takes longer than ``seconds``."""
    return call_briefly(call, seconds)  # type: ignore[no-any-return]


@contextmanager
def _handling_signals(handler: Callable[[int, FrameType | None], None]) -> Iterator[int]:
    """Let ``handler`` handle signals; yield a file descriptor that is readable when one has come."""
    wakeup, waker = os.pipe()
    os.set_blocking(wakeup, False)
    os.set_blocking(waker, False)
    waker_before = signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number, previous in before.items():
        if previous is not signal.SIG_IGN:  # as nohup sets it for SIGHUP
            signal.signal(number, handler)
    try:
        yield wakeup
    finally:
        for number, previous in before.items():
            signal.signal(number, previous or signal.SIG_DFL)
        signal.set_wakeup_fd(waker_before)
        os.close(wakeup)
        os.close(waker)
