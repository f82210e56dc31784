"""One schedule beside a task: what it says, and where it stands. Pure.

Invariant: a declaration can be made an entry, whatever the application's settings are. It is checked by the
code that makes entries, with a stand-in for the application, whose settings may not be loaded yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field
from datetime import timezone
from types import CodeType, FrameType, SimpleNamespace
from typing import Any

from celery.schedules import BaseSchedule

from redbeat.config.suggestions import did_you_mean
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.notation import SCHEDULE_FORMS
from redbeat.entries.validation import find_priority_problem
from redbeat.errors import DeclarationError, EntryError
from redbeat.keys import DEFAULT_PREFIX, RESERVED_NAMES, Keys
from redbeat.policy.policy import FIELDS
from redbeat.store.records import Stored

#: the keywords that say when it runs, one of which must be given
FORMS = ("cron", "every", "at", "rrule", "schedule")
#: those of an entry that are given by their own names
_ENTRY_FIELDS = ("args", "kwargs", "options", "enabled")
KEYWORDS = (*FORMS, "relative", "name", *_ENTRY_FIELDS, *FIELDS)

#: what is often given to ``apply_async``, and belongs into ``options``
OPTIONS = ("queue", "priority", "expires", "routing_key", "exchange", "headers", "time_limit", "serializer")

#: stands in for an application: checks need a zone for naive times, and names that no entry may have
_NO_APP: Any = SimpleNamespace(
    timezone=timezone.utc,
    redbeat_conf=SimpleNamespace(reserved_names=RESERVED_NAMES, keys=Keys(DEFAULT_PREFIX)),
)
#: stands in for the name that an entry gets from its task
_NO_NAME = "unnamed"


@dataclass(frozen=True, eq=False)
class Declaration:
    """What one ``@scheduled`` says.

    Attributes:
        name: the entry's; None: that of its task.
        fields: the other arguments of the entry, but its task.
        place: where it stands: 'file:line'.
        code: what is executed there; a module that is imported again has another one.
        over: what is known of the ``shared_task``, or the task of ``django.tasks``, over which it stands, if
            any. As the registry of declarations is a weak one, it must not hold the task's function.
    """

    name: str | None
    fields: Mapping[str, Any]
    place: str
    code: CodeType = field(repr=False)
    over: Any = None

    def is_again(self, other: Declaration) -> bool:
        """Return True if it replaces ``other``, as the same module was imported again."""
        code, before = self.code, other.code
        is_of_file = code.co_filename == before.co_filename and code.co_name == before.co_name == "<module>"
        return code is not before and (is_of_file or self.place == other.place)

    @property
    def args(self) -> tuple[Any, ...]:
        """The positional arguments of a run."""
        return tuple(self.fields.get("args") or ())

    @property
    def kwargs(self) -> Mapping[str, Any]:
        """The arguments of a run that are given by name."""
        return self.fields.get("kwargs") or {}

    def entry_fields(self) -> dict[str, Any]:
        """Return the arguments of an entry but its name, task and application, for one application."""
        return _with_own_schedule(self.fields)

    def fault(self, problem: str, *others: str) -> DeclarationError:
        """Return the error that tells of a problem with it, with the places of ``others``."""
        places = (self.place, *others)
        return DeclarationError(f"{self.place}: @scheduled: {problem}", self.name or "", places)


def make_declaration(given: Mapping[str, Any], frame: FrameType) -> Declaration:
    """Return the declaration with the keywords that ``scheduled`` was ``given``, called by ``frame``.

    Raises:
        DeclarationError: one of them can't be used.
    """
    fields = {keyword: value for keyword, value in given.items() if value is not None}
    name, code = fields.pop("name", None), frame.f_code
    declaration = Declaration(name, fields, f"{code.co_filename}:{frame.f_lineno}", code)
    for keyword in sorted(fields.keys() - set(KEYWORDS)):
        if keyword in OPTIONS:
            raise declaration.fault(f"{keyword}: is one of the options, options={{{keyword!r}: ...}}.")
        raise declaration.fault(f"there is no keyword {keyword!r}.{did_you_mean(keyword, KEYWORDS)}")
    forms = [form for form in FORMS if form in fields]
    if len(forms) != 1:
        known = ", ".join(f"{form}=" for form in FORMS)
        but = f", not {' and '.join(forms)}" if forms else ""
        raise declaration.fault(f"needs just one of {known}, which say when it runs{but}.")
    [form] = forms
    if "relative" in fields and form != "every":
        raise declaration.fault(f"relative: goes with every=, not with {form}=.")
    if form != "schedule":
        keys = {form} | SCHEDULE_FORMS[form]
        fields["schedule"] = {key: fields.pop(key) for key in keys & fields.keys()}
    for mapping in fields.keys() & {"kwargs", "options"}:
        if isinstance(fields[mapping], Mapping):
            fields[mapping] = dict(fields[mapping])
    try:
        _check(_NO_NAME if name is None else name, fields)
    except EntryError as exc:
        raise declaration.fault(str(exc)) from exc.__cause__
    return declaration


def _with_own_schedule(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``fields`` with a schedule of their own, as it will know its application."""
    schedule = fields["schedule"]
    return {**fields, "schedule": copy(schedule) if isinstance(schedule, BaseSchedule) else schedule}


def _check(name: Any, fields: Mapping[str, Any]) -> None:
    """Raise EntryError, without the entry's name in it, if no entry can be made of this."""
    try:
        entry = RedBeatSchedulerEntry(name, "task", **_with_own_schedule(fields), app=_NO_APP)
        encoded = entry.encode(Stored(entry.key))
        problem = find_priority_problem(entry.options.get("priority"))
        if problem:
            raise EntryError(f"{name}: options: priority {problem}.", encoded)
    except EntryError as exc:
        said = str(exc).removeprefix(f"{DEFAULT_PREFIX}{name}: ").removeprefix(f"{name}: ")
        raise EntryError(said, str(name)) from exc.__cause__
