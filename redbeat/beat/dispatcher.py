"""One batch: what was claimed is decided about, sent, and recorded.

::

    Batch.claim      what the scheduler has claimed
       |  plan
       v
    runs             to be sent; for an entry that isn't, its commit goes to ``pending``
       |  send
       v
    pending          commits that may be recorded now: the message has been sent, or there is none
    collected        runs whose messages are pushed with their commits, or in one pipeline before them
    unconfirmed      runs whose messages RabbitMQ hasn't confirmed yet: they become pending, or are sent again
       |  record
       v
    recorded

With at_most_once a run is recorded before it is sent. Invariant: if a batch ends early, whatever the cause,
each run whose message has been sent is recorded as sent if Redis can be reached, and each other run stays
due.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from redbeat.beat.contention import Contention
from redbeat.beat.disruptions import Disruptions, has_failed
from redbeat.beat.log import Reports
from redbeat.beat.pace import Pace
from redbeat.beat.planner import (
    CompiledRun,
    Run,
    commit_failed,
    commit_missing,
    commit_overrun,
    commit_quarantined,
    is_first_overrun,
    plan_run,
)
from redbeat.beat.quick_way import QuickWay
from redbeat.broker.confirms import Publication
from redbeat.broker.connection import Broker, reason_of
from redbeat.broker.delivery import Delivery
from redbeat.broker.outbox import Outbox
from redbeat.connection.retry import (
    BREAKS_OF_THE_REQUEST,
    HICCUP_SECONDS,
    LAST_WORDS_SECONDS,
    call_briefly,
    is_no_permission,
    is_refusal,
    is_reset,
)
from redbeat.entries.calendar_loading import KeptCalendars
from redbeat.entries.due import read_defaults
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.errors import EntryCorrupt, EntryTooExpensive, RedBeatError, StoreRefused
from redbeat.leadership.elector import Leadership
from redbeat.leadership.lock import TAKEN_MS
from redbeat.log.logger import logger
from redbeat.log.text import printable, shorten
from redbeat.process.budget import PLAN_SECONDS, limited, postpone_signals
from redbeat.process.garbage import garbage_kept
from redbeat.process.signals import hold_interrupts
from redbeat.schedules.occurrences import Excluded
from redbeat.store.records import (
    NOWHERE,
    Claim,
    Claimed,
    Commit,
    Committed,
    Fence,
    KeyType,
    LockStatus,
    Push,
    Target,
)
from redbeat.store.store import Store

#: with at_most_once, how many runs are recorded before they are sent: a crash loses at most these
AT_MOST_ONCE_GROUP = 20

#: how many runs go the quick way at a time: while the server records these, the next are planned
PIECE = 100

#: processor time that a plan may take, besides its budget, for each character that is read for it
READ_SECONDS = 1e-7


class Hooks(Protocol):
    """What a subclass of the scheduler may replace; looked up again for each run."""

    app: Any
    Entry: type[RedBeatSchedulerEntry]

    @property
    def producer(self) -> Any: ...

    def apply_async(
        self, entry: RedBeatSchedulerEntry, producer: Any = None, advance: bool = True
    ) -> Any: ...


@dataclass
class Batch:
    """One claim on its way.

    Attributes:
        is_leased: claimed entries are hidden from other beats, so those that aren't sent must be given back.
        pending: commits that may be recorded now; none of their messages is still to be sent.
        collected: runs whose messages are still to be pushed.
        events: task-sent events about messages that were sent.
        unconfirmed: runs whose messages are published and not confirmed yet.
        doubtful: keys of the entries whose messages may have been lost with a channel: each of their runs is
            sent again, and waited for by itself.
        recorded: commits that were written, or refused because somebody else has changed the entry.
        is_cut: some claimed entries are still due.
        is_quick: all its runs went the quick way.
        is_prepared: its runs were planned before they were due, and their entries may have changed since.
        is_in_doubt: nothing more can be sent now: schedule and broker were on one server and aren't any more,
            or a slot of a cluster is being moved.
    """

    claim: Claim
    fence: Fence
    is_leased: bool
    pending: list[Commit] = field(default_factory=list)
    collected: list[tuple[Run, tuple[Push, ...]]] = field(default_factory=list)
    events: list[Push] = field(default_factory=list)
    unconfirmed: list[tuple[Run, Publication]] = field(default_factory=list)
    doubtful: set[str] = field(default_factory=set)
    recorded: list[Commit] = field(default_factory=list)
    is_cut: bool = False
    is_in_doubt: bool = False
    is_prepared: bool = False
    is_quick: bool = False

    @property
    def has_lost(self) -> bool:
        """Whether a channel has ended before all of its messages were confirmed."""
        return any(publication.is_lost for _, publication in self.unconfirmed)

    def give_back(self, runs: Iterable[Run]) -> None:
        """Leave the entries of ``runs`` due, for the next batch."""
        self.leave([run.claimed for run in runs])

    def leave(self, rows: Sequence[Claimed]) -> None:
        """Leave ``rows`` of the claim due, for the next batch."""
        self.is_cut = self.is_cut or bool(rows)
        self.hold(rows)

    def hold(self, rows: Sequence[Claimed]) -> None:
        """Leave ``rows`` of the claim due, for a batch of costly entries."""
        if self.is_leased:
            self.pending += [Commit(claimed, claimed.nominal) for claimed in rows]

    def note_recorded(self, commits: Sequence[Commit], committed: Committed) -> None:
        """Note what became of ``commits``."""
        self.recorded += commits
        self.is_cut = self.is_cut or any(result is not True for result in committed.results)


class Dispatcher:
    """Sends what a scheduler has claimed.

    Arguments:
        hooks: the scheduler, which makes and sends entries.
        leadership: asked whether the lock is still held before a message is sent that no script checks.
        quarantine_seconds: after how long an entry that can't be used is tried again.
    """

    def __init__(
        self,
        hooks: Hooks,
        store: Store,
        broker: Broker,
        leadership: Leadership,
        reports: Reports,
        quarantine_seconds: float,
    ) -> None:
        self._hooks = hooks
        self._store = store
        self._broker = broker
        self._leadership = leadership
        self._reports = reports
        self._quarantine_seconds = quarantine_seconds
        self._contention = Contention()
        self._calendars = KeptCalendars()
        self._disruptions = Disruptions()
        self.pace = Pace()
        self.delivery = Delivery(store, broker)
        self.quick_way = QuickWay(
            hooks,
            broker,
            self.delivery,
            leadership,
            self._contention,
            reports,
            store.config.message_cache_bytes,
        )

    def dispatch(self, batch: Batch, prepared: Sequence[CompiledRun] = ()) -> None:
        """Plan, send and record ``batch``, or send and record its ``prepared`` runs."""
        batch.is_prepared = bool(prepared)
        with garbage_kept():
            try:
                self._dispatch(batch, prepared)
            finally:
                batch.collected.clear()  # perhaps millions of objects, freed before garbage is looked for

    def _dispatch(self, batch: Batch, prepared: Sequence[CompiledRun]) -> None:
        self._broker.begin_batch()
        try:
            if prepared:
                self._send_prepared(batch, prepared)
                return
            rows: Sequence[Claimed] = self._drop_missing(batch)
            is_quick = bool(rows) and self.quick_way.is_open(is_leased=batch.is_leased)
            if is_quick:
                rows = self._send_first(batch, rows)
                batch.is_quick = not rows
            runs = self._plan(batch, rows, is_quick=is_quick)
            self._broker.begin_sending()
            if self.delivery.is_at_most_once:
                self._commit(batch, batch.pending)
                self._record_then_send(batch, runs)
            else:
                self._send(batch, runs)
                self._record(batch)
            self._broker.send_events(batch.events)
            if batch.recorded:
                self.delivery.announce()
        except BaseException:
            # a signal ends this beat, or Redis is away: what was sent is recorded as sent, if that is
            # possible
            if batch.unconfirmed:
                with suppress(Exception), hold_interrupts(LAST_WORDS_SECONDS, is_firm=True):
                    self._broker.settle(LAST_WORDS_SECONDS)
                self._note_settled(batch)
            if batch.pending:
                store = self._store.without_retry()
                # this renews the lock: not for its full timeout, as it may never be released
                fence = replace(batch.fence, lock_ms=min(batch.fence.lock_ms, TAKEN_MS))
                with suppress(RedBeatError), hold_interrupts(LAST_WORDS_SECONDS, is_firm=True):
                    call_briefly(lambda: store.commit_runs(fence, batch.pending))
            if batch.events:
                with suppress(RedBeatError), hold_interrupts(LAST_WORDS_SECONDS, is_firm=True):
                    call_briefly(lambda: self._broker.send_events(batch.events))
            raise

    # -- the quick way: plan, push and record in one go

    def _send_first(self, batch: Batch, rows: Sequence[Claimed]) -> Sequence[Claimed]:
        """Send the first of ``rows``, as long as their messages are compiled; return the others."""
        target = self._known_target()
        if target is None:
            return rows
        with postpone_signals() as let_arrive:
            pieces = self._plan_pieces(batch, rows, let_arrive)
            return rows[self._commit_pieces(batch, pieces, target) :]

    def _plan_pieces(
        self, batch: Batch, rows: Sequence[Claimed], let_arrive: Callable[[], None]
    ) -> Iterator[list[CompiledRun]]:
        for first in range(0, len(rows), PIECE):
            runs, others = self.quick_way.plan(rows[first : first + PIECE], batch.claim.now)
            if others or any(run.message.on_call is not None for run in runs):
                return
            yield runs
            let_arrive()

    def _send_prepared(self, batch: Batch, runs: Sequence[CompiledRun]) -> None:
        """Send runs that were planned before they were due, if the script that records them can push."""
        target = self._known_target()
        if target is None:
            batch.give_back(runs)
            return
        pieces = (runs[first : first + PIECE] for first in range(0, len(runs), PIECE))
        with postpone_signals():
            self._commit_pieces(batch, pieces, target)

    def _known_target(self) -> Target | None:
        """Return where a commit may push messages; None: nowhere, or that can't be known now."""
        try:
            return self.delivery.target()
        except RedBeatError:  # about the schedule's server
            raise
        except Exception as exc:  # noqa: BLE001 - the ordinary way raises it again, and knows what to do
            logger.debug("beat: It isn't known where messages can be pushed: %r", exc)
            return None

    def _commit_pieces(self, batch: Batch, pieces: Iterable[Sequence[CompiledRun]], target: Target) -> int:
        """Record and push runs piece by piece: while the server records one, the next is planned.

        Returns how many runs were given to the server.
        """
        sent: list[tuple[Run, tuple[Push, ...]]] = []
        with self._store.commits(
            batch.fence, target, lambda commits: self._commit_each(batch, commits, target)
        ) as commits:
            for runs in pieces:
                for run in runs:
                    sent.append((run, self._announce(run)))
                    run.sent.pushes = run.pushes
                commits.write([run.sent for run in runs])
            try:
                committed = commits.finish()
            except StoreRefused as exc:
                if not is_no_permission(exc):
                    raise
                for known, _ in sent:
                    known.sent.pushes = ()
                return 0  # the ordinary way finds out which right is lacking
        if committed.is_moved:
            self.delivery.note_moved()
        batch.note_recorded([run.sent for run, _ in sent], committed)
        self._note_results(batch, sent, committed.results, is_moved=committed.is_moved)
        return len(sent)

    # -- plan

    def _plan(self, batch: Batch, rows: Sequence[Claimed], *, is_quick: bool) -> list[Run]:
        """Return the runs to send; commits of the other entries go to ``batch.pending``.

        They are sent in the order of their due times, whatever the order in which they were planned.
        """
        if not rows:
            return []
        with postpone_signals() as let_arrive:
            runs: list[CompiledRun] = []
            others = rows
            if is_quick:
                runs, others = self.quick_way.plan(rows, batch.claim.now)
                let_arrive()
            if not others:
                return list(runs)
            calendars = self._calendars.read_of(self._store, others)
            found = [*runs, *self._plan_all(batch, others, calendars, let_arrive)]
        positions = {claimed.key: position for position, claimed in enumerate(rows)}
        return sorted(found, key=lambda run: positions[run.claimed.key])

    def _drop_missing(self, batch: Batch) -> list[Claimed]:
        """Return the claimed entries that have a hash; commits of the others go to ``batch.pending``."""
        present, removed = [], []
        for claimed in batch.claim.rows:
            if claimed.type is not KeyType.NONE:
                self._reports.note_present(claimed)
                present.append(claimed)
                continue
            is_known = self._reports.note_missing(claimed)
            batch.pending.append(commit_missing(claimed, batch.claim.now, is_known))
            if is_known:
                removed.append(claimed.key)
        self._reports.report_removed(removed)
        return present

    def _plan_all(
        self,
        batch: Batch,
        rows: Sequence[Claimed],
        calendars: Mapping[str, Excluded],
        let_arrive: Callable[[], None],
    ) -> list[Run]:
        runs: list[Run] = []
        now, defaults = batch.claim.now, read_defaults(self._hooks.app)
        for claimed in self.pace.until_spent(rows):
            let_arrive()
            read_seconds = _seconds_to_read(claimed)
            budget_seconds = PLAN_SECONDS + read_seconds
            try:
                plan = limited(
                    claimed.key,
                    plan_run,
                    self._hooks.Entry,
                    self._hooks.app,
                    claimed,
                    now,
                    calendars,
                    defaults,
                    seconds=budget_seconds,
                )
            except Exception as exc:  # noqa: BLE001 - the per-entry boundary
                batch.pending.append(self._quarantine(claimed, exc, now))
                continue
            finally:
                self.pace.note_planned(claimed.key, read_seconds)
            if not isinstance(plan, Run):
                batch.pending.append(plan)
                continue
            self._reports.report_typos(plan)
            pauses = self._contention.take_pause(claimed.key)
            if pauses:
                reason = self._reports.report_contested(claimed)
                batch.pending.append(commit_failed(plan, reason, now, pauses)[0])
            else:
                runs.append(plan)
        batch.leave(self.pace.take_left())
        batch.hold(self.pace.take_held())
        return runs

    def _quarantine(self, claimed: Claimed, exc: Exception, now: float) -> Commit:
        if isinstance(exc, EntryTooExpensive) and is_first_overrun(claimed):
            logger.warning("beat: %s It is tried once more.", printable(str(exc)))
            return commit_overrun(claimed, now)
        is_sentence = isinstance(exc, (EntryCorrupt, EntryTooExpensive))
        reason = str(exc) if is_sentence else f"{claimed.key}: {type(exc).__name__}: {exc}"
        if isinstance(exc, OverflowError):
            reason = f"{claimed.key}: one of its times is outside the years 1 to 9999 ({exc})."
        reason = shorten(printable(reason))
        commit, is_news = commit_quarantined(claimed, reason, now, self._quarantine_seconds)
        self._reports.report_quarantined(claimed, reason, is_news)
        return commit

    # -- send

    def _send(self, batch: Batch, runs: Sequence[Run]) -> None:
        """Send ``runs``, or collect their messages, and note each of them in ``batch``."""
        left = deque(self._disruptions.begin(runs))
        are_drafts = self._broker.drafts is not None  # what is compiled isn't pushed, but published
        with hold_interrupts() as let_interrupt:  # a run that was sent and isn't noted would be sent again
            while left or batch.unconfirmed:
                let_interrupt()
                if not left:
                    left.extend(self._await_confirms(batch))
                    continue
                first = left[0]
                if not are_drafts and isinstance(first, CompiledRun) and first.message.on_call is None:
                    left.popleft()
                    batch.collected.append((first, self._announce(first)))
                    continue
                if not self._broker.has_time():
                    batch.give_back(left)
                    left.clear()
                    continue
                if self._disruptions.is_spent(left[0]):
                    self._put_off(batch, left)
                    left.clear()
                    continue
                run, breaks = left.popleft(), self._broker.breaks
                self._disruptions.note_begun()
                try:
                    if not are_drafts and isinstance(run, CompiledRun):
                        batch.collected.append((run, self._announce(run)))
                        continue
                    sent = self._send_run(batch, run)
                    if isinstance(sent, Publication) and not sent.is_confirmed:
                        batch.unconfirmed.append((run, sent))
                    elif isinstance(sent, tuple) and sent:
                        batch.collected.append((run, sent))
                    else:
                        batch.pending.append(run.sent)
                        batch.events += run.events
                        self._disruptions.note_sent(run)
                except (SystemExit, KeyboardInterrupt, GeneratorExit, RedBeatError):
                    raise
                except BaseException as exc:  # noqa: BLE001 - the per-entry boundary; asyncio has such errors
                    if self._broker.is_away:
                        # all of them are sent, oldest first, when the broker is back
                        batch.give_back([*self._note_settled(batch), run, *left])
                        return
                    if batch.has_lost:  # the error may be that of a message before
                        batch.doubtful.add(run.claimed.key)
                        left.extendleft(reversed([*self._note_settled(batch), run]))
                        continue
                    self._retry_later(batch, run, exc)
                    if self._broker.breaks > breaks:
                        self._disruptions.note_broken(run)
                        left = deque(self._disruptions.order(left))

    def _put_off(self, batch: Batch, runs: Iterable[Run]) -> None:
        """Leave runs that may end connections to another batch; those that have failed keep their pause."""
        untried = []
        for run in runs:
            if run.failure is not None and has_failed(run):
                waits = commit_failed(run, run.failure.reason, batch.claim.now, run.failure.attempts)
                batch.pending.append(waits[0])
            else:
                untried.append(run)
        batch.give_back(untried)

    def _send_run(self, batch: Batch, run: Run) -> tuple[Push, ...] | Publication:
        """Send one run; return what is left to be done for it, as :meth:`Broker.sending` yields it."""
        is_again = False
        while True:
            try:
                producer = self._hooks.producer  # it connects, and makes the outbox
                self._leadership.confirm()  # after that, as connecting may take long
                return self._publish(run, producer, is_deferrable=self._is_deferrable(batch, run))
            except RedBeatError:
                raise
            except Exception as exc:
                is_mended = self._broker.recover(exc)
                # once, the connection may have gone stale; twice, the run has failed
                if not is_mended or is_again or batch.has_lost or self._disruptions.is_marked(run):
                    raise
                is_again = True

    def _is_deferrable(self, batch: Batch, run: Run) -> bool:
        """Tell whether the messages of ``run`` may be confirmed later."""
        is_suspect = run.claimed.key in batch.doubtful or self._disruptions.is_marked(run)
        return not is_suspect and hasattr(self._hooks.apply_async, "is_deferrable")

    def _announce(self, run: CompiledRun) -> tuple[Push, ...]:
        """Do what else belongs to the sending of a run whose message is made; return its pushes."""
        logger.info("Scheduler: Sending due task %s (%s)", run.name, run.task)
        if run.message.on_call is not None:
            run.message.on_call(run.task_id)
        return run.pushes

    def _publish(
        self, run: Run, producer: Any, *, is_deferrable: bool = False
    ) -> tuple[Push, ...] | Publication:
        if isinstance(run, CompiledRun):
            with self._broker.sending(None, is_deferrable=is_deferrable) as sent:
                [draft] = self._announce(run)
                declared = [one.entity for one in run.message.shape.declarations]
                self._broker.publish_draft(str(draft.value), declared)
            return tuple(sent) if isinstance(sent, list) else sent
        entry = run.entry
        self.pace.note_sending()
        with self._broker.sending(run.expiration_seconds, is_deferrable=is_deferrable) as sent:
            logger.info("Scheduler: Sending due task %s (%s)", entry.name, entry.task)
            self._hooks.apply_async(entry, producer=producer, advance=False)
        run.events = self._broker.events
        seconds = self.pace.note_sent(run.claimed.key)
        if seconds:
            self._reports.report_costly(run.claimed, seconds)
        return tuple(sent) if isinstance(sent, list) else sent

    def _await_confirms(self, batch: Batch) -> list[Run]:
        """Wait for the confirms of ``batch``; return the runs that are to be sent again."""
        try:
            self._broker.settle()
        except Exception as exc:  # noqa: BLE001 - whatever the transport raises: what is confirmed counts
            self._broker.recover(exc)
        unsettled = self._note_settled(batch)
        if not self._broker.is_away:
            return unsettled
        batch.give_back(unsettled)
        return []

    def _note_settled(self, batch: Batch) -> list[Run]:
        """Note what became of the unconfirmed runs; return those of which nobody knows."""
        unconfirmed, batch.unconfirmed = batch.unconfirmed, []
        unsettled = []
        for run, publication in unconfirmed:
            if publication.failure is not None:
                self._retry_later(batch, run, publication.failure)
            elif publication.is_confirmed:
                batch.pending.append(run.sent)
                self._disruptions.note_sent(run)
            else:
                unsettled.append(run)
        batch.doubtful.update(run.claimed.key for run in unsettled)
        return unsettled

    def _retry_later(self, batch: Batch, run: Run, exc: BaseException) -> None:
        reason = reason_of(exc)
        commit, is_news = commit_failed(run, reason, batch.claim.now)
        if is_news:
            logger.error("beat: Couldn't send %s (%s), trying again: %s", run.name, run.task, reason)
        batch.pending.append(commit)

    # -- record

    def _record(self, batch: Batch) -> None:
        """Record the batch; collected messages are pushed in the same step, or sent just before it."""
        if batch.collected:
            target = self._find_target(batch)
            if target is None or not self._commit_with_messages(batch, target):
                self._send_collected(batch)
        self._commit(batch, batch.pending)

    def _find_target(self, batch: Batch) -> Target | None:
        """Return where a commit may push the collected messages; None: nowhere.

        Where that can't be known now, the collected runs stay due.
        """
        try:
            if not self.delivery.is_in_doubt():
                return self.delivery.target()
            batch.is_in_doubt = True
        except RedBeatError:  # about the schedule's server
            raise
        except Exception as exc:  # noqa: BLE001 - whatever the broker's client raises
            self._broker.note_away(exc)  # even if it answers, so that it isn't asked in a loop
        batch.give_back([run for run, _ in batch.collected])
        batch.collected.clear()
        return None

    def _commit_with_messages(self, batch: Batch, target: Target) -> bool:
        """Record what is pending, and push each collected message in the step that records its run.

        What is pending afterwards are the quarantines of entries whose commits the server refused. Returns
        False, and has written nothing, where the schedule's user lacks the right to push.
        """
        others = batch.pending
        for run, pushes in batch.collected:
            run.sent.pushes = pushes
        commits = [*others, *(run.sent for run, _ in batch.collected)]
        try:
            committed = self._commit_each(batch, commits, target)
        except StoreRefused as exc:
            if not is_no_permission(exc):
                raise
            for run, _ in batch.collected:  # the broker's client sends them instead
                run.sent.pushes = ()
            self._store.claim_due(batch.fence, limit=1)  # raises if another right is lacking
            self.delivery.note_refused(str(exc))
            return False
        if committed.is_moved:
            self.delivery.note_moved()
        batch.note_recorded(commits, committed)
        batch.pending = self._quarantine_refused(batch, others, committed)
        results = committed.results[len(others) :]
        self._note_results(batch, batch.collected, results, is_moved=committed.is_moved)
        return True

    def _note_results(
        self,
        batch: Batch,
        sent: Sequence[tuple[Run, tuple[Push, ...]]],
        results: Sequence[bool | str],
        *,
        is_moved: bool,
    ) -> None:
        """Note what became of runs whose messages were to be pushed with their commits."""
        for (run, _), result in zip(sent, results, strict=True):
            if isinstance(result, str) and is_no_permission(result):
                self.delivery.note_refused(result)
                batch.give_back([run])
            elif isinstance(result, str):
                self._retry_later(batch, run, StoreRefused(result))
            elif result:
                batch.events += run.events
                self._contention.note_recorded(run.claimed.key)
            else:  # the entry has changed since its claim, so the next batch plans it again
                if not is_moved and not batch.is_prepared and not batch.claim.is_ahead:
                    self._contention.note_lost(run.claimed.key)
                batch.give_back([run])

    def _commit(self, batch: Batch, commits: Sequence[Commit]) -> list[bool | str]:
        """Record ``commits``, and quarantines of those that were refused; return what became of each."""
        committed = self._commit_each(batch, commits)
        batch.note_recorded(commits, committed)
        batch.pending = self._quarantine_refused(batch, commits, committed)
        batch.note_recorded(batch.pending, self._store.commit_runs(batch.fence, batch.pending))
        batch.pending = []
        return committed.results

    def _commit_each(self, batch: Batch, commits: Sequence[Commit], target: Target = NOWHERE) -> Committed:
        """Record ``commits``; the result of one that the server refuses is a sentence that says why."""
        try:
            return self._store.commit_runs(batch.fence, commits, target)
        except StoreRefused as exc:
            if is_refusal(exc.__cause__) or exc.is_login or is_no_permission(exc):
                raise
            results = self._commit_halves(batch, commits, target, str(exc))
            return Committed(LockStatus.HELD, is_moved=False, results=results)

    def _commit_halves(
        self, batch: Batch, commits: Sequence[Commit], target: Target, reason: str
    ) -> list[bool | str]:
        """Find out which of ``commits`` the server refuses, and record the others.

        A commit that was written before the refusal isn't written again.
        """
        if len(commits) == 1:
            return [reason]
        results: list[bool | str] = []
        middle = len(commits) // 2
        for half in (commits[:middle], commits[middle:]):
            try:
                results += self._store.commit_runs(batch.fence, half, target).results
            except StoreRefused as exc:
                if is_refusal(exc.__cause__) or exc.is_login:
                    raise
                is_forbidden = is_no_permission(exc)
                results += (
                    [str(exc)] * len(half)
                    if is_forbidden
                    else self._commit_halves(batch, half, target, str(exc))
                )
        return results

    def _quarantine_refused(
        self, batch: Batch, commits: Sequence[Commit], committed: Committed
    ) -> list[Commit]:
        """Return the commits that quarantine the entries whose commits the server refused."""
        return [
            self._quarantine(commit.claimed, StoreRefused(result), batch.claim.now)
            for commit, result in zip(commits, committed.results, strict=False)
            if isinstance(result, str)
        ]

    # -- to a broker that isn't the schedule's server: in one pipeline, before the record

    def _send_collected(self, batch: Batch) -> None:
        collected, batch.collected = batch.collected, []
        # those that failed before go last: one that ends the connection lets all before it arrive again
        for is_again in (False, True):
            self._send_together(batch, [one for one in collected if has_failed(one[0]) is is_again])

    def _send_together(self, batch: Batch, collected: Sequence[tuple[Run, tuple[Push, ...]]]) -> None:
        if not collected:
            return
        if self._broker.outbox is None:
            batch.give_back([run for run, _ in collected])
            return
        try:
            with hold_interrupts():
                outcomes = self._send_all(self._broker.outbox, [pushes for _, pushes in collected])
                sent = zip(collected, outcomes, strict=True)
                batch.pending += [run.sent for (run, _), failure in sent if failure is None]
        except RedBeatError:  # about the schedule's server, or the lock
            raise
        except Exception as exc:  # noqa: BLE001 - whatever the client raises: it isn't known what was sent
            self._broker.note_away(exc)  # even if it answers, so that nothing is sent in a loop
            batch.give_back([run for run, _ in collected])
            return
        for (run, _), failure in zip(collected, outcomes, strict=True):
            if failure is None:
                batch.events += run.events
            elif is_refusal(failure):
                self._broker.note_away(failure)
                batch.give_back([run])
            else:
                self._retry_later(batch, run, failure)

    def _send_all(
        self, outbox: Outbox, batches: list[tuple[Push, ...]], *, breaks: int = 0
    ) -> list[Exception | None]:
        """Send each of ``batches``, halved where one of them ends the connection.

        Returns the error of each, None for one that was sent. ``breaks``: how many connections have ended
        already while these were sent.

        Raises what the redis client raises when the broker can't be reached, or doesn't answer in time.
        """
        self._leadership.confirm()  # before each attempt, as the one before may have taken long
        try:
            return outbox.send(batches)
        except Exception as exc:
            if not is_reset(exc) or not outbox.answers():
                raise
            breaks += 1
            if breaks == 1:  # the connection may have gone stale; this takes another one
                return self._send_all(outbox, batches, breaks=breaks)
            if len(batches) == 1:
                if breaks >= BREAKS_OF_THE_REQUEST:
                    return [exc]
                time.sleep(HICCUP_SECONDS)
                return self._send_all(outbox, batches, breaks=breaks)
        middle = len(batches) // 2
        halves = (batches[:middle], batches[middle:])
        return [
            outcome
            for half in halves
            for outcome in self._send_all(outbox, half, breaks=1 if len(half) > 1 else 0)
        ]

    # -- with at_most_once: record, then send

    def _record_then_send(self, batch: Batch, runs: Sequence[Run]) -> None:
        runs = self._disruptions.begin(runs)
        for start in range(0, len(runs), AT_MOST_ONCE_GROUP):
            is_spent = self._disruptions.is_spent(runs[start])
            if self._broker.is_away or not self._broker.has_time() or is_spent:
                batch.give_back(runs[start:])
                self._commit(batch, batch.pending)
                return
            group = runs[start : start + AT_MOST_ONCE_GROUP]
            self._broker.drop_stale()
            results = self._commit(batch, [run.sent for run in group])
            for run, result in zip(group, results, strict=True):
                if result is True:
                    self._send_or_lose(batch, run)

    def _send_or_lose(self, batch: Batch, run: Run) -> None:
        breaks = self._broker.breaks
        self._disruptions.note_begun()
        try:
            # not tried again, as a message that broke the connection may have arrived
            pushes = () if self._broker.is_away else self._publish(run, self._hooks.producer)
            if self._broker.is_away:
                raise ConnectionError("the broker is away")
            if isinstance(pushes, tuple) and pushes and self._broker.outbox is not None:
                [failure] = self._broker.outbox.send([pushes])
                if failure is not None:
                    raise failure
            batch.events += run.events
        except Exception as exc:  # noqa: BLE001 - the per-entry boundary
            if not self._broker.is_away:
                self._broker.recover(exc)  # so that the next ones of the group don't wait for it, too
            if self._broker.breaks > breaks:
                self._disruptions.note_broken(run)
            logger.error(  # noqa: TRY400 - the sentence says it all
                "beat: Lost a run of %s (%s), as redbeat_delivery is 'at_most_once': %s",
                run.name,
                run.task,
                reason_of(exc),
            )


def _seconds_to_read(claimed: Claimed) -> float:
    """Return how much processor time reading an entry may take."""
    texts = (claimed.definition, claimed.policy, claimed.meta)
    return sum(len(text) for text in texts if text) * READ_SECONDS
