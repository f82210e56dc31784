"""Why a run did or did not happen: from what is recorded, and from what the entry and the schedule say now.

Invariant: what is recorded goes before what can only be concluded; a conclusion from how things are now says
so. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone

from redbeat.diagnostics.facts import TOLERANCE, Facts, record_of, span_of, times_around
from redbeat.diagnostics.verdicts import VERDICTS as VERDICTS
from redbeat.diagnostics.verdicts import Answer, closed, sent_text, shown, told_by, told_of_left_out
from redbeat.entries.calendar_loading import Unusable
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.failures import Failure, failure_of
from redbeat.entries.runs import id_of
from redbeat.entries.saving import why_never
from redbeat.errors import EntryCorrupt
from redbeat.history import PastRun
from redbeat.log.text import printable
from redbeat.policy.policy import Policy
from redbeat.policy.window import exclusion_of
from redbeat.schedules.timezones import in_utc

#: a record is of this very time, and of no other that is near
NEARLY = timedelta(milliseconds=10)


def explain(facts: Facts, at: datetime | None = None) -> Answer:
    """Return why the run at ``at`` did or did not happen; None: at the schedule's latest time before now."""
    try:
        return _explain(facts, at)
    except EntryCorrupt:
        raise
    except ValueError as exc:
        return Answer("quarantined", at and in_utc(at), _quarantine(facts, printable(str(exc))))


def _explain(facts: Facts, at: datetime | None) -> Answer:
    entry, is_latest = facts.entry, at is None
    calendar = entry.policy.calendar if entry is not None else None
    problem = calendar.reason if isinstance(calendar, Unusable) else facts.problem
    if entry is not None and at is None:
        at, after = times_around(entry, facts.now)
        if at is None:
            return _of_no_time(facts, entry, problem, after)
    if at is None:
        return Answer("quarantined", None, _quarantine(facts, problem))
    at = in_utc(at)
    run, span = record_of(facts.history, at), span_of(facts.history, at)
    if run is not None and (span is None or abs(run.due - at) < NEARLY):
        return told_by(facts, run)
    if entry is None and span is not None:
        return replace(told_by(facts, span), at=at)
    if entry is None:
        return Answer("quarantined", at, _quarantine(facts, problem))
    before, after = times_around(entry, at)
    nearest = min(filter(None, (before, after)), key=lambda time: abs(time - at), default=None)
    if nearest is None or abs(nearest - at) >= TOLERANCE:
        if nearest is None:
            reason = "Its times aren't known: it has never run, or its schedule has none."
            return Answer("no-time", at, reason)
        times = [f"the last before is {shown(before)}"] if before else []
        times += [f"the next after is {shown(after)}"] if after else []
        reason = f"Its schedule, as it is now, has no run at {shown(at)}."
        reason += f" {'; '.join(times)}.".replace(" the", " The", 1)
        return Answer("no-time", at, reason, before=before, after=after)
    case = _Case(facts, entry, nearest, problem)
    verdict, reason, run = case.decide()
    end_time = entry.policy.end_time
    if is_latest and verdict == "outside" and end_time is not None and nearest > end_time:
        verdict, reason = "finished", f"It doesn't run after its end_time, {shown(end_time)}."
    if is_latest and verdict == "finished":  # the schedule goes on, and the entry doesn't: no time is its own
        return Answer(verdict, None, reason, run)
    if nearest == before:
        before = times_around(entry, nearest - timedelta(microseconds=1))[0]
    else:
        after = times_around(entry, nearest)[1]
    return Answer(verdict, nearest, reason, run, before, after)


def _of_no_time(facts: Facts, entry: RedBeatSchedulerEntry, problem: str, after: datetime | None) -> Answer:
    """Return the answer if the schedule has had no time yet; the entry may be due all the same."""
    told = _Case(facts, entry, facts.now, problem).decide_by_now()
    if told is None:
        first = "." if after is None else f"; its first is {shown(after)}."
        told = "no-time", f"Its schedule has no time before now{first}", None
    return Answer(told[0], None, told[1], after=after)


#: a leader that hasn't ticked for this long is dead, or hangs
SILENT = timedelta(seconds=10)

#: verdict, reason, record
_Told = tuple[str, str, PastRun | None]


@dataclass(frozen=True)
class _Case:
    """A time of the schedule whose run has no record of its own."""

    facts: Facts
    entry: RedBeatSchedulerEntry
    at: datetime
    problem: str

    def decide(self) -> _Told:
        for look in (
            self._of_policy,
            self._of_span,
            self._of_failure,
            self._of_future,
            self._of_other_runs,
            self._of_age,
            self._of_count,
            self._of_state,
            self._of_leader,
        ):
            told = look()
            if told is not None:
                return told
        return self._unknown()

    def decide_by_now(self) -> _Told | None:
        """Decide only by the present state."""
        return self._of_failure() or self._of_count() or self._of_state() or self._of_leader()

    @property
    def failure(self) -> Failure | None:
        return failure_of(self.facts.stored)

    @property
    def policy(self) -> Policy:
        policy: Policy = self.entry.policy
        return policy

    @property
    def later(self) -> list[PastRun]:
        """The schedule's runs after this time, the earliest first."""
        return [run for run in reversed(self.facts.history) if run.due > self.at and not run.is_manual]

    @property
    def has_later(self) -> bool:
        """Whether later runs are known; then the present state says nothing about this time."""
        ran_at = self.entry.last_run_at
        has_run = self.entry.total_run_count > 0 and ran_at is not None and in_utc(ran_at) > self.at
        return bool(self.later) or has_run

    def _of_policy(self) -> _Told | None:
        policy = self.policy
        if isinstance(policy.calendar, Unusable):
            policy = policy.with_calendar(None)
        excluded = exclusion_of(self.entry.schedule, policy, self.at)
        if excluded is None:
            return None
        field, value = excluded
        if field == "exclude":
            return "excluded", f"The calendar {value} excludes it, as it is now.", None
        return "outside", f"It is {excluded.side} the entry's {field}, {shown(value)}.", None

    def _of_span(self) -> _Told | None:
        span = span_of(self.facts.history, self.at)
        return None if span is None else (span.outcome, *told_of_left_out(self.facts, span))

    def _of_failure(self) -> _Told | None:
        failure = self.failure
        if failure is None or self.has_later:
            broken = self.problem and not self.has_later
            return ("quarantined", _quarantine(self.facts, self.problem), None) if broken else None
        since = _moment_of(failure)
        if failure.attempts and float(failure.due or 0) <= self.at.timestamp() + TOLERANCE.total_seconds():
            reason = (
                f"The run that was due at {shown(since)} couldn't be sent, {failure.attempts} times so far, "
                f"and is tried again: {failure.reason}"
            )
            return "unsent", closed(reason), None
        if not failure.attempts and since - TOLERANCE <= self.at:
            return "quarantined", _quarantine(self.facts, self.problem or failure.reason), None
        return None

    def _of_future(self) -> _Told | None:
        if self.at <= self.facts.now:
            return None
        over = self._of_count() or self._of_state()
        return over or ("to-come", "Its time is still to come.", None)

    def _of_other_runs(self) -> _Told | None:
        way = self.policy.misfire or self.facts.misfire
        for run in self.facts.history:
            if run.is_manual or run.is_span or not run.due < self.at <= run.at:
                continue
            if run.is_sent and way != "all":
                return "merged", f"The run {sent_text(run)} stands for those that were missed by then.", run
            if run.outcome == "skipped":
                return (
                    "skipped",
                    f"The runs from {shown(run.due)} on were skipped at {shown(run.at)}: {run.why}.",
                    run,
                )
        following = next((run for run in self.later if run.is_sent), None)
        is_known = any(run.due < self.at for run in self.facts.history) or not self._may_be_forgotten
        if following is None or not is_known or following.late_seconds < TOLERANCE.total_seconds():
            return None
        if way in ("skip", "all"):
            which = "missed runs that aren't too late" if way == "skip" else "misfire_limit missed runs"
            reason = f"It was missed, and only {which} are sent (misfire: {way})."
            return "skipped", f"{reason} The next that was sent is the one {sent_text(following)}.", following
        return (
            "merged",
            f"It was missed, and the run {sent_text(following)} stands for it (misfire: {way}).",
            following,
        )

    @property
    def _may_be_forgotten(self) -> bool:
        history = self.facts.history
        return bool(history) and len(history) >= self.facts.kept and history[-1].due > self.at

    def _of_age(self) -> _Told | None:
        entry, kept = self.entry, self.facts.kept
        history = [run for run in self.facts.history if not run.is_manual or self._may_be_forgotten]
        if history and self.at < history[-1].due:
            oldest = shown(history[-1].due)
            known = sum(run.is_sent and not run.is_manual for run in history)
            if self._may_be_forgotten:
                reason = f"Only the last {kept} runs are kept (redbeat_history), the first that of {oldest}."
                return "too-long-ago", reason, None
            if entry.total_run_count <= known:
                return "not-there-yet", f"Its first run of all was due at {oldest}.", None
            return "too-long-ago", f"What is recorded begins with the run that was due at {oldest}.", None
        ran_at = in_utc(entry.last_run_at) if entry.last_run_at is not None else None
        if ran_at is not None and not entry.total_run_count and self.at <= ran_at:
            return "not-there-yet", f"It counts from {shown(ran_at)} on: it was saved then.", None
        if kept or self.facts.history or not entry.total_run_count or ran_at is None or ran_at < self.at:
            return None
        following = times_around(entry, self.at)[1]
        if following is None or ran_at < following:
            task_id = entry.options.get("task_id") or id_of(self.facts.key, self.at)
            reason = f"Its last run, by its meta, was at {shown(ran_at)}; the task id is {task_id}."
            return "sent", f"{reason} More isn't recorded, as redbeat_history is 0.", None
        reason = f"Nothing is recorded, as redbeat_history is 0; its last run was at {shown(ran_at)}."
        return "history-off", reason, None

    def _of_count(self) -> _Told | None:
        entry = self.entry
        if self.has_later or not self.policy.is_finished(entry.total_run_count):
            return None
        which = "one_off" if self.policy.one_off else f"max_runs is {self.policy.max_runs}"
        last = f", the last at {shown(in_utc(entry.last_run_at))}" if entry.last_run_at is not None else ""
        return "finished", f"It has had all of its runs{last} ({which}).", None

    def _of_state(self) -> _Told | None:
        if self.has_later:
            return None
        policy, until = self.policy, self.policy.paused_until
        if not self.entry.is_enabled_at(max(self.at, self.facts.now)):
            if not policy.paused:
                return "disabled", "It is disabled: its enabled is false.", None
            ending = f", until {shown(until)}" if until else ""
            by = f" by {policy.paused_by}" if policy.paused_by else ""
            note = f" ({policy.pause_note})" if policy.pause_note else ""
            return "paused", f"It is paused{by}{note}{ending}.", None
        if policy.paused and until is not None and self.at < until:
            note = f" ({policy.pause_note})" if policy.pause_note else ""
            return "paused", f"It was paused until {shown(until)}{note}.", None
        score = self.facts.stored.score
        if self.facts.stored.is_away:
            reason = "It was taken out for celery-redbeat 2.x, and comes back when a beat of version 3 leads."
            return "unscheduled", reason, None
        if score is None:
            return ("unscheduled", "It isn't in the schedule, so beat doesn't know it: save it again.", None)
        if score < 0:
            try:
                why = why_never(self.entry, self.facts.now)
            except (EntryCorrupt, ValueError, OverflowError):
                why = "it can't be used."
            return "unscheduled", f"Its score is {score:g}, which means never: {why}", None
        return None

    def _of_leader(self) -> _Told | None:
        status, score = self.facts.status, self.facts.stored.score
        if self.has_later or score is None or score > self.facts.now.timestamp():
            return None
        if status.leader is None and status.lock_key is not None:
            last = f"; the last one did something at {shown(status.last_tick)}" if status.last_tick else ""
            return (
                "no-leader",
                f"It is due, and no beat leads{last}. It is sent once a beat is started.",
                None,
            )
        tick = status.last_tick
        if status.leader is not None and tick is not None and status.now - tick > SILENT:
            reason = f"It is due, and the leader on {status.leader.host} did nothing since {shown(tick)}."
            return "waiting", f"{reason} A standby takes over; where there is none, start a beat.", None
        if status.leader is not None and status.leader.host is None:
            reason = (
                "It is due, and a program other than RedBeat 3 holds the lock: ask celery redbeat doctor."
            )
            return "waiting", reason, None
        who = "the beats share the work" if status.leader is None else f"{status.leader.host} leads"
        why = status.obstacle or "Look into beat's log."
        reason = f"It is due, and {who}, but it wasn't sent yet. {why}"
        return "waiting", reason, None

    def _unknown(self) -> _Told:
        facts, status = self.facts, self.facts.status
        if not facts.kept and not facts.history:
            return "history-off", "Nothing is recorded, as redbeat_history is 0.", None
        hints = ["it was saved, changed, paused or disabled then, or its next run was moved"]
        following = next(iter(self.later), None)
        if following is not None:
            hints.append("beat or the broker was away, and the next run stands for it")
        since = status.leader.since if status.leader is not None else None
        if since is None:
            hints.insert(0, "no beat was at work then")
        elif since > self.at:
            hints.insert(0, f"the present leader has led only since {shown(since)}")
        known = f" The next that is recorded was due at {shown(following.due)}." if following else ""
        return "unknown", f"Nothing is recorded of it.{known} Perhaps {', or '.join(hints)}.", following


def _quarantine(facts: Facts, problem: str) -> str:
    failure = failure_of(facts.stored)
    since = f" since {failure.since[:19].replace('T', ' ')} UTC" if failure and not failure.attempts else ""
    return closed(f"The entry can't be used{since}: {problem.removeprefix(f'{printable(facts.key)}: ')}")


def _moment_of(failure: Failure) -> datetime:
    """Return when the run of ``failure`` was due."""
    return datetime.fromtimestamp(float(failure.due or 0), timezone.utc)
