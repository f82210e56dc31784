"""The schedule of one part: commit decisions, reserve runs, read what is due next.

Functions named like a script take a store, and return a ``Request``: submit it to an ``Executor``, or ``ask``
it alone. Those that end in ``_call`` make the call itself, from the names of keys. Invariant: a commit
changes only what was fetched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from redbeat.connection.retry import (
    LAST_WORDS_SECONDS,
    call_briefly,
    is_no_permission,
    is_refusal,
    without_retry,
)
from redbeat.errors import LayoutChanged, LockLost, RedBeatError, StoreRefused
from redbeat.keys import Keys
from redbeat.log.logger import logger
from redbeat.process.signals import hold_interrupts
from redbeat.signals import run_sent, run_skipped
from redbeat.store.executor import CALL_ROWS, Request, run_all
from redbeat.store.fetching import due_entries_of
from redbeat.store.records import (
    NOWHERE,
    PUBLISHED,
    RESERVED,
    Clear,
    Commit,
    Committed,
    DueEntry,
    Ending,
    Fence,
    Head,
    KeyType,
    LockStatus,
    Reservation,
    Reserved,
    Result,
    Target,
    TrackedRun,
    committed_as_one,
    digest_of,
    held_of,
    score_text,
    text_of,
    texts_of,
)
from redbeat.store.rights import HISTORIES
from redbeat.store.scripts.script import Call, Script
from redbeat.store.store import Store

#: larger entries are not read before they are due, as many are read at once; bytes
UPCOMING_BYTES = 16_384

#: how long a reservation is kept that is neither published nor taken over, seconds
RESERVED_SECONDS = 60.0

#: how long the lock is renewed by what is recorded last, as it may never be released; milliseconds
LAST_LOCK_MS = 10_000

_COMMIT_RUNS = Script("commit_runs")
_RESERVE_RUNS = Script("reserve_runs")
_READ_HEAD = Script("read_head")
_READ_UPCOMING = Script("read_upcoming")

#: events that a commit can send
_TOLD = (run_sent, run_skipped)

#: how a script is told that a field of an entry's hash is removed
_CLEAR = ""
#: and how an entry leaves the schedule
_ENDINGS = {Ending.UNSCHEDULE: "remove", Ending.DELETE: "delete"}
_RESERVED = {"reserved": Reserved.NOW, "known": Reserved.BEFORE}

# -- commit


@dataclass(eq=False, slots=True)
class Recording(Request[Committed]):
    """Commits about one part, as ``commit_runs`` takes them."""

    commits: Sequence[Commit] = ()
    fence: Fence = Fence()  # noqa: RUF009 - immutable
    target: Target = NOWHERE
    is_patient: bool = True

    def run(self) -> Committed:
        """Record all rows, or each alone where the server refuses one of them.

        The result of a row that the server refuses is a sentence that says why.
        """
        if not self.is_patient:
            return self._run_now()
        count = len(self.commits)
        try:
            # of several rows none is known to be at fault
            return self.send(self.store.watched(3 if count == 1 else 2))
        except StoreRefused as exc:
            if _is_about_all(exc) or is_no_permission(exc):
                raise
            if count == 1:
                return _unrecorded([str(exc)])
        found = []
        for commit in self.commits:
            one = commit_runs(self.store, self.fence, [commit], self.target)
            try:
                found.append(one.send(self.store.watched()))
            except StoreRefused as exc:
                if _is_about_all(exc):
                    raise
                found.append(_unrecorded([str(exc)]))
        return committed_as_one(found)

    def _run_now(self) -> Committed:
        """Record prepared runs without waiting for Redis; what cannot be recorded now stays due.

        They are fetched when Redis is back: their policy may leave out runs by then, or send one for several.
        """
        try:
            return self.send(without_retry(self.store.client))
        except LockLost:
            raise
        except RedBeatError as exc:
            logger.debug("beat: Prepared runs cannot be recorded now: %s", exc)
            return _unrecorded([False] * len(self.commits))


def commit_runs(
    store: Store,
    fence: Fence,
    commits: Sequence[Commit],
    target: Target = NOWHERE,
    *,
    is_patient: bool = True,
) -> Recording:
    """Record at most ``CALL_ROWS`` commits, and make their pushes at ``target`` in the same step.

    With ``redbeat_wait_replicas`` it also waits for replicas, a second at most. The outcome is LockLost if
    another beat holds the lock: nothing was written. StoreUnavailable: it isn't known whether it was.

    Arguments:
        is_patient: Redis is waited for as the settings say; else the rows stay due where it is away.
    """
    are_entries = not store.holds_messages
    call = commit_call(
        store.keys,
        fence,
        commits,
        target,
        beside=store.keys_beside,
        kept=store.config.history if are_entries else 0,
        tells=" ".join([one.name for one in _TOLD if one.receivers]) if are_entries else "",
    )

    def read(reply: Sequence[Any]) -> Committed:
        committed = _committed_of(reply)
        if committed.status is not LockStatus.HELD:
            store.check_lock(committed.status, fence)
        if committed.unrecorded:
            _report_unrecorded(store, committed.unrecorded)
        return committed

    call.read = read
    return Recording(
        store, call, len(commits), store.replicas.wanted > 0, None, commits, fence, target, is_patient
    )


def record_last(published: Sequence[tuple[Store, Fence, Sequence[Commit]]]) -> None:
    """Record what was published, if that is possible in two seconds, as a tick ends early."""
    recordings = [
        commit_runs(
            store,
            replace(fence, lock_ms=min(fence.lock_ms, LAST_LOCK_MS)),
            commits[first : first + CALL_ROWS],
            is_patient=False,
        )
        for store, fence, commits in published
        for first in range(0, len(commits), CALL_ROWS)
    ]
    if recordings:
        with suppress(RedBeatError), hold_interrupts(LAST_WORDS_SECONDS, is_firm=True):
            call_briefly(lambda: run_all(recordings))


def commit_call(
    keys: Keys,
    fence: Fence,
    commits: Sequence[Commit],
    target: Target = NOWHERE,
    *,
    beside: Callable[[str], Sequence[str]] | None = None,
    kept: int = 0,
    tells: str = "",
) -> Call[Committed]:
    """Return the call of ``commit_runs``.

    Arguments:
        beside: returns the keys that go with the entry under a key; None: those of ``keys`` do.
        kept: how many records of an entry are kept; 0: none.
        tells: the events to send, with spaces between: of run_sent and run_skipped.
    """
    beside, history_beginning = beside or keys.beside, keys.history("")
    entry_keys: list[str] = []
    running: list[str] = []
    histories: list[str] = []
    scores: list[str] = []
    new_scores: list[str] = []
    values: list[str | int] = []
    queues: dict[str, int] = {}
    write_lists: dict[tuple[tuple[str, int], ...], int] = {}  # most rows have the same
    rows: list[dict[str, Any] | int] = []
    usual: dict[Any, int] = {}
    for commit in commits:  # a batch may have thousands: this is written for speed
        due_entry, new_score, pushes = commit.due_entry, commit.new_score, commit.pushes
        key = due_entry.key
        entry_keys.append(key)
        scores.append(due_entry.score)
        is_end = isinstance(new_score, Ending)
        new_scores.append(_ENDINGS[new_score] if isinstance(new_score, Ending) else new_score)
        is_strict = commit.is_for_this_definition or bool(pushes) or new_score is Ending.DELETE
        new_meta = commit.new_meta
        if is_strict or commit.new_definition:
            values.append(digest_of(texts_of(due_entry)))
        if is_strict or new_meta is not None:
            values.append(digest_of(due_entry.meta or ""))
        if new_meta is not None:
            values.append(new_meta)
        if is_end:
            histories += beside(key)
        elif kept and (commit.records or commit.sent):
            histories.append(history_beginning + key.removeprefix(keys.prefix))
        writes = 0
        if pushes:
            targets: tuple[tuple[str, int], ...] = ()
            for push in pushes:
                targets += ((push.command, queues.setdefault(push.queue, len(queues) + 1)),)
                values.append(push.value)
            writes = write_lists.setdefault(targets, len(write_lists) + 1)
        rare = _rare_fields(commit, keeps=bool(kept or (is_end and tells)))
        fields = commit.labels, is_strict, new_meta is not None, writes, commit.valid_until
        place = None if rare else usual.get(fields)
        rows.append(place or _row(*fields) | rare)
        if not (rare or place):
            usual[fields] = len(rows)
        if commit.run is not None:
            running.append(keys.running(key))
    call = _COMMIT_RUNS.call(
        keys,
        fence=fence,
        events=keys.events if tells else "",
        entry_keys=entry_keys,
        running=running,
        histories=histories,
        queues=list(queues),
        server=target.server if queues else "",
        home_db=target.home_db,
        broker_db=target.broker_db,
        kept=kept,
        tells=tells,
        scores=scores,
        new_scores=new_scores,
        sent=[commit.sent for commit in commits],
        rows=rows,
        write_lists=[*write_lists],
        values=values,
    )
    call.read = _committed_of
    return call


def _row(
    labels: str, is_strict: bool, has_meta: bool, writes: int, valid_until: float | None
) -> dict[str, Any]:
    row = {"labels": labels, "is_strict": is_strict, "has_meta": has_meta, "writes": writes}
    return row if valid_until is None else row | {"valid_until": score_text(valid_until)}


def _rare_fields(commit: Commit, *, keeps: bool) -> dict[str, Any]:
    """Return the fields of a row that most rows do not have.

    Arguments:
        keeps: records of the entry are kept, or told.
    """
    due_entry, run = commit.due_entry, commit.run
    row: dict[str, Any] = {}
    if keeps and commit.records:
        row["record"] = "\n".join(commit.records)
    if due_entry.type is not KeyType.HASH:
        row["type"] = due_entry.type.value
    if commit.counted:
        row["counted"] = commit.counted
    if commit.new_error is not None:
        row["new_error"] = _CLEAR if commit.new_error is Clear.FIELD else commit.new_error
    if commit.new_definition:
        row["new_definition"] = commit.new_definition
        if commit.new_policy is not None:
            row["new_policy"] = _CLEAR if commit.new_policy is Clear.FIELD else commit.new_policy
    if run is not None:
        row["task_id"], row["run"] = commit.task_id, _run_row(run, keeps, is_sent=commit.is_published)
    return row


def _run_row(run: TrackedRun, keeps: bool, *, is_sent: bool) -> dict[str, Any]:
    row: dict[str, Any] = {
        "due": run.due,
        "overlap": run.overlap,
        "limits": run.limits,
        "queue_seconds": run.queue_seconds,
        "held_score": run.held_score,
    }
    if is_sent:
        row["overlap"] = PUBLISHED if run.overlap == "allow" else RESERVED
    if run.held_records and keeps:
        row["held_record"] = "\n".join(run.held_records)
    return row


def _committed_of(reply: Sequence[Any]) -> Committed:
    status, is_moved, digits, reasons, unrecorded = reply
    told = map(text_of, reasons)
    results: list[Result] = [
        digit == "1" if digit in "01" else next(told) if digit == "2" else held_of(next(told))
        for digit in text_of(digits)
    ]
    return Committed(LockStatus(status), bool(is_moved), results, text_of(unrecorded))


def _unrecorded(results: list[Result]) -> Committed:
    return Committed(LockStatus.HELD, is_moved=False, results=results)


def _is_about_all(exc: StoreRefused) -> bool:
    """Return True if the server refuses every row now, so that none is at fault."""
    return is_refusal(exc.__cause__) or exc.is_login or isinstance(exc, LayoutChanged)


def _report_unrecorded(store: Store, error: str) -> None:
    """Report why records couldn't be added: a right is missing, or a key has the wrong type."""
    if is_no_permission(error):
        store.rights.note(HISTORIES, error)
    elif "WRONGTYPE" in error:
        store.report_wrong_types(store.keys.deadlines, store.keys.events)


# -- reserve


def reserve_runs(
    store: Store,
    fence: Fence,
    runs: Sequence[tuple[str, str, TrackedRun]],
    *,
    holds_seconds: float = 0.0,
    are_published: bool = False,
) -> list[Reservation]:
    """Reserve runs whose messages are about to be published; one round trip.

    Returns for each whether it may be published. One that another run holds back waits from now on, if its
    entry's policy says so.

    Arguments:
        runs: the key of the entry, the task id and the run.
        holds_seconds: for how long each holds other runs back unless it is recorded as published.
        are_published: they were reserved, and have been published since: record that.

    Raises:
        LockLost: another beat holds the lock; nothing was written.
    """
    if not runs:
        return []
    call = reserve_call(store.keys, fence, runs, holds_seconds=holds_seconds, are_published=are_published)
    status, found = Request(store, call).send(store.client)
    store.check_lock(status, fence)
    return found


def reserve_call(
    keys: Keys,
    fence: Fence,
    runs: Sequence[tuple[str, str, TrackedRun]],
    *,
    holds_seconds: float = 0.0,
    are_published: bool = False,
) -> Call[tuple[LockStatus, list[Reservation]]]:
    """Return the call of ``reserve_runs``."""
    rows = [
        {
            "task_id": task_id,
            "due": run.due,
            "members": run.members,
            "overlap": PUBLISHED if are_published else run.overlap,
            "seconds": run.queue_seconds + 1 if are_published or run.overlap == "allow" else RESERVED_SECONDS,
            "holds_seconds": holds_seconds,
        }
        for _, task_id, run in runs
    ]
    running = [keys.running(key) for key, _, _ in runs]
    return _RESERVE_RUNS.call(keys, fence=fence, running=running, rows=rows).reading(_reserved_of)


def _reserved_of(reply: Sequence[Any]) -> tuple[LockStatus, list[Reservation]]:
    status, answers = reply
    return LockStatus(status), [_reservation_of(text_of(answer)) for answer in answers]


def _reservation_of(answer: str) -> Reservation:
    kind, _, text = answer.partition(" ")
    return held_of(text) if kind == "held" else _RESERVED.get(kind, text)


# -- what is due next


def read_head(store: Store) -> Request[Head]:
    """Read the server's clock, and what is due first: a cheap look for a waiting beat."""
    return Request(store, _READ_HEAD.call(store.keys).reading(_head_of))


def _head_of(reply: Sequence[Any]) -> Head:
    now, *heads = reply
    return Head(float(now), *(float(head) if head else None for head in heads))


class Cursor(NamedTuple):
    """How far was read of what falls due soon.

    Attributes:
        score: of the last member that was looked at, as the server writes it; '': begin at the time now.
        offset: how many members with that score were looked at; it doesn't count when that time is over.
    """

    score: str = ""
    offset: int = 0

    def after(self, scores: list[str]) -> Cursor:
        """Return the cursor after members with these scores were looked at."""
        if not scores:
            return self
        same = len(scores) - scores.index(scores[-1])
        return Cursor(scores[-1], same + (self.offset if scores[-1] == self.score else 0))


class Slice(NamedTuple):
    """Entries that fall due soon.

    Attributes:
        now: the server's clock, UNIX seconds.
        is_last: nothing more falls due in that time.
        rows: usual entries; large ones are left out, and those that something special has happened to.
        cursor: where to read on.
    """

    now: float
    is_last: bool
    rows: list[DueEntry]
    cursor: Cursor


def read_upcoming(
    store: Store, cursor: Cursor, limit: int, *, seconds: float, again: Sequence[str] = ()
) -> Request[Slice]:
    """Read the next entries that fall due within ``seconds``, the earliest first.

    Arguments:
        limit: how many members of the schedule are looked at from ``cursor`` on.
        again: keys of entries that are read besides, if they fall due in that time; they come first.
    """
    call = _READ_UPCOMING.call(
        store.keys,
        again=again,
        seconds=seconds,
        after=cursor.score,
        offset=cursor.offset,
        limit=limit,
        entry_bytes=min(store.config.max_entry_bytes, UPCOMING_BYTES),
    )

    def read(reply: Sequence[Any]) -> Slice:
        now, scores, rows, texts = reply
        scores = [text_of(score) for score in scores]
        return Slice(float(now), len(scores) < limit, due_entries_of(rows, texts), cursor.after(scores))

    return Request(store, call.reading(read))
