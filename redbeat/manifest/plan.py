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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any

from redbeat.calendars import Calendar, entries_in_words, find_users, retime
from redbeat.config.config import ensure_conf
from redbeat.entries.calendar_loading import (
    ABOUT,
    StoredCalendar,
    Unusable,
    give_calendars,
    read_stored,
)
from redbeat.entries.due import is_pause_over
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.forms import shown_value, without_secrets
from redbeat.entries.loading import try_decode
from redbeat.entries.notation import write_schedule
from redbeat.entries.pauses import end_pause, keep_pause
from redbeat.entries.saving import encode_entry, plan_save, why_never
from redbeat.entries.validation import find_name_problem
from redbeat.errors import EntryChanged, EntryError, FileError, OwnedByOthers
from redbeat.log.text import printable
from redbeat.manifest.format import Declared
from redbeat.policy.policy import NAMES, decode_policy
from redbeat.store.entries import add_records, read_entries, record_text
from redbeat.store.owners import (
    CalendarChange,
    apply_changes,
    names_owned_by,
    read_calendar_owners,
    read_owners,
    read_static_names,
)
from redbeat.store.parts import in_chunks
from redbeat.store.records import Change, Stored, Write
from redbeat.store.store import Store

#: how many entries one step stores and removes at most
MAX_ENTRIES = 50_000

#: how often a plan is carried out again at most because entries have changed meanwhile
MAX_ATTEMPTS = 50

Progress = Callable[[int], object]


@dataclass
class Difference:
    """What a file would change; each attribute has names of entries or calendars.

    Attributes:
        added: new ones, with their fields.
        changed: those that change, with the fields that differ: the values before and after, None for a
            missing one.
        removed: those that are removed, with their fields.
        same: those that stay as they are.
        left: those of the owner that aren't in the file any more; only pruning removes them.
    """

    added: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    changed: dict[str, Mapping[str, tuple[Any, Any]]] = field(default_factory=dict)
    removed: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    same: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.removed)

    @property
    def names(self) -> list[str]:
        """The names of the entries or calendars that change."""
        return [*self.added, *self.changed, *self.removed]

    def is_part_of(self, other: Difference) -> bool:
        """Return True if it changes nothing that ``other`` doesn't change in the same way."""
        return (
            self.added.items() <= other.added.items()
            and self.changed.items() <= other.changed.items()
            and self.removed.items() <= other.removed.items()
        )

    def to_dict(self) -> dict[str, Any]:
        """Return it as a dict of plain JSON, without secrets."""
        return {
            "added": {name: without_secrets(fields) for name, fields in self.added.items()},
            "changed": {
                name: {
                    field: {"before": shown_value(field, before), "after": shown_value(field, after)}
                    for field, (before, after) in fields.items()
                }
                for name, fields in self.changed.items()
            },
            "removed": {name: without_secrets(fields) for name, fields in self.removed.items()},
            "same": self.same,
            "left": self.left,
        }


def differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the fields that differ, with both values; None for a missing one."""
    return {
        name: (before.get(name), after.get(name))
        for name in dict.fromkeys([*before, *after])
        if before.get(name) != after.get(name)
    }


@dataclass
class Plan:
    """What applying or importing a file would do.

    Attributes:
        is_pruned: entries and calendars that aren't in the file any more are removed.
        read_at: the server's clock when the stored entries were read.
        difference, calendars: what changes, for people; a calendar's fields are its days and spans, and
            ``about``.
        changes: one for each entry of the file, and for each that is removed.
        calendar_changes: one for each calendar that is stored or removed, or gets the owner.
        calendars_before: the calendars of the file, and all that its entries name.
        warnings: sentences.
    """

    app: Any
    is_pruned: bool = False
    read_at: datetime | None = None
    difference: Difference = field(default_factory=Difference)
    calendars: Difference = field(default_factory=Difference)
    changes: list[Change] = field(default_factory=list)
    calendar_changes: list[CalendarChange] = field(default_factory=list)
    calendars_before: dict[str, StoredCalendar] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.difference or self.calendars)

    @property
    def names(self) -> list[str]:
        """The names of the entries that change, and of the calendars."""
        return [*self.difference.names, *(f"calendar {name}" for name in self.calendars.names)]

    @property
    def counts(self) -> dict[str, int]:
        """How many entries are added, changed and removed, and how many calendars change."""
        own = self.difference
        counts = {"added": len(own.added), "changed": len(own.changed), "removed": len(own.removed)}
        return {**counts, "calendars": len(self.calendars.names)}

    def to_dict(self) -> dict[str, Any]:
        """Return what would change as a dict of plain JSON, without secrets."""
        return {
            **self.difference.to_dict(),
            "calendars": self.calendars.to_dict(),
            "warnings": self.warnings,
        }


def entry_of(declared: Declared, name: str, app: Any) -> RedBeatSchedulerEntry:
    """Return the entry that a file describes.

    Raises:
        FileError: a field has a wrong value.
    """
    path, fields = ("entries", name), declared.entries[name]
    problem = find_name_problem(name, ensure_conf(app).reserved_names)
    if problem:
        raise declared.fault(path, problem)
    given = {"name": name, **fields}
    if given.pop("stored", None) and "task" not in fields:
        raise declared.fault((*path, "stored"), "is as it stands in Redis; only an import can write it.")
    try:
        return RedBeatSchedulerEntry.from_dict(given, app)
    except (EntryError, ValueError, TypeError) as exc:
        reason = str(exc).removeprefix(f"{printable(name)}: ")
        for one in fields:
            if re.match(rf"(?:a )?{re.escape(one)}\b|.*field '{re.escape(one)}'", reason):
                raise declared.fault((*path, one), reason.removeprefix(one).lstrip(": ")) from exc
        raise declared.fault(path, reason) from exc


def make_plan(
    app: Any,
    declared: Declared,
    owner: str | None = None,
    *,
    prune: bool = False,
    take_over: bool = False,
    progress: Progress | None = None,
) -> Plan:
    """Return what applying ``declared`` would do; nothing is written.

    Arguments:
        owner: of its entries and calendars; None: the file names it.
        prune: remove what the owner has applied before and isn't in the file any more.
        take_over: give the owner also those entries that have another one.
        progress: called with the number of entries looked at so far.

    Raises:
        FileError: something in the file can't be used, or (OwnedByOthers) belongs to others.
    """
    owner = owner or declared.owner
    if owner is None:
        reason = "the entries have no owner: name one (--owner), or write 'owner:' into the file."
        raise FileError(f"{declared.origin}: {reason}", declared.origin)
    check_size(declared, len(declared.entries))
    store, plan = Store(app), Plan(app, prune)
    entries = {store.keys.entry(name): entry_of(declared, name, app) for name in declared.entries}
    gone = sorted(names_owned_by(store, owner) - declared.entries.keys())
    owners = read_calendar_owners(store)
    now, found = read_with_owners(store, [*entries, *(store.keys.entry(name) for name in gone)], progress)
    plan.read_at = now
    if not take_over:
        _check_owners(store, declared, owner, found[: len(entries)])
    plan_calendars(plan, declared, entries.values(), owner, owners)
    for stored, entry in zip(found, entries.values(), strict=False):
        _plan_entry(plan, declared, entry, stored, now, owner)
    for name, stored in zip(gone, found[len(entries) :], strict=True):
        if stored.owner != owner or not stored.exists:
            continue  # it was removed, or moved to another owner
        if not prune:
            plan.difference.left.append(name)
            continue
        plan.difference.removed[name] = shown_fields(try_decode(RedBeatSchedulerEntry, stored, app))
        plan.changes.append(Change(stored, None))
    _plan_gone_calendars(plan, declared, entries.values(), owner, owners)
    check_size(declared, len(plan.changes))
    return plan


def check_size(declared: Declared, count: int) -> None:
    """Raise FileError if the changes of so many entries are too many for one step."""
    if count > MAX_ENTRIES:
        raise FileError(
            f"{declared.origin}: changes {count} entries, and one step takes at most {MAX_ENTRIES}: split "
            "the file, with an owner for each part.",
            declared.origin,
        )


# -- calendars


def plan_calendars(
    plan: Plan,
    declared: Declared,
    entries: Iterable[RedBeatSchedulerEntry],
    owner: str,
    owners: Mapping[str, Collection[str]],
) -> None:
    """Plan the calendars of a file, and give ``entries`` the calendars that they name.

    Arguments:
        owner: an owner that the calendars get besides those that they have; '': none.
        owners: the name of each calendar to the owners that it has.
    """
    made = {name: _calendar_of(declared, name, plan.app) for name in declared.calendars}
    named = [entry for entry in entries if entry.policy.exclude is not None]
    found = read_stored(Store(plan.app), {*made, *(str(entry.policy.exclude) for entry in named)})
    plan.calendars_before = found
    for name, calendar in made.items():
        stored = found[name]
        is_same = not stored.unreadable and (stored.days, stored.about) == (calendar.days, calendar.about)
        is_owned = True if owner and owner not in owners.get(name, ()) else None
        if is_same and not is_owned:
            plan.calendars.same.append(name)
            continue
        fields = None if is_same else {ABOUT: calendar.about, **calendar.days}
        plan.calendar_changes.append(CalendarChange(name, owner, stored.read, fields, is_owned))
        if stored.is_missing:
            plan.calendars.added[name] = _shown_calendar(calendar)
            continue
        shown = differing(_shown_calendar(stored), _shown_calendar(calendar))
        plan.calendars.changed[name] = {**shown, "owner": (None, owner)} if is_owned else shown
    give_calendars(named, {**{name: stored.excluded for name, stored in found.items()}, **made})


def _calendar_of(declared: Declared, name: str, app: Any) -> Calendar:
    fields = declared.calendars[name]
    try:
        return Calendar(name, fields.get("days") or (), fields.get("about", ""), app)
    except (ValueError, TypeError) as exc:
        reason = str(exc).removeprefix(f"{printable(name)}: ")
        raise declared.fault(("calendars", name), reason) from exc


def _shown_calendar(calendar: Calendar | StoredCalendar) -> dict[str, str]:
    if isinstance(calendar, StoredCalendar) and calendar.unreadable:
        return {"stored": "unusable"}
    about = {ABOUT: calendar.about} if calendar.about else {}
    return {**dict(sorted(calendar.days.items())), **about}


def _plan_gone_calendars(
    plan: Plan,
    declared: Declared,
    entries: Iterable[RedBeatSchedulerEntry],
    owner: str,
    owners: Mapping[str, Collection[str]],
) -> None:
    """Plan the removal of the owner's calendars that aren't in the file any more.

    A calendar that an entry names, or that another owner has applied, too, stays.
    """
    gone = {name for name, those in owners.items() if owner in those and name not in declared.calendars}
    store = Store(plan.app)
    found = {name: stored for name, stored in read_stored(store, gone).items() if not stored.is_missing}
    if not plan.is_pruned or not found:
        plan.calendars.left.extend(found)
        return
    replaced = {*declared.entries, *plan.difference.removed}
    users = {
        name: [entry for entry in named_by if entry not in replaced]
        for name, named_by in find_users(store, found).items()
    }
    for entry in entries:
        users.setdefault(str(entry.policy.exclude), []).append(entry.name)
    for name, stored in found.items():
        others = sorted(set(owners[name]) - {owner})
        if users.get(name) and not others:
            plan.calendars.left.append(name)
            plan.warnings.append(
                f"The calendar {name} isn't in the file any more, and stays, as it is named by "
                f"{entries_in_words(users[name])}."
            )
            continue
        fields: dict[str, str] | None = None if others else {}
        plan.calendar_changes.append(CalendarChange(name, owner, stored.read, fields, is_owned=False))
        if others:
            plan.calendars.changed[name] = {"owner": (owner, ", ".join(others))}
        else:
            plan.calendars.removed[name] = _shown_calendar(stored)


# -- entries


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
            end_pause(entry)
    try:
        encoded = encode_entry(entry, stored)
        differences: dict[str, tuple[Any, Any]] = {}
        if before is not None and encoded != (stored.definition, stored.policy or ""):
            differences = differing(shown_fields(before), shown_of(*encoded))
        if before is None or stored.score is None or differences:
            write = plan_save(entry, stored, now)
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
    shown = {"task": fields["task"], "schedule": write_schedule(fields["schedule"], exact=True)}
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


# -- carrying out


def commit(plan: Plan) -> None:
    """Carry ``plan`` out, all of it in one step, or of each shard's entries all.

    Raises:
        EntryChanged: an entry or a calendar has changed meanwhile; its text says what was written all the
            same.
    """
    store = Store(plan.app)
    applied = apply_changes(store, plan.changes, plan.calendar_changes)
    if plan.read_at is not None:
        records = [
            (change.stored.key, record_text(change.write.record, plan.read_at))
            for change in plan.changes
            if change.write is not None and change.write.record and change.stored.key in applied.written
        ]
        add_records(store, records)
    if applied.changed is None or applied.has_calendars:
        # entries that aren't in the file may refer to a calendar that was changed
        new = {change.stored.key for change in plan.changes if not change.stored.exists}
        for name, stored in read_stored(store, plan.calendars_before).items():
            before, excluded = plan.calendars_before[name], stored.excluded
            if stored != before and not isinstance(excluded, Unusable):
                retime(store, name, excluded, before.excluded, new)
    if applied.changed is not None:
        name, told = store.keys.name(applied.changed), applied.told
        text = f"{name} has changed meanwhile; {told[0].lower()}{told[1:]}"
        raise EntryChanged(text, applied.changed)


class _Differs(EntryChanged):
    """The plan that was made again does what wasn't confirmed."""

    def __init__(self, plan: Plan, reason: EntryChanged) -> None:
        super().__init__(str(reason), reason.key)
        self.plan = plan


def apply_plan(
    make: Callable[[], Plan],
    confirm: Callable[[Plan, str], bool] = lambda _plan, _why: True,
    audited: Callable[[Plan], AbstractContextManager[object]] = lambda _plan: nullcontext(),
) -> Plan | None:
    """Make a plan and carry it out; return it, or None if ``confirm`` returned False.

    If entries change in between, the plan is made again. ``confirm`` is called again only if the new plan
    does something else: it doesn't if beat has only counted a run, or if some of it is done already.

    Arguments:
        make: makes the plan.
        confirm: called with the plan, and with the reason why it was made again, '' for the first one.
        audited: returns what is entered around carrying out a plan that was confirmed.

    Raises:
        EntryChanged: the entries changed at each of ``MAX_ATTEMPTS`` attempts.
    """
    plan, why, attempts = make(), "", iter(range(1, MAX_ATTEMPTS))
    while confirm(plan, why):
        if not plan:
            return plan
        try:
            with audited(plan):
                _carry_out(plan, make, attempts)
            return plan
        except _Differs as exc:
            plan, why = exc.plan, str(exc)
    return None


def _carry_out(plan: Plan, make: Callable[[], Plan], attempts: Iterator[int]) -> None:
    """Carry out ``plan``; where entries have changed, what is left of it by a plan that is made again."""
    rest = plan
    while True:
        try:
            return commit(rest)
        except EntryChanged as exc:
            if next(attempts, None) is None:
                raise EntryChanged(
                    f"{exc} That has happened {MAX_ATTEMPTS} times in a row; look for a program that writes "
                    "it all the time.",
                    exc.key,
                ) from exc
            try:
                rest = make()
            except FileError as error:
                error.add(str(exc))
                raise
            is_part = rest.difference.is_part_of(plan.difference) and rest.calendars.is_part_of(
                plan.calendars
            )
            if not is_part:
                raise _Differs(rest, exc) from exc
