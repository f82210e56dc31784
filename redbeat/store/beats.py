"""The list of beats that lead shards or stand by for them; an unsharded schedule is one shard.

Owns ``redbeat::beats``. Invariant: nothing depends on it for safety; each shard's lock decides. A beat that
crashes expires from the list, and the key with the last of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from redbeat.connection.retry import without_retry
from redbeat.keys import NO_PART
from redbeat.store.lock_tokens import beat_of
from redbeat.store.nodes import Command
from redbeat.store.records import text_of
from redbeat.store.scripts.script import Call, Script
from redbeat.store.store import Store, raised

_NOTE_BEAT = Script("note_beat")

#: for how long a beat is shown after it has said that it is there
LISTED_SECONDS = 15


def note_beat(
    store: Store, token: str, life_seconds: float, note: Callable[[frozenset[str], int], None]
) -> Call[None]:
    """Return the call that lists a beat, and removes beats that are older.

    Arguments:
        token: the beat's; '': none is listed.
        note: called with the ids of the listed beats, and how often the layout was changed.
    """

    def read(reply: Sequence[Any]) -> None:
        generation, *found = map(text_of, reply)
        beats = frozenset(beat for token in found if (beat := beat_of(token)) is not None)
        note(beats, int(generation) if generation.isdecimal() else 0)

    keys, life_ms = store.config.keys, int(life_seconds * 1000)
    call = _NOTE_BEAT.call(NO_PART, beats=keys.beats, layout=keys.layout, beat=token, life_ms=life_ms)
    return call.reading(read)


def read_beats(store: Store) -> Command:
    """Return the command that reads the tokens of all beats, and when each said last that it is there."""
    return Command("zrange", store.config.keys.beats, 0, -1, withscores=True)


def leave_beats(store: Store, token: str, wake: Iterable[str]) -> None:
    """Remove a beat; this isn't tried again if Redis is away.

    Arguments:
        wake: the channels on which the others are told that after it.
    """
    client = without_retry(store.client)
    raised(*store.try_all([Command("zrem", store.config.keys.beats, token)], client))
    store.try_all([Command("publish", channel, "left") for channel in wake], client)
