"""`python -m tests.benchmarks`: run the cases, print the tables, write JSON and PNG."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import Process
from tests.support.servers import Server

from . import beats, bursts, cases, plot, results
from .bench import Bench, Sizes, SubjectError, machine, quick_sizes
from .metrics import metrics
from .targets import verdicts

CASES: dict[str, Callable[[Bench], None]] = {
    "burst": bursts.burst, "variants": bursts.variants, "tracked": bursts.tracked,
    "traced": bursts.traced,
    "rabbitmq": bursts.rabbitmq, "spike": beats.spike,
    "pings": bursts.pings, "metrics": metrics,
    "sharing": cases.sharing, "trips": cases.trips, "passage": cases.passage, "idle": cases.idle,
    "statics": cases.statics, "saving": cases.saving, "files": cases.files, "memory": cases.memory,
    "work": cases.work, "web": cases.web, "lateness": beats.lateness,
}  # fmt: skip
PUBLISHED = results.ROOT / "docs" / "_static"
OUT = results.ROOT / "build" / "bench"
#: with --quick targets are shown, as what they are held against is measured, but none is judged
NOT_JUDGED = "--quick: the targets hold at full sizes, so none is judged here."


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, once each: does it all work?")
    parser.add_argument("--only", metavar="CASE,CASE", default=",".join(CASES), help=", ".join(CASES))
    where = f"where JSON and PNG go; {OUT.relative_to(results.ROOT)}, or if not all is run, its part"
    parser.add_argument("--out", type=Path, help=where)
    parser.add_argument("--busy", action="store_true", help="beside a loop on every processor")
    parser.add_argument("--publish", action="store_true", help="put them into the documentation, too")
    options = parser.parse_args(arguments)
    options.only = options.only.split(",")
    if unknown := set(options.only) - CASES.keys():
        parser.error(f"no such case: {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    is_whole = not (options.quick or options.busy or set(options.only) != CASES.keys())
    if options.publish and not is_whole:
        parser.error("--publish takes a whole run: neither --quick, --only nor --busy")
    options.out = options.out or (OUT if is_whole else OUT / "part")  # a whole run's results are kept
    return options


def run_cases(bench: Bench, names: Sequence[str]) -> None:
    """Run the cases in turn; one that fails is noted, and the others go on."""
    for name, case in CASES.items():
        if name not in names:
            continue
        started = time.monotonic()
        try:
            case(bench)
        except (SubjectError, pytest.skip.Exception, AssertionError) as exc:
            bench.results.failures[name] = str(exc)
        print(f"{name}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)


def summary(bench: Bench, names: Sequence[str], on: dict[str, Any], *, is_quick: bool) -> dict[str, Any]:
    """All that was found, for results.json: figures with every repeat, and the tables as they are shown."""
    verdict_list = list(verdicts(bench.results, bench.sizes, is_judged=not is_quick))
    figures = results.filled(results.FIGURES_HEADER, list(results.figure_rows(bench.results)))
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "machine": on,
        "cases": list(names),
        "failures": bench.results.failures,
        "figures": bench.results.as_json(),
        "targets": [asdict(verdict) for verdict in verdict_list],
        "tables": {
            "figures": {"header": figures[0], "rows": figures[1:]},
            "targets": {"header": results.TARGETS_HEADER, "rows": [one.cells for one in verdict_list]},
        },
    }


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    with Server() as server, busy_processors() if options.busy else nullcontext(0) as busy:
        sizes = quick_sizes() if options.quick else Sizes()
        bench = Bench(server, sizes, patience=2 if options.busy else 1)
        on = machine(bench, busy)
        run_cases(bench, options.only)
    found = summary(bench, options.only, on, is_quick=options.quick)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "results.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    is_drawn = plot.draw(bench.results, options.out / "bench.png")
    for shown in found["tables"].values():
        if shown["rows"]:
            print(f"\n{results.aligned(shown['header'], shown['rows'])}")
    if options.quick:
        print(NOT_JUDGED)
    print(f"\n{', '.join(f'{name} {value}' for name, value in on.items())}")
    print(options.out / "results.json", *([options.out / "bench.png"] if is_drawn else []), sep="\n")
    for name, reason in bench.results.failures.items():
        print(f"\n{name} FAILED: {reason}", file=sys.stderr)
    if options.publish and not bench.results.failures:
        PUBLISHED.mkdir(exist_ok=True)
        shutil.copy(options.out / "results.json", PUBLISHED / "performance.json")
        shutil.copy(options.out / "bench.png", PUBLISHED / "performance.png")
    return 1 if bench.results.failures else 0


#: the loops end by themselves after this time, whatever becomes of the run
_LIMIT_SECONDS = 2 * 3600

_LOOP = f"""
import os, sys, time
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {{int(sys.argv[1])}})
end = time.monotonic() + {_LIMIT_SECONDS}
while time.monotonic() < end:
    pass
"""


@contextmanager
def busy_processors() -> Iterator[int]:
    """Keep a loop running on each processor, at the same priority, in the block; yield how many they are."""
    processors = range(os.cpu_count() or 1)
    with ExitStack() as stack:
        for processor in processors:
            stack.enter_context(Process([sys.executable, "-c", _LOOP, str(processor)]))
        yield len(processors)


if __name__ == "__main__":
    sys.exit(main())
