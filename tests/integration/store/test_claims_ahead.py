"""A claim that is asked for ahead: what it returns, and that nothing depends on it."""

from __future__ import annotations

import pytest
import redis
from celery import Celery

from redbeat.beat.pace import OTHERS
from redbeat.errors import LockLost
from redbeat.store.claims import CALL_ENTRIES
from redbeat.store.records import Fence
from redbeat.store.store import Store
from tests.conftest import MakeApp
from tests.support.proxy import Proxy
from tests.support.schedule import LOCK, SCHEDULE, calls_of, write_burst
from tests.support.servers import Server

FENCE = Fence(LOCK, "mine", 10_000)


@pytest.fixture
def store(app: Celery, client: redis.Redis) -> Store:
    client.set(LOCK, "mine")
    store = Store(app, client)
    store.claim_due(FENCE, 1)  # now the server knows the script
    return store


def write_due(client: redis.Redis, count: int, is_together: bool) -> list[str]:
    """Write entries that are due, and return their names in the order in which they are claimed."""
    names = write_burst(client, count)
    if is_together:
        client.zadd(SCHEDULE, {f"redbeat:{name}": 1 for name in names})
        names.sort()
    return names


@pytest.mark.parametrize("is_together", [False, True], ids=["one after the other", "at one due time"])
def test_it_leaves_out_what_is_on_its_way_and_returns_the_next_in_order(
    store: Store, client: redis.Redis, is_together: bool
) -> None:
    names = write_due(client, 2 * CALL_ENTRIES + 100, is_together)
    pending = store.claim_due(FENCE, 50).rows
    ahead = store.claim_ahead(FENCE, 2 * CALL_ENTRIES, OTHERS, pending)
    assert ahead is not None
    claim = ahead.read()
    assert claim is not None
    assert [row.key for row in claim.rows] == [f"redbeat:{name}" for name in names[50:-50]]
    assert (claim.has_more, claim.is_ahead) == (True, True)
    assert client.zcard("redbeat::schedule") == len(names)


@pytest.mark.parametrize("is_together", [False, True], ids=["one after the other", "at one due time"])
@pytest.mark.parametrize("committed", [20, 50])
def test_it_overtakes_nothing_where_the_batch_before_is_committed_first(
    store: Store, client: redis.Redis, is_together: bool, committed: int
) -> None:
    """Commands of two connections may arrive in another order than they were sent."""
    names = write_due(client, 100, is_together)
    pending = store.claim_due(FENCE, 50).rows
    client.zadd(SCHEDULE, {row.key: 4e9 for row in pending[:committed]})
    ahead = store.claim_ahead(FENCE, 10, OTHERS, pending)
    assert ahead is not None
    claim = ahead.read()
    assert claim is not None
    wanted = names[50:60] if committed < 50 else []
    assert [row.key for row in claim.rows] == [f"redbeat:{name}" for name in wanted]
    assert claim.has_more


def test_another_s_lock_ends_it(store: Store, client: redis.Redis) -> None:
    write_burst(client, 3)
    client.set(LOCK, "another's")
    ahead = store.claim_ahead(FENCE, 10, OTHERS, pending=[])
    assert ahead is not None
    with pytest.raises(LockLost):
        ahead.read()


def test_where_the_server_has_forgotten_the_script_there_is_none(store: Store, client: redis.Redis) -> None:
    write_burst(client, 3)
    client.script_flush()
    ahead = store.claim_ahead(FENCE, 10, OTHERS, pending=[])
    assert ahead is not None
    assert ahead.read() is None
    assert len(store.claim_due(FENCE, 10).rows) == 3


def test_an_answer_that_nobody_reads_is_waited_for_and_dropped(
    make_app: MakeApp, store: Store, server: Server, client: redis.Redis
) -> None:
    write_burst(client, 3)
    with Proxy((server.host, server.port)) as way:
        far = Store(make_app(redbeat_redis_url=way.url(server.url(1))))
        far.look()
        way.delay_seconds = 0.2
        made = calls_of(client, "evalsha")
        ahead = far.claim_ahead(FENCE, 10, OTHERS, pending=[])
        assert ahead is not None
        ahead.close()
        # a late one would take back the lock that beat has released
        assert calls_of(client, "evalsha") == made + 1
        ahead.close()
        assert far.client.echo("its own reply") == "its own reply"
