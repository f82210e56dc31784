"""The scripts, one typed function each: the only place that knows their KEYS, ARGV and replies.

Invariant: every script is safe to run twice, because each writes only over what its caller has read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

from redbeat.lua.script import Script as Script

__all__ = [
    "Call",
    "Claim",
    "Claimed",
    "Commit",
    "Committed",
    "Fence",
    "Push",
    "Script",
    "Stored",
    "Target",
    "Vitals",
    "Write",
    "change_statics",
    "claim_due",
    "commit_runs",
    "delete_entries",
    "read_entries",
    "read_status",
    "release_lock",
    "renew_lock",
    "save_entries",
    "score_text",
    "take_lock",
]


#: calls a script with a client, KEYS and ARGV, in whichever way, and returns its reply
Call = Callable[[Script, Any, Sequence[str], Sequence[Any]], Any]


_CLAIM_DUE = Script("hold_lock", "claim_due")
_COMMIT_RUNS = Script("hold_lock", "push_messages", "commit_runs")
_READ_ENTRIES = Script("read_entries")
_SAVE_ENTRIES = Script("hold_lock", "save_entries")
_DELETE_ENTRIES = Script("hold_lock", "delete_entries")
_CHANGE_STATICS = Script("hold_lock", "change_statics")
_TAKE_LOCK = Script("take_lock")
_RENEW_LOCK = Script("hold_lock", "renew_lock")
_RELEASE_LOCK = Script("release_lock")
_READ_STATUS = Script("read_status")


@dataclass(frozen=True)
class Fence:
    """What a write of the scheduler is checked against: its lock, its token and the lock's time to live."""

    lock_key: str | None = None
    token: str = ""
    lock_ms: int = 0

    def keys(self, schedule_key: str) -> list[str]:
        """Return KEYS[1] and KEYS[2]: a script needs a key even where there is no lock."""
        return [schedule_key, self.lock_key or schedule_key]

    def args(self) -> list[Any]:
        """Return ARGV[1] and ARGV[2]."""
        return [self.token, self.lock_ms]


@dataclass(slots=True)  # not frozen: that would take five times as long to make
class Claimed:
    """One due entry as it stands in Redis. Scores are the server's own text: it compares them.

    Attributes:
        type: what the key holds, 'hash' where all is well, 'none' where it is gone.
        nominal: the score it was due at.
        score: the score it has now (another one only where claims are leased).
    """

    key: str
    nominal: str
    definition: str | None = None
    meta: str | None = None
    policy: str | None = None
    error: str | None = None
    score: str = ""
    type: str = "hash"


@dataclass(frozen=True)
class Claim:
    """What one look at the schedule found.

    Attributes:
        status: 'ok'; 'retaken': the lock was gone, perhaps with the data, and is the caller's again; 'lost':
            another beat holds it, and nothing was read.
        now: the server's clock in UNIX seconds.
        next_score: when the first entry that isn't due yet will be, None when there is none.
        has_more: more is due than was returned.
        is_partial: entries that are due are left out: their slot is being moved to another node.
    """

    status: str
    now: float
    next_score: float | None
    has_more: bool
    rows: list[Claimed]
    is_partial: bool = False


@dataclass(slots=True)
class Push:
    """One write to a broker's list: 'lpush' of a message, or 'pexpire' of the list in milliseconds."""

    command: str
    queue: str
    value: str | int


@dataclass(frozen=True)
class Target:
    """Where pushes go: the server's run id, the schedule's database there and the broker's."""

    server: str
    home_db: int
    broker_db: int


@dataclass(slots=True)
class Commit:
    """What to record about one claimed entry; see ``commit_runs.lua`` for each field's meaning of ''.

    Attributes:
        is_for_this_definition: nothing is recorded when the entry has another definition by then.
        pushes: made in the same step, if nothing about the entry has changed by then.
    """

    claimed: Claimed
    new_score: str = ""
    new_meta: str = ""
    new_error: str = ""
    is_for_this_definition: bool = False
    pushes: tuple[Push, ...] = ()

    def with_pushes(self, pushes: tuple[Push, ...]) -> Commit:
        """Return the same commit with messages."""
        return Commit(
            self.claimed,
            self.new_score,
            self.new_meta,
            self.new_error,
            self.is_for_this_definition,
            pushes,
        )


@dataclass(frozen=True)
class Committed:
    """What became of commits.

    Attributes:
        status: as a Claim's.
        is_moved: the server isn't the one that the pushes were for: none was made.
        results: for each commit True: recorded (and pushed); False: the entry was left alone; or the server's
            words when a push was refused, and the entry was left alone.
    """

    status: str
    is_moved: bool
    results: list[bool | str]


@dataclass(slots=True)
class Stored:
    """One entry as it stands in Redis; all None where there is none.

    Attributes:
        score: its due time in the schedule, UNIX seconds; None: it isn't in the schedule.
        type: what the key holds, 'hash' where all is well.
    """

    key: str
    definition: str | None = None
    meta: str | None = None
    score: float | None = None
    policy: str | None = None
    error: str | None = None
    type: str = "none"

    @property
    def is_hash(self) -> bool:
        """Whether the key holds what it should, or nothing."""
        return self.type in ("hash", "none")

    @property
    def exists(self) -> bool:
        """Whether there is something under the key."""
        return self.type != "none" or self.definition is not None or self.meta is not None


@dataclass(slots=True)
class Write:
    """What to store of an entry; an empty field is left as it is, and None as policy; '' removes that.

    ``score`` is UNIX seconds.
    """

    definition: str = ""
    meta: str = ""
    score: float | None = None
    must_exist: bool = False
    policy: str | None = None

    def changes(self, stored: Stored) -> bool:
        """Tell whether ``stored`` is another one after this write."""
        if self.definition and (self.definition != stored.definition or stored.error is not None):
            return True
        if self.meta and self.meta != stored.meta:
            return True
        if self.policy is not None and self.policy != (stored.policy or ""):
            return True
        return self.score is not None and score_text(self.score) != score_text(stored.score)


class Vitals(NamedTuple):
    """Who leads, and how much is due.

    Attributes:
        now: the server's clock in UNIX seconds.
        token: what the lock holds, '' for no lock.
        rest_ms: how long the lock lives, milliseconds; -1: for ever.
        tick: when the leader last did something, UNIX seconds as text, '' when it isn't known.
        due: how many entries are due.
        oldest: since when the first of them is, UNIX seconds; None: there is none with a time.
    """

    now: float
    token: str
    rest_ms: int
    tick: str
    due: int
    oldest: float | None


@lru_cache(maxsize=1024)  # entries that are saved or run together have a few
def score_text(score: float | None) -> str:
    """Return ``score`` as the scripts take it, to the microsecond; '' for None."""
    return "" if score is None else f"{score:.6f}"


def text_of(value: Any) -> Any:
    """Return ``value`` as text also where an injected client doesn't decode its replies."""
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value


def claim_due(
    client: Any, schedule_key: str, fence: Fence, *, limit: int, max_bytes: int, lease_ms: int, prefix: str
) -> Claim:
    """Read at most ``limit`` due entries (about ``max_bytes`` of them) and the next due time."""
    args = [*fence.args(), limit, max_bytes, lease_ms, prefix]
    status, now, upcoming, has_more, rows = _CLAIM_DUE(client, fence.keys(schedule_key), args)
    return Claim(
        status=text_of(status),
        now=float(now),
        next_score=float(upcoming) if upcoming else None,
        has_more=bool(has_more),
        rows=[_claimed(row) for row in rows],
    )


def _claimed(row: Sequence[Any]) -> Claimed:
    claimed = Claimed(*map(text_of, row))
    claimed.score = claimed.score or claimed.nominal
    claimed.type = claimed.type or "hash"
    return claimed


def commit_runs(
    client: Any,
    schedule_key: str,
    fence: Fence,
    commits: Sequence[Commit],
    target: Target = Target("", 0, 0),
    call: Call = Script.__call__,
) -> Committed:
    """Record ``commits`` and make their pushes at ``target``."""
    queues: dict[str, int] = {}
    entries: list[Any] = []
    pushes: list[Any] = []
    for commit in commits:
        claimed = commit.claimed
        is_strict = commit.is_for_this_definition or commit.pushes
        decided_on = f"={claimed.definition or ''}\0{claimed.policy or ''}" if is_strict else ""
        entries += [claimed.type, decided_on, claimed.score, commit.new_score]
        entries += [claimed.meta or "", commit.new_meta, commit.new_error, len(commit.pushes)]
        for push in commit.pushes:
            queue = queues.setdefault(push.queue, len(queues) + 1)
            pushes += [push.command, queue, push.value]
    keys = [*fence.keys(schedule_key), *(commit.claimed.key for commit in commits), *queues]
    server = target.server if pushes else ""
    args = [*fence.args(), len(commits), server, target.home_db, target.broker_db, *entries, *pushes]
    status, is_moved, results = call(_COMMIT_RUNS, client, keys, args)
    return Committed(
        text_of(status),
        bool(is_moved),
        [bool(result) if isinstance(result, int) else text_of(result) for result in results],
    )


def read_entries(client: Any, schedule_key: str, keys: Sequence[str]) -> tuple[float, list[Stored]]:
    """Read the entries under ``keys``, in their order; return the server's clock in UNIX seconds, too."""
    now, rows = _READ_ENTRIES(client, [schedule_key, *keys], [])
    if not rows:
        return float(now), [Stored(key) for key in keys]
    return float(now), [_stored(key, row) for key, row in zip(keys, rows, strict=True)]


def _stored(key: str, row: Sequence[Any] | None) -> Stored:
    if row is None:
        return Stored(key)
    values = [*map(text_of, row), *_ALL_MISSING[len(row) :]]
    definition, meta, score, policy, error, kind = values
    return Stored(key, definition, meta, score and float(score), policy, error, kind or "hash")


_ALL_MISSING = (None,) * 6


def save_entries(
    client: Any, schedule_key: str, fence: Fence, writes: Iterable[tuple[Stored, Write]], *, wake: str = ""
) -> tuple[str, int]:
    """Make each write over what was read, or none; return the lock's status and which has changed, or 0."""
    keys, args = fence.keys(schedule_key), [*fence.args(), wake]
    states: dict[tuple[str, str, str, str], str] = {}
    for stored, write in writes:
        read = (
            f"{stored.definition or ''}\0{stored.meta or ''}\0{stored.policy or ''}" if stored.exists else ""
        )
        policy = "" if write.policy is None or not (write.policy or stored.policy) else f"={write.policy}"
        state = (read, write.meta, score_text(write.score), policy)
        keys.append(stored.key)
        args += states.get(state) or states.setdefault(state, str(len(states) + 1)), write.definition
    args += chain.from_iterable(states)
    status, changed = _SAVE_ENTRIES(client, keys, args)
    return text_of(status), int(changed)


def delete_entries(
    client: Any, schedule_key: str, fence: Fence, keys: Sequence[str], *, wake: str
) -> tuple[str, int]:
    """Remove the entries under ``keys``; return the lock's status and how many there were."""
    status, deleted = _DELETE_ENTRIES(client, [*fence.keys(schedule_key), *keys], [*fence.args(), wake])
    return text_of(status), int(deleted)


def change_statics(client: Any, statics_key: str, fence: Fence, change: str, names: Iterable[str]) -> str:
    """Make the ``change``, 'add' or 'remove', for at least one name; return the lock's status."""
    args = [*fence.args(), change, *names]
    return str(text_of(_CHANGE_STATICS(client, fence.keys(statics_key), args)))


def take_lock(
    client: Any, lock_key: str, token: str, *, taken_ms: int, silent: str, rest_ms: int, slack_ms: int
) -> bool:
    """Take the lock when it is free, or still the ``silent`` holder's; tell whether it is the caller's."""
    return bool(_TAKE_LOCK(client, [lock_key], [token, taken_ms, silent, rest_ms, slack_ms]))


def renew_lock(client: Any, tick_key: str, fence: Fence, idle_ms: int) -> str:
    """Let the lock live for its whole time; return its status."""
    return str(text_of(_RENEW_LOCK(client, fence.keys(tick_key), [*fence.args(), idle_ms])))


def release_lock(client: Any, lock_key: str, token: str, *, wake: str, mark: str = "") -> bool:
    """Give the lock up, and leave a ``mark`` that says so, if given; return whether it was the caller's."""
    return bool(_RELEASE_LOCK(client, [lock_key, mark or lock_key], [token, wake]))


def read_status(client: Any, schedule_key: str, lock_key: str | None, tick_key: str) -> Vitals:
    """Read who leads and how much is due; nothing is written."""
    keys = [schedule_key, lock_key or schedule_key, tick_key]
    now, token, rest_ms, tick, due, oldest = _READ_STATUS(client, keys, [])
    since = float(oldest) if oldest else None
    return Vitals(float(now), text_of(token), int(rest_ms), text_of(tick), int(due), since)
