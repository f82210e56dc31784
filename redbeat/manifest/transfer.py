"""Taking a schedule out of Redis and putting it back: export, import, and import from ``beat_schedule``.

Invariant: an entry that is exported and imported again is the same, with its counts, times, policy, and
unknown keys. What a file's fields can't express is in a field ``stored``, as it is in Redis.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from math import isnan, nan
from typing import Any

from redbeat.config.config import ensure_conf
from redbeat.decoder import DEFINITION_FIELDS, encode_meta
from redbeat.entries.calendar_loading import read_stored
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.forms import PAST_FIELDS
from redbeat.entries.saving import encode_entry, plan_save
from redbeat.entries.search import scan_entries
from redbeat.entries.validation import find_name_problem, find_size_problem
from redbeat.errors import EntryError, FileError
from redbeat.log.text import as_stored, is_utf8, printable, shorten
from redbeat.manifest.format import Declared, write_file
from redbeat.manifest.plan import (
    Plan,
    Progress,
    check_size,
    entry_of,
    plan_calendars,
    read_with_owners,
    shown_fields,
)
from redbeat.schedules.codec import SCHEDULE_FIELDS
from redbeat.schedules.timezones import time_of
from redbeat.store.histories import read_pasts
from redbeat.store.owners import read_calendar_owners, read_owners, read_static_names
from redbeat.store.parts import in_chunks
from redbeat.store.records import Change, Stored, Write, mark_of
from redbeat.store.store import Store

#: the owner of entries that were imported from ``beat_schedule``, so that beat doesn't remove them
IMPORTED = "imported"

#: the values of ``next_run`` that aren't times
NEVER, UNSCHEDULED = "never", "unscheduled"

#: how many levels of JSON a file has as values; what is nested more deeply is exported as text
MAX_LEVELS = 100

_STORED_ALREADY = "is stored already, and differs; replace it (--replace), or leave it out of the file."


@dataclass(frozen=True)
class Exported:
    """The stored entries as a file.

    Attributes:
        declared: the file.
        skipped: a sentence for each entry that isn't in it, and why.
    """

    declared: Declared
    skipped: Sequence[str]
    is_json: bool = False

    def text(self) -> str:
        """Return the contents of the file, JSON or YAML."""
        return write_file(self.declared, is_json=self.is_json)


# -- out of Redis


def export_entries(
    app: Any,
    match: str | None = None,
    owner: str | None = None,
    progress: Progress = lambda _count: None,
    *,
    with_history: bool = False,
) -> Exported:
    """Return the stored entries, and the calendars that they name.

    Arguments:
        match: a pattern of the name.
        owner: only entries that this owner has applied.
        progress: called with the number of entries looked at so far.
        with_history: with the records of their runs.
    """
    store, seen = Store(app), 0
    items: dict[str, dict[str, Any]] = {}
    skipped: list[str] = []
    calendars: set[str] = set()
    for chunk in in_chunks(scan_entries(app, match)):
        rows = [entry.stored for entry in chunk if entry.stored is not None]
        keys = [stored.key for stored in rows]
        pasts = read_pasts(store, keys) if with_history else [((), ())] * len(keys)
        for entry, stored, its_owner, past in zip(chunk, rows, read_owners(store, keys), pasts, strict=True):
            if owner is not None and its_owner != owner:
                continue
            if not stored.exists:
                skipped.append(f"{printable(entry.name)}: its hash is gone.")
            elif stored.unread_bytes:
                skipped.append(f"{entry.problem}")
            elif not is_utf8(entry.name):
                skipped.append(f"{printable(entry.name)}: its name is no UTF-8.")
            else:
                items[entry.name] = item = _item_of(entry, stored)
                if its_owner and owner is None:
                    item["owner"] = its_owner
                item.update((field, texts) for field, texts in zip(PAST_FIELDS, past, strict=True) if texts)
                calendars.update(filter(None, [getattr(entry.policy, "exclude", None)]))
        seen += len(chunk)
        progress(seen)
    declared = Declared(
        "export", owner, dict(sorted(items.items())), _calendars_of(store, calendars, skipped)
    )
    return Exported(declared, skipped)


def _calendars_of(store: Store, names: Collection[str], skipped: list[str]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for name, stored in read_stored(store, names).items():
        if stored.unreadable:
            skipped.append(stored.unreadable)
            continue
        found[name] = {**({"about": stored.about} if stored.about else {}), "days": stored.days}
    return found


def _item_of(entry: RedBeatSchedulerEntry, stored: Stored) -> dict[str, Any]:
    """Return the fields of an entry in a file."""
    raw: dict[str, Any] = {}
    item = {} if entry.problem else _fields_of(entry, stored)
    if not item:
        raw = {"definition": _raw(stored.definition), "policy": _raw(stored.policy)}
        raw = {name: value for name, value in raw.items() if value is not None}
    moment = None if entry.problem else entry.last_run_at
    written = None if entry.problem else encode_meta(moment, entry.total_run_count)
    if written == (stored.meta or "") and not stored.is_meta_foreign:
        item["last_run_at"] = moment and moment.astimezone(timezone.utc).isoformat()
        item["total_run_count"] = entry.total_run_count
    else:
        raw["meta"] = _raw(stored.meta)
        if stored.meta and not stored.is_meta_foreign:
            raw["meta_crc32"] = mark_of(stored.meta)
    if stored.error is not None:
        raw["error"] = _raw(stored.error)
    item["next_run"] = _next_run(stored.score)
    return {**item, "stored": raw} if raw else item


def _fields_of(entry: RedBeatSchedulerEntry, stored: Stored) -> dict[str, Any]:
    """Return a definition and a policy as fields of a file; {}: importing these would store others."""
    try:
        item = shown_fields(entry)
        if _has_levels(item, MAX_LEVELS):
            return {}
        again = entry_of(Declared(entries={entry.name: dict(item)}), entry.name, entry.app)
        return item if _is_all(encode_entry(again, Stored(stored.key)), stored, entry.name) else {}
    except (EntryError, FileError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


def _given_in(definition: str) -> dict[str, Any]:
    """Return what a definition has besides defaults; null, [] and {} all mean that there is nothing."""
    fields = json.loads(definition).items()
    return {field: value for field, value in fields if value or value is False}


def _is_all(encoded: tuple[str, str], stored: Stored, name: str) -> bool:
    """Return True if the JSON of an entry has all that is stored, where defaults may be missing."""
    definition, given = _given_in(encoded[0]), json.loads(stored.definition or "")
    schedule, its = definition.pop("schedule"), given.pop("schedule")
    known = SCHEDULE_FIELDS.get(schedule["__type__"], schedule.keys())
    if given.keys() - set(DEFINITION_FIELDS) or its.keys() - known:
        return False
    given = {"name": name, "enabled": True, **_given_in(json.dumps(given))}
    policy, its_policy = (json.loads(text or "null") for text in (encoded[1], stored.policy))
    return bool(definition == given and policy == its_policy)


def _has_levels(value: Any, levels: int) -> bool:
    """Return True if a value is nested more deeply; some versions of Python read it, and can't write it."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels < 0 or any(_has_levels(one, levels - 1) for one in inner)


def _raw(text: str | None) -> Any:
    """Return a field for ``stored``: as an object, if writing it gives ``text`` again, else as text."""
    try:
        value = json.loads(text or "")
    except (ValueError, RecursionError):
        return text
    if not isinstance(value, dict) or _has_levels(value, MAX_LEVELS):
        return text
    return value if json.dumps(value) == text else text


def _next_run(score: float | None) -> Any:
    if score is None:
        return UNSCHEDULED
    if score == -1:
        return NEVER
    try:
        moment = datetime.fromtimestamp(score, timezone.utc)
    except (ValueError, OverflowError, OSError):
        return score
    return moment.isoformat() if score >= 0 and moment.timestamp() == score else score


# -- into Redis


def plan_import(
    app: Any,
    declared: Declared,
    *,
    owner: str | None = None,
    replace_existing: bool = False,
    may_exist: Collection[str] = (),
) -> Plan:
    """Return what importing ``declared`` would do; nothing is written.

    Arguments:
        owner: the owner of entries that don't name one; None: the file's owner, or none.
        replace_existing: overwrite entries of the same names.
        may_exist: names that are overwritten in any case.

    Raises:
        FileError: something in the file can't be used, or is stored already.
    """
    # an entry with its records takes twice the room
    check_size(declared, sum(2 if _past_of(fields) else 1 for fields in declared.entries.values()))
    store, plan, owner = Store(app), Plan(app), owner or declared.owner or ""
    for name in declared.entries:
        problem = find_name_problem(name, store.config.reserved_names)
        if problem:
            raise declared.fault(("entries", name), problem)
    now, found = read_with_owners(store, [store.keys.entry(name) for name in declared.entries])
    for name, stored in zip(declared.entries, found, strict=True):
        if stored.exists and not stored.is_hash:
            raise declared.fault(("entries", name), "the key holds no hash; delete it first.")
        if stored.exists and not replace_existing and name not in may_exist:
            raise declared.fault(("entries", name), _STORED_ALREADY)
    entries = {
        name: entry_of(declared, name, app)
        for name, fields in declared.entries.items()
        if "task" in fields or "stored" not in fields
    }
    plan_calendars(plan, declared, entries.values(), owner, read_calendar_owners(store) if owner else {})
    for name, shown in plan.calendars.changed.items():
        if not replace_existing and shown.keys() - {"owner", "stored"}:
            raise declared.fault(("calendars", name), _STORED_ALREADY)
    for (name, fields), stored in zip(declared.entries.items(), found, strict=True):
        try:
            write = _plan_item(app, stored, declared, name, entries.get(name), now)
        except EntryError as exc:
            raise declared.fault(("entries", name), str(exc)) from exc
        write.owner, write.past = fields.get("owner") or owner, _past_of(fields)
        plan.changes.append(Change(stored, write))
        if stored.exists:
            plan.difference.changed[name] = {"stored": ("as it is", "as the file has it")}
        else:
            plan.difference.added[name] = shown_fields(entries.get(name))
    return plan


def _plan_item(
    app: Any,
    stored: Stored,
    declared: Declared,
    name: str,
    entry: RedBeatSchedulerEntry | None,
    now: datetime,
) -> Write:
    """Return what is stored of one entry."""
    fields = declared.entries[name]
    given = fields.get("stored") or {}
    if entry is not None and "next_run" not in fields and not given:
        return plan_save(entry, stored, now)  # a file without state is saved like a new entry
    definition, policy = encode_entry(entry, Stored(stored.key)) if entry is not None else ("", "")
    meta = encode_meta(_moment(declared, name, "last_run_at"), fields.get("total_run_count") or 0)
    try:
        raw = {"definition": definition, "policy": policy, "meta": meta} | {
            part: _text(value) for part, value in given.items()
        }
    except (TypeError, RecursionError) as exc:
        raise declared.fault(("entries", name, "stored"), f"{exc}.") from exc
    score = _score(declared, name)
    size_bytes = sum(len(as_stored(raw[part])) for part in ("definition", "policy", "meta"))
    problem = find_size_problem(size_bytes, ensure_conf(app).max_entry_bytes)
    if problem:
        raise declared.fault(("entries", name), problem)
    return Write(
        raw["definition"],
        raw["meta"],
        score,
        policy=raw["policy"],
        is_meta_foreign="meta" in given and raw.get("meta_crc32") != mark_of(raw["meta"]),
        error=raw.get("error"),
        is_unscheduled=score is None,
        is_replaced=stored.exists,
    )


def _past_of(fields: Mapping[str, Any]) -> tuple[Sequence[str], Sequence[str]] | None:
    """Return the records of an entry's runs that a file has, which replace others; None: these stay."""
    history, backfilled = (fields.get(name) or () for name in PAST_FIELDS)
    return (history, backfilled) if history or backfilled else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else json.dumps(value)


def _score(declared: Declared, name: str) -> float | None:
    """Return the score of an entry in a file, -1 for never; None: it isn't in the schedule."""
    value = declared.entries[name].get("next_run")
    if value in (NEVER, UNSCHEDULED, None):
        return -1.0 if value == NEVER else None
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        moment = _moment(declared, name, "next_run")
        return None if moment is None else moment.timestamp()
    try:
        score = float(value)
    except OverflowError:
        score = nan
    if isnan(score):  # Redis refuses it, so the script would fail in the middle
        raise declared.fault(("entries", name, "next_run"), f"{shorten(str(value), 80)} is not a time.")
    return score


def _moment(declared: Declared, name: str, field: str) -> datetime | None:
    value = declared.entries[name].get(field)
    if value is None:
        return None
    try:
        moment = time_of(value)
    except (ValueError, TypeError) as exc:
        raise declared.fault(("entries", name, field), f"{shorten(repr(value))} is not a time.") from exc
    return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)


# -- from elsewhere


def declare_beat_schedule(app: Any) -> tuple[Declared, set[str]]:
    """Return the app's ``beat_schedule`` as a file, and the names of its entries that beat has stored
    already.

    Raises:
        FileError: an entry can't be used.
    """
    items: dict[str, dict[str, Any]] = {}
    for name, fields in app.conf.beat_schedule.items():
        try:
            is_entry = hasattr(fields, "schedule")
            given = dict(fields.__dict__) if is_entry else dict(fields)
            known = {one: given[one] for one in given if not is_entry or one in DEFINITION_FIELDS}
            made = RedBeatSchedulerEntry(**{**known, "name": name, "app": app})
            items[name] = shown_fields(made)
        except Exception as exc:
            reason = printable(f"{name!r}: {type(exc).__name__}: {exc}")
            raise FileError(f"beat_schedule: {reason}", "beat_schedule") from exc
    return Declared("beat_schedule", None, items), set(read_static_names(Store(app)).names)
