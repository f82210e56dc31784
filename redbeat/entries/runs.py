"""Runs of stored entries: those in progress, those past, their figures, and what there is to say of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone, tzinfo
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from redbeat.config.config import ensure_conf
from redbeat.config.suggestions import did_you_mean
from redbeat.entries.query import Coverage
from redbeat.entries.wording import in_words_of, one_line, when_in
from redbeat.history import (
    ENDED_OUTCOMES,
    FAILED_OUTCOMES,
    OUTCOMES,
    PastRun,
    decode_history,
    error_in_words,
    read_outcome,
)
from redbeat.runs.figures import Figures, figures_of
from redbeat.runs.progress import hold_in_words
from redbeat.runs.run import STATES, Run, in_progress, run_of_failure, run_of_past, run_of_record, runs_of
from redbeat.store.histories import read_newest
from redbeat.store.members import entry_keys, total_of
from redbeat.store.parts import in_chunks
from redbeat.store.run_record import RunRecord
from redbeat.store.runs import Runs
from redbeat.store.server import Server
from redbeat.store.store import Store
from redbeat.task_ids import task_id_of

if TYPE_CHECKING:
    from redbeat.entries.entry import RedBeatSchedulerEntry

#: how many runs are read for figures at most
MOST_KEPT = 1000
#: by how many of its latest records the last outcome of an entry is told; most may be of skipped runs
LATEST = 20

#: what ``find_runs`` finds in progress: all of it, what is in a state, and what takes too long
IN_PROGRESS = {
    "running": "in progress",
    **STATES,
    "overdue": "in progress, and longer than the entry's max_runtime",
}
#: all that it finds: these, and past runs by their outcomes. A run may be sent in both ways
SOUGHT = {**IN_PROGRESS, **OUTCOMES}
#: more runs that have failed than are kept
MOST_FAILURES = 100_000
#: how many entries' histories are read at a time
_CHUNK = 100
BEGINNING = datetime.fromtimestamp(0, timezone.utc)


class Last(NamedTuple):
    """The outcome of an entry's last run, and how often it has failed in a row.

    Attributes:
        outcome: of the last run that has ended, else of the last record; None: there is none.
        failures: how many runs have failed in a row.
        recent: the outcomes of its latest records, at most ``LATEST``, the oldest first.
    """

    outcome: str | None = None
    failures: int = 0
    recent: Sequence[str] = ()


def id_of(key: str, due: datetime) -> str:
    """Return the task id of the run of the entry under ``key`` that is due at ``due``."""
    return task_id_of(key, due.isoformat(timespec="microseconds"))


def read_history(entry: RedBeatSchedulerEntry, limit: int) -> list[PastRun]:
    """Return what is recorded of an entry's last runs, the newest first."""
    [records] = read_newest(Store(entry.app), [entry.key], limit)
    return decode_history(records, partial(id_of, entry.key))


def read_runs(entry: RedBeatSchedulerEntry, limit: int) -> list[Run]:
    """Return the runs of ``entry``; see :meth:`redbeat.RedBeatSchedulerEntry.runs`."""
    return _runs_with(entry, read_history(entry, limit))[:limit]


def read_running(entry: RedBeatSchedulerEntry) -> list[Run]:
    """Return the runs in progress of ``entry``; see :meth:`redbeat.RedBeatSchedulerEntry.running`."""
    return _runs_with(entry, ())


def _runs_with(entry: RedBeatSchedulerEntry, history: Sequence[PastRun]) -> list[Run]:
    store = Store(entry.app)
    running = in_progress(Runs(store).read([entry.key])[0])
    deadlines = deadlines_of(store, entry.key, running)
    return runs_of(str(entry.name), running, history, Server(store).now(), deadlines)


def deadlines_of(store: Store, key: str, records: Sequence[RunRecord]) -> dict[str, float | None]:
    """Return when beat must look at runs of the entry under ``key``, UNIX seconds, by their task ids."""
    scores = Runs(store).deadlines([(key, one) for one in records])
    return {one.task_id: score for one, score in zip(records, scores, strict=True)}


def give_up_runs(app: Any, runs: Sequence[Run], by: str | None) -> list[Run]:
    """End runs in progress of one entry as lost; return those of them that are given up.

    One that has begun, ended, or been retried meanwhile is left alone. The entry need not exist any more.
    """
    if not runs:
        return []
    store, name = Store(app), runs[0].name
    [records] = Runs(store).read([store.keys.entry(name)])
    now = Server(store).now()
    found = {record.task_id: (record, run_of_record(name, record, now)) for record in in_progress(records)}
    meant = []
    for run in runs:
        record, now_run = found.get(str(run.task_id), (None, run))
        is_as_before = (run.due, run.state, run.attempt) == (now_run.due, now_run.state, now_run.attempt)
        if record is not None and is_as_before:
            meant.append((run, record))
    done = Runs(store).give_up(name, [record for _, record in meant], f"given up by {by or 'hand'}")
    return [run for (run, _), is_done in zip(meant, done, strict=True) if is_done]


def read_figures(entry: RedBeatSchedulerEntry) -> Figures:
    """Return the figures of ``entry``; see :meth:`redbeat.RedBeatSchedulerEntry.figures`."""
    [failures] = Runs(Store(entry.app)).failing([entry.key])
    return figures_of(read_history(entry, max(ensure_conf(entry.app).history, MOST_KEPT)), failures)


def read_last(app: Any, keys: Sequence[str]) -> list[Last]:
    """Return the outcomes of the last runs of entries, by their keys."""
    store, found = Store(app), list[Last]()
    for chunk in in_chunks(keys):
        failures = Runs(store).failing(chunk)
        for texts, count in zip(read_newest(store, chunk, LATEST), failures, strict=True):
            outcomes = [outcome for outcome in map(read_outcome, texts) if outcome is not None]
            ended = next((one for one in outcomes if one in ENDED_OUTCOMES), None)
            found.append(Last(ended or next(iter(outcomes), None), count, outcomes[::-1]))
    return found


def count_running(app: Any, keys: Sequence[str]) -> list[int]:
    """Return how many runs of each entry, by its key, are in progress."""
    return [len(in_progress(records)) for records in Runs(Store(app)).read(keys)]


def with_last(entries: Iterable[Any]) -> Iterator[tuple[Any, Last]]:
    """Yield entries of one app with the outcomes of their last runs; they are read page by page."""
    for chunk in in_chunks(iter(entries)):
        lasts = read_last(chunk[0].app, [entry.key for entry in chunk])
        yield from zip(chunk, lasts, strict=True)


@dataclass(frozen=True)
class FoundRuns(Coverage):
    """Runs that were found.

    Attributes:
        runs: those in progress, and after them the past ones, the newest first; no more than were wanted.
        count: how many were found.
        seen: how many entries' histories were looked through.
        total: how many there are.
    """

    runs: Sequence[Run]
    count: int
    seen: int
    total: int


def find_runs(app: Any, sought: Iterable[str] | None = None, **filters: Any) -> Sequence[Run]:
    """Return all runs that :func:`search_runs` finds."""
    *_, found = search_runs(app, sought, **filters)
    return found.runs


def search_runs(
    app: Any,
    sought: Iterable[str] | None = None,
    *,
    name: str | None = None,
    match: str | None = None,
    since: datetime | None = None,
    most: int | None = None,
) -> Iterator[FoundRuns]:
    """Find runs of one entry or of many: those in progress, and after them the past ones, the newest first.

    Yields what is found so far after each step, and at the end all. Runs that have failed, were lost or never
    started are listed for all entries, and ``with_histories`` completes them; others are found as far as the
    histories of their entries go back.

    Arguments:
        sought: some of ``SOUGHT``; None: those in progress, and with ``since`` all.
        name: of the entry; None: all.
        match: a pattern of names.
        since: only runs that have ended, or were recorded, or are in progress, at this time or later.
        most: how many are returned; None: all, in order only at the end.

    Raises:
        StoreUnavailable, StoreRefused, StoreCorrupt.
    """
    if sought is None:
        sought = ("running",) if since is None else SOUGHT
    wanted, store = set(sought), Store(app)
    now, running, past, count = Server(store).now(), list[Run](), list[Run](), 0

    def is_meant(one: str) -> bool:
        return (name is None or one == name) and (match is None or fnmatchcase(one, match))

    def add(runs: Iterable[Run], outcomes: Collection[str]) -> int:
        before = len(past)
        past.extend(
            run for run in runs if run.outcome in outcomes and (since is None or recorded_at(run) >= since)
        )
        added = len(past) - before
        if most is not None:
            past.sort(key=recorded_at, reverse=True)
            del past[most:]
        return added

    if wanted & IN_PROGRESS.keys():
        rows = list[tuple[Run, RunRecord]]()
        for one, record in in_progress_of(store, name):
            if not is_meant(one):
                continue
            run = run_of_record(one, record, now)
            states = {"running", str(run.state)} | ({"overdue"} if run.is_overdue else set())
            if wanted & states:
                rows.append((run, record))
        rows.sort(key=lambda row: row[0].due, reverse=True)
        records = [(store.keys.entry(run.name), record) for run, record in rows[:most]]
        running = [
            run_of_record(run.name, record, now, deadline=score)
            for (run, record), score in zip(rows[:most], Runs(store).deadlines(records), strict=True)
        ]
        count = len(rows)
        yield FoundRuns(running, count, 0, 1)
    others = wanted & OUTCOMES.keys() - set(FAILED_OUTCOMES)
    if wanted & set(FAILED_OUTCOMES):
        count += add(filter(lambda run: is_meant(run.name), read_failures(store, since or BEGINNING)), wanted)
    seen, total = 0, 0
    if others:
        names = iter([name]) if name is not None else map(store.keys.name, entry_keys(store))
        total = 1 if name is not None else total_of(store)
        for chunk in in_chunks(names, _CHUNK):
            count += add(past_of(store, list(filter(is_meant, chunk)), now), others)
            seen += len(chunk)
            yield FoundRuns([*running, *past][:most], count, seen, max(total, seen + 1))
    past.sort(key=recorded_at, reverse=True)
    yield FoundRuns([*running, *past][:most], count, total, total)


def find_running(app: Any, name: str, states: Iterable[str]) -> list[Run]:
    """Return the runs in progress of one entry that are in some of these states of ``IN_PROGRESS``."""
    return [run for run in find_runs(app, states, name=name) if run.is_running]


def read_states(text: str) -> list[str]:
    """Return the states in 'failed,lost', for ``find_runs``.

    Raises:
        ValueError: there is no such state.
    """
    states = [part.strip().lower().replace("-", "_") for part in text.split(",")]
    for state in states:
        if state not in SOUGHT:
            hint = did_you_mean(state, SOUGHT)
            raise ValueError(f"there is no state {state!r}.{hint} The states: {', '.join(SOUGHT)}.")
    return states


def with_histories(app: Any, runs: Sequence[Run]) -> list[Run]:
    """Return ``runs`` with all that histories say of those of them that are only listed as failed."""
    store, pasts = Store(app), dict[tuple[str, str | None], PastRun]()
    listed = {run.name for run in runs if run.outcome in FAILED_OUTCOMES and run.sent_at is None}
    for names in in_chunks(sorted(listed)):
        keys = [store.keys.entry(name) for name in names]
        histories = read_newest(store, keys, MOST_KEPT)
        for name, key, records in zip(names, keys, histories, strict=True):
            for past in decode_history(records, partial(id_of, key)):
                pasts.setdefault((name, past.task_id), past)
    return [_completed(run, pasts.get((run.name, run.task_id))) for run in runs]


def _completed(run: Run, past: PastRun | None) -> Run:
    if past is None or past.outcome != run.outcome:
        return run
    return replace(run_of_past(run.name, past), ended_at=past.ended or run.ended_at)


def read_failures(store: Store, since: datetime) -> list[Run]:
    """Return the runs that have failed since a time, the newest first."""
    return [run_of_failure(one) for one in Runs(store).failures(since, MOST_FAILURES)]


def recorded_at(run: Run) -> datetime:
    """Return when a past run was recorded; in milliseconds, as those that have failed are listed so."""
    moment = run.ended_at or run.sent_at or run.last or run.due
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def in_progress_of(store: Store, name: str | None) -> Iterator[tuple[str, RunRecord]]:
    """Yield the runs in progress of one entry, or of all, with the entry's name."""
    every = Runs(store).all()
    if name is not None:
        key = store.keys.entry(name)
        every = ((key, record) for record in Runs(store).read([key])[0])
    for key, record in every:
        yield from ((store.keys.name(key), one) for one in in_progress([record]))


def past_of(store: Store, names: Sequence[str], now: datetime) -> Iterator[Run]:
    """Yield the past runs in the histories of entries, entry by entry; two round trips."""
    keys = [store.keys.entry(name) for name in names]
    texts, running = read_newest(store, keys, MOST_KEPT), Runs(store).read(keys)
    for name, key, records, progress in zip(names, keys, texts, running, strict=True):
        runs = runs_of(name, progress, decode_history(records, partial(id_of, key)), now)
        yield from (run for run in runs if not run.is_running)


def remark_on(run: Run, now: datetime, zone: tzinfo) -> str:
    """Return what is wrong with a run, and until when it holds its entry; '': nothing."""
    # a lease is renewed every few seconds: until when the present one lives says nothing
    hold = "" if run.state == "started" else hold_in_words(run, now)
    words = "; ".join(filter(None, (_reason_of(run, zone), hold)))
    return in_words_of(one_line(words), zone)


def _reason_of(run: Run, zone: tzinfo) -> str:
    """Return why a run wasn't sent or has failed, and what else there is to say of it; '': nothing."""
    if run.last is not None:
        many = "" if run.count is None else f", {run.count} runs"
        return f"until {when_in(run.last, zone)}{many}: {run.why}"
    late = "" if run.late is None else f"it has ended later, as {run.late}"
    again = "" if run.rerun_of is None else f"a rerun of {run.rerun_of}"
    attempt = f"attempt {run.attempt}" if not run.is_running and (run.attempt or 1) > 1 else ""
    return "; ".join(filter(None, (error_in_words(run.error), run.why, late, again, attempt)))
