"""The members of the schedule, a page at a time from any place."""

from __future__ import annotations

import random
from itertools import chain

import pytest
import redis
from celery import Celery

from redbeat.store.members import Members
from redbeat.store.store import Store

SCHEDULE = "redbeat::schedule"


@pytest.mark.parametrize("never", [0, 3, 40])
def test_a_page_is_read_from_any_place_and_one_that_was_moved_is_gone_on_from(
    app: Celery, client: redis.Redis, chance: random.Random, never: int
) -> None:
    scores = [-1.0] * (never - never // 2) + [-2.5] * (never // 2) + [0.0] * 5 + [9e9] * 30
    scores += [chance.uniform(0, 1e9) for _ in range(20)]
    client.zadd(SCHEDULE, {f"redbeat:{chance.random()}é": score for score in scores})
    client.zadd(SCHEDULE, {b"redbeat:\xff": 9e9})
    members = Members(Store(app))
    rows = list(chain.from_iterable(members.in_order()))
    assert len(rows) == never + 56
    for offset in range(len(rows) + 2):
        count = chance.randint(0, 70)
        assert members.slice(offset, count) == rows[offset : offset + count], (offset, count)
    for place in chance.sample(range(len(rows)), 12):
        member, score = rows[place]
        assert members.place_after(member, score) == place + 1
        moved = chance.choice([-3.0, 1.0, 1e10])
        client.zadd(SCHEDULE, {member.encode("utf-8", "surrogateescape"): moved})
        before = sum(1 for row in chain.from_iterable(members.in_order()) if row in rows[:place])
        is_before = (moved < 0, moved) < (score < 0, score)
        assert members.place_after(member, score) == before + is_before
        client.zadd(SCHEDULE, {member.encode("utf-8", "surrogateescape"): score})
    client.delete(SCHEDULE)
    assert members.slice(0, 5) == []
    assert members.place_after("redbeat:gone", 5.0) == 0
