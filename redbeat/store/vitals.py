"""Who leads and stands by, and how much is due, as it is in Redis.

Invariant: it only reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from redbeat.errors import RedBeatError, StoreUnavailable
from redbeat.keys import Keys
from redbeat.store.records import score_text, text_of
from redbeat.store.scripts.script import Script
from redbeat.store.store import Store

_READ_STATUS = Script("read_status")

#: for how long a standby is known after it has looked at the lock
STANDBY_SECONDS = 15
#: a stored message that should have been sent longer ago is overdue, milliseconds
OVERDUE_MS = 60_000


class Vitals(NamedTuple):
    """Who leads, and how much is due.

    Attributes:
        now: the server's clock in UNIX seconds.
        token: the token in the lock; '': there is no lock.
        rest_ms: how long the lock lives, milliseconds; -1: for ever.
        tick: when the leader last did something, UNIX seconds as text, followed by a space and the reason if
            it cannot send. '': not known.
        due: how many entries are due.
        oldest: since when the first of them is due, UNIX seconds; None: none is due at a time.
        standbys: who stands by, and when they looked at the lock last, UNIX seconds.
        stored: how many messages are stored; None: not known, as their key has another type.
        overdue: how many of them should have been sent more than a minute ago.
        first_message: since when the first of them should have been sent, UNIX seconds; None: none should.
        entries: how many there are.
    """

    now: float
    token: str
    rest_ms: int
    tick: str
    due: int
    oldest: float | None
    standbys: Mapping[str, float]
    stored: int | None
    overdue: int
    first_message: float | None
    entries: int


def by_one_clock(parts: Sequence[Vitals]) -> list[Vitals]:
    """Return the same by the clock of the first, so that what is long ago by any clock is so by this one.

    Each node of a cluster has a clock of its own, and one may be wrong. Those that differ by less than a
    second count as one.
    """
    now = parts[0].now if parts else 0.0
    return [one if abs(now - one.now) < 1 else _moved_by(now - one.now, one) for one in parts]


def _moved_by(seconds: float, vitals: Vitals) -> Vitals:
    def moved(moment: float | None) -> float | None:
        return None if moment is None else moment + seconds

    ticked, space, obstacle = vitals.tick.partition(" ")
    with suppress(ValueError):  # another program has written something else
        ticked = score_text(float(ticked) + seconds)
    standbys = {who: at + seconds for who, at in vitals.standbys.items()}
    return vitals._replace(
        now=vitals.now + seconds,
        tick=ticked + space + obstacle,
        oldest=moved(vitals.oldest),
        first_message=moved(vitals.first_message),
        standbys=standbys,
    )


def read_vitals(store: Store, parts: Sequence[Keys] | None = None) -> list[Vitals]:
    """Return the vitals of parts of the schedule; one round trip for each node.

    Arguments:
        parts: the names in some; None: all.
    """
    found: list[Vitals] = []
    for one in read_each(store, store.all_parts if parts is None else parts):
        if isinstance(one, StoreUnavailable):
            raise one
        found.append(one)
    return found


def read_each(store: Store, parts: Sequence[Keys]) -> list[Vitals | StoreUnavailable]:
    """Return the vitals of each of these parts; the error takes their place where its node is away."""
    times: Any = {"life_ms": STANDBY_SECONDS * 1000, "late_ms": OVERDUE_MS}
    calls = [
        _READ_STATUS.call(keys, lock=store.config.lock_key_in(keys), **times).reading(_vitals_of)
        for keys in parts
    ]
    found: list[Vitals | StoreUnavailable] = []
    for answer in store.try_all(calls):
        if isinstance(answer, RedBeatError) and not isinstance(answer, StoreUnavailable):
            raise answer
        found.append(answer)
    return found


def _vitals_of(reply: Any) -> Vitals:
    """Return what its reply says."""
    found = Vitals(*reply)
    standing: Any = found.standbys
    standbys = {text_of(who): float(at) for who, at in zip(standing[::2], standing[1::2], strict=True)}
    return found._replace(
        now=float(found.now),
        token=text_of(found.token),
        tick=text_of(found.tick),
        oldest=float(found.oldest) if found.oldest else None,
        standbys=standbys,
        stored=None if found.stored == -1 else found.stored,
        first_message=float(found.first_message) if found.first_message else None,
    )
