"""What is counted for metrics, as it is in Redis: by the scripts that record runs, and taken by one beat.

Owns the words that are counted. A figure is a number under an id of labels, a colon, and a word: one of
``WORDS`` for a run, or the bucket of a histogram, as ``late/3``. Invariant: what is taken is added to the
totals in the same step, so that nothing is counted twice or lost, whoever dies.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from operator import attrgetter, itemgetter, methodcaller
from typing import Any, NamedTuple

from redbeat.history import ENDED_OUTCOMES
from redbeat.keys import Keys
from redbeat.log.text import as_stored, is_utf8
from redbeat.store.nodes import Command
from redbeat.store.parts import in_chunks
from redbeat.store.records import dict_of, text_of
from redbeat.store.scripts.script import Script
from redbeat.store.store import Store

_TAKE_FIGURES, _COUNT_STATES = Script("take_figures"), Script("count_states")

#: a larger definition isn't looked into by the script that counts entries by their states, bytes
SMALL_BYTES = 16_384

#: why a run is skipped
REASONS = {
    "late": "it was later than ``misfire_grace_time``, or than its message would have lived",
    "misfire": "``misfire`` or ``misfire_limit`` leaves it out",
    "paused": "the entry was paused",
    "disabled": "the entry was disabled",
    "exclude": "its day is excluded by the entry's calendar",
    "start_time": "it was before the entry's ``start_time``",
    "end_time": "it was after the entry's ``end_time``",
    "over": "the entry had run as often as it may",
    "overlap": "another run of its entry was in progress",
    "error": "the application's own code raised an error when it was to be sent",
}

#: what is counted of runs, to the outcome and the reason that it means
WORDS: Mapping[str, tuple[str, str]] = {
    "sent": ("sent", ""),
    "merged": ("merged", ""),
    "unsent": ("unsent", ""),
    **{f"skipped/{reason}": ("skipped", reason) for reason in REASONS},
    **{outcome: (outcome, "") for outcome in ENDED_OUTCOMES},
}

#: histograms to the upper bounds of their buckets but the last, seconds; as in ``count_figures.lua``
BOUNDS: Mapping[str, Sequence[float]] = {
    "late": (0.01, 0.1, 0.5, 1, 5, 30, 300, 3600),
    "ran": (0.1, 1, 10, 60, 300, 1800, 7200),
    "wait": (0.1, 1, 10, 60, 300, 1800, 7200),
}

#: how often another beat has become leader
LED = "led"

#: what reading JSON raises that another program has written
_UNREADABLE = ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError

#: for how long a beat without a lock shows the metrics if it isn't heard of any more, milliseconds
TELLER_MS = 10_000


class Labels(NamedTuple):
    """What figures are counted under.

    Attributes:
        task, queue, entry: the names; 'other': of all that have no labels of their own.
        is_asked: the entry's policy asks for it.
    """

    task: str
    queue: str
    entry: str
    is_asked: bool = False

    @property
    def id(self) -> str:
        """Their id, the same on every beat."""
        return hashlib.sha256("\0".join(self[:3]).encode()).hexdigest()[:12]


#: the name that stands for all others
OTHER = "other"
ALL_OTHERS = Labels(OTHER, OTHER, OTHER)


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


def take_figures(
    store: Store, asked: Sequence[tuple[Keys, str, Mapping[str, Labels]]], *, has_lock: bool
) -> list[Taken | None]:
    """Take what was counted since it was last taken in some parts; None: of that one another beat does.

    One round trip for each node.

    Arguments:
        asked: each part; the lock's token, or the caller's where there is no lock; new labels by their ids.
    """
    calls = []
    for keys, token, labels in asked:
        lock = (store.config.lock_key_in(keys) if has_lock else None) or keys.teller
        call = _TAKE_FIGURES.call(
            keys,
            lock=lock,
            token=token,
            teller_ms=0 if has_lock else TELLER_MS,
            new_labels={id_: json.dumps(one) for id_, one in labels.items()},
        )
        calls.append(call.reading(_taken_of))
    return store.ask_all(calls)


def count_once(store: Store, labels: str, word: str) -> None:
    """Count something once that no script counts, under the id of labels."""
    key = store.keys.figures
    store.ask(Command("hincrby", key, f"{labels}:{word}", 1))


def read_totals(store: Store, parts: Sequence[Keys]) -> list[dict[str, int]]:
    """Return what was ever counted and taken, in each of these parts."""
    return [*map(figures_of, _read_hashes(store, [keys.totals for keys in parts]))]


def _read_hashes(store: Store, keys: Sequence[str]) -> list[Any]:
    """Return what these hashes hold; one round trip for each node."""
    return store.ask_all([Command("hgetall", key) for key in keys])


def read_minutes(store: Store) -> tuple[bool, dict[int, dict[str, int]]]:
    """Return whether anything was ever counted, and what in each of the last minutes, by their numbers
    since 1970, under all labels together; what can't be read of it is left out.
    """
    hashes = _read_hashes(store, [keys.minutes for keys in store.all_parts])
    minutes: dict[int, Counter[str]] = {}
    for text in chain.from_iterable(map(methodcaller("values"), hashes)):
        with suppress(*_UNREADABLE):
            found = json.loads(text_of(text))
            counted = {word: int(amount) for word, amount in found["counted"].items() if amount >= 0}
            minutes.setdefault(int(found["minute"]), Counter()).update(counted)
    return any(hashes), {number: dict(counted) for number, counted in minutes.items()}


def read_labels(store: Store, parts: Sequence[Keys]) -> list[dict[str, Labels]]:
    """Return the labels in each of these parts by their ids, without those that can't be read, or have
    another id.
    """
    return [*map(_labels_of, _read_hashes(store, [keys.labels for keys in parts]))]


def forget_figures(store: Store, keys: Keys, ids: Iterable[str], fields: Iterable[str]) -> None:
    """Forget labels, and fields of what was ever counted, in one part."""
    asks = [
        Command("hdel", key, *map(as_stored, chunk))
        for key, names in ((keys.labels, ids), (keys.totals, fields))
        for chunk in in_chunks(names)
    ]
    store.ask_all(asks)


def count_entry_states(store: Store, keys: Keys, cursor: str, limit: int) -> Counted:
    """Count about ``limit`` entries of a part by their states, from ``cursor`` on; '0' for the first."""
    call = _COUNT_STATES.call(keys, cursor=cursor, limit=limit, small_bytes=SMALL_BYTES)
    following, now, scheduled, due, others = store.ask(call)
    found = {member: float(score) for member, score in dict_of(others).items()}
    return Counted(text_of(following), float(now), scheduled, due, found)


def read_late(
    store: Store, latest: float, limit: int, parts: Sequence[Keys], *, are_expected: bool
) -> dict[Keys, tuple[int, list[str]]]:
    """Return for each of some parts how many entries have been due since ``latest`` or before, UNIX seconds,
    and the keys of the first of them; one round trip for each node.

    Those that a user has made due "now" don't count.

    Arguments:
        are_expected: the entries of which a run should have succeeded by then, instead.
    """
    zset_of = attrgetter("expected" if are_expected else "schedule")
    asks = []
    for zset in map(zset_of, parts):
        asks.append(Command("zcount", zset, "(0", latest))
        asks.append(Command("zrangebyscore", zset, "(0", latest, start=0, num=limit))
    found = store.ask_all(asks)
    late = {}
    for keys, count, members in zip(parts, found[::2], found[1::2], strict=True):
        entry_of = keys.entry_of_running if are_expected else keys.entry_of
        late[keys] = int(count), [entry_of(text_of(member)) for member in members]
    return late


def expect_runs(store: Store, expected: Mapping[str, float | None]) -> None:
    """Record by when a run of each entry, by its key, must have succeeded, UNIX seconds; None: none."""
    asks = []
    for key, at in expected.items():
        zset, member = store.parts.of(key).expected, as_stored(store.parts.of(key).running(key))
        asks.append(
            Command("zrem", zset, member) if at is None else Command("zadd", zset, {member: at}, xx=True)
        )
    store.ask_all(asks)


def read_streaks(store: Store, limit: int, parts: Sequence[Keys]) -> list[str]:
    """Return the keys of the entries of these parts with the most failures in a row."""
    asks = [Command("zrevrange", keys.streaks, 0, limit - 1, withscores=True) for keys in parts]
    found = store.ask_all(asks)
    rows = [
        (score, keys.entry_of_running(text_of(member)))
        for keys, members in zip(parts, found, strict=True)
        for member, score in members
    ]
    rows.sort(key=itemgetter(0), reverse=True)
    return [key for _, key in rows[:limit]]


def forget_streaks(store: Store, gone: Sequence[str]) -> None:
    """Forget that runs of the entries under these keys have failed."""
    parts = [(store.parts.of(key), key) for key in gone]
    store.ask_all([Command("zrem", part.streaks, as_stored(part.running(key))) for part, key in parts])


def _taken_of(reply: Sequence[Any]) -> Taken | None:
    """Return what its reply says; None: another beat shows the metrics."""
    status, now, taken, unknown = reply
    if text_of(status) != "ok":
        return None
    return Taken(float(now), figures_of(dict_of(taken)), tuple(map(text_of, unknown)))


def figures_of(found: Mapping[Any, Any]) -> dict[str, int]:
    """Return what of a hash of figures can be read; others may have written anything."""
    figures = {}
    for field, value in found.items():
        text = text_of(value)
        if text.isdecimal() and len(text) < 20:
            figures[text_of(field)] = int(text)
    return figures


def _labels_of(hash_: Mapping[Any, Any]) -> dict[str, Labels]:
    found: dict[str, Labels] = {}
    for id_, text in hash_.items():
        with suppress(*_UNREADABLE):
            task, queue, entry, is_asked = json.loads(text_of(text))
            labels = Labels(str(task), str(queue), str(entry), bool(is_asked))
            # those of all others have an id of their own
            if labels[:3] != ALL_OTHERS[:3] and is_utf8("".join(labels[:3])) and labels.id == text_of(id_):
                found[labels.id] = labels
    return found
