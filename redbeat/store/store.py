"""Reading and writing the schedule: the rest of RedBeat sees rows and times, and no Redis commands.

Invariant: a value is overwritten only if it is the one that the writer has read (compare and set). So an
entry that another process has deleted, saved or re-timed meanwhile stays as it is.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from redis.exceptions import NoPermissionError

from redbeat.config.config import RedBeatConfig, ensure_conf
from redbeat.connection.client import (
    client_of,
    get_hasty_redis,
    is_hasty,
    naming_the_server,
)
from redbeat.connection.retry import (
    RetryingConnection,
    without_retry,
)
from redbeat.errors import (
    EntryError,
    LayoutChanged,
    LockLost,
    RedBeatError,
    StoreCorrupt,
    StoreRefused,
    StoreUnavailable,
)
from redbeat.keys import OWN_KINDS, RESERVED_BEGINNINGS, UNGUARDED, Keys, is_of_kind
from redbeat.layout import Layout
from redbeat.log.text import printable
from redbeat.store.layouts import follow_layout, locate_entries, look_up_layout, refusal_of
from redbeat.store.lock_tokens import holder_in_words
from redbeat.store.nodes import Command, Sendable, node_of, send_all
from redbeat.store.parts import Parts
from redbeat.store.records import (
    Fence,
    LockStatus,
    text_of,
)
from redbeat.store.replicas import Replicas
from redbeat.store.scripts.script import Call, Script

if TYPE_CHECKING:
    from typing_extensions import Self

#: while entries are moved to other shards, how often it is looked whether they still are
MOVE_LOOK_SECONDS = 1.0

#: how often a step is tried at most while the layout changes again and again
MAX_FOLLOWED = 100


_RENEW_LOCK = Script("renew_lock")

Item = TypeVar("Item")


#: a slower answer of Redis is logged; seconds
SLOW_SECONDS = 4.0


class Progress:
    """When Redis is asked and has answered; the stores of a scheduler's shards share one.

    Attributes:
        progressed_at: when it has answered last, monotonic, which shows that the scheduler isn't stuck.
        heart: whose ``progressed_at`` is updated with that.
        on_slow: called after an answer that took longer than ``SLOW_SECONDS``, with how long it took.
    """

    def __init__(self) -> None:
        #: when each question was asked that has no answer yet: a thread may still wait for what was given up
        self._asked: list[float] = []
        self.progressed_at = 0.0
        self.heart: Any = self
        self.on_slow: Callable[[float], None] = lambda _seconds: None

    @property
    def asks_since(self) -> float | None:
        """Since when Redis hasn't answered, monotonic; None: it isn't asked anything."""
        return min(self._asked, default=None)

    @contextmanager
    def asking(self) -> Iterator[float]:
        """Record that Redis is asked, until the block ends; yield the monotonic time."""
        asked_at = time.monotonic()
        self._asked.append(asked_at)
        try:
            yield asked_at
        finally:
            self._asked.remove(asked_at)


class Store:
    """The schedule of one app, or one part of it.

    Arguments:
        client: the redis client; None: the app's.
        part: the one part of the schedule that this is about; None: all of them.

    Attributes:
        client: the redis client: the app's, made when it is first needed.
        has_retaken_lock: the scheduler's lock was gone, perhaps with all data, and a write has taken it back;
            whoever handles that sets it to False.
        retaken_lock_at: when that was, monotonic.
        progress: whether Redis answers.

    Every method raises StoreUnavailable when Redis can't be reached.
    """

    def __init__(self, app: Any, client: Any = None, part: Keys | None = None) -> None:
        self.config: RedBeatConfig = ensure_conf(app)
        self._app = app
        self.part = part
        if client is not None:
            self.client = client
        self.replicas = Replicas(self.config)
        self.has_retaken_lock, self.retaken_lock_at = False, -math.inf
        self.progress = Progress()

    @cached_property
    def client(self) -> Any:
        return client_of(self._app)

    @classmethod
    def hasty(cls, app: Any, patience_seconds: float = 2) -> Self:
        """Return a store whose client gives up soon, unless the app was given a client, which is used as it
        is.

        It is a context manager: its client is closed at the end, unless it is the app's.

        Raises:
            ConfigurationError: the settings don't make a connection.
        """
        return cls(app, get_hasty_redis(app, patience_seconds))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the client if it was made for this store alone."""
        if self.is_hasty:
            self.client.close()

    @property
    def is_hasty(self) -> bool:
        """Whether its client gives up soon, as others wait meanwhile."""
        return is_hasty(self.client)

    def without_retry(self) -> Self:
        """Return a store with the same client that doesn't try again while the server is away."""
        return type(self)(self.config.app, without_retry(self.client), self.part)

    def of_part(self, part: Keys) -> Self:
        """Return a store with the same client that is about one part of the schedule."""
        return type(self)(self.config.app, vars(self).get("client"), part)

    def apart(self) -> Self:
        """Return a store with the same client for what is in no part, however the schedule is divided."""
        return self.of_part(replace(self.config.base_keys, guard=UNGUARDED))

    def of_all_parts(self) -> Self:
        """Return a store with the same client that is about the whole schedule."""
        return self if self.part is None else type(self)(self.config.app, vars(self).get("client"))

    @property
    def keys(self) -> Keys:
        """The names of all keys, as configured now; of a store of one part those in this part."""
        return self.layout.keys if self.part is None else self.part

    @property
    def parts(self) -> Parts:
        """The parts of the schedule that this store is about."""
        if self.part is None:
            self.layout  # noqa: B018 - it looks for it, if it is time to
        return self._known_parts

    @property
    def all_parts(self) -> Parts:
        """The parts for a caller that goes through the whole schedule.

        The layout is looked for whatever the settings say: in the place of a schedule that was divided since
        there is nothing, and no script refuses the caller.
        """
        if self.part is None and self.config.looked_at is None:
            look_up_layout(self)
        return self.parts

    def check_slots(self) -> None:
        """Check, before anything else is read, that the server accepts two keys of the schedule in a command.

        For callers that read one key at a time: in a cluster they would find an empty schedule.

        Raises:
            ConfigurationError: the server is part of a cluster, and the prefix has no hash tag.
        """
        if self.part is None and self.config.looked_at is None:
            look_up_layout(self, is_slot_checked=True)

    @property
    def _known_parts(self) -> Parts:
        """The parts of the schedule, as far as they are known: Redis isn't asked."""
        if self.part is not None:
            return Parts([self.part], self.part)
        parts, unread = Parts.of_layout(self.config.layout), self.config.unread
        return parts.without(unread) if unread else parts

    @property
    def layout(self) -> Layout:
        """Where entries are. With ``redbeat_shards`` it is looked for in Redis when it is first needed."""
        config, looked_at = self.config, self.config.looked_at
        # once all entries have been moved, it is enough to look where they are then
        look_seconds = MOVE_LOOK_SECONDS if config.layout.is_moving else config.look_seconds
        if config.wants_layout if looked_at is None else time.monotonic() > looked_at + look_seconds:
            look_up_layout(self)
        return config.layout

    def has_changed(self, layout: Layout, wanted: int) -> bool:
        """Look whether the layout is another one than when entries weren't found; use that one then.

        Arguments:
            wanted: how many entries: of many some are often missing, so it isn't looked each time.
        """
        looked_at = self.config.looked_at or -math.inf
        if self.part is not None or looked_at > time.monotonic():  # it may not be read
            return False
        if wanted > 1 and (not layout.generation or time.monotonic() < looked_at + MOVE_LOOK_SECONDS):
            return False
        return look_up_layout(self) != layout

    def locate(self, names: Sequence[str], *, of_runs: bool = False) -> list[str]:
        """Return the keys under which entries are now, by their names, or would be if they were there.

        That takes a round trip only while entries are moved to other shards; one on its way is waited for.

        Arguments:
            of_runs: it is the entries' runs in progress that are looked for.

        Raises:
            LayoutChanged: it is on its way for too long.
            StoreRefused: this user may not look.
        """
        if self.part is not None or not self.layout.is_moving:
            return [*map(self.keys.entry, names)]
        return locate_entries(self, names, of_runs=of_runs)

    def following(self, ask: Callable[[], Item]) -> Item:
        """Return ``ask()``, which is called again if entries were looked for where they are not any more.

        It must ask this store for the names of keys, which are the right ones then.

        Raises:
            LayoutChanged: the part isn't one of the schedule's any more, or the layout changes all the time.
        """
        for _ in range(MAX_FOLLOWED - 1):
            try:
                return ask()
            except LayoutChanged:
                if self.part is not None and self.part not in self.config.layout.parts:
                    raise
        return ask()

    @property
    def own_keys(self) -> tuple[frozenset[str], tuple[str, ...]]:
        """The keys of RedBeat's own that are not entries', and what others of them begin with."""
        prefix = self.keys.prefix
        names = frozenset(prefix + name for name in self.config.reserved_names)
        return names, tuple(prefix + beginning for beginning in RESERVED_BEGINNINGS)

    def renew_lock(self, fence: Fence, idle_seconds: float = 0, obstacle: str = "") -> None:
        """Renew the lock to its full time.

        Arguments:
            idle_seconds: how long ago the scheduler last did something.
            obstacle: why it cannot send, a sentence; '': it can.

        Raises:
            LockLost: another beat holds the lock.
        """
        self.check_lock(self.ask(renew_call(self.keys, fence, idle_seconds, obstacle)), fence)

    def watched(self) -> Any:
        """Return a client for large requests: one that ends its connection each time raises StoreRefused."""
        period, client = getattr(self.client, "retry_period", None), without_retry(self.client)
        return RetryingConnection(period, client, lambda one: one.exists(self.parts[0].schedule))

    def ask(self, call: Sendable[Item]) -> Item:
        """Return what a call returns, as ``ask_all`` does."""
        return raised(self.try_all([call])[0])

    def ask_all(
        self,
        calls: Sequence[Sendable[Item]],
        *,
        is_following: bool = True,
        is_tolerant: bool = False,
    ) -> list[Item]:
        """Return what ``try_all`` returns, but raise the first error; the others have answered all the same.

        Arguments:
            is_tolerant: None stands for the answer where a key has another type.
        """
        answers: list[Any] = self.try_all(calls, is_following=is_following)
        if is_tolerant:
            answers = [None if isinstance(one, StoreCorrupt) else one for one in answers]
        return [*map(raised, answers)]

    def write_all(self, calls: Sequence[Sendable[Item]], client: Any = None) -> list[Item | None]:
        """Return what ``try_all`` does without following, None for LayoutChanged, but raise the first other
        error; the other parts have done what they were asked for.
        """
        answers = self.try_all(calls, client, is_following=False)
        return [None if isinstance(one, LayoutChanged) else raised(one) for one in answers]

    def try_all(
        self, calls: Sequence[Sendable[Item]], client: Any = None, *, is_following: bool = True
    ) -> list[Item | RedBeatError]:
        """Return what each call returns, or its error; one round trip for each node.

        Where the layout has changed, a script is refused: its call is sent again, about the same part as it
        is now.

        Arguments:
            client: sends them; None: the store's.
            is_following: False: LayoutChanged takes the place of a refusal. The layout is known by then, and
                a caller that asks again for the names of keys gets the right ones.
        """
        answers = self._send_all(calls, client)
        for _ in range(MAX_FOLLOWED if is_following else 0):
            parts = self.config.layout.by_prefix
            again = {
                place: call.within_part(parts[call.within.prefix])
                for place, (call, answer) in enumerate(zip(calls, answers, strict=True))
                if isinstance(answer, LayoutChanged)
                if isinstance(call, Call) and call.within is not None and call.within.prefix in parts
            }
            if not again:
                break
            for place, answer in zip(again, self._send_all([*again.values()], client), strict=True):
                answers[place] = answer
        return answers

    def _send_all(self, calls: Sequence[Sendable[Any]], client: Any) -> list[Any]:
        """Return what each call returns, or its error; after a refusal the layout is known."""
        with self.translating():
            replies = send_all(client or self.client, calls)
        answers = [self.answer_of(*one) for one in zip(calls, replies, strict=True)]
        if refusals := [refusal for reply in replies if (refusal := refusal_of(reply))]:
            follow_layout(self, *refusals)
            self.follow_part()
        return answers

    def follow_part(self) -> None:
        """Let a store of one part be about the same part in the layout that there is now."""
        if self.part is not None and self.part.guard != UNGUARDED:
            self.part = self.config.layout.by_prefix.get(self.part.prefix, self.part)

    def located(self, keys: Sequence[str]) -> list[str]:
        """Return under which keys entries are now that were known by ``keys``, perhaps in another layout."""
        layout = self.layout
        if self.part is not None or not layout.generation:
            return [*keys]
        return self.locate([*map(layout.name_of, keys)])

    def node_of(self, keys: Keys) -> str | None:
        """Return the address of the node of a cluster that has a part, as far as the client knows; None: none
        has, or the schedule is on one server.
        """
        if not self.config.is_cluster:
            return None
        node = node_of(self.client, keys.schedule)
        return None if node is None else f"{node.host}:{node.port}"

    def nodes(self) -> list[str]:
        """Return the addresses of all nodes that a cluster's keys are on; []: it is one server."""
        if not self.config.is_cluster:
            return []
        with self.translating():
            found = without_retry(self.client).get_primaries()
        return sorted(f"{node.host}:{node.port}" for node in found)

    def by_node(self) -> dict[str, Self]:
        """Return a store for each node of a cluster that has parts of the schedule, by the node's address.

        Of a schedule that isn't divided, or is on one server, it is this one, by ''. Redis isn't asked where
        entries are.
        """
        parts = self._known_parts
        if not parts.is_divided or not self.config.is_cluster:
            return {"": self}
        found = {self.node_of(part) or "": part for part in parts}
        return {node: self.of_part(part) for node, part in sorted(found.items())}

    def is_lost(self, static_keys: Sequence[str]) -> bool:
        """Return True if the schedule is empty, or lacks ``statics`` and all entries of the code.

        Arguments:
            static_keys: of some entries of the code.
        """
        keys = self.keys
        if not self.ask(Command("zcount", keys.schedule, "-inf", "+inf")):
            return True
        # others may have saved entries since
        return bool(static_keys) and not self.ask(Command("exists", keys.statics, *static_keys))

    def check_lock(self, status: LockStatus, fence: Fence) -> None:
        """Handle the state in which a script has found the lock.

        Raises:
            LockLost: another beat holds it.
        """
        if status is LockStatus.RETAKEN:
            self.has_retaken_lock, self.retaken_lock_at = True, time.monotonic()
            self.renew_lock(fence)  # it was taken back for 10 seconds only
        if status is not LockStatus.LOST:
            return
        holder = text_of(self.ask(Command("get", fence.lock_key)))
        raise LockLost(
            f"Another beat holds the lock {fence.lock_key} now ({holder_in_words(holder)}); this one must "
            "not go on (LockNotOwnedError).",
            fence.lock_key,
            holder,
        )

    @staticmethod
    def on_round_trip() -> None:
        """Do nothing: it is called before and after each round trip, so that tests can end a beat there."""

    def scan(self, *steps: Callable[[Any], Command]) -> Iterator[list[Any]]:
        """Yield the pages of one or more scans; each step takes one round trip per node.

        Arguments:
            steps: each returns the command that takes a cursor, and returns the next one and a page.
        """
        cursors: dict[Callable[[Any], Command], Any] = dict.fromkeys(steps, 0)
        while cursors:
            answers = self.ask_all([step(cursor) for step, cursor in cursors.items()])
            yield [row for _, page in answers for row in page]
            following = dict(zip(cursors, (cursor_of(cursor) for cursor, _ in answers), strict=True))
            cursors = {step: cursor for step, cursor in following.items() if cursor}

    def answer_of(self, call: Sendable[Item], reply: Any) -> Item | RedBeatError:
        """Return what the reply to a call means, or the error of the redis client that takes its place."""
        try:
            if isinstance(reply, Exception):
                self._raise_translated(reply, call.keys, call.strings)
            return call.read(reply)
        except RedBeatError as exc:
            return exc

    def find_unread(self) -> dict[Keys, StoreUnavailable]:
        """Return the parts of the schedule whose node is away, each with the error; one round trip a node.

        Of a schedule that isn't divided, or is on one server, there are none: that is asked nothing.
        """
        parts = self.all_parts
        if len(parts) == 1 or not self.config.is_cluster:
            return {}
        answers = self.try_all([Command("exists", keys.schedule) for keys in parts])
        found = zip(parts, answers, strict=True)
        return {keys: answer for keys, answer in found if isinstance(answer, StoreUnavailable)}

    @contextmanager
    def translating(self, *keys: str) -> Iterator[None]:
        """Turn the client's errors into RedBeat's: Redis is away, a key has another type, a name isn't UTF-8.

        Arguments:
            keys: those that are used, besides the schedule.
        """
        try:
            with self.progress.asking() as asked_at:
                self.on_round_trip()
                yield
                self.on_round_trip()
                progress, now = self.progress, time.monotonic()
                progress.heart.progressed_at = now
                if (seconds := now - asked_at) > SLOW_SECONDS:
                    progress.on_slow(seconds)
        except Exception as exc:  # noqa: BLE001 - it is raised again
            self._raise_translated(exc, keys)

    def _raise_translated(
        self, error: Exception, keys: Sequence[Any] = (), strings: Sequence[Any] = ()
    ) -> NoReturn:
        """Raise what an error means; the other arguments are as in ``find_wrong_type``."""
        try:
            with naming_the_server(self.config):
                raise error
        except UnicodeEncodeError as exc:
            name = printable(exc.object)
            raise EntryError(
                f"{name}: an entry's name must be UTF-8, and this one holds half a character (a surrogate).",
                name,
            ) from exc
        except StoreRefused as exc:
            if refusal_of(exc.__cause__):
                self.config.looked_at = -math.inf  # whoever tries again looks first
                raise LayoutChanged(
                    "The schedule has been divided into other shards at this moment; nothing was written: "
                    "try again."
                ) from exc.__cause__
            if "WRONGTYPE" not in str(exc):
                raise
            key, expected = self.find_wrong_type(keys, strings) or (
                self._known_parts[0].schedule,
                "sorted set",
            )
            raise StoreCorrupt(
                f"{key} holds something that is no {expected}: rename or delete that key, or choose another "
                "redbeat_key_prefix.",
                key,
            ) from exc.__cause__

    def find_wrong_type(
        self, keys: Sequence[Any] = (), strings: Sequence[Any] = ()
    ) -> tuple[str, str] | None:
        """Return the key that has another type, and what it should hold; None: that can't be found out.

        Arguments:
            keys: the keys that were used.
            strings: those of them that must hold strings, whatever their names are.
        """
        # the layout isn't looked at for that: it may be what has another type
        parts = self._known_parts
        strings = [*strings, *map(self.config.lock_key_in, parts)]
        suspects = [*keys, *filter(None, strings)]
        for part in parts:
            suspects += part.schedule, part.generation, part.moving
        if len(parts) == 1:  # else that would take long
            suspects += map(parts[0].own, OWN_KINDS)
        for key in dict.fromkeys(map(text_of, suspects)):
            kind = "string" if key in strings else parts.of(key).kind_held(key)
            if not is_of_kind(self._type_of(key), kind):
                return key, kind
        return None

    def _type_of(self, key: str) -> str:
        """Return the type of ``key``; 'none' if this user may not ask, as it can't have used the key then."""
        try:
            return str(text_of(self.client.type(key)))
        except NoPermissionError:
            return "none"


def raised(answer: Item | RedBeatError) -> Item:
    """Return an answer; raise it if it is an error."""
    if isinstance(answer, RedBeatError):
        raise answer
    return answer


def cursor_of(reply: Any) -> int:
    """Return the cursor that SCAN replies; a cluster's client returns one per node."""
    return int(next(iter(reply.values())) if isinstance(reply, dict) else reply)


def renew_call(part: Keys, fence: Fence, idle_seconds: float = 0, obstacle: str = "") -> Call[LockStatus]:
    """Return the call that renews the lock; the arguments are those of ``Store.renew_lock``."""
    idle_ms = int(idle_seconds * 1000)
    call = _RENEW_LOCK.call(part, fence=fence, idle_ms=idle_ms, obstacle=obstacle)
    return call.reading(LockStatus)
