"""The schedule from outside: written raw, as programs in other languages do, and the queues it fills.

Keys and JSON are spelled out here on purpose, and not taken from redbeat: they are the contract.
"""

from __future__ import annotations

import json
import re
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any

import redis

from redbeat.task_ids import task_id_of

from .servers import Server

SCHEDULE = "redbeat::schedule"
STATICS = "redbeat::statics"
LOCK = "redbeat::lock"
TICK = "redbeat::tick"
DEADLINES = "redbeat::deadlines"
LATER = "redbeat::later"


#: for entries that are due since the epoch: the next run is in no test, whatever the time of day
SELDOM: dict[str, Any] = {"__type__": "interval", "every": 10**10}


def write_raw(
    client: redis.Redis,
    name: str,
    definition: str | bytes | dict[str, Any] | None = None,
    *,
    score: float | None = 0,
    meta: str | None = None,
    **fields: Any,
) -> None:
    """hset, then zadd: an entry that runs `echo` every hour and is due now, or `definition` as it is."""
    hourly = {"name": name, "task": "echo", "schedule": {"__type__": "interval", "every": 3600}}
    if definition is None:
        definition = {**hourly, **fields}
    text = json.dumps(definition) if isinstance(definition, dict) else definition
    client.hset(f"redbeat:{name}", "definition", text)
    if meta is not None:
        client.hset(f"redbeat:{name}", "meta", meta)
    if score is not None:
        client.zadd(SCHEDULE, {f"redbeat:{name}": score})


def write_burst(client: redis.Redis, names: Sequence[str] | int, **fields: Any) -> list[str]:
    """Entries that are due since long ago, in this order, once: a second after the epoch, two seconds, ...

    A number of them is called entry-0, entry-1, ... Returns the names.
    """
    if isinstance(names, int):
        names = [f"entry-{number}" for number in range(names)]
    with client.pipeline(transaction=False) as pipeline:
        for number, name in enumerate(names):
            write_raw(pipeline, name, score=1 + number, schedule=SELDOM, **fields)
        pipeline.execute()
    return list(names)


def write_spike(client: redis.Redis, due: float, count: int = 300, **fields: Any) -> list[str]:
    """Write entries that are due at `due` and an hour later again; return their names."""
    names = [f"entry-{number:0{len(str(count))}}" for number in range(count)]
    with client.pipeline(transaction=False) as pipeline:
        for name in names:
            write_raw(pipeline, name, score=due, **fields)
        pipeline.execute()
    return names


def counts_of(client: redis.Redis, names: Sequence[str]) -> Counter[int]:
    """How many entries have run how often; an entry without meta has run 0 times."""
    with client.pipeline(transaction=False) as pipeline:
        for name in names:
            pipeline.hget(f"redbeat:{name}", "meta")
        return Counter(json.loads(meta or "{}").get("total_run_count", 0) for meta in pipeline.execute())


def due_count(client: redis.Redis) -> int:
    """How many entries are due."""
    return int(client.zcount(SCHEDULE, 0, server_now(client)))


def expected_id(name: str, due: float) -> str:
    """The task id of an entry's run that is due at `due`, UNIX seconds."""
    moment = datetime.fromtimestamp(due, timezone.utc).isoformat(timespec="microseconds")
    return task_id_of(f"redbeat:{name}", moment)


def score_of(client: redis.Redis, name: str) -> float | None:
    """When the entry is due next."""
    return client.zscore(SCHEDULE, f"redbeat:{name}")


def field(client: redis.Redis, name: str, which: str) -> Any:
    """One field of the entry's hash, its JSON decoded; None when it is missing."""
    text = client.hget(f"redbeat:{name}", which)
    return None if text is None else json.loads(text)


def server_now(client: redis.Redis) -> float:
    """The server's clock in UNIX seconds."""
    seconds, micros = client.time()
    return int(seconds) + int(micros) / 1e6


def server_time(client: redis.Redis) -> datetime:
    """The same in UTC."""
    return datetime.fromtimestamp(server_now(client), timezone.utc)


def calls_of(client: redis.Redis, command: str) -> int:
    """How often the server has been called `command` so far, by whomever, scripts included."""
    stats: Any = client.info("commandstats")
    return int(stats.get(f"cmdstat_{command}", {"calls": 0})["calls"])


def meta_json(last_run_at: datetime | None, total_run_count: int = 0) -> str:
    """A meta as celery-redbeat writes it; `last_run_at` in UTC."""
    moment: dict[str, Any] | None = None
    if last_run_at is not None:
        parts = ("year", "month", "day", "hour", "minute", "second", "microsecond")
        moment = {"__type__": "datetime", **{part: getattr(last_run_at, part) for part in parts}}
        moment["timezone"] = "UTC"
    return json.dumps({"last_run_at": moment, "total_run_count": total_run_count})


def messages(broker: redis.Redis, queue: str = "celery") -> list[dict[str, Any]]:
    """The messages that wait on a queue of a Redis broker, in the order in which they were sent."""
    waiting: Any = broker.lrange(queue, 0, -1)
    return [json.loads(message) for message in reversed(waiting)]


def sent_names(broker: redis.Redis, queue: str = "celery") -> list[str]:
    """Which entries those messages came from."""
    return [message["headers"]["redbeat_entry"] for message in messages(broker, queue)]


def sent_dues(broker: redis.Redis, name: str = "") -> list[datetime]:
    """When those runs were due: of all entries, or of one."""
    headers = [message["headers"] for message in messages(broker)]
    return [
        datetime.fromisoformat(one["redbeat_due"]) for one in headers if name in ("", one["redbeat_entry"])
    ]


#: where a monitored command begins; redis-py 4.6's own pattern takes the last ] of all for the one before it
_MONITORED = re.compile(r"\[(\d+) (.*?)\] (.*)")


@contextmanager
def monitoring(server: Server, with_scripts: bool = False) -> Iterator[list[str]]:
    """Yield a list that holds, after the block, the commands sent to the server in it.

    Each is a round trip, or a part of a pipeline. `with_scripts` adds the commands inside of scripts.
    """
    commands: list[str] = []
    end = uuid.uuid4().hex
    with server.client() as marker, server.client() as watcher:
        marker.ping()
        with watcher.monitor() as monitor:
            monitor.monitor_re = _MONITORED
            yield commands
            marker.echo(end)
            for seen in monitor.listen():
                if end in seen["command"]:
                    return
                if with_scripts or seen["client_type"] != "lua":
                    commands.append(seen["command"])


def is_waiting(client: redis.Redis, name: str, error: dict[str, Any]) -> bool:
    """Tell whether an entry that failed with this error, once, is due again some time after that only."""
    failed_at = datetime.fromisoformat(error["since"]).timestamp()
    return error["attempts"] == 1 and score_of(client, name) == float(error["retry_at"]) >= failed_at + 0.9


def retry_now(client: redis.Redis, name: str) -> None:
    """Let the pause of an entry that failed be over."""
    error = field(client, name, "error")
    error["retry_at"] = "1.000000"
    client.hset(f"redbeat:{name}", "error", json.dumps(error))
    client.zadd(SCHEDULE, {f"redbeat:{name}": 1})


def everything(client: redis.Redis) -> dict[str, Any]:
    """All that is in Redis, to compare it."""
    return {key: client.dump(key) for key in client.scan_iter()}
