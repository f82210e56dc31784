"""Metrics as Prometheus reads them, by prometheus-client. Invariant: a scrape reads memory only."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import prometheus_client
from prometheus_client import exposition
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)

from redbeat.connection.counts import COUNTS
from redbeat.store.figures import BOUNDS, LED, WORDS, Labels
from redbeat.telemetry.metrics.labels import OTHER
from redbeat.telemetry.metrics.table import METRICS

if TYPE_CHECKING:
    from redbeat.telemetry.metrics.gathering import View
    from redbeat.telemetry.metrics.own_figures import OwnFigures

#: the histograms of runs, by the words under which they are counted
_HISTOGRAMS = {
    "late": "redbeat_run_lateness_seconds",
    "ran": "redbeat_run_duration_seconds",
    "wait": "redbeat_run_queue_wait_seconds",
}


class Exposition:
    """The text of the metrics of one beat.

    Arguments:
        view: returns what this beat shows of the schedule now; None: nothing.
        own: what it shows of itself.
    """

    def __init__(self, view: Callable[[], View | None], own: OwnFigures) -> None:
        self._view = view
        self._own = own
        self._registry = prometheus_client.CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def text(self, accept: str) -> tuple[str, bytes]:
        """Return the content type and the text, in OpenMetrics' format or Prometheus', as ``accept`` says.

        Arguments:
            accept: the header of the request.
        """
        encode, content_type = exposition.choose_encoder(accept)
        return content_type, encode(self._registry)

    def collect(self) -> Iterator[Any]:
        """Yield all metrics, as prometheus-client asks for them."""
        yield from _own_families(self._own)
        view = self._view()
        if view is not None:
            yield from _schedule_families(view)


def _family(name: str) -> Any:
    metric = METRICS[name]
    kinds = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}
    plain = re.sub(r":\w+:`([^`]+)`|``", r"\1", metric.doc)
    return kinds[metric.type](name, plain, labels=metric.labels)


def _single(name: str, value: float, *labels: str) -> Any:
    family = _family(name)
    family.add_metric(labels, value)
    return family


def _own_families(own: OwnFigures) -> Iterator[Any]:
    figures = own.figures
    yield _single("redbeat_info", 1, own.version)
    yield _single("redbeat_is_leader", int(own.is_leader))
    yield _single("redbeat_lock_age_seconds", own.lock_age_seconds)
    yield _single("redbeat_last_tick_timestamp_seconds", figures.last_tick_at)
    for name, histogram in (
        ("redbeat_tick_duration_seconds", figures.ticks),
        ("redbeat_batch_duration_seconds", figures.batches),
    ):
        family = _family(name)
        family.add_metric((), *_histogram(histogram.bounds, histogram.counts, histogram.total))
        yield family
    messages = _family("redbeat_messages")
    messages.add_metric(("compiled",), figures.compiled)
    messages.add_metric(("one_by_one",), figures.one_by_one)
    yield messages
    yield _single("redbeat_later_sent", figures.later)
    yield _single("redbeat_lookahead_prepared", figures.prepared)
    yield _single("redbeat_lookahead_wasted", own.wasted)
    yield _single("redbeat_redis_errors", COUNTS.errors)
    yield _single("redbeat_redis_retries", COUNTS.retries)


def _histogram(
    bounds: Sequence[float], counts: Sequence[int], total: float
) -> tuple[list[tuple[str, float]], float]:
    """Return buckets as prometheus-client takes them, each with all that are smaller, and the sum."""
    buckets, seen = [], 0
    for bound, count in zip([*(str(float(bound)) for bound in bounds), "+Inf"], counts, strict=True):
        seen += count
        buckets.append((bound, float(seen)))
    return buckets, total


def _schedule_families(view: View) -> Iterator[Any]:
    yield from _run_families(view.totals, view.labels)
    yield _single("redbeat_leader_changes", view.totals.get(f":{LED}", 0))
    yield _single("redbeat_due_entries", view.due)
    yield _single("redbeat_due_oldest_age_seconds", view.oldest_seconds)
    if view.states is not None:
        states = _family("redbeat_entries")
        for state, number in view.states.items():
            states.add_metric((state,), number)
        yield states
        yield _single("redbeat_entries_counted_timestamp_seconds", view.states_at)
    overdue = _family("redbeat_entries_overdue")
    overdue.add_metric(("not_sent",), view.overdue.not_sent)
    overdue.add_metric(("not_succeeded",), view.overdue.not_succeeded)
    yield overdue
    if view.stored is not None:
        yield _single("redbeat_later_messages", view.stored)
        yield _single("redbeat_later_overdue", view.stored_overdue)
    yield _streaks(view.streaks, view.labels.values())


def _streaks(streaks: Mapping[str, int], labels: Iterable[Labels]) -> Any:
    family = _family("redbeat_entry_failures_in_a_row")
    named = {one.entry for one in labels if one.entry != OTHER}
    for name in sorted(named):
        family.add_metric((name,), streaks.get(name, 0))
    family.add_metric(
        (OTHER,), max((count for name, count in streaks.items() if name not in named), default=0)
    )
    return family


def _run_families(totals: Mapping[str, int], labels: Mapping[str, Labels]) -> Iterator[Any]:
    runs = _family("redbeat_runs")
    found: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    for name, number in totals.items():
        id_, _, word = name.partition(":")
        if id_ not in labels:
            continue
        what, _, bucket = word.partition("/")
        if what in _HISTOGRAMS:
            found[what, id_][bucket] = number
        elif word in WORDS:
            runs.add_metric((*labels[id_][:3], *WORDS[word]), number)
    yield runs
    families = {what: _family(name) for what, name in _HISTOGRAMS.items()}
    for (what, id_), buckets in found.items():
        bounds = BOUNDS[what]
        counts = [buckets.get(str(number + 1), 0) for number in range(len(bounds) + 1)]
        shown = _histogram(bounds, counts, buckets.get("sum", 0) / 1_000_000)
        families[what].add_metric(labels[id_][:3], *shown)
    yield from families.values()
