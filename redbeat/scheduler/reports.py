"""What beat logs, and each thing once, however often it is seen again."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from logging import ERROR, INFO, WARNING
from typing import Any

from redbeat.config.config import RedBeatConfig
from redbeat.entries.dropped import Dropped
from redbeat.entries.failures import sha1_of
from redbeat.errors import StoreCorrupt, StoreRefused
from redbeat.log import events
from redbeat.log.events import LogEvent
from redbeat.log.formatter import JsonFormatter
from redbeat.log.logger import logger
from redbeat.log.text import printable, shorten
from redbeat.process.memory import Memory
from redbeat.process.signals import has_greenlets, hold_interrupts
from redbeat.runs.progress import holder_in_words
from redbeat.scheduler.decisions import Send
from redbeat.schedules.timezones import moment_of, shown
from redbeat.store.records import Held, Stored
from redbeat.store.runs import Runs
from redbeat.store.schedule import refuses_all
from redbeat.store.store import Store

#: for how many entries it is remembered what was logged; when there are more, all is forgotten and may be
#: logged again
MAX_REMEMBERED = 10_000

#: how many entries without a hash are remembered
MAX_MISSING = 100_000

#: of many entries to which the same happens in a minute, how many have a line each, and how many more are
#: named in one line at its end
NAMED_ALONE, NAMED_TOGETHER, MINUTE_SECONDS = 3, 10, 60.0
#: how many things that happen to many entries are told apart
MAX_KINDS = 100

#: how much of each name is shown; characters
MAX_NAME = 100

#: a missing entry that was not fetched again for this long has been removed by another program; seconds
MISSING_SECONDS = 600.0

#: how often Redis is asked for live workers that track runs, when that would explain something, and how often
#: it is logged that there are none; seconds
WORKERS_SECONDS, UNTRACKED_SECONDS = 60.0, 3600.0


@dataclass
class _Many:
    """What happens to many entries in a minute.

    Attributes:
        event: of their lines.
        ends_at: when those without a line of their own are logged, monotonic.
        count: how many they are, and those with a line.
        names: the first of them.
        reason: the last reason.
    """

    level: int
    event: LogEvent
    ends_at: float
    count: int = 0
    names: list[str] = field(default_factory=list)
    reason: str = ""


class Reports:
    """One beat's log. What an entry's own hash says was logged is not remembered here.

    Arguments:
        config: its keys tell the names of entries; they follow the layout.

    Attributes:
        missing: entries whose hashes are gone: key to when that was noticed, monotonic.
        ahead_seconds: by how much the server's clock is ahead of this machine's.
    """

    def __init__(self, config: RedBeatConfig) -> None:
        self._config = config
        self.ahead_seconds = 0.0
        self.missing = Memory[str, float](MAX_MISSING)
        self._said = Memory[tuple[str, str], str](MAX_REMEMBERED)  # (topic, name) to what was logged
        self._many = Memory[str, _Many](MAX_KINDS)
        self._next_at = {"workers": time.monotonic() + WORKERS_SECONDS}  # they may start with beat

    # -- how often

    def report(
        self,
        level: int,
        event: LogEvent,
        name: str,
        message: str,
        *args: Any,
        once: str = "",
        many: str = "",
        **fields: Any,
    ) -> None:
        """Log an event of the entry ``name``, which comes first in the message.

        Arguments:
            once: what is news; it is logged once until this changes.
            many: what happens, after a number of entries ('removed from the schedule'): few of many such
                entries have a line each.
        """
        if once and not self._said.is_news((event.name, name), once):
            return
        if many and not self._has_line(level, event, many, name, fields.get("reason", "")):
            return
        logger.log(level, message, _short(name), *args, extra=event.of(entry=name, **fields))

    def _has_line(self, level: int, event: LogEvent, what: str, name: str, reason: str = "") -> bool:
        """Count what happens to an entry, and perhaps to many; return True if it has a line of its own."""
        many = self._many.get(what)
        if many is None:
            many = self._many[what] = _Many(level, event, time.monotonic() + MINUTE_SECONDS)
        many.count, many.reason = many.count + 1, reason
        if many.count <= NAMED_ALONE:
            return True
        if len(many.names) < NAMED_TOGETHER and name not in many.names:
            many.names.append(name)
        return False

    def log_others(self, *, is_ending: bool = False) -> None:
        """Log those without a line of their own whose minute is over. Call it often.

        Arguments:
            is_ending: beat ends, so that this is the last time.
        """
        now = time.monotonic()
        for what, many in list(self._many.items()):
            if now < many.ends_at and not is_ending:
                continue
            del self._many[what]
            others = many.count - NAMED_ALONE
            if others > 0:
                names = ", ".join(map(_short, many.names)) + (", ..." if others > len(many.names) else "")
                reason = f"; the last: {many.reason}" if many.reason else ""
                extra = events.LINES_LEFT_OUT.of(
                    lines=many.event.name, count=others, entries=many.names, reason=f"{what}{reason}"
                )
                logger.log(many.level, "beat: And %d more %s: %s%s", others, what, names, reason, extra=extra)

    def is_time(self, topic: str, seconds: float) -> bool:
        """Return True once in so many seconds."""
        now = time.monotonic()
        if now < self._next_at.get(topic, 0.0):
            return False
        self._next_at[topic] = now + seconds
        return True

    # -- runs

    def report_sent(self, runs: Iterable[Send]) -> None:
        """Log that ``runs`` were sent."""
        if not logger.isEnabledFor(INFO):
            return
        is_json = JsonFormatter.is_used  # without JSON the line of a run costs nothing more
        # eventlet has locks in Python: a handler that raises amid logging would leave one locked for ever
        with hold_interrupts() if has_greenlets() else nullcontext():
            for run in runs:
                extra = self._sent_event(run) if is_json else None
                logger.info("Scheduler: Sending due task %s (%s)", run.name, run.task, extra=extra)

    def _sent_event(self, run: Send) -> dict[str, Any]:
        due = float(run.nominal)
        lateness = round(time.time() + self.ahead_seconds - due, 3)
        return events.RUN_SENT.of(
            entry=run.name, task=run.task, task_id=run.task_id, due=due, lateness_seconds=lateness
        )

    def report_dropped(self, found: Sequence[tuple[str, Dropped]]) -> None:
        """Log runs that a batch has not sent, each with its entry's name."""
        for name, one in found:
            event = events.RUN_MERGED if one.is_merged else events.RUN_SKIPPED
            if one.is_merged and not self._has_line(
                INFO, event, "whose missed runs are merged into one", name
            ):
                continue
            is_planned = one.is_merged or one.reason not in ("late", "misfire")
            fields = event.of(entry=name, due=one.first, last_due=one.last, count=one.count, reason=one.why)
            logger.log(INFO if is_planned else WARNING, "beat: %s", one.describe(name), extra=fields)

    def report_held(self, store: Store, send: Send, held: Held) -> None:
        """Log that another run of its entry has held back a run."""
        if logger.isEnabledFor(INFO):
            reason, due = holder_in_words(held), float(send.nominal)
            self.report(
                INFO,
                events.RUN_BUFFERED if held.is_waiting else events.RUN_SKIPPED,
                send.name,
                f"beat: {'Buffered' if held.is_waiting else 'Skipped'} the run of %s that was due at %s: %s.",
                shown(moment_of(due)),
                printable(reason),
                task_id=send.task_id,
                due=due,
                reason=reason,
            )
        if held.worker is None and held.state != "reserved":  # no worker has begun the other run
            self.report_untracked(store, send.name, "held back")

    def report_untracked(self, store: Store, name: str, what: str) -> None:
        """Log that a run was held back or given up while no live worker tracks runs: at most once an hour.

        Redis is asked for such workers once a minute at most.

        Arguments:
            name: the entry's.
            what: 'held back', or how it was given up.
        """
        if not self.is_time("workers", WORKERS_SECONDS) or Runs(store.without_retry()).has_workers():
            return
        if self.is_time("untracked", UNTRACKED_SECONDS):
            self.report(
                WARNING,
                events.RUNS_UNTRACKED,
                name,
                "beat: A run of %s was %s, and no live worker tracks runs, so nobody tells when one begins "
                "or ends. Call redbeat.track_runs(app) in the module that makes the app, for beat and the "
                "workers, and restart them; or start a worker.",
                what,
            )

    # -- entries

    def note_missing(self, key: str) -> bool:
        """Record that an entry's hash is gone; return True, and log it, if it was gone a moment ago, too."""
        now = time.monotonic()
        if self.missing.pop(key, -math.inf) <= now - MISSING_SECONDS:
            self.missing[key] = now
            return False
        self.report(
            ERROR,
            events.ENTRY_REMOVED,
            self._config.keys.name(key),
            "beat: Failed to load %s, removing it from the schedule: its hash is gone, usually because Redis "
            "evicted it (see maxmemory-policy), or a program deleted the hash alone.",
            many="removed from the schedule, as their hashes are gone",
        )
        return True

    def report_slow(self, due_entry: Stored, schedule: Any, seconds: float) -> None:
        """Log, once for each definition, that planning an entry with a registered schedule took long."""
        self.report(
            WARNING,
            events.ENTRY_SLOW,
            self._config.keys.name(due_entry.key),
            "beat: Slow schedule: planning %s took %.0f ms of processor time, and the other entries waited. "
            "Let the remaining_estimate of its schedule class %s return sooner.",
            seconds * 1000,
            type(schedule).__qualname__,
            once=sha1_of(due_entry),
            schedule=type(schedule).__qualname__,
            processor_seconds=round(seconds, 3),
        )

    def report_typos(self, row: Stored, found: str) -> None:
        """Log keys of an entry, its schedule or its policy that are ignored: misspelt, or unusable."""
        typos, message = shorten(printable(found)), "beat: The entry %s has keys that are ignored: %s."
        name = self._config.keys.name(row.key)
        self.report(WARNING, events.ENTRY_UNKNOWN_KEYS, name, message, typos, once=typos, keys=typos)

    # -- errors beside the entries

    @contextmanager
    def surviving(self, store: Store, what: str) -> Iterator[None]:
        """Go on after an error that is about one key beside a shard's entries: log it, once until it changes.

        Arguments:
            what: what cannot be done, as a clause.

        Raises:
            StoreRefused, StoreCorrupt: nothing of the shard can be read or written.
        """
        try:
            yield
        except (StoreRefused, StoreCorrupt) as exc:
            if is_about_all(store, exc):
                raise
            if self._said.is_news(("survived", what), str(exc)):
                logger.error("beat: %s, the rest goes on: %s", what, exc)  # noqa: TRY400 - the sentence says it all


def is_about_all(store: Store, exc: StoreRefused | StoreCorrupt) -> bool:
    """Return True if an error concerns all of a shard, and not one key beside its entries."""
    if isinstance(exc, StoreCorrupt):
        return exc.key in (store.config.lock_key_in(store.keys), store.keys.schedule)
    return refuses_all(exc)


def _short(name: str) -> str:
    return shorten(printable(name[:MAX_NAME]), MAX_NAME)
