"""What one beat leads of a schedule: all or nothing of one that isn't divided, else its share of the parts.

Owns a :class:`~redbeat.leadership.elector.Leadership` for each part. Invariant: which part a beat prefers is
advice only; each part's lock decides, and the fence of its lock is checked by each of its scripts. So beats
that disagree about who is there, or that are cut off, lead too little for a while, and never anything twice.

With one part all is as ever: each look stands for its lock, and nothing is written about the beat but what a
standby writes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from redbeat.config.timing import Timing
from redbeat.errors import LockLost
from redbeat.leadership.elector import Leadership
from redbeat.leadership.pulse import Pulse, Role
from redbeat.log.events import LEADER_LOST
from redbeat.log.logger import logger
from redbeat.store.store import Store


class Shares:
    """One beat's part in who leads what. All methods but ``pulse`` are the scheduler's thread's.

    A tick calls, in this order::

        shares.check()                     # is any lock lost, or taken back?
        for leadership in shares.look():   # led from now on: store beat_schedule there, claim at once
        ...                                # work on shares.leading; LockLost of one: shares.lose(exc)
        for leadership in shares.leaving:  # end what is on its way there (claims that were asked for ahead)
        shares.hand_over()                 # releases the locks of these
        ...                                # wait; when the channel has woken it: shares.note_wake()

    Arguments:
        store: the whole schedule.
        lock_key: the lock's key, as the settings have it for a schedule that isn't divided; None: no lock is
            configured, and every beat leads every part.
        timing: how long each lock lives, and what follows from that.
    """

    def __init__(self, store: Store, lock_key: str | None, timing: Timing) -> None:
        self._store = store
        self._lock_key = lock_key
        self._timing = timing
        self._leaderships: dict[str, Leadership] = {}
        self._is_kept_alive = False

    # -- the parts

    def set_parts(self, stores: Iterable[Store]) -> None:
        """Lead these parts, or stand by for them; of a part that was there before, by its prefix, nothing
        changes: neither its lock nor its store.

        The locks of parts that aren't there any more are released. Called before anything else, and between
        two batches whenever the layout has changed. It asks Redis only to release a lock.

        Arguments:
            stores: one for each part, which the scheduler works with; its ``keys`` say which part it is. Of
                a schedule that isn't divided that is the store of the whole schedule.
        """
        wanted = {store.keys.prefix: store for store in stores}
        for prefix in [prefix for prefix in self._leaderships if prefix not in wanted]:
            self._leaderships.pop(prefix).resign()
        self._leaderships = {
            prefix: self._leaderships.get(prefix) or self._new_leadership(store)
            for prefix, store in wanted.items()
        }

    def _new_leadership(self, store: Store) -> Leadership:
        return Leadership(store, self._lock_key_of(store), self._timing)

    def _lock_key_of(self, store: Store) -> str | None:
        base_prefix = self._store.config.key_prefix
        if self._lock_key is None or store.keys.prefix == base_prefix:
            return self._lock_key
        return f"{store.keys.prefix}{self._lock_key.removeprefix(base_prefix)}"

    @property
    def is_divided(self) -> bool:
        """Whether there are several parts."""
        return len(self._leaderships) > 1

    @property
    def leaderships(self) -> tuple[Leadership, ...]:
        """Those of all parts, in their order. Each has ``keys``, the names in its part."""
        return tuple(self._leaderships.values())

    def of(self, prefix: str) -> Leadership:
        """Return that of the part with this prefix."""
        return self._leaderships[prefix]

    # -- what this beat leads

    @property
    def lock_key(self) -> str | None:
        """The lock's key of a schedule that isn't divided; None: there is no lock, and every beat leads."""
        return self._lock_key

    @lock_key.setter
    def lock_key(self, lock_key: str | None) -> None:
        self._lock_key = lock_key
        for leadership in self.leaderships:
            leadership.lock_key = self._lock_key_of(leadership.store)

    @property
    def timing(self) -> Timing:
        """How long each lock lives, and what follows from that."""
        return self._timing

    def set_lock_seconds(self, seconds: float) -> None:
        """Set how long each lock lives, from its next renewal on."""
        self._timing = replace(self._timing, lock_seconds=seconds)
        for leadership in self.leaderships:
            leadership.set_lock_seconds(seconds)

    @property
    def leading(self) -> tuple[Leadership, ...]:
        """Those of the parts that this beat leads, in their order."""
        return tuple(leadership for leadership in self.leaderships if leadership.is_leader)

    @property
    def is_leader(self) -> bool:
        """Whether this beat leads any part."""
        return any(leadership.is_leader for leadership in self.leaderships)

    @property
    def is_certain(self) -> bool:
        """Whether this beat leads, and nobody else can lead any of the same parts by now, as far as the
        locks' times say."""
        leading = self.leading
        return bool(leading) and all(leadership.is_certain for leadership in leading)

    # -- one tick

    def check(self) -> list[Leadership]:
        """Return those of the parts whose lock was gone, perhaps with all data, and was taken back since the
        last call.

        A part whose lock is lost isn't led any more after that; this beat stands by for it.

        Raises:
            LockLost: another beat leads a schedule that isn't divided.
        """
        retaken: list[Leadership] = []
        for leadership in self.leaderships:
            try:
                if leadership.check():
                    retaken.append(leadership)
            except LockLost as exc:
                self.lose(exc)
        return retaken

    def look(self) -> list[Leadership]:
        """Look at the locks that this beat doesn't hold, if it is time to; return those of the parts that it
        leads from now on.

        That costs one round trip a node, and some more when locks are taken: all free ones together, and all
        silent ones.

        Raises:
            StoreUnavailable: no lock could be asked for. What this beat leads it still leads.
        """
        taken: list[Leadership] = []
        for leadership in self.leaderships:
            if not leadership.is_leader and leadership.stand():
                taken.append(leadership)
            if self._is_kept_alive and leadership.is_leader:
                leadership.keep_alive()
        return taken

    @property
    def leaving(self) -> tuple[Leadership, ...]:
        """Those of the parts that ``hand_over`` would release now; costs nothing."""
        return ()

    def hand_over(self) -> None:
        """Release the locks of the parts that another beat is to lead, and wake that one.

        It costs nothing if there are none. Called where a batch has ended: nothing is on its way there.
        """

    def lose(self, exc: LockLost) -> None:
        """Note that another beat leads a part, by what a script has raised there; this one stands by for it.

        Raises:
            LockLost: the schedule isn't divided; ``redbeat_lock_lost`` says what becomes of that.
        """
        if not self.is_divided:
            raise exc
        logger.error(
            "beat: %s It stands by for that part.",
            exc,
            extra=LEADER_LOST.of(lock=exc.lock_key, holder=exc.holder),
        )
        for leadership in self.leaderships:
            if leadership.lock_key == exc.lock_key:
                leadership.forget()

    # -- waiting

    def note_wake(self) -> None:
        """Note that a wake-up channel has ended the wait: a lock may have been released."""

    @property
    def wake_channels(self) -> tuple[str, ...]:
        """The channels to listen on while waiting: of the parts that this beat leads, or is to lead.

        They change with each look.
        """
        return tuple(leadership.keys.wake for leadership in self.leaderships)

    def seconds_to_look(self) -> float:
        """Return the seconds until the next look at the locks that this beat doesn't hold.

        It is fewer when one is about to be taken over. Also a beat that leads some parts waits no longer than
        that.
        """
        return min(leadership.seconds_to_look() for leadership in self.leaderships)

    def note_progress(self) -> None:
        """Note that the scheduler has done something, so that it doesn't count as stuck."""
        for leadership in self.leaderships:
            leadership.note_progress()

    def pulse(self) -> Pulse:
        """Return this beat's signs of life; for any thread. It is a leader's if this beat leads any part."""
        pulses = [leadership.pulse() for leadership in self.leaderships]
        return next((pulse for pulse in pulses if pulse.role is not Role.STANDBY), pulses[0])

    # -- beginning and end

    def keep_alive(self) -> None:
        """Let the heartbeat renew all locks, also those that are taken later: for a scheduler that is ticked
        by a running beat."""
        self._is_kept_alive = True
        for leadership in self.leaderships:
            leadership.keep_alive()

    def resign(self) -> None:
        """Release all locks, and tell the other beats that this one ends; Redis isn't waited for long."""
        for leadership in self.leaderships:
            leadership.resign()
