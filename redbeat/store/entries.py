"""Entries in Redis, as rows: read, written and deleted.

Invariant: a value is overwritten only if it is the one that the writer has read (compare and set). So an
entry that another process has deleted, saved or re-timed meanwhile stays as it is.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from itertools import chain, starmap
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

from redbeat.config.config import RedBeatConfig
from redbeat.connection.retry import is_no_permission
from redbeat.errors import (
    EntryCorrupt,
    EntryError,
    EntryNotFound,
    LayoutChanged,
    StoreCorrupt,
    StoreRefused,
    StoreUnavailable,
)
from redbeat.keys import Keys
from redbeat.log.logger import logger
from redbeat.store.downgrades import read_downgraded
from redbeat.store.later import LaterStore
from redbeat.store.nodes import Command
from redbeat.store.parts import CHUNK_SIZE, in_chunks
from redbeat.store.records import (
    Change,
    Fence,
    LockStatus,
    Stored,
    Write,
    digest_of,
    entries_of,
    mark_of,
    read_of,
    text_of,
)
from redbeat.store.scripts.script import Call, Script, as_row
from redbeat.store.server import Server

if TYPE_CHECKING:
    from redbeat.store.store import Store

_READ_ENTRIES, _WRITE_ENTRIES = Script("read_entries"), Script("write_entries")

#: how long after reading the server's clock its time is computed by the local clock
CLOCK_SECONDS = 1.0

#: how often a save reads and decides again at most because the entry has changed meanwhile
MAX_SAVE_ATTEMPTS = 100

#: when the server's clock was last read, monotonic, the local UNIX time then, and its time; not of a cluster,
#: whose nodes have clocks of their own
_CLOCKS: WeakKeyDictionary[RedBeatConfig, tuple[float, float, datetime]] = WeakKeyDictionary()

#: how many entries the last chunk had that may have been new, if all of them were; else 0
_LAST_NEW: WeakKeyDictionary[RedBeatConfig, int] = WeakKeyDictionary()

#: what a write did: the entry was new, was changed, or was the same already and wasn't written
Outcome = Literal["new", "changed", "same"]


#: a key beside the entries: a calendar, a set of names, or what is kept for an entry; and what becomes of it
Beside = tuple[str, Mapping[str, Any]]


def beside(
    key: str,
    command: str,
    texts: Sequence[str],
    *,
    is_new: bool = False,
    read: Mapping[str, str] | str | None = None,
) -> Beside:
    """Return what becomes of a key: ``command`` stores ``texts`` there; (): nothing does.

    Arguments:
        is_new: the key is deleted first.
        read: the fields of a calendar, or the type of its key ('none' for no key), if it must still be that.
    """
    return key, as_row(read=read, is_removed=is_new or None, command=command, texts=texts or None)


class Written(NamedTuple):
    """What a call of write_entries has done.

    Attributes:
        changed: the key of an entry or a calendar that has changed since it was read, so that nothing was
            written; '': none has.
        deleted: how many of the entries to be deleted there were.
    """

    status: LockStatus
    changed: str
    deleted: int


def read_entries(store: Store, keys: Sequence[str]) -> tuple[datetime, list[Stored]]:
    """Return the server's time (UTC) and the entries under ``keys``, in their order.

    At most 500 are read in one round trip a node, whatever their parts are. What isn't there is looked
    for again: it may be on its way to another part, or the layout has changed.
    """
    layout = store.layout
    read_at = store.located(keys) if layout.is_moving else [*keys]
    found = read_entries_at(store, read_at)
    while gone := [place for place, (_, one) in enumerate(found) if not one.exists]:
        located = zip(gone, store.located([keys[place] for place in gone]), strict=True)
        # one that was located before it was read, and still is there, doesn't exist
        moved = {place: key for place, key in located if key != read_at[place]}
        if moved:
            for place, one in zip(moved, read_entries_at(store, [*moved.values()]), strict=True):
                read_at[place] = moved[place]
                if one[1].exists:
                    found[place] = one
        elif store.has_changed(layout, len(keys)):
            layout, read_at = store.layout, [""] * len(keys)
        else:
            break
    now = max((at for at, _ in found), default=datetime.now(timezone.utc))
    return now, [stored for _, stored in found]


def read_entries_at(store: Store, keys: Sequence[str]) -> list[tuple[datetime, Stored]]:
    """Return what is under ``keys``, in their order, and nowhere else, each with its server's time (UTC)."""

    def read(groups: list[tuple[Keys, list[str]]]) -> Iterator[list[tuple[datetime, Stored]]]:
        for seconds, found in _read_groups(store, groups):
            now = datetime.fromtimestamp(seconds, timezone.utc)
            if not store.config.is_cluster:
                _CLOCKS[store.config] = time.monotonic(), time.time(), now
            yield [(now, stored) for stored in found]

    return store.parts.in_order(keys, read)


def _read_groups(store: Store, groups: Sequence[tuple[Keys, list[str]]]) -> list[tuple[float, list[Stored]]]:
    """Read entries of some parts; keys that are not entries' and that this user may not read are missing.

    Otherwise a member ``redbeat::lock``, which every writer can add to the schedule, would end every list
    of a user who may read entries, but not RedBeat's own keys.
    """

    def ask(wanted: Iterable[tuple[Keys, list[str]]]) -> list[tuple[float, list[Stored]]]:
        return store.ask_all([read_call(part, keys, store.config.max_entry_bytes) for part, keys in wanted])

    try:
        return ask(groups)
    except StoreRefused as exc:
        if not is_no_permission(exc.__cause__):
            raise
    answers = ask((part, [*filter(part.may_be_entry, keys)]) for part, keys in groups)
    found = [(seconds, {one.key: one for one in stored}) for seconds, stored in answers]
    return [
        (seconds, [by_key.get(key) or Stored(key) for key in keys])
        for (_, keys), (seconds, by_key) in zip(groups, found, strict=True)
    ]


def read_entry(store: Store, key: str) -> tuple[datetime, Stored]:
    """Return the server's time (UTC) and the entry under ``key``; the schedule may have its bare name."""
    now, (stored,) = read_entries(store, [key])
    if stored.exists and stored.score is None:
        key = stored.key  # it may have been moved to another part
        keys = store.parts.of(key)
        stored.score = store.ask(Command("zscore", keys.schedule, keys.name(key)))
        if stored.score is None and key in (away := read_downgraded(store)):
            stored.score, stored.is_away = away[key] or 0.0, True
        if stored.score is None and keys.message_id(key) is not None:
            stored.score = store.ask(Command("zscore", keys.later, key))
    return now, stored


def refuse_messages(store: Store, keys: Iterable[str]) -> None:
    """Raise EntryError if one of ``keys`` is a stored message's: that is sent as it is, or cancelled."""
    for key in keys:
        task_id = store.keys.message_id(key)
        if task_id is not None:
            raise EntryError(
                f"{key}: a stored message is sent at its time as it is; it can be cancelled (celery redbeat "
                f"later cancel {task_id}), and sent anew.",
                key,
            )


def _time_of(store: Store) -> datetime | None:
    """Return the time of the server's clock; None: it wasn't read within ``CLOCK_SECONDS``."""
    read_at, local, told = _CLOCKS.get(store.config, (-math.inf, 0.0, None))
    passed = time.monotonic() - read_at
    # clocks are set, and tests move them
    if told is None or passed > CLOCK_SECONDS or abs(time.time() - local - passed) > CLOCK_SECONDS:
        return None
    return told + timedelta(seconds=passed)


def write_entries(
    store: Store,
    keys: Sequence[str],
    decide: Callable[[Stored, datetime], Write | None],
    fence: Fence = Fence(),  # noqa: B008 - immutable
    *,
    may_be_new: bool = False,
) -> list[Outcome]:
    """Read the entries, call ``decide(stored, now)`` for what to write, and write that.

    Entries are written in chunks of 500, each of them all or nothing; of several parts those of each part
    are. If another process has written one of these in between, all of them are read and decided again.
    ``decide`` returns None to leave an entry as it is, and may raise, and then none of the chunk is
    written; a write that changes nothing isn't made.

    With ``may_be_new`` they are assumed to be new, and written without being read, after a full chunk of new
    ones, or one by one. If one isn't new, none of its chunk is written, and it is read and decided again.

    While entries move to other parts, a store of one part writes them as an application does: each
    where it is, and whoever leads that part.

    Returns the outcome of each entry, in the order of ``keys``.

    Raises:
        EntryNotFound: ``must_exist``, and the entry is missing.
        EntryCorrupt: the key holds something other than a hash.
        EntryError: another process has changed the entries at each attempt.
        LockLost: ``fence`` has a token that isn't the lock's value.
    """
    outcomes: list[Outcome] = []
    for chunk in in_chunks(keys):
        last_new = _LAST_NEW.get(store.config, 0)
        are_new = may_be_new and last_new in (1, CHUNK_SIZE) and last_new >= len(chunk)
        found = _write_chunk(store, chunk, decide, fence, are_new=are_new)
        if may_be_new:
            _LAST_NEW[store.config] = len(chunk) if {*found} == {"new"} else 0
        outcomes += found
    return outcomes


def _write_chunk(
    store: Store,
    keys: Sequence[str],
    decide: Callable[[Stored, datetime], Write | None],
    fence: Fence,
    *,
    are_new: bool,
) -> list[Outcome]:
    outcomes: dict[str, Outcome] = {}
    left, changed_key = keys, ""
    for attempt in range(MAX_SAVE_ATTEMPTS):
        if are_elsewhere(store, left):
            store, fence = store.of_all_parts(), Fence()
        layout = store.config.layout
        located = store.located(left)
        is_guess = are_new and not attempt and not layout.is_moving and located == left
        now = _time_of(store) if is_guess else None
        found = read_entries_at(store, located) if now is None else [(now, Stored(key)) for key in located]
        if layout.is_moving:
            gone = [(key, one.key) for key, (_, one) in zip(left, found, strict=True) if not one.exists]
            if store.located([key for key, _ in gone]) != [key for _, key in gone]:
                continue  # another process has moved one meanwhile
        refuse_messages(store, left)
        try:
            decided = [_decided(decide, key, *one) for key, one in zip(left, found, strict=True)]
        except EntryNotFound:
            if store.has_changed(layout, 1):
                continue
            raise
        pairs = zip(found, decided, strict=True)
        writes = [Change(stored, write) for (_, stored), (write, _) in pairs if write]
        if store.config.layout != layout:
            continue  # this thread or another one has learned of it, and entries may be elsewhere
        try:
            unwritten = _write(store, writes, fence) if writes else {}
        except LayoutChanged:
            if store.part is None:
                raise
            continue  # the part isn't one any more
        for key, (_, stored), (_, outcome) in zip(left, found, decided, strict=True):
            if stored.key in unwritten:
                changed_key = unwritten[stored.key]
            else:
                outcomes[key] = outcome
        left = [key for key in left if key not in outcomes]
        if not left:
            return [outcomes[key] for key in keys]
    raise EntryError(
        f"{changed_key}: changed by somebody else {MAX_SAVE_ATTEMPTS} times in a row while it was "
        "saved; look for a program that writes it all the time.",
        changed_key,
    )


def are_elsewhere(store: Store, keys: Sequence[str]) -> bool:
    """Return True if any of these entries may be elsewhere than in the one part of this store."""
    layout, here = store.config.layout, store.part
    if here is None or not layout.generation:
        return False
    return layout.is_moving or any(
        not key == layout.keys.entry(name) == here.entry(name)
        for key, name in zip(keys, map(layout.name_of, keys), strict=True)
    )


def _decided(
    decide: Callable[[Stored, datetime], Write | None], key: str, now: datetime, stored: Stored
) -> tuple[Write | None, Outcome]:
    """Return what is to be written of an entry, and its outcome then; None: nothing, as it is so already.

    Arguments:
        key: by which the caller knows it.
        now: the time of the clock by which it is due.
    """
    write = decide(stored if stored.key == key else replace(stored, key=key), now)
    if write is None or not write.changes(stored):
        return None, "same"
    if not stored.is_hash:
        raise EntryCorrupt(
            f"{stored.key}: the key holds something that is no hash; delete it first.", stored.key
        )
    if write.must_exist and not stored.exists:
        raise EntryNotFound(f"{stored.key}: there is no such entry.", stored.key)
    if write.record:
        write = replace(write, record=record_text(write.record, now))
    return write, "changed" if stored.exists else "new"


def _write(store: Store, changes: Sequence[Change], fence: Fence) -> dict[str, str]:
    """Make changes, those of each part all or none; one round trip a node.

    Returns the keys of entries that weren't written, each to that of one which has kept it from being so:
    it has changed since it was read, or is elsewhere by now.
    """
    groups = store.parts.by_part(changes, key_of)
    answers = store.write_all([write_call(part, fence, those) for part, those in groups], store.watched())
    unwritten: dict[str, str] = {}
    records: list[tuple[str, str]] = []
    for (_, those), answer in zip(groups, answers, strict=True):
        written = answer or Written(LockStatus.HELD, key_of(those[0]), 0)
        store.check_lock(written.status, fence)
        if written.changed:
            unwritten |= dict.fromkeys(map(key_of, those), written.changed)
        else:
            records += [(stored.key, write.record) for stored, write in those if write and write.record]
    add_records(store, records)
    return unwritten


def key_of(change: Change) -> str:
    """Return the key of the entry that a change is about."""
    return change.stored.key


def add_records(store: Store, records: Sequence[tuple[str, str]]) -> None:
    """Add records, as ``record_text`` returns them, to the histories of entries, by their keys.

    If that fails it is only logged: what they are about is done, and a caller might do it again.
    """
    kept = store.config.history
    if not kept or not records:
        return
    keys = [key for key, _ in records]
    try:
        histories = [store.keys.beside(key)[0] for key in store.located(keys)]
        commands = [Command("lpush", key, text) for key, (_, text) in zip(histories, records, strict=True)]
        commands += [Command("ltrim", key, 0, kept - 1) for key in histories]
        store.write_all(commands, store.watched())
    except (StoreUnavailable, StoreRefused, StoreCorrupt) as exc:
        logger.info("%s: a record is missing in its history: %s", keys[0], exc)


def delete_entries(
    store: Store,
    keys: Sequence[str],
    fence: Fence = Fence(),  # noqa: B008 - immutable
) -> int:
    """Remove entries from the schedule, hash and all; return how many there were.

    Raises:
        LockLost: ``fence`` has a token that isn't the lock's value.
    """
    total = 0
    for chunk in in_chunks(keys):
        asked: set[str] = set()
        # one that is on its way to another part may have left before it was its turn
        while left := [key for key in store.located(chunk) if key not in asked]:
            # each is a stored message, or its name only looks so
            task_ids = [one for one in map(store.keys.message_id, left) if one is not None]
            cancelled = LaterStore.beside(store).cancel(task_ids)
            total += len(cancelled) - cancelled.count(None)
            groups = store.parts.by_part([Change(Stored(key), None) for key in left], key_of)
            answers = store.write_all([write_call(part, fence, those) for part, those in groups])
            for (_, those), answer in zip(groups, answers, strict=True):
                if answer is not None:
                    store.check_lock(answer.status, fence)
                    asked.update(map(key_of, those))
                    total += answer.deleted
    return total


def read_window(store: Store, limit: int) -> list[Stored]:
    """Return the entries that are due now, and the next one after them, at most ``limit``."""
    now = Server(store).now().timestamp()
    options = {"start": 0, "num": limit, "withscores": True}
    schedules = [part.schedule for part in store.all_parts]
    found = store.ask_all([Command("zrangebyscore", key, 0, "+inf", **options) for key in schedules])
    members = sorted(chain.from_iterable(found), key=itemgetter(1))[:limit]
    due = [text_of(key) for key, score in members if score <= now]
    following = [text_of(key) for key, score in members if score > now][:1]
    return read_entries(store, due + following)[1]


def read_call(part: Keys, keys: Sequence[str], entry_bytes: int) -> Call[tuple[float, list[Stored]]]:
    """Return the call that reads the server's clock, UNIX seconds, and entries of a part, in their order.

    An entry larger than ``entry_bytes`` isn't read.
    """

    def read(reply: Any) -> tuple[float, list[Stored]]:
        now, others, texts = reply
        found = entries_of(others, texts) or [Stored(key, meta_mark="") for key in keys]
        for key, one in zip(keys, found, strict=True):
            one.key = key
        return float(now), found

    return _READ_ENTRIES.call(part, entries=keys, entry_bytes=entry_bytes).reading(read)


def write_call(
    part: Keys, fence: Fence, changes: Sequence[Change], others: Sequence[Beside] = ()
) -> Call[Written]:
    """Return the call that makes all changes in one part, or none if an entry or a calendar has changed."""
    numbers, state_of = dict[tuple[Any, ...], int](), list[int]()  # new entries share a few states
    rows, removed, names = [*others], list[str](), dict[tuple[str, str], list[str]]()
    for stored, write in changes:
        state_of.append(numbers.setdefault(_state_of(stored, write), len(numbers) + 1))
        if write is None:
            removed += part.beside(stored.key)
        elif write.past is not None:
            history, backfilled, failing = part.beside(stored.key)
            rows.append(beside(history, "RPUSH", write.past[0], is_new=True))
            rows.append(beside(backfilled, "SADD", write.past[1], is_new=True))
            removed.append(failing)
        if owner := stored.owner if write is None else write.owner:
            command = "SREM" if write is None else "SADD"
            names.setdefault((command, owner), []).append(part.name(stored.key))
    # sets of names first: if a key is of another type, nothing is written
    rows[:0] = [beside(part.owner(owner), command, those) for (command, owner), those in names.items()]
    entries, keys = [stored.key for stored, _ in changes], [key for key, _ in rows] + removed
    call = _WRITE_ENTRIES.call(
        part,
        fence=fence,
        entries=entries,
        beside=keys,
        states=[*starmap(_state_row, numbers)],
        state_of=state_of,
        rows=[row for _, row in rows],
        definitions=[write.definition if write else "" for _, write in changes],
    )

    def read(reply: Any) -> Written:
        status, place, deleted = reply
        changed = entries[place - 1] if place > 0 else keys[-place - 1] if place else ""
        return Written(LockStatus(status), changed, deleted)

    return call.reading(read)


def _state_of(stored: Stored, write: Write | None) -> tuple[Any, ...]:
    """Return what is compared of an entry, and stored besides its definition, as ``_state_row`` takes it."""
    exists = stored.exists
    if write is None:  # one that wasn't read is deleted as it is
        return read_of(stored) if exists else None, None, stored.owner, True, "remove"
    meta, score, policy, error = write.meta, write.score, write.policy or None, write.error
    is_compared = exists and not stored.unread_bytes and (meta or score is not None)
    if stored.policy or stored.unread_bytes:
        policy = write.policy
    if error is None and exists and (write.definition or policy is not None or write.revision):
        error = ""
    return (
        read_of(stored),
        digest_of(stored.meta or "") if is_compared else None,
        stored.owner,
        write.is_replaced,
        "remove" if write.is_unscheduled else score,
        meta,
        write.is_meta_foreign,
        policy,
        error,
        None if write.owner == stored.owner and not write.is_replaced else write.owner,
        write.revision,
    )


def _state_row(
    read: str | None,
    read_meta: str | None,
    read_owner: str | None,
    is_removed: bool,
    score: float | str | None,
    meta: str = "",
    is_meta_foreign: bool = False,
    policy: str | None = None,
    error: str | None = None,
    owner: str | None = None,
    revision: str = "",
) -> dict[str, Any]:
    """Return a state of write_entries."""
    mark = mark_of(meta) if meta and not is_meta_foreign else None
    fields = {"meta": meta or None, "meta_crc32": mark, "policy": policy, "error": error}
    fields |= {"owner": owner, "revision": revision or None}
    return as_row(
        read=read,
        read_meta=read_meta,
        read_owner=read_owner,
        is_removed=is_removed or None,
        score=None if score is None else str(score),
        fields=[*chain.from_iterable(field for field in fields.items() if field[1])] or None,
        unset=[name for name, text in fields.items() if text == ""] or None,
    )


def record_text(record: str, at: datetime) -> str:
    """Return a record of a history as it is stored."""
    return f'{{"at":{at.timestamp():.6f},{record}}}'
