"""The table of metrics. Each is a function that reads it, with its meaning as docstring; the docs show it.

Names and units go by Prometheus' conventions. Of those whose scope is the schedule there is one value for
all beats together, which one of them shows. Where the schedule is divided there is one for each shard, which
the beat shows that leads it, with the shard's number as the label ``shard``.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from redbeat.connection.retry import COUNTS
from redbeat.store.figures import BOUNDS, LED, OTHER, WORDS
from redbeat.telemetry.figures import Histogram, OwnFigures, find_version

if TYPE_CHECKING:
    from redbeat.telemetry.gathering import View

RUN_LABELS = ("task", "queue", "entry")
#: besides on all metrics of a schedule that is divided into shards: the shard's number
SHARD_LABEL = "shard"

#: values by those of the metric's labels: numbers, or the buckets and the sums of histograms
Samples = Mapping[tuple[str, ...], Any]

#: a function that reads a metric: its value, or its values by their labels; None: it isn't known
Read = TypeVar("Read", bound=Callable[[Any], Samples | float | None])


class Metric(NamedTuple):
    """One metric, or family of histograms.

    Attributes:
        name: without the endings that its type adds: ``_total``, ``_bucket``, ``_sum``, ``_count``.
        type: 'counter', 'gauge' or 'histogram'.
        labels: names of its labels.
        doc: its meaning, in reStructuredText.
        read: reads it, of a ``View`` or of ``OwnFigures``.
    """

    name: str
    type: str
    labels: tuple[str, ...]
    doc: str
    read: Callable[[Any], Samples | float | None]

    @property
    def shown_name(self) -> str:
        """The name that one looks for: counters end in ``_total``."""
        return f"{self.name}_total" if self.type == "counter" else self.name

    def samples(self, source: View | OwnFigures) -> Samples:
        """Return its values by their labels."""
        found = self.read(source)
        if found is None:
            return {}
        return found if isinstance(found, Mapping) else {(): found}


#: about the whole schedule, or about each of its shards
OF_SCHEDULE: list[Metric] = []
#: about the beat that shows them
OF_BEAT: list[Metric] = []


def _metric(table: list[Metric], name: str, kind: str, *labels: str) -> Callable[[Read], Read]:
    """Return a decorator that puts a function into a table."""

    def add(read: Read) -> Read:
        table.append(Metric(name, kind, labels, " ".join((read.__doc__ or "").split()), read))
        return read

    return add


def _buckets(bounds: Sequence[float], counts: Sequence[int], total: float) -> tuple[Any, float]:
    """Return a histogram as prometheus-client takes it: buckets, each with all that are smaller; the sum."""
    buckets, seen = [], 0
    for bound, count in zip([*(str(float(bound)) for bound in bounds), "+Inf"], counts, strict=True):
        seen += count
        buckets.append((bound, float(seen)))
    return buckets, total


def _durations(histogram: Histogram) -> Samples:
    return {(): _buckets(histogram.bounds, histogram.counts, histogram.total)}


def _figures(view: View, mark: str = ":") -> list[tuple[tuple[str, ...], str, int]]:
    """Return the labels, the word and the number of each figure whose name contains ``mark``."""
    labels = dict(view.labels)
    found = [(name.partition(":"), number) for name, number in dict(view.totals).items() if mark in name]
    return [(labels[id_][:3], word, number) for (id_, _, word), number in found if id_ in labels]


def _histograms(view: View, what: str) -> Samples:
    found: dict[tuple[str, ...], dict[str, int]] = defaultdict(dict)
    for labels, word, number in _figures(view, f":{what}/"):
        found[labels][word.removeprefix(f"{what}/")] = number
    bounds = BOUNDS[what]
    return {
        labels: _buckets(
            bounds,
            [buckets.get(str(number), 0) for number in range(1, len(bounds) + 2)],
            buckets.get("sum", 0) / 1_000_000,
        )
        for labels, buckets in found.items()
    }


# -- of the schedule


@_metric(OF_SCHEDULE, "redbeat_runs", "counter", *RUN_LABELS, "outcome", "reason")
def _runs(view: View) -> Samples:
    """Runs by ``outcome``: ``sent``, ``skipped`` with a ``reason``, ``merged`` or ``unsent``; where runs
    are tracked they are counted once more when they are over, as ``succeeded``, ``failed``, ``lost`` and so
    on.
    """
    return {(*labels, *WORDS[word]): number for labels, word, number in _figures(view) if word in WORDS}


@_metric(OF_SCHEDULE, "redbeat_run_lateness_seconds", "histogram", *RUN_LABELS)
def _run_lateness(view: View) -> Samples:
    """How long after its due time a run was on its queue."""
    return _histograms(view, "late")


@_metric(OF_SCHEDULE, "redbeat_run_duration_seconds", "histogram", *RUN_LABELS)
def _run_duration(view: View) -> Samples:
    """How long tasks took, where runs are tracked; the last attempt of each run."""
    return _histograms(view, "ran")


@_metric(OF_SCHEDULE, "redbeat_run_queue_wait_seconds", "histogram", *RUN_LABELS)
def _run_queue_wait(view: View) -> Samples:
    """How long runs waited on their queue until a worker began them, where they are tracked."""
    return _histograms(view, "wait")


@_metric(OF_SCHEDULE, "redbeat_leader_changes", "counter")
def _leader_changes(view: View) -> float:
    """How often a beat has become leader."""
    return view.totals.get(f":{LED}", 0)


@_metric(OF_SCHEDULE, "redbeat_entries", "gauge", "state")
def _entries(view: View) -> Samples:
    """How many entries are in each state; see :doc:`managing` for the states."""
    return {(state,): number for state, number in (view.states or {}).items()}


@_metric(OF_SCHEDULE, "redbeat_entries_counted_timestamp_seconds", "gauge")
def _entries_counted(view: View) -> float | None:
    """When the entries were last counted by their states: that is done bit by bit."""
    return view.states_at or None


@_metric(OF_SCHEDULE, "redbeat_entries_overdue", "gauge", "reason")
def _entries_overdue(view: View) -> Samples:
    """How many entries are overdue. ``reason`` is ``not_sent``: due for longer than a minute; or
    ``not_succeeded``, where runs are tracked: none has succeeded for longer than the entry's own schedule
    allows. ``/status`` names the first ones.
    """
    return {("not_sent",): view.overdue.not_sent, ("not_succeeded",): view.overdue.not_succeeded}


@_metric(OF_SCHEDULE, "redbeat_due_entries", "gauge")
def _due_entries(view: View) -> float | None:
    """The backlog: how many entries are due."""
    return view.vitals and view.vitals.due


@_metric(OF_SCHEDULE, "redbeat_due_oldest_age_seconds", "gauge")
def _due_oldest_age(view: View) -> float | None:
    """How long the first of them has been due; 0: none is."""
    return view.vitals and max(view.vitals.now - (view.vitals.oldest or view.vitals.now), 0.0)


@_metric(OF_SCHEDULE, "redbeat_later_messages", "gauge")
def _later_messages(view: View) -> float | None:
    """How many messages are stored, see :doc:`later`."""
    return view.vitals and view.vitals.stored


@_metric(OF_SCHEDULE, "redbeat_later_overdue", "gauge")
def _later_overdue(view: View) -> float | None:
    """How many of the stored messages should have been sent more than a minute ago."""
    return None if view.vitals is None or view.vitals.stored is None else view.vitals.overdue


@_metric(OF_SCHEDULE, "redbeat_entry_failures_in_a_row", "gauge", "entry")
def _failures_in_a_row(view: View) -> Samples:
    """How many of an entry's last runs have failed or were lost, back to the last one that has succeeded;
    ``other``: the most of all other entries. 0 while an entry is paused or disabled.
    """
    named = {one.entry for one in dict(view.labels).values() if one.entry != OTHER}
    others = [count for name, count in view.streaks.items() if name not in named]
    return {**{(name,): view.streaks.get(name, 0) for name in named}, (OTHER,): max(others, default=0)}


# -- of a beat


@_metric(OF_BEAT, "redbeat_info", "gauge", "version")
def _info(_own: OwnFigures) -> Samples:
    """Always 1; ``version`` is RedBeat's."""
    return {(find_version(),): 1}


@_metric(OF_BEAT, "redbeat_is_leader", "gauge")
def _is_leader(own: OwnFigures) -> float:
    """1: this beat leads. Without a lock all beats do."""
    return int(own.election.lock_key is None or own.election.is_certain)


@_metric(OF_BEAT, "redbeat_shards", "gauge")
def _shards(own: OwnFigures) -> float:
    """Into how many shards the schedule is divided; 0: it isn't. All beats tell the same."""
    return len(own.election.leaderships) if own.election.is_divided else 0


@_metric(OF_BEAT, "redbeat_lock_age_seconds", "gauge")
def _lock_age(own: OwnFigures) -> float:
    """For how long this beat has led without interruption; 0: it doesn't lead."""
    if own.led_since is None or not _is_leader(own):
        return 0.0
    return time.monotonic() - own.led_since


@_metric(OF_BEAT, "redbeat_last_tick_timestamp_seconds", "gauge")
def _last_tick(own: OwnFigures) -> float:
    """When this beat last looked for what is due, or a standby at the lock."""
    return own.figures.last_tick_at


@_metric(OF_BEAT, "redbeat_tick_duration_seconds", "histogram")
def _tick_duration(own: OwnFigures) -> Samples:
    """How long ticks took, without waiting."""
    return _durations(own.figures.ticks)


@_metric(OF_BEAT, "redbeat_batch_duration_seconds", "histogram")
def _batch_duration(own: OwnFigures) -> Samples:
    """How long it took to send and record what a tick had fetched."""
    return _durations(own.figures.batches)


@_metric(OF_BEAT, "redbeat_messages", "counter", "way")
def _messages(own: OwnFigures) -> Samples:
    """Messages that were made; ``way`` is ``compiled`` or ``one_by_one``, see :ref:`quick-way`."""
    return {("compiled",): own.figures.compiled, ("one_by_one",): own.figures.one_by_one}


@_metric(OF_BEAT, "redbeat_later_sent", "counter")
def _later_sent(own: OwnFigures) -> float:
    """Stored messages that were sent."""
    return own.figures.later


@_metric(OF_BEAT, "redbeat_lookahead_prepared", "counter")
def _lookahead_prepared(own: OwnFigures) -> float:
    """Runs that were prepared before they were due."""
    return own.figures.prepared


@_metric(OF_BEAT, "redbeat_lookahead_wasted", "counter")
def _lookahead_wasted(own: OwnFigures) -> float:
    """Prepared runs that weren't sent as they were prepared, as their entries had changed, say."""
    return own.wasted


@_metric(OF_BEAT, "redbeat_redis_errors", "counter")
def _redis_errors(_own: OwnFigures) -> float:
    """Commands that have failed, as Redis was away or has refused them."""
    return COUNTS.errors


@_metric(OF_BEAT, "redbeat_redis_retries", "counter")
def _redis_retries(_own: OwnFigures) -> float:
    """Commands that were sent to Redis again."""
    return COUNTS.retries


METRICS = {metric.name: metric for metric in (*OF_SCHEDULE, *OF_BEAT)}


class Exposition:
    """The text of the metrics of one beat, by prometheus-client. A scrape reads memory only.

    Arguments:
        views: returns what this beat shows now of the schedule, or of its shards.
        own: what it shows of itself.

    Raises:
        ImportError: prometheus-client isn't installed.
    """

    def __init__(self, views: Callable[[], Sequence[View]], own: OwnFigures) -> None:
        from prometheus_client import CollectorRegistry

        self._views, self._own = views, own
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def text(self, accept: str) -> tuple[str, bytes]:
        """Return the content type and the text, in the format that an Accept header asks for."""
        from prometheus_client.exposition import choose_encoder

        encode, content_type = choose_encoder(accept)
        return content_type, encode(self._registry)

    def collect(self) -> Iterator[Any]:
        """Yield all metrics, as prometheus-client asks for them."""
        yield from families(OF_BEAT, [self._own])
        if views := self._views():  # else another beat shows the schedule
            yield from families(OF_SCHEDULE, views)


def families(metrics: Sequence[Metric], sources: Sequence[Any]) -> Iterator[Any]:
    """Yield metrics with their samples of each source."""
    from prometheus_client import core

    shards = [getattr(source, "shard", None) for source in sources]
    is_divided = any(shard is not None for shard in shards)
    for metric in metrics:
        plain = re.sub(r":\w+:`([^`]+)`|``", r"\1", metric.doc)
        kind = getattr(core, f"{metric.type.title()}MetricFamily")
        family = kind(metric.name, plain, labels=(*metric.labels, *((SHARD_LABEL,) if is_divided else ())))
        for source, shard in zip(sources, shards, strict=True):
            for labels, value in metric.samples(source).items():
                values = value if isinstance(value, tuple) else (value,)
                family.add_metric((*labels, str(shard)) if is_divided else labels, *values)
        yield family
