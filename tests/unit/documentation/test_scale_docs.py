"""What the page on scale computes, and that it takes what the benchmarks write."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from redbeat.layout import MAX_SHARDS

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture
def paper(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(DOCS / "_ext"))
    monkeypatch.delitem(sys.modules, "paper", raising=False)
    import paper

    return paper


def test_a_schedule_on_paper_needs_what_multiplication_says(paper: Any) -> None:
    measured = paper.Measured(entry_bytes=800, beat_us=50, node_us=100, broker_rate=10_000)
    machine = paper.Machine(memory_bytes=32e9, memory_share=0.5, busy_share=0.5)
    # 16 GB for data are 20,000,000 entries; a node does 5,000 runs a second, a beat 10,000
    assert paper.needs_of(1_000_000, 3600, measured, machine).shards is None
    large = paper.needs_of(10**9, 86_400, measured, machine)
    assert (large.memory_bytes, large.nodes, large.beats, large.brokers) == (8e11, 50, 2, 2)
    assert large.shards == 16 * 50
    busy = paper.needs_of(10**6, 10, measured, machine)
    assert (busy.nodes, busy.beats, busy.brokers) == (20, 10, 10)


def test_what_is_reached_first_stands_first(paper: Any) -> None:
    measured = paper.Measured(entry_bytes=800, beat_us=50, node_us=100, broker_rate=10_000)
    machine = paper.Machine(memory_bytes=32e9, memory_share=0.5, busy_share=0.5)
    slow, quick = (paper.limits(every, measured, machine) for every in (86_400, 60))
    assert next(iter(slow)) == "one node's memory"
    assert next(iter(quick)) == "one node's processor"
    assert [*slow.values()] == sorted(slow.values())
    assert slow["one node's memory"] == 20_000_000
    assert paper.MAX_SHARDS == MAX_SHARDS


@pytest.mark.parametrize(
    ("name", "keys"), [("scale", {"found", "options", "rows"}), ("shards", {"header", "rows"})]
)
def test_what_is_published_has_tables(name: str, keys: set[str]) -> None:
    path = DOCS / "_static" / f"{name}.json"
    if not path.exists():
        pytest.skip("nothing was published yet")
    assert keys <= json.loads(path.read_text("utf-8")).keys()
