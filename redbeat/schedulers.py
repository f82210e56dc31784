"""The scheduler: read it top to bottom as the story of one tick.

A tick claims what is due (one script), decides about each entry without I/O, sends, and commits what was
decided (one script). Then it waits for the next due time, or for somebody who writes to the schedule.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from celery.beat import DEFAULT_MAX_INTERVAL, Scheduler
from celery.signals import beat_init

from redbeat.beat.batch import Batch
from redbeat.beat.claims import Claims, claim_in_turn
from redbeat.beat.dispatcher import Dispatcher
from redbeat.beat.feed import Feed
from redbeat.beat.log import Reports, brief, ending_briefly, told_of_loss
from redbeat.beat.log_format import choose_format, set_up_early
from redbeat.beat.lookahead import LookAhead
from redbeat.beat.messages import StoredMessages
from redbeat.beat.service import BeatService
from redbeat.beat.startup import (
    banner,
    check_eviction,
    pin_settings,
    read_statics,
    store_entries,
    store_statics,
)
from redbeat.beat.supervision import Supervision
from redbeat.broker.confirms import deferrable
from redbeat.broker.connection import Broker
from redbeat.broker.originals import remember_scheduler
from redbeat.config.config import RedBeatConfig as RedBeatConfig
from redbeat.config.config import ensure_conf as ensure_conf
from redbeat.config.timing import Timing
from redbeat.connection.client import get_redis as get_redis
from redbeat.connection.retry import RetryingConnection as RetryingConnection
from redbeat.connection.retry import is_period_left, is_refusal
from redbeat.entries.entry import RedBeatSchedulerEntry as RedBeatSchedulerEntry
from redbeat.entries.loading import decode_entry
from redbeat.errors import (
    EntryCorrupt,
    EntryNotFound,
    LockLost,
    LockNotAcquired,
    RedBeatError,
    StoreCorrupt,
    StoreRefused,
)
from redbeat.keys import Keys
from redbeat.later.sending import publish
from redbeat.leadership.elector import Leadership
from redbeat.leadership.lock import LeaderLock
from redbeat.leadership.status import Leader, read_status
from redbeat.log.events import LEADER_LOST
from redbeat.log.logger import logger
from redbeat.log.text import printable, shorten
from redbeat.process.garbage import garbage_kept
from redbeat.process.signals import has_greenlets, hold_interrupts
from redbeat.store.later import LaterStore
from redbeat.store.notifier import WakeChannel
from redbeat.store.records import Claim, Commit, Fence, LockStatus
from redbeat.store.store import Store
from redbeat.store.upcoming import Upcoming
from redbeat.telemetry.endpoint.condition import Condition
from redbeat.telemetry.endpoint.endpoint import Endpoint
from redbeat.telemetry.endpoint.pages import metrics_of, pages_of
from redbeat.telemetry.metrics.beat_figures import BeatFigures
from redbeat.telemetry.metrics.gathering import Gathering
from redbeat.telemetry.metrics.labels import LabelBook, queue_finder
from redbeat.telemetry.metrics.own_figures import OwnFigures
from redbeat.telemetry.pings.entry_pings import EntryPings
from redbeat.telemetry.pings.pings import Pings
from redbeat.telemetry.sentry import (
    worker_check_ins as worker_check_ins,  # Sentry's part for Celery imports this
)
from redbeat.telemetry.sentry.check_ins import CheckIns
from redbeat.telemetry.telemetry import Part, Telemetry
from redbeat.telemetry.tracing.tracing import Tracing

__all__ = ["RedBeatScheduler", "acquire_distributed_beat_lock"]


#: how long signals are held back while the lock is released
CLOSE_SECONDS = 3.0
#: how often a broker that is away is tried again
BROKER_RETRY_SECONDS = 1.0
#: how long beats without a lock hide what they claimed from each other
LEASE_SECONDS = 30.0


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

    def __init__(
        self, app: Any, lock_key: str | None = None, lock_timeout: float | None = None, **kwargs: Any
    ) -> None:
        lazy = kwargs.pop("lazy", False)
        super().__init__(app, lazy=True, **kwargs)
        self.max_interval: float = self.max_interval or DEFAULT_MAX_INTERVAL
        with ending_briefly(is_logging=not lazy):
            is_json = choose_format(app, is_logging=not lazy)
        with ending_briefly(is_logging=not lazy, set_up=partial(set_up_early, app) if is_json else None):
            self.config = ensure_conf(app)
            self.store = Store(app)
            lock_seconds = self.config.lock_seconds(lock_timeout, self.max_interval)
        self._beat: BeatService | None = None  # set while beat runs: then a tick itself waits
        self._leadership = Leadership(
            self.store,
            self.config.keys.prefixed(lock_key) if lock_key else self.config.lock_key,
            Timing(lock_seconds, self.config.takeover_after),
        )
        self._head_score: float | None = None
        self._broker_tried_at = 0.0  # monotonic
        self._broker = self._make_broker(app)
        self._reports = Reports(self.config.keys.name)
        self._stands_by_when_lost = self.config.lock_lost == "standby"
        self._tracing = Tracing(lambda: self.look_ahead.now, lambda: self._broker.peer)
        self._figures = BeatFigures()
        self._book = LabelBook(queue_finder(app), self.config.metrics_entries)
        self._dispatcher = self._make_dispatcher(self.store)
        later = LaterStore.beside(self.store)
        self._messages = StoredMessages(later, self._make_dispatcher(later))
        upcoming = Upcoming(self.store, self.config.lookahead) if self.config.lookahead else None
        self.look_ahead = LookAhead(upcoming, self._dispatcher.quick_way, self._figures)
        self._claims = Claims(self.store, self._dispatcher.pace)
        self._supervision = Supervision(self.store, lambda: self.Entry, self._reports, self.config.run_lease)
        self._feed = Feed(app, self._find_fences)
        self._condition = Condition(self._leadership, self._broker, lambda: self._stuck_seconds)
        is_shown = self.config.http is not None
        self._gathering = Gathering(app, lambda: (self._leadership,), self._book, is_shown=is_shown)
        self._telemetry = Telemetry(self._parts())
        self._has_backlog = False  # the last claim has left entries due
        self._has_statics = False
        self._well_at: float | None = None  # when a tick succeeded last, monotonic; None: none has
        self._ticking_thread: int | None = None
        self._is_close_wanted = False
        if not lazy:
            self.config.warn_of_unknown()
            pin_settings(app)
            with ending_briefly():
                read_statics(app)  # what is wrong there is to be known now, not when it becomes leader
                self.store.connect()
                check_eviction(self.store)
            if self.lock_key is None:
                self.stand_for_leader()  # stores beat_schedule; with a lock the leader does that

    def _make_broker(self, app: Any) -> Broker:
        """Return the broker: waiting for it ends well before the lock, or a lease, does."""
        timing = self._leadership.timing if self.lock_key else Timing(LEASE_SECONDS)
        return Broker(
            app,
            self.Producer,
            timing.publish_seconds(self.config.publish_timeout),
            connect_seconds=timing.connect_seconds(self.config.publish_timeout),
            sends_once=self.config.delivery == "at_most_once",
        )

    def _make_dispatcher(self, store: Store) -> Dispatcher:
        return Dispatcher(
            self,
            store,
            self._broker,
            self._leadership,
            self._reports,
            self._tracing,
            quarantine_seconds=self.max_interval,
            book=self._book,
            figures=self._figures,
        )

    # -- one tick

    def tick(self, *_args: Any, **_kwargs: Any) -> float:
        """Send one batch of what is due; return the seconds to the next tick, 0 when more is due.

        Under a running beat it waits for that long itself, so that it can be woken, and returns 0.

        Raises:
            LockNotAcquired: a lock is configured, and this scheduler is neither its holder nor run by beat.
            LockLost: another beat has the lock now.
            StoreUnavailable: Redis can't be reached.
        """
        if self._beat is not None and self._beat.has_been_terminated:
            self._beat.stop()  # the signal handler's SystemExit was lost between two ticks
            return 0
        self._ticking_thread = threading.get_native_id()
        try:
            # a lock of greenlets that a handler interrupts stays locked: it waits for the tick's end, half a
            # second at most
            with hold_interrupts() if self._beat is not None and has_greenlets() else nullcontext():
                delay_seconds = self._tick()
        except (StoreCorrupt, StoreRefused) as exc:
            if self._beat is None:
                raise
            period = self.config.redbeat_redis_options.get("retry_period")
            if isinstance(exc, StoreRefused) and not is_period_left(period, self._well_at):
                raise brief(exc) from None
            self._reports.report_trouble(str(exc))
            self._condition.note_trouble(str(exc))
            self._leadership.note_progress()
            time.sleep(self._look_seconds)
            return 0
        except LockLost as exc:
            if self._beat is None or not self._stands_by_when_lost:
                raise told_of_loss(brief(exc)) from None
            logger.error(  # noqa: TRY400 - the sentence says it all
                "beat: %s It stands by.", exc, extra=LEADER_LOST.of(lock=exc.lock_key, holder=exc.holder)
            )
            self._leadership.forget()
            return self._wait(self._look_seconds)
        except RedBeatError as exc:
            if self._beat is None:
                raise
            raise brief(exc) from None
        else:
            self._well_at = time.monotonic()
            self._reports.report_trouble("")
            return delay_seconds
        finally:
            self._ticking_thread = None
            is_ending = self._is_close_wanted or (self._beat is not None and self._beat.has_been_terminated)
            if self._is_close_wanted:
                self.close()
            if is_ending and self._beat is not None:
                self._beat.stop()  # the signal handler's SystemExit may have been swallowed

    def _tick(self) -> float:
        if self._beat is not None:
            self._telemetry.look()
            self._feed.look()  # after it, as parts of it may be receivers
        if not self._is_leading():
            self.look_ahead.forget()
            candidacy = self._leadership.candidacy
            if candidacy is not None:
                self._reports.report_standby(candidacy)
            return self._wait(self._leadership.seconds_to_look())
        if self._broker.is_away:
            self.store.renew_lock(self._leadership.fence)  # trying the broker may take long
            if not self._is_broker_back():
                return self._wait(BROKER_RETRY_SECONDS)
        began_at = time.monotonic()
        with garbage_kept():
            seconds = self._send_messages(self._send_due())
        self._figures.ticks.observe(time.monotonic() - began_at)
        return self._wait(seconds) if seconds else 0

    def _send_due(self) -> float:
        """Send one batch of what is due; return how long to wait then, 0 when more is due."""
        fence, pace = self._leadership.fence, self._dispatcher.pace
        # with a backlog they wait for what was due before them, as any other
        if not self._has_backlog and not self._send_prepared(fence):
            return self._look_seconds
        claim = claim_in_turn(self._claims, pace, fence, self._lease_ms)
        self._messages.note(claim, self._claims.claimed_at)
        if not claim.is_ahead:
            self.look_ahead.note_clock(claim.now)
            self._reports.note_clock(claim.now)
        self._supervision.watch.note_answer(None if claim.is_ahead else claim.now)
        if self.lock:
            logger.debug("beat: Extending lock...")
        batch = Batch(claim, fence, is_leased=self._lease_ms > 0, is_in_doubt=claim.is_partial)
        began_at = time.monotonic()
        try:
            self._dispatcher.dispatch(batch)
        except BaseException:
            self._claims.close()
            raise
        if claim.rows:
            self._figures.batches.observe(time.monotonic() - began_at)
        self._has_backlog = claim.has_more or batch.is_cut
        if batch.is_cut:  # what is still due goes before what was asked for ahead
            self._claims.close()
        has_settled = self._supervision.settle(claim, fence)
        if claim.rows:
            self._claims.may_ask_ahead = batch.is_quick
        if self._beat is not None:  # else the caller decides how long to wait
            pace.end_batch()
        if self._broker.is_away:
            self._broker_tried_at = time.monotonic()
            return BROKER_RETRY_SECONDS
        if batch.recorded:
            self._broker.note_well()
            self.look_ahead.note_commits(batch.recorded)
        if batch.is_in_doubt:
            return self._look_seconds
        if claim.has_more or batch.is_cut or has_settled or self.store.has_retaken_lock:
            return 0
        if claim.is_ahead:  # it may have missed what is due now
            return self._send_due()
        delay_seconds = self._seconds_to_next(claim, batch.recorded)
        return min(delay_seconds, pace.seconds_to_costly()) if pace.has_costly else delay_seconds

    def _send_messages(self, seconds: float) -> float:
        """Send one batch of the stored messages that are due; return how long to wait then, 0 when more are.

        Arguments:
            seconds: how long to wait for the schedule.
        """
        if self._messages.seconds_left == 0 and not self._broker.is_away:
            batch = self._messages.send(self._leadership.fence, self._lease_ms)
            self._figures.later += batch.deleted
            if self._broker.is_away:
                self._broker_tried_at = time.monotonic()
                return BROKER_RETRY_SECONDS
            if batch.recorded:
                self._broker.note_well()
            if self.store.has_retaken_lock:
                return 0
        left = self._messages.seconds_left
        return seconds if left is None else min(seconds, left)

    def _send_prepared(self, fence: Fence) -> bool:
        """Send the prepared runs whose time has come; return whether to go on."""
        if not self.look_ahead.is_due:
            return True
        claim = Claim(LockStatus.HELD, self.look_ahead.now, None, has_more=False, rows=[])
        batch = Batch(claim, fence, is_leased=False, is_prepared=True)
        self._dispatcher.dispatch_prepared(batch, iter(self.look_ahead.take_due, []))
        self.look_ahead.note_commits(batch.recorded)
        return not (self._broker.is_away or batch.is_in_doubt)

    def _is_broker_back(self) -> bool:
        """Try the broker, at most once in ``BROKER_RETRY_SECONDS``; return whether it is back."""
        if self._beat is not None and time.monotonic() < self._broker_tried_at + BROKER_RETRY_SECONDS:
            return False
        is_back = self._broker.is_back()
        self._broker_tried_at = time.monotonic()
        return is_back

    def _seconds_to_next(self, claim: Claim, commits: Iterable[Commit]) -> float:
        scores = [float(commit.new_score) for commit in commits if isinstance(commit.new_score, str)]
        if claim.next_score is not None:
            scores.append(claim.next_score)
        self._head_score = min((score for score in scores if score >= 0), default=None)
        known = [at for at in (self._head_score, claim.next_deadline) if at is not None]
        if not known:
            return float(self.max_interval)
        elapsed = time.monotonic() - self._claims.claimed_at
        return min(max(min(known) - claim.now - elapsed, 0), float(self.max_interval))

    # -- sending

    @deferrable
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
        return super().apply_async(sent, producer=producer, advance=advance, **kwargs)

    def reserve(self, entry: Any) -> Any:
        """Record a run of ``entry`` as of now; return the entry as it is after it."""
        return next(entry)

    def maybe_due(self, entry: Any, **kwargs: Any) -> float | None:
        """Send ``entry`` if it is due; return the seconds to its next run."""
        is_due, next_seconds = entry.is_due()
        if is_due:
            logger.info("Scheduler: Sending due task %s (%s)", entry.name, entry.task)
            try:
                self.apply_async(entry, **kwargs)
            except Exception:
                logger.exception("beat: Couldn't send %s (%s)", entry.name, entry.task)
        return next_seconds  # type: ignore[no-any-return]

    @property
    def producer(self) -> Any:
        """The producer that ``apply_async`` is given."""
        return self._broker.producer

    # -- leading, and waiting

    @property
    def lock(self) -> LeaderLock | Any:
        """The lock this scheduler holds, None if it holds none.

        A program, such as a test, may set it to a lock of redis-py, or to any object with ``extend`` and
        ``release``. Then this scheduler leads.
        """
        return self._leadership.lock

    @lock.setter
    def lock(self, lock: LeaderLock | Any) -> None:
        self._leadership.forget()
        self._leadership.lock = lock

    @property
    def lock_key(self) -> str | None:
        """The lock's key; None if there is no lock, and every beat leads."""
        return self._leadership.lock_key

    @lock_key.setter
    def lock_key(self, lock_key: str | None) -> None:
        self._leadership.lock_key = lock_key

    @property
    def lock_timeout(self) -> float:
        """How long the lock lives after it was last renewed, seconds."""
        return self._leadership.timing.lock_seconds

    @lock_timeout.setter
    def lock_timeout(self, seconds: float) -> None:
        self._leadership.timing = replace(self._leadership.timing, lock_seconds=seconds)
        if isinstance(self.lock, LeaderLock):
            self.lock.set_timeout(seconds)

    @cached_property
    def _wake(self) -> WakeChannel:
        return self.store.wake_channel()

    @property
    def _look_seconds(self) -> float:
        """How often a waiting leader looks at the schedule, and a standby at the lock."""
        return self._leadership.timing.look_seconds

    @property
    def _lease_ms(self) -> int:
        return 0 if self.lock_key else int(LEASE_SECONDS * 1000)

    @property
    def _stuck_seconds(self) -> float:
        """After how long without progress beat hangs; by the settings it may have to wait for the broker."""
        timing = self._leadership.timing if self.lock_key else Timing(LEASE_SECONDS)
        wanted_seconds = self.config.publish_timeout
        once = timing.publish_seconds(wanted_seconds) + timing.connect_seconds(wanted_seconds)
        return max(timing.stuck_seconds, 2 * once)  # a connection that has broken is replaced amid a batch

    def _parts(self) -> list[Part]:
        """Return what others see of this beat while it runs, as far as the settings want it."""
        own = OwnFigures(self._leadership, self._figures, lambda: len(self.look_ahead))
        parts: list[Part] = [self._tracing, CheckIns(self.app), own, self._gathering]
        if self.config.http is not None:
            gathering = self._gathering
            metrics = metrics_of(lambda: gathering.views, own)
            pages = pages_of(self.app, self._condition, metrics, lambda: gathering.views)
            parts.append(Endpoint(self.config.http, pages, on_look=self._condition.look))
        if self.config.ping_url is not None:
            parts.append(Pings(self.app, self._condition, self._find_fence))
        if self.config.ping_hosts:
            parts.append(EntryPings(self.app))
        return parts

    def _find_fences(self) -> dict[Keys, Fence]:
        """Return which parts of the schedule this beat leads, and what says so."""
        return {self._leadership.keys: self._leadership.fence} if self._leadership.is_leader else {}

    def _find_fence(self) -> Fence | None:
        """Return what says that this beat leads; None: it doesn't."""
        return self._leadership.fence if self._leadership.is_leader else None

    def _is_leading(self) -> bool:
        if self._leadership.check():
            self._has_statics = False  # the lock was gone: beat_schedule's entries may be gone, too
        if self._leadership.is_leader and self._has_statics:
            return True
        if self._beat is None and not self._leadership.is_leader:
            raise LockNotAcquired(
                f"A tick without the lock {self.lock_key}, which beat takes at its start: in a program "
                "of yours call acquire_distributed_beat_lock(service) first, or set redbeat_lock_key = None.",
                self.lock_key,
            )
        return self.stand_for_leader()

    def stand_for_leader(self) -> bool:
        """Take the lock if it is free, and store ``beat_schedule``; return whether this scheduler leads."""
        was_leader = self._leadership.is_leader
        if not self._leadership.stand():
            return False
        if not was_leader:
            self._has_statics = False  # another beat may have changed them meanwhile
            self._gathering.lead(self.store)
            if isinstance(self.lock, LeaderLock):
                self._feed.note_leader(self.lock)
        if self._beat is not None:
            self._leadership.keep_alive()
        if not self._has_statics:
            self._bring_back()
            try:
                self.setup_schedule()
            except StoreCorrupt as exc:
                if exc.key in (self.lock_key, self.config.schedule_key):
                    raise
                self._reports.report_left_out(f"beat_schedule isn't stored, the rest goes on: {exc}")
                self._has_statics = True
        return True

    def _bring_back(self) -> None:
        """Put back the entries that ``celery redbeat downgrade`` has taken out of the schedule."""
        try:
            found = self.store.bring_back(self._leadership.fence)
        except StoreRefused as exc:
            if exc.is_login or is_refusal(exc.__cause__):
                raise
            self._leave_away(exc)
            return
        except StoreCorrupt as exc:
            if exc.key == self.lock_key:
                raise
            self._leave_away(exc)
            return
        if found.scoreless:
            names = ", ".join(map(self.config.keys.name, found.scoreless[:10]))
            logger.warning(
                "beat: %d entries that were taken out for celery-redbeat 2.x are due now, as %s has no score "
                "for them: %s.",
                len(found.scoreless),
                self.config.keys.downgraded,
                shorten(printable(names)),
            )
        if found.returned or found.gone:
            logger.info(
                "beat: Brought back %d entries that were taken out for celery-redbeat 2.x; %d are deleted.",
                found.returned,
                found.gone,
            )

    def _leave_away(self, exc: RedBeatError) -> None:
        self._reports.report_left_out(
            f"What was taken out for celery-redbeat 2.x can't be brought back, the rest goes on: {exc}"
        )

    def run_under(self, service: Any) -> None:
        """Let ticks wait, and take the lock: ``service``, Celery's beat, is about to call them."""
        self._beat = BeatService(service)
        self._stands_by_when_lost = self._stands_by_when_lost or self._beat.is_embedded

    def _wait(self, seconds: float) -> float:
        """Under a running beat wait for ``seconds``, or until something happens, and return 0.

        Otherwise return ``seconds`` at once.
        """
        if self._beat is None:
            return seconds
        deadline = time.monotonic() + seconds
        if self.lock:
            deadline = min(deadline, time.monotonic() + self.lock_timeout / 3)  # to renew it in time
        look_at = time.monotonic() + self._look_seconds
        while (left := deadline - time.monotonic()) > 0 and not self._is_stopping():
            is_leading = self._leadership.is_leader and bool(self.lock)
            is_preparing = is_leading and self.look_ahead.is_wanted(self._head_score)
            if is_preparing:
                self.look_ahead.prepare()
            pause_seconds = 0.0 if is_preparing else min(left, self._look_seconds)
            with self.store.asking():  # it may take longer where Redis doesn't answer
                is_woken = self._wake.wait(pause_seconds)
            if is_woken or self._is_stopping():
                break
            self._leadership.note_progress()
            self._beat.note_tick()
            self._figures.last_tick_at = time.time()
            now = time.monotonic()
            if not self._leadership.is_leader or now >= deadline or (is_preparing and now < look_at):
                continue
            head, look_at = self.store.look(), now + self._look_seconds
            has_changed = head.score != self._head_score or head.later != self._messages.head_score
            self.look_ahead.note_clock(head.now)
            self._supervision.watch.note_answer(head.now)
            # is_due: the server's clock may have jumped
            if has_changed or head.is_due:
                break
        return 0

    @staticmethod
    def leader(app: Any = None) -> Leader | None:
        """Return who leads the schedule of ``app``; None: nobody does. It needs no scheduler and no beat.

        Raises:
            ConfigurationError, StoreUnavailable, StoreRefused, StoreCorrupt: after 5 seconds at the most.
        """
        return read_status(app).leader

    def _is_stopping(self) -> bool:
        # asked for by flags, as the signal handler's SystemExit may have been swallowed
        return self._is_close_wanted or (self._beat is not None and self._beat.is_stopping)

    def close(self) -> None:
        """Release the lock and close the connections; while a tick runs, as soon as it has ended."""
        self._condition.note_stopping()
        if self._ticking_thread == threading.get_native_id():
            # Celery's signal handler calls this amid a tick, and its connections may be amid a command. The
            # thread's id is the system's, as gevent and eventlet call the handler in another greenlet
            self._is_close_wanted = True
            return
        self._is_close_wanted = False
        with hold_interrupts(CLOSE_SECONDS, is_firm=True):  # else a second signal would leave the lock behind
            self._has_statics = False
            self._claims.close()  # what is on its way is waited for while the lock is held
            self._leadership.resign()
        if "_wake" in self.__dict__:  # it has waited
            self._wake.close()
        self._broker.close()
        self._feed.stop()
        self._telemetry.stop()
        super().close()

    # -- the schedule

    def setup_schedule(self) -> None:
        """Store what the code has, and remove what was in it before and isn't any more.

        That is ``beat_schedule``, and what :func:`redbeat.scheduled` has declared.

        Raises:
            DeclarationError: two of these entries have the same name.
        """
        statics = read_statics(self.app)
        store_statics(self.store, self._leadership.fence, statics, self.update_from_dict)
        self._has_statics = True

    def update_from_dict(self, dict_: Mapping[str, Any]) -> None:
        """Store the entries of ``dict_``: name to entry, or to an entry's keyword arguments."""
        with garbage_kept():
            store_entries(self.store, self._leadership.fence, self._maybe_entry, dict_)

    @property
    def schedule(self) -> dict[str, Any]:
        """The entries that are due now, a batch at most, and the next one after them, by their names."""
        window: dict[str, Any] = {}
        for stored in self.store.window(self.config.batch_size):
            try:
                entry = decode_entry(self.Entry, stored, self.app)
            except (EntryNotFound, EntryCorrupt) as exc:
                logger.debug("beat: Not shown: %s", exc)
            else:
                window[entry.name] = entry
        return window

    @property
    def info(self) -> str:
        """The banner's lines about Redis, the lock, delivery and messages."""
        return banner(self, self.store)


remember_scheduler(RedBeatScheduler, RedBeatSchedulerEntry)


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
