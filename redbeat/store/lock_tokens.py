"""Tokens of locks: which process holds a lock, and since when.

A token of RedBeat 3 is ``redbeat:3:HOST:PID:SECONDS:RANDOM``. A token of celery-redbeat 2.x is 32 hexadecimal
digits; other programs may have any.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from datetime import datetime, timezone
from typing import NamedTuple

from redbeat.log.text import printable, shorten

#: how the token of a RedBeat 3 begins
TOKEN_MARK = "redbeat:3"  # noqa: S105 - a lock's token is not a secret

#: random bytes that all tokens of one beat share; and random bytes of each token
BEAT_BYTES = 4


class Holder(NamedTuple):
    """What the token of a RedBeat 3 says: which process has held the lock since when (UTC)."""

    host: str
    pid: int
    since: datetime


def holder_of(token: str) -> Holder | None:
    """Return what ``token`` says; None: it isn't that of a RedBeat 3."""
    parts = token.removeprefix(f"{TOKEN_MARK}:").rsplit(":", 3)
    if not token.startswith(f"{TOKEN_MARK}:") or len(parts) != 4:
        return None
    host, pid, since, _ = parts
    try:
        return Holder(host, int(pid), datetime.fromtimestamp(int(since), timezone.utc))
    except (ValueError, OverflowError, OSError):
        return None


def holder_in_words(token: str | None) -> str:
    """Return who holds the lock with ``token``, as a phrase for logs and errors; None: unknown."""
    if not token:
        return "an unknown process"
    holder = holder_of(token)
    if holder is None:
        return "a program other than RedBeat 3"
    return f"process {holder.pid} on {shorten(printable(holder.host), 100)}"


def new_token(beat: str = "") -> str:
    """Return a token that says which process has it since now, and that no other one has.

    Arguments:
        beat: the id of the beat whose it is, as :func:`new_beat` returns it; '': that of a new one.
    """
    host, pid, mark = (beat or new_beat()).rsplit(":", 2)
    return f"{TOKEN_MARK}:{host}:{pid}:{time.time():.0f}:{mark}{secrets.token_hex(BEAT_BYTES)}"


def new_beat() -> str:
    """Return an id that a beat has for its life: its host, its process, and what no other one there has."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(BEAT_BYTES)}"


def beat_of(token: str) -> str | None:
    """Return the id of the beat whose ``token`` it is; None: it isn't that of a RedBeat 3.

    A beat that shares a schedule with others has one id for all its tokens.
    """
    holder = holder_of(token)
    if holder is None:
        return None
    return f"{holder.host}:{holder.pid}:{token.rpartition(':')[2][: 2 * BEAT_BYTES]}"
