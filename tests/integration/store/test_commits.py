"""Commits of many entries: recorded and pushed together or not at all, in order, and in short scripts."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
import redis
import redis.connection
import redis.exceptions
from celery import Celery

from redbeat.connection.retry import RetryingConnection, without_retry
from redbeat.errors import LockLost, StoreRefused
from redbeat.store import executor as module
from redbeat.store.executor import CALL_ROWS, run_all
from redbeat.store.records import (
    Commit,
    Committed,
    Fence,
    Push,
    Target,
    TrackedRun,
)
from redbeat.store.schedule import commit_runs, read_head
from redbeat.store.store import Progress, Store
from tests.conftest import MakeApp
from tests.integration.store.committing import commits_of, committing, push, states, target_of
from tests.integration.store.conftest import MakeLimited
from tests.support.fetched import fetched
from tests.support.fidelity import counting_round_trips
from tests.support.polling import eventually
from tests.support.proxy import Loss, Proxy
from tests.support.schedule import LOCK, SCHEDULE
from tests.support.servers import Server
from tests.support.ticks import memory_app
from tests.support.topologies import ClusterTopology


@pytest.mark.parametrize("count", [1, CALL_ROWS + 1, 5 * CALL_ROWS])
def test_commits_of_a_batch_take_one_round_trip_in_short_scripts(
    app: Celery, client: redis.Redis, broker: redis.Redis, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    store, target = Store(app), target_of(client)
    first = commits_of(client, [[push("queue", "first")]])
    commit_runs(store, Fence(), first, target).run()  # loads the script
    broker.delete("queue")
    commits = commits_of(client, [[push("queue", number)] for number in range(count)])
    client.config_resetstat()
    with counting_round_trips(monkeypatch) as round_trips:
        requests = [
            commit_runs(store, Fence(), commits[first : first + CALL_ROWS], target)
            for first in range(0, count, CALL_ROWS)
        ]
        run_all(requests)
        assert [result for one in requests for result in one.answer().results] == [True] * count
        assert round_trips() == 1
    statistics: Any = client.info("commandstats")
    assert statistics["cmdstat_evalsha"]["calls"] == -(-count // CALL_ROWS)
    assert broker.lrange("queue", 0, -1) == [str(number) for number in reversed(range(count))]


def test_commit_records_the_decision_of_each_entry(
    app: Celery, client: redis.Redis, chance: random.Random
) -> None:
    """Whether many entries share a decision or none do."""
    commits, expected, number_of_decisions = [], {}, chance.choice([1, 3, 1000])
    for number in range(250):
        key, decision = f"redbeat:entry-{number}", chance.randrange(number_of_decisions)
        meta, score = f'{{"before": {decision}}}', f"{decision % 7 + 5}.5"
        client.hset(key, mapping={"definition": f'{{"of": {number}}}', "meta": meta, "error": "{}"})
        client.zadd(SCHEDULE, {key: float(score)})
        has_changed = chance.random() < 0.2
        due_entry = fetched(key, score, f'{{"of": {number + has_changed}}}', meta)
        pushes = (push(f"queue-{decision % 3}", number),) if decision % 4 else ()
        new_error, error = [(None, "{}"), ("", None), (f'"{decision}"',) * 2][decision % 3]
        new_meta, records = f'{{"after": {decision}}}', (f'"due":{decision}', f'"due":{number}')
        commit = Commit(due_entry, f"{decision + 100}", new_meta, new_error, True, pushes, records=records)
        commits.append(commit)
        expected[key] = (
            [meta, "{}", float(score), 0] if has_changed else [new_meta, error, decision + 100.0, 2]
        )
    results = commit_runs(Store(app), Fence(), commits, target_of(client)).run().results
    assert results == [found[-1] == 2 for found in expected.values()]
    for key, wanted in expected.items():
        history = client.llen(key.replace("redbeat:", "redbeat::history:"))
        assert [*client.hmget(key, "meta", "error"), client.zscore(SCHEDULE, key), history] == wanted


def test_commit_pushes_to_each_queue_in_the_order_of_the_entries(
    app: Celery, client: redis.Redis, broker: redis.Redis
) -> None:
    words = ["a0", "b1", "a2 b2", "a3", "a4", "b5", "b6 a6", "a7"]
    pushes = [[push(one[0], one[1:]) for one in of_entry.split()] for of_entry in words]
    pushes[3].append(Push("pexpire", "a", 60_000))
    committed = commit_runs(Store(app), Fence(), commits_of(client, pushes), target_of(client)).run()
    assert committed.results == [True] * 8
    assert broker.lrange("a", 0, -1) == list("764320")
    assert broker.lrange("b", 0, -1) == list("6521")
    assert broker.pttl("a") > 0
    assert states(client, 8) == ["recorded"] * 8


def test_commit_with_a_queue_of_the_wrong_type_leaves_only_its_runs_due(
    app: Celery, client: redis.Redis, broker: redis.Redis
) -> None:
    broker.set("text", "not a list")
    queues = [["a"], ["text"], ["a", "text"], ["text"], ["a"]]
    pushes = [[push(queue, number) for queue in of_entry] for number, of_entry in enumerate(queues)]
    results = commit_runs(Store(app), Fence(), commits_of(client, pushes), target_of(client)).run().results
    assert [result is True for result in results] == [True, False, False, False, True]
    assert all("WRONGTYPE" in str(result) for result in results if result is not True)
    assert broker.lrange("a", 0, -1) == ["4", "0"]
    assert broker.get("text") == "not a list"
    assert states(client, 5) == ["recorded", "due", "due", "due", "recorded"]


def test_commit_with_runs_in_progress_of_the_wrong_type_sends_nothing_and_stays_due(
    app: Celery, client: redis.Redis, broker: redis.Redis
) -> None:
    client.set("redbeat::running:entry-0", "not a hash")
    commits = [
        replace(one, run=TrackedRun("5", "", 3600, "skip"), task_id=f"id-{number}")
        for number, one in enumerate(commits_of(client, [[push("a", 0)], [push("a", 1)]]))
    ]
    refused, sent = commit_runs(Store(app), Fence(), commits, target_of(client)).run().results
    assert (sent, "redbeat::running:entry-0 holds something" in str(refused)) == (True, True)
    assert broker.lrange("a", 0, -1) == ["1"]
    assert client.hget("redbeat:entry-0", "meta") == commits[0].due_entry.meta
    assert client.zscore(SCHEDULE, "redbeat:entry-0") == 5


@pytest.mark.parametrize("right", ["-zadd", "%R~redbeat:entry-3"])
def test_commit_without_a_right_pushes_nothing(
    app: Celery, client: redis.Redis, broker: redis.Redis, limited: MakeLimited, right: str
) -> None:
    commits = commits_of(client, [[push("queue", number)] for number in range(5)])
    own = [f"~redbeat:entry-{number}" for number in (0, 1, 2, 4)] + ["~queue", "~redbeat::*"]
    own += [right] if right.startswith("%") else ["~redbeat:entry-3", right]
    with suppress(StoreRefused):
        commit_runs(Store(app, limited("+@all", *own)), Fence(), commits, target_of(client)).run()
    assert states(client, 5) == ["due"] * 5
    assert broker.llen("queue") == 0


FENCE = Fence(LOCK, "mine", 60_000)


@pytest.fixture
def store(app: Celery) -> Store:
    """A store whose server knows the script already."""
    store = Store(app)
    load_script(store)
    store.client.set(LOCK, "mine")
    return store


def load_script(store: Store) -> None:
    commit_runs(store, Fence(), commits_of(store.client, [[]])).run()
    store.client.flushdb()


def pieces_of(client: redis.Redis, *sizes: int) -> list[list[Commit]]:
    """Due entries, each with a message to one queue; their commits, so many in each piece."""
    commits = iter(commits_of(client, [[push("queue", number)] for number in range(sum(sizes))]))
    return [[next(commits) for _ in range(size)] for size in sizes]


def commit(
    store: Store, target: Target, pieces: list[list[Commit]], error: type[BaseException] | None = None
) -> Committed:
    """Stream the pieces; raise the error before the replies are read, if there is one."""
    with committing(store, FENCE, target) as commits:
        for piece in pieces:
            commits.write(piece)
        if error is not None:
            raise error
        return commits.finish()


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


def test_stream_of_commits_is_recorded_before_its_replies_are_read(
    store: Store, client: redis.Redis, broker: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces, target = pieces_of(client, 100, 100, 100), target_of(client)
    with (
        committing(store, FENCE, target) as commits,
        counting_round_trips(monkeypatch) as sent,
        counting_reads(monkeypatch) as read,
    ):
        for piece in pieces:
            commits.write(piece)
        own, number_of_sent = {*read}, sent()
        eventually(lambda: broker.llen("queue") == 300)
        read.clear()
        committed = commits.finish()
    assert own == set(), "nothing was waited for"
    assert number_of_sent == 1, "one round trip"
    assert committed.results == [True] * 300
    assert arrived(broker) == [*range(300)]
    assert states(client, 300) == ["recorded"] * 300
    assert in_use(store.client) == 0


def test_stream_of_commits_leaves_few_replies_unread(
    store: Store, client: redis.Redis, broker: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else they could fill all buffers between here and the server, and both would wait for each other."""
    monkeypatch.setattr(module, "MAX_UNREAD", 6)
    monkeypatch.setattr(module, "CALL_ROWS", 2)
    pieces = pieces_of(client, *[2] * 10)
    with committing(store, FENCE, target_of(client)) as commits, counting_reads(monkeypatch) as read:
        for number, piece in enumerate(pieces, 1):
            commits.write(piece)
            assert len(read) == max(number - 3, 0)
        assert commits.finish().results == [True] * 20
    assert arrived(broker) == [*range(20)]


@pytest.mark.parametrize("meddle", ["SCRIPT FLUSH", "CLIENT KILL TYPE normal SKIPME yes"])
@pytest.mark.parametrize("is_waiting", [False, True])
def test_stream_of_commits_survives_a_disturbed_server_without_lost_or_doubled_runs(
    store: Store, client: redis.Redis, broker: redis.Redis, meddle: str, is_waiting: bool
) -> None:
    pieces = pieces_of(client, 100, 100, 100)
    with committing(store, FENCE, target_of(client)) as commits:
        commits.write(pieces[0])
        if is_waiting:
            eventually(lambda: broker.llen("queue") == 100)
        client.execute_command(meddle)
        commits.write(pieces[1])
        commits.write(pieces[2])
        results = commits.finish().results
    assert results[100:] == [True] * 200
    # after a lost reply the commit is sent again, and finds the entry changed
    assert set(results[:100]) <= {True, False}
    assert sorted(arrived(broker)) == [*range(300)]
    assert states(client, 300) == ["recorded"] * 300
    assert in_use(store.client) == 0
    assert read_head(store).run().score == 65


@pytest.mark.parametrize("loss", ["request", "reply"])
@pytest.mark.parametrize("retry_period", [None, 60])
def test_stream_of_commits_survives_a_lost_request_or_reply_without_lost_or_doubled_runs(
    app: Celery,
    server: Server,
    client: redis.Redis,
    broker: redis.Redis,
    loss: Loss,
    retry_period: int | None,
) -> None:
    with (
        Proxy((server.host, server.port)) as proxy,
        redis.Redis(host=proxy.host, port=proxy.port, db=1, decode_responses=True) as through,
    ):
        store = Store(app, RetryingConnection(retry_period, through) if retry_period else through)
        load_script(store)
        client.set(LOCK, "mine")
        pieces = pieces_of(client, 60, 60)
        cut = proxy.cut_on(b"entry-70", loss)
        results = commit(store, target_of(client), pieces).results
        assert cut.wait(10)
    assert len(results) == 120
    assert sorted(arrived(broker)) == [*range(120)]
    assert states(client, 120) == ["recorded"] * 120


def test_stream_of_commits_after_a_lost_lock_raises_and_writes_nothing_more(
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


@pytest.mark.parametrize(
    ("error", "is_silent"), [(KeyboardInterrupt, False), (ValueError, False), (KeyboardInterrupt, True)]
)
def test_stream_of_commits_that_ends_early_leaves_no_command_and_waits_for_no_silent_server(
    make_app: MakeApp,
    server: Server,
    client: redis.Redis,
    broker: redis.Redis,
    error: type[BaseException],
    is_silent: bool,
) -> None:
    with Proxy((server.host, server.port)) as way:
        for_ever = {"socket_timeout": None}
        store = Store(make_app(redbeat_redis_url=way.url(server.url(1)), redbeat_redis_options=for_ever))
        load_script(store)
        pieces = pieces_of(client, 100, 100)
        if is_silent:
            way.freeze()
        else:
            way.delay_seconds = 0.2
        with pytest.raises(error):
            commit(store, target_of(client), pieces, error)
        assert in_use(store.client) == 0
        if not is_silent:
            assert broker.llen("queue") == 200, "a late one would take back the lock that beat has released"
            assert store.client.echo("its own reply") == "its own reply"


@pytest.mark.parametrize("step", ["send_packed_command", "read_response"])
def test_stream_of_commits_that_is_interrupted_leaves_no_reply(
    store: Store, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    pieces, target = pieces_of(client, 100, 100), target_of(client)
    interrupt = Mock(side_effect=KeyboardInterrupt)

    def commit_interrupted() -> None:
        with committing(store, FENCE, target) as commits, monkeypatch.context() as patch:
            commits.write(pieces[0])
            patch.setattr(redis.connection.AbstractConnection, step, interrupt)
            commits.write(pieces[1])
            commits.finish()

    with pytest.raises(KeyboardInterrupt):
        commit_interrupted()
    assert in_use(store.client) == 0
    assert store.client.echo("its own reply") == "its own reply"


# -- other clients


class Subclass(redis.Redis):
    """A user's own client, which may do anything with a command."""


def test_client_that_may_change_commands_gets_commits_one_call_after_the_other(
    app: Celery,
    server: Server,
    client: redis.Redis,
    broker: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pieces = pieces_of(client, 100, 150)
    own, target = Subclass.from_url(server.url(1), decode_responses=True), target_of(client)
    with own, counting_round_trips(monkeypatch) as sent:
        store, before = Store(app, own), sent()
        with committing(store, Fence(), target) as commits:
            for piece in pieces:
                commits.write(piece)
            assert sent() == before
            assert commits.finish().results == [True] * 250
    assert arrived(broker) == [*range(250)]


def test_commits_in_a_cluster_are_recorded_at_the_end(cluster: ClusterTopology) -> None:
    store = Store(memory_app(redbeat_redis_url=cluster.url(), redbeat_redis_options={"cluster": True}))
    keys = [store.keys.about(f"entry-{number}").entry for number in range(150)]
    for key in keys:
        store.client.hset(key, mapping={"definition": "{}", "meta": ""})
    store.client.zadd(store.keys.schedule, dict.fromkeys(keys, 5))

    def recorded() -> int:
        return int(store.client.zcount(store.keys.schedule, 65, 65))

    with committing(store, Fence()) as commits:
        commits.write([Commit(fetched(key, "5", "{}", ""), "65") for key in keys])
        assert recorded() == 0
        assert commits.finish().results == [True] * 150
    assert recorded() == 150


def test_answer_to_requests_of_several_shards_is_progress(make_app: MakeApp) -> None:
    store = Store(make_app(redbeat_shards=4))
    stores = [store.of_part(part) for part in store.parts]
    shared = Progress()
    for one in stores:
        one.progress = shared
    began_at = time.monotonic()
    run_all([read_head(one) for one in stores])
    assert began_at <= shared.progressed_at <= time.monotonic()
    assert shared.asks_since is None


def test_question_that_was_given_up_does_not_count_once_it_has_ended() -> None:
    progress, given_up = Progress(), ExitStack()
    given_up.enter_context(progress.asking())
    with progress.asking():
        given_up.close()  # by its own thread
        assert progress.asks_since is not None
    assert progress.asks_since is None
