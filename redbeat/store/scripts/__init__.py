"""The scripts, one typed function each: the only place that knows their KEYS, ARGV and replies.

Invariant: every script is safe to run twice, because each writes only over what its caller has read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from redbeat.keys import Keys
from redbeat.store.records import (
    NO_HISTORIES,
    NOWHERE,
    PUBLISHED,
    RESERVED,
    Clear,
    Commit,
    Committed,
    DueEntry,
    Ending,
    Fence,
    Fetched,
    Head,
    Histories,
    KeyType,
    LockStatus,
    Reservation,
    Reserved,
    Result,
    Target,
    TrackedRun,
    deadlines_of,
    digest_of,
    due_entries_of,
    held_of,
    lock_status_of,
    score_text,
    text_of,
    texts_of,
)
from redbeat.store.scripts.script import Call
from redbeat.store.scripts.script import Script as Script
from redbeat.store.scripts.script import send_all as send_all

#: how many rows one call has at most: it blocks the server for a millisecond or two
CALL_COMMITS = 100

#: about how many bytes of entries one fetch returns at most; one entry in any case
FETCH_BYTES = 8 * 1024 * 1024


_FETCH_DUE = Script("fetch_due")
_COMMIT_RUNS = Script("commit_runs")
_RESERVE_RUNS = Script("reserve_runs")
_READ_HEAD = Script("read_head")
_READ_UPCOMING = Script("read_upcoming")


class FetchKeys(NamedTuple):
    """The keys that a fetch reads, without its fence.

    Attributes:
        schedule: the zset that is fetched from.
        deadlines: the zset of runs in progress.
        other: the zset of which only its first score is returned.
        part: the part that all of them are in.
    """

    schedule: str
    deadlines: str
    other: str
    part: Keys


def fetch_call(
    keys: FetchKeys,
    fence: Fence,
    *,
    limit: int,
    entry_bytes: int,
    max_bytes: int = FETCH_BYTES,
    lease_ms: int = 0,
    pending: Sequence[DueEntry] = (),
    offset: int = 0,
    are_messages: bool = False,
) -> Call[Fetched]:
    """Return the call that reads due entries, the next due time, and which deadlines have passed.

    Arguments:
        limit: how many entries at most.
        entry_bytes: a larger entry isn't read.
        max_bytes: about how many bytes of entries at most.
        lease_ms: how long the entries are hidden from other beats; 0: they aren't.
        pending: due entries that are left out, the first ones.
        offset: how many are left out after them.
        are_messages: they are entries of stored messages, which are read, too.
    """
    return _FETCH_DUE.call(
        keys.part,
        fence=fence,
        schedule=keys.schedule,
        deadlines=keys.deadlines,
        other=keys.other,
        limit=limit,
        max_bytes=max_bytes,
        entry_bytes=entry_bytes,
        lease_ms=lease_ms,
        pending=len(pending),
        last_pending=pending[-1].key if pending else None,
        offset=offset,
        are_messages=are_messages,
    ).reading(_fetched_of)


def _fetched_of(reply: Sequence[Any]) -> Fetched:
    status, now, upcoming, has_more, rows, deadlines, next_deadline, other_head = reply
    return Fetched(
        status=lock_status_of(status),
        now=float(now),
        next_score=float(upcoming) if upcoming else None,
        has_more=bool(has_more),
        rows=due_entries_of(rows),
        deadlines=deadlines_of(deadlines),
        next_deadline=float(next_deadline) if next_deadline else None,
        other_score=float(other_head) if other_head else None,
    )


#: how a script is told that a field of an entry's hash is removed
_CLEAR = ""
#: and how an entry leaves the schedule
_ENDINGS = {Ending.UNSCHEDULE: "remove", Ending.DELETE: "delete"}


def commit_call(
    part: Keys,
    fence: Fence,
    commits: Sequence[Commit],
    target: Target = NOWHERE,
    histories: Histories = NO_HISTORIES,
) -> Call[Committed]:
    """Return the call that records at most CALL_COMMITS rows and makes their pushes at ``target``.

    Arguments:
        histories: where records of runs go.
    """
    running: list[str] = []
    recorded: list[str] = []
    values: list[str | int] = []
    queues: dict[str, int] = {}
    rows = []
    for commit in commits:  # a batch may have thousands: this is written for speed
        due_entry, new_score, pushes, run = commit.due_entry, commit.new_score, commit.pushes, commit.run
        row: dict[str, Any] = {"score": due_entry.score, "meta": digest_of(due_entry.meta or "")}
        is_strict = commit.is_for_this_definition or bool(pushes) or new_score is Ending.DELETE
        if isinstance(new_score, Ending):
            beside = histories.keys_of(due_entry.key)
            recorded += beside
            if beside:
                row["record"] = (histories.tells and "\n".join(commit.records)) or "gone"
            new_score = _ENDINGS[new_score]
        elif commit.records and histories.kept:
            recorded.append(histories.keys_of(due_entry.key)[0])
            row["record"] = "\n".join(commit.records)
        row["new_score"], row["labels"] = new_score, commit.labels
        if due_entry.type is not KeyType.HASH:
            row["type"] = due_entry.type.value
        if is_strict:
            row["is_strict"] = True
        if is_strict or commit.new_definition:
            row["texts"] = digest_of(texts_of(due_entry))
        if commit.new_meta:
            row["new_meta"] = commit.new_meta
        if commit.valid_until is not None:
            row["valid_until"] = score_text(commit.valid_until)
        if commit.counted:
            row["counted"] = commit.counted
        if commit.new_error is not None:
            row["new_error"] = _CLEAR if commit.new_error is Clear.FIELD else commit.new_error
        if commit.new_definition:
            row["new_definition"] = commit.new_definition
            if commit.new_policy is not None:
                row["new_policy"] = _CLEAR if commit.new_policy is Clear.FIELD else commit.new_policy
        if run is not None:
            running.append(histories.running_of(due_entry.key))
            row["task_id"], row["run"] = commit.task_id, _run_row(run, histories, is_sent=commit.is_published)
        if pushes:
            writes = []
            for push in pushes:
                writes.append(f"{push.command} {queues.setdefault(push.queue, len(queues) + 1)}")
                values.append(push.value)
            row["writes"] = " ".join(writes)
        rows.append(row)
    return _COMMIT_RUNS.call(
        part,
        fence=fence,
        schedule=part.schedule,
        deadlines=histories.deadlines,
        events=histories.events,
        figures=histories.figures,
        expected=histories.expected,
        entry_keys=[commit.due_entry.key for commit in commits],
        running=running,
        histories=recorded,
        queues=list(queues),
        server=target.server if queues else "",
        home_db=target.home_db,
        broker_db=target.broker_db,
        kept=histories.kept,
        tells=histories.tells,
        rows=rows,
        values=values,
    ).reading(_committed_of)


def _run_row(run: TrackedRun, histories: Histories, *, is_sent: bool) -> dict[str, Any]:
    row: dict[str, Any] = {
        "due": run.due,
        "overlap": run.overlap,
        "limits": run.limits,
        "queue_seconds": run.queue_seconds,
        "held_score": run.held_score,
    }
    if is_sent:
        row["overlap"] = PUBLISHED if run.overlap == "allow" else RESERVED
    if run.held_records and histories.kept:
        row["held_record"] = "\n".join(run.held_records)
    return row


def _committed_of(reply: Sequence[Any]) -> Committed:
    status, is_moved, digits, reasons, unrecorded = reply
    told = map(text_of, reasons)
    results: list[Result] = [
        digit == "1" if digit in "01" else next(told) if digit == "2" else held_of(next(told))
        for digit in text_of(digits)
    ]
    return Committed(lock_status_of(status), bool(is_moved), results, text_of(unrecorded))


#: how long a reservation is kept that is neither published nor taken over, seconds
RESERVED_SECONDS = 60.0


def reserve_call(
    part: Keys,
    fence: Fence,
    runs: Sequence[tuple[str, str, TrackedRun]],
    histories: Histories,
    holds_seconds: float = 0.0,
    *,
    are_published: bool = False,
) -> Call[tuple[LockStatus, list[Reservation]]]:
    """Return the call that reserves runs which are about to be published, and says what each may do.

    Arguments:
        runs: the key of the entry, the task id and the run.
        holds_seconds: for how long each holds other runs back unless it is noted as published.
        are_published: they were reserved, and have been published since.
    """
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
    running = [histories.running_of(key) for key, _, _ in runs]
    return _RESERVE_RUNS.call(
        part, fence=fence, deadlines=histories.deadlines, running=running, rows=rows
    ).reading(_reserved_of)


def _reserved_of(reply: Sequence[Any]) -> tuple[LockStatus, list[Reservation]]:
    status, answers = reply
    return lock_status_of(status), [_reservation_of(text_of(answer)) for answer in answers]


_RESERVED = {"reserved": Reserved.NOW, "known": Reserved.BEFORE}


def _reservation_of(answer: str) -> Reservation:
    kind, _, text = answer.partition(" ")
    return held_of(text) if kind == "held" else _RESERVED.get(kind, text)


class Found(NamedTuple):
    """What falls due soon.

    Attributes:
        now: the server's clock, UNIX seconds.
        scores: of all members that were looked at from ``after`` on.
        rows: usual entries; the ones under the keys ``again`` come first.
    """

    now: float
    scores: list[str]
    rows: list[DueEntry]


def upcoming_call(
    keys: Keys,
    again: Sequence[str],
    *,
    seconds: float,
    after: str = "",
    offset: int = 0,
    limit: int,
    entry_bytes: int,
) -> Call[Found]:
    """Return the call that reads entries which fall due soon.

    Arguments:
        again: keys of more entries to read, if they fall due in that time.
        seconds: how far ahead.
        after, offset: the score of the last entry that was looked at, and how many have it; '': begin now.
        limit: how many entries are looked at.
        entry_bytes: a larger one isn't read.
    """
    return _READ_UPCOMING.call(
        keys,
        again=again,
        seconds=seconds,
        after=after,
        offset=offset,
        limit=limit,
        entry_bytes=entry_bytes,
    ).reading(_found_of)


def _found_of(reply: Sequence[Any]) -> Found:
    now, scores, rows = reply
    return Found(float(now), [text_of(score) for score in scores], due_entries_of(rows))


def head_call(schedule_key: str, deadlines_key: str, later_key: str) -> Call[Head]:
    """Return the call that reads the server's clock, and what comes first of entries, deadlines and stored
    messages. Nothing is written.
    """
    return _READ_HEAD.call(schedule=schedule_key, deadlines=deadlines_key, later=later_key).reading(_head_of)


def _head_of(reply: Sequence[Any]) -> Head:
    now, *heads = reply
    return Head(float(now), *(float(head) if head else None for head in heads))
