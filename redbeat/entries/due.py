"""When beat sends an entry next, which isn't always what its score says. Pure.

The score is the time at which beat looks at an entry. Then the schedule and the policy decide: an entry that
is paused or disabled isn't sent, and the scores of celery-redbeat 2.x are earlier than the runs. Invariant:
beat decides by the functions of this module, and so do the commands that show the next run.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from celery.schedules import crontab

from redbeat.config.config import ensure_conf
from redbeat.entries.failures import failure_now, failure_of, sha1_of
from redbeat.errors import EntryError
from redbeat.policy.misfires import choose_run, rules_of
from redbeat.policy.policy import Policy
from redbeat.schedules.occurrences import next_run
from redbeat.schedules.timezones import in_utc, moment_of
from redbeat.store.records import Stored

if TYPE_CHECKING:
    from redbeat.entries.entry import RedBeatSchedulerEntry

_INSTANT = timedelta(microseconds=1)

#: a score of this or more isn't a time: it was written by hand
MAX_SCORE = 1e11
#: a score may be earlier than the schedule's time by this, as it has microseconds, and a solar event is
#: computed to a fraction of a millisecond
ROUNDING = timedelta(milliseconds=1)


def paused_until(entry: RedBeatSchedulerEntry) -> datetime | None:
    """Return when the pause of ``entry`` ends or has ended; None: it isn't paused, or without an end."""
    policy = entry.policy
    return policy.paused_until if policy.paused and not entry.enabled else None


def is_pause_over(entry: RedBeatSchedulerEntry, now: datetime | None) -> bool:
    """Return True if the pause of ``entry`` has ended at ``now``; beat stores that with the next run."""
    until = paused_until(entry)
    return until is not None and now is not None and until <= now


def anchor_of(entry: RedBeatSchedulerEntry) -> datetime | None:
    """Return its last run, from which an interval counts; None: it counts from its start_time, or has none.

    Before its first run the last run is when the entry was saved.
    """
    if entry.last_run_at is None or (entry.policy.start_time is not None and not entry.total_run_count):
        return None
    return in_utc(entry.last_run_at)


def first_after_pause(
    entry: RedBeatSchedulerEntry, bounds: Policy, anchor: datetime | None = None
) -> datetime | None:
    """Return when ``entry``, which is paused until a time, is sent next, without jitter; None: never.

    That is its first run at that time or later; with ``run_missed`` the time itself, if a missed run is made
    up for.

    Arguments:
        bounds: its policy with its calendar.
        anchor: for an entry that has never run: when it was to run first, from which an interval counts.
    """
    until = paused_until(entry)
    if until is None or entry.policy.is_finished(entry.total_run_count):
        return None
    if entry.last_run_at is None:
        if anchor is None or anchor < until:
            return next_run(entry.schedule, bounds, until - _INSTANT, anchor)
        is_early = bounds.start_time is not None and anchor < bounds.start_time
        return next_run(entry.schedule, bounds, anchor, anchor) if is_early else anchor
    own_time: datetime | None = entry.due_by_schedule()
    if own_time is None or own_time >= until:
        return own_time
    if entry.policy.run_missed:
        choice = choose_run(
            entry.schedule, bounds, own_time, until, rules_of(entry.schedule, bounds, defaults_of(entry))
        )
        return choice.following if choice.due is None else until
    return next_run(entry.schedule, bounds, until - _INSTANT, anchor_of(entry))


def is_in_pause(entry: RedBeatSchedulerEntry, due_at: datetime) -> bool:
    """Return True if the score ``due_at`` is from before the end of the entry's pause, so that no run is sent
    for it.

    That happens if somebody has written the pause by hand without a score, or no beat was running when it
    ended.
    """
    until = paused_until(entry)
    if until is None or due_at > until:
        return False
    return entry.last_run_at is None or in_utc(entry.last_run_at) < until


def score_after_pause(entry: RedBeatSchedulerEntry, bounds: Policy, anchor: datetime | None = None) -> float:
    """Return the score of ``entry`` while it is paused until a time: see :func:`first_after_pause`."""
    found = first_after_pause(entry, bounds, anchor)
    if found is not None and found == paused_until(entry) and entry.policy.run_missed:
        return found.timestamp()  # the end of the pause, not the time of a run, so without jitter
    score: float = entry.score_of(found)
    return score


def retry_of(stored: Stored) -> datetime | None:
    """Return when a run is tried again that couldn't be sent; None: there is none."""
    failure = failure_of(stored)
    if failure is None or not failure.attempts or not failure.retry_at:
        return None
    return moment_of(stored.score) if float(failure.retry_at) == stored.score else None


def is_moved(
    entry: RedBeatSchedulerEntry,
    nominal: float,
    is_meta_foreign: bool,
    due_at: datetime,
    now: datetime,
    find_own_time: Callable[[], datetime | None] | None = None,
) -> bool:
    """Return True if the schedule makes it due later than its score says, which is ``due_at``.

    That is so if an application has moved last_run_at, and for scores of celery-redbeat 2.x: it cuts them to
    whole seconds, moves those of entries that have never run at each start, and asks the schedule again
    before it sends. By such scores alone a crontab would run early, and twice.

    Arguments:
        nominal: the score, UNIX seconds.
        is_meta_foreign: somebody else wrote the meta. RedBeat writes a score that goes with it, too.
        find_own_time: returns the entry's first time after last_run_at; None: ``entry.due_by_schedule``.
    """
    if entry.last_run_at is None or entry.computes_due_at:
        return False
    if not (is_meta_foreign or nominal.is_integer()):
        return False
    if due_at <= in_utc(entry.last_run_at) <= now:
        return False  # somebody has asked for a run now by this score
    own_time = (find_own_time or entry.due_by_schedule)()
    if own_time is None:
        return not entry.policy.is_finished(entry.total_run_count)
    return own_time - due_at > ROUNDING


def is_quarantined(entry: RedBeatSchedulerEntry, stored: Stored) -> bool:
    """Return True if ``entry`` is quarantined: it can't be used."""
    failure = failure_now(stored)
    return bool(entry.problem) or (
        failure is not None and not failure.attempts and failure.definition_sha1 == sha1_of(stored)
    )


def next_due(entry: RedBeatSchedulerEntry, stored: Stored, now: datetime) -> datetime | None:
    """Return when beat sends ``entry`` next, in UTC, jitter included; None: it isn't going to.

    A time in the past means that it waits to be sent. Changes of its calendar since the score was written
    aren't taken into account.

    Arguments:
        stored: the entry as it is in Redis.
        now: the server's clock.
    """
    try:
        if stored.score is None or stored.score < 0 or not stored.exists:
            return None
        due = datetime.fromtimestamp(stored.score, timezone.utc)
        if is_quarantined(entry, stored):
            return None
    except (ValueError, OverflowError, OSError):  # after the year 9999, by which somebody means "never"
        return None
    try:
        return _next_due(entry, stored, due, now)
    except (EntryError, ValueError, OverflowError, RuntimeError):  # beat quarantines it at that time
        return due if entry.is_enabled_at(now) else None


def _next_due(entry: RedBeatSchedulerEntry, stored: Stored, due: datetime, now: datetime) -> datetime | None:
    policy: Policy = entry.policy
    if policy.is_finished(entry.total_run_count):
        return None
    until = paused_until(entry)
    if until is not None and (max(due, now) < until or (stored.score and is_in_pause(entry, due))):
        return _at_score(score_after_pause(entry, entry.bounds(), due))
    if not entry.is_enabled_at(max(due, now)):
        return None
    if retry_of(stored) is not None:
        return due
    if stored.score and is_moved(entry, stored.score, stored.is_meta_foreign, due, now):
        return _at_score(entry.score_of(entry.due_by_schedule()))
    if policy.end_time is not None and due > policy.end_time + timedelta(seconds=policy.jitter):
        return None
    if policy.start_time is not None and stored.score and due < policy.start_time:
        return _at_score(entry.score_of(next_run(entry.schedule, entry.bounds(), due, due)))
    return due


def _at_score(score: float) -> datetime | None:
    return None if score < 0 else datetime.fromtimestamp(score, timezone.utc)


def defaults_of(entry: RedBeatSchedulerEntry) -> Policy:
    """Return the app's settings for those fields of the policy that ``entry`` leaves open."""
    return defaults_for(entry.app, entry.schedule)


def defaults_for(app: Any, schedule_: Any) -> Policy:
    """Return the app's settings for those fields of a policy that an entry with this schedule leaves open."""
    config = ensure_conf(app)
    grace_seconds = config.misfire_grace_time
    if isinstance(schedule_, crontab) and grace_seconds is None:
        grace_seconds = app.conf.beat_cron_starting_deadline
    return _app_policy(config.misfire, config.misfire_limit, grace_seconds)


@lru_cache(maxsize=64)
def _app_policy(misfire: str, misfire_limit: int, grace_seconds: float | None) -> Policy:
    return Policy(misfire=misfire, misfire_limit=misfire_limit, misfire_grace_time=grace_seconds)
