"""How often, and how soon: all that follows from how long a scheduler's lock lives. Pure.

Owns the one place in which these lengths are set side by side. Invariants, for every lock of a second or more
(tests/unit/config/test_timing.py tries them over the whole range)::

    3 renewals                 <  the lock       one may fail, and another be late
    renewal                    <  fresh          who renews in time needn't ask before it publishes
    fresh                     <=  half of the time after which another beat may lead
    fresh + publish            <  the lock       who was seen to lead, and then publishes, leads still
    slack                      <  renewal        a renewal can be told from a clock that is read late
    renewal + look + slack     <  takeover       a holder that renews in time is never silent
    2 looks                   <=  look gap       one look may come late
    look gap                  <=  half of the time after which another beat may lead
    3 looks                    <  stuck          a scheduler that only waits isn't stuck,
    connect                    <  stuck          nor is one that connects

None of this keeps a run from being doubled where schedule and broker are one server: the scripts do, whatever
the clocks say. Elsewhere it keeps a beat that has been paused from publishing what another has published.
"""

from __future__ import annotations

from dataclasses import dataclass

#: the shortest lock: with a shorter one a busy machine alone would make beats lose it to each other
MIN_LOCK_SECONDS = 1
#: a leader that renews its lock every 2 seconds, and is late once or twice, isn't silent
MIN_TAKEOVER_SECONDS = 5

#: with a lock that lives long enough: the time between two renewals, and what one may take;
RENEWAL_SECONDS = 2.0
#: for so long what was known of the lock holds good;
FRESH_SECONDS = 4.0
#: the time between two looks of one that waits, and how far apart they may be;
LOOK_SECONDS, LOOK_GAP_SECONDS = 1.0, 4.0
#: a lock that ends so nearly when it was to end at the look before hasn't been renewed;
SLACK_SECONDS = 0.5
#: who does nothing for so long is stuck: with a short lock, and with a long one;
MIN_STUCK_SECONDS, MAX_STUCK_SECONDS = 5.0, 60.0
#: and how long one attempt to connect to a broker may take
CONNECT_SECONDS = 5.0


@dataclass(frozen=True)
class Timing:
    """What follows from a lock; all in seconds.

    Attributes:
        lock_seconds: its time to live.
        takeover_seconds: a holder that doesn't renew it for so long is replaced; None: never.
    """

    lock_seconds: float
    takeover_seconds: float | None = None

    @property
    def renewal_seconds(self) -> float:
        """The time between two renewals, and how long Redis is waited for in one."""
        return min(RENEWAL_SECONDS, self.lock_seconds / 4)

    @property
    def replaced_after_seconds(self) -> float:
        """How long after its last renewal another beat may lead."""
        if self.takeover_seconds is None:
            return self.lock_seconds
        return min(self.lock_seconds, self.takeover_seconds)

    @property
    def fresh_seconds(self) -> float:
        """A message that can't be called back leaves only if the lock was known to be held so lately."""
        return min(FRESH_SECONDS, self.replaced_after_seconds / 2)

    @property
    def look_seconds(self) -> float:
        """The time between two looks: of a leader at the schedule, of a standby at the lock."""
        return min(LOOK_SECONDS, self.lock_seconds / 4)

    @property
    def look_gap_seconds(self) -> float:
        """Looks that are further apart say nothing of what was between them."""
        return min(LOOK_GAP_SECONDS, self.replaced_after_seconds / 2)

    @property
    def slack_seconds(self) -> float:
        """How much earlier or later than before a lock may end that wasn't renewed."""
        return min(SLACK_SECONDS, self.lock_seconds / 8)

    @property
    def stuck_seconds(self) -> float:
        """A scheduler that has done nothing for so long is stuck, and its lock isn't renewed any more.

        The lock's own time, so that it is given up in time even when that is noticed one renewal later. Not
        less than some seconds: a machine may be busy, and a broker far.
        """
        lives_seconds = min(max(self.lock_seconds, MIN_STUCK_SECONDS), MAX_STUCK_SECONDS)
        return lives_seconds - self.renewal_seconds

    def publish_seconds(self, wanted_seconds: float) -> float:
        """Return how long a broker is waited for while a batch is sent, ``wanted_seconds`` at the most."""
        return min(wanted_seconds, self.lock_seconds / 3)

    def connect_seconds(self, wanted_seconds: float) -> float:
        """Return how long one attempt to connect to a broker may take: nothing is being sent yet."""
        return min(wanted_seconds, CONNECT_SECONDS, self.stuck_seconds / 2)
