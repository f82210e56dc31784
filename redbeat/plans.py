"""Plans: what a file of entries would change in the schedule, and making that change in one step.

Invariant: a plan is carried out whole or not at all, and only while everything it was made from still stands.
Other owners' entries are never touched.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from redbeat.almanac import ABOUT, Unusable, calendar_from, give_calendars, read_calendars, read_fields
from redbeat.archive import past_of
from redbeat.calendars import Calendar, find_users
from redbeat.config import ensure_conf
from redbeat.differences import Difference, differing
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.errors import EntryChanged, EntryError, FileError, OwnedByOthers
from redbeat.files import ENTRY_FIELDS, STATE_FIELDS, Declared
from redbeat.garbage import garbage_kept
from redbeat.lua import owners as scripts
from redbeat.lua.owners import CalendarChange, Change
from redbeat.notation import write_schedule
from redbeat.owners import read_calendar_owners, read_names_of, read_owners, read_statics
from redbeat.policy import NAMES, PAUSE_FIELDS, decode_policy
from redbeat.problems import find_name_problem
from redbeat.reader import try_decode
from redbeat.saving import encode_entry, plan_write, stored_after, why_never
from redbeat.schedules import Excluded
from redbeat.store import CHUNK_SIZE, Store, Stored
from redbeat.text import printable

__all__ = [
    "MAX_ENTRIES",
    "Plan",
    "apply_plan",
    "calendar_of",
    "check_size",
    "commit",
    "entry_of",
    "make_plan",
    "plan_calendars",
    "read_with_owners",
    "shown_fields",
]

#: one script stores so many at the most: the server takes a million arguments
MAX_ENTRIES = 50_000

#: so many arguments a script may have: Redis 6.2 takes 1,048,576
MAX_ARGUMENTS = 1_040_000

#: a plan is made anew so often because only beat's own bookkeeping has changed meanwhile
MAX_ATTEMPTS = 50

Progress = Callable[[int], object]


@dataclass
class Plan:
    """What applying a file would do.

    Attributes:
        difference: for people.
        changes: one for each entry of the file, and for each that is removed.
        calendars: for people, too; the fields of a calendar are its days and spans, and what it is about.
        calendar_changes: one for each calendar that is stored or removed, or becomes the owner's.
        calendars_before: those and all that entries name, as they were when the plan was made.
        warnings: sentences.
        is_pruned: what isn't in the file any more was to be removed.
    """

    app: Any
    difference: Difference = field(default_factory=Difference)
    changes: list[Change] = field(default_factory=list)
    calendars: Difference = field(default_factory=Difference)
    calendar_changes: list[CalendarChange] = field(default_factory=list)
    calendars_before: dict[str, Excluded] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    is_pruned: bool = False

    def __bool__(self) -> bool:
        return bool(self.difference) or bool(self.calendar_changes)


def entry_of(declared: Declared, name: str, app: Any) -> RedBeatSchedulerEntry:
    """Return the entry that a file describes.

    Raises:
        FileError: a field has a wrong value.
    """
    path, fields = ("entries", name), declared.entries[name]
    problem = find_name_problem(name, ensure_conf(app).reserved_names)
    if problem:
        raise declared.fault(path, problem)
    if "task" not in fields:
        raise declared.fault((*path, "stored"), "is as it stands in Redis; only an import can write it.")
    given = {one: value for one, value in fields.items() if one in ENTRY_FIELDS or one in STATE_FIELDS[:2]}
    try:
        return RedBeatSchedulerEntry.from_dict({"name": name, **given}, app)
    except (EntryError, ValueError, TypeError) as exc:
        reason = str(exc).removeprefix(f"{printable(name)}: ")
        named = next((one for one in given if re.match(rf"(?:a )?{one}\b", reason)), None)
        reason = reason if named is None else reason.removeprefix(named).lstrip(": ")
        raise declared.fault(path if named is None else (*path, named), reason) from exc


@garbage_kept()
def make_plan(
    app: Any,
    declared: Declared,
    owner: str,
    *,
    prune: bool = False,
    take_over: bool = False,
    progress: Progress | None = None,
) -> Plan:
    """Return what applying ``declared`` for ``owner`` would do; nothing is written.

    Arguments:
        prune: remove what ``owner`` has applied before and isn't in the file any more.
        take_over: make entries the owner's that are another's.
        progress: called with the number of entries looked at so far.

    Raises:
        FileError: something in the file can't be used, or (OwnedByOthers) belongs to others.
    """
    store, plan = Store(app), Plan(app, is_pruned=prune)
    if len(declared.entries) > MAX_ENTRIES:
        count = len(declared.entries)
        raise FileError(
            f"{declared.origin}: {count} entries are more than one step takes, {MAX_ENTRIES}: split the "
            "file, with an owner for each part.",
            declared.origin,
        )
    entries = {store.keys.entry(name): entry_of(declared, name, app) for name in declared.entries}
    gone = sorted(read_names_of(store, owner) - declared.entries.keys())
    calendar_owners = read_calendar_owners(store)
    now, found = read_with_owners(store, [*entries, *map(store.keys.entry, gone)], progress)
    if not take_over:
        _check_owners(store, declared, owner, found[: len(entries)])
    named = [entry for entry in entries.values() if entry.policy.exclude is not None]
    plan_calendars(plan, declared, {entry.policy.exclude for entry in named}, owner, calendar_owners)
    declared_calendars = {name: calendar_of(declared, name, app) for name in declared.calendars}
    give_calendars(named, {**plan.calendars_before, **declared_calendars})
    for (stored, read_owner), entry in zip(found, entries.values(), strict=False):
        _plan_entry(plan, declared, entry, stored, now, (read_owner, owner))
    give_calendars(named, {})
    for name, (stored, read_owner) in zip(gone, found[len(entries) :], strict=True):
        if read_owner != owner or not stored.exists:
            continue  # it was removed, or moved to another owner
        if not prune:
            plan.difference.left.append(name)
            continue
        plan.difference.removed[name] = shown_fields(try_decode(RedBeatSchedulerEntry, stored, app))
        plan.changes.append(
            Change(
                name,
                stored,
                read_owner=owner,
                owned_key=store.keys.owner(owner),
                beside=past_of(store.keys, stored.key),
                is_deleted=True,
            )
        )
    owners = {name: those for name, those in calendar_owners.items() if name not in declared.calendars}
    _plan_gone_calendars(plan, owner, owners, entries, prune=prune)
    check_size(plan, declared)
    return plan


def check_size(plan: Plan, declared: Declared) -> None:
    """Raise FileError where ``plan`` is more than one step takes."""
    count = 8 * len(plan.calendar_changes)
    for change in plan.changes:
        count += 12 + sum(4 if one.content else 1 for one in change.beside)
    if count > MAX_ARGUMENTS:
        removed = f", and remove {len(plan.difference.removed)} entries" if plan.difference.removed else ""
        raise FileError(
            f"{declared.origin}: one step can't store all of that{removed}: split the file"
            f"{', or delete some of these before' if removed else ''}.",
            declared.origin,
        )


def read_with_owners(
    store: Store, keys: Sequence[str], progress: Progress | None = None
) -> tuple[datetime, list[tuple[Stored, str]]]:
    """Return the server's time, and the entries with their owners."""
    found: list[tuple[Stored, str]] = []
    now = datetime.now(timezone.utc)
    for start in range(0, len(keys), CHUNK_SIZE):
        chunk = keys[start : start + CHUNK_SIZE]
        now, stored = store.read_entries(chunk)
        found += zip(stored, read_owners(store, chunk), strict=True)
        if progress is not None:
            progress(len(found))
    return now, found


def _check_owners(store: Store, declared: Declared, owner: str, found: Sequence[tuple[Stored, str]]) -> None:
    """Raise OwnedByOthers where entries of the file are somebody else's."""
    statics = read_statics(store)
    others: dict[str, str] = {}
    for stored, read_owner in found:
        name = store.keys.name(stored.key)
        if read_owner not in ("", owner):
            others[name] = read_owner
        elif name in statics.names and not read_owner:
            apps = ", ".join(sorted(filter(None, statics.owners.get(name, ()))))
            others[name] = f"the beat_schedule of {apps or 'an app'}"
    if not others:
        return
    name, other = next(iter(others.items()))
    rest = len(others) - 1
    more = f", and {rest} more {'is' if rest == 1 else 'are'} others', too" if rest else ""
    reason = f"belongs to {other}{more}; remove it from one of the two, or take it over (--take-over)."
    fault = declared.fault(("entries", name), reason)
    raise OwnedByOthers(str(fault), declared.origin, others)


def _plan_entry(
    plan: Plan, declared: Declared, entry: Any, stored: Stored, now: datetime, owners: tuple[str, str]
) -> None:
    read_owner, owner = owners
    change = Change(
        entry.name,
        stored,
        read_owner=read_owner,
        owner=owner,
        owned_key=ensure_conf(plan.app).keys.owner(owner) if owner != read_owner else "",
    )
    plan.changes.append(change)
    before = try_decode(type(entry), stored, plan.app) if stored.exists else None
    if before is not None:
        _keep_pause(entry, before, declared.entries[entry.name])
    try:
        encoded = encode_entry(entry, stored)
        differences: dict[str, tuple[Any, Any]] = {}
        if before is not None and encoded != (stored.definition, stored.policy or ""):
            differences = differing(shown_fields(before), shown_of(*encoded))
        if before is None or stored.score is None or differences:
            change.write = plan_write(entry, stored, now, encoded, before)
            if change.write.score == -1 and entry.enabled:
                plan.warnings.append(f"{entry.name} never runs: {why_never(entry, now)}")
    except EntryError as exc:
        reason = str(exc).removeprefix(f"{printable(entry.key)}: ")
        raise declared.fault(("entries", entry.name), reason) from exc
    if not stored.exists:
        plan.difference.added[entry.name] = shown_of(*encoded)
        return
    if change.write is not None and not differences:
        differences["stored"] = ("unusable" if before is None else "unscheduled", "as the file has it")
    if owner != read_owner:
        differences["owner"] = (read_owner or None, owner)
    if differences:
        plan.difference.changed[entry.name] = differences
    else:
        plan.difference.same.append(entry.name)


def _keep_pause(entry: Any, before: Any, fields: Mapping[str, Any]) -> None:
    """Let an entry that somebody has paused rest where the file says nothing of that."""
    if before.paused and not fields.keys() & {"enabled", *PAUSE_FIELDS}:
        entry.enabled = before.enabled
        entry.set_policy({name: getattr(before.policy, name) for name in PAUSE_FIELDS})


def shown_fields(entry: Any) -> dict[str, Any]:
    """Return the fields of ``entry`` as a file has them, without those that say nothing; {} for None."""
    return {} if entry is None else shown_of(*encode_entry(entry, Stored(entry.key)))


def shown_of(definition: str, policy: str) -> dict[str, Any]:
    """Return what ``shown_fields`` does, of the JSON that ``encode_entry`` has made."""
    fields = json.loads(definition)
    shown = {"task": fields["task"], "schedule": write_schedule(fields["schedule"])}
    shown |= {name: fields[name] for name in ("args", "kwargs", "options") if fields[name]}
    if not fields["enabled"]:
        shown["enabled"] = False
    if policy:
        values = decode_policy(policy)
        shown |= {
            name: value.isoformat() if isinstance(value, datetime) else value
            for name, value in values.items()
            if name in NAMES
        }
    return shown


def plan_calendars(
    plan: Plan,
    declared: Declared,
    named: Iterable[str | None],
    owner: str,
    owners: Mapping[str, Collection[str]],
) -> None:
    """Plan the calendars of the file that aren't stored just so, and note what all of them are now.

    Arguments:
        named: calendars that entries name besides.
        owner: whose they become besides whoever has applied them, too; '': nobody's.
        owners: names of calendars to whose they are already.
    """
    store = Store(plan.app)
    found = read_fields(store, {*declared.calendars, *filter(None, named)})
    plan.calendars_before = {name: calendar_from(name, fields) for name, fields in found.items()}
    for name in declared.calendars:
        calendar, before = calendar_of(declared, name, plan.app), found[name]
        fields = {ABOUT: calendar.about, **calendar.days}
        is_new_owner = bool(owner) and owner not in owners.get(name, ())
        is_same = not isinstance(before, Unusable) and {ABOUT: "", **before} == fields
        if is_same and not is_new_owner:
            plan.calendars.same.append(name)
            continue
        read = before.kind if isinstance(before, Unusable) else before
        plan.calendar_changes.append(
            CalendarChange(
                f"{owner}\t{name}",
                store.keys.calendar(name),
                read,
                None if is_same else fields,
                store.keys.calendar_owners if is_new_owner else "",
            )
        )
        if isinstance(before, Unusable) and before.is_missing:
            plan.calendars.added[name] = _shown_calendar(fields)
            continue
        shown = differing(_shown_calendar(before), _shown_calendar(fields))
        if is_new_owner:
            shown["owner"] = (None, owner)
        plan.calendars.changed[name] = shown


def _shown_calendar(fields: Mapping[str, str] | Unusable) -> dict[str, str]:
    if isinstance(fields, Unusable):
        return {"stored": "unusable"}
    return {day: label for day, label in sorted(fields.items()) if day != ABOUT or label}


def _plan_gone_calendars(
    plan: Plan,
    owner: str,
    owners: Mapping[str, Collection[str]],
    entries: Mapping[str, Any],
    *,
    prune: bool,
) -> None:
    """Plan what becomes of the calendars that are the owner's, and in the file no more.

    Arguments:
        owners: names of the calendars that aren't in the file to whose they are.
        entries: those of the file, by their keys.
    """
    store = Store(plan.app)
    gone = {name for name, those in owners.items() if owner in those}
    found = {name: fields for name, fields in read_fields(store, gone).items() if not _is_missing(fields)}
    if not prune or not found:
        plan.calendars.left.extend(sorted(found))
        return
    removed = {change.stored.key for change in plan.changes if change.is_deleted}
    users = find_users(store, found, without=removed | entries.keys())
    for entry in entries.values():
        if entry.policy.exclude in found:
            users.setdefault(entry.policy.exclude, []).append(entry.name)
    for name, fields in sorted(found.items()):
        others = sorted(set(owners[name]) - {owner})
        if name in users and not others:
            plan.calendars.left.append(name)
            rest = len(users[name]) - 1
            more = f" and {rest} more {'entry names' if rest == 1 else 'entries name'}" if rest else " names"
            plan.warnings.append(
                f"The calendar {name} isn't in the file any more, and stays: {users[name][0]}{more} it."
            )
            continue
        plan.calendar_changes.append(
            CalendarChange(
                f"{owner}\t{name}",
                store.keys.calendar(name),
                fields.kind if isinstance(fields, Unusable) else fields,
                None if others else {},
                store.keys.calendar_owners,
                is_owned=False,
            )
        )
        if others:
            plan.calendars.changed[name] = {"owner": (owner, ", ".join(others))}
        else:
            plan.calendars.removed[name] = _shown_calendar(fields)


def _is_missing(fields: Mapping[str, str] | Unusable) -> bool:
    return isinstance(fields, Unusable) and fields.is_missing


def calendar_of(declared: Declared, name: str, app: Any) -> Calendar:
    """Return the calendar that a file describes; FileError: it has a wrong value."""
    fields = declared.calendars[name]
    try:
        return Calendar(name, fields.get("days") or (), fields.get("about", ""), app)
    except (ValueError, TypeError) as exc:
        reason = str(exc).removeprefix(f"{printable(name)}: ")
        raise declared.fault(("calendars", name), reason) from exc


def commit(plan: Plan) -> None:
    """Carry ``plan`` out, all of it in one step.

    Raises:
        EntryChanged: an entry or a calendar is another one by now; nothing was written.
    """
    store, calendars = Store(plan.app), plan.calendar_changes
    owned = {change.owned_key for change in plan.changes} | {change.owned_key for change in calendars}
    with store.translating(sets=owned - {""}):
        changed = scripts.apply_entries(
            store.client, store.keys.schedule, plan.changes, calendars=calendars, wake=store.keys.wake
        )
    if changed is not None and not _stands(store, plan):
        raise EntryChanged(f"{store.keys.name(changed)} has changed meanwhile; nothing was written.", changed)
    # other entries refer to a calendar that is another one now, and they may have changed meanwhile
    for calendar_name, before in read_calendars(store, plan.calendars_before).items():
        if before != plan.calendars_before[calendar_name] and not isinstance(before, Unusable):
            Calendar.load(calendar_name, plan.app).retime(plan.calendars_before[calendar_name])


def _stands(store: Store, plan: Plan) -> bool:
    """Tell whether all of ``plan`` is done: the server did it, and its reply was lost."""
    changes = [change for change in plan.changes if change.kind != "keep"]
    _, found = read_with_owners(store, [change.stored.key for change in changes])
    for change, (stored, owner) in zip(changes, found, strict=True):
        if change.is_deleted:
            if stored.exists:
                return False
            continue
        after = change.stored if change.write is None else stored_after(change.stored, change.write)
        if (stored.definition, stored.policy or "", owner) != (
            after.definition,
            after.policy or "",
            change.owner or "",
        ):
            return False
    changed = {one.key: dict(one.fields) for one in plan.calendar_changes if one.fields is not None}
    calendars = read_fields(store, [key.removeprefix(store.keys.calendar("")) for key in changed])
    return all(
        changed[store.keys.calendar(name)] == ({} if _is_missing(fields) else fields)
        for name, fields in calendars.items()
    )


def apply_plan(
    make: Callable[[], Plan], confirm: Callable[[Plan, str], bool] = lambda _plan, _why: True
) -> Plan | None:
    """Make a plan and carry it out; return it, None where ``confirm`` said no.

    When entries change in between, the plan is made anew; ``confirm`` is asked again only if the new one
    isn't the same, as it is when beat has just counted a run.

    Arguments:
        make: makes the plan.
        confirm: is told the plan, and why it is another one than before, '' for the first.

    Raises:
        EntryChanged: somebody changes the entries all the time.
    """
    plan, why, shown = make(), "", None
    for _ in range(MAX_ATTEMPTS):
        document = json.dumps([plan.difference.to_dict(), plan.calendars.to_dict()], sort_keys=True)
        if document != shown and not confirm(plan, why):
            return None
        shown = document
        if not plan:
            return plan
        try:
            commit(plan)
        except EntryChanged as exc:
            plan, why, last = make(), str(exc), exc
        else:
            return plan
    raise EntryChanged(
        f"{last} That has happened {MAX_ATTEMPTS} times in a row; look for a program that writes it all the "
        "time.",
        last.key,
    )
