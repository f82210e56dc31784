"""A round: batches of several parts of the schedule that are planned, sent and recorded together.

::

    admit      for each batch: which of its entries are there, and may go the quick way
    stream     what the script that records pushes, piece by piece: while the server records one, whose part's
               it ever is, the next one is planned
    send       what is left, batch by batch; messages for a Redis broker elsewhere go in one pipeline
    record     all batches together: one round trip a node
    end        for each batch: what became of it

Invariant: each part's runs are recorded by a call of their own, which its own lock fences, and what goes
wrong with one part keeps none of the others from going on. If a round ends early, whatever the cause, each
run whose message has been sent is recorded as sent if Redis can be reached, and each other run stays due.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from redbeat.beat.batch import Batch
from redbeat.beat.dispatcher import PIECE
from redbeat.beat.equipment import Equipment
from redbeat.beat.pipeline import Pipeline, send_together
from redbeat.beat.recorder import Pieces, commit_last
from redbeat.beat.shard import Shard
from redbeat.errors import RedBeatError
from redbeat.store.commits import CommitStream
from redbeat.store.records import Committed, DueEntry, Fetched
from redbeat.store.rounds import CommitAsked, commit_together

#: how many entries the batches of a round have together, about, if their messages are sent before they are
#: recorded: a beat that is killed between the two has sent these, and they are sent again
ROUND_ROWS = 500

#: batches whose servers' clocks differ by less are planned as of one time, seconds
SAME_TIME_SECONDS = 0.1


#: returns a context that keeps what goes wrong with one part from the others
Apart = Callable[[Shard], AbstractContextManager[None]]


def rounds_of(
    claims: Sequence[tuple[Shard, Fetched]], *, are_pushed: bool
) -> Iterator[list[tuple[Shard, Fetched]]]:
    """Yield claims by what is sent together: small ones first.

    Arguments:
        are_pushed: the script that records pushes messages, as far as is known: all go together, as none
            waits for others. Else large ones go alone.
    """
    together: list[tuple[Shard, Fetched]] = []
    others: list[tuple[Shard, Fetched]] = []
    count = 0
    if are_pushed:
        claims = sorted(claims, key=lambda one: len(one[1].rows) > PIECE)
    for shard, claim in claims:
        if not (claim.rows and (are_pushed or len(claim.rows) <= PIECE) and shard.may_join):
            others.append((shard, claim))
            continue
        together.append((shard, claim))
        count += len(claim.rows)
        if count >= ROUND_ROWS and not are_pushed:
            yield together
            together, count = [], 0
    if together:
        yield together
    for one in others:
        yield [one]


@dataclass
class _Member:
    """One part's batch in a round.

    Attributes:
        rows: the entries that are still to be sent one by one.
        is_quick: their messages may be compiled.
        is_pushed: what is compiled of them is pushed by the script that records; not any more as soon as
            something of a piece isn't compiled.
        pieces: what they are written to.
        pipeline: sends its messages together with those of others; None: they go another way.
        asked: what is recorded of it; None: nothing.
        answer: what became of that, or why nothing is known of it.
        is_out: something is wrong with its part.
        has_ended: nothing of it is left to be recorded.
    """

    shard: Shard
    batch: Batch
    rows: Sequence[DueEntry] = ()
    is_quick: bool = False
    is_pushed: bool = False
    pieces: Pieces | None = None
    pipeline: Pipeline | None = None
    asked: CommitAsked | None = None
    answer: Committed | RedBeatError | None = None
    is_out: bool = False
    has_ended: bool = False

    def found(self) -> Committed:
        """Return what became of what was asked, or raise why nothing is known of it."""
        if isinstance(self.answer, RedBeatError):
            raise self.answer
        assert self.answer is not None  # noqa: S101 - it was asked
        return self.answer


#: some rows of some batches
_Piece = list[tuple[_Member, Sequence[DueEntry]]]


class Round:
    """Sends batches of several parts; made for one round.

    Arguments:
        equipment: what this beat sends with.
        is_ending: tells whether the tick is to end: what isn't begun then stays due.
    """

    def __init__(self, equipment: Equipment, apart: Apart, is_ending: Callable[[], bool]) -> None:
        self._equipment = equipment
        self._quick_way = equipment.quick_way
        self._figures = equipment.figures
        self._reports = equipment.reports
        self._apart = apart
        self._is_ending = is_ending
        self._members: list[_Member] = []

    def send(
        self, batches: Iterable[tuple[Shard, Batch]], note_sent: Callable[[Shard, Batch], object]
    ) -> None:
        """Plan, send and record batches.

        Arguments:
            note_sent: is called for each in the end, if nothing is wrong with its part.
        """
        began_at = time.monotonic()
        with self._ending_early(batches):
            self._let_each(self._admit)
            self._stream()
            self._let_each(self._send)
            self._push()
            self._record()
            self._figures.batches.observe(time.monotonic() - began_at)
            self._let_each(lambda member: note_sent(member.shard, member.batch))

    def send_prepared(self, prepared: Iterable[tuple[Shard, Batch]]) -> bool:
        """Record batches whose collected runs were planned before they were due, and push their messages;
        return whether to go on.

        The log tells of those that were sent, as entries may have changed or gone since their runs were
        planned.
        """
        with self._ending_early(prepared):
            given = [run for member in self._members for run, _ in member.batch.collected]
            try:
                self._record()
            except (SystemExit, KeyboardInterrupt):  # the server goes on with them
                self._reports.tell_of_all(given)
                raise
            sent = [run for member in self._members for run in member.batch.sent]
            self._reports.tell_of_all(sent)
        self._figures.compiled += len(sent)
        self._figures.used += len(sent)
        # each of them is to note it
        return all([one.shard.note_prepared(one.batch) for one in self._members if not one.is_out])  # noqa: C419

    @contextmanager
    def _ending_early(self, batches: Iterable[tuple[Shard, Batch]]) -> Iterator[None]:
        """Record what was sent if this block ends with an error, as far as that is possible."""
        self._members = [_Member(shard, batch) for shard, batch in batches]
        tracing = self._equipment.tracing
        tracing.begin_batch()
        try:
            self._equipment.broker.begin_batch()
            yield
        except BaseException as exc:
            left = [one for one in self._members if not (one.has_ended or one.is_out)]
            commit_last([one.shard.dispatcher.last_commits(one.batch, exc) for one in left])
            for one in self._members:
                one.shard.close()
            raise
        finally:
            tracing.end_batch()

    def _let_each(self, step: Callable[[_Member], object]) -> None:
        """Let each batch do a step; one with whose part something is wrong does no more of them."""
        for member in self._members:
            if member.is_out:
                continue
            try:
                step(member)
            except BaseException as exc:  # noqa: BLE001 - raised there if it ends the round
                self._give_up(member, exc)

    def _give_up(self, member: _Member, exc: BaseException) -> None:
        """Do no more with a batch that has ended with ``exc``; raise that unless others can go on."""
        member.is_out = True
        member.shard.dispatcher.end_early(member.batch, exc)
        member.shard.close()
        with self._apart(member.shard):
            raise exc

    def _admit(self, member: _Member) -> None:
        member.rows, member.is_quick, member.is_pushed = member.shard.dispatcher.admit(member.batch)

    def _stream(self) -> None:
        """Send what is compiled, and pushed by the script that records; the other rows are left."""
        pushed = [one for one in self._members if one.rows and one.is_pushed and not one.is_out]
        if not pushed:
            return
        with CommitStream(pushed[0].shard.store, sent_together=PIECE) as stream:
            for piece in _pieces_of(pushed):
                if self._begin_piece(piece, stream):
                    self._write(piece)
            self._let_each(self._end_pieces)

    def _begin_piece(self, piece: _Piece, stream: CommitStream) -> bool:
        """Let each batch that has its turn begin; those that may not are left. Tell whether any goes on."""
        is_begun = any(one.pieces is not None for one in self._members)
        for member, _ in piece:
            if member.pieces is None and member.is_pushed:
                if is_begun and self._is_ending():
                    member.batch.leave(member.rows)
                    member.rows, member.is_pushed = (), False
                    continue
                try:
                    member.pieces = member.shard.dispatcher.begin_pieces(member.batch, stream)
                except BaseException as exc:  # noqa: BLE001 - raised there if it ends the round
                    self._give_up(member, exc)
                member.is_pushed = member.pieces is not None
        return any(member.is_pushed for member, _ in piece)

    def _write(self, piece: _Piece) -> None:
        """Plan a piece, and give to the server what is compiled of it."""
        going = [(member, rows) for member, rows in piece if member.is_pushed]
        runs, _ = self._quick_way.plan([row for _, rows in going for row in rows], _clock_of(going[-1][0]))
        by_key = {run.claimed.key: run for run in runs if run.message.on_call is None}
        for member, rows in going:
            found = [by_key[row.key] for row in rows if row.key in by_key]
            if len(found) < len(rows) or member.pieces is None:
                member.is_pushed = False  # what is left of it goes the ordinary way
                continue
            member.pieces.write(found)

    def _end_pieces(self, member: _Member) -> None:
        if member.pieces is None:
            return
        count = member.shard.dispatcher.end_pieces(member.pieces)
        self._figures.compiled += count
        member.rows = member.rows[count:]
        member.batch.is_quick = not member.rows

    def _send(self, member: _Member) -> None:
        if not (member.rows or member.batch.suspects):
            return
        if self._is_ending() or member.shard.away:  # what is sent couldn't be recorded
            member.batch.leave([*member.rows, *member.batch.suspects])
        else:
            member.shard.dispatcher.begin(member.batch, member.rows, is_quick=member.is_quick)

    def _push(self) -> None:
        """Send the collected messages that no script pushes."""
        if all(one.batch.is_quick for one in self._members):
            return
        self._let_each(self._confirm)
        those = [(one.pipeline, one.batch) for one in self._members if one.pipeline and not one.is_out]
        outbox = self._equipment.broker.outbox
        if len(those) > 1 and outbox is not None:
            send_together(those, outbox)

    @staticmethod
    def _confirm(member: _Member) -> None:
        member.pipeline = member.shard.dispatcher.confirm(member.batch)

    def _record(self) -> None:
        self._let_each(self._ask)
        asking = [(one, one.asked) for one in self._members if one.asked is not None and not one.is_out]
        for (member, _), answer in zip(asking, commit_together([asked for _, asked in asking]), strict=True):
            member.answer = answer
        self._let_each(self._end)

    @staticmethod
    def _ask(member: _Member) -> None:
        member.asked = member.shard.dispatcher.begin_recording(member.batch)

    @staticmethod
    def _end(member: _Member) -> None:
        member.shard.dispatcher.end(member.batch, member.asked, member.found)
        member.has_ended = True


def _pieces_of(members: Sequence[_Member]) -> Iterator[_Piece]:
    """Yield the rows of batches in pieces that are planned at once: of one batch, or of several small ones
    whose claims have been made at about one time.
    """
    piece: _Piece = []
    count, clock = 0, 0.0
    for member in members:
        is_other_time = abs(_clock_of(member) - clock) > SAME_TIME_SECONDS
        if piece and (is_other_time or count + len(member.rows) > PIECE):
            yield piece
            piece, count = [], 0
        rows, clock = member.rows, _clock_of(member)
        while len(rows) > PIECE:
            yield [(member, rows[:PIECE])]
            rows = rows[PIECE:]
        piece.append((member, rows))
        count += len(rows)
    if piece:
        yield piece


def _clock_of(member: _Member) -> float:
    return member.batch.claim.now
