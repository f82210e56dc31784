"""Files of entries and calendars: planned, applied, imported and exported.

Invariant: no hidden argument and no secret leaves the dashboard with a plan or an export, and a file that has
come back with their marks stores what the marks stand for, or nothing at all.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import tzinfo
from itertools import islice
from typing import Annotated, Any, ClassVar

from redbeat.access import Right
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.loading import try_decode
from redbeat.entries.wording import one_line, when_in
from redbeat.errors import ArgumentInvalid, FileError
from redbeat.keys import is_owner_name
from redbeat.log.text import counted, printable
from redbeat.manifest.format import Declared, decode_file, read_file
from redbeat.manifest.plan import (
    MAX_ENTRIES,
    Plan,
    Progress,
    apply_plan,
    make_plan,
    read_with_owners,
    shown_fields,
)
from redbeat.manifest.transfer import Exported, export_entries, plan_import
from redbeat.operations.actor import Actor
from redbeat.operations.editing import DryRun, words_of_other_task
from redbeat.operations.hiding import (
    FIELDS,
    HIDDEN,
    UNREADABLE,
    Hiding,
    hidden_in,
    hide,
    hide_details,
    kept_hidden,
    left_hidden,
    restore,
    without_hidden,
)
from redbeat.operations.operation import Option, operation
from redbeat.operations.selection import Match
from redbeat.schedules.timezones import time_of
from redbeat.store.members import total_of
from redbeat.store.records import Change
from redbeat.store.store import Store

#: how many entries or calendars are shown of each kind, and how many days of each calendar
MAX_SHOWN, MAX_DAYS_SHOWN = 200, 10

Confirm = Callable[[Plan, str], bool]

#: fields that are times
_TIMES = ("start_time", "end_time", "paused_until", "last_run_at", "next_run")


File = Annotated[
    Declared,
    Option("The file.", media=("application/json", "application/yaml", "application/x-yaml", "text/yaml")),
]
Owner = Annotated[str | None, Option("Owner of the entries. Default: 'owner:' in the file.")]
PlanSeen = Annotated[
    str | None, Option("The ETag of a plan: another plan is not carried out (412).", header="If-Match")
]


@dataclass(frozen=True)
class FileToApply:
    """A file of entries to apply."""

    declared: File
    owner: Owner = None
    prune: Annotated[
        bool, Option("Also remove this owner's entries and calendars that aren't in the file.")
    ] = False
    take_over: Annotated[bool, Option("Take over entries of other owners, instead of refusing them.")] = False
    verb: ClassVar[str] = "apply"

    def plan(self, app: Any, declared: Declared, progress: Progress) -> Plan:
        """Return what applying ``declared``, the file without marks, would do."""
        return make_plan(
            app, declared, self.owner, prune=self.prune, take_over=self.take_over, progress=progress
        )


@dataclass(frozen=True)
class FileToImport:
    """A file that ``export`` has written, to import.

    Attributes:
        may_exist: names that are overwritten in any case.
    """

    declared: File
    owner: Owner = None
    replace: Annotated[bool, Option("Overwrite stored entries of the same names.")] = False
    may_exist: frozenset[str] = frozenset()
    verb: ClassVar[str] = "import"

    def plan(self, app: Any, declared: Declared, _progress: Progress) -> Plan:
        """Return what importing ``declared``, the file without marks, would do."""
        return plan_import(
            app, declared, owner=self.owner, replace_existing=self.replace, may_exist=self.may_exist
        )


FileChange = FileToApply | FileToImport


@dataclass(frozen=True)
class Applied:
    """How a change by a file ended.

    Attributes:
        plan: the last that was made of it.
        is_done: it was carried out; False: it wasn't confirmed, and nothing was changed.
        is_dry_run: the plan was only made.
    """

    plan: Plan
    is_done: bool
    is_dry_run: bool = False


@operation("file.plan", Right.EDIT, "plan", "PUT /plan")
def plan_file(actor: Actor, change: FileToApply, *, progress: Progress = lambda _count: None) -> Applied:
    """What applying a file would change; nothing is done."""
    return _carry_out(actor, change, dry_run=True, progress=progress)


@operation("file.apply", Right.EDIT, "apply", "PUT /apply")
def apply_file(
    actor: Actor,
    change: FileToApply,
    *,
    seen: PlanSeen = None,
    dry_run: bool = False,
    confirm: Confirm = lambda _plan, _why: True,
    progress: Progress = lambda _count: None,
) -> Applied:
    """Store the entries of a file, all in one step.

    Arguments:
        seen: the ``fingerprint`` of the plan that the user has confirmed: no other is carried out. None: any.
        confirm: called with the plan, and with the reason why it was made again, '' for the first one.

    Raises:
        ArgumentInvalid: the owner isn't a name.
        FileError: something in the file can't be used, is stored already, or (OwnedByOthers) belongs to
            others.
        AccessDenied: one of its tasks isn't allowed here.
        EntryChanged: entries change all the time.
    """
    if change.prune and not dry_run:
        actor.require(Right.DELETE)
    return _carry_out(actor, change, seen, dry_run=dry_run, confirm=confirm, progress=progress)


@operation("file.import", Right.EDIT, "import", "PUT /import")
def import_file(
    actor: Actor,
    change: FileToImport,
    *,
    dry_run: DryRun = False,
    seen: PlanSeen = None,
    confirm: Confirm = lambda _plan, _why: True,
    progress: Progress = lambda _count: None,
) -> Applied:
    """Store the entries that export has written.

    Arguments, Raises: as ``apply_file``.
    """
    return _carry_out(actor, change, seen, dry_run=dry_run, confirm=confirm, progress=progress)


def _carry_out(
    actor: Actor,
    change: FileChange,
    seen: str | None = None,
    *,
    dry_run: bool,
    confirm: Confirm = lambda _plan, _why: True,
    progress: Progress,
) -> Applied:
    wanted = None if seen in (None, "*") else str(seen).strip('"')
    made: list[Plan] = []

    def make() -> Plan:
        made[:] = [_plan(actor, change, progress)]
        return made[0]

    def is_confirmed(plan: Plan, why: str) -> bool:
        return (wanted is None or wanted == fingerprint(actor, plan)) and confirm(plan, why)

    def audited(plan: Plan) -> AbstractContextManager[None]:
        given = {name: getattr(change, name, None) for name in ("owner", "prune", "take_over", "replace")}
        details = {name: value for name, value in given.items() if value}
        names, origin = plan.names, change.declared.origin
        return actor.doing(change.verb, names, {"file": origin, **details, **plan.counts})

    if dry_run:
        return Applied(make(), is_done=False, is_dry_run=True)
    actor.user.require_adding()
    done = apply_plan(make, is_confirmed, audited)
    return Applied(made[0] if done is None else done, done is not None)


def _plan(actor: Actor, change: FileChange, progress: Progress) -> Plan:
    if change.owner is not None and not is_owner_name(change.owner):
        raise ArgumentInvalid("owner", f"must be a name without control characters, not {change.owner!r}.")
    if not actor.has_shell:
        _require_calls(actor, _calls_of(change.declared))
    made = change.plan(actor.app, _complete(actor, change.declared), progress)
    if not actor.has_shell:
        texts = (one.stored.definition for one in made.changes if one.is_stored)
        _require_calls(actor, (call for call in map(_call_in, texts) if call[0]))
    return made


@operation("file.export", Right.EDIT, "export", "GET /export", is_heavy=True)
def export_file(
    actor: Actor,
    *,
    match: Match = None,
    owner: Annotated[str | None, Option("Only entries of this owner.")] = None,
    with_history: Annotated[bool, Option("Include the records of past runs.", called="history")] = False,
    kind: Annotated[
        str, Option("The format of the file.", choices=("json", "yaml"), called="format")
    ] = "json",
    progress: Progress = lambda _count: None,
) -> Exported:
    """The entries as a file.

    The dashboard's has no secrets, and marks in place of hidden arguments. An entry in which they can't be
    told apart is left out; the command line exports it.
    """
    count = total_of(Store(actor.app))
    if actor.source == "api" and count > MAX_ENTRIES:
        raise FileError(
            f"There are {counted(count, 'entry', 'entries')}, more than one answer takes; celery redbeat "
            "export writes them.",
            "export",
        )
    found = export_entries(actor.app, match, owner, progress, with_history=with_history)
    entries, skipped = dict(found.declared.entries), [*found.skipped]
    for name, item in found.declared.entries.items() if not actor.has_shell else ():
        stored = item.get("stored") or {}
        error = str(stored.get("error"))
        if _may_have_hidden(stored, actor.hiding) or without_hidden(error, item, actor.hiding) != error:
            skipped.append(f"{printable(name)}: it may have hidden arguments in an unusual form.")
            del entries[name]
        else:
            entries[name] = hide(item, actor.hiding)
    return Exported(replace(found.declared, entries=entries), skipped, kind == "json")


def declared_in(body: bytes, origin: str = "body") -> Declared:
    """Return the contents of a file that was sent."""
    if not body:
        raise FileError(f"{origin}: is empty.", origin)
    return read_file(decode_file(body, origin), origin)


# -- plans, as they are shown


def document_of(actor: Actor, made: Plan) -> dict[str, Any]:
    """Return what a plan would change as plain JSON, without secrets and hidden arguments."""
    document = made.to_dict()
    if actor.has_shell:
        return document
    for kind in ("added", "removed"):
        document[kind] = {name: hide(fields, actor.hiding) for name, fields in document[kind].items()}
    changes = {Store(actor.app).keys.name(change.stored.key): change for change in made.changes}
    for name, fields in document["changed"].items():
        tasks = [_call_in(text)[0] for text in _definitions_of(changes[name])] if "args" in fields else []
        before, after = (
            hide({one: values[when] for one, values in fields.items()}, actor.hiding, *tasks)
            for when in ("before", "after")
        )
        document["changed"][name] = {one: {"before": before[one], "after": after[one]} for one in fields}
    return document


def _definitions_of(change: Change) -> Iterator[Any]:
    """Yield the definition that an entry has, and the one that it gets."""
    yield change.stored.definition
    if change.write is not None:
        yield change.write.definition


def fingerprint(actor: Actor, made: Plan) -> str:
    """Return a digest that tells one plan, as its user sees it, from another."""
    text = json.dumps(document_of(actor, made), sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def lines_of(document: Mapping[str, Any], zone: tzinfo) -> Iterator[tuple[str, str]]:
    """Yield the lines that show a plan, each with its sign: '+', '~' or '-'."""
    for prefix, of, most in (("", document, None), ("calendar ", document["calendars"], MAX_DAYS_SHOWN)):
        for kind, sign in (("added", "+"), ("changed", "~"), ("removed", "-")):
            for name, fields in islice(of[kind].items(), MAX_SHOWN):
                yield sign, f"{prefix}{one_line(name)}"
                for field_name, value in islice(fields.items(), most):
                    its_sign, shown = _change_in_words(sign, field_name, value, zone)
                    yield its_sign, f"    {one_line(field_name)}{f': {shown}' if shown else ''}"
                if most is not None and len(fields) > most:
                    yield sign, f"    and {len(fields) - most} more"
            if len(of[kind]) > MAX_SHOWN:
                yield sign, f"and {len(of[kind]) - MAX_SHOWN} more"


def _change_in_words(sign: str, name: str, value: Any, zone: tzinfo) -> tuple[str, str]:
    """Return a field's value, or both values of a changed one, and whether it comes, changes or goes."""
    if sign != "~":
        return sign, _shown(name, value, zone)
    before, after = (_shown(name, value[when], zone) for when in ("before", "after"))
    if value["before"] is None or value["after"] is None:
        return ("+", after) if value["before"] is None else ("-", before)
    return "~", f"{before} (another value, hidden)" if before == after else f"{before} -> {after}"


def _shown(name: str, value: Any, zone: tzinfo) -> str:
    if name in _TIMES and isinstance(value, str):
        try:
            moment = time_of(value)
        except ValueError:
            return one_line(value)
        return one_line(value) if moment.tzinfo is None else when_in(moment, zone)
    return one_line(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))


def summary_of(document: Mapping[str, Any], *, is_done: bool = False) -> str:
    """Return how many entries and calendars would be changed, or were, a sentence."""
    words = ("added", "changed", "removed") if is_done else ("to add", "to change", "to remove")
    kinds = dict(zip(("added", "changed", "removed", "same"), (*words, "the same"), strict=True))

    def numbers(of: Mapping[str, Any]) -> str:
        return ", ".join(f"{len(of[kind])} {word}" for kind, word in kinds.items())

    calendars = document["calendars"]
    has_calendars = any(calendars[kind] for kind in kinds)
    return f"Entries: {numbers(document)}." + (f" Calendars: {numbers(calendars)}." if has_calendars else "")


def left_of(document: Mapping[str, Any]) -> list[str]:
    """Return the names of what isn't in the file any more, and stays."""
    return [*document["left"], *(f"calendar {name}" for name in document["calendars"]["left"])]


# -- tasks that are allowed


def _require_calls(actor: Actor, calls: Iterator[tuple[str, Any]]) -> None:
    allowed = set[str]()
    for task, options in calls:
        if options or task not in allowed:
            actor.require_call(task, options)
            allowed.add(task)


def _calls_of(declared: Declared) -> Iterator[tuple[str, Any]]:
    """Yield each task in a file, and the options that it is given."""
    for fields in declared.entries.values():
        if "task" in fields:
            yield str(fields["task"]), fields.get("options")
        definition = (fields.get("stored") or {}).get("definition")
        if definition is not None:
            yield _call_in(definition)


def _call_in(definition: Any) -> tuple[str, Any]:
    """Return the task and the options of a definition, '' for no task that can be read."""
    try:
        fields = json.loads(definition) if isinstance(definition, str) else definition
    except (ValueError, RecursionError):
        return "", None
    task, options = (fields.get("task"), fields.get("options")) if isinstance(fields, dict) else (None, None)
    return (task if isinstance(task, str) else ""), options


# -- hidden arguments


def _complete(actor: Actor, declared: Declared) -> Declared:
    """Return a file with the stored values in place of the marks that an export has put there.

    Raises:
        FileError: nothing that a mark may stand for is stored.
    """
    if actor.has_shell:
        return declared
    hiding, store = actor.hiding, Store(actor.app)
    try:
        marked = [
            name
            for name, fields in declared.entries.items()
            if "ping_url" in fields or _may_have_marks(fields, hiding)
        ]
    except RecursionError:
        raise declared.fault((), "is nested too deeply.") from None
    if not marked:
        return declared
    entries = dict(declared.entries)
    _, found = read_with_owners(store, [store.keys.entry(name) for name in marked])
    for name, stored in zip(marked, found, strict=True):
        before = shown_fields(try_decode(RedBeatSchedulerEntry, stored, actor.app)) if stored.exists else {}
        given, entries[name] = entries[name], restore(entries[name], before, hiding)
        is_other = _may_have_marks(given, hiding) and given.get("task") != before.get("task")
        if is_other and (kept := kept_hidden(entries[name], before, hiding)):
            raise declared.fault(("entries", name, "task"), words_of_other_task(kept))
        if any(left_hidden(entries[name], hiding, before)):
            raise declared.fault(
                ("entries", name),
                f"has {HIDDEN!r} where nothing is stored that it could stand for; write the value itself.",
            )
    return replace(declared, entries=entries)


def _may_have_marks(fields: Mapping[str, Any], hiding: Hiding) -> bool:
    """Return True if an entry of a file has the mark of a hidden argument, or what may be one."""
    return any(
        fields.get(field) == UNREADABLE[field] or any(hidden_in(fields.get(field), hiding))
        for field in FIELDS
    ) or (isinstance(fields.get("args"), list) and HIDDEN in fields["args"])


def _may_have_hidden(raw: Mapping[str, Any], hiding: Hiding) -> bool:
    """Return True if a definition or a policy, as it is in Redis, has or may have what is hidden."""
    for part in ("definition", "policy"):
        value = raw.get(part)
        # a text may have a name twice, and JSON only the last of them
        if isinstance(value, str) or (isinstance(value, Mapping) and _hides(value, hiding)):
            return True
    return False


def _hides(value: Mapping[str, Any], hiding: Hiding) -> bool:
    return bool(value.get("ping_url")) or hide_details(value, hiding) != value or hide(value, hiding) != value
