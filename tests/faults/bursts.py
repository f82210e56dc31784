"""A burst of due runs, and what became of it: the measure of every test in this package.

Each run is of an entry of its own, so it must be on the queue once, whoever died on the way.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from typing import Any

import redis

from redbeat.task_ids import task_id_of
from tests.faults.layouts import Layout, Sent
from tests.support.polling import eventually
from tests.support.schedule import SCHEDULE, SELDOM, STATICS, write_raw

_FIRST_DUE = 1e9
#: later than now, and earlier than the next run of an entry that has been sent
FAR = 1.99e9


@dataclass(frozen=True)
class Tally:
    """What became of bursts; all but `runs` and `kills` should be empty or 0.

    Attributes:
        lost: entries whose run has no message.
        doubled: entries whose run has more than one, once for each beyond the first.
        strange: messages that no run asked for, or with another task id than the run's own.
        miscounted: entries whose meta counts another number of runs than one.
        disordered: entries whose run left after one that was due later.
        early: entries whose run left before it was due, by the server's clock.
    """

    runs: int = 0
    kills: int = 0
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    strange: list[Sent] = field(default_factory=list)
    miscounted: list[str] = field(default_factory=list)
    disordered: list[str] = field(default_factory=list)
    early: list[str] = field(default_factory=list)

    def __add__(self, other: Tally) -> Tally:
        return Tally(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))

    @property
    def counts(self) -> list[int]:
        """Numbers for a table: kills, runs, lost, doubled, strange, disordered."""
        found = (self.lost, self.doubled, self.strange, self.disordered)
        return [self.kills, self.runs, *map(len, found)]

    def is_good(self, layout: Layout) -> bool:
        """Whether every promise was kept. Without a lock several beats share the work, a batch each."""
        broken = self.lost or self.strange or self.miscounted or self.early
        doubled = layout.is_exactly_once and self.doubled
        return not (broken or doubled or (layout.has_lock and self.disordered))


class Burst:
    """So many runs, due since long ago, one every quarter of a second; or all of them at one time, `due`.

    The entries have `policy`.
    """

    def __init__(self, layout: Layout, runs: int, due: float | None = None, **policy: Any) -> None:
        self._layout = layout
        self._policy = json.dumps(policy) if policy else ""
        self._dues = {f"entry-{number}": due or _FIRST_DUE + number / 4 for number in range(runs)}

    def write(self) -> None:
        """Write the entries to a schedule that has none, raw."""
        self._layout.clear()
        self.write_anew()

    def write_anew(self) -> None:
        """Write the entries in the place of those of a burst that is out, under beats that run."""
        self._layout.queue.clear()
        with self._layout.client.pipeline() as pipeline:
            for name, due in self._dues.items():
                keys = (f"redbeat:{name}", f"redbeat::history:{name}", f"redbeat::running:{name}")
                pipeline.delete(*keys)
                write_raw(pipeline, name, score=due, schedule=SELDOM, args=[name])
                if self._policy:
                    pipeline.hset(f"redbeat:{name}", "policy", self._policy)
            pipeline.execute()

    def is_out(self) -> bool:
        """Whether every run has been recorded as sent; a server that is being restarted is waited for."""
        count = partial(self._layout.client.zcount, SCHEDULE, "-inf", FAR)
        (left,) = eventually(lambda: (count(),), retry_on=(redis.ConnectionError,))
        return left == 0

    def has_hidden(self, since: float) -> bool:
        """Whether some are hidden from other beats, by one that has claimed them after `since`."""
        count = self._layout.client.zcount
        return count(SCHEDULE, since, "+inf") > count(SCHEDULE, FAR, "+inf")

    def await_messages(self, more: int) -> None:
        """Wait until so many more messages are on the queue, or all runs are out."""
        count = self._layout.queue.count
        wanted = count() + more
        eventually(lambda: count() >= wanted or self.is_out(), 30, 0.001, retry_on=(redis.ConnectionError,))

    def untracked(self) -> list[str]:
        """The entries whose run isn't noted as in progress, or not as the one that was sent."""
        with self._layout.client.pipeline() as pipeline:
            for name in self._dues:
                pipeline.hgetall(f"redbeat::running:{name}")
            found: list[Any] = pipeline.execute()
        expected = [{_expect(name, due).id} for name, due in self._dues.items()]
        return [
            name
            for name, ids, records in zip(self._dues, expected, found, strict=True)
            if records.keys() != ids or not all("sent" in json.loads(record) for record in records.values())
        ]

    def tally(self, kills: int) -> Tally:
        """Count what is on the queue, after so many kills."""
        expected = set(map(_expect, self._dues, self._dues.values()))
        runs = {(run.entry, run.due) for run in expected}
        messages = self._layout.queue.messages()
        sent = Counter((message.entry, message.due) for message in messages)
        with self._layout.client.pipeline() as pipeline:
            for name in self._dues:
                pipeline.hget(f"redbeat:{name}", "meta")
            metas: list[Any] = pipeline.execute()
        counts = [json.loads(meta)["total_run_count"] if meta else 0 for meta in metas]
        with self._layout.client.pipeline() as pipeline:
            for name in self._dues:
                pipeline.lindex(f"redbeat::history:{name}", -1)
            records = [json.loads(record or "{}") for record in pipeline.execute()]
        assert self._layout.client.smembers(STATICS) == {"static"}
        assert self._layout.client.zscore(SCHEDULE, "redbeat:static") is not None
        return Tally(
            runs=len(self._dues),
            kills=kills,
            lost=sorted(entry for entry, _ in runs - sent.keys()),
            doubled=sorted(entry for entry, _ in (sent - Counter(sent.keys())).elements()),
            strange=sorted(message for message in messages if message not in expected),
            miscounted=[name for name, count in zip(self._dues, counts, strict=True) if count != 1],
            disordered=disordered(messages),
            early=[
                name
                for (name, due), record in zip(self._dues.items(), records, strict=True)
                if record.get("at", due) < due
            ],
        )


def disordered(messages: list[Sent]) -> list[str]:
    """The entries that were overtaken; a message that is sent a second time counts as the first did."""
    latest, seen, found = "", set(), []
    for message in messages:
        if message.due < latest and message not in seen:
            found.append(message.entry)
        seen.add(message)
        latest = max(latest, message.due)
    return found


def _expect(name: str, due: float) -> Sent:
    moment = datetime.fromtimestamp(due, timezone.utc).isoformat(timespec="microseconds")
    return Sent(name, moment, task_id_of(f"redbeat:{name}", moment))
