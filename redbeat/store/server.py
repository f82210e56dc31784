"""Questions to the schedule's server: about itself, the user that asks, and any key under the prefix.

Invariant: nothing is written. In a cluster the node is asked that has the schedule, or its first shard.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from itertools import product
from typing import Any, NamedTuple

from redbeat.connection.client import user_of
from redbeat.connection.retry import is_refusal, without_retry
from redbeat.errors import StoreRefused
from redbeat.keys import glob_of, shard_beginning
from redbeat.log.text import as_stored
from redbeat.store.nodes import Command
from redbeat.store.records import text_of
from redbeat.store.store import Store

#: how many keys one step of SCAN looks at
SCAN_SIZE = 1000


class About(NamedTuple):
    """What a server says of itself.

    Attributes:
        run_id: its run id; None: this user may not ask, or it is in a cluster, where no script touches the
            schedule and a queue.
        is_in_cluster: it is a node of a cluster, by the settings or by its own word.
    """

    run_id: str | None
    is_in_cluster: bool


class Server:
    """The server of ``store``. Every method raises StoreRefused if this user may not ask."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def _on_node(self, key: str = "") -> dict[str, Any]:
        """Return the option by which a command reaches the node of a key, or of the schedule."""
        if not self._store.config.is_cluster:
            return {}
        return {"target_nodes": self._store.client.get_node_from_key(key or self._store.parts[0].schedule)}

    def now(self) -> datetime:
        """Return the time of its clock, in UTC."""
        seconds, micros = self._store.ask(Command("time", **self._on_node()))
        return datetime.fromtimestamp(int(seconds), timezone.utc).replace(microsecond=int(micros))

    def info(self, section: str) -> dict[str, Any]:
        """Return a section of INFO."""
        found: dict[str, Any] = self._store.ask(Command("info", section, **self._on_node()))
        return found

    def about(self) -> About:
        """Return what it says of itself."""
        if self._store.config.is_cluster:
            return About(None, is_in_cluster=True)
        try:
            found = self.info("server")
        except StoreRefused as exc:
            if is_refusal(exc.__cause__):  # it may answer later: it is busy, say
                raise
            return About(None, is_in_cluster=False)  # an ACL without INFO
        mode = found.get("redis_mode") or found.get("server_mode")  # Valkey 9 has the second name
        is_in_cluster = mode == "cluster"
        return About(None if is_in_cluster else text_of(found.get("run_id")) or None, is_in_cluster)

    def setting(self, name: str) -> str:
        """Return a value of its CONFIG; '': it has no such setting."""
        found = self._store.ask(Command("config_get", name, **self._on_node()))
        return next((str(text_of(value)) for value in found.values()), "")

    def eviction_policy(self) -> str | None:
        """Return its maxmemory-policy if that may evict the schedule; None: it can't."""
        policy = self.setting("maxmemory-policy")
        # the volatile-* policies evict only keys with a time to live, and the schedule has none
        return policy if policy.startswith("allkeys") else None

    def database(self) -> int | None:
        """Return the number of the schedule's database; None where the client doesn't tell."""
        pool = getattr(without_retry(self._store.client), "connection_pool", None)
        options = getattr(pool, "connection_kwargs", None)
        return None if options is None else int(options.get("db") or 0)

    def configured_user(self) -> str:
        """Return the name of the schedule's user by the settings."""
        return user_of(without_retry(self._store.client))

    def user(self) -> str:
        """Return the name of the schedule's user by the server; if it doesn't tell, by the settings."""
        try:
            found = self._store.ask(Command("acl_whoami", **self._on_node()))
            return str(text_of(found))
        except StoreRefused:  # an old server, or a user that may not ask
            return self.configured_user()

    def types_of(self, keys: Sequence[str]) -> list[str]:
        """Return the type of each key, 'none' for no key; one round trip."""
        return [str(text_of(kind)) for kind in self._of_each("type", keys)]

    def which_exist(self, keys: Sequence[str]) -> list[bool]:
        """Return for each key whether it exists; one round trip."""
        return [bool(found) for found in self._of_each("exists", keys)]

    def _of_each(self, command: str, keys: Sequence[str]) -> Any:
        return self._store.ask_all([Command(command, as_stored(key)) for key in keys])

    def scan(self, *beginnings: str, kind: str | None = None) -> Iterator[list[str]]:
        """Yield the keys with these beginnings, and perhaps only of one type, page by page.

        Those of shards are looked for together, so keys of other shards, also of former ones, are among them.
        All keys of the server are looked at, or of each node; it serves others meanwhile.
        """
        shards = shard_beginning(self._store.config.base_keys.prefix)
        of_shards = [one for one in beginnings if one.startswith(shards)]
        patterns = [f"{glob_of(one)}*" for one in beginnings if one not in of_shards]
        if of_shards:
            rests = {one.partition("}:")[2] for one in of_shards}
            rest = f"}}:{glob_of(rests.pop())}*" if len(rests) == 1 else ""
            patterns.append(f"{glob_of(shards)}*{rest}")
        nodes: list[dict[str, Any]] = [{}]
        if self._store.config.is_cluster:  # while a slot moves, its keys are on two nodes
            nodes = [{"target_nodes": node} for node in without_retry(self._store.client).get_primaries()]
        for pattern, node in product(patterns, nodes):
            options: Any = {"match": pattern, "count": SCAN_SIZE, "_type": kind, **node}
            for page in self._store.scan(lambda cursor: Command("scan", cursor, **options)):  # noqa: B023
                yield [text_of(key) for key in page]
