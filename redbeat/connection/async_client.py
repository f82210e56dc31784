"""Clients of asyncio: one for each app and event loop, and what runs our own code with it.

Invariants: a client is used in the event loop only that it was made in, and its connections are closed at
that loop's end, or by :func:`aclose` before. An injected client is its owner's: it isn't closed. A copy of
one leads to the same server, database and user. No more commands are on their way than a client has turns.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable, iscoroutinefunction, signature
from itertools import islice
from types import GeneratorType
from typing import Any, TypeVar

import redis.asyncio
import redis.asyncio.cluster
import redis.asyncio.retry
import redis.asyncio.sentinel
import redis.cluster
import redis.connection
import redis.exceptions
import redis.retry
from celery.app import app_or_default
from redis.backoff import NoBackoff

from redbeat.config.config import RedBeatConfig, ensure_conf
from redbeat.connection.client import build_client, find_given, using_clients
from redbeat.connection.retry import RecordedPipeline, RetryingConnection, without_retry
from redbeat.connection.waiting import drive, is_driven, wait_for
from redbeat.errors import ConfigurationError

Result = TypeVar("Result")

#: how many commands of one client are on their way at once, each on a connection of its own; others wait for
#: their turn. More connections would be of no use: the server does one command after the other
MAX_COMMANDS = 16


#: the kinds of connections that both have
_KINDS: dict[type, type] = {
    redis.connection.Connection: redis.asyncio.Connection,
    redis.connection.SSLConnection: redis.asyncio.SSLConnection,
    redis.connection.UnixDomainSocketConnection: redis.asyncio.UnixDomainSocketConnection,
}
#: their arguments that mean the same, besides those that begin with ssl_; others are objects of either kind
_SHARED = {
    "client_name", "credential_provider", "db", "decode_responses", "encoding", "encoding_errors",
    "health_check_interval", "host", "password", "path", "port", "protocol", "socket_connect_timeout",
    "socket_keepalive", "socket_keepalive_options", "socket_timeout", "username",
}  # fmt: skip


def async_copy_of(client: Any, retry: Any) -> Any:
    """Return a client of asyncio's with the same connections as ``client``; None: there can be none.

    Arguments:
        retry: when its commands are tried again.
    """
    pool = getattr(client, "connection_pool", None)
    kind = _KINDS.get(getattr(pool, "connection_class", None))  # type: ignore[arg-type]
    if type(client) is not redis.Redis or pool is None or kind is None:
        return None
    given: dict[str, Any] = {
        name: value for name, value in pool.connection_kwargs.items() if value is not None
    }
    if "redis_connect_func" in given:  # it is called with a connection of the other kind
        return None
    tls = {name: value for name, value in given.items() if name.startswith("ssl_")}
    known = signature(kind).parameters
    if any(value and name not in known for name, value in tls.items()):
        return None
    arguments = {name: value for name, value in given.items() if name in _SHARED}
    arguments.update((name, value) for name, value in tls.items() if name in known)
    copied = redis.asyncio.ConnectionPool(connection_class=kind, retry=retry, **arguments)
    return redis.asyncio.Redis(connection_pool=copied)


class WaitingClient:
    """A proxy of a client of asyncio's, for code that a task drives (``waiting.drive``).

    Arguments:
        turns: of all that use the client.
    """

    #: our code looks for none of these where the connections aren't its own: the client ends a connection
    #: itself if it is interrupted before the reply has been read
    connection = connection_pool = None

    def __init__(self, client: Any, turns: asyncio.Semaphore) -> None:
        self._client = client
        self._turns = turns

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._client, name)
        return partial(self._call, value) if callable(value) else value

    def _call(self, method: Any, *args: Any, **kwargs: Any) -> Any:
        return self._wait(partial(method, *args, **kwargs))

    def _wait(self, call: Callable[[], Any]) -> Any:
        return wait_for(in_turn(self._turns, call))

    def pipeline(self, *args: Any, **kwargs: Any) -> RecordedPipeline:
        """Return a pipeline; its ``execute`` is waited for."""
        return RecordedPipeline(self._wait, partial(self._client.pipeline, *args, **kwargs))

    def close(self) -> None:
        """Do nothing: other tasks use the client, too."""


#: an asyncio client raises ConnectionError for every error while it connects. With one of these causes it was
#: refused, or an option is wrong: trying again does not help
_LASTING_CAUSES = (redis.exceptions.RedisError, TypeError, ValueError)


async def in_turn(turns: asyncio.Semaphore, call: Callable[[], Any]) -> Any:
    """Return what ``call`` returns, or what that returns when it is awaited, as soon as it is its turn."""
    async with turns:
        try:
            answer = call()
            return await answer if isawaitable(answer) else answer
        except redis.exceptions.ConnectionError as exc:
            if not isinstance(exc.__cause__, _LASTING_CAUSES) or isinstance(exc.__cause__, OSError):
                raise
            cause = exc.__cause__
    raise cause  # here, as there it would get ``exc`` for its context, of which it is the cause


@dataclass(eq=False)
class _Kept:
    """A client that is used in one event loop.

    Attributes:
        client: of asyncio's; or one in memory, which waits for nothing.
        waiting: how our own code uses it.
        injected: what the app was given; None: nothing.
        config: what the app was configured with.
        is_ours: it was made here, so it is closed here, too.
        life: an asynchronous generator, which the event loop closes before it ends.
        users: how many calls use it now, and ``life``; the last one closes it.
    """

    client: Any
    waiting: Any
    injected: Any
    config: RedBeatConfig
    is_ours: bool
    life: AsyncGenerator[None, None] | None = None
    users: int = 1

    async def let_go(self) -> None:
        """Record that one of its users has ended."""
        self.users -= 1
        if not self.users and self.is_ours:
            await close_client(self.client)


class _LoopClients:
    """The clients of one app, by their event loops."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._kept: dict[asyncio.AbstractEventLoop, _Kept] = {}
        self._pid = os.getpid()
        #: clients of the parent process, kept for ever: closing one would take its sockets from the parent's
        #: event loop
        self._inherited: list[Any] = []

    def of(self, loop: asyncio.AbstractEventLoop) -> _Kept:
        """Return the client for ``loop``, which is the one that runs."""
        if self._pid != os.getpid():
            self._inherited.append(self._kept)
            self._kept, self._pid = {}, os.getpid()
        injected, config = _injected(self._app), ensure_conf(self._app)
        kept = self._kept.get(loop)
        if kept is not None and kept.injected is injected and kept.config is config:
            return kept
        for other in list(self._kept):
            if other.is_closed():  # without closing its generators, as asyncio.run does
                self._kept.pop(other, None)
        kept = self._kept[loop] = _make(self._app, injected, config)
        kept.life = self._live(loop, kept)
        with suppress(StopIteration):  # the first step waits for nothing, and makes it known to the loop
            kept.life.__anext__().__await__().send(None)
        return kept

    async def _live(self, loop: asyncio.AbstractEventLoop, kept: _Kept) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            if self._kept.get(loop) is kept:
                del self._kept[loop]
            await kept.let_go()

    async def aclose(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close the client for ``loop``, if there is one, as soon as no call uses it."""
        kept = self._kept.get(loop)
        if kept is not None and kept.life is not None:
            await kept.life.aclose()


def _injected(app: Any) -> Any:
    """Return what ``app`` was given: for event loops, or else for code that blocks; None: nothing."""
    given = getattr(app, "redbeat_redis_async", None)
    return find_given(app) if given is None else given


def _make(app: Any, injected: Any, config: RedBeatConfig) -> _Kept:
    if injected is None:
        client, is_ours = build_async_client(config), True
    elif injected is getattr(app, "redbeat_redis_async", None):
        client, is_ours = injected() if callable(injected) else injected, False
    elif not _is_blocking(without_retry(injected)):  # it is in memory, as those of fakeredis are
        return _Kept(injected, injected, injected, config, is_ours=False)
    else:
        retry = redis.asyncio.retry.Retry(NoBackoff(), 1)
        client, is_ours = async_copy_of(without_retry(injected), retry), True
        if client is None:
            raise ConfigurationError(
                f"app.redbeat_redis was set to a {type(injected).__name__} that has no counterpart in "
                "redis.asyncio, and would block the event loop: set app.redbeat_redis_async to a client of "
                "redis.asyncio, or to a function that returns one for each event loop."
            )
    max_connections = getattr(getattr(client, "connection_pool", None), "max_connections", None)
    turns = asyncio.Semaphore(min(MAX_COMMANDS, max_connections or MAX_COMMANDS))
    waiting: Any = WaitingClient(client, turns)
    retry_period = config.redbeat_redis_options.get("retry_period")
    if injected is None and retry_period is not None:
        waiting = RetryingConnection(retry_period, waiting)
    return _Kept(client, waiting, injected, config, is_ours)


def _is_blocking(client: Any) -> bool:
    if isinstance(client, redis.cluster.RedisCluster):
        return True
    connection: Any = getattr(getattr(client, "connection_pool", None), "connection_class", None)
    return str(getattr(connection, "__module__", "")).startswith("redis.")


def build_async_client(config: RedBeatConfig) -> Any:
    """Return a new client of asyncio's for the topology that ``config`` describes.

    Raises:
        ConfigurationError: none can be made with these settings.
    """
    given = config.redbeat_redis_options.get("retry")
    overrides: dict[str, Any] = {}
    if isinstance(given, redis.retry.Retry):
        # its fields have no other names
        fields: Any = given._backoff, given._retries, given._supported_errors  # noqa: SLF001
        overrides["retry"] = redis.asyncio.retry.Retry(*fields)
    elif given is None and not config.is_cluster:
        overrides["retry"] = redis.asyncio.retry.Retry(NoBackoff(), 1)
    return build_client(config, redis.asyncio, **overrides)


async def close_client(client: Any) -> None:
    """Close a client of asyncio's, with all its connections, and those to sentinels."""
    pool = getattr(client, "connection_pool", None)
    sentinels = getattr(getattr(pool, "sentinel_manager", None), "sentinels", ())
    for one in (client, *sentinels):
        # it was broken already, or was never connected, as its options are wrong
        with suppress(redis.exceptions.RedisError, OSError, TypeError, ValueError):
            await (getattr(one, "aclose", None) or one.close)()  # before redis-py 5 it is close
            own_pool = getattr(one, "connection_pool", None)
            if own_pool is not None:  # before redis-py 5 it stays open
                await own_pool.disconnect()


def _clients_of(app: Any) -> _LoopClients:
    found = getattr(app, "redbeat_redis_async_made", None)
    if found is None:
        found = app.redbeat_redis_async_made = _LoopClients(app)
    clients: _LoopClients = found
    return clients


def _running_loop() -> asyncio.AbstractEventLoop:
    try:
        return asyncio.get_running_loop()
    except RuntimeError as exc:
        raise RuntimeError(
            "RedBeat's coroutines are awaited in an event loop of asyncio, and none runs here; redis-py's "
            "client knows no other kind, such as trio's."
        ) from exc


def get_async_redis(app: Any = None) -> Any:
    """Return the client of asyncio's that the app has in the running event loop.

    It is ``app.redbeat_redis_async`` if that is set: a client, or a function that returns one, which is
    called once in each event loop. Else it is one that connects as an injected ``app.redbeat_redis`` does, or
    as the settings say; it is closed when the event loop ends.

    Raises:
        ConfigurationError: no client can be made with these settings.
    """
    return _clients_of(app_or_default(app)).of(_running_loop()).client


async def aclose(app: Any = None) -> None:
    """Close the client that the app has in the running event loop, unless it was injected.

    ``asyncio.run`` and all that works like it do so at the event loop's end. Calls that are under way are let
    finish; one that begins later gets a new client.
    """
    await _clients_of(app_or_default(app)).aclose(_running_loop())


async def run(call: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
    """Return ``call(*args, **kwargs)``, which reads or writes the schedule, without blocking the event loop.

    Where it waits for Redis, other tasks run, and it uses the clients of the event loop. It isn't for what
    waits for something else, such as a broker or a file: that blocks as ever.

    Raises what the call raises.
    """
    loop = _running_loop()
    if iscoroutinefunction(call):
        raise TypeError(f"aio.run takes a function that isn't a coroutine; await {call.__name__} itself.")

    used: list[_Kept] = []

    def find(app: Any) -> Any:
        if not is_driven():
            return None
        kept = _clients_of(app).of(loop)
        if kept not in used:
            kept.users += 1
            used.append(kept)
        return kept.waiting

    def begin() -> Result:
        with using_clients(find):
            result = call(*args, **kwargs)
        if isinstance(result, (GeneratorType, islice)):
            raise TypeError(
                "aio.run was given a function that returns an iterator, which would read outside of it, and "
                "block; await aio.run(list, ...) with what it returns."
            )
        return result

    try:
        return await drive(begin)
    finally:
        for kept in used:
            await kept.let_go()
