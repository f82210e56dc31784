"""Who leads and stands by, and how much is due, as it is in Redis.

Invariant: it only reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from redbeat.keys import Keys
from redbeat.store.records import text_of
from redbeat.store.scripts.script import Call, Script
from redbeat.store.store import Store

_READ_STATUS = Script("read_status")

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
    stored: int | None
    overdue: int
    first_message: float | None
    entries: int


def read_vitals(store: Store, parts: Sequence[Keys]) -> list[Vitals]:
    """Return the vitals of parts of the schedule; one round trip for each node."""
    return store.ask_all(ask_vitals(store, parts))


def ask_vitals(store: Store, parts: Sequence[Keys]) -> list[Call[Vitals]]:
    """Return the calls that ask for the vitals of each of these parts."""
    return [
        _READ_STATUS.call(keys, lock=store.config.lock_key_in(keys), late_ms=OVERDUE_MS).reading(_vitals_of)
        for keys in parts
    ]


def _vitals_of(reply: Any) -> Vitals:
    """Return what its reply says."""
    found = Vitals(*reply)
    return found._replace(
        now=float(found.now),
        token=text_of(found.token),
        tick=text_of(found.tick),
        oldest=float(found.oldest) if found.oldest else None,
        stored=None if found.stored == -1 else found.stored,
        first_message=float(found.first_message) if found.first_message else None,
    )
