"""How a running beat is, read at any moment by any thread.

Invariant: reading it asks nobody, and neither a pause of the process nor a start makes a beat seem to hang.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from redbeat.delivery.broker import Broker
from redbeat.leadership.election import Election
from redbeat.leadership.heartbeat import what_hangs
from redbeat.telemetry.endpoint.health import Signs

#: looks that are further apart show that the process was paused
PAUSE_SECONDS = 2.0

#: what keeps beat from sending is found anew by each tick; it counts for so many looks
TROUBLE_LOOKS = 3


class Condition:
    """The condition of one beat. ``look`` must be called once a second while anybody may ask.

    Arguments:
        leadership: its part in who leads.
        broker: its broker.
        stuck_seconds: after how long without progress it hangs.
        clock: a monotonic clock.
    """

    def __init__(
        self,
        leadership: Election,
        broker: Broker,
        stuck_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._leadership = leadership
        self._broker = broker
        self._stuck_seconds = stuck_seconds
        self._clock = clock
        self._trouble, self._troubled, self._troubled_at = "", "", 0.0
        self._is_stopping = False
        self._looking = threading.Lock()
        self._resumed_at = self._looked_at = clock()

    def note_trouble(self, trouble: str, troubled: str = "") -> None:
        """Note why the tick that has just ended could send nothing.

        Arguments:
            troubled: of which shards, as a phrase; '': of the whole schedule.
        """
        self._trouble, self._troubled, self._troubled_at = trouble, troubled, self._clock()

    def note_stopping(self) -> None:
        """Note that beat begins to stop."""
        self._is_stopping = True

    def look(self) -> None:
        """Find out whether the process was paused since the last look."""
        with self._looking:
            now = self._clock()
            if now - self._looked_at > PAUSE_SECONDS:
                self._resumed_at = now
            self._looked_at = now

    def read(self) -> Signs:
        """Return the signs of this moment."""
        self.look()  # this may be the first thread to run after a pause
        pulse, timing = self._leadership.pulse(), self._leadership.timing
        now = self._clock()
        is_trouble_new = now - self._troubled_at < TROUBLE_LOOKS * timing.look_seconds
        return Signs(
            role=pulse.role,
            idle_seconds=now - max(pulse.progressed_at, self._resumed_at),
            stuck_after_seconds=self._stuck_seconds,
            unanswered_seconds=None if pulse.answered_at is None else now - pulse.answered_at,
            unready_after_seconds=2 * timing.fresh_seconds,
            occupation=what_hangs(),
            is_broker_away=self._broker.is_away,
            trouble=self._trouble if is_trouble_new else "",
            troubled=self._troubled,
            is_stopping=self._is_stopping,
        )
