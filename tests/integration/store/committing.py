"""Due entries, their commits, and what has become of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace

import redis

from redbeat.store.executor import CALL_ROWS, Executor
from redbeat.store.records import (
    NOWHERE,
    Commit,
    Committed,
    Fence,
    Push,
    Target,
)
from redbeat.store.schedule import Recording, commit_runs
from redbeat.store.store import Store
from tests.support.fetched import fetched
from tests.support.schedule import SCHEDULE

DEFINITION = json.dumps({"task": "echo", "schedule": {"__type__": "interval", "every": 60}})
META = '{"last_run_at": null, "total_run_count": 0}'


def commits_of(client: redis.Redis, pushes: Sequence[Sequence[Push]]) -> list[Commit]:
    """Due entries, stored and as they were claimed; each is committed with its pushes."""
    commits = []
    with client.pipeline(transaction=False) as pipeline:
        for number, of_entry in enumerate(pushes):
            key = f"redbeat:entry-{number}"
            pipeline.hset(key, mapping={"definition": DEFINITION, "meta": META})
            pipeline.zadd(SCHEDULE, {key: 5})
            due_entry = fetched(key, "5", DEFINITION, META)
            new_meta = META.replace("0", "1")
            record = f'"due":5,"number":{number}'
            commits.append(Commit(due_entry, "65", new_meta, pushes=tuple(of_entry), records=(record,)))
        pipeline.execute()
    return commits


def target_of(client: redis.Redis) -> Target:
    """The server itself: the schedule in database 1, the queues in 0."""
    return Target(str(client.info("server")["run_id"]), 1, 0)


def states(client: redis.Redis, count: int) -> list[str]:
    """Of each entry 'due' or 'recorded', with its meta, score and history."""
    with client.pipeline(transaction=False) as pipeline:
        for number in range(count):
            key = f"redbeat:entry-{number}"
            pipeline.hmget(key, "meta", "meta_crc32")
            pipeline.zscore(SCHEDULE, key)
            pipeline.llen(f"redbeat::history:entry-{number}")
        replies = iter(pipeline.execute())
    found = []
    for texts, score, length in zip(replies, replies, replies, strict=True):
        if (texts, score, length) == ([META, None], 5.0, 0):
            found.append("due")
        else:
            assert (texts[0], score, length) == (META.replace("0", "1"), 65.0, 1)
            found.append("recorded")
    return found


def push(queue: str, message: object) -> Push:
    return Push("lpush", queue, str(message))


class Committing:
    """Rows that an executor records piece by piece."""

    def __init__(self, store: Store, fence: Fence, target: Target) -> None:
        self._store, self._fence, self._target = store, fence, target
        self._executor = Executor(store)
        self._recordings: list[Recording] = []

    def write(self, commits: Sequence[Commit]) -> None:
        for first in range(0, len(commits), CALL_ROWS):
            chunk = commits[first : first + CALL_ROWS]
            self._recordings.append(commit_runs(self._store, self._fence, chunk, self._target))
            self._executor.submit(self._recordings[-1])

    def finish(self) -> Committed:
        self._executor.drain()
        found = [one.answer() for one in self._recordings]
        return replace(found[-1], results=[result for one in found for result in one.results])

    def close(self) -> None:
        self._executor.close()


@contextmanager
def committing(store: Store, fence: Fence, target: Target = NOWHERE) -> Iterator[Committing]:
    """Yield what records rows piece by piece."""
    with closing(Committing(store, fence, target)) as made:
        yield made
