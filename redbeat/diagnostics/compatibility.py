"""Which entries celery-redbeat 2.x can't run, and what it ignores about the others. Pure.

Everything here was observed with celery-redbeat 2.4.2, and tests/contract tries it again. 2.x loads all
entries that are due, and the first that isn't; one that it can't load ends it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from celery.schedules import ParseException, crontab, schedule

from redbeat.decoder import DEFINITION_FIELDS
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.failures import failure_of, sha1_of
from redbeat.log.text import is_utf8, printable
from redbeat.policy.policy import Policy
from redbeat.schedules.codec import SCHEDULE_FIELDS, is_only_ours
from redbeat.schedules.occurrences import CRON_FIELDS, is_own_kind
from redbeat.store.records import Stored

#: what celery-redbeat 2.x does at the due time of an entry that it can't run
EFFECTS = {
    "ends": "2.x ends with an error",
    "drops": "2.x takes it out of the schedule",
    "differs": "2.x runs it at other times",
    "stalls": "2.x sends nothing for a long time",
    "unknown": "2.x may end with an error",
}

#: 2.x counts the steps of a rule one by one from its start each time it looks; more than this take seconds
MAX_COUNTED = 100_000

_META_FIELDS = frozenset({"last_run_at", "total_run_count"})
_WEEKDAY_FIELDS = frozenset({"__type__", "wkday", "n"})
_DATETIME_FIELDS = frozenset(
    {"__type__", "year", "month", "day", "hour", "minute", "second", "microsecond", "timezone"}
)
#: the length of a step of each of dateutil's frequencies: seconds, and days
_UNIT_SECONDS = {0: 365 * 86_400, 1: 30 * 86_400, 2: 7 * 86_400, 3: 86_400, 4: 3_600, 5: 60, 6: 1}
_UNIT_DAYS = {0: 365, 1: 30, 2: 7, 3: 1}
_DAY_FIELDS = ("byweekday", "bymonthday", "byyearday", "byweekno", "byeaster")


@dataclass(frozen=True)
class Trouble:
    """Why celery-redbeat 2.x can't run an entry.

    Attributes:
        effect: one of ``EFFECTS``.
        reason: what it can't use, a sentence.
    """

    effect: str
    reason: str


def find_trouble(member: str, name: str, stored: Stored, problem: str, now: datetime) -> Trouble | None:
    """Return why celery-redbeat 2.x can't run an entry; None: it can.

    Arguments:
        member: the member of the schedule, a key or a bare name.
        problem: why RedBeat itself can't use it; '': it can.
    """
    if not stored.exists:
        return None  # both versions take it out of the schedule
    if not is_utf8(stored.key):
        return Trouble("ends", "its name is no UTF-8.")
    if not stored.is_hash:
        return Trouble("ends", f"its key holds a {stored.type}, not a hash.")
    if stored.unread_bytes:
        return Trouble("unknown", f"RedBeat doesn't read it either, it has {stored.unread_bytes:,} bytes.")
    if member != stored.key:
        return Trouble("drops", f"it stands in the schedule by its bare name, and not as {stored.key}.")
    if stored.definition is None:
        return Trouble("drops", "its hash has no definition.")
    found = next(_troubles(name, stored, now), None)
    failure = failure_of(stored)
    if found is None and problem:
        found = Trouble("unknown", f"RedBeat can't use it either: {problem.removeprefix(f'{stored.key}: ')}")
    is_quarantined = (
        failure is not None and not failure.attempts and failure.definition_sha1 == sha1_of(stored)
    )
    if found is None and failure is not None and is_quarantined:
        reason = failure.reason.removeprefix(f"{stored.key}: ")
        found = Trouble("differs", f"it is quarantined, and 2.x would run it: {reason}")
    return found


def _troubles(name: str, stored: Stored, now: datetime) -> Iterator[Trouble]:
    try:
        definition = json.loads(stored.definition or "")
        meta = json.loads(stored.meta) if stored.meta else {"last_run_at": None}
    except (ValueError, RecursionError):
        yield Trouble("ends", "its definition or its meta is no JSON.")
        return
    if not isinstance(definition, dict) or not isinstance(meta, dict):
        yield Trouble("ends", "its definition or its meta is no JSON object.")
        return
    for title, unknown in (
        ("definition", definition.keys() - set(DEFINITION_FIELDS)),
        ("meta", meta.keys() - _META_FIELDS),
    ):
        if unknown:
            keys = ", ".join(repr(printable(key)) for key in sorted(unknown))
            yield Trouble("ends", f"its {title} has keys that 2.x doesn't know: {keys}.")
    made = definition.get("schedule")
    kind = made.get("__type__") if isinstance(made, dict) else None
    if not isinstance(made, dict):
        yield Trouble("ends", "its schedule is no object with a __type__.")
    elif kind not in ("interval", "crontab", "rrule"):
        yield Trouble("ends", f"2.x has no schedules of type {printable(str(kind))!r}.")
    for encoded in _objects_in([definition, meta]):
        yield from _troubles_of(encoded)
    if isinstance(made, dict) and kind == "rrule":
        yield from _troubles_of_rule(made, now)
    if "last_run_at" not in meta:
        yield Trouble("drops", "its meta has no last_run_at.")
    if "name" not in definition or str(definition["name"]) != name:  # 2.x makes a text of a number, too
        given = printable(repr(definition.get("name")))
        yield Trouble("differs", f"its definition has another name, {given}, so it is due at each look.")


def _objects_in(value: Any) -> Iterator[dict[str, Any]]:
    """Yield all JSON objects in ``value`` of which 2.x makes Python objects."""
    if isinstance(value, dict):
        if isinstance(value.get("__type__"), str):
            yield value
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from _objects_in(one)


def _troubles_of(encoded: dict[str, Any]) -> Iterator[Trouble]:
    kind = encoded["__type__"]
    if kind == "interval" and "relative" not in encoded:
        yield Trouble("drops", "its interval has no 'relative'.")
    known = {"weekday": _WEEKDAY_FIELDS, "datetime": _DATETIME_FIELDS}.get(kind)
    if kind in ("crontab", "rrule"):
        known = SCHEDULE_FIELDS[kind]
    if known is not None and (unknown := encoded.keys() - known):
        keys = ", ".join(repr(printable(key)) for key in sorted(unknown))
        yield Trouble("ends", f"its {kind} has keys that 2.x doesn't know: {keys}.")
    if kind == "crontab":
        yield from _troubles_of_crontab(encoded)


def _troubles_of_crontab(encoded: dict[str, Any]) -> Iterator[Trouble]:
    given = {field: encoded[field] for field in CRON_FIELDS if field in encoded}
    try:
        crontab(**given)
    except (ValueError, TypeError, ArithmeticError, ParseException) as exc:
        yield Trouble("ends", f"Celery's crontab can't read it: {printable(str(exc)).rstrip('.')}.")
        return
    if is_only_ours(given):
        yield Trouble("differs", "its crontab has L, W or #, which Celery's doesn't know.")


def _troubles_of_rule(encoded: dict[str, Any], now: datetime) -> Iterator[Trouble]:
    start, interval = encoded.get("dtstart"), encoded.get("interval", 1)
    if start is None:
        yield Trouble("differs", "its rrule has no dtstart, and 2.x counts it from each look.")
        return
    if isinstance(start, dict) or isinstance(encoded.get("until"), dict):
        yield Trouble("ends", "its rrule has a datetime for dtstart or until, not UNIX seconds.")
        return
    days = encoded.get("byweekday")
    if interval is None or any(isinstance(day, str) for day in (days if isinstance(days, list) else [days])):
        yield Trouble("ends", "its rrule has a null interval, or days as text.")
        return
    try:
        count = _counted(encoded, start, interval, now)
    except (ValueError, TypeError, KeyError, ArithmeticError):
        return  # RedBeat can't use it either
    if count > MAX_COUNTED:
        yield Trouble("stalls", f"2.x counts its rrule from the start at each look: {count:,.0f} steps.")


def _counted(encoded: dict[str, Any], start: float, interval: float, now: datetime) -> float:
    """Return roughly how many steps a rule has from its start to ``now``."""
    freq = encoded["freq"]
    if isinstance(freq, str):
        freq = ("YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY").index(freq.upper())
    units: float = max(now.timestamp() - start, 0) / (_UNIT_SECONDS[freq] * interval)
    if freq in _UNIT_DAYS:
        if any(encoded.get(field) is not None for field in _DAY_FIELDS):
            units *= _UNIT_DAYS[freq]
        for field in ("byhour", "byminute", "bysecond"):
            units *= len(encoded[field]) if isinstance(encoded.get(field), list) else 1
    return units


def find_ignored(entry: RedBeatSchedulerEntry, now: datetime) -> list[str]:
    """Return what celery-redbeat 2.x, which can run ``entry``, would do differently from its policy."""
    policy: Policy = entry.policy
    if not entry.enabled:  # 2.x doesn't run it, so the rest of its policy doesn't matter
        until = policy.paused_until if policy.paused else None
        return [f"would stay paused after {_time(until)}: it ends no pauses"] if until is not None else []
    return list(_ignored(entry, policy, now))


def _ignored(entry: RedBeatSchedulerEntry, policy: Policy, now: datetime) -> Iterator[str]:
    is_plain_interval = (
        isinstance(entry.schedule, schedule)
        and not is_own_kind(entry.schedule, schedule)
        and not entry.schedule.relative
    )
    if policy.timezone is not None and not is_plain_interval:
        yield f"would run by other clocks than those of its timezone, {policy.timezone}"
    if policy.start_time is not None and policy.start_time > now:
        yield f"would run before its start_time, {_time(policy.start_time)}"
    if policy.end_time is not None:
        yield f"would go on running after its end_time, {_time(policy.end_time)}"
    if policy.max_runs is not None:
        yield f"would go on running after its {policy.max_runs} runs (max_runs)"
    if policy.one_off:
        yield "would go on running after its one run (one_off)"
    if policy.after_finish == "delete":
        yield "wouldn't be deleted when it is finished (after_finish)"
    elif policy.after_finish == "disable":
        yield "wouldn't be disabled when it is finished (after_finish)"
    if policy.exclude is not None:
        yield f"would run on the days of its calendar {policy.exclude}, too (exclude)"
    if policy.jitter:
        yield f"would run without its jitter of up to {policy.jitter:g} s"
    if policy.expires_after is not None:
        yield f"its messages wouldn't expire after {policy.expires_after:g} s (expires_after)"
    yield from _ignored_when_missed(policy)
    yield from _ignored_of_runs(policy)


def _ignored_when_missed(policy: Policy) -> Iterator[str]:
    if policy.misfire not in (None, "latest"):
        yield f"would make up for missed runs by one run (misfire is {policy.misfire})"
    if policy.misfire_limit is not None:
        yield f"would make up for missed runs by one run (misfire_limit is {policy.misfire_limit})"
    if policy.misfire_grace_time is not None:
        yield (
            f"would run however late it is, and not up to {policy.misfire_grace_time:g} s late only "
            "(misfire_grace_time)"
        )
    if policy.run_missed:
        yield "would make up for what it missed while it was disabled by one run (run_missed)"


def _ignored_of_runs(policy: Policy) -> Iterator[str]:
    if policy.overlap != "allow":
        yield f"would send a run also while another one is in progress (overlap is {policy.overlap})"
    if policy.max_runtime is not None:
        does = "tell of, and revoke," if policy.revoke_overdue else "tell of"
        yield f"wouldn't {does} a run that takes longer than {policy.max_runtime:g} s (max_runtime)"
    if policy.queue_timeout is not None:
        yield f"its messages wouldn't expire after {policy.queue_timeout:g} s on a queue (queue_timeout)"
    if policy.pause_after_failures is not None:
        count = policy.pause_after_failures
        yield f"wouldn't be paused after {count} failures in a row (pause_after_failures)"
    if policy.ping_url is not None:
        yield "nobody would be told of its runs (ping_url)"


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
