"""An entry's policy: everything about when it runs that its schedule doesn't say. Pure.

Owns the table of the fields, and their JSON in the field ``policy`` of an entry's hash.
Invariant: a definition can be used without its policy, as celery-redbeat 2.x doesn't read it.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timezone, tzinfo
from functools import lru_cache
from typing import Any

from celery.schedules import BaseSchedule

from redbeat.config.settings import MAX_MISFIRE_LIMIT
from redbeat.config.suggestions import did_you_mean
from redbeat.decoder import RedBeatJSONEncoder, decode
from redbeat.errors import EntryError
from redbeat.policy.fields import Choice, DefinitionRow, Kind, Row, row
from redbeat.policy.typed import PolicyAttributes
from redbeat.policy.typed import PolicyFields as PolicyFields
from redbeat.schedules.occurrences import Excluded
from redbeat.schedules.timezones import instant_of, zone_called

#: the ``queue_timeout`` of an entry with an ``overlap`` but ``allow`` and none of its own; seconds. It is
#: finite, as a run that no worker ever takes (its queue was purged, say) would hold back the next for ever.
OVERLAP_QUEUE_SECONDS = 3600.0
#: the same of any other entry: when a run that no worker has started counts as lost. A queue may be without
#: workers for a night, and nothing waits for that run, so a day; and its message doesn't expire.
PATIENT_QUEUE_SECONDS = 86_400.0

#: the parts of a form in which fields stand; the fields of a pause are removed when it ends
WHEN, PAUSE, MISSED, RUNS = "When", "State", "Missed runs", "Overlap and limits"
MESSAGES = "Messages, metrics and pings"


#: the fields of a definition, which the policy doesn't repeat
DEFINITION: Mapping[str, DefinitionRow] = {
    "name": DefinitionRow(
        str, "a string", "Name", "The key without its prefix. Where the two differ, the key counts."
    ),
    "task": DefinitionRow(str, "the name of a task", "Task", "The name of the task.", "proj.tasks.report"),
    "args": DefinitionRow(
        (list, tuple), "a list", "Arguments", "Positional arguments, a JSON array.", "[1, 2]"
    ),
    "kwargs": DefinitionRow(  # dict first, as it is found faster
        (dict, Mapping), "an object", "Keyword arguments", "A JSON object.", '{"x": 1}'
    ),
    "options": DefinitionRow(
        (dict, Mapping), "an object", "Options", "Of apply_async, a JSON object.", '{"expires": 60}'
    ),
    "schedule": DefinitionRow(
        BaseSchedule, "an object with one of the __type__ {}", "Schedule",
        "When it runs. Kinds that an application registered itself aren't told of here.",
    ),
    "enabled": DefinitionRow(
        bool, "true or false", "Enabled", "false, as well as null, keeps the entry and does not run it."
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Policy:
    """When an entry runs, besides its schedule, and what holds for its runs: THE table of these fields.

    The defaults change nothing. Times are in UTC, lengths of time in seconds. ``calendar`` is the one that
    ``exclude`` names, once it is read.
    """

    # fmt: off
    timezone: str | None = row(
        Kind.ZONE, WHEN, "The time zone of the schedule.",
        label="Time zone", example="Europe/Berlin", otherwise="the application's",
    )
    start_time: datetime | None = row(
        Kind.TIME, WHEN, "No run before this time.",
        label="Not before", example="2030-01-01T00:00", phrase="not before {}",
    )
    end_time: datetime | None = row(
        Kind.TIME, WHEN, "No run after this time.",
        label="Not after", example="2030-12-31T23:59", phrase="not after {}",
    )
    max_runs: int | None = row(
        Kind.COUNT, WHEN, "Never run again after this many runs.",
        label="Most runs", phrase="{} times at the most",
    )
    one_off: bool = row(Kind.FLAG, WHEN, "Never run again after one run.", default=False, phrase="once")
    after_finish: str = row(
        Kind.CHOICE, WHEN, "What to do with an entry that never runs again.",
        label="When it never runs again", default="keep",
        choices=(Choice("keep"), Choice("disable"), Choice("delete")),
    )
    jitter: float = row(
        Kind.DELAY, WHEN, "Delay each run by up to this time.",
        label="Jitter", example="30s", default=0.0, otherwise="0", phrase="up to {} later",
    )
    expires_after: float | None = row(
        Kind.LENGTH, RUNS,
        "Skip the message when a worker has not started it within this time after the run was due.",
        label="Expires after", example="30m",
    )
    misfire: str | None = row(
        Kind.CHOICE, MISSED, "What to send of the runs that were missed.",
        label="Of missed runs, send", otherwise="redbeat_misfire",
        choices=(
            Choice("latest", "the latest"),
            Choice("all", "all, up to misfire_limit"),
            Choice("earliest", "the earliest"),
            Choice("skip", "none"),
        ),
    )
    misfire_limit: int | None = row(
        Kind.COUNT, MISSED, "With misfire all: send at most this many, the latest.",
        label="At most", most=MAX_MISFIRE_LIMIT, otherwise="redbeat_misfire_limit",
    )
    misfire_grace_time: float | None = row(
        Kind.LENGTH, MISSED, "Skip a run that is later than this.",
        label="Skip those later than", example="1h", otherwise="redbeat_misfire_grace_time",
    )
    run_missed: bool = row(
        Kind.FLAG, MISSED, "At the end of a pause, send the runs missed in it as misfire says.",
        default=False, otherwise="skip them",
    )
    paused: bool = row(
        Kind.FLAG, PAUSE, "The entry is paused; the definition's enabled is false then.", default=False
    )
    pause_note: str | None = row(Kind.TEXT, PAUSE, "Why the entry is paused.")
    paused_by: str | None = row(Kind.TEXT, PAUSE, "The user who paused the entry.")
    paused_until: datetime | None = row(
        Kind.TIME, PAUSE, "When the pause ends by itself.",
        label="Paused until", example="2h, tomorrow 9:00", otherwise="it has no end",
    )
    exclude: str | None = row(
        Kind.NAME, WHEN, "The calendar on whose days the entry doesn't run.",
        label="Except on the days of", phrase="except on {}",
    )
    overlap: str = row(
        Kind.CHOICE, RUNS, "What to do when a run is due while another one is in progress.",
        label="When a run is due while another is in progress", default="allow",
        choices=(
            Choice("allow", "send it"),
            Choice("skip", "skip it", "not while a run is in progress"),
            Choice("buffer_one", "let one wait", "after the run in progress"),
            Choice("replace", "revoke the one in progress first", "in place of the run in progress"),
        ),
    )
    max_runtime: float | None = row(
        Kind.LENGTH, RUNS, "A run that takes longer is overdue, and holds back no other.",
        label="Overdue after", example="10m",
    )
    revoke_overdue: bool = row(
        Kind.FLAG, RUNS, "Revoke a run that is overdue; needs max_runtime.", default=False, otherwise="no"
    )
    queue_timeout: float | None = row(
        Kind.LENGTH, RUNS,
        "Give up a run that no worker has started within this time after it was sent; its message expires "
        "then.",
        label="Given up on its queue after", example="1h",
        otherwise="1h; with overlap allow a day, and the message doesn't expire",
    )
    pause_after_failures: int | None = row(
        Kind.COUNT, RUNS, "Pause the entry after this many failures in a row.",
        label="Paused after so many failures in a row", otherwise="never",
    )
    resume_after: float | None = row(
        Kind.LENGTH, RUNS, "End a pause by pause_after_failures after this time.",
        label="That pause ends after", example="1h", otherwise="it has no end",
    )
    tracks: str = row(
        Kind.CHOICE, RUNS, "When a run is over.", label="A run is over with", default="task",
        choices=(Choice("task", "with its task"), Choice("workflow", "with all that its task has sent")),
    )
    ping_url: str | None = row(
        Kind.URL, MESSAGES,
        "Call URL/start when a run starts, URL when it succeeds and URL/fail when it fails. Beat calls the "
        "hosts in redbeat_ping_hosts only. The URL is a secret, and shown masked.",
        label="Ping URL",
    )
    metrics: bool = row(
        Kind.FLAG, MESSAGES,
        "Count its runs under its own name in the metrics, however many entries there are.",
        default=False, otherwise="no",
    )
    # fmt: on
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
        """Return True if an entry that has run so often has reached ``max_runs`` or ``one_off``."""
        return (self.one_off and run_count >= 1) or (self.max_runs is not None and run_count >= self.max_runs)

    def unbounded(self) -> Policy:
        """Return the policy without start_time, end_time and calendar."""
        return replace(self, start_time=None, end_time=None, calendar=None)

    def with_calendar(self, calendar: Excluded | None) -> Policy:
        """Return the policy with its calendar, by which ``next_run`` leaves out excluded days."""
        return replace(self, calendar=calendar)


NO_POLICY = Policy()


def _find_conflict(policy: Policy) -> str:
    """Return which field doesn't fit to another one, and why; '': they fit."""
    if policy.expires_after is not None and policy.expires_after <= policy.jitter:
        return "expires_after: must be more than jitter, or messages expire before they are sent."
    if policy.start_time and policy.end_time and policy.start_time > policy.end_time:
        return "end_time: must not be before start_time."
    if policy.revoke_overdue and policy.max_runtime is None:
        return "revoke_overdue: needs max_runtime, which says when a run is overdue."
    if policy.resume_after is not None and policy.pause_after_failures is None:
        return "resume_after: needs pause_after_failures, which says when the entry is paused."
    return ""


#: the rows of the table by their names, in the order in which the fields are written
ROWS: dict[str, Row] = {one.name: one.metadata["row"] for one in fields(Policy) if one.metadata}
FIELDS = tuple(ROWS)
NAMES = frozenset(ROWS)
#: the fields of a pause, all of which are removed when it ends
PAUSE_FIELDS = tuple(name for name, row in ROWS.items() if row.group == PAUSE)
#: the fields that are lengths of time
LENGTHS = tuple(name for name, row in ROWS.items() if row.kind in (Kind.DELAY, Kind.LENGTH))


class PolicyHolder(PolicyAttributes):
    """The base of an entry that makes each field of its policy an attribute."""

    app: Any
    name: Any
    policy: Policy = NO_POLICY

    def set_field(self, name: str, value: Any) -> None:
        """Change a field of the policy.

        The constructor of a subclass of 2.x times may take an attribute of this name: what is usable is a
        policy, too.
        """
        if name in own_parameters(type(self).__init__):
            self.__dict__[name] = value
            try:
                _checked(name, value)
            except ValueError:
                value = None
        self.set_policy({name: value})

    def set_policy(self, changes: Mapping[str, Any]) -> None:
        """Change several fields of the policy at once.

        Raises:
            EntryError: there is no such field, or a value isn't allowed; nothing is changed.
        """
        for unknown in changes.keys() - NAMES:
            hint = did_you_mean(unknown, FIELDS)
            raise EntryError(f"{self.name}: a policy has no field {unknown!r}.{hint}", str(self.name))
        try:
            self.policy = make_policy({**given_of(self.policy), **changes}, self.app.timezone)
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
    if NAMES.isdisjoint(given):
        return NO_POLICY
    values = {name: _checked(name, given[name]) for name in FIELDS if given.get(name) is not None}
    zone = zone_called(values["timezone"]) if "timezone" in values else zone
    for name, value in values.items():
        if isinstance(value, datetime):
            is_naive = value.tzinfo is None
            values[name] = instant_of(value, zone) if is_naive else value.astimezone(timezone.utc)
    policy = Policy(**values)
    problem = _find_conflict(policy)
    if problem:
        raise ValueError(problem)
    return policy


def _checked(name: str, value: Any) -> Any:
    try:
        return ROWS[name].kind.check(value, ROWS[name])
    except ValueError as exc:
        raise ValueError(f"{name}: {exc}") from exc


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
    policy, values, ignored = make_policy(given, zone), dict(given), dict[str, str]()
    for name in FIELDS:
        if name in given or definition.get(name) is None:
            continue
        try:
            policy = make_policy({**values, name: definition[name]}, zone)
        except ValueError as exc:
            ignored[name] = str(exc)
        else:
            values[name] = definition[name]
    return policy, ignored


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


def given_of(policy: Policy) -> dict[str, Any]:
    """Return the fields that aren't defaults."""
    if policy is NO_POLICY:  # most entries in a long list have none
        return {}
    values = {name: getattr(policy, name) for name in FIELDS}
    return {name: value for name, value in values.items() if value != ROWS[name].default}


def encode_policy(policy: Policy, stored: str | None = None) -> str:
    """Return the policy's JSON, with the unknown names in ``stored``; '': there is nothing to store."""
    if not stored and (policy is NO_POLICY or policy == NO_POLICY):
        return ""
    try:
        before = decode_policy(stored)
    except (ValueError, RecursionError):
        before = {}
    values: dict[str, Any] = {name: value for name, value in before.items() if name not in FIELDS}
    values |= given_of(policy)
    return json.dumps(values, cls=RedBeatJSONEncoder) if values else ""
