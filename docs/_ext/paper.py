"""A schedule of any size on paper: what it needs, and what ends first, by what was measured of a smaller one.

All is taken to grow in proportion; that sorted sets grow deeper is left out. Invariant: nothing is read or
measured here.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

#: as redbeat.layout has it; and what the page on shards recommends
MAX_SHARDS = 4096
SHARDS_A_NODE = 16
SHARDS_A_BEAT = 4


@dataclass(frozen=True)
class Measured:
    """What one entry and one run cost.

    Attributes:
        entry_bytes: memory of an entry.
        beat_us: processor time of a run in beat, microseconds.
        node_us: processor time of a run on its node, microseconds.
        broker_rate: how many messages a second one broker takes.
    """

    entry_bytes: float
    beat_us: float
    node_us: float
    broker_rate: float


@dataclass(frozen=True)
class Machine:
    """A node, and how far it may be used.

    Attributes:
        memory_bytes: of a node.
        memory_share: how much of it may be data; the rest is for forks, buffers and growth.
        busy_share: how busy a processor may be, on average.
    """

    memory_bytes: float = 32e9
    memory_share: float = 0.6
    busy_share: float = 0.5

    @property
    def data_bytes(self) -> float:
        return self.memory_bytes * self.memory_share

    def rate(self, run_us: float) -> float:
        """How many runs a second a processor may do."""
        return self.busy_share * 1e6 / run_us


@dataclass(frozen=True)
class Needs:
    """What a schedule needs; `nodes` and `beats` without those to spare. `shards` None: it isn't divided."""

    runs_a_second: float
    memory_bytes: float
    nodes: int
    beats: int
    brokers: int
    shards: int | None


def needs_of(entries: float, every_seconds: float, measured: Measured, machine: Machine) -> Needs:
    """Return what so many entries need that each run every so many seconds, evenly spread over time."""
    runs = entries / every_seconds
    memory = entries * measured.entry_bytes
    nodes = max(ceil(memory / machine.data_bytes), ceil(runs / machine.rate(measured.node_us)))
    beats = ceil(runs / machine.rate(measured.beat_us))
    is_divided = nodes > 1 or beats > 1
    shards = max(SHARDS_A_NODE * nodes, SHARDS_A_BEAT * beats) if is_divided else None
    return Needs(runs, memory, nodes, beats, ceil(runs / measured.broker_rate), shards)


def limits(every_seconds: float, measured: Measured, machine: Machine) -> dict[str, float]:
    """Return how many entries are too many for what, the first limit first."""
    per_node = min(machine.data_bytes / measured.entry_bytes, machine.rate(measured.node_us) * every_seconds)
    found = {
        "one node's memory": machine.data_bytes / measured.entry_bytes,
        "one node's processor": machine.rate(measured.node_us) * every_seconds,
        "one beat": machine.rate(measured.beat_us) * every_seconds,
        "one broker": measured.broker_rate * every_seconds,
        f"{MAX_SHARDS:,} shards, {SHARDS_A_NODE} a node": MAX_SHARDS // SHARDS_A_NODE * per_node,
    }
    return dict(sorted(found.items(), key=lambda limit: limit[1]))
