"""Apps whose schedules are divided into shards, on one server and on a cluster of three nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from celery import Celery

from redbeat.store.store import Store

from .fidelity import counting_round_trips

#: nodes, shards: those of the shards are on all nodes
TOPOLOGIES = [(1, 4), (3, 16)]


class Sharded:
    """A schedule that is divided.

    `nodes`: how many nodes its shards are on.
    """

    def __init__(self, app: Celery, nodes: int, monkeypatch: Any) -> None:
        self.app, self.nodes, self._monkeypatch = app, nodes, monkeypatch
        self.store = Store(app)

    @property
    def client(self) -> Any:
        return self.store.client

    @contextmanager
    def counting(self) -> Iterator[Callable[[], int]]:
        """Yield what tells how many round trips this process has made in the block."""
        self.client.ping()  # it is connected, and knows the nodes
        with counting_round_trips(self._monkeypatch) as sent:
            yield sent

    def shards_of(self, pattern: str) -> list[int]:
        """How many keys of each shard match."""
        clients = [node.redis_connection for node in self.client.get_primaries()] if self.nodes > 1 else []
        keys = [key for client in clients or [self.client] for key in client.scan_iter("*")]
        texts = [key.decode() if isinstance(key, bytes) else key for key in keys]
        prefixes = [part.prefix for part in self.store.parts]
        return [sum(1 for key in texts if key.startswith(f"{prefix}{pattern}")) for prefix in prefixes]


def sharded(request: Any, nodes: int, shards: int) -> Sharded:
    """A schedule in so many shards, on one server or on the cluster."""
    monkeypatch = request.getfixturevalue("monkeypatch")
    app = Celery("test", set_as_current=False)
    app.conf.update(broker_url="memory://", redbeat_shards=shards)
    if nodes == 1:
        app.conf.redbeat_redis_url = request.getfixturevalue("valkey").url(1)
    else:
        app.conf.redbeat_redis_url = request.getfixturevalue("cluster").url()
        app.conf.redbeat_redis_options = {"cluster": True}
    request.addfinalizer(app.close)
    return Sharded(app, nodes, monkeypatch)
