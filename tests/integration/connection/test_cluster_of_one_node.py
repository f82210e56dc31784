"""A cluster of one node looks like a single server, as MemoryDB and ElastiCache in cluster mode do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from redbeat import RedBeatSchedulerEntry
from redbeat.diagnostics.checks import examine
from redbeat.errors import ConfigurationError
from redbeat.process.exit_codes import CONFIG
from tests.support.apps import celery_beat, celery_command, write_app
from tests.support.servers import Server
from tests.support.ticks import assert_entry_runs, memory_app
from tests.support.topologies import ClusterTopology, cluster

SENTENCE = "has no hash tag, and .*use '{redbeat}:'"


@pytest.fixture(scope="module", params=["valkey", "redis"])
def node_session(request: pytest.FixtureRequest) -> Iterator[ClusterTopology]:
    with cluster(request.param, size=1) as topology:
        yield topology


@pytest.fixture
def node(node_session: ClusterTopology) -> Server:
    """The one node, which has all slots."""
    node_session.flush()
    return node_session.nodes[0]


@pytest.mark.parametrize("settings", [{}, {"redbeat_shards": 2}], ids=["unsharded", "sharded"])
@pytest.mark.parametrize("retry_period", [None, -1])
def test_saving_with_the_default_prefix_is_an_error_that_names_the_hash_tag(
    node: Server, settings: dict[str, Any], retry_period: float | None
) -> None:
    options = {} if retry_period is None else {"redbeat_redis_options": {"retry_period": retry_period}}
    app = memory_app(redbeat_redis_url=node.url(), **options, **settings)
    with pytest.raises(ConfigurationError, match=SENTENCE):
        RedBeatSchedulerEntry("report", "t", 60, app=app).save()
    assert node.client().dbsize() == 0


@pytest.mark.parametrize("has_entries", [True, False])
def test_beat_and_commands_end_with_one_error_that_names_the_hash_tag(
    node: Server, tmp_path: Path, has_entries: bool
) -> None:
    write_app(tmp_path, "module", "memory://", redbeat_redis_url=node.url())
    if has_entries:  # copied there, or written by another language
        node.client().zadd("redbeat::schedule", {"redbeat:report": 1.0})
    commands = [["list"], ["next"], ["status"], ["show", "report"], ["reshard", "--to", "4", "--yes"]]
    beat = celery_beat(tmp_path, "module")
    called = [celery_command(tmp_path, "module", "redbeat", *words) for words in commands]
    for process in [beat, *called]:
        assert process.wait() == CONFIG, process.output()
        [line] = [line for line in process.output().splitlines() if "hash tag" in line]
        assert "use '{redbeat}:'" in line
        assert "Traceback" not in process.output()
    assert not node.client().exists("redbeat::layout")


@pytest.mark.parametrize("settings", [{}, {"redbeat_shards": 2}], ids=["unsharded", "sharded"])
def test_listing_with_the_default_prefix_is_an_error_that_names_the_hash_tag(
    node: Server, settings: dict[str, Any]
) -> None:
    for read in RedBeatSchedulerEntry.count, lambda app: [*RedBeatSchedulerEntry.list(app)]:
        app = memory_app(redbeat_redis_url=node.url(), **settings)
        with pytest.raises(ConfigurationError, match=SENTENCE):
            read(app)


@pytest.mark.parametrize("settings", [{}, {"redbeat_shards": 2}], ids=["unsharded", "sharded"])
def test_the_doctor_finds_it_and_nothing_else(node: Server, settings: dict[str, Any]) -> None:
    [finding] = examine(memory_app(redbeat_redis_url=node.url(), **settings)).findings
    said = json.dumps(finding.to_dict())
    assert "hash tag" in said
    assert finding.severity.name == "ERROR"


def test_with_a_hash_tag_it_works_and_the_doctor_recommends_the_option(node: Server) -> None:
    app = memory_app(redbeat_redis_url=node.url(), redbeat_key_prefix="{redbeat}:")
    assert_entry_runs(app)
    [finding] = [one for one in examine(app).findings if one.kind == "cluster"]
    assert finding.severity.name == "WARNING"
    app = memory_app(redbeat_redis_url=node.url(), redbeat_redis_options={"cluster": True})
    assert_entry_runs(app, "another")
    assert not [one for one in examine(app).findings if one.kind == "cluster"]


def test_one_of_several_nodes_is_an_error_that_names_the_option(cluster: ClusterTopology) -> None:
    for node in cluster.nodes:
        app = memory_app(redbeat_redis_url=node.url(), redbeat_key_prefix="{redbeat}:")
        if node is cluster.owner("{redbeat}"):
            continue
        with pytest.raises(ConfigurationError, match=r"set redbeat_redis_options = \{'cluster': True\}"):
            RedBeatSchedulerEntry("report", "t", 60, app=app).save()
