"""The case of the spans: what tracing costs a run in beat, and what as many spans cost with the SDK alone."""

from __future__ import annotations

from .bench import Bench
from .results import OURS, Cost

SAMPLED, UNSAMPLED = "recorded", "unsampled"
KINDS = (SAMPLED, UNSAMPLED)
BURST = {"none": "burst without a tracer provider, messages/s"} | {
    kind: f"burst with {kind} spans, messages/s" for kind in KINDS
}
TRACING = {kind: f"tracing in beat, {kind} spans, µs of processor time a run" for kind in KINDS}
ALONE = {kind: f"as many {kind} create spans by the SDK alone, µs" for kind in KINDS}
#: and what their messages carry, written by the propagator
CARRIED = {kind: f"as many {kind} create spans and contexts by the SDK alone, µs" for kind in KINDS}


def traced(bench: Bench) -> None:
    """Bursts with spans and without, and the SDK's spans alone, in turn in one process."""
    bench.clear()
    due, results = bench.sizes.traced, bench.results
    options = {"due": due, "db": 1, "rounds": bench.sizes.traced_rounds}
    options |= {"limit_seconds": bench.sizes.limit_seconds, "server_pid": bench.server.process.pid}
    rounds = [
        {what: (taken, Cost.of(taken)) for what, taken in one.items()}
        for one in bench.run(OURS, "tracing", **options)["rounds"]
    ]
    for one in rounds:
        for what, case in BURST.items():
            taken, cost = one[what]
            results.add(case, OURS, due, "messages/s", taken["sent"] / taken["seconds"], cost=cost)
    for kind in KINDS:
        costs = {what: [one[what][1] for one in rounds] for what in ("none", kind)}
        here = {what: [cost.here_us for cost in found if cost] for what, found in costs.items()}
        if not here[kind]:
            return  # the system doesn't tell
        note = f"by the cheapest rounds {min(here[kind]) - min(here['none']):.1f}"
        for traced_us, untraced_us in zip(here[kind], here["none"], strict=True):
            results.add(TRACING[kind], OURS, due, "µs", traced_us - untraced_us, note)
        for what, case in ((f"{kind} alone", ALONE), (f"{kind} alone with context", CARRIED)):
            alone = [cost.here_us for one in rounds for cost in [one[what][1]] if cost]
            for each in alone:
                results.add(case[kind], OURS, due, "µs", each, f"the cheapest round {min(alone):.1f}")
