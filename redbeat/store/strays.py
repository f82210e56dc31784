"""What stands in parts of the schedule and belongs to others, after the layout has changed or by mistake.

Where something belongs follows from the name of its entry. Invariant: what isn't recognised stays where it
is, and is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from redbeat.keys import OF_A_PART, EntryKeys, Keys
from redbeat.layout import Layout
from redbeat.log.text import as_stored
from redbeat.store.mover import Stray
from redbeat.store.nodes import Command, RawCommand
from redbeat.store.parts import Parts
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
        self._store, self._layout, self._base = store, layout, layout.base
        self._parts = Parts.of_layout(layout)

    def found_in(self, parts: Iterable[Keys]) -> Iterator[Stray]:
        """Yield the entries and the stored messages that ``parts`` name anywhere; one may come twice."""
        for part in parts:
            yield from self._found_in(part)

    def _found_in(self, part: Keys) -> Iterator[Stray]:
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

    def among(self, part: Keys, names: Iterable[str]) -> list[Stray]:
        """Return those of the entries found in ``part``, by their names, that belong to another part."""
        owners = self._owners(part)
        return [one for name in names for one in self._stray(part, name, owners)]

    def _stray(
        self, part: Keys, name: str, owners: Mapping[str, Sequence[str]] | None = None
    ) -> Iterator[Stray]:
        home = self._parts.home(name)
        if home.is_part(part):
            return
        kept = part.about(name)._asdict()
        message_id = part.message_id(part.entry(name))
        if message_id is not None:
            kept["body"] = part.message_body(message_id)
        rests = tuple((kind, part.name(key)) for kind, key in kept.items())
        yield Stray(part, home, name, rests, tuple((owners or {}).get(name, ())))

    def _owners(self, part: Keys) -> dict[str, list[str]]:
        """Return the names of entries in ``beat_schedule``s to their owners."""
        owners: dict[str, list[str]] = {}
        for pair in map(text_of, self._scan("SSCAN", part.static_owners)):
            owner, _, name = pair.partition("\t")
            owners.setdefault(name, []).append(owner)
        return owners

    def by_keys(self) -> tuple[list[Stray], dict[Keys, list[str]], list[str]]:
        """Return what all keys tell of that belongs to other parts.

        These are what is kept for entries, and, in parts that end, for none: others get that in turn; keys of
        each part that ends that nobody needs any more; and keys there that aren't recognised.
        """
        ending, heirs = self._layout.ending, self._layout.parts
        names: dict[tuple[Keys, str], None] = {}
        own: dict[Keys, list[str]] = {part: [] for part in ending}
        unneeded: dict[Keys, list[str]] = {part: [*part.beats_own] for part in ending}
        unknown: list[tuple[Keys, str]] = []
        lock_key = self._store.config.lock_key
        for part, key in self._keys_in(self._layout.with_ending):
            kind, rest = part.kind_of(key)
            is_shared = part.is_part(self._base) and self._base.is_shared(key)
            if kind == "body":
                names[part, part.name(part.stored_message(rest))] = None
            elif kind in EntryKeys._fields and kind != "entry":
                names[part, rest] = None
            elif part not in own or is_shared or key in part.passing or key in (part.generation, lock_key):
                continue
            elif kind in OF_A_PART:
                own[part].append(kind)
            elif kind == "owner":  # it has names whose entries are gone, or have another owner by now
                unneeded[part].append(key)
            elif not key.startswith(part.hidden):
                unknown.append((part, key))
        entries, unknown_keys = self._entries_among(unknown)
        names |= dict.fromkeys(entries)
        strays = [one for part, name in names for one in self._stray(part, name)]
        for number, (part, kinds) in enumerate(own.items()):
            kept = tuple((kind, part.name(part.kinds[kind])) for kind in kinds)
            strays.append(Stray(part, heirs[number % len(heirs)], ":figures", kept))
        return strays, unneeded, unknown_keys

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
        asks = [Command("hexists", as_stored(key), "definition") for _, key in plain]
        are_entries = self._store.ask_all(asks, is_tolerant=True)
        entries = {one for one, is_entry in zip(plain, are_entries, strict=True) if is_entry == 1}
        names = [(part, part.name(key)) for part, key in plain if (part, key) in entries]
        return names, [key for part, key in ours if (part, key) not in entries]

    def _keys_in(self, parts: Sequence[Keys]) -> Iterator[tuple[Keys, str]]:
        """Yield all keys in ``parts``, each with its part; each once."""
        by_prefix = {part.prefix: part for part in parts}
        seen: set[str] = set()
        for page in Server(self._store).scan(*by_prefix):
            for key in page:
                part = by_prefix.get(self._layout.former_keys.at(key).prefix)
                if key not in seen and part is not None and part.owns(key):
                    yield part, key
                seen.add(key)

    def _scan(self, command: str, key: str) -> Iterator[Any]:
        """Yield the members of a set or a sorted set, or the fields of a hash; one may come twice."""

        def step(cursor: int) -> RawCommand:
            return RawCommand(command, as_stored(key), cursor, "COUNT", PAGE_SIZE)

        yield from chain.from_iterable(self._store.scan(step))


def hiding_in(store: Store, parts: Sequence[Keys]) -> list[Keys]:
    """Return the parts with hidden entries."""
    keys = [part.moving for part in parts]
    found = store.ask_all([Command("exists", key) for key in keys])
    return [part for part, is_there in zip(parts, found, strict=True) if is_there]
