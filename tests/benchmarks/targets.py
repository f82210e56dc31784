"""What has to be reached, and whether it was. Sizes are those of the run: a quick one says little."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from . import beats, bursts, cases, metrics
from .bench import Sizes
from .results import BATCHED, CONFIRMED, LOOP, NOT_YET, OLD, OURS, Cost, Results

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

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def verdicts(results: Results, sizes: Sizes) -> Iterator[Verdict]:
    """Hold what was measured against every target whose case was run."""
    for target, bound, form, measure in _targets(results, sizes):
        is_least = bound.startswith(">=")
        wanted = float(bound.split()[1])
        words = f"{bound[:2]} {form.format(wanted)}"
        try:
            measured = measure()
        except LookupError as exc:
            if str(exc.args[0]) == NOT_YET:
                yield Verdict(target, NOT_YET, words, False)
            continue
        reached = measured >= wanted if is_least else measured <= wanted
        yield Verdict(target, form.format(measured), words, reached)


def _targets(results: Results, sizes: Sizes) -> Iterator[tuple[str, str, str, Callable[[], float]]]:
    """Words, bound, form of the number, and the number; LookupError when it was not measured."""

    def value(case: str, subject: str, size: int) -> float:
        known = results.value(case, subject, size)
        if known is None:
            figure = results.find(case, subject, size)
            raise LookupError(figure.note if figure else "not run")
        return known

    times, trips, ms, megabytes = "{:.2f} x", "{:g}", "{:.1f} ms", "{:.1f} MB"
    duration = "{:.2f} s"
    due, turned, small, large = sizes.due, sizes.turned, sizes.stored[0], sizes.stored[-1]
    batch, count = sizes.batch, sizes.intervals

    def rate(subject: str, case: str = bursts.BURST, loop_case: str = bursts.BURST) -> float:
        return value(case, OURS, due) / value(loop_case, subject, due)

    def cost(subject: str) -> Cost:
        figure = results.find(bursts.BURST, subject, due)
        if figure is None or figure.cost is None:
            raise LookupError("not run")
        return figure.cost

    def share_of_a_call() -> float:
        return sum(cost(OURS)) / cost(LOOP).here_us

    def sooner() -> float:
        return value(beats.SPIKE, LOOP, due) / value(beats.SPIKE, OURS, due)

    def gain() -> float:
        shared = value(cases.SHARED, OURS, sizes.shared)
        return shared / value(cases.LOCKLESS, OURS, sizes.shared)

    def start(case: str) -> float:
        return value(case, OLD, sizes.statics) / value(case, OURS, sizes.statics)

    def growth(case: str) -> float:
        return value(case, OURS, large) / value(case, OURS, small)

    def faster_saving(case: str) -> float:
        return value(case, OURS, sizes.saved) / value(cases.SAVE, OLD, sizes.saved)

    def here(case: str) -> float:
        return value(case, OURS, sizes.traced)

    def later(case: str) -> float:
        return value(case, OURS, count)

    for subject, bound in ((LOOP, ">= 8"), (BATCHED, ">= 4"), (OLD, ">= 20")):
        yield f"burst of {due:,}, against {subject}", bound, times, partial(rate, subject)
    never_run, received = bursts.NEVER_RUN, bursts.of_variant(bursts.BURST, bursts.RECEIVERS)
    yield (
        f"burst of {due:,} that have never run, against {LOOP}",
        ">= 4",
        times,
        lambda: rate(LOOP, never_run),
    )
    yield (
        f"burst of {due:,} {bursts.RECEIVERS}, against {LOOP} with them",
        ">= 1.5",
        times,
        lambda: rate(LOOP, received, received),
    )
    tracked, untracked = (bursts.of_variant(bursts.BURST, one) for one in (bursts.TRACKED, bursts.UNTRACKED))
    yield (
        f"burst of {due:,} {bursts.TRACKED}, against {bursts.UNTRACKED}",
        ">= 0.85",
        times,
        lambda: value(tracked, OURS, due) / value(untracked, OURS, due),
    )
    for subject, bound in ((CONFIRMED, ">= 5"), (LOOP, ">= 0.8")):
        measure = partial(rate, subject, bursts.RABBITMQ, bursts.RABBITMQ)
        yield f"burst of {due:,} to RabbitMQ, against {subject}", bound, times, measure
    yield "processor time of a run, here + server, of an apply_async's", "<= 0.2", times, share_of_a_call
    yield f"{due:,} due at one minute, against {LOOP}", ">= 15", times, sooner
    yield "messages before that minute", "<= 0", trips, lambda: value(beats.EARLY, OURS, due)
    yield "one of our scripts, p99", "<= 10", ms, lambda: value(bursts.SCRIPT["p99"], OURS, due)
    for kind in bursts.KINDS:
        yield (
            f"tracing in beat, {kind} spans, against such create spans and contexts alone",
            "<= 1",
            times,
            partial(lambda kind: here(bursts.TRACING[kind]) / here(bursts.CARRIED[kind]), kind),
        )
    for form in metrics.FORMS:
        scraped = f"scrape of {sizes.counted:,} entries, {form}"
        yield scraped, "<= 100", ms, partial(value, metrics.SCRAPE[form], OURS, sizes.counted)
        yield (
            f"{scraped}, size",
            "<= 1000",
            "{:.0f} kB",
            partial(value, metrics.SIZE[form], OURS, sizes.counted),
        )
    yield (
        "a slice of the count by states, p99",
        "<= 1",
        ms,
        partial(value, metrics.SLICE["p99"], OURS, sizes.counted),
    )
    for case in (*(metrics.of_runs(metrics.DIFFERENCE, one) for one in metrics.RUNS), metrics.END_DIFFERENCE):
        yield case.replace(", µs of", ","), "<= 3", "{:.1f} µs", partial(value, case, OURS, due)
    yield f"burst of {sizes.shared:,} by two beats without a lock, against one", ">= 1.4", times, gain
    yield "round trips of an idle tick", "<= 1", trips, lambda: value(cases.IDLE_TRIPS, OURS, large)
    yield f"round trips for {batch} due", "<= 4", trips, lambda: value(cases.BATCH_TRIPS, OURS, batch)
    yield (
        f"idle tick at {large:,} entries, against {small:,}",
        "<= 1.3",
        times,
        lambda: growth(cases.IDLE),
    )
    yield (
        f"memory at {large:,} entries, {due:,} due, above that at {due:,}",
        "<= 20",
        megabytes,
        lambda: value(cases.MEMORY, OURS, large) - value(cases.MEMORY, OURS, due),
    )
    yield (
        f"memory gained by sending {turned:,} in turn",
        f"<= {CACHE_MEGABYTES + 16}",
        megabytes,
        lambda: value(cases.TURNED, OURS, turned),
    )
    yield f"{sizes.statics:,} statics cold, against {OLD}", ">= 15", times, lambda: start(cases.COLD)
    yield f"{sizes.statics:,} statics warm, against {OLD}", ">= 15", times, lambda: start(cases.WARM)
    yield f"save in a loop, against {OLD}", ">= 1", times, lambda: faster_saving(cases.SAVE)
    yield f"save_many, against save of {OLD}", ">= 20", times, lambda: faster_saving(cases.SAVE_MANY)
    for words, case, bound, size in (
        ("export of", cases.EXPORT, "<= 2", sizes.exported),
        ("plan that changes", cases.PLAN, "<= 1", sizes.planned),
    ):
        yield f"{words} {size:,}", bound, duration, partial(value, case, OURS, size)
    for words, pattern in (
        ("a page", cases.WEB_PAGE),
        ("a page of the list", cases.WEB_LIST),
        ("the first answer of a search", cases.WEB_FIRST),
    ):
        yield (
            f"dashboard, {words} of {sizes.listed[0]:,} entries, the slowest",
            "<= 100",
            ms,
            partial(cases.slowest, results, sizes.listed[0], pattern),
        )
    yield (
        f"dashboard, memory gained by {sizes.listed[-1]:,} names",
        "<= 100",
        megabytes,
        partial(value, cases.WEB_MEMORY, OURS, sizes.listed[-1]),
    )
    seconds = sizes.lateness_seconds
    yield f"lateness over {seconds} s, p99", "<= 50", ms, lambda: later(beats.LATENESS["p99"])
    yield f"drift over {seconds} s", "<= 1", ms, lambda: later(beats.NOMINAL_DRIFT)
    yield f"runs missing over {seconds} s", "<= 0", trips, lambda: later(beats.MISSING)
