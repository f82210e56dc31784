"""`python -m tests.benchmarks.scale`: millions of entries in a cluster of three nodes. Run by hand.

The nodes have neither replicas nor persistence. Some entries are saved by `save_many`, which is timed; the
others are copies of one of these, byte by byte, written by a loader. Then one beat leads all shards. Ten
million entries take about 8 GB of memory and some minutes; `--entries 50000` shows whether it works.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import redis

from redbeat.keys import DEFAULT_CLUSTER_PREFIX, Keys
from redbeat.layout import Layout, assumed_layout, shard_of
from tests.support.processes import Process
from tests.support.servers import Server
from tests.support.topologies import ClusterTopology, cluster

from .results import ROOT, aligned, write

_SUBJECTS = Path(__file__).parent / "subjects"
_TIMEOUT_SECONDS = 1800
_DAY = 86_400


class Scale:
    """One cluster with its broker, and the subjects that are run on it."""

    def __init__(self, nodes: ClusterTopology, broker: Server, options: argparse.Namespace) -> None:
        self.nodes, self.broker, self.options = nodes, broker, options
        self.layout: Layout = assumed_layout(Keys(DEFAULT_CLUSTER_PREFIX), options.shards)

    def run(self, way: str, **options: Any) -> dict[str, Any]:
        """What a subject reports in this way."""
        argument = {
            "url": self.nodes.url().replace("redis://", "redis-cluster://"),
            "broker": self.broker.url(0),
            "shards": self.options.shards,
            "way": way,
            "server_pids": [node.process.pid for node in self.nodes.nodes],
            **options,
        }
        command: list[str | Path] = [sys.executable, _SUBJECTS / "scaled.py", json.dumps(argument)]
        with Process(command, cwd=_SUBJECTS, env={"PYTHONPATH": str(ROOT)}) as process:
            code = process.wait(_TIMEOUT_SECONDS)
            output = process.output()
        found = [line for line in output.splitlines() if line.startswith('{"package"')]
        assert (code, bool(found)) == (0, True), f"{way}:\n{output}"
        report: dict[str, Any] = json.loads(found[-1])
        del report["package"]
        return report

    def memory(self) -> list[int]:
        """Bytes that each node uses for data."""
        found = []
        for node in self.nodes.nodes:
            with node.client() as client:
                info: Any = client.info("memory")
                found.append(int(info["used_memory"]))
        return found

    def shards_on_nodes(self) -> list[int]:
        with self.nodes.client() as client:
            ports = [client.get_node_from_key(keys.schedule).port for keys in self.layout.parts]
        return [ports.count(node.port) for node in self.nodes.nodes]

    def sample(self) -> dict[bytes, bytes]:
        """The fields of the last of the saved entries, its number in them to be filled in."""
        last = self.options.saved - 1
        with self.nodes.client(decode_responses=False) as client:
            fields: Any = client.hgetall(self.layout.keys.entry(name_of(last)))
        assert fields, f"{name_of(last)} wasn't saved"
        return {field: value.replace(b"%0*d" % (DIGITS, last), NUMBER) for field, value in fields.items()}

    def load(self) -> float:
        """Write the other entries, due from a day from now on until another day later; return the seconds."""
        numbers = range(self.options.saved, self.options.entries)
        now, started = time.time(), time.monotonic()
        sample = self.sample()
        with self.nodes.client() as client:
            for count in load(client, self.layout, sample, numbers, (now + _DAY, now + 2 * _DAY)):
                rate = count / (time.monotonic() - started)
                print(f"\r{count:,} written, {rate:,.0f} a second", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
        return time.monotonic() - started

    def counted(self) -> int:
        with self.nodes.client() as client:
            return sum(client.zcard(keys.schedule) for keys in self.layout.parts)


def measure(scale: Scale) -> dict[str, Any]:
    options, found = scale.options, {}
    empty = scale.memory()
    found["save"] = scale.run("save", count=options.saved)
    if options.entries > options.saved:
        found["load_seconds"] = scale.load()
    assert scale.counted() == options.entries, f"{scale.counted()} of {options.entries} are there"
    found["memory_bytes"] = [now - before for now, before in zip(scale.memory(), empty, strict=True)]
    found["shards_on_nodes"] = scale.shards_on_nodes()
    found["tick"] = scale.run("tick", rounds=options.rounds, due=options.due)
    found["read"] = scale.run("read", rounds=9, page=options.page)
    assert found["read"]["counted"] == options.entries, found["read"]
    return found


def rows(found: dict[str, Any], options: argparse.Namespace) -> list[list[str]]:
    """The table: what, and how much."""
    save, tick, read = found["save"], found["tick"], found["read"]
    memory = found["memory_bytes"]
    of_nodes = ", ".join(f"{value / 1e6:,.0f}" for value in memory)
    nodes = ", ".join(map(str, found["shards_on_nodes"]))
    idle_here, idle_there = (tick[f"idle_{name}_seconds"] * 1e3 for name in ("here", "server"))
    answers = ", ".join(f"{read[f'{name}_seconds'] * 1e3:.1f}" for name in ("count", "status"))

    def ms(taken: dict[str, Any], name: str, digits: int = 1) -> str:
        trips = f"{taken[f'{name}_round_trips']:.0f} round trips"
        return f"{taken[f'{name}_seconds'] * 1e3:.{digits}f} in {trips}"

    shards = f"{options.entries:,} in {options.shards or 'no'} shards; on the nodes: {nodes}"
    return [
        ["entries, shards", shards],
        ["memory of an entry, bytes", f"{sum(memory) / options.entries:,.0f}; of the nodes, MB: {of_nodes}"],
        ["save_many, entries/s", f"{options.saved / save['seconds']:,.0f}"],
        ["idle tick, ms", ms(tick, "idle", 2)],
        ["processor time of it, ms", f"{idle_here:.2f} of beat, {idle_there:.2f} of the nodes"],
        ["an entry of each shard due, ms until all are sent", ms(tick, "one_each")],
        [f"claim of {tick['burst']:,}, ms", ms(tick, "claim", 0)],
        *burst_rows(tick, "burst", f"{tick['burst']:,} due at once, which have never run"),
        *burst_rows(tick, "again", "the same once more"),
        [f"the first {options.page}, ms", ms(read, "list")],
        ["count, status, ms", answers],
    ]


def burst_rows(tick: dict[str, Any], name: str, words: str) -> list[list[str]]:
    """Runs a second, and what each takes of the processors."""
    here, there = (tick[f"{name}_{where}_seconds"] * 1e6 / tick["burst"] for where in ("here", "server"))
    return [
        [f"{words}: runs/s", f"{tick['burst'] / tick[f'{name}_seconds']:,.0f}"],
        ["processor time of a run, µs", f"{here:.0f} of beat, {there:.0f} of the nodes"],
    ]


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.scale", description=__doc__)
    parser.add_argument("--entries", type=int, default=10_000_000)
    parser.add_argument("--saved", type=int, default=200_000, help="of these by save_many")
    parser.add_argument("--shards", type=lambda word: None if word == "none" else int(word), default=48)
    parser.add_argument("--due", type=int, default=20_000, help="entries of the burst")
    parser.add_argument("--rounds", type=int, default=500, help="idle ticks")
    parser.add_argument("--page", type=int, default=50)
    parser.add_argument("--publish", action="store_true", help="put the table into the documentation")
    options = parser.parse_args(arguments)
    options.saved = min(options.saved, options.entries)
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    with cluster(cluster_node_timeout=15_000) as nodes, Server() as broker:
        found = measure(Scale(nodes, broker, options))
        version = f"{broker.kind} {broker.version}"
    table = rows(found, options)
    machine = {"processors": os.cpu_count(), "server": version, "redis-py": redis.__version__}
    write("scale", options.publish, machine=machine, options=vars(options), found=found, rows=table)
    print(aligned(["what", "how much"], table))
    return 0


DIGITS = 9
#: stands for the number of an entry
NUMBER = b"<number>"
#: how many entries are sent at once to a node
_LOT = 2_000


def name_of(number: int) -> str:
    return f"customer-{number:0{DIGITS}}"


def load(
    client: redis.RedisCluster,
    layout: Layout,
    sample: Mapping[bytes, bytes],
    numbers: range,
    scores: Sequence[float],
) -> Iterator[int]:
    """Write the entries with these numbers, with scores evenly between two; yield how many there are."""
    first, last = scores
    step = (last - first) / max(len(numbers), 1)
    with ExitStack() as stack:
        nodes: dict[int, Any] = {}
        for primary in client.get_primaries():
            node = stack.enter_context(redis.Redis(host=primary.host, port=primary.port))
            nodes[primary.port] = node.pipeline(transaction=False)
        targets = [nodes[client.get_node_from_key(keys.schedule).port] for keys in layout.parts]  # type: ignore[union-attr]
        for count, number in enumerate(numbers, 1):
            name = name_of(number)
            shard = shard_of(name, layout.shards or 1)
            keys, pipeline = layout.parts[shard], targets[shard]
            digits = b"%0*d" % (DIGITS, number)
            fields = {field: value.replace(NUMBER, digits) for field, value in sample.items()}
            pipeline.hset(keys.entry(name), mapping=fields)
            pipeline.zadd(keys.schedule, {keys.entry(name): f"{first + count * step:.6f}"})
            if len(pipeline) >= 2 * _LOT:
                pipeline.execute()
            if count % 100_000 == 0:
                yield count
        for pipeline in nodes.values():
            pipeline.execute()
    yield len(numbers)


if __name__ == "__main__":
    sys.exit(main())
