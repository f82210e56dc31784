"""Answers to the question why a run did or did not happen, and what a record of the run itself says. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from redbeat.diagnostics.facts import Facts
from redbeat.entries.failures import failure_of
from redbeat.history import PastRun
from redbeat.schedules.timezones import shown as shown

#: what may have become of a run
VERDICTS = {
    "sent": "its message was sent",
    "merged": "another run was sent that stands for it",
    "skipped": "it was left out, as its policy says",
    "failed": "it couldn't be sent; while that is so, it is tried again",
    "no-time": "the schedule has no such time",
    "outside": "it is before the start_time, or after the end_time",
    "excluded": "its calendar excludes it",
    "quarantined": "the entry can't be used",
    "to-come": "its time is still to come",
    "finished": "the entry has had all of its runs",
    "paused": "somebody has paused the entry",
    "disabled": "the entry is disabled (enabled is false)",
    "unscheduled": "the entry isn't in the schedule, or its score means never",
    "not-there-yet": "the entry was saved after that time",
    "no-leader": "no beat leads",
    "waiting": "it is due, and beat hasn't sent it yet",
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


def told_by(facts: Facts, run: PastRun) -> Answer:
    """Return the answer that a record of the run itself gives."""
    if run.outcome == "sent":
        by = " by hand" if run.is_manual else ""
        reason = f"It was sent{by} at {shown(run.at)}, {run.late_seconds:.1f} s after its time"
        return Answer("sent", run.due, f"{reason}, with the task id {run.task_id}.", run)
    if run.outcome in ("skipped", "merged"):
        return Answer(run.outcome, run.due, *told_of_left_out(facts, run))
    covering = next(
        (
            other
            for other in reversed(facts.history)
            if other.outcome == "sent" and other.due > run.due and not other.is_manual
        ),
        None,
    )
    why = f"It couldn't be sent at {shown(run.at)}: {run.why}"
    failure = failure_of(facts.stored)
    if covering is not None:
        return Answer("merged", run.due, f"{closed(why)} The run {sent_text(covering)} stands for it.", run)
    if failure is not None and failure.retry_at:
        retry_at = datetime.fromtimestamp(float(failure.retry_at), timezone.utc)
        return Answer(
            "failed" if failure.attempts else "quarantined",
            run.due,
            f"{closed(why)} It is tried again at {shown(retry_at)}.",
            run,
        )
    return Answer("failed", run.due, f"{closed(why)} What became of it then isn't recorded.", run)


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
    sent = (one for one in facts.history if one.outcome == "sent" and one.at == run.at)
    by = next(sent, None)
    if by is None:
        return closed(f"It was missed{among}: {run.why}"), run
    return f"It was missed{among}, and the run {sent_text(by)} stands for it.", by


def sent_text(run: PastRun) -> str:
    return f"that was due at {shown(run.due)} and sent at {shown(run.at)} ({run.task_id})"


def closed(sentence: str) -> str:
    return sentence if sentence.endswith((".", "...")) else f"{sentence}."
