"""What has to be reached, and whether it was. Sizes are those of the run: a quick one says little."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from . import cases, lateness
from .bench import Sizes
from .results import LOOP, NOT_YET, OLD, OURS, Results


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
    due, small, large = sizes.due, sizes.stored[0], sizes.stored[-1]
    batch, count = sizes.batch, sizes.intervals

    def rate(subject: str) -> float:
        return value(cases.BURST, OURS, due) / value(cases.BURST, subject, due)

    def gain() -> float:
        shared = value(cases.SHARED, OURS, sizes.shared)
        return shared / value(cases.ALONE, OURS, sizes.shared)

    def start(case: str) -> float:
        return value(case, OLD, sizes.statics) / value(case, OURS, sizes.statics)

    def growth(case: str) -> tuple[float, float]:
        return value(case, OURS, small), value(case, OURS, large)

    def faster_saving() -> float:
        return value(cases.SAVE_MANY, OURS, sizes.saved) / value(cases.SAVE, OLD, sizes.saved)

    def later(case: str) -> float:
        return value(case, OURS, count)

    yield f"burst of {due:,}, against {OLD}", ">= 5", times, lambda: rate(OLD)
    yield f"burst of {due:,}, against the {LOOP}", ">= 2", times, lambda: rate(LOOP)
    yield f"burst of {sizes.shared:,} by two beats, against one", ">= 1.4", times, gain
    yield "round trips of an idle tick", "<= 1", trips, lambda: value(cases.IDLE_TRIPS, OURS, large)
    yield f"round trips for {batch} due", "<= 4", trips, lambda: value(cases.BATCH_TRIPS, OURS, batch)
    yield (
        f"idle tick at {large:,} entries, against {small:,}",
        "<= 1.3",
        times,
        lambda: growth(cases.IDLE)[1] / growth(cases.IDLE)[0],
    )
    yield (
        f"memory at {large:,} entries, {due:,} due, above that at {small:,}",
        "<= 20",
        megabytes,
        lambda: growth(cases.MEMORY)[1] - growth(cases.MEMORY)[0],
    )
    yield f"{sizes.statics:,} statics cold, against {OLD}", ">= 15", times, lambda: start(cases.COLD)
    yield f"{sizes.statics:,} statics warm, against {OLD}", ">= 15", times, lambda: start(cases.WARM)
    yield f"save_many, against save of {OLD}", ">= 20", times, faster_saving
    for words, case, bound, size in (
        ("export of", cases.EXPORT, "<= 2", sizes.exported),
        ("plan that changes", cases.PLAN, "<= 1", sizes.planned),
    ):
        yield f"{words} {size:,}", bound, duration, partial(value, case, OURS, size)
    seconds = sizes.lateness_seconds
    yield f"lateness over {seconds} s, p99", "<= 50", ms, lambda: later(lateness.LATENESS["p99"])
    yield f"drift over {seconds} s", "<= 1", ms, lambda: later(lateness.NOMINAL_DRIFT)
    yield f"runs missing over {seconds} s", "<= 0", trips, lambda: later(lateness.MISSING)
