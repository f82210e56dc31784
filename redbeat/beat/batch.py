"""One claim on its way: what of it is still to be sent, to be recorded, or due again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from redbeat.beat.planner import Run
from redbeat.broker.confirms import Publication
from redbeat.entries.dropped import Dropped
from redbeat.store.records import Commit, Committed, DueEntry, Ending, Fence, Fetched, Held, Push, Result


@dataclass
class Batch:
    """One claim on its way.

    Attributes:
        is_leased: claimed entries are hidden from other beats, so those that aren't sent must be given back.
        pending: commits that may be recorded now; none of their messages is still to be sent.
        collected: runs whose messages are still to be pushed.
        events: task-sent events about messages that were sent.
        unconfirmed: runs whose messages are published and not confirmed yet.
        doubtful: keys of the entries whose messages may have been lost with a channel: each of their runs is
            sent again, and waited for by itself.
        sent: prepared runs that were sent.
        reserved: keys of the entries whose runs are noted as in progress before they are published.
        recorded: commits that were written, or refused because somebody else has changed the entry.
        deleted: how many entries were deleted with the run that was sent.
        dropped: by key, runs that the plan of an entry does not send, each with the entry's name. They are
            logged when that plan is recorded.
        left_out: dropped runs whose records are written, to be logged.
        suspects: those of the claim that are likely to fail; they are tried after the others.
        behind: those of them that are left due, and not claimed again at once.
        left: keys of the entries that are still due for any other reason.
        is_cut: some claimed entries are still due.
        is_quick: all its runs went the quick way.
        is_prepared: its runs were planned before they were due, and their entries may have changed since.
        is_in_doubt: nothing more can be sent now: schedule and broker were on one server and aren't any more,
            or a slot of a cluster is being moved.
    """

    claim: Fetched
    fence: Fence
    is_leased: bool
    pending: list[Commit] = field(default_factory=list)
    collected: list[tuple[Run, tuple[Push, ...]]] = field(default_factory=list)
    events: list[Push] = field(default_factory=list)
    unconfirmed: list[tuple[Run, Publication]] = field(default_factory=list)
    doubtful: set[str] = field(default_factory=set)
    sent: list[Run] = field(default_factory=list)
    reserved: set[str] = field(default_factory=set)
    recorded: list[Commit] = field(default_factory=list)
    suspects: list[DueEntry] = field(default_factory=list)
    behind: list[DueEntry] = field(default_factory=list)
    left: set[str] = field(default_factory=set)
    dropped: dict[str, list[tuple[str, Dropped]]] = field(default_factory=dict)
    left_out: list[tuple[str, Dropped]] = field(default_factory=list)
    deleted: int = 0
    is_cut: bool = False
    is_in_doubt: bool = False
    is_prepared: bool = False
    is_quick: bool = False

    @property
    def has_lost(self) -> bool:
        """Whether a channel has ended before all of its messages were confirmed."""
        return any(publication.is_lost for _, publication in self.unconfirmed)

    def give_back(self, runs: Iterable[Run]) -> None:
        """Leave the entries of ``runs`` due, for the next batch."""
        self.leave([run.claimed for run in runs])

    def leave(self, rows: Sequence[DueEntry]) -> None:
        """Leave ``rows`` of the claim due, for the next batch."""
        self.is_cut = self.is_cut or bool(rows)
        self.left.update([claimed.key for claimed in rows])
        self.hold(rows)

    def leave_behind(self, rows: Sequence[DueEntry]) -> None:
        """Leave ``rows`` of the claim due: they are likely to fail, and there is no time for that now."""
        self.behind += rows
        self.hold(rows)

    def hold(self, rows: Sequence[DueEntry]) -> None:
        """Leave ``rows`` of the claim due, for a batch of their own."""
        if self.is_leased:
            # a run that has waited for another one to end goes on waiting: it is looked at again soon
            self.pending += [Commit(claimed, claimed.next_score or claimed.nominal) for claimed in rows]

    def note_published(self, run: Run) -> None:
        """Note that the message of ``run`` has been sent: its commit is pending now."""
        if run.span is not None:
            run.span.note_sent()
        run.sent.is_published = True
        self.pending.append(run.sent)

    def next_scores(self) -> dict[str, float]:
        """Return when those that were recorded and stay in the schedule are due next, by key, UNIX seconds.

        Ask it once a batch: to read such a text takes as long as to fill in a message.
        """
        return {
            commit.claimed.key: float(commit.new_score)
            for commit in self.recorded
            if isinstance(commit.new_score, str)
        }

    def note_dropped(self, key: str, name: str, dropped: Dropped) -> None:
        """Keep runs of the entry ``name`` that its plan does not send."""
        self.dropped.setdefault(key, []).append((name, dropped))

    def note_recorded(self, commits: Sequence[Commit], committed: Committed) -> None:
        """Note what became of ``commits``."""
        self.recorded += commits
        for commit, result in zip(commits, committed.results, strict=False):
            if self.dropped:
                self._note_left_out(commit, result)
            if isinstance(result, Held) and commit.run is not None:
                commit.new_score = commit.run.held_score  # it is what was written
            elif result is not True:
                self.is_cut = True
                self.left.add(commit.claimed.key)
            elif commit.new_score is Ending.DELETE:
                self.deleted += 1

    def _note_left_out(self, commit: Commit, result: Result) -> None:
        records: Sequence[str] = commit.records if result is True else ()
        if isinstance(result, Held) and commit.run is not None:
            records = commit.run.held_records
        # a run that is tried again later has the same runs before it at each try: they are recorded once
        self.left_out += [one for one in self.dropped.pop(commit.claimed.key, ()) if one[1].record in records]
