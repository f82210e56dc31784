"""The table of metrics: what each is called, of which type it is, and what it says. The docs show it.

Names and units go by Prometheus' conventions. Of those whose scope is the schedule there is one value for
all beats together, which one of them shows. Where the schedule is divided there is one for each shard, which
the beat shows that leads it, with the shard's number as the label ``shard``.
"""

from __future__ import annotations

from typing import NamedTuple

RUN_LABELS = ("task", "queue", "entry")
#: besides on all metrics of a schedule that is divided into shards: the shard's number
SHARD_LABEL = "shard"


class Metric(NamedTuple):
    """One metric, or family of histograms.

    Attributes:
        name: without the endings that its type adds: ``_total``, ``_bucket``, ``_sum``, ``_count``.
        type: 'counter', 'gauge' or 'histogram'.
        is_of_schedule: it is about the whole schedule, or about each of its shards; False: about the beat
            that shows it.
        doc: what it says, in reStructuredText.
        labels: names of its labels.
    """

    name: str
    type: str
    is_of_schedule: bool
    doc: str
    labels: tuple[str, ...] = ()

    @property
    def shown_name(self) -> str:
        """The name that one looks for: counters end in ``_total``."""
        return f"{self.name}_total" if self.type == "counter" else self.name


METRICS = {
    metric.name: metric
    for metric in (
        Metric(
            "redbeat_runs",
            "counter",
            True,
            "What became of runs: ``outcome`` is ``sent``, ``skipped`` with a ``reason``, ``merged`` or "
            "``unsent``; where runs are tracked they are counted once more when they are over, as "
            "``succeeded``, ``failed``, ``lost`` and so on.",
            (*RUN_LABELS, "outcome", "reason"),
        ),
        Metric(
            "redbeat_run_lateness_seconds",
            "histogram",
            True,
            "How long after its due time a run was on its queue.",
            RUN_LABELS,
        ),
        Metric(
            "redbeat_run_duration_seconds",
            "histogram",
            True,
            "How long tasks took, where runs are tracked; the last attempt of each run.",
            RUN_LABELS,
        ),
        Metric(
            "redbeat_run_queue_wait_seconds",
            "histogram",
            True,
            "How long runs waited on their queue until a worker began them, where they are tracked.",
            RUN_LABELS,
        ),
        Metric("redbeat_leader_changes", "counter", True, "How often a beat has become leader."),
        Metric(
            "redbeat_entries",
            "gauge",
            True,
            "How many entries are in each state; see :doc:`managing` for the states.",
            ("state",),
        ),
        Metric(
            "redbeat_entries_counted_timestamp_seconds",
            "gauge",
            True,
            "When the entries were last counted by their states: that is done bit by bit.",
        ),
        Metric(
            "redbeat_entries_overdue",
            "gauge",
            True,
            "How many entries are overdue. ``reason`` is ``not_sent``: due for longer than a minute; or "
            "``not_succeeded``, where runs are tracked: none has succeeded for longer than the entry's own "
            "schedule allows. ``/status`` names the first ones.",
            ("reason",),
        ),
        Metric("redbeat_due_entries", "gauge", True, "The backlog: how many entries are due."),
        Metric(
            "redbeat_due_oldest_age_seconds",
            "gauge",
            True,
            "How long the first of them has been due; 0: none is.",
        ),
        Metric("redbeat_later_messages", "gauge", True, "How many messages are stored, see :doc:`later`."),
        Metric(
            "redbeat_later_overdue",
            "gauge",
            True,
            "How many of the stored messages should have been sent more than a minute ago.",
        ),
        Metric(
            "redbeat_entry_failures_in_a_row",
            "gauge",
            True,
            "How many of an entry's last runs have failed or were lost, back to the last one that has "
            "succeeded; ``other``: the most of all other entries. 0 while an entry is paused or disabled.",
            ("entry",),
        ),
        Metric("redbeat_info", "gauge", False, "Always 1; ``version`` is RedBeat's.", ("version",)),
        Metric("redbeat_is_leader", "gauge", False, "1: this beat leads. Without a lock all beats do."),
        Metric(
            "redbeat_shards",
            "gauge",
            False,
            "Into how many shards the schedule is divided; 0: it isn't. All beats tell the same.",
        ),
        Metric(
            "redbeat_lock_age_seconds",
            "gauge",
            False,
            "For how long this beat has led without interruption; 0: it doesn't lead.",
        ),
        Metric(
            "redbeat_last_tick_timestamp_seconds",
            "gauge",
            False,
            "When this beat last looked for what is due, or a standby at the lock.",
        ),
        Metric("redbeat_tick_duration_seconds", "histogram", False, "How long ticks took, without waiting."),
        Metric(
            "redbeat_batch_duration_seconds",
            "histogram",
            False,
            "How long it took to send and record what a tick had fetched.",
        ),
        Metric(
            "redbeat_messages",
            "counter",
            False,
            "Messages that were made; ``way`` is ``compiled`` or ``one_by_one``, see :ref:`quick-way`.",
            ("way",),
        ),
        Metric("redbeat_later_sent", "counter", False, "Stored messages that were sent."),
        Metric(
            "redbeat_lookahead_prepared",
            "counter",
            False,
            "Runs that were prepared before they were due.",
        ),
        Metric(
            "redbeat_lookahead_wasted",
            "counter",
            False,
            "Prepared runs that weren't sent as they were prepared, as their entries had changed, say.",
        ),
        Metric(
            "redbeat_redis_errors",
            "counter",
            False,
            "Commands that have failed, as Redis was away or has refused them.",
        ),
        Metric("redbeat_redis_retries", "counter", False, "Commands that were sent to Redis again."),
    )
}
