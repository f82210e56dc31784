"""``plan``, ``apply``, ``export`` and ``import``: the schedule as a file.

Invariant: no hidden argument and no secret leaves with a plan or an export, and a file that has come back
with their marks stores what the marks stand for, or nothing at all.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from redbeat.access import Right
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.loading import try_decode
from redbeat.log.text import printable
from redbeat.manifest.format import Declared
from redbeat.manifest.plan import (
    Plan,
    Progress,
    apply_plan,
    make_plan,
    owner_of,
    read_with_owners,
    shown_fields,
)
from redbeat.manifest.transfer import Exported, export_entries, plan_import
from redbeat.operations.actor import Actor
from redbeat.operations.editing import words_of_other_task
from redbeat.operations.hiding import (
    FIELDS,
    HIDDEN,
    UNREADABLE,
    Hiding,
    hidden_in,
    hide,
    hide_details,
    hiding_of,
    kept_hidden,
    left_hidden,
    restore,
    without_hidden,
)
from redbeat.store.records import Change
from redbeat.store.store import Store

#: makes a plan, without the entries of these names, which were written already
_Make = Callable[[Collection[str]], Plan]


@dataclass(frozen=True)
class Applied:
    """What has become of a file.

    Attributes:
        plan: the last that was made of it.
        is_done: it was carried out; False: it isn't the plan that was seen, and nothing was changed.
    """

    plan: Plan
    is_done: bool


def plan(
    actor: Actor,
    declared: Declared,
    owner: str | None = None,
    *,
    prune: bool = False,
    take_over: bool = False,
) -> Plan:
    """Return what applying a file would do; nothing is changed.

    Arguments:
        owner: None: the file names it.

    Raises:
        FileError: something in the file can't be used, or (OwnedByOthers) belongs to others.
        AccessDenied: one of its tasks isn't allowed here.
    """
    actor.require(Right.EDIT)
    return _planning(actor, declared, owner, prune=prune, take_over=take_over)(())


def apply(
    actor: Actor,
    declared: Declared,
    owner: str | None = None,
    *,
    prune: bool = False,
    take_over: bool = False,
    seen: str | None = None,
) -> Applied:
    """Store the entries and calendars of a file, all in one step.

    Arguments:
        prune: remove what the owner has applied before and isn't in the file any more.
        seen: the ``fingerprint`` of the plan that somebody has agreed to: no other is carried out. None: any.

    Raises:
        FileError, AccessDenied: as ``plan`` does.
        EntryChanged: entries change all the time.
    """
    actor.user.require_adding()
    if prune:
        actor.require(Right.DELETE)
    make = _planning(actor, declared, owner, prune=prune, take_over=take_over)
    details = {"file": declared.origin, "owner": owner, "prune": prune, "take_over": take_over}
    return _carry_out(actor, "apply", make, seen, details)


def import_plan(
    actor: Actor, declared: Declared, owner: str | None = None, *, is_replacing: bool = False
) -> Plan:
    """Return what importing a file would do; nothing is changed.

    Raises:
        FileError: something in the file can't be used, or is stored already.
        AccessDenied: one of its tasks isn't allowed here.
    """
    actor.require(Right.EDIT)
    return _importing(actor, declared, owner, is_replacing=is_replacing)(())


def import_(
    actor: Actor,
    declared: Declared,
    owner: str | None = None,
    *,
    is_replacing: bool = False,
    seen: str | None = None,
) -> Applied:
    """Store the entries that ``export`` has written, with their last runs, all in one step.

    Arguments:
        is_replacing: overwrite stored entries of the same names.
        seen: as ``apply`` takes it.

    Raises:
        FileError, AccessDenied: as ``import_plan`` does.
        EntryChanged: entries change all the time.
    """
    actor.user.require_adding()
    make = _importing(actor, declared, owner, is_replacing=is_replacing)
    details = {"file": declared.origin, "owner": owner, "replace": is_replacing}
    return _carry_out(actor, "import", make, seen, details)


def export(
    actor: Actor,
    match: str | None = None,
    owner: str | None = None,
    *,
    with_history: bool = False,
    progress: Progress | None = None,
) -> Exported:
    """Return the stored entries as a file, without secrets and with marks in place of hidden arguments.

    An entry in which they can't be told apart is left out; the command line exports it.
    """
    actor.require(Right.EDIT)
    found = export_entries(actor.app, match, owner, progress, with_history=with_history)
    hiding = hiding_of(actor.app)
    entries: dict[str, dict[str, Any]] = {}
    skipped = list(found.skipped)
    for name, item in found.declared.entries.items():
        stored = item.get("stored") or {}
        error = str(stored.get("error"))
        if _may_have_hidden(stored, hiding) or without_hidden(error, item, hiding) != error:
            skipped.append(f"{printable(name)}: it may have hidden arguments in an unusual form.")
        else:
            entries[name] = hide(item, hiding)
    return Exported(replace(found.declared, entries=entries), tuple(skipped))


def told(actor: Actor, made: Plan) -> dict[str, Any]:
    """Return what a plan would change as plain JSON, without secrets and hidden arguments."""
    hiding, document = hiding_of(actor.app), made.told()
    for kind in ("added", "removed"):
        document[kind] = {name: hide(fields, hiding) for name, fields in document[kind].items()}
    changes = {Store(actor.app).keys.name(change.stored.key): change for change in made.changes}
    tasks = {
        name: [_call_in(text)[0] for text in _definitions_of(changes[name])]
        for name, fields in document["changed"].items()
        if "args" in fields
    }
    document["changed"] = {
        name: {
            field: {
                when: hide({field: value}, hiding, *tasks.get(name, ()))[field]
                for when, value in values.items()
            }
            for field, values in fields.items()
        }
        for name, fields in document["changed"].items()
    }
    return document


def _definitions_of(change: Change) -> Iterator[Any]:
    """Yield the definition that an entry has, and the one that it gets."""
    yield change.stored.definition
    if change.write is not None:
        yield change.write.definition


def fingerprint(actor: Actor, made: Plan) -> str:
    """Return what tells one plan, as somebody sees it, from another."""
    text = json.dumps(told(actor, made), sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _planning(actor: Actor, declared: Declared, owner: str | None, *, prune: bool, take_over: bool) -> _Make:
    chosen = owner_of(declared, owner)

    def make(_done: Collection[str]) -> Plan:
        return make_plan(actor.app, _complete(actor, declared), chosen, prune=prune, take_over=take_over)

    return _with_allowed_tasks(actor, declared, make)


def _importing(actor: Actor, declared: Declared, owner: str | None, *, is_replacing: bool) -> _Make:
    def make(done: Collection[str]) -> Plan:
        complete = _complete(actor, declared)
        return plan_import(actor.app, complete, owner=owner, replace_existing=is_replacing, done=done)

    return _with_allowed_tasks(actor, declared, make)


def _with_allowed_tasks(actor: Actor, declared: Declared, make: _Make) -> _Make:
    """Return ``make``, which refuses tasks that aren't allowed: the file's, and those of changed entries."""

    def make_allowed(done: Collection[str]) -> Plan:
        _require_calls(actor, _calls_of(declared))
        made = make(done)
        texts = (change.stored.definition for change in made.changes if change.is_stored)
        _require_calls(actor, (call for call in map(_call_in, texts) if call[0]))
        return made

    return make_allowed


def _require_calls(actor: Actor, calls: Iterator[tuple[str, Any]]) -> None:
    allowed = set[str]()
    for task, options in calls:
        if options or task not in allowed:
            actor.require_call(task, options)
            allowed.add(task)


def _carry_out(actor: Actor, verb: str, make: _Make, seen: str | None, details: Mapping[str, Any]) -> Applied:
    made: list[Plan] = []

    def confirm(plan: Plan, _why: str) -> bool:
        made[:] = [plan]
        return seen is None or seen == fingerprint(actor, plan)

    def audited(plan: Plan) -> AbstractContextManager[None]:
        given = {name: value for name, value in details.items() if value not in (None, False)}
        return actor.doing(verb, plan.names, {**given, **plan.counts})

    done = apply_plan(lambda: make(()), confirm, audited, make)
    return Applied(made[0] if done is None else done, done is not None)


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
    hiding, store = hiding_of(actor.app), Store(actor.app)
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
    """Tell whether an entry of a file has the mark of a hidden argument, or what may be one."""
    return any(
        fields.get(field) == UNREADABLE[field] or any(hidden_in(fields.get(field), hiding))
        for field in FIELDS
    ) or (isinstance(fields.get("args"), list) and HIDDEN in fields["args"])


def _may_have_hidden(raw: Mapping[str, Any], hiding: Hiding) -> bool:
    """Tell whether a definition or a policy, as it is in Redis, has or may have what is hidden."""
    for part in ("definition", "policy"):
        value = raw.get(part)
        # a text may have a name twice, and JSON only the last of them
        if isinstance(value, str) or (isinstance(value, Mapping) and _hides(value, hiding)):
            return True
    return False


def _hides(value: Mapping[str, Any], hiding: Hiding) -> bool:
    return bool(value.get("ping_url")) or hide_details(value, hiding) != value or hide(value, hiding) != value
