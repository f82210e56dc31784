"""A reshard over the nodes of a cluster."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from celery import Celery

from redbeat.reshard.resharding import Resharding
from tests.support.resharded import fill, read_all
from tests.support.topologies import ClusterTopology

BASE = b"{redbeat}:"


@pytest.fixture
def raw(cluster: ClusterTopology) -> Iterator[Any]:
    with closing(cluster.client(decode_responses=False)) as client:
        yield client


def test_a_cluster_keeps_its_entries_whatever_their_nodes(
    cluster: ClusterTopology, raw: Any, chance: random.Random
) -> None:
    def reshard(shards: int | None) -> None:
        app = Celery("test", set_as_current=False)
        app.conf.update(broker_url="memory://", redbeat_redis_url=cluster.url())
        app.conf.redbeat_redis_options = {"cluster": True}
        report = Resharding(app, shards).run()
        assert report.unmerged == report.unknown == report.swept == []
        app.close()

    fill(raw, chance, 120, BASE)
    before, wrong = read_all(raw, BASE)
    assert wrong == []
    for shards in (7, 16, 3, None):
        reshard(shards)
        assert read_all(raw, BASE) == (before, [])
