"""Why a run did or did not happen: from what is recorded, and from what the entry and the schedule say now.

Invariant: what is recorded goes before what can only be concluded; a conclusion from how things are now says
so. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any

from redbeat.diagnostics.facts import SILENT, TOLERANCE, Facts, record_of, span_of, times_around
from redbeat.entries.calendar_loading import Unusable
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.failures import Failure, failure_of
from redbeat.entries.query import state_of
from redbeat.entries.saving import why_never
from redbeat.history import ENDED_OUTCOMES, OUTCOMES, PastRun, error_in_words
from redbeat.leadership.status import State, judge
from redbeat.log.text import closed, printable
from redbeat.policy.misfires import exclusion_of
from redbeat.policy.policy import Policy
from redbeat.runs.progress import UNTRACKED, hold_in_words, progress_in_words
from redbeat.schedules.durations import lasting_in_words, seconds_in_words
from redbeat.schedules.timezones import in_utc, shown

#: the outcome of a run, or why there is none
VERDICTS = {
    **OUTCOMES,
    "running": "a worker has begun it, and it isn't over",
    "no-time": "the schedule has no such time",
    "outside": "it is before the start_time, or after the end_time",
    "excluded": "its calendar excludes it",
    "quarantined": "the entry is invalid",
    "to-come": "its time is still to come",
    "finished": "the entry has had all of its runs",
    "paused": "the entry is paused",
    "disabled": "the entry is disabled (enabled is false)",
    "unscheduled": "the entry isn't in the schedule, or its score means never",
    "not-there-yet": "the entry was saved after that time",
    "no-leader": "no beat leads",
    "waiting": "it is due, and wasn't sent yet",
    "too-long-ago": "what is recorded doesn't go back so far",
    "history-off": "nothing is recorded",
    "unknown": "nothing is recorded of it, though other runs are",
}
#: the verdicts about the state of an entry that also hold for its runs to come
_LASTING = ("quarantined", "paused", "disabled", "finished", "unscheduled")
#: a record is of this very time, and of no other that is near
NEARLY = timedelta(milliseconds=10)


@dataclass(frozen=True)
class Answer:
    """Why a run did or did not happen.

    Attributes:
        verdict: one of ``VERDICTS``.
        at: the time that it is about, UTC; None: there is none.
        reason: one sentence or two.
        run: the record that says so; None: it is concluded.
        before, after: the schedule's times next to it, UTC; None: there is none, or it isn't known.
    """

    verdict: str
    at: datetime | None
    reason: str
    run: PastRun | None = None
    before: datetime | None = None
    after: datetime | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON has it, times in ISO 8601."""
        return {
            "verdict": self.verdict,
            "at": self.at and self.at.isoformat(),
            "reason": self.reason,
            "run": self.run and self.run.to_dict(),
            "before": self.before and self.before.isoformat(),
            "after": self.after and self.after.isoformat(),
        }


def explain(facts: Facts, at: datetime | None = None) -> Answer:
    """Return why the run at ``at`` did or did not happen; None: at the schedule's latest time before now."""
    try:
        return _explain(facts, at and in_utc(at))
    except (ValueError, OverflowError) as exc:
        return Answer("quarantined", at and in_utc(at), _quarantine(facts, printable(str(exc))))


def _explain(facts: Facts, at: datetime | None) -> Answer:
    entry = facts.entry
    if entry is not None and at is None:
        at, after = times_around(entry, facts.now)
        if at is None:  # the entry may be due all the same
            first = "." if after is None else f"; its first is {shown(after)}."
            nothing = Answer("no-time", None, f"Its schedule has no time before now{first}")
            return replace(_Case(facts, entry, facts.now).by_state() or nothing, at=None, after=after)
    if at is None:
        return Answer("quarantined", None, _quarantine(facts, facts.problem))
    run, span = record_of(facts.history, at), span_of(facts.history, at)
    if run is not None and (span is None or abs(run.due - at) < NEARLY):
        return told_by(facts, run)
    if entry is None:
        if span is not None:
            return replace(told_by(facts, span), at=at)
        return Answer("quarantined", at, _quarantine(facts, facts.problem))
    before, after = times_around(entry, at)
    nearest = min(filter(None, (before, after)), key=lambda time: abs(time - at), default=None)
    if nearest is None:
        return Answer("no-time", at, "Its times aren't known: it has never run, or its schedule has none.")
    if abs(nearest - at) >= TOLERANCE:
        reason = f"Its schedule, as it is now, has no run at {shown(at)}."
        reason += f" The last before is {shown(before)}." if before else ""
        reason += f" The next after is {shown(after)}." if after else ""
        return Answer("no-time", at, reason, before=before, after=after)
    if nearest == before:
        before = times_around(entry, nearest - timedelta(microseconds=1))[0]
    else:
        after = times_around(entry, nearest)[1]
    return replace(_Case(facts, entry, nearest).decide(), before=before, after=after)


def told_by(facts: Facts, run: PastRun, *, with_id: bool = True) -> Answer:
    """Return the answer that a record of the run itself gives.

    Arguments:
        with_id: the answer has the task id of a run that was sent.
    """
    if run.is_sent:
        return _told_by_sent(facts, run, with_id=with_id)
    if run.outcome in ("skipped", "merged"):
        reason, record = _told_by_left_out(facts, run)
        return Answer(run.outcome, run.due, reason, record)
    if run.outcome == "waiting":
        return Answer("waiting", run.due, closed(f"It is held back: {run.why}"), run)
    why = closed(f"It couldn't be sent at {shown(run.at)}: {run.why}")
    later = (
        one for one in reversed(facts.history) if one.due > run.due and one.is_sent and not one.is_manual
    )
    covering, failure = next(later, None), failure_of(facts.stored)
    if covering is not None:
        return Answer("merged", run.due, f"{why} The run {_sent(covering)} stands for it.", run)
    is_its_own = failure is not None and failure.due and abs(_moment_of(failure) - run.due) < NEARLY
    if failure is not None and failure.retry_at and is_its_own:
        retry_at = datetime.fromtimestamp(float(failure.retry_at), timezone.utc)
        verdict = "unsent" if failure.attempts else "quarantined"
        return Answer(verdict, run.due, f"{why} It is tried again at {shown(retry_at)}.", run)
    return Answer("unsent", run.due, f"{why} What followed isn't recorded.", run)


def _told_by_sent(facts: Facts, run: PastRun, *, with_id: bool) -> Answer:
    late = run.late_seconds
    words = [
        f"It was sent{' by hand' if run.is_manual else ''} at {shown(run.at)}",
        f"{seconds_in_words(late)} after its time" if late >= 0.0005 else "on time",
        f"as a rerun of {run.rerun_of}" if run.rerun_of is not None else "",
        f"with the task id {run.task_id}" if with_id else "",
    ]
    verdict, end = run.outcome, ""
    if run.outcome != "sent":
        end = _told_of_end(run)
    elif progress := next((one for one in facts.running if one.task_id == run.task_id), None):
        untracked = UNTRACKED if progress.state == "sent" and not facts.has_workers else ""
        told = filter(None, (progress_in_words(progress), untracked, hold_in_words(progress, facts.now)))
        end = "; ".join(told).replace("it", "It", 1) + "."
        verdict = "sent" if progress.state == "sent" else "running"
    return Answer(verdict, run.due, f"{', '.join(filter(None, words))}. {end}".rstrip(), run)


def _told_of_end(run: PastRun) -> str:
    """Return how a run ended."""
    told = ENDED_OUTCOMES[run.outcome].capitalize()
    if run.outcome in ("succeeded", "failed"):
        where = "" if run.worker is None else f" on {run.worker}"
        lasted = "" if run.run_seconds is None else f" after {lasting_in_words(run.run_seconds)}"
        attempt = f", with attempt {run.attempt}" if (run.attempt or 1) > 1 else ""
        wait = run.wait_seconds
        begun = "It" if wait is None else f"It began {seconds_in_words(wait)} later, and"
        told = f"{begun} {run.outcome}{where}{lasted}{attempt}"
    if run.error:
        told += f": {error_in_words(run.error)}"
    late = "" if run.late is None else f" It has ended later, as {run.late}."
    return closed(told) + late


def _told_by_left_out(facts: Facts, run: PastRun) -> tuple[str, PastRun]:
    """Return why a run wasn't sent, by the record of it and perhaps of others, and the record to show.

    The record of a run that stands for another is the sent one's: they are recorded in one step.
    """
    among = ""
    if run.last is not None:
        many = "those" if run.count is None else f"the {run.count} runs"
        among = f" among {many} from {shown(run.due)} to {shown(run.last)}"
    if run.outcome != "merged":
        return closed(f"It was skipped at {shown(run.at)}{among}: {run.why}"), run
    by = next((one for one in facts.history if one.is_sent and one.at == run.at), None)
    if by is None:
        return closed(f"It was missed{among}: {run.why}"), run
    return f"It was missed{among}, and the run {_sent(by)} stands for it.", by


def _sent(run: PastRun) -> str:
    return f"that was due at {shown(run.due)} and sent at {shown(run.at)} ({run.task_id})"


def _quarantine(facts: Facts, problem: str) -> str:
    failure = failure_of(facts.stored)
    since = f" since {since_of(failure)}" if failure and not failure.attempts else ""
    return closed(f"The entry is invalid{since}: {problem.removeprefix(f'{printable(facts.key)}: ')}")


def since_of(failure: Failure) -> str:
    """Return since when an entry fails, for a sentence."""
    return f"{printable(failure.since[:19].replace('T', ' '))} UTC"


def _moment_of(failure: Failure) -> datetime:
    """Return when the run of ``failure`` was due."""
    return datetime.fromtimestamp(float(failure.due or 0), timezone.utc)


@dataclass(frozen=True)
class _Case:
    """A time of the schedule whose run has no record of its own."""

    facts: Facts
    entry: RedBeatSchedulerEntry
    at: datetime

    def decide(self) -> Answer:
        return (
            self._by_policy()
            or self._by_span()
            or self._by_future()
            or self._by_age()
            or self._by_other_runs()
            or self.by_state()
            or self._unknown()
        )

    def _answer(self, verdict: str, reason: str, run: PastRun | None = None) -> Answer:
        return Answer(verdict, self.at, reason, run)

    @property
    def _policy(self) -> Policy:
        policy: Policy = self.entry.policy
        return policy

    @property
    def _later(self) -> list[PastRun]:
        """The schedule's runs after this time, the earliest first."""
        return [run for run in reversed(self.facts.history) if run.due > self.at and not run.is_manual]

    @property
    def _has_later(self) -> bool:
        ran_at = self.entry.last_run_at
        has_run = self.entry.total_run_count > 0 and ran_at is not None and in_utc(ran_at) > self.at
        return bool(self._later) or has_run

    def _by_policy(self) -> Answer | None:
        policy = self._policy
        if isinstance(policy.calendar, Unusable):
            policy = policy.with_calendar(None)
        excluded = exclusion_of(self.entry.schedule, policy, self.at)
        if excluded is None:
            return None
        field, value = excluded
        if field == "exclude":
            return self._answer("excluded", f"The calendar {value} excludes it, as it is now.")
        return self._answer("outside", f"It is {excluded.side} the entry's {field}, {shown(value)}.")

    def _by_span(self) -> Answer | None:
        span = span_of(self.facts.history, self.at)
        return None if span is None else self._answer(span.outcome, *_told_by_left_out(self.facts, span))

    def _by_future(self) -> Answer | None:
        if self.at <= self.facts.now:
            return None
        answer = self.by_state()
        if answer is not None and answer.verdict in _LASTING:
            return answer
        return self._answer("to-come", "Its time is still to come.")

    def _by_age(self) -> Answer | None:
        """Decide by when the entry was saved, and by the oldest run that is recorded."""
        history, ran_at = [run for run in self.facts.history if not run.is_manual], self.entry.last_run_at
        if history and self.at < history[-1].due:
            reason = f"What is recorded begins with the run that was due at {shown(history[-1].due)}"
            return self._answer("too-long-ago", f"{reason} (redbeat_history is {self.facts.kept}).")
        if ran_at is not None and not self.entry.total_run_count and self.at <= in_utc(ran_at):
            return self._answer(
                "not-there-yet", f"It counts from {shown(in_utc(ran_at))} on: it was saved then."
            )
        return None

    def _by_other_runs(self) -> Answer | None:
        """Decide by the first run after this time that beat has sent or skipped, if that was late."""
        misfire = self._policy.misfire or self.facts.misfire
        after = [run for run in self.facts.history if run.at >= self.at and not run.is_manual | run.is_span]
        run = next((run for run in reversed(after) if run.is_sent or run.outcome == "skipped"), None)
        if run is None or run.late_seconds < TOLERANCE.total_seconds():
            return None
        if run.outcome == "skipped":
            reason = f"The runs from {shown(run.due)} on were skipped at {shown(run.at)}: {run.why}."
            return self._answer("skipped", reason, run)
        if misfire in ("skip", "all"):
            which = "missed runs that aren't too late" if misfire == "skip" else "misfire_limit missed runs"
            reason = f"It was missed, and only {which} are sent (misfire: {misfire})."
            return self._answer("skipped", f"{reason} The next that was sent is the one {_sent(run)}.", run)
        reason = f"It was missed, and the run {_sent(run)} stands for it (misfire: {misfire})."
        return self._answer("merged", reason, run)

    def by_state(self) -> Answer | None:
        """Decide by the entry's state; once later runs are known it says nothing about this time."""
        if self._has_later:
            return None
        entry, policy, stored = self.entry, self._policy, self.facts.stored
        failure, state = failure_of(stored), state_of(entry, stored, self.at)
        reason = ""
        if isinstance(policy.calendar, Unusable):
            state, reason = "quarantined", _quarantine(self.facts, policy.calendar.reason)
        elif state == "quarantined":
            reason = _quarantine(self.facts, failure.reason if failure is not None else "")
        elif state == "failing" and failure is not None:
            state, due = "unsent", shown(_moment_of(failure))
            reason = f"The run that was due at {due} couldn't be sent, {failure.attempts} times so far, "
            reason = closed(f"{reason}and is tried again: {failure.reason}")
        elif state == "disabled":
            reason = "It is disabled: its enabled is false."
        elif state == "paused":
            until = f" until {shown(policy.paused_until)}" if policy.paused_until else ""
            by = f" by {policy.paused_by}" if policy.paused_by else ""
            note = f" ({policy.pause_note})" if policy.pause_note else ""
            verb = "was" if entry.is_enabled_at(self.facts.now) else "is"
            reason = f"It {verb} paused{by}{until}{note}."
        elif state == "downgraded":
            state, back = "unscheduled", "comes back when a beat of version 3 leads"
            reason = f"It was taken out for celery-redbeat 2.x, and {back}."
        elif state == "unscheduled":
            reason = "It isn't in the schedule, so beat doesn't know it: save it again."
        elif state == "finished" and policy.is_finished(entry.total_run_count):
            which = "one_off" if policy.one_off else f"max_runs is {policy.max_runs}"
            last = f", the last at {shown(in_utc(entry.last_run_at))}" if entry.last_run_at else ""
            reason = f"It has had all of its runs{last} ({which})."
        elif state == "finished":
            state = "unscheduled"
            why = why_never(entry, self.facts.now)
            reason = f"Its score is {stored.score:g}, which means never: {why}"
        elif state == "due":
            return self._by_leader()
        return self._answer(state, reason) if reason else None

    def _by_leader(self) -> Answer:
        status = self.facts.status
        state, problem = judge(status, SILENT.total_seconds())
        if status.leader is not None and status.leader.host is None:
            problem = "A program other than RedBeat 3 holds the lock: ask celery redbeat doctor."
        elif not problem:
            where = "" if status.leader is None else f" on {status.leader.host}"
            problem = f"See the log of beat{where}."
        verdict = "no-leader" if state is State.NO_LEADER else "waiting"
        return self._answer(verdict, f"It is due, and wasn't sent yet. {problem}")

    def _unknown(self) -> Answer:
        if not self.facts.kept and not self.facts.history:
            ran_at = self.entry.last_run_at
            last = "" if ran_at is None else f"; its last run was at {shown(in_utc(ran_at))}"
            return self._answer("history-off", f"Nothing is recorded, as redbeat_history is 0{last}.")
        following, leader = next(iter(self._later), None), self.facts.status.leader
        reason = "Nothing is recorded of it."
        if following is not None:
            reason += f" The next that is recorded was due at {shown(following.due)}."
        reason += " Perhaps it was saved, changed, paused or disabled then, or beat or the broker was away."
        if leader is not None and leader.since is not None and leader.since > self.at:
            reason += f" The present leader has led since {shown(leader.since)}."
        return self._answer("unknown", reason, following)
