"""A schedule with entries of every kind, and what stands in Redis of it, whatever the layout.

Keys are spelled out here on purpose, and not taken from redbeat: they are the contract.
"""

from __future__ import annotations

import json
import random
import re
import time
from binascii import crc_hqx
from typing import Any

import pytest
import redis

from redbeat.reshard.resharding import Report, Resharding
from redbeat.store.store import Store
from tests.conftest import MakeApp

BASE = b"redbeat:"
#: what is kept for an entry under its name
OF_ENTRIES = re.compile(rb":(history|backfilled|running|failing):")
#: what is one for all shards, or says how they are changed
APART = (b":layout", b":generation")
#: what names of entries begin with: other keys, parts of them, and what is no text
ODD = [
    *(b"{redbeat:3}:", b"redbeat:{redbeat:1}:schedule", b"redbeat::running:", b"moving:", b"schedule"),
    *(b"::", b":own:", b"{", b"}{", b"a{b}", b"{}", b":later:{redbeat:0}:", b"*", b"[a]\\?"),
    *(b"with space\t", b"\n", b"\0", b"\xff\xfe", b"\xed\xa0\x80", b":later:\xff", b"x" * 4096),
]
#: what each part keeps for no entry
OF_NO_ENTRY = {
    *(b":totals", b":figures", b":minutes", b":labels"),
    *(b":failures", b":workers", b":events", b":events-read"),
}
ZSETS = {b":schedule", b":later", b":expected", b":streaks", b":deadlines"}
SETS = {b":statics", b":static-owners"}


def part_of(name: bytes, shards: int | None, base: bytes = BASE) -> bytes:
    """The prefix of the part that an entry belongs to."""
    return base if shards is None else beginning_of(base) + b"%d}:" % (crc_hqx(name, 0) % shards)


def beginning_of(base: bytes) -> bytes:
    """What the prefixes of all shards begin with."""
    return b"{" + base.removesuffix(b":").translate(None, b"{}") + b":"


def fill(client: Any, chance: random.Random, count: int, base: bytes = BASE) -> list[bytes]:
    """Write entries of every kind by hand to a schedule without shards; return their names.

    Arguments:
        client: one that doesn't decode.
    """
    names = [_name(chance, number) for number in range(count)]
    with client.pipeline(transaction=False) as pipeline:
        for name in names:
            _write(pipeline, chance, name, base)
        pipeline.execute()
    return names


def _name(chance: random.Random, number: int) -> bytes:
    kind = chance.random()
    if kind < 0.1:
        return b":later:%08x-%d" % (chance.getrandbits(32), number)
    if kind < 0.2:
        return f"n\u00e4me:{number}".encode()
    if kind < 0.35:
        return chance.choice(ODD) + b"%d" % number
    return b"entry-%d" % number


def _write(client: Any, chance: random.Random, name: bytes, prefix: bytes) -> None:
    now = time.time()
    key, is_message = prefix + name, name.startswith(b":later:")
    definition = {"name": name.decode("utf-8", "replace"), "task": "echo", "enabled": chance.random() < 0.9}
    client.hset(key, "definition", json.dumps(definition))
    score = chance.choice([now + 3600 * chance.random() + 60, float(int(now) + 900), -1.0, now + 86400.25])
    if is_message:
        client.hset(key, "message", json.dumps({"task_id": name[7:].decode("utf-8", "replace")}))
        if chance.random() < 0.5:
            client.set(prefix + b":body:" + name[7:], bytes(chance.getrandbits(8) for _ in range(40)))
            client.hset(key, "body_bytes", 40)
        client.zadd(prefix + b":later", {key: score})
        return
    kind = chance.random()
    if kind < 0.1 and not name.startswith((prefix, beginning_of(prefix))):  # else it would be another's key
        client.zadd(prefix + b":schedule", {name: score})  # a bare name
    elif kind < 0.2:
        client.hset(prefix + b":downgraded", key, f"{score} static" if chance.random() < 0.5 else f"{score}")
    elif kind < 0.25:
        client.delete(key)  # a member without a hash, which beat removes
        client.zadd(prefix + b":schedule", {key: score})
        return
    else:
        client.zadd(prefix + b":schedule", {key: score})
    if chance.random() < 0.7:
        client.hset(key, "meta", json.dumps({"last_run_at": None, "total_run_count": chance.randrange(9)}))
        client.hset(key, "meta_sha1", f"{chance.getrandbits(160):040x}")
    if chance.random() < 0.3:
        client.hset(key, "policy", json.dumps({"jitter": chance.randrange(60)}))
    if chance.random() < 0.1:
        client.hset(key, "error", json.dumps({"reason": "broken", "attempts": 0}))
    if chance.random() < 0.1:
        client.hset(key, "lease", f"{now - 99:.6f} {now - 100:.6f}")  # an old one
    if chance.random() < 0.1:
        client.hset(key, b"\x00binary\xff", bytes(range(256)))
    for number in range(chance.choice([0, 0, 1, 3, 20])):
        client.rpush(
            prefix + b":history:" + name, json.dumps({"at": now - 60 * number, "due": now - 60 * number})
        )
    if chance.random() < 0.2:
        client.sadd(prefix + b":backfilled:" + name, "1", "2")
    if chance.random() < 0.2:
        client.set(prefix + b":failing:" + name, chance.randrange(1, 9))
        client.zadd(prefix + b":streaks", {prefix + b":running:" + name: 3})
    if chance.random() < 0.3:
        running = prefix + b":running:" + name
        for number in range(chance.randrange(1, 4)):
            task_id = b"id-%d" % number
            client.hset(running, task_id, json.dumps({"state": "started", "due": f"{now - 60:.6f}"}))
            client.zadd(prefix + b":deadlines", {task_id + b"\0" + running: now + 60 + number})
        if chance.random() < 0.5:
            client.hset(running, "", json.dumps({"due": "1.5", "for": "id-9"}))
            client.zadd(prefix + b":deadlines", {b"\0" + running: now + 99})
        client.zadd(prefix + b":expected", {running: now + 999})
    if chance.random() < 0.1:
        client.set(prefix + b":backfilling:" + name, "who", px=900_000)
    if chance.random() < 0.1:
        client.set(
            prefix + b":backfilling:" + name + b":" + b"%064x" % chance.getrandbits(256), "2", px=900_000
        )
    if chance.random() < 0.2:
        client.sadd(prefix + b":statics", name)
        client.sadd(
            prefix + b":static-owners",
            *(b"owner%d\t%b" % (one, name) for one in range(chance.randrange(1, 3))),
        )
    if chance.random() < 0.2:
        client.hset(key, "owner", "team")
        client.sadd(prefix + b":owner:team", name)


def fill_own(client: Any, chance: random.Random, base: bytes = BASE) -> None:
    """Write what a schedule without shards keeps for no entry."""
    for number in range(5):
        at = b"%d-%d" % (1000 + number, chance.randrange(9))
        client.hset(base + b":totals", f"{number}:sent", chance.randrange(99))
        client.hset(base + b":figures", f"{number}:sent", chance.randrange(99))
        client.hset(base + b":labels", number, json.dumps(["echo", "celery", "", False]))
        client.hset(base + b":workers", f"celery@{number}", "{}")
        client.hset(
            base + b":minutes", number, json.dumps({"minute": number, "counted": {"sent": 1 + number}})
        )
        client.xadd(base + b":failures", {"entry": f"failed-{number}"}, id=at)
        client.xadd(base + b":events", {"entry": f"event-{number}"}, id=at)
    client.set(base + b":events-read", "0-0", px=900_000)


def read_own(client: Any, base: bytes = BASE) -> dict[str, Any]:
    """Return the data without an entry of all shards together."""
    found: dict[str, Any] = {"totals": {}, "figures": {}, "minutes": {}, "labels": {}, "workers": {}}
    found |= {"failures": [], "events": []}
    for prefix in (base, *(beginning_of(base) + b"%d}:" % shard for shard in range(32))):
        for kind in ("totals", "figures"):
            for word, amount in client.hgetall(prefix + b":" + kind.encode()).items():
                found[kind][word] = found[kind].get(word, 0) + int(amount)
        for text in client.hvals(prefix + b":minutes"):
            minute = json.loads(text)
            counted = found["minutes"].setdefault(minute["minute"], 0)
            found["minutes"][minute["minute"]] = counted + minute["counted"]["sent"]
        found["labels"] |= client.hgetall(prefix + b":labels")
        found["workers"] |= client.hgetall(prefix + b":workers")
        told = (client.get(prefix + b":events-read") or b"0-0").split()[0]
        found["failures"] += (values[b"entry"] for _, values in client.xrange(prefix + b":failures"))
        rows = client.xrange(prefix + b":events", b"(" + told)
        found["events"] += (values[b"entry"] for _, values in rows)
    return {kind: sorted(one) if isinstance(one, list) else one for kind, one in found.items()}


def read_all(client: Any, base: bytes = BASE) -> tuple[dict[bytes, Any], list[str]]:
    """All that is kept for entries, by key without prefix; and what is in a wrong place.

    Where something belongs follows from redbeat::layout.
    """
    layout = client.hgetall(base + b":layout")
    shards = int(layout.get(b"shards", 0)) or None
    found: dict[bytes, Any] = {}
    wrong: list[str] = []
    shard_at = re.compile(re.escape(beginning_of(base)) + rb"\d+\}:")

    def note(place: bytes, value: Any, name: bytes, prefix: bytes) -> None:
        if prefix != part_of(name, shards, base):
            wrong.append(f"{prefix!r} {place!r}")
        if place in found:
            wrong.append(f"twice: {place!r}")
        found[place] = value

    for key in sorted(client.scan_iter(count=1000)):
        match = shard_at.match(key)
        prefix = match[0] if match else base
        if not key.startswith(prefix):
            continue
        rest = key[len(prefix) :]
        if rest in APART or rest in OF_NO_ENTRY:
            continue
        value = _value(client, key)
        if value is None:  # it has ended meanwhile
            continue
        if rest in ZSETS:
            for member, score in value.items():
                owner = member.partition(b"\0")[2] if rest == b":deadlines" else member
                if not owner.startswith(prefix):
                    note(rest + b" bare " + owner, score, owner, prefix)
                    continue
                name = owner[len(prefix) :]
                if rest not in {b":schedule", b":later"}:
                    name = name.removeprefix(b":running:")
                note(rest + b" " + member.replace(prefix, b"", 1), score, name, prefix)
        elif rest in SETS or rest.startswith(b":owner:"):
            for member in value:
                name = member.partition(b"\t")[2] if rest == b":static-owners" else member
                note(rest + b" " + member, True, name, prefix)
        elif rest == b":downgraded":
            for field, text in value.items():
                note(rest + b" " + field[len(prefix) :], text, field[len(prefix) :], prefix)
        elif rest.startswith(b":body:"):
            note(rest, value, rest.replace(b":body:", b":later:", 1), prefix)
        elif rest.startswith(b":backfilling:"):
            name = re.sub(rb":[0-9a-f]{64}$", b"", rest.removeprefix(b":backfilling:"))
            lives_ms = client.pttl(key)
            if not 600_000 < lives_ms <= 900_000:
                wrong.append(f"{key!r} lives for {lives_ms}")
            note(rest, value, name, prefix)
        elif kept := OF_ENTRIES.match(rest):
            note(rest, value, rest[kept.end() :], prefix)
        elif rest.startswith(b":") and not rest.startswith((b"::", b":own:", b":later:")):
            wrong.append(f"left: {key!r}")
        else:
            note(rest, value, rest, prefix)
    return found, wrong


def _value(client: Any, key: bytes) -> Any:
    kind = client.type(key)
    reads = {
        b"hash": lambda: client.hgetall(key),
        b"list": lambda: client.lrange(key, 0, -1),
        b"set": lambda: client.smembers(key),
        b"string": lambda: client.get(key),
        b"zset": lambda: dict(client.zrange(key, 0, -1, withscores=True)),
        b"stream": lambda: client.xrange(key),
        b"none": lambda: None,
    }
    return reads[kind]()


class Killed(BaseException):
    """Raised between two round trips of a mover, in place of kill -9."""


class Mortal(Store):
    """A store that dies after some round trips."""

    left = 10**9

    def on_round_trip(self) -> None:  # type: ignore[override]
        self.left -= 1
        if self.left < 0:
            raise Killed


def reshard(make_app: MakeApp, shards: int | None, chance: random.Random | None = None) -> tuple[Report, int]:
    """Do it, killed now and then; return the report, and how often it was killed."""
    killed = 0
    while True:
        store = Mortal(make_app())
        store.left = chance.choice([1, 5, 20, 60]) + chance.randrange(20) if chance else 10**9
        try:
            return Resharding(store.config.app, shards, store).run(), killed
        except Killed:
            killed += 1
            if killed > 500:
                raise AssertionError("it gets nowhere") from None
            if killed > 20:
                chance = None


def hidden_keys(raw: redis.Redis) -> list[bytes]:
    """The keys of what is hidden, in any part; entries may have names like them."""
    found = raw.scan_iter("*:moving*", count=1000)
    return sorted(key for key in found if re.match(rb"(redbeat:|\{redbeat:\d+\}:):moving", key))


def kill_with_hidden(make_app: MakeApp, raw: redis.Redis, shards: int | None, state: bytes) -> None:
    """Reshard until something is hidden in this state, and end as kill -9 does."""

    class Dying(Mortal):
        def on_round_trip(self) -> None:  # type: ignore[override]
            if hidden_keys(raw) and raw.hget("redbeat::layout", "state") == state:
                raise Killed

    store = Dying(make_app())
    with pytest.raises(Killed):
        Resharding(store.config.app, shards, store).run()
    assert hidden_keys(raw)
