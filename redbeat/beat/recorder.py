"""Recording what became of a batch: in one step with the pushes of its messages, or after they were sent.

Invariant: what the server refuses costs the entry that it is about, and no other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from redbeat.beat.batch import Batch
from redbeat.beat.equipment import Equipment
from redbeat.beat.planner import (
    CompiledRun,
    OrdinaryRun,
    Run,
    commit_executed,
    commit_failed,
    commit_held,
    commit_quarantined,
    commit_skipped,
)
from redbeat.broker.connection import kind_of, reason_of
from redbeat.broker.origin import Origin, origin_of
from redbeat.config.masking import mask_secrets
from redbeat.connection.retry import LAST_WORDS_SECONDS, call_briefly, is_no_permission, is_refusal
from redbeat.errors import (
    EntryCorrupt,
    LayoutChanged,
    LockLost,
    RedBeatError,
    StoreRefused,
    StoreUnavailable,
)
from redbeat.leadership.lock import TAKEN_MS
from redbeat.log.events import RUN_SENT_BEFORE
from redbeat.log.logger import logger
from redbeat.log.text import printable, shorten
from redbeat.process.signals import hold_interrupts
from redbeat.runs.outcomes import MAX_ERROR
from redbeat.signals import entry_quarantined, is_wanted
from redbeat.store.commits import Commits, CommitStream
from redbeat.store.events import Events
from redbeat.store.figures import Figures
from redbeat.store.records import (
    NOWHERE,
    Commit,
    Committed,
    DueEntry,
    Held,
    LockStatus,
    Push,
    Reserved,
    Result,
    Target,
)
from redbeat.store.rounds import CommitAsked, commit_together
from redbeat.store.run_record import RunRecord
from redbeat.store.runs import Runs
from redbeat.store.store import Store


@dataclass
class Pieces:
    """The runs of one batch that are recorded and pushed piece by piece.

    Attributes:
        written: the runs that were given to the server so far.
    """

    batch: Batch
    commits: Commits
    written: list[tuple[Run, tuple[Push, ...]]] = field(default_factory=list)

    def write(self, runs: Sequence[CompiledRun]) -> None:
        """Record and push ``runs``, and don't wait for what becomes of them."""
        for run in runs:
            self.written.append((run, run.pushes))
            run.sent.pushes = run.pushes
        self.commits.write([run.sent for run in runs])


class Recorder:
    """Records the batches of one part of the schedule.

    Arguments:
        store: has that part.
        equipment: what this beat sends with.
    """

    def __init__(self, store: Store, equipment: Equipment) -> None:
        self._store = store
        self._delivery = equipment.delivery
        self._suspects = equipment.suspects
        self._changes = equipment.changes
        self._reports = equipment.reports
        self._quarantine_seconds = equipment.quarantine_seconds
        self._quarantined: list[tuple[str, str]] = []  # names and reasons that are still to be told of

    def quarantine(self, claimed: DueEntry, exc: BaseException, now: float) -> Commit:
        """Return the commit that quarantines an entry because of ``exc``, which is logged if it is news."""
        reason = str(exc) if isinstance(exc, EntryCorrupt) else f"{claimed.key}: {type(exc).__name__}: {exc}"
        if isinstance(exc, OverflowError):
            reason = f"{claimed.key}: one of its times is outside the years 1 to 9999 ({exc})."
        reason = shorten(printable(reason))
        commit, is_news = commit_quarantined(claimed, reason, now, self._quarantine_seconds)
        self._reports.report_quarantined(claimed, reason, is_news)
        if is_news and is_wanted(entry_quarantined.name):
            self._quarantined.append((self._store.keys.name(claimed.key), reason))
        return commit

    def _tell_of_quarantines(self) -> None:
        """Tell of quarantines before they are recorded: after a kill in between, they are told of again."""
        told, self._quarantined = self._quarantined, []
        Events(self._store).add_quarantined(told)

    def note_failed(self, batch: Batch, run: Run, exc: BaseException) -> None:
        """Let ``run``, which couldn't be sent because of ``exc``, be skipped, or tried again later."""
        origin = origin_of(exc)
        commit = None
        reason = reason_of(exc)
        if origin is Origin.TASK and isinstance(run, OrdinaryRun):
            reason = f"task_always_eager is set, and its task has raised {reason}"
            commit = commit_executed(run, reason)
        elif origin is Origin.APPLICATION:
            commit = commit_skipped(run, reason)
        if commit is None:
            self.retry_later(batch, run, exc)
            return
        if run.span is not None:
            run.span.note_failed(exc)
        self._reports.failures.report_skipped(run, reason, kind_of(exc))
        batch.pending.append(commit)

    def retry_later(self, batch: Batch, run: Run, exc: BaseException) -> None:
        """Let ``run``, which couldn't be sent because of ``exc``, be tried again after a pause."""
        if run.span is not None:
            run.span.note_failed(exc)
        self._suspects.mark(run)
        reason = reason_of(exc)
        commit, is_news = commit_failed(run, reason, batch.claim.now)
        if is_news:
            self._reports.failures.report_unsent(run, reason, kind_of(exc))
        batch.pending.append(commit)

    def reserve(self, batch: Batch, runs: Sequence[Run], *, are_pushed: bool = False) -> list[Run]:
        """Return those of ``runs`` whose messages may be published: no other run of their entries holds them
        back.

        Commits of the others become pending. It takes one round trip, or none where no policy asks for it.

        Arguments:
            are_pushed: of messages that are made already the script that pushes them decides. The others may
                leave at once all the same: to a fan-out, or by a producer of the user's.
        """
        asking = [
            run
            for run in runs
            if is_held_back(run)
            and run.claimed.key not in batch.reserved
            and not (are_pushed and isinstance(run, CompiledRun))
        ]
        if not asking:
            return list(runs)
        asked = [(run.claimed.key, run.sent.task_id, run.sent.run) for run in asking if run.sent.run]
        answers = self._store.reserve_runs(batch.fence, asked)
        left_out = set()
        for run, answer in zip(asking, answers, strict=True):
            if answer is Reserved.NOW:
                batch.reserved.add(run.claimed.key)
                continue
            left_out.add(run.claimed.key)
            if answer is Reserved.BEFORE:
                logger.info(
                    "beat: %s (%s) was sent already, and is recorded now.",
                    run.name,
                    run.task,
                    extra=RUN_SENT_BEFORE.of(
                        entry=run.name, task=run.task, task_id=run.sent.task_id, due=float(run.nominal)
                    ),
                )
                run.span = None  # that of the time before has been told of, or went with its beat
                batch.note_published(run)
            elif isinstance(answer, Held):
                self._report_held(run.sent, answer)
                batch.pending.append(commit_held(run, answer))
            else:
                self.retry_later(batch, run, StoreRefused(answer))
        return [run for run in runs if run.claimed.key not in left_out]

    def record_published(self, batch: Batch, runs: Sequence[Run]) -> None:
        """Record that the messages of ``runs`` were published after their commits, as with at_most_once.

        From now on they hold other runs of their entries back. It takes no round trip where no policy asks.
        """
        published = [
            (run.claimed.key, run.sent.task_id, run.sent.run)
            for run in runs
            if run.sent.run is not None and is_held_back(run)
        ]
        self._store.reserve_runs(batch.fence, published, are_published=True)

    def _report_held(self, commit: Commit, held: Held) -> None:
        self._reports.report_held(commit, held)
        if held.worker is not None:  # it has begun the other run
            self._reports.note_tracked()
        elif held.state != "reserved":
            has_workers = Runs(self._store.without_retry()).has_workers
            name = self._store.keys.name(commit.claimed.key)
            self._reports.report_untracked(name, "held back", has_workers)

    def note_lost(self, run: Run, reason: str) -> None:
        """Note that ``run``, which was recorded as sent, couldn't be, unless a worker has begun it by now."""
        tracked = run.sent.run
        if tracked is None:
            with suppress(RedBeatError):
                Figures(self._store).count(run.sent.labels, "lost")
            return
        record = RunRecord(run.sent.task_id, tracked.due)
        problem = shorten(f"its message couldn't be sent: {printable(mask_secrets(reason))}", MAX_ERROR)
        with suppress(RedBeatError):  # then it never starts
            Runs(self._store).give_up(self._store.keys.name(run.claimed.key), [record], problem)

    def commit_with_messages(self, batch: Batch, target: Target) -> bool:
        """Record what is pending, and push each collected message in the step that records its run.

        What is pending afterwards are the quarantines of entries whose commits the server refused. Returns
        False, and has written nothing, where the schedule's user lacks the right to push.
        """
        asked = self.begin_recording(batch, target)
        return self.note_answer(batch, asked, asked.alone)

    def begin_recording(self, batch: Batch, target: Target) -> CommitAsked:
        """Return what there is to record of ``batch`` now; :meth:`note_answer` takes what becomes of it.

        Arguments:
            target: where its collected messages are pushed in the same step.
        """
        for run, pushes in batch.collected:
            run.sent.pushes = pushes
        commits = [*batch.pending, *(run.sent for run, _ in batch.collected)]
        self._tell_of_quarantines()
        commit = self._commit_at_once if batch.is_prepared else self._commit_each
        return CommitAsked(self._store, batch.fence, commits, target, partial(commit, batch, commits, target))

    def note_answer(self, batch: Batch, asked: CommitAsked, answer: Callable[[], Committed]) -> bool:
        """Note what became of what was asked; it returns, and leaves pending, what
        :meth:`commit_with_messages` does.

        Arguments:
            answer: returns that, or raises the error about it.
        """
        commits, others = asked.commits, batch.pending
        try:
            committed = answer()
        except StoreRefused as exc:
            if not (batch.collected and is_no_permission(exc)):
                raise
            for run, _ in batch.collected:  # the broker's client sends them instead
                run.sent.pushes = ()
            # what others may hold back is reserved first, in the next batch
            batch.give_back([run for run, _ in batch.collected if is_held_back(run)])
            batch.collected = [one for one in batch.collected if not is_held_back(one[0])]
            self._store.fetch_due(batch.fence, limit=1)  # raises if another right is lacking
            self._delivery.note_refused(str(exc))
            return False
        if committed.is_moved:
            self._delivery.note_moved()
        self._note_recorded(batch, commits, committed)
        batch.pending = self._quarantine_refused(batch, others, committed)
        results = committed.results[len(others) :]
        self._note_results(batch, batch.collected, results, is_moved=committed.is_moved)
        return True

    def _note_recorded(self, batch: Batch, commits: Sequence[Commit], committed: Committed) -> None:
        batch.note_recorded(commits, committed)
        for commit, result in zip(commits, committed.results, strict=False):
            if isinstance(result, Held):
                self._report_held(commit, result)

    def _note_results(
        self,
        batch: Batch,
        sent: Sequence[tuple[Run, tuple[Push, ...]]],
        results: Sequence[Result],
        *,
        is_moved: bool,
    ) -> None:
        """Note what became of runs whose messages were to be pushed with their commits."""
        told: list[Run] = []
        for (run, _), result in zip(sent, results, strict=True):
            if isinstance(result, str) and is_no_permission(result):
                self._delivery.note_refused(result)
                batch.give_back([run])
            elif isinstance(result, str):
                self.retry_later(batch, run, StoreRefused(result))
            elif isinstance(result, Held):
                self._changes.pop(run.claimed.key, None)
            elif result:
                if run.span is not None:
                    run.span.note_sent()
                batch.events += run.events
                (batch.sent if batch.is_prepared else told).append(run)
                self._suspects.note_sent(run)
                self._changes.pop(run.claimed.key, None)
            else:  # the entry has changed since its claim, so the next batch plans it again
                if not is_moved and not batch.is_prepared and not batch.claim.is_ahead:
                    self._changes[run.claimed.key] = self._changes.get(run.claimed.key, 0) + 1
                batch.give_back([run])
        self._reports.tell_of_all(told)

    def commit(self, batch: Batch, commits: Sequence[Commit]) -> list[Result]:
        """Record ``commits``, and quarantines of those that were refused; return what became of each."""
        committed = self._commit_each(batch, commits)
        self._note_recorded(batch, commits, committed)
        batch.pending = self._quarantine_refused(batch, commits, committed)
        self._tell_of_quarantines()
        self._note_recorded(batch, batch.pending, self._store.commit_runs(batch.fence, batch.pending))
        batch.pending = []
        return committed.results

    def _commit_each(self, batch: Batch, commits: Sequence[Commit], target: Target = NOWHERE) -> Committed:
        """Record ``commits``; the result of one that the server refuses is a sentence that says why."""
        self._tell_of_quarantines()
        try:
            return self._store.commit_runs(batch.fence, commits, target)
        except StoreRefused as exc:
            if _is_about_all(exc) or is_no_permission(exc):
                raise
            results = self._commit_halves(batch, commits, target, str(exc))
            return Committed(LockStatus.HELD, is_moved=False, results=results)

    def _commit_at_once(self, batch: Batch, commits: Sequence[Commit], target: Target) -> Committed:
        """Record prepared runs without waiting for Redis; those that can't be recorded now stay due.

        They are claimed when Redis is back: their policy may leave out runs by then, or send one for several.
        """
        try:
            committed = self._store.without_retry().commit_runs(batch.fence, commits, target)
        except LockLost:
            raise
        except RedBeatError as exc:
            logger.debug("beat: Prepared runs can't be recorded now: %s", exc)
            return Committed(LockStatus.HELD, is_moved=False, results=[False] * len(commits))
        self._store.note_committed(committed, batch.fence)
        return committed

    def _commit_halves(
        self, batch: Batch, commits: Sequence[Commit], target: Target, reason: str
    ) -> list[Result]:
        """Find out which of ``commits`` the server refuses, and record the others.

        A commit that was written before the refusal isn't written again.
        """
        if len(commits) == 1:
            return [reason]
        results: list[Result] = []
        middle = len(commits) // 2
        for half in (commits[:middle], commits[middle:]):
            try:
                results += self._store.commit_runs(batch.fence, half, target).results
            except StoreRefused as exc:
                if _is_about_all(exc):
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
            self.quarantine(commit.claimed, StoreRefused(result), batch.claim.now)
            for commit, result in zip(commits, committed.results, strict=False)
            if isinstance(result, str)
        ]

    def commit_pieces(self, batch: Batch, pieces: Iterable[Sequence[CompiledRun]], target: Target) -> int:
        """Record and push runs piece by piece: while the server records one, the next is made.

        Returns how many runs were given to the server.
        """
        with CommitStream(self._store) as stream:
            begun = self.begin_pieces(batch, target, stream)
            for runs in pieces:
                begun.write(runs)
            return self.end_pieces(begun)

    def begin_pieces(self, batch: Batch, target: Target, stream: CommitStream) -> Pieces:
        """Begin to record and push runs of ``batch`` piece by piece; return what they are written to.

        Arguments:
            target: where their messages are pushed in the same step.
            stream: on which they are written, perhaps beside those of other parts.
        """
        commit = self._commit_at_once if batch.is_prepared else self._commit_each
        ordinary = partial(commit, batch, target=target)
        return Pieces(batch, self._store.commits(batch.fence, target, ordinary, stream))

    def end_pieces(self, pieces: Pieces) -> int:
        """Note what became of the runs that were written; return how many were given to the server."""
        batch, sent = pieces.batch, pieces.written
        try:
            committed = pieces.commits.finish()
        except StoreRefused as exc:
            if not is_no_permission(exc):
                raise
            for known, _ in sent:
                known.sent.pushes = ()
            return 0  # the ordinary way finds out which right is lacking
        if committed.is_moved:
            self._delivery.note_moved()
        self._note_recorded(batch, [run.sent for run, _ in sent], committed)
        self._note_results(batch, sent, committed.results, is_moved=committed.is_moved)
        return len(sent)

    def last_commits(self, batch: Batch, cause: BaseException) -> CommitAsked | None:
        """Return what :func:`commit_last` records of ``batch``, which ends early; None: nothing."""
        if not batch.pending:
            return None
        if self._store.is_hasty and isinstance(cause, StoreUnavailable):
            return None  # its node was waited for, and other parts wait meanwhile
        store = self._store.without_retry()
        # this renews the lock: not for its full timeout, as it may never be released
        fence = replace(batch.fence, lock_ms=min(batch.fence.lock_ms, TAKEN_MS))
        return CommitAsked(
            store, fence, batch.pending, NOWHERE, partial(store.commit_runs, fence, batch.pending)
        )


def commit_last(asked: Iterable[CommitAsked | None]) -> None:
    """Record what is pending once more, if that is possible, as batches end early."""
    pending = [one for one in asked if one is not None]
    if pending:
        with suppress(RedBeatError), hold_interrupts(LAST_WORDS_SECONDS, is_firm=True):
            call_briefly(lambda: commit_together(pending))


def _is_about_all(exc: StoreRefused) -> bool:
    """Tell whether the server refuses every commit now: none is at fault."""
    return is_refusal(exc.__cause__) or exc.is_login or isinstance(exc, LayoutChanged)


def is_held_back(run: Run) -> bool:
    """Tell whether another run of its entry may hold ``run`` back."""
    return run.sent.run is not None and run.sent.run.overlap != "allow"
