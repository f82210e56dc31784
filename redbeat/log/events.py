"""The events of the log: stable names, and what each says besides its message.

Owns the table, which docs/monitoring.rst shows and a test compares with it, and how an event is put on a
record: as the record's attribute ``redbeat``, a dict with the event's name and its fields. Invariant: a name
and the meaning of a field never change; the messages may.

::

    logger.info("beat: Acquired lock", extra=LEADER_ACQUIRED.of(lock=key))

Times are UNIX seconds there, or datetimes; the formatter writes them as ISO 8601.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: the attribute of a record that holds its event; one only, as a record's factory may have made others
ATTRIBUTE = "redbeat"

#: the fields that are times
TIMES = frozenset({"due", "last_due", "until"})

#: what the fields mean
FIELDS = {
    "entry": "the entry's name",
    "entries": "the names of the first of several entries",
    "task": "the task's name",
    "task_id": "the id of the run's task, the same at each try",
    "due": "when the run was due by its schedule, or the first of several",
    "last_due": "when the last of several runs was due",
    "lateness_seconds": "how long after that it leaves beat",
    "lines": "the event of the lines that are left out",
    "count": "how many; missing where it isn't known",
    "reason": "why, as a sentence",
    "attempts": "how often it has been tried",
    "worker": "the worker that has begun the run",
    "until": "when it ends by itself",
    "keys": "the unknown keys",
    "schedule": "the class of a registered schedule",
    "processor_seconds": "how much processor time it took",
    "bytes": "how many bytes it has",
    "lock": "the lock's key, or the keys of several locks, with spaces between",
    "holder": "the token of the beat that holds the lock, or has held it: host, process id, start",
    "seconds": "for how long",
    "broker": "the broker's URL, without passwords",
    "guarantee": "how often a run is delivered",
    "replicas": "how many replicas have it",
    "setting": "the setting's name",
    "service": "scheme, host and port of a URL that is called; the rest is secret",
    "part": "what doesn't work",
    "address": "where the endpoint listens, as ``redbeat_http`` has it",
    "shards": "into how many shards the schedule is divided, 0 for none",
}


@dataclass(frozen=True)
class LogEvent:
    """One row of the table.

    Attributes:
        name: stable, as ``redbeat.run.sent``.
        levels: of its records, in words.
        fields: what it says besides; a field may be missing where nothing is known.
        meaning: when it is logged, in reStructuredText.
    """

    name: str
    levels: tuple[str, ...]
    fields: tuple[str, ...]
    meaning: str

    def of(self, **fields: Any) -> dict[str, dict[str, Any]]:
        """Return the argument ``extra`` of a log call."""
        return {ATTRIBUTE: {"event": self.name, **fields}}


def _event(name: str, level: str, fields: str, meaning: str) -> LogEvent:
    return LogEvent(f"redbeat.{name}", tuple(level.split()), tuple(fields.split()), meaning)


RUN_SENT = _event("run.sent", "INFO", "entry task task_id due lateness_seconds", "A run's message was sent.")
RUN_FAILED_TO_SEND = _event(
    "run.failed_to_send",
    "ERROR",
    "entry task task_id due attempts reason",
    "A run could not be sent, and is retried with growing pauses; once for each reason.",
)
RUN_SENT_BEFORE = _event(
    "run.sent_before",
    "INFO",
    "entry task task_id due",
    "A run that another beat had sent is recorded now.",
)
RUN_SKIPPED = _event(
    "run.skipped",
    "INFO WARNING ERROR",
    "entry task task_id due last_due count attempts reason",
    "Runs that are not sent: missed, excluded by a calendar, or held back by another run. ERROR: the "
    "application's own code raised an error.",
)
RUN_MERGED = _event(
    "run.merged", "INFO", "entry due last_due count reason", "Missed runs for which another one is sent."
)
RUN_BUFFERED = _event(
    "run.buffered", "INFO", "entry task_id due reason", "A run waits for the one before it."
)
RUN_LOST = _event(
    "run.lost",
    "WARNING ERROR",
    "entry task task_id due worker attempts reason",
    "The worker of a tracked run is gone; or a run with ``at_most_once`` could not be sent.",
)
RUN_NEVER_STARTED = _event(
    "run.never_started",
    "WARNING",
    "entry task_id due worker reason",
    "No worker has begun a tracked run within its ``queue_timeout``.",
)
RUN_OVERDUE = _event(
    "run.overdue",
    "WARNING",
    "entry task_id due worker reason",
    "A tracked run takes longer than its ``max_runtime``.",
)
LINES_LEFT_OUT = _event(
    "lines.left_out",
    "INFO WARNING ERROR",
    "lines count entries reason",
    "The same happened to ``count`` more entries within a minute.",
)
RUNS_UNTRACKED = _event(
    "runs.untracked", "WARNING", "entry", "Entries need tracked runs, and no live worker tracks any."
)

ENTRY_QUARANTINED = _event(
    "entry.quarantined", "ERROR", "entry reason", "An invalid entry is kept, and left out."
)
ENTRY_REMOVED = _event(
    "entry.removed",
    "ERROR",
    "entry",
    "An entry is removed from the schedule, as Redis evicted its hash or a program deleted it.",
)
ENTRY_PAUSED = _event(
    "entry.paused",
    "WARNING",
    "entry until reason",
    "An entry is paused because of its ``pause_after_failures``.",
)
ENTRY_SLOW = _event(
    "entry.slow", "WARNING", "entry schedule processor_seconds", "A registered schedule class is slow."
)
ENTRY_UNKNOWN_KEYS = _event("entry.unknown_keys", "WARNING", "entry keys", "An entry has unknown keys.")
ENTRY_NEVER_RUNS = _event("entry.never_runs", "WARNING", "entry reason", "A saved entry will never run.")
ENTRY_NOT_STORED = _event(
    "entry.not_stored", "ERROR", "entry reason", "An entry of the application's code can't be stored."
)
STATIC_REMOVED = _event(
    "entry.static_removed",
    "INFO",
    "entry",
    "An entry is removed that is no longer in the application's code.",
)

LEADER_STANDS = _event("leader.stands", "INFO", "lock", "This beat asks for the lock.")
LEADER_ACQUIRED = _event("leader.acquired", "INFO", "lock", "This beat leads now.")
LEADER_TAKEN_OVER = _event(
    "leader.taken_over",
    "WARNING",
    "lock holder",
    "This beat takes the lock from one that was silent for ``redbeat_takeover_after``.",
)
LEADER_STANDBY = _event("leader.standby", "INFO", "lock reason", "Another beat leads; once a minute.")
LEADER_RETAKEN = _event("leader.retaken", "WARNING", "lock", "The lock was gone, and is taken back.")
SCHEDULE_LOST = _event(
    "schedule.lost", "ERROR", "lock", "Redis has lost the schedule: all entries that aren't in the code."
)
LEADER_LOST = _event(
    "leader.lost",
    "ERROR CRITICAL",
    "lock holder",
    "Another beat has the lock. This one stands by (ERROR) or ends (CRITICAL): ``redbeat_lock_lost``.",
)
LEADER_RELEASED = _event("leader.released", "INFO", "lock", "This beat ends and releases the lock.")
LEADER_HANDED_OVER = _event(
    "leader.handed_over", "INFO", "lock", "This beat releases shards that another one is to lead."
)
LEADER_NOT_RELEASED = _event(
    "leader.not_released", "WARNING", "lock reason", "The lock could not be released, and expires."
)
LEADER_STUCK = _event(
    "leader.stuck",
    "CRITICAL",
    "lock seconds reason",
    "The scheduler hangs: this beat gives up the lock to another one.",
)
HEARTBEAT_FAILED = _event(
    "heartbeat.failed", "ERROR", "reason", "The lock's renewal met an unexpected error."
)

REDIS_AWAY = _event("redis.away", "WARNING", "reason", "Redis is unreachable; once in each outage.")
REDIS_BACK = _event("redis.back", "WARNING", "seconds", "Redis answers again.")
REDIS_SLOW = _event(
    "redis.slow",
    "WARNING",
    "seconds",
    "Redis took seconds to answer and blocked beat, or beat itself was paused.",
)
REDIS_EVICTS = _event(
    "redis.evicts", "WARNING ERROR", "reason", "``maxmemory-policy`` lets Redis evict the schedule."
)
RIGHT_MISSING = _event(
    "redis.right_missing", "WARNING", "reason", "A feature is off, as the user of Redis lacks a right."
)
LAYOUT_FOLLOWED = _event(
    "layout.followed",
    "WARNING",
    "shards",
    "The schedule in Redis has another number of shards than ``redbeat_shards``; beat uses it.",
)
ENTRIES_MOVED = _event(
    "entries.moved", "WARNING", "entries", "Entries that a program has written to wrong shards were moved."
)
REPLICAS_SHORT = _event(
    "replicas.short", "WARNING", "replicas", "Fewer replicas have a batch than ``redbeat_wait_replicas``."
)
REPLICAS_BACK = _event("replicas.back", "WARNING", "replicas", "Enough replicas have it again.")
BROKER_AWAY = _event("broker.away", "ERROR", "broker reason", "The broker is unreachable; due runs wait.")
BROKER_BACK = _event("broker.back", "ERROR", "", "Runs are sent again.")
SCHEDULE_BLOCKED = _event("schedule.blocked", "ERROR", "reason", "Redis refuses beat: no run can be sent.")
SCHEDULE_UNBLOCKED = _event("schedule.unblocked", "ERROR", "", "It accepts it again.")
DELIVERY = _event("delivery", "INFO", "guarantee", "How often a run is delivered, when that has changed.")
MESSAGES_COMPILED = _event("messages.compiled", "INFO", "", "Messages are compiled from now on.")
MESSAGES_ONE_BY_ONE = _event("messages.one_by_one", "INFO WARNING", "reason", "Messages are made one by one.")

PING_WITHHELD = _event("ping.withheld", "WARNING", "service reason", "``redbeat_ping_url`` isn't called now.")
PING_RESUMED = _event("ping.resumed", "WARNING", "service", "``redbeat_ping_url`` is called again.")
PING_FAILED = _event(
    "ping.failed",
    "WARNING",
    "service entry reason",
    "A service can't be called: ``redbeat_ping_url``, or the ``ping_url`` of ``entry``.",
)
PING_BACK = _event("ping.back", "WARNING", "service", "It answers again.")
PING_REFUSED = _event(
    "ping.refused",
    "WARNING",
    "entry reason",
    "An entry's ``ping_url`` isn't allowed, or its service refuses.",
)
PINGS_LEFT_OUT = _event("pings.left_out", "WARNING", "count", "Too many calls of ``ping_url`` waited.")
BEAT_MISCONFIGURED = _event(
    "beat.misconfigured", "CRITICAL", "setting reason", "Beat ends: a setting is invalid."
)
BEAT_FAILED = _event("beat.failed", "CRITICAL", "reason", "An error ends beat.")
SETTING_UNKNOWN = _event("setting.unknown", "WARNING", "setting", "A setting that RedBeat doesn't know.")
SIGNALS_FAILED = _event("signals.failed", "ERROR", "reason", "Receivers of signals can't be told now.")
RECEIVER_FAILED = _event("receiver.failed", "ERROR", "reason", "A receiver of a signal has raised an error.")
ENTRY_UNMONITORED = _event(
    "entry.unmonitored", "WARNING", "entry reason", "Sentry can't have a monitor of an entry."
)
TELEMETRY_FAILED = _event("telemetry.failed", "ERROR", "part reason", "A part of the telemetry failed.")
ENDPOINT_LISTENS = _event(
    "endpoint.listens", "INFO ERROR", "address", "The endpoint listens. ERROR: it listens again."
)
ENDPOINT_AWAY = _event(
    "endpoint.away", "ERROR", "address reason", "The endpoint can't listen on its address; beat retries."
)

#: name to event
EVENTS = {event.name: event for event in list(globals().values()) if isinstance(event, LogEvent)}
