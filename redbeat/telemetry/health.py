"""Is this beat alive, and is it ready? For any thread, at any moment.

Alive is what a restart would help: the scheduler does something, or waits for Redis or the broker. Ready is
more: it leads and can send, or could take over at any moment. Invariant: the answer takes no request, and
neither a pause of the process nor a start makes a beat seem to hang.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from redbeat.delivery.broker import Broker
from redbeat.leadership.election import Election
from redbeat.leadership.heartbeat import Role, what_hangs
from redbeat.leadership.status import BROKER_AWAY

#: looks that are further apart show that the process was paused
PAUSE_SECONDS = 2.0

#: each tick finds anew why nothing can be sent; it counts for so many looks
TROUBLE_LOOKS = 3

_UNANSWERED = {
    Role.LEADER: "The lock hasn't been confirmed",
    Role.STANDBY: "The lock couldn't be looked at",
    Role.SHARING: "Nothing could be read or written",
}


class Health:
    """The health of one beat. ``look`` must be called once a second while questions may come.

    Each question is answered by a sentence that says what is wrong, or by ''.

    Arguments:
        election: this beat's part in who leads.
        broker: its broker.
        stuck_seconds: after how long without progress it hangs.
        clock: a monotonic clock.
    """

    def __init__(
        self,
        election: Election,
        broker: Broker,
        stuck_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._election = election
        self._broker = broker
        self._stuck_seconds = stuck_seconds
        self._clock = clock
        self._trouble, self._troubled_at = "", 0.0
        self._is_stopping = False
        self._resumed_at = self._looked_at = clock()

    def note_trouble(self, trouble: str) -> None:
        """Record why the tick that has just ended could send nothing, in a sentence; '': it could."""
        self._trouble, self._troubled_at = trouble, self._clock()

    def note_stopping(self) -> None:
        """Record that beat begins to stop."""
        self._is_stopping = True

    def look(self) -> None:
        """Find out whether the process was paused since the last look."""
        now = self._clock()
        if now - self._looked_at > PAUSE_SECONDS:
            self._resumed_at = now
        self._looked_at = now

    @property
    def role(self) -> str:
        """What this beat is among the beats."""
        return "stopping" if self._is_stopping else self._election.pulse().role.value

    @property
    def is_idle(self) -> bool:
        """True for a beat of which nothing is expected: it stands by, has only just begun, or is stopping."""
        pulse = self._election.pulse()
        stands_by = pulse.role is Role.STANDBY and not self.find_hang()
        return stands_by or pulse.answered_at is None or self._is_stopping

    def find_hang(self) -> str:
        """Return why a restart of this beat would help."""
        self.look()  # this may be the first thread to run after a pause
        idle_seconds = self._clock() - max(self._election.pulse().progressed_at, self._resumed_at)
        if idle_seconds < self._stuck_seconds:
            return ""
        return f"Beat has done nothing for {idle_seconds:.0f} s: {what_hangs()} hangs."

    def find_blockage(self) -> str:
        """Return why a beat that leads can't send."""
        trouble_seconds = TROUBLE_LOOKS * self._election.timing.look_seconds
        if self._trouble and self._clock() - self._troubled_at < trouble_seconds:
            return self._trouble
        return BROKER_AWAY if self._broker.is_away else ""

    def find_obstacle(self) -> str:
        """Return why this beat can't send, or couldn't take over."""
        hang = self.find_hang()
        if hang:
            return hang
        if self._is_stopping:
            return "Beat is stopping."
        pulse = self._election.pulse()
        if pulse.answered_at is None:
            return "Beat has only just begun, and hasn't looked at the lock yet."
        seconds = self._clock() - pulse.answered_at
        if seconds >= 2 * self._election.timing.fresh_seconds:
            return f"{_UNANSWERED[pulse.role]} for {seconds:.0f} s: Redis can't be reached, or refuses."
        return "" if pulse.role is Role.STANDBY else self.find_blockage()  # a standby doesn't use the broker
