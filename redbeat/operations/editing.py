"""``add``, ``set`` and ``delete``: entries made, changed and removed.

Invariant: what somebody has seen is what they change: with a revision, an entry that was changed since then
stays as it is.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from redbeat.access import Right
from redbeat.entries.audit import given_of
from redbeat.entries.documents import raw_fields, read_object
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.forms import IGNORED_FIELDS, STATE_FIELDS
from redbeat.entries.query import read_listed
from redbeat.errors import EntryChanged, EntryError, EntryNotFound
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
)
from redbeat.store.members import remove_members
from redbeat.store.owners import apply_changes
from redbeat.store.records import Change, Stored
from redbeat.store.store import Store


def revision_of(entry: RedBeatSchedulerEntry) -> str:
    """Return what tells one version of a stored entry from another; its runs don't change it.

    It is made of what is shown: from all of an entry but what is hidden, and this, somebody could find out
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


def add(actor: Actor, values: Mapping[str, Any], *, revision: str | None = None) -> RedBeatSchedulerEntry:
    """Store the entry that ``values`` describe, as :meth:`redbeat.RedBeatSchedulerEntry.to_dict` does.

    Arguments:
        revision: of the entry that it is stored in place of, as it was seen; it keeps its last run and its
            count of runs. None: there is to be none.

    Raises:
        EntryChanged: there is such an entry already, or it isn't as it was seen.
        EntryError: the values don't describe one.
    """
    if revision is None:
        actor.user.require_adding()
    actor.require(Right.EDIT)
    before = _stored(actor, str(values.get("name"))) if revision is not None else None
    if revision is not None and before is None:
        raise EntryChanged(f"{values.get('name')}: it has been removed since it was loaded.", "")
    _check_revision(before, revision)
    made = draft(actor, values, before)
    now = given_of(made)
    was = {} if before is None or before.problem else dict.fromkeys(now) | given_of(before)
    verb, task = "add" if before is None else "set", None if before is None else before.task
    with actor.doing(verb, [str(made.name)], now, made.task, task, before=was):
        made.save(if_unchanged=True)
    return made


def set_(
    actor: Actor,
    name: str,
    changes: Mapping[str, Any],
    revision: str | None = None,
    *,
    dry_run: bool = False,
) -> RedBeatSchedulerEntry:
    """Change fields of a stored entry; None removes one. For a dry run only look whether that is possible.

    Raises:
        EntryNotFound: there is none.
        EntryChanged: it isn't as it was seen.
        EntryError: a value isn't allowed.
    """
    actor.require(Right.EDIT)
    entry = read_listed(RedBeatSchedulerEntry, actor.app, name)
    _check_revision(entry, revision)
    if changes.get("name", name) != name:
        raise EntryError(f"{name}: an entry keeps its name; add another one, and delete this.", entry.key)
    # what runs have made of it stays, and the audit list tells no such change
    changes = {field: value for field, value in changes.items() if field not in IGNORED_FIELDS}
    merged = {**fields_of(entry), **changes, "name": name}
    made = draft(actor, {field: value for field, value in merged.items() if value is not None}, entry)
    if dry_run:
        made.check_save(if_unchanged=True)
        return made
    was = fields_of(entry)
    before = {field: was.get(field) for field in changes}
    with actor.doing("set", [name], dict(changes), made.task, entry.task, before=before):
        made.save(if_unchanged=True)
    return made


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
    return made


def whole(actor: Actor, values: Mapping[str, Any], before: RedBeatSchedulerEntry | None) -> dict[str, Any]:
    """Return ``values`` with what is hidden in them as it is stored.

    Raises:
        EntryError: something is hidden that isn't stored.
    """
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


def delete(actor: Actor, names: Sequence[str]) -> int:
    """Remove entries with their histories; return how many there were."""
    actor.require(Right.DELETE)
    store = Store(actor.app)
    # members may be bare names, as other programs write them; one that begins like a key is another's key
    bare = [name for name in names if store.keys.entry_of(name) == store.keys.entry(name)]
    with actor.doing("delete", names):
        deleted = RedBeatSchedulerEntry.delete_many(names, actor.app)
        if deleted < len(names):
            remove_members(store, bare)
        return deleted


def delete_as_seen(actor: Actor, name: str, revision: str) -> int:
    """Remove an entry that is still as it was seen, in one step; return how many there were.

    Raises:
        EntryChanged: it isn't; nothing was removed.
    """
    actor.require(Right.DELETE)
    store = Store(actor.app)
    key = store.keys.entry(name)
    [stored] = read_with_owners(store, [key])[1]
    if not stored.exists:
        return delete(actor, [name])
    if revision != _revision_of(actor.app, stored):
        raise _has_changed(name, key)
    with actor.doing("delete", [name]):
        if apply_changes(store, [Change(stored, None)], []).changed is not None:
            raise _has_changed(name, key)
    return 1


def _stored(actor: Actor, name: str) -> RedBeatSchedulerEntry | None:
    try:
        return read_listed(RedBeatSchedulerEntry, actor.app, name)
    except EntryNotFound:
        return None


def _check_revision(entry: RedBeatSchedulerEntry | None, revision: str | None) -> None:
    if entry is not None and revision is not None and revision != revision_of(entry):
        raise _has_changed(str(entry.name), entry.key)


def _has_changed(name: str, key: str) -> EntryChanged:
    return EntryChanged(f"{name}: somebody else has changed it meanwhile.", key)


def fields_of(entry: RedBeatSchedulerEntry) -> dict[str, Any]:
    """Return the fields of a stored entry; what stands in Redis of them, if it can't be used."""
    if not entry.problem:
        with suppress(EntryError):  # a schedule of a class that isn't registered here
            return entry.to_dict()
    return {**raw_fields(entry.stored), "name": entry.name}
