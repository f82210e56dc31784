"""How RedBeat reaches Redis: a client for each topology, and one client for each app.

Classes of ``redis`` are looked up when they are called, so that patching them works.
"""

from __future__ import annotations

import os
import re
import ssl
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit
from weakref import WeakKeyDictionary, WeakSet

import redis
import redis.cluster
import redis.connection
import redis.exceptions
import redis.sentinel
from celery.app import app_or_default
from kombu.utils.imports import symbol_by_name
from redis.backoff import NoBackoff
from redis.retry import Retry

from redbeat.config.config import OPTIONS, RedBeatConfig, ensure_conf
from redbeat.config.masking import sanitize_url
from redbeat.config.urls import REDIS_SCHEMES, scheme_of
from redbeat.connection.retry import (
    COUNTS,
    RetryingConnection,
    call_retrying,
    is_no_cluster,
    is_no_permission,
    is_password_missing,
    is_transient,
    said_by_server,
)
from redbeat.errors import ConfigurationError, RedBeatError, StoreRefused, StoreUnavailable
from redbeat.keys import DEFAULT_CLUSTER_PREFIX
from redbeat.process.signals import let_through

#: arguments of the redis client that every connection gets unless the user sets others
CLIENT_DEFAULTS: dict[str, Any] = {
    "decode_responses": True,
    # bytes that aren't UTF-8 are kept as they are: garbage in one hash must not fail a whole reply
    "encoding_errors": "surrogateescape",
    "socket_connect_timeout": 5,
    "socket_timeout": 10,
    "socket_keepalive": True,
}


#: the same of a client with a retry_period: a connection that doesn't answer is replaced soon, and a server
#: that is back is noticed before TCP repeats a lost packet
RETRYING_DEFAULTS: dict[str, Any] = {"socket_connect_timeout": 2, "socket_timeout": 2}


#: the dotted path of a class
_DOTTED = re.compile(r"[A-Za-z_]\w*([.:][A-Za-z_]\w*)+")

_UNREACHABLE = (
    redis.exceptions.ConnectionError,
    redis.exceptions.TimeoutError,
    redis.exceptions.ClusterError,
    redis.exceptions.RedisClusterException,
)

#: how a node of a cluster, or a cluster's client, refuses keys that are in several slots, or on another node
_SEVERAL_SLOTS = re.compile(
    r"CROSSSLOT|hash to the same slot|map to the same (key )?slot|non local key", re.IGNORECASE
)
_OTHER_NODE = re.compile(r"\b(MOVED|ASK) \d+ \S+:\d+")

#: how a server says in which script of ours an error has come
_IN_SCRIPT = re.compile(r",? script:( [0-9a-f]{40},)? on @user_script:\d+\.?")

#: what a server says of a missing right without naming the key, the channel, or in a script the command
_UNNAMED = re.compile(r"access (a|one of the) (key|channel)|run this command", re.IGNORECASE)


#: the clients that were made here, and by which process
_MADE: WeakKeyDictionary[Any, int] = WeakKeyDictionary()

#: clients that the parent process has made: not used here, and kept for ever. The beat inside a worker closes
#: all inherited files. A client that is freed after that would close the same file numbers again, which may
#: then belong to others
_INHERITED: list[Any] = []

#: those that give up soon
_HASTY: WeakSet[Any] = WeakSet()

#: the credential providers that RedBeat has made, as a setting has a class: with that class, and the process
_PROVIDERS: WeakKeyDictionary[RedBeatConfig, tuple[Any, int, Any]] = WeakKeyDictionary()

#: an app, and the client that stands in for its own in this thread or task
_IN_PLACE: ContextVar[tuple[Any, Any]] = ContextVar("redbeat_client", default=(None, None))


@contextmanager
def using_client(app: Any, client: Any) -> Iterator[None]:
    """Let ``client`` replace the client of ``app`` in the block, in this thread or task alone."""
    before = _IN_PLACE.set((app, client))
    try:
        yield
    finally:
        _IN_PLACE.reset(before)


def get_redis(app: Any = None) -> Any:
    """Return the app's client: an injected ``app.redbeat_redis``, or one made now and kept there.

    A forked process gets a client of its own.

    Raises:
        ConfigurationError: no client can be made with these settings.
        StoreUnavailable: no node of a cluster can be reached. Only a cluster's client connects at once.
    """
    app = app_or_default(app)
    client = getattr(app, "redbeat_redis", None)
    if client in _MADE and _MADE[client] != os.getpid():
        _INHERITED.append(client)
        client = None
    if client is None:
        config = ensure_conf(app)
        retry_period = config.redbeat_redis_options.get("retry_period")
        if retry_period is None:
            client = build_client(config)
        else:
            client = RetryingConnection(
                retry_period, call_retrying(retry_period, lambda: build_client(config))
            )
        _MADE[client] = os.getpid()
        app.redbeat_redis = client
    return client


def find_given(app: Any) -> Any:
    """Return the client that the application has given: that of its own ``redbeat.schedulers.get_redis``, or
    an injected ``app.redbeat_redis``. None: it has given none.

    Raises:
        ConfigurationError: it is a cluster's, and the prefix has no hash tag.
    """
    app = app_or_default(app)
    module = sys.modules.get("redbeat.schedulers")  # if it isn't imported, nothing is replaced in it
    replaced = getattr(module, "get_redis", get_redis)
    if replaced is not get_redis:
        client = replaced(app)
    else:
        client = getattr(app, "redbeat_redis", None)
        if client is None or client in _MADE:
            return None
    ensure_conf(app).note_client(client)
    return client


def client_of(app: Any) -> Any:
    """Return the client that RedBeat works with: one that stands in or was given, or that of ``get_redis``.

    Raises what ``get_redis`` raises.
    """
    replaced, client = _IN_PLACE.get()
    if replaced is None or replaced is not app:
        client = find_given(app)
    return get_redis(app) if client is None else client


def get_hasty_redis(app: Any, patience_seconds: float = 2) -> Any:
    """Return a client that gives up soon: a new one, or one that the application has given as it is."""
    client = find_given(app)
    if client is not None:
        return client
    client = build_client(
        ensure_conf(app),
        socket_connect_timeout=patience_seconds,
        socket_timeout=patience_seconds,
        retry=Retry(NoBackoff(), 0),
    )
    _HASTY.add(client)
    return client


def is_hasty(client: Any) -> bool:
    """Return True if ``client`` gives up soon, so that a caller does not wait for the same node twice."""
    return client in _HASTY


def build_client(config: RedBeatConfig, **overrides: Any) -> Any:
    """Return a new redis client for the topology that ``config`` describes, without retrying.

    Arguments:
        overrides: arguments of the redis client; they replace those of the configuration.
    """
    scheme, options = scheme_of(config.redis_url), config.redbeat_redis_options
    has_sentinels = scheme in ("sentinel", "redis-sentinel") or bool(options.get("sentinels"))
    # another URL is refused by redis.Redis.from_url, which a test may have replaced
    is_redis = scheme in REDIS_SCHEMES or has_sentinels or config.is_cluster
    if is_redis:
        config.require_redis()
    is_retrying = options.get("retry_period") is not None
    defaults = {**CLIENT_DEFAULTS, **(RETRYING_DEFAULTS if is_retrying else {})}
    arguments = {**defaults, **_client_arguments(config), **overrides}
    try:
        if config.is_cluster:
            return _build_cluster(config, arguments)
        # a pooled connection that the server has closed meanwhile is replaced at once
        arguments.setdefault("retry", Retry(NoBackoff(), 1))
        arguments.setdefault("retry_on_error", [redis.exceptions.ConnectionError])
        if has_sentinels:
            client = _build_sentinel(config, arguments)
        else:
            url = config.redis_url
            if is_redis:
                url = _plain_url(url, arguments, use_ssl=bool(config.redis_use_ssl))
            if url.startswith("unix:"):
                del arguments["socket_keepalive"]  # of TCP only
            client = redis.Redis.from_url(url, **arguments)
        # makes a connection without opening it, so that a wrong option is noticed now
        client.connection_pool.make_connection()
        client.connection_pool.reset()
        return client
    except RedBeatError:
        raise
    except (TypeError, ValueError, LookupError, AttributeError, redis.exceptions.RedisError) as exc:
        config.require_redis()
        # a TypeError names the option that is unknown; the others may quote the URL with its password
        cause = exc if isinstance(exc, TypeError) else None
        raise ConfigurationError(
            f"redbeat_redis_url or redbeat_redis_options: no client can be made for "
            f"{sanitize_url(config.redis_url)}: "
            f"{cause or 'a part of the URL or an option is missing, or has a wrong value.'}",
            "redbeat_redis_options",
        ) from cause


class AskedCredentials(redis.CredentialProvider):
    """A credential provider of the user's, asked for each connection.

    While it raises an error, the server counts as unreachable. redis-py doesn't take it for a streaming
    provider, whose thread would send AUTH on connections that are in use: one that the server ends with its
    token is replaced, with the current token.
    """

    def __init__(self, provider: Any) -> None:
        self._provider = provider

    def get_credentials(self) -> Any:
        """Return the name and the password, or the password alone."""
        try:
            return self._provider.get_credentials()
        except BaseException as exc:  # a SystemExit of a provider's, too, is its error
            let_through(exc)
            # without the error's text, which may quote a password
            said = f" ({exc.strerror}: {exc.filename})" if isinstance(exc, OSError) and exc.strerror else ""
            raise redis.exceptions.ConnectionError(
                f"its credential provider {type(self._provider).__name__} raised {type(exc).__name__}{said}; "
                "so there is no password to connect with"
            ) from exc


def _find_provider(config: RedBeatConfig) -> Any:
    """Return the credential provider that the URL or the options name; None: they name none.

    One that is given as a class, or as the dotted path of one, is made once for each process.
    """
    query = config.redis_url.partition("?")[2].partition(";")[0]
    given = dict(parse_qsl(query)).get("credential_provider")
    setting = "redbeat_redis_url" if given else "redbeat_redis_options"
    given = given or config.redbeat_redis_options.get("credential_provider")
    if not given:
        return None
    made_from, made_by, made = _PROVIDERS.get(config, (None, 0, None))
    if made_from == given and made_by == os.getpid():
        return made
    try:
        provider: Any = symbol_by_name(given)  # type: ignore[no-untyped-call]
        provider = provider() if isinstance(provider, type) else provider
        provider.get_credentials  # noqa: B018 - an AttributeError, if it is something else
    except Exception as exc:  # noqa: BLE001 - whatever the application's class raises
        # anything else may be a password, and so may the error's text
        shown = repr(given) if not isinstance(given, str) or _DOTTED.fullmatch(given) else "this text"
        raise ConfigurationError(
            f"{setting}: credential_provider: must be a redis.CredentialProvider, or the dotted "
            f"path of such a class (pkg.Class), got {shown} ({type(exc).__name__}).",
            setting,
        ) from None
    _PROVIDERS[config] = given, os.getpid(), provider
    return provider


def _client_arguments(config: RedBeatConfig) -> dict[str, Any]:
    """Return the user's options that are the redis client's own, TLS included."""
    arguments = {name: value for name, value in config.redbeat_redis_options.items() if name not in OPTIONS}
    provider = _find_provider(config)
    if provider is not None:
        arguments["credential_provider"] = AskedCredentials(provider)
    if isinstance(config.redis_use_ssl, dict):
        arguments.update(
            (name if name.startswith("ssl_") else f"ssl_{name}", value)
            for name, value in config.redis_use_ssl.items()
        )
    if "ssl_cert_reqs" in arguments:
        arguments["ssl_cert_reqs"] = _cert_reqs(arguments["ssl_cert_reqs"])
    return arguments


def _cert_reqs(value: Any) -> str:
    """Return the redis client's word for ssl.CERT_NONE, 'CERT_NONE' or 'none', which Celery's users write."""
    name = str(ssl.VerifyMode(value).name if value in ssl.VerifyMode.__members__.values() else value)
    word = name.lower().removeprefix("cert_")
    if word not in ("none", "optional", "required"):
        raise ConfigurationError(
            f"ssl_cert_reqs: must be none, optional or required, got {value!r}.", "ssl_cert_reqs"
        )
    return word


def _plain_url(url: str, arguments: Mapping[str, Any], *, use_ssl: bool) -> str:
    """Return ``url`` with the schemes and query arguments that the redis client knows.

    With a credential provider in the client's ``arguments`` it has no user and no password, as with kombu.
    """
    url = url.split(";", 1)[0]  # of several servers, as Celery has them for failover, the first
    scheme, _, rest = url.partition("://")
    scheme = {"valkey": "redis", "valkeys": "rediss", "redis+socket": "unix"}.get(
        scheme.lower(), scheme.lower()
    )
    if scheme == "redis" and use_ssl:
        scheme = "rediss"
    parts = urlsplit(f"{scheme}://{rest}")
    query = dict(parse_qsl(parts.query))
    query.pop("credential_provider", None)
    server = parts.netloc.rpartition("@")[2] if "credential_provider" in arguments else parts.netloc
    if "ssl_cert_reqs" in query:
        query["ssl_cert_reqs"] = _cert_reqs(query["ssl_cert_reqs"])
    database = parts.path.strip("/")
    if scheme != "unix" and database and not database.isdigit():
        raise ConfigurationError(
            f"redbeat_redis_url: {sanitize_url(url)!r}: the database must be a number "
            "(write a / in the password as %2F).",
            "redbeat_redis_url",
        )
    if "virtual_host" in query:
        query.setdefault("db", query.pop("virtual_host").strip("/"))
    # not by urlunsplit, which drops the slashes of a scheme that it doesn't know
    return f"{scheme}://{server}{parts.path}" + (f"?{urlencode(query)}" if query else "")


def _build_sentinel(config: RedBeatConfig, arguments: dict[str, Any]) -> Any:
    options = config.redbeat_redis_options
    from_url = [
        urlsplit(part if "://" in part else f"sentinel://{part}") for part in config.redis_url.split(";")
    ]
    sentinels = options.get("sentinels") or [(part.hostname, part.port or 26379) for part in from_url]
    first = from_url[0]
    is_of_sentinels = scheme_of(config.redis_url) in ("sentinel", "redis-sentinel")
    if is_of_sentinels and "credential_provider" not in arguments:
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
    cluster, nodes = redis.cluster, config.redbeat_redis_options.get("startup_nodes")
    with naming_the_server(config):
        if nodes:
            found = [cluster.ClusterNode(node["host"], int(node["port"])) for node in nodes]
            return cluster.RedisCluster(startup_nodes=found, **arguments)
        url = config.redis_url
        if scheme_of(url) == "redis-cluster":
            url = f"redis://{url.partition('://')[2]}"
        return cluster.RedisCluster.from_url(_plain_url(url, arguments, use_ssl=False), **arguments)


def user_of(client: Any) -> str:
    """Return the name of the user that ``client`` logs in as."""
    options = getattr(getattr(client, "connection_pool", None), "connection_kwargs", {})
    return options.get("username") or "default"


@contextmanager
def naming_the_server(config: RedBeatConfig) -> Iterator[None]:
    """Turn the client's errors into StoreUnavailable and StoreRefused, which name the server."""
    try:
        yield
    except RedBeatError:  # some are the client's errors, too
        raise
    except redis.exceptions.InvalidResponse as exc:
        raise StoreRefused(
            f"The server at {sanitize_url(config.redis_url)} is not a Redis server: {exc}"
        ) from exc
    except (*_UNREACHABLE, redis.exceptions.ResponseError) as exc:
        COUNTS.errors += 1
        _check_cluster_mode(config, exc)
        if isinstance(exc, _UNREACHABLE):
            raise _unreachable(config, exc) from exc
        raise _refused(config, exc) from exc
    except (TypeError, ValueError, LookupError) as exc:
        connection = _connection_in_the_making(exc)
        if connection is None:
            raise
        connection.disconnect()  # else the half-made connection would be used
        raise ConfigurationError(
            "redbeat_redis_url or redbeat_redis_options: no connection can be made to "
            f"{sanitize_url(config.redis_url)}, an option has a wrong value: {type(exc).__name__}: {exc}",
            "redbeat_redis_options",
        ) from exc


def _unreachable(config: RedBeatConfig, exc: Exception) -> StoreRefused | StoreUnavailable:
    """Return the error of a server that can't be connected to."""
    said, url = said_by_server(exc), sanitize_url(config.redis_url)
    reason = str(said).partition(" : <")[0]  # redis-py appends the repr of its client
    if is_transient(exc):
        is_waited_for = config.redbeat_redis_options.get("retry_period") is not None
        advice = "" if is_waited_for else "To wait for Redis, set retry_period in redbeat_redis_options."
        return StoreUnavailable(f"Redis at {url} can't be used: {reason}", advice=advice)
    if is_password_missing(said):
        reason = (
            "it needs a password. Put it into redbeat_redis_url (redis://:password@host), or into "
            "redbeat_redis_options as password."
        )
    elif is_no_cluster(said):
        reason = "it is not a node of a cluster. A single server's URL begins with redis://."
    return StoreRefused(f"Redis at {url} refused the connection: {reason}", is_login=True)


def _refused(config: RedBeatConfig, exc: Exception) -> StoreRefused:
    """Return the error of a command that was refused."""
    reason = _IN_SCRIPT.sub("", str(exc))  # a digest and a line number help no user
    if _UNNAMED.search(reason):
        reason = f"{reason.removesuffix('.')}; the server's ACL LOG has which one"
    if is_no_permission(exc):
        user = config.redbeat_redis_options.get("username")
        whose = f"the user {user}" if user else "its user"
        docs = "docs: configuration, Users with limited rights"
        reason = f"{reason.removesuffix('.')}. Add the right to the ACL rule of {whose} ({docs})"
    return StoreRefused(f"Redis at {sanitize_url(config.redis_url)} refused a command: {reason}")


def _check_cluster_mode(config: RedBeatConfig, exc: Exception) -> None:
    """Raise ConfigurationError if ``exc`` is about a cluster, which the settings don't name."""
    if config.is_cluster:
        return
    url = sanitize_url(config.redis_url)
    if _SEVERAL_SLOTS.search(str(exc)):
        raise config.hash_tag_missing(config.key_prefix, f"Redis at {url} is a node of a cluster: ") from exc
    if isinstance(exc, redis.exceptions.AskError) or _OTHER_NODE.search(str(exc)):
        raise ConfigurationError(
            f"redbeat_redis_options: Redis at {url} is one of several nodes of a cluster: set "
            "redbeat_redis_options = {'cluster': True}, and redbeat_key_prefix to one with a hash tag; the "
            f"default is '{DEFAULT_CLUSTER_PREFIX}' then.",
            "redbeat_redis_options",
        ) from exc


def _connection_in_the_making(exc: Exception) -> Any:
    """Return the connection that was being made when ``exc`` was raised; None: it was raised elsewhere."""
    for frame, _ in traceback.walk_tb(exc.__traceback__):
        is_connecting = frame.f_code.co_name.startswith(("connect", "on_connect"))
        if is_connecting and frame.f_globals.get("__name__") == "redis.connection":
            return frame.f_locals.get("self")
    return None
