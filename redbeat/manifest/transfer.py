"""Taking a schedule out of Redis and putting it back: export, import, and import from ``beat_schedule``.

Invariant: an entry that is exported and imported again is the same, with its counts, times, policy, and
unknown keys. What a file's fields can't express is in a field ``stored``, as it is in Redis.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from math import isnan, nan
from types import NoneType
from typing import Any

from redbeat.config.config import ensure_conf
from redbeat.decoder import DEFINITION_FIELDS, RedBeatJSONEncoder, decode, encode_meta
from redbeat.entries.calendar_loading import ABOUT, Unusable, give_calendars, read_calendars, read_fields
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.fields import PAST_FIELDS
from redbeat.entries.loading import try_decode
from redbeat.entries.query import scan_entries
from redbeat.entries.saving import encode_entry, plan_save
from redbeat.entries.validation import find_name_problem, find_priority_problem, find_size_problem
from redbeat.errors import EntryError, FileError
from redbeat.log.text import as_stored, is_utf8, printable, shorten
from redbeat.manifest.calendars import calendar_of, plan_calendars
from redbeat.manifest.format import Declared
from redbeat.manifest.plan import MAX_ENTRIES, Plan, check_size, entry_of, read_with_owners, shown_fields
from redbeat.schedules.codec import SCHEDULE_FIELDS, encode_schedule
from redbeat.store.histories import read_pasts
from redbeat.store.owners import read_calendar_owners, read_owners, read_static_names
from redbeat.store.parts import in_chunks
from redbeat.store.records import Change, Stored, Write, mark_of
from redbeat.store.store import Store

Progress = Callable[[int], object]

#: the owner of entries that were imported from ``beat_schedule``, so that beat doesn't remove them
IMPORTED = "imported"

#: the values of ``next_run`` that aren't times
NEVER, UNSCHEDULED = "never", "unscheduled"

#: fields that a file has exactly as the definition, if they have no datetimes or schedules in them
_PLAIN_FIELDS = ("task", "args", "kwargs", "options")
#: how many pairs of a schedule and a policy are remembered, as many entries may share a few
MAX_FORMS = 1024
#: how many levels of JSON a file has as values; what is nested more deeply is exported as text
MAX_LEVELS = 100
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"|[][{}]')


@dataclass(frozen=True)
class Exported:
    """What ``export`` has found.

    Attributes:
        declared: the file.
        skipped: a sentence for each entry that isn't in it, and why.
    """

    declared: Declared
    skipped: tuple[str, ...] = ()


# -- out of Redis


def export_entries(
    app: Any,
    match: str | None = None,
    owner: str | None = None,
    progress: Progress | None = None,
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
    store = Store(app)
    items: dict[str, dict[str, Any]] = {}
    skipped: list[str] = []
    calendars: set[str] = set()
    forms: _Forms = {}

    def take(chunk: Sequence[Any]) -> None:
        keys = [entry.stored.key for entry in chunk]
        pasts = read_pasts(store, keys) if with_history else [((), ())] * len(keys)
        for entry, its_owner, past in zip(chunk, read_owners(store, keys), pasts, strict=True):
            if owner is not None and its_owner != owner:
                continue
            if not entry.stored.exists:
                skipped.append(f"{printable(entry.name)}: its hash is gone.")
            elif entry.stored.unread_bytes:
                skipped.append(f"{entry.problem}")
            elif not is_utf8(entry.name):
                skipped.append(f"{printable(entry.name)}: its name is no UTF-8.")
            else:
                items[entry.name] = _item_of(entry, entry.stored, its_owner if owner is None else "", forms)
                items[entry.name].update(
                    {field: texts for field, texts in zip(PAST_FIELDS, past, strict=True) if texts}
                )
                calendars.update(filter(None, [getattr(entry.policy, "exclude", None)]))

    seen = 0
    for chunk in in_chunks(scan_entries(RedBeatSchedulerEntry, app, match)):
        take(chunk)
        seen += len(chunk)
        if progress is not None:
            progress(seen)
    return Exported(
        Declared("export", owner, dict(sorted(items.items())), _calendars_of(store, calendars, skipped)),
        tuple(skipped),
    )


def _calendars_of(store: Store, names: Collection[str], skipped: list[str]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for name, fields in read_fields(store, names).items():
        if isinstance(fields, Unusable):
            skipped.append(fields.reason)
            continue
        about = {"about": fields[ABOUT]} if fields.get(ABOUT) else {}
        found[name] = {**about, "days": {day: text for day, text in sorted(fields.items()) if day != ABOUT}}
    return found


def _item_of(entry: RedBeatSchedulerEntry, stored: Stored, owner: str, forms: _Forms) -> dict[str, Any]:
    """Return what a file has of an entry."""
    raw: dict[str, Any] = {}
    item = {} if entry.problem else _in_words(entry, stored, forms)
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
    if owner:
        item["owner"] = owner
    return {**item, "stored": raw} if raw else item


#: the JSON of a schedule and of a policy to the fields of a file; None: a file can't express them
_Forms = dict[tuple[str, str | None], Mapping[str, Any] | None]


def _in_words(entry: RedBeatSchedulerEntry, stored: Stored, forms: _Forms) -> dict[str, Any]:
    """Return an entry's definition and policy as fields of a file; {}: importing these would give others."""
    if _is_deep(stored.definition or "") or _is_deep(stored.policy or ""):
        return {}
    given = json.loads(stored.definition or "")
    plain = {name: value for name in _PLAIN_FIELDS if (value := given.get(name))}
    if not _is_plain(given, plain):
        return _checked_words(entry, stored) or {}
    if given.get("name", entry.name) not in (entry.name, None):
        return {}
    key = json.dumps(given["schedule"]), stored.policy
    if key not in forms:
        if len(forms) >= MAX_FORMS:
            forms.clear()
        bare = replace(stored, definition=f'{{"task": "bare", "schedule": {key[0]}}}')
        forms[key] = _checked_words(try_decode(type(entry), bare, entry.app), bare)
    words = forms[key]
    if words is None:
        return {}
    disabled = {} if given.get("enabled", True) else {"enabled": False}
    return {"task": plain.pop("task"), "schedule": words["schedule"], **plain, **disabled} | {
        name: value for name, value in words.items() if name not in ("task", "schedule")
    }


def _is_plain(given: dict[str, Any], plain: dict[str, Any]) -> bool:
    """Tell whether all of a definition but its schedule would be stored again exactly as it is."""
    if given.keys() - set(DEFINITION_FIELDS) or not isinstance(given.get("enabled"), (bool, NoneType)):
        return False
    options = plain.get("options")
    if isinstance(options, Mapping) and find_priority_problem(options.get("priority")):
        return False
    try:
        return '"__type__"' not in json.dumps(plain, allow_nan=False)
    except (ValueError, RecursionError):
        return False


def _checked_words(entry: RedBeatSchedulerEntry | None, stored: Stored) -> dict[str, Any] | None:
    """Return an entry's definition and policy as fields of a file; None: an import would give others."""
    if entry is None:
        return None
    try:
        item = shown_fields(entry)
        again = entry_of(Declared(entries={entry.name: dict(item)}), entry.name, entry.app)
        definition, policy = encode_entry(again, Stored(again.key))
    except (EntryError, FileError, ValueError, RecursionError):
        return None
    is_same = _is_same_definition(definition, stored, entry.name) and _is_same(policy, stored.policy)
    return item if is_same else None


def _is_same_definition(definition: str, stored: Stored, name: str) -> bool:
    """Tell whether a definition means the same as the stored one, in which defaults may be missing."""
    defaults = {"name": name, "args": [], "kwargs": {}, "options": {}, "enabled": True}
    try:
        before, after = json.loads(stored.definition or "null"), json.loads(definition)
        schedule_before, schedule_after = before["schedule"], after["schedule"]
        if not schedule_before.keys() <= SCHEDULE_FIELDS.get(
            schedule_before["__type__"], schedule_after.keys()
        ):
            return False
        is_same = _sorted(schedule_before) == _sorted(schedule_after) or (
            _sorted(encode_schedule(decode(json.dumps(schedule_before)))) == _sorted(schedule_after)
        )
        if not is_same or before.keys() - set(DEFINITION_FIELDS):
            return False
        for given in (before, after):
            given["schedule"] = None
            given.update((field, value) for field, value in defaults.items() if given.get(field) is None)
        return _sorted(before) == _sorted(after)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return False


def _sorted(value: Any) -> str:
    return RedBeatJSONEncoder(sort_keys=True).encode(value)


def _is_same(text: str, stored: str | None) -> bool:
    """Tell whether two texts are the same JSON."""
    try:
        return _sorted(json.loads(text or "null")) == _sorted(json.loads(stored or "null"))
    except (ValueError, RecursionError):
        return False


def _is_deep(text: str) -> bool:
    """Tell whether JSON is nested so deeply that some versions of Python read it, and can't write it."""
    if text.count("[") + text.count("{") <= MAX_LEVELS:
        return False
    depth = 0
    for part in _STRING_OR_BRACKET.finditer(text):
        if part[0] in ("[", "{"):
            depth += 1
        elif part[0] in ("]", "}"):
            depth -= 1
        if depth > MAX_LEVELS:
            return True
    return False


def _raw(text: str | None) -> Any:
    """Return a field for ``stored``: as an object, if writing it gives ``text`` again, else as text."""
    if _is_deep(text or ""):
        return text
    try:
        value = json.loads(text or "")
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) and json.dumps(value) == text else text


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
    done: Collection[str] = (),
) -> Plan:
    """Return what importing ``declared`` would do; nothing is written.

    Arguments:
        owner: the owner of entries that don't name one; None: the file's owner, or none.
        replace_existing: overwrite entries of the same names.
        may_exist: names that are overwritten in any case.
        done: names that this import has written already: they are left out.

    Raises:
        FileError: something in the file can't be used, or is stored already.
    """
    if done:
        left = {name: fields for name, fields in declared.entries.items() if name not in done}
        declared = replace(declared, entries=left)
    store, plan, owner = Store(app), Plan(app), owner or declared.owner or ""
    names = list(declared.entries)
    now, found = _read_names(store, declared)
    existing = [name for name, stored in zip(names, found, strict=True) if stored.exists]
    if refused := [name for name in existing if not replace_existing and name not in may_exist]:
        rest = len(refused) - 1
        more = f", and so {'is' if rest == 1 else 'are'} {rest} more" if rest else ""
        reason = f"is stored already{more}; --replace writes over what there is."
        raise declared.fault(("entries", refused[0]), reason)
    entries = {name: entry_of(declared, name, app) for name in names if "task" in declared.entries[name]}
    named = [entry for entry in entries.values() if entry.policy.exclude is not None]
    owners = read_calendar_owners(store) if owner else {}
    named_calendars = {entry.policy.exclude for entry in named}
    plan.calendars = plan_calendars(store, declared, named_calendars, owner, owners)
    if not replace_existing:
        for name, shown in plan.calendars.difference.changed.items():
            if shown.keys() - {"owner", "stored"}:
                raise declared.fault(
                    ("calendars", name), "is stored already, with other values; use --replace."
                )
    calendars = {name: calendar_of(declared, name, app) for name in declared.calendars}
    give_calendars(named, {**read_calendars(store, {str(e.policy.exclude) for e in named}), **calendars})
    for name, stored in zip(names, found, strict=True):
        try:
            write = _plan_item(app, stored, declared, name, entries.get(name), now)
        except EntryError as exc:
            raise declared.fault(("entries", name), str(exc)) from exc
        fields = declared.entries[name]
        write.owner, write.past = fields.get("owner") or owner, _past_of(fields)
        plan.changes.append(Change(stored, write))
        if stored.exists:
            plan.difference.changed[name] = {"stored": ("as it is", "as the file has it")}
        else:
            plan.difference.added[name] = shown_fields(entries.get(name))
    check_size(plan, declared)
    return plan


def _read_names(store: Store, declared: Declared) -> tuple[datetime, list[Stored]]:
    """Return the server's time and what is stored under the names of ``declared``, with its owners.

    Raises:
        FileError: a name can't be an entry's, or there are too many.
    """
    if len(declared.entries) > MAX_ENTRIES:
        raise FileError(
            f"{declared.origin}: more than {MAX_ENTRIES} entries don't fit into one step; split the file.",
            declared.origin,
        )
    for name in declared.entries:
        problem = find_name_problem(name, store.config.reserved_names)
        if problem:
            raise declared.fault(("entries", name), problem)
    now, found = read_with_owners(store, [store.keys.entry(name) for name in declared.entries])
    for name, stored in zip(declared.entries, found, strict=True):
        if stored.exists and not stored.is_hash:
            raise declared.fault(("entries", name), "the key holds no hash; delete it first.")
    return now, found


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
    raw = fields.get("stored") or {}
    if entry is not None and "next_run" not in fields and not raw:
        return plan_save(entry, stored, now)  # a file without state is saved like a new entry
    definition, policy = encode_entry(entry, Stored(stored.key)) if entry is not None else ("", "")
    try:
        raw = {part: _text(value) for part, value in raw.items()}
    except (TypeError, RecursionError) as exc:
        raise declared.fault(("entries", name, "stored"), f"{exc}.") from exc
    definition, policy = raw.get("definition", definition), raw.get("policy", policy)
    if "meta" in raw:
        meta = raw["meta"]
    elif entry is None:
        meta = encode_meta(_moment(declared, name, "last_run_at"), fields.get("total_run_count") or 0)
    else:
        meta = encode_meta(entry.last_run_at if fields.get("last_run_at") else None, entry.total_run_count)
    score = _score(declared, name)
    size_bytes = sum(len(as_stored(text)) for text in (definition, meta, policy))
    problem = find_size_problem(size_bytes, ensure_conf(app).max_entry_bytes)
    if problem:
        raise declared.fault(("entries", name), problem)
    is_foreign = "meta" in raw and raw.get("meta_crc32") != mark_of(meta)
    return Write(
        definition,
        meta,
        score,
        policy=policy,
        is_meta_foreign=is_foreign,
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
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            score = float(value)
        except OverflowError:
            score = nan
        if isnan(score):  # Redis refuses it, so the script would fail in the middle
            raise declared.fault(("entries", name, "next_run"), f"{shorten(str(value), 80)} is no time.")
        return score
    if value in (NEVER, UNSCHEDULED, None):
        return -1.0 if value == NEVER else None
    moment = _moment(declared, name, "next_run")
    return None if moment is None else moment.timestamp()


def _moment(declared: Declared, name: str, field: str) -> datetime | None:
    value = declared.entries[name].get(field)
    if value is None:
        return None
    try:
        moment = datetime.fromisoformat(value.replace("Z", "+00:00"))
    except (ValueError, AttributeError) as exc:
        raise declared.fault(("entries", name, field), f"{shorten(repr(value))} is no time.") from exc
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
