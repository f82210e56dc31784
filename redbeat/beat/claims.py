"""One beat's claims: the next one is asked for while the batch before it is still planned and sent.

Invariant: a claim that was asked for ahead is one that could be had now; what it has missed, an ordinary one
finds.
"""

from __future__ import annotations

import time

from redbeat.beat.pace import MAX_ENLARGED, OTHERS, Pace
from redbeat.store.claims import ClaimAhead
from redbeat.store.records import Claim, Fence, Sizes
from redbeat.store.rounds import ClaimAsked
from redbeat.store.store import Store

#: an answer that is read later than this is asked for again, seconds
FRESH_SECONDS = 1.0


def claim_in_turn(claims: Claims, pace: Pace, fence: Fence, lease_ms: int) -> Claim:
    """Return a claim of those whose turn it is: the costly ones when nothing else is due.

    Arguments:
        lease_ms: how long they are hidden from other beats; 0: they aren't.
    """
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

    def __init__(self, store: Store, pace: Pace) -> None:
        self._store = store
        self._pace = pace
        self._ahead: ClaimAhead | None = None
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
        claim = self.asked(fence, sizes, lease_ms).claim()
        self.note(claim, fence, sizes, lease_ms)
        return claim

    def asked(self, fence: Fence, sizes: Sizes, lease_ms: int, max_entries: int = MAX_ENLARGED) -> ClaimAsked:
        """Return what an ordinary claim of entries of these ``sizes`` asks for.

        Arguments:
            max_entries: how many entries at most.
        """
        size = min(self._pace.enlarge(self._store.config.batch_size), max_entries)
        return ClaimAsked(self._store, fence, size, lease_ms, sizes)

    def note(self, claim: Claim, fence: Fence, sizes: Sizes, lease_ms: int) -> None:
        """Note an ordinary claim, which has just been made, and ask for those after it if it pays."""
        self.claimed_at = time.monotonic()
        self._note(claim, fence, sizes, lease_ms)

    @property
    def has_asked_ahead(self) -> bool:
        """Whether the next claim is on its way already."""
        return self._ahead is not None

    def _note(self, claim: Claim, fence: Fence, sizes: Sizes, lease_ms: int) -> None:
        if claim.is_held:
            self._pace.note_held()
        if claim.has_more and sizes == OTHERS and not lease_ms:
            self._ask_ahead(fence, claim)

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
            self.claimed_at = ahead.asked_at
        return claim

    def close(self) -> None:
        """Drop a claim that was asked for."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.close()
