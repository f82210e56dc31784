"""No entry makes beat write to a key of RedBeat's own, of another entry, or of the broker's.

Schedule and broker are in one database here, where a queue named like a key is that key.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import redis
from celery import Celery
from kombu import Queue

import redbeat.later
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.config.config import ensure_conf
from redbeat.errors import EntryError, MessageRefused
from redbeat.store.layouts import look_up_layout
from redbeat.store.store import Store
from tests.conftest import MakeApp
from tests.support.polling import eventually
from tests.support.servers import Server
from tests.support.ticks import leader

PREFIXES = [("redbeat:", None), ("shop.", None), ("redbeat:", 4)]
#: RedBeat's own, another entry's, a shard's, kombu's own, results
RESERVED = [
    *("{p}:generation", "{p}:layout", "{p}:later", "{p}:tokens", "{p}:beats", "{p}:history:other"),
    *("{p}:schedule", "{p}:statics", "{p}:lock", "{p}:calendar:holidays", "{p}:unknown", "{p}other"),
    *("{p}:generation\x06\x163", "{s}3}}:schedule", "{s}3}}:generation", "{s}0}}:other", "{s}17}}::lock"),
    *("unacked", "unacked_index", "unacked_mutex", "_kombu.binding.celery", "celery-task-meta-1"),
]


@pytest.fixture
def client(server: Server) -> Iterator[redis.Redis]:
    with server.client(db=0) as connected:
        yield connected


@pytest.fixture(params=PREFIXES, ids=lambda param: f"{param[0]} {param[1] or 'no'} shards")
def app(request: pytest.FixtureRequest, make_app: MakeApp, server: Server) -> Celery:
    prefix, shards = request.param
    settings: dict[str, Any] = {"redbeat_key_prefix": prefix, "redbeat_redis_url": server.url(0)}
    made = make_app(**settings, **({"redbeat_shards": shards} if shards else {}))
    redbeat.later.install(made)
    look_up_layout(Store(made), is_beat=True)
    return made


def name_in(app: Celery, name: str) -> str:
    """A reserved name of this app: {p} is its prefix, {s} what its shards' prefixes begin with."""
    prefix = app.redbeat_conf.key_prefix
    plain = prefix.removesuffix(":").strip("{}")
    return name.format(p=prefix, s=f"{{{plain}:")


def write_raw(app: Celery, client: redis.Redis, name: str, options: Any) -> None:
    """An entry as a program writes it that knows the keys alone."""
    schedule = {"__type__": "interval", "every": 60}
    definition = {"name": name, "task": "tasks.echo", "schedule": schedule, "options": options}
    client.hset(ensure_conf(app).keys.entry(name), "definition", json.dumps(definition))
    let_be_due(app, client, [name])


def let_be_due(app: Celery, client: redis.Redis, names: Iterable[str]) -> None:
    for name in names:
        part = Store(app).parts.home(name)
        client.zadd(part.schedule, {part.entry(name): time.time() - 1})


def send_all(app: Celery) -> None:
    with leader(app) as scheduler:
        eventually(lambda: scheduler.tick() > 0)


def lists_of(client: redis.Redis) -> dict[str, int]:
    """All lists but histories, with their lengths."""
    keys = [*client.scan_iter("*", _type="list")]
    return {key: client.llen(key) for key in keys if ":history:" not in key}


@pytest.mark.parametrize(
    ("field", "nested"),
    [("queue", ""), ("exchange", ""), ("routing_key", ""), ("reply_to", "link"), ("queue", "link_error")],
)
def test_entry_with_a_reserved_queue_is_refused_at_save_and_quarantined_when_written_raw(
    app: Celery, client: redis.Redis, field: str, nested: str
) -> None:
    names = [name_in(app, one) for one in RESERVED]
    Entry("other", "tasks.echo", 60, app=app).save()
    for number, name in enumerate(names):
        options: Any = {field: name}
        if nested:
            options = {nested: {"task": "tasks.echo", "args": [], "kwargs": {}, "options": options}}
        with pytest.raises(EntryError, match=f"options: .*{field}"):
            Entry("report", "tasks.echo", 60, options=options, app=app).save()
        write_raw(app, client, f"raw-{number}", options)
    write_raw(app, client, "good", {"queue": "emails"})
    send_all(app)
    for number in range(len(names)):
        error = client.hget(app.redbeat_conf.keys.entry(f"raw-{number}"), "error")
        assert field in error, error
    assert lists_of(client) == {"emails": 1}


def test_route_to_a_reserved_name_fails_its_entry_alone(app: Celery, client: redis.Redis) -> None:
    def route(name: str, args: Any, kwargs: Any, options: Any, **_: Any) -> dict[str, str] | None:
        return {"queue": kwargs["queue"]} if "queue" in kwargs else None

    app.conf.task_routes = (route,)
    names = [f"report-{number}" for number in range(len(RESERVED))]
    for name, reserved in zip(names, RESERVED, strict=True):
        Entry(name, "tasks.echo", 60, kwargs={"queue": name_in(app, reserved)}, app=app).save()
    Entry("other", "tasks.echo", 60, app=app).save()
    let_be_due(app, client, [*names, "other"])
    with leader(app) as scheduler:
        eventually(lambda: scheduler.tick() >= 0 and lists_of(client) == {"celery": 1})
    for name in names:
        assert re.search("reserved|begins with", Entry.get(name, app).history()[0].why)


@pytest.mark.parametrize("field", ["queue", "exchange", "routing_key", "binding"])
def test_delayed_task_with_a_reserved_name_is_not_sent(app: Celery, client: redis.Redis, field: str) -> None:
    ids = {name: app.send_task("tasks.echo", countdown=3600).id for name in [*RESERVED, ""]}
    for name, task_id in ids.items():
        key = app.redbeat_conf.keys.stored_message(task_id)
        message, reserved = json.loads(client.hget(key, "message") or ""), name_in(app, name)
        changes = {
            "queue": {"queues": [{"name": reserved, "exchange": ""}], "routing_key": reserved},
            "exchange": {"exchange": reserved, "queues": []},
            "routing_key": {"routing_key": reserved, "exchange": "", "queues": []},
            "binding": {
                "queues": [{"name": reserved, "exchange": "celery", "routing_key": "celery"}],
                "exchange": "celery",
            },
        }
        client.hset(key, "message", json.dumps({**message, **(changes[field] if name else {})}))
        client.zadd(Store(app).parts.of(key).later, {key: time.time() - 1})
    send_all(app)
    assert lists_of(client) == {"celery": 1}
    assert redbeat.later.count(app) == len(RESERVED)
    assert not any("redbeat" in member for member in client.smembers("_kombu.binding.celery"))
    with pytest.raises(MessageRefused):
        app.send_task("tasks.echo", countdown=3600, queue=name_in(app, RESERVED[0]))


def test_prefix_of_the_broker_does_not_lead_to_a_reserved_key(
    make_app: MakeApp, server: Server, client: redis.Redis
) -> None:
    app = make_app(redbeat_redis_url=server.url(0), broker_transport_options={"global_keyprefix": "redbeat:"})
    with pytest.raises(EntryError, match="queue"):
        Entry("report", "tasks.echo", 60, options={"queue": ":generation"}, app=app).save()
    write_raw(app, client, "raw", {"queue": ":generation"})
    write_raw(app, client, "good", {})
    send_all(app)
    assert client.type("redbeat::generation") == "none"
    assert client.llen("redbeat:celery") == 1, "queues may share the prefix of entries"


def test_declared_queue_below_the_prefix_is_allowed(
    make_app: MakeApp, server: Server, client: redis.Redis
) -> None:
    queues = [Queue("shop:emails"), Queue("shop::schedule")]
    app = make_app(redbeat_redis_url=server.url(0), redbeat_key_prefix="shop:", task_queues=queues)
    Entry("report", "tasks.echo", 60, options={"queue": "shop:emails"}, app=app).save()
    let_be_due(app, client, ["report"])
    with pytest.raises(EntryError, match="queue"):
        Entry("other", "tasks.echo", 60, options={"queue": "shop::schedule"}, app=app).save()
    with pytest.raises(EntryError, match="task_queues"):
        Entry("other", "tasks.echo", 60, options={"queue": "shop:new"}, app=app).save()
    send_all(app)
    assert client.llen("shop:emails") == 1


@pytest.mark.parametrize("key", ["redbeat::calendar:days", "redbeat::layout", ":moving"])
def test_member_of_the_schedule_that_names_an_own_key_leaves_it_unchanged(
    make_app: MakeApp, server: Server, client: redis.Redis, key: str
) -> None:
    app = make_app(redbeat_redis_url=server.url(0))
    fields = {"about": "", "2026-12-25": "Christmas", "definition": "{}"}
    owned = key if key.startswith("redbeat:") else f"redbeat:{key}"
    client.hset(owned, mapping=fields)
    client.zadd("redbeat::schedule", {key: 1})
    write_raw(app, client, "good", {})
    send_all(app)
    assert client.hgetall(owned) == fields
    assert client.llen("celery") == 1
