"""What has to be reached, and whether it was. Sizes are those of the run: a quick one says little."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from . import beats, bursts, cases, metrics
from .bench import Sizes
from .results import BATCHED, CONFIRMED, LOOP, OLD, OURS, Cost, Results

#: `redbeat_message_cache_bytes` by default; what else a process keeps of its entries is small
CACHE_MEGABYTES = 64


@dataclass(frozen=True)
class Verdict:
    """One target: its words, what was measured and what was asked for, ready to be shown."""

    target: str
    measured: str
    wanted: str
    is_reached: bool | None  # None: it was not measured

    @property
    def cells(self) -> list[str]:
        reached = {True: "yes", False: "no", None: "-"}[self.is_reached]
        return [self.target, self.measured, self.wanted, reached]


def verdicts(results: Results, sizes: Sizes, *, is_judged: bool = True) -> Iterator[Verdict]:
    """Hold what was measured against every target whose case was run."""
    for target, bound, form, measure in _targets(results, sizes):
        is_least = bound.startswith(">=")
        wanted = float(bound.split()[1])
        words = f"{bound[:2]} {form.format(wanted)}"
        try:
            measured = measure()
        except LookupError:
            continue
        reached = measured >= wanted if is_least else measured <= wanted
        yield Verdict(target, form.format(measured), words, reached if is_judged else None)


def _targets(results: Results, sizes: Sizes) -> Iterator[tuple[str, str, str, Callable[[], float]]]:
    """Words, bound, form of the number, and the number; LookupError when it was not measured."""
    times, trips, ms, megabytes = "{:.2f} x", "{:g}", "{:.1f} ms", "{:.1f} MB"
    due, turned, small, large = sizes.due, sizes.turned, sizes.stored[0], sizes.stored[-1]
    shared, statics, saved, counted = sizes.shared, sizes.statics, sizes.saved, sizes.counted
    seconds, listed = sizes.lateness_seconds, sizes.listed

    def value(case: str, size: int = due, subject: str = OURS) -> float:
        known = results.value(case, subject, size)
        if known is None:
            raise LookupError("not run")
        return known

    def take(case: str, size: int = due) -> Callable[[], float]:
        return lambda: value(case, size)

    def times_of(case: str, other: str, size: int = due, other_size: int = 0) -> Callable[[], float]:
        return lambda: value(case, size) / value(other, other_size or size)

    def against(subject: str, case: str, size: int = due, other: str = "") -> Callable[[], float]:
        """How many times as much as another subject, by another case of its if one is given."""
        return lambda: value(case, size) / value(other or case, size, subject)

    def faster(subject: str, case: str, size: int = due) -> Callable[[], float]:
        return lambda: value(case, size, subject) / value(case, size)

    def cost(subject: str) -> Cost:
        figure = results.find(bursts.BURST, subject, due)
        if figure is None or figure.cost is None:
            raise LookupError("not run")
        return figure.cost

    burst, of = f"burst of {due:,}", bursts.of_variant
    received, tracked, untracked = (
        of(bursts.BURST, one) for one in (bursts.RECEIVERS, bursts.TRACKED, bursts.UNTRACKED)
    )
    for subject, bound in ((LOOP, ">= 11.4"), (BATCHED, ">= 4.7"), (OLD, ">= 23.6")):
        yield f"{burst}, against {subject}", bound, times, against(subject, bursts.BURST)
    raw = against(LOOP, bursts.RAW, other=bursts.BURST)
    yield f"{burst} written raw with score 0, against {LOOP}", ">= 6", times, raw
    words = f"{burst} {bursts.RECEIVERS}, against {LOOP} with them"
    yield words, ">= 1.5", times, against(LOOP, received)
    words = f"{burst} {bursts.TRACKED}, against {bursts.UNTRACKED}"
    yield words, ">= 0.85", times, times_of(tracked, untracked)
    for subject, bound in ((CONFIRMED, ">= 7.9"), (LOOP, ">= 0.8")):
        yield f"{burst} to RabbitMQ, against {subject}", bound, times, against(subject, bursts.RABBITMQ)
    words = "processor time of a run, here + server, of an apply_async's"
    yield words, "<= 0.2", times, lambda: sum(cost(OURS)) / cost(LOOP).here_us
    yield f"{due:,} due at one minute, against {LOOP}", ">= 22", times, faster(LOOP, beats.SPIKE)
    yield "messages before that minute", "<= 0", trips, take(beats.EARLY)
    yield "one of our scripts, p99", "<= 10", ms, take(bursts.SCRIPT["p99"])
    for kind in bursts.KINDS:
        words = f"tracing in beat, {kind} spans, against such create spans and contexts alone"
        yield words, "<= 1", times, times_of(bursts.TRACING[kind], bursts.CARRIED[kind], sizes.traced)
    for form in metrics.FORMS:
        scraped = f"scrape of {counted:,} entries, {form}"
        yield scraped, "<= 100", ms, take(metrics.SCRAPE[form], counted)
        yield f"{scraped}, size", "<= 1000", "{:.0f} kB", take(metrics.SIZE[form], counted)
    yield "a slice of the count by states, p99", "<= 1", ms, take(metrics.SLICE["p99"], counted)
    for case in (*(metrics.of_runs(metrics.DIFFERENCE, one) for one in metrics.RUNS), metrics.END_DIFFERENCE):
        yield case.replace(", µs of", ","), "<= 3", "{:.1f} µs", take(case)
    lockless = against(LOOP, cases.LOCKLESS, shared, cases.ALONE)
    yield f"burst of {shared:,} by one beat without a lock, against {LOOP}", ">= 5", times, lockless
    words = f"burst of {shared:,} by two beats without a lock, against one"
    yield words, ">= 1.7", times, times_of(cases.SHARED, cases.LOCKLESS, shared)
    for way in cases.PASSAGES:
        for measure, most in cases.PASSAGE_MEASURES.items():
            case = f"{measure} of a tick, {way}"
            yield f"{measure} that a tick passes through, {way}", f"<= {most}", trips, take(case, 1)
    yield "round trips of an idle tick", "<= 1", trips, take(cases.IDLE_TRIPS, large)
    yield f"round trips for {sizes.batch} due", "<= 4", trips, take(cases.BATCH_TRIPS, sizes.batch)
    growth = times_of(cases.IDLE, cases.IDLE, large, small)
    yield f"idle tick at {large:,} entries, against {small:,}", "<= 1.3", times, growth
    words = f"memory at {large:,} entries, {due:,} due, above that at {due:,}"
    yield words, "<= 20", megabytes, lambda: value(cases.MEMORY, large) - value(cases.MEMORY)
    words = f"memory gained by sending {turned:,} in turn"
    yield words, f"<= {CACHE_MEGABYTES + 16}", megabytes, take(cases.TURNED, turned)
    for words, case in (("cold", cases.COLD), ("warm", cases.WARM)):
        yield f"{statics:,} statics {words}, against {OLD}", ">= 15", times, faster(OLD, case, statics)
    yield f"save in a loop, against {OLD}", ">= 1", times, against(OLD, cases.SAVE, saved)
    save_many = against(OLD, cases.SAVE_MANY, saved, cases.SAVE)
    yield f"save_many, against save of {OLD}", ">= 20", times, save_many
    yield f"export of {sizes.exported:,}", "<= 2", "{:.2f} s", take(cases.EXPORT, sizes.exported)
    yield f"plan that changes {sizes.planned:,}", "<= 1", "{:.2f} s", take(cases.PLAN, sizes.planned)
    for words, pattern in (
        ("a page", cases.WEB_PAGE),
        ("a page of the list", cases.WEB_LIST),
        ("the first answer of a search", cases.WEB_FIRST),
    ):
        slowest = partial(cases.slowest, results, listed[0], pattern)
        yield f"dashboard, {words} of {listed[0]:,} entries, the slowest", "<= 100", ms, slowest
    words = f"dashboard, memory gained by {listed[-1]:,} names"
    yield words, "<= 100", megabytes, take(cases.WEB_MEMORY, listed[-1])
    late, intervals = beats.LATENESS["p99"], sizes.intervals
    yield f"lateness over {seconds} s, p99", "<= 50", ms, take(late, intervals)
    yield f"drift over {seconds} s", "<= 1", ms, take(beats.NOMINAL_DRIFT, intervals)
    yield f"runs missing over {seconds} s", "<= 0", trips, take(beats.MISSING, intervals)
