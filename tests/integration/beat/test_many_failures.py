"""Ten thousand entries that fail at once starve nobody: real servers, and a real beat.

A router that raises, arguments that can't be encoded, a broker that refuses. The figures are printed.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redis

from tests.support.apps import run_beat
from tests.support.polling import eventually
from tests.support.rabbitmq import RabbitMQ
from tests.support.schedule import SELDOM, due_count, server_now, write_raw
from tests.support.servers import Server

COUNT = 10_000
#: for how long the canary is watched, seconds
SECONDS = 20

ROUTER = """
def route(name, args, kwargs, options, task=None, **_):
    if name == "bad" or kwargs.get("is_bad"):
        raise LookupError(f"no tenant {kwargs}")

app.conf.task_routes = (route,)
"""

#: by name: source of the app, and fields of the entries that fail
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "router": (ROUTER, {"task": "bad"}),
    "router, by arguments": (ROUTER, {"kwargs": {"is_bad": True}}),
    "serializer": ("", {"options": {"serializer": "nonexistent"}}),
    "broker": ("", {"options": {"queue": "spoilt"}}),
    "broker, at RabbitMQ": ("", {"options": {"exchange": "missing", "routing_key": "x"}}),
}


class Watched(NamedTuple):
    """What became of the good entries: seconds."""

    gap: float
    lateness: float


def watch(client: redis.Redis, good: list[str]) -> Watched:
    """The longest time between two runs of the canary, and how late another one was."""
    records = [json.loads(text) for text in client.lrange("redbeat::history:canary", 0, -1)]
    times = sorted(record["at"] for record in records if "outcome" not in record)
    lateness = []
    for name in good:
        [record] = [json.loads(text) for text in client.lrange(f"redbeat::history:{name}", 0, -1)]
        lateness.append(record["at"] - record["due"])
    return Watched(max(b - a for a, b in pairwise(times)), max(lateness))


def seconds_to_read(client: redis.Redis) -> float:
    """How long this process needs to read ten thousand entries, as busy as the machine is."""
    began_at = time.monotonic()
    for first in range(0, COUNT, 500):
        with client.pipeline(transaction=False) as pipeline:
            for number in range(first, first + 500):
                pipeline.hmget(f"redbeat:bad-{number}", "definition", "policy", "meta", "error")
            for definition, *_ in pipeline.execute():
                json.loads(definition)
    return time.monotonic() - began_at


@pytest.mark.few_cases(2)
@pytest.mark.parametrize("one_off", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_entries_that_fail_at_once_hold_up_no_other(
    request: pytest.FixtureRequest,
    server: Server,
    client: redis.Redis,
    broker: redis.Redis,
    tmp_path: Path,
    kind: str,
    one_off: bool,
) -> None:
    extra, fields = KINDS[kind]
    url = server.url(0)
    if "RabbitMQ" in kind:
        rabbitmq: RabbitMQ = request.getfixturevalue("rabbitmq")
        url = rabbitmq.url()
    broker.set("spoilt", "a text")
    settings = {"redbeat_history": 1000, "redbeat_redis_url": server.url(1)}
    hourly = {"__type__": "interval", "every": 3600}
    with run_beat(tmp_path, url, extra, **settings) as beat:
        beat.wait_for("beat: Acquired lock")
        start = server_now(client) + 2
        write_raw(client, "canary", schedule={"__type__": "interval", "every": 1}, score=start)
        good = []
        for number in range(2 * SECONDS):  # these fall due one after the other, and some amid the others
            good.append(f"good-{number}")
            score = start + number / 2
            write_raw(client, good[-1], schedule=SELDOM, one_off=True, score=score, args=[number])
        for first in range(0, COUNT, 1000):
            with client.pipeline(transaction=False) as pipeline:
                for number in range(first, first + 1000):
                    name = f"bad-{number}"
                    write_raw(pipeline, name, score=start + 3, schedule=hourly, one_off=one_off, **fields)
                pipeline.execute()
        taken = [0.0]
        while server_now(client) <= start + SECONDS + 1:
            taken.append(seconds_to_read(client))
        eventually(lambda: all(client.exists(f"redbeat::history:{name}") for name in good))
        left = due_count(client)
        output = beat.output()
        beat.stop()
    lines = Counter(re.findall(r"ERROR|Sending due task bad", output))
    seen = watch(client, good)
    print(
        f"{kind}, one-off: {one_off}: canary's longest gap {seen.gap:.2f} s, others late by "
        f"{seen.lateness:.2f} s at most; a program reads them all in {max(taken):.2f} s; "
        f"{COUNT - left} of {COUNT} were tried; log: {dict(lines)}"
    )
    assert lines["Sending due task bad"] == 0
    assert lines["ERROR"] < 20
    # on a quiet machine these are 2 seconds, and 1: half a second to look at all that is due, twice
    assert seen.gap < 1 + 2 * max(0.5, *taken)
    assert seen.lateness < 2 * max(0.5, *taken)
