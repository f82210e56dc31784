"""Checks of runs: entries that take longer than their interval or fail again and again, what nobody tracks.

Invariant: of each entry as many records are read as one look at its history takes, page by page.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import islice, pairwise, takewhile

from redbeat.diagnostics.checks.context import Context, Row
from redbeat.diagnostics.checks.finding import Finding, Severity
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.query import PAGE_SIZE
from redbeat.history import ENDED_OUTCOMES, FAILED_OUTCOMES, PastRun, decode_history, error_in_words
from redbeat.log.text import counted, printable, shorten
from redbeat.runs.figures import figures_of
from redbeat.runs.progress import hold_in_words
from redbeat.runs.run import Run, in_progress, run_of_record
from redbeat.runs.tracking import is_tracked
from redbeat.schedules.durations import length_in_words, seconds_in_words
from redbeat.schedules.occurrences import next_run
from redbeat.schedules.timezones import shown
from redbeat.store.histories import read_newest
from redbeat.store.runs import Runs

#: so many runs must have ended before their median counts, and so many of a row have failed, or were
#: rejected, before it is told
LEAST_ENDED, LEAST_FAILURES = 3, 3
#: so many runs in a row must have never started before that is told
LEAST_NEVER_STARTED = 5
#: a run that waits for longer on its queue and holds its entry is told, seconds
LONG_WAIT_SECONDS = 300.0
#: how many records of each history are looked at
MOST_READ = 20
#: by how many of its next times the interval of an entry is judged
TIMES = 5
#: how many entries are named
MAX_NAMED = 5


class RunChecks:
    """Looks at the runs of all entries, and at who tracks them."""

    def __init__(self) -> None:
        self._page: list[Row] = []
        self._needing: list[str] = []
        self._need_count = 0

    def note_entry(self, context: Context, row: Row) -> Iterator[Finding]:
        """Look at an entry's last runs, together with those of others."""
        if row.entry is None:
            return
        if row.entry.policy.needs_tracking and row.entry.is_enabled_at(context.now):
            self._need_count += 1
            if len(self._needing) < MAX_NAMED:
                self._needing.append(context.name_of(row.key))
        self._page.append(row)
        if len(self._page) >= PAGE_SIZE:
            yield from self._look(context)

    def tell(self, context: Context) -> Iterator[Finding]:
        """Look at the last entries, at who tracks runs, and at those that take too long."""
        yield from self._look(context)
        workers = Runs(context.store).workers()
        if self._need_count and not workers:
            yield self._of_untracked()
        elif workers and context.has_tasks and not is_tracked(context.app):
            track = counted(len(workers), "worker tracks", "workers track")
            yield Finding(
                Severity.NOTE,
                "untracked-app",
                "track_runs",
                f"{track} runs, and this application doesn't ask for that: if beat has the same code, a run "
                "that no worker begins is noticed only where its entry's policy needs it.",
                "Call redbeat.track_runs(app) in the module that makes the app, and restart beat.",
            )
        yield from _of_long_runs(context)

    def _of_untracked(self) -> Finding:
        named = ", ".join(printable(name) for name in self._needing)
        more = self._need_count - len(self._needing)
        entries = f"{named} and {counted(more, 'more entry', 'more entries')}" if more else named
        return Finding(
            Severity.ERROR,
            "untracked",
            "workers",
            f"No live worker tracks runs, or no worker runs. The policy of {entries} needs that: nobody says "
            "when a run has ended, so with an overlap other than allow each one holds back the next until "
            "its queue_timeout is over.",
            "Start the workers, or call redbeat.track_runs(app) in the module that makes the app and restart "
            "them.",
        )

    def _look(self, context: Context) -> Iterator[Finding]:
        page, self._page = self._page, []
        keys = [row.key for row in page]
        failures = Runs(context.store).failing(keys)
        records = read_newest(context.store, keys, MOST_READ)
        for row, texts, in_a_row in zip(page, records, failures, strict=True):
            history = decode_history(texts, str)
            if row.entry is not None:
                yield from _of_slow(context, row.entry, history)
                yield from _of_failing(context, row.entry, history, in_a_row)
                yield from _of_never_started(context, row.entry, history)
                yield from _of_rejected(context, row.entry, history)


def _of_slow(context: Context, entry: RedBeatSchedulerEntry, history: Sequence[PastRun]) -> Iterator[Finding]:
    """Find an entry whose runs take longer than the time from one to the next."""
    figures = figures_of(history)
    median = figures.median_run_seconds
    if median is None or figures.runs < LEAST_ENDED or not entry.is_enabled_at(context.now):
        return
    interval = _interval_seconds(entry, context.now)
    if interval is None or median <= interval:
        return
    took, after = seconds_in_words(median), seconds_in_words(interval)
    if took == after:
        took, after = length_in_words(median), length_in_words(interval)
    by_overlap = {
        "allow": "Give it a longer interval or an overlap, or let its task do less.",
        "replace": "Give it a longer interval: no run of it comes to its end.",
    }
    yield Finding(
        Severity.WARNING,
        "slow-runs",
        str(entry.name),
        f"Its runs take {took} at the median, and the next one is due after {after}.",
        by_overlap.get(entry.policy.overlap, "Give it a longer interval: runs are left out as it is."),
        entry=str(entry.name),
    )


def _interval_seconds(entry: RedBeatSchedulerEntry, now: datetime) -> float | None:
    """Return the shortest time between two of its next times; None: there are none, or it isn't known."""
    try:
        times = _next_times(entry, now)
    except (ValueError, OverflowError, RuntimeError):
        return None
    gaps = [(later - earlier).total_seconds() for earlier, later in pairwise(times)]
    return min(gaps, default=None)


def _next_times(entry: RedBeatSchedulerEntry, now: datetime) -> list[datetime]:
    policy, times = entry.policy.unbounded(), [now]
    for _ in range(TIMES):
        following = next_run(entry.schedule, policy, times[-1], times[-1])
        if following is None:
            break
        times.append(following)
    return times[1:]


def _of_failing(
    context: Context, entry: RedBeatSchedulerEntry, history: Sequence[PastRun], in_a_row: int
) -> Iterator[Finding]:
    """Find an entry whose last runs have all failed."""
    if in_a_row < LEAST_FAILURES or not entry.is_enabled_at(context.now):
        return
    last = next((run for run in history if run.outcome in FAILED_OUTCOMES), None)
    said = "" if last is None or not last.error else f": {shorten(printable(last.error), 300)}"
    name = str(entry.name)
    yield Finding(
        Severity.WARNING,
        "failing-runs",
        name,
        f"Its last {in_a_row} runs have failed{said.rstrip('.')}.",
        "celery redbeat show has the last ones; rerun sends one once more when the cause is gone.",
        entry=name,
    )


def _of_never_started(
    context: Context, entry: RedBeatSchedulerEntry, history: Sequence[PastRun]
) -> Iterator[Finding]:
    """Find an entry none of whose last runs was begun."""
    outcomes = [run.outcome for run in history if run.outcome in ENDED_OUTCOMES]
    in_a_row = next((at for at, one in enumerate(outcomes) if one != "never_started"), len(outcomes))
    if in_a_row < LEAST_NEVER_STARTED or not entry.is_enabled_at(context.now):
        return
    yield Finding(
        Severity.WARNING,
        "never-started",
        str(entry.name),
        f"No worker has begun its last {in_a_row} runs within queue_timeout.",
        "See whether a worker takes from its queue and tracks runs; celery redbeat route names the queue.",
        entry=str(entry.name),
    )


def _of_rejected(
    context: Context, entry: RedBeatSchedulerEntry, history: Sequence[PastRun]
) -> Iterator[Finding]:
    """Find an entry whose last runs were all rejected: they don't count as failures."""
    ended = [run for run in history if run.outcome in ENDED_OUTCOMES]
    in_a_row = list(takewhile(lambda run: run.outcome == "rejected", ended))
    if len(in_a_row) < LEAST_FAILURES or not entry.is_enabled_at(context.now):
        return
    error = error_in_words(in_a_row[0].error)
    said = f": {shorten(printable(error), 300)}" if error else ""
    yield Finding(
        Severity.WARNING,
        "rejected-runs",
        str(entry.name),
        f"Its last {len(in_a_row)} runs were rejected{said.rstrip('.')}.",
        "If its worker has no such task: import its module there, or correct the entry's task or queue.",
        entry=str(entry.name),
    )


def _of_long_runs(context: Context) -> Iterator[Finding]:
    """Find runs that take longer than their entry's max_runtime, or hold it and aren't begun."""
    yield from islice(_long_runs(context), PAGE_SIZE)


def _long_runs(context: Context) -> Iterator[Finding]:
    for key, record in Runs(context.store).all():
        for one in in_progress([record]):
            run = run_of_record(context.name_of(key), one, context.now)
            if one.is_overdue:
                yield _of_overdue_run(run)
            elif one.overlap != "allow" and _waits_long(run, context.now):
                [deadline] = Runs(context.store).deadlines([(key, one)])
                run = run_of_record(run.name, one, context.now, deadline=deadline)
                yield _of_waiting_run(run, one.overlap, context.now)


def _waits_long(run: Run, now: datetime) -> bool:
    """Tell whether nobody has begun a run, or its retry, for long."""
    if run.state == "retrying":
        return run.retry_at is not None and (now - run.retry_at).total_seconds() > LONG_WAIT_SECONDS
    return run.state == "sent" and (run.age_seconds or 0) > LONG_WAIT_SECONDS


def _of_waiting_run(run: Run, overlap: str, now: datetime) -> Finding:
    if run.state == "retrying":
        since = "" if run.retry_at is None else f" since {shown(run.retry_at)}"
        what = f"waits for attempt {run.attempt} and no worker has begun that{since}"
    else:
        since = "" if run.sent_at is None else f" since {shown(run.sent_at)}"
        what = f"was sent and no worker has begun it{since}"
    hold = hold_in_words(run, now)
    return Finding(
        Severity.WARNING,
        "waiting-run",
        run.name,
        f"A run of it, {printable(str(run.task_id))}, {what}; with overlap {overlap} it holds back the next "
        f"one{hold and f': {hold}'}.",
        "It waits on its queue, or a worker that had taken its message was killed: the broker gives the "
        "message back after its visibility timeout. queue_timeout says how long the run is waited for; "
        f"celery redbeat runs {shlex.quote(printable(run.name))} --give-up ends it now.",
        entry=run.name,
    )


def _of_overdue_run(run: Run) -> Finding:
    since = "" if run.started_at is None else f" since {shown(run.started_at)}"
    where = "" if run.worker is None else f" on {printable(run.worker)}"
    return Finding(
        Severity.WARNING,
        "overdue-run",
        run.name,
        f"A run of it, {printable(str(run.task_id))}, is at work{where}{since}, longer than its max_runtime.",
        "Look at what it does; revoke_overdue ends such runs. It holds back no other.",
        entry=run.name,
    )
