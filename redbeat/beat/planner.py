"""What to do about one claimed entry: decisions by what was read, without a clock.

A claimed entry becomes a :class:`Run` to send, or a :class:`Commit` that records why none is sent now. Its
calendar is given, too. Nothing is read here but a calendar that wasn't given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from redbeat.beat.tracking import Tracking, Tracks, dropped_run, read_tracks
from redbeat.decoder import encode_meta
from redbeat.delivery.placeholders import options_of_task
from redbeat.delivery.templates import MessageTemplate
from redbeat.entries.calendar_loading import give_calendars
from redbeat.entries.dropped import Dropped, dropped_at_rest, dropped_by, dropped_until
from redbeat.entries.due import (
    defaults_of,
    first_after_pause,
    is_in_pause,
    is_moved,
    paused_until,
    score_after_pause,
)
from redbeat.entries.entry import RedBeatSchedulerEntry, load_entry
from redbeat.entries.failures import Failure, failure_of, new_failure
from redbeat.errors import EntryError
from redbeat.history import sent_record, skipped_record, unsent_record
from redbeat.policy.expiry import expiry_of, queue_limit_of, wait_seconds
from redbeat.policy.headers import headers_of
from redbeat.policy.jitter import due_time_of
from redbeat.policy.misfires import choose_run
from redbeat.policy.policy import NO_POLICY, PAUSE_FIELDS, Policy, encode_policy
from redbeat.policy.window import Exclusion, exclusion_of
from redbeat.schedules.occurrences import Excluded, next_run
from redbeat.schedules.timezones import in_utc, moment_of
from redbeat.store.records import Clear, Commit, DueEntry, Ending, Held, Push, score_text
from redbeat.store.store import read_claimed
from redbeat.task_ids import task_id_of
from redbeat.telemetry.sentry.monitors import headers_of_check_in

if TYPE_CHECKING:  # it needs OpenTelemetry
    from redbeat.telemetry.tracing.spans import RunSpan

#: a disabled entry is looked at again at its first due time after this many seconds: somebody may have
#: enabled it by hand, without writing a score
DISABLED_SECONDS = 60.0

#: after how long an entry whose plan took too long is tried once more, as the machine may have been slow;
#: seconds

#: how long beat waits for the hash of a member of the schedule, as some writers add it after the member;
#: seconds
MISSING_GRACE_SECONDS = 1.0

_INSTANT = timedelta(microseconds=1)

#: for entries that name no calendar
NO_CALENDARS: Mapping[str, Excluded] = {}
NO_HEADERS: Mapping[str, Any] = {}

#: returns the id of the labels under which an entry's runs are counted; '': those of all others
LabelsOf = Callable[[RedBeatSchedulerEntry], str]

#: is called with an entry's name and the runs of it that are not sent
ReportDropped = Callable[[str, Dropped], None]


@dataclass(slots=True)
class _PlannedRun:
    """One run to send, with all that is to be recorded when it has been sent.

    Attributes:
        nominal: when it was due, UNIX seconds as the server writes them.
        sent: the commit that records it as sent.
        failure: what the entry's hash says of an earlier failure; None: nothing.
        name, task: of the entry.
        span: what is told of it to OpenTelemetry; None: nothing.
    """

    claimed: DueEntry
    nominal: str
    sent: Commit
    failure: Failure | None
    name: str
    task: str
    span: RunSpan | None = field(default=None, kw_only=True)


@dataclass(slots=True)
class OrdinaryRun(_PlannedRun):
    """A run whose message Celery makes when it is sent.

    Attributes:
        expiration_seconds: after how long its message expires; None: its policy doesn't say.
        dropped: the missed runs before it that aren't sent.
        skip_score: when its entry is due next if it is skipped; '': never, or it is to run only once.
        events: the task-sent events that were collected when it was sent.
    """

    entry: RedBeatSchedulerEntry
    expiration_seconds: float | None = None
    dropped: Sequence[Dropped] = ()
    skip_score: str = ""
    events: Sequence[Push] = ()


@dataclass(slots=True)
class CompiledRun(_PlannedRun):
    """A run whose message is made already: it is what ``pushes`` write.

    Attributes:
        valid_until: it isn't sent any more at that time as it was planned; UNIX seconds.
    """

    task_id: str
    message: MessageTemplate
    pushes: tuple[Push, ...]
    valid_until: float
    events: ClassVar[Sequence[Push]] = ()


Run = OrdinaryRun | CompiledRun


def plan_run(
    entry_class: type[RedBeatSchedulerEntry],
    app: Any,
    claimed: DueEntry,
    now: float,
    calendars: Mapping[str, Excluded] = NO_CALENDARS,
    defaults: Callable[[RedBeatSchedulerEntry], Policy] = defaults_of,
    tracks: Tracks | None = None,
    labels_of: LabelsOf = lambda _entry: "",
    report_dropped: ReportDropped = lambda _name, _dropped: None,
) -> OrdinaryRun | Commit:
    """Decide about an entry that is due at ``now`` (the server's UNIX seconds).

    Arguments:
        calendars: name to calendar; one that is missing here is read when it is needed.
        defaults: returns the app's settings for those fields of the policy that an entry leaves open.
        tracks: tells whether runs with a policy are tracked; None: by the app.
        labels_of: returns the id of the labels under which an entry's runs are counted; '': of all others.
        report_dropped: is called with runs that are not sent, for the log.

    Raises:
        EntryCorrupt, or another exception of an unusable entry: quarantine it.
    """
    entry = load_entry(entry_class, read_claimed(claimed), app)
    give_calendars([entry], calendars)
    plan = _plan(entry, claimed, now, defaults, tracks or read_tracks(app), report_dropped)
    commit = plan.sent if isinstance(plan, OrdinaryRun) else plan
    if commit.counted:
        commit.labels = labels_of(entry)
    return plan


def _plan(
    entry: RedBeatSchedulerEntry,
    claimed: DueEntry,
    now: float,
    defaults: Callable[[RedBeatSchedulerEntry], Policy],
    tracks: Tracks,
    report_dropped: ReportDropped,
) -> OrdinaryRun | Commit:
    bounds = entry.bounds()
    failure = failure_of(claimed)
    moment = moment_of(now)
    if claimed.next_score:
        return _plan_released(entry, claimed, failure, moment)
    settled = _settle(entry, bounds, claimed, failure, moment, report_dropped)
    if isinstance(settled, Commit):
        return settled
    due, is_retried, dropped = settled
    choice = choose_run(entry.schedule, bounds, due.at, moment, defaults(entry))
    if entry.policy.is_finished(entry.total_run_count):
        return _put_off(entry, claimed, None)
    if choice.due is None:
        for one in dropped_by(entry.schedule, bounds, choice, due.at, None, moment):
            report_dropped(entry.name, one)
            dropped.append(one)
        return _put_off(entry, claimed, choice.following, dropped)
    is_over = entry.policy.is_finished(entry.total_run_count + 1)
    following = None if is_over else entry.following_run(choice.ran_at, choice.following)
    sent = _put_off(entry, claimed, following)
    if not entry.enabled and sent.new_score is not Ending.DELETE:
        _end_pause(entry, claimed, sent, is_over=is_over)
    own_id = entry.options.get("task_id")
    sent.new_meta = encode_meta(choice.ran_at, entry.total_run_count + 1, claimed.meta)
    # a run that couldn't be sent keeps its due time, and so its id, unless it is too late for it now
    first = due.at
    if choice.due != first and not (is_retried and choice.first == first):
        due = Due.at_instant(choice.due)
    for one in dropped_by(entry.schedule, bounds, choice, first, due.at, moment):
        report_dropped(entry.name, one)
        dropped.append(one)
    records = _records_of(dropped)
    sent.records = (*records, sent_record(due.nominal, own_id))
    sent.counted = f"{due.nominal}{_counted(dropped)}"
    if is_over and choice.following is not None and choice.following <= moment:
        rest = dropped_until(
            entry.schedule, bounds, choice.following, moment, why_over(entry.policy), reason="over"
        )
        sent.records += (rest.record,)
        sent.counted += rest.counted
    skip_score = ""
    if choice.following is not None and not entry.policy.one_off:
        skip_score = score_text(entry.score_of(choice.following))
    left = _prepare(entry, claimed.key, due.at, now)
    sent.task_id = str(entry.options["task_id"])
    if tracks(entry.policy):
        held_score = skip_score or score_text(entry.score_of(choice.following))
        waits = wait_seconds(entry.options, moment, entry.app.timezone)
        sent.run = Tracking(entry.policy).run(due.nominal, held_score, records, waits)
    told = claimed, due.nominal, sent, failure, entry.name, entry.task, entry, left
    return OrdinaryRun(*told, dropped=dropped, skip_score=skip_score)


def _plan_released(
    entry: RedBeatSchedulerEntry, claimed: DueEntry, failure: Failure | None, moment: datetime
) -> OrdinaryRun | Commit:
    """Plan the run that has waited for another one to end: exactly that one, however late it is.

    Then the entry goes on where it was, so what is recorded about a failure stays, too.
    """
    due, policy = Due(moment_of(float(claimed.nominal)), claimed.nominal), entry.policy
    commit = Commit(claimed, claimed.next_score)
    own_id, count = entry.options.get("task_id"), entry.total_run_count
    commit.task_id = str(own_id or task_id_of(claimed.key, due.at.isoformat(timespec="microseconds")))
    why = why_dropped(entry, due.at, moment)
    if why:
        commit.run, commit.records = dropped_run(due.nominal), (skipped_record(due.nominal, why),)
        commit.counted = "- skipped/overlap"
        return commit
    if policy.is_finished(count + 1) or float(claimed.next_score) < 0:
        over = _put_off(entry, claimed, None)
        over.task_id, over.new_error, commit = commit.task_id, None, over
    commit.new_meta = encode_meta(due.at, count + 1, claimed.meta)
    commit.records = (sent_record(due.nominal, own_id),)
    commit.counted = due.nominal
    # a policy that would skip it now came later than the decision that it waits
    overlap = "buffer_one" if policy.overlap == "skip" else policy.overlap
    commit.run = Tracking(policy).run(due.nominal, claimed.next_score, overlap=overlap)
    left = _prepare(entry, claimed.key, due.at, moment.timestamp())
    told = claimed, due.nominal, commit, failure, entry.name, entry.task, entry, left
    return OrdinaryRun(*told, skip_score=claimed.next_score if float(claimed.next_score) >= 0 else "")


def why_dropped(entry: RedBeatSchedulerEntry, due_at: datetime, now: datetime) -> str:
    """Return why a run that has waited isn't sent any more; '': it is."""
    policy = entry.policy
    if not entry.is_enabled_at(now):
        state = "paused" if policy.paused else "disabled"
        note = f": {policy.pause_note}" if policy.paused and policy.pause_note else ""
        return f"it waited for the run before it, and the entry is {state}{note}"
    if policy.is_finished(entry.total_run_count):
        return f"it waited for the run before it, and then {why_over(policy)}"
    if policy.expires_after is not None and due_at + timedelta(seconds=policy.expires_after) <= now:
        return f"it waited for the run before it for longer than expires_after ({policy.expires_after:g} s)"
    return ""


class Due(NamedTuple):
    """When a run is due, and the same time as text, exactly as the server writes it."""

    at: datetime
    nominal: str

    @classmethod
    def at_instant(cls, instant: datetime) -> Due:
        return cls(instant, score_text(instant.timestamp()))


class _Settled(NamedTuple):
    """For which time an entry runs, whether that run couldn't be sent before, and which runs it drops."""

    due: Due
    is_retried: bool
    dropped: list[Dropped]


def _settle(
    entry: RedBeatSchedulerEntry,
    bounds: Policy,
    claimed: DueEntry,
    failure: Failure | None,
    moment: datetime,
    report_dropped: ReportDropped,
) -> _Settled | Commit:
    """Return what is due; a commit if nothing is: moved, disabled, paused, or excluded at that time."""
    due = _due_of(entry, bounds, claimed, failure)
    is_retried = failure is not None and failure.attempts > 0 and failure.is_waiting_for(claimed)
    is_asked = _is_asked(claimed, failure)
    is_trusted = is_retried or is_asked
    dropped: list[Dropped] = []
    if not is_trusted and is_moved(entry, float(claimed.nominal), claimed.is_meta_foreign, due.at, moment):
        own_time = entry.due_by_schedule()
        excluded = exclusion_of(entry.schedule, bounds, due.at)
        if excluded is not None and excluded.field == "exclude":  # since its score was written
            dropped.append(_dropped_outside(entry, bounds, due.at, own_time, moment, excluded))
        if own_time is None or own_time > moment:
            return _put_off(entry, claimed, own_time, dropped)
        due = Due.at_instant(own_time)
    if not entry.is_enabled_at(moment):
        return _commit(claimed, score_text(_score_of_resting(entry, bounds, due.at, moment)))
    if not is_asked and is_in_pause(entry, due.at):
        is_retried, at = False, first_after_pause(entry, bounds, due.at)
        if at is None or at > moment:
            return _put_off(entry, claimed, at)
        is_made_up_for = bounds.run_missed and at == paused_until(entry) and entry.last_run_at is not None
        due = Due.at_instant((entry.due_by_schedule() if is_made_up_for else None) or at)
    dropped += _dropped_in_pause(entry, bounds, due.at)
    excluded = exclusion_of(entry.schedule, bounds, due.at)
    if excluded is not None:
        allowed_at = _first_allowed(entry, bounds, due.at, excluded)
        dropped.append(_dropped_outside(entry, bounds, due.at, allowed_at, moment, excluded))
        if excluded.field == "exclude":
            report_dropped(entry.name, dropped[-1])
        if allowed_at is None or allowed_at > moment:
            return _put_off(entry, claimed, allowed_at, dropped)
        is_retried, due = False, Due.at_instant(allowed_at)
    return _Settled(due, is_retried, dropped)


def _due_of(entry: RedBeatSchedulerEntry, bounds: Policy, claimed: DueEntry, failure: Failure | None) -> Due:
    """Return when the run is due that an entry was claimed for. A run that is tried again keeps its time."""
    nominal = claimed.nominal
    if failure is not None and failure.due and failure.is_waiting_for(claimed):
        nominal = failure.due
        if failure.attempts:  # the run couldn't be sent; 0: the entry couldn't be read
            return Due(moment_of(float(nominal)), nominal)
    at = moment_of(float(nominal))
    if not bounds.jitter:
        return Due(at, nominal)
    last_run = in_utc(entry.last_run_at) if entry.last_run_at is not None else None
    return Due.at_instant(due_time_of(claimed.key, entry.schedule, bounds, at, last_run))


def _prepare(entry: RedBeatSchedulerEntry, key: str, due_at: datetime, now: float) -> float | None:
    """Write the run's headers, task id and expiry into the options of ``entry``.

    Return after how many seconds its message expires; None: its policy doesn't say.
    """
    due, policy, options = due_at.isoformat(timespec="microseconds"), entry.policy, entry.options
    task_id = options.get("task_id") or task_id_of(key, due)
    queue_seconds = limit_seconds = None
    if policy.message_queue_seconds is not None:
        moment, zone = moment_of(now), entry.app.timezone
        of_task = options_of_task(entry.app.tasks.get(entry.task))
        queue_seconds = queue_limit_of(policy, options, of_task, moment, zone)
        if queue_seconds is not None:
            limit_seconds = queue_seconds + wait_seconds(options, moment, zone)
    expires, left = expiry_of(policy, due_at, now, limit_seconds)
    headers = headers_of(policy, queue_seconds)
    headers |= headers_of_check_in(entry.app, entry.name, entry.schedule, policy)
    entry.options = options_of(options, entry.name, task_id, due, expires, headers)
    return left


def options_of(
    options: Mapping[str, Any],
    name: str,
    task_id: str,
    due: str,
    expires: datetime | None,
    policy_headers: Mapping[str, Any] = NO_HEADERS,
) -> dict[str, Any]:
    """Return the options that the entry called ``name`` is sent with for one run.

    Arguments:
        options: the entry's own.
        due: when the run is due, ISO 8601.
        expires: None: the entry's own expiry counts.
        policy_headers: what is told to workers of the entry's policy.
    """
    own = options.get("headers") or {}
    headers = {**own, "redbeat_entry": name, "redbeat_due": due, **policy_headers}
    of_run = {**options, "headers": headers, "task_id": task_id}
    if expires is not None:
        of_run["expires"] = expires
    return of_run


def _commit(claimed: DueEntry, new_score: str) -> Commit:
    return Commit(claimed, new_score, new_error=Clear.FIELD if claimed.error else None)


def _put_off(
    entry: RedBeatSchedulerEntry, claimed: DueEntry, to: datetime | None, dropped: Sequence[Dropped] = ()
) -> Commit:
    """Return the commit that makes ``entry`` due at ``to``; None: never, so ``after_finish`` applies."""
    commit = _commit(claimed, score_text(entry.score_of(to)))
    commit.records = _records_of(dropped)
    commit.counted = f"-{_counted(dropped)}" if dropped else ""
    # saving a calendar gives its entries another revision, and this commit is then refused
    commit.is_for_this_definition = entry.policy.exclude is not None
    if to is None and entry.policy.after_finish == "delete":
        commit.new_score = Ending.DELETE
    elif to is None and entry.policy.after_finish == "disable" and entry.enabled:
        entry.enabled = False
        commit.new_definition = entry.encode(read_claimed(claimed))
        commit.is_for_this_definition = True
        entry.enabled = True
    return commit


def _end_pause(entry: RedBeatSchedulerEntry, claimed: DueEntry, sent: Commit, *, is_over: bool) -> None:
    """Let ``sent``, the commit of the first run after the pause of ``entry``, record that the pause is over.

    If somebody changes the entry meanwhile, their definition and policy stay, and the run is recorded all the
    same.
    """
    entry.enabled = not (is_over and entry.policy.after_finish == "disable")
    entry.policy = replace(entry.policy, **{field: getattr(NO_POLICY, field) for field in PAUSE_FIELDS})
    try:
        sent.new_definition = entry.encode(read_claimed(claimed))
    except EntryError:  # written by hand as RedBeat wouldn't write it: it runs, and its text stays
        return
    sent.new_policy = encode_policy(entry.policy, claimed.policy) or Clear.FIELD


def _dropped_in_pause(entry: RedBeatSchedulerEntry, bounds: Policy, due_at: datetime) -> list[Dropped]:
    """Return the runs that a pause of ``entry`` has prevented, if ``due_at`` is its first run after it."""
    until = paused_until(entry)
    if until is None or entry.last_run_at is None or bounds.run_missed or due_at < until:
        return []
    if in_utc(entry.last_run_at) >= until or first_after_pause(entry, bounds) != due_at:
        return []
    dropped = dropped_at_rest(entry, bounds, until, is_paused=True)
    return [] if dropped is None else [dropped]


def _dropped_outside(
    entry: RedBeatSchedulerEntry,
    bounds: Policy,
    due_at: datetime,
    allowed_at: datetime | None,
    now: datetime,
    excluded: Exclusion,
) -> Dropped:
    """Return the runs that the policy excludes, from ``due_at`` to ``allowed_at`` or now."""
    end = now if allowed_at is None or allowed_at > now else allowed_at - _INSTANT
    return dropped_until(entry.schedule, bounds.unbounded(), due_at, end, excluded.why, reason=excluded.field)


def _records_of(dropped: Iterable[Dropped]) -> tuple[str, ...]:
    """Return the records of runs that aren't sent."""
    return tuple([one.record for one in dropped])


def _counted(dropped: Iterable[Dropped]) -> str:
    """Return what is counted of runs that aren't sent."""
    return "".join([one.counted for one in dropped])


def why_over(policy: Policy) -> str:
    return "it runs once (one_off)" if policy.one_off else f"it has run {policy.max_runs} times (max_runs)"


def _first_allowed(
    entry: RedBeatSchedulerEntry, bounds: Policy, due_at: datetime, excluded: Exclusion
) -> datetime | None:
    """Return the first run after ``due_at`` that the policy doesn't exclude; None: there is none."""
    if excluded.field == "end_time":
        return None
    return next_run(entry.schedule, bounds, due_at, due_at)


def commit_quarantined(
    claimed: DueEntry, reason: str, now: float, retry_seconds: float
) -> tuple[Commit, bool]:
    """Return the commit that quarantines an entry, and whether its reason is news."""
    before = failure_of(claimed)
    is_news = before is None or not before.is_about(claimed, reason)
    if claimed.next_score:
        return _wait_on(claimed), False  # it is told of when the entry's own time comes
    failure = new_failure(claimed, reason, now) if before is None or is_news else before
    is_same_run = before is not None and before.due and before.is_waiting_for(claimed)
    retry_at = score_text(now + retry_seconds)
    failure = failure.again(
        due=before.due if before and is_same_run else claimed.nominal,
        retry_at=retry_at,
        is_asked=_is_asked(claimed, before),
    )
    commit = Commit(
        claimed,
        new_score=retry_at,
        new_error=failure.to_json() if claimed.can_hold_error else None,
        is_for_this_definition=claimed.can_hold_error and not claimed.unread_bytes,
        records=(unsent_record(failure.due, reason),) if is_news else (),
    )
    return commit, is_news


def _is_asked(claimed: DueEntry, failure: Failure | None) -> bool:
    """Tell whether somebody asked for this run by a score of 0, now or before it failed."""
    return claimed.is_asked or (failure is not None and failure.is_asked and failure.is_waiting_for(claimed))


def commit_failed(run: Run, reason: str, now: float, attempts: int | None = None) -> tuple[Commit, bool]:
    """Return the commit that tries a run again later, and whether its reason is news.

    The run keeps its due time, and is coalesced with the entry's later runs when they come due. ``attempts``:
    how often it has been tried; None: once more than is recorded.
    """
    is_news = run.failure is None or not run.failure.is_about(run.claimed, reason)
    if run.claimed.next_score:
        return _wait_on(run.claimed), is_news
    failure = new_failure(run.claimed, reason, now) if run.failure is None or is_news else run.failure
    if attempts is None:
        attempts = run.failure.attempts + 1 if run.failure is not None else 1
    is_asked = _is_asked(run.claimed, run.failure)
    failure = failure.again(attempts=attempts, due=run.nominal, is_asked=is_asked)
    retry_at = score_text(now + failure.backoff_seconds())
    failure = failure.again(retry_at=retry_at)
    commit = Commit(run.claimed, new_score=retry_at, new_error=failure.to_json(), is_for_this_definition=True)
    commit.records = (unsent_record(run.nominal, reason),) if is_news else ()
    commit.labels = run.sent.labels
    if attempts == 1:  # the next try begins with this run
        dropped = run.dropped if isinstance(run, OrdinaryRun) else ()
        commit.records = (*_records_of(dropped), *commit.records)
        commit.counted = f"-{_counted(dropped)} unsent"
    return commit, is_news


def commit_skipped(run: Run, reason: str) -> Commit | None:
    """Return the commit that skips a run; None: it has no next run, or is to run only once."""
    if not isinstance(run, OrdinaryRun) or not run.skip_score:
        return None
    commit = _commit(run.claimed, run.skip_score)
    commit.is_for_this_definition = True
    return _record_skipped(run, commit, reason)


def commit_executed(run: OrdinaryRun, reason: str) -> Commit:
    """Return the commit of a run whose task was executed when it was to be sent, and has raised an error."""
    return _record_skipped(run, run.sent, reason)


def _record_skipped(run: OrdinaryRun, commit: Commit, reason: str) -> Commit:
    commit.records = (*_records_of(run.dropped), skipped_record(run.nominal, reason))
    commit.counted, commit.labels = f"-{_counted(run.dropped)} skipped/error", run.sent.labels
    commit.task_id = run.sent.task_id
    # a reservation, or that it has waited for another run to end, is over
    commit.run = None if run.sent.run is None else dropped_run(run.nominal)
    return commit


def commit_declined(run: Run, until: float) -> Commit:
    """Return the commit of a run that a subclass does not send now; it is asked again at ``until``."""
    if run.claimed.next_score:
        return _wait_on(run.claimed)
    return _commit(run.claimed, score_text(until))


def commit_held(run: Run, held: Held) -> Commit:
    """Return the commit of a run that another one has held back."""
    tracked, claimed = run.sent.run, run.claimed
    assert tracked is not None  # noqa: S101 - it was asked for
    *dropped, record = tracked.held_records
    commit = _commit(claimed, tracked.held_score)
    commit.records = (*dropped, f"{record},{held.members}")
    words = run.sent.counted.split()[1:] + ["skipped/overlap"] * (not held.is_waiting)
    commit.counted, commit.labels = " ".join(["-", *words]), run.sent.labels
    return commit


def _wait_on(claimed: DueEntry) -> Commit:
    """Return the commit that lets a run which has waited for another one to end wait a little longer.

    The deadline of its entry makes it due again.
    """
    return Commit(claimed, claimed.next_score)


def commit_missing(claimed: DueEntry, now: float, is_known: bool) -> Commit:
    """Return the commit for a member without a hash: put it off, or remove it if it was missing before."""
    if is_known:
        return Commit(claimed, Ending.UNSCHEDULE)
    return Commit(claimed, score_text(now + MISSING_GRACE_SECONDS))


def _score_of_resting(entry: RedBeatSchedulerEntry, bounds: Policy, due_at: datetime, now: datetime) -> float:
    """Return the score of a disabled entry: when its pause is over, or when to look at it again."""
    if paused_until(entry) is not None:
        return score_after_pause(entry, bounds, due_at)
    look_at = now + timedelta(seconds=DISABLED_SECONDS)
    return entry.score_of(next_run(entry.schedule, bounds, look_at, due_at))
