"""Metrics as Prometheus reads them, by prometheus-client. Invariant: a scrape reads memory only."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import prometheus_client
from prometheus_client import exposition
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)

from redbeat.connection.retry import COUNTS
from redbeat.store.figures import BOUNDS, LED, WORDS
from redbeat.telemetry.metrics.labels import OTHER
from redbeat.telemetry.metrics.table import METRICS, SHARD_LABEL

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
        views: returns what this beat shows now of the schedule, or of its shards.
        own: what it shows of itself.
    """

    def __init__(self, views: Callable[[], Sequence[View]], own: OwnFigures) -> None:
        self._views = views
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
        views = self._views()
        if views:
            yield from _schedule_families(views)


def _family(name: str, *more: str) -> Any:
    metric = METRICS[name]
    kinds = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}
    plain = re.sub(r":\w+:`([^`]+)`|``", r"\1", metric.doc)
    return kinds[metric.type](name, plain, labels=(*metric.labels, *more))


def _single(name: str, value: float, *labels: str) -> Any:
    family = _family(name)
    family.add_metric(labels, value)
    return family


def _own_families(own: OwnFigures) -> Iterator[Any]:
    figures = own.figures
    yield _single("redbeat_info", 1, own.version)
    yield _single("redbeat_is_leader", int(own.is_leader))
    yield _single("redbeat_shards", own.shards)
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


class _Families:
    """The metrics of the schedule; where it is divided each has the number of the shard as its last label."""

    def __init__(self, *, is_divided: bool) -> None:
        self._more = (SHARD_LABEL,) if is_divided else ()
        self._families: dict[str, Any] = {}

    def begin(self, *names: str) -> None:
        """Show these metrics, also if there is nothing to add to them."""
        for name in names:
            if name not in self._families:
                self._families[name] = _family(name, *self._more)

    def add(self, name: str, shard: str, labels: Sequence[str], *value: Any) -> None:
        """Add a value, or the buckets and the sum of a histogram."""
        self.begin(name)
        self._families[name].add_metric((*labels, *(shard for _ in self._more)), *value)

    def all(self) -> Iterable[Any]:
        """Return all of them, in the order in which they were begun."""
        return self._families.values()


def _schedule_families(views: Sequence[View]) -> Iterable[Any]:
    families = _Families(is_divided=any(view.shard for view in views))
    for view in views:
        _add_runs(families, view)
        shard = view.shard
        families.add("redbeat_leader_changes", shard, (), view.totals.get(f":{LED}", 0))
        families.add("redbeat_due_entries", shard, (), view.due)
        families.add("redbeat_due_oldest_age_seconds", shard, (), view.oldest_seconds)
        if view.states is not None:
            for state, number in view.states.items():
                families.add("redbeat_entries", shard, (state,), number)
            families.add("redbeat_entries_counted_timestamp_seconds", shard, (), view.states_at)
        families.add("redbeat_entries_overdue", shard, ("not_sent",), view.overdue.not_sent)
        families.add("redbeat_entries_overdue", shard, ("not_succeeded",), view.overdue.not_succeeded)
        if view.stored is not None:
            families.add("redbeat_later_messages", shard, (), view.stored)
            families.add("redbeat_later_overdue", shard, (), view.stored_overdue)
        _add_streaks(families, view)
    return families.all()


def _add_streaks(families: _Families, view: View) -> None:
    streaks = view.streaks
    named = {one.entry for one in view.labels.values() if one.entry != OTHER}
    for name in sorted(named):
        families.add("redbeat_entry_failures_in_a_row", view.shard, (name,), streaks.get(name, 0))
    most = max((count for name, count in streaks.items() if name not in named), default=0)
    families.add("redbeat_entry_failures_in_a_row", view.shard, (OTHER,), most)


def _add_runs(families: _Families, view: View) -> None:
    labels = view.labels
    families.begin("redbeat_runs", *_HISTOGRAMS.values())
    found: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    for name, number in view.totals.items():
        id_, _, word = name.partition(":")
        if id_ not in labels:
            continue
        what, _, bucket = word.partition("/")
        if what in _HISTOGRAMS:
            found[what, id_][bucket] = number
        elif word in WORDS:
            families.add("redbeat_runs", view.shard, (*labels[id_][:3], *WORDS[word]), number)
    for (what, id_), buckets in found.items():
        bounds = BOUNDS[what]
        counts = [buckets.get(str(number + 1), 0) for number in range(len(bounds) + 1)]
        shown = _histogram(bounds, counts, buckets.get("sum", 0) / 1_000_000)
        families.add(_HISTOGRAMS[what], view.shard, labels[id_][:3], *shown)
