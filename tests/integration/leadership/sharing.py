"""Beats that share a schedule, as far as that is about its locks: each has an Election that a test steps."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from redbeat.config.timing import Timing
from redbeat.keys import Keys
from redbeat.store.store import Store
from tests.support.shards import election_in

__all__ = ["QUICK", "SharingBeat", "leaders", "step"]

#: a look each half second, and a takeover after 2 seconds
QUICK = Timing(2.0, 2.0)


class SharingBeat:
    """One beat.

    Attributes:
        looks: how often it has looked at the locks.
        errors: what its steps have raised.
    """

    def __init__(self, app: Any, timing: Timing = QUICK, parts: Iterable[Keys] | None = None) -> None:
        self.app = app
        self.store = Store(app)
        self.election = election_in(app, timing, parts)
        self.looks = 0

    def set_parts(self, parts: Iterable[Keys]) -> None:
        """Let these be the parts."""
        self.election.set_parts([self.store.of_part(part) for part in parts])

    @property
    def led(self) -> set[str]:
        """The prefixes of the parts that it leads."""
        return {leadership.keys.prefix for leadership in self.election.leading}

    def step(self, *, at_once: bool = True) -> None:
        """Take the steps of one tick that are about locks.

        Arguments:
            at_once: look at the locks also if it isn't time to.
        """
        self.election.check()
        self.looks += 1
        if at_once or self.election.is_look_due:
            self.election.look()
        self.election.hand_over(lambda _leadership: None)
        self.election.note_progress()

    def crash(self) -> None:
        """End without a word: nothing is renewed any more."""
        self.election.heartbeat.stop()


def step(beats: Collection[SharingBeat], *, at_once: bool = True) -> None:
    """Let each take its steps once."""
    for beat in beats:
        beat.step(at_once=at_once)


def leaders(beats: Collection[SharingBeat]) -> dict[str, SharingBeat]:
    """Return who leads each part, as Redis says, by its prefix; others are left out."""
    [one, *_] = beats
    found: dict[str, SharingBeat] = {}
    for leadership in one.election.leaderships:
        token = one.store.client.get(leadership.lock_key)
        for beat in beats:
            [mine] = [own for own in beat.election.leaderships if own.keys.prefix == leadership.keys.prefix]
            if token and mine.is_leader and mine.fence.token == token:
                found[leadership.keys.prefix] = beat
    return found
