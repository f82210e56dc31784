"""Plans: what a file of entries would change in the schedule, and making that change in one step.

Invariant: a plan is carried out as a whole or not at all, and only if nothing that it was made from has
changed. Entries of other owners aren't touched.

Where the schedule is divided into shards, that is so for the entries of each shard. A plan that has ended in
between is finished by the same file: what is done already doesn't differ from it any more. Entries of one
file can't be kept in one shard: where an entry is follows from its name alone, so that everybody finds it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any

from redbeat.calendars import Calendar
from redbeat.config.config import ensure_conf
from redbeat.entries.calendar_loading import Unusable, give_calendars, read_calendars
from redbeat.entries.due import is_pause_over
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.fields import ENTRY_FIELDS, STATE_FIELDS
from redbeat.entries.loading import try_decode
from redbeat.entries.notation import write_schedule
from redbeat.entries.pauses import keep_pause
from redbeat.entries.saving import encode_entry, plan_write, stored_after, why_never
from redbeat.entries.validation import find_name_problem
from redbeat.errors import EntryChanged, EntryError, FileError, OwnedByOthers
from redbeat.log.text import printable
from redbeat.manifest.calendars import (
    CalendarPlan,
    calendar_of,
    is_stored,
    plan_calendars,
    plan_gone_calendars,
    put_back_named,
)
from redbeat.manifest.diff import Difference, differing
from redbeat.manifest.format import Declared
from redbeat.policy.policy import NAMES, PAUSE_FIELDS, decode_policy
from redbeat.store.entries import add_records, read_entries, record_text
from redbeat.store.owners import (
    apply_changes,
    names_owned_by,
    read_calendar_owners,
    read_owners,
    read_static_names,
)
from redbeat.store.parts import in_chunks
from redbeat.store.records import Change, Stored, Write
from redbeat.store.store import Store

#: how many entries one step stores at most
MAX_ENTRIES = 50_000

#: how many arguments a script may have; Redis 6.2 takes 1,048,576
MAX_ARGUMENTS = 1_040_000

#: how often a plan is made again at most because entries have changed meanwhile
MAX_ATTEMPTS = 50

Progress = Callable[[int], object]


@dataclass
class Plan:
    """What applying a file would do.

    Attributes:
        difference: what changes, for people.
        changes: one for each entry of the file, and for each that is removed.
        calendars: what becomes of calendars.
        warnings: sentences.
        outcome: sentences about what went differently when the plan was carried out.
        is_pruned: entries that aren't in the file any more are removed.
        read_at: the server's clock when the stored entries were read.
    """

    app: Any
    difference: Difference = field(default_factory=Difference)
    changes: list[Change] = field(default_factory=list)
    calendars: CalendarPlan = field(default_factory=CalendarPlan)
    warnings: list[str] = field(default_factory=list)
    outcome: list[str] = field(default_factory=list)
    is_pruned: bool = False
    read_at: datetime | None = None

    def __bool__(self) -> bool:
        return bool(self.difference) or bool(self.calendars.changes)

    @property
    def number(self) -> int:
        """How many entries and calendars change."""
        return self.difference.number + self.calendars.difference.number

    def to_dict(self) -> dict[str, Any]:
        """Return what would change as a dict of plain JSON."""
        return {**self.difference.to_dict(), "calendars": self.calendars.difference.to_dict()}

    def told(self) -> dict[str, Any]:
        """Return the same with all that there is to say about it."""
        return {**self.to_dict(), "warnings": [*self.warnings, *self.outcome]}

    @property
    def names(self) -> list[str]:
        """The names of the entries that change, and of the calendars."""
        own, calendars = self.difference, self.calendars.difference
        return [
            *(*own.added, *own.changed, *own.removed),
            *(f"calendar {name}" for name in (*calendars.added, *calendars.changed, *calendars.removed)),
        ]

    @property
    def counts(self) -> dict[str, int]:
        """How many entries are added, changed and removed, and how many calendars change."""
        own = self.difference
        counts = {"added": len(own.added), "changed": len(own.changed), "removed": len(own.removed)}
        return {**counts, "calendars": len(self.calendars.changes)}


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


def owner_of(declared: Declared, given: str | None = None) -> str:
    """Return the owner of the entries of a file: the one that was given, else the one that it names.

    Raises:
        FileError: there is none.
    """
    owner = given or declared.owner
    if owner is None:
        raise FileError(
            f"{declared.origin}: the entries have no owner: give --owner, or 'owner:' in the file.",
            declared.origin,
        )
    return owner


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
        take_over: give the owner also those entries that have another one.
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
    gone = sorted(names_owned_by(store, owner) - declared.entries.keys())
    calendar_owners = read_calendar_owners(store)
    now, found = read_with_owners(store, [*entries, *(store.keys.entry(name) for name in gone)], progress)
    plan.read_at = now
    if not take_over:
        _check_owners(store, declared, owner, found[: len(entries)])
    named = [entry for entry in entries.values() if entry.policy.exclude is not None]
    names = {entry.policy.exclude for entry in named}
    plan.calendars = plan_calendars(store, declared, names, owner, calendar_owners)
    declared_calendars = {name: calendar_of(declared, name, app) for name in declared.calendars}
    give_calendars(named, {**plan.calendars.before, **declared_calendars})
    for stored, entry in zip(found, entries.values(), strict=False):
        _plan_entry(plan, declared, entry, stored, now, owner)
    give_calendars(named, {})
    for name, stored in zip(gone, found[len(entries) :], strict=True):
        if stored.owner != owner or not stored.exists:
            continue  # it was removed, or moved to another owner
        if not prune:
            plan.difference.left.append(name)
            continue
        plan.difference.removed[name] = shown_fields(try_decode(RedBeatSchedulerEntry, stored, app))
        plan.changes.append(Change(stored, None))
    owners = {name: those for name, those in calendar_owners.items() if name not in declared.calendars}
    removed = {change.stored.key for change in plan.changes if change.write is None}
    plan_gone_calendars(plan.calendars, store, owner, owners, entries, removed, prune=prune)
    plan.warnings += plan.calendars.warnings
    check_size(plan, declared)
    return plan


def check_size(plan: Plan, declared: Declared) -> None:
    """Raise FileError if ``plan`` is too large for one step."""
    count = 8 * len(plan.calendars.changes)
    for change in plan.changes:
        past = ((), ()) if change.write is None else change.write.past
        count += 12 + (0 if past is None else 1 + sum(4 if texts else 1 for texts in past))
    if count > MAX_ARGUMENTS:
        removed = f", and remove {len(plan.difference.removed)} entries" if plan.difference.removed else ""
        raise FileError(
            f"{declared.origin}: one step can't store all of that{removed}: split the file"
            f"{', or delete some of these before' if removed else ''}.",
            declared.origin,
        )


def read_with_owners(
    store: Store, keys: Sequence[str], progress: Progress | None = None
) -> tuple[datetime, list[Stored]]:
    """Return the server's time, and the entries with their owners."""
    found: list[Stored] = []
    now = datetime.now(timezone.utc)
    for chunk in in_chunks(keys):
        now, entries = read_entries(store, chunk)
        for stored, owner in zip(entries, read_owners(store, chunk), strict=True):
            stored.owner = owner
        found += entries
        if progress is not None:
            progress(len(found))
    return now, found


def _check_owners(store: Store, declared: Declared, owner: str, found: Sequence[Stored]) -> None:
    """Raise OwnedByOthers if entries of the file belong to another owner."""
    statics = read_static_names(store)
    others: dict[str, str] = {}
    for stored in found:
        name = store.keys.name(stored.key)
        if stored.owner and stored.owner != owner:
            others[name] = stored.owner
        elif name in statics.names and not stored.owner:
            apps = ", ".join(sorted(filter(None, statics.owners.get(name, ()))))
            others[name] = f"the code of {apps or 'an app'} (beat_schedule or @scheduled)"
    if not others:
        return
    name, other = next(iter(others.items()))
    rest = len(others) - 1
    more = f", and {rest} more {'is' if rest == 1 else 'are'} others', too" if rest else ""
    reason = f"belongs to {other}{more}; remove it from one of the two, or take it over (--take-over)."
    fault = declared.fault(("entries", name), reason)
    raise OwnedByOthers(str(fault), declared.origin, others)


def _plan_entry(
    plan: Plan,
    declared: Declared,
    entry: RedBeatSchedulerEntry,
    stored: Stored,
    now: datetime,
    owner: str,
) -> None:
    write = None
    before = try_decode(type(entry), stored, plan.app) if stored.exists else None
    if before is not None:
        keep_pause(entry, before, declared.entries[entry.name])
        if before.enabled and is_pause_over(entry, now):  # the file's pause, which beat has ended
            entry.enabled = True
            entry.set_policy(dict.fromkeys(PAUSE_FIELDS))
    try:
        encoded = encode_entry(entry, stored)
        differences: dict[str, tuple[Any, Any]] = {}
        if before is not None and encoded != (stored.definition, stored.policy or ""):
            differences = differing(shown_fields(before), shown_of(*encoded))
        if before is None or stored.score is None or differences:
            write = plan_write(entry, stored, now, encoded, before)
            if write.score == -1 and entry.enabled:
                plan.warnings.append(f"{entry.name} never runs: {why_never(entry, now)}")
    except EntryError as exc:
        reason = str(exc).removeprefix(f"{printable(entry.key)}: ")
        raise declared.fault(("entries", entry.name), reason) from exc
    plan.changes.append(Change(stored, replace(write or Write(), owner=owner)))
    if not stored.exists:
        plan.difference.added[entry.name] = shown_of(*encoded)
        return
    if write is not None and not differences:
        differences["stored"] = ("unusable" if before is None else "unscheduled", "as the file has it")
    if owner != stored.owner:
        differences["owner"] = (stored.owner or None, owner)
    if differences:
        plan.difference.changed[entry.name] = differences
    else:
        plan.difference.same.append(entry.name)


def shown_fields(entry: RedBeatSchedulerEntry | None) -> dict[str, Any]:
    """Return the fields of ``entry`` as a file has them, without defaults; {} for None."""
    return {} if entry is None else shown_of(*encode_entry(entry, Stored(entry.key)))


def shown_of(definition: str, policy: str) -> dict[str, Any]:
    """Return what ``shown_fields`` does, from the JSON that ``encode_entry`` has made."""
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


def commit(plan: Plan, begun: Plan | None = None) -> None:
    """Carry ``plan`` out, all of it in one step, or of each shard's entries all.

    Arguments:
        begun: the plan of which this one is the rest.

    Raises:
        EntryChanged: an entry or a calendar has changed meanwhile; its text says what was written all the
            same.
    """
    store = Store(plan.app)
    applied = apply_changes(store, plan.changes, plan.calendars.changes)
    is_done = applied.changed is None or _stands(store, plan)
    if plan.read_at is not None:
        records = [
            (change.stored.key, record_text(change.write.record, plan.read_at))
            for change in plan.changes
            if change.write is not None
            and change.write.record
            and (is_done or change.stored.key in applied.written)
        ]
        add_records(store, records)
    if not is_done:
        changed = applied.changed or ""
        name, told = store.keys.name(changed), applied.told
        text = f"{name} has changed meanwhile; {told[0].lower()}{told[1:]}"
        if applied.is_begun:
            raise _Unfinished(text, changed, frozenset(map(store.keys.name, applied.written)))
        raise EntryChanged(text, changed)
    plan.outcome += put_back_named(store, plan.calendars)
    before = (begun or plan).calendars.before
    new = {change.stored.key for change in (begun or plan).changes if not change.stored.exists}
    # entries that aren't in the file may refer to a calendar that was changed
    for calendar_name, after in read_calendars(store, before).items():
        if after != before[calendar_name] and not isinstance(after, Unusable):
            Calendar.load(calendar_name, plan.app).retime(before[calendar_name], new)


def _stands(store: Store, plan: Plan) -> bool:
    """Tell whether all of ``plan`` is done already, as the server did it and its reply was lost."""
    _, found = read_with_owners(store, [change.stored.key for change in plan.changes])
    for (before, write), stored in zip(plan.changes, found, strict=True):
        if write is None:
            if stored.exists:
                return False
            continue
        after = stored_after(before, write)
        if (stored.definition, stored.policy or "", stored.owner) != (
            after.definition,
            after.policy or "",
            write.owner or "",
        ):
            return False
    return is_stored(store, plan.calendars)


class _Unfinished(EntryChanged):
    """The plan was carried out in some shards only.

    Attributes:
        written: the names of the entries that were.
    """

    def __init__(self, message: str, key: str, written: frozenset[str]) -> None:
        super().__init__(message, key)
        self.written = written


class _Differs(EntryChanged):
    """What a plan was made from has changed, and the new plan isn't the one that was confirmed."""

    def __init__(self, plan: Plan, reason: EntryChanged, written: frozenset[str]) -> None:
        super().__init__(str(reason), reason.key)
        self.plan, self.written = plan, written


def apply_plan(
    make: Callable[[], Plan],
    confirm: Callable[[Plan, str], bool] = lambda _plan, _why: True,
    audited: Callable[[Plan], AbstractContextManager[object]] = lambda _plan: nullcontext(),
    make_rest: Callable[[Collection[str]], Plan] | None = None,
) -> Plan | None:
    """Make a plan and carry it out; return it, or None if ``confirm`` returned False.

    If entries change in between, the plan is made again. ``confirm`` is called again only if the new plan
    differs: it doesn't if beat has only counted a run.

    Arguments:
        make: makes the plan.
        confirm: called with the plan, and with the reason why it was made again, '' for the first one.
        audited: returns what is entered around carrying out a plan that was confirmed.
        make_rest: makes the plan again without the entries of these names, which were written already, in
            other shards than that of an entry that has changed; None: ``make`` finds that they don't differ.

    Raises:
        EntryChanged: the entries changed at each of ``MAX_ATTEMPTS`` attempts.
    """
    plan, why, attempts = make(), "", iter(range(1, MAX_ATTEMPTS))
    written: frozenset[str] = frozenset()
    while True:
        if not confirm(plan, why):
            return None
        if not plan:
            return plan
        try:
            with audited(plan):
                return _carry_out(plan, make_rest or (lambda _: make()), attempts, written)
        except _Differs as exc:
            plan, why, written = exc.plan, str(exc), exc.written


def _carry_out(
    plan: Plan,
    make_rest: Callable[[Collection[str]], Plan],
    attempts: Iterator[int],
    written: frozenset[str],
) -> Plan:
    """Carry out ``plan``, or one that is made again and does the same, or the rest of it; return it.

    Arguments:
        written: the names of entries that earlier plans have written.
    """
    confirmed, begun = plan, None
    while True:
        try:
            commit(plan, begun)
        except EntryChanged as exc:
            if isinstance(exc, _Unfinished):
                begun, written = begun or plan, written | exc.written
            if next(attempts, None) is None:
                raise EntryChanged(
                    f"{exc} That has happened {MAX_ATTEMPTS} times in a row; look for a program that writes "
                    "it all the time.",
                    exc.key,
                ) from exc
            try:
                plan = make_rest(written)
            except FileError as error:
                if written:
                    error.add(str(exc))
                raise
            if not (_is_same(plan, confirmed) if begun is None else _is_rest(plan, begun)):
                raise _Differs(plan, exc, written) from exc
        else:
            if begun is None:
                return plan
            begun.outcome += plan.outcome
            return begun


def _is_same(plan: Plan, other: Plan) -> bool:
    """Tell whether both do the same."""
    first, second = (json.dumps(one.to_dict(), sort_keys=True) for one in (plan, other))
    return first == second


def _is_rest(plan: Plan, whole: Plan) -> bool:
    """Tell whether ``plan`` does nothing that ``whole`` doesn't."""
    for rest, of in (
        (plan.difference, whole.difference),
        (plan.calendars.difference, whole.calendars.difference),
    ):
        for some, known in ((rest.added, of.added), (rest.changed, of.changed), (rest.removed, of.removed)):
            if any(name not in known or known[name] != shown for name, shown in some.items()):
                return False
    return True
