"""Answers to the question why a run did or did not happen, and what a record of the run itself says. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from redbeat.diagnostics.facts import Facts
from redbeat.entries.failures import Failure, failure_of
from redbeat.history import ENDED_OUTCOMES, PastRun, error_in_words
from redbeat.runs.progress import UNTRACKED, hold_in_words, progress_in_words
from redbeat.runs.run import Run
from redbeat.schedules.durations import lasting_in_words, seconds_in_words
from redbeat.schedules.timezones import shown as shown

#: what may have become of a run
VERDICTS = {
    "sent": "its message was sent",
    "running": "a worker has begun it, and it isn't over",
    **ENDED_OUTCOMES,
    "merged": "another run was sent that stands for it",
    "skipped": "it was left out, as its policy says, or as the application's code raised an error",
    "unsent": "it couldn't be sent; while that is so, it is tried again",
    "no-time": "the schedule has no such time",
    "outside": "it is before the start_time, or after the end_time",
    "excluded": "its calendar excludes it",
    "quarantined": "the entry can't be used",
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


@dataclass(frozen=True)
class Answer:
    """What became of a run.

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


def told_by(facts: Facts, run: PastRun, *, with_id: bool = True) -> Answer:
    """Return the answer that a record of the run itself gives.

    Arguments:
        with_id: the task id of a run that was sent is told.
    """
    if run.is_sent:
        by = " by hand" if run.is_manual else ""
        again = "" if run.rerun_of is None else f", as a rerun of {run.rerun_of}"
        reason = f"It was sent{by} at {shown(run.at)}, {_late_in_words(run)}{again}"
        which = f", with the task id {run.task_id}" if with_id else ""
        reason = f"{reason}{which}. {_told_of_end(facts, run)}"
        progress = _progress_of(facts, run)
        is_begun = progress is not None and progress.state != "sent"
        return Answer("running" if is_begun else run.outcome, run.due, reason.rstrip(), run)
    if run.outcome in ("skipped", "merged"):
        return Answer(run.outcome, run.due, *told_of_left_out(facts, run))
    if run.outcome == "waiting":
        return Answer("waiting", run.due, closed(f"It is held back: {run.why}"), run)
    covering = next(
        (
            other
            for other in reversed(facts.history)
            if other.is_sent and other.due > run.due and not other.is_manual
        ),
        None,
    )
    why = f"It couldn't be sent at {shown(run.at)}: {run.why}"
    failure = failure_of(facts.stored)
    if covering is not None:
        return Answer("merged", run.due, f"{closed(why)} The run {sent_text(covering)} stands for it.", run)
    if failure is not None and failure.retry_at and _is_about(failure, run):
        retry_at = _moment(float(failure.retry_at))
        return Answer(
            "unsent" if failure.attempts else "quarantined",
            run.due,
            f"{closed(why)} It is tried again at {shown(retry_at)}.",
            run,
        )
    return Answer("unsent", run.due, f"{closed(why)} What became of it then isn't recorded.", run)


def _is_about(failure: Failure, run: PastRun) -> bool:
    """Tell whether a failure is that of ``run``, and not of a later one."""
    return bool(failure.due) and abs(float(failure.due) - run.due.timestamp()) < 0.001


def _late_in_words(run: PastRun) -> str:
    late = run.late_seconds
    return f"{seconds_in_words(late)} after its time" if late >= 0.0005 else "on time"


def _told_of_end(facts: Facts, run: PastRun) -> str:
    """Return what became of a run that was sent, or how far it is; '': nobody tracks it."""
    if run.outcome == "sent":
        progress = _progress_of(facts, run)
        return "" if progress is None else _told_of_progress(facts, progress)
    where = "" if run.worker is None else f" on {run.worker}"
    lasted = "" if run.run_seconds is None else f" after {lasting_in_words(run.run_seconds)}"
    attempt = f", with attempt {run.attempt}" if (run.attempt or 1) > 1 else ""
    begun = "It" if run.wait_seconds is None else f"It began {seconds_in_words(run.wait_seconds)} later, and"
    told = {
        "succeeded": f"{begun} succeeded{where}{lasted}{attempt}",
        "failed": f"{begun} failed{where}{lasted}{attempt}",
        "revoked": f"It was revoked{where}{lasted}",
        "expired": "It expired before a worker had begun it",
        "rejected": f"It was rejected{where}",
        "ignored": f"Its task has ignored it, or replaced itself by a workflow{where}",
        "lost": f"It was lost{where}: its worker was killed, or not heard of any more",
        "never_started": "No worker has begun it in time",
        "superseded": "It wasn't begun, as another run had the entry",
    }[run.outcome]
    if run.error:
        told += f": {error_in_words(run.error)}"
    late = "" if run.late is None else f" It has ended later, as {run.late}."
    return closed(told) + late


def _progress_of(facts: Facts, run: PastRun) -> Run | None:
    """Return the run in progress that a record is about; None: it isn't in progress, or nobody tracks it."""
    if run.outcome != "sent":
        return None
    return next((one for one in facts.running if one.task_id == run.task_id), None)


def _told_of_progress(facts: Facts, run: Run) -> str:
    """Return how far a run in progress is, and until when it holds its entry."""
    words = [progress_in_words(run), hold_in_words(run, facts.now)]
    if run.state == "sent" and not facts.has_workers:
        words.insert(1, UNTRACKED)
    return "; ".join(filter(None, words)).replace("it", "It", 1) + "."


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, timezone.utc)


def told_of_left_out(facts: Facts, run: PastRun) -> tuple[str, PastRun]:
    """Return why a run wasn't sent, by the record of it and perhaps of others, and the record to show.

    That of a run which stands for another is the sent one's: they are recorded in one step.
    """
    among = ""
    if run.last is not None:
        many = "those" if run.count is None else f"the {run.count} runs"
        among = f" among {many} from {shown(run.due)} to {shown(run.last)}"
    if run.outcome != "merged":
        return closed(f"It was skipped at {shown(run.at)}{among}: {run.why}"), run
    sent = (one for one in facts.history if one.is_sent and one.at == run.at)
    by = next(sent, None)
    if by is None:
        return closed(f"It was missed{among}: {run.why}"), run
    return f"It was missed{among}, and the run {sent_text(by)} stands for it.", by


def sent_text(run: PastRun) -> str:
    return f"that was due at {shown(run.due)} and sent at {shown(run.at)} ({run.task_id})"


def closed(sentence: str) -> str:
    return sentence if sentence.endswith((".", "...")) else f"{sentence}."
