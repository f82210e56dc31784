"""What says how a schedule is divided, and who is there, overwritten with nonsense under running beats.

They go on, or refuse with a sentence; when an operator has put it right, no run is lost or doubled.
"""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.faults.bursts import RedisQueue
from tests.faults.rounds import some_of
from tests.faults.shards import LOCK_SECONDS, Crew, Scene, Taker, starter
from tests.support.apps import celery_command
from tests.support.logs import has_traceback
from tests.support.servers import Server

SHARDS = 4
LAYOUT, BEATS = "redbeat::layout", "redbeat::beats"
GENERATIONS = [f"{{redbeat:{shard}}}::generation" for shard in range(SHARDS)]
GUARD = f"1 {SHARDS}"

Meddle = Callable[[redis.Redis], object]


def hold_instead(key: str, write: str, *texts: str) -> Meddle:
    """Let a key hold another type, by this command."""

    def meddle(client: redis.Redis) -> None:
        client.delete(key)
        client.execute_command(write, key, *texts)

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
    "layout is a string": hold_instead(LAYOUT, "SET", "nonsense"),
    "no layout": lambda client: client.delete(LAYOUT),
    "shards are a word": say(shards="many"),
    "no generation": lambda client: client.hdel(LAYOUT, "generation"),
    "state is unknown": say(state="dancing"),
    "generations are gone": lambda client: client.delete(*GENERATIONS),
    "generations are words": generations("nonsense"),
    "generations are of the future": generations(f"99 {SHARDS}"),
    "generations are of another number": generations("1 7"),
    "a generation is a list": hold_instead(GENERATIONS[2], "RPUSH", "a"),
    "beats are a string": hold_instead(BEATS, "SET", "nonsense"),
    "beats are junk": junk_beats,
    "what moves is junk": junk_moving,
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
@pytest.mark.parametrize("what", some_of(GARBAGE, 3))
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
    broker = RedisQueue(valkey, 1)
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
            for output in (beat.output() for beat in ended):
                assert "CRITICAL" in output, output
                assert not re.search("During handling|redis/", output), output
            going_on = max(taker.newest().values()) - began
            repair(client)
        if not crew.beats:
            crew.start()
        scene.await_runs_of(taker, time.time() + 1)
        crew.end()
    verdict = scene.judge(taker, crew)
    print(f"{len(ended)} of 2 beats refused, sent until {going_on:.1f} s after it", *said, sep="\n")
    verdict.note("nonsense where the layout is", record_property, Counter([what]))
    verdict.check(is_exactly_once=True)


def say_what(directory: Path, *words: str) -> str:
    """What a command prints; it may refuse, but not break."""
    with celery_command(directory, "module", *words, env={"SHARDS": str(SHARDS)}) as process:
        process.wait()
    assert not has_traceback(process.output()), process.output()
    return f"$ {' '.join(words)}: {process.returncode}\n{process.output().strip()[:400]}"
