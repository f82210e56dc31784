"""How RedBeat reaches Redis: one builder for each topology, one client for each app, and retrying.

Redis classes are looked up when they are called, so that patching ``redis.Redis`` and the others works.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import redis
import redis.cluster
import redis.exceptions
import redis.sentinel
from celery.app import app_or_default
from celery.utils.log import get_logger
from redis.backoff import NoBackoff
from redis.retry import Retry
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception,
    stop_after_delay,
    stop_never,
    wait_exponential,
)

from redbeat.config import OPTIONS, RedBeatConfig, ensure_conf, sanitize_url, scheme_of
from redbeat.errors import ConfigurationError, StoreRefused, StoreUnavailable

__all__ = ["RetryingConnection", "get_redis", "naming_the_server"]

logger = get_logger("celery.beat")

#: the redis client's own arguments that every connection of ours gets unless the user says otherwise
CLIENT_DEFAULTS: dict[str, Any] = {
    "decode_responses": True,
    # bytes that are no UTF-8 come back as they went: garbage in one hash must not fail a whole reply
    "encoding_errors": "surrogateescape",
    "socket_connect_timeout": 5,
    "socket_timeout": 15,
    "socket_keepalive": True,
}

_CERTIFICATES: dict[int, str] = {
    ssl.CERT_NONE: "none",
    ssl.CERT_OPTIONAL: "optional",
    ssl.CERT_REQUIRED: "required",
}


#: clients that the parent process had made: not used here, and never dropped. The beat inside a worker closes
#: all inherited files; a client dropped after that closes the same numbers again, which are others' by then.
_INHERITED: list[Any] = []


def get_redis(app: Any = None) -> Any:
    """Return the app's client: an injected ``app.redbeat_redis``, or one made now and kept there.

    A process made by fork gets one of its own.

    Raises:
        ConfigurationError: the settings don't make a connection.
        StoreUnavailable: no node of a cluster can be reached; other servers aren't asked yet.
    """
    app = app_or_default(app)
    client = getattr(app, "redbeat_redis", None)
    ours, made_by = getattr(app, "redbeat_redis_made", (None, 0))
    if client is not None and client is ours and made_by != os.getpid():
        _INHERITED.append(client)
        client = None
    if client is None:
        config = ensure_conf(app)
        retry_period = config.redbeat_redis_options.get("retry_period")
        if retry_period is None:
            client = build_client(config)
        else:
            client = RetryingConnection(retry_period, _retry(retry_period, lambda: build_client(config)))
        app.redbeat_redis = client
        app.redbeat_redis_made = (client, os.getpid())
    return client


def build_client(config: RedBeatConfig) -> Any:
    """Return a new redis client for the topology that ``config`` describes, without retrying."""
    scheme = scheme_of(config.redis_url)
    arguments = {**CLIENT_DEFAULTS, **_client_arguments(config)}
    try:
        if config.is_cluster:
            return _build_cluster(config, arguments)
        # a pooled connection that the server has closed meanwhile is replaced at once
        arguments.setdefault("retry", Retry(NoBackoff(), 1))
        arguments.setdefault("retry_on_error", [redis.exceptions.ConnectionError])
        if scheme in ("sentinel", "redis-sentinel") or config.redbeat_redis_options.get("sentinels"):
            client = _build_sentinel(config, arguments)
        else:
            url = _plain_url(config.redis_url, use_ssl=bool(config.redis_use_ssl))
            if url.startswith("unix:"):
                del arguments["socket_keepalive"]  # TCP's
            client = redis.Redis.from_url(url, **arguments)
        # a wrong option is noticed when a connection is made, and that should be now; it isn't opened
        client.connection_pool.make_connection()
        client.connection_pool.reset()
        return client
    except (TypeError, ValueError, LookupError) as exc:
        # a TypeError names the option that is unknown; the others may quote the URL with its password
        cause = exc if isinstance(exc, TypeError) else None
        raise ConfigurationError(
            f"redbeat_redis_url or redbeat_redis_options: no client can be made for "
            f"{sanitize_url(config.redis_url)}: "
            f"{cause or 'a part of the URL or an option is missing, or has a wrong value.'}",
            "redbeat_redis_options",
        ) from cause


def _client_arguments(config: RedBeatConfig) -> dict[str, Any]:
    """Return the user's options that are the redis client's own, TLS included."""
    arguments = {name: value for name, value in config.redbeat_redis_options.items() if name not in OPTIONS}
    if isinstance(config.redis_use_ssl, dict):
        arguments.update(
            (name if name.startswith("ssl_") else f"ssl_{name}", value)
            for name, value in config.redis_use_ssl.items()
        )
    if "ssl_cert_reqs" in arguments:
        arguments["ssl_cert_reqs"] = _cert_reqs(arguments["ssl_cert_reqs"])
    return arguments


def _cert_reqs(value: Any) -> str:
    """Return the redis client's word for what Celery users write: CERT_NONE, 'CERT_NONE' or 'none'."""
    word = (
        _CERTIFICATES.get(value, "") if isinstance(value, int) else str(value).lower().removeprefix("cert_")
    )
    if word not in _CERTIFICATES.values():
        raise ConfigurationError(
            f"ssl_cert_reqs: {value!r} is none of none, optional, required.", "ssl_cert_reqs"
        )
    return word


def _plain_url(url: str, use_ssl: bool) -> str:
    """Return ``url`` as the redis client understands it: its schemes, its words in the query."""
    url = url.split(";", 1)[0]  # Celery takes several servers for failover; the schedule lives on one
    scheme, _, rest = url.partition("://")
    scheme = {"valkey": "redis", "valkeys": "rediss", "redis+socket": "unix"}.get(
        scheme.lower(), scheme.lower()
    )
    if scheme == "redis" and use_ssl:
        scheme = "rediss"
    parts = urlsplit(f"{scheme}://{rest}")
    query = dict(parse_qsl(parts.query))
    if "ssl_cert_reqs" in query:
        query["ssl_cert_reqs"] = _cert_reqs(query["ssl_cert_reqs"])
    if "virtual_host" in query:
        query.setdefault("db", query.pop("virtual_host").strip("/"))
    # by hand: urlunsplit drops the slashes of a scheme it doesn't know
    return f"{scheme}://{parts.netloc}{parts.path}" + (f"?{urlencode(query)}" if query else "")


def _build_sentinel(config: RedBeatConfig, arguments: dict[str, Any]) -> Any:
    options = config.redbeat_redis_options
    from_url = [
        urlsplit(part if "://" in part else f"sentinel://{part}") for part in config.redis_url.split(";")
    ]
    sentinels = options.get("sentinels") or [(part.hostname, part.port or 26379) for part in from_url]
    first = from_url[0]
    if scheme_of(config.redis_url) in ("sentinel", "redis-sentinel"):
        if first.password:
            arguments.setdefault("password", unquote(first.password))
        if first.username:
            arguments.setdefault("username", unquote(first.username))
    database = first.path.strip("/")
    if database.isdigit():
        arguments.setdefault("db", int(database))
    if config.redis_use_ssl:
        arguments.setdefault("ssl", True)
    sentinel_arguments = {
        "socket_connect_timeout": 1,
        "socket_timeout": 5,
        "retry": Retry(NoBackoff(), 0),  # there are other sentinels to ask
        **options.get("sentinel_kwargs", {}),
    }
    sentinel = redis.sentinel.Sentinel(
        [tuple(address) for address in sentinels], sentinel_kwargs=sentinel_arguments, **arguments
    )
    return sentinel.master_for(options.get("service_name", "master"))


def _build_cluster(config: RedBeatConfig, arguments: dict[str, Any]) -> Any:
    if config.redis_use_ssl:
        arguments.setdefault("ssl", True)
    nodes = config.redbeat_redis_options.get("startup_nodes")
    with naming_the_server(config):
        return _connect_cluster(config, nodes, arguments)


def _connect_cluster(config: RedBeatConfig, nodes: Any, arguments: dict[str, Any]) -> Any:
    if nodes:
        arguments["startup_nodes"] = [
            redis.cluster.ClusterNode(node["host"], int(node["port"])) for node in nodes
        ]
        return redis.cluster.RedisCluster(**arguments)
    url = config.redis_url
    if scheme_of(url) == "redis-cluster":
        url = f"redis://{url.partition('://')[2]}"
    return redis.cluster.RedisCluster.from_url(_plain_url(url, use_ssl=False), **arguments)


def is_transient(exc: BaseException) -> bool:
    """Tell whether trying again may help: Redis is away, loading, failing over, or moving slots."""
    if isinstance(exc, redis.exceptions.AuthenticationError):
        return False
    return isinstance(
        exc,
        (
            redis.exceptions.ConnectionError,
            redis.exceptions.TimeoutError,
            redis.exceptions.ReadOnlyError,
            redis.exceptions.ClusterDownError,
            redis.exceptions.RedisClusterException,
        ),
    )


def _retry(retry_period: float, call: Callable[[], Any], max_wait_seconds: float = 1) -> Any:
    """Return ``call()``, called again while it fails for want of Redis, ``retry_period`` seconds long."""
    retrying = Retrying(
        stop=stop_never if retry_period < 0 else stop_after_delay(retry_period),
        wait=wait_exponential(multiplier=0.1, max=max_wait_seconds),
        retry=retry_if_exception(is_transient),
        before_sleep=_log_retry,
        reraise=True,
    )
    return retrying(call)


def _log_retry(state: RetryCallState) -> None:
    pause = state.next_action.sleep if state.next_action else 0
    cause = state.outcome.exception() if state.outcome else None
    # once per outage: a server that is away for an hour must not fill the disk
    log = logger.warning if state.attempt_number == 1 else logger.debug
    log("beat: Retrying Redis connection in %s seconds... (%s)", pause, cause)


class RetryingConnection:
    """A proxy of a client that goes on trying when Redis can't be reached.

    Every command, script and pipeline of the client is covered: a pipeline records its commands and sends
    them together, as often as it takes.

    Arguments:
        retry_period: seconds to go on trying; -1: for ever.
        wrapped_connection: a redis client.
    """

    #: longest wait between two tries, seconds
    RETRY_MAX_WAIT = 1

    def __init__(self, retry_period: float, wrapped_connection: Any) -> None:
        self.retry_period = retry_period
        self.wrapped_connection = wrapped_connection

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.wrapped_connection, name)
        if not callable(value):
            return value

        def retrying(*args: Any, **kwargs: Any) -> Any:
            return self._retry(lambda: value(*args, **kwargs))

        return retrying

    def pipeline(self, *args: Any, **kwargs: Any) -> Any:
        """Return a pipeline whose ``execute`` is retried as a whole."""
        return _RetryingPipeline(self._retry, lambda: self.wrapped_connection.pipeline(*args, **kwargs))

    def register_script(self, script: str | bytes) -> Any:
        """Return a script whose calls are retried."""
        return type(self.wrapped_connection).register_script(self, script)

    def lock(self, *args: Any, **kwargs: Any) -> Any:
        """Return a lock of the redis client's whose calls are retried."""
        return type(self.wrapped_connection).lock(self, *args, **kwargs)

    def _retry(self, call: Callable[[], Any]) -> Any:
        return _retry(self.retry_period, call, self.RETRY_MAX_WAIT)


class _RetryingPipeline:
    """Records commands, and replays them into a fresh pipeline at each try."""

    def __init__(self, retry: Callable[[Callable[[], Any]], Any], make: Callable[[], Any]) -> None:
        self._retry = retry
        self._make = make
        self._calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __enter__(self) -> _RetryingPipeline:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._calls.clear()

    def __len__(self) -> int:
        return len(self._calls)

    def __getattr__(self, name: str) -> Any:
        if name in ("watch", "multi", "unwatch", "immediate_execute_command"):
            raise AttributeError(f"a retrying pipeline has no {name}; use the client's transaction().")

        def record(*args: Any, **kwargs: Any) -> _RetryingPipeline:
            self._calls.append((name, args, kwargs))
            return self

        return record

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Send the recorded commands, again and again until Redis takes them; return their replies."""
        calls, self._calls = self._calls, []

        def replay() -> Any:
            pipeline = self._make()
            for name, args, kwargs in calls:
                getattr(pipeline, name)(*args, **kwargs)
            return pipeline.execute(raise_on_error=raise_on_error)

        return self._retry(replay)  # type: ignore[no-any-return]


@contextmanager
def naming_the_server(config: RedBeatConfig) -> Iterator[None]:
    """Turn the client's errors into StoreUnavailable and StoreRefused, which name the server."""
    try:
        yield
    except (
        redis.exceptions.ConnectionError,
        redis.exceptions.TimeoutError,
        redis.exceptions.RedisClusterException,
    ) as exc:
        url = sanitize_url(config.redis_url)
        if not is_transient(exc):
            raise StoreRefused(f"Redis at {url} refused the connection: {exc}") from exc
        raise StoreUnavailable(
            f"Redis at {url} can't be used: {exc} "
            "(redbeat_redis_options' retry_period makes beat wait for it)."
        ) from exc
    except redis.exceptions.ResponseError as exc:
        raise StoreRefused(f"Redis at {sanitize_url(config.redis_url)} refused a command: {exc}") from exc
