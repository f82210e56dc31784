"""Commits that are sent while the rest of their batch is made, and whose replies are read at the end."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import pytest
import redis
import redis.connection
from celery import Celery
from fakeredis import FakeRedis

from redbeat.connection.retry import RetryingConnection, without_retry
from redbeat.connection.stream import MIN_CONNECTIONS
from redbeat.errors import LockLost, StoreRefused
from redbeat.store import commits as module
from redbeat.store.records import Claimed, Commit, Fence, Target
from redbeat.store.scripts import CALL_COMMITS
from redbeat.store.store import Store
from tests.conftest import MakeApp
from tests.support.committing import commits_of, committing, push, states, target_of
from tests.support.fidelity import counting_round_trips
from tests.support.polling import eventually
from tests.support.proxy import Loss, Proxy
from tests.support.schedule import LOCK
from tests.support.servers import Server
from tests.support.ticks import memory_app
from tests.support.topologies import ClusterTopology, SentinelTopology

FENCE = Fence(LOCK, "mine", 60_000)


@pytest.fixture
def store(app: Celery) -> Store:
    """A store whose server knows the script already."""
    store = Store(app)
    load_script(store)
    store.client.set(LOCK, "mine")
    return store


def load_script(store: Store) -> None:
    store.commit_runs(Fence(), commits_of(store.client, [[]]))
    store.client.flushdb()


def pieces_of(client: redis.Redis, *sizes: int) -> list[list[Commit]]:
    """Due entries, each with a message to one queue; their commits, so many in each piece."""
    commits = iter(commits_of(client, [[push("queue", number)] for number in range(sum(sizes))]))
    return [[next(commits) for _ in range(size)] for size in sizes]


def arrived(broker: redis.Redis) -> list[int]:
    """The messages on the queue, the oldest first."""
    return [int(message) for message in reversed(broker.lrange("queue", 0, -1))]


def in_use(client: Any) -> int:
    """How many connections of the client's pool weren't given back."""
    return len(without_retry(client).connection_pool._in_use_connections)  # noqa: SLF001 - the pool has no other name for them


@contextmanager
def counting_reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    read: list[Any] = []
    original = redis.connection.AbstractConnection.read_response

    def reading(self: Any, *args: Any, **kwargs: Any) -> Any:
        read.append(self)
        return original(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(redis.connection.AbstractConnection, "read_response", reading)
        yield read


def test_pieces_are_recorded_and_pushed_before_anybody_waits_for_them(
    store: Store, client: redis.Redis, broker: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces, target = pieces_of(client, 100, 1, CALL_COMMITS + 20), target_of(client)
    with (
        committing(store, FENCE, target) as commits,
        counting_round_trips(monkeypatch) as sent,
        counting_reads(monkeypatch) as read,
    ):
        for piece in pieces:
            commits.write(piece)
        own, number_of_sent = {*read}, sent()
        eventually(lambda: broker.llen("queue") == 221)
        read.clear()
        committed = commits.finish()
    assert own == set(), "nothing was waited for"
    assert number_of_sent == 4, "each call is sent once"
    assert committed.results == [True] * 221
    assert arrived(broker) == [*range(221)]
    assert states(client, 221) == ["recorded"] * 221
    assert in_use(store.client) == 0


def test_what_has_changed_is_told_at_its_place(
    store: Store, client: redis.Redis, broker: redis.Redis
) -> None:
    broker.set("text", "no list")
    pieces = pieces_of(client, 3, 2)
    client.hset("redbeat:entry-1", "definition", "{}")
    pieces[1][0] = replace(pieces[1][0], pushes=(push("text", 3),))
    with committing(store, FENCE, target_of(client)) as commits:
        for piece in pieces:
            commits.write(piece)
        committed = commits.finish()
    assert committed.results[:3] == [True, False, True]
    assert "WRONGTYPE" in str(committed.results[3])
    assert committed.results[4] is True
    assert arrived(broker) == [0, 2, 4]


def test_nothing_written_is_nothing_recorded(store: Store) -> None:
    with committing(store, FENCE) as commits:
        commits.write([])
        assert commits.finish().results == []


def test_messages_for_another_server_stay(store: Store, client: redis.Redis, broker: redis.Redis) -> None:
    [piece] = pieces_of(client, 2)
    with committing(store, FENCE, Target("other", 1, 0)) as commits:
        commits.write(piece)
        committed = commits.finish()
    assert (committed.is_moved, committed.results) == (True, [False, False])
    assert arrived(broker) == []


def test_few_replies_are_left_on_their_way(
    store: Store, client: redis.Redis, broker: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else they could fill all buffers between here and the server, and both would wait for each other."""
    monkeypatch.setattr(module, "MAX_UNREAD", 6)
    pieces = pieces_of(client, *[2] * 10)
    with committing(store, FENCE, target_of(client)) as commits, counting_reads(monkeypatch) as read:
        for number, piece in enumerate(pieces, 1):
            commits.write(piece)
            assert len(read) == max(number - 3, 0)
        assert commits.finish().results == [True] * 20
    assert arrived(broker) == [*range(20)]


# -- in between


def flush_scripts(client: redis.Redis) -> None:
    client.script_flush()


def kill_clients(client: redis.Redis) -> None:
    client.execute_command("CLIENT KILL TYPE normal SKIPME yes")


@pytest.mark.parametrize("meddle", [flush_scripts, kill_clients])
@pytest.mark.parametrize("is_waiting", [False, True])
def test_what_happens_to_the_server_in_between_neither_loses_nor_doubles_a_run(
    store: Store,
    client: redis.Redis,
    broker: redis.Redis,
    meddle: Callable[[redis.Redis], None],
    is_waiting: bool,
) -> None:
    pieces = pieces_of(client, 100, 100, 100)
    with committing(store, FENCE, target_of(client)) as commits:
        commits.write(pieces[0])
        if is_waiting:
            eventually(lambda: broker.llen("queue") == 100)
        meddle(client)
        commits.write(pieces[1])
        commits.write(pieces[2])
        results = commits.finish().results
    assert len(results) == 300
    assert results[100:] == [True] * 200
    # whoever loses a reply is told what the ordinary way tells: the entry isn't as it was claimed
    assert set(results[:100]) <= {True, False}
    assert sorted(arrived(broker)) == [*range(300)]
    assert states(client, 300) == ["recorded"] * 300
    assert in_use(store.client) == 0
    assert store.look().score == 65


@pytest.mark.parametrize("loss", ["request", "reply"])
@pytest.mark.parametrize("retry_period", [None, 60])
def test_a_call_that_is_lost_or_answered_in_vain_neither_loses_nor_doubles_a_run(
    app: Celery,
    server: Server,
    client: redis.Redis,
    broker: redis.Redis,
    loss: Loss,
    retry_period: int | None,
) -> None:
    proxy = Proxy((server.host, server.port))
    try:
        with redis.Redis(host=proxy.host, port=proxy.port, db=1, decode_responses=True) as through:
            store = Store(app, RetryingConnection(retry_period, through) if retry_period else through)
            load_script(store)
            client.set(LOCK, "mine")
            pieces = pieces_of(client, 60, 60)
            cut = proxy.cut_on(b"entry-70", loss)
            with committing(store, FENCE, target_of(client)) as commits:
                for piece in pieces:
                    commits.write(piece)
                results = commits.finish().results
            assert cut.wait(10)
    finally:
        proxy.close()
    assert len(results) == 120
    assert sorted(arrived(broker)) == [*range(120)]
    assert states(client, 120) == ["recorded"] * 120


def test_a_lock_that_is_lost_in_between_is_told_at_the_end(
    store: Store, client: redis.Redis, broker: redis.Redis
) -> None:
    pieces = pieces_of(client, 100, 100, 100)
    with committing(store, FENCE, target_of(client)) as commits:
        commits.write(pieces[0])
        eventually(lambda: broker.llen("queue") == 100)
        client.set(LOCK, "another's")
        commits.write(pieces[1])
        commits.write(pieces[2])
        with pytest.raises(LockLost, match=f"Another beat holds the lock {LOCK} now"):
            commits.finish()
        assert in_use(store.client) == 0
    assert arrived(broker) == [*range(100)]
    assert states(client, 300) == ["recorded"] * 100 + ["due"] * 200
    assert client.get(LOCK) == "another's"


def test_a_lock_that_was_gone_is_held_again_for_its_full_time(store: Store, client: redis.Redis) -> None:
    [piece] = pieces_of(client, 1)
    client.delete(LOCK)
    with committing(store, FENCE, target_of(client)) as commits:
        commits.write(piece)
        assert commits.finish().results == [True]
    assert store.has_retaken_lock
    assert client.pttl(LOCK) > 10_000


def test_a_server_that_refuses_to_write_is_asked_again_in_the_ordinary_way(
    store: Store, client: redis.Redis, broker: redis.Redis
) -> None:
    pieces = pieces_of(client, 2, 2)
    with committing(store, FENCE, target_of(client)) as commits:
        client.replicaof("127.0.0.1", 1)
        try:
            for piece in pieces:
                commits.write(piece)
            with pytest.raises(StoreRefused, match="read only"):
                commits.finish()
        finally:
            client.replicaof("NO", "ONE")
    assert in_use(store.client) == 0
    assert states(client, 4) == ["due"] * 4


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_a_batch_that_ends_early_leaves_no_command_and_no_reply_behind(
    make_app: MakeApp, server: Server, client: redis.Redis, broker: redis.Redis, error: type[BaseException]
) -> None:
    with Proxy((server.host, server.port)) as way:
        store = Store(make_app(redbeat_redis_url=way.url(server.url(1))))
        load_script(store)
        pieces = pieces_of(client, 100, 100)

        def end_early() -> None:
            with committing(store, FENCE, target_of(client)) as commits:
                for piece in pieces:
                    commits.write(piece)
                raise error

        way.delay_seconds = 0.2
        with pytest.raises(error):
            end_early()
        assert broker.llen("queue") == 200, "a late one would take back the lock that beat has released"
        assert in_use(store.client) == 0
        assert store.client.echo("its own reply") == "its own reply"
    assert set(states(client, 200)) == {"recorded"}


def test_a_batch_that_ends_early_while_the_server_is_silent_does_not_wait_for_ever(
    make_app: MakeApp, server: Server, client: redis.Redis
) -> None:
    with Proxy((server.host, server.port)) as way:
        for_ever = {"socket_timeout": None}
        store = Store(make_app(redbeat_redis_url=way.url(server.url(1)), redbeat_redis_options=for_ever))
        load_script(store)
        [piece] = pieces_of(client, 100)

        def end_early() -> None:
            with committing(store, FENCE, target_of(client)) as commits:
                commits.write(piece)
                raise KeyboardInterrupt

        way.freeze()
        with pytest.raises(KeyboardInterrupt):
            end_early()
        assert in_use(store.client) == 0


@pytest.mark.parametrize("step", ["send_packed_command", "read_response"])
def test_an_interruption_while_it_sends_or_reads_leaves_no_reply_behind(
    store: Store, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    pieces = pieces_of(client, 100, 100)

    def interrupt(*_args: Any, **_options: Any) -> Any:
        raise KeyboardInterrupt

    def commit() -> None:
        with committing(store, FENCE, target_of(client)) as commits:
            commits.write(pieces[0])
            with monkeypatch.context() as patch:
                patch.setattr(redis.connection.AbstractConnection, step, interrupt)
                commits.write(pieces[1])
                commits.finish()

    with pytest.raises(KeyboardInterrupt):
        commit()
    assert in_use(store.client) == 0
    assert store.client.echo("its own reply") == "its own reply"


# -- other clients


class Subclass(redis.Redis):
    """A user's own client, which may do anything with a command."""


def few_connections(server: Server) -> Any:
    pool = redis.BlockingConnectionPool.from_url(
        server.url(1), max_connections=MIN_CONNECTIONS - 1, decode_responses=True
    )
    return redis.Redis(connection_pool=pool)


def single_connection(server: Server) -> Any:
    return redis.Redis.from_url(server.url(1), decode_responses=True, single_connection_client=True)


def subclass(server: Server) -> Any:
    return Subclass.from_url(server.url(1), decode_responses=True)


def watched(server: Server) -> Any:
    client = redis.Redis.from_url(server.url(1), decode_responses=True)
    client.execute_command = client.execute_command  # type: ignore[method-assign] # as tools do that watch it
    return client


def test_they_are_sent_at_once_through_a_unix_socket(make_app: Callable[..., Celery]) -> None:
    with Server(unix_socket=True) as server:
        record_twice(Store(make_app(redbeat_redis_url=server.unix_url(1))), is_direct=True)


@pytest.mark.parametrize("make", [few_connections, single_connection, subclass, watched])
def test_a_client_that_may_need_all_its_commands_gets_them_in_the_ordinary_way(
    app: Celery,
    server: Server,
    client: redis.Redis,
    broker: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[Server], Any],
) -> None:
    pieces = pieces_of(client, 100, 150)
    with make(server) as own, counting_round_trips(monkeypatch) as sent:
        target = target_of(client)
        store, before = Store(app, own), sent()
        with committing(store, Fence(), target) as commits:
            for piece in pieces:
                commits.write(piece)
            assert sent() == before
            assert commits.finish().results == [True] * 250
    assert arrived(broker) == [*range(250)]


def test_a_fake_records_them_too(app: Celery) -> None:
    fake = FakeRedis(decode_responses=True)
    store = Store(app, fake)
    with committing(store, Fence()) as commits:
        commits.write(commits_of(fake, [[], []]))
        assert commits.finish().results == [True, True]


def binary(server: Server) -> AbstractContextManager[Any]:
    return redis.Redis.from_url(server.url(1))


def blocking(server: Server) -> AbstractContextManager[Any]:
    return redis.Redis(connection_pool=redis.BlockingConnectionPool.from_url(server.url(1)))


def resp3(server: Server) -> AbstractContextManager[Any]:
    knows = (
        "protocol" in inspect.signature(redis.connection.AbstractConnection).parameters
    )  # since redis-py 5
    options: dict[str, Any] = {"protocol": 3} if knows else {}
    return redis.Redis.from_url(server.url(1), decode_responses=True, **options)


@pytest.mark.parametrize("make", [binary, blocking, resp3])
def test_a_plain_client_of_any_kind_sends_them_at_once(
    app: Celery,
    server: Server,
    client: redis.Redis,
    broker: redis.Redis,
    make: Callable[[Server], AbstractContextManager[Any]],
) -> None:
    with make(server) as own:
        store, target = Store(app, own), target_of(client)
        load_script(store)
        pieces = pieces_of(client, 100, 100)
        with committing(store, Fence(), target) as commits:
            for piece in pieces:
                commits.write(piece)
            eventually(lambda: broker.llen("queue") == 200)
            assert commits.finish().results == [True] * 200


def test_behind_sentinels_they_are_sent_at_once(sentinel: SentinelTopology) -> None:
    options = {"service_name": sentinel.service_name}
    store = Store(memory_app(redbeat_redis_url=sentinel.url(), redbeat_redis_options=options))
    record_twice(store, is_direct=True)


def test_in_a_cluster_they_are_recorded_at_the_end(cluster: ClusterTopology) -> None:
    store = Store(memory_app(redbeat_redis_url=cluster.url(), redbeat_redis_options={"cluster": True}))
    record_twice(store, is_direct=False)


def record_twice(store: Store, *, is_direct: bool) -> None:
    keys = [store.keys.about(f"entry-{number}").entry for number in range(150)]
    pieces = [[Commit(Claimed(key, "5", "{}", "", score="5"), "65") for key in keys[:100]]]
    pieces.append([Commit(Claimed(key, "5", "{}", "", score="5"), "65") for key in keys[100:]])

    def recorded() -> int:
        return int(store.client.zcount(store.keys.schedule, 65, 65))

    for _ in range(2):
        for key in keys:
            store.client.hset(key, mapping={"definition": "{}", "meta": ""})
        store.client.zadd(store.keys.schedule, dict.fromkeys(keys, 5))
        with committing(store, Fence()) as commits:
            for piece in pieces:
                commits.write(piece)
            assert recorded() == 0 or is_direct
            assert commits.finish().results == [True] * 150
        assert recorded() == 150
    if is_direct:  # the script is known by now
        store.client.zadd(store.keys.schedule, dict.fromkeys(keys, 5))
        with committing(store, Fence()) as commits:
            commits.write(pieces[0])
            eventually(lambda: recorded() == 100)
            assert commits.finish().results == [True] * 100
