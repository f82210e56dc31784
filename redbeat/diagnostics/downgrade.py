"""Going back to celery-redbeat 2.x: which entries it can't run, what it ignores about the others, and the
step that takes the first out of its way.

Everything here was observed with celery-redbeat 2.4.2, and tests/contract tries it again. 2.x loads all
entries that are due, and the first that isn't; one that it can't load ends it.

An entry that is taken out keeps its hash; ``redbeat::downgraded`` stores when it was due. The next leader of
version 3 puts it back before its first fetch; its misfire decides about missed runs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from celery.schedules import ParseException, crontab, schedule

from redbeat.decoder import DEFINITION_FIELDS
from redbeat.diagnostics.facts import try_decode
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.failures import failure_of, sha1_of
from redbeat.entries.query import read_all
from redbeat.errors import ConfigurationError, LockError
from redbeat.log.text import is_utf8, printable
from redbeat.policy.fields import Kind
from redbeat.policy.policy import PAUSE_FIELDS, ROWS, Policy, given_of
from redbeat.schedules.codec import SCHEDULE_FIELDS, is_only_ours
from redbeat.schedules.occurrences import CRON_FIELDS, is_own_kind
from redbeat.schedules.recurrence import FREQUENCIES
from redbeat.schedules.timezones import shown
from redbeat.store.downgrades import put_away, read_downgraded
from redbeat.store.later import LaterStore
from redbeat.store.lock_tokens import TOKEN_MARK
from redbeat.store.members import count_members
from redbeat.store.parts import in_chunks
from redbeat.store.records import Stored
from redbeat.store.store import Store

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
#: the keys of each kind of object from which 2.x makes a Python object
_OBJECT_FIELDS = {
    "crontab": SCHEDULE_FIELDS["crontab"],
    "rrule": SCHEDULE_FIELDS["rrule"],
    "weekday": frozenset({"__type__", "wkday", "n"}),
    "datetime": frozenset(
        {"__type__", "year", "month", "day", "hour", "minute", "second", "microsecond", "timezone"}
    ),
}
#: the length of a step of each of dateutil's frequencies, from YEARLY to SECONDLY; seconds
_STEP_SECONDS = (365 * 86_400, 30 * 86_400, 7 * 86_400, 86_400, 3_600, 60, 1)


class Trouble(NamedTuple):
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
        problem: why the entry is invalid for RedBeat itself; '': it is valid.
    """
    if not stored.exists:
        return None  # both versions take it out of the schedule
    return next(_troubles(member, name, stored, problem, now), None)


def _troubles(member: str, name: str, stored: Stored, problem: str, now: datetime) -> Iterator[Trouble]:
    if not is_utf8(stored.key):
        yield Trouble("ends", "its name isn't UTF-8.")
    if not stored.is_hash:
        yield Trouble("ends", f"its key holds a {stored.type}, not a hash.")
    if stored.unread_bytes:
        yield Trouble("unknown", f"RedBeat doesn't read it either, it has {stored.unread_bytes:,} bytes.")
    if member != stored.key:
        yield Trouble("drops", f"it stands in the schedule by its bare name, and not as {stored.key}.")
    if stored.definition is None:
        yield Trouble("drops", "its hash has no definition.")
    yield from _troubles_of_texts(name, stored, now)
    if problem:
        yield Trouble("unknown", f"it is invalid for RedBeat, too: {problem.removeprefix(f'{stored.key}: ')}")
    failure = failure_of(stored)
    if failure is not None and not failure.attempts and failure.definition_sha1 == sha1_of(stored):
        reason = failure.reason.removeprefix(f"{stored.key}: ")
        yield Trouble("differs", f"it is quarantined, and 2.x would run it: {reason}")


def _troubles_of_texts(name: str, stored: Stored, now: datetime) -> Iterator[Trouble]:
    try:
        definition = json.loads(stored.definition or "")
        meta = json.loads(stored.meta) if stored.meta else {"last_run_at": None}
    except (ValueError, RecursionError):
        yield Trouble("ends", "its definition or its meta is invalid JSON.")
        return
    if not isinstance(definition, dict) or not isinstance(meta, dict):
        yield Trouble("ends", "its definition or its meta isn't a JSON object.")
        return
    yield from _unknown_keys("definition", definition, DEFINITION_FIELDS)
    yield from _unknown_keys("meta", meta, _META_FIELDS)
    made = definition.get("schedule")
    kind = made.get("__type__") if isinstance(made, dict) else None
    if not isinstance(made, dict):
        yield Trouble("ends", "its schedule isn't an object with a __type__.")
    elif kind not in ("interval", "crontab", "rrule"):
        yield Trouble("ends", f"2.x has no schedules of type {printable(str(kind))!r}.")
    for encoded in _objects_in([definition, meta]):
        yield from _troubles_of_object(encoded)
    if isinstance(made, dict) and kind == "rrule":
        yield from _troubles_of_rule(made, now)
    if "last_run_at" not in meta:
        yield Trouble("drops", "its meta has no last_run_at.")
    if "name" not in definition or str(definition["name"]) != name:  # 2.x makes a text of a number, too
        given = printable(repr(definition.get("name")))
        yield Trouble("differs", f"its definition has another name, {given}, so it is due at each look.")


def _unknown_keys(title: str, encoded: dict[str, Any], known: Any) -> Iterator[Trouble]:
    if unknown := encoded.keys() - set(known):
        keys = ", ".join(repr(printable(key)) for key in sorted(unknown))
        yield Trouble("ends", f"its {title} has keys that 2.x doesn't know: {keys}.")


def _objects_in(value: Any) -> Iterator[dict[str, Any]]:
    """Yield all JSON objects in ``value`` of which 2.x makes Python objects."""
    if isinstance(value, dict):
        if isinstance(value.get("__type__"), str):
            yield value
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from _objects_in(one)


def _troubles_of_object(encoded: dict[str, Any]) -> Iterator[Trouble]:
    kind = encoded["__type__"]
    if kind == "interval" and "relative" not in encoded:
        yield Trouble("drops", "its interval has no 'relative'.")
    if kind in _OBJECT_FIELDS:
        yield from _unknown_keys(kind, encoded, _OBJECT_FIELDS[kind])
    if kind != "crontab":
        return
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
        freq = encoded["freq"]
        freq = FREQUENCIES[freq.upper()] if isinstance(freq, str) else freq
        count = (now.timestamp() - start) / (_STEP_SECONDS[freq] * interval)
    except (TypeError, KeyError, IndexError, ArithmeticError):
        return  # it is invalid for RedBeat, too
    if count > MAX_COUNTED:
        yield Trouble("stalls", f"2.x counts its rrule from the start at each look: {count:,.0f} steps.")


def find_ignored(entry: RedBeatSchedulerEntry, now: datetime) -> list[str]:
    """Return the fields of its policy that celery-redbeat 2.x ignores when it runs ``entry``."""
    policy: Policy = entry.policy
    if not entry.enabled:  # 2.x doesn't run it, so the rest of its policy doesn't matter
        return [_ignored("paused_until", policy.paused_until)] if policy.paused_until is not None else []
    given, rule = given_of(policy), entry.schedule
    if isinstance(rule, schedule) and not is_own_kind(rule, schedule) and not rule.relative:
        given.pop("timezone", None)  # an interval has none
    if policy.start_time is not None and policy.start_time <= now:
        del given["start_time"]
    if policy.misfire == "latest":
        del given["misfire"]
    return [_ignored(field, value) for field, value in given.items() if field not in PAUSE_FIELDS]


def _ignored(field: str, value: Any) -> str:
    if ROWS[field].kind in (Kind.FLAG, Kind.URL):  # a URL is a secret
        return f"ignores {field}"
    text = f"{value:g}" if isinstance(value, float) else value
    return f"ignores {field} ({shown(value) if isinstance(value, datetime) else text})"


@dataclass(frozen=True)
class Obstacle:
    """An entry that celery-redbeat 2.x can't run.

    Attributes:
        member: the member of the schedule, a key or a bare name.
        stored: the entry as it was read.
        trouble: why it can't be run.
    """

    name: str
    member: str
    stored: Stored
    trouble: Trouble


@dataclass
class Findings:
    """What celery-redbeat 2.x would make of a schedule.

    Attributes:
        obstacles: the entries that it can't run.
        ignored: names of entries that it can run, to the fields of their policies that it ignores.
        away: the names of entries that are taken out already, sorted.
        seen: how many entries the schedule has.
        messages: how many messages are stored.
    """

    obstacles: list[Obstacle] = field(default_factory=list)
    ignored: dict[str, list[str]] = field(default_factory=dict)
    away: Sequence[str] = ()
    seen: int = 0
    messages: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return it as a dict of plain JSON."""
        unreadable = [
            {"name": one.name, **one.trouble._asdict(), "due": one.stored.score} for one in self.obstacles
        ]
        return {
            "entries": self.seen,
            "unreadable": unreadable,
            "ignored": [{"name": name, "what": what} for name, what in self.ignored.items()],
            "away": self.away,
            "messages": self.messages,
        }


def examine(app: Any, progress: Callable[[int], object] = lambda _seen: None) -> Findings:
    """Look at every entry, and write nothing.

    Raises:
        ConfigurationError: the schedule is divided into shards.
    """
    store = _unsharded(app)
    found = Findings(messages=count_members(LaterStore.beside(store)))
    for member, stored, now in read_all(store):
        found.seen += 1
        progress(found.seen)
        if stored.score is None or stored.score < 0:
            continue  # 2.x doesn't look at it
        entry, problem = try_decode(stored, app)
        name = store.keys.name(stored.key)
        if (trouble := find_trouble(member, name, stored, problem, now)) is not None:
            found.obstacles.append(Obstacle(name, member, stored, trouble))
        elif entry is not None and (ignored := find_ignored(entry, now)):
            found.ignored[name] = ignored
    names = {one.name for one in found.obstacles}
    found.away = sorted(set(map(store.keys.name, read_downgraded(store))) - names)
    return found


def _unsharded(app: Any) -> Store:
    store = Store(app)
    if store.parts.is_divided:
        raise ConfigurationError(
            f"The schedule is divided into shards ({store.keys.layout}), and celery-redbeat 2.x reads none: "
            "celery redbeat reshard --to none puts it together again; then call this.",
            "redbeat_shards",
        )
    return store


def put_all_away(app: Any, obstacles: Sequence[Obstacle]) -> Iterator[tuple[Obstacle, bool]]:
    """Take ``obstacles`` out of the schedule, 500 in a step; yield each, and False if it has changed
    meanwhile.

    Raises:
        LockError: a beat of version 3 leads, and would bring them back or run them.
        ConfigurationError: the schedule is divided into shards.
    """
    store = _unsharded(app)
    for chunk in in_chunks(obstacles):
        token, results = put_away(store, [(one.member, one.stored) for one in chunk], TOKEN_MARK)
        if token:
            raise LockError(
                f"A beat of version 3 leads ({token}), and would bring the entries back: stop all "
                "beats of version 3 first. Where that one has died, delete its lock: redis-cli DEL "
                f"{store.config.lock_key}",
                store.config.lock_key,
            )
        yield from zip(chunk, results, strict=True)
