"""The methods of an entry for people and programs that manage a schedule: read, change, pause, run by hand.

Owns their names and documentation; the modules that are imported here do the work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, TypeVar

from celery.app import app_or_default
from celery.result import AsyncResult

from redbeat.config.config import ensure_conf
from redbeat.config.suggestions import did_you_mean
from redbeat.entries import backfill, bulk, pauses, rerun, runs
from redbeat.entries.describe import description_of
from redbeat.entries.due import next_due
from redbeat.entries.failures import failure_now
from redbeat.entries.forms import from_dict, to_dict
from redbeat.entries.pauses import PauseResult
from redbeat.entries.query import clear_entries, count_entries, list_entries, state_of
from redbeat.errors import EntryError
from redbeat.history import PastRun
from redbeat.policy.policy import FIELDS, NAMES, PolicyFields
from redbeat.runs.figures import Figures
from redbeat.runs.run import Run
from redbeat.store.events import add_paused_events
from redbeat.store.records import Stored
from redbeat.store.store import Store

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from redbeat.entries.entry import RedBeatSchedulerEntry

EntryT = TypeVar("EntryT", bound="Managed")

#: the fields that ``update`` changes, besides those of the policy
CHANGEABLE = ("task", "schedule", "args", "kwargs", "options", "enabled")


class Changes(PolicyFields, total=False):
    """The keyword arguments of ``update``, for editors and type checkers."""

    task: str
    schedule: Any
    args: Sequence[Any] | None
    kwargs: Mapping[str, Any] | None
    options: Mapping[str, Any] | None
    enabled: bool


class Managed:
    """The methods of an entry that beat itself doesn't need."""

    app: Any
    name: Any
    #: what was in Redis when it was last loaded or saved, None if it has been neither
    stored: Stored | None = None
    #: the server's clock at that time
    seen_at: datetime | None = None
    #: a sentence that says why it can't be used, '' if it can; ``list`` yields both
    problem: str = ""

    @property
    def key(self) -> str:
        """The entry's key in Redis."""
        raise NotImplementedError

    @property
    def _whole(self) -> RedBeatSchedulerEntry:
        return self  # type: ignore[return-value]  # no other class has this base

    # -- reading

    @classmethod
    def get(cls: type[EntryT], name: str, app: Any = None) -> EntryT:
        """Return the entry called ``name``.

        Raises:
            EntryNotFound: there is none (a KeyError, too).
            EntryCorrupt: what is there can't be used (a ValueError, too).
        """
        return cls.from_key(ensure_conf(app).keys.entry(name), app)  # type: ignore[attr-defined, no-any-return]

    @classmethod
    def list(
        cls: type[EntryT],
        app: Any = None,
        *,
        match: str | None = None,
        task: str | None = None,
        enabled: bool | None = None,
        state: str | None = None,
        due_before: datetime | None = None,
        offset: int = 0,
        limit: int | None = None,
    ) -> Iterator[EntryT]:
        """Yield the stored entries by their next due time, those that never run again last.

        They are read 500 at a time. An entry that is moved meanwhile may be left out, or be yielded twice.
        One that can't be used is yielded, too: ``problem`` says why, and its ``schedule`` is None.

        Arguments:
            match: a pattern of the name, with ``*``, ``?`` and ``[a-z]``; case counts.
            task: a pattern of the task's name.
            enabled: True: only entries that are enabled, or whose pause is over; False: only the others.
            state: only entries in this state: 'scheduled', 'due', 'failing', 'paused', 'disabled',
                'finished', 'quarantined', 'missing' (its hash is gone), 'unscheduled', or 'downgraded' (it
                was taken out for celery-redbeat 2.x).
            due_before: only entries whose next due time is no later than this. A naive datetime is UTC.
            offset: how many of these to skip at the beginning.
            limit: how many to yield at most; None: all.

        Raises:
            ValueError: there is no such state, or a filter has a wrong type.
        """
        filters: dict[str, Any] = {"match": match, "task": task, "enabled": enabled, "state": state}
        return list_entries(cls, app, **filters, due_before=due_before, offset=offset, limit=limit)

    @classmethod
    def count(cls, app: Any = None, **filters: Any) -> int:
        """Return how many entries ``list`` would yield with the same filters."""
        return count_entries(cls, app, **filters)

    @property
    def state(self) -> str | None:
        """Its state when it was last read or saved, one of those of ``list``; None if it has been neither."""
        if self.stored is None or self.seen_at is None:
            return None
        return state_of(self._whole, self.stored, self.seen_at)

    @property
    def next_due_at(self) -> datetime | None:
        """When beat sends it next, in UTC, jitter included; as known when it was last read or saved.

        A time in the past means that it waits to be sent; the beginning of 1970, that somebody has asked for
        a run now. For an entry that is paused until a time, it is its first run at that time or later. None:
        it is disabled, paused without an end, finished, quarantined, missing or unscheduled.
        """
        if self.stored is None:
            return None
        return next_due(self._whole, self.stored, self.seen_at or datetime.now(timezone.utc))

    @property
    def error(self) -> str:
        """Why it is quarantined, or why its last run couldn't be sent; '' if nothing is wrong."""
        if self.stored is None:
            return self.problem
        failure = failure_now(self.stored)
        return self.problem if failure is None else failure.reason

    @property
    def description(self) -> str:
        """When it runs, in English words; '' for one that can't be used."""
        return description_of(self._whole)

    def history(self, limit: int = 20) -> Sequence[PastRun]:
        """Return what became of its last runs, the newest first: at most ``limit`` of those that are kept."""
        return runs.read_history(self._whole, limit)

    def runs(self, limit: int = 20) -> Sequence[Run]:
        """Return its runs, the newest first: those in progress, and then what became of its last ones.

        Runs are in progress from when they are sent until their end, where workers track them; others are
        past with the outcome 'sent'.

        Arguments:
            limit: how many to return at most, of those that are kept.
        """
        return runs.read_runs(self._whole, limit)

    def running(self) -> Sequence[Run]:
        """Return its runs in progress, the newest first: on their queue, at work, or between two attempts."""
        return runs.read_running(self._whole)

    def give_up_runs(self, chosen: Sequence[Run] | None = None, by: str | None = None) -> Sequence[Run]:
        """End its runs in progress as 'lost' at once, and return those that have ended so.

        What waits for them goes then. No task is terminated: one that is still at work goes on, its end is
        noted as ``late``, and :func:`redbeat.runs.is_mine` is False in it. A message that no worker has begun
        isn't begun while another run holds the entry.

        Arguments:
            chosen: some of ``running()``; one that has changed meanwhile is left alone. None: all.
            by: who gives them up; it stands in the history.
        """
        whole = self._whole
        return runs.give_up_runs(whole.app, self.running() if chosen is None else chosen, by)

    def figures(self) -> Figures:
        """Return how long its last runs took and waited, and how many succeeded."""
        return runs.read_figures(self._whole)

    # -- changing

    def update(self, other: Any = None, **changes: Unpack[Changes]) -> None:
        """Change fields of the stored entry, and of this object. Fields that aren't named keep their stored
        values.

        Arguments:
            other: another entry; only this object takes over its task, schedule, arguments and options, as in
                Celery.
            changes: ``task``, ``schedule``, ``args``, ``kwargs``, ``options``, ``enabled``, and the fields of
                the policy.

        Raises:
            EntryNotFound: it isn't stored.
            EntryError: there is no such field, or a value isn't allowed; nothing is changed.
        """
        if other is not None:
            super().update(other)  # type: ignore[misc]
            return
        for unknown in changes.keys() - NAMES - set(CHANGEABLE):
            hint = did_you_mean(unknown, [*CHANGEABLE, *FIELDS])
            raise EntryError(f"{self.key}: there is no field {unknown!r} to change.{hint}", self.key)

        given: dict[str, Any] = {**changes}

        def change(entry: RedBeatSchedulerEntry, _now: datetime) -> None:
            # the policy first, as a recurrence rule without a zone gets the policy's
            entry.set_policy({field: value for field, value in given.items() if field in NAMES})
            for field in CHANGEABLE:
                if field in given:
                    setattr(entry, field, given[field])

        self._change_stored(change)

    def _change_stored(self, change: Callable[[Any, datetime], None]) -> None:
        raise NotImplementedError

    def pause(self, note: str | None = None, until: datetime | None = None, by: str | None = None) -> None:
        """Pause it: nothing is sent until :meth:`resume`, or until the time ``until``.

        ``enabled`` becomes false, so that celery-redbeat 2.x doesn't run it, either.

        Arguments:
            note: why it is paused.
            until: when the pause ends by itself; default: never. A naive datetime is in the entry's time
                zone, else in the app's.
            by: who pauses it.

        Raises:
            EntryNotFound: it isn't stored.
            EntryError: ``until`` is in the past by the server's clock; nothing is changed.
        """
        self._change_stored(lambda entry, now: pauses.rest(entry, now, note, until, by))
        add_paused_events(Store(self.app), [(self._whole.name, self._whole.paused_until)], note, by)

    def resume(self) -> None:
        """End its pause. It is due at its next time after now; with ``run_missed`` it makes up for missed
        runs first.

        Raises:
            EntryNotFound: it isn't stored.
        """
        self._change_stored(lambda entry, _now: pauses.end_pause(entry))

    # -- running by hand

    def trigger(self, **overrides: Any) -> AsyncResult:
        """Send its task now, once, and return the result; its schedule isn't touched.

        This process sends the message, with a task id of its own and the header ``redbeat_manual``. A
        disabled entry can be triggered, too.

        Arguments:
            overrides: ``args``, ``kwargs``, and options of ``apply_async``, for this run.
        """
        return backfill.trigger(self._whole, overrides)

    def backfill(
        self,
        start: datetime,
        end: datetime,
        dry_run: bool = False,
        *,
        limit: int | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> Sequence[datetime]:
        """Send the runs that its schedule has from ``start`` to ``end``; return their due times.

        Each is sent once, however often this is called: it has the run's task id, and Redis remembers it.
        Future runs aren't sent.

        Arguments:
            start, end: both included. Naive datetimes are UTC.
            dry_run: send nothing; return the due times of what would be sent.
            limit: if more runs than this are to be sent, send nothing and raise EntryError; None: no limit.
            progress: called after each run with the number of runs so far.

        Raises:
            EntryError: there are more runs than ``limit``, or a part of the entry can't be sent.
            LockNotAcquired: another backfill of the entry is running.
        """
        return backfill.backfill(self._whole, start, end, dry_run, limit=limit, progress=progress)

    def rerun(self, due: datetime | None = None) -> AsyncResult:
        """Send a run of it once more, with the same due time, and return the result.

        The message has a task id of its own, and the headers ``redbeat_manual`` and ``redbeat_rerun_of``; the
        arguments are the entry's present ones. The schedule isn't touched.

        Arguments:
            due: when the run was due, whatever became of it, to a second; it is sent once more with each
                call. A naive datetime is UTC. None: the last run that has failed, was lost or never started,
                and wasn't sent once more already.

        Raises:
            EntryError: no such run is known, or a part of the entry can't be sent.
            EntryBusy: its ``overlap`` holds the run back.
            LockNotAcquired: somebody else sends runs of the entry by hand.
        """
        return rerun.rerun_one(self._whole, due)[1]

    # -- forms and files

    def to_dict(self) -> dict[str, Any]:
        """Return it as a dict of plain JSON, for forms and files: each argument under its own name.

        The schedule is an object with a ``__type__``, as in Redis; times are in ISO 8601. For readers there
        are also ``state``, ``next_due_at``, ``description`` and ``error``, None where there is none;
        :meth:`from_dict` ignores them.

        Raises:
            EntryError: an argument has no form in JSON.
        """
        return to_dict(self._whole)

    @classmethod
    def from_dict(cls: type[EntryT], values: Mapping[str, Any], app: Any = None) -> EntryT:
        """Return the entry that ``values`` describe, a dict as from :meth:`to_dict`; it isn't stored yet.

        A schedule or a length of time may also be written as in a file (:ref:`notation`): ``{"every":
        "1h30m"}``, ``{"cron": "0 9 * * *"}``, ``"30s"``, a number of seconds, or a cron expression. Read-only
        fields such as ``state`` are ignored, and so are ``next_run`` and ``owner`` of an exported entry.

        Raises:
            EntryError: a field is missing, unknown, or has a wrong type or value; the message names it.
        """
        return from_dict(cls, values, app)

    # -- many

    @staticmethod
    def save_many(
        entries: Iterable[RedBeatSchedulerEntry], *, progress: Callable[[int], object] | None = None
    ) -> bulk.SaveResult:
        """Store entries, each as :meth:`save` would; return the names of the new, changed and same ones.

        They are stored 500 at a time, all of them or none, and wake the beat once. An entry that is stored
        already with the same values isn't written. If a name comes twice, the last one counts. After an
        interruption call it again.

        Arguments:
            entries: of one app; any iterable. No more than 500 are held at a time.
            progress: called after each 500 with the number of entries handled so far.

        Raises:
            EntryError: an entry can't be stored, so none of its 500 was; ``done`` says how many before it
                were.
            StoreUnavailable: Redis can't be reached. The present 500 are stored all or not at all.
        """
        return bulk.save_many(entries, progress)

    @staticmethod
    def delete_many(
        names: Iterable[str], app: Any = None, *, progress: Callable[[int], object] | None = None
    ) -> int:
        """Remove the entries with these names or keys; return how many there were.

        Names that aren't stored are ignored. The entries are removed 500 at a time, all of them or none.

        Arguments:
            names: any iterable.
            progress: called after each 500 with the number of names handled so far.

        Raises:
            EntryError: a name is one of RedBeat's own keys, or isn't a string, so none of its 500 was
                removed; ``done`` says how many before them were handled.
        """
        return bulk.delete_many(names, app, progress)

    @classmethod
    def pause_many(
        cls,
        names: Iterable[str],
        app: Any = None,
        *,
        note: str | None = None,
        until: datetime | None = None,
        by: str | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> PauseResult:
        """Pause the entries with these names, as :meth:`pause` does; return what became of each.

        The result has names: ``changed``, those that were paused by this call; ``left``, those that were
        already paused or disabled, and stay exactly as they are; and ``failed``, with the reason for each. An
        entry is changed atomically; one that can't be changed doesn't stop the others.

        Arguments:
            names: any iterable. Names that aren't stored are ignored.
            note, until, by: as in :meth:`pause`; an ``until`` in the past is an error for each entry.
            progress: called after each 500 with the number of names handled so far.
        """
        return pauses.pause_many(cls, names, app_or_default(app), note, until, by, progress)

    @classmethod
    def resume_many(
        cls,
        names: Iterable[str],
        app: Any = None,
        *,
        note: str | None = None,
        by: str | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> PauseResult:
        """End the pause of those of the entries that are paused, as :meth:`resume` does.

        The result is like that of :meth:`pause_many`; ``left`` are those that weren't paused. An entry that
        is disabled without a pause stays disabled.

        Arguments:
            names: any iterable. Names that aren't stored are ignored.
            note, by: only entries with this note, or paused by this person; patterns with ``*`` and ``?``.
            progress: called after each 500 with the number of names handled so far.
        """
        return pauses.resume_many(cls, names, app_or_default(app), note, by, progress)

    @classmethod
    def clear(cls, app: Any = None, *, progress: Callable[[int], object] | None = None) -> int:
        """Remove all entries that stand in the schedule; return how many there were.

        Those of ``beat_schedule`` come back with the next start of a beat.
        """
        return clear_entries(app, progress)
