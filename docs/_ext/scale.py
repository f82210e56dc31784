"""The directive ``.. redbeat-scale::``: what the two benchmarks of shards have published, and what follows.

``cluster`` is the table of ``_static/scale.json``, ``shards`` that of ``_static/shards.json``; ``needs`` and
``limits`` are computed from the first (``paper.py``). Nothing published: one sentence says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from paper import Machine, Measured, limits, needs_of
from settings import escape
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

STATIC = Path(__file__).parents[1] / "_static"
CLUSTER, SHARDS, PERFORMANCE = (STATIC / f"{name}.json" for name in ("scale", "shards", "performance"))

SIZES = (10**6, 10**7, 10**8, 10**9)
EVERY = {"a day": 86_400, "an hour": 3_600, "a minute": 60}
_BROKER = "burst to RabbitMQ, messages/s"


def table_lines(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a ``list-table``."""
    lines = [".. list-table::", "   :header-rows: 1", ""]
    for first, *others in [header, *rows]:
        lines += [f"   * - {escape(first)}", *(f"     - {escape(cell)}" for cell in others)]
    return [*lines, ""]


def measured(found: dict[str, Any], performance: dict[str, Any]) -> Measured:
    """Return what the benchmarks say of one entry and one run."""
    tick, entries = found["found"]["tick"], found["options"]["entries"]
    rates = [one["value"] for one in performance["figures"] if one["case"] == _BROKER]
    return Measured(
        sum(found["found"]["memory_bytes"]) / entries,
        tick["burst_here_seconds"] * 1e6 / tick["burst"],
        tick["burst_server_seconds"] * 1e6 / tick["burst"],
        max(rate for rate in rates if rate is not None),
    )


def needs_rows(one: Measured) -> Iterator[list[str]]:
    for words, every in EVERY.items():
        for entries in SIZES:
            needs = needs_of(entries, every, one, Machine())
            yield [
                f"{entries:,}, each once {words}",
                f"{needs.runs_a_second:,.0f}",
                f"{needs.memory_bytes / 1e9:,.1f}",
                *(f"{count:,}" for count in (needs.nodes, needs.beats, needs.brokers)),
                "none" if needs.shards is None else f"{needs.shards:,}",
            ]


def limits_rows(one: Measured) -> Iterator[list[str]]:
    for words, every in EVERY.items():
        found = limits(every, one, Machine())
        yield [f"each once {words}", *(f"{name}: {entries:,.0f}" for name, entries in found.items())]


class Scale(SphinxDirective):
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        for path in (CLUSTER, SHARDS, PERFORMANCE):
            self.env.note_dependency(str(path))
        node = nodes.container()
        self.state.nested_parse(StringList(self.lines(), str(CLUSTER)), self.content_offset, node)
        return node.children

    def lines(self) -> list[str]:
        what = self.arguments[0]
        path = SHARDS if what == "shards" else CLUSTER
        if not path.exists():
            return ["*This wasn't published yet.*", ""]
        found = json.loads(path.read_text("utf-8"))
        if what == "cluster":
            return table_lines(["What", "How much"], found["rows"])
        if what == "shards":
            return table_lines(found["header"], found["rows"])
        one = measured(found, json.loads(PERFORMANCE.read_text("utf-8")))
        if what == "needs":
            header = ["Entries", "Runs a second", "Memory, GB", "Nodes", "Beats", "Brokers", "Shards"]
            return table_lines(header, list(needs_rows(one)))
        if what == "limits":
            header = ["Entries", "First", "Second", "Third", "Fourth", "Fifth"]
            return table_lines(header, list(limits_rows(one)))
        raise self.error(f"no such table: {what}")


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("redbeat-scale", Scale)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
