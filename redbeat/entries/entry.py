"""An entry: one periodic task, as a Celery ScheduleEntry and as it is stored in Redis.

Owns the conversion between the two. Reading is tolerant, and names what can't be used (EntryCorrupt). Writing
is strict: exactly the keys of celery-redbeat 2.x, besides unknown ones that are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from datetime import datetime, timezone, tzinfo
from typing import TYPE_CHECKING, Any

from celery.app import app_or_default
from celery.beat import ScheduleEntry
from celery.schedules import schedstate

from redbeat.config.config import ensure_conf
from redbeat.config.suggestions import did_you_mean
from redbeat.decoder import (
    DEFINITION_FIELDS,
    as_count,
    as_moment,
    decode,
    encode_definition,
    encode_meta,
    read_cron,
    read_meta,
)
from redbeat.entries.async_management import AsyncManaged
from redbeat.entries.bulk import save_entries
from redbeat.entries.calendar_loading import Unusable, load_calendars, read_one
from redbeat.entries.describe import describe
from redbeat.entries.due import first_after_pause, is_pause_over, paused_until, score_after_pause
from redbeat.entries.loading import decode_entry, stored_extras, try_decode
from redbeat.entries.notation import ScheduleField, as_schedule
from redbeat.entries.saving import (
    before_start,
    checked_last_run,
    plan_save,
    refusing_schedule,
    score_of_moved,
    stored_after,
    why_never,
)
from redbeat.entries.upcoming import next_runs, runs_between
from redbeat.entries.validation import (
    as_containers,
    as_enabled,
    as_name,
    find_entry_problem,
    find_name_problem,
    find_problem,
)
from redbeat.errors import EntryChanged, EntryCorrupt, EntryError, EntryNotFound
from redbeat.log.events import ENTRY_NEVER_RUNS
from redbeat.log.logger import logger
from redbeat.policy.jitter import delayed
from redbeat.policy.misfires import ran_from
from redbeat.policy.policy import (
    FIELDS,
    NAMES,
    Policy,
    PolicyFields,
    PolicyHolder,
    decode_policy,
    given_of,
    own_parameters,
    read_policy,
)
from redbeat.schedules.occurrences import first_run, next_run
from redbeat.schedules.timezones import EPOCH, FIRST_DAY, in_calendar, in_utc
from redbeat.store.entries import delete_entries, read_entries, read_entry, write_entries
from redbeat.store.members import rank_of
from redbeat.store.records import Stored, Write
from redbeat.store.store import Store

if TYPE_CHECKING:
    from typing_extensions import Unpack


class EntryArguments(PolicyFields, total=False):
    """The keyword arguments of an entry's constructor, for editors and type checkers."""

    app: Any
    last_run_at: datetime | None
    relative: bool
    total_run_count: int | None


#: the arguments that aren't stored fields
_ARGUMENTS = frozenset({"app", "last_run_at", "relative", "total_run_count"})


class RedBeatSchedulerEntry(AsyncManaged, PolicyHolder, ScheduleEntry):
    """A periodic task that lives in Redis.

    Arguments:
        name: unique under the key prefix.
        task: the task's name.
        schedule: a Celery schedule or one of ``redbeat.schedules``, a ``timedelta``, a number of seconds, a
            length of time like "1h30m", a cron expression like "30 7 * * mon-fri", or an object as in a file:
            ``{"cron": "30 7 * * mon-fri"}``, ``{"every": "1h30m"}`` (:ref:`notation`).
        args, kwargs: for the task; JSON values, datetimes included.
        enabled: False keeps the entry, but it doesn't run.
        options: for ``apply_async``.
        app: the Celery app; default: the current one.
        last_run_at, total_run_count, relative: as in :class:`celery.beat.ScheduleEntry`.
        clsargs: ``app`` to ``relative``, and the fields of the policy by their names: ``timezone``,
            ``start_time``, ``misfire`` and so on (:doc:`time`), ``overlap``, ``max_runtime`` and so on
            (:doc:`runs`). They are attributes, too.

    Raises:
        ConfigurationError: the app has no Redis to keep the schedule in.
        EntryError: an argument has a wrong type or value; the message names it.
    """

    name: str
    task: str
    schedule = ScheduleField()
    args: Sequence[Any]
    kwargs: dict[str, Any]
    options: dict[str, Any]
    last_run_at: datetime | None
    total_run_count: int
    # defaults for a subclass whose constructor calls Celery's and not this one
    enabled = True
    #: whether last_run_at was given; otherwise it is the time at which this object was made
    has_last_run_at = False
    #: what ``is_due`` returns while a planned run is sent; None: it is computed
    planned_state: schedstate | None = None
    #: unknown keys that resemble known ones, in words, '' if there are none
    typos = ""
    _meta: Any = None  # a name of 2.x
    #: the stored message that is sent as it is when this entry runs; None: its message is made then
    message: Any = None

    def __init__(
        self,
        name: str | None = None,
        task: str | None = None,
        schedule: Any = None,
        args: Any = None,
        kwargs: Any = None,
        enabled: bool = True,
        options: Any = None,
        **clsargs: Unpack[EntryArguments],
    ) -> None:
        name, given = as_name(name), dict[str, Any](clsargs)
        policy = {field: given.pop(field) for field in NAMES.intersection(given)}
        for unknown in sorted(given.keys() - _ARGUMENTS - stored_extras.get()):
            hint = did_you_mean(unknown, [*DEFINITION_FIELDS, *FIELDS, *_ARGUMENTS])
            raise EntryError(f"{name}: an entry has no argument {unknown!r}.{hint}", str(name))
        last_run_at = as_moment(given.get("last_run_at"))
        total_run_count = as_count(given.get("total_run_count"))
        problem = find_problem({"last_run_at": last_run_at, "total_run_count": total_run_count})
        if problem:
            raise EntryError(f"{name}: {problem}", str(name))
        app, is_relative = app_or_default(given.get("app")), bool(given.get("relative"))
        super().__init__(
            name=name,
            task=task,
            schedule=as_schedule(schedule, name, app, is_relative, zone=policy.get("timezone")),
            args=args,
            kwargs=kwargs,
            options=options,
            last_run_at=in_calendar(last_run_at),
            total_run_count=total_run_count,
            relative=is_relative,
            app=app,
        )
        if policy:
            self.set_policy(policy)
        self.enabled = as_enabled(enabled)
        ensure_conf(self.app)
        self.has_last_run_at = last_run_at is not None
        #: last_run_at as it was made, loaded or saved: save() stores one that was assigned since
        self.known_last_run_at = self.last_run_at

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Yield the constructor's arguments, from which Celery makes the entry as it is after a run."""
        own = {name: value for name, value in vars(self).items() if name not in _INTERNAL}
        return iter({**own, **given_of(self.policy)}.items())

    def default_now(self) -> datetime:
        """Return what ``last_run_at`` is when none was given."""
        if getattr(self.schedule, "nowfun", None):
            return super().default_now()  # type: ignore[no-any-return]
        return datetime.now(timezone.utc)  # in the app's zone it would take ten times as long

    # -- in Redis

    @property
    def key(self) -> str:
        """The entry's key in Redis."""
        return self.generate_key(self.app, self.name)

    @staticmethod
    def generate_key(app: Any, name: str) -> str:
        """Return the key in Redis of the entry called ``name``."""
        return ensure_conf(app).keys.entry(as_name(name))

    @staticmethod
    def load_definition(key: str, app: Any = None, definition: str | None = None) -> dict[str, Any]:
        """Return the decoded definition under ``key``, or the decoded text ``definition`` if that is given.

        Raises:
            EntryNotFound: there is none (a KeyError, too).
            EntryCorrupt: it can't be decoded.
        """
        if definition is None:
            definition = _read(Store(app), key).definition
        if definition is None:
            raise EntryNotFound(f"{key}: there is no such entry.", key)
        try:
            return RedBeatSchedulerEntry.decode_definition(definition)
        except (ValueError, RecursionError) as exc:
            raise EntryCorrupt(f"{key}: definition: {exc}", key) from exc

    @staticmethod
    def load_meta(key: str, app: Any = None) -> dict[str, Any]:
        """Return the decoded meta under ``key``: last_run_at (datetime or None), total_run_count."""
        return RedBeatSchedulerEntry.decode_meta(_read(Store(app), key).meta, app)

    @staticmethod
    def decode_definition(definition: str) -> dict[str, Any]:
        """Return ``definition`` with its schedule and datetimes as objects, or raise ValueError."""
        decoded: dict[str, Any] = decode(definition)
        if isinstance(decoded, dict) and isinstance(decoded.get("schedule"), str):
            decoded["schedule"] = read_cron(decoded["schedule"])
        return decoded

    @staticmethod
    def decode_meta(meta: str | None, app: Any = None) -> dict[str, Any]:  # noqa: ARG004 - 2.x's signature
        """Return ``meta`` with its datetime as an object, or raise ValueError."""
        decoded: dict[str, Any] = read_meta(meta)
        return decoded

    @classmethod
    def from_key(cls, key: str, app: Any = None) -> RedBeatSchedulerEntry:
        """Return the entry under ``key``, the full key or the bare name.

        Raises:
            EntryNotFound: there is none (a KeyError, too).
            EntryCorrupt: what is there can't be used (a ValueError, too).
        """
        key = as_name(key)
        if not isinstance(key, str):
            raise EntryError(f"from_key takes an entry's key or its name, a string, not {key!r}.", str(key))
        app = app_or_default(app)
        now, stored = read_entry(Store(app), ensure_conf(app).keys.entry_of(key))
        entry = decode_entry(cls, stored, app)
        entry.seen_at = now
        return entry

    # -- when it is due

    @property
    def due_at(self) -> datetime | None:
        """When it is due next, in UTC, counted from last_run_at.

        An entry that is paused until a time is due at its first run at that time or later. None: it never
        runs again, is disabled, or is paused without an end.
        """
        if self.enabled:
            return self._due_by_schedule()
        return None if paused_until(self) is None else first_after_pause(self, self.bounds())

    def due_by_schedule(self) -> datetime | None:
        """Return its first time after last_run_at, whether it is enabled or not; None: it has none.

        A subclass that overrides ``due_at`` says it.
        """
        if self.computes_due_at:
            due_at = self.due_at
            return None if due_at is None else in_utc(due_at)
        return self._due_by_schedule()

    @property
    def computes_due_at(self) -> bool:
        """Whether a subclass overrides ``due_at``."""
        return type(self).due_at is not _DUE_AT

    def _due_by_schedule(self) -> datetime | None:
        if self.policy.is_finished(self.total_run_count):
            return None
        if self.last_run_at is None:
            return datetime.now(timezone.utc)
        since = max(in_utc(self.last_run_at), FIRST_DAY)
        if self.total_run_count:
            due_at = next_run(self.schedule, self.bounds(), since, since)
        else:
            due_at = first_run(self.schedule, self.bounds(), since)
        return due_at and max(due_at, EPOCH)  # a negative score would mean never

    def bounds(self) -> Policy:
        """Return the policy with its calendar, which is read if it wasn't yet.

        Raises:
            EntryCorrupt: the calendar is missing or broken.
        """
        policy = self.policy
        if policy.exclude is None:
            return policy
        if policy.calendar is None:
            policy = policy.with_calendar(read_one(Store(self.app), policy.exclude).excluded)
        if isinstance(policy.calendar, Unusable):
            raise EntryCorrupt(f"{self.key}: policy: exclude: {policy.calendar.reason}", self.key)
        return policy

    @property
    def score(self) -> float:
        """When beat looks at it next, in UNIX seconds, which is ``due_at`` and its jitter; -1 means never.

        For an entry that is disabled, or paused without an end, it is the schedule's next time.
        """
        if paused_until(self) is not None:
            return score_after_pause(self, self.bounds())
        due_at = self.due_by_schedule()
        return due_at.timestamp() if due_at and self.last_run_at is None else self.score_of(due_at)

    def score_of(self, due_at: datetime | None) -> float:
        """Return the score of this entry if it is due at ``due_at``; None means never."""
        if due_at is None:
            return -1.0
        if not self.policy.jitter:
            return due_at.timestamp()
        return delayed(self.key, self.schedule, self.bounds(), due_at).timestamp()

    @property
    def rank(self) -> int | None:
        """Its place in the stored schedule, 0 for the entry that is due next; None if it isn't there."""
        return rank_of(Store(self.app), self.key)

    def is_due(self) -> schedstate:
        """Return whether it is due, and the seconds to the next look, as Celery's schedules do."""
        if self.planned_state is not None:
            return self.planned_state
        due_at = self.due_at  # before the clock is read: an entry that is due at once would lie ahead of it
        now = datetime.now(timezone.utc)
        if not self.is_enabled_at(now):
            return schedstate(is_due=False, next=5.0)
        if due_at is not None and due_at > now:
            return schedstate(is_due=False, next=(due_at - now).total_seconds())
        following = None if due_at is None else next_run(self.schedule, self.bounds(), now, due_at)
        return schedstate(is_due=due_at is not None, next=following and (following - now).total_seconds())

    def next_runs(self, n: int, after: datetime | None = None, tz: tzinfo | None = None) -> list[datetime]:
        """Return its next ``n`` due times, or as many as there are, without jitter.

        Arguments:
            after: only times later than this; default: now. A naive datetime is UTC.
            tz: the zone of the results; default: the one that the schedule goes by.
        """
        return next_runs(self, n, after, tz)

    def runs_between(self, a: datetime, b: datetime) -> Iterator[datetime]:
        """Yield its due times from ``a`` to ``b``, both included. Naive datetimes are UTC."""
        return runs_between(self, a, b)

    def describe(self, tz: tzinfo | None = None) -> str:
        """Return when it runs, in English words.

        Arguments:
            tz: the zone in which times such as ``end_time`` are shown; default: the one that the schedule
                goes by.
        """
        return describe(self, tz)

    # -- writing

    def is_enabled_at(self, now: datetime) -> bool:
        """Return True if it is enabled at ``now``, or its pause is over by then."""
        return self.enabled or is_pause_over(self, now)

    def save(self, *, if_unchanged: bool = False) -> RedBeatSchedulerEntry:
        """Store the entry, new or not, and wake the beat; return it.

        A new entry is due one interval after now, or at the schedule's next time after now. One that is
        stored already keeps its last_run_at and total_run_count, and is due as they say. If its schedule has
        changed, or if it is enabled again, it is due at the schedule's next time after now. If you have
        assigned its last_run_at, it counts from there, as after :meth:`reschedule`; None: it runs now.

        Arguments:
            if_unchanged: store it only if its definition and its policy are still as they were loaded; for an
                entry that wasn't loaded: only if there is none of this name.

        Raises:
            EntryError: a part of it can't be stored.
            EntryChanged: with ``if_unchanged``, somebody has changed it.
        """
        ensure_conf(self.app).warn_of_unknown()
        loaded = self.stored

        def decide(_entry: Any, stored: Stored, now: datetime) -> Write | None:
            if if_unchanged:
                self._check_unchanged(loaded, stored)
            return self.plan_save(stored, now)

        # an entry that was loaded or saved before is stored
        save_entries(Store(self.app), {self.key: self}, decide, may_be_new=loaded is None)
        self.known_last_run_at = self.last_run_at
        return self

    def check_save(self, *, if_unchanged: bool = False) -> None:
        """Raise what ``save`` would raise now, and store nothing."""
        store, tried = Store(self.app), copy(self)  # as planning changes last_run_at
        now, (stored,) = read_entries(store, [self.key])
        if if_unchanged:
            self._check_unchanged(self.stored, stored)
        load_calendars(store, [tried], {})
        plan_save(tried, stored, now)

    def _check_unchanged(self, loaded: Stored | None, stored: Stored) -> None:
        """Raise EntryChanged if definition or policy in ``stored`` differ from the loaded ones."""
        _check_name(self)  # one of RedBeat's own keys isn't an entry that a user has changed
        if loaded is None:
            if stored.exists:
                raise EntryChanged(f"{self.key}: there is such an entry by now.", self.key)
        elif not stored.exists:
            raise EntryChanged(f"{self.key}: it has been removed since it was loaded.", self.key)
        elif (loaded.definition, loaded.policy or "") != (stored.definition, stored.policy or ""):
            reason = "another program has changed it since it was loaded; load it again."
            raise EntryChanged(f"{self.key}: {reason}", self.key)

    def _change_stored(self, change: Callable[[Any, datetime], None]) -> None:
        def plan(stored: Stored, now: datetime) -> Write | None:
            if not stored.exists:
                raise EntryNotFound(f"{self.key}: there is no such entry.", self.key)
            entry = decode_entry(type(self), stored, self.app)
            change(entry, now)
            write = entry.plan_save(stored, now)
            self.__dict__.update(entry.__dict__)
            return write

        write_entries(Store(self.app), [self.key], plan)

    def plan_save(self, stored: Stored, now: datetime) -> Write | None:
        """Decide what to write so that ``stored`` becomes this entry."""
        write = plan_save(self, stored, now)
        self.stored, self.seen_at, self.problem = stored_after(stored, write), now, ""
        if write.score == -1 and self.enabled:
            reason = why_never(self, now)
            logger.warning(
                "%s is saved, and never runs: %s",
                self.key,
                reason,
                extra=ENTRY_NEVER_RUNS.of(entry=self.name, reason=reason),
            )
        return write

    def delete(self) -> None:
        """Remove the entry, if it is stored."""
        store = Store(self.app)
        if store.keys.message_id(self.key) is None:
            _check_name(self)
        delete_entries(store, [self.key])
        self.seen_at = None

    def reschedule(self, last_run_at: datetime | None = None) -> None:
        """Count from ``last_run_at`` (default: now) as if it had run then.

        If a run has been due since, it runs now: for that time, or where its policy says that it is too late
        for it, for now.

        Raises:
            EntryNotFound: it isn't stored.
            EntryError: ``last_run_at`` is not a datetime in the years 1 to 9998, or its schedule has no valid
                time after it.
        """
        moment = checked_last_run(self, last_run_at)

        def move(now: datetime) -> tuple[datetime, int]:
            return before_start(self, self.last_run_at, moment or now), self.total_run_count

        self._write_meta(move)

    def _next_instance(
        self, last_run_at: datetime | None = None, only_update_last_run_at: bool = False
    ) -> RedBeatSchedulerEntry:
        """Return the entry as it is after a run now, and store that; a planned run is stored by its batch."""
        if self.planned_state is not None:
            return self.advanced(last_run_at)
        upcoming, moment = _copy(self), checked_last_run(self, last_run_at)

        def advance(now: datetime) -> tuple[datetime, int]:
            ran_at = moment or ran_from(
                self.schedule, self.policy, min(self.due_by_schedule() or now, now), now
            )
            return ran_at, upcoming.total_run_count + (0 if only_update_last_run_at else 1)

        upcoming._write_meta(advance)  # noqa: SLF001 - it is a copy of this very entry
        return upcoming

    __next__ = next = _next_instance

    def advanced(self, ran_at: datetime | None = None) -> RedBeatSchedulerEntry:
        """Return the entry as it is after a run at ``ran_at`` (default: now), and store nothing."""
        later = _copy(self)
        later.last_run_at, later.total_run_count = ran_at or self.default_now(), self.total_run_count + 1
        return later

    def _write_meta(self, decide: Callable[[datetime], tuple[datetime, int]]) -> None:
        def plan(stored: Stored, now: datetime) -> Write:
            before = try_decode(type(self), stored, self.app)
            if before is not None:
                self.last_run_at, self.total_run_count = before.last_run_at, before.total_run_count
            with refusing_schedule(self):
                self.last_run_at, self.total_run_count = decide(now)
                score = score_of_moved(self, now)
            self.known_last_run_at = self.last_run_at
            meta = encode_meta(self.last_run_at, self.total_run_count, stored.meta)
            write = Write(meta=meta, score=score, must_exist=True)
            if self.stored is not None:  # definition and policy stay as loaded, for save(if_unchanged=True)
                self.stored = replace(self.stored, meta=write.meta, score=write.score, meta_mark=None)
                self.seen_at = now
            return write

        write_entries(Store(self.app), [self.key], plan)

    def encode(self, stored: Stored) -> str:
        """Return the definition's JSON, with the unknown keys of the stored one.

        Raises:
            EntryError: a part of it can't be stored.
        """
        self.enabled = as_enabled(self.enabled)
        _check_name(self)
        self.args, self.kwargs, self.options = as_containers(self.args, self.kwargs, self.options)
        problem = find_entry_problem(self)
        if problem:
            raise EntryError(f"{self.key}: {problem}", self.key)
        try:
            return encode_definition(
                self.name,
                self.task,
                self.args,
                self.kwargs,
                self.options,
                self.schedule,
                self.enabled,
                stored.definition,
                lambda: self._moved_fields(stored),
            )
        except (TypeError, ValueError, RecursionError) as exc:
            raise EntryError(f"{self.key}: can't be stored as JSON: {exc}.", self.key) from exc

    def _moved_fields(self, stored: Stored) -> frozenset[str]:
        """Return which fields of a policy in the stored definition are in the policy from now on."""
        try:
            definition = self.decode_definition(stored.definition or "{}")
            _, ignored = read_policy(definition, decode_policy(stored.policy), self.app.timezone)
        except (ValueError, RecursionError, AttributeError):  # it can't be used, and is replaced
            return NAMES
        return NAMES - ignored.keys() - own_parameters(type(self).__init__).keys()

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), {**self.__dict__, "app": self.app})


_DUE_AT = RedBeatSchedulerEntry.due_at
#: attributes of an entry that are not arguments of its constructor
_INTERNAL = frozenset(
    {
        *("policy", "stored", "seen_at", "problem", "typos", "message"),
        *("has_last_run_at", "known_last_run_at", "planned_state"),
    }
)


def _rebuild(cls: type[RedBeatSchedulerEntry], state: dict[str, Any]) -> RedBeatSchedulerEntry:
    entry = cls.__new__(cls)
    entry.__dict__.update(state)
    return entry


def _copy(entry: RedBeatSchedulerEntry) -> RedBeatSchedulerEntry:
    return _rebuild(type(entry), dict(entry.__dict__))


_FROM_KEY = vars(RedBeatSchedulerEntry)["from_key"].__func__
_SAVE = RedBeatSchedulerEntry.save


def has_own_save(entry: Any) -> bool:
    """Return True if the class of ``entry`` overrides ``save``, so that only it can store the entry."""
    return type(entry).save is not _SAVE


def load_entry(cls: type[RedBeatSchedulerEntry], stored: Stored, app: Any) -> RedBeatSchedulerEntry:
    """Return the entry that beat has read, by a subclass's own ``from_key`` if it has one.

    Raises what ``decode_entry`` and that method raise.
    """
    if getattr(cls.from_key, "__func__", None) is _FROM_KEY:
        return decode_entry(cls, stored, app)
    entry = cls.from_key(stored.key, app=app)
    plain = decode_entry(RedBeatSchedulerEntry, stored, app)
    entry.policy, entry.stored = plain.policy, stored
    return entry


def _read(store: Store, key: str) -> Stored:
    return read_entries(store, [key])[1][0]


def _check_name(entry: RedBeatSchedulerEntry) -> None:
    entry.name = as_name(entry.name)
    problem = find_name_problem(entry.name, ensure_conf(entry.app).reserved_names)
    if problem:
        key = entry.key if isinstance(entry.name, str) else str(entry.name)
        raise EntryError(problem, key, {"name": problem})
