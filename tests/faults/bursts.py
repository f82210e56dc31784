"""Where a schedule and its broker are, bursts of due runs or stored messages, and what became of them.

Each run is of an entry of its own, so it must be on the queue once, whoever died on the way. Stored messages
have an eta in years and are made due by their scores alone, so the message that is found is the one that
Celery made. Every third has a body that is not plain JSON.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import redis
from celery import Celery

from redbeat.later import batch, install
from redbeat.task_ids import task_id_of
from tests.support.apps import write_app
from tests.support.polling import eventually
from tests.support.schedule import LOCK, SCHEDULE, SELDOM, STATICS, write_raw
from tests.support.servers import Server

#: written to the schedule by whoever becomes leader, and due in no test
STATIC = {"static": {"task": "echo", "schedule": 1e10}}

#: how long claims of beats that share the work are hidden from the others; 30 seconds outside of tests
LEASE_SECONDS = 1.0


class Sent(NamedTuple):
    """One message on the queue: its entry, when that was due (ISO 8601, UTC), and its task id."""

    entry: str
    due: str
    id: str


class Queue(Protocol):
    """The queue `celery` of a broker, from outside."""

    url: str

    def clear(self) -> None:
        """Take away what is on it."""

    def count(self) -> int:
        """How many messages wait on it."""

    def take(self) -> list[dict[str, Any]]:
        """Take all messages that wait, oldest first; return their headers."""


class RedisQueue:
    """The list `celery` in one database."""

    def __init__(self, server: Server, db: int) -> None:
        self.url = server.url(db)
        self._client: redis.Redis = server.client(db=db)

    def clear(self) -> None:
        self._client.flushdb()

    def count(self) -> int:
        return int(self._client.llen("celery"))

    def take(self) -> list[dict[str, Any]]:
        taken: Any = self._client.rpop("celery", 100_000) or []
        return [json.loads(message)["headers"] for message in taken]


class AmqpQueue:
    """The queue `celery` of a RabbitMQ."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._app = Celery("reader", broker=url, set_as_current=False)
        self._channel: Any = self._app.connection_for_read().channel()
        self._app.amqp.queues["celery"](self._channel).declare()

    def clear(self) -> None:
        self._channel.queue_purge("celery")

    def count(self) -> int:
        return int(self._channel.queue_declare("celery", passive=True).message_count)

    def take(self) -> list[dict[str, Any]]:
        waiting = iter(lambda: self._channel.basic_get("celery", no_ack=True), None)
        return [dict(message.headers) for message in waiting]


def sent_of(headers: dict[str, Any]) -> Sent:
    """A stored message says of no entry, and is due at its eta."""
    task_id = headers["id"]
    return Sent(headers.get("redbeat_entry", task_id), headers.get("redbeat_due") or headers["eta"], task_id)


@dataclass
class Layout:
    """A schedule on database `db` of `server`, and a queue.

    Attributes:
        is_exactly_once: a killed beat may not even double a run.
        beats: how many work at the same time.
        settings: of the app, besides those that say where schedule and broker are.
    """

    name: str
    server: Server
    db: int
    queue: Queue
    is_exactly_once: bool
    beats: int = 1
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.client: redis.Redis = self.server.client(db=self.db)

    @property
    def has_lock(self) -> bool:
        return "redbeat_lock_key" not in self.settings

    def all_settings(self) -> dict[str, Any]:
        own = {"redbeat_redis_url": self.server.url(self.db), "beat_schedule": STATIC}
        return {**own, "redbeat_lock_timeout": 20, **self.settings}

    def write_app(self, directory: Path, extra: str = "", **settings: Any) -> None:
        """Write the app `module` for `celery beat`, with the source `extra` at its end."""
        extra = f"from redbeat.scheduler.shard import Shard\nShard.LEASE_MS = {LEASE_SECONDS * 1000}\n{extra}"
        write_app(directory, "module", self.queue.url, extra=extra, **{**self.all_settings(), **settings})

    def make_app(self, **settings: Any) -> Celery:
        """The same app, in this process."""
        app = Celery("test", set_as_current=False)
        app.conf.update({"broker_url": self.queue.url, **self.all_settings(), **settings})
        return app

    def clear(self) -> None:
        """Empty schedule and queue."""
        self.client.flushdb()
        self.queue.clear()

    def drop_lock(self) -> None:
        """Delete the lock of a beat that was killed, as an operator would who doesn't want to wait."""
        self.client.delete(LOCK)


_FIRST_DUE = 1e9
#: later than now, and earlier than the next run of an entry that has been sent
FAR = 1.99e9


@dataclass
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
    strange: list[object] = field(default_factory=list)
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
        (left,) = eventually(lambda: (self._left(),), retry_on=(redis.ConnectionError,))
        return left == 0

    def _left(self) -> int:
        return int(self._layout.client.zcount(SCHEDULE, "-inf", FAR))

    def await_messages(self, more: int) -> None:
        """Wait until so many more messages are on the queue, or all runs are out."""
        count = self._layout.queue.count
        wanted = count() + more
        eventually(lambda: count() >= wanted or self.is_out(), 30, 0.001, retry_on=(redis.ConnectionError,))

    def _read(self, command: str, keys: Iterable[str], *arguments: Any) -> list[Any]:
        """Return the answer to a command about each key."""
        with self._layout.client.pipeline() as pipeline:
            for key in keys:
                getattr(pipeline, command)(key, *arguments)
            return pipeline.execute()

    def untracked(self) -> list[str]:
        """The entries whose run isn't noted as in progress, or not as the one that was sent."""
        found = self._read("hgetall", (f"redbeat::running:{name}" for name in self._dues))
        expected = [{_expect(name, due).id} for name, due in self._dues.items()]
        return [
            name
            for name, ids, records in zip(self._dues, expected, found, strict=True)
            if records.keys() != ids or not all("sent" in json.loads(record) for record in records.values())
        ]

    def tally(self, kills: int) -> Tally:
        """Count what is on the queue, after so many kills."""
        expected = self._expected()
        runs = {(run.entry, run.due) for run in expected}
        messages = [*map(sent_of, self._layout.queue.take())]
        sent = Counter((message.entry, message.due) for message in messages)
        assert self._layout.client.smembers(STATICS) == {"static"}
        assert self._layout.client.zscore(SCHEDULE, "redbeat:static") is not None
        return Tally(
            runs=len(self._dues),
            kills=kills,
            lost=sorted(entry for entry, _ in runs - sent.keys()),
            doubled=sorted(entry for entry, _ in (sent - Counter(sent.keys())).elements()),
            strange=[message for message in messages if message not in expected],
            miscounted=self._miscounted(),
            disordered=disordered(messages),
            early=self._early(),
        )

    def _expected(self) -> set[Sent]:
        return set(map(_expect, self._dues, self._dues.values()))

    def _miscounted(self) -> list[str]:
        metas = self._read("hget", (f"redbeat:{name}" for name in self._dues), "meta")
        counts = [json.loads(meta)["total_run_count"] if meta else 0 for meta in metas]
        return [name for name, count in zip(self._dues, counts, strict=True) if count != 1]

    def _early(self) -> list[str]:
        histories = (f"redbeat::history:{name}" for name in self._dues)
        records = [json.loads(record or "{}") for record in self._read("lindex", histories, -1)]
        pairs = zip(self._dues.items(), records, strict=True)
        return [name for (name, due), record in pairs if record.get("at", due) < due]


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


LATER = "redbeat::later"

#: so much later is what a message says of its eta than when it is made due: a test must not wait for it
_ETA_LATER = 1e9


class StoredBurst(Burst):
    """So many messages, due since long ago, one every quarter of a second; or all of them at one time, `due`.

    Their task ids are the same for the same `seed`.
    """

    def __init__(self, layout: Layout, runs: int, due: float | None = None, seed: int = 0) -> None:
        self._layout = layout
        self._dues = {
            str(uuid.UUID(int=(seed << 64) + number)): due or _FIRST_DUE + number / 4
            for number in range(runs)
        }
        self._app = layout.make_app()
        install(self._app)

    def write_anew(self) -> None:
        """Store them in the place of those of a burst that is out, under beats that run."""
        self._layout.queue.clear()
        with batch():
            for number, (task_id, due) in enumerate(self._dues.items()):
                options: dict[str, Any] = {"compression": "gzip"} if number % 3 == 0 else {}
                eta = datetime.fromtimestamp(due + _ETA_LATER, timezone.utc)
                self._app.send_task("echo", [number], task_id=task_id, eta=eta, **options)
        self._layout.client.zadd(
            LATER, {f"redbeat::later:{task_id}": due for task_id, due in self._dues.items()}
        )

    def _left(self) -> int:
        return int(self._layout.client.zcard(LATER))

    def _expected(self) -> set[Sent]:
        return {
            Sent(task_id, datetime.fromtimestamp(due + _ETA_LATER, timezone.utc).isoformat(), task_id)
            for task_id, due in self._dues.items()
        }

    def _miscounted(self) -> list[str]:
        """The keys that were left behind."""
        keys = [f"redbeat::{kind}:{task_id}" for task_id in self._dues for kind in ("later", "body")]
        return [key for key, exists in zip(keys, self._read("exists", keys), strict=True) if exists]

    def _early(self) -> list[str]:
        return []
