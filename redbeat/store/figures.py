"""What is counted for metrics, as it is in Redis: by the scripts that record runs, and taken by one beat.

Owns the words that are counted. A figure is a number under an id of labels, a colon, and a word: one of
``WORDS`` for a run, or the bucket of a histogram, as ``late/3``. Invariant: what is taken is added to the
totals in the same step, so that nothing is counted twice or lost, whoever dies.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from redbeat.history import ENDED_OUTCOMES
from redbeat.log.text import as_stored, is_utf8
from redbeat.store.chunks import in_chunks
from redbeat.store.records import text_of
from redbeat.store.rights import METRICS
from redbeat.store.scripts.figures import Counted as Counted
from redbeat.store.scripts.figures import Taken as Taken
from redbeat.store.scripts.figures import count_states, figures_of, take_figures
from redbeat.store.store import Store

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


class Figures:
    """What is counted in the schedule of ``store``. Every method raises what the store's do."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def take(self, token: str, labels: Mapping[str, Labels], *, has_lock: bool) -> Taken | None:
        """Take what was counted since it was last taken; None: another beat does.

        Arguments:
            token: the lock's, or the caller's where there is no lock.
            labels: new ones, by their ids.
        """
        keys, lock_key = self._store.keys, self._store.config.lock_key
        texts = {id_: json.dumps(one) for id_, one in labels.items()}
        lock = lock_key if has_lock and lock_key else keys.teller
        with self._store.translating(
            keys.totals, "hash", besides={keys.figures: "hash", keys.labels: "hash"}
        ):
            return take_figures(self._store.client, keys, lock, token, 0 if has_lock else TELLER_MS, texts)

    def count(self, labels: str, word: str) -> None:
        """Count something once that no script counts, under the id of labels."""
        key = self._store.keys.figures
        self._store.ask(lambda client: client.hincrby(key, f"{labels}:{word}", 1), key, "hash")

    def read_totals(self) -> dict[str, int]:
        """Return what was ever counted and taken."""
        key = self._store.keys.totals
        return figures_of(self._store.ask(lambda client: client.hgetall(key), key, "hash"))

    def read_minutes(self) -> tuple[bool, dict[int, dict[str, int]]]:
        """Return whether anything was ever counted, and what in each of the last minutes, by their numbers
        since 1970, under all labels together; what can't be read of it is left out.
        """
        keys = self._store.keys
        is_counted = bool(self._store.ask(lambda client: client.exists(keys.totals)))
        texts = self._store.ask(lambda client: client.hgetall(keys.minutes), keys.minutes, "hash")
        return is_counted, dict(filter(None, map(_minute_of, map(text_of, texts.values()))))

    def read_labels(self) -> dict[str, Labels]:
        """Return the labels by their ids; those that can't be read, or have another id, are left out."""
        key = self._store.keys.labels
        found: dict[str, Labels] = {}
        for id_, text in self._store.ask(lambda client: client.hgetall(key), key, "hash").items():
            try:
                task, queue, entry, is_asked = json.loads(text_of(text))
            except (ValueError, TypeError, RecursionError):
                continue
            labels = Labels(str(task), str(queue), str(entry), bool(is_asked))
            is_new = labels[:3] != ALL_OTHERS[:3]  # they have an id of their own
            if is_new and is_utf8("".join(labels[:3])) and labels.id == text_of(id_):
                found[labels.id] = labels
        return found

    def forget(self, ids: Iterable[str], fields: Iterable[str]) -> None:
        """Forget labels, and fields of what was ever counted."""
        keys = self._store.keys
        for key, names in ((keys.labels, ids), (keys.totals, fields)):
            for chunk in in_chunks(names):
                self._store.ask(partial(_delete, key, chunk), key, "hash")

    def count_states(self, cursor: str, limit: int) -> Counted:
        """Count about ``limit`` entries by their states, from ``cursor`` on; '0' for the first."""
        keys = self._store.keys
        with self._store.translating():
            return count_states(self._store.client, keys.schedule, cursor, limit)

    def are_there(self, names: Sequence[str]) -> list[bool]:
        """Tell of each entry, by its name, whether it exists."""
        with self._store.translating(), self._store.client.pipeline(transaction=False) as pipeline:
            for name in names:
                pipeline.exists(as_stored(self._store.keys.entry(name)))
            return [bool(found) for found in pipeline.execute()] if names else []

    def read_expected(self, now: float, limit: int, first: int = 0) -> tuple[int, list[str]]:
        """Return of how many entries a run should have succeeded by now, and the keys of those that should
        have first, without as many as ``first``.
        """
        keys = self._store.keys
        with (
            self._store.translating(keys.expected),
            self._store.client.pipeline(transaction=False) as pipeline,
        ):
            pipeline.zcount(keys.expected, "-inf", now)
            pipeline.zrangebyscore(keys.expected, "-inf", now, start=first, num=limit)
            count, members = pipeline.execute()
        return int(count), [keys.entry_of_running(text_of(member)) for member in members]

    def expect(self, expected: Mapping[str, float | None]) -> None:
        """Note by when a run of each entry, by its key, must have succeeded, UNIX seconds; None: none."""
        keys = self._store.keys
        if not expected:
            return
        with (
            self._store.translating(keys.expected),
            self._store.client.pipeline(transaction=False) as pipeline,
        ):
            for key, at in expected.items():
                member = as_stored(keys.running(key))
                if at is None:
                    pipeline.zrem(keys.expected, member)
                else:
                    pipeline.zadd(keys.expected, {member: at}, xx=True)
            pipeline.execute()

    def read_late(self, latest: float, limit: int) -> tuple[int, list[str]]:
        """Return how many entries have been due since ``latest`` or before, UNIX seconds, and the keys of the
        first of them; those that somebody has made due "now" don't count.
        """
        keys = self._store.keys
        with self._store.translating(), self._store.client.pipeline(transaction=False) as pipeline:
            pipeline.zcount(keys.schedule, "(0", latest)
            pipeline.zrangebyscore(keys.schedule, "(0", latest, start=0, num=limit)
            count, members = pipeline.execute()
        return int(count), [keys.entry_of(text_of(member)) for member in members]

    def read_streaks(self, limit: int) -> list[str]:
        """Return the keys of the entries with the most failures in a row."""
        keys = self._store.keys
        found = self._store.ask(lambda client: client.zrevrange(keys.streaks, 0, limit - 1), keys.streaks)
        return [keys.entry_of_running(text_of(member)) for member in found]

    def forget_streaks(self, gone: Sequence[str]) -> None:
        """Forget that runs of the entries under these keys have failed."""
        keys = self._store.keys
        members = [as_stored(keys.running(key)) for key in gone]
        if members:
            self._store.ask(lambda client: client.zrem(keys.streaks, *members), keys.streaks)

    def note_right(self, reason: object) -> None:
        """Note that this user lacks a right to what is counted."""
        self._store.rights.note(METRICS, reason)


def _delete(key: str, names: Sequence[str], client: Any) -> Any:
    return client.hdel(key, *map(as_stored, names))


def _minute_of(text: str) -> tuple[int, dict[str, int]] | None:
    """Return the number of a minute, and what was counted in it; others may have written anything."""
    try:
        found = json.loads(text)
        number, counted = int(found["minute"]), found["counted"].items()
        return number, {word: int(amount) for word, amount in counted if amount == amount and amount >= 0}
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None
