"""The schedule of one part: fetch due entries, commit decisions.

Functions named like a script take a store, and return a ``Request``: submit it to an ``Executor``, or ``ask``
it alone. Those that end in ``_call`` make the call itself, from the names of keys. Invariant: a commit
changes only what was fetched.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from redbeat.connection.retry import (
    LAST_WORDS_SECONDS,
    call_briefly,
    is_no_permission,
    is_refusal,
)
from redbeat.errors import LayoutChanged, RedBeatError, StoreRefused
from redbeat.keys import HISTORY_NAMES, Keys
from redbeat.log.logger import logger
from redbeat.process.signals import hold_interrupts
from redbeat.signals import run_sent, run_skipped
from redbeat.store.executor import Request, run_all
from redbeat.store.messages import body_of, read_bodies
from redbeat.store.nodes import Command
from redbeat.store.records import (
    HASH,
    MISSING,
    NOWHERE,
    PUBLISHED,
    RESERVED,
    Commit,
    Committed,
    Ending,
    Fence,
    Fetched,
    Head,
    LockStatus,
    Target,
    TrackedRun,
    committed_of,
    digest_of,
    fetched_of,
    mark_of,
    score_text,
    texts_of,
)
from redbeat.store.scripts.script import Call, Script
from redbeat.store.store import Store

#: about how many bytes of entries one fetch returns at most; one entry in any case
FETCH_BYTES = 8 * 1024 * 1024

_FETCH_DUE = Script("fetch_due")
_COMMIT_RUNS = Script("commit_runs")
_READ_HEAD = Script("read_head")

#: events that a commit can send
_TOLD = (run_sent, run_skipped)

#: fields that each row has
_USUAL_FIELDS = ("labels", "is_strict", "has_meta", "writes", "valid_until")

#: how a script is told that a field of an entry's hash is removed
_CLEAR = ""
#: and how an entry leaves the schedule
_ENDINGS = {Ending.UNSCHEDULE: "remove", Ending.DELETE: "delete"}

# -- fetch


def read_head(store: Store) -> Request[Head]:
    """Read the server's clock, and what is due first: a cheap look for a waiting beat."""
    return Request(store, _READ_HEAD.call(store.keys).reading(_head_of))


def _head_of(reply: Sequence[Any]) -> Head:
    now, *heads = reply
    return Head(float(now), *(float(head) if head else None for head in heads))


class Fetch(NamedTuple):
    """What to fetch of one part.

    Attributes:
        limit: how many entries at most.
        lease_ms: how long they are hidden from other beats; 0: they are not. Those of an answer that was lost
            stay hidden for that time.
        are_messages: stored messages are fetched instead of entries.
        pending: how many due entries are left out, the first ones; ``last_pending`` is the key of the last.
        before: leave out those with this score, or a later one; None: none.
    """

    store: Store
    fence: Fence
    limit: int
    lease_ms: int = 0
    are_messages: bool = False
    pending: int = 0
    last_pending: str | None = None
    before: str | None = None


def fetch_all(wanted: Iterable[Fetch]) -> list[Request[Fetched]]:
    """Read the entries that are due, oldest first, the next due time, and which deadlines have passed.

    The outcome is LockLost if another beat holds the lock, and StoreRefused if the connection ends each time,
    as a proxy cuts large answers, say.
    """
    requests = []
    for store, fence, limit, lease_ms, are_messages, pending, last_pending, before in wanted:
        keys = store.part or store.keys
        call = _FETCH_DUE.call(
            keys,
            fence=fence,
            schedule=keys.later if are_messages else keys.schedule,
            other=keys.schedule if are_messages else keys.later,
            limit=limit,
            max_bytes=FETCH_BYTES,
            entry_bytes=store.config.max_entry_bytes,
            lease_ms=lease_ms,
            pending=pending,
            last_pending=last_pending,
            before=before,
            are_messages=are_messages,
        )
        call.read = fetched_of
        if store.config.is_cluster or are_messages:
            call.read = partial(_read_whole, store, are_messages=are_messages)
        requests.append(Request(store, call, fence=fence))
    return requests


def fetch_due(store: Store, fence: Fence, *, limit: int, lease_ms: int = 0) -> Request[Fetched]:
    """Read the due entries of one part, as ``fetch_all`` does."""
    return fetch_all([Fetch(store, fence, limit, lease_ms)])[0]


def _read_whole(store: Store, reply: Sequence[Any], *, are_messages: bool) -> Fetched:
    """Return what a reply says, and read what belongs to it."""
    fetched = fetched_of(reply)
    if store.config.is_cluster:
        fetched = _without_moving(store, fetched)
    if are_messages:
        read_bodies(store, fetched.rows)
    return fetched


def _without_moving(store: Store, fetched: Fetched) -> Fetched:
    """Leave out entries that only seem to be missing, as their slot is being moved to another node."""
    missing = [row.key for row in fetched.rows if row.type == MISSING]
    if not missing or not store.ask(Command("exists", *missing)):  # there may be thousands
        return fetched
    moving = {key for key in missing if store.ask(Command("exists", key))}
    rows = [row for row in fetched.rows if row.key not in moving]
    return replace(fetched, rows=rows, is_partial=True)


# -- commit


@dataclass(eq=False, slots=True)
class Recording(Request[Committed]):
    """Commits about one part, as ``commit_runs`` takes them."""

    commits: Sequence[Commit] = ()
    target: Target = NOWHERE
    are_messages: bool = False

    def send_smaller(self, refusal: StoreRefused) -> Committed | RedBeatError:
        """Record each row alone, unless the server refuses all of them.

        The result of a row that the server refuses is a sentence that says why.
        """
        if refuses_all(refusal) or is_no_permission(refusal):
            return refusal
        if len(self.commits) == 1:
            return Committed(LockStatus.HELD, is_moved=False, results=[str(refusal)])
        given: Any = {"target": self.target, "are_messages": self.are_messages}
        alone = [commit_runs(self.store, self.fence or Fence(), [one], **given) for one in self.commits]
        try:
            found = [one.run() for one in alone]
        except RedBeatError as exc:  # what was recorded is not due any more
            return exc
        unrecorded = "; ".join(filter(None, {one.unrecorded for one in found}))
        return replace(found[-1], results=[*chain(*(one.results for one in found))], unrecorded=unrecorded)


def commit_runs(
    store: Store,
    fence: Fence,
    commits: Sequence[Commit],
    target: Target = NOWHERE,
    *,
    are_messages: bool = False,
) -> Recording:
    """Record at most ``CALL_ROWS`` commits, and make their pushes at ``target`` in the same step.

    With ``redbeat_wait_replicas`` it also waits for replicas, a second at most. The outcome is LockLost if
    another beat holds the lock: nothing was written. StoreUnavailable: it isn't known whether it was.
    """
    told = list[str]()
    for event in () if are_messages else _TOLD:
        if event.receivers:
            told.append(event.name)
    call = commit_call(
        store.part or store.keys,
        fence,
        commits,
        target,
        kept=0 if are_messages else store.config.history,
        tells=" ".join(told),
        are_messages=are_messages,
    )
    return Recording(
        store,
        call,
        len(commits),
        waits_for_replicas=store.replicas.wanted > 0,
        fence=fence,
        commits=commits,
        target=target,
        are_messages=are_messages,
    )


def record_last(recordings: Sequence[Recording]) -> None:
    """Record what was published, if that is possible in two seconds, as a tick ends early."""
    if recordings:
        with suppress(RedBeatError), hold_interrupts(LAST_WORDS_SECONDS):
            call_briefly(lambda: run_all(recordings))


def commit_call(
    keys: Keys,
    fence: Fence,
    commits: Sequence[Commit],
    target: Target = NOWHERE,
    *,
    kept: int = 0,
    tells: str = "",
    are_messages: bool = False,
) -> Call[Committed]:
    """Return the call of ``commit_runs``.

    Arguments:
        kept: how many records of an entry are kept; 0: none.
        tells: the events to send, with spaces between: of run_sent and run_skipped.
    """
    history_beginning = f"{keys.prefix}{HISTORY_NAMES}"
    entry_keys: list[str] = []
    running: list[str] = []
    histories: list[str] = []
    scores: list[str] = []
    new_scores: list[str] = []
    sent: list[str | bool] = []
    values: list[str | int] = []
    queues: dict[str, int] = {}
    write_lists: dict[tuple[tuple[str, int], ...], int] = {}  # most rows have the same
    rows: list[int] = []
    kinds: list[dict[str, Any]] = []
    usual: dict[Any, int] = {}
    for commit in commits:  # a batch may have thousands: this is written for speed
        due_entry, new_score, pushes = commit.due_entry, commit.new_score, commit.pushes
        key, score = due_entry.key, due_entry.current_score
        entry_keys.append(key)
        scores.append(score)
        sent.append(commit.sent == score or commit.sent or False)
        is_end = isinstance(new_score, Ending)
        new_scores.append(_ENDINGS[new_score] if isinstance(new_score, Ending) else new_score)
        rare = _rare_fields(commit, keeps=bool(kept or (is_end and tells)))
        if rare or is_end:
            rare["is_rare"] = True
        is_strict = commit.is_for_this_definition or bool(pushes) or new_score is Ending.DELETE
        new_meta = commit.new_meta
        if is_strict or commit.new_definition:
            values.append(digest_of(texts_of(due_entry)))
        if is_strict or new_meta is not None:
            values.append(digest_of(due_entry.meta or ""))
        if new_meta is not None:
            values += new_meta, mark_of(new_meta)
        if is_end:
            histories += (body_of(keys, key),) * 3 if are_messages else keys.beside(key)
        elif kept and (commit.records or commit.sent):
            histories.append(history_beginning + key.removeprefix(keys.prefix))
        writes = 0
        if pushes:
            targets: tuple[tuple[str, int], ...] = ()
            for push in pushes:
                targets += ((push.command, queues.setdefault(push.queue, len(queues) + 1)),)
                values.append(push.value)
            writes = write_lists.setdefault(targets, len(write_lists) + 1)
        valid_until = "" if commit.valid_until is None else score_text(commit.valid_until)
        fields = commit.labels, is_strict, new_meta is not None, writes, valid_until
        place = None if rare else usual.get(fields)
        if place is None:
            kinds.append(dict(zip(_USUAL_FIELDS, fields, strict=True)) | rare)
            place = len(kinds)
            if not rare:
                usual[fields] = place
        rows.append(place)
        if commit.run is not None:
            running.append(keys.running(key))
    call = _COMMIT_RUNS.call(
        keys,
        fence=fence,
        schedule=keys.later if are_messages else keys.schedule,
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
        sent=sent,
        rows=rows,
        kinds=kinds,
        write_lists=[*write_lists],
        values=values,
    )
    call.read = committed_of
    return call


def _rare_fields(commit: Commit, *, keeps: bool) -> dict[str, Any]:
    """Return the fields of a row that most rows do not have.

    Arguments:
        keeps: records of the entry are kept, or told.
    """
    due_entry, run = commit.due_entry, commit.run
    row: dict[str, Any] = {}
    if keeps and commit.records:
        row["record"] = "\n".join(commit.records)
    if due_entry.type != HASH:
        row["type"] = due_entry.type
    if commit.counted:
        row["counted"] = commit.counted
    if commit.new_error is not None:
        row["new_error"] = commit.new_error
    if commit.new_definition:
        row["new_definition"] = commit.new_definition
        if commit.new_policy is not None:
            row["new_policy"] = commit.new_policy
    if due_entry.has_lease:
        row["lease"] = _lease_of(commit)
    if run is not None:
        row["run"] = _run_row(commit, run, keeps)
    return row


def _lease_of(commit: Commit) -> str:
    """Return what the lease of an entry becomes: it stays if the entry is given back, and still asked for."""
    due_entry, new_score = commit.due_entry, commit.new_score
    is_given_back = not isinstance(new_score, Ending) and float(new_score) == float(due_entry.nominal)
    return f"{new_score} {due_entry.nominal} now" if due_entry.is_asked and is_given_back else _CLEAR


def _run_row(commit: Commit, run: TrackedRun, keeps: bool) -> dict[str, Any]:
    row: dict[str, Any] = {
        "task_id": commit.task_id,
        "due": run.due,
        "overlap": run.overlap,
        "limits": run.limits,
        "queue_seconds": run.queue_seconds,
        "held_score": run.held_score,
    }
    if commit.due_entry.next_score:
        row["is_released"] = True
    if commit.is_published:
        row["overlap"] = PUBLISHED if run.overlap == "allow" else RESERVED
    if run.held_records and keeps:
        row["held_record"] = "\n".join(run.held_records)
    return row


def refuses_all(exc: StoreRefused) -> bool:
    """Return True if the server refuses every row now, so that none is at fault."""
    return is_refusal(exc.__cause__) or exc.is_login or isinstance(exc, LayoutChanged)


def report_unrecorded(store: Store, error: str) -> None:
    """Report why records couldn't be added to histories, or to the runs in progress."""
    if store.config.said.is_news("unrecorded", error):
        logger.error(
            "beat: Runs are sent, but not recorded: %s. If a key has the wrong type, `celery redbeat doctor` "
            "names it: rename or delete it.",
            error,
        )
