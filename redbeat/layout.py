"""Into how many shards a schedule is divided, and the names that follow from that.

A shard is a part of the schedule with its own lock, sorted set and all that is kept for its entries, under a
prefix of its own; so each is in one slot of a cluster, and beats lead different ones. Invariant: in which
shard an entry is follows from its name and the number of shards alone, so writers in any language can tell.
"""

from __future__ import annotations

import re
from binascii import crc_hqx
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import cached_property, lru_cache

from redbeat.keys import EntryKeys, Keys, note_shards, shard_beginning, shard_prefix

#: how many shards there may be at most: one beat could lead all of them
MAX_SHARDS = 4096

#: how many shards are named in a sentence
MAX_NAMED = 16


def shard_of(name: str, shards: int) -> int:
    """Return in which of so many shards the entry called ``name`` is: 0 to ``shards`` - 1.

    It is the checksum by which a cluster finds the node of a key, CRC-16 (XMODEM), of all bytes of the name.
    """
    try:
        stored = name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half a character, which no key can have: its writer is refused
        stored = name.encode("utf-8", "surrogatepass")
    return crc_hqx(stored, 0) % shards


def shards_named(shards: Iterable[int | None], total: int) -> str:
    """Return a phrase about some of ``total`` shards: 'shard 3 of 16', 'shards 0, 3, 7 of 16'.

    Arguments:
        shards: their numbers; None: the part that has the entries that are in no shard.
    """
    some = [*shards]
    numbers = sorted(number for number in some if number is not None)
    phrases = []
    if len(numbers) == total > 1:
        phrases.append(f"all {total} shards")
    elif numbers:
        names = ", ".join(map(str, numbers[:MAX_NAMED]))
        more = f" and {len(numbers) - MAX_NAMED} more" if len(numbers) > MAX_NAMED else ""
        of_all = f" of {total}" if numbers[-1] < total else ""  # else some are of a former layout
        phrases.append(f"shard{'s' if len(numbers) > 1 else ''} {names}{more}{of_all}")
    if None in some:
        phrases.append("the part without shards")
    return " and ".join(phrases)


def words_of(shards: int | None) -> str:
    """Return a number of shards as a phrase."""
    return "no shards" if shards is None else f"{shards} shards" if shards > 1 else "1 shard"


@dataclass(frozen=True)
class ShardedKeys(Keys):
    """The names of a schedule that is divided into shards, or is about to be, or was.

    Whatever is of one entry stands where the entry is. What each shard has for itself is asked of that
    shard's own :class:`Keys`; it is an error to ask for it here.

    Attributes:
        base: the names without shards, whatever their guard is.
        shards: how many there are; None: entries are, or are to be, where they are without shards.
    """

    base: Keys = field(default_factory=Keys)
    shards: int | None = None

    def __post_init__(self) -> None:
        note_shards(self.prefix)

    def own(self, name: str, *, is_shared: bool = False) -> str:
        """Return a key of RedBeat's own that all shards share.

        Raises:
            LookupError: each shard has one.
        """
        if not is_shared:
            raise LookupError(f"Each shard has its own {self.prefix}:{name}.")
        return super().own(name)

    @cached_property
    def undivided(self) -> Keys:
        """The names without shards."""
        return replace(self.base, guard=self.guard)

    def of_shard(self, shard: int) -> Keys:
        """Return the names in one shard."""
        return _keys_of_shard(self.prefix, shard, self.guard)

    def shard_at(self, prefix: str) -> int | None:
        """Return the number of the shard with this prefix; None: it is none's."""
        found = self._shard_prefix.fullmatch(prefix)
        return None if found is None else int(found[1])

    def home(self, name: str) -> Keys:
        """Return the names in the shard of the entry called ``name``."""
        return self.undivided if self.shards is None else self.of_shard(shard_of(name, self.shards))

    def at(self, key: str) -> Keys:
        """Return the names in the shard that ``key`` says, else in that of the entry with this bare name."""
        known = self._known_prefixes.get(key[: key.find("}:") + 2])
        if known is not None:
            return known
        found = self._shard_prefix.match(key)
        if found is not None:
            return self.of_shard(int(found[1]))
        return self.undivided if key.startswith(self.prefix) else self.home(key)

    @cached_property
    def _known_prefixes(self) -> dict[str, Keys]:
        """The prefix of each shard, to the names in it: a look there is all that most keys take."""
        found = map(self.of_shard, range(self.shards or 0))
        return {keys.prefix: keys for keys in found}

    @cached_property
    def _shard_prefix(self) -> re.Pattern[str]:
        return re.compile(re.escape(shard_beginning(self.prefix)) + r"(0|[1-9][0-9]{0,5})\}:")

    def entry(self, name: str) -> str:
        """Return the key of the entry called ``name``."""
        return self.home(name).entry(name)

    def about(self, name: str) -> EntryKeys:
        """Return all keys about the entry called ``name``."""
        return self.home(name).about(name)

    def entry_of(self, member: str) -> str:
        """Return the key of the entry that ``member`` of a schedule means: its key, or its bare name."""
        return self.at(member).entry_of(member)

    def beside(self, key: str) -> tuple[str, str, str]:
        """Return the keys of what is kept beside the entry under ``key``: its history first."""
        return self.at(key).beside(key)

    def running(self, key: str) -> str:
        """Return the key of the runs in progress of the entry under ``key``: a hash."""
        return self.at(key).running(key)

    def message_id(self, key: str) -> str | None:
        """Return the task id of the stored message whose entry could be under ``key``; None: none's is."""
        return self.at(key).message_id(key)

    def name(self, key: str) -> str:
        """Return the name of the entry under ``key``."""
        return self.at(key).name(key)

    def may_be_entry(self, key: str) -> bool:
        """Return True if ``key`` is one that the documented rights of a writer are about."""
        return self.at(key).may_be_entry(key)

    def owns(self, key: str) -> bool:
        """Return True if ``key`` is one of the schedule's, or could be some day."""
        return self.undivided.owns(key) or self._shard_prefix.match(key) is not None


@lru_cache(maxsize=4096)
def _keys_of_shard(prefix: str, shard: int, guard: str) -> Keys:
    return Keys(shard_prefix(prefix, shard), guard=guard, shared_prefix=prefix)


class LayoutRule(Enum):
    """What a program does that finds the schedule divided otherwise than its settings say."""

    #: it goes by what it finds, and warns
    FOLLOW = auto()
    #: as it starts, it ends with a ConfigurationError, unless the layout was changed since the settings were
    #: right; later on it follows
    REFUSE = auto()
    #: it goes by what it finds, as its settings don't count
    ADOPT = auto()


@dataclass(frozen=True)
class Layout:
    """Where the entries of one schedule are.

    Attributes:
        base: the names without shards.
        shards: how many there are; None: the schedule isn't divided.
        generation: how many layouts there have been, this one included; 0: none was ever written.
        former: how many shards there were before, None: none.
        is_moving: whether entries are moving from where they were before.
    """

    base: Keys
    shards: int | None = None
    generation: int = 0
    former: int | None = None
    is_moving: bool = False

    @property
    def words(self) -> str:
        """The number of shards, and the former one during a change, as a phrase."""
        shards = words_of(self.shards)
        return f"{shards}, changed from {self.former or 'none'}" if self.is_moving else shards

    @property
    def guard(self) -> str:
        """The value of each part's generation key; '': the key doesn't exist.

        While entries move it has the former number, too, in case ``redbeat::layout`` is lost.
        """
        if not self.generation:
            return ""
        way = f" from {self.former or 0}" if self.is_moving else ""
        return f"{self.generation} {self.shards or 0}{way}"

    @cached_property
    def keys(self) -> Keys:
        """The names of what is kept for an entry, wherever that is; and of what all shards share."""
        if self.shards is None and not self.is_moving:
            return replace(self.base, guard=self.guard) if self.guard else self.base
        return self._sharded(self.shards)

    @cached_property
    def former_keys(self) -> ShardedKeys:
        """The names where entries were before this layout."""
        return self._sharded(self.former)

    def _sharded(self, shards: int | None) -> ShardedKeys:
        return ShardedKeys(self.base.prefix, guard=self.guard, base=self.base, shards=shards)

    def shard_of(self, part: Keys) -> int | None:
        """Return the number of the shard that is this part; None: it is the schedule without shards."""
        return self.former_keys.shard_at(part.prefix)

    def named(self, parts: Iterable[Keys]) -> str:
        """Return a phrase about some of the parts, former ones included; see :func:`shards_named`."""
        total = max(self.shards or 0, (self.former or 0) if self.is_moving else 0)
        return shards_named(map(self.shard_of, parts), total)

    def name_of(self, key: str) -> str:
        """Return the name of the entry under ``key``, also if that is where it was in another layout."""
        keys = self.keys if isinstance(self.keys, ShardedKeys) or not self.generation else self.former_keys
        return keys.name(key)

    @cached_property
    def parts(self) -> tuple[Keys, ...]:
        """The shards, or the one part without shards; while entries move, the former ones, too."""
        return (*self.settled_parts, *(self.ending if self.is_moving else ()))

    @cached_property
    def by_prefix(self) -> dict[str, Keys]:
        """The same parts by their prefixes."""
        return {part.prefix: part for part in self.parts}

    @property
    def settled_parts(self) -> tuple[Keys, ...]:
        """The parts that remain once no entries move."""
        return self._parts_of(self.shards)

    @cached_property
    def ending(self) -> tuple[Keys, ...]:
        """The former parts that aren't parts of this layout once no entries move; then with their last guard.

        A shard of the former layout may be one of the new layout: the names in it are the same.
        """
        here = {part.prefix for part in self.settled_parts}
        guard = self.guard if self.is_moving else f"{self.generation} closed"
        former = self._parts_of(self.former) if self.generation > 1 or self.is_moving else ()
        return tuple(replace(part, guard=guard) for part in former if part.prefix not in here)

    @property
    def with_ending(self) -> tuple[Keys, ...]:
        """All parts, and the former ones that have ended, or are about to."""
        return (*self.settled_parts, *self.ending)

    def _parts_of(self, shards: int | None) -> tuple[Keys, ...]:
        if shards is None:
            return (replace(self.base, guard=self.guard),)
        return tuple(map(self.former_keys.of_shard, range(shards)))


@lru_cache(maxsize=64)
def assumed_layout(base: Keys, shards: int | None) -> Layout:
    """Return the layout that the settings say, as long as nothing else is known."""
    return Layout(base, shards, 0 if shards is None else 1)
