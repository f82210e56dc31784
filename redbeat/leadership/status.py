"""Who leads, who stands by, and whether the schedule is being worked on: for programs, probes, and endpoint.

Owns the request to Redis that answers this, the verdict about the answer, and its form as a document.
Invariant: it writes nothing, and ``read_status`` takes no longer than MAX_LOOK_SECONDS, whatever Redis does.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from enum import IntEnum
from typing import Any

from redbeat.config.config import RedBeatConfig, ensure_conf
from redbeat.config.masking import sanitize_url
from redbeat.config.settings import as_flag
from redbeat.connection.retry import call_briefly
from redbeat.errors import StoreRefused, StoreUnavailable
from redbeat.layout import shards_named
from redbeat.store.beats import Beats
from redbeat.store.entries import read_window
from redbeat.store.lock_tokens import beat_of, holder_of
from redbeat.store.store import Store
from redbeat.store.vitals import Vitals, by_one_clock, read_each, sum_of

#: how long ``read_status`` may take, connecting included
MAX_LOOK_SECONDS = 5.0

#: the schedule is late if its oldest due entry or message, or its leader's last tick, is older than this
LATE_AFTER_SECONDS = 60.0
#: the obstacle of a leader that cannot reach the broker
BROKER_AWAY = "The broker is unreachable; due runs wait for it."

#: so many of the first due entries are read to leave out disabled ones
MAX_DUE_READ = 5_000

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
class Standby:
    """A beat that waits for the lock.

    Attributes:
        host: the name of its machine.
        pid: its process id there.
        since: since when it has stood by, by its machine's clock, UTC.
        last_look: when it last said so, by the server's clock, UTC: every 5 seconds, and it looks at the lock
            each second.
    """

    host: str
    pid: int
    since: datetime
    last_look: datetime


@dataclass(frozen=True)
class Beat:
    """One of the beats that share the shards of a schedule.

    Attributes:
        host: the name of its machine.
        pid: its process id there.
        last_look: when it last said that it is there, by the server's clock, UTC.
        shards: the numbers of the shards that it leads.
    """

    host: str
    pid: int
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


@dataclass(frozen=True)
class Status:
    """Who leads, and what is due. Times are UTC, by the server's clock.

    Where the schedule is divided into shards, ``leader`` is that of the first one that has any, ``last_tick``
    is the oldest of all leaders, and what is due is summed up.

    Attributes:
        now: when this was read.
        lock_key: the lock's key; None: no lock is configured, so there is no leader.
        leader: who leads; None: no beat does.
        last_tick: when the leader, or the last one that there was, did something; None: not known.
        backlog: how many entries are due.
        oldest_due: since when the first of them is due; None: none is, or only those with the score 0, which
            means "now" whenever it was written.
        standbys: who waits for the lock, at most 100, those first that have waited longest; None: not known,
            as this user may not read it.
        stored_messages: how many messages are stored; None: not known, likewise.
        overdue_messages: how many of them should have been sent more than a minute ago.
        oldest_message: since when the first of them should have been sent; None: none should.
        shards: each shard, where the schedule is divided into some; ``standbys`` is empty there.
        beats: the beats that share them; None: not known, as this user may not read it.
        nodes: the addresses of all nodes of a cluster, if the schedule is divided.
        is_moving: entries are moved, as the number of shards is being changed.
    """

    now: datetime
    lock_key: str | None
    leader: Leader | None
    last_tick: datetime | None
    backlog: int
    oldest_due: datetime | None
    standbys: Sequence[Standby] | None = ()
    stored_messages: int | None = None
    overdue_messages: int = 0
    oldest_message: datetime | None = None
    shards: Sequence[ShardStatus] = ()
    beats: Sequence[Beat] | None = ()
    nodes: Sequence[str] = ()
    is_moving: bool = False

    def seconds_since(self, moment: datetime | None) -> float | None:
        """Return the age of ``moment`` in seconds, None for None."""
        return None if moment is None else max((self.now - moment).total_seconds(), 0.0)

    @property
    def leaders(self) -> list[Leader]:
        """The leaders of all shards."""
        found = [shard.leader for shard in self.shards] if self.shards else [self.leader]
        return [leader for leader in found if leader is not None]

    @property
    def obstacle(self) -> str:
        """Why the leader, or that of a shard, cannot send; '': it can."""
        return next((leader.obstacle for leader in self.leaders if leader.obstacle), "")

    @property
    def silent_leader(self) -> Leader | None:
        """The first leader without a sign of life for longer than a healthy one; None: there is none."""
        for leader in self.leaders:
            if (self.seconds_since(leader.last_tick) or 0.0) > SILENT_AFTER_SECONDS:
                return leader
        return None

    def in_shard(self, number: int | None) -> Status:
        """Return the same, with the leader of one shard; where the schedule isn't divided as it is."""
        for one in self.shards:
            if one.number == number:
                return replace(self, leader=one.leader, last_tick=one.last_tick, lock_key=one.lock_key)
        return self

    @property
    def unread(self) -> list[ShardStatus]:
        """The shards that can't be read, as their node is away: what is due there isn't counted."""
        return [one for one in self.shards if one.problem]

    @property
    def unled(self) -> list[ShardStatus]:
        """The shards without a leader, except those that are being handed over, as they had one just now."""
        return [
            one
            for one in self.shards
            if one.lock_key is not None
            and one.leader is None
            and not one.problem
            and (self.seconds_since(one.last_tick) or math.inf) > SILENT_AFTER_SECONDS
        ]


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
    """Return who leads and what is due in ``store``: one round trip for each node, with shards two."""
    config, parts = store.config, store.parts
    layout = config.layout  # it is known from here on
    each = read_each(store, parts)
    vitals = by_one_clock([one for one in each if not isinstance(one, StoreUnavailable)])
    if not vitals:
        raise next(one for one in each if isinstance(one, StoreUnavailable))
    read = iter(vitals)
    shards = [
        _shard_of(
            one if isinstance(one, StoreUnavailable) else next(read),
            config.lock_key_in(keys),
            layout.shard_of(keys),
            store.node_of(keys),
        )
        for keys, one in zip(parts, each, strict=True)
    ]
    led = [one for one in shards if one.leader is not None]
    ticks = [one.last_tick for one in (led if parts.is_divided else shards) if one.last_tick is not None]
    whole = sum_of(vitals)
    status = Status(
        now=datetime.fromtimestamp(whole.now, timezone.utc),
        lock_key=config.lock_key,
        leader=led[0].leader if led else None,
        last_tick=min(ticks, default=None),
        backlog=whole.due,
        oldest_due=_moment(whole.oldest),
        stored_messages=whole.stored,
        overdue_messages=whole.overdue,
        oldest_message=_moment(whole.first_message),
    )
    if parts.is_divided:
        beats, nodes = _read_beats(store, shards), store.nodes()
        status = replace(status, shards=shards, beats=beats, nodes=nodes, is_moving=layout.is_moving)
    elif config.lock_key is not None:
        status = replace(status, standbys=_standbys(whole.standbys))
    return status if status.unread else _without_disabled(store, status)


def _without_disabled(store: Store, found: Status) -> Status:
    """Leave out disabled entries that are due by their score, of those that are due first.

    celery-redbeat 2.x leaves the score of a disabled entry as it is. A beat of version 3 moves it on.
    """
    if (found.seconds_since(found.oldest_due) or 0) < SILENT_AFTER_SECONDS:
        return found
    try:
        due = read_window(store, MAX_DUE_READ + 1)
    except StoreRefused:  # this user may read who leads, and no entries
        return found
    now = found.now.timestamp()
    due = [one for one in due if one.score is not None and 0 <= one.score <= now]
    enabled = [one for one in due if not _is_disabled(one.definition)]
    if len(enabled) == len(due):
        return found
    oldest = min((one.score for one in enabled if one.score), default=None)
    if oldest is None and len(due) > MAX_DUE_READ:
        oldest = due[-1].score
    backlog = max(found.backlog - len(due) + len(enabled), 0)
    return replace(found, backlog=backlog, oldest_due=_moment(oldest))


def _is_disabled(definition: str | None) -> bool:
    try:
        return as_flag(json.loads(definition or "").get("enabled", True)) in (False, None, "")
    except (ValueError, AttributeError):  # beat quarantines it
        return False


def _shard_of(
    vitals: Vitals | StoreUnavailable, lock_key: str | None, number: int | None, node: str | None
) -> ShardStatus:
    if isinstance(vitals, StoreUnavailable):
        return ShardStatus(number, lock_key, None, None, 0, 0, None, node, vitals.plain)
    holder, leader = holder_of(vitals.token), None
    is_foreign = bool(vitals.token) and holder is None
    # beats without a lock, and celery-redbeat 2.x, don't write the tick: what is there is an earlier leader's
    ticked, _, obstacle = ("" if is_foreign or lock_key is None else vitals.tick).partition(" ")
    last_tick = _moment(ticked or None)
    if vitals.token:
        leader = Leader(
            host=holder.host if holder else None,
            pid=holder.pid if holder else None,
            since=holder.since if holder else None,
            token=vitals.token,
            ttl_seconds=vitals.rest_ms / 1000 if vitals.rest_ms >= 0 else None,
            last_tick=last_tick,
            obstacle=obstacle,
        )
    oldest = _moment(vitals.oldest)
    return ShardStatus(number, lock_key, leader, last_tick, vitals.entries, vitals.due, oldest, node)


def _read_beats(store: Store, shards: Sequence[ShardStatus]) -> list[Beat] | None:
    """Return which beats share the shards, by their hosts and process ids; None: they may not be read."""
    led: dict[str | None, list[int | None]] = {}
    for one in shards:
        if one.leader is not None:
            led.setdefault(beat_of(one.leader.token), []).append(one.number)
    try:
        found = Beats(store).read_allowed()
    except StoreUnavailable:
        if not any(one.problem for one in shards):
            raise
        found = None  # they are noted on the node that is away
    if found is None:
        return None
    beats = []
    for id_, at in found.items():
        (host, pid, _), last_look = [*id_.rsplit(":", 2), "", ""][:3], _moment(at)
        if pid.isdecimal() and last_look is not None:  # else no beat has written it
            beats.append(Beat(host, int(pid), last_look, led.get(id_, [])))
    return sorted(beats, key=lambda one: (one.host, one.pid))


def _standbys(found: Mapping[str, float] | None) -> Sequence[Standby] | None:
    if found is None:
        return None
    standbys = []
    for who, looked_at in found.items():
        holder, last_look = holder_of(who), _moment(looked_at)
        if holder is not None and last_look is not None:  # else no beat has written it
            standbys.append(Standby(holder.host, holder.pid, holder.since, last_look))
    return sorted(standbys, key=lambda one: (one.since, one.host, one.pid))


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
        named = shards_named([one.number for one in unled], len(status.shards))
        return State.NO_LEADER, f"No beat leads {named.replace('all ', 'any of the ', 1)}."
    if not status.shards and status.leader is None and status.lock_key is not None:
        return State.NO_LEADER, f"No beat holds the lock {status.lock_key}."
    if status.obstacle and status.silent_leader is None:
        return State.BLOCKED, status.obstacle
    whose = "The last tick of a shard's leader" if status.shards else "The leader's last tick"
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
    empty = [node for node in status.nodes if not counts[node]]
    mean = len(status.shards) / len(status.nodes)
    wanted = SHARDS_A_NODE * len(status.nodes)
    advice = f"Choose {SHARDS_A_NODE} shards a node or more: celery redbeat reshard --to {wanted}."
    if len(empty) == 1:
        return f"The node {empty[0]} has no shard. {advice}"
    if empty:
        return f"{len(empty)} of {len(status.nodes)} nodes have no shard. {advice}"
    node, most = counts.most_common(1)[0]
    if most > MAX_OF_MEAN * mean and len(status.shards) < wanted:
        return f"The node {node} has {most} of {len(status.shards)} shards. {advice}"
    return ""


def document_of(config: RedBeatConfig, found: Status | None, state: State, problem: str) -> dict[str, Any]:
    """Return the status as JSON has it; its fields are documented in docs/high-availability.rst.

    Arguments:
        found: None: it couldn't be read.
        state, problem: the verdict about it.
    """
    one = found or Status(None, None, None, None, None, None, None, None, None)  # type: ignore[arg-type]
    document = {
        "state": state.name.lower(),
        "exit_code": int(state),
        "problem": problem or None,
        "server": sanitize_url(config.redis_url),
        "now": _iso(one.now),
        "lock_key": config.lock_key,
        "leader": _leader_form(one.leader),
        "obstacle": one.obstacle or None,
        "standbys": None if one.standbys is None else [_form(standby) for standby in one.standbys],
        **_times_form(one, one, "last_tick"),
        "backlog": one.backlog,
        **_times_form(one, one, "oldest_due"),
        "stored_messages": one.stored_messages,
        "overdue_messages": one.overdue_messages,
        **_times_form(one, one, "oldest_message"),
    }
    if not one.shards:
        return document
    return {
        **document,
        "shards": [_shard_form(one, shard) for shard in one.shards],
        "beats": one.beats and [_form(beat) for beat in one.beats],
        "unread_shards": [shard.number for shard in one.unread],
        "is_moving": one.is_moving,
        "hint": hint_of(one) or None,
    }


def _shard_form(status: Status, shard: ShardStatus) -> dict[str, Any]:
    return {
        "shard": shard.number,
        "leader": _leader_form(shard.leader),
        "obstacle": (shard.leader and shard.leader.obstacle) or None,
        "lock_key": shard.lock_key,
        **_times_form(status, shard, "last_tick"),
        "entries": shard.entries,
        "backlog": shard.backlog,
        **_times_form(status, shard, "oldest_due"),
        "node": shard.node,
        "problem": shard.problem or None,
    }


def _leader_form(leader: Leader | None) -> dict[str, Any] | None:
    if leader is None:
        return None
    return {name: value for name, value in _form(leader).items() if name not in ("last_tick", "obstacle")}


def _form(one: Leader | Standby | Beat) -> dict[str, Any]:
    """Return the fields of a dataclass as JSON has them."""
    return {name: _iso(value) if isinstance(value, datetime) else value for name, value in vars(one).items()}


def _times_form(status: Status, one: Status | ShardStatus, name: str) -> dict[str, Any]:
    """Return a time, and its age."""
    moment = getattr(one, name)
    return {name: _iso(moment), f"{name}_age_seconds": status.seconds_since(moment)}


def _iso(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment else None
