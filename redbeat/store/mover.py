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
import math
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

from redis.exceptions import NoPermissionError, ResponseError

from redbeat.connection.retry import PROTOCOL_ERROR, RequestBroken, is_no_permission
from redbeat.errors import ReshardRefused, StoreCorrupt
from redbeat.keys import NO_PART, Keys
from redbeat.log.text import as_stored, printable
from redbeat.process.signals import hold_interrupts
from redbeat.store.nodes import call_on_nodes
from redbeat.store.parts import in_chunks
from redbeat.store.records import text_of
from redbeat.store.scripts.script import Call, Script
from redbeat.store.store import Store

_HIDE_ENTRIES, _RECEIVE_ENTRIES = Script("hide_entries", is_raw=True), Script("receive_entries", is_raw=True)
_END_HIDING, _READ_HIDDEN = Script("end_hiding", is_raw=True), Script("read_hidden", is_raw=True)
_CLOSE_PART, _RAISE_GENERATION = Script("close_part", is_raw=True), Script("raise_generation", is_raw=True)
_TAKE_LOCK, _RELEASE_LOCK = Script("take_lock", is_raw=True), Script("release_lock", is_raw=True)

#: the error of a script whose caller isn't the mover any more
FENCED = "MOVER Another process"
#: how many entries are hidden at the same time
ROUND_ITEMS = 200
#: how many entries one script hides at most, and how many bytes of them: the server does nothing else then
CALL_ITEMS, CALL_BYTES = 50, 1024 * 1024
#: what is due within this time stays where it is, so that none is on its way when it is due
MARGIN_SECONDS = 0.2
#: how long Ctrl-C waits for what is hidden to arrive
INTERRUPT_SECONDS = 5.0
#: for how long a part keeps its mover unless that is renewed, and how often it is
LEASE_MS, RENEW_SECONDS = 5000, 1.0


class Stray(NamedTuple):
    """An entry, or something of a part's own, that stands in one part of the schedule and belongs to another.

    Attributes:
        name: the entry's; or what is the part's own, with a colon in front.
        kept: which keys may be kept for it: of each its kind, as ``Keys.kinds`` has it, and the rest.
        owners: whose ``beat_schedule`` has it, as far as is known.
    """

    source: Keys
    target: Keys
    name: str
    kept: tuple[tuple[str, str], ...]
    owners: tuple[str, ...] = ()


class Hidden(NamedTuple):
    """What was hidden of an item, as the server's own bytes.

    Attributes:
        name: the item's.
        record: what it was in its part, JSON.
        values: four for each key: its kind, the rest of it, when it ends, and what it holds.
    """

    name: bytes
    record: bytes = b""
    values: Sequence[bytes] = ()

    def size(self) -> int:
        """Return how many bytes it has."""
        return sum(map(len, self.values))


class Move(NamedTuple):
    """What was hidden together, on its way from one part to another.

    Attributes:
        id: the move's, one that no other move has.
    """

    id: str
    source: Keys
    target: Keys
    items: Sequence[Hidden]


@dataclass
class Tally:
    """What a mover has done.

    Attributes:
        moved: how many entries, and other things, were moved.
        unmerged: the keys of what couldn't be merged with what stood there; it is kept under these.
        unmoved: the names of those that couldn't be moved, and stay where they are, each to the reason.
        longest_hidden_seconds: for how long any of them was hidden at most.
    """

    moved: int = 0
    unmerged: list[str] = field(default_factory=list)
    unmoved: dict[str, str] = field(default_factory=dict)
    longest_hidden_seconds: float = 0.0


class Mover:
    """Moves entries between parts of the schedule of ``store``; each part has one mover at a time.

    Every method raises what the store's do, and ReshardRefused: another process moves these entries by now,
    or they are in another layout.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.token = secrets.token_hex(16)
        self.tally = Tally()
        self._round_seconds = 0.0  # how long the last round has taken
        self._unmovable = set[tuple[str, str]]()  # by the generation keys of their parts, and their names
        self._parts: dict[str, Keys] = {}  # by generation key: the parts that this mover holds
        self._renew_at = 0.0
        #: called with how many were moved by now
        self.on_progress: Callable[[int], None] = lambda _moved: None

    def open(self, parts: Iterable[Keys]) -> None:
        """Let parts be written with their guards, and become their mover, whichever one they have."""
        opened = list(parts)
        self._parts |= {part.generation: part for part in opened}
        about: Any = {"token": self.token, "lease_ms": LEASE_MS}
        found = self._call([_RAISE_GENERATION.call(part, **about) for part in opened])
        for part, text in zip(opened, found, strict=True):
            if text.decode() != part.guard:
                raise ReshardRefused(f"The shards were changed once more meanwhile ({part.generation}).")

    def borrow(self, parts: Sequence[Keys]) -> list[Keys]:
        """Become the mover of parts for a while; return those that have no other mover now."""
        about: Any = {"token": self.token, "taken_ms": LEASE_MS, "mark": None, "silent": ""}
        about |= {"rest_ms": 0, "slack_ms": 0}
        found = self._call([_TAKE_LOCK.call(NO_PART, lock=part.mover, **about) for part in parts])
        mine = [part for part, is_mine in zip(parts, found, strict=True) if is_mine]
        self._parts |= {part.generation: part for part in mine}
        return mine

    def renew(self) -> None:
        """Stay the mover, if it is time to say so."""
        if time.monotonic() < self._renew_at:
            return
        self._renew_at = time.monotonic() + RENEW_SECONDS
        if len(self.borrow([*self._parts.values()])) < len(self._parts):
            raise _another_mover()

    def give_back(self) -> None:
        """Be no part's mover any more."""
        parts, self._parts = self._parts.values(), {}
        about: Any = {"mark": None, "token": self.token}
        self._call([_RELEASE_LOCK.call(lock=part.mover, wake=part.wake, **about) for part in parts])

    def close(self, unneeded: Mapping[Keys, Iterable[str]]) -> None:
        """Remove obsolete keys of parts."""
        self._call(
            [
                _CLOSE_PART.call(part, token=self.token, removed=sorted(keys))
                for part, keys in unneeded.items()
            ]
        )

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
        for some in in_chunks(strays, ROUND_ITEMS):
            left = [one for one in some if _place_of(one) not in self._unmovable]
            while left:
                self.renew()
                found, left = self._move(left, margin_seconds, is_foreign=is_foreign)
                due += found
        return due

    def _move(
        self, strays: Sequence[Stray], margin_seconds: float | None, *, is_foreign: bool
    ) -> tuple[list[Stray], list[Stray]]:
        """Move all of ``strays`` at the same time.

        Returns the strays that stay: due ones, and those to try once more, as the request was too large.
        """
        if margin_seconds:  # a slow network takes longer
            margin_seconds = max(margin_seconds, 3 * self._round_seconds)
        due, left, moves = list[Stray](), list[Stray](), list[Move]()
        with hold_interrupts(INTERRUPT_SECONDS):  # so that nothing is left hidden
            began = time.monotonic()
            ordered = sorted(strays, key=_way_of)
            ways = (those for _, those in groupby(ordered, _way_of))
            lots = [(secrets.token_hex(8), lot) for those in ways for lot in in_chunks(those, CALL_ITEMS)]
            calls = [_hide_call(self.token, id_, lot, margin_seconds, is_foreign) for id_, lot in lots]
            replies = self._try(calls)
            for (id_, lot), rows in zip(lots, replies, strict=True):
                if isinstance(rows, Exception):
                    continue
                found: list[Hidden] = []
                for stray, (word, *values) in zip(lot, rows, strict=True):
                    if word == b"hidden":
                        found.append(Hidden(as_stored(stray.name), values[0], values[1:]))
                    elif word in (b"due", b"full"):
                        (due if word == b"due" else left).append(stray)
                if found:
                    moves.append(Move(id_, lot[0].source, lot[0].target, found))
            again = self._deliver(moves, began)
            self._round_seconds = time.monotonic() - began
            self._raise_first(replies)
        return due, left + [one for one in strays if _place_of(one) in again]

    def _deliver(self, moves: Sequence[Move], began: float = math.inf) -> set[tuple[str, str]]:
        """Write what was hidden to where it belongs, and drop it; put back what can't be written.

        Returns what was put back and is to be tried once more, without the item that was too large.

        Arguments:
            began: when this process has hidden it, monotonic.
        """
        calls = [receive_call(one.target, self.token, one.id, one.items) for one in moves]
        replies = self._try(calls, self._store.watched() if calls else None)
        if moves:
            longest = self.tally.longest_hidden_seconds
            self.tally.longest_hidden_seconds = max(longest, time.monotonic() - began)
        ended, again, errors = list[tuple[Move, bool]](), set[tuple[str, str]](), list[Any]()
        for move, reply in zip(moves, replies, strict=True):
            problems = self._problems_of(move, reply)
            if problems is None:  # it is unknown whether it was written, so it stays hidden
                errors.append(reply)
                continue
            arrived = [item for item, why in zip(move.items, problems, strict=True) if not why]
            back = [item for item, why in zip(move.items, problems, strict=True) if why]
            ended += [(move._replace(items=arrived), True), (move._replace(items=back), False)]
            self.tally.moved += len(arrived)
            failed = {text_of(item.name): why for item, why in zip(move.items, problems, strict=True) if why}
            if failed and _is_broken(reply):
                largest = text_of(max(back, key=Hidden.size).name)
                again |= {(move.source.generation, name) for name in failed if name != largest}
                failed = {largest: failed[largest]}
            elif isinstance(reply, Exception):
                errors.append(reply)
                continue
            errors += self._note_unmoved(move.source, failed)
        for refused in self._call([self._end_call(*one) for one in ended if one[0].items]):
            self.tally.unmerged += map(text_of, refused)
        self.on_progress(self.tally.moved)
        self._raise_first(errors)
        return again

    def _problems_of(self, move: Move, reply: Any) -> list[str] | None:
        """Return why each item couldn't be written, '': it was; None: that can't be found out."""
        if not isinstance(reply, Exception):
            written, refused = reply
            self.tally.unmerged += map(text_of, refused)
            return ["" if isinstance(one, int) else text_of(one) for one in written]
        if not isinstance(reply, ResponseError) or _refusal_of(reply):
            return None
        names = [Hidden(item.name) for item in move.items]
        [answer] = self._try([receive_call(move.target, self.token, move.id, names, is_cancelled=True)])
        if isinstance(answer, Exception):
            return None
        return ["" if isinstance(one, int) else str(reply) for one in answer[0]]

    def _note_unmoved(self, source: Keys, failed: Mapping[str, str]) -> list[Exception]:
        """Note what can't be moved, by its name, and why; return the errors that concern all."""
        errors: list[Exception] = []
        for name, why in failed.items():
            if is_no_permission(why):
                errors.append(NoPermissionError(why))
            elif why != "before":  # what couldn't be written before is tried once more
                self._unmovable.add((source.generation, name))
                self.tally.unmoved[printable(name)] = printable(why)
        return errors

    def _end_call(self, move: Move, has_arrived: bool) -> Call[Any]:
        """Return the call that drops what was hidden and has arrived elsewhere, or puts it back."""
        return _END_HIDING.call(
            move.source,
            token=self.token,
            move=move.id,
            kinds=_kinds_in(move.source),
            names=[text_of(item.name) for item in move.items],
            has_arrived=has_arrived,
        )

    def finish_hidden(self, parts: Sequence[Keys], known: Iterable[Keys] = ()) -> None:
        """Write what another mover has left hidden in ``parts`` to where it was to go.

        Arguments:
            known: other parts to which it may go; what was to go elsewhere stays in its part.
        """
        by_beginning = {part.entry(""): part for part in (*known, *parts)}
        waiting = list(parts)
        while waiting:
            about: Any = {"token": self.token, "limit": CALL_ITEMS}
            found = self._call([_READ_HIDDEN.call(one, kinds=_kinds_in(one), **about) for one in waiting])
            moves: list[Move] = []
            for part, rows in zip(waiting, found, strict=True):
                if items := [Hidden(name, record, values) for name, _, record, *values in rows]:
                    id_, target = _goal_of(part, items[0])
                    moves.append(Move(id_, part, by_beginning.get(target, part), items))
            waiting = [one.source for one in moves]
            self._deliver(moves)

    def _call(self, calls: Sequence[Call[Any]]) -> list[Any]:
        replies = self._try(calls)
        self._raise_first(replies)
        return replies

    def _try(self, calls: Sequence[Call[Any]], client: Any = None) -> list[Any]:
        if not calls:
            return []
        with self._store.translating():
            return call_on_nodes(client or self._store.client, calls)

    def _raise_first(self, replies: Iterable[Any]) -> None:
        for reply in replies:
            if not isinstance(reply, Exception):
                continue
            refused = _refusal_of(reply)
            if refused is not None:
                raise refused from reply
            own = ("moving", "arrived", "left", "mover")
            keys = [part.own(name) for part in self._parts.values() for name in own]
            with self._store.translating(*keys):
                raise reply


def _place_of(stray: Stray) -> tuple[str, str]:
    return stray.source.generation, stray.name


def _way_of(stray: Stray) -> tuple[str, str]:
    return stray.source.prefix, stray.target.prefix


def _goal_of(part: Keys, item: Hidden) -> tuple[str, str]:
    """Return the id of the move of a hidden item, and how the keys of entries begin where it goes."""
    try:
        noted = json.loads(text_of(item.record))
        return str(noted["id"]), str(noted["to"])
    except (ValueError, TypeError, KeyError):
        field = printable(item.name.decode("utf-8", "backslashreplace"))
        raise StoreCorrupt(
            f"{part.moving}: {field} stands there for no entry on its way: remove it.", part.moving
        ) from None


def _another_mover() -> ReshardRefused:
    return ReshardRefused(
        "Another process moves these entries by now (celery redbeat reshard): this one stops."
    )


def _refusal_of(exc: Exception) -> ReshardRefused | None:
    """Return what a script refuses whose caller isn't the mover any more; None: another error."""
    if FENCED in str(exc):
        return _another_mover()
    return ReshardRefused("The shards were changed once more meanwhile.") if "RESHARDED" in str(exc) else None


def _is_broken(reply: Any) -> bool:
    """Return True if a request has ended its connection, as it is larger than the server takes."""
    return isinstance(reply, ResponseError) and (
        isinstance(reply, RequestBroken) or PROTOCOL_ERROR in str(reply)
    )


def _hide_call(
    token: str, move: str, strays: Sequence[Stray], margin_seconds: float | None, is_foreign: bool
) -> Call[Any]:
    source, target = strays[0].source, strays[0].target
    return _HIDE_ENTRIES.call(
        source,
        token=token,
        move=move,
        target=target.entry(""),
        margin=margin_seconds,
        is_foreign=is_foreign,
        max_bytes=CALL_BYTES,
        kinds=_kinds_in(source),
        items=[{"name": one.name, "kept": one.kept, "owners": one.owners} for one in strays],
    )


def receive_call(
    part: Keys, token: str, move: str, items: Sequence[Hidden], *, is_cancelled: bool = False
) -> Call[Any]:
    """Return the call that writes what was hidden to ``part``.

    Arguments:
        is_cancelled: nothing is written, nor will be, unless that was done; the names are enough for it.
    """
    rows = []
    for item in items:
        values = (map(text_of, item.values[place::4]) for place in range(3))
        kept = [dict(zip(("kind", "rest", "ends_at"), one, strict=True)) for one in zip(*values, strict=True)]
        rows.append({"name": text_of(item.name), "record": text_of(item.record), "kept": kept})
    dumps = [dump for item in items for dump in item.values[3::4]]
    about: Any = {"token": token, "move": move, "kinds": _kinds_in(part), "is_cancelled": is_cancelled}
    return _RECEIVE_ENTRIES.call(part, items=rows, dumps=dumps, **about)


def _kinds_in(part: Keys) -> dict[str, dict[str, str]]:
    return {
        word: {"key": beginning, "hidden": part.hidden(word), "unmoved": part.unmoved(word)}
        for word, beginning in part.kinds.items()
    }
