"""The fixtures of the whole suite: real servers, started once and on demand, and apps that use them.

Invariant: a test gets its servers running and empty, whatever the one before did to them.
"""

from __future__ import annotations

import gc
import importlib.metadata
import os
import random
import re
import secrets
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from copy import deepcopy
from datetime import date, timedelta
from functools import cache
from pathlib import Path
from textwrap import shorten
from typing import Any
from weakref import WeakKeyDictionary

import kombu.transport.redis
import pytest
import redis
from celery import Celery, _state  # no other name
from celery.signals import after_task_publish, before_task_publish
from celery.utils.collections import ChainMap
from kombu import pools
from kombu.transport import memory

from redbeat.declared import decorator
from redbeat.schedules.occurrences import KINDS
from tests.faults.rounds import IS_LONG, lines_of
from tests.support import machine, topologies, venv
from tests.support.rabbitmq import RabbitMQ
from tests.support.servers import KIND, Server

#: set REDBEAT_SEED to repeat the chances of another run; the processes of one run share it
SEED = os.environ.setdefault("REDBEAT_SEED", secrets.token_hex(4))

# redis-py asks for its own version at each connection, which costs three times as much as the connection
importlib.metadata.version = cache(importlib.metadata.version)

MakeApp = Callable[..., Celery]

#: fixtures that need a program which pip does not install: such tests run in `make test-all`
SERVICES = frozenset({"tls", "rabbitmq", "rabbitmq_session", "browser", "page"})


def pytest_report_header() -> str:
    """Say what repeats this run."""
    return f"REDBEAT_SEED={SEED}"


def pytest_make_parametrize_id(config: pytest.Config, val: Any, argname: str) -> str | None:
    """Show what pytest would only number: the test's name is the claim, and this its case.

    It has to be the same in each process of a run: sets, and objects without a text of their own, keep
    their numbers, and what depends on the clock needs ``ids``.
    """
    if isinstance(val, (str, bytes)) or hasattr(val, "__name__"):
        return None
    if val is None or isinstance(val, (bool, int, float)):
        return f"{argname}={val}"
    if isinstance(val, dict):
        text = ",".join(f"{key}={value!r}" for key, value in val.items()) or f"no {argname}"
    else:
        text = str(val) if isinstance(val, (date, timedelta)) else repr(val)
    is_always_so = text.isprintable() and not re.search(r" at 0x|\{[^:}]+,|frozenset|::", text)
    return shorten(text, 60, placeholder="...") if is_always_so else None


def pytest_configure(config: pytest.Config) -> None:
    """Give all processes of this run one directory to write to, which is removed at its end.

    But for `tmp_path`: pytest keeps those of the last runs.
    """
    if not hasattr(config, "workerinput"):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
        scratch = tempfile.TemporaryDirectory(prefix="redbeat-tests-", ignore_cleanup_errors=True)
        config.add_cleanup(scratch.cleanup)
        os.environ |= {"TMPDIR": scratch.name, "HOME": scratch.name}
        tempfile.tempdir = None  # it is looked up anew


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect without searching for garbage: there is none, and with so many tests that is half the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)  # before -m deselects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests that need services, leave cases to the long form, and begin with long files."""
    for item in items:
        if needs_services(item):
            item.add_marker("services")
    if not IS_LONG:
        leave_some_cases(config, items)
    if hasattr(config, "workerinput"):
        from tests.support.distribution import is_long  # here, as xdist may be switched off

        items.sort(key=lambda item: not is_long(item.nodeid))


def needs_services(item: pytest.Item) -> bool:
    """Return True if a fixture, or RabbitMQ in the name, asks for a program that pip does not install."""
    return "rabbitmq" in item.nodeid.casefold() or not SERVICES.isdisjoint(getattr(item, "fixturenames", ()))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let `require_program` refuse a test that lacks the marker."""
    machine.IS_ALLOWED = item.get_closest_marker("services") is not None


def leave_some_cases(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests of the ``long_form``, and cases of others by their ``few_cases``.

    Which ones REDBEAT_SEED decides, alike in all processes.
    """
    left = {item for item in items if item.get_closest_marker("long_form")}
    cases: dict[tuple[str, bool], list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("few_cases"):
            # drawn apart: `make test` has none of those that need services
            needs = item.get_closest_marker("services") is not None
            cases.setdefault((item.nodeid.partition("[")[0], needs), []).append(item)
    for (name, _), found in cases.items():
        [count] = next(found[0].iter_markers("few_cases")).args
        left.update(random.Random(f"{SEED} {name}").sample(found, max(len(found) - count, 0)))
    if left:
        config.hook.pytest_deselected(items=list(left))
        items[:] = [item for item in items if item not in left]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Say which tests go to the same process, where there are several."""
    if config.getoption("dist") != "loadfile":
        return None
    from tests.support.distribution import Distribution  # here, as xdist may be switched off

    return Distribution(config, log)


@pytest.fixture(autouse=True)
def apps_stay_with_their_test() -> Iterator[None]:
    """Celery shares a task of one app with all that are made later: here with those of the same test only.

    Nor is there a current app, or a default one, unless the test makes it.
    """
    # Celery has no other names for them
    finalizers, default_app = _state._on_app_finalizers, _state.default_app  # noqa: SLF001
    current_app = _state._tls.current_app  # noqa: SLF001
    of_celery = {one for one in finalizers if one.__module__ == "celery.app.builtins"}
    observers: Any = ChainMap._observers  # noqa: SLF001 - in Celery 5.3 all apps learn of each one's changes
    if observers:
        observers.clear()
    _state._on_app_finalizers = of_celery  # noqa: SLF001
    _state.default_app = _state._tls.current_app = None  # noqa: SLF001
    yield
    _state._on_app_finalizers, _state.default_app = finalizers, default_app  # noqa: SLF001
    _state._tls.current_app = current_app  # noqa: SLF001


@pytest.fixture(autouse=True)
def what_is_declared_stays_with_its_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """A schedule beside a task of one test is no stray in the log of another."""
    monkeypatch.setattr(decorator, "_declared", WeakKeyDictionary())  # only the end of a process forgets all


@pytest.fixture(autouse=True)
def types_of_schedules_stay_with_their_test() -> Iterator[None]:
    """What a test registers is unknown to the next one: a sentence about a wrong type lists all there are."""
    before = dict(KINDS)
    yield
    KINDS.clear()
    KINDS.update(before)


@pytest.fixture
def nobody_listens() -> Iterator[None]:
    """Nobody listens to Celery's signals about publishing but whom the test connects."""
    listened = (before_task_publish, after_task_publish)
    before = [one.receivers for one in listened]
    for one in listened:
        one.receivers = []
        one.sender_receivers_cache.clear()
    yield
    for one, receivers in zip(listened, before, strict=True):
        one.receivers = receivers
        one.sender_receivers_cache.clear()


@pytest.fixture(autouse=True)
def brokers_stay_with_their_test() -> Iterator[None]:
    """kombu shares connections, with what they have declared, and brokers in memory among all apps."""
    yield
    pools.reset()
    memory.Transport.global_state.clear()
    memory.Channel.queues.clear()
    kombu.transport.redis.Channel._fanout_queues.clear()  # noqa: SLF001 - kombu has no other name for it


def _ready(server: Server) -> Server:
    if not server.is_running:
        server.restart()
    server.flush()
    return server


@pytest.fixture(scope="session")
def valkey_session() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture(scope="session")
def redis_session() -> Iterator[Server]:
    with Server(KIND) as server:
        yield server


@pytest.fixture(scope="session")
def tls_session() -> Iterator[Server]:
    with Server("redis", tls=True) as server:
        yield server


@pytest.fixture(scope="session")
def sentinel_session() -> Iterator[topologies.SentinelTopology]:
    with topologies.sentinel() as topology:
        yield topology


@pytest.fixture(scope="session")
def cluster_session() -> Iterator[topologies.ClusterTopology]:
    with topologies.cluster() as topology:
        yield topology


@pytest.fixture(scope="session")
def rabbitmq_session() -> Iterator[RabbitMQ]:
    with RabbitMQ() as node:
        yield node


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, on demand; ``tests.support.browser.visit`` opens a visitor's window in it.

    One for each file: while it is there, nothing else in this process can run an event loop.
    """
    from tests.support.browser import chromium  # here, as few processes need it

    with chromium() as started:
        yield started


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A window of 1280 by 800 in a browser without cookies; what a page complains about fails the test."""
    from tests.support.browser import visit

    with visit(browser) as (context, _):
        yield context.new_page()


@pytest.fixture
def valkey(valkey_session: Server) -> Server:
    """The embedded Valkey."""
    return _ready(valkey_session)


@pytest.fixture(name="redis")
def redis_server(redis_session: Server) -> Server:
    """A second server: the machine's redis-server with SERVER=redis, otherwise another Valkey."""
    return _ready(redis_session)


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Server:
    """The server of most tests: the embedded Valkey, or with SERVER=redis the machine's redis-server."""
    chosen: Server = request.getfixturevalue(KIND)
    return chosen


@pytest.fixture
def tls(tls_session: Server) -> Server:
    """A redis-server that speaks TLS only."""
    return _ready(tls_session)


@pytest.fixture
def sentinel(sentinel_session: topologies.SentinelTopology) -> topologies.SentinelTopology:
    """A master, its replica and three sentinels."""
    sentinel_session.make_ready()
    return sentinel_session


@pytest.fixture
def cluster(cluster_session: topologies.ClusterTopology) -> topologies.ClusterTopology:
    """Three nodes in a cluster."""
    cluster_session.heal()
    cluster_session.flush()
    return cluster_session


@pytest.fixture
def rabbitmq(rabbitmq_session: RabbitMQ) -> RabbitMQ:
    """A RabbitMQ node."""
    rabbitmq_session.resume()
    if not rabbitmq_session.is_running:
        rabbitmq_session.restart()
    rabbitmq_session.flush()
    return rabbitmq_session


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what was killed and what became of it."""
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    lines = lines_of(
        pair
        for report in reports
        if getattr(report, "when", None) == "call"
        for pair in report.user_properties
    )
    if lines:
        terminalreporter.section(f"faults, REDBEAT_SEED={SEED}")
        terminalreporter.write("\n".join([*lines, ""]))


@pytest.fixture
def chance(request: pytest.FixtureRequest) -> random.Random:
    """Random numbers of this test's own."""
    print(f"REDBEAT_SEED={SEED}")
    return random.Random(f"{SEED} {request.node.name}")


@pytest.fixture(scope="session")
def redbeat2_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with celery-redbeat 2.4.2."""
    return venv.make_redbeat2(tmp_path_factory.mktemp("redbeat2"))


@pytest.fixture
def client(server: Server) -> Iterator[redis.Redis]:
    """A client on the database of the schedule."""
    with server.client(db=1) as connected:
        yield connected


@pytest.fixture
def shards() -> int | None:
    """Into how many shards `make_app` divides schedules; `also_sharded` tests have four, or none, in turns.

    SHARDS=4 divides those of all tests: what then fails looks at keys itself, or isn't of all shards.
    """
    return int(os.environ["SHARDS"]) if os.environ.get("SHARDS") else None


@pytest.fixture
def make_app(server: Server, shards: int | None) -> Iterator[MakeApp]:
    """Apps with their broker on database 0 and the schedule on database 1; settings given are laid over."""
    with ExitStack() as at_end:

        def make(**settings: Any) -> Celery:
            app = Celery("test", set_as_current=False)
            app.conf.update({"broker_url": server.url(0), "redbeat_redis_url": server.url(1)})
            if shards is not None:
                app.conf.update({"redbeat_shards": shards})
            app.conf.update(deepcopy(settings))  # Celery gives queues defaults of the app, in place
            at_end.callback(app.close)
            return app

        yield make


@pytest.fixture
def app(make_app: MakeApp) -> Celery:
    return make_app()
