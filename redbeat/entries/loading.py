"""The tolerant reader: from what is in Redis to an entry, or to a sentence that says why it can't be used.

Invariant: whatever is there, reading it ends with an entry, EntryNotFound or EntryCorrupt.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from contextvars import ContextVar
from datetime import tzinfo
from functools import lru_cache, partial
from typing import Any, TypeVar

from redbeat.config.config import ensure_conf
from redbeat.config.suggestions import find_typos
from redbeat.decoder import DEFINITION_FIELDS, BadObject
from redbeat.delivery.reserved_names import find_reserved
from redbeat.entries.validation import (
    find_size_problem,
    read_fields,
    why_undecoded,
)
from redbeat.errors import EntryCorrupt, EntryNotFound
from redbeat.log.text import is_utf8, printable
from redbeat.policy.policy import FIELDS, NO_POLICY, Policy, decode_policy, own_parameters, read_policy
from redbeat.store.records import Stored

_KNOWN = {*DEFINITION_FIELDS, *FIELDS}

#: keys of a definition that a subclass's constructor is given, and may pass on: ours ignores them
stored_extras: ContextVar[frozenset[str]] = ContextVar("stored_extras", default=frozenset())

#: RedBeatSchedulerEntry or a subclass
EntryT = TypeVar("EntryT", bound=Any)


def decode_entry(cls: type[EntryT], stored: Stored, app: Any) -> EntryT:
    """Return the entry of class ``cls`` that ``stored`` describes.

    Raises:
        EntryNotFound: there is none.
        EntryCorrupt: it can't be used; the message says why.
    """
    key = stored.key
    if not is_utf8(key):
        raise EntryCorrupt(f"{printable(key)}: the key is no UTF-8.", key)
    if not stored.is_hash:
        raise EntryCorrupt(f"{key}: the key holds something that is no hash.", key)
    if not stored.exists:
        raise EntryNotFound(f"{key}: there is no such entry.", key)
    if stored.unread_bytes:
        problem = find_size_problem(stored.unread_bytes, ensure_conf(app).max_entry_bytes)
        raise EntryCorrupt(f"{key}: {problem}", key)
    if stored.definition is None:
        raise EntryCorrupt(f"{key}: the hash has no field 'definition'.", key)
    try:
        definition = cls.decode_definition(stored.definition)
    except (ValueError, RecursionError) as exc:
        raise EntryCorrupt(f"{key}: definition: {_why(exc, stored.definition)}", key) from exc
    try:
        meta = cls.decode_meta(stored.meta, app)
    except (ValueError, RecursionError) as exc:
        raise EntryCorrupt(f"{key}: meta: {_why(exc)}", key) from exc
    try:
        values = read_fields(definition, meta)
    except ValueError as exc:
        raise EntryCorrupt(f"{key}: {exc}", key) from None
    problem = find_reserved(app, values["options"]) if values["options"] else None
    if problem:
        raise EntryCorrupt(f"{key}: {problem}", key)
    others = definition.keys() - DEFINITION_FIELDS
    parameters = own_parameters(cls.__init__)
    policy, typos = NO_POLICY, ""
    if stored.policy is not None or others:
        read = partial(_policy_of, definition, taken=parameters) if others else _plain_policy
        try:
            policy, typos = read(stored.policy, app.timezone)
        except (ValueError, RecursionError) as exc:
            raise EntryCorrupt(f"{key}: policy: {_why(exc)}", key) from exc
    # the key counts, not the definition's name
    values = {"app": app, "name": ensure_conf(app).keys.name(key), **values}
    entry: EntryT
    if parameters:  # a constructor of the application's own
        entry = _construct(cls, values, definition, others)
    else:  # the usual one would check again what was checked
        entry = object.__new__(cls)
        for name, value in values.items():
            setattr(entry, name, value)
        entry.has_last_run_at = values["last_run_at"] is not None
    entry.policy, entry.stored = policy, stored
    if typos:
        entry.typos = typos
    # once more, as Celery's constructor turns None into now
    entry.last_run_at = entry.known_last_run_at = values["last_run_at"]
    return entry


def _construct(
    cls: Any, values: Mapping[str, Any], definition: Mapping[str, Any], others: Collection[str]
) -> Any:
    """Call a subclass's own constructor, with the values of the keys of its own that it takes, as in 2.x."""
    taken = own_parameters(cls.__init__)
    takes_all = any(one.kind is one.VAR_KEYWORD for one in taken.values())
    extras = {
        name: definition[name] for name in others if name in taken or (takes_all and name not in FIELDS)
    }
    token = stored_extras.set(frozenset(extras))
    try:
        entry = cls(**values, **extras)
    finally:
        stored_extras.reset(token)
    if "schedule" in vars(entry):
        entry.schedule = entry.schedule  # with the app, which its constructor may have set later
    return entry


def _policy_of(
    definition: Mapping[str, Any], text: str | None, zone: tzinfo, taken: Collection[str] = ()
) -> tuple[Policy, str]:
    """Return the policy of an entry, and its keys that are ignored, in words.

    Arguments:
        text: the field ``policy``.
        zone: of naive times, unless the policy has one.
        taken: keys of the definition that belong to a subclass.
    """
    given = decode_policy(text)
    policy, ignored = read_policy(definition, given, zone)
    notes = [f"{name} ({why.rstrip('.')})" for name, why in ignored.items() if name not in taken]
    typos = find_typos({**definition, **given}, _KNOWN, likeness=0.8)
    return policy, ", ".join(filter(None, [typos, *notes]))


#: the same where the definition has no such keys; thousands of entries may share a few policies
_plain_policy = lru_cache(maxsize=1024)(partial(_policy_of, {}))


def _why(exc: Exception, definition: str = "") -> str:
    if isinstance(exc, json.JSONDecodeError):
        return f"no valid JSON: {exc}."
    if definition and isinstance(exc, BadObject):
        try:
            return why_undecoded(json.loads(definition), exc)
        except (ValueError, RecursionError) as broken:  # behind that object it is no JSON
            return _why(broken)
    return str(exc) or type(exc).__name__


def try_decode(cls: type[EntryT], stored: Stored, app: Any) -> EntryT | None:
    """Return the entry that ``stored`` describes; None: there is none, or it can't be used."""
    try:
        return decode_entry(cls, stored, app)
    except (EntryNotFound, EntryCorrupt):
        return None
