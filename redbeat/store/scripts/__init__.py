"""The scripts, one typed function each: the only place that knows their KEYS, ARGV and replies.

Invariant: every script is safe to run twice, because each writes only over what its caller has read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

from redbeat.store.records import (
    ALL_SIZES,
    NO_HISTORIES,
    NOWHERE,
    Claim,
    Clear,
    Commit,
    Committed,
    Ending,
    Fence,
    Histories,
    LockStatus,
    Sizes,
    Stored,
    Target,
    Write,
    claimed_of,
    digest_of,
    score_text,
    stored_of,
    text_of,
    texts_of,
)
from redbeat.store.scripts.script import Request as Request
from redbeat.store.scripts.script import Script as Script

#: calls a script with a client for several requests, and returns its replies
Call = Callable[[Script, Any, Sequence[Request]], Sequence[Any]]

#: how many commits one call has at most: the server does nothing else meanwhile, for a millisecond or two
CALL_COMMITS = 100


_CLAIM_DUE = Script("hold_lock", "entry_texts", "measure_entry", "claim_due")
_COMMIT_RUNS = Script("hold_lock", "entry_texts", "push_messages", "commit_runs")
_READ_ENTRIES = Script("entry_texts", "measure_entry", "read_entries")
_SAVE_ENTRIES = Script("hold_lock", "entry_texts", "measure_entry", "save_entries")
_DELETE_ENTRIES = Script("hold_lock", "delete_entries")
_CHANGE_STATICS = Script("hold_lock", "change_statics")
_TAKE_LOCK = Script("take_lock")
_RENEW_LOCK = Script("hold_lock", "renew_lock")
_RELEASE_LOCK = Script("release_lock")
_READ_HISTORY = Script("read_history")


#: the word of each status of the lock in the replies
_STATUSES = {"ok": LockStatus.HELD, "retaken": LockStatus.RETAKEN, "lost": LockStatus.LOST}


def lock_status_of(reply: str | bytes) -> LockStatus:
    """Return the status of the lock that a script has returned."""
    return _STATUSES[text_of(reply)]


def claim_due(
    client: Any,
    schedule_key: str,
    fence: Fence,
    *,
    limit: int,
    max_bytes: int,
    entry_bytes: int,
    lease_ms: int,
    prefix: str,
    is_reading: bool = True,
    sizes: Sizes = ALL_SIZES,
) -> Claim:
    """Read at most ``limit`` due entries (about ``max_bytes`` of them) and the next due time.

    An entry larger than ``entry_bytes`` isn't read; with ``is_reading`` False, none is. Those of other
    ``sizes`` stay due.
    """
    args = [*fence.args(), limit, max_bytes, entry_bytes, lease_ms, prefix, int(is_reading), *sizes]
    status, now, upcoming, has_more, is_held, rows = _CLAIM_DUE(client, fence.keys(schedule_key), args)
    return Claim(
        status=lock_status_of(status),
        now=float(now),
        next_score=float(upcoming) if upcoming else None,
        has_more=bool(has_more),
        is_held=bool(is_held),
        rows=[claimed_of(row) for row in rows],
    )


#: values of a commit's fields that aren't texts, and their words in ARGV
_WORDS: dict[object, str] = {
    None: "",
    Clear.FIELD: "clear",
    Ending.UNSCHEDULE: "remove",
    Ending.DELETE: "delete",
}


def commit_runs(
    client: Any,
    schedule_key: str,
    fence: Fence,
    commits: Sequence[Commit],
    target: Target = NOWHERE,
    histories: Histories = NO_HISTORIES,
    call: Call = Script.call_each,
) -> Committed:
    """Record ``commits`` and make their pushes at ``target``; records go into ``histories``."""
    requests = [
        _commit_request(schedule_key, fence, commits[first : first + CALL_COMMITS], target, histories)
        for first in range(0, len(commits), CALL_COMMITS)
    ]
    statuses, moved, results, unrecorded = [], [], [], []
    for status, is_moved, digits, errors, said in call(_COMMIT_RUNS, client, requests):
        statuses.append(lock_status_of(status))
        moved.append(bool(is_moved))
        reasons = map(text_of, errors)
        results += [next(reasons) if digit == "2" else digit == "1" for digit in text_of(digits)]
        unrecorded.append(text_of(said))
    status = next((one for one in (LockStatus.LOST, LockStatus.RETAKEN) if one in statuses), LockStatus.HELD)
    return Committed(status, any(moved), results, next(filter(None, unrecorded), ""))


def _commit_request(
    schedule_key: str, fence: Fence, commits: Sequence[Commit], target: Target, histories: Histories
) -> Request:
    recorded: list[str] = []
    queues: dict[str, int] = {}
    entries: list[Any] = []
    pushes: list[Any] = []
    for commit in commits:
        claimed, new_score = commit.claimed, commit.new_score
        is_strict = commit.is_for_this_definition or commit.pushes or new_score is Ending.DELETE
        texts = ""
        if is_strict or commit.new_definition:
            texts = digest_of(f"={texts_of(claimed)}")
        if isinstance(new_score, Ending):
            beside, record = histories.keys_of(claimed.key), "gone"
        elif commit.records and histories.kept:
            beside, record = histories.keys_of(claimed.key)[:1], "\n".join(commit.records)
        else:
            beside, record = (), ""
        recorded += beside
        entries += (
            claimed.type.value,
            texts if is_strict else "",
            claimed.score,
            _WORDS.get(new_score, new_score),
            digest_of(claimed.meta or ""),
            commit.new_meta or "",
            _WORDS.get(commit.new_error, commit.new_error),
            commit.new_definition or "",
            _WORDS.get(commit.new_policy, commit.new_policy),
            texts if commit.new_definition else "",
            record if beside else "",
            len(commit.pushes),
        )
        for push in commit.pushes:
            queue = queues.setdefault(push.queue, len(queues) + 1)
            pushes += (push.command, queue, push.value)
    keys = [*fence.keys(schedule_key), *(commit.claimed.key for commit in commits), *recorded, *queues]
    where = [target.server if pushes else "", target.home_db, target.broker_db]
    return Request(
        keys, [*fence.args(), len(commits), *where, len(recorded), histories.kept, *entries, *pushes]
    )


def read_entries(
    client: Any, schedule_key: str, keys: Sequence[str], *, entry_bytes: int
) -> tuple[float, list[Stored]]:
    """Read the entries under ``keys``, in their order; return the server's clock in UNIX seconds, too.

    An entry larger than ``entry_bytes`` isn't read.
    """
    now, rows = _READ_ENTRIES(client, [schedule_key, *keys], [entry_bytes])
    if not rows:
        return float(now), [Stored(key) for key in keys]
    return float(now), [stored_of(key, row) for key, row in zip(keys, rows, strict=True)]


def read_history(client: Any, history_key: str, *, limit: int, record_bytes: int) -> list[str]:
    """Read at most ``limit`` records of a history, the newest first, none longer than ``record_bytes``."""
    return [text_of(record) for record in _READ_HISTORY(client, [history_key], [limit, record_bytes])]


def save_entries(
    client: Any, schedule_key: str, fence: Fence, writes: Iterable[tuple[Stored, Write]], *, wake: str = ""
) -> tuple[LockStatus, int]:
    """Make all writes, or none if an entry has changed; return the lock's status, and which one, or 0."""
    keys, args = fence.keys(schedule_key), [*fence.args(), wake]
    states: dict[tuple[str, ...], str] = {}
    for stored, write in writes:
        read = ""
        if stored.unread_bytes:
            read = f"={stored.unread_bytes}"
        elif stored.exists:
            read = digest_of(f"{texts_of(stored)}\0{stored.meta or ''}")
        policy = (
            ""
            if write.policy is None or not (write.policy or stored.policy or stored.unread_bytes)
            else f"={write.policy}"
        )
        state = (read, write.meta, score_text(write.score), policy, write.revision)
        keys.append(stored.key)
        args += states.get(state) or states.setdefault(state, str(len(states) + 1)), write.definition
    args += chain.from_iterable(states)
    status, changed = _SAVE_ENTRIES(client, keys, args)
    return lock_status_of(status), int(changed)


def delete_entries(
    client: Any,
    schedule_key: str,
    fence: Fence,
    keys: Sequence[str],
    keys_beside: Callable[[str], Sequence[str]],
    *,
    wake: str,
) -> tuple[LockStatus, int]:
    """Remove entries, and what is kept beside them; return the lock's status and how many there were."""
    beside = list(chain.from_iterable(map(keys_beside, keys)))
    args = [*fence.args(), wake, len(keys)]
    status, deleted = _DELETE_ENTRIES(client, [*fence.keys(schedule_key), *keys, *beside], args)
    return lock_status_of(status), int(deleted)


def change_statics(
    client: Any,
    statics_key: str,
    owners_key: str,
    fence: Fence,
    change: str,
    owner: str,
    names: Iterable[str],
) -> LockStatus:
    """Make the ``change``, 'add', 'release' or 'remove', for at least one name; return the lock's status."""
    keys, args = [*fence.keys(statics_key), owners_key], [*fence.args(), change, owner, *names]
    return lock_status_of(_CHANGE_STATICS(client, keys, args))


def take_lock(
    client: Any, lock_key: str, token: str, *, taken_ms: int, silent: str, rest_ms: int, slack_ms: int
) -> bool:
    """Take the lock when it is free, or still the ``silent`` holder's; tell whether it is the caller's."""
    return bool(_TAKE_LOCK(client, [lock_key], [token, taken_ms, silent, rest_ms, slack_ms]))


def renew_lock(client: Any, tick_key: str, fence: Fence, idle_ms: int) -> LockStatus:
    """Let the lock live for its full time; return its status."""
    return lock_status_of(_RENEW_LOCK(client, fence.keys(tick_key), [*fence.args(), idle_ms]))


def release_lock(client: Any, lock_key: str, token: str, *, wake: str, mark: str = "") -> bool:
    """Release the lock, and write the ``mark``, if given; return whether the caller held it."""
    return bool(_RELEASE_LOCK(client, [lock_key, mark or lock_key], [token, wake]))
