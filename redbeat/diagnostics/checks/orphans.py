"""Checks of keys that belong to no entry, and of entries that aren't in the schedule.

Invariant: keys of another schedule, whose prefix begins with this one's, are left out.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping

from redbeat.diagnostics.checks.context import Context
from redbeat.diagnostics.checks.finding import Finding, Repair, Severity
from redbeat.diagnostics.checks.messages import (
    check_stored_messages,
    check_visibility,
    find_lost_messages,
)
from redbeat.entries.validation import find_name_problem
from redbeat.keys import OWN_KINDS, Keys, is_of_kind
from redbeat.log.text import is_utf8, printable
from redbeat.store.downgrades import read_downgraded
from redbeat.store.entries import read_entries
from redbeat.store.members import scores_of
from redbeat.store.owners import read_static_names
from redbeat.store.parts import in_chunks
from redbeat.store.records import Stored

#: the ends of keys that show a schedule with another prefix, and their types
_MARKS = {":schedule": "zset", ":statics": "set", ":lock": "string", ":tick": "string"}


def check_statics(context: Context) -> Iterator[Finding]:
    """Find names among the statics whose entries don't exist."""
    store = context.store
    for chunk in in_chunks(sorted(name for name in read_static_names(store).names if is_utf8(name))):
        for stored in read_entries(store, [store.keys.entry(name) for name in chunk])[1]:
            name = context.name_of(stored.key)
            if stored.exists and not find_name_problem(name, store.config.reserved_names):
                continue
            yield Finding(
                Severity.WARNING,
                "orphan-static",
                name,
                f"{store.parts.of(stored.key).statics} names it as an entry of beat_schedule, but there "
                "is no such entry.",
                "The next start of a beat saves it again where beat_schedule has it; --fix removes the name.",
                repair=Repair("forget", stored.key, name),
            )


def check_removed_statics(context: Context) -> Iterator[Finding]:
    """Find entries of a beat_schedule that a program has removed without their owners, as 2.x does."""
    statics = read_static_names(context.store)
    for name in sorted(statics.owners.keys() - statics.names):
        owners = ", ".join(sorted(filter(None, statics.owners[name]))) or "an app"
        yield Finding(
            Severity.WARNING,
            "removed-static",
            printable(name),
            f"It came from the beat_schedule of {owners}, and a beat of celery-redbeat 2.x seems to have "
            "removed it, as 2.x does with entries that its own beat_schedule doesn't have.",
            "Stop all beats of 2.x on this schedule; the next start of that app's beat saves it again.",
        )


def check_keys(context: Context) -> Iterator[Finding]:
    """Find entries that were taken out of the schedule, and what deleted entries left behind."""
    parts, places = context.store.parts, {part.prefix for part in context.store.parts}
    own = _own_kinds(context)
    others: set[str] = set()
    unscheduled: list[str] = []
    for every in context.keys_of_prefix():
        page = [key for key in every if parts.of(key).prefix in places]
        others |= _other_prefixes(context, page)
        owners = {key: _owner_of(parts.of(key), key) for key in page}
        kept = {key: owner for key, owner in owners.items() if owner is not None}
        yield from _of_wrong_type(context, {key: own[key] for key in every if key in own}, "it can't be used")
        kinds = {key: parts.of(key).kind_held(key) for key in kept}
        wrong = {one.about: one for one in _of_wrong_type(context, kinds, "runs can't be recorded in it")}
        yield from wrong.values()
        yield from _orphans(context, {key: owner for key, owner in kept.items() if key not in wrong})
        yield from find_lost_messages(context, page)
        entries = [key for key, owner in owners.items() if owner is None and _is_entry_key(context, key)]
        unscheduled += [stored.key for stored in _without_score(context, entries)]
    away = read_downgraded(context.store)  # what celery redbeat downgrade has taken out comes back
    ours = [key for key in unscheduled if not key.startswith(tuple(others)) and key not in away]
    # checked again after some time, as programs write the hash before the member
    for stored in _without_score(context, ours):
        key, problem = stored.key, context.row_of(stored.key, stored).problem
        useless = (
            f" It can't be used either: {problem.removeprefix(f'{printable(key)}: ')}" if problem else ""
        )
        yield Finding(
            Severity.NOTE,
            "unscheduled",
            context.name_of(key),
            f"It isn't in {parts.of(key).schedule}, so beat doesn't run it.{useless}",
            "If that is on purpose, nothing is wrong. Else celery redbeat set "
            f"{shlex.quote(printable(context.name_of(key)))} --enabled brings it back.",
        )


def _owner_of(keys: Keys, key: str) -> str | None:
    """Return the key of the entry beside which ``key`` is kept; None: it is kept beside none."""
    for beginning in keys.about("").beside:
        if key.startswith(beginning):
            return keys.entry(key.removeprefix(beginning))
    return None


def _own_kinds(context: Context) -> dict[str, str]:
    """Return RedBeat's own keys, and what they hold."""
    parts = [context.store.config.base_keys, *context.store.parts]
    return {part.own(name): kind for part in parts for name, kind in OWN_KINDS.items()}


def _of_wrong_type(context: Context, kinds: Mapping[str, str], problem: str) -> Iterator[Finding]:
    """Find keys that have another type than they should.

    Arguments:
        kinds: the keys, and what they should hold.
        problem: what follows from another one.
    """
    for key, found in zip(kinds, context.server.types_of(list(kinds)), strict=True):
        if not is_of_kind(found, kinds[key]):
            yield Finding(
                Severity.WARNING,
                "wrong-type",
                key,
                f"It holds something that is no {kinds[key]}, so {problem}.",
                "Look at what it holds before you delete it.",
            )


def _orphans(context: Context, owners: dict[str, str]) -> Iterator[Finding]:
    found = read_entries(context.store, list(dict.fromkeys(owners.values())))[1]
    missing = {stored.key for stored in found if not stored.exists}
    for key, owner in owners.items():
        if owner in missing:
            yield Finding(
                Severity.NOTE,
                "orphan-key",
                key,
                f"It belongs to the entry {context.name_of(owner)!r}, which doesn't exist any more.",
                "It does no harm; --fix deletes it.",
                repair=Repair("delete", owner, key),
            )


def _is_entry_key(context: Context, key: str) -> bool:
    is_named = find_name_problem(context.name_of(key), context.config.reserved_names) is None
    return is_named and context.store.keys.may_be_entry(key)


def _without_score(context: Context, keys: Iterable[str]) -> list[Stored]:
    """Return those of ``keys`` that are entries, and aren't in the schedule."""
    found = read_entries(context.store, list(keys))[1]
    lost = [stored for stored in found if stored.definition is not None and stored.score is None]
    if not lost:
        return []
    # an entry may also be in the schedule by its bare name
    scores = scores_of(context.store, [context.name_of(stored.key) for stored in lost])
    return [stored for stored, score in zip(lost, scores, strict=True) if score is None]


def _other_prefixes(context: Context, page: Iterable[str]) -> set[str]:
    """Return the prefixes of other schedules that begin with this one's, as keys on ``page`` show."""
    found = set()
    for key in page:
        keys = context.store.parts.of(key)
        prefix, lock_key = keys.prefix, context.config.lock_key_in(keys)
        for mark, kind in _MARKS.items():
            other = key.removesuffix(mark)
            is_other = other not in (key, prefix) and other.startswith(prefix)
            if is_other and key != lock_key and context.server.types_of([key]) == [kind]:
                found.add(other)
    return found


ORPHAN_CHECKS = (
    check_visibility,
    check_stored_messages,
    check_statics,
    check_removed_statics,
    check_keys,
)
