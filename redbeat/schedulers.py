"""The scheduler: read it top to bottom as the story of one tick.

A tick fetches due entries (one script), decides about each entry without I/O, sends, and commits what was
decided (one script). Then it waits for the next due time, or for somebody who writes to the schedule.
"""

from __future__ import annotations

import functools
import gc
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

from celery.beat import DEFAULT_MAX_INTERVAL, Scheduler
from celery.schedules import schedstate
from celery.signals import beat_init

from redbeat.checks import check_key_expiry
from redbeat.config.config import RedBeatConfig as RedBeatConfig
from redbeat.config.config import ensure_conf as ensure_conf
from redbeat.config.timing import Timing
from redbeat.connection.client import get_redis as get_redis
from redbeat.connection.retry import RetryingConnection as RetryingConnection
from redbeat.connection.retry import is_full, is_period_left
from redbeat.delivery.broker import Broker
from redbeat.entries.entry import RedBeatSchedulerEntry as RedBeatSchedulerEntry
from redbeat.entries.entry import load_entry
from redbeat.errors import (
    EntryCorrupt,
    EntryNotFound,
    LayoutChanged,
    LockLost,
    LockNotAcquired,
    RedBeatError,
    StoreCorrupt,
    StoreRefused,
    StoreUnavailable,
)
from redbeat.later.sending import publish
from redbeat.leadership.lock import LeaderLock
from redbeat.leadership.status import Leader, read_status
from redbeat.legacy import lookup_of
from redbeat.log import events
from redbeat.log.logger import logger
from redbeat.process.background import surviving
from redbeat.process.signals import has_greenlets, hold_interrupts, is_in_handler, let_through
from redbeat.reshard.sweeping import Sweeper
from redbeat.scheduler import overrides, service, startup
from redbeat.scheduler.context import Context
from redbeat.scheduler.deliver import Deliverer
from redbeat.scheduler.feed import Feed
from redbeat.scheduler.quarantine import report_moved
from redbeat.scheduler.shard import Shard, State
from redbeat.scheduler.shards import MOVING_SECONDS, Shards
from redbeat.store.entries import read_window
from redbeat.store.layouts import look_up_layout
from redbeat.store.notifier import WakeChannel
from redbeat.store.parts import in_chunks
from redbeat.store.records import Fence
from redbeat.store.store import Store
from redbeat.task_ids import task_id_of
from redbeat.telemetry.check_ins import CheckIns
from redbeat.telemetry.endpoint import Endpoint
from redbeat.telemetry.entry_pings import EntryPings
from redbeat.telemetry.figures import OwnFigures
from redbeat.telemetry.gathering import Gathering
from redbeat.telemetry.health import Health
from redbeat.telemetry.pages import pages_of
from redbeat.telemetry.pings import Pings
from redbeat.telemetry.telemetry import Part, Telemetry

#: how long signals are held back while the lock is released
CLOSE_SECONDS = 3.0
#: how long a beat that isn't told to wait for Redis waits until a node of its shards answers: as long as the
#: redis client waits for one server
UNANSWERED_SECONDS = 10.0
#: how often a broker that is away is tried again
BROKER_RETRY_SECONDS = 1.0
#: how often a standby logs who holds the lock
STANDBY_SECONDS = 60.0
#: how often chores are done beside the runs
CHORES_SECONDS = 0.25


class RedBeatScheduler(Scheduler):
    """Celery's scheduler with its schedule in Redis.

    Arguments:
        app: the Celery app.
        lock_key: instead of the setting ``redbeat_lock_key``.
        lock_timeout: seconds, instead of ``redbeat_lock_timeout``; default: 5 x max_interval.
        max_interval: longest wait between two ticks, seconds; default: ``beat_max_loop_interval``, or 300.
        lazy: True makes one for beat's banner only; nothing is read or written.

    Raises:
        ConfigurationError: a setting or ``lock_timeout`` can't be used; nothing was written.
    """

    Entry = RedBeatSchedulerEntry
    _planned: overrides.PlannedSend | None = None  # while a planned run goes through a subclass
    _has_ticked = False  # the tick of a subclass has called this class's
    _is_made = False  # its constructor was called

    def __init__(
        self, app: Any, lock_key: str | None = None, lock_timeout: float | None = None, **kwargs: Any
    ) -> None:
        lazy, self._is_made = kwargs.pop("lazy", False), True
        if not lazy and is_in_handler():
            raise SystemExit  # Celery's makes one to close it, while the first one still waits for Redis
        super().__init__(app, lazy=True, **kwargs)
        with service.exit_without_traceback(is_logging=not lazy):
            service.choose_format(app, is_logging=not lazy)
            self.config = ensure_conf(app)
            self.max_interval: float = self.config.loop_seconds(self.max_interval) or DEFAULT_MAX_INTERVAL
            self.store = Store(app)
            lock_seconds = self.config.lock_seconds(lock_timeout, self.max_interval)
        self._beat: Any = None  # Celery's ``celery.beat.Service`` while it runs: then a tick itself waits
        lock_key = self.config.keys.prefixed(lock_key) if lock_key else self.config.lock_key
        timing = Timing(lock_seconds, self.config.takeover_after)
        # waiting for the broker ends well before the lock, or a lease, does
        limits = timing if lock_key else Timing(Shard.LEASE_MS / 1000)
        publish_seconds = limits.publish_seconds(self.config.publish_timeout)
        self._broker = Broker(app, self.Producer, publish_seconds)
        self._trouble = ""  # what was logged: why nothing can be sent
        self._stands_by_when_lost = self.config.lock_lost == "standby"
        self._context = Context(self, self.store, self._broker)
        self._reports, self._figures = self._context.reports, self._context.figures
        self._deliverer = Deliverer(self._context, self._is_ending_tick)
        self._shards = Shards(self._context, lock_key, timing)
        self._election = self._shards.election
        self._chores_at = 0.0  # monotonic
        self._feed = Feed(app, lambda: {one.keys: one.fence for one in self._election.leading})
        self._sweeper = Sweeper(self.store)
        # by the settings it may have to wait for the broker; a broken connection is replaced amid a batch
        stuck_seconds = max(limits.stuck_seconds, 2 * (publish_seconds + self._broker.connect_seconds))
        self._health = Health(self._election, self._broker, stuck_seconds)
        self._election.heartbeat.find_obstacle = self._health.find_blockage
        self._gathering = Gathering(
            app,
            lambda: self._election.leaderships,
            self._context.book,
            is_shown=self.config.http is not None,
        )
        self._telemetry = Telemetry(self._parts())
        self._well_at: float | None = None  # when a tick succeeded last, monotonic; None: none has
        self._ticking_thread: int | None = None
        self._is_close_wanted = self._is_choosing = False
        if not lazy:
            self.config.warn_of_unknown()
            startup.pin_settings(app)
            with service.exit_without_traceback():
                # an error is to be known now, not when it becomes leader
                startup.read_statics(app, is_logging=True)
                # as with 2.x it may set the app's client, before anything connects; entries are stored later
                self._is_choosing = self.chooses_client
                if self._is_choosing:
                    self.setup_schedule()
                self._is_choosing = False
                with self.store.translating():
                    check_key_expiry(self.store.client, self.config.key_expiry_check)
                startup.check_rights(self.store)
                look_up_layout(self.store, is_beat=True)
                self._shards.form()
            if self.lock_key is None:
                self.stand_for_leader()  # stores beat_schedule; with a lock the leader does that

    def __getattr__(self, name: str) -> Any:
        """Call the constructor if it was skipped: tests for 2.x call ``RedBeatScheduler.__new__``."""
        app = vars(self).get("app")
        if self._is_made or app is None or name.startswith("__"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        RedBeatScheduler.__init__(self, app, lazy=True)
        return getattr(self, name)

    @property
    def chooses_client(self) -> bool:
        """Whether a subclass may set the app's client in its ``setup_schedule``."""
        return type(self).setup_schedule is not RedBeatScheduler.setup_schedule

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in ("lock", "lock_key", "lock_timeout"):
            # plain attributes in 2.x, so that a subclass or a mixin may declare them: ``lock = None``
            if not isinstance(getattr(cls, name), property):
                setattr(cls, name, vars(RedBeatScheduler)[name])

    # -- one tick

    def tick(self, *_args: Any, **_kwargs: Any) -> float:
        """Send one batch of what is due; return the seconds to the next tick, 0 when more may be due.

        Under a running beat it waits for that long itself, so that it can be woken, and returns 0.

        Raises:
            LockNotAcquired: a lock is configured, and this scheduler is neither its holder nor run by beat.
            LockLost: another beat has the lock now.
            StoreUnavailable: Redis can't be reached.
        """
        if self._ticking_thread == threading.get_native_id():  # the tick of a subclass calls this one
            self._has_ticked = True
            return self._tick()
        return self._guard(self._tick)

    def _tick_of_subclass(self) -> float:
        """Run a subclass's own tick: with the lock, and with a wait after it.

        That of 2.x begins when its beat has got the lock, and it may send entries by itself.
        """
        if not self._leads():
            return self._stand_by()
        self._has_ticked = False
        seconds = type(self).tick(self)
        return seconds if self._has_ticked else self._wait(seconds or 0.0, is_preparing=False)

    def _guard(self, tick: Callable[[], float]) -> float:
        """Return what ``tick`` returns; handle the loss of the lock, errors of Redis, and signals."""
        if self._beat is not None and service.is_stopping(self._beat):
            self._beat.stop()  # the signal handler's SystemExit was swallowed
            return 0
        self._ticking_thread = threading.get_native_id()
        try:
            # under gevent a signal handler that interrupts a held lock deadlocks: defer signals to the end of
            # the tick, half a second at most
            with hold_interrupts() if self._beat is not None and has_greenlets() else nullcontext():
                delay_seconds = tick()
        except RedBeatError as exc:
            if isinstance(exc, LayoutChanged) and self._shards.form():
                return 0
            if self._beat is None:
                raise
            if isinstance(exc, LockLost) and self._stands_by_when_lost:
                extra = events.LEADER_LOST.of(lock=exc.lock_key, holder=exc.holder)
                logger.error("beat: %s It stands by.", exc, extra=extra)  # noqa: TRY400 - the sentence says it all
                self._shards.first.leadership.forget()
                return self._wait(self._look_seconds)
            if not self._may_pass(exc):
                raise service.brief(exc) from None
            self._report_trouble(str(exc))
            self._election.note_progress()
            time.sleep(self._look_seconds)
            return 0
        else:
            self._well_at = time.monotonic()
            troubled = [shard for shard in self._shards.led if shard.state is not State.READY]
            if troubled or self._trouble:
                self._report_trouble(str(troubled[0].problem) if troubled else "", troubled)
            return delay_seconds
        finally:
            self._ticking_thread = None
            if self._is_close_wanted:
                self.close()

    def _may_pass(self, exc: RedBeatError) -> bool:
        """Return True if a running beat waits for the end of what Redis refuses, or cannot do now."""
        options = self.config.redbeat_redis_options
        if isinstance(exc, StoreRefused):
            # while the server takes no writes, no other beat can lead either
            is_full_now = self._well_at is not None and is_full(exc.__cause__)
            return is_full_now or is_period_left(options.get("retry_period"), self._well_at)
        if isinstance(exc, StoreUnavailable) and self._shards.is_divided and self.config.is_cluster:
            # no client has waited for these nodes, as others might have answered
            return is_period_left(options.get("retry_period", UNANSWERED_SECONDS), self._well_at)
        return isinstance(exc, StoreCorrupt)

    def _report_trouble(self, trouble: str, shards: Sequence[Shard] = ()) -> None:
        """Report why nothing can be sent of ``shards``, or of the schedule; '' clears the report."""
        sentence = trouble and f"Nothing can be sent: {trouble}"
        if trouble and shards:
            named = self.config.layout.named([shard.store.keys for shard in shards])
            sentence = f"Nothing of {named} can be sent, the rest goes on: {trouble}"
        if sentence != self._trouble:
            self._trouble = sentence
            if trouble:
                logger.error("beat: %s", sentence, extra=events.SCHEDULE_BLOCKED.of(reason=trouble))
            else:
                logger.error("beat: Sending again.", extra=events.SCHEDULE_UNBLOCKED.of())
        self._health.note_trouble(sentence)

    def _leads(self) -> bool:
        """Find out what has changed since the last tick; return whether this beat leads any shard.

        Raises:
            LockLost: another beat leads an unsharded schedule.
            LockNotAcquired: no beat runs, and this scheduler does not hold the lock.
        """
        shards = self._shards
        if time.monotonic() >= self._chores_at:
            self._do_chores()
        if self.config.layout is not shards.layout:
            shards.form()
        shards.check()
        if self._beat is None and not shards.led and self.lock_key is not None:
            raise LockNotAcquired(
                f"A tick without the lock {self.lock_key}, which beat takes at its start: in a program "
                "of yours call acquire_distributed_beat_lock(service) first, or set redbeat_lock_key = None.",
                self.lock_key,
            )
        if self._election.is_look_due:
            self.stand_for_leader()
        elif shards.has_news:
            self._report_lost()
            self._store_statics()
        return bool(shards.led)

    def _do_chores(self) -> None:
        """Do the chores that do not depend on due entries."""
        self._chores_at = time.monotonic() + CHORES_SECONDS
        shards = self._shards
        self._reports.log_others()
        if (self._election.has_new_layout or shards.is_moving) and shards.reaches_base():
            look_up_layout(self.store)
        shards.set_timeouts()
        shards.hand_over()  # no batch is on its way now
        if self._beat is not None:
            self._telemetry.look()
            self._election.keep_alive()
            # all parts are asked, so a node that doesn't answer would make each look wait
            if shards.leads_first and len(shards.reached) == len(shards.led):
                with surviving("Looking for entries in former shards"):  # later, doctor finds them
                    report_moved(self._sweeper.look())

    def _stand_by(self) -> float:
        """Wait until the next look at the locks of other beats."""
        if self._reports.is_time("standby", STANDBY_SECONDS):
            lock = self._shards.first.leadership.own
            holder = lock.describe_holder()
            extra = events.LEADER_STANDBY.of(lock=lock.key, reason=holder)
            logger.info("beat: Standing by: %s.", holder, extra=extra)
        return self._wait(self._election.seconds_to_look())

    def _tick(self) -> float:
        if not self._leads():
            return self._stand_by()
        shards, broker = self._shards, self._broker
        if broker.is_away:
            shards.renew_locks()  # trying the broker may take long
            is_time = self._beat is None or self._reports.is_time("broker", BROKER_RETRY_SECONDS)
            if not (is_time and broker.is_back()):
                return self._wait(BROKER_RETRY_SECONDS)
        began_at = time.monotonic()
        is_collecting = gc.isenabled()
        gc.disable()  # a burst makes thousands of objects: else it takes 5 % more processor time
        try:
            for batches in shards.take_due(is_waiting=self._beat is not None):
                self._deliverer.deliver(batches)
        finally:
            if is_collecting:
                gc.enable()
        seconds = min(shards.seconds_to_next(), float(self.max_interval))
        if broker.is_away:
            seconds = BROKER_RETRY_SECONDS
        if shards.troubles or not shards.reached:
            shards.raise_trouble(is_waiting=self._beat is not None)
        self._figures.ticks.observe(time.monotonic() - began_at)
        for taken in self._deliverer.seconds:
            self._figures.batches.observe(taken)
        self._deliverer.seconds.clear()
        is_outdated = self.config.layout is not shards.layout
        return 0 if is_outdated or not seconds else self._wait(seconds)

    # -- sending

    @property
    def asks_subclass(self) -> bool:
        """Whether each planned run goes through methods that a subclass overrides."""
        return self.Entry.is_due is not _ENTRY_IS_DUE or any(
            overrides.is_overridden(self, name, _ORIGINALS[name]) for name in overrides.ASKED
        )

    def send_planned(self, entry: Any, producer: Any, seconds_to_next: float) -> None:
        """Send the planned run of ``entry`` through the methods that a subclass overrides.

        Arguments:
            seconds_to_next: how long after now its next run is due.

        Raises:
            RunDeclined: no method has sent it.
            Exception: what sending a message has raised, also if a method has caught it.
        """
        planned = self._planned = overrides.PlannedSend()
        entry.planned_state = schedstate(is_due=True, next=seconds_to_next)
        try:
            again = self.maybe_due(entry, **{**self._maybe_due_kwargs, "producer": producer})
        finally:
            self._planned, entry.planned_state = None, None
        if planned.error is not None:
            raise planned.error
        if not planned.is_sent:
            is_usable = isinstance(again, (int, float)) and again > 0
            seconds = min(float(again or 0), float(self.max_interval)) if is_usable else 1.0
            raise overrides.RunDeclined(seconds)

    def apply_async(self, entry: Any, producer: Any = None, advance: bool = True, **kwargs: Any) -> Any:
        """Send ``entry``'s task. Every dispatch goes through here if a subclass or a tool has hooked in.

        With ``advance`` it is recorded, too.
        """
        sent = object.__new__(type(entry))  # copy.copy() takes as long as planning the entry's run
        sent.__dict__.update(entry.__dict__, options=dict(entry.options))
        if "headers" in sent.options:  # copied, as Celery adds to them
            sent.options["headers"] = dict(sent.options["headers"] or {})
        if sent.message is not None:
            publish(sent.message, producer or self.producer, self.app)
            return self.app.AsyncResult(sent.message.task_id)
        planned = self._planned
        if planned is None:
            return super().apply_async(sent, producer=producer, advance=advance, **kwargs)
        planned.is_sent, planned.messages = True, planned.messages + 1
        if planned.messages > 1:  # a message of its own, and the same one when the run is tried again
            sent.options["task_id"] = task_id_of(str(sent.options.get("task_id")), str(planned.messages))
        try:
            return super().apply_async(sent, producer=producer, advance=advance, **kwargs)
        except BaseException as exc:
            planned.error = planned.error or exc
            raise

    # it does not handle errors of messages, so that they may be confirmed later; an override may
    apply_async.is_deferrable = True  # type: ignore[attr-defined]

    def apply_entry(self, entry: Any, producer: Any = None) -> None:
        """Send ``entry``; a subclass may override it, as those of Celery's scheduler do."""
        self.apply_async(entry, producer=producer)

    def reserve(self, entry: Any) -> Any:
        """Record a run of ``entry`` as of now; return the entry as it is after it.

        That of a planned run is recorded with its batch.
        """
        if self._planned is None:
            return next(entry)
        self._planned.is_sent = True
        return entry.advanced()

    def maybe_due(self, entry: Any, **kwargs: Any) -> float | None:
        """Send ``entry`` if it is due; return the seconds to its next run."""
        planned = self._planned
        if planned is None:  # a subclass has a loop of its own
            self._shards.first.leadership.confirm()
            if self._ticking_thread is not None and self._reports.is_time("loop of a subclass", math.inf):
                logger.warning(
                    "beat: %s.tick sends runs by itself, without policies as overlap and without delayed "
                    "tasks: super().tick() has them.",
                    type(self).__qualname__,
                )
        is_due, next_seconds = entry.is_due()
        if not is_due:
            return next_seconds  # type: ignore[no-any-return]
        try:
            # as in 2.x, a run is recorded before it is sent: a SIGTERM must not come between
            with hold_interrupts() if planned is None else nullcontext():
                if overrides.is_overridden(self, "apply_entry", _ORIGINALS["apply_entry"]):
                    self.apply_entry(entry, producer=kwargs.get("producer"))
                else:
                    self.apply_async(entry, **kwargs)
        except BaseException as exc:
            let_through(exc)
            if planned is not None:
                raise  # it is tried again, or skipped, as any run is
            logger.exception("beat: Couldn't send %s (%s)", entry.name, entry.task)
        else:
            if planned is None:  # else it is logged with its batch
                logger.info("Scheduler: Sending due task %s (%s)", entry.name, entry.task)
        if planned is not None:
            planned.is_sent = True
        return next_seconds  # type: ignore[no-any-return]

    @property
    def producer(self) -> Any:
        """The producer that ``apply_async`` is given."""
        return self._broker.producer

    @property
    def _maybe_due_kwargs(self) -> dict[str, Any]:
        """What a subclass with a loop of its own, as in 2.x, gives to ``maybe_due``."""
        return {"producer": self.producer}

    # -- leading, and waiting

    @property
    def lock(self) -> LeaderLock | Any:
        """The lock this scheduler holds, None if it holds none; of a schedule in shards that of the first.

        A program, such as a test, may set it to a lock of redis-py, or to any object with ``extend`` and
        ``release``. Then this scheduler leads.
        """
        return self._shards.first.leadership.lock

    @lock.setter
    def lock(self, lock: LeaderLock | Any) -> None:
        leadership = self._shards.first.leadership
        leadership.forget()
        leadership.lock = lock

    @property
    def lock_key(self) -> str | None:
        """The lock's key; None if there is no lock, and every beat leads."""
        return self._election.lock_key

    @lock_key.setter
    def lock_key(self, lock_key: str | None) -> None:
        self._election.set_lock(lock_key, self.lock_timeout)

    @property
    def lock_timeout(self) -> float:
        """How long the lock lives after it was last renewed, seconds."""
        return self._election.timing.lock_seconds

    @lock_timeout.setter
    def lock_timeout(self, seconds: float) -> None:
        self._election.set_lock(self.lock_key, seconds)

    @functools.cached_property
    def _wake(self) -> WakeChannel:
        return WakeChannel(self.store.client, ())

    @property
    def _look_seconds(self) -> float:
        """How often a waiting leader looks at the schedule, and a standby at the lock."""
        seconds = self._election.timing.look_seconds
        # what has just come to another shard may be due soon
        return min(seconds, MOVING_SECONDS) if self._shards.is_moving else seconds

    def _parts(self) -> list[Part]:
        """Return what others see of this beat while it runs, as far as the settings want it."""
        own = OwnFigures(self._election, self._figures, self._shards.count_prepared)
        parts: list[Part] = [self._context.tracing, CheckIns(self.app), own, self._gathering]
        if self.config.http is not None:
            gathering = self._gathering
            pages = pages_of(self.app, self._health, lambda: gathering.views, own)
            parts.append(Endpoint(self.config.http, pages, on_look=self._health.look))
        if self.config.ping_url is not None:
            parts.append(Pings(self.app, self._health, self._find_fence))
        if self.config.ping_hosts:
            parts.append(EntryPings(self.app))
        return [*parts, self._feed]  # which comes last, as others connect receivers

    def _find_fence(self) -> Fence | None:
        """Return what says that this beat leads, of several shards the first one; None: it doesn't."""
        leadership = self._shards.first.leadership
        return leadership.fence if leadership.is_leader else None

    def _report_lost(self) -> None:
        """Report that Redis has lost the schedule; end this beat if ``redbeat_lock_lost`` says so.

        Raises:
            LockLost: the setting is given as 'exit'.
        """
        lost = self._shards.take_lost(lambda: startup.read_statics(self.app))
        if not lost:
            return
        numbers = tuple(shard.number for shard in lost if shard.number is not None)
        locks = " ".join(shard.leadership.lock_key or "" for shard in lost)
        parts = [shard.store.keys for shard in lost]
        which = self.config.layout.named(parts) if numbers else "the schedule"
        logger.error(
            "beat: Redis has lost %s, as after FLUSHALL, a restart without persistence or a failover to an "
            "empty replica. Entries of the code are stored again; restore all others, or let a receiver of "
            "redbeat.signals.schedule_lost do so.",
            which,
            extra=events.SCHEDULE_LOST.of(lock=locks),
        )
        self._feed.note_lost(numbers)
        is_exit_wanted = self.config.is_key_in_conf("redbeat_lock_lost") and not self._stands_by_when_lost
        if self._beat is not None and is_exit_wanted:
            raise LockLost(
                f"The lock {locks} was gone with {which}; redbeat_lock_lost = 'exit' ends this beat.",
                locks,
            )

    def stand_for_leader(self) -> bool:
        """Take the lock if it is free, and store ``beat_schedule``; return whether this scheduler leads.

        Of a schedule in shards it does so with each that is this beat's to lead.
        """
        taken = list[tuple[int | None, LeaderLock]]()
        for shard in self._shards.stand():
            shard.note_taken()
            if shard.leadership.lock is not None:
                self._gathering.lead(shard.store)
                taken.append((shard.number, shard.leadership.lock))
        if taken:
            self._feed.note_leader(taken)
        self._report_lost()
        if self._beat is not None:
            self._election.keep_alive()
        self._store_statics()
        return bool(self._shards.led)

    def _store_statics(self) -> None:
        """Store ``beat_schedule`` where that wasn't done since this beat leads."""
        fresh = [shard for shard in self._shards.reached if not shard.has_statics]
        if fresh and not self._shards.is_moving:  # else they are there already, on their way perhaps
            for shard in fresh:
                try:
                    startup.bring_back_downgraded(shard, self._reports)
                except RedBeatError as exc:
                    self._shards.fail(shard, exc)
            self.setup_schedule()

    def run_under(self, beat: Any) -> None:
        """Let ticks wait, and take the lock: ``beat``, Celery's service, is about to call them."""
        self._beat = beat
        if overrides.is_overridden(self, "tick", _ORIGINALS["tick"]):
            self.tick = partial(self._guard, self._tick_of_subclass)  # type: ignore[method-assign]
        unused = [*overrides.find_unused(type(self), RedBeatScheduler, overrides.UNUSED)]
        unused += overrides.find_unused(self.Entry, RedBeatSchedulerEntry, overrides.UNUSED_OF_ENTRY)
        for name, remedy in unused:
            logger.error("beat: %s is not called: %s.", name, remedy)
        self._stands_by_when_lost = self._stands_by_when_lost or service.is_embedded()

    def _wait(self, seconds: float, *, is_preparing: bool = True) -> float:
        """Under a running beat wait for ``seconds``, or until something happens, and return 0.

        Otherwise return ``seconds`` at once.

        Arguments:
            is_preparing: runs are prepared meanwhile.
        """
        if self._beat is None:
            return seconds
        # a lock is renewed in time
        due_at = ends_at = time.monotonic() + min(seconds, self.lock_timeout / 3)
        if self._shards.is_divided:  # the next tick looks at the locks that other beats hold
            ends_at = min(due_at, time.monotonic() + self._election.seconds_to_look())
        # a beat that is to lead nothing needs no channel; any will do
        self._wake.listen_to(self._election.wake_channels or (self._shards.first.store.keys.wake,))
        look_at = time.monotonic() + self._look_seconds
        while (left := ends_at - time.monotonic()) > 0 and not (
            self._is_stopping() or self.config.layout is not self._shards.layout
        ):
            self._reports.log_others()
            has_prepared = is_preparing and self._shards.has_locks and self._shards.prepare()
            pause_seconds = 0.0 if has_prepared else min(left, self._look_seconds)
            with self._shards.first.store.progress.asking():  # it may take longer where Redis doesn't answer
                is_woken = self._wake.wait(pause_seconds)
            if is_woken:
                self._shards.note_woken(self._wake.take_announced())
            if is_woken or self._is_stopping():
                break
            self._election.note_progress()
            # a tick that waits is not stuck; Celery sets it only when a tick returns
            self._beat._last_tick = time.monotonic()  # noqa: SLF001
            self._figures.last_tick_at = time.time()
            now = time.monotonic()
            if not self._election.is_leader or now >= due_at or (has_prepared and now < look_at):
                continue
            look_at = now + self._look_seconds
            if self._shards.look():
                break
            due_at = min(due_at, now + self._shards.seconds_to_next())
            ends_at = min(ends_at, due_at)
        return 0

    @staticmethod
    def leader(app: Any = None) -> Leader | None:
        """Return who leads the schedule of ``app``; None: nobody does. It needs no scheduler and no beat.

        Raises:
            ConfigurationError, StoreUnavailable, StoreRefused, StoreCorrupt: after 5 seconds at the most.
        """
        return read_status(app).leader

    def _is_ending_tick(self) -> bool:
        """Return True if the batches that are left wait for the next tick, or for another beat."""
        return self._broker.is_away or self._is_stopping()

    def _is_stopping(self) -> bool:
        # asked for by flags, as the signal handler's SystemExit may have been swallowed
        return self._is_close_wanted or (self._beat is not None and service.is_stopping(self._beat))

    def close(self) -> None:
        """Release the lock and close the connections; while a tick runs, as soon as it has ended."""
        self._health.note_stopping()
        if self._ticking_thread == threading.get_native_id():
            # Celery's signal handler calls this amid a tick, and its connections may be amid a command. The
            # thread's id is the system's, as gevent and eventlet call the handler in another greenlet
            self._is_close_wanted = True
            return
        self._is_close_wanted = False
        self._reports.log_others(is_ending=True)
        with hold_interrupts(CLOSE_SECONDS):  # else a second signal would leave the lock behind
            self._shards.close()  # what is on its way is waited for while the locks are held
        if "_wake" in self.__dict__:  # it has waited
            self._wake.close()
        self._broker.close()
        self._telemetry.stop()
        super().close()

    # -- the schedule

    def setup_schedule(self) -> None:
        """Store what the code has, and remove what was in it before and isn't any more.

        That is ``beat_schedule``, and what :func:`redbeat.scheduled` has declared.

        Raises:
            DeclarationError: two of these entries have the same name.
        """
        if self._is_choosing:
            return
        shards = self._shards
        installs = overrides.is_overridden(self, "install_default_entries", Scheduler.install_default_entries)
        statics = startup.read_statics(self.app, has_defaults=not installs)
        if installs:
            self.install_default_entries(self.app.conf.beat_schedule)
        led = [shard for shard in shards.reached if not shard.has_statics] or shards.led or list(shards)
        for shard in led:
            here = {name: one for name, one in statics.items() if shards.home_of(name) is shard}
            try:
                with self._reports.surviving(shard.store, "beat_schedule can't be stored"):
                    startup.store_statics(shard, statics, here, self.update_from_dict)
                shard.has_statics = True
            except RedBeatError as exc:
                shards.fail(shard, exc)
        shards.raise_trouble(is_waiting=self._beat is not None)

    def update_from_dict(self, dict_: Mapping[str, Any]) -> None:
        """Store the entries of ``dict_``: name to entry, or to an entry's keyword arguments."""
        if self._is_choosing:
            return
        for shard, entries in self._shards.by_home(dict_):
            for chunk in in_chunks(entries.items()):  # so that only its entries are in memory
                startup.store_entries(shard, self._reports, self._maybe_entry, chunk)

    @property
    def schedule(self) -> dict[str, Any]:
        """The entries that are due now, a batch at most, and the next one after them, by their names."""
        window: dict[str, Any] = {}
        for stored in read_window(self.store, self.config.batch_size):
            try:
                entry = load_entry(self.Entry, stored, self.app)
            except (EntryNotFound, EntryCorrupt) as exc:
                logger.debug("beat: Not shown: %s", exc)
            else:
                window[entry.name] = entry
        return window

    @property
    def info(self) -> str:
        """The banner's lines about Redis, the lock, delivery and messages."""
        return startup.banner(self, self.store)


#: methods as they are here, whatever a tool puts in their place later
_ORIGINALS = {name: getattr(RedBeatScheduler, name) for name in (*overrides.ASKED, "tick")}
_ENTRY_IS_DUE = RedBeatSchedulerEntry.is_due


@beat_init.connect
def acquire_distributed_beat_lock(sender: Any = None, **kwargs: Any) -> None:
    """Let RedBeat's scheduler become leader: in its ticks when beat starts, at once when called directly.

    Arguments:
        sender: Celery's beat service; one with another scheduler is left alone.
    """
    scheduler = getattr(sender, "scheduler", None)
    if not isinstance(scheduler, RedBeatScheduler):
        return
    if "signal" in kwargs:
        scheduler.run_under(sender)
    else:
        scheduler.stand_for_leader()


__getattr__, __dir__, __all__ = lookup_of(__name__, globals())
