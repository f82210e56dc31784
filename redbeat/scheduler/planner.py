"""Planning: from a due entry to a decision. It reads no clock and no server.

Four steps, each with a memo where due entries share work:

1. decode    the texts of definition and policy, to ``Known``
2. settle    the due time that the score stands for (``bounds.py`` where a policy may exclude it)
3. run       what follows from that due time
4. finish    what belongs to the entry alone: counts, ``after_finish``, its own task id, the end of a pause

Invariant: a memo never changes a decision.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from sys import getsizeof
from types import NoneType
from typing import Any

from celery.schedules import crontab, schedule, solar

from redbeat.config.config import ensure_conf
from redbeat.decoder import OWN_META, decode, encode_meta, moment_json, schedule_json
from redbeat.entries.calendar_loading import give_calendars
from redbeat.entries.dropped import Dropped, dropped_by, dropped_until
from redbeat.entries.due import defaults_for
from redbeat.entries.entry import RedBeatSchedulerEntry, load_entry
from redbeat.entries.failures import Failure, failure_of
from redbeat.history import record_of
from redbeat.policy.jitter import delayed_before, due_time_of
from redbeat.policy.messages import expiry_of, headers_of, queue_limit_of, wait_seconds
from redbeat.policy.misfires import choose_run, rules_of
from redbeat.policy.policy import NO_POLICY, Policy
from redbeat.process.memory import Allowance, Memory
from redbeat.runs.limits import Tracking, dropped_run, read_tracks
from redbeat.runs.tracking import MARK as TRACKED
from redbeat.scheduler.bounds import end_pause, put_off, settle, why_dropped, why_over
from redbeat.scheduler.decisions import NO_HEADERS, Decision, Send, counted, records_of
from redbeat.schedules.occurrences import Excluded, clocked, cron, next_run, rrule, step_of
from redbeat.schedules.timezones import in_utc, moment_of
from redbeat.store.records import Commit, Ending, Stored, TrackedRun, score_text
from redbeat.task_ids import task_id_of
from redbeat.telemetry.monitors import EXCLUDED, headers_of_check_in

#: entries with longer definitions are not kept, characters
MAX_DEFINITION = 65_536

#: metas of RedBeat's own are shorter, characters
MAX_META = 300

#: memory of a kept entry without its texts, and of its decoded form and its template per byte of text; bytes
ENTRY_BYTES, BYTES_PER_BYTE = 2_000, 4

#: timetables that are shared at a time
MAX_TIMETABLES = 1_024

#: own times after a last run that are remembered; when there are more, all are forgotten
MAX_OWN_TIMES = 10_000

#: a plan that takes longer is reported, seconds of processor time
SLOW_SECONDS = 0.1

#: the score of an entry that never runs again
NEVER = score_text(-1.0)

#: schedules without state of their own, so that entries with them may be kept
_KEPT_KINDS = (schedule, crontab, cron, rrule, clocked, solar)

NO_CALENDARS: Mapping[str, Excluded] = {}


@dataclass(slots=True)
class RunPlan:
    """What follows from one due time.

    Attributes:
        at: due time of the run that is sent, UTC; None: none is, and what is about that run does not count.
        nominal: the same in UNIX seconds, as the server writes them.
        due: the same in ISO 8601, as in the header ``redbeat_due``.
        ran_at: what becomes last_run_at; ``ran_at_json`` is its JSON.
        following: the next due time after it; None: never.
        new_score: its score, without jitter.
        dropped: missed runs that are not sent.
        run: what is noted of the run while it is in progress; None: it is not tracked.
        valid_until: until when all of this holds, UNIX seconds.
    """

    at: datetime | None
    nominal: str
    due: str
    ran_at: datetime
    ran_at_json: str
    following: datetime | None
    new_score: str
    dropped: Sequence[Dropped]
    run: TrackedRun | None
    valid_until: float


class Timetable:
    """What entries with one schedule and one policy share.

    Arguments:
        bounds: the policy with its calendar.
        defaults: the app's settings for those fields that the policy leaves open.
        is_tracked: its runs are tracked.

    Attributes:
        tracking: what is noted of its runs; None: they are not tracked.
        is_bounded: a due time may stand for no run, as the policy excludes some.
        is_limited: an entry ends after a number of runs.
    """

    def __init__(self, schedule: Any, bounds: Policy, defaults: Policy, *, is_tracked: bool) -> None:
        self.schedule = schedule
        self.bounds = bounds
        self.tracking = Tracking(bounds) if is_tracked else None
        self.is_bounded = (bounds.start_time, bounds.end_time, bounds.exclude) != (None, None, None)
        self.is_limited = bounds.one_off or bounds.max_runs is not None
        self._rules = rules_of(schedule, bounds, defaults)
        self._step = step_of(schedule, bounds)
        self._asked: tuple[str, datetime, bool] | None = None
        self._run_plan: RunPlan
        self._own_times = Memory[tuple[datetime, bool], datetime | None](MAX_OWN_TIMES)

    def plan_run(self, nominal: str, moment: datetime, *, is_retried: bool = False) -> RunPlan:
        """Return what follows from the due time ``nominal``, UNIX seconds as the server writes them.

        Arguments:
            moment: the time of planning, by the server's clock.
            is_retried: the run could not be sent before; it keeps its due time unless it is too late for it.
        """
        asked = nominal, moment, is_retried
        if asked == self._asked:  # many entries are due together
            return self._run_plan
        at, due, at_json = _texts_of(float(nominal))
        rules, dropped = self._rules, tuple[Dropped, ...]()
        sent_at: datetime | None = at
        following = next_run(self.schedule, self.bounds, at, at) if self._step is None else at + self._step
        patience = rules.patience_seconds
        is_late = patience is not None and (moment - at).total_seconds() > patience
        if not is_late and (following is None or following > moment):  # as usual
            ran_at = at if rules.records_due else moment
        else:
            choice = choose_run(self.schedule, self.bounds, at, moment, rules)
            sent_at, ran_at, following = choice.due, choice.ran_at, choice.following
            if sent_at is not None and is_retried and choice.first == at:
                sent_at = at
            if not (at == choice.due == choice.in_time and choice.stands_until is None):
                dropped = tuple(dropped_by(self.schedule, self.bounds, choice, at, sent_at, moment))
            if sent_at is not None and sent_at != at:
                nominal = score_text(sent_at.timestamp())
                sent_at, due, at_json = _texts_of(float(nominal))
        following_at = math.inf if following is None else following.timestamp()
        new_score = NEVER if following is None else f"{following_at:.6f}"
        run, valid_until, ran_at_json = None, 0.0, ""
        if sent_at is not None:
            if self.tracking is not None:
                run = self.tracking.run(nominal, new_score, records_of(dropped))
            valid_until = following_at  # then another is due
            if patience is not None:  # or it is too late
                valid_until = min(valid_until, float(nominal) + patience)
            ran_at_json = at_json if ran_at == sent_at else moment_json(ran_at)
        self._run_plan = RunPlan(
            sent_at, nominal, due, ran_at, ran_at_json, following, new_score, dropped, run, valid_until
        )
        self._asked = asked
        return self._run_plan

    def own_time(self, entry: RedBeatSchedulerEntry) -> datetime | None:
        """Return the first due time after the last run of ``entry``; None: there is none."""
        if entry.computes_due_at or entry.last_run_at is None or self.is_limited:
            return entry.due_by_schedule()
        key = in_utc(entry.last_run_at), entry.total_run_count > 0
        if key not in self._own_times:
            self._own_times[key] = entry.due_by_schedule()
        return self._own_times[key]


@dataclass(slots=True)
class Known:
    """A decoded entry, kept as long as its texts are the same.

    Attributes:
        row: it was decoded from.
        entry: not for the application's code, which may change it.
        is_special: its runs differ from those that follow from schedule and due time alone.
        is_slow: planning may take long, as its schedule is neither Celery's nor RedBeat's.
        computes_due_at: a subclass overrides ``due_at``.
        own_task_id: from its options.
        limit_seconds: after how long its messages expire on their queue; None: they do not.
        is_timed: that depends on when a message is sent, because its options have times.
        headers: of its messages, for workers.
        meta: the one that was read or planned last, and that the entry has.
        is_meta_usual: it is written as RedBeat writes it, without keys of others.
        is_meta_foreign: another program has written it.
        undelayed: the score that its last plan has given it, with jitter, and the same without.
        labels, labels_version: the id of the labels under which its runs are counted, by that version.
        template: of its messages; None: there is none yet.
    """

    row: Stored
    entry: RedBeatSchedulerEntry
    timetable: Timetable
    is_special: bool
    is_slow: bool
    computes_due_at: bool
    own_task_id: str | None
    limit_seconds: float | None
    is_timed: bool
    headers: Mapping[str, Any]
    size_bytes: int
    meta: str | None = None
    is_meta_usual: bool = True
    is_meta_foreign: bool = False
    undelayed: tuple[float, str] | None = None
    labels: str = ""
    labels_version: int = -1
    template: Any = None


class Planner:
    """Plans the due entries of one beat.

    Arguments:
        app: the Celery app.
        entry_class: returns the scheduler's class of entries.
        allowance: how much memory kept entries may take; the least recently due go first.
        book: under which labels runs are counted; None: under none.
        reports: the log; None: ignored keys and slow schedules are not reported.
    """

    def __init__(
        self,
        app: Any,
        entry_class: Callable[[], type[RedBeatSchedulerEntry]] = lambda: RedBeatSchedulerEntry,
        allowance: Allowance | None = None,
        book: Any = None,
        reports: Any = None,
    ) -> None:
        self._app = app
        ensure_conf(app)
        self._entry_class = entry_class
        self._allowance = allowance or Allowance(0)
        self._book = book
        self._reports = reports
        self._kept: OrderedDict[str, Known] = OrderedDict()
        self._timetables = Memory[Any, Timetable](MAX_TIMETABLES)
        self._settings: Any = None
        self._tracks: Callable[[Policy], bool] = lambda _policy: False
        self._now, self._moment = -1.0, moment_of(0)
        self.begin()

    def begin(self) -> None:
        """Begin a tick: forget everything if a setting has changed that plans depend on."""
        app = self._app
        config = app.redbeat_conf
        settings = (
            *(app.timezone, app.conf.beat_cron_starting_deadline),
            *(config.misfire, config.misfire_limit, config.misfire_grace_time),
            *(getattr(app, TRACKED, None), getattr(app, EXCLUDED, None)),
        )
        if settings != self._settings:
            self._settings, self._tracks = settings, read_tracks(app)
            self._timetables.clear()
            self._allowance.left_bytes += sum(known.size_bytes for known in self._kept.values())
            self._kept.clear()

    def plan(self, row: Stored, now: float, calendars: Mapping[str, Excluded] = NO_CALENDARS) -> Decision:
        """Return what happens to an entry that is due.

        Arguments:
            now: the server's clock, UNIX seconds.
            calendars: name to calendar.

        Raises:
            EntryError, or another exception about the entry: quarantine it.
        """
        if now != self._now:
            self._now, self._moment = now, moment_of(now)
        known = self._known(row, calendars)
        began = time.thread_time() if known.is_slow else 0.0
        if row.meta is None or row.meta != known.meta:
            self._read_meta(known, row)
        failure = failure_of(row) if row.error else None
        decision = (self._plan_released if row.next_score else self._plan_due)(known, row, failure)
        commit, book, entry = decision.commit, self._book, known.entry
        seconds = time.thread_time() - began if known.is_slow else 0.0
        if seconds > SLOW_SECONDS and self._reports is not None:
            self._reports.report_slow(row, entry.schedule, seconds)
        if book is not None and (commit.sent or commit.counted):
            if known.labels_version != book.version:
                is_asked = entry.policy.metrics
                known.labels = book.id_of(entry.name, entry.task, entry.options, is_asked=is_asked)
                known.labels_version = book.version
            commit.labels = known.labels
        return decision

    # -- 1. decode

    def _known(self, row: Stored, calendars: Mapping[str, Excluded]) -> Known:
        known = self._kept.get(row.key)
        if known is not None and known.row.definition == row.definition and known.row.policy == row.policy:
            bounds = known.timetable.bounds
            if bounds.exclude is None or calendars.get(bounds.exclude) is bounds.calendar:
                self._kept.move_to_end(row.key)
                return known
        known = self._decode(row, calendars)
        is_short = len(row.definition or "") <= MAX_DEFINITION
        if is_short and type(known.entry) is RedBeatSchedulerEntry and not known.is_slow:
            before = self._kept.pop(row.key, None)
            self._allowance.left_bytes += (0 if before is None else before.size_bytes) - known.size_bytes
            self._kept[row.key] = known
            self.make_room()
        return known

    def make_room(self) -> None:
        """Forget entries until everything that is kept is allowed."""
        while self._allowance.left_bytes < 0 and self._kept:
            _, oldest = self._kept.popitem(last=False)
            self._allowance.left_bytes += oldest.size_bytes

    def _decode(self, row: Stored, calendars: Mapping[str, Excluded]) -> Known:
        entry = load_entry(self._entry_class(), row, self._app)
        if calendars:
            give_calendars([entry], calendars)
        policy = entry.policy = entry.bounds()
        typos = ", ".join(filter(None, (entry.typos, getattr(entry.schedule, "typos", ""))))
        if typos and self._reports is not None:
            self._reports.report_typos(row, typos)
        is_slow, options = type(entry.schedule) not in _KEPT_KINDS, entry.options
        timetable = self._timetable_of(entry, is_shared=not is_slow)
        own_task_id, limit = options.get("task_id"), self._queue_limit(entry)
        is_timed = bool(options.get("countdown") or options.get("eta"))
        if limit is not None and not isinstance(options.get("expires"), (int, float, NoneType)):
            is_timed = True
        is_plain = own_task_id is None and entry.enabled and not (is_timed or entry.computes_due_at)
        return Known(
            row=row,
            entry=entry,
            timetable=timetable,
            is_special=not is_plain or timetable.is_limited or bool(policy.jitter or policy.exclude),
            is_slow=is_slow,
            computes_due_at=entry.computes_due_at,
            own_task_id=own_task_id,
            limit_seconds=limit,
            is_timed=is_timed,
            headers=self._headers_of(entry, limit),
            size_bytes=ENTRY_BYTES
            + BYTES_PER_BYTE * (getsizeof(row.definition) + getsizeof(row.policy) + getsizeof(row.key)),
        )

    def _headers_of(self, entry: RedBeatSchedulerEntry, limit_seconds: float | None) -> Mapping[str, Any]:
        headers = headers_of(entry.policy, limit_seconds)
        headers |= headers_of_check_in(self._app, entry.name, entry.schedule, entry.policy)
        return headers or NO_HEADERS

    def _queue_limit(self, entry: RedBeatSchedulerEntry) -> float | None:
        if entry.policy.message_queue_seconds is None:
            return None
        task = self._app.tasks.get(entry.task)
        of_task = {} if task is None else task._get_exec_options()  # noqa: SLF001 - it has no public name
        moment = self._moment
        return queue_limit_of(entry.policy, entry.options, of_task, moment, self._app.timezone)

    def _timetable_of(self, entry: RedBeatSchedulerEntry, *, is_shared: bool) -> Timetable:
        bounds, key = entry.policy, None
        if is_shared:
            policy = None if bounds is NO_POLICY else bounds  # hashing one takes long
            key = schedule_json(entry.schedule), policy, id(bounds.calendar)
        timetable = self._timetables.get(key)
        if timetable is None:
            defaults = defaults_for(self._app, entry.schedule)
            timetable = Timetable(entry.schedule, bounds, defaults, is_tracked=self._tracks(bounds))
            if is_shared:
                self._timetables[key] = timetable
        return timetable

    def _read_meta(self, known: Known, row: Stored) -> None:
        """Let the kept entry have the last run and the count that its meta says."""
        state = _state_of(row.meta) if len(row.meta or "") <= MAX_META else None
        is_usual = state is not None
        if state is None:  # if this raises, the meta is read again next time
            fresh = load_entry(self._entry_class(), row, self._app)
            state = fresh.last_run_at, fresh.total_run_count
        known.meta, known.is_meta_usual, known.is_meta_foreign = row.meta, is_usual, row.is_meta_foreign
        known.entry.last_run_at, known.entry.total_run_count = state
        known.undelayed = None  # its last plan was not recorded, or a user has changed what it was made from

    # -- 2. to 4.: settle, run, finish

    def _plan_due(self, known: Known, row: Stored, failure: Failure | None) -> Decision:
        timetable, nominal, is_retried = known.timetable, row.nominal, False
        policy = timetable.bounds
        dropped: Sequence[Dropped] = ()
        if failure is not None and failure.due and failure.is_waiting_for(row):
            nominal, is_retried = failure.due, failure.attempts > 0
        if policy.jitter and not is_retried:
            nominal = self._undelayed(known, row, nominal)
        is_special = timetable.is_bounded or not known.entry.enabled
        # RedBeat has written other scores for their due times; programs cut them to whole seconds
        is_moved = known.is_meta_foreign or float(row.nominal).is_integer()
        if is_special or is_moved or row.is_asked or failure:
            settled = settle(known, row, failure, nominal, self._moment, is_retried=is_retried)
            if isinstance(settled, Decision):
                return settled
            nominal, is_retried, dropped = settled
        if timetable.is_limited and policy.is_finished(known.entry.total_run_count):
            return put_off(known, row, None)
        run_plan = timetable.plan_run(nominal, self._moment, is_retried=is_retried)
        dropped = (*dropped, *run_plan.dropped) if dropped else run_plan.dropped
        if run_plan.at is None:
            return put_off(known, row, run_plan.following, dropped)
        return self._send(known, row, failure, run_plan, run_plan.at, dropped)

    def _plan_released(self, known: Known, row: Stored, failure: Failure | None) -> Decision:
        """Plan the run that has waited for another one to end: exactly that one, however late it is.

        Then the entry goes on where it was, so what is recorded about a failure stays, too.
        """
        policy, next_score = known.timetable.bounds, float(row.next_score)
        at, due, at_json = _texts_of(float(row.nominal))
        why = why_dropped(known.entry, at, self._moment)
        if why:
            records = (record_of(row.nominal, "skipped", why=why),)
            commit = Commit(row, row.next_score, records=records, counted=" skipped/overlap")
            commit.run = dropped_run(row.nominal)
            commit.task_id = str(known.own_task_id or task_id_of(row.key, due))
            return Decision(row, commit)
        # a policy that would skip it now came later than the decision that it waits
        overlap = policy.overlap if policy.overlap in ("allow", "replace") else "buffer_one"
        run = Tracking(policy).run(row.nominal, row.next_score, overlap=overlap)
        following = None if next_score < 0 else moment_of(next_score)
        run_plan = RunPlan(at, row.nominal, due, at, at_json, following, row.next_score, (), run, 0.0)
        return self._send(known, row, failure, run_plan, at, ())

    def _send(
        self,
        known: Known,
        row: Stored,
        failure: Failure | None,
        run_plan: RunPlan,
        at: datetime,
        dropped: Sequence[Dropped],
    ) -> Send:
        """Return the run that is due ``at``, and let the kept entry be as it is after it."""
        entry, policy, count = known.entry, known.timetable.bounds, known.entry.total_run_count + 1
        if known.is_meta_usual:
            meta = f'{{"last_run_at": {run_plan.ran_at_json}, "total_run_count": {count}}}'
        else:  # it has keys that are kept
            meta = encode_meta(run_plan.ran_at, count, row.meta)
        commit = Commit(row, run_plan.new_score, meta, "" if row.error and not row.next_score else None)
        commit.sent, commit.run = run_plan.nominal, run_plan.run
        if dropped or known.own_task_id is not None:
            commit.records = (*records_of(dropped), record_of(run_plan.nominal, id=known.own_task_id))
            commit.counted = counted(dropped)
        limit, headers, expires, left = known.limit_seconds, known.headers, None, None
        if known.is_timed:
            limit = self._queue_limit(entry)
            headers = self._headers_of(entry, limit)
            if limit is not None:
                limit += wait_seconds(entry.options, self._moment, self._app.timezone)
        if limit is not None or policy.expires_after is not None:
            expires, left = expiry_of(policy, at, self._now, limit)
        send = Send(
            row,
            commit,
            entry.name,
            entry.task,
            run_plan.nominal,
            run_plan.due,
            "",
            expires,
            left,
            headers,
            run_plan.valid_until,
            failure,
            run_plan.new_score,
            known,
        )
        send.dropped = dropped
        known.undelayed = None
        if known.is_special or run_plan.following is None or len(dropped) > len(run_plan.dropped):
            self._amend(known, run_plan, send)
        send.task_id = commit.task_id = str(known.own_task_id or task_id_of(row.key, run_plan.due))
        known.meta, entry.last_run_at, entry.total_run_count = meta, run_plan.ran_at, count
        known.is_meta_foreign = False
        return send

    def _undelayed(self, known: Known, row: Stored, nominal: str) -> str:
        """Return the due time of the run that jitter makes due at ``nominal``."""
        score = float(nominal)
        if known.undelayed is not None and known.undelayed[0] == score:
            return known.undelayed[1]
        entry, at = known.entry, moment_of(score)
        last_run = entry.last_run_at
        if last_run is not None and last_run.tzinfo is not timezone.utc:
            last_run = in_utc(last_run)
        found = due_time_of(row.key, entry.schedule, known.timetable.bounds, at, last_run)
        return nominal if found == at else score_text(found.timestamp())

    def _amend(self, known: Known, run_plan: RunPlan, send: Send) -> None:
        """Let the rest of its policy change a run: limits, jitter, the end of a pause."""
        entry, policy, row, commit = known.entry, known.timetable.bounds, send.due_entry, send.commit
        following = run_plan.following
        is_over = known.timetable.is_limited and policy.is_finished(entry.total_run_count + 1)
        if following is not None and policy.jitter and not row.next_score:
            next_but_one = next_run(entry.schedule, policy, following, following)
            delayed_at = delayed_before(row.key, policy, following, next_but_one).timestamp()
            commit.new_score = send.skip_score = f"{delayed_at:.6f}"
            if type(entry.schedule) is not solar:  # its times differ a little by where the search begins
                known.undelayed = float(commit.new_score), run_plan.new_score
        if commit.run is not None and not row.next_score:
            waits = wait_seconds(entry.options, self._moment, self._app.timezone)
            records = records_of(send.dropped)
            commit.run = Tracking(policy).run(send.nominal, send.skip_score, records, waits)
        if following is None or policy.one_off:
            send.skip_score = ""
        commit.is_for_this_definition = policy.exclude is not None
        if is_over:
            following = None
        elif known.computes_due_at and not row.next_score:
            following = entry.advanced(run_plan.ran_at).due_by_schedule()
        if following is None or following is not run_plan.following:
            end = put_off(known, row, following).commit
            commit.new_score, commit.new_definition = end.new_score, end.new_definition
            commit.is_for_this_definition = end.is_for_this_definition
        if not (entry.enabled or row.next_score) and commit.new_score is not Ending.DELETE:
            end_pause(known, row, commit, is_over=is_over)
        if is_over and run_plan.following is not None and run_plan.following <= self._moment:
            rest = dropped_until(
                entry.schedule, policy, run_plan.following, self._moment, why_over(policy), reason="over"
            )
            commit.records = (*(commit.records or (record_of(send.nominal),)), rest.record)
            commit.counted += rest.counted


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
        entry = load_entry(entry_class, send.due_entry, app)
        entry.options = options_of_run(send, entry.options)
        send.entry = entry
    return send.entry


def _texts_of(score: float) -> tuple[datetime, str, str]:
    """Return the instant of a score, the same in ISO 8601 and in JSON. Many differ in microseconds only."""
    second = int(score)
    micros = round((score - second) * 1_000_000)
    if micros == 1_000_000:
        second, micros = second + 1, 0
    start, iso, json_ = _texts_of_second(second)
    return (
        start + timedelta(0, 0, micros),
        f"{iso}.{micros:06d}+00:00",
        f'{json_}{micros}, "timezone": "UTC"}}',
    )


@lru_cache(maxsize=4096)
def _texts_of_second(second: int) -> tuple[datetime, str, str]:
    start = moment_of(second)
    return (
        start,
        start.isoformat().removesuffix("+00:00"),
        moment_json(start).removesuffix('0, "timezone": "UTC"}'),
    )


@lru_cache(maxsize=4096)  # entries that run together share some
def _state_of(meta: str | None) -> tuple[datetime | None, int] | None:
    """Return a meta's last_run_at and total_run_count; None: it is not written as RedBeat writes it."""
    if not meta:
        return None, 0
    if OWN_META.fullmatch(meta) is None:
        return None
    try:
        state = decode(meta)
    except ValueError:
        return None
    at, count = state["last_run_at"], state["total_run_count"]
    is_in_utc = isinstance(at, datetime) and at.utcoffset() == timedelta(0)
    return (at, count) if at is None or is_in_utc else None
