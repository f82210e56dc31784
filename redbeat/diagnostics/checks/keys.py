"""Checks of keys that belong to no entry, of entries that aren't in the schedule, and of delayed tasks.

Invariant: keys of another schedule, whose prefix begins with this one's, are left out.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from redbeat.diagnostics.checks.context import Context
from redbeat.diagnostics.findings import Finding, Severity, found
from redbeat.entries.failures import failure_of
from redbeat.entries.validation import find_name_problem
from redbeat.entries.wording import one_line
from redbeat.keys import OWN_KINDS, Keys, is_of_kind
from redbeat.later.installing import is_durable
from redbeat.later.visibility import find_short_visibility
from redbeat.log.text import counted, is_utf8, printable
from redbeat.schedules.timezones import moment_of
from redbeat.store.downgrades import read_downgraded
from redbeat.store.entries import read_entries
from redbeat.store.later import LaterStore
from redbeat.store.members import scores_of
from redbeat.store.owners import read_static_names
from redbeat.store.parts import in_chunks
from redbeat.store.records import Stored

#: a message that should have been sent so long ago is late
LATE = timedelta(seconds=60)
#: how many messages, the next ones, are looked at for what has gone wrong
MOST_MESSAGES = 500


def check_statics(context: Context) -> Iterator[Finding]:
    """Find names among the statics whose entries don't exist."""
    store = context.store
    for chunk in in_chunks(sorted(name for name in read_static_names(store).names if is_utf8(name))):
        for stored in read_entries(store, [store.keys.entry(name) for name in chunk])[1]:
            name = context.name_of(stored.key)
            if not stored.exists or find_name_problem(name, store.config.reserved_names):
                yield found("orphan-static", name, target=name, statics=store.parts.of(stored.key).statics)


def check_removed_statics(context: Context) -> Iterator[Finding]:
    """Find entries of a beat_schedule that a program has removed without their owners, as 2.x does."""
    statics = read_static_names(context.store)
    for name in sorted(statics.owners.keys() - statics.names):
        owners = ", ".join(sorted(filter(None, statics.owners[name]))) or "an app"
        yield found("removed-static", printable(name), owners=owners)


def check_keys(context: Context) -> Iterator[Finding]:
    """Find entries that were taken out of the schedule, and what deleted entries left behind."""
    parts, places = context.store.parts, {part.prefix for part in context.store.parts}
    of_redbeat = [context.config.base_keys, *parts]
    own = {part.own(name): kind for part in of_redbeat for name, kind in OWN_KINDS.items()}
    others: set[str] = set()
    unscheduled: list[str] = []
    for every in context.pages_of_keys():
        page = [key for key in every if parts.of(key).prefix in places]
        others |= _other_prefixes(context, page)
        owners = {key: _owner_of(parts.of(key), key) for key in page}
        yield from _wrong_types(context, {key: own[key] for key in every if key in own}, "it is ignored")
        beside = {key: owner for key, owner in owners.items() if owner is not None}
        kinds = {key: parts.of(key).kind_held(key) for key in beside}
        for one in _wrong_types(context, kinds, "runs can't be recorded in it"):
            del beside[one.about]
            yield one
        yield from _orphans(context, beside)
        yield from _lost_messages(context, page)
        entries = [key for key, owner in owners.items() if owner is None and _may_be_entry(context, key)]
        unscheduled += [stored.key for stored in _without_score(context, entries)]
    away = read_downgraded(context.store)  # what celery redbeat downgrade has taken out comes back
    ours = [key for key in unscheduled if not key.startswith(tuple(others)) and key not in away]
    # checked again after some time, as programs write the hash before the member
    for stored in _without_score(context, ours):
        row = context.row_of(stored.key, stored)
        problem = row.problem.removeprefix(f"{printable(row.key)}: ")
        yield found(
            "unscheduled",
            row.name,
            schedule=parts.of(row.key).schedule,
            problem=problem and f" It is invalid, too: {problem}",
            name=shlex.quote(printable(row.name)),
        )


def _owner_of(keys: Keys, key: str) -> str | None:
    """Return the key of the entry beside which ``key`` is kept; None: it is kept beside none."""
    for beginning in keys.about("").beside:
        if key.startswith(beginning):
            return keys.entry(key.removeprefix(beginning))
    return None


def _wrong_types(context: Context, expected: Mapping[str, str], effect: str) -> list[Finding]:
    """Return findings of keys that have another type than expected."""
    types = context.server.types_of(list(expected))
    return [
        found("wrong-type/own", key, expected=kind, effect=effect)
        for (key, kind), type_ in zip(expected.items(), types, strict=True)
        if not is_of_kind(type_, kind)
    ]


def _orphans(context: Context, owners: Mapping[str, str]) -> Iterator[Finding]:
    """Find keys whose entries don't exist."""
    exists = dict(zip(owners, context.server.which_exist(list(owners.values())), strict=True))
    for key, owner in owners.items():
        if not exists[key]:
            yield found("orphan-key", key, target=key, owner=context.name_of(owner))


def _may_be_entry(context: Context, key: str) -> bool:
    is_named = find_name_problem(context.name_of(key), context.config.reserved_names) is None
    return is_named and context.store.keys.may_be_entry(key)


def _without_score(context: Context, keys: Sequence[str]) -> list[Stored]:
    """Return the entries among ``keys`` that aren't in the schedule."""
    lost = [
        stored
        for stored in read_entries(context.store, keys)[1]
        if stored.definition is not None and stored.score is None
    ]
    # an entry may also be in the schedule by its bare name
    scores = scores_of(context.store, [context.name_of(stored.key) for stored in lost]) if lost else []
    return [stored for stored, score in zip(lost, scores, strict=True) if score is None]


def _other_prefixes(context: Context, page: Iterable[str]) -> set[str]:
    """Return the prefixes of other schedules that begin with this one's, as keys on ``page`` show."""
    ours = {part.schedule for part in context.store.parts}
    others = [key for key in page if key.endswith(":schedule") and key not in ours]
    types = context.server.types_of(others)
    return {key.removesuffix(":schedule") for key, kind in zip(others, types, strict=True) if kind == "zset"}


def check_stored_messages(context: Context) -> Iterator[Finding]:
    """Find stored messages that are late, or couldn't be sent."""
    store = LaterStore.beside(context.store)
    messages = list(store.first(MOST_MESSAGES))
    late = [one for one in messages if 0 <= one.due < (context.now - LATE).timestamp()]
    if late:
        count = counted(len(late), "stored message", "stored messages")
        count = f"at least {count}" if len(late) == MOST_MESSAGES else count
        where = store.parts.of(store.keys.stored_message(late[0].task_id)).later
        yield found("late-messages", where, count=count, first=moment_of(late[0].due))
    for one in messages:
        key = store.keys.stored_message(one.task_id)
        failure = failure_of(Stored(key, error=one.error))
        if failure is not None:
            yield found("unsent-message", store.keys.name(key), reason=one_line(failure.reason))


def check_visibility(context: Context) -> Iterator[Finding]:
    """Find a visibility timeout of the broker that is shorter than ``redbeat_durable_after``."""
    problem = find_short_visibility(context.app) if context.has_tasks else None
    if problem is not None:
        severity, remedy = Severity.WARNING, problem.remedy
        if not is_durable(context.app):
            severity, remedy = Severity.NOTE, f"{remedy} Durable tasks need redbeat.later.install(app)."
        words: dict[str, Any] = {"problem": problem, "remedy": remedy}
        yield found("visibility-timeout", "broker_transport_options", severity=severity, **words)


def _lost_messages(context: Context, page: Sequence[str]) -> Iterator[Finding]:
    """Find messages that won't be sent, as they aren't scheduled, and bodies of messages that are gone."""
    parts = context.store.parts
    named = {key: parts.of(key).kind_of(key) for key in page}
    bodies = {
        key: parts.of(key).stored_message(name) for key, (kind, name) in named.items() if kind == "body"
    }
    for key, exists in zip(bodies, context.server.which_exist([*bodies.values()]), strict=True):
        if not exists:
            yield found("orphan-body", printable(key), key=shlex.quote(printable(key)))
    store = LaterStore.beside(context.store)
    messages = [key for key in page if store.keys.message_id(key) is not None]
    scores = scores_of(store, messages)
    unsent = [key for key, score in zip(messages, scores, strict=True) if score is None]
    for key, is_message in zip(unsent, store.are_messages(unsent), strict=True):
        if is_message:
            later = store.parts.of(key).later
            yield found("unscheduled-message", context.name_of(key), later=later, key=printable(key))
