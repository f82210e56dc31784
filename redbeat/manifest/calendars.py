"""Calendars of a file: what applying it would change about them, and about those that aren't in it any more.

Invariant: a calendar that an entry still names, or that another owner has applied, too, isn't removed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from redbeat.calendars import Calendar, find_users
from redbeat.entries.calendar_loading import ABOUT, Unusable, calendar_from, read_fields
from redbeat.log.text import printable
from redbeat.manifest.diff import Difference, differing
from redbeat.manifest.format import Declared
from redbeat.schedules.occurrences import Excluded
from redbeat.store.owners import CalendarChange, apply_changes
from redbeat.store.store import Store


@dataclass
class CalendarPlan:
    """What becomes of calendars.

    Attributes:
        difference: what changes, for people; a calendar's fields are its days and spans, and ``about``.
        changes: one for each calendar that is stored or removed, or gets the owner.
        before: the calendars of the file, and all that entries name, as they were when the plan was made.
        warnings: sentences.
    """

    difference: Difference = field(default_factory=Difference)
    changes: list[CalendarChange] = field(default_factory=list)
    before: dict[str, Excluded] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def plan_calendars(
    store: Store,
    declared: Declared,
    named: Iterable[str | None],
    owner: str,
    owners: Mapping[str, Collection[str]],
) -> CalendarPlan:
    """Return what becomes of the calendars of a file, and what all of them are now.

    Arguments:
        named: other calendars that entries name.
        owner: an owner that they get besides those that they have; '': none.
        owners: the name of each calendar to the owners that it has.
    """
    plan = CalendarPlan()
    found = read_fields(store, {*declared.calendars, *filter(None, named)})
    plan.before = {name: calendar_from(name, fields) for name, fields in found.items()}
    for name in declared.calendars:
        calendar, before = calendar_of(declared, name, store.config.app), found[name]
        fields = {ABOUT: calendar.about, **calendar.days}
        is_new_owner = bool(owner) and owner not in owners.get(name, ())
        is_same = not isinstance(before, Unusable) and {ABOUT: "", **before} == fields
        if is_same and not is_new_owner:
            plan.difference.same.append(name)
            continue
        read = before.kind if isinstance(before, Unusable) else before
        plan.changes.append(
            CalendarChange(name, owner, read, None if is_same else fields, True if is_new_owner else None)
        )
        if isinstance(before, Unusable) and before.is_missing:
            plan.difference.added[name] = _shown_calendar(fields)
            continue
        shown = differing(_shown_calendar(before), _shown_calendar(fields))
        if is_new_owner:
            shown["owner"] = (None, owner)
        plan.difference.changed[name] = shown
    return plan


def _shown_calendar(fields: Mapping[str, str] | Unusable) -> dict[str, str]:
    if isinstance(fields, Unusable):
        return {"stored": "unusable"}
    return {day: label for day, label in sorted(fields.items()) if day != ABOUT or label}


def plan_gone_calendars(
    plan: CalendarPlan,
    store: Store,
    owner: str,
    owners: Mapping[str, Collection[str]],
    entries: Mapping[str, Any],
    removed: Collection[str],
    *,
    prune: bool,
) -> None:
    """Plan what becomes of the owner's calendars that aren't in the file any more.

    Arguments:
        owners: the names of the calendars that aren't in the file, each to its owners.
        entries: the entries of the file, by their keys.
        removed: the keys of entries that are removed at the same time.
    """
    gone = {name for name, those in owners.items() if owner in those}
    found = {name: fields for name, fields in read_fields(store, gone).items() if not _is_missing(fields)}
    if not prune or not found:
        plan.difference.left.extend(sorted(found))
        return
    users = find_users(store, found, without={*removed, *entries})
    for entry in entries.values():
        if entry.policy.exclude in found:
            users.setdefault(entry.policy.exclude, []).append(entry.name)
    for name, fields in sorted(found.items()):
        others = sorted(set(owners[name]) - {owner})
        if name in users and not others:
            plan.difference.left.append(name)
            plan.warnings.append(
                f"The calendar {name} isn't in the file any more, and stays: {_naming(users[name])} it."
            )
            continue
        plan.changes.append(
            CalendarChange(
                name,
                owner,
                fields.kind if isinstance(fields, Unusable) else fields,
                None if others else {},
                is_owned=False,
            )
        )
        if others:
            plan.difference.changed[name] = {"owner": (owner, ", ".join(others))}
        else:
            plan.difference.removed[name] = _shown_calendar(fields)


def put_back_named(store: Store, plan: CalendarPlan) -> list[str]:
    """Put back calendars that ``plan`` has removed, but that an entry names by now; return sentences about
    them.

    Looking for such entries in the step that removes the calendars would block the server, so it is done
    afterwards. As a save also looks for its calendar again afterwards, at least one of the two notices the
    other.
    """
    removed = {
        change.name: change
        for change in plan.changes
        if change.fields == {} and isinstance(change.read, Mapping)
    }
    users, told = find_users(store, removed) if removed else {}, []
    for name, entries in users.items():
        change = removed[name]
        fields = dict(change.read) if isinstance(change.read, Mapping) else {}
        back = replace(change, read="none", fields=fields, is_owned=True)
        if apply_changes(store, [], [back]).changed is not None:
            continue  # somebody has stored a calendar of this name
        Calendar.load(name, store.config.app).retime(Unusable(f"the calendar {name!r} was missing.", "none"))
        plan.difference.removed.pop(name, None)
        plan.difference.left.append(name)
        told.append(f"The calendar {name} stays: {_naming(entries)} it by now.")
    return told


def _naming(entries: Sequence[str]) -> str:
    rest = len(entries) - 1
    more = f" and {rest} more {'entry names' if rest == 1 else 'entries name'}" if rest else " names"
    return f"{entries[0]}{more}"


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


def is_stored(store: Store, plan: CalendarPlan) -> bool:
    """Tell whether all calendars are stored as ``plan`` has them."""
    changed = {one.name: dict(one.fields) for one in plan.changes if one.fields is not None}
    found = read_fields(store, changed)
    return all(changed[name] == ({} if _is_missing(fields) else fields) for name, fields in found.items())
