"""Due entries, their commits, and what has become of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import redis

from redbeat.store.commits import Commits, CommitStream
from redbeat.store.records import NOWHERE, Commit, DueEntry, Fence, Push, Target
from redbeat.store.store import Store
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
            claimed = DueEntry(key, "5", DEFINITION, META, score="5")
            new_meta = META.replace("0", "1")
            record = f'"due":5,"number":{number}'
            commits.append(Commit(claimed, "65", new_meta, pushes=tuple(of_entry), records=(record,)))
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
            pipeline.hmget(key, "meta", "meta_sha1")
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


@contextmanager
def committing(store: Store, fence: Fence, target: Target = NOWHERE) -> Iterator[Commits]:
    """Yield commits that are streamed. Those that cannot be streamed are sent at the end."""
    with CommitStream(store) as stream:
        yield store.commits(fence, target, lambda commits: store.commit_runs(fence, commits, target), stream)
