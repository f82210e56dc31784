"""A model of beats that share a schedule: a real server whose clock jumps, and all that happens to beats.

That no lock has two leaders is explored lock by lock, in every order (``leadership_model``), as no script
touches two. This one shows that all locks are led again soon, whatever has happened, and that each beat has
its share. The beats' own code runs; the steps of their threads are the model's: one is a second of all
clocks.

=============  ============================================================================================
disturbance    stands for
=============  ============================================================================================
arrives        a beat is started
leaves         it ends in good order
crashes        it is killed
is paused      SIGSTOP, and SIGCONT some seconds later
is cut off     it can't reach Redis, and some seconds later it can
loses a lock   somebody deletes the key
=============  ============================================================================================
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat.config.timing import Timing
from redbeat.errors import LockLost, RedBeatError
from redbeat.leadership.assignment import find_leaders, max_shards
from redbeat.leadership.heartbeat import Heartbeat
from redbeat.store.schedule import fetch_due
from tests.integration.leadership.sharing import SharingBeat
from tests.support.clocks import ServerClock
from tests.support.servers import Server

__all__ = ["Model", "modelled"]

#: the lengths that beats have by default
USUAL = Timing(60.0, 8.0)
MAX_BEATS = 5
#: how long a pause, or a cut, lasts; a beat that is away for less than the takeover time isn't replaced
AWAY_SECONDS = (1, 20)


class ModelBeat(SharingBeat):
    """One beat.

    Attributes:
        name: in the trace.
        away_until: until when it is paused or cut off, by the model's seconds.
        is_paused, is_cut: which of these it is.
    """

    def __init__(self, name: str, server: Server, shards: int) -> None:
        self.client = server.client(db=1, decode_responses=True)
        app = Celery(name, set_as_current=False)
        app.conf.update(redbeat_redis_url=server.url(1), redbeat_shards=shards)
        app.redbeat_redis = self.client
        self.is_paused = self.is_cut = False
        self._reach(self.client.connection_pool)
        super().__init__(app, USUAL)
        self.name = name
        self.away_until = 0
        self._renew_at = 0
        self.election.keep_alive()

    def _reach(self, pool: Any) -> None:
        get = pool.get_connection

        def get_connection(*args: Any, **kwargs: Any) -> Any:
            if self.is_cut:
                raise redis.exceptions.ConnectionError("cut off")
            return get(*args, **kwargs)

        pool.get_connection = get_connection

    def live(self, second: int, chance: random.Random) -> None:
        """Do what a beat does within a second: its thread, its scheduler, and the scripts of that."""
        beating = self.election.heartbeat
        if second >= self._renew_at:
            self._renew_at = second + int(USUAL.renewal_seconds)
            try:
                beating.beat()
            except RedBeatError:
                beating.excused_at = time.monotonic()
        try:
            self.step(at_once=False)
        except RedBeatError:
            self.election.note_progress()
        for leadership in chance.sample(self.election.leading, min(len(self.election.leading), 2)):
            self.write(leadership)

    def write(self, leadership: Any) -> None:
        """Let a script write in a part; it must be that of the part's leader."""
        try:
            fetch_due(leadership.store, leadership.fence, limit=1).run()
        except LockLost as exc:
            self.election.lose(exc)
        except RedBeatError:
            return
        else:
            token = leadership.fence.token
            assert self.client.get(leadership.lock_key) == token, "it has written and doesn't lead"


class Model:
    """Beats, a server, and a clock that all of them have.

    Attributes:
        trace: what has happened, with the seconds.
        second: how many have passed.
    """

    def __init__(self, server: Server, clock: ServerClock, shards: int, chance: random.Random) -> None:
        self._server, self._clock, self._shards, self._chance = server, clock, shards, chance
        self._made = 0
        self.beats: list[ModelBeat] = []
        self.second = 0
        self.trace: list[str] = []
        self._client = server.client(db=1, decode_responses=True)
        self._client.config_set("hz", 500)  # it keeps the time between two of its rounds

    @property
    def well(self) -> list[ModelBeat]:
        """Those that are neither paused nor cut off."""
        return [beat for beat in self.beats if not (beat.is_paused or beat.is_cut)]

    def disturb(self) -> str:
        """Let something happen; return what."""
        chance = self._chance
        what = chance.choice(["arrives", "leaves", "crashes", "is paused", "is cut off", "loses a lock"])
        if what == "arrives" or not self.well:
            if len(self.beats) == MAX_BEATS:
                return ""
            self.arrive()
            return "arrives"
        beat = chance.choice(self.well)
        self._note(f"{beat.name} {what}")
        if what in ("leaves", "crashes"):
            self.beats.remove(beat)
            if what == "leaves":
                beat.election.resign()
        elif what == "loses a lock":
            for leadership in beat.election.leading[:1]:
                self._client.delete(str(leadership.lock_key))
        else:
            beat.is_paused, beat.is_cut = what == "is paused", what == "is cut off"
            beat.away_until = self.second + chance.randint(*AWAY_SECONDS)
        return what

    def arrive(self) -> None:
        """Start one more beat."""
        self._made += 1
        self.beats.append(ModelBeat(f"beat-{self._made}", self._server, self._shards))
        self._note(f"beat-{self._made} arrives")

    def _note(self, words: str) -> None:
        self.trace.append(f"{self.second}: {words}")

    def pass_second(self) -> None:
        """Let all beats live for a second, in any order."""
        self._client.set("probe", 1, px=60_000)
        self.second += 1
        self._clock.jump(1)
        while self._client.pttl("probe") > 59_000:  # until it looks at its clock
            pass
        for beat in self.beats:
            if (beat.is_paused or beat.is_cut) and self.second >= beat.away_until:
                beat.is_paused = beat.is_cut = False
                self._note(f"{beat.name} goes on")
        for beat in self._chance.sample(self.beats, len(self.beats)):
            if not beat.is_paused:
                beat.live(self.second, self._chance)
        self.check()

    def leaders(self) -> dict[str, str]:
        """Return the token in each lock that a beat holds which is well, by the part's prefix."""
        found = {}
        for beat in self.well:
            for leadership in beat.election.leading:
                if self._client.get(str(leadership.lock_key)) == leadership.fence.token:
                    found[leadership.keys.prefix] = beat.name
        return found

    def check(self) -> None:
        """AssertionError where two beats hold one lock by what Redis says."""
        holders = Counter(
            leadership.keys.prefix
            for beat in self.beats
            for leadership in beat.election.leading
            if self._client.get(str(leadership.lock_key)) == leadership.fence.token
        )
        assert max(holders.values(), default=0) <= 1, self.trace

    def loads(self) -> Mapping[str, int]:
        """How many parts each beat leads that is well."""
        return Counter({beat.name: 0 for beat in self.well}) | Counter(self.leaders().values())

    @property
    def are_all_led(self) -> bool:
        """Whether each part is led by a beat that is well."""
        return len(self.leaders()) == self._shards

    @property
    def is_settled(self) -> bool:
        """Whether each part is led by the beat that is to lead it."""
        ids = {beat.name: beat.election.members.beat for beat in self.well}
        parts = [leadership.keys.prefix for leadership in self.beats[0].election.leaderships]
        wanted = find_leaders(tuple(parts), frozenset(ids.values()))
        return {part: ids[name] for part, name in self.leaders().items()} == wanted

    def assert_shared(self) -> None:
        """Nobody leads more than the bound, and nobody is idle as long as there are enough parts."""
        loads = self.loads()
        assert max(loads.values()) <= max_shards(self._shards, len(loads)), (loads, self.trace)
        assert min(loads.values()) > 0 or len(loads) > self._shards, (loads, self.trace)


@contextmanager
def modelled(
    server: Server, clock: ServerClock, shards: int, chance: random.Random, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Model]:
    """Within this, this process's monotonic clock goes on with the model's seconds; heartbeats are steps."""
    monotonic = time.monotonic
    model = Model(server, clock, shards, chance)
    with monkeypatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: monotonic() + model.second)
        patch.setattr(Heartbeat, "start", lambda _heartbeat: None)
        # a beat whose thread seems to be missing announces itself without renewing its locks
        patch.setattr(Heartbeat, "is_running", True)
        yield model
