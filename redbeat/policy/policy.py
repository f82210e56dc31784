"""An entry's policy: everything about when it runs that its schedule doesn't say. Pure.

Owns the fields, their meaning, their checks, and their JSON in the field ``policy`` of an entry's hash.
Invariant: a definition can be used without its policy, as celery-redbeat 2.x doesn't read it.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import Any, Generic, Literal, TypedDict, TypeVar, get_args, overload

from redbeat.config.ping_urls import parse_ping_url
from redbeat.config.settings import MAX_MISFIRE_LIMIT
from redbeat.config.suggestions import did_you_mean
from redbeat.decoder import RedBeatJSONEncoder, decode
from redbeat.errors import EntryError
from redbeat.log.text import quoted
from redbeat.schedules.occurrences import Excluded
from redbeat.schedules.timezones import find_time_problem, instant_of, time_of, zone_called, zone_name

Value = TypeVar("Value")
Given = TypeVar("Given")

#: files in the time zone database that aren't usable zones; those in right/ count leap seconds
_NO_ZONE = re.compile(r"localtime|posixrules|Factory|right/.*", re.IGNORECASE)

AfterFinish = Literal["keep", "disable", "delete"]
Misfire = Literal["latest", "all", "earliest", "skip"]
Overlap = Literal["allow", "skip", "buffer_one", "replace"]
Tracks = Literal["task", "workflow"]
AFTER_FINISH: tuple[AfterFinish, ...] = get_args(AfterFinish)
MISFIRES: tuple[Misfire, ...] = get_args(Misfire)
OVERLAPS: tuple[Overlap, ...] = get_args(Overlap)
TRACKS: tuple[Tracks, ...] = get_args(Tracks)

#: the ``queue_timeout`` of an entry with an ``overlap`` but ``allow`` and none of its own; seconds. It is
#: finite, as a run that no worker ever takes (its queue was purged, say) would hold back the next for ever.
OVERLAP_QUEUE_SECONDS = 3600.0
#: the same of any other entry: when a run that nobody has started is told to be lost. A queue may be without
#: workers for a night, and nothing waits for that run, so a day; and its message doesn't expire.
PATIENT_QUEUE_SECONDS = 86_400.0

#: the longest length of time in a policy, and how a sentence says that 0 isn't one
MOST_SECONDS, ABOVE_0 = 10**10, "above 0 and up to"


@dataclass(frozen=True)
class Policy:
    """When an entry runs, besides its schedule. The defaults change nothing.

    Attributes:
        timezone: the IANA name of the time zone that the schedule goes by.
        start_time: nothing runs before it; UTC.
        end_time: nothing runs after it; UTC.
        max_runs: how often it runs at most, counted by total_run_count.
        one_off: it runs once.
        after_finish: what becomes of an entry that never runs again: 'keep', 'disable' or 'delete'.
        jitter: seconds; each run is sent later by an amount of its own, this much at most.
        expires_after: seconds; a run's message expires this long after its due time.
        misfire: what becomes of missed runs: 'latest', 'all', 'earliest' or 'skip'.
        misfire_limit: how many missed runs are made up for at most, with 'all'.
        misfire_grace_time: seconds; a run that is later than this is skipped.
        run_missed: when it is enabled again or changed, it makes up for the runs that were missed meanwhile.
        paused: it is paused; ``enabled`` is false then, too.
        pause_note: why it is paused.
        paused_by: who has paused it.
        paused_until: when the pause ends by itself; UTC.
        exclude: the name of a calendar; nothing runs on its days.
        overlap: what becomes of a run that is due while another one is in progress: 'allow' sends it, 'skip'
            doesn't, 'buffer_one' lets one wait, 'replace' revokes the one in progress first.
        max_runtime: seconds; a run that takes longer is overdue, and holds back no other.
        revoke_overdue: such a run is revoked.
        queue_timeout: seconds; a run that no worker has started this long after it was sent never will be.
        pause_after_failures: after how many failures in a row it is paused.
        resume_after: seconds; after how long that pause ends by itself.
        tracks: when a run is over: with its 'task', or with all that the task has sent, its 'workflow'.
        ping_url: what is called when a run starts, succeeds or fails. It is a secret.
        metrics: its runs are counted under its own name, however many entries there are.
        calendar: that calendar, once it is read.
    """

    timezone: str | None = None
    start_time: datetime | None = None
    end_time: datetime | None = None
    max_runs: int | None = None
    one_off: bool = False
    after_finish: str = "keep"
    jitter: float = 0.0
    expires_after: float | None = None
    misfire: str | None = None
    misfire_limit: int | None = None
    misfire_grace_time: float | None = None
    run_missed: bool = False
    paused: bool = False
    pause_note: str | None = None
    paused_by: str | None = None
    paused_until: datetime | None = None
    exclude: str | None = None
    overlap: str = "allow"
    max_runtime: float | None = None
    revoke_overdue: bool = False
    queue_timeout: float | None = None
    pause_after_failures: int | None = None
    resume_after: float | None = None
    tracks: str = "task"
    ping_url: str | None = field(default=None, repr=False)
    metrics: bool = False
    calendar: Excluded | None = field(default=None, compare=False, repr=False)

    @property
    def zone(self) -> tzinfo | None:
        """The zone that ``timezone`` names."""
        return None if self.timezone is None else zone_called(self.timezone)

    @property
    def needs_tracking(self) -> bool:
        """Whether a field of it can only be held to if the entry's runs are tracked."""
        return (
            self.overlap != "allow"
            or self.max_runtime is not None
            or self.queue_timeout is not None
            or self.pause_after_failures is not None
            or self.tracks == "workflow"
        )

    @property
    def queue_seconds(self) -> float:
        """How long a run may wait on its queue until it counts as never started."""
        seconds = self.message_queue_seconds
        return PATIENT_QUEUE_SECONDS if seconds is None else seconds

    @property
    def message_queue_seconds(self) -> float | None:
        """How long after it was sent a run's message expires; None: it doesn't, for waiting too long."""
        if self.queue_timeout is not None:
            return self.queue_timeout
        return None if self.overlap == "allow" else OVERLAP_QUEUE_SECONDS

    def is_finished(self, run_count: int) -> bool:
        """Tell whether an entry that has run ``run_count`` times has reached ``max_runs`` or ``one_off``."""
        return (self.one_off and run_count >= 1) or (self.max_runs is not None and run_count >= self.max_runs)

    def unbounded(self) -> Policy:
        """Return the policy without start_time, end_time and calendar."""
        return replace(self, start_time=None, end_time=None, calendar=None)

    def with_calendar(self, calendar: Excluded | None) -> Policy:
        """Return the policy with its calendar, by which ``next_run`` leaves out excluded days."""
        return replace(self, calendar=calendar)


NO_POLICY = Policy()


class PolicyFields(TypedDict, total=False):
    """The fields of a policy as arguments, for editors and type checkers; None sets the default."""

    timezone: str | tzinfo | None
    start_time: datetime | str | None
    end_time: datetime | str | None
    max_runs: int | None
    one_off: bool | None
    after_finish: AfterFinish | None
    jitter: float | timedelta | None
    expires_after: float | timedelta | None
    misfire: Misfire | None
    misfire_limit: int | None
    misfire_grace_time: float | timedelta | None
    run_missed: bool | None
    paused: bool | None
    pause_note: str | None
    paused_by: str | None
    paused_until: datetime | str | None
    exclude: str | None
    overlap: Overlap | None
    max_runtime: float | timedelta | None
    revoke_overdue: bool | None
    queue_timeout: float | timedelta | None
    pause_after_failures: int | None
    resume_after: float | timedelta | None
    tracks: Tracks | None
    ping_url: str | None
    metrics: bool | None


class PolicyField(Generic[Value, Given]):
    """An attribute of an entry that is a field of its policy; a value is checked when it is set."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, entry: None, owner: type) -> PolicyField[Value, Given]: ...

    @overload
    def __get__(self, entry: PolicyHolder, owner: type) -> Value: ...

    def __get__(self, entry: PolicyHolder | None, owner: type) -> PolicyField[Value, Given] | Value:
        if entry is None:
            return self
        own = entry.__dict__.get(self._name, self)
        return getattr(entry.policy, self._name) if own is self else own  # type: ignore[no-any-return]

    def __set__(self, entry: PolicyHolder, value: Given) -> None:
        if not entry.has_own(self._name):
            entry.set_policy({self._name: value})
            return
        # a subclass of 2.x times calls an attribute of its own so: what is usable is a policy, too
        entry.__dict__[self._name] = value
        usable = None if _find_problem(self._name, value) else value
        entry.set_policy({self._name: usable})


#: the fields of a policy, in the order in which they are written
FIELDS = tuple(one.name for one in fields(Policy) if one.name != "calendar")
NAMES = frozenset(FIELDS)
#: the fields of a pause, all of which are removed when it ends
PAUSE_FIELDS = ("paused", "pause_note", "paused_by", "paused_until")


class PolicyHolder:
    """The base of an entry that makes each field of its policy an attribute."""

    app: Any
    name: Any
    policy: Policy = NO_POLICY

    timezone = PolicyField[str | None, str | tzinfo | None]()
    start_time = PolicyField[datetime | None, datetime | str | None]()
    end_time = PolicyField[datetime | None, datetime | str | None]()
    max_runs = PolicyField[int | None, int | None]()
    one_off = PolicyField[bool, bool | None]()
    after_finish = PolicyField[str, AfterFinish | None]()
    jitter = PolicyField[float, float | timedelta | None]()
    expires_after = PolicyField[float | None, float | timedelta | None]()
    misfire = PolicyField[str | None, Misfire | None]()
    misfire_limit = PolicyField[int | None, int | None]()
    misfire_grace_time = PolicyField[float | None, float | timedelta | None]()
    run_missed = PolicyField[bool, bool | None]()
    paused = PolicyField[bool, bool | None]()
    pause_note = PolicyField[str | None, str | None]()
    paused_by = PolicyField[str | None, str | None]()
    paused_until = PolicyField[datetime | None, datetime | str | None]()
    exclude = PolicyField[str | None, str | None]()
    overlap = PolicyField[str, Overlap | None]()
    max_runtime = PolicyField[float | None, float | timedelta | None]()
    revoke_overdue = PolicyField[bool, bool | None]()
    queue_timeout = PolicyField[float | None, float | timedelta | None]()
    pause_after_failures = PolicyField[int | None, int | None]()
    resume_after = PolicyField[float | None, float | timedelta | None]()
    tracks = PolicyField[str, Tracks | None]()
    ping_url = PolicyField[str | None, str | None]()
    metrics = PolicyField[bool, bool | None]()

    @classmethod
    def has_own(cls, field: str) -> bool:
        """Return True if the constructor of a subclass names this field, so that it is the subclass's own."""
        return field in own_parameters(cls.__init__)

    def set_policy(self, changes: Mapping[str, Any]) -> None:
        """Change several fields of the policy at once.

        Raises:
            EntryError: there is no such field, or a value isn't allowed; nothing is changed.
        """
        for unknown in changes.keys() - NAMES:
            hint = did_you_mean(unknown, FIELDS)
            raise EntryError(f"{self.name}: a policy has no field {unknown!r}.{hint}", str(self.name))
        given = {field: getattr(self.policy, field) for field in FIELDS}
        try:
            self.policy = make_policy({**given, **changes}, self.app.timezone)
        except ValueError as exc:
            raise EntryError(f"{self.name}: {exc}", str(self.name)) from exc


@lru_cache(maxsize=64)
def own_parameters(constructor: Any) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a constructor that is not ours and not Celery's, by their names."""
    if constructor.__module__.partition(".")[0] in ("redbeat", "celery"):
        return {}
    return inspect.signature(constructor).parameters


def make_policy(given: Mapping[str, Any], zone: tzinfo) -> Policy:
    """Return the policy with the values ``given`` for its fields, by their names.

    Arguments:
        zone: the time zone of naive times, unless ``given`` has one.

    Raises:
        ValueError: a value isn't allowed; the message names the field and what is allowed.
    """
    if not any(name in given for name in FIELDS):
        return NO_POLICY
    values = {name: given[name] for name in FIELDS if given.get(name) is not None}
    if "timezone" in values:
        values["timezone"] = _timezone("timezone", values["timezone"])
        zone = zone_called(values["timezone"])
    for name in values.keys() - {"timezone"}:
        values[name] = _CHECKS[name](name, values[name])
    for name in values.keys() & {"start_time", "end_time", "paused_until"}:
        moment = values[name]
        is_naive = moment.tzinfo is None
        values[name] = instant_of(moment, zone) if is_naive else moment.astimezone(timezone.utc)
    policy = Policy(**values)
    if policy.expires_after is not None and policy.expires_after <= policy.jitter:
        raise ValueError("expires_after: must be more than jitter, or messages expire before they are sent.")
    if policy.start_time and policy.end_time and policy.start_time > policy.end_time:
        raise ValueError("end_time: must not be before start_time.")
    if policy.revoke_overdue and policy.max_runtime is None:
        raise ValueError("revoke_overdue: needs max_runtime, which says when a run is overdue.")
    if policy.resume_after is not None and policy.pause_after_failures is None:
        raise ValueError("resume_after: needs pause_after_failures, which says when the entry is paused.")
    return policy


def read_policy(
    definition: Mapping[str, Any], given: Mapping[str, Any], zone: tzinfo
) -> tuple[Policy, dict[str, str]]:
    """Return the policy of a stored entry, and the ignored fields of its definition, each with why.

    A definition may have fields of another program that are called like ours: those that are not usable are
    that program's.

    Arguments:
        given: the values of the field ``policy``, which count before those of the definition.
        zone: the time zone of naive times, unless the policy has one.

    Raises:
        ValueError: a value in ``given`` isn't allowed.
    """
    own = {
        name: definition[name] for name in FIELDS if name not in given and definition.get(name) is not None
    }
    reasons = {name: _find_problem(name, value) for name, value in own.items()}
    ignored = {name: reason for name, reason in reasons.items() if reason}
    usable = {name: value for name, value in own.items() if not reasons[name]}
    try:
        return make_policy({**usable, **given}, zone), ignored
    except ValueError as exc:
        if not usable:
            raise
        policy = make_policy(given, zone)  # if it can't be used by itself, that is the error
        return policy, {**ignored, **dict.fromkeys(usable, str(exc))}


def _find_problem(name: str, value: Any) -> str:
    try:
        (_timezone if name == "timezone" else _CHECKS[name])(name, value)
    except ValueError as exc:
        return str(exc)
    return ""


def decode_policy(text: str | None) -> dict[str, Any]:
    """Return the values in an entry's field ``policy``, unknown names included; {} for None.

    Raises:
        ValueError: the text isn't a JSON object.
    """
    if text is None:
        return {}
    values = decode(text)
    if values == []:  # PHP writes an empty object so
        return {}
    if not isinstance(values, dict):
        raise ValueError("must be an object.")
    return values


def encode_policy(policy: Policy, stored: str | None = None) -> str:
    """Return the policy's JSON, with the unknown names in ``stored``; '': there is nothing to store."""
    if not stored and (policy is NO_POLICY or policy == NO_POLICY):
        return ""
    try:
        before = decode_policy(stored)
    except (ValueError, RecursionError):
        before = {}
    values: dict[str, Any] = {name: value for name, value in before.items() if name not in FIELDS}
    for one in fields(Policy):
        value = getattr(policy, one.name)
        if one.name in FIELDS and value != one.default:
            values[one.name] = value
    return json.dumps(values, cls=RedBeatJSONEncoder) if values else ""


def _timezone(name: str, value: Any) -> str:
    if isinstance(value, tzinfo):
        value = zone_name(value) or ("UTC" if value is timezone.utc else value)
    if not isinstance(value, str):
        raise ValueError(
            f"{name}: must be the name of a time zone, such as 'Europe/Berlin', not {quoted(value)}."
        )
    if _NO_ZONE.fullmatch(value):
        raise ValueError(
            f"{name}: {value!r} can't be used as a zone: it differs between machines, or counts leap seconds."
        )
    try:
        zone_called(value)
    except ValueError as exc:
        raise ValueError(f"{name}: {exc}") from exc
    return value


def _time(name: str, value: Any) -> datetime:
    if isinstance(value, str):
        try:
            value = time_of(value)
        except ValueError as exc:
            raise ValueError(f"{name}: {value!r} is no time; write it as '2026-12-24T18:00'.") from exc
    problem = find_time_problem(value, first_year=1970)
    if problem:
        raise ValueError(f"{name}: {problem}")
    moment: datetime = value
    return moment


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name}: must be a whole number from 1, not {quoted(value)}.")
    return value


def _limit(name: str, value: Any) -> int:
    if _count(name, value) > MAX_MISFIRE_LIMIT:
        raise ValueError(f"{name}: must be {MAX_MISFIRE_LIMIT} at the most, not {quoted(value)}.")
    return int(value)


def _seconds(name: str, value: Any, allowed: str = "from 0 to") -> float:
    seconds = getattr(value, "total_seconds", lambda: value)()
    is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not is_number or not 0 <= seconds <= MOST_SECONDS:
        raise ValueError(
            f"{name}: must be a number of seconds {allowed} {MOST_SECONDS}, not {quoted(value)}."
        )
    return seconds  # type: ignore[no-any-return]


def _patience(name: str, value: Any) -> float:
    if not (seconds := _seconds(name, value, ABOVE_0)):
        raise ValueError(f"{name}: must be more than 0 seconds, or nothing ever runs.")
    return seconds


def _length(name: str, value: Any) -> float:
    if not (seconds := _seconds(name, value, ABOVE_0)):
        raise ValueError(
            f"{name}: must be a number of seconds {ABOVE_0} {MOST_SECONDS}, not {quoted(value)}."
        )
    return seconds


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{name}: must be true or false, not {quoted(value)}.")
    return value


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name}: must be text, not {quoted(value)}.")
    return value


def _name(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name}: must be the name of a calendar, not {quoted(value)}.")
    return value


def _ping_url(name: str, value: Any) -> str:
    try:
        parse_ping_url(value)
    except ValueError as exc:
        raise ValueError(f"{name}: {exc}") from exc
    return str(value)


def _one_of(words: tuple[str, ...]) -> Callable[[str, Any], str]:
    def check(name: str, value: Any) -> str:
        if value not in words:
            raise ValueError(f"{name}: must be one of {', '.join(map(repr, words))}, not {quoted(value)}.")
        return str(value)

    return check


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "start_time": _time,
    "end_time": _time,
    "max_runs": _count,
    "one_off": _flag,
    "after_finish": _one_of(AFTER_FINISH),
    "jitter": _seconds,
    "expires_after": _patience,
    "misfire": _one_of(MISFIRES),
    "misfire_limit": _limit,
    "misfire_grace_time": _patience,
    "run_missed": _flag,
    "paused": _flag,
    "pause_note": _text,
    "paused_by": _text,
    "paused_until": _time,
    "exclude": _name,
    "overlap": _one_of(OVERLAPS),
    "max_runtime": _length,
    "revoke_overdue": _flag,
    "queue_timeout": _patience,
    "pause_after_failures": _count,
    "resume_after": _length,
    "tracks": _one_of(TRACKS),
    "ping_url": _ping_url,
    "metrics": _flag,
}
