"""What one beat leads of a schedule: all or nothing of one that isn't divided, else its share of the parts.

Owns a :class:`~redbeat.leadership.elector.Leadership` for each part. Invariant: which part a beat prefers is
advice only; each part's lock decides, and the fence of its lock is checked by each of its scripts. So beats
that disagree about who is there, or that are cut off, lead too little for a while, and never anything twice.

==========================  ============================================================================
a lock that a look finds    is taken by
==========================  ============================================================================
free                        the beat that is to lead the part, at once
free for takeover_seconds   any: the beat that is to lead it leaves it alone
silent for that long        the beat that is to lead the part if its holder isn't there; a little later any
==========================  ============================================================================

A lock that this beat holds is handed over where a batch ends, if another one is to lead the part by now, and
has said lately that it is there. A part that was taken from a beat, or in its place, isn't handed over to
that one for a while: it may say that it is there, and yet reach nothing.

With one part all is as ever: each look stands for its lock, and nothing is written about the beat but what a
standby writes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from redbeat.config.timing import Timing
from redbeat.connection.retry import ClientError, is_full
from redbeat.errors import LayoutChanged, LockLost, RedBeatError, StoreUnavailable
from redbeat.leadership.division import Division
from redbeat.leadership.elector import MIN_LOOK_SECONDS, Leadership
from redbeat.leadership.heartbeat import Heartbeat, Pulse, Role
from redbeat.leadership.lock import LeaderLock
from redbeat.leadership.peers import Peers
from redbeat.log.events import (
    LEADER_ACQUIRED,
    LEADER_HANDED_OVER,
    LEADER_LOST,
    LEADER_NOT_RELEASED,
    LEADER_RELEASED,
    LEADER_RETAKEN,
    LEADER_TAKEN_OVER,
)
from redbeat.log.logger import logger
from redbeat.log.text import counted
from redbeat.process.memory import Memory
from redbeat.store.lock_tokens import beat_of, holder_in_words, replaceable
from redbeat.store.locks import NO_KEY, Held, LockKey, Locks, Take
from redbeat.store.store import Store

#: a node that didn't answer isn't asked again for twice as long as that took, and for this at most
AWAY_SECONDS = 5.0

#: the shortest time between two looks of a beat that is woken, mostly by writers, and isn't to lead any more
#: parts, as far as it knows
WOKEN_LOOK_SECONDS = 0.25

#: what stands for the node of the key that all parts share, beside the parts' prefixes
_BEATS = ""


class Shares:
    """One beat's part in who leads what. All methods but ``pulse`` are the scheduler's thread's.

    A tick calls, in this order::

        shares.check()                     # is any lock lost, or taken back?
        for leadership in shares.look():   # led from now on: store beat_schedule there, fetch at once
        ...                                # work on shares.leading; LockLost of one: shares.lose(exc)
        for leadership in shares.leaving:  # end what is on its way there (fetches that were asked for ahead)
        shares.hand_over()                 # releases the locks of these
        ...                                # wait; when the channel has woken it: shares.note_wake()

    Arguments:
        store: the whole schedule.
        lock_key: the lock's key, as the settings have it for a schedule that isn't divided; None: no lock is
            configured, and every beat leads every part.
        timing: how long each lock lives, and what follows from that.

    Attributes:
        peers: the beats that share the parts, this one included.
        timing: the same, as it was set last.
        leaderships: those of all parts, in their order. Each has ``keys``, the names in its part.
        lock_key: that of an unsharded schedule; None: there is no lock, and every beat leads.
        is_divided: there are several parts.
        is_shared: there are several locks.
        is_look_due: ``look`` has something to do, as the last ``check`` found.
    """

    def __init__(self, store: Store, lock_key: str | None, timing: Timing) -> None:
        self._store = Store(store.config.app)  # of its own: that of the scheduler may become one of a part
        self._store.on_progress = self.note_progress
        self.lock_key = lock_key
        self.timing = timing
        self._leaderships: dict[str, Leadership] = {}
        self.leaderships: tuple[Leadership, ...] = ()
        self.is_divided = self.is_shared = False
        self.is_look_due = True
        self._is_kept_alive = False
        self._untold: set[str] = set()  # parts that were led from the beginning, as there is no lock
        self._heartbeat = Heartbeat(store.config.app, timing)
        self.peers = Peers(store.config.app, timing)
        self._division = Division(self.peers.beat, timing)
        self._locks = Locks(self._store, timing.renewal_seconds / 2)
        self._looked_at = self._look_at = -math.inf
        self._answered_at: float | None = None
        self._away_until: dict[str, float] = {}  # by the parts' prefixes
        self._silent_until: dict[str, float] = {}  # by the nodes' names
        self._said = Memory[str, str]()
        self._retaken: list[Leadership] = []  # of which it isn't said yet

    def show_obstacle(self, find_obstacle: Callable[[], str]) -> None:
        """Let ``status`` show why this beat cannot send, as ``find_obstacle`` returns it; '': it can."""
        self._heartbeat.find_obstacle = find_obstacle

    def find_obstacle(self) -> str:
        """Return why this beat cannot send; '': it can."""
        return self._heartbeat.find_obstacle()

    # -- the parts

    def set_parts(self, stores: Iterable[Store]) -> None:
        """Lead these parts, or stand by for them. A part that was there before, by its prefix, keeps its
        leadership and its lock.

        The locks of parts that aren't there any more are released. Called before anything else, and between
        two batches whenever the layout has changed. It asks Redis only to release locks.

        Arguments:
            stores: one for each part, which the scheduler works with; its ``keys`` say which part it is. Of
                a schedule that isn't divided that may be the store of the whole schedule; once it is divided,
                that part needs one of its own.
        """
        wanted = {store.keys.prefix: store for store in stores}
        gone = [one for prefix, one in self._leaderships.items() if prefix not in wanted]
        was_divided = self.is_divided
        self._release(gone)
        self._untold |= wanted.keys() - self._leaderships.keys()
        self._leaderships = {
            prefix: self._leaderships.get(prefix) or self._new_leadership(store)
            for prefix, store in wanted.items()
        }
        self.leaderships = tuple(self._leaderships.values())
        self.is_divided = len(self.leaderships) > 1
        self.is_shared = self.is_divided and self.lock_key is not None
        for prefix, store in wanted.items():
            self._leaderships[prefix].move_to(store)
        self._division.set_parts(wanted)
        self._look_at = -math.inf
        if was_divided and not self.is_divided:
            self.peers.leave()
        self._heartbeat.peers = self.peers if self.is_divided else None

    def _new_leadership(self, store: Store) -> Leadership:
        lock_key = self._lock_key_of(store)
        return Leadership(store, lock_key, self.timing, self._heartbeat, self.peers.beat)

    def _lock_key_of(self, store: Store) -> str | None:
        base = self._store.config.base_keys
        if self.lock_key is None or store.keys.prefix == base.prefix:
            return self.lock_key
        return store.keys.prefixed(base.name(self.lock_key))

    def of(self, prefix: str) -> Leadership:
        """Return that of the part with this prefix."""
        return self._leaderships[prefix]

    @property
    def has_new_layout(self) -> bool:
        """Whether Redis has had another layout, at the last look, than is worked with."""
        return self.is_divided and self.peers.generation > self._store.config.layout.generation

    # -- what this beat leads

    def set_lock_key(self, lock_key: str | None) -> None:
        """Use other locks from now on, as the constructor takes their key."""
        self.lock_key = lock_key
        self.is_shared = self.is_divided and lock_key is not None
        for leadership in self.leaderships:
            leadership.set_lock_key(self._lock_key_of(leadership.store))

    def set_lock_seconds(self, seconds: float) -> None:
        """Set how long each lock lives, from its next renewal on."""
        self.timing = replace(self.timing, lock_seconds=seconds)
        self.peers.timing = self._division.timing = self.timing
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
        lost, retaken, is_standby = list[LockLost](), list[Leadership](), False
        for leadership in self.leaderships:
            if (error := leadership.check()) is not None:
                lost.append(error)
            elif leadership.is_retaken:
                leadership.is_retaken = False
                retaken.append(leadership)
            is_standby = is_standby or not leadership.is_leader
        if lost:
            self.lose(*lost)
        if self.lock_key is None:
            self.is_look_due = bool(self._untold)
        elif self.is_divided:
            is_time = time.monotonic() >= self._look_at
            self.is_look_due = is_time and (bool(lost) or is_standby or not self._heartbeat.is_running)
        else:
            self.is_look_due = is_standby
        self._retaken += retaken
        # together, so not while there may be more of them
        if self._retaken and not (self.is_divided and (retaken or self._heartbeat.is_renewing)):
            self._report_retaken()
        return retaken

    def _report_retaken(self) -> None:
        """Log which locks were gone."""
        retaken, self._retaken = self._retaken, []
        keys = [str(leadership.lock_key) for leadership in retaken]
        if not self.is_divided:
            words = f"The lock {keys[0]} was gone and is taken back."
        elif len(keys) == 1:
            words = f"The lock of {self._named(retaken)} was gone and is taken back."
        else:
            words = f"The locks of {self._named(retaken)} were gone and are taken back."
        logger.warning("beat: %s", words, extra=LEADER_RETAKEN.of(lock=" ".join(keys)))

    def _named(self, leaderships: Iterable[Leadership]) -> str:
        """Return a phrase for the log: the shards that these are about."""
        return self._store.config.layout.named([leadership.keys for leadership in leaderships])

    def look(self) -> list[Leadership]:
        """Look at the locks that this beat doesn't hold, if it is time to; return those of the parts that it
        leads from now on.

        That costs one round trip a node, and some more when locks are taken: all free ones together, and all
        silent ones.

        Raises:
            StoreUnavailable, StoreRefused, StoreCorrupt: no lock could be asked for. What this beat leads it
                still leads.
        """
        if self.is_shared:
            return self._look_at_all() if time.monotonic() >= self._look_at else []
        if self.lock_key is None:
            untold, self._untold = self._untold, set()
            return [one for prefix, one in self._leaderships.items() if prefix in untold]
        [leadership] = self.leaderships
        if leadership.is_leader or not leadership.stand():
            return []
        self._keep_alive([leadership])
        return [leadership]

    def _look_at_all(self) -> list[Leadership]:
        now = self._looked_at = time.monotonic()
        self._look_at = now + self.timing.look_seconds
        self._division.forget_refusals(self.peers.live, now)
        others = [leadership for leadership in self.leaderships if not leadership.is_leader]
        away = self._away_of(others)
        waiting = [leadership for leadership in others if leadership.keys.prefix not in away]
        if not others and self._heartbeat.is_running:
            return []  # it tells the others that this beat is there, and finds out who else is
        locks = [leadership.stand_by() for leadership in waiting]
        # who renews locks says along with that that it is there: else it could seem well when they end
        is_silent = self._heartbeat.is_running
        calls = [] if _BEATS in away else [self.peers.call(is_silent=is_silent)]
        try:
            found, replies = self._locks.look([lock.lock_key for lock in locks], *calls)
        except BaseException:
            for lock in locks:
                lock.note_no_look()
            raise
        self._answered_at, answered_at = now, time.monotonic()
        took_seconds = answered_at - now
        for reply in replies:
            if not self.peers.note(reply):
                self._note_away(_BEATS, took_seconds)
        self._follow_layout()
        self._look_for_data(waiting, found)
        takes: list[tuple[Leadership, Take]] = []
        silent: list[tuple[Leadership, int]] = []
        frozen = self._find_frozen(locks)
        for leadership, lock, rest_ms in zip(waiting, locks, found, strict=True):
            if isinstance(rest_ms, RedBeatError):
                lock.note_no_look()
                self._report(lock.key, rest_ms)
                if isinstance(rest_ms, StoreUnavailable):
                    self._note_away(leadership.keys.prefix, took_seconds)
            elif lock.note_look(rest_ms, answered_at) and lock not in frozen:
                silent.append((leadership, rest_ms))
            elif lock in frozen:
                continue
            elif lock.token or (rest_ms == NO_KEY and self._may_take_free(leadership, lock)):
                takes.append((leadership, lock.begin_take(rest_ms)))
        takes += self._takes_of_silent(silent)
        taken = self._take(takes)
        errors = [rest_ms for rest_ms in found if isinstance(rest_ms, RedBeatError)]
        if errors and len(errors) == len(found) == len(others) and not self.is_leader:
            raise errors[0]
        lefts = [lock.seconds_to_takeover() for lock in locks]
        soonest = min((left for left in lefts if left), default=self.timing.look_seconds)
        self._look_at = min(self._look_at, now + max(soonest, MIN_LOOK_SECONDS))
        return taken

    def _find_frozen(self, locks: Sequence[LeaderLock]) -> list[LeaderLock]:
        """Return which locks their holders couldn't renew lately, as their server took no writes."""
        doubtful = [lock for lock in locks if lock.is_doubtful]
        answers = self._locks.are_frozen([lock.lock_key for lock in doubtful])
        return [
            lock
            for lock, is_frozen in zip(doubtful, answers, strict=True)
            if not lock.note_trial(is_frozen=is_frozen)
        ]

    def _look_for_data(self, waiting: Sequence[Leadership], found: Sequence[int | RedBeatError]) -> None:
        """Find out where Redis has lost its data together with the lock."""
        asked = [
            (leadership, rest_ms)
            for leadership, rest_ms in zip(waiting, found, strict=True)
            if not isinstance(rest_ms, RedBeatError) and leadership.wants_tick(rest_ms)
        ]
        ticks = self._locks.tokens([LockKey(one.store, one.keys.tick) for one, _ in asked])
        for (leadership, rest_ms), tick in zip(asked, ticks, strict=True):
            leadership.note_tick(rest_ms, tick)

    def _away_of(self, others: Iterable[Leadership]) -> set[str]:
        """Return which of these parts aren't asked, nor who is there: their nodes don't answer the heartbeat
        either, or have just kept all others waiting."""
        now, node_of = time.monotonic(), self._store.node_of
        away = {part for part, until in self._away_until.items() if until > now}
        silent = {node_of(one.keys) for one in self._leaderships.values() if one.silent is not None}
        silent.update(node for node, until in self._silent_until.items() if until > now)
        if silent:
            keys = {_BEATS: self._store.config.base_keys, **{one.keys.prefix: one.keys for one in others}}
            away.update(part for part, names in keys.items() if node_of(names) in silent)
        return away

    def note_silent(self, node: str) -> None:
        """Note that the node with this name hasn't answered: its locks aren't looked at for a while."""
        self._silent_until[node] = time.monotonic() + AWAY_SECONDS

    def _note_away(self, part: str, took_seconds: float) -> None:
        self._away_until[part] = time.monotonic() + min(2 * took_seconds, AWAY_SECONDS)

    def _follow_layout(self) -> None:
        """Find out where entries are, if that has changed: who leads nothing isn't refused anything."""
        if self.has_new_layout:
            self._store.config.looked_at = -math.inf
        self._store.parts  # noqa: B018 - it looks if it is time to

    def _may_take_free(self, leadership: Leadership, lock: LeaderLock) -> bool:
        free_seconds = time.monotonic() - (lock.free_since or time.monotonic())
        return self._division.may_take_free(leadership.keys.prefix, self.peers.live, free_seconds)

    def _takes_of_silent(self, silent: Sequence[tuple[Leadership, int]]) -> list[tuple[Leadership, Take]]:
        """Return how to take over those of the silent locks that are this beat's to take over."""
        locks = [leadership.stand_by() for leadership, _ in silent]
        holders = [
            replaceable(token) if isinstance(token, str) else ""
            for token in self._locks.tokens([lock.lock_key for lock in locks])
        ]
        beats = frozenset(beat for beat in map(beat_of, holders) if beat is not None)
        return [
            (leadership, lock.begin_take(rest_ms, holder))
            for (leadership, rest_ms), lock, holder in zip(silent, locks, holders, strict=True)
            if holder
            and self._division.may_take_silent(
                leadership.keys.prefix, self.peers.live, beats, lock.seconds_late()
            )
        ]

    def _take(self, takes: Sequence[tuple[Leadership, Take]]) -> list[Leadership]:
        """Take these locks; return those that are this beat's by now."""
        held: list[tuple[Leadership, Take]] = []
        answers = self._locks.take([take for _, take in takes])
        for (leadership, take), is_ours in zip(takes, answers, strict=True):
            if isinstance(is_ours, RedBeatError):
                if is_full(is_ours.__cause__):
                    leadership.stand_by().note_trial(is_frozen=True)
                elif not isinstance(is_ours, StoreUnavailable):  # else it may be this beat's all the same
                    leadership.stand_by().forget()
                self._report(take.name, is_ours)
                continue
            leadership.stand_by().note_take(take, is_ours=is_ours)
            if is_ours:
                held.append((leadership, take))
        errors = [answer for answer in answers if isinstance(answer, RedBeatError)]
        if errors and len(errors) == len(answers) and not self.is_leader:
            raise errors[0]
        renewed, _ = self._locks.renew([Held(one.store, one.stand_by().fence) for one, _ in held])
        taken: list[tuple[Leadership, Take]] = []
        for (leadership, take), error in zip(held, renewed, strict=True):
            if error is None:
                taken.append((leadership, take))
            elif isinstance(error, LockLost):  # it was this beat's for a moment
                leadership.stand_by().forget()
            else:  # the next look asks for it once more
                self._report(take.name, error)
        self._lead(taken)
        return [leadership for leadership, _ in taken]

    def _lead(self, taken: Sequence[tuple[Leadership, Take]]) -> None:
        now, live, replaced = time.monotonic(), self.peers.live, dict[str, list[tuple[Leadership, str]]]()
        for leadership, take in taken:
            prefix = leadership.keys.prefix
            before = beat_of(take.silent) if take.silent else self._division.leader_of(prefix, live)
            if before is not None and self.peers.is_fresh(before):  # it says that it is there, and can't
                self._division.refuse(prefix, before, now)
            if take.silent:
                # each token is another one, whoever has made it
                replaced.setdefault(beat_of(take.silent) or take.silent, []).append((leadership, take.silent))
            leadership.lead()
            self._said.pop(take.name, None)
        self._keep_alive([leadership for leadership, _ in taken])
        for found in replaced.values():
            gone = [leadership for leadership, _ in found]
            logger.warning(
                "beat: Took %s over from %s, which has not renewed for %s s.",
                self._named(gone),
                holder_in_words(found[0][1]),
                self._store.config.takeover_after,
                extra=LEADER_TAKEN_OVER.of(lock=_keys_of(gone), holder=found[0][1]),
            )
        if taken:
            those = [leadership for leadership, _ in taken]
            logger.info(
                "beat: Acquired %s: %s; this beat leads %d now.",
                counted(len(those), "lock", "locks"),
                self._named(those),
                len(self.leading),
                extra=LEADER_ACQUIRED.of(lock=_keys_of(those)),
            )

    def _report(self, lock_key: str, error: RedBeatError) -> None:
        """Log that a lock can't be asked for, once until that changes; the others go on."""
        is_expected = isinstance(error, (StoreUnavailable, LayoutChanged))
        log = logger.debug if is_expected else logger.error
        if self._said.is_news(lock_key, str(error)):
            log("beat: The lock %s can't be asked for, the rest goes on: %s", lock_key, error)

    @property
    def leaving(self) -> tuple[Leadership, ...]:
        """Those of the parts that ``hand_over`` would release now; costs nothing."""
        live, now = self.peers.live, time.monotonic()
        if not self.is_shared or len(live) < 2:
            return ()
        return tuple(one for one in self.leading if self._is_leaving(one, live, now))

    def _is_leaving(self, leadership: Leadership, live: frozenset[str], now: float) -> bool:
        heir = self._division.heir_of(leadership.keys.prefix, live, now)
        return heir is not None and self.peers.is_fresh(heir) and isinstance(leadership.lock, LeaderLock)

    def hand_over(self) -> None:
        """Release the locks of the parts that another beat is to lead, and wake that one.

        It costs nothing if there are none. Called where a batch has ended: nothing is on its way there.
        """
        leaving = self.leaving
        if not leaving:
            return
        self._release(leaving, is_ending=False)
        logger.info(
            "beat: Hands %s over to other beats; this beat leads %d now.",
            self._named(leaving),
            len(self.leading),
            extra=LEADER_HANDED_OVER.of(lock=_keys_of(leaving)),
        )

    def lose(self, *lost: LockLost) -> None:
        """Note that other beats lead parts, by what scripts have raised there; this one stands by for them.

        Raises:
            LockLost: the schedule isn't divided; ``redbeat_lock_lost`` says what becomes of that.
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
            extra=LEADER_LOST.of(lock=_keys_of(those), holder=first.holder),
        )
        self._heartbeat.remove(*(ended for one in those if (ended := one.end_renewal()) is not None))
        for leadership in those:
            leadership.forget()

    # -- waiting

    @property
    def _awaited(self) -> set[str]:
        """The parts that this beat is to lead, and doesn't."""
        own = self._division.own(self.peers.live) if self.is_shared else set()
        return {prefix for prefix in own if not self._leaderships[prefix].is_leader}

    def note_wake(self) -> None:
        """Note that a wake-up channel has ended the wait: a lock may be free, or a beat may have left."""
        pause_seconds = MIN_LOOK_SECONDS if self._awaited else WOKEN_LOOK_SECONDS
        self._look_at = min(self._look_at, self._looked_at + pause_seconds)

    @property
    def wake_channels(self) -> tuple[str, ...]:
        """The channels to listen on while waiting: of the parts that this beat leads, or is to lead.

        They change with each look.
        """
        awaited = self._awaited
        return tuple(
            one.keys.wake
            for prefix, one in self._leaderships.items()
            if not self.is_shared or one.is_leader or prefix in awaited
        )

    def seconds_to_look(self) -> float:
        """Return the seconds until the next look at the locks that this beat doesn't hold.

        It is fewer when one is about to be taken over. Also a beat that leads some parts waits no longer than
        that.
        """
        if self.is_shared:
            return max(self._look_at - time.monotonic(), 0.0)
        return min(leadership.seconds_to_look() for leadership in self.leaderships)

    def note_progress(self) -> None:
        """Note that the scheduler has done something, so that it doesn't count as stuck."""
        self._heartbeat.progressed_at = time.monotonic()

    def pulse(self) -> Pulse:
        """Return this beat's signs of life; for any thread. It is a leader's if this beat leads any part."""
        if not self.is_divided:
            return self.leaderships[0].pulse()
        now, heartbeat = time.monotonic(), self._heartbeat
        stores = (self._store, *(leadership.store for leadership in self.leaderships))
        asks_since = min((since for store in stores if (since := store.asks_since) is not None), default=None)
        progressed_at = heartbeat.progressed_at if asks_since is None else now
        if self.lock_key is None:
            return Pulse(Role.SHARING, progressed_at, now if asks_since is None else asks_since)
        pulses = [leadership.pulse() for leadership in self.leaderships]
        leading = [pulse.answered_at for pulse in pulses if pulse.role is Role.LEADER]
        if not leading:
            return Pulse(Role.STANDBY, progressed_at, self._answered_at)
        if heartbeat.is_running:  # it is an excuse only where it waits for Redis, too
            progressed_at = max(heartbeat.progressed_at, heartbeat.excused_at)
        return Pulse(Role.LEADER, progressed_at, min(at for at in leading if at is not None))

    # -- beginning and end

    def keep_alive(self) -> None:
        """Let the heartbeat renew all locks, also those that are taken later: for a scheduler that is ticked
        by a running beat."""
        self._is_kept_alive = True
        self._keep_alive(self.leading)

    def _keep_alive(self, leaderships: Iterable[Leadership]) -> None:
        if not self._is_kept_alive:
            return
        begun = [renewal for one in leaderships if (renewal := one.begin_renewal()) is not None]
        self._heartbeat.timing = self.timing
        self._heartbeat.add(*begun)

    def resign(self) -> None:
        """Release all locks, and tell the other beats that this one ends; Redis isn't waited for long."""
        self._release(self.leaderships)
        if self.is_shared:
            self.peers.leave(self._channels_of_others())
        self._locks.close()

    def _channels_of_others(self) -> set[str]:
        """Return on which channel each of the other beats listens: of a part that it leads."""
        live, channels = self.peers.live, dict[str, str]()
        for prefix, leadership in self._leaderships.items():
            channels.setdefault(self._division.leader_of(prefix, live), leadership.keys.wake)
        channels.pop(self.peers.beat, None)
        return set(channels.values())

    def _release(self, leaderships: Sequence[Leadership], *, is_ending: bool = True) -> None:
        """Release these locks, or those that were asked for without an answer."""
        if not self.is_shared:
            for leadership in leaderships:
                leadership.resign()
            return
        self._heartbeat.remove(*(ended for one in leaderships if (ended := one.end_renewal()) is not None))
        held: list[Held] = []
        those: list[Leadership] = []
        for leadership in leaderships:
            lock, leadership.lock, leadership.candidacy = leadership.lock or leadership.candidacy, None, None
            if isinstance(lock, LeaderLock) and lock.token:
                held.append(Held(leadership.store, lock.fence))
                those.append(leadership)
        if not held:
            return
        if is_ending:
            logger.info(
                "beat: Releasing %s: %s",
                counted(len(those), "lock", "locks"),
                self._named(those),
                extra=LEADER_RELEASED.of(lock=_keys_of(those)),
            )
        try:
            answers = self._locks.release(held, is_marked=True)
            errors: list[Exception] = [answer for answer in answers if isinstance(answer, Exception)]
        except (RedBeatError, ClientError) as exc:
            errors = [exc]
        if errors:
            logger.warning(
                "beat: %d of %s couldn't be released (%s), they end by themselves: %s",
                len(errors),
                counted(len(those), "lock", "locks"),
                self._named(those),
                errors[0],
                extra=LEADER_NOT_RELEASED.of(lock=_keys_of(those), reason=str(errors[0])),
            )


def _keys_of(leaderships: Iterable[Leadership]) -> str:
    """Return the keys of these locks, with spaces between."""
    return " ".join(str(leadership.lock_key) for leadership in leaderships)
