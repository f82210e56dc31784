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
from tests.support.schedule import LOCK, write_burst

FENCE = Fence(LOCK, "mine", 10_000)


@pytest.fixture
def store(app: Celery, client: redis.Redis) -> Store:
    client.set(LOCK, "mine")
    store = Store(app, client)
    store.claim_due(FENCE, 1)  # now the server knows the script
    return store


def test_it_leaves_out_what_is_on_its_way_and_returns_the_next_in_order(
    store: Store, client: redis.Redis
) -> None:
    names = write_burst(client, 2 * CALL_ENTRIES + 100)
    ahead = store.claim_ahead(FENCE, 2 * CALL_ENTRIES, OTHERS, pending=50)
    assert ahead is not None
    claim = ahead.read()
    assert claim is not None
    assert [row.key for row in claim.rows] == [f"redbeat:{name}" for name in names[50:-50]]
    assert (claim.has_more, claim.is_ahead) == (True, True)
    assert client.zcard("redbeat::schedule") == len(names)


def test_another_s_lock_ends_it(store: Store, client: redis.Redis) -> None:
    write_burst(client, 3)
    client.set(LOCK, "another's")
    ahead = store.claim_ahead(FENCE, 10, OTHERS, pending=0)
    assert ahead is not None
    with pytest.raises(LockLost):
        ahead.read()


def test_where_the_server_has_forgotten_the_script_there_is_none(store: Store, client: redis.Redis) -> None:
    write_burst(client, 3)
    client.script_flush()
    ahead = store.claim_ahead(FENCE, 10, OTHERS, pending=0)
    assert ahead is not None
    assert ahead.read() is None
    assert len(store.claim_due(FENCE, 10).rows) == 3


def test_an_answer_that_nobody_reads_is_dropped_with_its_connection(
    store: Store, client: redis.Redis
) -> None:
    write_burst(client, 3)
    ahead = store.claim_ahead(FENCE, 10, OTHERS, pending=0)
    assert ahead is not None
    ahead.close()
    ahead.close()
    assert client.ping() is True
    assert len(store.claim_due(FENCE, 10).rows) == 3
