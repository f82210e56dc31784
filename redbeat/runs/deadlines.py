"""What beat does about a run in progress whose deadline has come. Pure.

A deadline is the end of a worker's lease, of the time that a run may wait on its queue, or of the time that
it may take. Invariant: a run is given up only if beat has itself seen Redis answer for as long as a lease
lives, so that its worker could have renewed it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from redbeat.keys import Keys
from redbeat.store.records import Deadline as Deadline
from redbeat.store.run_record import RunRecord, State, decode_record
from redbeat.store.runs import Settlement

#: a time limit counts as reached this much before it, as times are rounded; seconds
_ROUNDING_SECONDS = 0.001


class Action(Enum):
    """What to do about it."""

    #: the run is over
    END = "end"
    #: it takes longer than it may
    OVERDUE = "overdue"
    #: look again later
    POSTPONE = "postpone"
    #: look at the entry
    LOOK = "look"
    #: there is no such run
    FORGET = "forget"


@dataclass(frozen=True)
class Decision:
    """What beat does about one deadline.

    Attributes:
        run: the run; None: there is none.
        outcome: how it ends; '': it doesn't.
        is_revoked: it is terminated, as it takes too long.
        seconds: in how many to look again.
    """

    deadline: Deadline
    action: Action
    run: RunRecord | None = None
    outcome: str = ""
    is_revoked: bool = False
    seconds: float = 0.0

    def settlement(self, keys: Keys) -> Settlement:
        """Return it as the store does it."""
        word = ("revoke" if self.is_revoked else "") if self.action is Action.OVERDUE else self.outcome
        name = keys.name(keys.entry_of_running(self.deadline.running))
        member, score, record = self.deadline
        task_id, text = self.deadline.task_id, record or ""
        return Settlement(self.action.value, name, task_id, member, score, text, word, self.seconds)


def judge(deadline: Deadline, now: float, lease_seconds: float, watched_seconds: float) -> Decision:
    """Return what to do about a run whose deadline has come.

    Arguments:
        now: the server's clock, UNIX seconds.
        lease_seconds: how long a lease lives.
        watched_seconds: for how long beat has seen Redis answer, without a longer gap.
    """
    if not deadline.task_id and deadline.running:
        return Decision(deadline, Action.LOOK)
    run = None if deadline.record is None else decode_record(deadline.task_id, deadline.record)
    if run is None:
        return Decision(deadline, Action.FORGET)
    if run.state is State.SENT and run.sent is None:
        return Decision(deadline, Action.FORGET)  # it was to be published, and wasn't, or will be once more
    if run.state is State.ENDED:
        return Decision(deadline, Action.END, run, run.outcome or "lost")
    if _takes_too_long(run, now):
        return Decision(
            deadline, Action.OVERDUE, run, is_revoked=run.is_revoked_overdue, seconds=lease_seconds
        )
    if watched_seconds < lease_seconds:
        return Decision(deadline, Action.POSTPONE, run, seconds=lease_seconds - watched_seconds)
    if run.state is State.SPAWNED:
        return Decision(deadline, Action.END, run, run.outcome or "lost")
    return Decision(deadline, Action.END, run, "lost" if run.state is State.STARTED else "never_started")


def _takes_too_long(run: RunRecord, now: float) -> bool:
    if run.state is not State.STARTED or run.is_overdue or run.max is None or run.started is None:
        return False
    return now >= run.started + run.max - _ROUNDING_SECONDS
