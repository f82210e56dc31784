"""The scripts about what is counted, one typed function each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from redbeat.keys import Keys
from redbeat.store.records import text_of
from redbeat.store.scripts import Script
from redbeat.store.scripts.script import Request

_TAKE_FIGURES = Script("check_layout", "take_figures")
_COUNT_STATES = Script("count_states")

#: a larger definition isn't looked into by the script that counts entries by their states, bytes
SMALL_BYTES = 16_384


class Taken(NamedTuple):
    """What was counted since it was last taken.

    Attributes:
        now: the server's clock, UNIX seconds.
        figures: labels' id, colon and word, to how often that was counted.
        unknown: ids of labels that aren't stored; of new ones what was counted is taken the next time.
    """

    now: float
    figures: dict[str, int]
    unknown: tuple[str, ...] = ()


class Counted(NamedTuple):
    """Some entries by their states.

    Attributes:
        cursor: with which to go on; '0': these were the last ones.
        now: the server's clock, UNIX seconds.
        scheduled, due: how many are in these states.
        others: members of the schedule in other states, perhaps, with their scores.
    """

    cursor: str
    now: float
    scheduled: int
    due: int
    others: dict[str, float]


def take_call(
    keys: Keys, lock_key: str, token: str, teller_ms: int, labels: Mapping[str, str]
) -> tuple[Script, Request]:
    """Return what takes what was counted.

    Arguments:
        teller_ms: where there is no lock, for how long this beat shows the metrics; 0: the leader does.
        labels: new ones, as JSON by their ids.
    """
    return _TAKE_FIGURES, Request(
        [lock_key, keys.figures, keys.totals, keys.minutes, keys.labels],
        [token, teller_ms, *chain.from_iterable(labels.items())],
        keys,
    )


def taken_of(reply: Sequence[Any]) -> Taken | None:
    """Return what its reply says; None: another beat shows the metrics."""
    status, now, taken, unknown = reply
    if text_of(status) != "ok":
        return None
    return Taken(float(now), figures_of(_by_turns(taken)), tuple(map(text_of, unknown)))


def count_states(client: Any, schedule_key: str, cursor: str, limit: int) -> Counted:
    """Count about ``limit`` entries by their states."""
    cursor, now, scheduled, due, others = _COUNT_STATES(client, [schedule_key], [cursor, limit, SMALL_BYTES])
    found = {member: float(score) for member, score in _by_turns(others).items()}
    return Counted(text_of(cursor), float(now), scheduled, due, found)


def figures_of(found: Mapping[Any, Any]) -> dict[str, int]:
    """Return what of a hash of figures can be read; others may have written anything."""
    figures = {}
    for field, value in found.items():
        text = text_of(value)
        if text.isdecimal() and len(text) < 20:
            figures[text_of(field)] = int(text)
    return figures


def _by_turns(values: list[Any]) -> dict[str, Any]:
    texts = iter(map(text_of, values))
    return dict(zip(texts, texts, strict=True))
