"""What a running beat shows of its leadership at one moment: its role, its progress, Redis' last answer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Role(Enum):
    """What a beat is among the others."""

    LEADER = "leader"
    STANDBY = "standby"
    #: there is no lock, and all beats send
    SHARING = "sharing"


@dataclass(frozen=True)
class Pulse:
    """The signs of life of one beat. Times are monotonic.

    Attributes:
        role: its part.
        progressed_at: when the scheduler last did something. While it waits for Redis, that is now.
        answered_at: when Redis last answered what the role needs: the leader, that it holds the lock; a
            standby, how long the lock lives; None: it hasn't been asked yet.
    """

    role: Role
    progressed_at: float
    answered_at: float | None
