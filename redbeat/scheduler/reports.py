"""What beat logs, and each thing once, however often it is seen again."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar

from redbeat.entries.dropped import Dropped
from redbeat.entries.failures import sha1_of
from redbeat.errors import ConfigurationError, LockLost, RedBeatError
from redbeat.leadership.lock import LeaderLock
from redbeat.log.events import (
    ATTRIBUTE,
    BEAT_MISCONFIGURED,
    ENTRIES_REMOVED,
    ENTRY_CONTESTED,
    ENTRY_QUARANTINED,
    ENTRY_REMOVED,
    ENTRY_SLOW,
    ENTRY_UNKNOWN_KEYS,
    LEADER_LOST,
    LEADER_STANDBY,
    MESSAGES_COMPILED,
    MESSAGES_ONE_BY_ONE,
    RUN_BUFFERED,
    RUN_LOST,
    RUN_MERGED,
    RUN_NEVER_STARTED,
    RUN_OVERDUE,
    RUN_SENT,
    RUN_SKIPPED,
    RUNS_MERGED,
    RUNS_SETTLED,
    RUNS_UNTRACKED,
    SCHEDULE_BLOCKED,
    SCHEDULE_UNBLOCKED,
)
from redbeat.log.formatter import JsonFormatter
from redbeat.log.logger import logger
from redbeat.log.text import counted, printable, shorten
from redbeat.process.exit_codes import CONFIG, CommandLineError, is_beat_command
from redbeat.process.memory import Memory
from redbeat.process.signals import has_greenlets, hold_interrupts
from redbeat.runs.progress import holder_in_words
from redbeat.scheduler.decisions import Send
from redbeat.scheduler.service import is_process_of_worker
from redbeat.schedules.occurrences import KINDS
from redbeat.schedules.timezones import moment_of, shown
from redbeat.store.records import Commit, DueEntry, Held
from redbeat.store.run_record import RunRecord
from redbeat.telemetry.endpoint.health import trouble_in_words

Error = TypeVar("Error", bound=RedBeatError)


def brief(exc: Error) -> Error:
    """Return ``exc`` without its traceback, as Celery would print it and those of all causes, twice.

    They are in the log at DEBUG.
    """
    logger.debug("beat: Ending because of this:", exc_info=exc)
    return exc.with_traceback(None)


def tag_lock_lost(exc: LockLost) -> LockLost:
    """Give ``exc`` its event: Celery logs the error as it ends beat."""
    setattr(exc, ATTRIBUTE, LEADER_LOST.of(lock=exc.lock_key, holder=exc.holder)[ATTRIBUTE])
    return exc


class exit_without_traceback:  # noqa: N801 - a context manager; contextlib's would put the traceback back
    """Raises RedBeat's errors without their traceback, as :func:`brief` does.

    A wrong configuration ends the program ``celery beat`` with a sentence and exit code 78, and so the beat
    inside a worker.

    Arguments:
        is_logging: the log is set up. Otherwise the sentence goes to stderr.
        set_up: sets the log up now, so that the sentence goes there; None: it isn't wanted.
    """

    def __init__(self, *, is_logging: bool = True, set_up: Callable[[], None] | None = None) -> None:
        self._is_logging = is_logging
        self._set_up = set_up

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, exc: BaseException | None, _traceback: object) -> None:
        if not isinstance(exc, RedBeatError):
            return
        if isinstance(exc, ConfigurationError) and (is_beat_command() or is_process_of_worker()):
            if not self._is_logging:
                if self._set_up is None:
                    raise CommandLineError(str(exc), CONFIG) from None
                self._set_up()
            logger.critical(
                "beat: %s", exc, extra=BEAT_MISCONFIGURED.of(setting=exc.setting, reason=str(exc))
            )
            raise SystemExit(CONFIG) from None  # Celery logs the traceback of everything else
        raise brief(exc) from None


#: how often a standby logs who holds the lock; seconds
STANDBY_SECONDS = 60.0

#: for how many entries it is remembered what was logged; when there are more, all is forgotten and may be
#: logged again
MAX_REMEMBERED = 10_000

#: how many entries without a hash are remembered
MAX_MISSING = 100_000

#: of many entries that are removed together, how many have a line each, and how many more are named in one
#: line
NAMED_ALONE, NAMED_TOGETHER = 3, 10

#: how much of each name is shown in that line; characters
MAX_NAME = 100

#: a missing entry that wasn't fetched again for this long has been removed by somebody else; seconds
MISSING_SECONDS = 600.0

#: how often it is looked whether a live worker tracks runs, when that would explain something; and how often
#: it is logged that none does; seconds. It is logged at the second look in a row that finds none: workers
#: that start with beat, or again, have had time then
WORKERS_SECONDS, UNTRACKED_SECONDS = 60.0, 3600.0

#: of many runs that are given up together, how many have a line each
MAX_SETTLED = 10

#: what is logged of a run that is given up, or overdue from now on
_SETTLED = {"lost": RUN_LOST, "never_started": RUN_NEVER_STARTED, "overdue": RUN_OVERDUE}


class Reports:
    """One beat's log. What an entry's own hash says was logged isn't remembered here.

    Arguments:
        name_of: returns an entry's name by its key.

    Attributes:
        missing: entries whose hashes are gone: key to when that was noticed, monotonic, the oldest first.
        troubled: the places from which nothing could be sent lately, which was logged.
        ahead_seconds: by how much the server's clock is ahead of this machine's.
    """

    def __init__(self, name_of: Callable[[str], str] = lambda key: key) -> None:
        self._name_of = name_of
        self.ahead_seconds = 0.0
        self.missing: dict[str, float] = {}
        self._said = Memory[tuple[str, str], str](MAX_REMEMBERED)  # (topic, key) to what was logged
        self.troubled: set[str] = set()
        self._next_standby_at = 0.0
        self._look_for_workers_at = self._say_untracked_at = -math.inf
        self._has_seen_none = False

    def report_sent(self, runs: Iterable[Send]) -> None:
        """Log that ``runs`` were sent."""
        if not logger.isEnabledFor(logging.INFO):
            return
        is_json = JsonFormatter.is_used  # without JSON the line of a run costs nothing more
        # eventlet has locks in Python: a handler that raises amid logging would leave one locked for ever
        with hold_interrupts() if has_greenlets() else nullcontext():
            for run in runs:
                logger.info(
                    "Scheduler: Sending due task %s (%s)",
                    run.name,
                    run.task,
                    extra=self._sent_event(run) if is_json else None,
                )

    def _sent_event(self, run: Send) -> dict[str, Any]:
        due = float(run.nominal)
        lateness = round(time.time() + self.ahead_seconds - due, 3)
        return RUN_SENT.of(
            entry=run.name, task=run.task, task_id=run.task_id, due=due, lateness_seconds=lateness
        )

    def note_missing(self, due_entry: DueEntry) -> bool:
        """Note that an entry's hash is gone; return whether it was so already."""
        if self.missing.pop(due_entry.key, None) is None:
            now = time.monotonic()
            while self.missing and next(iter(self.missing.values())) < now - MISSING_SECONDS:
                del self.missing[next(iter(self.missing))]
            if len(self.missing) < MAX_MISSING:  # else later: others must not be forgotten for it
                self.missing[due_entry.key] = now
            return False
        return True

    def report_removed(self, keys: Sequence[str]) -> None:
        """Log that entries are removed from the schedule because their hashes are gone."""
        for key in keys[:NAMED_ALONE]:
            logger.error(
                "beat: Failed to load %s, removing it from the schedule: its hash is gone, usually because "
                "Redis evicted it (see maxmemory-policy), or because a program deleted the hash alone.",
                self._short_name(key),
                extra=ENTRY_REMOVED.of(entry=self._name_of(key)),
            )
        others = keys[NAMED_ALONE:]
        if others:
            logger.error(
                "beat: Failed to load %d more, removing them from the schedule for the same reason: %s%s",
                len(others),
                ", ".join(map(self._short_name, others[:NAMED_TOGETHER])),
                ", ..." if len(others) > NAMED_TOGETHER else ".",
                extra=ENTRIES_REMOVED.of(
                    count=len(others), entries=[self._name_of(key) for key in others[:NAMED_TOGETHER]]
                ),
            )

    def _short_name(self, key: str) -> str:
        return shorten(printable(self._name_of(key)[:MAX_NAME]), MAX_NAME)

    def report_dropped(self, found: Sequence[tuple[str, Dropped]]) -> None:
        """Log runs that a batch has not sent, each with its entry's name: merged ones in one line if they are
        many.
        """
        merged = [(name, one) for name, one in found if one.is_merged]
        alone = merged if len(merged) <= NAMED_ALONE else []
        for name, one in (*(pair for pair in found if not pair[1].is_merged), *alone):
            is_planned = one.is_merged or one.reason == "exclude"
            logger.log(
                logging.INFO if is_planned else logging.WARNING,
                "beat: %s",
                one.describe(name),
                extra=(RUN_MERGED if one.is_merged else RUN_SKIPPED).of(
                    entry=name, due=one.first, last_due=one.last, count=one.count, reason=one.why
                ),
            )
        if merged and not alone:
            names = [name for name, _ in merged[:NAMED_TOGETHER]]
            logger.info(
                "beat: Merged the missed runs of %d entries into one run each: %s%s",
                len(merged),
                ", ".join(shorten(printable(name), MAX_NAME) for name in names),
                ", ..." if len(merged) > NAMED_TOGETHER else ".",
                extra=RUNS_MERGED.of(count=len(merged), entries=names),
            )

    def report_slow(self, due_entry: DueEntry, seconds: float) -> None:
        """Log, once for each definition, that planning an entry with a registered schedule took long."""
        try:
            type_name = json.loads(due_entry.definition or "")["schedule"]["__type__"]
        except (ValueError, LookupError, TypeError, RecursionError):
            return
        if str(type_name) not in KINDS or not self._said.is_news(("slow", due_entry.key), sha1_of(due_entry)):
            return
        logger.warning(
            "beat: Slow schedule: planning %s took %.0f ms of processor time, and the other entries waited. "
            "Let the remaining_estimate of the schedule class registered as %r return sooner.",
            self._short_name(due_entry.key),
            seconds * 1000,
            type_name,
            extra=ENTRY_SLOW.of(
                entry=self._name_of(due_entry.key), schedule=type_name, processor_seconds=round(seconds, 3)
            ),
        )

    def report_held(self, commit: Commit, held: Held) -> None:
        """Log that another run has held back the one that ``commit`` is about."""
        if commit.run is None or not logger.isEnabledFor(logging.INFO):
            return
        due, reason = float(commit.run.due), holder_in_words(held)
        event = RUN_BUFFERED if held.is_waiting else RUN_SKIPPED
        logger.info(
            "beat: %s the run of %s that was due at %s: %s.",
            "Buffered" if held.is_waiting else "Skipped",
            self._short_name(commit.due_entry.key),
            shown(moment_of(due)),
            printable(reason),
            extra=event.of(
                entry=self._name_of(commit.due_entry.key), task_id=commit.task_id, due=due, reason=reason
            ),
        )

    def report_untracked(self, name: str, what: str, has_workers: Callable[[], bool]) -> None:
        """Log what becomes of runs while no live worker tracks any: once an hour, unless one did in between.

        Arguments:
            name: the entry's.
            what: what has become of its run.
            has_workers: asks Redis, once a minute at most, whether a live worker tracks runs.
        """
        now = time.monotonic()
        if now < self._look_for_workers_at:
            return
        self._look_for_workers_at = now + WORKERS_SECONDS
        if has_workers():
            self.note_tracked()
        elif not self._has_seen_none:
            self._has_seen_none = True
        elif now >= self._say_untracked_at:
            self._say_untracked_at = now + UNTRACKED_SECONDS
            logger.warning(
                "beat: A run of %s was %s, and no live worker tracks runs, so nobody tells when one begins "
                "or ends. Call redbeat.track_runs(app) in the module that makes the app, for beat and the "
                "workers, and restart them; or start a worker.",
                printable(name),
                what,
                extra=RUNS_UNTRACKED.of(entry=name),
            )

    def note_tracked(self) -> None:
        """Note that a live worker tracks runs: if none does later, that is news."""
        self._has_seen_none = False
        self._say_untracked_at = -math.inf

    @staticmethod
    def report_settled(settled: Sequence[tuple[str, RunRecord, str]]) -> None:
        """Log runs that are given up, or overdue from now on.

        Arguments:
            settled: of each its entry's name, its record before, and 'lost', 'never_started' or 'overdue'.
        """
        for name, run, word in settled[:MAX_SETTLED]:
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
        if len(settled) > MAX_SETTLED:
            others = len(settled) - MAX_SETTLED
            logger.warning(
                "beat: And %s lost, never_started or overdue.",
                counted(others, "more run is", "more runs are"),
                extra=RUNS_SETTLED.of(count=others),
            )

    def report_quarantined(self, due_entry: DueEntry, reason: str, is_news: bool) -> None:
        """Log why an entry can't be used, if ``is_news``: its hash doesn't say so yet."""
        if not due_entry.can_hold_error:
            is_news = self._said.is_news(("quarantined", due_entry.key), reason)
        if is_news:
            logger.error(
                "beat: Quarantined invalid entry %s (left unchanged): %s",
                self._short_name(due_entry.key),
                reason.removeprefix(f"{printable(due_entry.key)}: "),
                extra=ENTRY_QUARANTINED.of(entry=self._name_of(due_entry.key), reason=reason),
            )

    def report_typos(self, row: DueEntry, found: str) -> None:
        """Log keys of an entry, its schedule or its policy that are ignored: misspelt, or unusable."""
        typos = shorten(printable(found))
        if self._said.is_news(("typos", row.key), typos):
            logger.warning(
                "beat: The entry %s has keys that are ignored: %s.",
                self._short_name(row.key),
                typos,
                extra=ENTRY_UNKNOWN_KEYS.of(entry=self._name_of(row.key), keys=typos),
            )

    def report_contested(self, due_entry: DueEntry) -> str:
        """Log that an entry changes each time it is sent; return the sentence."""
        reason = (
            "the entry changes each time while it is sent, so its run can't be recorded and isn't sent: look "
            "for a signal handler, a task's apply_async or another program that writes to it at each run"
        )
        if self._said.is_news(("contested", due_entry.key), reason):
            logger.error(
                "beat: Couldn't send %s, trying again with growing pauses: %s.",
                self._short_name(due_entry.key),
                reason,
                extra=ENTRY_CONTESTED.of(entry=self._name_of(due_entry.key), reason=reason),
            )
        return reason

    def report_standby(self, candidacy: LeaderLock) -> None:
        """Log, once a minute at most, who holds the lock."""
        if time.monotonic() >= self._next_standby_at:
            self._next_standby_at = time.monotonic() + STANDBY_SECONDS
            words = candidacy.describe_holder()
            logger.info(
                "beat: Standing by: %s.", words, extra=LEADER_STANDBY.of(lock=candidacy.key, reason=words)
            )

    def report_trouble(self, trouble: str, troubled: str = "", places: Sequence[str] = ("",)) -> None:
        """Log what keeps entries from being sent. '': nothing does, which is logged if something did.

        Arguments:
            troubled: of which shards, as a phrase; '': of the whole schedule.
            places: what stands for each of these shards. It is logged again if more are concerned, or others.
        """
        if not trouble:
            said = [self._said.pop(("trouble", place), "") for place in self.troubled]
            self.troubled.clear()
            if any(said):
                logger.error("beat: Sending again.", extra=SCHEDULE_UNBLOCKED.of())
            return
        self.troubled.update(places)
        news = [place for place in places if self._said.is_news(("trouble", place), trouble)]
        if news:
            words = trouble_in_words(trouble, troubled)
            logger.error("beat: %s", words, extra=SCHEDULE_BLOCKED.of(reason=trouble))

    def report_way(self, obstacle: str) -> None:
        """Log how messages are made, if that has changed. ``obstacle``: why one by one; '': compiled.

        A WARNING says, once for each obstacle, that beat has become slower while it runs.
        """
        was_compiled = self._said.get(("way", "")) == ""
        if not self._said.is_news(("way", ""), obstacle):
            return
        is_slower = was_compiled and self._said.is_news(("slower", obstacle), "")
        logger.log(
            logging.WARNING if is_slower else logging.INFO,
            "beat: Messages: %s.",
            f"one by one: {shorten(printable(obstacle))}" if obstacle else "compiled",
            extra=MESSAGES_ONE_BY_ONE.of(reason=obstacle) if obstacle else MESSAGES_COMPILED.of(),
        )

    def report_left_out(self, what: str) -> None:
        """Log what the leader couldn't do at its start; it goes on without."""
        if self._said.is_news(("left out", what), what):
            logger.warning("beat: %s", what)


def _explain(run: RunRecord, word: str) -> str:
    worker = printable(run.worker or "an unknown worker")
    since = run.sent if run.started is None else run.started
    at = "an unknown time" if since is None else str(shown(moment_of(since)))
    if word == "never_started":
        return f"no worker that tracks runs has begun it within queue_timeout; it was sent at {at}"
    if word == "overdue":
        limit = f"its max_runtime of {run.max:g} s" if run.max is not None else "its max_runtime"
        then = "and is terminated" if run.is_revoked_overdue else "and no longer holds back the next one"
        return f"it is at work on {worker} since {at}, longer than {limit}, {then}"
    return f"its lease ran out, so its worker {worker} or the machine is gone; it was begun at {at}"
