"""Arguments and replies of the scripts as Python values. Scores and times are as the server writes them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, NamedTuple
from zlib import crc32

from redbeat.log.text import sha1_of_text


@dataclass(frozen=True)
class Fence:
    """What a write of the scheduler is checked against: the lock's key, its token, its time to live.

    ``mark`` is a key that says who has released the lock, and can't take it back; '': none does.
    """

    lock_key: str | None = None
    token: str = ""
    lock_ms: int = 0
    mark: str = ""


class LockStatus(Enum):
    """What a script has found the lock of the scheduler to be."""

    #: the caller's, or none is configured
    HELD = "ok"
    #: it was gone, perhaps with the data; the caller has it again, for 10 seconds
    RETAKEN = "retaken"
    #: another beat's; nothing was read or written
    LOST = "lost"

    @classmethod
    def _missing_(cls, reply: object) -> LockStatus | None:
        return cls(reply.decode()) if isinstance(reply, bytes) else None


#: what a key holds, by the words of TYPE: a hash, or nothing, as it is gone
HASH, MISSING = "hash", "none"


@dataclass(slots=True)  # not frozen, as making one would take five times as long
class Stored:
    """One entry as it is in Redis, or that there is none.

    Attributes:
        score: its due time in the schedule, UNIX seconds; None: it isn't in the schedule.
        type: of the key.
        unread_bytes: its size if it was too large to be read; 0: it was read.
        meta_mark: the mark beside the meta, as ``mark_of`` makes it; '': there is none. None: RedBeat has
            written the meta.
        revision: changes as soon as what was decided about the entry doesn't hold any more; '' for none.
        is_away: it was taken out for celery-redbeat 2.x; ``score`` is the one that it had.
        nominal: of a fetched entry, the score at which it was due: the server's own text, which it compares.
        current_score: likewise the score that it has now, another one only if fetches are leased.
        is_asked: a user has written the score 0 to run it now.
        next_score: it is due for a run that has waited for another one to end, and gets this score back
            after it; '': that isn't so.
        has_lease: it was asked for, or hidden from other beats.
        message: JSON of the stored message whose entry this is, '' if it has none; None: an entry of the
            schedule.
        body: what is stored of that message's body beside it; None: nothing.
        is_own: the key is one of RedBeat's own, which another program has added to the schedule.
        owner: the owner of the file from which it was applied, '' for none; None: it wasn't read.
    """

    key: str
    definition: str | None = None
    meta: str | None = None
    score: float | None = None
    policy: str | None = None
    error: str | None = None
    type: str = MISSING
    unread_bytes: int = 0
    meta_mark: str | None = None
    revision: str = ""
    is_away: bool = False
    nominal: str = ""
    current_score: str = ""
    is_asked: bool = False
    next_score: str = ""
    has_lease: bool = False
    message: str | None = None
    body: str | None = None
    is_own: bool = False
    owner: str | None = None

    @property
    def is_hash(self) -> bool:
        """Whether the key is a hash, or doesn't exist."""
        return self.type in (HASH, MISSING)

    @property
    def exists(self) -> bool:
        """Whether the key exists."""
        return self.type != MISSING or self.definition is not None or self.meta is not None

    @property
    def is_meta_foreign(self) -> bool:
        """Whether another program has written the meta, and perhaps no score that goes with it."""
        return bool(self.meta) and self.meta_mark is not None and self.meta_mark != mark_of(self.meta or "")

    @property
    def can_hold_error(self) -> bool:
        """Whether an error may be written to it."""
        return self.type == HASH and not self.is_own


class Deadline(NamedTuple):
    """A member of the deadlines whose time has come.

    Attributes:
        member: the run's task id, NUL, and the key of the hash that has its record.
        score: when that was, UNIX seconds as the server writes them.
        record: what is there; None: nothing.
    """

    member: str
    score: str
    record: str | None

    @property
    def task_id(self) -> str:
        """The run's; '': beat is to look at the entry: its waiting run may go, or it fails too often."""
        return self.member.partition("\0")[0]

    @property
    def running(self) -> str:
        """The key of the hash that has the run's record."""
        return self.member.partition("\0")[2]


@dataclass(frozen=True)
class Fetched:
    """Due entries, and what falls due next.

    Attributes:
        now: the server's clock in UNIX seconds.
        next_score: when the next entry is due that isn't due yet; None: there is none.
        has_more: more entries are due than were returned.
        is_ahead: it was asked for before the last batch was committed, so more may be due than it says.
        is_partial: due entries are left out, because their slot is being moved to another node.
        deadlines: the first 100 that have passed.
        next_deadline: when the next one passes, UNIX seconds; None: there is none.
        other_score: when the first stored message is to be sent, UNIX seconds, or in a fetch of these, when
            the first entry is due; None: there is none.
        names_calendars: an entry may refer to a calendar.
    """

    status: LockStatus
    now: float
    next_score: float | None
    has_more: bool
    rows: list[Stored]
    is_partial: bool = False
    is_ahead: bool = False
    deadlines: Sequence[Deadline] = ()
    next_deadline: float | None = None
    other_score: float | None = None
    names_calendars: bool = False


@dataclass(slots=True)
class Push:
    """One write to a broker: 'lpush' of a message to a list, 'pexpire' of a list in milliseconds, or
    'publish' of an event to a channel, which is never part of a commit.
    """

    command: str
    queue: str
    value: str | int


@dataclass(frozen=True)
class Target:
    """Where pushes go: the server's run id, the schedule's database there and the broker's."""

    server: str
    home_db: int
    broker_db: int


#: how many texts of an entry ``pack_entry`` packs
_TEXT_FIELDS = 8
#: fields of entries that scripts call otherwise
_FIELDS_OF_SCRIPTS = {"score": "current_score", "meta_crc32": "meta_mark"}

#: texts with more characters are compared by their SHA-1, as sending them again would take longer
MAX_COMPARED = 4_096

#: for commits that push no message
NOWHERE = Target("", 0, 0)


class Ending(Enum):
    """How an entry leaves the schedule; what is kept beside it is deleted in both cases."""

    #: its key stays as it is
    UNSCHEDULE = auto()
    #: its hash is deleted
    DELETE = auto()


class TrackedRun(NamedTuple):
    """What is noted of a run in progress, and what is recorded if another one holds it back.

    Runs that are due together share one.

    Attributes:
        due: when it is due, UNIX seconds as the server writes them.
        limits: of its record, as members of a JSON object, each after a comma: what doesn't change.
        queue_seconds: how long it may wait on its queue.
        overlap: the entry's policy.
        held_records: like the ``records`` of its commit; to the last is added why it is held back.
        held_score: the entry's next due time then.
    """

    due: str
    limits: str
    queue_seconds: float
    overlap: str
    held_records: tuple[str, ...] = ()
    held_score: str = ""

    @property
    def members(self) -> str:
        """All members of its record but its state and when it was sent."""
        return f'"due":"{self.due}"{self.limits}'


#: instead of an entry's overlap policy: the run's message has been published already,
PUBLISHED = "published"
#: and the run was reserved before that;
RESERVED = "reserved"
#: or it has waited for another run to end, and isn't sent at all
DROPPED = "dropped"


@dataclass(slots=True)
class Commit:
    """What to record about one fetched entry. A field of its hash whose new text is None stays as it is, and
    one whose new text is empty is removed.

    Attributes:
        new_score: the next due time as the server writes it, or how the entry leaves the schedule.
        is_for_this_definition: record nothing if the entry's definition has changed meanwhile.
        pushes: messages that are pushed in the same step, if the entry hasn't changed meanwhile.
        sent: due time of the run that is sent, UNIX seconds as the server writes them; '': none is.
        records: what is added to the history, the oldest first; (): that of the run that is sent, if any is.
        new_policy: only together with a ``new_definition``.
        valid_until: from then on nothing is recorded if there are pushes; UNIX seconds, None: for ever.
        run, task_id: the run that is tracked; None: it isn't, or there is none.
        is_published: its message has been published already, so that no other run can hold it back.
        counted: what is counted besides the run that is sent: words of ``redbeat.store.figures.WORDS``, each
            after a space.
        labels: the id of the labels under which that is counted; '': of all others.
    """

    due_entry: Stored
    new_score: str | Ending
    new_meta: str | None = None
    new_error: str | None = None
    is_for_this_definition: bool = False
    pushes: tuple[Push, ...] = ()
    new_definition: str | None = None
    sent: str = ""
    records: tuple[str, ...] = ()
    new_policy: str | None = None
    valid_until: float | None = None
    run: TrackedRun | None = None
    task_id: str = ""
    is_published: bool = False
    counted: str = ""
    labels: str = ""


class Held(NamedTuple):
    """Another run of its entry has held a run back, which isn't sent now; that is recorded.

    Attributes:
        by: the other run's task id.
        worker: which worker has begun it, or None.
        since: since when it has been in progress, UNIX seconds, or None.
        is_waiting: it goes when the other one has ended.
        members: what its record in the history says of that, as members of a JSON object.
        state: 'retrying', 'spawned', 'reserved', or None, as in ``redbeat.history.PastRun``.
        behind: the task id of the run that waits already, so that this one is left out, or None.
    """

    by: str
    worker: str | None = None
    since: float | None = None
    is_waiting: bool = False
    members: str = ""
    state: str | None = None
    behind: str | None = None


class Reserved(Enum):
    """A run may be published, or was."""

    #: it is noted as in progress: it may be published now
    NOW = auto()
    #: it has been published already, by a beat that ended before it recorded that
    BEFORE = auto()


#: whether a run may be published; a str: why its entry's runs in progress can't be read
Reservation = Reserved | Held | str

#: the outcome of one commit
Result = bool | str | Held


@dataclass(frozen=True)
class Committed:
    """The outcomes of commits.

    Attributes:
        is_moved: the pushes were for another server, so none was made.
        results: for each commit True: it was recorded, and its messages pushed; False: the entry has changed,
            and was left alone; or why nothing was pushed: the server's error, and the entry was left alone,
            or the run that has held it back.
        unrecorded: the server's error if a record couldn't be added to a history; '': all were.
    """

    status: LockStatus
    is_moved: bool
    results: list[Result]
    unrecorded: str = ""


@dataclass(slots=True)
class Write:
    """What to store of an entry.

    An empty definition, meta or revision stays as it is, and so do a policy, an error, an owner or a score of
    None; of '' each of the first three is removed. A new definition, policy or revision removes the error.

    Attributes:
        score: UNIX seconds.
        record: is added to the entry's history afterwards, if that is possible.
        is_meta_foreign: the meta comes from a file, and another program had written it.
        owner: of the file from which it is applied.
        past: the texts of its history, and the due times that were sent by hand, in place of what there is of
            both; None: that stays.
        is_unscheduled: it leaves the schedule.
        is_replaced: nothing of what was stored of it stays.
    """

    definition: str = ""
    meta: str = ""
    score: float | None = None
    must_exist: bool = False
    policy: str | None = None
    record: str = ""
    revision: str = ""
    is_meta_foreign: bool = False
    error: str | None = None
    owner: str | None = None
    past: tuple[Sequence[str], Sequence[str]] | None = None
    is_unscheduled: bool = False
    is_replaced: bool = False

    def changes(self, stored: Stored) -> bool:
        """Return True if this write would change ``stored``."""
        if self.definition and (self.definition != stored.definition or stored.error is not None):
            return True
        if self.revision or (self.meta and (self.meta != stored.meta or stored.is_meta_foreign)):
            return True
        if self.policy is not None and self.policy != (stored.policy or ""):
            return True
        return self.score is not None and score_text(self.score) != score_text(stored.score)


class Change(NamedTuple):
    """What becomes of one entry: it is made only if the entry is still as it was read.

    Attributes:
        stored: what was read of it.
        write: what is stored; None: it is deleted, with all that is kept for it.
    """

    stored: Stored
    write: Write | None

    @property
    def is_stored(self) -> bool:
        """Whether anything is stored of the entry: it isn't deleted, or only compared."""
        return self.write not in (None, Write(owner=self.stored.owner))


class Head(NamedTuple):
    """What a waiting beat looks at.

    Attributes:
        now: the server's clock in UNIX seconds.
        score: when the first entry is due, UNIX seconds; None: none is.
        deadline: when a run in progress must be looked at, UNIX seconds; None: there is none.
        later: when the first stored message is to be sent, UNIX seconds; None: there is none.
    """

    now: float
    score: float | None
    deadline: float | None = None
    later: float | None = None

    @property
    def is_due(self) -> bool:
        """Whether one of those times has come."""
        return any(at is not None and at <= self.now for at in (self.score, self.deadline, self.later))


def score_text(score: float | None) -> str:
    """Return ``score`` as the scripts take it, to the microsecond; '' for None."""
    return "" if score is None else f"{score:.6f}"


def text_of(value: Any) -> Any:
    """Return ``value`` as text, also if an injected client doesn't decode its replies."""
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value


def dict_of(flat: Iterable[Any]) -> dict[str, str]:
    """Return the texts of a list of name, value, name, value and so on, by the names."""
    texts = iter(map(text_of, flat))
    return dict(zip(texts, texts, strict=True))


def mark_of(meta: str) -> str:
    """Return the mark that stands beside a meta of RedBeat's own: programs that don't know it leave it."""
    return str(crc32(meta.encode("utf-8", "surrogateescape")))


def digest_of(text: str) -> str:
    """Return ``text`` as a script compares it: itself, or for a long one '#' and its SHA-1."""
    if len(text) <= MAX_COMPARED and text[:1] != "#":  # else it might be taken for a SHA-1
        return text
    return f"#{sha1_of_text(text)}"


def texts_of(row: Stored) -> str:
    """Return what decisions about an entry rest on, as the scripts compare it."""
    if not row.policy and not row.revision:
        return row.definition or ""
    return f"{row.definition or ''}\0{row.policy or ''}\0{row.revision}"


def read_of(stored: Stored) -> str:
    """Return what was read of an entry, as ``match_entry`` compares it."""
    if not stored.exists:
        return ""
    if not stored.is_hash:
        return stored.type
    return f"={stored.unread_bytes}" if stored.unread_bytes else digest_of(f"{texts_of(stored)}\0")


def held_of(members: str) -> Held:
    """Return what has held a run back, by the members that were added to its record."""
    found = json.loads(f"{{{members}}}")
    is_waiting = found["outcome"] == "waiting"
    by, worker, since = str(found["held_by"]), found.get("worker"), found.get("since")
    return Held(by, worker, since, is_waiting, members, found.get("held_state"), found.get("behind"))


def entries_of(others: str | bytes, texts: str | bytes) -> list[Stored]:
    """Return the entries that a script has packed."""
    if not texts:
        return []
    apart = iter(text_of(texts).split("\0"))
    found = [  # a batch may have thousands: this is written for speed
        Stored(
            key,
            definition or None,
            meta or None,
            float(score) if score else None,
            policy or None,
            error or None,
            HASH,
            0,
            mark,
            nominal=score,
            current_score=score,
            message=message or None,
        )
        for key, score, definition, meta, policy, error, mark, message in zip(
            *[apart] * _TEXT_FIELDS, strict=True
        )
    ]
    for one in json.loads(text_of(others)):  # what few entries have
        row = found[one.pop("row") - 1]
        for field, value in one.items():
            setattr(row, _FIELDS_OF_SCRIPTS.get(field, field), value)
    return found


def fetched_of(reply: Sequence[Any]) -> Fetched:
    """Return what a reply of fetch_due says."""
    status, now, upcoming, has_more, others, texts, deadlines, next_deadline, other_head = reply
    others, texts = text_of(others), text_of(texts)
    return Fetched(
        status=LockStatus(status),
        now=float(now),
        next_score=float(upcoming) if upcoming else None,
        has_more=bool(has_more),
        rows=entries_of(others, texts),
        deadlines=[Deadline(*map(text_of, row)) for row in deadlines] if deadlines else (),
        next_deadline=float(next_deadline) if next_deadline else None,
        other_score=float(other_head) if other_head else None,
        names_calendars="exclude" in others or "exclude" in texts,
    )


def committed_of(reply: Sequence[Any]) -> Committed:
    """Return what a reply of commit_runs says."""
    status, is_moved, digits, reasons, unrecorded = reply
    told = map(text_of, reasons)
    results = list[Result]()
    for digit in text_of(digits):
        if digit in "01":
            results.append(digit == "1")
        else:
            results.append(next(told) if digit == "2" else held_of(next(told)))
    return Committed(LockStatus(status), bool(is_moved), results, text_of(unrecorded))
