"""The lists of beats: those that share the shards of a schedule, and the standbys of an unsharded one.

Owns ``redbeat::beats`` and ``redbeat::standbys``. Invariant: nothing depends on them for safety; each shard's
lock decides. A beat that crashes expires from its list, and the key with the last of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from redbeat.connection.retry import without_retry
from redbeat.keys import NO_PART
from redbeat.store.nodes import Command, call_on_nodes
from redbeat.store.records import text_of
from redbeat.store.scripts.script import Call, Script
from redbeat.store.store import Store

_NOTE_BEAT = Script("note_beat")


class Company(NamedTuple):
    """The reply to a beat that has announced itself.

    Attributes:
        ages: the listed beats' ids, and how many seconds ago each has announced itself.
        generation: how often the layout was changed, as Redis has it.
    """

    ages: dict[str, float]
    generation: int


class Beats:
    """One list of beats.

    Its methods raise StoreUnavailable, StoreRefused and StoreCorrupt.

    Arguments:
        are_standbys: the list of the standbys of an unsharded schedule; else that of all beats.
    """

    def __init__(self, store: Store, *, are_standbys: bool = False) -> None:
        self.store = store
        self._are_standbys = are_standbys

    @property
    def _key(self) -> str:
        return self.store.keys.standbys if self._are_standbys else self.store.config.keys.beats

    def note_call(self, beat: str, life_seconds: float) -> Call[Company]:
        """Return the call that lists ``beat``, '' for none, and removes beats that are older.

        It is for ``store.nodes``, and its reply for :meth:`noted`.
        """
        life_ms = int(life_seconds * 1000)
        layout = None if self._are_standbys else self.store.config.keys.layout
        call = _NOTE_BEAT.call(NO_PART, beats=self._key, layout=layout, beat=beat, life_ms=life_ms)
        return call.reading(_company_of)

    def noted(self, reply: Any) -> Company:
        """Return who is listed.

        Arguments:
            reply: to :meth:`note_call`, or the error of the redis client.
        """
        with self.store.translating(self._key):
            if isinstance(reply, Exception):
                raise reply
            return _company_of(reply)

    def read(self) -> dict[str, float]:
        """Return who was there lately, by their ids, and when each said so last, UNIX seconds."""
        found = self.store.ask(lambda client: client.zrange(self._key, 0, -1, withscores=True), self._key)
        return {text_of(beat): float(at) for beat, at in found}

    def remove_call(self, beat: str) -> Command:
        """Return the call that removes ``beat``, for ``store.nodes``."""
        return Command("ZREM", [self._key], [beat])

    def remove(self, beat: str, wake: Iterable[str] = ()) -> None:
        """Remove ``beat``; this isn't tried again if Redis is away.

        Arguments:
            wake: the channels on which the others are told that after it.
        """
        call = self.remove_call(beat)
        tells = [Command("PUBLISH", [channel], ["left"]) for channel in wake]

        def remove(client: Any) -> None:
            call.send(client)
            call_on_nodes(client, tells)

        self.store.ask(lambda client: remove(without_retry(client)), self._key)


def _company_of(reply: Sequence[Any]) -> Company:
    """Return what the reply says."""
    generation, *found = reply
    ages = {text_of(beat): int(age_ms) / 1000 for beat, age_ms in zip(found[::2], found[1::2], strict=True)}
    text = text_of(generation)
    return Company(ages, int(text) if text.isdecimal() else 0)
