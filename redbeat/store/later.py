"""Stored messages: those that are to be sent at a time far ahead, each with an entry of its own.

They are in a zset of their own, so that the schedule is as large as its own entries, and nobody who reads the
schedule meets them. A fetch and a commit of them are those of entries, on that zset. Invariant: a message,
its entry and its body come and go together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from redbeat.connection.retry import is_no_permission
from redbeat.errors import StoreRefused
from redbeat.keys import Keys
from redbeat.store.members import members_in_order, place_after, read_slice, scores_of
from redbeat.store.messages import (
    MessageTexts,
    NewMessage,
    bodies_call,
    body_texts,
    cancel_call,
    has_body,
    store_call,
)
from redbeat.store.nodes import Command
from redbeat.store.parts import CHUNK_SIZE, Parts, in_chunks
from redbeat.store.records import text_of
from redbeat.store.store import Store

#: how many bytes of messages one call stores at most, if there are several
LOT_BYTES = 4 * 1024 * 1024


class Listed(NamedTuple):
    """A stored message as it is listed.

    Attributes:
        task_id: of its task.
        due: when it is to be sent, UNIX seconds.
        texts: of the message; None: it is gone, or isn't one.
        error: why it couldn't be sent, JSON as of entries; None: nothing is known against it.
        revision: another one for each message that is stored; '': there is none.
    """

    task_id: str
    due: float
    texts: MessageTexts | None
    error: str | None
    revision: str = ""


class LaterStore(Store):
    """The stored messages of one app: a :class:`Store` whose schedule they are."""

    @classmethod
    def beside(cls, store: Store) -> LaterStore:
        """Return another view on ``store``: both know what is known of the server, and of the lock."""
        view = object.__new__(cls)
        view.__dict__ = store.__dict__
        return view

    @property
    def _known_parts(self) -> Parts:
        """The parts of the schedule; in their names that of the schedule is the stored messages'."""
        return super()._known_parts.of_messages

    def store(self, messages: Sequence[NewMessage]) -> None:
        """Store ``messages``, in one round trip a node; one with the same task id is replaced.

        Those of one call and one part, up to 4 MiB, are stored all or none.

        Raises:
            StoreUnavailable, StoreRefused, StoreCorrupt: some may have been stored.
        """

        left = list(messages)
        while left:
            names = [self.config.keys.stored_message(one.task_id) for one in left]
            places = dict(zip((one.task_id for one in left), self.located(names), strict=True))
            # one that hasn't been moved yet is replaced where it is, unless it is moved before that
            at_home = {task_id for task_id, key in places.items() if key == self.keys.stored_message(task_id)}
            groups: dict[tuple[Keys, bool], list[NewMessage]] = {}
            for one in left:
                part = self.parts.of(places[one.task_id])
                groups.setdefault((part, one.task_id not in at_home), []).append(one)
            lots = [(*group, lot) for group, those in groups.items() for lot in _lots_of(those)]
            answers = self.write_all(
                [store_call(keys, lot, must_exist=must_exist) for keys, must_exist, lot in lots]
            )
            # those of parts that have accepted theirs must not be stored once more, in another part perhaps
            refused = [lot for (*_, lot), answer in zip(lots, answers, strict=True) if not answer]
            left = [one for lot in refused for one in lot]

    def cancel(self, task_ids: Sequence[str], seen: str = "") -> list[MessageTexts | None]:
        """Remove the messages with ``task_ids``; return each; None: it isn't stored.

        Arguments:
            seen: only a message with this revision; '': any.
        """
        names = [self.config.keys.stored_message(one) for one in task_ids]
        texts: dict[str, str] = {}  # by the keys of the messages' entries
        asked: set[str] = set()
        # one that is on its way to another part may have left before it was its turn
        while left := [key for key in self.located(names) if key not in asked]:
            for chunk in in_chunks(left):
                groups = self.parts.by_part(chunk)
                answers = self.write_all([cancel_call(part, keys, seen) for part, keys in groups])
                for (_, keys), answer in zip(groups, answers, strict=True):
                    if answer is not None:
                        asked.update(keys)
                        found = zip(keys, answer, strict=True)
                        texts |= {key: text for key, text in found if text is not None}
        found_at = {self.keys.message_id(key) or "": key for key in texts}
        apart = [task_id for task_id, key in found_at.items() if not has_body(texts[key])]
        bodies = dict(zip(apart, self.take_bodies(apart, found_at), strict=True))
        return [
            MessageTexts(texts[found_at[one]], bodies.get(one) or "") if one in found_at else None
            for one in task_ids
        ]

    def take_bodies(self, task_ids: Sequence[str], found_at: Mapping[str, str]) -> list[str | None]:
        """Remove the bodies of messages that are gone; return each; None: it isn't there, or out of reach.

        Arguments:
            found_at: the key that the entry of each had; its body is in the same part.
        """

        def place_of(task_id: str) -> str:
            key = found_at[task_id]
            is_gone = self.parts.of(key) not in self.parts  # what was left there was moved
            return self.config.keys.stored_message(task_id) if is_gone else key

        try:
            return self.following(
                lambda: self.parts.in_order(
                    task_ids,
                    lambda groups: self.ask_all([bodies_call(*one) for one in groups], is_following=False),
                    place_of,
                )
            )
        except StoreRefused as exc:
            if not is_no_permission(exc.__cause__):
                raise
            return [None] * len(task_ids)

    def first(self, limit: int | None, offset: int = 0) -> Iterator[Listed]:
        """Yield stored messages, the next one first.

        Arguments:
            limit: how many at most; None: all.
            offset: how many to leave out at the beginning.
        """
        if limit is None and not offset:  # a writer has no right to ZCOUNT
            for page in members_in_order(self):
                yield from self._listed(page)
            return
        left = float("inf") if limit is None else limit
        while left > 0:
            page = read_slice(self, offset, int(min(left, CHUNK_SIZE)))
            yield from self._listed(page)
            if len(page) < CHUNK_SIZE:
                return
            offset, left = offset + len(page), left - len(page)

    def find(self, task_id: str) -> Listed | None:
        """Return the message with ``task_id``; None: it isn't stored."""
        [key] = self.located([self.config.keys.stored_message(task_id)])
        [score] = scores_of(self, [key])
        return None if score is None else next(iter(self._listed([(key, score)])))

    def named(self, task_ids: Sequence[str]) -> list[Listed]:
        """Return what is stored under each of ``task_ids``, whenever it is to be sent: that isn't read."""
        keys = self.located([self.config.keys.stored_message(one) for one in task_ids])
        return list(self._listed([(key, 0.0) for key in keys]))

    def are_messages(self, keys: Sequence[str]) -> list[bool]:
        """Return of each entry True if it has a message; a key of another type has none."""
        asks = [Command("hstrlen", key, "message") for key in keys]
        return [bool(one) for one in self.ask_all(asks, is_tolerant=True)]

    def place_after(self, task_id: str, due: float) -> int:
        """Return the offset of the first message behind one that was to be sent at ``due``.

        That one need not be there any more.
        """
        return place_after(self, self.config.keys.stored_message(task_id), due)

    def _listed(self, page: Sequence[tuple[str, float]]) -> Iterator[Listed]:
        found = self._read([key for key, _ in page])
        apart = [
            key
            for (key, _), (message, _, _) in zip(page, found, strict=True)
            if message is not None and not has_body(message)
        ]
        bodies = dict(zip(apart, body_texts(self, apart), strict=True))
        for (key, score), (message, error, revision) in zip(page, found, strict=True):
            texts = None if message is None else MessageTexts(message, bodies.get(key) or "")
            yield Listed(self.keys.message_id(key) or key, score, texts, error, revision or "")

    def _read(self, keys: Sequence[str]) -> list[tuple[str | None, str | None, str | None]]:
        """Return of each entry its message, why that couldn't be sent, and its revision."""
        asks = [Command("hmget", key, "message", "error", "revision") for key in keys]
        found = self.ask_all(asks, is_tolerant=True)
        return [tuple(map(text_of, one or (None,) * 3)) for one in found]


def _lots_of(messages: Sequence[NewMessage]) -> Iterator[list[NewMessage]]:
    """Yield ``messages`` in lists, each of which one call stores."""
    lot: list[NewMessage] = []
    size = 0
    for one in messages:
        length = sum(map(len, one.texts)) + len(one.definition)
        if lot and size + length > LOT_BYTES:
            yield lot
            lot, size = [], 0
        lot.append(one)
        size += length
    if lot:
        yield lot
