"""Moving a cluster's slot from one node to another, as `redis-cli --cluster reshard` does, step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from redis.crc import key_slot

from tests.support.servers import Server

#: as many keys are moved at a time, as by redis-cli
KEYS_AT_A_TIME = 10


class SlotMove:
    """The move of one slot that is on its way from construction until the end of the `with` block."""

    def __init__(self, servers: Iterable[Server], key: str, source: Server, target: Server) -> None:
        self.slot = key_slot(key.encode())
        self._target = target
        self._source = source.client()
        self._clients = [target.client(), *(server.client() for server in servers if server is not target)]
        self._target_id = self._id_of(self._clients[0])
        self._clients[0].execute_command("CLUSTER SETSLOT", self.slot, "IMPORTING", self._id_of(self._source))
        self._source.execute_command("CLUSTER SETSLOT", self.slot, "MIGRATING", self._target_id)

    def keys(self, count: int = KEYS_AT_A_TIME) -> list[str]:
        """Some keys that have not been moved."""
        keys: Any = self._source.execute_command("CLUSTER GETKEYSINSLOT", self.slot, count)
        return list(keys)

    def move(self, *keys: str) -> None:
        """Move keys."""
        where = self._target.host, self._target.port, "", 0, 5000
        self._source.execute_command("MIGRATE", *where, "KEYS", *keys)

    def move_all(self, after_each: Callable[[], object] = lambda: None) -> None:
        """Move what is left, `after_each` portion."""
        while keys := self.keys():
            self.move(*keys)
            after_each()

    def __enter__(self) -> SlotMove:
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Move what is left, and let every master know who has the slot now."""
        self.move_all()
        for client in self._clients:
            if client.role()[0] == "master":
                client.execute_command("CLUSTER SETSLOT", self.slot, "NODE", self._target_id)
            client.close()
        self._source.close()

    @staticmethod
    def _id_of(client: Any) -> str:
        return str(client.execute_command("CLUSTER MYID"))


def is_master(server: Server) -> bool:
    return bool(_replication_of(server)["role"] == "master")


def replica_of(servers: Iterable[Server], master: Server | None = None) -> tuple[Server, Server] | None:
    """Return a master, or this one, with a replica of it that is in step; None: there is none now."""
    by_port = {server.port: server for server in servers}
    for replica in by_port.values():
        found = _replication_of(replica)
        if found["role"] == "slave" and found["master_link_status"] == "up":
            known = by_port[found["master_port"]]
            if master in (None, known):
                return known, replica
    return None


def _replication_of(server: Server) -> Any:
    with server.client() as client:
        return client.info("replication")
