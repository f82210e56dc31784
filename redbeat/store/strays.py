"""What stands in parts of the schedule and belongs to others, after the layout has changed or by mistake.

Where something belongs follows from the name of its entry. Invariant: what isn't recognised stays where it
is, and is named.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from redbeat.keys import (
    BACKFILLED_NAMES,
    BACKFILLING_NAMES,
    CALENDAR_NAMES,
    CHANGE_NAMES,
    FAILING_NAMES,
    HISTORY_NAMES,
    LATER_NAMES,
    MESSAGE_NAMES,
    MOVING_NAMES,
    OWNER_NAMES,
    RUNNING_NAMES,
    Keys,
    glob_of,
    shard_beginning,
)
from redbeat.layout import Layout, ShardedKeys
from redbeat.log.text import as_stored
from redbeat.store.mover import Stray
from redbeat.store.nodes import ask_on_nodes, scan_nodes
from redbeat.store.scripts.moving import Item
from redbeat.store.store import Store

#: how many members, or keys, are read at a time
PAGE_SIZE = 1000

_PREFIXES_OF_NAMES = (HISTORY_NAMES, BACKFILLED_NAMES, BACKFILLING_NAMES, RUNNING_NAMES, FAILING_NAMES)
#: a key that remembers what a request has sent: the entry's name, a colon, and a SHA-256
_REQUEST = re.compile(rf"{BACKFILLING_NAMES}(.*):[0-9a-f]{{64}}", re.DOTALL)

#: what is kept for no entry and goes to another part when its own one ends
OF_A_PART = (":totals", ":figures", ":minutes", ":labels", ":failures", ":events", ":workers")
#: and what ends with it
_OF_A_BEAT = (
    *(":lock", ":tick", ":released", ":standbys", ":teller", ":wake", ":generation", ":mover", ":moving"),
    *(":left", ":arrived", ":arriving", ":events-read", ":schedule", ":statics", ":static-owners", ":later"),
    *(":downgraded", ":deadlines", ":expected", ":streaks"),
)
#: what stands beside the undivided schedule, and is shared by all shards
_SHARED = (":layout", ":beats", ":audit", ":tokens", ":pinged", ":singleton", OWNER_NAMES)
_SHARED_BEGINNINGS = (CALENDAR_NAMES, CHANGE_NAMES, ":singleton:")


class Strays:
    """What stands in parts of the schedule of ``store`` and belongs to others by ``layout``.

    Arguments:
        layout: the layout as it is to be.
    """

    def __init__(self, store: Store, layout: Layout) -> None:
        self._store = store
        keys = layout.keys
        self._home: Callable[[str], Keys] = keys.home if isinstance(keys, ShardedKeys) else lambda _: keys
        self._base = layout.base
        #: (prefix of a part, name of an entry) to the keys that remember its requests
        self._requests: dict[tuple[str, str], tuple[str, ...]] = {}

    def look_for_requests(self, parts: Sequence[Keys]) -> None:
        """Find the keys that remember what requests have sent; all keys of the server are looked at."""
        for part, rest in self._keys_in(parts, f"*{BACKFILLING_NAMES}"):
            found = _REQUEST.fullmatch(rest)
            if found:
                place = part.prefix, found[1]
                self._requests[place] = (*self._requests.get(place, ()), rest)

    def of_members(self, part: Keys) -> Iterator[Stray]:
        """Yield the entries in the schedule of ``part``, and its stored messages; one may come twice."""
        owners: Mapping[str, Sequence[str]] = self._owners(part)
        for key in (part.schedule, part.later):
            for page in self._pages("ZSCAN", key):
                for member, _ in page:
                    yield from self._stray(part, part.name(part.entry_of(_text(member))), owners)

    def of_names(self, part: Keys) -> Iterator[Stray]:
        """Yield the entries that are named elsewhere in ``part``; one may come twice."""
        owners = self._owners(part)
        names = [*owners]
        for page in self._pages("SSCAN", part.statics):
            names += map(_text, page)
        for page in self._pages("HSCAN", part.downgraded):
            names += (part.name(_text(key)) for key in page)
        for key in (part.expected, part.streaks):
            for page in self._pages("ZSCAN", key):
                names += (part.name(part.entry_of_running(_text(member))) for member, _ in page)
        for name in dict.fromkeys(names):
            yield from self._stray(part, name, owners)

    def first_members(self, parts: Sequence[Keys], limit: int) -> list[Stray]:
        """Return some of the entries in the schedules of ``parts``; one round trip a node."""
        commands = [["ZRANGE", key, 0, limit - 1] for part in parts for key in (part.schedule, part.later)]
        found = self._ask(commands)
        strays: list[Stray] = []
        for place, members in enumerate(found):
            part = parts[place // 2]
            for member in members:
                strays += self._stray(part, part.name(part.entry_of(_text(member))), {})
        return strays

    def of_name(self, part: Keys, name: str) -> Iterator[Stray]:
        """Yield the entry called ``name``, which was found in ``part``, if it belongs to another."""
        yield from self._stray(part, name, self._owners(part))

    def _stray(self, part: Keys, name: str, owners: Mapping[str, Sequence[str]]) -> Iterator[Stray]:
        home = self._home(name)
        if home.prefix != part.prefix:
            others = self._requests.get((part.prefix, name), ())
            yield Stray(part, home, Item(name, tuple(owners.get(name, ())), others))

    def _owners(self, part: Keys) -> dict[str, list[str]]:
        """Return the names of entries in ``beat_schedule``s to their owners."""
        owners: dict[str, list[str]] = {}
        for page in self._pages("SSCAN", part.static_owners):
            for pair in map(_text, page):
                owner, _, name = pair.partition("\t")
                owners.setdefault(name, []).append(owner)
        return owners

    def of_keys(self, parts: Sequence[Keys], heirs: Mapping[str, Keys]) -> tuple[list[Stray], list[str]]:
        """Return what is left in parts that end, and the keys of what nobody knows; all keys are looked at.

        Arguments:
            heirs: the prefix of each part to the part that gets what is kept for no entry.
        """
        strays: dict[tuple[str, str], Stray] = {}
        unknown: list[tuple[Keys, str]] = []
        owned: list[tuple[Keys, str]] = []

        def add(part: Keys, name: str, others: tuple[str, ...] = ()) -> None:
            for one in self._stray(part, name, {}):
                known = strays.get((part.prefix, name))
                more = (*(known.item.others if known else one.item.others), *others)
                strays[part.prefix, name] = one._replace(item=one.item._replace(others=more))

        own = self._own_keys(parts)
        for part, rest in self._keys_in(parts):
            request = _REQUEST.fullmatch(rest)
            if f"{part.prefix}{rest}" in own or self._is_shared(part, rest) or rest in _OF_A_BEAT:
                continue
            if rest in OF_A_PART:
                others = (":events-read",) if rest == ":events" else ()
                strays[part.prefix, rest] = Stray(part, heirs[part.prefix], Item(rest, (), others))
            elif request:
                add(part, request[1], (rest,))
            elif rest.startswith(LATER_NAMES):
                add(part, f"{MESSAGE_NAMES}{rest.removeprefix(LATER_NAMES)}")
            elif rest.startswith(OWNER_NAMES):
                owned.append((part, rest))
            elif rest.startswith(_PREFIXES_OF_NAMES):
                beginning = next(one for one in _PREFIXES_OF_NAMES if rest.startswith(one))
                add(part, rest.removeprefix(beginning))
            elif not rest.startswith(MOVING_NAMES):
                unknown.append((part, rest))
        entries, names = self._entries_among(unknown)
        for part, name in entries:
            add(part, name)
        self._move_owned(owned)
        return [*strays.values()], names

    def remove_own(self, parts: Sequence[Keys]) -> None:
        """Remove what ends with a part: what moves have noted, and what beats have."""
        for part in parts:
            keys = [f"{part.prefix}{rest}" for rest in _OF_A_BEAT if rest not in (":generation", ":mover")]
            own = {part.schedule, part.statics, part.later, part.moving}
            self._ask([["UNLINK", key] for key in keys if key not in own])

    def forget_moves(self, parts: Sequence[Keys]) -> None:
        """Remove what moves have noted in ``parts``."""
        self._ask([["UNLINK", key] for part in parts for key in (part.left, part.arrived)])

    def count(self, parts: Sequence[Keys]) -> tuple[int, int]:
        """Return how many entries and how many stored messages there are in ``parts``."""
        found = self._ask([["ZCARD", key] for part in parts for key in (part.schedule, part.later)])
        return sum(found[::2]), sum(found[1::2])

    def are_led(self, lock_keys: Sequence[str]) -> list[bool]:
        """Tell of each lock whether somebody holds it."""
        return [bool(found) for found in self._ask([["EXISTS", key] for key in lock_keys])]

    def wake(self, parts: Sequence[Keys]) -> None:
        """Wake the beats that wait for parts."""
        with self._store.translating():
            ask_on_nodes(self._store.client, [["PUBLISH", part.wake, "reshard"] for part in parts])

    def _move_owned(self, owned: Sequence[tuple[Keys, str]]) -> None:
        """Move the names in sets of owners whose entries are gone, or have another owner by now."""
        for part, rest in owned:
            for page in self._pages("SSCAN", f"{part.prefix}{rest}"):
                homes = [self._home(_text(name)).prefix for name in page]
                self._ask(
                    [
                        ["SADD", as_stored(f"{home}{rest}"), name]
                        for home, name in zip(homes, page, strict=True)
                    ]
                )
            self._ask([["UNLINK", as_stored(f"{part.prefix}{rest}")]])

    def _entries_among(self, found: Sequence[tuple[Keys, str]]) -> tuple[list[tuple[Keys, str]], list[str]]:
        """Return those keys that are entries, and the names of the others.

        What is under the prefix of another schedule, which begins with this one's, is left out of both.
        """
        others = tuple(
            f"{part.prefix}{rest.removesuffix(':schedule')}"
            for part, rest in found
            if rest.endswith(":schedule") and rest != ":schedule"
        )
        ours = [(part, rest) for part, rest in found if not f"{part.prefix}{rest}".startswith(others)]
        plain = [(part, rest) for part, rest in ours if not rest.startswith(":")]
        commands = [["HEXISTS", as_stored(f"{part.prefix}{rest}"), "definition"] for part, rest in plain]
        with self._store.translating():
            are_entries = ask_on_nodes(self._store.client, commands) if commands else []
        entries = [one for one, is_entry in zip(plain, are_entries, strict=True) if is_entry == 1]
        known = set(entries)
        return entries, [f"{part.prefix}{rest}" for part, rest in ours if (part, rest) not in known]

    def _own_keys(self, parts: Sequence[Keys]) -> set[str]:
        lock_key = self._store.config.lock_key
        own = {key for part in parts for key in (part.schedule, part.statics)}
        return own | ({lock_key} if lock_key else set())

    def _is_shared(self, part: Keys, rest: str) -> bool:
        is_base = part.prefix == self._base.prefix
        return is_base and (rest in _SHARED or rest.startswith(_SHARED_BEGINNINGS))

    def _keys_in(self, parts: Sequence[Keys], pattern: str = "*") -> Iterator[tuple[Keys, str]]:
        """Yield all keys in ``parts``, each with its part and without the prefix; each once."""
        beginning = shard_beginning(self._base.prefix)
        base = [part for part in parts if part.prefix == self._base.prefix]
        shards = {part.prefix: part for part in parts if part.prefix != self._base.prefix}
        is_shard = re.compile(re.escape(beginning) + r"(?:0|[1-9][0-9]*)\}:")
        searches: list[str] = []
        if base and base[0].prefix:
            searches.append(f"{glob_of(base[0].prefix)}{pattern}")
        if shards:
            searches.append(f"{glob_of(beginning)}*{pattern}" if pattern != "*" else f"{glob_of(beginning)}*")
        for search in searches:
            seen: set[bytes] = set()
            for page in self._scan(search if search.endswith("*") else f"{search}*"):
                for key in page:
                    if key in seen:
                        continue
                    seen.add(key)
                    text = _text(key)
                    found = is_shard.match(text)
                    part = shards.get(found[0]) if found else (base[0] if base else None)
                    if part is not None and text.startswith(part.prefix):
                        yield part, text.removeprefix(part.prefix)

    def _scan(self, pattern: str) -> Iterator[list[bytes]]:
        with self._store.translating():
            yield from scan_nodes(self._store.client, as_stored(pattern), PAGE_SIZE)

    def _pages(self, command: str, key: str) -> Iterator[list[Any]]:
        def step(client: Any, cursor: Any) -> tuple[Any, list[Any]]:
            words = [command, as_stored(key), cursor, "COUNT", PAGE_SIZE]
            following, page = client.execute_command(*words, NEVER_DECODE=[])
            return following, list(page)

        yield from self._store.scan(step, key)

    def _ask(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        if not commands:
            return []
        with self._store.translating():
            found = ask_on_nodes(self._store.client, commands)
            for one in found:
                if isinstance(one, Exception):
                    raise one
            return found


def heirs_of(ending: Collection[Keys], parts: Sequence[Keys]) -> dict[str, Keys]:
    """Return the prefix of each part that ends to the part that gets what is kept there for no entry."""
    return {part.prefix: parts[number % len(parts)] for number, part in enumerate(ending)}


def _text(value: Any) -> str:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)


def names_of(strays: Iterable[Stray]) -> list[str]:
    """Return the names of strays, each once."""
    return list(dict.fromkeys(one.item.name for one in strays))
