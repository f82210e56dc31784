"""Who leads, who stands by, and whether the schedule is being worked on: for programs, probes, and endpoint.

Owns the request to Redis that answers this, the verdict about the answer, and its form as a document.
Invariant: it writes nothing, and ``read_status`` takes no longer than MAX_LOOK_SECONDS, whatever Redis does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from enum import IntEnum
from typing import Any

from redbeat.config.config import RedBeatConfig, ensure_conf
from redbeat.config.masking import sanitize_url
from redbeat.connection.retry import call_briefly
from redbeat.leadership.lock import holder_of
from redbeat.store.records import Vitals
from redbeat.store.store import Store

#: how long ``read_status`` may take, connecting included
MAX_LOOK_SECONDS = 5.0

#: the schedule is late if its oldest due entry or message, or its leader's last tick, is older than this
LATE_AFTER_SECONDS = 60.0
#: a leader shows every 2 seconds that it lives; one that hasn't for so long may be gone
SILENT_AFTER_SECONDS = 5.0


@dataclass(frozen=True)
class Leader:
    """The beat that holds the lock.

    Attributes:
        host: the name of its machine; None for celery-redbeat 2.x, whose token doesn't tell.
        pid: its process id there; None for 2.x.
        since: when it became leader by its machine's clock, UTC; None for 2.x.
        token: what the lock holds.
        ttl_seconds: in how many seconds the lock ends unless it is renewed; None: never, as somebody has set
            it by hand.
        last_tick: when it last did something by the server's clock, UTC; None: not known, as for 2.x.
    """

    host: str | None
    pid: int | None
    since: datetime | None
    token: str
    ttl_seconds: float | None
    last_tick: datetime | None


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
class Status:
    """Who leads, and what is due. Times are UTC, by the server's clock.

    Attributes:
        now: when this was read.
        lock_key: the lock's key; None: no lock is configured, so there is no leader.
        leader: who leads; None: nobody does.
        last_tick: when the leader, or the last one that there was, did something; None: not known.
        backlog: how many entries are due.
        oldest_due: since when the first of them is due; None: none is, or only those with the score 0, which
            means "now" whenever it was written.
        standbys: who waits for the lock, at most 100, those first that have waited longest; None: not known,
            as this user may not read it.
        stored_messages: how many messages are stored; None: not known, likewise.
        overdue_messages: how many of them should have been sent more than a minute ago.
        oldest_message: since when the first of them should have been sent; None: none should.
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

    def seconds_since(self, moment: datetime | None) -> float | None:
        """Return the age of ``moment`` in seconds, None for None."""
        return None if moment is None else max((self.now - moment).total_seconds(), 0.0)

    @property
    def is_silent(self) -> bool:
        """Whether the leader has shown no sign of life for longer than one that is well."""
        seconds = self.seconds_since(self.leader.last_tick) if self.leader is not None else None
        return (seconds or 0.0) > SILENT_AFTER_SECONDS


class State(IntEnum):
    """The verdict; the values are the exit codes of ``celery redbeat status``."""

    HEALTHY = 0
    NO_LEADER = 1
    LATE = 2
    UNREACHABLE = 3


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
        return status_of(store.vitals(), config)


def status_of(vitals: Vitals, config: RedBeatConfig) -> Status:
    """Return what Redis' answer means."""
    holder = holder_of(vitals.token)
    is_foreign = bool(vitals.token) and holder is None
    # beats without a lock, and celery-redbeat 2.x, don't write the tick: what is there is an earlier leader's
    last_tick = None if is_foreign or config.lock_key is None else _moment(vitals.tick)
    leader = None
    if vitals.token:
        leader = Leader(
            host=holder.host if holder else None,
            pid=holder.pid if holder else None,
            since=holder.since if holder else None,
            token=vitals.token,
            ttl_seconds=vitals.rest_ms / 1000 if vitals.rest_ms >= 0 else None,
            last_tick=last_tick,
        )
    return Status(
        now=datetime.fromtimestamp(vitals.now, timezone.utc),
        lock_key=config.lock_key,
        leader=leader,
        last_tick=last_tick,
        backlog=vitals.due,
        oldest_due=_moment(vitals.oldest),
        standbys=() if config.lock_key is None else _standbys(vitals.standbys),
        stored_messages=vitals.stored,
        overdue_messages=vitals.overdue,
        oldest_message=_moment(vitals.first_message),
    )


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
    if status.leader is None and status.lock_key is not None:
        return State.NO_LEADER, f"No beat holds the lock {status.lock_key}."
    oldest_seconds = status.seconds_since(status.oldest_due) or 0
    if oldest_seconds > late_after_seconds:
        return State.LATE, (
            f"The oldest due entry has been waiting for {oldest_seconds:.0f} s, longer than "
            f"{late_after_seconds:g} s."
        )
    message_seconds = status.seconds_since(status.oldest_message) or 0
    if message_seconds > late_after_seconds:
        return State.LATE, (
            f"The oldest stored message has been waiting for {message_seconds:.0f} s, longer than "
            f"{late_after_seconds:g} s."
        )
    tick_seconds = status.seconds_since(status.last_tick) or 0
    if tick_seconds > late_after_seconds:
        return State.LATE, (
            f"The leader's last tick was {tick_seconds:.0f} s ago, longer than {late_after_seconds:g} s."
        )
    return State.HEALTHY, ""


def document_of(config: RedBeatConfig, found: Status | None, state: State, problem: str) -> dict[str, Any]:
    """Return the status as JSON has it; its fields are documented in docs/high-availability.rst.

    Arguments:
        found: None: it couldn't be read.
        state, problem: the verdict about it.
    """
    leader = found and found.leader
    return {
        "state": state.name.lower(),
        "exit_code": int(state),
        "problem": problem or None,
        "server": sanitize_url(config.redis_url),
        "now": found and _iso(found.now),
        "lock_key": config.lock_key,
        "leader": leader
        and {
            "host": leader.host,
            "pid": leader.pid,
            "since": _iso(leader.since),
            "token": leader.token,
            "ttl_seconds": leader.ttl_seconds,
        },
        "standbys": found and _told(found.standbys),
        "last_tick": found and _iso(found.last_tick),
        "last_tick_age_seconds": found and found.seconds_since(found.last_tick),
        "backlog": found and found.backlog,
        "oldest_due": found and _iso(found.oldest_due),
        "oldest_due_age_seconds": found and found.seconds_since(found.oldest_due),
        "stored_messages": found and found.stored_messages,
        "overdue_messages": found and found.overdue_messages,
        "oldest_message": found and _iso(found.oldest_message),
        "oldest_message_age_seconds": found and found.seconds_since(found.oldest_message),
    }


def _told(standbys: Sequence[Standby] | None) -> list[dict[str, Any]] | None:
    if standbys is None:
        return None
    return [
        {"host": one.host, "pid": one.pid, "since": _iso(one.since), "last_look": _iso(one.last_look)}
        for one in standbys
    ]


def _iso(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment else None
