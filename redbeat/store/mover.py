"""Moving entries from one part of the schedule to another, with all that is kept for them.

::

    source: hide  ->  target: receive  ->  source: drop, or put back what couldn't be written

Each step is one script in one part, checks that its caller is still the mover of that part, and does
nothing when it is repeated. Invariant: at each moment an entry is whole in one place: in its part, hidden
there, or in the other part; so another mover that goes on after a kill loses and doubles nothing. While it is
hidden, for some milliseconds, it can't be read.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from redis.exceptions import NoPermissionError

from redbeat.connection.retry import PROTOCOL_ERROR, RequestBroken, is_no_permission
from redbeat.errors import LayoutChanged, ReshardRefused, StoreCorrupt, StoreRefused, StoreUnavailable
from redbeat.keys import NO_PART, Keys
from redbeat.log.text import printable
from redbeat.process.signals import hold_interrupts
from redbeat.store.layouts import raise_generations
from redbeat.store.nodes import RawCommand
from redbeat.store.parts import in_chunks
from redbeat.store.records import text_of
from redbeat.store.scripts.script import Call, Script
from redbeat.store.store import Store, raised

if TYPE_CHECKING:
    from typing_extensions import Self

_HIDE_ENTRIES, _RECEIVE_ENTRIES = Script("hide_entries", is_raw=True), Script("receive_entries", is_raw=True)
_END_HIDING, _CLOSE_PART = Script("end_hiding", is_raw=True), Script("close_part", is_raw=True)
_TAKE_LOCK, _RELEASE_LOCK = Script("take_lock", is_raw=True), Script("release_lock", is_raw=True)

#: the error of a script whose caller isn't the mover any more
FENCED = "MOVER Another process"
_ANOTHER_MOVER = "Another process moves these entries by now (celery redbeat reshard): this one stops."
#: how many entries are sorted by where they go
SORTED_ITEMS = 2000
#: how many entries are hidden at the same time, and how many bytes of them: the server does nothing else then
CALL_ITEMS, CALL_BYTES = 50, 1024 * 1024
#: what is due within this time stays where it is, so that none is on its way when it is due
MARGIN_SECONDS = 0.2
#: how long Ctrl-C waits for what is hidden to arrive
INTERRUPT_SECONDS = 5.0
#: for how long a part keeps its mover unless that is renewed, and how often it is
LEASE_MS, RENEW_SECONDS = 5000, 1.0
#: how long another mover that was killed is waited for, and how often it is looked whether it has ended
WAIT_SECONDS, LOOK_SECONDS = 2 * LEASE_MS / 1000, 0.1


class Stray(NamedTuple):
    """An entry, or something of a part's own, that stands in one part of the schedule and belongs to another.

    Attributes:
        name: the entry's; or what is the part's own, with a colon in front.
        kept: which keys may be kept for it: of each its kind, as ``Keys.kinds`` has it, and what follows the
            prefix.
        owners: whose ``beat_schedule`` has it, as far as is known.
    """

    source: Keys
    target: Keys
    name: str
    kept: tuple[tuple[str, str], ...]
    owners: tuple[str, ...] = ()


class Move(NamedTuple):
    """What was hidden together, on its way from one part to another.

    Attributes:
        id: the move's, one that no other move has.
        rows: of each item its name, the record of what it was in its part (JSON), and what each of its keys
            holds, as the server's own bytes.
    """

    id: str
    source: Keys
    target: Keys
    rows: list[list[bytes]]


@dataclass
class Tally:
    """What a mover has done.

    Attributes:
        moved: how many entries, and other things, were moved.
        unmerged: the keys of what couldn't be merged with what stood there; it is kept under these.
        unmoved: the names of those that couldn't be moved, and stay where they are, each to the reason.
    """

    moved: int = 0
    unmerged: list[str] = field(default_factory=list)
    unmoved: dict[str, str] = field(default_factory=dict)


class Mover:
    """Moves entries between parts of the schedule of ``store``; each part has one mover at a time.

    It is a context manager: at its end it is no part's mover any more. Every method raises what the store's
    do, and ReshardRefused: another process moves these entries by now, or they are in another layout.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.token = secrets.token_hex(16)
        self.tally = Tally()
        self._move_seconds = 0.0  # how long the last move has taken
        self._move_items = CALL_ITEMS
        self._parts: dict[str, Keys] = {}  # by prefix: the parts that this mover holds
        self._renew_at = 0.0
        #: called with how many were moved by now
        self.on_progress: Callable[[int], None] = lambda _moved: None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: object, _traceback: object) -> None:
        parts, self._parts = self._parts.values(), {}
        if isinstance(error, StoreUnavailable):
            return  # its leases end by themselves
        about: Any = {"mark": None, "token": self.token}
        self._store.ask_all([_RELEASE_LOCK.call(lock=part.mover, wake=part.wake, **about) for part in parts])

    def take(self, parts: Iterable[Keys], wait_seconds: float = 0.0) -> bool:
        """Become the mover of these parts, too, and let them be written with their guards.

        Return False if other processes move entries of some.

        Arguments:
            wait_seconds: how long these are waited for.
        """
        taken = {part.prefix: part for part in parts}
        self._parts |= taken
        ends_at = time.monotonic() + wait_seconds
        while not self._has_leases():
            if time.monotonic() >= ends_at:
                return False
            time.sleep(LOOK_SECONDS)
        raise_generations(self._store, [*taken.values()])
        return True

    def renew(self) -> None:
        """Stay the mover, if it is time to say so."""
        if time.monotonic() >= self._renew_at:
            self._renew_at = time.monotonic() + RENEW_SECONDS
            if not self._has_leases():
                raise ReshardRefused(_ANOTHER_MOVER)

    def _has_leases(self) -> bool:
        """Take or renew the lease of each part; return False if another mover has one."""
        about: Any = {"token": self.token, "taken_ms": LEASE_MS, "mark": None, "silent": ""}
        about |= {"rest_ms": 0, "slack_ms": 0}
        locks = [part.mover for part in self._parts.values()]
        return all(self._store.ask_all([_TAKE_LOCK.call(NO_PART, lock=lock, **about) for lock in locks]))

    def close(self, part: Keys, unneeded: Sequence[str]) -> None:
        """Remove obsolete keys of a part."""
        self._call(_CLOSE_PART.call(part, token=self.token, removed=unneeded))

    def move_all(
        self, strays: Iterable[Stray], margin_seconds: float | None, *, is_foreign: bool = False
    ) -> list[Stray]:
        """Move strays to where they belong; return those that stay, as they are due.

        One that can't be written where it belongs stays where it is, and isn't tried again.

        Arguments:
            margin_seconds: what is due so soon stays; None: nothing does.
            is_foreign: they were written where they are by a program that doesn't know the layout.
        """
        due: list[Stray] = []
        for some in in_chunks(strays, SORTED_ITEMS):
            for _, those in groupby(sorted(some, key=_way_of), _way_of):
                self._move_items = CALL_ITEMS
                left = [one for one in those if printable(one.name) not in self.tally.unmoved]
                while left:
                    self.renew()
                    lot, left = left[: self._move_items], left[self._move_items :]
                    still_due, again = self._move(lot, margin_seconds, is_foreign)
                    due += still_due
                    left = again + left
        return due

    def _move(
        self, lot: Sequence[Stray], margin_seconds: float | None, is_foreign: bool
    ) -> tuple[list[Stray], list[Stray]]:
        """Move strays of one part to another one, all at the same time.

        Returns the strays that stay: due ones, and those to try once more, as the request was too large.
        """
        source, target = lot[0].source, lot[0].target
        if margin_seconds:  # a slow network takes longer
            margin_seconds = max(margin_seconds, 3 * self._move_seconds)
        with hold_interrupts(INTERRUPT_SECONDS):  # so that nothing is left hidden
            began, id_ = time.monotonic(), secrets.token_hex(8)
            replies = self._hide(
                source,
                [{"name": one.name, "kept": one.kept, "owners": one.owners} for one in lot],
                move=id_,
                target=target.prefix,
                margin=margin_seconds,
                is_foreign=is_foreign,
            )
            rows = [row for word, *row in replies if word == b"hidden"]
            again = self._deliver(Move(id_, source, target, rows)) if rows else []
            self._move_seconds = time.monotonic() - began
        words = [(one, word) for one, (word, *_) in zip(lot, replies, strict=True)]
        due = [one for one, word in words if word == b"due"]
        return due, [one for one, word in words if word == b"full" or one.name in again]

    def _deliver(self, move: Move) -> Collection[str]:
        """Write what was hidden to where it belongs, and drop it; put back what can't be written.

        Returns the names of what was put back and is to be tried once more, each in a request of its own.
        """
        error, why = None, ""
        try:
            written, refused = self._call(receive_call(self.token, move), self._store.watched())
        except (StoreRefused, StoreCorrupt) as exc:
            error, why = exc, str(exc.__cause__)
        if error is not None:  # if this fails, too, it is unknown whether it was written, and it stays hidden
            written, refused = self._call(receive_call(self.token, move, is_cancelled=True))
        names = [text_of(name) for name, *_ in move.rows]
        problems = {
            name: why or text_of(one)
            for name, one in zip(names, written, strict=True)
            if not isinstance(one, int)
        }
        about: Any = {"token": self.token, "move": move.id, **_beginnings(move.source)}
        returned = dict.fromkeys(problems, True)
        ending = _END_HIDING.call(move.source, names=names, returned=returned, **about)
        refused += self._call(ending)
        self.tally.unmerged += map(text_of, refused)
        self.tally.moved += len(names) - len(problems)
        self.on_progress(self.tally.moved)
        is_broken = isinstance(error, StoreRefused) and _is_broken(error.__cause__)
        if error is not None and not is_broken:
            raise error
        if is_broken and len(problems) > 1:
            self._move_items = 1
            return problems.keys()
        for name, problem in problems.items():
            if is_no_permission(problem):
                raised(self._store.answer_of(ending, NoPermissionError(problem)))
            if problem != "before":  # what couldn't be written before is tried once more
                self.tally.unmoved[printable(name)] = printable(problem)
        return ()

    def finish_hidden(self, parts: Iterable[Keys]) -> None:
        """Write what another mover has left hidden in ``parts`` to where it was to go.

        What was to go to none of them stays in its part.
        """
        by_prefix = {part.prefix: part for part in parts}
        hidden = self._store.ask_all([RawCommand("HKEYS", part.moving) for part in by_prefix.values()])
        for part, names in zip(by_prefix.values(), hidden, strict=True):
            moves: dict[str, Move] = {}
            for some in in_chunks(names, CALL_ITEMS):
                found = self._hide(part, [{"name": text_of(name)} for name in some])
                for row in (row for word, *row in found if word == b"hidden"):
                    id_, target = _goal_of(part, row)
                    move = moves.setdefault(id_, Move(id_, part, by_prefix.get(target, part), []))
                    move.rows.append(row)
            for move in moves.values():
                self._deliver(move)

    def _hide(self, source: Keys, items: Sequence[Any], **about: Any) -> list[list[bytes]]:
        """Hide items, or read those that are hidden without a ``target``."""
        about = {"move": "", "target": None, "margin": None, "is_foreign": False} | about
        about |= {"token": self.token, "max_bytes": CALL_BYTES, **_beginnings(source)}
        found: list[list[bytes]] = self._call(_HIDE_ENTRIES.call(source, items=items, **about))
        return found

    def _call(self, call: Call[Any], client: Any = None) -> Any:
        [answer] = self._store.try_all([call], client, is_following=False)
        is_fenced = isinstance(answer, StoreRefused) and FENCED in str(answer.__cause__)
        if is_fenced or isinstance(answer, LayoutChanged):
            raise ReshardRefused(_ANOTHER_MOVER) from answer
        return raised(answer)


def _way_of(stray: Stray) -> tuple[str, str]:
    return stray.source.prefix, stray.target.prefix


def _goal_of(part: Keys, row: Sequence[bytes]) -> tuple[str, str]:
    """Return the id of the move of a hidden item, and the prefix of the part where it goes."""
    name, record, *dumps = row
    try:
        noted = json.loads(text_of(record))
        if len(noted["kept"]) == len(dumps):
            return str(noted["id"]), str(noted["to"])
    except (ValueError, TypeError, KeyError):
        pass
    raise StoreCorrupt(
        f"{part.moving}: {printable(text_of(name))} stands there for no entry on its way: remove it.",
        part.moving,
    )


def _is_broken(error: BaseException | None) -> bool:
    """Return True if a request has ended its connection, as it is larger than the server takes."""
    return isinstance(error, RequestBroken) or PROTOCOL_ERROR in str(error)


def receive_call(token: str, move: Move, *, is_cancelled: bool = False) -> Call[Any]:
    """Return the call that writes what was hidden to the part where it goes.

    Arguments:
        is_cancelled: nothing is written, nor will be, unless that was done.
    """
    names = [text_of(name) for name, *_ in move.rows]
    rows = [] if is_cancelled else [*chain.from_iterable(row[1:] for row in move.rows)]
    about: Any = {"token": token, "move": move.id, **_beginnings(move.target)}
    return _RECEIVE_ENTRIES.call(move.target, names=names, rows=rows, **about)


def _beginnings(part: Keys) -> dict[str, str]:
    """Return how keys of a part begin that the scripts make."""
    return {"running_names": part.running(""), "owner_names": part.owner("")}
