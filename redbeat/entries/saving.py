"""What a save writes: from an entry and its stored state to a write. Pure.

Invariant: a stored entry keeps its bookkeeping. It gets a new due time only if its schedule or its policy has
changed, or if it is enabled again.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from celery.schedules import BaseSchedule, crontab, schedule
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random

from redbeat.config.config import ensure_conf
from redbeat.config.suggestions import did_you_mean
from redbeat.decoder import as_moment, decode, encode_meta
from redbeat.delivery.reserved_names import find_reserved
from redbeat.entries.dropped import Dropped, dropped_until
from redbeat.entries.due import anchor_of, defaults_of, paused_until, score_after_pause
from redbeat.entries.loading import try_decode
from redbeat.entries.validation import (
    find_option_problem,
    find_problem,
    find_size_problem,
    read_fields,
)
from redbeat.errors import EntryChanged, EntryCorrupt, EntryError
from redbeat.log.logger import logger
from redbeat.log.text import as_stored
from redbeat.policy.misfires import choose_run, rules_of
from redbeat.policy.policy import Policy, encode_policy
from redbeat.schedules.codec import cronspecs, encode_schedule
from redbeat.schedules.occurrences import (
    KINDS,
    clocked,
    cron,
    is_own_kind,
    next_run,
    rrule,
    start_just_passed,
    zone_of,
)
from redbeat.schedules.timezones import find_time_problem, in_calendar, in_utc, name_for, shown, zone_name
from redbeat.store.records import HASH, Stored, Write

if TYPE_CHECKING:
    from redbeat.entries.entry import RedBeatSchedulerEntry


_INSTANT = timedelta(microseconds=1)
#: how often a change is tried while other programs change the entry, too
MAX_TRIES = 10
#: a definition with so few brackets is not nested too deep to be read; reading each again would take a third
#: of the time of ``save_many``
_FLAT_BRACKETS = 50

#: classes of schedules that were warned of, once in a process
_told_kinds = WeakSet[type]()


def plan_save(entry: RedBeatSchedulerEntry, stored: Stored, now: datetime) -> Write:
    """Decide what to write so that ``stored`` becomes ``entry``; ``entry`` takes over its bookkeeping.

    Raises:
        EntryError: a part of it can't be stored.
    """
    definition, policy = encode_entry(entry, stored)  # it refuses RedBeat's own keys, so it is first
    before: Any = None
    problem = None
    if entry.options:
        problem = find_option_problem(entry.options) or find_queue_problem(entry.app, entry.options)
    if problem:
        raise EntryError(f"{entry.key}: {problem}", entry.key)
    kept = None
    if stored.exists:
        if not stored.is_hash:
            raise EntryCorrupt(f"{entry.key}: the key holds no hash; delete it first.", entry.key)
        before = _before(entry, stored, (definition, policy))
        # where the stored definition can't be used, its meta is kept all the same, if that can be used
        kept = before if stored.meta else None
        if stored.meta and before is None:
            kept = try_decode(
                type(entry), replace(stored, definition=definition, policy=policy or None), entry.app
            )
    if entry.policy.exclude is not None:
        try:
            entry.bounds()
        except EntryCorrupt as exc:
            raise EntryError(str(exc), entry.key) from exc
    meta, is_moved = "", is_last_run_moved(entry)
    if kept is not None:
        entry.total_run_count = kept.total_run_count
    if is_moved:
        entry.last_run_at = checked_last_run(entry, entry.last_run_at)
        if kept is not None and entry.last_run_at is not None:
            entry.last_run_at = before_start(entry, kept.last_run_at, entry.last_run_at)
    elif kept is not None:
        if isinstance(entry.schedule, (rrule, clocked)):
            # computing its score fails as well, and says why
            with suppress(ValueError, OverflowError, RuntimeError):
                is_moved = _starts_anew(entry, kept.last_run_at, before, now)
        since = before_start(entry, None, now) if is_moved else kept.last_run_at
        entry.last_run_at = entry.known_last_run_at = since
    elif entry.has_last_run_at:
        entry.last_run_at = entry.known_last_run_at = checked_last_run(entry, entry.last_run_at)
    else:
        entry.last_run_at = entry.known_last_run_at = now
    if kept is None or is_moved:  # the entry is new, or its meta is missing or can't be used
        meta = encode_meta(entry.last_run_at, entry.total_run_count, stored.meta)
    try:
        with refusing_schedule(entry):
            score = _score_over(entry, stored, before, now, is_moved)
    except EntryError:
        if entry.enabled or before is None or _is_other(entry.schedule, before.schedule):
            raise
        score = None  # a pause is saved all the same: it is the remedy
    try:
        _check_readable(definition)
    except (ValueError, RecursionError) as exc:
        raise EntryError(f"{entry.key}: couldn't be read again: {exc}", entry.key) from exc
    _check_size(entry, definition, meta or (stored.meta or ""), policy)
    record = "" if before is None else _record_of_rest(entry, before, now)
    return Write(definition, meta, score, policy=policy, record=record)


def _check_readable(definition: str) -> None:
    """Raise ValueError or RecursionError if a definition couldn't be read again.

    Its fields were checked before it was encoded, so what is left are the objects in it, and its depth.
    """
    given, _, rest = definition.rpartition(', "schedule": ')
    if '"__type__"' in given or given.count("[") + given.count("{") > _FLAT_BRACKETS:
        read_fields(decode(definition), {})
    else:
        _check_schedule_readable(rest)


@lru_cache(maxsize=128)  # thousands of entries may share a few schedules
def _check_schedule_readable(rest: str) -> None:
    """Check a definition from its schedule on."""
    read_fields(decode(f'{{"task": "any", "schedule": {rest}'), {})


@contextmanager
def refusing_schedule(entry: RedBeatSchedulerEntry) -> Iterator[None]:
    """Raise EntryError where the times of the schedule of ``entry`` can't be computed."""
    try:
        yield
    except EntryError:
        raise
    except (ValueError, OverflowError, RuntimeError) as exc:
        why = str(exc) or type(exc).__name__
        if isinstance(exc, OverflowError):
            why = (
                f"it has a time outside the years 1 to 9999, as last_run_at is {entry.last_run_at}: set an "
                "earlier one, or a shorter interval."
            )
        problem = f"its schedule {entry.schedule!r} can't be used: {why}"
        raise EntryError(f"{entry.key}: {problem}", entry.key) from exc


def _record_of_rest(entry: RedBeatSchedulerEntry, before: Any, now: datetime) -> str:
    """Return the record of the runs that weren't sent until ``entry`` was enabled; '': there are none."""
    if before.enabled or not entry.enabled or entry.policy.run_missed:
        return ""
    if not ensure_conf(entry.app).history:
        return ""
    until = paused_until(before)
    if until is not None and before.last_run_at is not None and in_utc(before.last_run_at) >= until:
        return ""  # the pause ended by itself, and beat has recorded these runs
    end, is_paused = now if until is None else min(now, until), before.policy.paused
    try:
        dropped = dropped_at_rest(before, before.bounds(), end, is_paused)
    except (EntryError, ValueError, OverflowError, RuntimeError):
        return ""
    return "" if dropped is None else dropped.record


def dropped_at_rest(
    entry: RedBeatSchedulerEntry, bounds: Policy, end: datetime, is_paused: bool
) -> Dropped | None:
    """Return the runs that a pause of ``entry``, or ``enabled``, has prevented until ``end``; None: none."""
    first: datetime | None = None if entry.last_run_at is None else entry.due_by_schedule()
    if first is None or first >= end:
        return None
    note = f": {bounds.pause_note}" if is_paused and bounds.pause_note else ""
    why = f"{'paused' if is_paused else 'disabled'} until {shown(end)}{note}"
    reason = "paused" if is_paused else "disabled"
    return dropped_until(entry.schedule, bounds, first, end - _INSTANT, why, reason=reason)


def _check_size(entry: RedBeatSchedulerEntry, *texts: str) -> None:
    max_bytes = ensure_conf(entry.app).max_entry_bytes
    if 4 * sum(map(len, texts)) <= max_bytes:  # a character takes at most 4 bytes in UTF-8
        return
    size_bytes = sum(len(as_stored(text)) for text in texts)
    problem = find_size_problem(size_bytes, max_bytes)
    if problem:
        raise EntryError(f"{entry.key}: {problem}", entry.key)


def encode_entry(entry: RedBeatSchedulerEntry, stored: Stored) -> tuple[str, str]:
    """Return the JSON of the definition and of the policy ('': there is none) to be stored.

    Raises:
        EntryError: a part of it can't be stored.
    """
    _settle_zone(entry)
    _settle_kind(entry)
    return entry.encode(stored), encode_policy(entry.policy, stored.policy)


def _settle_kind(entry: RedBeatSchedulerEntry) -> None:
    """Give ``entry`` Celery's own schedule instead of a subclass that is not registered, as 2.x stores it."""
    given, kind = entry.schedule, type(entry.schedule)
    base = next((one for one in (crontab, schedule) if isinstance(given, one)), None)
    is_known = kind is base or any(registered.cls is kind for registered in KINDS.values())
    if base is None or is_known or isinstance(given, cron):
        return
    is_other = is_own_kind(given, base) or kind.is_due is not base.is_due
    if is_other and kind not in _told_kinds:
        _told_kinds.add(kind)
        logger.warning(
            "%s: its schedule is a %s, and is stored as its %s: call "
            "redbeat.schedules.register_schedule for it, here and in beat, to keep what it overrides.",
            entry.key,
            kind.__qualname__,
            "crontab and time zone" if base is crontab else "interval",
        )
    if base is crontab:
        entry.schedule = crontab(*cronspecs(given), app=entry.app)
    else:
        entry.schedule = schedule(given.run_every, bool(given.relative), app=entry.app)


def _settle_zone(entry: RedBeatSchedulerEntry) -> None:
    """Write the time zone into ``entry`` where so far its schedule or the app decides it."""
    schedule = entry.schedule
    if isinstance(schedule, clocked) and schedule.clocked_time.tzinfo is None:
        zone = zone_of(schedule, entry.policy)
        try:
            entry.schedule = clocked(schedule.instant_in(zone).astimezone(zone), app=entry.app)
        except OverflowError as exc:
            moment = schedule.clocked_time
            raise EntryError(f"{entry.key}: its time {moment} is out of range in {zone}.", entry.key) from exc
    name = _zone_to_store(entry) if entry.policy.timezone is None else None
    if name is not None:
        entry.policy = replace(entry.policy, timezone=name)


def _zone_to_store(entry: RedBeatSchedulerEntry) -> str | None:
    """Return the zone of the entry's schedule that neither its JSON nor the app has; None: there is none."""
    schedule = entry.schedule
    if isinstance(schedule, rrule):  # its JSON has an offset from UTC
        zone = schedule.dtstart.tzinfo or timezone.utc
        name = zone_name(zone)
        if name is not None or zone.utcoffset(None) is not None:
            return None if name is None or name.upper() == "UTC" else name
    elif isinstance(schedule, crontab) or getattr(schedule, "relative", False) or entry.policy.exclude:
        zone = zone_of(schedule, entry.policy)
        if zone == entry.app.timezone:
            return None
        name = name_for(zone)
        if name is not None:
            return None if name == name_for(entry.app.timezone) else name
    else:
        return None
    logger.warning(
        "%s: its time zone %s has no IANA name and cannot be stored: set timezone to a name such as "
        "'Europe/Berlin'.",
        entry.key,
        zone,
    )
    return None


def _before(entry: RedBeatSchedulerEntry, stored: Stored, encoded: tuple[str, str]) -> Any:
    """Return the entry that ``stored`` is; None: it can't be used."""
    if (stored.definition, stored.policy or "") != encoded:
        return try_decode(type(entry), stored, entry.app)
    try:
        meta = entry.decode_meta(stored.meta, entry.app)
    except (ValueError, RecursionError):
        return None
    if not isinstance(meta, dict) or find_problem(meta):
        return None
    before = copy.copy(entry)  # all but the meta is what decoding it would give
    before.last_run_at = meta.get("last_run_at")
    before.total_run_count = meta.get("total_run_count") or 0
    return before


def is_last_run_moved(entry: RedBeatSchedulerEntry) -> bool:
    """Return True if last_run_at was assigned since ``entry`` was made, loaded or saved."""
    moment = entry.last_run_at
    known = getattr(entry, "known_last_run_at", moment)  # missing: a subclass doesn't call our constructor
    if moment is known:
        return False
    return not (
        isinstance(moment, datetime) and isinstance(known, datetime) and in_utc(moment) == in_utc(known)
    )


def checked_last_run(entry: RedBeatSchedulerEntry, moment: datetime | None) -> datetime | None:
    """Return ``moment`` as ``entry`` may store it.

    Raises:
        EntryError: it is not a datetime in the years 1 to 9998.
    """
    moment = in_calendar(as_moment(moment))
    problem = None if moment is None else find_time_problem(moment, first_year=1)
    if problem:
        raise EntryError(f"{entry.key}: last_run_at {problem}", entry.key)
    return moment


def before_start(entry: RedBeatSchedulerEntry, last: datetime | None, moment: datetime) -> datetime:
    """Return from when ``entry`` counts if it is to count from ``moment``, and counted from ``last``.

    That is earlier if its schedule is a rule that ends, or one time, and began in the minute before
    ``moment``, but after ``last``: that run is still to be sent. Otherwise a time of "now" would end it.
    """
    start = start_just_passed(entry.schedule, entry.bounds(), in_utc(moment))
    return start - _INSTANT if start is not None and _is_earlier(last, start, entry.schedule) else moment


def _is_earlier(last: datetime | None, start: datetime, rule: Any) -> bool:
    """Return True if the last run was before the ``start`` of ``rule``.

    A rule starts at a whole second, in which the run of its former start may have been: so its start counts
    as it was given.
    """
    given = in_utc(rule.given_start) if isinstance(rule, rrule) else start
    return last is None or in_utc(last) < max(start, given)


def _starts_anew(entry: RedBeatSchedulerEntry, last: datetime | None, before: Any, now: datetime) -> bool:
    """Return True if the schedule of a stored entry has a new start, in the minute before ``now``."""
    rule = entry.schedule
    start = start_just_passed(rule, entry.bounds(), now)
    if start is None:
        return False
    is_other = before is None or _is_other(before.schedule, rule)
    if _is_earlier(last, start, rule):
        return is_other or (last is not None and in_utc(last) >= start)
    return (
        before is not None
        and is_other
        and next_run(before.schedule, before.policy, start - _INSTANT) != start
    )


def score_of_moved(entry: RedBeatSchedulerEntry, now: datetime) -> float:
    """Return the score of ``entry``, whose last_run_at a user has moved: it runs now if it is due since then.

    0 runs it for now, where its policy would skip the runs that were due.
    """
    if entry.last_run_at is None and not entry.policy.is_finished(entry.total_run_count):
        return now.timestamp()
    due_at = entry.due_by_schedule()
    if due_at is None or due_at > now or paused_until(entry) is not None:
        return float(entry.score)
    bounds = entry.bounds()
    rules = rules_of(entry.schedule, bounds, defaults_of(entry))
    choice = choose_run(entry.schedule, bounds, due_at, now, rules)
    return 0.0 if choice.due is None else due_at.timestamp()


def _score_over(
    entry: RedBeatSchedulerEntry, stored: Stored, before: Any, now: datetime, is_moved: bool
) -> float | None:
    if is_moved:
        return score_of_moved(entry, now)
    if not stored.exists:
        return entry.score
    is_changed = before is None or before.policy != entry.policy or _is_other(before.schedule, entry.schedule)
    if is_changed or (entry.enabled and not before.enabled):
        if entry.policy.run_missed and before is not None and entry.last_run_at is not None:
            return entry.score
        return next_score(entry, now)
    if before.last_run_at is None:  # its score says when it runs first; without one, now
        return None if stored.score is not None else now.timestamp()
    score: float = entry.score
    if stored.score is not None and stored.error is None and 0 <= score <= now.timestamp() < stored.score:
        return None  # another beat is sending that run, or somebody has put it off
    return score


def next_score(entry: RedBeatSchedulerEntry, now: datetime) -> float:
    """Return the score of an entry at its next time after ``now``, whatever runs it has missed.

    Raises:
        EntryCorrupt, ValueError, OverflowError: its schedule or its calendar can't be used.
    """
    if entry.policy.is_finished(entry.total_run_count):
        return -1.0
    until = paused_until(entry)
    if until is not None and until > now:
        return score_after_pause(entry, entry.bounds())
    score: float = entry.score_of(next_run(entry.schedule, entry.bounds(), now, anchor_of(entry)))
    return score


def stored_after(stored: Stored, write: Write) -> Stored:
    """Return what is in Redis after ``write``."""
    mark = "" if write.is_meta_foreign else None
    return Stored(  # dataclasses.replace would take four times as long
        stored.key,
        write.definition or stored.definition,
        write.meta or stored.meta,
        stored.score if write.score is None else write.score,
        stored.policy if write.policy is None else write.policy or None,
        error=None,
        type=HASH,
        unread_bytes=stored.unread_bytes,
        meta_mark=mark if write.meta else stored.meta_mark,
        revision=stored.revision,
        is_away=stored.is_away,
    )


def why_never(entry: RedBeatSchedulerEntry, now: datetime) -> str:
    """Return why ``entry`` doesn't run after ``now``, a sentence."""
    policy = entry.bounds()
    if policy.is_finished(entry.total_run_count):
        if policy.one_off:
            return "it has had its run (one_off); take one_off away, or delete it first."
        return f"it has had its runs (max_runs={policy.max_runs}); raise max_runs, or delete it first."
    since = in_utc(entry.last_run_at or now)
    if next_run(entry.schedule, replace(policy, end_time=None, calendar=None), now, since) is None:
        return "its schedule has no time after now."
    if next_run(entry.schedule, replace(policy, calendar=None), now, since) is None:
        return f"its schedule has no time until its end_time, {policy.end_time}."
    if next_run(entry.schedule, policy, now, since) is None:
        return f"its calendar {policy.exclude} excludes all its times."
    return "its schedule has times, but its score was written so; a score of 0 runs it."


def _is_other(schedule: Any, other: Any) -> bool:
    """Return True if two schedules differ; to a class without ``__eq__`` all of its own are equal."""
    if type(schedule) is not type(other) or schedule != other:
        return True
    has_no_eq = type(schedule).__eq__ is BaseSchedule.__eq__
    return has_no_eq and encode_schedule(schedule) != encode_schedule(other)


def find_queue_problem(app: Any, options: Mapping[str, Any]) -> str | None:
    """Return what is wrong with the names in ``options``, a sentence; None: nothing is.

    With ``task_create_missing_queues`` any queue that isn't reserved is allowed, as Celery then creates it.
    """
    reserved = find_reserved(app, options)
    if reserved is not None:
        return reserved
    queue = options.get("queue")
    if app.conf.task_create_missing_queues or not is_missing(app, queue):
        return None
    return (
        f"options: queue: there is no queue {queue!r} in task_queues, and task_create_missing_queues is off."
        f"{did_you_mean(str(queue), app.amqp.queues)}"
    )


def is_missing(app: Any, queue: Any) -> bool:
    """Return True if ``queue`` is a name, and the app has no queue of this name."""
    known = app.amqp.queues
    return isinstance(queue, str) and bool(queue) and queue not in known and queue not in known.aliases


#: calls a function that reads an entry and saves it with ``if_unchanged``, again when the entry has changed
#: in between
retry_when_changed = Retrying(
    retry=retry_if_exception_type(EntryChanged),
    stop=stop_after_attempt(MAX_TRIES),
    wait=wait_random(0, 0.2),  # so that two programs don't meet again
    reraise=True,
)
