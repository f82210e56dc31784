"""What stands in parts of the schedule and belongs to others, after the layout has changed or by mistake.

Where something belongs follows from the name of its entry. Invariant: what isn't recognised stays where it
is, and is named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import methodcaller
from typing import Any

from redbeat.keys import OF_A_PART, EntryKeys, Keys
from redbeat.layout import Layout, ShardedKeys
from redbeat.log.text import as_stored
from redbeat.store.mover import Stray
from redbeat.store.nodes import AS_BYTES
from redbeat.store.records import text_of
from redbeat.store.server import Server
from redbeat.store.store import Store

#: how many members are read at a time
PAGE_SIZE = 1000


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

    def found_in(self, part: Keys) -> Iterator[Stray]:
        """Yield the entries and the stored messages that ``part`` names anywhere; one may come twice."""
        owners = self._owners(part)
        for key in (part.schedule, part.later):
            for member, _ in self._scan("ZSCAN", key):
                yield from self._stray(part, part.name(part.entry_of(text_of(member))), owners)
        names = [*owners, *map(text_of, self._scan("SSCAN", part.statics))]
        names += (part.name(text_of(key)) for key in self._scan("HSCAN", part.downgraded))
        for key in (part.expected, part.streaks):
            names += (
                part.name(part.entry_of_running(text_of(member))) for member, _ in self._scan("ZSCAN", key)
            )
        for name in dict.fromkeys(names):
            yield from self._stray(part, name, owners)

    def first_members(self, parts: Sequence[Keys], limit: int) -> list[Stray]:
        """Return some of the entries in the schedules of ``parts``; one round trip a node."""
        asked = [(part, key) for part in parts for key in (part.schedule, part.later)]
        found = self._store.ask_each([methodcaller("zrange", key, 0, limit - 1) for _, key in asked])
        return [
            stray
            for (part, _), members in zip(asked, found, strict=True)
            for member in map(text_of, members)
            for stray in self._stray(part, part.name(part.entry_of(member)))
        ]

    def among(self, part: Keys, names: Iterable[str]) -> list[Stray]:
        """Return those of the entries found in ``part``, by their names, that belong to another part."""
        owners = self._owners(part)
        return [one for name in names for one in self._stray(part, name, owners)]

    def _stray(
        self, part: Keys, name: str, owners: Mapping[str, Sequence[str]] | None = None
    ) -> Iterator[Stray]:
        home = self._home(name)
        if home.is_part(part):
            return
        kept = [(kind, name) for kind in EntryKeys._fields]
        message_id = part.message_id(part.entry(name))
        if message_id is not None:
            kept.append(("body", message_id))
        yield Stray(part, home, name, tuple(kept), tuple((owners or {}).get(name, ())))

    def _owners(self, part: Keys) -> dict[str, list[str]]:
        """Return the names of entries in ``beat_schedule``s to their owners."""
        owners: dict[str, list[str]] = {}
        for pair in map(text_of, self._scan("SSCAN", part.static_owners)):
            owner, _, name = pair.partition("\t")
            owners.setdefault(name, []).append(owner)
        return owners

    def of_keys(
        self, parts: Sequence[Keys], heirs: Sequence[Keys]
    ) -> tuple[list[Stray], dict[Keys, set[str]], list[str]]:
        """Return what is left in parts that end; all keys are looked at.

        These are entries, and what the parts keep for none; keys of each part that nobody needs any more; and
        keys that aren't recognised.

        Arguments:
            heirs: the parts that get, in turn, what those that end keep for no entry.
        """
        names: dict[tuple[Keys, str], None] = {}
        own: dict[Keys, list[str]] = {part: [] for part in parts}
        unneeded: dict[Keys, set[str]] = {part: {*part.beats_own} for part in parts}
        unknown: list[tuple[Keys, str]] = []
        lock_key = self._store.config.lock_key
        for part, key in self._keys_in(parts):
            kind, rest = part.kind_of(key)
            is_shared = part.is_part(self._base) and self._base.is_shared(key)
            if is_shared or key in part.passing or key in (part.generation, lock_key):
                continue
            if kind in OF_A_PART:
                own[part].append(kind)
            elif kind == "owner":  # it has names whose entries are gone, or have another owner by now
                unneeded[part].add(key)
            elif kind == "body":
                names[part, part.name(part.stored_message(rest))] = None
            elif kind not in ("", "entry"):
                names[part, rest] = None
            elif not key.startswith(part.hidden("").removesuffix(":")):
                unknown.append((part, key))
        entries, unknown_keys = self._entries_among(unknown)
        names |= dict.fromkeys(entries)
        strays = [one for part, name in names for one in self._stray(part, name)]
        for number, (part, kinds) in enumerate(own.items()):
            strays += _of_a_part(part, heirs[number % len(heirs)], kinds)
        return strays, unneeded, unknown_keys

    def of_late(self, parts: Sequence[Keys]) -> list[Stray]:
        """Return what was written beside entries that have left parts by then; all keys are looked at."""
        names: dict[tuple[Keys, str], None] = {}
        for word in "history", "backfilled", "backfilling":
            for part, key in self._keys_in(parts, lambda part, word=word: part.kinds[word]):  # type: ignore[misc]
                names[part, part.kind_of(key)[1]] = None
        return [one for part, name in names for one in self._stray(part, name)]

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
        asks = [methodcaller("hexists", as_stored(key), "definition") for _, key in plain]
        are_entries = self._store.ask_each(asks, is_tolerant=True)
        entries = {one for one, is_entry in zip(plain, are_entries, strict=True) if is_entry == 1}
        names = [(part, part.name(key)) for part, key in plain if (part, key) in entries]
        return names, [key for part, key in ours if (part, key) not in entries]

    def _keys_in(
        self, parts: Sequence[Keys], beginning_in: Callable[[Keys], str] = lambda part: part.entry("")
    ) -> Iterator[tuple[Keys, str]]:
        """Yield all keys in ``parts`` that begin so, each with its part; each once."""
        named = ShardedKeys(self._base.prefix)
        by_prefix = {part.prefix: part for part in parts}
        seen: set[str] = set()
        for page in Server(self._store).scan(*map(beginning_in, parts)):
            for key in page:
                part = by_prefix.get(named.at(key).prefix)
                if key not in seen and part is not None and part.owns(key):
                    yield part, key
                seen.add(key)

    def _scan(self, command: str, key: str) -> Iterator[Any]:
        """Yield the members of a set or a sorted set, or the fields of a hash; one may come twice."""

        def step(client: Any, cursor: Any) -> tuple[Any, list[Any]]:
            words = [command, as_stored(key), cursor, "COUNT", PAGE_SIZE]
            following, page = client.execute_command(*words, **AS_BYTES)
            return following, list(page)

        for page in self._store.scan(step, key):
            yield from page


def _of_a_part(part: Keys, heir: Keys, kinds: Sequence[str]) -> Iterator[Stray]:
    """Yield what ``part`` keeps for no entry; its events go together with up to where they were told of."""
    for kind in kinds:
        if kind == "events_read" and "events" in kinds:
            continue
        kept = [("events", ""), ("events_read", "")] if kind == "events" else [(kind, "")]
        yield Stray(part, heir, f":{kind}", tuple(kept))


def hiding_in(store: Store, parts: Sequence[Keys]) -> list[Keys]:
    """Return the parts with hidden entries."""
    keys = [part.moving for part in parts]
    found = store.ask_each([methodcaller("exists", key) for key in keys], keys)
    return [part for part, is_there in zip(parts, found, strict=True) if is_there]
