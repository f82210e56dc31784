"""Storing entries by their calendars; saving and deleting many in chunks, each of them all or nothing.

Owns the chunks, the counts, and what an error says of them; what is written is decided as in ``save``.
Invariant: at most one chunk of entries is in memory; of all others only their names are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from redbeat.config.config import ensure_conf
from redbeat.entries.calendar_loading import give_calendars, read_stored
from redbeat.entries.validation import find_name_problem
from redbeat.errors import EntryError
from redbeat.log.text import shorten
from redbeat.store.entries import Outcome, delete_entries, write_entries
from redbeat.store.parts import in_chunks
from redbeat.store.records import Fence, Stored, Write
from redbeat.store.store import Store

if TYPE_CHECKING:
    from redbeat.entries.entry import RedBeatSchedulerEntry

#: called after each chunk with the number of entries handled so far
Progress = Callable[[int], object]

#: how often entries are stored again at most because their calendars change meanwhile
MAX_SAVES = 5


@dataclass(frozen=True)
class SaveResult:
    """The result of saving many entries: each name is in one of the three.

    Attributes:
        new: those that weren't stored before.
        changed: those that were stored with other values.
        same: those that were stored with the same values, so weren't written.
    """

    new: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    same: tuple[str, ...] = ()


def save_entries(
    store: Store,
    entries: Mapping[str, RedBeatSchedulerEntry],
    decide: Callable[[Any, Stored, datetime], Write | None],
    fence: Fence = Fence(),  # noqa: B008 - immutable
    *,
    may_be_new: bool = True,
) -> list[Outcome]:
    """Store ``entries``, by their keys, as ``decide(entry, stored, now)`` says; return their outcomes.

    If a calendar that one of them names changes meanwhile, they are stored again with other due times.
    """

    def plan(stored: Stored, now: datetime) -> Write | None:
        return decide(entries[stored.key], stored, now)

    named = [entry for entry in entries.values() if entry.policy.exclude is not None]
    names = {str(entry.policy.exclude) for entry in named}
    calendars, outcomes = read_stored(store, names), list[list[Outcome]]()
    for _ in range(MAX_SAVES):
        give_calendars(named, {name: stored.excluded for name, stored in calendars.items()})
        try:
            outcomes.append(write_entries(store, [*entries], plan, fence, may_be_new=may_be_new))
        finally:
            give_calendars(named, {})  # forgotten, as they may change before the next save
        before, calendars = calendars, read_stored(store, names)
        if calendars == before:
            break
    return outcomes[0]


def save_many(entries: Iterable[RedBeatSchedulerEntry], progress: Progress | None = None) -> SaveResult:
    """Save ``entries``, as :meth:`redbeat.RedBeatSchedulerEntry.save_many` says."""
    _check_many("save_many", "entries", entries)
    store: Store | None = None
    outcomes: dict[str, Outcome] = {}

    def save_chunk(chunk: list[Any]) -> None:
        nonlocal store
        if store is None:
            _check_is_entry(chunk[0])
            store = Store(chunk[0].app)
            store.config.warn_of_unknown()
        by_key: dict[str, Any] = {}
        for entry in chunk:
            _check_is_entry(entry)
            key = entry.key
            if entry.app is not store.config.app and ensure_conf(entry.app) is not store.config:
                raise EntryError(
                    f"{key}: belongs to another app than the first entry; save the entries of each "
                    "app by themselves.",
                    key,
                )
            by_key[key] = entry
        found = save_entries(store, by_key, lambda entry, stored, now: entry.plan_save(stored, now))
        for entry, outcome in zip(by_key.values(), found, strict=True):
            entry.known_last_run_at = entry.last_run_at
            if outcomes.get(entry.name, "same") == "same":  # an entry that comes twice stays new
                outcomes[entry.name] = outcome

    _each_chunk(entries, save_chunk, progress)
    names: dict[Outcome, list[str]] = {"new": [], "changed": [], "same": []}
    for name, outcome in outcomes.items():
        names[outcome].append(name)
    return SaveResult(*map(tuple, (names["new"], names["changed"], names["same"])))


def _check_is_entry(entry: RedBeatSchedulerEntry) -> None:
    if isinstance(entry, type) or not hasattr(entry, "plan_save"):
        shown = shorten(repr(entry))
        raise EntryError(f"save_many takes entries, RedBeatSchedulerEntry or a subclass, not {shown}.", shown)


def _check_many(call: str, of_what: str, given: Any) -> None:
    is_one = isinstance(given, (str, bytes)) or hasattr(given, "plan_save")  # these are iterable, too
    if is_one or not isinstance(given, Iterable):
        shown = shorten(repr(given))
        raise TypeError(f"{call} takes a list of {of_what}, or another iterable of them, not {shown}.")


def delete_many(names: Iterable[str], app: Any = None, progress: Progress | None = None) -> int:
    """Delete the entries called ``names``, as :meth:`redbeat.RedBeatSchedulerEntry.delete_many` says."""
    _check_many("delete_many", "names", names)
    store, deleted = Store(app), 0

    def delete_chunk(chunk: list[str]) -> None:
        nonlocal deleted
        for name in chunk:
            bare_name = store.keys.name(name) if isinstance(name, str) else name
            problem = find_name_problem(bare_name, store.config.reserved_names)
            is_message = (
                isinstance(name, str) and store.keys.message_id(store.keys.entry_of(name)) is not None
            )
            if problem and not is_message:
                raise EntryError(problem, str(name))
        keys = [store.keys.entry_of(name) for name in chunk]
        deleted += delete_entries(store, keys)

    _each_chunk(names, delete_chunk, progress)
    return deleted


def _each_chunk(items: Iterable[Any], handle: Callable[[list[Any]], None], progress: Progress | None) -> None:
    """Call ``handle`` with one chunk after the other; an EntryError tells how many were done before."""
    done = 0
    for chunk in in_chunks(items):
        try:
            handle(chunk)
        except EntryError as exc:
            exc.done = done
            exc.args = (f"{exc} Nothing was done for these {len(chunk)}; the {done} before them are done.",)
            raise
        done += len(chunk)
        chunk.clear()  # frees it before the next one is read
        if progress is not None:
            progress(done)
