"""What the scripts take and return, as Python values. Scores and times stand as the server writes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache
from typing import Any, NamedTuple

from redbeat.log.text import sha1_of_text


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
        is_asked: somebody wrote the score 0 to run it now.
        unread_bytes: how many bytes it has when it is too large to be read; 0: it was read.
    """

    key: str
    nominal: str
    definition: str | None = None
    meta: str | None = None
    policy: str | None = None
    error: str | None = None
    score: str = ""
    type: str = "hash"
    is_asked: bool = False
    unread_bytes: int = 0


class Sizes(NamedTuple):
    """Which entries are claimed, by their size in bytes; ``to_bytes`` 0: however large."""

    from_bytes: int
    to_bytes: int


ALL_SIZES = Sizes(0, 0)


@dataclass(frozen=True)
class Claim:
    """What one look at the schedule found.

    Attributes:
        status: 'ok'; 'retaken': the lock was gone, perhaps with the data, and is the caller's again; 'lost':
            another beat holds it, and nothing was read.
        now: the server's clock in UNIX seconds.
        next_score: when the first entry that isn't due yet will be, None when there is none.
        has_more: more is due than was returned, besides what is larger than was asked for.
        is_held: something that is larger than was asked for is due.
        is_partial: entries that are due are left out: their slot is being moved to another node.
    """

    status: str
    now: float
    next_score: float | None
    has_more: bool
    rows: list[Claimed]
    is_held: bool = False
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


@dataclass(frozen=True)
class Histories:
    """Where records of runs go.

    Attributes:
        keys_of: the keys of what is kept beside an entry, by its own key: the history first.
        kept: how many records of an entry are, 0: none.
    """

    keys_of: Callable[[str], Sequence[str]]
    kept: int


NO_HISTORIES = Histories(lambda _key: (), 0)

#: longer texts, in characters, are compared by their SHA-1: to send them once more would take longer
MAX_COMPARED = 4_096

#: for commits that push no message
NOWHERE = Target("", 0, 0)


class Ending(Enum):
    """How an entry leaves the schedule; what is kept beside it goes, too."""

    #: its key is left as it is
    UNSCHEDULE = auto()
    #: its hash goes with it
    DELETE = auto()


class Clear(Enum):
    """No new text for a field of an entry's hash: the field is removed."""

    FIELD = auto()


@dataclass(slots=True)
class Commit:
    """What to record about one claimed entry. A field of its hash whose new text is None stays as it is.

    Attributes:
        new_score: the next due time as the server writes it; or how the entry leaves the schedule.
        is_for_this_definition: nothing is recorded when the entry has another definition by then.
        pushes: made in the same step, if nothing about the entry has changed by then.
        records: what goes into the history, the oldest first.
        new_policy: stands beside a ``new_definition`` only.
    """

    claimed: Claimed
    new_score: str | Ending
    new_meta: str | None = None
    new_error: str | Clear | None = None
    is_for_this_definition: bool = False
    pushes: tuple[Push, ...] = ()
    new_definition: str | None = None
    records: tuple[str, ...] = ()
    new_policy: str | Clear | None = None

    def with_pushes(self, pushes: tuple[Push, ...]) -> Commit:
        """Return the same commit with messages."""
        return Commit(
            self.claimed,
            self.new_score,
            self.new_meta,
            self.new_error,
            self.is_for_this_definition,
            pushes,
            self.new_definition,
            self.records,
            self.new_policy,
        )


@dataclass(frozen=True)
class Committed:
    """What became of commits.

    Attributes:
        status: as a Claim's.
        is_moved: the server isn't the one that the pushes were for: none was made.
        results: for each commit True: recorded (and pushed); False: the entry was left alone; or the server's
            words when a push was refused, and the entry was left alone.
        unrecorded: the server's words when a record couldn't be added to a history, '' when all were.
    """

    status: str
    is_moved: bool
    results: list[bool | str]
    unrecorded: str = ""


@dataclass(slots=True)
class Stored:
    """One entry as it stands in Redis; all None where there is none.

    Attributes:
        score: its due time in the schedule, UNIX seconds; None: it isn't in the schedule.
        type: what the key holds, 'hash' where all is well.
        unread_bytes: how many bytes it has when it is too large to be read; 0: it was read.
        is_away: it was taken out for celery-redbeat 2.x, and ``score`` is what it had and will have again.
    """

    key: str
    definition: str | None = None
    meta: str | None = None
    score: float | None = None
    policy: str | None = None
    error: str | None = None
    type: str = "none"
    unread_bytes: int = 0
    is_away: bool = False

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

    ``score`` is UNIX seconds. ``record`` goes into the entry's history, if it can, once the rest is written.
    """

    definition: str = ""
    meta: str = ""
    score: float | None = None
    must_exist: bool = False
    policy: str | None = None
    record: str = ""

    def changes(self, stored: Stored) -> bool:
        """Tell whether ``stored`` is another one after this write."""
        if self.definition and (self.definition != stored.definition or stored.error is not None):
            return True
        if self.meta and self.meta != stored.meta:
            return True
        if self.policy is not None and self.policy != (stored.policy or ""):
            return True
        return self.score is not None and score_text(self.score) != score_text(stored.score)


class Head(NamedTuple):
    """What a waiting beat looks at.

    Attributes:
        now: the server's clock in UNIX seconds.
        score: when the first entry is due, UNIX seconds; None: none is.
    """

    now: float
    score: float | None

    @property
    def is_due(self) -> bool:
        """Whether that time has come."""
        return self.score is not None and self.score <= self.now


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


def digest_of(text: str) -> str:
    """Return ``text`` as a script compares it: itself, and of a long one '#' and its SHA-1."""
    if len(text) <= MAX_COMPARED:
        return text
    return f"#{sha1_of_text(text)}"


def claimed_of(row: Sequence[Any]) -> Claimed:
    """Return the entry that a row of claim_due is."""
    claimed = Claimed(*map(text_of, row))
    claimed.is_asked = bool(claimed.is_asked)
    claimed.score = claimed.score or claimed.nominal
    claimed.type = claimed.type or "hash"
    claimed.unread_bytes = claimed.unread_bytes or 0
    return claimed


def stored_of(key: str, row: Sequence[Any] | None) -> Stored:
    """Return the entry that a row of read_entries is."""
    if row is None:
        return Stored(key)
    values = [*map(text_of, row), *_ALL_MISSING[len(row) :]]
    definition, meta, score, policy, error, kind, unread = values
    return Stored(key, definition, meta, score and float(score), policy, error, kind or "hash", unread or 0)


_ALL_MISSING = (None,) * 7
