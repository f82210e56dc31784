"""The case of the dashboard: how long each page takes, searches of its list, and the memory of its names."""

from __future__ import annotations

import statistics
from typing import Any

from .bench import Bench
from .results import OURS

PAGE = "dashboard, the page {}, ms of server time"
LIST = "dashboard, page of entries by {}, ms of server time"
FIRST = "dashboard, first answer of a search by {}, ms of server time"
NAMES, NAMES_CPU = "dashboard, all names read, s", "dashboard, all names read, s of processor time"
MEMORY = "dashboard, memory gained by the names, MB"


def case_of(view: str) -> str:
    """The name of the case of a view of the list."""
    order, comma, place = view.partition(", ")
    return LIST.format(f"{order}, {place}") if comma and order in ("next", "name") else FIRST.format(view)


def web(bench: Bench) -> None:
    """One process that is the dashboard and asks itself."""
    for count in bench.sizes.listed:
        options = {"db": bench.stored(count), "count": count, "rounds": bench.sizes.looks}
        found = bench.run(OURS, "web", **options)
        for path, measured in found["pages"].items():
            _add(bench, PAGE.format(path.partition("?")[0]), count, measured)
        for view, measured in found["lists"].items():
            _add(bench, case_of(view), count, measured)
        names = found["names"]
        bench.results.add(NAMES, OURS, count, "s", names["seconds"])
        bench.results.add(NAMES_CPU, OURS, count, "s", names["cpu_seconds"])
        megabytes = names["resident_bytes"] / 1e6
        bench.results.add(MEMORY, OURS, count, "MB", names["gained_bytes"] / 1e6, f"of {megabytes:.0f}")


def _add(bench: Bench, case: str, count: int, measured: dict[str, Any]) -> None:
    looked = f"; looked through {measured['looked']} %" if measured["looked"] < 100 else ""
    processor = statistics.median(measured["cpu_ms"])
    note = f"{processor:.0f} ms of processor time; {measured['kilobytes']:.0f} kB{looked}"
    for value in measured["ms"]:
        bench.results.add(case, OURS, count, "ms", value, note)


def slowest(bench_results: Any, count: int, pattern: str) -> float:
    """The median of the slowest view with a case of ``pattern``; LookupError: none was measured."""
    beginning = pattern.partition("{}")[0]
    found = [
        one.value for one in bench_results.figures if one.size == count and one.case.startswith(beginning)
    ]
    if not found:
        raise LookupError("not run")
    return max(found)
