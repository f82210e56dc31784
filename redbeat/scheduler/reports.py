"""What beat logs, and each thing once, however often it is seen again."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from logging import ERROR, INFO, WARNING
from typing import Any

from redbeat.connection.retry import is_refusal
from redbeat.entries.dropped import Dropped
from redbeat.entries.failures import sha1_of
from redbeat.errors import LayoutChanged, RedBeatError, StoreCorrupt, StoreRefused
from redbeat.leadership.lock import LeaderLock
from redbeat.log import events
from redbeat.log.events import LogEvent
from redbeat.log.formatter import JsonFormatter
from redbeat.log.logger import logger
from redbeat.log.text import printable, shorten
from redbeat.process.memory import Memory
from redbeat.process.signals import has_greenlets, hold_interrupts
from redbeat.runs.progress import holder_in_words
from redbeat.scheduler.decisions import Send
from redbeat.schedules.occurrences import KINDS
from redbeat.schedules.timezones import moment_of, shown
from redbeat.store.records import Commit, Held, Stored
from redbeat.store.run_record import RunRecord
from redbeat.store.store import Store
from redbeat.telemetry.endpoint.health import trouble_in_words

#: how often a standby logs who holds the lock; seconds
STANDBY_SECONDS = 60.0

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

#: how much of each name is shown in that line; characters
MAX_NAME = 100

#: a missing entry that was not fetched again for this long has been removed by another program; seconds
MISSING_SECONDS = 600.0

#: how often Redis is asked for live workers that track runs, when that would explain something, and how often
#: it is logged that there are none; seconds
WORKERS_SECONDS, UNTRACKED_SECONDS = 60.0, 3600.0

#: what is logged of a run that is given up, or overdue from now on
_SETTLED = {
    "lost": events.RUN_LOST,
    "never_started": events.RUN_NEVER_STARTED,
    "overdue": events.RUN_OVERDUE,
}


@dataclass
class _Many:
    """What happens to many entries in a minute.

    Attributes:
        event: about those without a line of their own.
        ends_at: when they are logged, monotonic.
        count: how many they are, and those with a line.
        names: the first of them.
        reason: the last reason, if these differ.
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
        name_of: returns an entry's name by its key.

    Attributes:
        missing: entries whose hashes are gone: key to when that was noticed, monotonic.
        troubled: prefixes of the shards from which nothing can be sent, to the reason that was logged.
        ahead_seconds: by how much the server's clock is ahead of this machine's.
    """

    def __init__(self, name_of: Callable[[str], str] = lambda key: key) -> None:
        self._name_of = name_of
        self.ahead_seconds = 0.0
        self.missing = Memory[str, float](MAX_MISSING)
        self._said = Memory[tuple[str, str], str](MAX_REMEMBERED)  # (topic, key) to what was logged
        self._many = Memory[str, _Many](MAX_KINDS)
        self.troubled: dict[str, str] = {}
        self._next_standby_at = self._look_for_workers_at = 0.0
        self._say_untracked_at = time.monotonic() + WORKERS_SECONDS  # workers may start with beat

    def _log_entry(
        self, level: int, event: LogEvent, key: str, message: str, *args: Any, **fields: Any
    ) -> None:
        """Log an event of one entry, whose name comes first in the message."""
        name = self._name_of(key)
        logger.log(level, message, _short(name), *args, extra=event.of(entry=name, **fields))

    def has_line(self, level: int, event: LogEvent, what: str, name: str, reason: str = "") -> bool:
        """Count what happens to an entry, and perhaps to many; return True if it has a line of its own.

        Arguments:
            event: about those that have none.
            what: what happens, after their number: 'removed from the schedule'.
        """
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
                fields = {"count": others, "entries": many.names, "reason": many.reason}
                extra = many.event.of(**{name: fields[name] for name in many.event.fields})
                names = ", ".join(map(_short, many.names)) + (", ..." if others > len(many.names) else "")
                reason = f"; the last: {many.reason}" if many.reason else ""
                logger.log(many.level, "beat: And %d more %s: %s%s", others, what, names, reason, extra=extra)

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

    def note_missing(self, due_entry: Stored) -> bool:
        """Record that an entry's hash is gone; return True if that was known."""
        now = time.monotonic()
        is_known = self.missing.pop(due_entry.key, -math.inf) > now - MISSING_SECONDS
        if not is_known:
            self.missing[due_entry.key] = now
        return is_known

    def report_removed(self, keys: Sequence[str]) -> None:
        """Log that entries are removed from the schedule because their hashes are gone."""
        what = "removed from the schedule, as their hashes are gone"
        for key in keys:
            if self.has_line(ERROR, events.ENTRIES_REMOVED, what, self._name_of(key)):
                self._log_entry(
                    ERROR,
                    events.ENTRY_REMOVED,
                    key,
                    "beat: Failed to load %s, removing it from the schedule: its hash is gone, usually "
                    "because Redis evicted it (see maxmemory-policy), or a program deleted the hash alone.",
                )

    def report_dropped(self, found: Sequence[tuple[str, Dropped]]) -> None:
        """Log runs that a batch has not sent, each with its entry's name."""
        what = "whose missed runs are merged into one"
        for name, one in found:
            if one.is_merged and not self.has_line(INFO, events.RUNS_MERGED, what, name):
                continue
            is_planned = one.is_merged or one.reason == "exclude"
            event = events.RUN_MERGED if one.is_merged else events.RUN_SKIPPED
            fields = event.of(entry=name, due=one.first, last_due=one.last, count=one.count, reason=one.why)
            logger.log(INFO if is_planned else WARNING, "beat: %s", one.describe(name), extra=fields)

    def report_slow(self, due_entry: Stored, seconds: float) -> None:
        """Log, once for each definition, that planning an entry with a registered schedule took long."""
        try:
            type_name = json.loads(due_entry.definition or "")["schedule"]["__type__"]
        except (ValueError, LookupError, TypeError, RecursionError):
            return
        if str(type_name) in KINDS and self._said.is_news(("slow", due_entry.key), sha1_of(due_entry)):
            self._log_entry(
                WARNING,
                events.ENTRY_SLOW,
                due_entry.key,
                "beat: Slow schedule: planning %s took %.0f ms of processor time, and the other entries "
                "waited. Let the remaining_estimate of the schedule class registered as %r return sooner.",
                seconds * 1000,
                type_name,
                schedule=type_name,
                processor_seconds=round(seconds, 3),
            )

    def report_held(self, commit: Commit, held: Held) -> None:
        """Log that another run has held back the one that ``commit`` is about."""
        if commit.run is None or not logger.isEnabledFor(INFO):
            return
        due, reason = float(commit.run.due), holder_in_words(held)
        event = events.RUN_BUFFERED if held.is_waiting else events.RUN_SKIPPED
        self._log_entry(
            INFO,
            event,
            commit.due_entry.key,
            f"beat: {'Buffered' if held.is_waiting else 'Skipped'} the run of %s that was due at %s: %s.",
            shown(moment_of(due)),
            printable(reason),
            task_id=commit.task_id,
            due=due,
            reason=reason,
        )

    def report_untracked(self, name: str, what: str, has_workers: Callable[[], bool]) -> None:
        """Log that a run was held back or given up while no live worker tracks runs: at most once an hour.

        Arguments:
            name: the entry's.
            what: 'held back', or how it was given up.
            has_workers: asks Redis, once a minute at most, whether a live worker tracks runs.
        """
        now = time.monotonic()
        if now < self._look_for_workers_at:
            return
        self._look_for_workers_at = now + WORKERS_SECONDS
        if has_workers():
            self.note_tracked()
        elif now >= self._say_untracked_at:
            self._say_untracked_at = now + UNTRACKED_SECONDS
            logger.warning(
                "beat: A run of %s was %s, and no live worker tracks runs, so nobody tells when one begins "
                "or ends. Call redbeat.track_runs(app) in the module that makes the app, for beat and the "
                "workers, and restart them; or start a worker.",
                printable(name),
                what,
                extra=events.RUNS_UNTRACKED.of(entry=name),
            )

    def note_tracked(self) -> None:
        """Record that a live worker tracks runs: if none does a minute later, that is news."""
        self._say_untracked_at = time.monotonic() + WORKERS_SECONDS

    def report_settled(self, name: str, run: RunRecord, word: str) -> None:
        """Log a run that is given up, or overdue from now on.

        Arguments:
            name: the entry's.
            run: its record before.
            word: 'lost', 'never_started' or 'overdue'.
        """
        if not self.has_line(WARNING, events.RUNS_SETTLED, f"with a run that is {word}", name):
            return
        reason = _explain(run, word)
        logger.warning(
            "beat: %s %s of %s is %s: %s.",
            "The run" if run.root is None else "A task of a workflow,",
            printable(run.task_id),
            printable(name),
            word,
            reason,
            extra=_SETTLED[word].of(
                entry=name, task_id=run.task_id, due=run.due or None, worker=run.worker, reason=reason
            ),
        )

    def report_quarantined(self, due_entry: Stored, reason: str, is_news: bool) -> None:
        """Log why an entry is invalid, if ``is_news``: its hash does not say so yet."""
        key = due_entry.key
        if not due_entry.can_hold_error:
            is_news = self._said.is_news(("quarantined", key), reason)
        if is_news:
            message = "beat: Quarantined invalid entry %s (left unchanged): %s"
            short_reason = reason.removeprefix(f"{printable(key)}: ")
            self._log_entry(ERROR, events.ENTRY_QUARANTINED, key, message, short_reason, reason=reason)

    def report_typos(self, row: Stored, found: str) -> None:
        """Log keys of an entry, its schedule or its policy that are ignored: misspelt, or unusable."""
        typos = shorten(printable(found))
        if self._said.is_news(("typos", row.key), typos):
            message = "beat: The entry %s has keys that are ignored: %s."
            self._log_entry(WARNING, events.ENTRY_UNKNOWN_KEYS, row.key, message, typos, keys=typos)

    def report_standby(self, candidacy: LeaderLock) -> None:
        """Log, once a minute at most, who holds the lock."""
        if time.monotonic() >= self._next_standby_at:
            self._next_standby_at = time.monotonic() + STANDBY_SECONDS
            holder = candidacy.describe_holder()
            fields = events.LEADER_STANDBY.of(lock=candidacy.key, reason=holder)
            logger.info("beat: Standing by: %s.", holder, extra=fields)

    def report_trouble(self, trouble: str, troubled: str = "", places: Sequence[str] = ("",)) -> None:
        """Log what keeps entries from being sent. '': nothing does, which is logged if something did.

        Arguments:
            troubled: of which shards, as a phrase; '': of the whole schedule.
            places: their prefixes. It is logged again if more shards are concerned, or others.
        """
        if not trouble:
            if self.troubled:
                logger.error("beat: Sending again.", extra=events.SCHEDULE_UNBLOCKED.of())
            self.troubled.clear()
            return
        if any(self.troubled.get(place) != trouble for place in places):
            extra = events.SCHEDULE_BLOCKED.of(reason=trouble)
            logger.error("beat: %s", trouble_in_words(trouble, troubled), extra=extra)
        self.troubled.update(dict.fromkeys(places, trouble))

    def report_way(self, obstacle: str, *, is_slower: bool) -> None:
        """Log how messages are made from now on.

        Arguments:
            obstacle: why one by one; '': they are compiled.
            is_slower: they were compiled before, which makes it a WARNING.
        """
        way, event = "compiled", events.MESSAGES_COMPILED.of()
        if obstacle:
            way = f"one by one: {shorten(printable(obstacle))}"
            event = events.MESSAGES_ONE_BY_ONE.of(reason=obstacle)
        logger.log(WARNING if is_slower else INFO, "beat: Messages: %s.", way, extra=event)

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
            self.survive(store, what, exc)

    def survive(self, store: Store, what: str, exc: RedBeatError) -> None:
        """Log an error as ``surviving`` does, or raise it."""
        if not isinstance(exc, (StoreRefused, StoreCorrupt)) or is_about_all(store, exc):
            raise exc
        if self._said.is_news(("survived", what), str(exc)):
            logger.error("beat: %s, the rest goes on: %s", what, exc)


def is_about_all(store: Store, exc: StoreRefused | StoreCorrupt) -> bool:
    """Return True if an error concerns all of a shard, and not one key beside its entries."""
    if isinstance(exc, StoreCorrupt):
        return exc.key in (store.config.lock_key_in(store.keys), store.keys.schedule)
    return is_refusal(exc.__cause__) or exc.is_login or isinstance(exc, LayoutChanged)


def _short(name: str) -> str:
    return shorten(printable(name[:MAX_NAME]), MAX_NAME)


def _explain(run: RunRecord, word: str) -> str:
    worker = printable(run.worker or "an unknown worker")
    since = run.sent if run.started is None else run.started
    at = shown(None if since is None else moment_of(since))
    if word == "never_started":
        return f"no worker that tracks runs has begun it within queue_timeout; it was sent at {at}"
    if word == "overdue":
        limit = f"its max_runtime of {run.max:g} s" if run.max is not None else "its max_runtime"
        then = "and is terminated" if run.is_revoked_overdue else "and no longer holds back the next one"
        return f"it is at work on {worker} since {at}, longer than {limit}, {then}"
    return f"its lease ran out, so its worker {worker} or the machine is gone; it was begun at {at}"
