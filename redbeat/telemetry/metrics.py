"""The table of metrics: name, type, meaning and value of each. The docs show it.

Names and units go by Prometheus' conventions. Of those whose scope is the schedule there is one value for
all beats together, which one of them shows. Where the schedule is divided there is one for each shard, which
the beat shows that leads it, with the shard's number as the label ``shard``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from redbeat.connection.retry import COUNTS
from redbeat.store.figures import BOUNDS, LED, OTHER, WORDS
from redbeat.telemetry.figures import Histogram, OwnFigures, find_version

if TYPE_CHECKING:
    from redbeat.telemetry.gathering import View

RUN_LABELS = ("task", "queue", "entry")
#: besides on all metrics of a schedule that is divided into shards: the shard's number
SHARD_LABEL = "shard"

#: a value by those of the metric's labels: a number, or the buckets and the sum of a histogram
Samples = Mapping[tuple[str, ...], Any]


class Metric(NamedTuple):
    """One metric, or family of histograms.

    Attributes:
        name: without the endings that its type adds: ``_total``, ``_bucket``, ``_sum``, ``_count``.
        type: 'counter', 'gauge' or 'histogram'.
        doc: its meaning, in reStructuredText.
        read: returns its value, or its values by their labels, of a ``View`` or of ``OwnFigures``; None: it
            isn't known.
        labels: names of its labels.
    """

    name: str
    type: str
    doc: str
    read: Callable[[Any], Samples | float | None]
    labels: tuple[str, ...] = ()

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


def _buckets(bounds: Sequence[float], counts: Sequence[int], total: float) -> tuple[Any, float]:
    """Return a histogram as prometheus-client takes it: buckets, each with all that are smaller; the sum."""
    buckets, seen = [], 0
    for bound, count in zip([*(str(float(bound)) for bound in bounds), "+Inf"], counts, strict=True):
        seen += count
        buckets.append((bound, float(seen)))
    return buckets, total


def _durations(histogram: Histogram) -> Samples:
    return {(): _buckets(histogram.bounds, histogram.counts, histogram.total)}


def _figures(view: View) -> list[tuple[tuple[str, ...], str, int]]:
    """Return the labels, the word and the number of each figure."""
    labels = dict(view.labels)
    split = [(name.partition(":"), number) for name, number in dict(view.totals).items()]
    return [(labels[id_][:3], word, number) for (id_, _, word), number in split if id_ in labels]


def _runs(view: View) -> Samples:
    return {(*labels, *WORDS[word]): number for labels, word, number in _figures(view) if word in WORDS}


def _run_histogram(what: str) -> Callable[[View], Samples]:
    def read(view: View) -> Samples:
        found: dict[tuple[str, ...], dict[str, int]] = defaultdict(dict)
        for labels, word, number in _figures(view):
            histogram, _, bucket = word.partition("/")
            if histogram == what:
                found[labels][bucket] = number
        numbers = range(1, len(BOUNDS[what]) + 2)
        return {
            labels: _buckets(
                BOUNDS[what],
                [buckets.get(str(number), 0) for number in numbers],
                buckets.get("sum", 0) / 1_000_000,
            )
            for labels, buckets in found.items()
        }

    return read


def _failures(view: View) -> Samples:
    named = {one.entry for one in dict(view.labels).values() if one.entry != OTHER}
    shown: dict[tuple[str, ...], int] = {(name,): view.streaks.get(name, 0) for name in sorted(named)}
    others = [count for name, count in view.streaks.items() if name not in named]
    return {**shown, (OTHER,): max(others, default=0)}


#: about the whole schedule, or about each of its shards
OF_SCHEDULE = (
    Metric(
        "redbeat_runs",
        "counter",
        "What became of runs: ``outcome`` is ``sent``, ``skipped`` with a ``reason``, ``merged`` or "
        "``unsent``; where runs are tracked they are counted once more when they are over, as "
        "``succeeded``, ``failed``, ``lost`` and so on.",
        _runs,
        (*RUN_LABELS, "outcome", "reason"),
    ),
    Metric(
        "redbeat_run_lateness_seconds",
        "histogram",
        "How long after its due time a run was on its queue.",
        _run_histogram("late"),
        RUN_LABELS,
    ),
    Metric(
        "redbeat_run_duration_seconds",
        "histogram",
        "How long tasks took, where runs are tracked; the last attempt of each run.",
        _run_histogram("ran"),
        RUN_LABELS,
    ),
    Metric(
        "redbeat_run_queue_wait_seconds",
        "histogram",
        "How long runs waited on their queue until a worker began them, where they are tracked.",
        _run_histogram("wait"),
        RUN_LABELS,
    ),
    Metric(
        "redbeat_leader_changes",
        "counter",
        "How often a beat has become leader.",
        lambda view: view.totals.get(f":{LED}", 0),
    ),
    Metric(
        "redbeat_entries",
        "gauge",
        "How many entries are in each state; see :doc:`managing` for the states.",
        lambda view: view.states and {(state,): number for state, number in view.states.items()},
        ("state",),
    ),
    Metric(
        "redbeat_entries_counted_timestamp_seconds",
        "gauge",
        "When the entries were last counted by their states: that is done bit by bit.",
        lambda view: view.states and view.states_at,
    ),
    Metric(
        "redbeat_entries_overdue",
        "gauge",
        "How many entries are overdue. ``reason`` is ``not_sent``: due for longer than a minute; or "
        "``not_succeeded``, where runs are tracked: none has succeeded for longer than the entry's own "
        "schedule allows. ``/status`` names the first ones.",
        lambda view: {
            ("not_sent",): view.overdue.not_sent,
            ("not_succeeded",): view.overdue.not_succeeded,
        },
        ("reason",),
    ),
    Metric(
        "redbeat_due_entries",
        "gauge",
        "The backlog: how many entries are due.",
        lambda view: view.vitals.due,
    ),
    Metric(
        "redbeat_due_oldest_age_seconds",
        "gauge",
        "How long the first of them has been due; 0: none is.",
        lambda view: max(view.vitals.now - (view.vitals.oldest or view.vitals.now), 0.0),
    ),
    Metric(
        "redbeat_later_messages",
        "gauge",
        "How many messages are stored, see :doc:`later`.",
        lambda view: view.vitals.stored,
    ),
    Metric(
        "redbeat_later_overdue",
        "gauge",
        "How many of the stored messages should have been sent more than a minute ago.",
        lambda view: None if view.vitals.stored is None else view.vitals.overdue,
    ),
    Metric(
        "redbeat_entry_failures_in_a_row",
        "gauge",
        "How many of an entry's last runs have failed or were lost, back to the last one that has "
        "succeeded; ``other``: the most of all other entries. 0 while an entry is paused or disabled.",
        _failures,
        ("entry",),
    ),
)

#: about the beat that shows them
OF_BEAT = (
    Metric(
        "redbeat_info",
        "gauge",
        "Always 1; ``version`` is RedBeat's.",
        lambda _own: {(find_version(),): 1},
        ("version",),
    ),
    Metric(
        "redbeat_is_leader",
        "gauge",
        "1: this beat leads. Without a lock all beats do.",
        lambda own: int(own.is_leader),
    ),
    Metric(
        "redbeat_shards",
        "gauge",
        "Into how many shards the schedule is divided; 0: it isn't. All beats tell the same.",
        lambda own: own.shards,
    ),
    Metric(
        "redbeat_lock_age_seconds",
        "gauge",
        "For how long this beat has led without interruption; 0: it doesn't lead.",
        lambda own: own.lock_age_seconds,
    ),
    Metric(
        "redbeat_last_tick_timestamp_seconds",
        "gauge",
        "When this beat last looked for what is due, or a standby at the lock.",
        lambda own: own.figures.last_tick_at,
    ),
    Metric(
        "redbeat_tick_duration_seconds",
        "histogram",
        "How long ticks took, without waiting.",
        lambda own: _durations(own.figures.ticks),
    ),
    Metric(
        "redbeat_batch_duration_seconds",
        "histogram",
        "How long it took to send and record what a tick had fetched.",
        lambda own: _durations(own.figures.batches),
    ),
    Metric(
        "redbeat_messages",
        "counter",
        "Messages that were made; ``way`` is ``compiled`` or ``one_by_one``, see :ref:`quick-way`.",
        lambda own: {("compiled",): own.figures.compiled, ("one_by_one",): own.figures.one_by_one},
        ("way",),
    ),
    Metric(
        "redbeat_later_sent",
        "counter",
        "Stored messages that were sent.",
        lambda own: own.figures.later,
    ),
    Metric(
        "redbeat_lookahead_prepared",
        "counter",
        "Runs that were prepared before they were due.",
        lambda own: own.figures.prepared,
    ),
    Metric(
        "redbeat_lookahead_wasted",
        "counter",
        "Prepared runs that weren't sent as they were prepared, as their entries had changed, say.",
        lambda own: own.wasted,
    ),
    Metric(
        "redbeat_redis_errors",
        "counter",
        "Commands that have failed, as Redis was away or has refused them.",
        lambda _own: COUNTS.errors,
    ),
    Metric(
        "redbeat_redis_retries",
        "counter",
        "Commands that were sent to Redis again.",
        lambda _own: COUNTS.retries,
    ),
)

METRICS = {metric.name: metric for metric in (*OF_SCHEDULE, *OF_BEAT)}
