"""Every name RedBeat uses in Redis, spelled once.

A name is the prefix and the rest with nothing between; the default prefix ends in a colon, hence the
double colon of ``redbeat::schedule``.
"""

from __future__ import annotations

import re
from collections.abc import Set
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

DEFAULT_PREFIX = "redbeat:"
#: all keys of one schedule must be in one slot of a cluster, so the prefix carries a hash tag there
DEFAULT_CLUSTER_PREFIX = "{redbeat}:"

#: what no entry's name may begin with
HISTORY_NAMES = ":history:"
BACKFILLED_NAMES = ":backfilled:"
BACKFILLING_NAMES = ":backfilling:"
RUNNING_NAMES = ":running:"
FAILING_NAMES = ":failing:"
MESSAGE_NAMES = ":later:"
BODY_NAMES = ":body:"
MOVING_NAMES = ":moving:"
UNMOVED_NAMES = ":unmoved:"
RESERVED_BEGINNINGS = (
    *(":calendar:", HISTORY_NAMES, BACKFILLED_NAMES, BACKFILLING_NAMES, ":owner:", RUNNING_NAMES),
    *(FAILING_NAMES, ":change:", MESSAGE_NAMES, BODY_NAMES, MOVING_NAMES, ":arriving:", UNMOVED_NAMES),
)

#: what each part keeps for no entry, and another one gets when it ends: names of :class:`Keys`' attributes
OF_A_PART = ("totals", "figures", "minutes", "labels", "failures", "workers", "events", "events_read")
#: and what ends with it
_PASSING = (
    *("lock", "tick", "wake", "released", "teller", "deadlines", "expected", "streaks"),
    *("schedule", "statics", "static_owners", "downgraded", "later"),
    *("mover", "moving", "left", "arrived", "arriving"),
)
#: what all shards share
_SHARED = ("layout", "generation", "beats", "audit", "tokens", "pinged", "calendar_owners")

#: the guard of names that no layout says anything about
UNGUARDED = "-"

_GLOB = re.compile(r"([*?\[\]\\^])")


class EntryKeys(NamedTuple):
    """All keys about one entry.

    Attributes:
        entry: a hash of definition, meta, policy and error.
        history: a list of the outcomes of its last runs, the newest first.
        backfilled: a set of the due times that were sent by hand.
        backfilling: a string with a time to live, the lock of a caller that sends runs by hand.
        running: a hash of its runs in progress, by their task ids.
        failing: a string, how many of its last runs have failed in a row.
    """

    entry: str
    history: str
    backfilled: str
    backfilling: str
    running: str
    failing: str

    @property
    def beside(self) -> tuple[str, str, str]:
        """What is kept beside the entry, and goes with it: its history first."""
        return self.history, self.backfilled, self.failing


#: what the keys of RedBeat's own hold that have one name in each part, by what follows the prefix and a colon
OWN_KINDS: dict[str, str] = {}
_OWN_NAMES = ["schedule", "statics"]

#: kinds that TYPE calls otherwise
_TYPES = {"sorted set": "zset"}


#: and what the others hold, by how the names begin
_KINDS_OF_BEGINNINGS = {
    ":schedule": "sorted set",
    ":statics": "set",
    ":calendar:": "hash",
    ":history:": "list",
    ":backfilled:": "set",
    ":owner:": "set",
    ":running:": "hash",
    ":later:": "hash",
    ":": "string",
    "": "hash",
}


def is_of_kind(type_name: str, kind: str) -> bool:
    """Return True if a key is of a kind, such as 'sorted set', by what TYPE says of it; 'none': it may be."""
    return type_name in (_TYPES.get(kind, kind), "none")


class _OwnKey:
    """A key of RedBeat's own: no entry's name begins with a colon.

    Arguments:
        kind: what it holds, in words: 'sorted set', 'hash', ...; '': no key has this name itself.
        is_shared: a schedule that is divided into shards has it once, and not once in each.
    """

    def __init__(self, name: str, kind: str = "", *, is_shared: bool = False) -> None:
        self._name = name
        self._is_shared = is_shared
        _OWN_NAMES.append(name)
        if kind:
            OWN_KINDS[name] = kind

    def __set_name__(self, _owner: type[Keys], attribute: str) -> None:
        self._attribute = attribute

    def __get__(self, keys: Keys, _owner: type[Keys]) -> str:
        # kept under the attribute's own name, so that this is called once
        found = vars(keys)[self._attribute] = keys.own(self._name, is_shared=self._is_shared)
        return found


@dataclass(frozen=True)
class Keys:
    """The names under one prefix; that of the schedule and that of the statics may be others.

    Each name is in one place, whichever shard is asked: a key that all shards share is under their common
    prefix, any other one under the shard's own.

    Attributes:
        shared_prefix: the prefix of the keys that all shards share; '': ``prefix``.
        guard: what the key ``generation`` holds as long as these names are right; '': it is missing;
            UNGUARDED: what is under these names is in no layout.
    """

    prefix: str = DEFAULT_PREFIX
    schedule_key: str = ""
    statics_key: str = ""
    guard: str = ""
    shared_prefix: str = ""

    def own(self, name: str, *, is_shared: bool = False) -> str:
        """Return a key of RedBeat's own."""
        return f"{(is_shared and self.shared_prefix) or self.prefix}:{name}"

    @cached_property
    def schedule(self) -> str:
        """zset: member is an entry's key, score its next due time in UNIX seconds, < 0 for never."""
        return self.schedule_key or self.own("schedule")

    @cached_property
    def statics(self) -> str:
        """set: the names of the entries that came from ``beat_schedule``."""
        return self.statics_key or self.own("statics")

    static_owners = _OwnKey("static-owners", "set")
    """set: whose ``beat_schedule`` has an entry: the owner, a tab, and the entry's name"""
    downgraded = _OwnKey("downgraded", "hash")
    """hash: key of each entry that was taken out for celery-redbeat 2.x, to the score that it had"""
    lock = _OwnKey("lock", "string")
    """string with a time to live: the leader's token"""
    tick = _OwnKey("tick", "string")
    """string with a time to live: when the leader's last tick was, UNIX seconds"""
    wake = _OwnKey("wake")
    """channel: every write to the schedule is announced here, so that a waiting beat looks at once"""
    released = _OwnKey("released", "string")
    """string with a time to live: the token of the beat or singleton that has released the lock last"""
    generation = _OwnKey("generation", "string")
    """string: in which layout what is under this prefix may be written; without shards there is none"""
    mover = _OwnKey("mover", "string")
    """string: the token of the mover of entries out of this part of the schedule, or into it"""
    moving = _OwnKey("moving", "hash")
    """hash: name of each entry that is on its way to another part, to JSON: what it was in this one"""
    left = _OwnKey("left", "set")
    """set: the names of those that have left this part since the layout was changed"""
    arrived = _OwnKey("arrived", "hash")
    """hash: id of each move that was written to this part, to a JSON array of the names that couldn't be"""
    arriving = _OwnKey("arriving")
    """what was moved here stands for a moment under keys that begin so"""
    layout = _OwnKey("layout", "hash", is_shared=True)
    """hash: into how many shards the schedule is divided, and how often that has been changed"""
    beats = _OwnKey("beats", "sorted set", is_shared=True)
    """zset with a time to live: the tokens of all beats, scored by when they said that they are there"""
    pinged = _OwnKey("pinged", "string", is_shared=True)
    """string with a time to live: which of several beats without a lock has called redbeat_ping_url last"""
    deadlines = _OwnKey("deadlines", "sorted set")
    """zset: a run's task id, NUL, and the key of its entry's runs, scored by when beat must look at it"""
    events = _OwnKey("events", "stream")
    """stream: what has happened to runs and entries, for listeners"""
    events_read = _OwnKey("events-read", "string")
    """string: the id of the last event that was told of"""
    failures = _OwnKey("failures", "stream")
    """stream: the runs that have failed for good, or were lost"""
    workers = _OwnKey("workers", "hash")
    """hash: name of each worker that tracks runs, to JSON: since when it is known, and what it can do"""
    figures = _OwnKey("figures", "hash")
    """hash: labels' id, colon and word, to how often that was counted since it was added to the totals"""
    totals = _OwnKey("totals", "hash")
    """hash: likewise, to how often it was ever counted"""
    minutes = _OwnKey("minutes", "hash")
    """hash: minute of the hour, 0 to 59, to JSON: what was counted in it when it was last that minute"""
    labels = _OwnKey("labels", "hash")
    """hash: id of labels of the metrics, to JSON: task, queue and entry"""
    teller = _OwnKey("teller", "string")
    """string with a time to live: which of the beats without a lock shows the metrics of the schedule"""
    expected = _OwnKey("expected", "sorted set")
    """zset: key of the runs in progress of each entry whose runs are tracked, scored by when one must have
    succeeded, UNIX seconds"""
    streaks = _OwnKey("streaks", "sorted set")
    """zset: likewise of each entry whose last run has failed, scored by how many have in a row"""
    audit = _OwnKey("audit", "stream", is_shared=True)
    """stream: the users' changes by the command line and the dashboard"""
    tokens = _OwnKey("tokens", "hash", is_shared=True)
    """hash: id of each token of the dashboard, to JSON: its name and rights, and the SHA-256 of its secret"""
    later = _OwnKey("later", "sorted set")
    """zset: member is the key of a stored message's entry, score when it is to be sent, UNIX seconds"""

    def singleton(self, name: str) -> str:
        """Return the default key of a singleton's lock: a string with a time to live."""
        return self.own(f"singleton:{name}", is_shared=True)

    def calendar(self, name: str) -> str:
        """Return the key of the calendar called ``name``: a hash of excluded days and their labels."""
        return self.own(f"calendar:{name}", is_shared=True)

    def entry(self, name: str) -> str:
        """Return the key of the entry called ``name``."""
        return f"{self.prefix}{name}"

    def about(self, name: str) -> EntryKeys:
        """Return all keys about the entry called ``name``."""
        prefix = self.prefix
        return EntryKeys(
            self.entry(name),
            f"{prefix}{HISTORY_NAMES}{name}",
            f"{prefix}{BACKFILLED_NAMES}{name}",
            f"{prefix}{BACKFILLING_NAMES}{name}",
            f"{prefix}{RUNNING_NAMES}{name}",
            f"{prefix}{FAILING_NAMES}{name}",
        )

    def entry_of(self, member: str) -> str:
        """Return the key of the entry that ``member`` of the schedule means: its key, or its bare name."""
        return member if member.startswith(self.prefix) else self.entry(member)

    def beside(self, key: str) -> tuple[str, str, str]:
        """Return the keys of what is kept beside the entry under ``key``: its history first."""
        name = self.name(key)
        history, backfilled, failing = self._beginnings.beside
        return history + name, backfilled + name, failing + name

    @cached_property
    def _beginnings(self) -> EntryKeys:
        """What the keys about an entry begin with: its name comes last in each."""
        return self.about("")

    def running(self, key: str) -> str:
        """Return the key of the runs in progress of the entry under ``key``: a hash."""
        return self._beginnings.running + self.name(key)

    def entry_of_running(self, running: str) -> str:
        """Return the key of the entry whose runs in progress are under the key ``running``."""
        return self.entry(running.removeprefix(self._beginnings.running))

    def owner(self, owner: str) -> str:
        """Return the key of the names that ``owner`` has applied from a file: a set."""
        return self.own(f"owner:{owner}")

    @property
    def calendar_owners(self) -> str:
        """set: owners of calendars applied from a file: the owner, a tab, and the calendar's name."""
        return self.own("owner:", is_shared=True)  # an owner's name isn't empty

    def change(self, id: str) -> str:  # noqa: A002 - it is what the dashboard calls it
        """Return the key of what is known of a change of the dashboard: a string with a time to live."""
        return self.own(f"change:{id}", is_shared=True)

    def stored_message(self, task_id: str) -> str:
        """Return the key of the entry of the stored message with ``task_id``: a hash."""
        return self.entry(f"{MESSAGE_NAMES}{task_id}")

    def message_body(self, task_id: str) -> str:
        """Return the key of the body of that message, if it isn't JSON: a string of JSON about it."""
        return f"{self.prefix}{BODY_NAMES}{task_id}"

    def message_id(self, key: str) -> str | None:
        """Return the task id of the stored message whose entry could be under ``key``; None: none's is."""
        beginning = self.stored_message("")
        return key.removeprefix(beginning) if key.startswith(beginning) and key != beginning else None

    def request(self, task_id: str) -> str:
        """Return the key that remembers for a day the request whose run has ``task_id``: a string."""
        return self.own(f"change:request:{task_id}", is_shared=True)

    def kind_held(self, key: str) -> str:
        """Return what ``key`` holds, in words: 'sorted set', 'hash' ..."""
        if key in (self.schedule, self.statics):
            return "sorted set" if key == self.schedule else "set"
        name = self.name(key)
        kind = OWN_KINDS.get(name[1:]) if name[:1] == ":" else None
        return kind or next(kind for start, kind in _KINDS_OF_BEGINNINGS.items() if name.startswith(start))

    def name(self, key: str) -> str:
        """Return the name of the entry under ``key``."""
        return key.removeprefix(self.prefix)

    def is_part(self, other: Keys) -> bool:
        """Return True if these are the names in the same part of the schedule as ``other``."""
        return self.prefix == other.prefix

    @cached_property
    def kinds(self) -> dict[str, str]:
        """What is moved to another part of the schedule, to how the key begins that holds it.

        The name of its entry follows, or what is named by it; nothing, where a part has one such key.
        """
        own = {word: str(getattr(self, word)) for word in OF_A_PART}
        return {**self._beginnings._asdict(), "body": self.message_body(""), "owner": self.owner(""), **own}

    def kind_of(self, key: str) -> tuple[str, str]:
        """Return which of ``kinds`` is under ``key``, and what follows its beginning; '': none that is known.

        Any other name may be an entry's.
        """
        name = self.name(key)
        if name[:1] != ":" or name.startswith(MESSAGE_NAMES):
            return "entry", name
        for word, beginning in self.kinds.items():
            is_whole = word in OF_A_PART
            if word != "entry" and (key == beginning if is_whole else key.startswith(beginning)):
                return word, key.removeprefix(beginning)
        return "", name

    @property
    def hidden(self) -> str:
        """How keys begin that are on their way to another part; what followed the prefix comes next."""
        return f"{self.prefix}{MOVING_NAMES}"

    @property
    def unmoved(self) -> str:
        """How keys begin that couldn't be merged with what was here; what followed the prefix comes next."""
        return f"{self.prefix}{UNMOVED_NAMES}"

    @cached_property
    def passing(self) -> frozenset[str]:
        """The keys that end with a part: what is in them is kept elsewhere by then, or was a beat's."""
        return frozenset(str(getattr(self, word)) for word in _PASSING)

    @property
    def beats_own(self) -> frozenset[str]:
        """Those of them that were a beat's, and are removed when the part ends."""
        kept = self.schedule, self.later, self.statics, self.moving, self.mover, self.wake
        return self.passing.difference(kept)

    def is_shared(self, key: str) -> bool:
        """Return True if ``key`` is shared by all shards."""
        beginnings = self.calendar(""), self.change(""), self.singleton("")
        return key.startswith(beginnings) or key in {getattr(self, word) for word in _SHARED}

    def may_be_entry(self, key: str) -> bool:
        """Return True if ``key`` is one that the documented rights of a writer are about."""
        return key.startswith(self.prefix) and self.name(key)[:1] not in ("", ":")

    def owns(self, key: str) -> bool:
        """Return True if ``key`` is one of the schedule's, or could be some day."""
        return key.startswith(self.prefix) or key in (self.schedule, self.statics)

    def is_reserved(self, key: str) -> bool:
        """Return True if ``key`` is one of RedBeat's own without shards, or any in a shard of any layout."""
        return key.startswith(self._reserved) or key in (self.schedule, self.statics)

    @cached_property
    def _reserved(self) -> tuple[str, str]:
        """What reserved keys begin with."""
        return f"{self.prefix}:", shard_beginning(self.prefix)

    def prefixed(self, key: str) -> str:
        """Return ``key`` itself where it has the prefix, else with the prefix in front."""
        return key if key.startswith(self.prefix) else f"{self.prefix}{key}"


#: what no entry may be called: these keys are RedBeat's own, as is the one that redbeat_lock_key names
RESERVED_NAMES = frozenset(f":{name}" for name in _OWN_NAMES)

#: of what belongs to no part of the schedule, as a singleton's lock does
NO_PART = Keys(guard=UNGUARDED)


@lru_cache(maxsize=64)
def keys_of(prefix: str, schedule_key: str, statics_key: str) -> Keys:
    """Return the names under ``prefix``, with these keys of the schedule and the statics."""
    return Keys(prefix, schedule_key, statics_key)


def shard_prefix(prefix: str, shard: int) -> str:
    """Return the prefix of one shard's keys: all of them are in one slot of a cluster."""
    return f"{shard_beginning(prefix)}{shard}}}:"


def shard_beginning(prefix: str) -> str:
    """Return what the prefixes of all shards begin with: a hash tag in ``prefix`` would be all shards'."""
    return f"{{{prefix.removesuffix(':').replace('{', '').replace('}', '')}:"


#: how the prefixes of shards begin that this process has met, to the prefix without shards
_UNDIVIDED: dict[str, str] = {}


def note_shards(prefix: str) -> None:
    """Remember that the schedule under ``prefix`` is divided into shards, for :func:`identity_of`."""
    _UNDIVIDED[shard_beginning(prefix)] = prefix
    _undivided_of.cache_clear()


def identity_of(key: str) -> str:
    """Return the key that the entry under ``key`` has without shards: what follows from an entry's key is
    the same wherever it is, such as the task ids of its runs.
    """
    if not _UNDIVIDED or key[:1] != "{":
        return key
    shard, _, name = key.partition("}:")
    prefix = _undivided_of(shard)
    return key if prefix is None or len(shard) == len(key) else prefix + name


@lru_cache(maxsize=8192)  # twice as many as there may be shards; asked for each run
def _undivided_of(shard: str) -> str | None:
    """Return the prefix without shards by that of one of them, without its end; None: it is that of none."""
    beginning, colon, number = shard.rpartition(":")
    return _UNDIVIDED.get(beginning + colon) if number.isdecimal() else None


def is_reserved_name(name: str, reserved: Set[str]) -> bool:
    """Return True if no entry may be called ``name``: the key is RedBeat's own.

    Arguments:
        reserved: the names that are reserved as a whole.
    """
    return name in reserved or name.startswith(RESERVED_BEGINNINGS)


def glob_of(text: str) -> str:
    """Return the pattern that matches ``text`` alone, for SCAN."""
    return _GLOB.sub(r"\\\1", text)


def is_owner_name(name: object) -> bool:
    """Return True if an owner of entries may be called ``name``: any text without control characters."""
    return isinstance(name, str) and bool(name) and name.isprintable()


def has_hash_tag(prefix: str) -> bool:
    """Return True if Redis Cluster puts all keys with this prefix into one slot."""
    opening = prefix.find("{")
    return opening >= 0 and prefix.find("}", opening) > opening + 1
