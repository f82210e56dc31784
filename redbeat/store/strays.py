"""What stands in parts of the schedule and belongs to others, after the layout has changed or by mistake.

Where something belongs follows from the name of its entry. Invariant: what isn't recognised stays where it
is, and is named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from redbeat.keys import OF_A_PART, EntryKeys, Keys
from redbeat.layout import Layout, ShardedKeys
from redbeat.log.text import as_stored
from redbeat.store.mover import Item, OnItsWay, Owned, Stray, on_its_way
from redbeat.store.nodes import ask_on_nodes, scan_nodes
from redbeat.store.store import Store

#: how many members, or keys, are read at a time
PAGE_SIZE = 1000


class Left(NamedTuple):
    """What is left in parts that end.

    Attributes:
        strays: entries, and what the parts keep for none.
        owned: names of entries among those of owners.
        unknown: the keys of what nobody knows.
    """

    strays: list[Stray]
    owned: list[Owned]
    unknown: list[str]


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
        #: generation key of a part, and the name of an entry, to what remembers its requests
        self._requests: dict[tuple[str, str], list[tuple[str, str]]] = {}

    def look_for_requests(self, parts: Sequence[Keys]) -> None:
        """Find the keys that remember what requests have sent; all keys of the server are looked at."""
        for part, key in self._keys_in(parts, lambda part: part.kinds["backfilling"]):
            self._note_request(part, key)

    def _note_request(self, part: Keys, key: str) -> str | None:
        """Note ``key``, if it remembers a request; return the name of its entry."""
        found = part.request_of(key)
        if found is None:
            return None
        noted = self._requests.setdefault((part.generation, found[0]), [])
        if (one := part.kind_of(key)) not in noted:
            noted.append(one)
        return found[0]

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
        if home.is_part(part):
            return
        kept = [(kind, name) for kind in EntryKeys._fields]
        message_id = part.message_id(part.entry(name))
        if message_id is not None:
            kept.append(("body", message_id))
        kept += self._requests.get((part.generation, name), ())
        yield Stray(part, home, Item(name, tuple(kept), tuple(owners.get(name, ()))))

    def _owners(self, part: Keys) -> dict[str, list[str]]:
        """Return the names of entries in ``beat_schedule``s to their owners."""
        owners: dict[str, list[str]] = {}
        for page in self._pages("SSCAN", part.static_owners):
            for pair in map(_text, page):
                owner, _, name = pair.partition("\t")
                owners.setdefault(name, []).append(owner)
        return owners

    def of_keys(self, parts: Sequence[Keys], heirs: Mapping[str, Keys]) -> Left:
        """Return what is left in parts that end; all keys are looked at.

        Arguments:
            heirs: the generation key of each part to the part that gets what is kept for no entry.
        """
        names: dict[tuple[Keys, str], None] = {}
        own: dict[Keys, list[str]] = {}
        owned: list[tuple[Keys, str]] = []
        unknown: list[tuple[Keys, str]] = []
        lock_key = self._store.config.lock_key
        for part, key in self._keys_in(parts):
            kind, rest = part.kind_of(key)
            name = self._note_request(part, key)
            if name is not None:
                names[part, name] = None
            elif key in part.passing or key in (part.generation, lock_key):
                continue
            elif kind in OF_A_PART:
                own.setdefault(part, []).append(kind)
            elif part.is_part(self._base) and self._base.is_shared(key):
                continue
            elif kind == "owner":
                owned.append((part, rest))
            elif kind == "body":
                names[part, part.name(part.stored_message(rest))] = None
            elif kind not in ("", "entry"):
                names[part, rest] = None
            elif not key.startswith(part.hidden("").removesuffix(":")):
                unknown.append((part, key))
        entries, unknown_keys = self._entries_among(unknown)
        names |= dict.fromkeys(entries)
        strays = [one for part, name in names for one in self._stray(part, name, {})]
        for part, kinds in own.items():
            strays += _of_a_part(part, heirs[part.generation], kinds)
        return Left(strays, [one for part, owner in owned for one in self._owned(part, owner)], unknown_keys)

    def of_late(self, parts: Sequence[Keys]) -> list[Stray]:
        """Return what was written beside entries that have left parts by then; all keys are looked at."""
        names: dict[tuple[Keys, str], None] = {}
        for word in "history", "backfilled", "backfilling":
            for part, key in self._keys_in(parts, lambda part, word=word: part.kinds[word]):  # type: ignore[misc]
                names[part, self._note_request(part, key) or part.kind_of(key)[1]] = None
        return [one for part, name in names for one in self._stray(part, name, {})]

    def count(self, parts: Sequence[Keys]) -> tuple[int, int]:
        """Return how many entries and how many stored messages there are in ``parts``."""
        found = self._ask([["ZCARD", key] for part in parts for key in (part.schedule, part.later)])
        return sum(found[::2]), sum(found[1::2])

    def hiding(self, parts: Sequence[Keys]) -> list[Keys]:
        """Return those of ``parts`` that have hidden anything."""
        keys = [part.moving for part in parts]
        sizes = self._ask([["HLEN", key] for key in keys], *keys)
        return [part for part, size in zip(parts, sizes, strict=True) if size]

    def hidden_in(self, parts: Sequence[Keys]) -> dict[Keys, list[OnItsWay]]:
        """Return what those of ``parts`` note of what they have hidden that have hidden anything."""
        hiding = self.hiding(parts)
        found = self._ask([["HVALS", part.moving] for part in hiding])
        return {
            part: [noted for text in texts if (noted := on_its_way(text))]
            for part, texts in zip(hiding, found, strict=True)
        }

    def movers_of(self, parts: Sequence[Keys]) -> list[str]:
        """Return the token of who moves entries of each of ``parts``; '': nobody does."""
        keys = [part.mover for part in parts]
        return [_text(token or b"") for token in self._ask([["GET", key] for key in keys], *keys)]

    def are_led(self, lock_keys: Sequence[str | None]) -> list[bool]:
        """Tell of each lock whether somebody holds it; of None nobody knows."""
        found = iter(self._ask([["EXISTS", key] for key in lock_keys if key]))
        return [key is None or bool(next(found)) for key in lock_keys]

    def wake(self, parts: Sequence[Keys]) -> None:
        """Wake the beats that wait for parts."""
        with self._store.translating():
            ask_on_nodes(self._store.client, [["PUBLISH", part.wake, "reshard"] for part in parts])

    def _owned(self, part: Keys, owner: str) -> Iterator[Owned]:
        """Yield the names in the set of an owner whose entries are gone, or have another owner by now."""
        for page in self._pages("SSCAN", part.owner(owner)):
            by_home: dict[Keys, list[str]] = {}
            for name in map(_text, page):
                by_home.setdefault(self._home(name), []).append(name)
            for home, names in by_home.items():
                yield Owned(part, home, owner, names)

    def _entries_among(self, found: Sequence[tuple[Keys, str]]) -> tuple[list[tuple[Keys, str]], list[str]]:
        """Return those keys that are entries, as parts and names, and the other keys.

        What is under the prefix of another schedule, which begins with this one's, is left out of both.
        """
        ending = Keys("").schedule
        others = tuple(
            beginning
            for part, key in found
            if key.endswith(ending) and not part.is_part(Keys(beginning := key.removesuffix(ending)))
        )
        ours = [(part, key) for part, key in found if not key.startswith(others)]
        plain = [(part, key) for part, key in ours if part.kind_of(key)[0] == "entry"]
        with self._store.translating():
            commands = [["HEXISTS", as_stored(key), "definition"] for _, key in plain]
            are_entries = ask_on_nodes(self._store.client, commands) if commands else []
        entries = {one for one, is_entry in zip(plain, are_entries, strict=True) if is_entry == 1}
        names = [(part, part.name(key)) for part, key in plain if (part, key) in entries]
        return names, [key for part, key in ours if (part, key) not in entries]

    def _keys_in(
        self, parts: Sequence[Keys], beginning_in: Callable[[Keys], str] = lambda part: part.entry("")
    ) -> Iterator[tuple[Keys, str]]:
        """Yield all keys in ``parts`` that begin so, each with its part; each once."""
        named = ShardedKeys(self._base.entry(""))
        by_place = {part.generation: part for part in parts}
        for pattern in named.patterns([beginning_in(part) for part in parts]):
            seen: set[bytes] = set()
            for page in self._scan(pattern):
                for key in page:
                    text = _text(key)
                    part = by_place.get(named.at(text).generation)
                    if key not in seen and part is not None and part.owns(text):
                        yield part, text
                    seen.add(key)

    def _scan(self, pattern: str) -> Iterator[list[bytes]]:
        with self._store.translating():
            yield from scan_nodes(self._store.client, as_stored(pattern), PAGE_SIZE)

    def _pages(self, command: str, key: str) -> Iterator[list[Any]]:
        def step(client: Any, cursor: Any) -> tuple[Any, list[Any]]:
            words = [command, as_stored(key), cursor, "COUNT", PAGE_SIZE]
            following, page = client.execute_command(*words, NEVER_DECODE=[])
            return following, list(page)

        yield from self._store.scan(step, key)

    def _ask(self, commands: Sequence[Sequence[Any]], *keys: str) -> list[Any]:
        """Return the replies to commands.

        Arguments:
            keys: theirs that aren't schedules.
        """
        if not commands:
            return []
        with self._store.translating(*keys):
            found = ask_on_nodes(self._store.client, commands)
            for one in found:
                if isinstance(one, Exception):
                    raise one
            return found


def _of_a_part(part: Keys, heir: Keys, kinds: Sequence[str]) -> Iterator[Stray]:
    """Yield what ``part`` keeps for no entry; its events go together with up to where they were told of."""
    for kind in kinds:
        if kind == "events_read" and "events" in kinds:
            continue
        kept = [("events", ""), ("events_read", "")] if kind == "events" else [(kind, "")]
        yield Stray(part, heir, Item(f":{kind}", tuple(kept)))


def heirs_of(ending: Sequence[Keys], parts: Sequence[Keys]) -> dict[str, Keys]:
    """Return the generation key of each part that ends to the part that gets what it keeps for no entry."""
    return {part.generation: parts[number % len(parts)] for number, part in enumerate(ending)}


def _text(value: Any) -> str:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)


def names_of(strays: Iterable[Stray]) -> list[str]:
    """Return the names of strays, each once."""
    return list(dict.fromkeys(one.item.name for one in strays))
