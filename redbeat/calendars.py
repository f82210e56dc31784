"""Calendars: named sets of days and spans at which the entries that refer to them don't run.

Owns a calendar as it is in Redis, a hash of days and their labels, and what happens when it changes: the
entries that refer to it get new due times. Beat doesn't depend on that: it skips a run that has become
excluded, whoever wrote the calendar.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta, timezone
from functools import partial
from secrets import token_hex
from typing import Any

from celery.app import app_or_default

from redbeat.entries.calendar_loading import (
    ABOUT,
    StoredCalendar,
    Unusable,
    give_calendars,
    names_in,
    read_one,
)
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.failures import failure_of
from redbeat.entries.loading import try_decode
from redbeat.entries.wording import one_line
from redbeat.errors import CalendarError, CalendarNotFound, StoreRefused
from redbeat.log.logger import logger
from redbeat.log.text import counted, is_utf8, printable
from redbeat.schedules.exclusions import Exclusions, spelled
from redbeat.schedules.ical import days_of_ical
from redbeat.schedules.occurrences import Excluded, next_run
from redbeat.store.calendars import calendar_names, replace_calendar
from redbeat.store.entries import read_entries, write_entries
from redbeat.store.members import scan_members
from redbeat.store.records import Stored, Write
from redbeat.store.store import Store

#: how often a calendar is stored again at most because other programs change it meanwhile
MAX_CHANGES = 100

#: how long ago the events of an iCalendar file begin that are taken
ICAL_SINCE = timedelta(days=366)
#: how many years from now they end
ICAL_YEARS = 5

#: an entry that is due this soon keeps its due time: a beat without a lock may be sending it, or try it again
SOON_SECONDS = 60.0

#: how many entries an error names
MAX_NAMED = 10


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
            raise CalendarError(f"A calendar must have a name, a non-empty string, not {name!r}.", str(name))
        if isinstance(days, str):
            raise CalendarError(f"{name}: days must be a list; write [{days!r}].", name)
        self.name = name
        #: day or span, as it is written to Redis, to its label
        self.days: dict[str, str] = {}
        self.about = about
        self.app = app
        self._exclude(_labels_of(name, days))

    def _exclude(self, labels: Mapping[Any, Any]) -> None:
        self.days = {_spelled(self.name, day): str(label) for day, label in labels.items()}
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
            raise CalendarError(f"{name}: {exc}", name) from exc
        return cls(name, days, about, app)

    @classmethod
    def load(cls, name: str, app: Any = None) -> Calendar:
        """Return the calendar called ``name``.

        Raises:
            CalendarNotFound: there is none (a KeyError, too).
            CalendarError: what is there can't be used (a ValueError, too).
        """
        stored = read_one(Store(app), name)
        if stored.unreadable:
            raise (CalendarNotFound if stored.is_missing else CalendarError)(stored.unreadable, name)
        try:
            return cls(name, stored.days, stored.about, app)
        except ValueError as exc:
            raise CalendarError(f"the calendar {exc}", name) from exc

    def save(self) -> Calendar:
        """Store the calendar, replacing a stored one, and compute the next runs of its entries; return it.

        After an interruption call it again: the calendar itself is stored as a whole or not at all, but some
        of its entries may still have their old due times.

        Raises:
            CalendarError: ``days`` was changed, and can't be stored (a ValueError, too).
        """
        self._exclude(self.days)
        return store_calendar(self.name, lambda _stored: self, self.app)

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
        changes = {**{_spelled(name, day): None for day in without}, **_labels_of(name, days)}
        return store_calendar(name, lambda stored: changed_from(stored, changes, about, app, cls), app)

    @staticmethod
    def names(app: Any = None) -> list[str]:
        """Return the names of the stored calendars; this looks at all keys under the prefix."""
        return calendar_names(Store(app_or_default(app)))

    def delete(self) -> None:
        """Remove the calendar, if it is stored.

        Entries that refer to it are quarantined when they are due, until a calendar of this name exists
        again.
        """
        replace_calendar(Store(self.app), self.name, {})


def _labels_of(name: str, days: Mapping[Any, str] | Iterable[Any]) -> Mapping[Any, str]:
    return days if isinstance(days, Mapping) else {_spelled(name, day): "" for day in days}


def _spelled(name: str, day: Any) -> str:
    try:
        return spelled(day)
    except ValueError as exc:
        raise CalendarError(f"{name}: {exc}", name) from exc


def changed_from(
    stored: StoredCalendar,
    changes: Mapping[Any, str | None],
    about: str | None,
    app: Any,
    kind: type[Calendar] = Calendar,
) -> Calendar:
    """Return what :meth:`Calendar.change` makes of a stored calendar; nothing is written.

    Arguments:
        changes: days and spans with their labels; None for one to remove.
    """
    if stored.unreadable and not stored.is_missing:
        raise CalendarError(stored.unreadable, stored.name)
    days = stored.days
    for day, label in changes.items():
        field = _spelled(stored.name, day)
        if label is not None:
            days[field] = label
        elif days.pop(field, None) is None:
            raise CalendarError(f"{stored.name}: there is no {field} to remove.", stored.name)
    return kind(stored.name, days, stored.about if about is None else about, app)


def store_calendar(name: str, make: Callable[[StoredCalendar], Calendar], app: Any) -> Calendar:
    """Store what ``make`` returns for the stored calendar ``name``; return it.

    ``make`` is called again if the calendar changes in between. The next runs of its entries are computed
    again.
    """
    store = Store(app)
    for _ in range(MAX_CHANGES):
        stored = read_known(store, name)
        calendar = make(stored)
        if replace_calendar(store, name, {ABOUT: calendar.about, **calendar.days}, stored.read):
            retime(store, name, calendar, stored.excluded)
            return calendar
    raise CalendarError(f"{name}: other programs changed it {MAX_CHANGES} times in a row; try again.", name)


def read_known(store: Store, name: str) -> StoredCalendar:
    """Return the calendar ``name``; StoreRefused: Redis refuses to say what it is."""
    stored = read_one(store, name)
    if stored.kind is None:
        raise StoreRefused(stored.unreadable)
    return stored


def entries_in_words(names: Sequence[str]) -> str:
    """Return how many entries these are, and the first of them."""
    shown = [one_line(name, 80) for name in names[:MAX_NAMED]]
    if len(names) > MAX_NAMED:
        shown.append(f"and {len(names) - MAX_NAMED} more")
    return ", ".join([counted(len(names), "entry", "entries"), *shown])


def retime(store: Store, name: str, calendar: Excluded, before: Excluded, new: Collection[str] = ()) -> None:
    """Give the entries of the calendar ``name``, which was ``before`` until now, new due times.

    Arguments:
        new: keys of entries that were stored with it: beat has decided nothing about them yet.
    """
    plan = partial(_plan_retiming, store.config.app, name, calendar, before, new)
    for page in scan_members(store):
        write_entries(store, [store.keys.entry_of(member) for member, _ in page], plan)


def _plan_retiming(
    app: Any,
    name: str,
    calendar: Excluded,
    before: Excluded,
    new: Collection[str],
    stored: Stored,
    now: datetime,
) -> Write | None:
    """Decide on the new due time of an entry, now that ``calendar`` has replaced ``before``."""
    texts = (stored.policy, stored.definition)
    if stored.score is None or not any('"exclude"' in text for text in texts if text):
        return None
    entry = try_decode(RedBeatSchedulerEntry, stored, app)
    if entry is None or entry.policy.exclude != name:
        return None
    failure = failure_of(stored)
    if failure is not None and failure.attempts:
        return None  # its run is tried again, at its own time
    try:
        if stored.score < 0:
            give_calendars([entry], {name: before})
            if isinstance(before, Unusable) or entry.due_at is not None:
                return None  # another program has written a negative score, so that it never runs
        give_calendars([entry], {name: calendar})
        if failure is not None and failure.due:  # it was quarantined because the calendar was missing
            score: float | None = float(failure.due)
        else:
            score = _score_at(entry, stored, now)
    except Exception:
        logger.exception("beat: %s keeps its due time: a new one cannot be computed.", printable(entry.name))
        return None
    # a beat that has read the old calendar for it just now shall not record what it decided by that
    return Write(score=score, must_exist=True, revision="" if stored.key in new else token_hex(4))


def _score_at(entry: RedBeatSchedulerEntry, stored: Stored, now: datetime) -> float | None:
    """Return when ``entry`` is due by its calendar; None: it keeps its due time."""
    is_due = 0 <= (stored.score or 0) <= now.timestamp()
    if is_due or entry.last_run_at is None:  # without a last run its score says when it runs first
        return None
    score: float = entry.score
    if score < 0 or score > now.timestamp():
        return score
    if 0 <= (stored.score or 0) <= now.timestamp() + SOON_SECONDS:
        return None
    # a time that was excluded isn't a missed run
    following = next_run(entry.schedule, entry.bounds(), now, entry.due_at)
    return entry.score_of(following)


def find_users(
    store: Store,
    names: Collection[str] | None = None,
    progress: Callable[[int], object] = lambda _count: None,
) -> dict[str, list[str]]:
    """Return the names of calendars that entries refer to, each with the names of these entries.

    Arguments:
        names: the calendars to look for; None: all.
        progress: called with how many entries were looked at so far.
    """
    users: dict[str, list[str]] = {}
    seen = 0
    for page in scan_members(store) if names is None or names else ():
        _, found = read_entries(store, [store.keys.entry_of(member) for member, _ in page])
        for stored in found:
            for name in names_in(stored):
                if names is None or name in names:
                    users.setdefault(name, []).append(store.keys.name(stored.key))
        seen += len(page)
        progress(seen)
    return {name: sorted({*entries}) for name, entries in users.items()}
