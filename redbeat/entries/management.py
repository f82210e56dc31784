"""What entries offer to those who manage a schedule: looking, changing, pausing, running by hand.

Owns names and documentation; the work is done in the modules that are imported here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, TypeVar

from celery.app import app_or_default
from celery.result import AsyncResult

from redbeat.config.config import ensure_conf
from redbeat.config.suggestions import did_you_mean
from redbeat.entries import backfill, bulk, pauses
from redbeat.entries.describe import description_of
from redbeat.entries.due import next_due, overrun_of
from redbeat.entries.failures import failure_of
from redbeat.entries.forms import from_dict, to_dict
from redbeat.entries.pauses import PauseResult
from redbeat.entries.query import clear_entries, count_entries, list_entries, state_of
from redbeat.errors import EntryError
from redbeat.history import PastRun, decode_history
from redbeat.policy.policy import FIELDS, NAMES, PolicyFields
from redbeat.store.histories import Histories
from redbeat.store.records import Stored
from redbeat.store.store import Store
from redbeat.task_ids import task_id_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from redbeat.entries.entry import RedBeatSchedulerEntry

EntryT = TypeVar("EntryT", bound="Managed")

#: what ``update`` changes, besides the fields of the policy
CHANGEABLE = ("task", "schedule", "args", "kwargs", "options", "enabled")


class Changes(PolicyFields, total=False):
    """What ``update`` takes, for editors and type checkers."""

    task: str
    schedule: Any
    args: Sequence[Any] | None
    kwargs: Mapping[str, Any] | None
    options: Mapping[str, Any] | None
    enabled: bool


class Managed:
    """The part of an entry that is for people and their programs; beat needs none of it."""

    app: Any
    name: Any
    #: what stood in Redis when it was loaded or saved last; None: it wasn't yet
    stored: Stored | None = None
    #: the server's clock when that was so
    seen_at: datetime | None = None
    #: why it can't be used, where one that can't was listed; '' for all others
    problem: str = ""

    @property
    def key(self) -> str:
        """The entry's key in Redis."""
        raise NotImplementedError

    @property
    def _whole(self) -> RedBeatSchedulerEntry:
        return self  # type: ignore[return-value]  # nothing else has this part

    # -- looking

    @classmethod
    def get(cls: type[EntryT], name: str, app: Any = None) -> EntryT:
        """Return the entry called ``name``.

        Raises:
            EntryNotFound: there is none (a KeyError, too).
            EntryCorrupt: what is there can't be used (a ValueError, too).
        """
        return cls.from_key(ensure_conf(app).keys.about(name).entry, app)  # type: ignore[attr-defined, no-any-return]

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

        They are read 500 at a time. An entry that is moved meanwhile may be left out, or come twice. One
        that can't be used is yielded, too: ``problem`` says why, and its ``schedule`` is None.

        Arguments:
            match: a pattern of the name, with ``*``, ``?`` and ``[a-z]``; case counts.
            task: a pattern of the task's name.
            enabled: only those that are, or aren't. One whose pause is over is.
            state: only those in it: 'scheduled', 'due', 'failing', 'paused', 'disabled', 'finished',
                'quarantined', 'missing' (its hash is gone), 'unscheduled', or 'downgraded' (it was taken
                out for celery-redbeat 2.x).
            due_before: only those whose next due time is no later. A naive datetime is UTC.
            offset, limit: how many of these to leave out at first, and how many to yield at the most.

        Raises:
            ValueError: there is no such state, or a filter is of another type.
        """
        filters: dict[str, Any] = {"match": match, "task": task, "enabled": enabled, "state": state}
        return list_entries(cls, app, **filters, due_before=due_before, offset=offset, limit=limit)

    @classmethod
    def count(cls, app: Any = None, **filters: Any) -> int:
        """Return how many entries ``list`` would yield with the same filters."""
        return count_entries(cls, app, **filters)

    @property
    def state(self) -> str | None:
        """One of the states that ``list`` names, as of when it was read or saved last; None: neither yet."""
        if self.stored is None or self.seen_at is None:
            return None
        return state_of(self._whole, self.stored, self.seen_at)

    @property
    def next_due_at(self) -> datetime | None:
        """When beat sends it next, in UTC, jitter included. None stands for never.

        As of when it was read or saved last. A time before that: it waits to be sent. The beginning of 1970:
        somebody has asked for a run now. Paused until a time: its first run then or later. None: it is
        disabled, paused without an end, finished, quarantined, missing or unscheduled.
        """
        if self.stored is None:
            return None
        return next_due(self._whole, self.stored, self.seen_at or datetime.now(timezone.utc))

    @property
    def error(self) -> str:
        """Why it is quarantined, or why its last run couldn't be sent; '' where all is well.

        Where beat hasn't tried it yet: that it will be quarantined, as it takes too long to compute.
        """
        if self.stored is None:
            return self.problem
        failure = failure_of(self.stored)
        if failure is not None:
            return failure.reason
        return self.problem or overrun_of(
            self._whole, self.stored, self.seen_at or datetime.now(timezone.utc)
        )

    @property
    def description(self) -> str:
        """When it runs, in English words; '' for one that can't be used."""
        return description_of(self._whole)

    def history(self, limit: int = 20) -> Sequence[PastRun]:
        """Return what became of its last runs, the newest first: as many as are kept, up to ``limit``."""

        def id_of(due: datetime) -> str:
            return task_id_of(self.key, due.isoformat(timespec="microseconds"))

        return decode_history(Histories(Store(self.app)).read(self.key, limit), id_of)

    # -- changing

    def update(self, other: Any = None, **changes: Unpack[Changes]) -> None:
        """Change fields of the stored entry, and of this object; what others change meanwhile is kept.

        A field that isn't named keeps its stored value, even where this object has another one.

        Arguments:
            other: Celery's own way: take task, schedule, arguments and options over from another entry.
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
            # the policy first: its zone is that of a recurrence rule that names none
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
            note: why, for whoever looks at it.
            until: when the pause ends by itself; default: never. A naive datetime is in its zone, else
                the app's.
            by: who pauses it.

        Raises:
            EntryNotFound: it isn't stored.
            EntryError: ``until`` is over by the server's clock; nothing is changed.
        """
        self._change_stored(lambda entry, now: pauses.rest(entry, now, note, until, by))

    def resume(self) -> None:
        """End its pause: it is due at its next time after now, or makes up for what it missed (run_missed).

        Raises:
            EntryNotFound: it isn't stored.
        """
        self.update(enabled=True, paused=None, pause_note=None, paused_by=None, paused_until=None)

    # -- running by hand

    def trigger(self, **overrides: Any) -> AsyncResult:
        """Send its task now, once, and return the result; its schedule isn't touched.

        The message goes out from here, with a task id of its own; its headers have ``redbeat_manual``. A
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

        Each is sent once, however often this is called: its task id is that of the run, and Redis remembers
        it. Runs that are still to come aren't sent.

        Arguments:
            start, end: both included. Naive datetimes are UTC.
            dry_run: send nothing, and return what would be sent.
            limit: if the span has more unsent runs than this, nothing is sent.
            progress: called after each run with the number of runs so far.

        Raises:
            EntryError: there are more runs than ``limit``; or a part of the entry can't be sent.
            LockNotAcquired: somebody else backfills it at this moment.
        """
        return backfill.backfill(self._whole, start, end, dry_run, limit=limit, progress=progress)

    # -- forms and files

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON has it, for forms and files: each argument under its own name.

        The schedule is an object with a ``__type__``, as in Redis; times are in ISO 8601. Besides: ``state``,
        ``next_due_at``, ``description`` and ``error``; None stands for none. They are for readers only:
        :meth:`from_dict` ignores them.

        Raises:
            EntryError: an argument has no form in JSON.
        """
        return to_dict(self._whole)

    @classmethod
    def from_dict(cls: type[EntryT], values: Mapping[str, Any], app: Any = None) -> EntryT:
        """Return the entry that ``values``, of the form of :meth:`to_dict`, describe; it isn't stored yet.

        A schedule and lengths of time may also be what a file has (:ref:`notation`): ``{"every": "1h30m"}``,
        ``{"cron": "0 9 * * *"}``, ``"30s"``, a number of seconds, or a cron expression. Read-only fields
        such as ``state`` are ignored, and so are ``next_run`` and ``owner`` of an exported one.

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

        They are stored 500 at a time, all of them or none, and wake the beat once. An entry that is
        stored already with the same values isn't written. Where a name comes twice, the last one counts. If
        the call is interrupted, make it again.

        Arguments:
            entries: of one app; any iterable. No more than 500 are held at a time.
            progress: called after each 500 with the number of entries handled so far.

        Raises:
            EntryError: an entry can't be stored. None of its 500 was; ``done``, the number before, were.
            StoreUnavailable: Redis can't be reached. The present 500 are stored all or not at all.
        """
        return bulk.save_many(entries, progress)

    @staticmethod
    def delete_many(
        names: Iterable[str], app: Any = None, *, progress: Callable[[int], object] | None = None
    ) -> int:
        """Remove the entries with these names or keys; return how many there were.

        A name that isn't there is no error. They are removed 500 at a time, all of them or none.

        Arguments:
            names: any iterable.
            progress: called after each 500 with the number of names handled so far.

        Raises:
            EntryError: a name is one of RedBeat's own keys, or no name at all. None of its 500 was removed;
                ``done``, the number before, were.
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
            names: any iterable. A name that isn't there is no error.
            note, until, by: as of :meth:`pause`; a time that is over is refused.
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
        is disabled without a pause stays disabled: somebody had another reason.

        Arguments:
            names: any iterable. A name that isn't there is no error.
            note, by: only those that were paused with this note, by this one; ``*`` and ``?`` are allowed.
            progress: called after each 500 with the number of names handled so far.
        """
        return pauses.resume_many(cls, names, app_or_default(app), note, by, progress)

    @classmethod
    def clear(cls, app: Any = None, *, progress: Callable[[int], object] | None = None) -> int:
        """Remove all entries that stand in the schedule; return how many there were.

        Those of ``beat_schedule`` come back with the next start of a beat.
        """
        return clear_entries(app, progress)
