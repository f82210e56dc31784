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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
_CHANGE_OWNED, _CLOSE_PART = Script("change_owned", is_raw=True), Script("close_part", is_raw=True)
_TAKE_LOCK, _RELEASE_LOCK = Script("take_lock", is_raw=True), Script("release_lock", is_raw=True)
_RAISE_GENERATION = Script("raise_generation", is_raw=True)

#: the error of a script whose caller isn't the mover any more
FENCED = "MOVER Another process"
#: how many entries one script hides at most, and how many bytes of them: the server does nothing else then
CALL_ITEMS, CALL_BYTES = 50, 1024 * 1024
#: how many entries are hidden at the same time: as many as are written within this time
ROUND_SECONDS = 0.08
MIN_ROUND, MAX_ROUND = 50, 500
#: what is due within this time stays where it is, so that none is on its way when it is due
MARGIN_SECONDS = 0.2
#: how long Ctrl-C waits for what is hidden to arrive
INTERRUPT_SECONDS = 5.0
#: for how long another process may not move entries of a part that this one moves some of
LEASE_MS = 30_000


class OnItsWay(NamedTuple):
    """What a part notes of something that it has hidden.

    Attributes:
        move: the id of the move.
        target: how the keys of entries begin in the part to which it goes.
        since: when it was hidden, UNIX seconds.
    """

    move: str
    target: str
    since: float


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


class Owned(NamedTuple):
    """Names that stand among those of an owner in one part of the schedule, and belong to another."""

    source: Keys
    target: Keys
    owner: str
    names: Sequence[str]


class Kept(NamedTuple):
    """What was hidden of an item, as the server's own bytes.

    Attributes:
        name: the item's.
        record: what it was in its part, JSON.
        values: four for each key: its kind, the rest of it, when it ends, and what it holds.
        stray: the item and its way; None: another mover has hidden it.
    """

    name: bytes
    record: bytes = b""
    values: Sequence[bytes] = ()
    stray: Stray | None = None


class Move(NamedTuple):
    """What is moved together, from one part to another.

    Attributes:
        id: the move's, one that no other move has.
        strays: what is to be moved, and
        kept: what was hidden of it.
    """

    id: str
    source: Keys
    target: Keys
    strays: Sequence[Stray] = ()
    kept: Sequence[Kept] = ()


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


def on_its_way(record: str) -> OnItsWay | None:
    """Return what a part notes of something that it has hidden; None: another program has written that."""
    try:
        noted = json.loads(record)
        return OnItsWay(str(noted["id"]), str(noted["to"]), float(noted["at"]))
    except (ValueError, TypeError, KeyError):
        return None


class Mover:
    """Moves entries between parts of the schedule of ``store``; each part has one mover at a time.

    Every method raises what the store's do, and ReshardRefused: another process moves these entries by now,
    or they are in another layout.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.token = secrets.token_hex(16)
        self.tally = Tally()
        self._round_items = 2 * MIN_ROUND
        #: how long a round takes: as long as the last one, or half of what was assumed before if that is more
        self._round_seconds = 0.0
        self._unmovable: set[tuple[str, str]] = set()  # the parts where they are, and their names
        self._parts: dict[str, Keys] = {}  # by their generation keys: those that were asked
        #: called with how many were moved by now
        self.on_progress: Callable[[int], None] = lambda _moved: None

    def open(self, parts: Iterable[Keys], *, is_mover: bool = True) -> None:
        """Let parts be written with their guards, and their entries be moved by this mover, or by none."""
        opened, token = list(parts), self.token if is_mover else ""
        self._parts |= {part.generation: part for part in opened}
        found = self._call([_RAISE_GENERATION.call(part, token=token) for part in opened])
        for part, text in zip(opened, found, strict=True):
            if text.decode() != part.guard:
                raise ReshardRefused(f"The shards were changed once more meanwhile ({part.generation}).")

    def close(self, parts: Iterable[Keys], ending: Iterable[Keys]) -> None:
        """Forget what was noted of moves in parts, and remove a beat's own in those that end."""
        own = [*((part, frozenset[str]()) for part in parts), *((part, part.beats_own) for part in ending)]
        unneeded = [(part, sorted({part.left, part.arrived, part.arriving, *keys})) for part, keys in own]
        self._call([_CLOSE_PART.call(part, token=self.token, removed=keys) for part, keys in unneeded])

    def borrow(self, parts: Sequence[Keys], instead: Mapping[str, str] | None = None) -> list[Keys]:
        """Become the mover of parts for a while; return those that have no other mover now.

        Arguments:
            instead: the generation keys of parts, each to the token of the mover that is replaced.
        """
        self._parts |= {part.generation: part for part in parts}
        # whether the other one has renewed its token doesn't matter
        times: Any = {"taken_ms": LEASE_MS, "rest_ms": 0, "slack_ms": 10**12}
        about: Any = {"token": self.token, "mark": None, **times}
        calls = [
            _TAKE_LOCK.call(
                NO_PART, lock=part.mover, silent=(instead or {}).get(part.generation, ""), **about
            )
            for part in parts
        ]
        found = self._call(calls)
        return [part for part, is_mine in zip(parts, found, strict=True) if is_mine]

    def give_back(self, parts: Sequence[Keys]) -> None:
        """End what ``borrow`` has begun."""
        self._call(
            [
                _RELEASE_LOCK.call(lock=part.mover, mark=None, token=self.token, wake=part.wake)
                for part in parts
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
        for some in in_chunks(strays, MAX_ROUND):
            waiting = [one for one in some if (one.source.generation, one.name) not in self._unmovable]
            while waiting:
                waiting.sort(key=_way_of)
                lot, waiting = waiting[: self._round_items], waiting[self._round_items :]
                found, left, alone = self._move(lot, margin_seconds, is_foreign=is_foreign)
                for one in alone:
                    found += self._move([one], margin_seconds, is_foreign=is_foreign)[0]
                due += found
                waiting += left
        return due

    def move_owned(self, owned: Iterable[Owned]) -> None:
        """Move names of owners to where they belong; a name that is added meanwhile stays."""
        for some in in_chunks(owned, CALL_ITEMS):
            for change in "add", "remove":
                calls = []
                for one in some:
                    part = one.target if change == "add" else one.source
                    about: Any = {"owned": part.owner(one.owner), "names": one.names}
                    calls.append(_CHANGE_OWNED.call(part, token=self.token, change=change, **about))
                self._call(calls)

    def _move(
        self, strays: Sequence[Stray], margin_seconds: float | None, *, is_foreign: bool
    ) -> tuple[list[Stray], list[Stray], list[Stray]]:
        """Move all of ``strays`` at the same time.

        Returns what wasn't moved: what is due, what is too large to be hidden together with the others, and
        what may be too large to be written together with them.
        """
        if margin_seconds:  # a slow network takes longer
            margin_seconds = max(margin_seconds, 3 * self._round_seconds)
        with hold_interrupts(INTERRUPT_SECONDS):  # so that nothing is left hidden
            moves, busy = [*_moves_of(strays)], dict[Keys, None]()
            left: dict[bytes, list[Stray]] = {b"due": [], b"full": []}
            began = time.monotonic()
            replies = self._try([self._hide_call(one, margin_seconds, is_foreign) for one in moves])
            hidden: list[Move] = []
            for move, reply in zip(moves, replies, strict=True):
                kept: list[Kept] = []
                rows = [] if isinstance(reply, Exception) else reply[1]
                for stray, (word, *values) in zip(move.strays, rows, strict=bool(rows)):
                    if word == b"hidden":
                        kept.append(Kept(as_stored(stray.name), values[0], values[1:], stray))
                    elif word in left:
                        left[word].append(stray)
                    elif word == b"busy":
                        busy[move.source] = None
                if kept:
                    hidden.append(move._replace(kept=kept))
            if not hidden:  # else what runs often would be due too soon for ever after one slow round
                self._note_round(time.monotonic() - began)
            alone = [kept.stray for kept in self._deliver(hidden, began) if kept.stray]
            self._raise_first(replies)
            if busy:
                self.finish_hidden([*busy])
            return left[b"due"], left[b"full"], alone

    def _hide_call(self, move: Move, margin_seconds: float | None, is_foreign: bool) -> Call[Any]:
        return _HIDE_ENTRIES.call(
            move.source,
            token=self.token,
            move=move.id,
            target=move.target.entry(""),
            margin=margin_seconds,
            is_foreign=is_foreign,
            max_bytes=CALL_BYTES,
            kinds=_kinds_in(move.source),
            items=[{"name": one.name, "kept": one.kept, "owners": one.owners} for one in move.strays],
        )

    def _deliver(self, hidden: Sequence[Move], began: float | None = None) -> list[Kept]:
        """Write what was hidden to where it belongs, and drop it; put back what can't be written.

        Returns what was put back as the connection has ended each time, and may be written if it is alone.

        Arguments:
            began: when it was hidden, monotonic.
        """
        if not hidden:
            return []
        calls = [receive_call(one.target, self.token, one.id, one.kept) for one in hidden]
        replies = self._try(calls, self._store.watched())
        count = sum(len(one.kept) for one in hidden)
        if began is not None:
            self._note_seconds(time.monotonic() - began, count)
        arrived, back, alone, errors = list[Move](), list[Move](), list[Kept](), list[Any]()
        for one, reply in zip(hidden, replies, strict=True):
            problems = self._problems_of(one, reply)
            if problems is None:  # it is unknown whether it was written, so it stays hidden
                errors.append(reply)
                continue
            failed = [kept for kept, why in zip(one.kept, problems, strict=True) if why]
            arrived.append(one._replace(kept=[kept for kept in one.kept if kept not in failed]))
            back.append(one._replace(kept=failed))
            if _is_broken(reply) and count > 1:
                alone += failed
            elif isinstance(reply, Exception) and not _is_broken(reply):
                errors.append(reply)
            else:
                errors += self._note_unmoved(one, problems)
        self._end_hiding(arrived, has_arrived=True)
        self._end_hiding(back, has_arrived=False)
        self.tally.moved += sum(len(one.kept) for one in arrived)
        self.on_progress(self.tally.moved)
        self._raise_first(errors)
        return alone

    def _problems_of(self, hidden: Move, reply: Any) -> list[str] | None:
        """Return why each of ``hidden`` couldn't be written, '': it was; None: that can't be found out."""
        if not isinstance(reply, Exception):
            written, refused = reply
            self.tally.unmerged += map(text_of, refused)
            return ["" if isinstance(one, int) else text_of(one) for one in written]
        if not isinstance(reply, ResponseError) or _refusal_of(reply):
            return None
        names = [Kept(kept.name) for kept in hidden.kept]
        [answer] = self._try([receive_call(hidden.target, self.token, hidden.id, names, is_cancelled=True)])
        if isinstance(answer, Exception):
            return None
        return ["" if isinstance(one, int) else str(reply) for one in answer[0]]

    def _note_unmoved(self, hidden: Move, problems: Sequence[str]) -> list[Exception]:
        """Note which of ``hidden`` can't be moved, and why; return the errors that concern all."""
        errors: list[Exception] = []
        for kept, why in zip(hidden.kept, problems, strict=True):
            if is_no_permission(why):
                errors.append(NoPermissionError(why))
            elif why not in ("", "before"):  # what couldn't be written before is tried once more
                name = kept.name.decode("utf-8", "surrogateescape")
                self._unmovable.add((hidden.source.generation, name))
                self.tally.unmoved[printable(name)] = printable(why)
        return errors

    def _end_hiding(self, hidden: Sequence[Move], *, has_arrived: bool) -> None:
        """Drop what was hidden and has arrived elsewhere, or put it back."""
        calls = [
            _END_HIDING.call(
                one.source,
                token=self.token,
                move=one.id,
                kinds=_kinds_in(one.source),
                names=[text_of(kept.name) for kept in one.kept],
                has_arrived=has_arrived,
            )
            for one in hidden
            if one.kept
        ]
        for refused in self._call(calls):
            self.tally.unmerged += map(text_of, refused)

    def finish_hidden(
        self, parts: Sequence[Keys], known: Iterable[Keys] = (), *, are_all_known: bool = True
    ) -> None:
        """Write what another mover has left hidden in ``parts`` to where it was to go.

        Arguments:
            known: other parts to which it may go.
            are_all_known: what was to go elsewhere goes nowhere; else that stays hidden, as it may have
                arrived there.
        """
        by_beginning = {part.entry(""): part for part in (*known, *parts)}
        waiting = list(parts)
        while waiting:
            found = self._call(
                [
                    _READ_HIDDEN.call(part, token=self.token, limit=CALL_ITEMS, kinds=_kinds_in(part))
                    for part in waiting
                ]
            )
            hidden: list[Move] = []
            for part, reply in zip(waiting, found, strict=True):
                if kept := [Kept(row[0], row[2], row[3:]) for row in reply]:
                    noted = on_its_way(text_of(kept[0].record))
                    if noted is None:
                        field = printable(kept[0].name.decode("utf-8", "backslashreplace"))
                        raise StoreCorrupt(
                            f"{part.moving}: {field} stands there for no entry on its way: remove it.",
                            part.moving,
                        )
                    target = by_beginning.get(noted.target, part if are_all_known else None)
                    if target is not None:
                        hidden.append(Move(noted.move, part, target, kept=kept))
            waiting = [one.source for one in hidden]
            self._deliver(hidden)

    def _note_seconds(self, seconds: float, count: int) -> None:
        self.tally.longest_hidden_seconds = max(self.tally.longest_hidden_seconds, seconds)
        self._note_round(seconds)
        if seconds > 1.5 * ROUND_SECONDS:
            self._round_items = max(self._round_items // 2, MIN_ROUND)
        elif seconds < ROUND_SECONDS and count >= self._round_items:
            self._round_items = min(self._round_items * 3 // 2, MAX_ROUND)

    def _note_round(self, seconds: float) -> None:
        self._round_seconds = max(seconds, self._round_seconds / 2)

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


def _refusal_of(exc: Exception) -> ReshardRefused | None:
    """Return what a script refuses whose caller isn't the mover any more; None: another error."""
    if FENCED in str(exc):
        return ReshardRefused(
            "Another process moves these entries by now (celery redbeat reshard): this one stops."
        )
    return ReshardRefused("The shards were changed once more meanwhile.") if "RESHARDED" in str(exc) else None


def _is_broken(reply: Any) -> bool:
    """Return True if a request has ended its connection, as it is larger than the server takes."""
    return isinstance(reply, ResponseError) and (
        isinstance(reply, RequestBroken) or PROTOCOL_ERROR in str(reply)
    )


def _way_of(stray: Stray) -> tuple[str, str]:
    return stray.source.prefix, stray.target.prefix


def _moves_of(strays: Iterable[Stray]) -> Iterator[Move]:
    """Yield moves of strays, which are in the order of their ways."""
    for _, those in groupby(strays, _way_of):
        for lot in in_chunks(those, CALL_ITEMS):
            yield Move(secrets.token_hex(8), lot[0].source, lot[0].target, lot)


def receive_call(
    part: Keys, token: str, move: str, items: Sequence[Kept], *, is_cancelled: bool = False
) -> Call[Any]:
    """Return the call that writes what was hidden to ``part``.

    Arguments:
        is_cancelled: nothing is written, nor will be, unless that was done; the names are enough for it.
    """
    rows = []
    for item in items:
        texts = [text_of(value) for value in item.values]
        values = zip(texts[::4], texts[1::4], texts[2::4], strict=True)
        kept = [{"kind": kind, "rest": rest, "ends_at": ends_at} for kind, rest, ends_at in values]
        rows.append({"name": text_of(item.name), "record": text_of(item.record), "kept": kept})
    dumps = [dump for item in items for dump in item.values[3::4]]
    about: Any = {"token": token, "move": move, "kinds": _kinds_in(part), "is_cancelled": is_cancelled}
    return _RECEIVE_ENTRIES.call(part, items=rows, dumps=dumps, **about)


def _kinds_in(part: Keys) -> dict[str, dict[str, str]]:
    return {
        word: {"key": beginning, "hidden": part.hidden(word), "unmoved": part.unmoved(word)}
        for word, beginning in part.kinds.items()
    }
