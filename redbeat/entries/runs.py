"""Runs of stored entries: those in progress, those past, and their figures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from redbeat.config.config import ensure_conf
from redbeat.errors import StoreRefused
from redbeat.history import ENDED_OUTCOMES, PastRun, decode_history
from redbeat.runs.figures import Figures, figures_of
from redbeat.runs.run import Run, in_progress, run_of_record, runs_of
from redbeat.store.chunks import in_chunks
from redbeat.store.histories import Histories
from redbeat.store.runs import Runs
from redbeat.store.server import Server
from redbeat.store.store import Store
from redbeat.task_ids import task_id_of

if TYPE_CHECKING:
    from redbeat.entries.entry import RedBeatSchedulerEntry

#: how many runs are read for figures at most
MOST_KEPT = 1000
#: by how many of its latest records the last outcome of an entry is told
LATEST = 5


class Last(NamedTuple):
    """What became of an entry's last run, and how often it has failed in a row.

    Attributes:
        outcome: of the last run of which it is known, else of the last record; None: there is none.
        failures: how many runs have failed in a row.
    """

    outcome: str | None = None
    failures: int = 0


def id_of(key: str, due: datetime) -> str:
    """Return the task id of the run of the entry under ``key`` that is due at ``due``."""
    return task_id_of(key, due.isoformat(timespec="microseconds"))


def read_history(entry: RedBeatSchedulerEntry, limit: int) -> list[PastRun]:
    """Return what is recorded of an entry's last runs, the newest first."""
    records = Histories(Store(entry.app)).read(entry.key, limit)
    return decode_history(records, partial(id_of, entry.key))


def read_runs(entry: RedBeatSchedulerEntry, limit: int) -> list[Run]:
    """Return the runs of ``entry``; see :meth:`redbeat.RedBeatSchedulerEntry.runs`."""
    store = Store(entry.app)
    history = read_history(entry, limit)
    [records] = Runs(store).read([entry.key])
    return runs_of(str(entry.name), records, history, Server(store).now())[:limit]


def read_running(entry: RedBeatSchedulerEntry) -> list[Run]:
    """Return the runs in progress of ``entry``; see :meth:`redbeat.RedBeatSchedulerEntry.running`."""
    store = Store(entry.app)
    [records] = Runs(store).read([entry.key])
    now = Server(store).now()
    return [run_of_record(str(entry.name), one, now) for one in reversed(in_progress(records))]


def read_figures(entry: RedBeatSchedulerEntry) -> Figures:
    """Return the figures of ``entry``; see :meth:`redbeat.RedBeatSchedulerEntry.figures`."""
    [failures] = Runs(Store(entry.app)).failing([str(entry.name)])
    return figures_of(read_history(entry, max(ensure_conf(entry.app).history, MOST_KEPT)), failures)


def read_last(app: Any, keys: Sequence[str]) -> list[Last]:
    """Return what became of the last runs of entries, by their keys; nothing where that may not be read."""
    store = Store(app)
    found: list[Last] = []
    for chunk in in_chunks(keys):
        try:
            records = Histories(store).newest(chunk, LATEST)
            failures = Runs(store).failing([store.keys.name(key) for key in chunk])
        except StoreRefused:
            return [Last()] * len(keys)
        found += map(Last, map(_last_outcome, records), failures)
    return found


def _last_outcome(records: Iterable[str]) -> str | None:
    runs = decode_history(records, str)
    ended = (run.outcome for run in runs if run.outcome in ENDED_OUTCOMES)
    return next(ended, runs[0].outcome if runs else None)


def with_last(entries: Iterable[Any]) -> Iterator[tuple[Any, Last]]:
    """Yield entries of one app with what became of their last runs; they are read page by page."""
    for chunk in in_chunks(iter(entries)):
        lasts = read_last(chunk[0].app, [entry.key for entry in chunk])
        yield from zip(chunk, lasts, strict=True)
