"""Is this beat alive, and is it ready? Pure.

Alive is what a restart would help: the scheduler does something, or waits for Redis or the broker. Ready is
more: it leads and can send, or could take over at any moment.
"""

from __future__ import annotations

from dataclasses import dataclass

from redbeat.leadership.heartbeat import Role
from redbeat.leadership.status import BROKER_AWAY

_UNANSWERED = {
    Role.LEADER: "The lock hasn't been confirmed",
    Role.STANDBY: "The lock couldn't be looked at",
    Role.SHARING: "Nothing could be read or written",
}


@dataclass(frozen=True)
class Signs:
    """What a beat knows of itself at one moment. Lengths are seconds.

    Attributes:
        role: its part among the beats.
        idle_seconds: how long ago the scheduler last did something; pauses of the process, and waiting for
            Redis, don't count.
        stuck_after_seconds: after how long it hangs.
        unanswered_seconds: how long ago Redis last answered what the role needs; None: it hasn't yet.
        unready_after_seconds: after how long without an answer it isn't ready.
        occupation: what it is busy with if it hangs.
        is_broker_away: the last attempt to send found no broker.
        trouble: why nothing can be sent; '': nothing is known.
        troubled: of which shards nothing can be sent, as a phrase; '': of the whole schedule.
        is_stopping: it gives up the lock, as it ends.
    """

    role: Role
    idle_seconds: float
    stuck_after_seconds: float
    unanswered_seconds: float | None
    unready_after_seconds: float
    occupation: str
    is_broker_away: bool
    trouble: str
    troubled: str = ""
    is_stopping: bool = False


def find_hang(signs: Signs) -> str:
    """Return why a restart of this beat would help; '': it wouldn't."""
    if signs.idle_seconds < signs.stuck_after_seconds:
        return ""
    return f"Beat has done nothing for {signs.idle_seconds:.0f} s: {signs.occupation} hangs."


def trouble_in_words(trouble: str, troubled: str = "") -> str:
    """Return what can't be sent, and why.

    Arguments:
        troubled: the shards that it is about, as a phrase; '': the whole schedule.
    """
    if not troubled:
        return f"Nothing can be sent: {trouble}"
    return f"Nothing of {troubled} can be sent, the rest goes on: {trouble}"


def find_blockage(signs: Signs) -> str:
    """Return why a beat that leads cannot send; '': it can."""
    if signs.trouble:
        return trouble_in_words(signs.trouble, signs.troubled)
    return BROKER_AWAY if signs.is_broker_away else ""


def find_obstacle(signs: Signs) -> str:
    """Return why this beat can't send, or couldn't take over; '': it can."""
    hang = find_hang(signs)
    if hang:
        return hang
    if signs.is_stopping:
        return "Beat is stopping."
    seconds = signs.unanswered_seconds
    if seconds is None:
        return "Beat has only just begun, and hasn't looked at the lock yet."
    if seconds >= signs.unready_after_seconds:
        return f"{_UNANSWERED[signs.role]} for {seconds:.0f} s: Redis can't be reached, or refuses."
    return "" if signs.role is Role.STANDBY else find_blockage(signs)  # a standby does not use the broker
