"""Entries added, changed and removed, one or many.

Invariant: with :class:`Seen`, an entry that was changed since it was read stays as it is. Without, a change
is made again if another user comes between.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from redbeat.access import Right
from redbeat.config.config import ensure_conf
from redbeat.entries.audit import given_of
from redbeat.entries.documents import find_problems, raw_fields, read_object
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.forms import IGNORED_FIELDS, STATE_FIELDS
from redbeat.entries.notation import SCHEDULE_FORMS
from redbeat.entries.saving import retry_when_changed
from redbeat.entries.search import read_listed
from redbeat.entries.validation import find_name_problem
from redbeat.errors import ArgumentInvalid, EntryChanged, EntryError, EntryNotFound
from redbeat.manifest.plan import read_with_owners
from redbeat.operations.actor import Actor
from redbeat.operations.hiding import (
    HIDDEN,
    Hiding,
    hide,
    hiding_of,
    kept_hidden,
    left_hidden,
    may_hide,
    restore,
    without_hidden,
)
from redbeat.operations.operation import Option, Seen, SeenOption, given_values, operation
from redbeat.operations.selection import NameOfEntry, Rest, Selection, for_each
from redbeat.store.members import remove_members
from redbeat.store.owners import apply_changes
from redbeat.store.records import Change, Stored
from redbeat.store.store import Store

Result = TypeVar("Result")
#: fields by their names, or what returns them for an entry as it is stored
Changes = dict[str, Any] | Callable[[RedBeatSchedulerEntry], dict[str, Any]]

#: what documents of the REST interface have besides; ignored where one is sent back
ADDED = ("href", "etag")

DryRun = Annotated[bool, Option("Change nothing, and answer what would be changed.")]


@dataclass(frozen=True)
class EntryChange:
    """What a call has made of one entry.

    Attributes:
        entry: as it is stored now, or would be.
        outcome: 'added', 'changed', 'paused', 'resumed', or 'left' as it was.
    """

    entry: RedBeatSchedulerEntry
    outcome: str


@dataclass(frozen=True, kw_only=True)
class Changed(Rest):
    """Entries that were changed.

    Attributes:
        changed: their names.
    """

    changed: Sequence[str]


@dataclass(frozen=True)
class Deleted:
    """Entries that were removed.

    Attributes:
        deleted: how many there were; 0: they would be removed.
        names: theirs.
    """

    deleted: int
    names: Sequence[str]


@dataclass(frozen=True)
class DeletedMany(Deleted):
    """Entries of a selection that were removed; ``next``: the cursor to go on with; null: that was all."""

    next: str | None


# -- operations


@operation("entry.put", Right.EDIT, "add", "PUT /entries/{name}")
def put_entry(
    actor: Actor,
    name: NameOfEntry,
    *,
    values: Annotated[dict[str, Any], Option("The entry.", component="EntryInput")],
    seen: SeenOption = None,
) -> EntryChange:
    """Add an entry, or put it in place of another.

    It keeps the last run and the count of runs of the one that was there.

    Arguments:
        values: as :meth:`redbeat.RedBeatSchedulerEntry.to_dict` returns them.

    Raises:
        EntryChanged: what is there isn't as it was seen.
        EntryError: the values are invalid.
    """
    given = {"name": name, **{field: value for field, value in values.items() if field not in ADDED}}
    if given["name"] != name:
        raise ArgumentInvalid("name", f"must be {name!r}, as in the path, or be left out.")
    problem = find_name_problem(name, ensure_conf(actor.app).reserved_names)
    if problem:
        raise EntryError(problem, name, {"name": problem})

    def put() -> EntryChange:
        before = find_entry(actor.app, name)
        _check_seen(seen, name, before)
        if before is None:
            actor.user.require_adding()
        with _naming_all_problems(actor, given):
            made = draft(actor, given, before)
            now = given_of(made)
            was = {} if before is None or before.problem else dict.fromkeys(now) | given_of(before)
            made.check_save(if_unchanged=True)
            verb, task = "add" if before is None else "set", None if before is None else before.task
            with actor.doing(verb, [name], now, made.task, task, before=was):
                made.save(if_unchanged=True)
        return EntryChange(made, "added" if before is None else "changed")

    return _until_unchanged(actor, name, seen, put)


@operation("entry.set", Right.EDIT, "set", "PATCH /entries/{name}")
def set_entry(
    actor: Actor,
    name: NameOfEntry,
    *,
    changes: Annotated[Changes, Option("The fields to change.", component="EntryPatch")],
    seen: SeenOption = None,
    dry_run: DryRun = False,
    is_merged: bool = True,
    is_recorded: bool = True,
) -> EntryChange:
    """Change some fields of an entry; null removes one.

    Arguments:
        changes: the fields, or a function that returns them for the entry as it is stored.
        is_merged: an object changes only what it names of the stored one (RFC 7396); False: it replaces it.
        is_recorded: write an audit record of this change.

    Raises:
        EntryNotFound: there is no such entry.
        EntryChanged: it isn't as it was seen.
        EntryError: a value is invalid.
    """

    def change() -> EntryChange:
        entry = read_listed(actor.app, name)
        if entry.state == "missing" and actor.has_shell:  # a form has all fields, and stores it anew
            raise EntryNotFound(f"{entry.key}: there is no such entry.", entry.key)
        _check_seen(seen, name, entry)
        was, wanted = fields_of(entry), changes(entry) if callable(changes) else changes
        given = {field: value for field, value in wanted.items() if field not in (*ADDED, *IGNORED_FIELDS)}
        fields = merged(was, given) if is_merged else given
        is_whole = {"task", "schedule"} <= fields.keys()
        if not is_whole and entry.stored is not None and read_object(entry.stored.definition) is None:
            words = "its definition is not a JSON object: give its task and its schedule, too."
            raise EntryError(f"{name}: {words}", entry.key)
        if fields.get("name", name) != name:
            raise EntryError(f"{name}: an entry keeps its name; add another one, and delete this.", entry.key)
        values = {field: value for field, value in {**was, **fields}.items() if value is not None}
        with _naming_all_problems(actor, {**values, "name": name}):
            made = draft(actor, {**values, "name": name}, entry)
            made.check_save(if_unchanged=True)
            if not dry_run:
                before = {field: was.get(field) for field in fields}
                details = (fields, made.task, entry.task)
                record = actor.doing("set", [name], *details, before=before) if is_recorded else nullcontext()
                with record:
                    made.save(if_unchanged=True)
        return EntryChange(made, "changed")

    return _until_unchanged(actor, name, seen, change)


@operation("entries.set", Right.EDIT, "set", "PUT /set")
def set_entries(
    actor: Actor,
    entries: Selection,
    *,
    changes: Annotated[Changes, Option("The fields to change, as in the body of a PATCH of one entry.")],
    dry_run: DryRun = False,
    is_merged: bool = True,
    record: Mapping[str, Any] | None = None,
    progress: Callable[[int], object] = lambda _done: None,
) -> Changed:
    """Change the same fields of many entries.

    Arguments:
        changes, is_merged: as :func:`set_entry` takes them.
        record: what one audit record says of all of them; None: each has a record of its own.
    """
    selected = entries.find(actor)

    def change(name: str) -> EntryChange:
        is_recorded = record is None
        return set_entry(
            actor, name, changes=changes, dry_run=dry_run, is_merged=is_merged, is_recorded=is_recorded
        )

    is_one_record = record is not None and selected.names and not dry_run
    with actor.doing("set", selected.names, record) if is_one_record else nullcontext():
        done, rest = for_each(selected, change, progress)
    return Changed(changed=[*done], **vars(rest))


@operation("entry.delete", Right.DELETE, "delete", "DELETE /entries/{name}", is_destructive=True)
def delete_entry(
    actor: Actor, name: NameOfEntry, *, seen: SeenOption = None, dry_run: DryRun = False
) -> Deleted:
    """Remove an entry with its history.

    Raises:
        EntryNotFound: there is no such entry.
        EntryChanged: it isn't as it was seen.
    """
    store = Store(actor.app)
    key = store.keys.entry(name)

    def delete() -> Deleted:
        read_listed(actor.app, name)  # it may be in the schedule alone
        [stored] = read_with_owners(store, [key])[1]
        if seen is not None:
            seen.check(name, _revision_of(actor.app, stored))
        if dry_run:
            return Deleted(0, [name])
        if seen is None or seen.is_any or not stored.exists:
            _delete(actor, [name])
            return Deleted(1, [name])
        with actor.doing("delete", [name]):
            if apply_changes(store, [Change(stored, None)], []).changed is not None:
                raise EntryChanged(f"{name}: has been changed meanwhile, so nothing was done.", key)
        return Deleted(1, [name])

    return _until_unchanged(actor, name, seen, delete)


@operation("entries.delete", Right.DELETE, "delete", "PUT /delete", is_destructive=True)
def delete_entries(
    actor: Actor,
    entries: Selection,
    *,
    dry_run: DryRun = False,
    progress: Callable[[int], object] | None = None,
) -> DeletedMany:
    """Remove many entries with their histories."""
    selected = entries.find(actor)
    if dry_run or not selected.names:
        return DeletedMany(0, selected.names, selected.next)
    deleted = _delete(actor, selected.names, entries.match, progress)
    return DeletedMany(deleted, selected.names, selected.next)


def _delete(
    actor: Actor,
    names: Sequence[str],
    match: str | None = None,
    progress: Callable[[int], object] | None = None,
) -> int:
    store = Store(actor.app)
    # members may be bare names, as other programs write them; one that begins like a key is another's key
    bare = [name for name in names if store.keys.entry_of(name) == store.keys.entry(name)]
    with actor.doing("delete", names, given_values(match=match)):
        deleted = RedBeatSchedulerEntry.delete_many(names, actor.app, progress=progress)
        if deleted < len(names):
            remove_members(store, bare)
        return deleted


# -- compare and set


def revision_of(entry: RedBeatSchedulerEntry) -> str:
    """Return what tells one version of a stored entry from another; its runs don't change it.

    It is made of what is shown: from all of an entry but what is hidden, and this, a user could find out
    what is hidden by trying. A hidden value comes back as it is stored at the time, so none is lost.
    """
    return _revision_of(entry.app, entry.stored)


def _revision_of(app: Any, stored: Stored | None) -> str:
    texts = ("", "") if stored is None else (stored.definition or "", stored.policy or "")
    hiding = hiding_of(app)
    text = "\0".join(_shown(text, hiding) for text in texts)
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:20]


def _shown(text: str, hiding: Hiding) -> str:
    """Return what may be shown of a definition or a policy."""
    fields = read_object(text)
    if fields is None:
        return HIDDEN if may_hide(text, hiding) else text.strip()
    return json.dumps(hide(fields, hiding))


def find_entry(app: Any, name: str) -> RedBeatSchedulerEntry | None:
    """Return a stored entry, also an invalid one; None: there is no such entry."""
    try:
        return read_listed(app, name)
    except EntryNotFound:
        return None


def _check_seen(seen: Seen | None, name: str, entry: RedBeatSchedulerEntry | None) -> None:
    if seen is not None:
        seen.check(name, None if entry is None else revision_of(entry))


def _until_unchanged(actor: Actor, name: str, seen: Seen | None, change: Callable[[], Result]) -> Result:
    """Make a change; once more if others change the entry meanwhile, unless it relies on ``seen``."""
    if seen is None:
        return retry_when_changed(change)
    try:
        return change()
    except EntryChanged as exc:
        entry = find_entry(actor.app, name)
        exc.revision = None if entry is None else revision_of(entry)
        raise


# -- values


def draft(
    actor: Actor, values: Mapping[str, Any], before: RedBeatSchedulerEntry | None
) -> RedBeatSchedulerEntry:
    """Return the entry that ``values`` describe, which isn't stored yet, in place of ``before``.

    Raises:
        EntryError: they don't describe one.
        AccessDenied: its task, or the one that it had, isn't allowed here.
    """
    given = whole(actor, values, before)
    for field in STATE_FIELDS:  # what runs have made of it stays
        given.pop(field, None)
    made: RedBeatSchedulerEntry = RedBeatSchedulerEntry.from_dict(given, actor.app)
    actor.require_call(str(made.task), made.options)
    if before is not None:
        if before.task is not None:
            actor.require_call(str(before.task), before.options)
        _check_hidden(actor, made, given, before)
        if before.stored is not None and before.stored.exists:  # else its hash is gone
            made.stored, made.seen_at = before.stored, before.seen_at
            made.last_run_at = made.known_last_run_at = before.last_run_at  # it was not moved
            made.total_run_count = before.total_run_count
        if not (made.args or before.args or before.problem):
            made.args = before.args  # none stay written as they were: null, or []
    return made


def whole(actor: Actor, values: Mapping[str, Any], before: RedBeatSchedulerEntry | None) -> dict[str, Any]:
    """Return ``values`` with what is hidden in them as it is stored.

    Raises:
        EntryError: something is hidden that isn't stored.
    """
    if actor.has_shell:  # nothing was hidden: a mask was typed by mistake, and is invalid
        return dict(values)
    stored = {} if before is None else fields_of(before)
    hiding = actor.hiding
    given = restore(dict(values), stored, hiding)
    for field, argument in left_hidden(given, hiding, stored):
        name = str(values.get("name") or (before.name if before is not None else ""))
        words = f"{argument!r} is {HIDDEN}, and there is no value that this stands for: write one."
        raise EntryError(f"{name}: {field}: {words}", name)
    return given


def _check_hidden(
    actor: Actor, made: RedBeatSchedulerEntry, given: Mapping[str, Any], before: RedBeatSchedulerEntry
) -> None:
    """Raise EntryError if another task would be given what is hidden: it might show it."""
    stored = fields_of(before)
    kept = kept_hidden(given, stored, actor.hiding)
    if kept and made.task != stored.get("task"):
        raise EntryError(f"{made.name}: task: {words_of_other_task(kept)}", made.key)


def words_of_other_task(argument: str) -> str:
    """Return why a hidden argument isn't handed to another task."""
    return (
        f"{argument!r} is hidden and stays with the task that has it: write another value for it, or add an "
        "entry for the other task."
    )


@contextmanager
def _naming_all_problems(actor: Actor, values: Mapping[str, Any]) -> Iterator[None]:
    """Within this, an EntryError about ``values`` has all that is wrong with them, without what is hidden."""
    try:
        yield
    except EntryChanged:
        raise
    except EntryError as exc:
        given = {name: value for name, value in values.items() if value is not None}
        problems = find_problems(given, actor.app)
        if not problems:
            raise
        invalid = EntryError(without_hidden(str(exc), given, actor.hiding), exc.key)
        invalid.problems = {
            name: without_hidden(words, given, actor.hiding) for name, words in problems.items()
        }
        raise invalid from exc


def fields_of(entry: RedBeatSchedulerEntry) -> dict[str, Any]:
    """Return the fields of a stored entry; what stands in Redis of them, if it is invalid."""
    if not entry.problem:
        with suppress(EntryError):  # a schedule of a class that isn't registered here
            return entry.to_dict()
    return {**raw_fields(entry.stored), "name": entry.name}


# -- JSON Merge Patch (RFC 7396)


def merged(stored: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that ``patch`` changes.

    A schedule of another type replaces the whole schedule.
    """
    changes: dict[str, Any] = {}
    for name, value in patch.items():
        was = stored.get(name)
        if name == "schedule" and not _is_part(was, value):
            was = None
        changes[name] = _merge(was, value)
    return changes


def _is_part(was: Any, value: Any) -> bool:
    """Return True if ``value`` changes parts of the schedule ``was``, and isn't another one."""
    if not isinstance(was, dict) or not isinstance(value, dict):
        return False
    if "__type__" in value:
        return bool(value["__type__"] == was.get("__type__"))
    return value.keys() <= was.keys() and not value.keys() & SCHEDULE_FORMS.keys()


def _merge(was: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    made = dict(was) if isinstance(was, dict) else {}
    for name, value in patch.items():
        if value is None:
            made.pop(name, None)
        else:
            made[name] = _merge(made.get(name), value)
    return made
