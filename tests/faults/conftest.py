"""Layouts, and the summary that is printed when all is over.

REDBEAT_FAULTS=long makes more rounds (`make faults`); REDBEAT_SEED repeats the chances of another run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import pytest

from tests.conftest import SEED
from tests.faults.bursts import Tally
from tests.faults.layouts import AmqpQueue, Layout, RedisQueue
from tests.support.rabbitmq import RabbitMQ
from tests.support.servers import Server

Report = Callable[[Tally], None]

_tallies: defaultdict[str, Tally] = defaultdict(Tally)

LAYOUTS = ["one db", "two dbs", "no lock", "two servers", "rabbitmq"]


@pytest.fixture
def layout(request: pytest.FixtureRequest) -> Layout:
    """One of LAYOUTS, by its name."""
    name: str = request.param
    main: Server = request.getfixturevalue("redis" if name == "two dbs" else "valkey")
    if name == "one db":
        return Layout(name, main, 0, RedisQueue(main, 0), is_exactly_once=True)
    if name == "two dbs":
        return Layout(name, main, 1, RedisQueue(main, 0), is_exactly_once=True)
    if name == "no lock":
        settings = {"redbeat_lock_key": None}
        return Layout(name, main, 1, RedisQueue(main, 0), is_exactly_once=True, beats=2, settings=settings)
    if name == "rabbitmq":
        rabbitmq: RabbitMQ = request.getfixturevalue("rabbitmq")
        return Layout(name, main, 0, AmqpQueue(rabbitmq.url()), is_exactly_once=False)
    other: Server = request.getfixturevalue("redis")
    return Layout(name, main, 0, RedisQueue(other, 0), is_exactly_once=False)


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Report:
    """Take a tally into the summary, and check it."""
    layout: Layout = request.getfixturevalue("layout")
    title = f"{request.node.originalname.removeprefix('test_').replace('_', ' ')}: {layout.name}"

    def add(tally: Tally) -> None:
        _tallies[title] += tally
        assert tally.is_good(is_exactly_once=layout.is_exactly_once), tally

    return add


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what was killed and what became of it."""
    if not _tallies:
        return
    terminalreporter.section(f"faults, REDBEAT_SEED={SEED}")
    terminalreporter.write_line("   kills    runs    lost doubled  with another id")
    for title, tally in _tallies.items():
        counts = len(tally.lost), len(tally.doubled), len(tally.strange)
        columns = "".join(f"{count:8}" for count in (tally.kills, tally.runs, *counts))
        terminalreporter.write_line(f"{columns}          {title}")
