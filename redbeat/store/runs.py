"""Runs in progress as they are in Redis: begun and ended by workers, settled by beat, read by everybody.

Invariant: a run that nobody renews any more is found by its deadline, so nothing is left behind for good.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from enum import Enum
from functools import partial
from itertools import chain, islice
from typing import Any, NamedTuple

from redbeat.errors import RedBeatError
from redbeat.keys import Keys
from redbeat.log.text import as_stored
from redbeat.store.nodes import Command, Sendable
from redbeat.store.parts import in_chunks
from redbeat.store.records import Fence, Held, LockStatus, Reserved, TrackedRun, text_of
from redbeat.store.reservations import Reserving, reserve_runs
from redbeat.store.run_record import RunRecord, decode_record
from redbeat.store.scripts.script import Call, Script
from redbeat.store.server import Server
from redbeat.store.store import Store

_BEGIN_RUN, _RENEW_RUNS, _END_RUN = Script("begin_run"), Script("renew_runs"), Script("end_run")
_NOTE_CHILD, _GIVE_UP_RUNS = Script("note_child"), Script("give_up_runs")
_SETTLE_RUN = Script("settle_run")

#: workers that have said nothing for so long are forgotten, seconds
FORGET_SECONDS = 3600
#: a worker that has said nothing for so long doesn't live any more, seconds
WORKER_SECONDS = 60.0
#: for how long a run that a user sends holds other runs back before its message is published, seconds
BY_HAND_SECONDS = 10.0


class Delivery(NamedTuple):
    """One delivery of a run's message to a worker.

    Attributes:
        name: of the entry.
        task_id: of the message.
        due: when the run was due, UNIX seconds as text.
        token: differs from delivery to delivery.
        worker: the worker's name.
        attempt: 1, and one more for each of Celery's retries.
        root: the task id of the run whose workflow this task belongs to; '': it is the run itself.
        is_soft: the worker's pool can't terminate a task.
        overlap: the policy that the message names: 'skip', 'buffer_one' or 'replace'; '': runs may overlap.
        follows: the delivery whose task has sent this message, as its retry or its replacement; '': none.
    """

    name: str
    task_id: str
    due: str
    token: str
    worker: str
    attempt: int = 1
    root: str = ""
    is_soft: bool = False
    overlap: str = ""
    follows: str = ""


class End(NamedTuple):
    """The outcome of a delivery.

    Attributes:
        outcome: 'succeeded', 'failed', 'revoked', 'expired', 'rejected', 'ignored', 'superseded'; if the run
            goes on 'retrying' or 'requeued'.
        error: the exception, in one line.
        run_seconds: how long its task took; None: that isn't known.
        retry_seconds: in how many seconds the next attempt may begin.
    """

    delivery: Delivery
    outcome: str
    error: str = ""
    run_seconds: float | None = None
    retry_seconds: float = 0.0


class Settlement(NamedTuple):
    """What beat does about a run whose deadline has come; see ``settle_run.lua``."""

    action: str
    name: str
    task_id: str
    member: str
    score: str
    text: str
    word: str = ""
    seconds: float = 0.0


class Answer(Enum):
    """Whether a run's task is begun."""

    #: it is, and the lease is this delivery's
    GO = "go"
    #: it isn't: the run was given up, or is to be replaced, and another one holds the entry
    SUPERSEDED = "superseded"
    #: it isn't now: another delivery of its message is at work
    BUSY = "busy"
    #: this delivery has ended, and the question came late; or a later attempt has ended
    OVER = "over"
    #: it isn't: its message has expired, and no worker had begun it in time
    EXPIRED = "expired"


class Begun(NamedTuple):
    """What the gate says; ``wait_seconds``: how long the lease of the other delivery lives."""

    answer: Answer
    wait_seconds: float


class FailedRun(NamedTuple):
    """A run that has failed for good, was lost, or never started; ``at``: when that was noted, UTC."""

    name: str
    task_id: str
    due: datetime
    at: datetime
    outcome: str
    error: str
    worker: str


class Runs:
    """The runs in progress of ``store``. Leases are in milliseconds.

    Every method raises what the store's do: StoreUnavailable when Redis can't be reached, say.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def reserve(self, key: str, task_id: str, run: TrackedRun) -> Held | str | None:
        """Reserve a run whose message a user is about to publish, unless another one holds it back.

        Returns what holds it back, or why the entry's runs can't be read; None: it may be published. One that
        may overlap with others is recorded as sent.

        Arguments:
            key: the entry's.
        """
        store = self._in_part(key)
        if run.overlap == "allow":
            reserve_runs(store, Fence(), [Reserving(key, task_id, run)])
            return None
        # by hand nothing is replaced, and nothing waits
        asked = [Reserving(key, task_id, run._replace(overlap="skip"), BY_HAND_SECONDS)]
        [answer] = reserve_runs(store, Fence(), asked)
        if answer is Reserved.BEFORE:  # it is in progress itself, sent by another user who was asked for it
            return Held(task_id)
        return None if isinstance(answer, Reserved) else answer

    def note_published(self, key: str, task_id: str, run: TrackedRun) -> None:
        """Record that the message of a run that ``reserve`` has noted was published; ignore errors."""
        if run.overlap != "allow":
            with suppress(RedBeatError):
                asked = [Reserving(key, task_id, run, is_published=True)]
                reserve_runs(self._in_part(key), Fence(), asked)

    def _in_part(self, key: str) -> Store:
        """Return a store of the part that the entry under ``key`` is in."""
        return self._store.of_part(self._store.parts.of(key))

    def take_back(self, key: str, task_id: str) -> None:
        """Forget a run that ``reserve`` has noted, and that couldn't be published; it may fail silently."""
        keys = self._store.parts.of(key)
        running = keys.running(key)
        # beat removes the one at once, and sees by the other whether a run waits for this one
        looked_at = {f"{task_id}\0{running}": 0, f"\0{running}": 0}
        with suppress(RedBeatError):
            self._store.ask_all(
                [Command("hdel", running, task_id), Command("zadd", keys.deadlines, looked_at)]
            )

    def begin(self, delivery: Delivery, lease_ms: int, *, is_expired: bool = False) -> Begun:
        """Take the lease of a run, unless its task may not begin.

        Arguments:
            is_expired: its message has expired, and was delivered before; so the run goes on only if a worker
                had begun it.
        """
        begun: Any = {"delivery": delivery.token, "lease_ms": lease_ms, "is_expired": is_expired}

        def begin(keys: Keys) -> Call[Any]:
            return _BEGIN_RUN.call(keys, keys.about(delivery.name), delivery, **begun)

        answer, rest_ms = self._call_at_home(delivery.name, begin)
        return Begun(Answer(text_of(answer)), int(rest_ms) / 1000)

    def renew(
        self, held: Sequence[tuple[Delivery, float]], lease_ms: int, worker: str, row: str = ""
    ) -> dict[str, str]:
        """Renew leases, in one round trip for each node; return why deliveries must be terminated, by their
        tokens.

        Arguments:
            held: the deliveries, and for how many seconds each is at work.
            worker: the worker's name.
            row: what it says of itself, the members of a JSON object; '': nothing now.
        """

        def renew() -> dict[str, str]:
            by_part: dict[Keys, list[tuple[Delivery, float]]] = {}
            for keys, one in zip(self._homes([delivery.name for delivery, _ in held]), held, strict=True):
                by_part.setdefault(keys, []).append(one)
            if not by_part:  # a worker without runs is known in one part
                by_part[self._store.parts.home(worker)] = []
            calls = [_renew_call(keys, some, lease_ms, worker, row) for keys, some in by_part.items()]
            replies = self._store.ask_all(calls, is_following=False)
            answers = map(text_of, chain.from_iterable(replies))
            found = zip(chain.from_iterable(by_part.values()), answers, strict=True)
            return {one.token: answer for (one, _), answer in found if answer not in ("ok", "gone")}

        return self._store.following(renew)

    def end(self, ends: Sequence[End]) -> None:
        """Record how deliveries have ended, in one round trip for each node."""
        self._at_homes([end.delivery.name for end in ends], lambda at, keys: _end_call(keys, ends[at]))

    def note_child(self, delivery: Delivery, task_id: str, task: str = "") -> None:
        """Record a task that ``delivery``, a task of a workflow, is about to send; ``task`` is its name."""
        child: Any = {"root": delivery.root or delivery.task_id, "task_id": task_id, "task": task}

        def note(keys: Keys) -> Call[Any]:
            return _NOTE_CHILD.call(keys, keys.about(delivery.name), delivery, **child)

        self._call_at_home(delivery.name, note)

    def forget_worker(self, worker: str) -> None:
        """Remove a worker that has ended."""
        self._store.ask_all([Command("hdel", part.workers, worker) for part in self._store.all_parts])

    def leased(self, delivery: Delivery) -> RunRecord | None:
        """Return the record of the run whose lease is ``delivery``'s; None: it isn't."""

        def read(keys: Keys) -> Command:
            return Command("hget", keys.about(delivery.name).running, delivery.task_id)

        text = text_of(self._call_at_home(delivery.name, read))
        record = None if text is None else decode_record(delivery.task_id, text)
        return record if record is not None and record.delivery == delivery.token else None

    def settle(self, fence: Fence, settlements: Sequence[Settlement]) -> list[str | RedBeatError]:
        """Do what beat has decided about runs whose deadlines have come; one round trip.

        Returns of each the outcome that it has ended with now, 'overdue', or '' if neither came to it now; or
        its error, which is no matter of the others.

        Raises:
            LockLost: another beat holds the lock.
        """
        results = list[str | RedBeatError]()
        calls = [settle_call(self._store.keys, fence, one) for one in settlements]
        for answer in self._store.try_all(calls):
            if isinstance(answer, RedBeatError):
                results.append(answer)
                continue
            status, done = answer
            self._store.check_lock(status, fence)
            results.append(done)
        return results

    def give_up(self, name: str, runs: Sequence[RunRecord], problem: str) -> list[bool]:
        """End runs of the entry called ``name`` as lost; return of each True if it is given up.

        One that isn't in the same state any more isn't. What waits for them goes.

        Arguments:
            problem: who gives them up, or why.
        """
        asked = [
            {"task_id": one.task_id, "due": one.due, "state": one.state.value, "attempt": one.attempt}
            for one in runs
        ]

        def give_up(keys: Keys) -> Call[Any]:
            return _GIVE_UP_RUNS.call(keys, keys.about(name), name=name, problem=problem, runs=asked)

        return [text_of(one) == "1" for one in self._call_at_home(name, give_up)]

    def read(self, keys: Sequence[str]) -> list[list[RunRecord]]:
        """Return the runs in progress of the entries under ``keys``, the oldest first; one round trip.

        A key of another type counts as empty.
        """
        if not keys:
            return []
        running = self._store.keys.running
        found = self._store.ask_all([Command("hgetall", running(key)) for key in keys], is_tolerant=True)
        return [_records_of((one or {}).items()) for one in found]

    def deadlines(self, found: Sequence[tuple[str, RunRecord]]) -> list[float | None]:
        """Return when beat must look at each run, with its entry's key, UNIX seconds; one round trip.

        None: there is no such time.
        """
        asks, scores = list[Command](), list[Any]()
        for key, record in found:
            keys = self._store.parts.of(key)
            member = as_stored(f"{record.task_id}\0{keys.running(key)}")
            asks.append(Command("zscore", keys.deadlines, member))
        for chunk in in_chunks(asks):
            scores += self._store.ask_all(chunk, is_tolerant=True)
        return [None if one is None else float(one) for one in scores]

    def all(self) -> Iterator[tuple[str, RunRecord]]:
        """Yield all runs in progress, entry by entry, with the entry's key."""
        found = set[str]()
        for page in self._store.scan(
            *(partial(Command, "zscan", part.deadlines) for part in self._store.all_parts)
        ):
            found |= {text_of(member).partition("\0")[2] for member, _ in page}
        for chunk in in_chunks(sorted(map(self._store.keys.entry_of_running, found))):
            for key, records in zip(chunk, self.read(chunk), strict=True):
                yield from ((key, record) for record in records)

    def failing(self, keys: Sequence[str]) -> list[int]:
        """Return of each entry, by its key, how many of its last runs have failed in a row."""
        if not keys:
            return []
        beside = map(self._store.keys.beside, keys)
        asks = [Command("get", as_stored(failing)) for _, _, failing in beside]
        texts = [text_of(one) or "" for one in self._store.ask_all(asks, is_tolerant=True)]
        return [int(text) if text.isdecimal() and len(text) < 10 else 0 for text in texts]

    def forget_failures(self, key: str) -> None:
        """Count the failures in a row of the entry under ``key`` from the beginning."""
        _, _, failing = self._store.keys.beside(key)
        self._store.ask(Command("delete", as_stored(failing)))

    def failures(self, since: datetime, limit: int) -> list[FailedRun]:
        """Return the runs that have failed since a time, the newest first, at most ``limit``."""
        first = f"{max(0, int(since.timestamp() * 1000))}"
        found = self._store.ask_all(
            [
                Command("xrevrange", part.failures, max="+", min=first, count=limit)
                for part in self._store.all_parts
            ]
        )
        of_parts = ([_failed_run_of(text_of(number), values) for number, values in part] for part in found)
        runs = (filter(None, part) for part in of_parts)
        return [*islice(heapq.merge(*runs, key=lambda run: run.at, reverse=True), limit)]

    def has_workers(self) -> bool:
        """Return True if a live worker tracks runs, or if that is unknown."""
        try:
            return bool(self.workers())
        except RedBeatError:
            return True

    def workers(self) -> dict[str, dict[str, Any]]:
        """Return what each live worker that tracks runs says of itself, by its name."""
        store = self._store.of_all_parts()  # a worker is known in the parts that have had runs of it
        found = store.ask_all([Command("hgetall", part.workers) for part in store.all_parts])
        now = int(Server(store).now().timestamp())
        rows: dict[str, dict[str, Any]] = {}
        said_at: dict[str, float] = {}
        for name, text in chain.from_iterable(part.items() for part in found):
            try:
                row, worker = json.loads(text_of(text)), str(text_of(name))
                at = float(row["at"])
            except (ValueError, TypeError, KeyError, RecursionError):
                continue
            if at >= max(now - WORKER_SECONDS, said_at.get(worker, 0.0)):
                rows[worker], said_at[worker] = row, at
        return rows

    def _call_at_home(self, name: str, make: Callable[[Keys], Sendable[Any]]) -> Any:
        """Return what the call ``make(keys)`` returns in the part that has the runs of the entry ``name``."""
        return self._at_homes([name], lambda _, keys: make(keys))[0]

    def _at_homes(self, names: Sequence[str], make: Callable[[int, Keys], Sendable[Any]]) -> list[Any]:
        """Return what the call ``make(place, keys)`` returns of each entry, by its place in ``names``, in the
        part that has its runs.

        It is called again for those that were moved meanwhile, as it may have found nothing.
        """
        homes, found, left = dict[int, Keys](), dict[int, Any](), [*range(len(names))]

        def ask() -> None:
            homes.update(zip(left, self._homes([names[at] for at in left]), strict=True))
            calls = [make(at, homes[at]) for at in left]
            found.update(zip(left, self._store.ask_all(calls, is_following=False), strict=True))

        while left:
            self._store.following(ask)
            is_moving = self._store.config.layout.is_moving
            now = self._homes([names[at] for at in left]) if is_moving else [homes[at] for at in left]
            left = [at for at, keys in zip(left, now, strict=True) if keys.prefix != homes[at].prefix]
        return [found[at] for at in range(len(names))]

    def _homes(self, names: Sequence[str]) -> list[Keys]:
        """Return the names in the parts that have the runs of the entries with these names."""
        parts = self._store.parts
        return [parts.of(key) for key in self._store.locate(names, of_runs=True)]


def _records_of(fields: Iterable[tuple[Any, Any]]) -> list[RunRecord]:
    found = [decode_record(text_of(task_id), text_of(text)) for task_id, text in fields if text_of(task_id)]
    return sorted(filter(None, found), key=lambda one: (one.started or one.sent or 0.0, one.task_id))


def _failed_run_of(number: str, values: Any) -> FailedRun | None:
    texts = {text_of(name): text_of(text) for name, text in values.items()}
    rest = texts.get("error", ""), texts.get("worker", "")
    try:
        at = datetime.fromtimestamp(int(number.partition("-")[0]) / 1000, timezone.utc)
        due = datetime.fromtimestamp(float(texts["due"]), timezone.utc)
        return FailedRun(texts["entry"], texts["id"], due, at, texts["outcome"], *rest)
    except (KeyError, ValueError, OverflowError, OSError):
        return None


def _renew_call(
    keys: Keys, held: Sequence[tuple[Delivery, float]], lease_ms: int, worker: str, row: str
) -> Call[Any]:
    runs = [
        {
            "task_id": one.task_id,
            "due": one.due,
            "delivery": one.token,
            "attempt": one.attempt,
            "age_seconds": round(age_seconds, 3),
        }
        for one, age_seconds in held
    ]
    running = [keys.about(one.name).running for one, _ in held]
    workers: Any = {"worker": worker, "row": row, "forget_seconds": FORGET_SECONDS}
    return _RENEW_RUNS.call(keys, running=running, lease_ms=lease_ms, runs=runs, **workers)


def _end_call(keys: Keys, end: End) -> Call[Any]:
    one = end.delivery
    ran = "" if end.run_seconds is None else f"{end.run_seconds:.3f}"
    return _END_RUN.call(keys, keys.about(one.name), one, end, delivery=one.token, problem=end.error, ran=ran)


def settle_call(keys: Keys, fence: Fence, settlement: Settlement) -> Call[tuple[LockStatus, str]]:
    """Return the call that does what was decided about a run whose deadline has come.

    The reply is the lock's status, and the outcome that the run has ended with now, 'overdue', or '' if
    neither came to it now.
    """

    def read(reply: Any) -> tuple[LockStatus, str]:
        status, done = reply
        return LockStatus(status), text_of(done)

    return _SETTLE_RUN.call(keys, keys.about(settlement.name), settlement, fence=fence).reading(read)
