"""A reshard in a cluster of which one node is full: it says which, nothing is lost, and it goes on later."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.errors import StoreRefused
from redbeat.reshard.resharding import Resharding
from tests.support.topologies import ClusterTopology

NAMES = [f"entry-{number}" for number in range(200)]


@pytest.fixture
def app(cluster: ClusterTopology) -> Celery:
    app = Celery("test", set_as_current=False)
    options = {"cluster": True, "password": cluster.nodes[0].password}
    app.conf.update(redbeat_redis_url=cluster.url(), redbeat_redis_options=options)
    RedBeatSchedulerEntry.save_many(
        RedBeatSchedulerEntry(name, "tasks.echo", 3600, args=["x" * 500], app=app) for name in NAMES
    )
    return app


def test_a_full_node_is_named_and_the_reshard_goes_on_when_it_has_memory(
    cluster: ClusterTopology, app: Celery
) -> None:
    full = cluster.owner("{redbeat:0}:")
    assert full is not cluster.owner("{redbeat}:"), "the layout can be written"
    with full.client() as client:
        used: Any = client.info("memory")
        client.config_set("maxmemory", used["used_memory"] - 1)
        try:
            for _ in range(2):  # the second time it goes on, and gets no further
                with pytest.raises(StoreRefused, match="maxmemory") as caught:
                    Resharding(app, 16).run()
                if hasattr(caught.value.__cause__, "connection"):  # not in old clients
                    assert f"(its node {full.host}:{full.port}) refused" in str(caught.value)
                assert names_in(cluster) == sorted(NAMES)
        finally:
            client.config_set("maxmemory", 0)
    report = Resharding(app, 16).run()
    assert report.entries == len(NAMES)
    assert names_in(cluster) == sorted(NAMES)


def names_in(cluster: ClusterTopology) -> list[str]:
    """The names of all entries, wherever they are."""
    prefixes = ["{redbeat}:", *(f"{{redbeat:{shard}}}:" for shard in range(16))]
    with cluster.client() as client:
        return sorted(
            str(key).removeprefix(prefix)
            for prefix in prefixes
            for key in client.zrange(f"{prefix}:schedule", 0, -1)
        )
