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
from redbeat.leadership.status import State, Status, judge
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
            return replace(_by_state(facts, entry, facts.now) or nothing, at=None, after=after)
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
    return replace(_conclude(facts, entry, nearest), before=before, after=after)


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
    why, failure = closed(f"It couldn't be sent at {shown(run.at)}: {run.why}"), failure_of(facts.stored)
    if failure is not None and failure.retry_at and abs(_moment_of(failure) - run.due) < NEARLY:
        retry_at = datetime.fromtimestamp(float(failure.retry_at), timezone.utc)
        verdict = "unsent" if failure.attempts else "quarantined"
        return Answer(verdict, run.due, f"{why} It is tried again at {shown(retry_at)}.", run)
    covering = next((one for one in _later_runs(facts, run.due) if one.is_sent), None)
    if covering is None:
        return Answer("unsent", run.due, f"{why} What followed isn't recorded.", run)
    return Answer("merged", run.due, f"{why} The run {_sent(covering)} stands for it.", run)


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


def _conclude(facts: Facts, entry: RedBeatSchedulerEntry, at: datetime) -> Answer:
    """Answer for a time of the schedule whose run has no record of its own."""
    policy: Policy = entry.policy
    if isinstance(policy.calendar, Unusable):
        policy = policy.with_calendar(None)
    excluded = exclusion_of(entry.schedule, policy, at)
    if excluded is not None:
        field, value = excluded
        if field == "exclude":
            return Answer("excluded", at, f"The calendar {value} excludes it, as it is now.")
        return Answer("outside", at, f"It is {excluded.side} the entry's {field}, {shown(value)}.")
    if (span := span_of(facts.history, at)) is not None:
        reason, record = _told_by_left_out(facts, span)
        return Answer(span.outcome, at, reason, record)
    if at > facts.now:
        state = _by_state(facts, entry, at)
        return state if state and state.verdict in _LASTING else Answer("to-come", at, "It is still to come.")
    return (
        _by_age(facts, entry, at)
        or _by_other_runs(facts, policy, at)
        or _by_state(facts, entry, at)
        or _unknown(facts, entry, at)
    )


def _by_age(facts: Facts, entry: RedBeatSchedulerEntry, at: datetime) -> Answer | None:
    """Answer by when the entry was saved, and by the oldest run that is recorded."""
    history, ran_at = [run for run in facts.history if not run.is_manual], entry.last_run_at
    if history and at < history[-1].due:
        begin = shown(history[-1].due)
        is_complete = len(facts.history) < facts.kept
        if is_complete and entry.total_run_count <= sum(run.is_sent for run in history):
            return Answer(
                "not-there-yet", at, f"Its first run was due at {begin}: it was saved, or enabled, later."
            )
        reason = f"What is recorded begins with the run that was due at {begin}"
        return Answer("too-long-ago", at, f"{reason} (redbeat_history is {facts.kept}).")
    if ran_at is not None and not entry.total_run_count and at <= in_utc(ran_at):
        return Answer("not-there-yet", at, f"It counts from {shown(in_utc(ran_at))} on: it was saved then.")
    return None


def _by_other_runs(facts: Facts, policy: Policy, at: datetime) -> Answer | None:
    """Answer by the first run after this time that beat has sent or skipped, if that was late."""
    after = (run for run in reversed(facts.history) if run.at >= at and not run.is_manual | run.is_span)
    run = next((run for run in after if run.is_sent or run.outcome == "skipped"), None)
    if run is None or run.late_seconds < TOLERANCE.total_seconds():
        return None
    if run.outcome == "skipped":
        reason = f"The runs from {shown(run.due)} on were skipped at {shown(run.at)}: {run.why}."
        return Answer("skipped", at, reason, run)
    misfire = policy.misfire or facts.misfire
    if misfire in ("skip", "all"):
        reason = f"It was missed, and the next that was sent is the run {_sent(run)} (misfire: {misfire})."
        return Answer("skipped", at, reason, run)
    reason = f"It was missed, and the run {_sent(run)} stands for it (misfire: {misfire})."
    return Answer("merged", at, reason, run)


def _later_runs(facts: Facts, at: datetime) -> list[PastRun]:
    """Return the schedule's runs after this time, the earliest first."""
    return [run for run in reversed(facts.history) if run.due > at and not run.is_manual]


def _by_state(facts: Facts, entry: RedBeatSchedulerEntry, at: datetime) -> Answer | None:
    """Answer by the entry's state; once later runs are known it says nothing about this time."""
    ran_at, policy = entry.last_run_at, entry.policy
    has_later = entry.total_run_count > 0 and ran_at is not None and in_utc(ran_at) > at
    if has_later or _later_runs(facts, at):
        return None
    failure, verdict = failure_of(facts.stored), state_of(entry, facts.stored, at)
    reason = ""
    if isinstance(policy.calendar, Unusable):
        verdict, reason = "quarantined", _quarantine(facts, policy.calendar.reason)
    elif verdict == "quarantined":
        reason = _quarantine(facts, failure.reason if failure is not None else "")
    elif verdict == "failing" and failure is not None:
        due = shown(_moment_of(failure))
        reason = f"The run that was due at {due} couldn't be sent, {failure.attempts} times so far, "
        verdict, reason = "unsent", closed(f"{reason}and is tried again: {failure.reason}")
    elif verdict == "disabled":
        reason = "It is disabled: its enabled is false."
    elif verdict == "paused":
        until = f" until {shown(policy.paused_until)}" if policy.paused_until else ""
        by = f" by {policy.paused_by}" if policy.paused_by else ""
        note = f" ({policy.pause_note})" if policy.pause_note else ""
        verb = "was" if entry.is_enabled_at(facts.now) else "is"
        reason = f"It {verb} paused{by}{until}{note}."
    elif verdict == "downgraded":
        verdict = "unscheduled"
        reason = "It was taken out for celery-redbeat 2.x, and comes back when a beat of version 3 leads."
    elif verdict == "unscheduled":
        reason = "It isn't in the schedule, so beat doesn't know it: save it again."
    elif verdict == "finished":
        verdict = "finished" if policy.is_finished(entry.total_run_count) else "unscheduled"
        why = why_never(entry, facts.now)
        score = facts.stored.score or 0.0
        reason = (
            f"Its score is {score:g}, which means never: {why}"
            if score < 0
            else f"It never runs again: {why}"
        )
    elif verdict == "due":
        verdict, reason = _by_leader(facts.status)
    return Answer(verdict, at, reason) if reason else None


def _by_leader(status: Status) -> tuple[str, str]:
    """Return the verdict about a run that is due, and the reason."""
    state, problem = judge(status, SILENT.total_seconds())
    if status.leader is not None and status.leader.host is None:
        problem = "A program other than RedBeat 3 holds the lock: ask celery redbeat doctor."
    elif not problem:
        problem = f"See the log of beat{'' if status.leader is None else f' on {status.leader.host}'}."
    verdict = "no-leader" if state is State.NO_LEADER else "waiting"
    return verdict, f"It is due, and wasn't sent yet. {problem}"


def _unknown(facts: Facts, entry: RedBeatSchedulerEntry, at: datetime) -> Answer:
    if not facts.kept and not facts.history:
        ran_at = entry.last_run_at
        last = "" if ran_at is None else f"; its last run was at {shown(in_utc(ran_at))}"
        return Answer("history-off", at, f"Nothing is recorded, as redbeat_history is 0{last}.")
    following, leader = next(iter(_later_runs(facts, at)), None), facts.status.leader
    reason = "Nothing is recorded of it."
    if following is not None:
        reason += f" The next that is recorded was due at {shown(following.due)}."
    reason += " Perhaps it was saved, changed, paused or disabled then, or beat or the broker was away."
    if leader is not None and leader.since is not None and leader.since > at:
        reason += f" The present leader has led since {shown(leader.since)}."
    return Answer("unknown", at, reason, following)
