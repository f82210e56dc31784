"""One beat's claims: the next one is asked for while the batch before it is still planned and sent.

Entries that are likely to fail may be left behind: they stay due, and the next claims begin after them. They
have turns of their own, a batch at a time, from the first of them to the last and then again. So entries that
have come between them are found, too. Invariant: a claim that was asked for ahead is one that could be had
now; what it has missed, an ordinary one finds.
"""

from __future__ import annotations

import time

from redbeat.beat.batch import Batch
from redbeat.beat.pace import MAX_ENLARGED, OTHERS, Pace
from redbeat.beat.suspects import Suspects
from redbeat.store.claims import ClaimAhead
from redbeat.store.records import Claim, Fence, Place, Sizes, place_of
from redbeat.store.rounds import ClaimAsked
from redbeat.store.store import Store

#: an answer that is read later than this is asked for again, seconds
FRESH_SECONDS = 1.0

#: how often those that were left behind have a turn at most, seconds
TURN_SECONDS = 0.25


def claim_in_turn(claims: Claims, pace: Pace, fence: Fence, lease_ms: int) -> Claim:
    """Return a claim of those whose turn it is: the costly ones when nothing else is due.

    Arguments:
        lease_ms: how long they are hidden from other beats; 0: they aren't.
    """
    claim = claims.claim_behind(fence, lease_ms)
    if claim is not None:
        return claim
    claim = claims.claim(fence, pace.begin_batch(), lease_ms)
    if not claim.rows and pace.has_costly and not pace.seconds_to_costly():
        claim = claims.claim(fence, pace.begin_costly_batch(), lease_ms)
    return claim


class Claims:
    """Claims what is due.

    Attributes:
        claimed_at: when the last claim was made, at the latest; monotonic.
        may_ask_ahead: all messages of the last batch were compiled, so that it pays.
    """

    def __init__(self, store: Store, pace: Pace, suspects: Suspects) -> None:
        self._store = store
        self._pace = pace
        self._suspects = suspects
        self._ahead: ClaimAhead | None = None
        self._behind: Place | None = None  # the last of the entries that are left behind
        self._sizes = OTHERS  # of the last claim
        self._turn: Place | None = None  # where their next turn begins; None: at the first of all
        self._is_turn = False  # the last claim was one of theirs
        self._has_left = False  # of the present round of turns some were left behind again
        self._next_turn_at = 0.0
        self.claimed_at = 0.0
        self.may_ask_ahead = False

    def claim(self, fence: Fence, sizes: Sizes, lease_ms: int) -> Claim:
        """Claim entries of these ``sizes`` that are due, and ask for those after them if it pays.

        Arguments:
            lease_ms: how long they are hidden from other beats; 0: they aren't.
        """
        claim = self._read_ahead(fence, sizes)
        if claim is not None:
            self._note(claim, fence, sizes, lease_ms)
            return claim
        asked = self.asked(fence, sizes, lease_ms)
        claim = asked.claim()
        self.note(claim, asked)
        if asked.after is not None and self._behind is None:
            return self.claim(fence, sizes, lease_ms)
        return claim

    def asked(self, fence: Fence, sizes: Sizes, lease_ms: int, max_entries: int = MAX_ENLARGED) -> ClaimAsked:
        """Return what an ordinary claim of entries of these ``sizes`` asks for.

        Arguments:
            max_entries: how many entries at most.
        """
        size = min(self._pace.enlarge(self._store.config.batch_size), max_entries)
        after = self._behind if sizes == OTHERS else None
        return ClaimAsked(self._store, fence, size, lease_ms, sizes, after)

    def note(self, claim: Claim, asked: ClaimAsked) -> None:
        """Note an ordinary claim, which has just been made, and ask for those after it if it pays."""
        self._is_turn = False
        self._sizes = asked.sizes
        if asked.after is not None and claim.has_more and not claim.rows:
            self._behind = None  # that entry has another time by now
        self.claimed_at = time.monotonic()
        self._note(claim, asked.fence, asked.sizes, asked.lease_ms)

    @property
    def is_alone(self) -> bool:
        """Whether the next claim isn't asked for together with others: it is on its way, or is a turn of
        those that were left behind.
        """
        return self._ahead is not None or self.seconds_to_turn() == 0

    def _note(self, claim: Claim, fence: Fence, sizes: Sizes, lease_ms: int) -> None:
        if claim.is_held:
            self._pace.note_held()
        if claim.has_more and sizes == OTHERS and not lease_ms and self._behind is None:
            self._ask_ahead(fence, claim)

    # -- those that are left behind

    def claim_behind(self, fence: Fence, lease_ms: int) -> Claim | None:
        """Claim some of those that were left behind, if it is their turn; None: it isn't."""
        if self.seconds_to_turn() != 0:
            return None
        size, sizes = self._store.config.batch_size, self._pace.begin_others()
        claim = ClaimAsked(self._store, fence, size, lease_ms, sizes, self._turn).claim()
        if self._turn is not None and claim.has_more and not claim.rows:  # that entry has another time by now
            self._turn, self._has_left = None, True
            claim = ClaimAsked(self._store, fence, size, lease_ms, sizes).claim()
        self.claimed_at, self._is_turn, self._sizes = time.monotonic(), True, OTHERS
        self._next_turn_at = self.claimed_at + TURN_SECONDS
        return claim

    def seconds_to_turn(self) -> float | None:
        """Return the seconds until those that were left behind have a turn; None: there are none."""
        if self._behind is None:
            return None
        return max(self._next_turn_at - time.monotonic(), self._suspects.seconds_left(), 0.0)

    def note_batch(self, batch: Batch) -> None:
        """Note what was left behind of the last claim, whose batch has been sent."""
        if self._sizes != OTHERS:
            return
        if self._is_turn:
            self._note_turn(batch)
        elif batch.behind:
            self._behind = _last_left(batch, self._behind) or self._behind

    def _note_turn(self, batch: Batch) -> None:
        behind, kept = self._behind, {row.key for row in batch.behind} | batch.left
        if behind is None:
            return
        rows = batch.claim.rows
        last = next((place for place, row in enumerate(rows) if row.key == behind.key), None)
        if last is not None and behind.key not in kept:  # claims go on after the one before it
            before = [row for row in rows[:last] if row.key in kept]
            self._behind = place_of(before, self._turn) if before else self._turn
        else:
            gone = sum(row.nominal == behind.score and row.key not in kept for row in rows)
            self._behind = behind._replace(place=max(behind.place - gone, 1))
        self._has_left = self._has_left or bool(kept)
        self._turn = _last_left(batch, self._turn) or self._turn
        if batch.claim.has_more:
            return
        if not self._has_left:  # nobody is left behind any more
            self._behind = None
        self._turn, self._has_left = None, False

    # -- ahead

    def _ask_ahead(self, fence: Fence, claim: Claim) -> None:
        size = self._store.config.batch_size
        if self.may_ask_ahead and not self._pace.has_costly and self._pace.enlarge(size) == size:
            self._ahead = self._store.claim_ahead(fence, size, OTHERS, pending=claim.rows)

    def _read_ahead(self, fence: Fence, sizes: Sizes) -> Claim | None:
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return None
        is_old = time.monotonic() > ahead.asked_at + FRESH_SECONDS  # its clock would be wrong
        if is_old or ahead.fence != fence or ahead.sizes != sizes:
            ahead.close()
            return None
        claim = ahead.read()
        if claim is not None:
            self.claimed_at, self._is_turn, self._sizes = ahead.asked_at, False, sizes
        return claim

    def close(self) -> None:
        """Drop a claim that was asked for."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.close()


def _last_left(batch: Batch, before: Place | None) -> Place | None:
    """Return the place of the last entry of ``batch`` that was left behind; None: there is none.

    What is still due for another reason isn't passed over: it is claimed again.
    """
    rows, left = batch.claim.rows, {row.key for row in batch.behind}
    cut = next((place for place, row in enumerate(rows) if row.key in batch.left), len(rows))
    passed = [row for row in rows[:cut] if row.key in left]
    return place_of(passed, before) if passed else None
