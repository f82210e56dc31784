"""What says how a schedule is divided, and who is there, overwritten with nonsense under running beats.

They go on, or refuse with a sentence; when an operator has put it right, no run is lost or doubled.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.faults.rounds import IS_LONG, TALLY, some_of
from tests.faults.shards import LOCK_SECONDS, Crew, RedisBroker, Scene, Taker, starter
from tests.support.apps import celery_command
from tests.support.logs import has_traceback
from tests.support.polling import eventually
from tests.support.servers import Server

SHARDS = 4
LAYOUT, BEATS = "redbeat::layout", "redbeat::beats"
GENERATIONS = [f"{{redbeat:{shard}}}::generation" for shard in range(SHARDS)]
GUARD = f"1 {SHARDS}"

Meddle = Callable[[redis.Redis], object]


def of_another_type(key: str) -> Meddle:
    def meddle(client: redis.Redis) -> None:
        client.delete(key)
        client.set(key, "nonsense")

    return meddle


def hold(key: str, *texts: str) -> Meddle:
    def meddle(client: redis.Redis) -> None:
        client.delete(key)
        client.rpush(key, *texts)

    return meddle


def say(**fields: str) -> Meddle:
    return lambda client: client.hset(LAYOUT, mapping=fields)


def generations(text: str) -> Meddle:
    return lambda client: client.mset(dict.fromkeys(GENERATIONS, text))


def junk_beats(client: redis.Redis) -> None:
    now = client.time()[0]
    client.zadd(
        BEATS, {"": now, "\xff\x00": now + 5, "x" * 5000: now, "a b c": 1e300, "{}": float("inf"), "z": -1}
    )


def junk_moving(client: redis.Redis) -> None:
    for shard in range(SHARDS):
        key = f"{{redbeat:{shard}}}::moving"
        client.hset(
            key, mapping={"entry-1": "nonsense", "": "{}", "gone": '{"to": "{redbeat:99}:", "id": "1"}'}
        )


#: what is done to a schedule in shards
GARBAGE: dict[str, Meddle] = {
    "layout is a string": of_another_type(LAYOUT),
    "layout is a list": hold(LAYOUT, "a", "b"),
    "no layout": lambda client: client.delete(LAYOUT),
    "shards are a word": say(shards="many"),
    "shards are too many": say(shards="999999999999"),
    "shards are negative": say(shards="-1"),
    "no generation": lambda client: client.hdel(LAYOUT, "generation"),
    "generation is a word": say(generation="first"),
    "state is unknown": say(state="dancing"),
    "former is a word": say(former="none", state="moving"),
    "generations are gone": lambda client: client.delete(*GENERATIONS),
    "one generation is gone": lambda client: client.delete(GENERATIONS[1]),
    "generations are words": generations("nonsense"),
    "generations are empty": generations(""),
    "generations are of the future": generations(f"99 {SHARDS}"),
    "generations are of another number": generations("1 7"),
    "a generation is a list": hold(GENERATIONS[2], "a"),
    "beats are a string": of_another_type(BEATS),
    "beats are a list": hold(BEATS, "a"),
    "beats are junk": junk_beats,
    "what moves is junk": junk_moving,
    "what moves is a string": of_another_type("{redbeat:1}::moving"),
}


def repair(client: redis.Redis) -> None:
    """As an operator would who knows how it was."""
    client.delete(LAYOUT, *GENERATIONS, BEATS, *(f"{{redbeat:{shard}}}::moving" for shard in range(SHARDS)))
    client.hset(LAYOUT, mapping={"shards": SHARDS, "generation": 1})
    client.mset(dict.fromkeys(GENERATIONS, GUARD))


@pytest.fixture
def client(valkey: Server) -> Iterator[redis.Redis]:
    with valkey.client(db=1) as connected:
        yield connected


@pytest.mark.slow
@pytest.mark.parametrize("what", some_of(GARBAGE, 3) if not IS_LONG else GARBAGE)
def test_beats_go_on_or_refuse_with_a_sentence_and_lose_nothing(
    valkey: Server,
    client: redis.Redis,
    what: str,
    chance: random.Random,
    tmp_path: Path,
    record_property: Any,
) -> None:
    settings = {"redbeat_redis_url": valkey.url(1), "redbeat_lock_timeout": LOCK_SECONDS}
    settings |= {"redbeat_shards": SHARDS, "redbeat_redis_options": {"retry_period": -1}}
    broker = RedisBroker(valkey.url(1), client)
    scene = Scene(client, settings, broker, layouts=[SHARDS])
    scene.save(20)
    start = starter(tmp_path, scene, shards=SHARDS)
    with Taker(broker) as taker, Crew(chance, start, 3) as crew:
        crew.start(1)
        scene.await_runs_of(taker, time.time())
        with crew.excused():
            GARBAGE[what](client)
            began = time.time()
            crew.start(1)  # one that finds it so
            commands = [("redbeat", "list"), ("redbeat", "doctor"), ("redbeat", "status")]
            said = [say_what(tmp_path, *words) for words in commands]
            time.sleep(max(began + 4 - time.time(), 0))  # so long it lasts
            ended = [beat for beat in crew.beats if not beat.is_running]
            crew.beats = [beat for beat in crew.beats if beat not in ended]
            for beat in ended:
                assert "CRITICAL" in beat.output(), beat.output()
                assert "During handling" not in beat.output(), beat.output()
                assert "redis/" not in beat.output(), beat.output()
            going_on = max(taker.newest().values()) - began
            repair(client)
        if not crew.beats:
            crew.start()
        scene.await_runs_of(taker, time.time() + 1)
        crew.end()
    verdict = scene.judge(taker, crew)
    print(f"{what}: {len(ended)} of 2 beats refused, sent until {going_on:.1f} s after it; {verdict}")
    lines = {
        line
        for beat in [*crew.ended, *ended]
        for line in beat.output().splitlines()
        if "CRIT" in line or "ERR" in line
    }
    print(*sorted(lines), *said, sep="\n")
    record_property(TALLY, ["nonsense where the layout is", verdict.counts(1)])
    verdict.check(is_exactly_once=True)


def say_what(directory: Path, *words: str) -> str:
    """What a command prints; it may refuse, but not break."""
    with celery_command(directory, "module", *words, env={"SHARDS": str(SHARDS)}) as process:
        process.wait()
    assert not has_traceback(process.output()), process.output()
    return f"$ {' '.join(words)}: {process.returncode}\n{process.output().strip()[:400]}"


SEQUENCES = int(os.environ.get("SEQUENCES", "30" if IS_LONG else "1"))
MOVING = ["redbeat::moving", *(f"{{redbeat:{shard}}}::moving" for shard in range(64))]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(SEQUENCES))
def test_nothing_is_hidden_lost_or_doubled_however_often_reshards_are_killed(
    valkey: Server,
    client: redis.Redis,
    chance: random.Random,
    tmp_path: Path,
    number: int,
    record_property: Any,
) -> None:
    """Some changes find the layout lost, too; what a killed one has hidden comes back without another."""
    settings = {"redbeat_redis_url": valkey.url(1), "redbeat_lock_timeout": LOCK_SECONDS}
    scene = Scene(client, settings, RedisBroker(valkey.url(0), valkey.client(db=0)), layouts=[None])
    scene.save(40)
    start, kills, restored, caught, longest_hidden = starter(tmp_path, scene), 0, 0, 0, 0.0
    with Taker(scene.broker) as taker, Crew(chance, start, 3) as crew:
        crew.start(2)
        scene.await_runs_of(taker, time.time())
        for shards in chance.sample([None, 1, 3, 4, 16, 64], 3):
            scene.layouts.append(shards)
            for _ in range(chance.randrange(1, 3)):
                mover = celery_command(tmp_path, "module", *command_to(shards), env=env_of(scene))
                state = chance.choice(["moving", "settling"])
                before = client.hget(LAYOUT, "generation")
                eventually(lambda: _has_come(client, state, before) or not mover.is_running, 60, 0.002)  # noqa: B023
                if chance.random() < 0.7:
                    eventually(lambda: client.exists(*MOVING) or not mover.is_running, 30, 0.0005)  # noqa: B023
                else:
                    time.sleep(chance.uniform(0, 0.3))  # the instant of the fault, not a wait for something
                kills += mover.kill() == -signal.SIGKILL
                caught += bool(client.exists(*MOVING))
                killed_at = time.monotonic()
                eventually(lambda: not hidden_in(client), 30, 0.1, "it stays hidden")
                longest_hidden = max(longest_hidden, time.monotonic() - killed_at)
                if chance.random() < 0.3 and client.hexists(LAYOUT, "state"):
                    client.delete(LAYOUT)
                    restored += 1
                crew.check()
            with celery_command(tmp_path, "module", *command_to(shards), env=env_of(scene)) as mover:
                mover.wait()
                assert mover.returncode == 0, mover.output()
            assert not has_traceback(mover.output()), mover.output()
        scene.await_runs_of(taker, time.time() + 1)
        crew.end()
    verdict = scene.judge(taker, crew)
    what = f"{kills} kills, {restored} layouts lost, {caught} times hidden, for {longest_hidden:.1f} s"
    print(f"{number}: {scene.layouts}, {what}; {verdict}")
    assert hidden_in(client) == []
    assert [*client.scan_iter("*:mover", count=10_000)] == []
    record_property(TALLY, ["reshards that are killed", verdict.counts(kills + restored)])
    verdict.check(is_exactly_once=False)
    assert verdict.doubled == []


def hidden_in(client: redis.Redis) -> list[str]:
    return [*client.scan_iter("*:moving*", count=10_000)]


def command_to(shards: int | None) -> tuple[str, ...]:
    return "redbeat", "reshard", "--to", str(shards or "none"), "--yes"


def env_of(scene: Scene) -> dict[str, str]:
    return {"SHARDS": str(scene.shards or 0)}


def _has_come(client: redis.Redis, state: str, before: str | None) -> bool:
    found = client.hmget(LAYOUT, "state", "generation")
    return found[0] == state and found[1] != before
