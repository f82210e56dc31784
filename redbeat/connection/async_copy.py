"""A client of asyncio's that connects as one does that was injected for code that blocks.

Invariant: it leads to the same server, database and user, or there is none.
"""

from __future__ import annotations

import inspect
from typing import Any

import redis.asyncio
import redis.connection

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
    known = inspect.signature(kind).parameters
    if any(value and name not in known for name, value in tls.items()):
        return None
    arguments = {name: value for name, value in given.items() if name in _SHARED}
    arguments.update((name, value) for name, value in tls.items() if name in known)
    copied = redis.asyncio.ConnectionPool(connection_class=kind, retry=retry, **arguments)
    return redis.asyncio.Redis(connection_pool=copied)
