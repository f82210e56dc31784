"""The script that notes which beats share a schedule: the only place that knows its KEYS, ARGV and reply."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from redbeat.store.records import text_of
from redbeat.store.scripts.script import Call, Script

_NOTE_BEAT = Script("note_beat")


class Company(NamedTuple):
    """What a beat is told when it has said that it is there.

    Attributes:
        ages: who is there, by their ids, and how many seconds ago each has said so.
        generation: how often the layout was changed, as Redis has it.
    """

    ages: dict[str, float]
    generation: int


def beat_call(beats_key: str, layout_key: str, beat: str, life_ms: int) -> Call[Company]:
    """Return the call that notes that ``beat`` is there, and forgets who hasn't been for ``life_ms``.

    Arguments:
        beat: '': none is noted.
    """
    return _NOTE_BEAT.call(beats=beats_key, layout=layout_key, beat=beat, life_ms=life_ms).reading(company_of)


def company_of(reply: Sequence[Any]) -> Company:
    """Return what the reply says."""
    generation, *found = reply
    ages = {text_of(beat): int(age_ms) / 1000 for beat, age_ms in zip(found[::2], found[1::2], strict=True)}
    text = text_of(generation)
    return Company(ages, int(text) if text.isdecimal() else 0)
