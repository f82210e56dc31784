"""Calendars: named sets of days and spans at which the entries that refer to them don't run.

Owns a calendar as it is in Redis, a hash of days and their labels, and what happens when it changes: the
entries that refer to it get new due times. Beat doesn't depend on that: it skips a run that has become
excluded, whoever wrote the calendar.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import date, datetime, timedelta, timezone
from functools import partial
from secrets import token_hex
from typing import Any

from celery.app import app_or_default

from redbeat.entries.calendar_loading import (
    ABOUT,
    Unusable,
    calendar_from,
    give_calendars,
    names_in,
    read_calendars,
    read_fields,
)
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.failures import failure_of
from redbeat.entries.loading import try_decode
from redbeat.errors import CalendarError, CalendarNotFound, StoreRefused
from redbeat.log.logger import logger
from redbeat.log.text import is_utf8, printable
from redbeat.schedules.exclusions import Exclusions, spelled
from redbeat.schedules.ical import days_of_ical
from redbeat.schedules.occurrences import Excluded, next_run
from redbeat.store.calendars import calendar_names, replace_calendar
from redbeat.store.entries import read_entries, write_entries
from redbeat.store.members import scan_members
from redbeat.store.records import Stored, Write
from redbeat.store.store import Store

__all__ = ["Calendar", "find_users"]


#: how often ``change`` tries again if somebody else changes the calendar meanwhile
MAX_CHANGES = 100

#: how long ago the events of an iCalendar file begin that are taken
ICAL_SINCE = timedelta(days=366)
#: how many years from now they end
ICAL_YEARS = 5

#: an entry that is due this soon keeps its due time: a beat without a lock may be sending it, or try it again
SOON_SECONDS = 60.0


class Calendar(Exclusions):
    """Days and spans at which entries with ``exclude=<its name>`` don't run.

    Arguments:
        name: unique under the key prefix.
        days: what is excluded: a list, or a mapping to labels. Each is a date; two dates, both included; two
            datetimes with a time zone, the second not included; or the same as text: ``2026-12-25``,
            ``2026-12-24/2026-12-31``, ``2026-12-24T18:00+01:00/2026-12-25T06:00+01:00``. A date is in the
            time zone of each entry that names the calendar.
        about: free text.
        app: the Celery app; default: the current one.

    Raises:
        ValueError: one of ``days`` is none of these; the message quotes it.
    """

    def __init__(
        self, name: str, days: Mapping[Any, str] | Iterable[Any] = (), about: str = "", app: Any = None
    ) -> None:
        if not isinstance(name, str) or not name or not is_utf8(name):
            raise ValueError(f"A calendar must have a name, a non-empty string, not {name!r}.")
        if isinstance(days, str):
            raise ValueError(f"{name}: days must be a list; write [{days!r}].")
        labels = days.items() if isinstance(days, Mapping) else ((day, "") for day in days)
        self.name = name
        #: day or span, as it is written to Redis, to its label
        self.days: dict[str, str] = {}
        self.about = about
        self.app = app
        self._exclude(labels)

    def _exclude(self, labels: Iterable[tuple[Any, Any]]) -> None:
        try:
            self.days = {spelled(day): str(label) for day, label in labels}
        except ValueError as exc:
            raise CalendarError(f"{self.name}: {exc}", self.name) from exc
        super().__init__(self.days)

    def __repr__(self) -> str:
        return f"<Calendar: {self.name}, {len(self.days)} days>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Calendar):
            return NotImplemented
        return (self.name, self.days, self.about) == (other.name, other.days, other.about)

    __hash__ = None  # type: ignore[assignment]  # equal by value, mutable

    @classmethod
    def from_dates(
        cls, name: str, dates: Iterable[date], label: str = "", about: str = "", app: Any = None
    ) -> Calendar:
        """Return a calendar of single days, all with one label."""
        return cls(name, dict.fromkeys(dates, label), about, app)

    @classmethod
    def from_ical(
        cls, name: str, text: str | bytes, until: date | None = None, about: str = "", app: Any = None
    ) -> Calendar:
        """Return a calendar of the events of an iCalendar file, from a year ago on.

        An event of whole days excludes these days, any other one its span, in the app's time zone where the
        event has none. Cancelled events don't count. Needs ``celery-redbeat[calendar]``.

        Arguments:
            text: the contents of the file.
            until: the end, not included; default: five years from now.

        Raises:
            ConfigurationError: a package that is needed isn't installed.
            ValueError: the text isn't a usable iCalendar file.
        """
        app = app_or_default(app)
        today = datetime.now(timezone.utc).date()
        until = until or today + timedelta(days=366 * ICAL_YEARS)
        try:
            days = days_of_ical(text, min(today, until) - ICAL_SINCE, until, app.timezone)
        except ValueError as exc:
            raise ValueError(f"{name}: {exc}") from exc
        return cls(name, days, about, app)

    @classmethod
    def load(cls, name: str, app: Any = None) -> Calendar:
        """Return the calendar called ``name``.

        Raises:
            CalendarNotFound: there is none (a KeyError, too).
            CalendarError: what is there can't be used (a ValueError, too).
        """
        fields = read_fields(Store(app), [name])[name]
        if isinstance(fields, Unusable):
            raise (CalendarNotFound if fields.is_missing else CalendarError)(fields.reason, name)
        days = {day: label for day, label in fields.items() if day != ABOUT}
        try:
            return cls(name, days, fields.get(ABOUT, ""), app)
        except ValueError as exc:
            raise CalendarError(f"the calendar {exc}", name) from exc

    def save(self) -> Calendar:
        """Store the calendar, replacing a stored one, and compute the next runs of its entries; return it.

        After an interruption call it again: the calendar itself is stored as a whole or not at all, but some
        of its entries may still have their old due times.

        Raises:
            CalendarError: ``days`` was changed, and can't be stored (a ValueError, too).
        """
        self._exclude(list(self.days.items()))
        store = Store(self.app)
        before = read_calendars(store, [self.name])[self.name]
        replace_calendar(store, self.name, {ABOUT: self.about, **self.days})
        self.retime(before)
        return self

    @classmethod
    def change(
        cls,
        name: str,
        days: Mapping[Any, str] | Iterable[Any] = (),
        *,
        without: Iterable[Any] = (),
        about: str | None = None,
        app: Any = None,
    ) -> Calendar:
        """Add days to the stored calendar, and remove others; return it. If there is none, it is created.

        Atomic: what others change at the same time is kept. The next runs of its entries are computed again.

        Arguments:
            days: what to add, or to give another label; as in the constructor.
            without: what to remove.
            about: the new free text; None: it stays.

        Raises:
            CalendarError: the stored calendar can't be used, or it has no such day to remove.
            ValueError: one of ``days`` isn't a day or a span.
        """
        app = app_or_default(app)
        store, added = Store(app), cls(name, days, app=app).days
        removed = [*map(spelled, without)]
        for _ in range(MAX_CHANGES):
            before = read_fields(store, [name])[name]
            changed = changed_from(name, before, added, removed, about, app, cls)
            if save_over(changed, before):
                return changed
        raise CalendarError(
            f"{name}: somebody else changed it each time it was to be saved; try again.", name
        )

    @staticmethod
    def names(app: Any = None) -> list[str]:
        """Return the names of the stored calendars; this looks at all keys under the prefix."""
        return calendar_names(Store(app_or_default(app)))

    def retime(self, before: Excluded, new: Collection[str] = ()) -> None:
        """Give the entries of the calendar, which is stored and was ``before`` until now, new due times.

        Arguments:
            new: keys of entries that were stored with it: beat has decided nothing about them yet.
        """
        store = Store(self.app)
        for page in scan_members(store):
            keys = [store.keys.entry_of(member) for member, _ in page]
            write_entries(store, keys, partial(_plan_retiming, store.config.app, self, before, new))

    def delete(self) -> None:
        """Remove the calendar, if it is stored.

        Entries that refer to it are quarantined when they are due, until a calendar of this name exists
        again.
        """
        replace_calendar(Store(self.app), self.name, {})


def changed_from(
    name: str,
    before: Mapping[str, str] | Unusable,
    added: Mapping[str, str],
    removed: Iterable[str],
    about: str | None,
    app: Any,
    kind: type[Calendar] = Calendar,
) -> Calendar:
    """Return what ``Calendar.change`` makes of a calendar that has the fields ``before``; it isn't stored."""
    if isinstance(before, Unusable) and before.kind is None:
        raise StoreRefused(before.reason)
    if isinstance(before, Unusable) and not before.is_missing:
        raise CalendarError(before.reason, name)
    fields = {} if isinstance(before, Unusable) else before
    kept = {day: label for day, label in fields.items() if day != ABOUT}
    for day in removed:
        if kept.pop(day, None) is None:
            raise CalendarError(f"{name}: there is no {day} to remove.", name)
    return kind(name, {**kept, **added}, fields.get(ABOUT, "") if about is None else about, app)


def save_over(calendar: Calendar, before: dict[str, str] | Unusable) -> bool:
    """Store ``calendar`` in place of what was read, ``before``, as its ``save`` does; one step.

    Returns False if it isn't that any more; then nothing was written.
    """
    if isinstance(before, Unusable) and before.kind is None:
        raise StoreRefused(before.reason)  # what is there isn't known
    read = before.kind if isinstance(before, Unusable) else before
    fields = {ABOUT: calendar.about, **calendar.days}
    if not replace_calendar(Store(calendar.app), calendar.name, fields, read):
        return False
    calendar.retime(calendar_from(calendar.name, before))
    return True


def _plan_retiming(
    app: Any, calendar: Calendar, before: Excluded, new: Collection[str], stored: Stored, now: datetime
) -> Write | None:
    """Decide on the new due time of an entry, now that ``calendar`` has replaced ``before``."""
    texts = (stored.policy, stored.definition)
    if stored.score is None or not any('"exclude"' in text for text in texts if text):
        return None
    entry = try_decode(RedBeatSchedulerEntry, stored, app)
    if entry is None or entry.policy.exclude != calendar.name:
        return None
    failure = failure_of(stored)
    if failure is not None and failure.attempts:
        return None  # its run is tried again, at its own time
    try:
        if stored.score < 0 and not _is_never(entry, before):
            return None  # somebody has written a negative score, so that it never runs
        give_calendars([entry], {calendar.name: calendar})
        if failure is not None and failure.due:  # it was quarantined because the calendar was missing
            score: float | None = float(failure.due)
        else:
            score = _score_at(entry, stored, now)
    except Exception:
        logger.exception("beat: %s keeps its due time: a new one cannot be computed.", printable(entry.name))
        return None
    # a beat that has read the old calendar for it just now shall not record what it decided by that
    return Write(score=score, must_exist=True, revision="" if stored.key in new else token_hex(4))


def _is_never(entry: RedBeatSchedulerEntry, calendar: Excluded) -> bool:
    """Tell whether ``entry`` had no next run by ``calendar``."""
    give_calendars([entry], {str(entry.policy.exclude): calendar})
    return not isinstance(calendar, Unusable) and entry.due_at is None


def _score_at(entry: RedBeatSchedulerEntry, stored: Stored, now: datetime) -> float | None:
    """Return when ``entry`` is due by its calendar; None: it keeps its due time."""
    is_due = 0 <= (stored.score or 0) <= now.timestamp()
    if is_due or entry.last_run_at is None:  # without a last run its score says when it runs first
        return None
    score: float = entry.score
    if score < 0 or score > now.timestamp():
        return score
    if _is_soon(stored, now):
        return None
    # a time that was excluded isn't a missed run
    following = next_run(entry.schedule, entry.bounds(), now, entry.due_at)
    return entry.score_of(following)


def _is_soon(stored: Stored, now: datetime) -> bool:
    return stored.score is not None and 0 <= stored.score <= now.timestamp() + SOON_SECONDS


def find_users(
    store: Store, names: Collection[str] | None = None, *, without: Collection[str] = ()
) -> dict[str, list[str]]:
    """Return the names of calendars that entries refer to, each with the names of these entries.

    Arguments:
        names: the calendars to look for; None: all.
        without: the keys of entries to leave out.
    """
    users: dict[str, set[str]] = {}
    for page in scan_members(store):
        keys = [store.keys.entry_of(member) for member, _ in page]
        _, found = read_entries(store, [key for key in keys if key not in without])
        for stored in found:
            for name in names_in(stored).intersection(names_in(stored) if names is None else names):
                users.setdefault(name, set()).add(store.keys.name(stored.key))
    return {name: sorted(entries) for name, entries in users.items()}
