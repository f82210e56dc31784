"""What falls due soon: planned and compiled in idle time, and only recorded and pushed when its time comes.

Nothing is hidden or leased meanwhile: at its time a prepared run is committed if its entry is still as it was
read, and else it is fetched as any other. Invariant: nothing leaves before its time by the server's clock,
which the committing script itself asks.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count, islice
from sys import getsizeof

from redbeat.delivery.broker import Mode
from redbeat.errors import RedBeatError
from redbeat.leadership.leadership import Leadership
from redbeat.log.logger import logger
from redbeat.process.signals import let_through
from redbeat.scheduler.context import Context, ServerClock
from redbeat.scheduler.decisions import Send
from redbeat.store.ahead import Cursor, Slice, read_upcoming
from redbeat.store.records import Stored

#: how many entries are read and prepared at a time: what falls due meanwhile waits for them
SLICE = 200

#: how many entries that are due again are remembered until they are read; others are fetched at their time
MAX_AGAIN = 10_000

#: how often it is looked whether more falls due soon, seconds
LOOK_SECONDS = 1.0

#: how long to wait before it is tried again after an error, or where nothing can be prepared; seconds
RETRY_SECONDS = 60.0

#: what a prepared run takes in memory besides its texts, about, and what its span takes; bytes
RUN_BYTES, SPAN_BYTES = 1_200, 3_000


class LookAhead:
    """The prepared runs of one part of the schedule.

    Arguments:
        leadership: this beat's part in who leads that part.
        context: its planner and its encoder prepare runs.
        find_misplaced: returns the rows that belong to another shard.

    Attributes:
        next_at: when to look next whether more falls due soon, monotonic.
        first_score: when the first prepared run is due, UNIX seconds; inf: none is prepared.
        read_until: up to which due time entries were read, UNIX seconds; 0: none was.
        clock: that of the node of this part: nothing of it leaves early.
    """

    def __init__(
        self,
        leadership: Leadership,
        context: Context,
        find_misplaced: Callable[[Sequence[Stored]], Sequence[Stored]],
    ) -> None:
        self._context, self._find_misplaced = context, find_misplaced
        self._store = leadership.store
        self._seconds = self._store.config.lookahead  # how far ahead; 0: nothing is prepared
        self._leadership = leadership
        self._allowances = context.allowance, context.of_prepared
        self._bytes = 0
        self._due: list[tuple[float, int, int, Send]] = []  # a heap, the earliest first; with its size
        self._runs: dict[str, Send] = {}  # by the entry's key
        self._numbers = count()
        self._cursor, self.read_until = Cursor(), 0.0
        #: keys of entries that are due again before the cursor; as a set that keeps their order
        self._again: dict[str, None] = {}
        self.next_at = 0.0  # monotonic
        self.clock = ServerClock()
        self.first_score = math.inf

    def __len__(self) -> int:
        """Return how many runs are prepared."""
        return len(self._runs)

    def note_next(self, scores: Mapping[str, float]) -> None:
        """Record new due times of entries; due times in the span that was read are read again."""
        for key, score in scores.items():
            if 0 < score <= self.read_until and len(self._again) < MAX_AGAIN:
                self._again[key] = None

    def is_wanted(self, head_score: float | None) -> bool:
        """Return True if to prepare more now.

        Arguments:
            head_score: when the first entry is due, UNIX seconds; None: none is.
        """
        if not self._seconds or head_score is None or self._allowances[1].left_bytes <= 0:
            return False
        return head_score <= self.clock.now + self._seconds and time.monotonic() >= self.next_at

    def prepare(self) -> None:
        """Read and prepare a slice of what falls due soon; after an error a tick finds out more."""
        self.next_at = time.monotonic() + LOOK_SECONDS
        again = list(islice(self._again, SLICE))
        limit = SLICE - len(again)
        try:
            request = read_upcoming(self._store, self._cursor, limit, seconds=self._seconds, again=again)
            found = request.run()
            self.clock.offset = found.now - time.monotonic()
            self._prepare(found, again)
        except RedBeatError as exc:
            logger.debug("beat: What falls due soon can't be prepared: %r", exc)
            self.next_at = time.monotonic() + RETRY_SECONDS

    def _prepare(self, found: Slice, again: Sequence[str]) -> None:
        for key in again:
            del self._again[key]
        prepared = (self._runs.get(row.key) for row in found.rows)
        rows = [
            row for row, run in zip(found.rows, prepared, strict=True) if run is None or run.due_entry != row
        ]
        if misplaced := self._find_misplaced(rows):
            rows = [row for row in rows if row not in misplaced]
        # asked only if something falls due, as this connects to the broker
        if rows and not self._can_prepare():
            self.next_at = time.monotonic() + RETRY_SECONDS
            return
        self._cursor, self.read_until = found.cursor, float(found.cursor.score or 0)
        for run in self._plan(rows):
            self._add(run)
        self._context.planner.make_room()
        if not found.is_last:
            self.next_at = 0.0

    def _can_prepare(self) -> bool:
        """Return True if messages have templates, and are pushed by the script that records their runs."""
        context = self._context
        context.planner.begin()
        context.encoder.begin()
        if not context.encoder.uses_templates:
            return False
        self._leadership.confirm()  # as connecting to the broker may take long
        try:
            return context.delivery.choose() is Mode.SCRIPT
        except RedBeatError:  # about the schedule's server
            raise
        except Exception as exc:  # noqa: BLE001 - whatever the broker's client raises: a tick finds out
            logger.debug("beat: It is not known where messages can be pushed: %r", exc)
            return False

    def _plan(self, rows: list[Stored]) -> list[Send]:
        """Return the runs that can be prepared: they have templates, and stand for no other run.

        Each is planned as it would be at its due time.
        """
        context = self._context
        sends = []
        calendars = context.calendars.read_of(self._leadership.store, rows)
        for row in rows:
            try:
                decision = context.planner.plan(row, float(row.nominal), calendars)
            except BaseException as exc:  # noqa: BLE001 - a tick raises it again
                let_through(exc)
                continue
            if isinstance(decision, Send) and not decision.dropped and decision.failure is None:
                sends.append(decision)
        context.encoder.fill(sends)
        return [one for one in sends if one.template is not None and _is_the_same_later(one)]

    def _take(self, size_bytes: int) -> None:
        self._bytes += size_bytes
        for allowance in self._allowances:
            allowance.left_bytes -= size_bytes

    def _add(self, run: Send) -> None:
        run.commit.valid_until = run.valid_until  # its commit may be on its way for long
        self._runs[run.due_entry.key] = run
        self._context.figures.prepared += 1
        size_bytes = _size_of(run)
        self._take(size_bytes)
        heapq.heappush(self._due, (float(run.due_entry.current_score), next(self._numbers), size_bytes, run))
        self.first_score = self._due[0][0]

    def take_due(self) -> Iterator[Send]:
        """Yield the prepared runs whose time has come; each is forgotten here as it is taken."""
        now, due = self.clock.now, self._due
        while due and due[0][0] <= now:
            _, _, size_bytes, run = heapq.heappop(due)
            self._take(-size_bytes)
            self.first_score = due[0][0] if due else math.inf
            if self._runs.get(run.due_entry.key) is run:
                del self._runs[run.due_entry.key]
                if run.valid_until > now:  # else what becomes of it is decided in the ordinary way
                    yield run

    def forget(self) -> None:
        """Forget all: the leader is another one, say."""
        self._due.clear()
        self._runs.clear()
        self._again.clear()
        self._take(-self._bytes)
        self._cursor, self.read_until = Cursor(), 0.0
        self.next_at, self.first_score = 0.0, math.inf


def _is_the_same_later(run: Send) -> bool:
    """Return True if a message from a template that is made now is the one that would be made at its time."""
    # an option "expires" counts from when it leaves, which jitter makes later than its due time
    return run.template.kind.run.expires_seconds is None or run.nominal == run.due_entry.nominal


def _size_of(run: Send) -> int:
    due_entry = run.due_entry
    texts = [*(push.value for push in run.pushes), due_entry.definition, due_entry.meta, due_entry.policy]
    span_bytes = 0 if run.span is None else SPAN_BYTES
    return RUN_BYTES + span_bytes + sum(map(getsizeof, texts))
