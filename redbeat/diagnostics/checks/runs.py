"""Checks of runs: entries whose runs are too slow or fail again and again, and runs that aren't tracked.

Invariant: of each entry as many records are read as one look at its history takes, page by page.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import islice, pairwise, takewhile

from redbeat.diagnostics.checks.context import Context, Row, some_of
from redbeat.diagnostics.findings import Finding, found
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.query import PAGE_SIZE
from redbeat.history import ENDED_OUTCOMES, FAILED_OUTCOMES, PastRun, decode_history, error_in_words
from redbeat.log.text import printable, shorten
from redbeat.runs.figures import figures_of
from redbeat.runs.progress import hold_in_words, progress_in_words
from redbeat.runs.run import Run, in_progress, run_of_record
from redbeat.schedules.durations import length_in_words, seconds_in_words
from redbeat.schedules.occurrences import next_run
from redbeat.store.histories import read_newest
from redbeat.store.runs import Runs

#: so many runs must have ended before their median counts, and so many of a row have failed, or were
#: rejected, before it is reported
LEAST_ENDED, LEAST_FAILURES = 3, 3
#: outcomes that don't count as failures, the kind of finding, and how many in a row are reported
ENDINGS = (("never_started", "never-started", 5), ("rejected", "rejected-runs", LEAST_FAILURES))
#: a run that waits for longer on its queue and holds its entry is reported, seconds
LONG_WAIT_SECONDS = 300.0
#: how many records of each history are looked at
MOST_READ = 20
#: by how many of its next times the interval of an entry is judged
TIMES = 5


def check_runs(context: Context, page: Sequence[Row]) -> Iterator[Finding]:
    """Find entries of a page whose last runs have taken too long, have failed, or weren't begun."""
    keys = [row.key for row in page]
    failures = Runs(context.store).failing(keys)
    records = read_newest(context.store, keys, MOST_READ)
    for row, texts, failed in zip(page, records, failures, strict=True):
        if row.entry is None or not row.entry.is_enabled_at(context.now):
            continue
        if row.entry.policy.needs_tracking:
            context.noted["untracked"].append(row.name)
        history = decode_history(texts, str) if texts else []
        outcomes = [run.outcome for run in history if run.outcome in ENDED_OUTCOMES]
        yield from _check_duration(context, row.name, row.entry, history)
        if failed >= LEAST_FAILURES:
            last = next((run for run in history if run.outcome in FAILED_OUTCOMES), None)
            yield found("failing-runs", row.name, count=failed, said=_error_of(last))
        for outcome, kind, least in ENDINGS:
            count = len(list(takewhile(outcome.__eq__, outcomes)))
            if count >= least:
                last = next(run for run in history if run.outcome == outcome)
                yield found(kind, row.name, count=count, said=_error_of(last))


def _error_of(run: PastRun | None) -> str:
    error = "" if run is None or not run.error else error_in_words(run.error)
    return f": {shorten(printable(error), 300).rstrip('.')}" if error else ""


def _check_duration(
    context: Context, name: str, entry: RedBeatSchedulerEntry, history: Sequence[PastRun]
) -> Iterator[Finding]:
    """Find an entry whose runs take longer than the time from one to the next."""
    figures = figures_of(history)
    median = figures.median_run_seconds
    if median is None or figures.runs < LEAST_ENDED:
        return
    try:
        interval = _interval_seconds(entry, context.now)
    except (ValueError, OverflowError, RuntimeError):
        return
    if interval is None or median <= interval:
        return
    words = seconds_in_words if median >= 2 * interval else length_in_words
    yield found("slow-runs", name, median=words(median), interval=words(interval))


def _interval_seconds(entry: RedBeatSchedulerEntry, now: datetime) -> float | None:
    """Return the shortest time between two of its next times; None: it has at most one."""
    policy, times = entry.policy.unbounded(), [now]
    while len(times) <= TIMES:
        following = next_run(entry.schedule, policy, times[-1], times[-1])
        if following is None:
            break
        times.append(following)
    return min(((after - before).total_seconds() for before, after in pairwise(times[1:])), default=None)


def check_tracking(context: Context) -> Iterator[Finding]:
    """Find entries that need tracked runs without a worker that tracks them."""
    names = context.noted["untracked"]
    if names and not Runs(context.store).workers():
        yield found("untracked", "workers", names=some_of(names, 5))


def check_long_runs(context: Context) -> Iterator[Finding]:
    """Find runs that take longer than their entry's max_runtime, or hold it and aren't begun."""
    yield from islice(_long_runs(context), PAGE_SIZE)


def _long_runs(context: Context) -> Iterator[Finding]:
    for key, record in Runs(context.store).all():
        for one in in_progress([record]):
            run = run_of_record(context.name_of(key), one, context.now)
            kind = "overdue-run" if one.is_overdue else "waiting-run"
            if one.is_overdue or (one.overlap != "allow" and _waits_long(run, context.now)):
                [deadline] = Runs(context.store).deadlines([(key, one)])
                run = run_of_record(run.name, one, context.now, deadline=deadline)
                told = filter(None, (progress_in_words(run), hold_in_words(run, context.now)))
                yield found(
                    kind,
                    run.name,
                    entry=run.name,
                    task_id=printable(str(run.task_id)),
                    overlap=one.overlap,
                    progress=printable("; ".join(told)),
                    name=shlex.quote(printable(run.name)),
                )


def _waits_long(run: Run, now: datetime) -> bool:
    """Return True if a run, or its retry, has waited for a worker for long."""
    if run.state == "retrying":
        return run.retry_at is not None and (now - run.retry_at).total_seconds() > LONG_WAIT_SECONDS
    return run.state == "sent" and (run.age_seconds or 0) > LONG_WAIT_SECONDS
