"""One of several beats cut off from its server, or far away from it, while shards move to it and from it."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.faults.rounds import IS_LONG
from tests.faults.shards import LOCK_SECONDS, SILENT_SECONDS, Crew, RedisBroker, Scene, Taker, starter
from tests.faults.summary import TALLY
from tests.support.proxy import Proxy
from tests.support.servers import Server

SHARDS = 16
ENTRIES = 40
#: the one that is far away leads what it leads as long as its requests come through, and sends it as slowly
#: as these do: one for each shard, of up to 0.4 seconds each way
FAR_SECONDS = SHARDS * 0.8
SECONDS = 240.0 if IS_LONG else 9.0


class Way:
    """The way from one beat to the server, and what befalls it: one thing at a time, for a while."""

    def __init__(self, proxy: Proxy, chance: random.Random) -> None:
        self._proxy, self._chance = proxy, chance
        self._until = 0.0
        self._end: Callable[[], None] = proxy.heal
        self.faults: Counter[str] = Counter()

    def befall(self) -> None:
        if time.monotonic() < self._until:
            return
        self._end()
        faults = [
            self._cut,
            self._withhold,
            self._lose,
            self._refuse,
            self._silence,
            self._be_slow,
            self._be_mute,
        ]
        fault = self._chance.choice([*faults, self._proxy.heal])
        self.faults[fault.__name__.strip("_")] += 1
        self._end = self._proxy.heal
        fault()
        seconds = self._chance.choice([0.2, LOCK_SECONDS, 2 * LOCK_SECONDS])
        self._until = time.monotonic() + seconds * self._chance.uniform(0.5, 1.5)

    def _cut(self) -> None:
        """Reset connections amid scripts: now the request is lost, and now the answer."""
        self._proxy.cut_on(b"EVALSHA", self._chance.choice(["request", "reply"]), self._chance.randint(1, 20))

    def _withhold(self) -> None:
        self._proxy.freeze()

    def _lose(self) -> None:
        """Nothing passes, and what was sent meanwhile is lost."""
        self._proxy.freeze()

        def drop() -> None:
            self._proxy.drop()
            self._proxy.heal()

        self._end = drop

    def _refuse(self) -> None:
        self._proxy.refuse()
        self._proxy.drop()

    def _silence(self) -> None:
        self._proxy.silence()

    def _be_slow(self) -> None:
        self._proxy.delay_seconds = self._chance.uniform(0.02, 0.4)

    def _be_mute(self) -> None:
        """What beat asks is done, and it isn't told."""
        self._proxy.withhold_answers()

    def heal(self) -> None:
        self._end()
        self._proxy.heal()


def test_a_beat_that_is_cut_off_while_shards_move_loses_and_doubles_no_run(
    valkey: Server, chance: random.Random, tmp_path: Path, record_property: Any
) -> None:
    with valkey.client(db=1) as client, Proxy((valkey.host, valkey.port)) as proxy:
        broker = RedisBroker(valkey.url(1), client)
        settings = {"redbeat_redis_url": valkey.url(1), "redbeat_lock_timeout": LOCK_SECONDS}
        scene = Scene(client, settings, broker, layouts=[SHARDS])
        scene.save(ENTRIES, redbeat_shards=SHARDS)
        far: dict[str, Any] = {name: proxy.url(valkey.url(1)) for name in ("broker_url", "redbeat_redis_url")}
        far["redbeat_redis_options"] = {"retry_period": -1}
        start = starter(tmp_path / "near", scene)
        start_far = starter(tmp_path / "far", scene, **far)
        way = Way(proxy, chance)
        with Taker(broker) as taker, Crew(chance, start_far, 1) as cut_off, Crew(chance, start, 2) as crew:
            cut_off.start()
            crew.start()
            cut_off.beats[0].wait_for("beat: Starting")
            crew.suffer(SECONDS, also=way.befall)
            way.heal()
            crew.recover()
            scene.await_runs_of(taker, time.time() + 1)
            crew.end()
            scene.await_runs_of(taker, time.time() + 1)  # the one that was cut off leads everything then
            cut_off.end()
        verdict = scene.judge(taker, crew)
    print(f"{dict(way.faults)}, {dict(crew.faults)}, {cut_off.count('Hands ')} handed over; {verdict}")
    faults = way.faults.total() + crew.faults.total()
    record_property(TALLY, ["a beat that shares shards is cut off", verdict.counts(faults)])
    verdict.check(is_exactly_once=True, most_silent=SILENT_SECONDS + FAR_SECONDS)
