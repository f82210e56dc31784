"""What one tick does with what was fetched of one shard."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from redbeat.entries.dropped import Dropped
from redbeat.scheduler.decisions import Decision, Send
from redbeat.schedules.occurrences import Excluded
from redbeat.store.records import Commit, Fence, Fetched, Push, Stored
from redbeat.store.store import Store

if TYPE_CHECKING:  # a shard makes batches
    from redbeat.scheduler.shard import Shard

#: returns the decision about a due entry at a time (UNIX seconds), by these calendars
Plan = Callable[[Stored, float, Mapping[str, Excluded]], Decision]


@dataclass(eq=False)
class Batch:
    """Due entries of one shard on their way.

    Attributes:
        plan: makes the decisions about them.
        are_messages: they are stored messages.
        is_leased: they are hidden from other beats, so what is not sent must be given back.
        calendars: those that they name.
        prepared: decisions that were made before they were due; None: the fetched entries are planned.
        ready: decisions that may be recorded now: their messages were sent, or leave in the same step.
        published: runs whose messages were sent before they are recorded.
        reserved: keys of the entries whose runs are noted as in progress before they are published.
        doubtful: keys of the entries whose messages may have been lost with a channel.
        recorded: rows that were written, or refused because the entry has changed.
        is_cut: some entries are still due.
        is_from_templates: all messages were made from templates.
        is_pushed: its messages leave in the step that records them, so what is out of date is refused.
        is_in_doubt: nothing more can be sent now: schedule and broker were on one server and are not any
            more, or a slot of a cluster is being moved.
        is_out: its shard has failed; nothing more is done with it.
        quarantined: entries' names and details, whose events are sent before they are recorded.
        events: task-sent events about runs that were sent.
        told, reported: runs that were sent, and dropped runs with their entries' names, to be logged.
    """

    shard: Shard
    store: Store
    fence: Fence
    fetched: Fetched
    plan: Plan
    are_messages: bool = False
    is_leased: bool = False
    calendars: Mapping[str, Excluded] = field(default_factory=dict)
    prepared: Iterable[Send] | None = None
    ready: list[Decision] = field(default_factory=list)
    published: list[Send] = field(default_factory=list)
    reserved: set[str] = field(default_factory=set)
    doubtful: set[str] = field(default_factory=set)
    recorded: list[Commit] = field(default_factory=list)
    is_cut: bool = False
    is_from_templates: bool = True
    is_pushed: bool = False
    is_in_doubt: bool = False
    is_out: bool = False
    quarantined: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    events: list[Push] = field(default_factory=list)
    told: list[Send] = field(default_factory=list)
    reported: list[tuple[str, Dropped]] = field(default_factory=list)

    def leave(self, rows: Iterable[Stored]) -> None:
        """Leave entries due, for the next batch."""
        rows = list(rows)
        self.is_cut = self.is_cut or bool(rows)
        if self.is_leased:
            # a run that has waited for another one to end goes on waiting: it is looked at again soon
            self.ready += [Decision(row, Commit(row, row.next_score or row.nominal)) for row in rows]

    def publish(self, send: Send, *, is_news: bool = True) -> None:
        """Record that the message of a run was sent: the run may be committed now, and pushes nothing.

        Arguments:
            is_news: that is still to be logged.
        """
        send.pushes = ()
        send.commit.is_published = True
        self.published.append(send)
        self.ready.append(send)
        if is_news:
            self.note_sent(send)

    def note_sent(self, send: Send) -> None:
        """Record that a run was sent; it is logged at the end."""
        if send.span is not None:
            send.span.note_sent()
        self.told.append(send)
        self.events += send.events
