"""Planning: from a due entry to a decision. It reads no clock and no server.

Four steps, each with a memo where due entries share work:

1. decode    the texts of definition and policy, to ``Known``
2. settle    the due time that the score stands for
3. turn      what follows from that due time (``timetable``)
4. finish    what belongs to the entry alone: counts, ``after_finish``, its own task id, the end of a pause

Invariant: a memo never changes a decision.
"""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from sys import getsizeof
from typing import Any, NamedTuple

from celery.schedules import crontab, schedule, solar

from redbeat.config.config import ensure_conf
from redbeat.decoder import encode_meta
from redbeat.entries.calendar_loading import give_calendars
from redbeat.entries.dropped import Dropped, dropped_at_rest, dropped_until
from redbeat.entries.due import (
    defaults_for,
    first_after_pause,
    is_in_pause,
    is_moved,
    paused_until,
    score_after_pause,
)
from redbeat.entries.entry import RedBeatSchedulerEntry, load_entry
from redbeat.entries.failures import Failure, failure_of
from redbeat.errors import EntryError
from redbeat.history import sent_record, skipped_record
from redbeat.policy.expiry import expiry_of, queue_limit_of, wait_seconds
from redbeat.policy.headers import headers_of
from redbeat.policy.jitter import delayed, due_time_of
from redbeat.policy.policy import NO_POLICY, PAUSE_FIELDS, Policy, encode_policy
from redbeat.policy.window import Exclusion, exclusion_of
from redbeat.process.memory import Allowance, Memory
from redbeat.runs.limits import Tracking, dropped_run, read_tracks
from redbeat.runs.tracking import MARK as TRACKED
from redbeat.scheduler.decisions import (
    Decision,
    Remove,
    Reschedule,
    Send,
    commit_of,
    counted,
    is_asked,
    records_of,
)
from redbeat.scheduler.timetable import Timetable
from redbeat.schedules.codec import encode_schedule
from redbeat.schedules.occurrences import Excluded, clocked, cron, next_run, rrule
from redbeat.schedules.timezones import in_utc, moment_of
from redbeat.store.records import Clear, Commit, DueEntry, Ending, score_text
from redbeat.store.store import read_due_entry
from redbeat.task_ids import task_id_of
from redbeat.telemetry.sentry.monitors import MARK as MONITORED
from redbeat.telemetry.sentry.monitors import headers_of_check_in

#: seconds until a disabled entry is looked at again, at its first due time after them: it may be
#: enabled by hand, without a new score
DISABLED_SECONDS = 60.0

#: entries with longer definitions are not kept, characters
MAX_DEFINITION = 65_536

#: metas of RedBeat's own are shorter, characters
MAX_META = 300

#: memory of a kept entry without its texts, and of its decoded form per byte of text; bytes
ENTRY_BYTES, BYTES_PER_BYTE = 2_500, 2

#: timetables that are shared at a time
MAX_TIMETABLES = 1_024

#: a plan that takes longer is reported, seconds of processor time
SLOW_SECONDS = 0.1

_INSTANT = timedelta(microseconds=1)

#: schedules without state of their own, so that entries with them may be kept
_KEPT_KINDS = (schedule, crontab, cron, rrule, clocked, solar)

#: fields of a policy by which a due time may stand for no run
_BOUNDS = ("start_time", "end_time", "exclude")

_META = re.compile(
    r'\{"last_run_at": (?:null|\{"__type__": "datetime", "year": (\d{4}), "month": (\d\d?), "day": (\d\d?), '
    r'"hour": (\d\d?), "minute": (\d\d?), "second": (\d\d?), "microsecond": (\d{1,6}), "timezone": "UTC"\}), '
    r'"total_run_count": (\d{1,15})\}'
)

NO_CALENDARS: Mapping[str, Excluded] = {}


@dataclass(slots=True)
class Known:
    """A decoded entry, kept as long as its texts are the same.

    Attributes:
        entry: not for the application's code, which may change it.
        bounds: its policy with its calendar.
        is_bounded: its policy may exclude a due time.
        is_limited: it ends after a number of runs.
        own_task_id: from its options.
        computes_due_at: a subclass overrides ``due_at``.
        limit_seconds: after how long its messages expire on their queue; None: they do not.
        is_timed: that depends on when a message is sent, because its options have times.
        headers: of its messages, for workers.
        meta, last_run, count: the meta that was read or planned last, and what it says.
        is_meta_usual: that meta is written as RedBeat writes it, without keys of others.
        labels, labels_version: the id of the labels under which its runs are counted, by that version.
        template, template_retry_at: of the encoder.
    """

    definition: str | None
    policy: str | None
    entry: RedBeatSchedulerEntry
    bounds: Policy
    timetable: Timetable
    is_bounded: bool
    is_limited: bool
    own_task_id: str | None
    computes_due_at: bool
    limit_seconds: float | None
    is_timed: bool
    headers: Mapping[str, Any]
    size_bytes: int
    meta: str | None = None
    last_run: datetime | None = None
    count: int = 0
    is_meta_usual: bool = True
    labels: str = ""
    labels_version: int = -1
    template: Any = None
    template_retry_at: float = 0.0


class _Settled(NamedTuple):
    """Which due time a score stands for.

    Attributes:
        nominal: UNIX seconds as the server writes them.
        is_retried: the run could not be sent before.
        dropped: runs that the policy excludes before it.
        told: the ones of them to be logged.
    """

    nominal: str
    is_retried: bool = False
    dropped: Sequence[Dropped] = ()
    told: Sequence[Dropped] = ()


class Planner:
    """Plans the due entries of one beat.

    Arguments:
        app: the Celery app.
        entry_class: returns the scheduler's class of entries.
        allowance: how much memory kept entries may take; the least recently due go first.
        book: under which labels runs are counted; None: under none.
        report_typos: is called with a due entry and its ignored keys.
        report_slow: is called with a due entry and the seconds that planning it took.
    """

    def __init__(
        self,
        app: Any,
        entry_class: Callable[[], type[RedBeatSchedulerEntry]] = lambda: RedBeatSchedulerEntry,
        allowance: Allowance | None = None,
        book: Any = None,
        report_typos: Callable[[DueEntry, str], None] = lambda _row, _typos: None,
        report_slow: Callable[[DueEntry, float], None] = lambda _row, _seconds: None,
    ) -> None:
        self._app = app
        ensure_conf(app)
        self._entry_class = entry_class
        self._allowance = allowance or Allowance(0)
        self._book = book
        self._report_typos = report_typos
        self._report_slow = report_slow
        self._kept: OrderedDict[str, Known] = OrderedDict()
        self._timetables = Memory[Any, Timetable](MAX_TIMETABLES)
        self._settings: Any = None
        self._tracks: Callable[[Policy], bool] = lambda _policy: False
        self._now, self._moment = -1.0, moment_of(0)

    def begin(self) -> None:
        """Begin a tick: forget everything if a setting has changed that plans depend on."""
        app = self._app
        config = app.redbeat_conf
        settings = (
            *(app.timezone, app.conf.beat_cron_starting_deadline),
            *(config.misfire, config.misfire_limit, config.misfire_grace_time),
            *(getattr(app, TRACKED, None), getattr(app, MONITORED, None)),
        )
        if settings != self._settings:
            self._settings, self._tracks = settings, read_tracks(app)
            self._timetables.clear()
            self._allowance.left_bytes += sum(known.size_bytes for known in self._kept.values())
            self._kept.clear()

    def plan(self, row: DueEntry, now: float, calendars: Mapping[str, Excluded] = NO_CALENDARS) -> Decision:
        """Return what happens to an entry that is due.

        Arguments:
            now: the server's clock, UNIX seconds.
            calendars: name to calendar.

        Raises:
            EntryError, or another exception about the entry: quarantine it.
        """
        if self._settings is None:
            self.begin()
        if now != self._now:
            self._now, self._moment = now, moment_of(now)
        known = self._known(row, calendars)
        # schedules of RedBeat and Celery are computed in bounded time
        began = None if type(known.entry.schedule) in _KEPT_KINDS else time.thread_time()
        self._read_meta(known, row)
        failure = failure_of(row) if row.error else None
        if row.next_score:
            decision = self._plan_released(known, row, failure)
        else:
            settled = self._settle(known, row, failure)
            decision = (
                settled if isinstance(settled, Decision) else self._finish(known, row, failure, settled)
            )
        if began is not None and time.thread_time() - began > SLOW_SECONDS:
            self._report_slow(row, time.thread_time() - began)
        if decision.commit.sent or decision.commit.counted:
            decision.commit.labels = self._labels_of(known)
        return decision

    # -- 1. decode

    def _known(self, row: DueEntry, calendars: Mapping[str, Excluded]) -> Known:
        known = self._kept.get(row.key)
        if known is not None and known.definition == row.definition and known.policy == row.policy:
            exclude = known.bounds.exclude
            if exclude is None or calendars.get(exclude) is known.bounds.calendar:
                self._kept.move_to_end(row.key)
                return known
        known = self._decode(row, calendars)
        is_short = len(row.definition or "") <= MAX_DEFINITION
        if (
            is_short
            and type(known.entry) is RedBeatSchedulerEntry
            and type(known.entry.schedule) in _KEPT_KINDS
        ):
            self._keep(row.key, known)
        return known

    def _keep(self, key: str, known: Known) -> None:
        before = self._kept.pop(key, None)
        self._allowance.left_bytes += (0 if before is None else before.size_bytes) - known.size_bytes
        self._kept[key] = known
        self.make_room()

    def make_room(self) -> None:
        """Forget entries until everything that is kept is allowed."""
        while self._allowance.left_bytes < 0 and self._kept:
            _, oldest = self._kept.popitem(last=False)
            self._allowance.left_bytes += oldest.size_bytes

    def _decode(self, row: DueEntry, calendars: Mapping[str, Excluded]) -> Known:
        entry = load_entry(self._entry_class(), read_due_entry(row), self._app)
        give_calendars([entry], calendars)
        bounds, policy, options, app = entry.bounds(), entry.policy, entry.options, self._app
        typos = ", ".join(filter(None, (entry.typos, getattr(entry.schedule, "typos", ""))))
        if typos:
            self._report_typos(row, typos)
        is_timed = any(options.get(name) for name in ("countdown", "eta"))
        limit = None if policy.message_queue_seconds is None else self._queue_limit(entry)
        texts = (row.definition, row.policy, row.key)
        return Known(
            row.definition,
            row.policy,
            entry,
            bounds,
            self._timetable_of(entry, bounds, row.policy),
            any(getattr(policy, name) for name in _BOUNDS),
            policy.one_off or policy.max_runs is not None,
            options.get("task_id"),
            entry.computes_due_at,
            limit,
            is_timed or (limit is not None and not _is_usual_expiry(options.get("expires"))),
            headers_of(policy, limit) | headers_of_check_in(app, entry.name, entry.schedule, policy),
            ENTRY_BYTES + BYTES_PER_BYTE * sum(map(getsizeof, texts)),
        )

    def _queue_limit(self, entry: RedBeatSchedulerEntry) -> float | None:
        task = self._app.tasks.get(entry.task)
        of_task = {} if task is None else task._get_exec_options()  # noqa: SLF001 - it has no public name
        moment = self._moment
        return queue_limit_of(entry.policy, entry.options, of_task, moment, self._app.timezone)

    def _timetable_of(
        self, entry: RedBeatSchedulerEntry, bounds: Policy, policy_text: str | None
    ) -> Timetable:
        key = None
        if type(entry.schedule) in _KEPT_KINDS:
            key = self._entry_class(), _text_of(entry.schedule), policy_text, bounds, id(bounds.calendar)
            found = self._timetables.get(key)
            if found is not None:
                return found
        made = Timetable(
            entry.schedule,
            bounds,
            defaults_for(self._app, entry.schedule),
            is_tracked=self._tracks(entry.policy),
        )
        if key is not None:
            self._timetables[key] = made
        return made

    def _read_meta(self, known: Known, row: DueEntry) -> None:
        """Let the kept entry have the last run and the count that its meta says."""
        meta, entry = row.meta, known.entry
        if meta is None or meta != known.meta:
            state = _state_of(meta) if len(meta or "") <= MAX_META else None
            known.is_meta_usual = state is not None
            if state is None:
                fresh = load_entry(self._entry_class(), read_due_entry(row), self._app)
                state = fresh.last_run_at, fresh.total_run_count
            known.meta, known.last_run, known.count = meta, *state
        entry.last_run_at, entry.total_run_count = known.last_run, known.count

    def _labels_of(self, known: Known) -> str:
        book, entry = self._book, known.entry
        if book is not None and known.labels_version != book.version:
            is_asked_for = entry.policy.metrics
            known.labels = book.id_of(entry.name, entry.task, entry.options, is_asked=is_asked_for)
            known.labels_version = book.version
        return known.labels

    # -- 2. settle

    def _settle(self, known: Known, row: DueEntry, failure: Failure | None) -> _Settled | Decision:
        """Return which due time the score stands for; a decision if it stands for no run."""
        entry, nominal, is_retried = known.entry, row.nominal, False
        if failure is not None and failure.due and failure.is_waiting_for(row):
            nominal, is_retried = failure.due, failure.attempts > 0
        is_usual = entry.enabled and not (known.is_bounded or row.is_asked or failure)
        # RedBeat has written this score for this due time; others cut it to whole seconds
        is_usual = is_usual and not (row.is_meta_foreign or float(nominal).is_integer())
        if known.bounds.jitter and not is_retried:
            at, last_run = moment_of(float(nominal)), entry.last_run_at
            undelayed = due_time_of(row.key, entry.schedule, known.bounds, at, last_run and in_utc(last_run))
            nominal = nominal if undelayed == at else score_text(undelayed.timestamp())
        if is_usual:
            return _Settled(nominal)
        return self._settle_bounded(known, row, failure, nominal, is_retried=is_retried)

    def _settle_bounded(
        self, known: Known, row: DueEntry, failure: Failure | None, nominal: str, *, is_retried: bool
    ) -> _Settled | Decision:
        """Return the due time after moves, pauses and exclusions."""
        entry, bounds, moment = known.entry, known.bounds, self._moment
        at = moment_of(float(nominal))
        asked = is_asked(row, failure)
        dropped: list[Dropped] = []
        told: list[Dropped] = []
        own_time_of = self._own_time(known)
        score = float(row.nominal)
        if not (is_retried or asked) and is_moved(entry, score, row.is_meta_foreign, at, moment, own_time_of):
            own_time = own_time_of()
            excluded = exclusion_of(entry.schedule, bounds, at)
            if excluded is not None and excluded.field == "exclude":  # since its score was written
                dropped.append(_excluded(known, at, own_time, moment, excluded))
            if own_time is None or own_time > moment:
                return self._put_off(known, row, own_time, dropped)
            nominal, at = _at_instant(own_time)
        if not entry.is_enabled_at(moment):
            return Reschedule(row, commit_of(row, score_text(_score_at_rest(known, at, moment))))
        if not asked and is_in_pause(entry, at):
            is_retried, first = False, first_after_pause(entry, bounds, at)
            if first is None or first > moment:
                return self._put_off(known, row, first)
            is_made_up_for = (
                bounds.run_missed and first == paused_until(entry) and entry.last_run_at is not None
            )
            nominal, at = _at_instant((entry.due_by_schedule() if is_made_up_for else None) or first)
        dropped += _dropped_in_pause(known, at)
        excluded = exclusion_of(entry.schedule, bounds, at)
        if excluded is not None:
            allowed_at = None
            if excluded.field != "end_time":
                allowed_at = next_run(entry.schedule, bounds, at, at)
            dropped.append(_excluded(known, at, allowed_at, moment, excluded))
            if excluded.field == "exclude":
                told.append(dropped[-1])
            if allowed_at is None or allowed_at > moment:
                return self._put_off(known, row, allowed_at, dropped, told)
            is_retried, (nominal, at) = False, _at_instant(allowed_at)
        return _Settled(nominal, is_retried, dropped, told)

    def _own_time(self, known: Known) -> Callable[[], datetime | None]:
        """Return what finds the first due time after its last run."""
        entry = known.entry
        if known.computes_due_at or entry.last_run_at is None or known.is_limited:
            return entry.due_by_schedule
        last_run, has_run = in_utc(entry.last_run_at), entry.total_run_count > 0
        return lambda: known.timetable.own_time(last_run, has_run=has_run)

    # -- 3. and 4.: turn, finish

    def _finish(self, known: Known, row: DueEntry, failure: Failure | None, settled: _Settled) -> Decision:
        entry, policy = known.entry, known.bounds
        if known.is_limited and policy.is_finished(entry.total_run_count):
            return self._put_off(known, row, None)
        turn = known.timetable.turn(settled.nominal, self._moment, is_retried=settled.is_retried)
        dropped = (*settled.dropped, *turn.dropped) if settled.dropped else turn.dropped
        told = (*settled.told, *turn.dropped) if settled.told else turn.dropped
        if turn.at is None:
            return self._put_off(known, row, turn.following, dropped, told)
        is_over = known.is_limited and policy.is_finished(entry.total_run_count + 1)
        following = None if is_over else turn.following
        if known.computes_due_at and not is_over:
            following = entry.following_run(turn.ran_at, turn.following)
        new_score = turn.new_score
        if policy.jitter and turn.following is not None:
            new_score = score_text(delayed(row.key, entry.schedule, policy, turn.following).timestamp())
        if following is turn.following and following is not None:
            commit = commit_of(row, new_score)
            commit.is_for_this_definition = policy.exclude is not None
        else:
            commit = self._put_off(known, row, following).commit
        if not entry.enabled and commit.new_score is not Ending.DELETE:
            _end_pause(known, row, commit, is_over=is_over)
        count = entry.total_run_count + 1
        if known.is_meta_usual:
            commit.new_meta = f'{{"last_run_at": {turn.ran_at_json}, "total_run_count": {count}}}'
        else:  # it has keys that are kept
            commit.new_meta = encode_meta(turn.ran_at, count, row.meta)
        commit.sent, commit.records, commit.counted = turn.nominal, turn.records, turn.counted
        if known.own_task_id is not None or settled.dropped:
            commit.records = (*records_of(dropped), sent_record(turn.nominal, known.own_task_id))
            commit.counted = counted(dropped)
        if is_over and turn.following is not None and turn.following <= self._moment:
            rest = dropped_until(
                entry.schedule, policy, turn.following, self._moment, why_over(policy), reason="over"
            )
            commit.records = (*(commit.records or (sent_record(turn.nominal),)), rest.record)
            commit.counted += rest.counted
        send = self._send(known, row, failure, commit, turn.nominal, turn.due, turn.at)
        send.skip_score = "" if turn.following is None or policy.one_off else new_score
        send.left_out, send.dropped = dropped, told
        send.valid_until = turn.valid_until
        if turn.run is not None:
            commit.run = turn.run
            if known.is_timed or policy.jitter or settled.dropped:
                waits = wait_seconds(entry.options, self._moment, self._app.timezone)
                commit.run = Tracking(policy).run(turn.nominal, new_score, records_of(dropped), waits)
        known.meta, known.last_run, known.count = commit.new_meta, turn.ran_at, count
        return send

    def _plan_released(self, known: Known, row: DueEntry, failure: Failure | None) -> Decision:
        """Plan the run that has waited for another one to end: exactly that one, however late it is.

        Then the entry goes on where it was, so what is recorded about a failure stays, too.
        """
        entry, policy, moment = known.entry, known.bounds, self._moment
        at, count = moment_of(float(row.nominal)), entry.total_run_count
        due = at.isoformat(timespec="microseconds")
        commit = Commit(row, row.next_score)
        commit.task_id = str(known.own_task_id or task_id_of(row.key, due))
        why = why_dropped(entry, at, moment)
        if why:
            commit.run, commit.records = dropped_run(row.nominal), (skipped_record(row.nominal, why),)
            commit.counted = " skipped/overlap"
            return Reschedule(row, commit)
        if policy.is_finished(count + 1) or float(row.next_score) < 0:
            over = self._put_off(known, row, None).commit
            over.task_id, over.new_error, commit = commit.task_id, None, over
        commit.new_meta = encode_meta(at, count + 1, row.meta)
        commit.sent = row.nominal
        if known.own_task_id is not None:
            commit.records = (sent_record(row.nominal, known.own_task_id),)
        # a policy that would skip it now came later than the decision that it waits
        overlap = "buffer_one" if policy.overlap == "skip" else policy.overlap
        commit.run = Tracking(policy).run(row.nominal, row.next_score, overlap=overlap)
        send = self._send(known, row, failure, commit, row.nominal, due, at)
        send.skip_score = row.next_score if float(row.next_score) >= 0 else ""
        return send

    def _send(
        self,
        known: Known,
        row: DueEntry,
        failure: Failure | None,
        commit: Commit,
        nominal: str,
        due: str,
        at: datetime,
    ) -> Send:
        entry, policy = known.entry, known.bounds
        task_id = commit.task_id = str(known.own_task_id or task_id_of(row.key, due))
        limit, headers = known.limit_seconds, known.headers
        expires = left = None
        if known.is_timed and policy.message_queue_seconds is not None:
            limit = self._queue_limit(entry)
            checks = headers_of_check_in(self._app, entry.name, entry.schedule, policy)
            headers = headers_of(policy, limit) | checks
        if limit is not None and known.is_timed:
            limit += wait_seconds(entry.options, self._moment, self._app.timezone)
        if limit is not None or policy.expires_after is not None:
            expires, left = expiry_of(policy, at, self._now, limit)
        return Send(
            row,
            commit,
            entry.name,
            entry.task,
            nominal,
            due,
            task_id,
            expires,
            left,
            headers,
            failure=failure,
            known=known,
        )

    def _put_off(
        self,
        known: Known,
        row: DueEntry,
        to: datetime | None,
        dropped: Sequence[Dropped] = (),
        told: Sequence[Dropped] = (),
    ) -> Reschedule | Remove:
        """Return the decision that makes an entry due at ``to``; None: never, so ``after_finish`` applies."""
        entry, policy = known.entry, known.bounds
        commit = commit_of(row, score_text(entry.score_of(to)))
        commit.records = records_of(dropped)
        commit.counted = counted(dropped)
        # saving a calendar gives its entries another revision, and this row is then refused
        commit.is_for_this_definition = policy.exclude is not None
        if to is None and policy.after_finish == "delete":
            commit.new_score = Ending.DELETE
            return Remove(row, commit, dropped=told)
        if to is None and policy.after_finish == "disable" and entry.enabled:
            entry.enabled = False
            try:
                commit.new_definition = entry.encode(read_due_entry(row))
            finally:
                entry.enabled = True
            commit.is_for_this_definition = True
        return Reschedule(row, commit, dropped=told)


def options_of_run(send: Send, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that a run is sent with.

    Arguments:
        options: the entry's own.
    """
    own = options.get("headers") or {}
    headers = {**own, "redbeat_entry": send.name, "redbeat_due": send.due, **send.headers}
    of_run = {**options, "headers": headers, "task_id": send.task_id}
    if send.expires is not None:
        of_run["expires"] = send.expires
    return of_run


def entry_to_send(send: Send, entry_class: type[RedBeatSchedulerEntry], app: Any) -> RedBeatSchedulerEntry:
    """Return a new entry for the scheduler's ``apply_async``, whose code may change it."""
    if send.entry is None:
        entry = load_entry(entry_class, read_due_entry(send.due_entry), app)
        entry.options = options_of_run(send, entry.options)
        send.entry = entry
    return send.entry


def why_over(policy: Policy) -> str:
    """Return why an entry that has reached its number of runs has no more, as a phrase."""
    return "it runs once (one_off)" if policy.one_off else f"it has run {policy.max_runs} times (max_runs)"


def why_dropped(entry: RedBeatSchedulerEntry, due_at: datetime, now: datetime) -> str:
    """Return why a run that has waited is not sent any more; '': it is."""
    policy = entry.policy
    waited = "it waited for the run before it"
    if not entry.is_enabled_at(now):
        state = "paused" if policy.paused else "disabled"
        note = f": {policy.pause_note}" if policy.paused and policy.pause_note else ""
        return f"{waited}, and the entry is {state}{note}"
    if policy.is_finished(entry.total_run_count):
        return f"{waited}, and then {why_over(policy)}"
    if policy.expires_after is not None and due_at + timedelta(seconds=policy.expires_after) <= now:
        return f"{waited} for longer than expires_after ({policy.expires_after:g} s)"
    return ""


def _at_instant(instant: datetime) -> tuple[str, datetime]:
    return score_text(instant.timestamp()), instant


def _is_usual_expiry(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))


@lru_cache(maxsize=4096)  # entries that run together share some
def _state_of(meta: str | None) -> tuple[datetime | None, int] | None:
    """Return a meta's last_run_at and total_run_count; None: it is not written as RedBeat writes it."""
    if not meta:
        return None, 0
    found = _META.fullmatch(meta)
    if found is None:
        return None
    year, month, day, hour, minute, second, microsecond = map(int, found.groups("0")[:7])
    try:
        at = datetime(year, month, day, hour, minute, second, microsecond, timezone.utc) if year else None
    except ValueError:
        return None
    return at, int(found[8])


def _text_of(schedule_: Any) -> str:
    """Return what tells a schedule from others with the same class."""
    return f"{type(schedule_).__name__} {encode_schedule(schedule_)!r}"


def _end_pause(known: Known, row: DueEntry, commit: Commit, *, is_over: bool) -> None:
    """Let the row of the first run after a pause record that the pause is over.

    If somebody changes the entry meanwhile, their definition and policy stay, and the run is recorded all the
    same.
    """
    entry, policy = known.entry, known.entry.policy
    entry.enabled = not (is_over and policy.after_finish == "disable")
    entry.policy = replace(policy, **{name: getattr(NO_POLICY, name) for name in PAUSE_FIELDS})
    try:
        commit.new_definition = entry.encode(read_due_entry(row))
        commit.new_policy = encode_policy(entry.policy, row.policy) or Clear.FIELD
    except EntryError:  # written by hand as RedBeat would not write it: it runs, and its text stays
        pass
    finally:
        entry.enabled, entry.policy = False, policy


def _dropped_in_pause(known: Known, due_at: datetime) -> list[Dropped]:
    """Return the runs that a pause has prevented, if ``due_at`` is the first run after it."""
    entry, bounds = known.entry, known.bounds
    until = paused_until(entry)
    if until is None or entry.last_run_at is None or bounds.run_missed or due_at < until:
        return []
    if in_utc(entry.last_run_at) >= until or first_after_pause(entry, bounds) != due_at:
        return []
    dropped = dropped_at_rest(entry, bounds, until, is_paused=True)
    return [] if dropped is None else [dropped]


def _excluded(
    known: Known, due_at: datetime, allowed_at: datetime | None, now: datetime, excluded: Exclusion
) -> Dropped:
    """Return the runs that the policy excludes, from ``due_at`` to ``allowed_at`` or now."""
    end = now if allowed_at is None or allowed_at > now else allowed_at - _INSTANT
    schedule_, bounds = known.entry.schedule, known.bounds.unbounded()
    return dropped_until(schedule_, bounds, due_at, end, excluded.why, reason=excluded.field)


def _score_at_rest(known: Known, due_at: datetime, now: datetime) -> float:
    """Return the score of a disabled entry: when its pause is over, or when to look at it again."""
    entry, bounds = known.entry, known.bounds
    if paused_until(entry) is not None:
        return score_after_pause(entry, bounds, due_at)
    look_at = now + timedelta(seconds=DISABLED_SECONDS)
    return entry.score_of(next_run(entry.schedule, bounds, look_at, due_at))
