"""A schedule with entries of every kind, what Redis holds of it, and reshards that are killed.

Keys are spelled out here on purpose, and not taken from redbeat: they are the contract.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import threading
import time
from binascii import crc_hqx
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import redis
from celery import Celery

from redbeat.reshard.resharding import Report, Resharding
from redbeat.reshard.sweeping import Sweeper
from redbeat.store.layouts import look_up_layout
from redbeat.store.store import Store
from tests.conftest import MakeApp

BASE = b"redbeat:"
#: the layout, and what each shard keeps for no entry
OF_NO_ENTRY = {
    *(b":layout", b":generation", b":totals", b":figures", b":minutes", b":labels"),
    *(b":failures", b":workers", b":events", b":events-read"),
}
#: what is kept for one entry, under its name
OF_AN_ENTRY = re.compile(rb":(history|backfilled|backfilling|running|failing|body):")
#: what names of entries begin with: other keys, parts of them, and what is no text
ODD = [
    *(b"{redbeat:3}:", b"redbeat:{redbeat:1}:schedule", b"redbeat::running:", b"moving:", b"schedule"),
    *(b"::", b":own:", b"{", b"}{", b"a{b}", b"{}", b":later:{redbeat:0}:", b"*", b"[a]\\?"),
    *(b"with space\t", b"\n", b"\0", b"\xff\xfe", b"\xed\xa0\x80", b":later:\xff", b"x" * 4096),
]
ZSETS = {b":schedule", b":later", b":expected", b":streaks", b":deadlines"}


def part_of(name: bytes, shards: int | None, base: bytes = BASE) -> bytes:
    """The prefix of the part that an entry belongs to."""
    return base if shards is None else beginning_of(base) + b"%d}:" % (crc_hqx(name, 0) % shards)


def beginning_of(base: bytes) -> bytes:
    """What the prefixes of all shards begin with."""
    return b"{" + base.removesuffix(b":").translate(None, b"{}") + b":"


def fill(client: Any, chance: random.Random, count: int, base: bytes = BASE) -> None:
    """Write entries of every kind by hand to a schedule without shards; `client` doesn't decode."""
    with client.pipeline(transaction=False) as pipeline:
        for number in range(count):
            _write(pipeline, chance, _name(chance, number), base)
        pipeline.execute()


def _name(chance: random.Random, number: int) -> bytes:
    kind = chance.random()
    if kind < 0.1 or number == 0:  # one at least, with a body
        return b":later:%08x-%d" % (chance.getrandbits(32), number)
    if kind < 0.2:
        return f"n\u00e4me:{number}".encode()
    if kind < 0.35:
        return chance.choice(ODD) + b"%d" % number
    return b"entry-%d" % number


def _write(client: Any, chance: random.Random, name: bytes, prefix: bytes) -> None:
    now, key, schedule = time.time(), prefix + name, prefix + b":schedule"

    def write(command: str, key: bytes, *words: object) -> None:
        client.execute_command(command, key, *words)

    def may_write(probability: float, *words: Any) -> bool:
        if is_written := chance.random() < probability:
            write(*words)
        return is_written

    write("HSET", key, "definition", json.dumps({"task": "echo", "enabled": chance.random() < 0.9}))
    score = chance.choice([now + 3600 * chance.random() + 60, float(int(now) + 900), -1.0, now + 86400.25])
    if name.startswith(b":later:"):
        write("HSET", key, "message", json.dumps({"task_id": name[7:].decode("utf-8", "replace")}))
        may_write(
            1.0 if name.endswith(b"-0") else 0.5, "SET", prefix + b":body:" + name[7:], chance.randbytes(40)
        )
        write("ZADD", prefix + b":later", score, key)
        return
    kind = chance.random()
    if kind < 0.1 and not name.startswith((prefix, beginning_of(prefix))):  # else it would be another's key
        write("ZADD", schedule, score, name)  # a bare name
    elif kind < 0.2:
        write("HSET", prefix + b":downgraded", key, chance.choice([f"{score} static", f"{score}"]))
    else:
        write("ZADD", schedule, score, key)
    if 0.2 <= kind < 0.25:
        write("DEL", key)  # a member without a hash, which beat removes
        return
    may_write(0.7, "HSET", key, "meta", '{"total_run_count": 7}', "meta_crc32", "5" * 40)
    may_write(0.3, "HSET", key, "policy", f'{{"jitter": {chance.randrange(60)}}}')
    may_write(0.1, "HSET", key, "error", '{"reason": "broken", "attempts": 0}')
    may_write(0.1, "HSET", key, "lease", f"{now - 99:.6f} {now - 100:.6f}")  # an old one
    may_write(0.1, "HSET", key, b"\x00binary\xff", bytes(range(256)))
    runs = [json.dumps({"at": now - 60 * number}) for number in range(chance.choice([1, 3, 20]))]
    may_write(0.6, "RPUSH", prefix + b":history:" + name, *runs)
    may_write(0.2, "SADD", prefix + b":backfilled:" + name, "1", "2")
    running, deadlines = prefix + b":running:" + name, prefix + b":deadlines"
    if may_write(0.2, "SET", prefix + b":failing:" + name, chance.randrange(1, 9)):
        write("ZADD", prefix + b":streaks", 3, running)
    if may_write(0.3, "ZADD", prefix + b":expected", now + 999, running):
        for task_id in (b"id-1", b"id-2"):
            write("HSET", running, task_id, f'{{"due": "{now - 60:.6f}"}}')
            write("ZADD", deadlines, now + 60, task_id + b"\0" + running)
        if may_write(0.5, "HSET", running, "", '{"due": "1.5", "for": "id-9"}'):
            write("ZADD", deadlines, now + 99, b"\0" + running)
    backfilling = prefix + b":backfilling:" + name
    may_write(0.1, "SET", backfilling, "who", "PX", 900_000)
    if may_write(0.2, "SADD", prefix + b":statics", name):
        owners = (b"owner%d\t%b" % (one, name) for one in range(chance.randrange(1, 3)))
        write("SADD", prefix + b":static-owners", *owners)
    if may_write(0.2, "HSET", key, "owner", "team"):
        write("SADD", prefix + b":owner:team", name)


def fill_own(client: Any, chance: random.Random) -> None:
    """Write what a schedule without shards keeps for no entry."""
    for number in range(5):
        at = b"%d-%d" % (1000 + number, chance.randrange(9))
        for kind in ("totals", "figures"):
            client.hset(f"redbeat::{kind}", f"{number}:sent", chance.randrange(99))
        client.hset("redbeat::labels", number, json.dumps(["echo", "celery", "", False]))
        client.hset("redbeat::workers", f"celery@{number}", "{}")
        minute = {"minute": number, "counted": {"sent": 1 + number}}
        client.hset("redbeat::minutes", number, json.dumps(minute))
        for kind in ("failures", "events"):
            client.xadd(f"redbeat::{kind}", {"entry": f"{kind}-{number}"}, id=at)
    client.set("redbeat::events-read", "0-0", px=900_000)


def read_own(client: Any) -> dict[str, Any]:
    """Return the data without an entry of all shards together."""
    found: dict[str, Any] = {kind: Counter() for kind in ("totals", "figures", "minutes")}
    found |= {"labels": {}, "workers": {}, "failures": [], "events": []}
    for prefix in ("redbeat:", *(f"{{redbeat:{shard}}}:" for shard in range(32))):
        for kind in ("totals", "figures"):
            counts = client.hgetall(f"{prefix}:{kind}")
            found[kind].update({word: int(count) for word, count in counts.items()})
        for minute in map(json.loads, client.hvals(f"{prefix}:minutes")):
            found["minutes"][minute["minute"]] += minute["counted"]["sent"]
        for kind in ("labels", "workers"):
            found[kind] |= client.hgetall(f"{prefix}:{kind}")
        told = (client.get(f"{prefix}:events-read") or b"0-0").split()[0]
        found["failures"] += [values[b"entry"] for _, values in client.xrange(f"{prefix}:failures")]
        found["events"] += [v[b"entry"] for _, v in client.xrange(f"{prefix}:events", b"(" + told)]
    return {kind: sorted(one) if isinstance(one, list) else one for kind, one in found.items()}


def read_all(client: Any, base: bytes = BASE) -> tuple[dict[bytes, Any], list[str]]:
    """All that is kept for entries, by key without prefix; and what is in a wrong place.

    Where something belongs follows from redbeat::layout.
    """
    shards = int(client.hget(base + b":layout", "shards") or 0) or None
    found: dict[bytes, Any] = {}
    wrong: list[str] = []
    shard_at = re.compile(re.escape(beginning_of(base)) + rb"\d+\}:")
    for key in sorted(client.scan_iter(count=1000)):
        match = shard_at.match(key)
        prefix = match[0] if match else base
        rest = key.removeprefix(prefix)
        if rest == key or rest in OF_NO_ENTRY:
            continue
        if rest.startswith(b":backfilling:") and not 600_000 < client.pttl(key) <= 900_000:
            wrong.append(f"{key!r} lives for another time")
        for place, value, name in _rows(rest, _value(client, key), prefix):
            if name is None:
                wrong.append(f"left: {key!r}")
                continue
            if prefix != part_of(name, shards, base):
                wrong.append(f"{prefix!r} {place!r}")
            if place in found:
                wrong.append(f"twice: {place!r}")
            found[place] = value
    return found, wrong


def _rows(rest: bytes, value: Any, prefix: bytes) -> Iterator[tuple[bytes, Any, bytes | None]]:
    """Yield place, value and entry's name of each thing in a key; None: it is no entry's."""
    if value is None:  # it has ended meanwhile
        return
    if rest in ZSETS:
        for member, score in value.items():
            owner = member.partition(b"\0")[2] if rest == b":deadlines" else member
            if not owner.startswith(prefix):
                yield rest + b" bare " + owner, score, owner
                continue
            name = owner.removeprefix(prefix)
            if rest not in {b":schedule", b":later"}:
                name = name.removeprefix(b":running:")
            yield rest + b" " + member.replace(prefix, b"", 1), score, name
    elif rest in {b":statics", b":static-owners"} or rest.startswith(b":owner:"):
        for member in value:
            name = member.partition(b"\t")[2] if rest == b":static-owners" else member
            yield rest + b" " + member, True, name
    elif rest == b":downgraded":
        for field, text in value.items():
            name = field.removeprefix(prefix)
            yield rest + b" " + name, text, name
    elif kept := OF_AN_ENTRY.match(rest):
        name = rest[kept.end() :]
        yield rest, value, b":later:" + name if kept[1] == b"body" else name
    elif rest.startswith(b":") and not rest.startswith((b"::", b":own:", b":later:")):
        yield rest, value, None
    else:
        yield rest, value, rest


def _value(client: Any, key: bytes) -> Any:
    reads: dict[bytes, Callable[[bytes], Any]] = {
        b"hash": client.hgetall,
        b"list": lambda key: client.lrange(key, 0, -1),
        b"set": client.smembers,
        b"string": client.get,
        b"zset": lambda key: dict(client.zrange(key, 0, -1, withscores=True)),
        b"stream": client.xrange,
        b"none": lambda _: None,
    }
    return reads[client.type(key)](key)


class Killed(BaseException):
    """Raised between two round trips of a mover, in place of kill -9."""


def mortal(app: object, is_time: Callable[[], bool]) -> Store:
    """A store that asks before and after each round trip whether it is time to be killed."""

    def look() -> None:
        if is_time():
            raise Killed

    store = Store(app)
    store.on_round_trip = look  # type: ignore[method-assign]
    return store


def after(round_trips: int) -> Callable[[], bool]:
    """Return what is true when it has been asked so often."""
    count = itertools.count()
    return lambda: next(count) >= round_trips


def end_leases(app: Celery) -> None:
    """Let the time of all movers be over."""
    store = Store(app)
    for key in store.client.scan_iter(match="*:mover", count=1000):
        store.client.delete(key)


def sweep(app: Celery) -> list[str]:
    """Look once as a beat does for what was written to former places; return the names of what was moved."""
    store = Store(app)
    look_up_layout(store)
    return Sweeper(store).look()


def reshard(make_app: MakeApp, shards: int | None, is_time: Callable[[], bool] = lambda: False) -> Report:
    """Reshard, or raise Killed when it is time; the lease of one that was killed before has ended."""
    app = make_app()
    end_leases(app)
    return Resharding(app, shards, mortal(app, is_time)).run()


def hidden_keys(raw: redis.Redis) -> list[bytes]:
    """The keys of what is hidden, in any part; entries may have names like them."""
    found = raw.scan_iter("*:moving*", count=1000)
    return sorted(key for key in found if re.match(rb"(redbeat:|\{redbeat:\d+\}:):moving", key))


def is_amid(raw: redis.Redis, phase: str) -> Callable[[], bool]:
    """Return what is true while entries are "moving" to a layout, or once all have "arrived"."""
    seen: list[bool] = []

    def look() -> bool:
        seen.append(raw.hget("redbeat::layout", "state") == b"moving")
        return seen[-1] if phase == "moving" else any(seen) and not seen[-1]

    return look


def has_hidden(raw: redis.Redis, phase: str) -> Callable[[], bool]:
    """Return what is true when something is hidden in this phase of a change."""
    is_time = is_amid(raw, phase)
    return lambda: is_time() and bool(hidden_keys(raw))


class Repeated:
    """Repeats each of some steps in a thread of its own until the block ends; an error fails the test.

    Attributes:
        counts: how often each step was done.
    """

    def __init__(self, steps: Sequence[Callable[[], object]], pause_seconds: float = 0.0) -> None:
        self.counts = [0] * len(steps)
        #: a thread whose lock is held by another one rests
        self.locks = [threading.Lock() for _ in steps]
        self._steps, self._pause_seconds = steps, pause_seconds
        self._is_over = threading.Event()
        self._pool = ThreadPoolExecutor(len(steps))

    def __enter__(self) -> Repeated:
        self._working = [self._pool.submit(self._repeat, place) for place in range(len(self._steps))]
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.stop()
        if kind is None:
            self.check()

    def stop(self) -> None:
        self._is_over.set()
        self._pool.shutdown()

    def _repeat(self, place: int) -> None:
        while not self._is_over.wait(self._pause_seconds):
            with self.locks[place]:
                self._steps[place]()
            self.counts[place] += 1

    def check(self) -> None:
        """Raise the error of a step that has failed."""
        for one in self._working:
            if one.done():
                one.result()
