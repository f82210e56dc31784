"""The election: which shards this beat leads, and how beats share the shards of a schedule.

Owns a :class:`~redbeat.leadership.leadership.Leadership` for each shard; an unsharded schedule is one shard.
Invariant: the assignment of shards to beats is advice only; each shard's lock decides, and the fence of its
lock is checked by each of its scripts. So beats that disagree about who is there, or that are cut off, lead
too little for a while, and never anything twice.

==========================  ============================================================================
a lock that a look finds    is taken by
==========================  ============================================================================
free                        the beat that the shard is assigned to, at once
silent (takeover_seconds)   the beat that it is assigned to, if its holder isn't there
either for 8 seconds more   any: the beat that it is assigned to leaves it alone
==========================  ============================================================================

A lock that this beat holds is handed over where a batch ends, if its shard is assigned to another beat by
now. A shard that was taken from a beat, or in its place, isn't handed over to that one for a while: it may
announce itself, and yet reach nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from redbeat.config.timing import Timing
from redbeat.connection.retry import COUNTS, ClientError
from redbeat.errors import LayoutChanged, LockLost, RedBeatError, StoreUnavailable
from redbeat.leadership.assignment import ShardAssignment
from redbeat.leadership.heartbeat import Heartbeat, Pulse, Role
from redbeat.leadership.leadership import Leadership
from redbeat.leadership.lock import AWAY_SECONDS, LeaderLock, fence_of, look_at, take
from redbeat.leadership.membership import Membership
from redbeat.log import events
from redbeat.log.logger import logger
from redbeat.log.text import counted
from redbeat.process.background import surviving
from redbeat.process.memory import Memory
from redbeat.store.lock_tokens import beat_of, holder_in_words
from redbeat.store.locks import release_locks
from redbeat.store.nodes import Command, Sendable
from redbeat.store.records import Fence
from redbeat.store.store import Store

#: the shortest time between two looks, of a standby that is about to take over, or of a beat that is woken
MIN_LOOK_SECONDS = 0.25


class Election:
    """One beat in the election of the leaders. All methods but ``pulse`` are the scheduler's thread's.

    A tick calls, in this order::

        election.check()                     # is any lock lost, or taken back?
        if election.is_look_due:
            for leadership in election.look():   # led from now on: store beat_schedule there, fetch at once
        ...                                  # work on election.leading; LockLost of one: election.lose(exc)
        election.hand_over(...)              # a batch has ended: release shards of other beats
        ...                                  # wait; when the channel has woken it: election.note_wake()

    Arguments:
        store: the whole schedule.
        lock_key: the lock's key, as the settings have it for an unsharded schedule; None: no lock is
            configured, and every beat leads every shard.
        timing: how long each lock lives, and what follows from that.

    Attributes:
        store: the whole schedule, as this asks for it.
        heartbeat: renews the locks.
        members: the beats that share the shards, this one included.
        timing: the same, as it was set last.
        leaderships: those of all shards, in their order. Each has ``keys``, the names in its shard.
        lock_key: that of an unsharded schedule; None: there is no lock, and every beat leads.
        is_divided: there are several shards.
        is_look_due: ``look`` has something to do, as the last ``check`` found.
    """

    def __init__(self, store: Store, lock_key: str | None, timing: Timing) -> None:
        app = store.config.app
        self.store = Store(app)  # of its own: the scheduler's store may become a shard's
        self._progress = self.store.progress = store.progress
        self.lock_key = lock_key
        self.timing = timing
        self.leaderships: tuple[Leadership, ...] = ()
        self.is_divided = False
        self.is_look_due = True
        self.members = Membership(app, timing)
        self.heartbeat = Heartbeat(app, timing, self.members, lambda: self.leading)
        self._progress.heart, self._progress.on_slow = self.heartbeat, self._report_slow
        self._assignment = ShardAssignment(self.members.beat, timing)
        self._looked_at = self._look_at = -math.inf
        self._members_away_until = 0.0  # until when the node that lists the beats isn't asked
        self._said = Memory[str, str]()

    @staticmethod
    def _report_slow(seconds: float) -> None:
        """Log a slow answer of Redis, unless the client has logged its retries."""
        if COUNTS.retried_at < time.monotonic() - seconds:
            logger.warning(
                "beat: Redis has answered only after %.1f s; this beat has done nothing else meanwhile.",
                seconds,
                extra=events.REDIS_SLOW.of(seconds=round(seconds, 3)),
            )

    # -- the shards

    def set_parts(self, stores: Iterable[Store]) -> None:
        """Lead these shards, or stand by for them. A shard that was there before, by its prefix, keeps its
        leadership and its lock.

        The locks of shards that aren't there any more are released. Called before anything else, and between
        two batches whenever the layout has changed. It asks Redis only to release locks.

        Arguments:
            stores: one for each shard, which the scheduler works with; its ``keys`` say which shard it is. Of
                an unsharded schedule that may be the store of the whole schedule; once it is divided, that
                shard needs one of its own. A shard that stays keeps its store.
        """
        before = {one.keys.prefix: one for one in self.leaderships}
        wanted = {store.keys.prefix: store for store in stores}
        self._release([one for prefix, one in before.items() if prefix not in wanted])
        for store in wanted.values():
            store.progress = self._progress
        self.leaderships = tuple(
            before.get(prefix)
            or Leadership(store, self._lock_key_of(store), self.timing, self.heartbeat, self.members.beat)
            for prefix, store in wanted.items()
        )
        self._assignment.shards = tuple(wanted)
        self._look_at = -math.inf
        self.is_divided = len(self.leaderships) > 1

    def _lock_key_of(self, store: Store) -> str | None:
        base = self.store.config.base_keys
        if self.lock_key is None or store.keys.prefix == base.prefix:
            return self.lock_key
        return store.keys.prefixed(base.name(self.lock_key))

    @property
    def has_new_layout(self) -> bool:
        """Whether Redis has had another layout, at the last look, than is worked with."""
        return self.is_divided and self.members.generation > self.store.config.layout.generation

    def set_lock(self, lock_key: str | None, lock_seconds: float) -> None:
        """Use other locks from now on, as the constructor takes their key, and let them live for so long from
        their next renewal on."""
        self.lock_key, self.timing.lock_seconds = lock_key, lock_seconds
        for leadership in self.leaderships:
            leadership.set_lock_key(self._lock_key_of(leadership.store))

    @property
    def _live(self) -> frozenset[str]:
        """The beats among which the shards are shared; any may take the lock of an unsharded schedule."""
        return self.members.live if self.is_divided else frozenset((self.members.beat,))

    @property
    def leading(self) -> tuple[Leadership, ...]:
        """The shards that this beat leads, in their order."""
        return tuple(leadership for leadership in self.leaderships if leadership.is_leader)

    @property
    def is_leader(self) -> bool:
        """Whether this beat leads any shard."""
        return any(leadership.is_leader for leadership in self.leaderships)

    @property
    def is_certain(self) -> bool:
        """Whether this beat leads, and no other one can lead any of the same shards by now, as far as the
        locks' times say."""
        leading = self.leading
        return bool(leading) and all(leadership.is_certain for leadership in leading)

    # -- one tick

    def check(self) -> list[Leadership]:
        """Return the shards whose lock was gone, perhaps with all data, and was taken back since the last
        call.

        A shard whose lock is lost isn't led any more after that; this beat stands by for it.

        Raises:
            LockLost: another beat leads an unsharded schedule.
        """
        now = self.heartbeat.progressed_at = time.monotonic()
        lost, retaken = list[LockLost](), list[Leadership]()
        is_standby = False
        for one in self.leaderships:
            if one.store.has_retaken_lock or one.is_foreign or one.lost is not None:
                try:
                    retaken += [one] if one.check() else []
                except LockLost as exc:
                    lost.append(exc)
            if not one.is_leader:
                is_standby = True
        if lost:
            self.lose(*lost)
        # a beat that leads all shards of several announces itself by its heartbeat, or else by a look
        self.is_look_due = now >= self._look_at and (
            is_standby or bool(lost) or (self.is_divided and not self.heartbeat.is_running)
        )
        if retaken:
            logger.warning(
                "beat: The lock %s was gone and is taken back.",
                f"of {self._named(retaken)}" if self.is_divided else self.lock_key,
                extra=events.LEADER_RETAKEN.of(lock=_keys_of(retaken)),
            )
        return retaken

    def _named(self, leaderships: Iterable[Leadership]) -> str:
        """Return a phrase for the log: these shards."""
        return self.store.config.layout.named([leadership.keys for leadership in leaderships])

    def _locks_named(self, leaderships: Sequence[Leadership]) -> str:
        """Return a phrase for the log: the locks of these shards."""
        if not self.is_divided:
            return "lock"
        return f"{counted(len(leaderships), 'lock', 'locks')}: {self._named(leaderships)}"

    def look(self) -> list[Leadership]:
        """Look at the locks that this beat doesn't hold; return the shards that it leads from now on.

        That costs one round trip a node, and some more when locks are taken: all together. Without a lock
        this beat leads all shards from now on.

        Raises:
            StoreUnavailable, StoreRefused, StoreCorrupt: no lock could be asked for. What this beat leads it
                still leads.
        """
        now = time.monotonic()
        others = [one for one in self.leaderships if not one.is_leader]
        if self.lock_key is None:
            for one in others:
                one.lead()
            return others
        others = [one for one in others if one.own.away_until <= now]
        self._looked_at, self._look_at = now, now + self.timing.look_seconds
        self._assignment.forget_refusals(self._live)
        # a beat that renews locks announces itself along with that: else it could seem well when they end
        is_announced = self.heartbeat.is_running and self.is_leader
        if not others and (is_announced or not self.is_divided):
            return []  # the heartbeat also finds out who else is there
        locks = [one.own for one in others]
        if not self.is_divided and not locks[0].looked_at:
            logger.info("beat: Acquiring lock...", extra=events.LEADER_STANDS.of(lock=self.lock_key))
        self._look_at_locks(others, is_announced=is_announced)
        take(self.store, locks, self._may_take)
        taken = [one for one in others if one.own.is_held]
        self._lead(taken)
        errors = {
            lock.key: lock.error
            for lock in locks
            # a lock that was lost was held for a moment, and in another layout it is looked at again
            if lock.error is not None and not isinstance(lock.error, (LockLost, LayoutChanged))
        }
        if errors and len(errors) == len(locks) and not self.is_leader:
            raise next(iter(errors.values()))
        for key, error in errors.items():
            self._report(key, error)
        takeable_at = min((lock.takeable_at for lock in locks if not lock.is_takeable), default=math.inf)
        self._look_at = min(self._look_at, max(takeable_at, now + MIN_LOOK_SECONDS))
        return taken

    def _look_at_locks(self, others: Sequence[Leadership], *, is_announced: bool) -> None:
        """Find out how these locks are, which beats are there, and whether there is another layout."""
        besides: list[Sendable[Any]] = [Command("get", one.keys.tick) for one in others]
        is_listed = time.monotonic() >= self._members_away_until
        if is_listed:
            besides.append(self.members.call(is_silent=is_announced))
        answers = look_at(self.store, [one.own for one in others], besides)
        for leadership, tick in zip(others, answers, strict=False):
            leadership.note_look(tick)
        if is_listed and isinstance(answers[-1], StoreUnavailable):
            self._members_away_until = time.monotonic() + AWAY_SECONDS
        if self.has_new_layout:  # no script refuses a beat that leads nothing
            self.store.config.looked_at = -math.inf
        self.store.parts  # noqa: B018 - it looks where entries are, if it is time to

    def _may_take(self, lock: LeaderLock, silent: frozenset[str]) -> bool:
        """Return True if this beat may take a lock.

        Arguments:
            silent: the tokens of all silent holders; none, if this lock is free.
        """
        beats = frozenset(beat_of(token) or token for token in silent)
        left_seconds = time.monotonic() - lock.takeable_at
        return self._assignment.may_take(lock.store.keys.prefix, self._live, beats, left_seconds)

    def _lead(self, taken: Sequence[Leadership]) -> None:
        """Lead these shards, whose locks are held now."""
        if not taken:
            return
        live, now = self._live, time.monotonic()
        for leadership in taken:
            prefix, token = leadership.keys.prefix, leadership.own.replaced
            before = beat_of(token) if token else self._assignment.leader_of(prefix, live)
            if before in live:  # it announces itself, and can't lead
                self._assignment.refuse(prefix, before, now)
            leadership.lead()
            self._said.pop(str(leadership.lock_key), None)
        replaced = [one for one in taken if one.own.replaced]
        if replaced:
            tokens = [one.own.replaced for one in replaced]
            logger.warning(
                "beat: Took %s over from %s, which has not renewed for %s s.",
                self._named(replaced) if self.is_divided else "the lock",
                ", ".join(sorted({*map(holder_in_words, tokens)})),
                self.store.config.takeover_after,
                extra=events.LEADER_TAKEN_OVER.of(lock=_keys_of(replaced), holder=tokens[0]),
            )
        words = self._locks_named(taken)
        if self.is_divided:
            words += f"; this beat leads {len(self.leading)} now."
        logger.info("beat: Acquired %s", words, extra=events.LEADER_ACQUIRED.of(lock=_keys_of(taken)))

    def _report(self, lock_key: str, error: RedBeatError) -> None:
        """Log that a lock can't be asked for, once until that changes; the others go on."""
        log = logger.debug if isinstance(error, StoreUnavailable) else logger.error
        if self._said.is_news(lock_key, str(error)):
            log("beat: The lock %s can't be asked for, the rest goes on: %s", lock_key, error)

    def hand_over(self, end: Callable[[Leadership], None]) -> bool:
        """Release the locks of the shards that another beat is to lead, and wake that one; return True if
        there were any.

        Arguments:
            end: ends what is on its way in a shard, such as a fetch that was sent ahead.
        """
        live, now = self._live, time.monotonic()
        if len(live) < 2 or self.lock_key is None:
            return False
        leaving = [one for one in self.leading if self._assignment.heir_of(one.keys.prefix, live, now)]
        if not leaving:
            return False
        for leadership in leaving:
            end(leadership)
        self._release(leaving, is_ending=False)
        logger.info(
            "beat: Hands %s over to other beats; this beat leads %d now.",
            self._named(leaving),
            len(self.leading),
            extra=events.LEADER_HANDED_OVER.of(lock=_keys_of(leaving)),
        )
        return True

    def lose(self, *lost: LockLost) -> None:
        """Record that other beats lead shards, by what scripts have raised there; this one stands by for
        them.

        Raises:
            LockLost: the schedule is unsharded; ``redbeat_lock_lost`` decides.
        """
        first, *_ = lost
        if not self.is_divided:
            raise first
        keys = {one.lock_key for one in lost}
        those = [leadership for leadership in self.leaderships if leadership.lock_key in keys]
        logger.error(
            "beat: %s It stands by for %s.",
            first,
            self._named(those),
            extra=events.LEADER_LOST.of(lock=_keys_of(those), holder=first.holder),
        )
        for leadership in those:
            leadership.forget()

    # -- waiting

    def note_wake(self) -> None:
        """Record that a wake-up channel has ended the wait: a lock may be free, or a beat may have left."""
        self._look_at = min(self._look_at, self._looked_at + MIN_LOOK_SECONDS)

    @property
    def wake_channels(self) -> tuple[str, ...]:
        """The channels to listen on while waiting: of the shards that this beat leads, or is to lead.

        They change with each look.
        """
        live, beat, leader_of = self._live, self.members.beat, self._assignment.leader_of
        return tuple(
            one.keys.wake
            for one in self.leaderships
            if one.is_leader or leader_of(one.keys.prefix, live) == beat
        )

    def seconds_to_look(self) -> float:
        """Return the seconds until the next look at the locks that this beat doesn't hold.

        It is fewer when one is about to be taken over. Also a beat that leads some shards waits no longer
        than that.
        """
        return max(self._look_at - time.monotonic(), 0.0)

    def note_progress(self) -> None:
        """Record that the scheduler has done something, so that it doesn't count as stuck."""
        self.heartbeat.progressed_at = time.monotonic()

    def pulse(self) -> Pulse:
        """Return this beat's signs of life; for any thread. It is a leader's if this beat leads any shard."""
        now, heartbeat, leaderships = time.monotonic(), self.heartbeat, self.leaderships
        asks_since = self._progress.asks_since
        asked_at = now if asks_since is None else asks_since
        # Redis is an excuse only where the heartbeat waits for it, too
        progressed_at = max(heartbeat.progressed_at, heartbeat.excused_at)
        if asks_since is not None and not (heartbeat.is_running and self.is_leader):
            progressed_at = now
        if self.lock_key is None:
            return Pulse(Role.SHARING, progressed_at, asked_at)
        answered = [
            one.confirmed_at if one.fence.token else asked_at
            for one in leaderships
            if one.is_leader and one.lost is None and one.confirmed_at > -math.inf
        ]
        if answered:
            return Pulse(Role.LEADER, progressed_at, min(answered))
        return Pulse(Role.STANDBY, progressed_at, max(one.own.looked_at for one in leaderships) or None)

    # -- beginning and end

    def keep_alive(self) -> None:
        """Let the heartbeat renew all locks, also those that are taken later: for a scheduler that is ticked
        by a running beat. Start its thread again if it has died.

        Where the system has no thread to spare, the scheduler's own steps renew the locks.
        """
        with surviving("Starting the heartbeat"):
            self.heartbeat.start()

    def resign(self) -> None:
        """Release all locks, and leave the list of beats; Redis isn't waited for long."""
        self._release(self.leaderships)
        self.heartbeat.stop()
        # any other beat listens on one of these
        self.members.leave([one.keys.wake for one in self.leaderships] if self.is_divided else [])

    def _release(self, leaderships: Sequence[Leadership], *, is_ending: bool = True) -> None:
        """Release these locks, or those that were asked for without an answer."""
        held, foreign, those = list[tuple[Store, Fence]](), list[Any](), list[Leadership]()
        for leadership in leaderships:
            lock = leadership.own if leadership.lock is None else leadership.lock
            fence = fence_of(lock, self.timing)
            leadership.forget()
            if fence.token:
                held.append((leadership.store, fence))
            elif not isinstance(lock, LeaderLock):
                foreign.append(lock)
            else:
                continue
            those.append(leadership)
        if not those:
            return
        words, keys = self._locks_named(those), _keys_of(those)
        if is_ending:
            logger.info("beat: Releasing %s", words, extra=events.LEADER_RELEASED.of(lock=keys))
        try:
            answers = release_locks(self.store, held) if held else []
            for lock in foreign:
                lock.release()
            errors: list[Exception] = [answer for answer in answers if isinstance(answer, Exception)]
        except (RedBeatError, ClientError) as exc:
            errors = [exc]
        if errors:
            logger.warning(
                "beat: The %s couldn't be released, and will expire: %s",
                words,
                errors[0],
                extra=events.LEADER_NOT_RELEASED.of(lock=keys, reason=str(errors[0])),
            )


def _keys_of(leaderships: Iterable[Leadership]) -> str:
    """Return the keys of these locks, with spaces between."""
    return " ".join(str(leadership.lock_key) for leadership in leaderships)
