"""Several real servers that make one: a master with sentinels, and a cluster.

Both are whole when the context manager hands them over, and whole again after `heal()`, whatever a test did
to their servers. Sentinels that can't agree any more are replaced, with their servers (`make_ready`): one
test's fault costs no other its time. They are tuned to react in well under a second; the protocol is the
servers' own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import redis
import redis.sentinel
from redis.cluster import RedisCluster
from redis.exceptions import RedisError

from .clocks import ServerClock
from .polling import eventually
from .proxy import Proxy
from .servers import Kind, Server

_Sentinel: Any = redis.sentinel.Sentinel  # untyped in redis-py
_SLOTS = 16384
_NOT_YET = (AssertionError, RedisError)

#: how long a server is silent before a sentinel holds it for down
_DOWN_AFTER_MS = 500
#: how long a topology of which nothing is broken takes at most to agree, seconds
_HEALING_SECONDS = 6


@dataclass(frozen=True)
class SentinelTopology:
    """A master and a replica (`data`, in the order they started) watched by three `sentinels`, quorum two.

    The sentinels give a silent master half a second. `password` is the data servers', `sentinel_password` the
    sentinels' own.
    """

    kind: Kind
    service_name: str
    password: str | None
    sentinel_password: str | None
    data: list[Server] = field(default_factory=list)
    sentinels: list[Server] = field(default_factory=list)

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Where the sentinels are."""
        return [(sentinel.host, sentinel.port) for sentinel in self.sentinels]

    def url(self, db: int = 0) -> str:
        """Celery's form: sentinel://host:port/db;sentinel://host:port/db with the data servers' password."""
        userinfo = f":{quote(self.password, safe='')}@" if self.password else ""
        return ";".join(f"sentinel://{userinfo}{host}:{port}/{db}" for host, port in self.addresses)

    def client(self, **options: Any) -> redis.Redis:
        """A client that finds the present master through the sentinels."""
        finder = _Sentinel(self.addresses, sentinel_kwargs={"password": self.sentinel_password})
        defaults: dict[str, Any] = {"password": self.password, "decode_responses": True}
        client: redis.Redis = finder.master_for(self.service_name, **{**defaults, **options})
        return client

    def master(self) -> Server:
        """The server that the sentinels, all of them, hold for the master."""
        ports = {int(self._ask(sentinel)["port"]) for sentinel in self.sentinels}
        assert len(ports) == 1, f"the sentinels name several masters: {ports}"
        return next(server for server in self.data if server.port in ports)

    def fail_over(self) -> Server:
        """Kill the master and return the one that follows, when all sentinels know it."""
        old = self.master()
        old.kill()

        def successor() -> Server | None:
            new = self.master()
            return new if new is not old and _role(new) == "master" else None

        new = eventually(successor, retry_on=_NOT_YET, message="no failover")
        assert new is not None
        return new

    def hold_down_after(self, milliseconds: int = _DOWN_AFTER_MS) -> None:
        """Let a server be down for the sentinels after so long a silence; by default half a second."""
        for sentinel in self.sentinels:
            with sentinel.client() as client:
                client.sentinel_set(self.service_name, "down-after-milliseconds", milliseconds)

    def start(self) -> None:
        """Start all of them, empty, and wait until they agree."""
        secret: dict[str, Any] = {}
        if self.password:
            secret = {"requirepass": self.password, "masterauth": self.password}
        self.data.append(master := Server(self.kind, **secret))
        self.data.append(Server(self.kind, replicaof=(master.host, master.port), **secret))
        watch: list[tuple[object, ...]] = [
            ("monitor", self.service_name, master.host, master.port, 2),
            ("down-after-milliseconds", self.service_name, _DOWN_AFTER_MS),
            ("failover-timeout", self.service_name, 1000),
        ]
        if self.password:
            watch.append(("auth-pass", self.service_name, self.password))
        own: dict[str, Any] = {}
        if self.sentinel_password:
            own["requirepass"] = self.sentinel_password
            watch.append(("sentinel-pass", self.sentinel_password))
        for _ in range(3):
            self.sentinels.append(sentinel := Server(self.kind, sentinel=watch, **own))
            _quicken(sentinel)
        self.heal()

    def make_ready(self) -> None:
        """Whole and empty, as a test wants it: healed, or built anew where that doesn't succeed soon."""
        try:
            self.heal(_HEALING_SECONDS)
            self.master().flush()
        except (AssertionError, RedisError) as exc:
            print(f"the sentinel topology is built anew: {exc}")
            self.stop()
            self.start()

    def heal(self, timeout: float = 20) -> None:
        """Bring back what has died; wait until all sentinels know one master and its one replica."""
        for server in self.data:
            if not server.is_running:
                server.restart()
        for sentinel in self.sentinels:
            if not sentinel.is_running:
                sentinel.restart()
                _quicken(sentinel)
        try:
            eventually(
                self._is_whole,
                timeout,
                retry_on=_NOT_YET,
                message="the sentinel topology did not become whole",
            )
        except AssertionError as exc:
            logs = (
                f"{server}:\n{server.process.output()[-4000:]}" for server in [*self.sentinels, *self.data]
            )
            raise AssertionError("\n".join([str(exc), *logs])) from exc

    def stop(self) -> None:
        for servers in (self.sentinels, self.data):
            while servers:
                servers.pop().stop()

    def _ask(self, sentinel: Server) -> dict[str, Any]:
        with sentinel.client() as client:
            state: dict[str, Any] = client.sentinel_master(self.service_name)
            return state

    def _is_whole(self) -> bool:
        for sentinel in self.sentinels:
            state = self._ask(sentinel)
            found = state["flags"], int(state["num-other-sentinels"]), int(state["num-slaves"])
            assert found == ("master", 2, 1), found
        with self.master().client() as client:
            replication: Any = client.info("replication")
        replica = replication.get("slave0", {})
        return bool(replication["role"] == "master" and replica.get("state") == "online")


@contextmanager
def sentinel(
    kind: Kind = "valkey",
    password: str | None = None,
    sentinel_password: str | None = None,
    service_name: str = "redbeat",
) -> Iterator[SentinelTopology]:
    """A topology that runs, until the end of the context."""
    topology = SentinelTopology(kind, service_name, password, sentinel_password)
    try:
        topology.start()
        yield topology
    finally:
        topology.stop()


def _quicken(sentinel: Server) -> None:
    """Look around five times a second, where the default is every one, two and ten seconds.

    After two seconds in which it couldn't run, on a machine that is busy, it does nothing for another second
    (tilt mode), where the default is half a minute.
    """
    periods = dict.fromkeys(("ping-period", "ask-period", "info-period", "publish-period"), 200)
    words = [word for period in {**periods, "tilt-period": 1000}.items() for word in period]
    with sentinel.client() as client:
        client.execute_command("SENTINEL DEBUG", *words)


def _role(server: Server) -> str:
    with server.client() as client:
        replication: Any = client.info("replication")
    return str(replication["role"])


@dataclass(frozen=True)
class ClusterTopology:
    """Masters that share all slots; without a replica, the cluster is down while one is away.

    `replica` is that of the node that `{redbeat}` is on at first.
    """

    nodes: list[Server]
    replica: Server | None = None

    @property
    def startup_nodes(self) -> list[tuple[str, int]]:
        return [(node.host, node.port) for node in self.nodes]

    def url(self) -> str:
        """The first node's, as redis://."""
        return self.nodes[0].url()

    def client(self, **options: Any) -> RedisCluster:
        first = self.nodes[0]
        defaults: dict[str, Any] = {"password": first.password, "decode_responses": True}
        return RedisCluster(host=first.host, port=first.port, **{**defaults, **options})

    def heal(self) -> None:
        """Bring back nodes that have died, and wait until each finds the cluster in order."""
        for node in self.servers:
            if not node.is_running:
                node.restart()
        for node in self.servers:
            eventually(
                _sees_all_of(node, len(self.servers)),
                retry_on=_NOT_YET,
                message=f"{node} sees no cluster in order",
            )

    def flush(self) -> None:
        for node in self.nodes:
            node.flush()

    def stop(self) -> None:
        for node in self.servers:
            node.stop()

    @property
    def servers(self) -> list[Server]:
        """The nodes, and the replica."""
        return [*self.nodes, *([self.replica] if self.replica else [])]

    def owner(self, key: str) -> Server:
        """The server that has the key's slot, as the cluster tells."""
        with self.client() as client:
            port = client.get_node_from_key(key).port
        return next(server for server in self.servers if server.port == port)


@contextmanager
def cluster(
    kind: Kind = "valkey",
    *,
    size: int = 3,
    has_replica: bool = False,
    clock: ServerClock | None = None,
    **options: Any,
) -> Iterator[ClusterTopology]:
    """Start `size` nodes, introduce them and deal out the slots; `options` are those of Server.

    `clock` is what the last of them sees on the wall.
    """
    settings: dict[str, Any] = {
        "cluster_enabled": True, "cluster_port": 0, "cluster_node_timeout": 1000, **options,
    }  # fmt: skip
    with ExitStack() as stack:
        clocks = [*[None] * (size - 1), clock]
        nodes = [stack.enter_context(Server(kind, clock=one, **settings)) for one in clocks]
        for number, node in enumerate(nodes):
            first, last = number * _SLOTS // size, (number + 1) * _SLOTS // size - 1
            with node.client() as client:
                client.execute_command("CLUSTER ADDSLOTSRANGE", first, last)
                client.execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
                for other in nodes[:number]:
                    client.execute_command("CLUSTER MEET", other.host, other.port, _bus_port(other))
        topology = ClusterTopology(nodes)
        topology.heal()
        if has_replica:
            replica = stack.enter_context(Server(kind, **settings))
            topology = ClusterTopology(nodes, replica)
            _replicate(replica, topology.owner("{redbeat}"))
            topology.heal()
        yield topology


@contextmanager
def cluster_behind_proxies() -> Iterator[tuple[ClusterTopology, list[Proxy]]]:
    """A cluster whose nodes tell clients to come through proxies, one each; among themselves they use none.

    While a node is away, the others serve their own slots.
    """
    with cluster() as topology, ExitStack() as stack:
        proxies = [stack.enter_context(Proxy((node.host, node.port))) for node in topology.nodes]
        for node, proxy in zip(topology.nodes, proxies, strict=True):
            with node.client() as client:
                client.config_set("cluster-announce-port", proxy.port)
                client.config_set("cluster-require-full-coverage", "no")
        ports = {proxy.port for proxy in proxies}
        for node in topology.nodes:
            eventually(_has_told(node, ports), message=f"{node} doesn't know where clients are to come")
        yield topology, proxies


def _has_told(node: Server, ports: set[int]) -> Callable[[], bool]:
    def check() -> bool:
        with node.client() as client:
            slots: Any = client.execute_command("CLUSTER SLOTS")
        return {address[1] for _, _, address in slots} == ports

    return check


def _replicate(replica: Server, master: Server) -> None:
    with replica.client() as client, master.client() as of_master:
        client.execute_command("CLUSTER MEET", master.host, master.port, _bus_port(master))
        master_id = of_master.execute_command("CLUSTER MYID")
        eventually(lambda: client.execute_command("CLUSTER REPLICATE", master_id), retry_on=(RedisError,))

        def is_online() -> bool:
            replication: Any = of_master.info("replication")
            return bool(replication.get("slave0", {}).get("state") == "online")

        eventually(is_online)


def _bus_port(node: Server) -> int:
    with node.client() as client:
        answer: Any = client.config_get("cluster-port")
    return int(answer["cluster-port"])


def _sees_all_of(node: Server, count: int) -> Callable[[], bool]:
    def check() -> bool:
        with node.client() as client:
            state: Any = client.execute_command("CLUSTER INFO")
        return bool(state["cluster_state"] == "ok" and state["cluster_known_nodes"] == str(count))

    return check
