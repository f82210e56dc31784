"""The owners of entries and calendars in Redis, and the step that changes entries and calendars with their
owners.

An entry's own field ``owner`` names the owner of the file from which it was applied. The set of an owner's
names only helps to find them, and may have names that aren't the owner's any more. The names of
``beat_schedule``'s entries are in a set that celery-redbeat 2.x reads and writes, too. Beside it is a set of
pairs, the owner, a tab and the name, as several apps may own the same name. A calendar may have several
owners, too, and one set has the pairs of all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from redbeat.errors import LayoutChanged, RedBeatError
from redbeat.keys import Keys
from redbeat.layout import shards_named
from redbeat.log.text import as_stored
from redbeat.store.entries import Beside, are_elsewhere, beside, key_of, write_call
from redbeat.store.nodes import Command
from redbeat.store.records import Change, Fence, text_of
from redbeat.store.store import Store


@dataclass(frozen=True)
class StaticNames:
    """Which entries come from ``beat_schedule``.

    Attributes:
        names: the names of these entries.
        owners: the name of an entry to its owners; celery-redbeat 2.x stores none.
    """

    names: frozenset[str]
    owners: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def pairs_of(self, name: str) -> list[str]:
        """Return the pairs in Redis for the owners of ``name``."""
        return [f"{owner}\t{name}" for owner in sorted(self.owners.get(name, ()))]


@dataclass(frozen=True)
class CalendarChange:
    """What becomes of one calendar.

    Attributes:
        owner: the owner that makes the change.
        read: the fields that the caller read, or what else the key was: a type, 'none' for no key; None: that
            doesn't matter.
        fields: what is stored in place of that; {}: the calendar is removed; None: it stays as it is.
        is_owned: whether it is the owner's from now on; None: that stays.
    """

    name: str
    owner: str = ""
    read: Mapping[str, str] | str | None = None
    fields: Mapping[str, str] | None = None
    is_owned: bool | None = None

    @property
    def is_removed(self) -> bool:
        """Whether the calendar, or its owner, is removed."""
        return self.fields == {} or self.is_owned is False

    def rows(self, keys: Keys) -> Iterator[Beside]:
        """Yield what becomes of its keys."""
        if self.is_owned is not None:
            command = "SADD" if self.is_owned else "SREM"
            yield beside(keys.calendar_owners, command, [f"{self.owner}\t{self.name}"])
        if self.fields is not None:
            fields = [*chain.from_iterable(self.fields.items())]
            yield beside(keys.calendar(self.name), "HSET", fields, is_new=True, read=self.read)


@dataclass
class Applied:
    """The outcome of changes that were to be made together.

    Attributes:
        changed: the key of an entry or a calendar that has changed since it was read, so that not all was
            done; None: all was.
        shards: where the schedule is divided, those whose entries were changed all the same; None: the part
            without shards.
        has_calendars: calendars were changed all the same.
        written: the keys of the entries among these.
    """

    changed: str | None = None
    shards: list[int | None] = field(default_factory=list)
    has_calendars: bool = False
    written: set[str] = field(default_factory=set)

    @property
    def is_begun(self) -> bool:
        """Whether anything was done."""
        return bool(self.shards or self.has_calendars)

    @property
    def told(self) -> str:
        """A sentence about what was done."""
        if not self.is_begun:
            return "Nothing was written."
        done = [shards_named(self.shards, 0)] if self.shards else []
        done += ["calendars"] if self.has_calendars else []
        return (
            f"Not all was written, only {' and '.join(done)}: do the same again to write the rest, which is "
            "what differs then."
        )


def read_owners(store: Store, keys: Sequence[str]) -> list[str]:
    """Return the owner of each entry; '': it wasn't applied from a file."""
    asks = [Command("hget", as_stored(key), "owner") for key in store.located(keys)]
    return [text_of(one) or "" for one in store.ask_all(asks, is_tolerant=True)]


def names_owned_by(store: Store, owner: str) -> set[str]:
    """Return the names that ``owner`` has applied; some may belong to another owner by now."""
    return set(_members(store, lambda keys: keys.owner(owner)))


def are_owned_by(store: Store, owner: str, names: Sequence[str]) -> list[bool]:
    """Return for each entry, by its name, whether it is ``owner``'s, by a file or ``beat_schedule``."""
    of_files = read_owners(store, [*map(store.keys.entry, names)])
    of_code = _are_among(
        store, names, lambda keys: keys.static_owners, lambda name: as_stored(f"{owner}\t{name}")
    )
    return [one == owner or is_owned for one, is_owned in zip(of_files, of_code, strict=True)]


def _are_among(
    store: Store, names: Sequence[str], key_in: Callable[[Keys], str], text_of_name: Callable[[str], bytes]
) -> list[bool]:
    """Return for each name whether its text is in the set that its part has under ``key_in(keys)``."""

    def ask(groups: list[tuple[Keys, list[str]]]) -> list[list[int]]:
        sets = [(key_in(part), those) for part, those in groups]
        asks = [Command("smismember", key, [*map(text_of_name, those)]) for key, those in sets]
        found: list[list[int]] = store.ask_all(asks)
        return found

    return [*map(bool, store.parts.in_order(names, ask))]


def read_calendar_owners(store: Store) -> dict[str, set[str]]:
    """Return the names of applied calendars, each to its owners."""
    key = store.keys.calendar_owners  # one for all parts
    found = store.ask(Command("smembers", key))
    return _by_name(map(text_of, found))


def read_static_names(store: Store) -> StaticNames:
    """Return the names of entries that were stored from ``beat_schedule``, and their owners."""
    # not in a pipeline, which redis-py 4 doesn't send again if its connection has gone stale
    names = frozenset(_members(store, lambda keys: keys.statics))
    owners = _by_name(_members(store, lambda keys: keys.static_owners))
    return StaticNames(names, {name: frozenset(found) for name, found in owners.items()})


def are_static(store: Store, names: Sequence[str]) -> list[bool]:
    """Return for each entry, by its name, whether it was stored from ``beat_schedule``."""
    return _are_among(store, names, lambda keys: keys.statics, as_stored)


def change_statics(store: Store, fence: Fence, change: str, owner: str, names: Sequence[str]) -> None:
    """Make a ``change`` of what ``read_static_names`` returns.

    Names of entries that are elsewhere, as the layout is being changed, are added where these belong.

    Arguments:
        change: 'add'; 'release': the owner doesn't own them any more; 'remove': no owner does.

    Raises:
        LockLost: ``fence`` has a token that isn't the lock's value.
    """
    command = "SADD" if change == "add" else "SREM"

    def make() -> None:
        whole, checked = store, fence
        if change == "add" and are_elsewhere(store, [*map(store.keys.entry, names)]):
            whole, checked = store.of_all_parts(), Fence()
        for part, chunk in whole.parts.chunks(names):
            sets = [beside(part.static_owners, command, [f"{owner}\t{name}" for name in chunk])]
            if change != "release":
                sets.append(beside(part.statics, command, chunk))
            [written] = whole.ask_all([write_call(part, checked, (), sets)], is_following=False)
            whole.check_lock(written.status, checked)

    store.following(make)


def apply_changes(store: Store, changes: Sequence[Change], calendars: Sequence[CalendarChange]) -> Applied:
    """Make all changes or none of them, in one step.

    In shards each one's entries are changed in a step of their own, and calendars, which are in one
    place, in two: they are stored before any entry is changed, and removed after all are. Nothing comes
    after a step that has found a change; the steps of the shards go together.

    Raises:
        StoreUnavailable, StoreRefused, StoreCorrupt: what was written all the same, its text says.
    """
    base, applied = store.apart().keys, Applied(changed=_moved_among(store, changes))
    steps: list[list[_Step]] = [[(store.parts[0] if changes else base, changes, calendars)]]
    if store.parts.is_divided:
        entries: list[_Step] = [(part, those, ()) for part, those in store.parts.by_part(changes, key_of)]
        stored, removed = ([one for one in calendars if one.is_removed is gone] for gone in (False, True))
        steps = [[(base, (), stored)], entries, [(base, (), removed)]]
    for step in steps:
        if applied.changed is None:
            _make(store, [one for one in step if one[1] or one[2]], applied)
    return applied


def _moved_among(store: Store, changes: Sequence[Change]) -> str | None:
    """Return the key of a new entry that would be under another key by now; None: there is none."""
    keys = [change.stored.key for change in changes if not change.stored.exists]
    located = zip(keys, store.located(keys), strict=True)
    return next((key for key, now in located if key != now), None)


#: how often what a part has refused is tried again, as the layout was another one
MAX_FOLLOWED = 5

#: the names in a part, and what becomes of its entries, or of calendars
_Step = tuple[Keys, Sequence[Change], Sequence[CalendarChange]]


def _make(store: Store, step: Sequence[_Step], applied: Applied, attempts: int = MAX_FOLLOWED) -> None:
    """Make the changes of each part, once more where the layout is another one by now."""
    refused, failed, calls = list[Change](), list[RedBeatError](), []
    for part, changes, calendars in step:
        rows = [*chain.from_iterable(one.rows(part) for one in calendars)]
        calls.append(write_call(part, Fence(), changes, rows))
    answers = store.try_all(calls, is_following=False)
    for (part, changes, calendars), answer in zip(step, answers, strict=True):
        if isinstance(answer, LayoutChanged) and attempts and not calendars:
            refused += changes
        elif isinstance(answer, LayoutChanged):
            applied.changed = key_of(changes[0])
        elif isinstance(answer, RedBeatError):
            failed.append(answer)
        elif answer.changed:
            applied.changed = answer.changed
        else:
            applied.written.update(map(key_of, changes))
            applied.has_calendars = applied.has_calendars or not changes
            applied.shards += [store.config.layout.shard_of(part)] if changes else []
    if failed:
        if applied.is_begun:
            failed[0].add(applied.told)
        raise failed[0]
    applied.changed = applied.changed or _moved_among(store, refused)
    if refused and not applied.changed:
        parts = store.parts.by_part(refused, key_of)
        _make(store, [(part, those, ()) for part, those in parts], applied, attempts - 1)


def _members(store: Store, key_in: Callable[[Keys], str]) -> Iterator[str]:
    sets = [key_in(part) for part in store.parts]
    found = store.ask_all([Command("smembers", key) for key in sets])
    return map(text_of, chain.from_iterable(found))


def _by_name(pairs: Iterable[str]) -> dict[str, set[str]]:
    """Return names to their owners."""
    owners: dict[str, set[str]] = {}
    for pair in pairs:
        owner, _, name = pair.partition("\t")
        owners.setdefault(name, set()).add(owner)
    return owners
