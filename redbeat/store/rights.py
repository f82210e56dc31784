"""Features that are off if the user of Redis lacks the right to them, and the warning about each.

Invariant: a user with the rights that version 3.0 has documented can do everything that 3.0 could. What needs
another right is a feature: without the right it is off, which is logged once, and everything else goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, TypeVar

from redbeat.config.config import RedBeatConfig
from redbeat.connection.retry import is_no_permission
from redbeat.errors import StoreRefused
from redbeat.log.events import RIGHT_MISSING
from redbeat.log.logger import logger

Item = TypeVar("Item")
Other = TypeVar("Other")


class Feature(NamedTuple):
    """Something that RedBeat can do without.

    Attributes:
        is_off: the beginning of a sentence that says what is off.
        rights: what it takes, as Redis' access control list has it.
        docs: the page with the whole rule.
    """

    is_off: str
    rights: str
    docs: str = "configuration"


HISTORIES = Feature("Runs aren't recorded in histories", "+lpush +ltrim")
REMAINS = Feature(
    "What is kept beside deleted entries stays until celery redbeat purge", "+del ~redbeat::failing:*"
)
WAKE_UPS = Feature("Changes are noticed within a second, not at once", "+subscribe")
STANDBYS = Feature("Standbys aren't shown", "+pexpire ~redbeat::standbys")
BEATS = Feature(
    "Beats don't know of each other, and don't share the shards",
    "+zadd +zrem +zrange +zrangebyscore +pexpire +time ~redbeat::beats",
    "high-availability",
)
STORED = Feature("Stored messages aren't shown", "+zrange ~redbeat::later")
REPLICAS = Feature("No replicas are waited for (redbeat_wait_replicas)", "+wait")
DOWNGRADED = Feature("Entries that were taken out for celery-redbeat 2.x aren't seen", "+hgetall")
RUNS = Feature(
    "What becomes of runs that are lost or overdue isn't recorded",
    "+lrange +lset +incr +xadd",
    "runs",
)
EVENTS = Feature("No signal tells of pauses and quarantines", "+xadd ~redbeat::events", "runs")
FAILURES = Feature(
    "Runs that have failed are known of histories only", "+xrevrange ~redbeat::failures", "runs"
)
BY_HAND = Feature(
    "Runs that are sent by hand are tracked once they begin",
    "+lrem ~redbeat::running:* ~redbeat::deadlines",
    "runs",
)
GIVING_UP = Feature(
    "What becomes of runs that are given up isn't recorded",
    "+incr +hincrby +lset ~redbeat::figures ~redbeat::expected ~redbeat::streaks",
    "runs",
)
IN_PROGRESS = Feature("Runs in progress are looked for entry by entry", "+zscan", "runs")
OUTCOMES = Feature("What became of runs isn't shown", "+lrange ~redbeat::history:*", "runs")
DEADLINES = Feature("Until when runs hold their entries isn't shown", "+zscore ~redbeat::deadlines", "runs")
FAILING = Feature("How many runs have failed in a row isn't shown", "+get ~redbeat::failing:*", "runs")
RUNNING = Feature("Runs in progress aren't shown", "+hgetall ~redbeat::running:*", "runs")
SIGNALS = Feature("Signals of runs and entries don't fire", "+xread +xrevrange", "runs")
UNRUN = Feature(
    "The doctor doesn't know entries that are deleted again and again before their first run",
    "+zincrby +zremrangebyrank ~redbeat::unrun",
)
AUDIT = Feature("Changes aren't written to the audit list", "+xadd ~redbeat::audit")
CHANGES = Feature(
    "What becomes of a change is known to the process of the dashboard that makes it only",
    "+set +get +pttl ~redbeat::change:*",
    "web",
)
METRICS = Feature("Runs aren't counted for metrics", "+hincrby +hsetnx +zscan +zrevrange", "monitoring")
PUSHES = Feature(
    "Runs are delivered at least once, each run with one task id", "+info +lpush +lpop +pexpire", "delivery"
)


class Rights:
    """The features that the user of one app's settings has no rights to."""

    def __init__(self, config: RedBeatConfig) -> None:
        self._said = config.said

    def ask(self, feature: Feature, call: Callable[[], Item], instead: Callable[[], Other]) -> Item | Other:
        """Return ``call()``, or ``instead()`` if this user lacks the right to the feature."""
        try:
            return call()
        except StoreRefused as exc:
            if not is_no_permission(exc.__cause__):
                raise
            found = instead()
            self.note(feature, exc.__cause__)
            return found

    def ask_without(
        self,
        features: Sequence[Feature],
        call: Callable[[Collection[Feature]], Item],
        off: Collection[Feature] = (),
    ) -> Item:
        """Return ``call(off)`` with as few of the ``features`` off as this user's rights allow.

        Raises what ``call`` raises if it lacks a right without any of them, too.
        """
        if not features:
            return call(off)
        first, *others = features
        return self.ask(
            first,
            lambda: self.ask_without(others, call, off),
            lambda: self.ask_without(others, call, (*off, first)),
        )

    def note(self, feature: Feature, reason: object) -> None:
        """Log once that a feature is off; ``reason``: the error of Redis."""
        if self._said.is_news(feature.is_off, ""):
            logger.warning(
                "beat: %s, as the user of Redis seems to lack rights (%s; docs: %s): %s",
                *feature,
                reason,
                extra=RIGHT_MISSING.of(reason=f"{feature.is_off}: {reason}"),
            )
