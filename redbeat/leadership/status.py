"""Who leads, who stands by, and whether the schedule is being worked on: for programs, probes, and endpoint.

Owns the request to Redis that answers this, the verdict about the answer, and its form as a document.
Invariant: it writes nothing, and ``read_status`` takes no longer than MAX_LOOK_SECONDS, whatever Redis does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from enum import IntEnum
from typing import Any

from redbeat.config.config import RedBeatConfig, ensure_conf
from redbeat.config.masking import sanitize_url
from redbeat.connection.retry import call_briefly
from redbeat.errors import RedBeatError, StoreUnavailable
from redbeat.layout import shards_named
from redbeat.store.beats import LISTED_SECONDS, read_beats
from redbeat.store.lock_tokens import beat_of, holder_of
from redbeat.store.records import text_of
from redbeat.store.store import Store
from redbeat.store.vitals import Vitals, ask_vitals

#: how long ``read_status`` may take, connecting included
MAX_LOOK_SECONDS = 5.0

#: the schedule is late if its oldest due entry or message, or its leader's last tick, is older than this
LATE_AFTER_SECONDS = 60.0
#: the obstacle of a leader that cannot reach the broker
BROKER_AWAY = "The broker is unreachable; due runs wait for it."

#: so many standbys are shown
MAX_STANDBYS = 100

#: a leader shows every 2 seconds that it lives; one that hasn't for so long may be gone
SILENT_AFTER_SECONDS = 5.0


#: so many shards a node of a cluster are spread well over the nodes
SHARDS_A_NODE = 16
#: a node that has so many times as many of them as there are on average makes a poor spread
MAX_OF_MEAN = 1.5


@dataclass(frozen=True)
class Leader:
    """The beat that holds the lock.

    Attributes:
        host: the name of its machine; None for celery-redbeat 2.x, whose token doesn't tell.
        pid: its process id there; None for 2.x.
        since: when it became leader by its machine's clock, UTC; None for 2.x.
        token: what the lock holds.
        ttl_seconds: in how many seconds the lock ends unless it is renewed; None: never, as it was set by
            hand.
        last_tick: when it last did something by the server's clock, UTC; None: not known, as for 2.x.
        obstacle: why it cannot send, as it found within the last seconds; '': it can, or that is not known,
            as for 2.x.
    """

    host: str | None
    pid: int | None
    since: datetime | None
    token: str
    ttl_seconds: float | None
    last_tick: datetime | None
    obstacle: str = ""


@dataclass(frozen=True)
class Beat:
    """A beat that leads shards, or waits for a lock; an unsharded schedule is one shard.

    Attributes:
        host: the name of its machine.
        pid: its process id there.
        since: when it has begun, by its machine's clock, UTC.
        last_look: when it last said that it is there, by the server's clock, UTC.
        shards: the numbers of the shards that it leads; an unsharded schedule has the number None.
    """

    host: str
    pid: int
    since: datetime
    last_look: datetime
    shards: Sequence[int | None]


@dataclass(frozen=True)
class ShardStatus:
    """Who leads one shard, and what is due in it.

    Attributes:
        number: None: the entries that are in no shard, as they are moved out of them, or into them.
        lock_key: the key of its lock; None: no lock is configured.
        leader: who leads it; None: no beat does.
        last_tick: when that beat, or the last one that there was, did something; None: not known.
        entries: how many entries it has.
        backlog: how many of them are due.
        oldest_due: since when the first of these is due; None: as of :class:`Status`.
        node: the address of the node that it is on in a cluster; None: there is one server only.
        problem: why it can't be read, as its node is away, so that nothing else is known; '': it was read.
    """

    number: int | None
    lock_key: str | None
    leader: Leader | None
    last_tick: datetime | None
    entries: int
    backlog: int
    oldest_due: datetime | None
    node: str | None = None
    problem: str = ""

    @property
    def name(self) -> str:
        """What it is called."""
        return "undivided" if self.number is None else str(self.number)

    @property
    def obstacle(self) -> str:
        """Why its leader cannot send; '': it can."""
        return "" if self.leader is None else self.leader.obstacle


@dataclass(frozen=True)
class Status:
    """Who leads, and what is due. Times are UTC, by the server's clock.

    Attributes:
        now: when this was read.
        lock_key: the lock's key; None: no lock is configured, so there is no leader.
        parts: each shard; an unsharded schedule is one.
        is_divided: the schedule is divided into shards.
        stored_messages: how many messages are stored; None: not known, as their key has another type.
        overdue_messages: how many of them should have been sent more than a minute ago.
        oldest_message: since when the first of them should have been sent; None: none should.
        beats: those that are there, the oldest first; None: not known, as the node that knows is away, or
            their key has another type.
        nodes: the addresses of all nodes of a cluster; (): it is one server.
        is_moving: entries are moved, as the number of shards is being changed.
    """

    now: datetime
    lock_key: str | None
    parts: Sequence[ShardStatus]
    is_divided: bool = False
    stored_messages: int | None = None
    overdue_messages: int = 0
    oldest_message: datetime | None = None
    beats: Sequence[Beat] | None = ()
    nodes: Sequence[str] = ()
    is_moving: bool = False

    @property
    def shards(self) -> Sequence[ShardStatus]:
        """Each shard, if the schedule is divided into some."""
        return self.parts if self.is_divided else ()

    @property
    def standbys(self) -> list[Beat]:
        """The beats that wait for the lock of an unsharded schedule, at most 100."""
        return [beat for beat in self.beats or () if not (self.is_divided or beat.shards)][:MAX_STANDBYS]

    @property
    def leaders(self) -> list[Leader]:
        """The leaders of all shards."""
        return [one.leader for one in self.parts if one.leader is not None]

    @property
    def leader(self) -> Leader | None:
        """The leader of the first shard that has one."""
        return next(iter(self.leaders), None)

    @property
    def last_tick(self) -> datetime | None:
        """The oldest last tick of all leaders, or, if no beat leads, of former ones; None: not known."""
        led = [one for one in self.parts if one.leader is not None]
        return _first(one.last_tick for one in led or self.parts)

    @property
    def backlog(self) -> int:
        """How many entries are due."""
        return sum(one.backlog for one in self.parts)

    @property
    def oldest_due(self) -> datetime | None:
        """Since when the first entry is due; None: none is, or only those with the score 0, which means "now"
        whenever it was written."""
        return _first(one.oldest_due for one in self.parts)

    @property
    def obstacle(self) -> str:
        """Why a leader cannot send; '': they can."""
        return next((leader.obstacle for leader in self.leaders if leader.obstacle), "")

    def seconds_since(self, moment: datetime | None) -> float | None:
        """Return the age of ``moment`` in seconds, None for None."""
        return None if moment is None else max((self.now - moment).total_seconds(), 0.0)

    @property
    def silent_leader(self) -> Leader | None:
        """The first leader without a sign of life for longer than a healthy one; None: there is none."""
        silent = (
            one for one in self.leaders if (self.seconds_since(one.last_tick) or 0) > SILENT_AFTER_SECONDS
        )
        return next(silent, None)

    def in_shard(self, number: int | None) -> Status:
        """Return the same about one shard; where the schedule isn't divided as it is."""
        parts = [one for one in self.parts if one.number == number] or self.parts
        return replace(self, parts=parts, lock_key=parts[0].lock_key)

    @property
    def unread(self) -> list[ShardStatus]:
        """The shards that can't be read, as their node is away: what is due there isn't counted."""
        return [one for one in self.parts if one.problem]

    @property
    def unled(self) -> list[ShardStatus]:
        """The shards without a leader. One of several that had one just now is being handed over."""
        found = []
        for one in self.parts:
            seconds = self.seconds_since(one.last_tick)
            is_handed_over = self.is_divided and seconds is not None and seconds <= SILENT_AFTER_SECONDS
            if not (one.leader or one.lock_key is None or one.problem or is_handed_over):
                found.append(one)
        return found


def _first(moments: Iterable[datetime | None]) -> datetime | None:
    return min((one for one in moments if one is not None), default=None)


class State(IntEnum):
    """The verdict; the values are the exit codes of ``celery redbeat status``."""

    HEALTHY = 0
    NO_LEADER = 1
    LATE = 2
    UNREACHABLE = 3
    BLOCKED = 4


def read_status(app: Any = None) -> Status:
    """Return who leads and what is due: one round trip, of 5 seconds at most.

    Raises:
        ConfigurationError: a setting can't be used.
        StoreUnavailable: Redis can't be reached, or doesn't answer in time.
        StoreRefused: it refuses.
        StoreCorrupt: the schedule's key or the lock's holds something else.
    """
    found: Status = call_briefly(lambda: ask_status(app), MAX_LOOK_SECONDS)
    return found


def ask_status(app: Any = None) -> Status:
    """Return what ``read_status`` does, and raise the same; it takes as long as the client waits."""
    config = ensure_conf(app)
    with Store.hasty(config.app) as store:
        return status_in(store)


def status_in(store: Store) -> Status:
    """Return the leaders and the backlog of ``store``: one round trip for each node."""
    config, keys = store.config, store.parts
    layout = config.layout  # it is known from here on
    calls: list[Any] = [*ask_vitals(store, keys), read_beats(store)]
    answers: list[Any] = store.try_all(calls)
    *each, listed = answers
    read = [one for one in each if isinstance(one, Vitals)]
    for one in each:
        if isinstance(one, RedBeatError) and not (read and isinstance(one, StoreUnavailable)):
            raise one
    parts = [
        _shard_of(one, config.lock_key_in(part), layout.shard_of(part), store.node_of(part))
        for part, one in zip(keys, each, strict=True)
    ]
    is_known = all(one.stored is not None for one in read)
    return Status(
        now=datetime.fromtimestamp(read[0].now, timezone.utc),
        lock_key=config.lock_key,
        parts=parts,
        is_divided=keys.is_divided,
        stored_messages=sum(one.stored or 0 for one in read) if is_known else None,
        overdue_messages=sum(one.overdue for one in read),
        oldest_message=_first(_moment(one.first_message) for one in read),
        beats=None if isinstance(listed, RedBeatError) else _beats_of(listed, parts, read[0].now),
        nodes=store.nodes(),
        is_moving=layout.is_moving,
    )


def _shard_of(
    vitals: Vitals | StoreUnavailable, lock_key: str | None, number: int | None, node: str | None
) -> ShardStatus:
    if isinstance(vitals, StoreUnavailable):
        return ShardStatus(number, lock_key, None, None, 0, 0, None, node, vitals.plain)
    host, pid, since = holder_of(vitals.token) or (None, None, None)
    is_foreign = bool(vitals.token) and host is None
    # beats without a lock, and celery-redbeat 2.x, don't write the tick: what is there is an earlier leader's
    ticked, _, obstacle = ("" if is_foreign or lock_key is None else vitals.tick).partition(" ")
    last_tick, leader = _moment(ticked or None), None
    if vitals.token:
        ttl_seconds = vitals.rest_ms / 1000 if vitals.rest_ms >= 0 else None
        leader = Leader(host, pid, since, vitals.token, ttl_seconds, last_tick, obstacle)
    oldest = _moment(vitals.oldest)
    return ShardStatus(number, lock_key, leader, last_tick, vitals.entries, vitals.due, oldest, node)


def _beats_of(listed: Iterable[tuple[Any, Any]], parts: Sequence[ShardStatus], now: float) -> list[Beat]:
    """Return which beats have said lately that they are there, and the shards that each leads."""
    led: dict[str | None, list[int | None]] = {}
    for one in parts:
        if one.leader is not None:
            led.setdefault(beat_of(one.leader.token), []).append(one.number)
    beats = []
    for token, at in listed:
        holder, last_look = holder_of(text_of(token)), _moment(at)
        if holder is not None and last_look is not None and float(at) > now - LISTED_SECONDS:
            shards = led.get(beat_of(text_of(token)), [])
            beats.append(Beat(holder.host, holder.pid, holder.since, last_look, shards))
    return sorted(beats, key=lambda one: (one.since, one.host, one.pid))


def _moment(seconds: str | float | None) -> datetime | None:
    try:
        return None if seconds is None else datetime.fromtimestamp(float(seconds), timezone.utc)
    except (ValueError, OverflowError, OSError):
        return None


def judge(status: Status, late_after_seconds: float = LATE_AFTER_SECONDS) -> tuple[State, str]:
    """Return the verdict about ``status``, and a sentence that says what is wrong; '': nothing is."""
    if unread := status.unread:
        named = shards_named([one.number for one in unread], len(status.shards))
        return State.UNREACHABLE, f"{named.capitalize()} can't be read: {unread[0].problem}"
    if unled := status.unled:
        if not status.is_divided:
            return State.NO_LEADER, f"No beat holds the lock {status.lock_key}."
        named = shards_named([one.number for one in unled], len(status.shards))
        return State.NO_LEADER, f"No beat leads {named.replace('all ', 'any of the ', 1)}."
    if status.obstacle and status.silent_leader is None:
        return State.BLOCKED, status.obstacle
    whose = "The last tick of a shard's leader" if status.is_divided else "The leader's last tick"
    for since, what in (
        (status.oldest_due, "The oldest due entry has been waiting for {:.0f} s"),
        (status.oldest_message, "The oldest stored message has been waiting for {:.0f} s"),
        (status.last_tick, whose + " was {:.0f} s ago"),
    ):
        seconds = status.seconds_since(since) or 0
        if seconds > late_after_seconds:
            return State.LATE, f"{what.format(seconds)}, longer than {late_after_seconds:g} s."
    return State.HEALTHY, ""


def hint_of(status: Status) -> str:
    """Return what would spread the shards better over the nodes of a cluster; '': they are spread well."""
    if status.is_moving or not status.shards or len(status.nodes) < 2:
        return ""
    counts = Counter(one.node for one in status.shards)
    least, most = (choose(counts[node] for node in status.nodes) for choose in (min, max))
    wanted = SHARDS_A_NODE * len(status.nodes)
    is_crowded = most > MAX_OF_MEAN * len(status.shards) / len(status.nodes) and len(status.shards) < wanted
    if least and not is_crowded:
        return ""
    return (
        f"The nodes have {least} to {most} of the {len(status.shards)} shards. Choose {SHARDS_A_NODE} shards "
        f"a node or more: celery redbeat reshard --to {wanted}."
    )


def document_of(config: RedBeatConfig, found: Status | None, state: State, problem: str) -> dict[str, Any]:
    """Return the status as JSON has it; its fields are documented in docs/high-availability.rst.

    Arguments:
        found: None: it couldn't be read.
        state, problem: the verdict about it.
    """
    one = found or Status(None, config.lock_key, ())  # type: ignore[arg-type]
    document = {
        "state": state.name.lower(),
        "exit_code": int(state),
        "problem": problem or None,
        "server": sanitize_url(config.redis_url),
        "now": _iso(one.now),
        **_form_of(one, one, "stored_messages", "overdue_messages", "oldest_message"),
        "standbys": None if one.beats is None else [_fields(beat, "shards") for beat in one.standbys],
    }
    if found is None:
        document["backlog"] = None
    if not one.is_divided:
        return document
    return {
        **document,
        "shards": [
            {"shard": shard.number, **_form_of(shard, one, "entries", "node", "problem")}
            for shard in one.shards
        ],
        "beats": one.beats and [_fields(beat) for beat in one.beats],
        "unread_shards": [shard.number for shard in one.unread],
        "is_moving": one.is_moving,
        "hint": hint_of(one) or None,
    }


def _form_of(one: Status | ShardStatus, status: Status, *others: str) -> dict[str, Any]:
    """Return the leaders and the backlog of all shards, or of one, and its fields ``others``."""
    form: dict[str, Any] = {}
    for name in ("lock_key", "leader", "obstacle", "last_tick", "backlog", "oldest_due", *others):
        value = getattr(one, name)
        if isinstance(value, Leader):
            value = _fields(value, "last_tick", "obstacle")
        if name in ("last_tick", "oldest_due", "oldest_message"):
            form[f"{name}_age_seconds"] = status.seconds_since(value)
            value = _iso(value)
        form[name] = None if value == "" else value
    return form


def _fields(one: Leader | Beat, *without: str) -> dict[str, Any]:
    return {
        name: _iso(value) if isinstance(value, datetime) else value
        for name, value in vars(one).items()
        if name not in without
    }


def _iso(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment else None
