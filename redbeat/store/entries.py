"""Entries in Redis, as rows: read, written and deleted.

Invariant: a value is overwritten only if it is the one that the writer has read (compare and set). So an
entry that another process has deleted, saved or re-timed meanwhile stays as it is.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from itertools import chain
from operator import itemgetter, methodcaller
from typing import TYPE_CHECKING, Any, Literal
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
from redbeat.store.downgrades import read_downgraded
from redbeat.store.later import LaterStore
from redbeat.store.parts import CHUNK_SIZE, in_chunks
from redbeat.store.records import (
    Fence,
    LockStatus,
    Stored,
    Write,
    entries_of,
    mark_of,
    read_of,
    score_text,
    text_of,
)
from redbeat.store.scripts.script import Call, Script
from redbeat.store.server import Server

if TYPE_CHECKING:
    from redbeat.store.store import Store

_READ_ENTRIES, _SAVE_ENTRIES = Script("read_entries"), Script("save_entries")
_DELETE_ENTRIES = Script("delete_entries")

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
        with store.translating():
            stored.score = store.client.zscore(keys.schedule, keys.name(key))
        if stored.score is None and key in (away := read_downgraded(store)):
            stored.score, stored.is_away = away[key] or 0.0, True
        if stored.score is None and keys.message_id(key) is not None:
            stored.score = store.ask(methodcaller("zscore", keys.later, key), keys.later)
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

    Returns what became of each entry, in the order of ``keys``.

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
            decided = _decide(left, found, decide)
        except EntryNotFound:
            if store.has_changed(layout, 1):
                continue
            raise
        writes = [(stored, write) for (_, stored), (write, _) in zip(found, decided, strict=True) if write]
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


def _decide(
    keys: Sequence[str],
    found: Sequence[tuple[datetime, Stored]],
    decide: Callable[[Stored, datetime], Write | None],
) -> list[tuple[Write | None, Outcome]]:
    """Return what is to be written of each, and its outcome then; None: nothing, as it is so already.

    Arguments:
        keys: by which the caller knows those that were found.
        found: with the time of the clock by which each is due.
    """
    decided: list[tuple[Write | None, Outcome]] = []
    for key, (now, stored) in zip(keys, found, strict=True):
        write = decide(stored if stored.key == key else replace(stored, key=key), now)
        if write is None or not write.changes(stored):
            decided.append((None, "same"))
            continue
        if write.record:
            write = replace(write, record=record_text(write.record, now))
        decided.append((write, _outcome(stored, write)))
    return decided


def _write(store: Store, writes: Sequence[tuple[Stored, Write]], fence: Fence) -> dict[str, str]:
    """Make writes, those of each part all or none; one round trip a node.

    Returns the keys of entries that weren't written, each to that of one which has kept it from being so:
    it has changed since it was read, or is elsewhere by now.
    """
    groups = store.parts.by_part(writes, lambda one: one[0].key)
    answers = store.write_all([save_call(part, fence, those) for part, those in groups], store.watched())
    unwritten: dict[str, str] = {}
    records: list[tuple[str, str]] = []
    for (_, those), answer in zip(groups, answers, strict=True):
        status, changed = answer or (LockStatus.HELD, 1)
        store.check_lock(status, fence)
        if changed:
            unwritten |= dict.fromkeys((stored.key for stored, _ in those), those[changed - 1][0].key)
        else:
            records += [(stored.key, write.record) for stored, write in those if write.record]
    add_records(store, records)
    return unwritten


def add_records(store: Store, records: Sequence[tuple[str, str]]) -> None:
    """Add records, as ``record_text`` returns them, to the histories of entries, by their keys."""
    if not store.config.history or not records:
        return
    with (
        suppress(StoreRefused, StoreCorrupt, StoreUnavailable),
        store.translating(),
        store.watched().pipeline(transaction=False) as pipeline,
    ):
        for key, text in records:
            add_record_by(store, pipeline, key, text)
        pipeline.execute(raise_on_error=True)


def add_record_by(store: Store, client: Any, key: str, text: str) -> None:
    """Add a record to the history of one entry by ``client``, which may be a pipeline."""
    kept, (history, *_) = store.config.history, store.keys.beside(key)
    client.lpush(history, text)
    client.ltrim(history, 0, kept - 1)


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
            groups = store.parts.by_part(left)
            answers = store.write_all([delete_call(part, fence, those) for part, those in groups])
            for (_, those), answer in zip(groups, answers, strict=True):
                if answer is not None:
                    status, number = answer
                    store.check_lock(status, fence)
                    asked.update(those)
                    total += number
    return total


def read_window(store: Store, limit: int) -> list[Stored]:
    """Return the entries that are due now, and the next one after them, at most ``limit``."""
    now = Server(store).now().timestamp()
    options = {"start": 0, "num": limit, "withscores": True}
    schedules = [part.schedule for part in store.all_parts]
    found = store.ask_each([methodcaller("zrangebyscore", key, 0, "+inf", **options) for key in schedules])
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


def delete_call(part: Keys, fence: Fence, keys: Sequence[str]) -> Call[tuple[LockStatus, int]]:
    """Return the call that removes entries of one part, and the keys beside them.

    The reply is the lock's status and how many entries there were.
    """
    beside = [name for key in keys for name in part.beside(key)]
    return _DELETE_ENTRIES.call(part, fence=fence, entries=keys, beside=beside).reading(status_and_number)


def save_call(
    part: Keys, fence: Fence, writes: Sequence[tuple[Stored, Write]]
) -> Call[tuple[LockStatus, int]]:
    """Return the call that makes all writes in one part, or none if an entry has changed.

    The reply is the lock's status, and which of them has changed, counted from 1, or 0.
    """
    states, state_of = list[dict[str, str]](), list[int]()
    numbers: dict[tuple[str | None, ...], int] = {}
    for stored, write in writes:  # new entries that are saved together share a few states
        read, policy = read_of(stored, stored.meta or ""), None
        if write.policy or stored.policy or stored.unread_bytes:
            policy = write.policy
        score = None if write.score is None else score_text(write.score)
        meta = write.meta or None
        state = (read, meta, meta and mark_of(meta), score, policy, write.revision or None)
        if state not in numbers:
            numbers[state] = len(numbers) + 1
            named = zip(("read", "meta", "meta_crc32", "score", "policy", "revision"), state, strict=True)
            states.append({name: text for name, text in named if text is not None})
        state_of.append(numbers[state])
    call = _SAVE_ENTRIES.call(
        part,
        fence=fence,
        entries=[stored.key for stored, _ in writes],
        states=states,
        state_of=state_of,
        definitions=[write.definition for _, write in writes],
    )
    return call.reading(status_and_number)


def status_and_number(reply: Any) -> tuple[LockStatus, int]:
    """Return what a script says that returns the status of the lock and a number."""
    status, number = reply
    return LockStatus(status), int(number)


def record_text(record: str, at: datetime) -> str:
    """Return a record of a history as it is stored."""
    return f'{{"at":{at.timestamp():.6f},{record}}}'


def _outcome(stored: Stored, write: Write) -> Outcome:
    """Return the outcome of ``write``; raise if it may not be made."""
    if stored.exists:
        if stored.is_hash:
            return "changed"
        raise EntryCorrupt(
            f"{stored.key}: the key holds something that is no hash; delete it first.", stored.key
        )
    if write.must_exist:
        raise EntryNotFound(f"{stored.key}: there is no such entry.", stored.key)
    return "new"
