"""The scripts, one typed function each: the only place that knows their KEYS, ARGV and replies.

Invariant: every script is safe to run twice, because each writes only over what its caller has read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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
    committed_as_one,
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
from redbeat.store.scripts.script import Request as Request
from redbeat.store.scripts.script import Script as Script

#: calls a script with a client for several requests, and returns its replies
CallEach = Callable[[Script, Any, Sequence[Request]], Sequence[Any]]

#: how many commits one call has at most: the server does nothing else meanwhile, for a millisecond or two
CALL_COMMITS = 100

#: about how many bytes of entries one fetch returns at most; one entry in any case
FETCH_BYTES = 8 * 1024 * 1024


# fmt: off
_FETCH_DUE = Script("fetch_due")
_COMMIT_RUNS = Script(
    "check_layout", "hold_lock", "entry_texts", "read_scores", "push_messages", "count_figures",
    "run_records", "finish_run", "find_hold", "note_run", "commit_runs",
)
# fmt: on
_RESERVE_RUNS = Script("check_layout", "hold_lock", "run_records", "find_hold", "reserve_runs")
_READ_HEAD = Script("read_head")
_READ_UPCOMING = Script("entry_texts", "measure_entry", "read_scores", "read_upcoming")


class FetchKeys(NamedTuple):
    """The keys that a fetch reads besides those of its fence.

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
_CLEAR = "clear"
#: and how an entry leaves the schedule
_ENDINGS = {Ending.UNSCHEDULE: "remove", Ending.DELETE: "delete"}


def commit_runs(
    client: Any,
    part: Keys,
    fence: Fence,
    commits: Sequence[Commit],
    target: Target = NOWHERE,
    histories: Histories = NO_HISTORIES,
    call: CallEach = Script.call_each,
) -> Committed:
    """Record ``commits`` and make their pushes at ``target``; records go into ``histories``."""
    requests = [
        _commit_request(part, fence, commits[first : first + CALL_COMMITS], target, histories)
        for first in range(0, len(commits), CALL_COMMITS)
    ]
    return committed_of(call(_COMMIT_RUNS, client, requests))


def commit_call(
    part: Keys, fence: Fence, commits: Sequence[Commit], target: Target, histories: Histories
) -> tuple[Script, Request]:
    """Return what ``commit_runs`` calls for ``commits``, which are at most CALL_COMMITS."""
    return _COMMIT_RUNS, _commit_request(part, fence, commits, target, histories)


def commit_command(
    client: Any, part: Keys, fence: Fence, commits: Sequence[Commit], target: Target, histories: Histories
) -> list[Any]:
    """Return the words of the command that records ``commits``, which are at most CALL_COMMITS, on behalf of
    ``client``.
    """
    return _COMMIT_RUNS.command(client, _commit_request(part, fence, commits, target, histories))


def committed_of(replies: Iterable[Sequence[Any]]) -> Committed:
    """Return what became of commits, by the replies to the commands that have recorded them."""
    return committed_as_one([_committed_of(*reply) for reply in replies])


def _committed_of(
    status: str | bytes, is_moved: int, digits: str | bytes, reasons: Sequence[Any], unrecorded: str | bytes
) -> Committed:
    told = map(text_of, reasons)
    results: list[Result] = [
        digit == "1" if digit in "01" else next(told) if digit == "2" else held_of(next(told))
        for digit in text_of(digits)
    ]
    return Committed(lock_status_of(status), bool(is_moved), results, text_of(unrecorded))


def _commit_request(
    part: Keys, fence: Fence, commits: Sequence[Commit], target: Target, histories: Histories
) -> Request:
    schedule_key = part.schedule
    keys = [
        *fence.keys(schedule_key),
        histories.deadlines or schedule_key,
        histories.events or schedule_key,
        histories.figures or schedule_key,
        histories.expected or schedule_key,
    ]
    running: list[str] = []
    recorded: list[str] = []
    decisions, forms, queues = _Numbers(), _Numbers(), _Numbers()
    entries: list[str] = []
    values: list[str | int] = []
    for commit in commits:  # a batch may have thousands: this is written for speed
        due_entry, new_score, pushes = commit.due_entry, commit.new_score, commit.pushes
        new_error, new_policy, record = commit.new_error, commit.new_policy, ""
        is_strict = commit.is_for_this_definition or bool(pushes)
        if isinstance(new_score, Ending):
            is_strict = is_strict or new_score is Ending.DELETE
            beside = histories.keys_of(due_entry.key)
            recorded += beside
            new_score = _ENDINGS[new_score]
            record = "" if not beside else (histories.tells and "\n".join(commit.records)) or "gone"
        elif commit.records and histories.kept:
            recorded.append(histories.keys_of(due_entry.key)[0])
            record = "\n".join(commit.records)
        run, overlap, limits, queue_seconds = commit.run, "", "", ""
        writes: tuple[str, ...] = ()
        if run is not None:
            overlap = run.overlap
            if commit.is_published:
                overlap = PUBLISHED if overlap == "allow" else RESERVED
            limits, queue_seconds = run.limits, score_text(run.queue_seconds)
            running.append(histories.running_of(due_entry.key))
            values.append(commit.task_id)
        for push in pushes:
            writes += push.command, queues[push.queue]
            values.append(push.value)
        form = forms[
            "hash" if due_entry.type is KeyType.HASH else due_entry.type.value,
            is_strict,
            _CLEAR if new_error is Clear.FIELD else new_error,
            commit.new_definition,
            _CLEAR if new_policy is Clear.FIELD else new_policy,
            writes,
            overlap,
            limits,
            queue_seconds,
        ]
        is_compared = is_strict or commit.new_definition
        entries += (
            decisions[
                form,
                due_entry.score,
                new_score,
                due_entry.meta,
                commit.new_meta,
                record,
                commit.valid_until,
                run,
                commit.counted,
            ],
            digest_of(texts_of(due_entry)) if is_compared else "",
            commit.labels,
        )
        keys.append(due_entry.key)
    where = [target.server if queues else "", target.home_db, target.broker_db]
    counts = [len(recorded), histories.kept, len(decisions), len(forms), len(running)]
    told = [histories.tells, *entries, *_decision_texts(decisions, histories), *_form_texts(forms), *values]
    args = [*fence.args(), len(commits), *where, *counts, *told]
    return Request([*keys, *running, *recorded, *queues], args, part)


def _decision_texts(decisions: _Numbers, histories: Histories) -> list[str]:
    """Return what the script reads of each decision: what was fetched, and what takes its place."""
    texts: list[str] = []
    for form, fetched_score, score, fetched_meta, new_meta, record, valid_until, run, counted in decisions:
        until = "" if valid_until is None else score_text(valid_until)
        texts += form, fetched_score, score, digest_of(fetched_meta or ""), new_meta or "", record, until
        texts += _NO_RUN if run is None else _run_texts(run, histories)
        texts.append(counted)
    return texts


def _form_texts(forms: _Numbers) -> list[str]:
    """Return what the script reads of each form: what many entries have in common."""
    texts: list[str] = []
    for kind, is_strict, new_error, new_definition, new_policy, writes, *of_run in forms:
        flag, queued = "1" if is_strict else "0", " ".join(writes)
        texts += kind, flag, new_error or "", new_definition or "", new_policy or "", queued, *of_run
    return texts


#: how long a reservation is kept that is neither published nor taken over, seconds
RESERVED_SECONDS = 60.0


def reserve_runs(
    client: Any,
    part: Keys,
    fence: Fence,
    runs: Sequence[tuple[str, str, TrackedRun]],
    histories: Histories,
    holds_seconds: float = 0.0,
    *,
    are_published: bool = False,
) -> tuple[LockStatus, list[Reservation]]:
    """Reserve runs that are about to be published; return what each may do. See ``reserve_runs.lua``.

    Arguments:
        runs: the key of the entry, the task id and the run.
        holds_seconds: for how long each holds other runs back unless it is noted as published.
        are_published: they were reserved, and have been published since.
    """
    keys = [*fence.keys(part.schedule), histories.deadlines]
    args = fence.args()
    for key, task_id, run in runs:
        keys.append(histories.running_of(key))
        is_sent = are_published or run.overlap == "allow"
        seconds = run.queue_seconds + 1 if is_sent else RESERVED_SECONDS
        overlap = PUBLISHED if are_published else run.overlap
        args += task_id, run.due, run.members, overlap, score_text(seconds), score_text(holds_seconds)
    status, answers = _RESERVE_RUNS(client, keys, args, part)
    return lock_status_of(status), [_reservation_of(text_of(answer)) for answer in answers]


_RESERVED = {"reserved": Reserved.NOW, "known": Reserved.BEFORE}


def _reservation_of(answer: str) -> Reservation:
    kind, _, text = answer.partition(" ")
    return held_of(text) if kind == "held" else _RESERVED.get(kind, text)


_NO_RUN = ("",) * 3


def _run_texts(run: TrackedRun, histories: Histories) -> tuple[str, ...]:
    held_record = "\n".join(run.held_records) if histories.kept else ""
    return run.due, held_record, run.held_score


class _Numbers(dict[Any, str]):
    """The number of each value, as text, in the order in which they are first asked for."""

    def __missing__(self, value: Any) -> str:
        number = self[value] = str(len(self) + 1)
        return number


class Window(NamedTuple):
    """What is looked at of that which falls due soon.

    Attributes:
        seconds: how far ahead.
        after, offset: the score of the last entry that was looked at, and how many have it; '': begin now.
        limit: how many entries are looked at.
        entry_bytes: a larger one isn't read.
        prefix: what every entry's key starts with.
    """

    seconds: float
    after: str
    offset: int
    limit: int
    entry_bytes: int
    prefix: str


def read_upcoming(
    client: Any, schedule_key: str, again: Sequence[str], window: Window
) -> tuple[float, list[str], list[DueEntry]]:
    """Look at entries that fall due soon; return the clock, their scores, and the usual ones.

    Those under the keys ``again`` are looked at besides, and their scores aren't returned.
    """
    script, request = upcoming_call(schedule_key, again, window)
    return upcoming_of(script(client, *request))


def upcoming_call(schedule_key: str, again: Sequence[str], window: Window) -> tuple[Script, Request]:
    """Return what ``read_upcoming`` calls."""
    return _READ_UPCOMING, Request([schedule_key, *again], window)


def upcoming_of(reply: Sequence[Any]) -> tuple[float, list[str], list[DueEntry]]:
    """Return what was read, by the reply to the command."""
    now, scores, rows = reply
    return float(now), [text_of(score) for score in scores], due_entries_of(rows)


def read_head(client: Any, schedule_key: str, deadlines_key: str, later_key: str) -> Head:
    """Read the server's clock, and what comes first of entries, deadlines and stored messages.

    Nothing is written.
    """
    script, request = head_call(schedule_key, deadlines_key, later_key)
    return head_of(script(client, *request))


def head_call(schedule_key: str, deadlines_key: str, later_key: str) -> tuple[Script, Request]:
    """Return what ``read_head`` calls."""
    return _READ_HEAD, Request([schedule_key, deadlines_key, later_key], [])


def head_of(reply: Sequence[Any]) -> Head:
    """Return what was read, by the reply to the command."""
    now, *heads = reply
    return Head(float(now), *(float(head) if head else None for head in heads))
