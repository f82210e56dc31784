"""Anything, in any order: entries saved, changed, deleted and re-timed while beats step, pause and die.

Every beat is a real scheduler in this process. Before and after each of its round trips it may be
interrupted: by other people's writes, by another beat's whole tick, by losing its lock, by its own death.
After each, a `Witness` says whether that step was one that the invariants (docs/design.rst) allow. At the end
one more beat deals with what is left, and no run may be missing then. Time passes by rewriting the scores
that wait for a lease, a retry or a quarantine to end.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from redbeat import RedBeatScheduler
from redbeat.delivery.outbox import Outbox
from redbeat.errors import LockLost, LockNotAcquired
from redbeat.schedulers import acquire_distributed_beat_lock
from redbeat.store.store import Store
from tests.integration.beat.meddling import CENTURIES, NAMES, STATICS, Others, due_writes, writes
from tests.integration.beat.witness import SOON_SECONDS, Beat, Witness
from tests.support.servers import Server

EXAMPLES = 1_200 if os.environ.get("REDBEAT_FAULTS") == "long" else 10

beats = st.integers(0, 2)
ends = st.tuples(st.sampled_from(["kill", "terminate", "break_broker"]))
#: an idle leader's tick has two, a busy one's up to eight, that of a beat that only now gets the lock twenty
points = st.one_of(st.integers(1, 6), st.integers(1, 6), st.integers(7, 20))
interruptions = st.lists(st.tuples(points, st.one_of(writes, writes, ends)), max_size=2)
ticks = st.tuples(st.just("tick"), beats, interruptions)
starts = st.tuples(st.just("start"), beats, st.booleans(), interruptions)
#: what may come between two round trips of a beat
meanwhile = st.lists(st.tuples(points, st.one_of(writes, writes, ticks, starts, ends)), max_size=4)


class Killed(KeyboardInterrupt):
    """A beat is no more: not even its `except` blocks reach Redis."""


class Machine(RuleBasedStateMachine):
    """Three places for beats, two entries, and two statics of which a beat knows one or both."""

    def __init__(self, server: Server, other: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self._server, self._other = server, other
        self._monkeypatch = monkeypatch
        self._clients: list[Any] = []
        self._apps: list[Celery] = []
        self._beats: dict[int, Beat] = {}
        self._all_beats: list[Beat] = []
        #: who steps at the moment, and is interrupted by whom; None is somebody who is no beat
        self._stepping: list[Beat | None] = []
        self._plans: dict[int, list[tuple[int, Any]]] = {}
        self._points: Counter[int] = Counter()
        self._dead: set[int] = set()
        self._violation: AssertionError | None = None
        self._is_broker_broken = False

    @initialize(
        broker=st.sampled_from(["same db", "other db", "other server"]),
        has_lock=st.booleans(),
        is_at_most_once=st.sampled_from([False, False, False, True]),
        batch_size=st.sampled_from([2, 100]),
    )
    def set_up(self, broker: str, has_lock: bool, is_at_most_once: bool, batch_size: int) -> None:
        for server in (self._server, self._other):
            server.flush()
        broker_server, db = {
            "same db": (self._server, 1),
            "other db": (self._server, 0),
            "other server": (self._other, 1),
        }[broker]
        options = {"broker_url": broker_server.url(db), "redbeat_redis_url": self._server.url(1)}
        options |= {"redbeat_batch_size": batch_size, **({} if has_lock else {"redbeat_lock_key": None})}
        if is_at_most_once:
            options["redbeat_delivery"] = "at_most_once"
        # two releases of one application: the older one has a static more
        for statics in (STATICS, STATICS[1:]):
            app = Celery("test", set_as_current=False)
            every = timedelta(seconds=CENTURIES)
            static = {name: {"task": "echo", "schedule": every, "args": [name]} for name in statics}
            app.conf.update({**options, "beat_schedule": static})
            self._apps.append(app)
        guarantee: Any = "at least once" if broker == "other server" else "exactly once"
        self._guarantee = "at most once" if is_at_most_once else guarantee
        self._has_lock = has_lock
        self._client = self._server.client(db=1)
        self._clients += [self._client, broker_server.client(db=db)]
        self._witness = Witness(*self._clients, NAMES + STATICS, self._guarantee, has_lock)
        self._others = Others(self._client, self._apps[0], self._witness, has_lock)
        self._monkeypatch.setattr(Store, "on_round_trip", staticmethod(self._come_to_a_point))
        send = Outbox.__dict__["send"]
        self._monkeypatch.setattr(Outbox, "send", lambda outbox, batches: self._send(send, outbox, batches))

    # -- what happens

    @rule(write=writes)
    def somebody_writes(self, write: Any) -> None:
        self._do(write)

    @rule(start=st.tuples(st.just("start"), beats, st.booleans(), meanwhile))
    def a_beat_starts(self, start: Any) -> None:
        self._do(start)

    @rule(due=due_writes, place=beats, is_older=st.booleans(), is_lock_free=st.booleans(), plan=meanwhile)
    def a_beat_ticks(
        self, due: list[Any], place: int, is_older: bool, is_lock_free: bool, plan: list[Any]
    ) -> None:
        if is_lock_free:
            self._do(("drop_lock",))
        self._start(place, is_older, [])
        for write in due:
            self._do(write)
        self._tick(place, plan)

    @rule(due=due_writes, place=beats, plan=meanwhile)
    def the_leader_ticks(self, due: list[Any], place: int, plan: list[Any]) -> None:
        for write in due:
            self._do(write)
        leading = [place for place, beat in self._beats.items() if beat.scheduler.lock or not self._has_lock]
        if leading:
            self._tick(leading[place % len(leading)], plan)

    @rule(place=beats)
    def a_beat_ends(self, place: int) -> None:
        beat = self._beats.pop(place, None)
        if beat is not None:
            self._step(beat, beat.scheduler.close, [])

    @rule(place=beats)
    def a_beat_is_killed(self, place: int) -> None:
        self._beats.pop(place, None)

    def _do(self, action: tuple[Any, ...]) -> None:
        name, *arguments = action
        own = getattr(self, f"_{name}", None)
        if own is not None:
            own(*arguments)
            return
        self._stepping.append(None)
        try:
            getattr(self._others, name)(*arguments)
        finally:
            self._stepping.pop()
        self._note(self._witness.accept())

    # -- what beats do

    def _start(self, place: int, is_older: bool, plan: list[tuple[int, Any]]) -> None:
        if place in self._beats:
            return
        beat = Beat(frozenset(STATICS if is_older else STATICS[1:]))
        self._all_beats.append(beat)

        def start() -> None:
            beat.scheduler = RedBeatScheduler(self._apps[0 if is_older else 1])
            acquire_distributed_beat_lock(SimpleNamespace(scheduler=beat.scheduler))

        if self._step(beat, start, plan):
            self._beats[place] = beat

    def _tick(self, place: int, plan: list[tuple[int, Any]]) -> None:
        beat = self._beats.get(place)
        if (
            beat is not None
            and beat not in self._stepping
            and not self._step(beat, beat.scheduler.tick, plan)
        ):
            self._beats.pop(place, None)

    def _step(self, beat: Beat, step: Any, plan: list[tuple[int, Any]]) -> bool:
        """Let a beat do something while `plan` (point, action) happens; return whether it goes on."""
        self._points[id(beat)], self._plans[id(beat)] = 0, plan
        self._stepping.append(beat)
        beat.begin(self._witness.last)
        try:
            step()
        except (LockNotAcquired, LockLost):
            assert self._has_lock
        except Killed:
            return False
        except KeyboardInterrupt:
            self._plans[id(beat)] = []
            if beat.scheduler is not None:
                beat.scheduler.close()
            return False
        finally:
            self._stepping.pop()
            if self._violation:
                raise self._violation
        return True

    def _come_to_a_point(self) -> None:
        """Called before and after each round trip."""
        beat = self._stepping[-1] if self._stepping else None
        if beat is None or self._violation:
            return
        if id(beat) in self._dead:
            raise Killed
        try:
            self._note(self._witness.judge(beat))
            self._points[id(beat)] += 1
            for point, action in self._plans[id(beat)]:
                if point == self._points[id(beat)]:
                    self._do(action)
        except AssertionError as exc:  # the per-entry boundary might take it for a failure of the broker's
            self._violation = exc
            raise

    def _note(self, look: Any) -> None:
        for beat in self._stepping:
            if beat is not None:
                beat.seen.append(look)

    def _send(self, send: Any, outbox: Outbox, batches: Any) -> Any:
        self._come_to_a_point()
        if self._is_broker_broken:
            self._is_broker_broken = False
            raise ConnectionError("the broker is away")
        outcomes = send(outbox, batches)
        self._come_to_a_point()
        return outcomes

    def _kill(self) -> None:
        beat = self._stepping[-1]
        assert beat is not None
        self._dead.add(id(beat))
        raise Killed

    def _terminate(self) -> None:
        raise KeyboardInterrupt

    def _break_broker(self) -> None:
        self._is_broker_broken = True

    # -- the end

    def teardown(self) -> None:
        try:
            if self._clients and self._violation is None:
                self._drain()
                self._check_the_end()
        finally:
            self._stepping.clear()
            self._monkeypatch.undo()
            for beat in self._all_beats:
                if beat.scheduler is not None:
                    beat.scheduler._broker.close()  # noqa: SLF001 - a beat that crashed closes nothing
            for closeable in (*self._clients, *self._apps):
                closeable.close()

    def _drain(self) -> None:
        """One more beat deals with everything: what the others had begun, too."""
        self._is_broker_broken = False
        self._beats.clear()
        self._do(("drop_lock",))
        self._start(0, False, [])
        for _ in range(2 + len(NAMES + STATICS)):
            self._do(("let_time_pass",))
            self._tick(0, [])

    def _check_the_end(self) -> None:
        last = self._witness.last
        for name, row in last.rows.items():
            if row.kind == "usable" and row.score is not None:
                assert row.score > last.now + SOON_SECONDS, f"{name} was never sent"
        runs = Counter((message.entry, message.due) for message in self._witness.messages)
        with_ids = {(message.entry, message.due, message.id) for message in self._witness.messages}
        assert len(runs) == len(with_ids), "a run has two ids"
        if self._guarantee != "at least once":
            assert max(runs.values(), default=1) == 1, f"doubled: {runs}"


@pytest.fixture
def quiet() -> Iterator[None]:
    """Hundreds of beats tell the log what befalls them; none of it is what this is about."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.timeout(900 + EXAMPLES)
@pytest.mark.usefixtures("quiet")
def test_every_step_of_every_beat_keeps_the_invariants(
    valkey: Server, second: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_state_machine_as_test(
        lambda: Machine(valkey, second, monkeypatch),
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=25,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
