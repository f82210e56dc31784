"""An app on the server of a test, and as it was before after it.

Invariant: whatever settings the app has for its Redis and its broker, nothing of a test gets there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from celery import Celery
from kombu import pools

from redbeat.config import load_conf
from redbeat.testing.servers import Server

#: what an app keeps of Redis and RedBeat's settings
_KEPT = ("redbeat_conf", "redbeat_redis")

#: environment variables that Celery prefers to its settings
_VARIABLES = (
    "CELERY_BROKER_URL",
    "CELERY_BROKER_READ_URL",
    "CELERY_BROKER_WRITE_URL",
    "CELERY_RESULT_BACKEND",
)


def settings_on(server: Server) -> dict[str, Any]:
    """Return the settings of an app whose schedule and messages are on ``server``."""
    return {
        "broker_url": server.broker_url,
        "broker_read_url": server.broker_url,
        "broker_write_url": server.broker_url,
        "broker_transport_options": {},
        "broker_use_ssl": False,
        "redbeat_redis_url": server.redis_url,
        "redbeat_redis_options": {},
        "redbeat_redis_use_ssl": False,
        "redbeat_key_expiry_check": "ignore",
        "redbeat_wait_replicas": 0,
        "redbeat_lock_key": None,  # one beat, in this test: no lock to be taken
        "result_backend": "cache+memory://",
        "task_always_eager": False,
    }


@contextmanager
def on_server(app: Celery, server: Server) -> Iterator[Celery]:
    """Within this, let ``app`` have its schedule and its messages on ``server``, and no others.

    Its settings may be changed: afterwards they are as they were.
    """
    changes: dict[str, Any] = load_conf(app).maps[0]  # what was set since it was loaded
    settings, attributes = dict(changes), {name: vars(app)[name] for name in _KEPT if name in vars(app)}
    backends = _take_backends(app)
    variables = {name: os.environ.pop(name) for name in _VARIABLES if name in os.environ}
    try:
        _forget(app)
        for name, value in settings_on(server).items():
            app.conf[name] = value
            if app.conf.prefix:  # in Celery 5.3 the name with a namespace counts, wherever it was set
                app.conf[f"{app.conf.prefix}{name}".upper()] = value
        client = server.make_client()
        if client is not None:
            app.redbeat_redis = client
        with server.emptied(app):
            yield app
    finally:
        _close(app)
        _forget(app)
        changes.clear()
        changes.update(settings)
        vars(app).update(attributes)
        os.environ.update(variables)
        _take_backends(app)
        _put_backends(app, backends)


def _forget(app: Celery) -> None:
    """Let the app make anew what depends on its settings: RedBeat's, its client, its pools."""
    for name in _KEPT:
        vars(app).pop(name, None)
    # Celery has no other names for them
    app._pool = None  # noqa: SLF001
    app.amqp._producer_pool = None  # noqa: SLF001


def _close(app: Celery) -> None:
    made = vars(app).get("redbeat_redis")
    if made is not None:
        with suppress(Exception):
            made.close()
    for group, pool in ((pools.producers, app.amqp._producer_pool), (pools.connections, app._pool)):  # noqa: SLF001
        if pool is not None:
            pool.force_close_all()
            # kombu keeps the pools of all apps, by what they connect to
            for key in [key for key, one in group.items() if one is pool]:
                dict.pop(group, key)  # its own way hashes the key once more


def _take_backends(app: Celery) -> dict[str, Any]:
    """Return the result backends that the app has made, and let it make a new one."""
    taken = {"_backend_cache": vars(app).pop("_backend_cache", None)}
    app._backend_cache = None  # noqa: SLF001
    with suppress(AttributeError):
        taken["local"] = app._local.backend  # noqa: SLF001
        del app._local.backend  # noqa: SLF001
    return taken


def _put_backends(app: Celery, taken: dict[str, Any]) -> None:
    app._backend_cache = taken["_backend_cache"]  # noqa: SLF001
    if "local" in taken:
        app._local.backend = taken["local"]  # noqa: SLF001
