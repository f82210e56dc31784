"""Layouts, and what each test adds to the summary that is printed when all is over.

REDBEAT_FAULTS=long makes more rounds (`make faults`); REDBEAT_SEED repeats the chances of another run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.faults.bursts import AmqpQueue, Layout, RedisQueue, Tally
from tests.faults.rounds import TALLY
from tests.faults.slots import is_master
from tests.support import topologies
from tests.support.rabbitmq import RabbitMQ
from tests.support.servers import Server
from tests.support.topologies import ClusterTopology

Report = Callable[[Tally], None]

LAYOUTS = ["one db", "two dbs", "no lock", "two servers", "rabbitmq"]


@pytest.fixture
def layout(request: pytest.FixtureRequest) -> Layout:
    """One of LAYOUTS, by its name."""
    name: str = request.param
    main: Server = request.getfixturevalue("redis" if name == "two dbs" else "valkey")
    if name == "rabbitmq":
        rabbitmq: RabbitMQ = request.getfixturevalue("rabbitmq")
        return Layout(name, main, 0, AmqpQueue(rabbitmq.url()), is_exactly_once=False)
    if name == "two servers":
        other: Server = request.getfixturevalue("redis")
        return Layout(name, main, 0, RedisQueue(other, 0), is_exactly_once=False)
    layout = Layout(name, main, 0 if name == "one db" else 1, RedisQueue(main, 0), is_exactly_once=True)
    if name == "no lock":
        layout.beats, layout.settings = 2, {"redbeat_lock_key": None}
    return layout


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Report:
    """Take a tally into the summary, and check it."""
    layout: Layout = request.getfixturevalue("layout")
    title = f"{request.node.originalname.removeprefix('test_').replace('_', ' ')}: {layout.name}"

    def add(tally: Tally) -> None:
        request.node.user_properties.append((TALLY, [title, tally.counts]))
        assert tally.is_good(layout), tally

    return add


@pytest.fixture(scope="session")
def replicated_session() -> Iterator[ClusterTopology]:
    with topologies.cluster(has_replica=True) as topology:
        yield topology


@pytest.fixture
def replicated(replicated_session: ClusterTopology) -> ClusterTopology:
    """A cluster with a replica, all its nodes up and empty."""
    replicated_session.heal()
    for server in replicated_session.servers:
        if is_master(server):
            server.flush()
    return replicated_session
