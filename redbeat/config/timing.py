"""The lengths of time that follow from how long a scheduler's lock lives, all in one place. Pure.

Invariants, for every lock of a second or more (tests/unit/config/test_config.py tries them over the whole
range)::

    3 renewals                 <  the lock       one may fail, and another be late
    renewal                    <  fresh          a beat that renews in time publishes without asking
    fresh                     <=  half of the time after which another beat may lead
    fresh + publish            <  the lock       who knew that it leads still leads when it has published
    slack                      <  renewal        a renewal can be told from a clock that is read late
    renewal + look + slack     <  takeover       a holder that renews in time is never silent
    2 looks                   <=  look gap       one look may come late
    look gap                  <=  half of the time after which another beat may lead
    3 looks                    <  stuck          a scheduler that only waits isn't stuck,
    connect                    <  stuck          nor is one that connects

Where schedule and broker are one server, runs aren't doubled whatever the clocks say, because the scripts
check the lock. On other brokers these lengths keep a beat that was paused from publishing what another one
has published.
"""

from __future__ import annotations

from dataclasses import dataclass

#: the shortest lock that is allowed; on a busy machine beats would lose a shorter one to each other
MIN_LOCK_SECONDS = 1
#: the shortest time after which a leader is replaced: one that is late once or twice isn't
MIN_TAKEOVER_SECONDS = 5

# the lengths for a lock of 8 seconds or more; see the properties of the same names below
RENEWAL_SECONDS = 2.0
FRESH_SECONDS = 4.0
LOOK_SECONDS = 1.0
LOOK_GAP_SECONDS = 4.0
SLACK_SECONDS = 0.5
MIN_STUCK_SECONDS, MAX_STUCK_SECONDS = 5.0, 60.0
# how long one attempt to connect to a broker may take
CONNECT_SECONDS = 5.0


@dataclass
class Timing:
    """The lengths that follow from a lock.

    Attributes:
        lock_seconds: the lock's time to live.
        takeover_seconds: a holder that doesn't renew it for this long is replaced; None: never.
    """

    lock_seconds: float
    takeover_seconds: float | None = None

    @property
    def renewal_seconds(self) -> float:
        """The time between two renewals, and the longest that one waits for Redis."""
        return min(RENEWAL_SECONDS, self.lock_seconds / 4)

    @property
    def replaced_after_seconds(self) -> float:
        """The time from the lock's last renewal until another beat may lead."""
        if self.takeover_seconds is None:
            return self.lock_seconds
        return min(self.lock_seconds, self.takeover_seconds)

    @property
    def fresh_seconds(self) -> float:
        """A message is published only if the lock was known to be held this long ago or less."""
        return min(FRESH_SECONDS, self.replaced_after_seconds / 2)

    @property
    def look_seconds(self) -> float:
        """The time between two looks: of a leader at the schedule, of a standby at the lock."""
        return min(LOOK_SECONDS, self.lock_seconds / 4)

    @property
    def look_gap_seconds(self) -> float:
        """Looks of a standby that are further apart don't show whether the lock was renewed between them."""
        return min(LOOK_GAP_SECONDS, self.replaced_after_seconds / 2)

    @property
    def slack_seconds(self) -> float:
        """If a lock ends later or earlier than at the look before by less than this, it wasn't renewed."""
        return min(SLACK_SECONDS, self.lock_seconds / 8)

    @property
    def stuck_seconds(self) -> float:
        """A scheduler that has done nothing for this long is stuck, and its lock isn't renewed any more.

        That is the lock's own time less one renewal, as it may be noticed one renewal late; but counted from
        a lock of 5 seconds at least, as the machine may be busy and the broker slow, and of 60 at most.
        """
        lives_seconds = min(max(self.lock_seconds, MIN_STUCK_SECONDS), MAX_STUCK_SECONDS)
        return lives_seconds - self.renewal_seconds

    def publish_seconds(self, wanted_seconds: float) -> float:
        """Return how long sending a batch may wait for the broker: ``wanted_seconds`` at most."""
        return min(wanted_seconds, self.lock_seconds / 3)
