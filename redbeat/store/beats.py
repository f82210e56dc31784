"""Which beats share the parts of a schedule: each writes that it is there, so that it is left its share.

Owns ``redbeat::beats``. Invariant: nothing depends on it for safety; each part's lock says who leads it. Who
ends without a word is forgotten as soon as its locks may be taken over, and the key with the last of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from redbeat.connection.retry import without_retry
from redbeat.keys import NO_PART
from redbeat.store.nodes import Command, call_on_nodes
from redbeat.store.records import text_of
from redbeat.store.rights import BEATS
from redbeat.store.scripts.script import Call, Script
from redbeat.store.store import Store

_NOTE_BEAT = Script("note_beat")


class Company(NamedTuple):
    """What a beat is told when it has said that it is there.

    Attributes:
        ages: who is there, by their ids, and how many seconds ago each has said so.
        generation: how often the layout was changed, as Redis has it.
    """

    ages: dict[str, float]
    generation: int


class Beats:
    """The beats of the schedule of ``store``, whatever part that is about.

    Its methods raise StoreUnavailable, StoreRefused and StoreCorrupt.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def _key(self) -> str:
        return self._store.config.keys.beats

    def note_call(self, beat: str, life_seconds: float) -> Call[Company]:
        """Return the call that notes that ``beat`` is there, and forgets who wasn't for ``life_seconds``.

        With '' it notes nobody.
        It is for ``store.nodes``, and its reply for :meth:`noted`.
        """
        layout, life_ms = self._store.config.keys.layout, int(life_seconds * 1000)
        call = _NOTE_BEAT.call(NO_PART, beats=self._key, layout=layout, beat=beat, life_ms=life_ms)
        return call.reading(_company_of)

    def noted(self, reply: Any) -> Company | None:
        """Return who is there; None: this user may not know.

        Arguments:
            reply: to :meth:`note_call`, or the error of the redis client.
        """

        def read() -> Company:
            with self._store.translating(self._key):
                if isinstance(reply, Exception):
                    raise reply
                return _company_of(reply)

        return self._store.rights.ask(BEATS, read, lambda: None)

    def read(self) -> dict[str, float]:
        """Return who was there lately, by their ids, and when each said so last, UNIX seconds."""
        found = self._store.ask(lambda client: client.zrange(self._key, 0, -1, withscores=True), self._key)
        return {text_of(beat): float(at) for beat, at in found}

    def remove_call(self, beat: str) -> Command:
        """Return the call that notes that ``beat`` isn't there any more, for ``store.nodes``."""
        return Command("ZREM", [self._key], [beat])

    def read_allowed(self) -> dict[str, float] | None:
        """Return what ``read`` does; None where this user may not read it."""

        return self._store.rights.ask(BEATS, self.read, lambda: None)

    def remove(self, beat: str, wake: Iterable[str] = ()) -> None:
        """Note that ``beat`` isn't there any more. It isn't tried again if Redis is away.

        Arguments:
            wake: the channels on which the others are told that after it.
        """
        call = self.remove_call(beat)
        tells = [Command("PUBLISH", [channel], ["left"]) for channel in wake]

        def remove(client: Any) -> None:
            call.send(client)
            call_on_nodes(client, tells)

        self._store.ask(lambda client: remove(without_retry(client)), self._key)


def _company_of(reply: Sequence[Any]) -> Company:
    """Return what the reply says."""
    generation, *found = reply
    ages = {text_of(beat): int(age_ms) / 1000 for beat, age_ms in zip(found[::2], found[1::2], strict=True)}
    text = text_of(generation)
    return Company(ages, int(text) if text.isdecimal() else 0)
