"""A script that is given many entries does with each what it would do with it alone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat.keys import Keys
from redbeat.store.members import Members
from redbeat.store.orphans import Orphans
from redbeat.store.owners import Owners
from redbeat.store.records import Claimed, Clear, Commit, Ending, Fence, KeyType
from redbeat.store.scripts.orphans import Remains
from redbeat.store.scripts.repairs import Member
from redbeat.store.store import Store
from tests.support.doctoring import everything

KEYS = Keys()
DEFINITION = json.dumps({"task": "echo", "schedule": {"__type__": "interval", "every": 60}})
#: in an order in which what comes of one would spoil the next
NAMES = ("good", "gone", "changed", "text", "good2", "unscheduled", "other-score", "gone2", "list", "last")


def furnish(client: redis.Redis) -> None:
    """Entries that are as they were claimed, and others that aren't any more."""
    for name in NAMES:
        entry, history, backfilled = KEYS.about(name)[:3]
        if name.startswith("gone"):
            pass
        elif name in ("text", "list"):
            client.set(entry, "x") if name == "text" else client.rpush(entry, "x")
        else:
            definition = DEFINITION + " " * (name == "changed")
            client.hset(entry, mapping={"definition": definition, "meta": "{}", "error": name, "owner": name})
        client.rpush(history, name)
        client.sadd(backfilled, name)
        client.sadd(KEYS.statics, name)
        client.sadd(KEYS.static_owners, f"app\t{name}")
        if name != "unscheduled":
            client.zadd(KEYS.schedule, {entry: 7 if name == "other-score" else 5})


def commit(store: Store, names: list[str]) -> list[Any]:
    endings = {"good2": Ending.DELETE, "last": Ending.UNSCHEDULE}
    commits = [
        Commit(
            Claimed(KEYS.about(name).entry, "5", DEFINITION, "{}", score="5"),
            endings.get(name, "65"),
            new_meta=json.dumps({"of": name}),
            new_error=Clear.FIELD if name == "good" else name,
            is_for_this_definition=True,
        )
        for name in names
    ]
    return store.commit_runs(Fence(), commits).results


def read(store: Store, names: list[str]) -> list[Any]:
    return store.read_entries([KEYS.about(name).entry for name in names])[1]


@pytest.mark.parametrize(
    "fields",
    [
        {"definition": DEFINITION, "meta": "{}"},
        {"definition": "a\0b", "meta": "{}"},
        {"definition": DEFINITION, "meta": "{}\0{}\0"},
        {"definition": "", "meta": "{}"},
        {"definition": DEFINITION},
        {"meta": "{}"},
        {"definition": DEFINITION, "meta": "{}", "policy": "{}"},
        {"definition": DEFINITION, "meta": "{}", "error": "{}"},
        {"definition": DEFINITION, "meta": "{}", "revision": ""},
        {"definition": "é\udcff", "meta": "{}"},
    ],
)
@pytest.mark.parametrize("score", [None, 5.5, -1.0, float("inf")])
def test_an_entry_is_read_as_it_is(
    app: Celery, client: redis.Redis, fields: dict[str, str], score: float | None
) -> None:
    key = KEYS.entry("one")
    texts = {name: text.encode("utf-8", "surrogateescape") for name, text in fields.items()}
    for meta_sha1 in (hashlib.sha1(texts.get("meta", b"")).hexdigest(), ""):
        client.hset(key, mapping={**texts, "meta_sha1": meta_sha1})
        if score is not None:
            client.zadd(KEYS.schedule, {key: score})
        [stored] = Store(app).read_entries([key])[1]
        found = {name: getattr(stored, name) for name in ("definition", "meta", "policy", "error")}
        assert {name: text for name, text in found.items() if text is not None} == {
            name: text for name, text in fields.items() if name != "revision"
        }
        assert (stored.score, stored.type, stored.unread_bytes) == (score, KeyType.HASH, 0)
        assert stored.is_meta_foreign == ("meta" in fields and not meta_sha1)
        assert bool(stored.revision) == ("revision" in fields)


def put_away(store: Store, names: list[str]) -> list[Any]:
    claimed = [replace(one, definition=DEFINITION) if one.is_hash else one for one in read(store, names)]
    return store.put_away([(one.key, one) for one in claimed], "mark").results


def drop(store: Store, names: list[str]) -> list[Any]:
    keys = [KEYS.about(name).entry for name in names]
    return Members(store).drop([Member(key, key) for key in keys])


def remove_orphans(store: Store, names: list[str]) -> list[Any]:
    remains = [
        Remains(about.entry, about.entry, name, [f"app\t{name}"], about.beside)
        for name, about in zip(names, map(KEYS.about, names), strict=True)
    ]
    return [1] * Orphans(store).remove(remains)


def delete(store: Store, names: list[str]) -> list[Any]:
    return [1] * store.delete_entries([KEYS.about(name).entry for name in names])


def read_owners(store: Store, names: list[str]) -> list[Any]:
    return Owners(store).read([KEYS.about(name).entry for name in names])


@pytest.mark.parametrize("do", [commit, read, put_away, drop, remove_orphans, delete, read_owners])
def test_each_entry_is_treated_as_if_it_was_alone(
    app: Celery, client: redis.Redis, do: Callable[[Store, list[str]], list[Any]]
) -> None:
    store = Store(app)
    furnish(client)
    before = everything(client)
    together = do(store, [*NAMES])
    found = everything(client)
    client.flushdb()
    furnish(client)
    assert [one for name in NAMES for one in do(store, [name])] == together
    assert everything(client) == found
    assert (found == before) == (do in (read, read_owners)), "it has done something"
