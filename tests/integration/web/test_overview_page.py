"""The overview: a verdict, what to do, and figures that say where they come from."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat.errors import StoreUnavailable
from redbeat.leadership.lock import new_token
from redbeat.web.pages import overview
from tests.support.dashboards import Browser
from tests.support.polling import eventually
from tests.support.servers import Server

Browse = Callable[..., Browser]


def lead(client: redis.Redis) -> None:
    client.set("redbeat::lock", new_token(), px=60_000)


def test_it_says_who_leads_what_is_late_and_what_to_do(browse: Browse, add: Any, client: redis.Redis) -> None:
    browser = browse("read")
    page = browser.read("/")
    assert "No leader: No beat holds the lock" in page
    assert "celery -A proj beat -S redbeat.RedBeatScheduler" in page
    assert "Nothing was ever counted here" in page
    lead(client)
    assert "Healthy" in browser.read("/")
    add("late")
    client.zadd("redbeat::schedule", {"redbeat:late": time.time() - 3600})
    page = browser.read("/")
    assert "Late: The oldest due entry has been waiting for" in page
    assert "Beat&#39;s log says what it is busy with" in page


def test_a_leader_without_a_sign_of_life_is_silent_before_it_is_late(
    browse: Browse, client: redis.Redis
) -> None:
    browser = browse("read")
    lead(client)

    def verdict(seconds_ago: float) -> str:
        client.set("redbeat::tick", f"{time.time() - seconds_ago:.3f}")
        return browser.read("/").partition('<div class="tiles')[0]

    assert "Healthy" in verdict(3)
    assert "gives no sign of life" in verdict(7)
    assert f"Silent: Process {os.getpid()} on" in verdict(7)
    assert "No other beat is there to take over: start one" in verdict(7)
    client.zadd("redbeat::standbys", {new_token(): time.time()})
    assert "A standby takes over 8 s after its last one, and loses no run." in verdict(7)
    assert "Late: The leader&#39;s last tick was" in verdict(61)
    client.delete("redbeat::lock")
    assert "No leader" in verdict(7)


def test_it_shows_the_last_hour_as_it_was_counted(browse: Browse, client: redis.Redis) -> None:
    lead(client)
    number = int(time.time()) // 60
    minutes = {
        number - 1: {"sent": 42, "late/1": 40, "late/9": 2, "failed": 3, "unsent": 1},
        number - 59: {"sent": 8, "late/1": 8, "nonsense": 1},
        number - 60: {"sent": 1000},  # an hour ago
    }
    client.hset("redbeat::totals", "leader", "somebody")
    for one, counted in minutes.items():
        client.hset("redbeat::minutes", str(one % 60), json.dumps({"minute": one, "counted": counted}))
    for slot, garbage in (
        ("x", "no JSON"),
        ("y", "[]"),
        ("z", '{"minute": 1e999, "counted": {"sent": "n"}}'),
    ):
        client.hset("redbeat::minutes", slot, garbage)
    page = browse("read").read("/")
    assert "50 in the last hour" in page
    assert ">42 sent, 4 failed</title>" in page.replace(": 42", ">42")
    assert page.count('class="fill-accent" x=') == 2
    assert "<caption>The last hour" in page
    assert "1000" not in page


def test_entries_are_counted_by_their_states_beside_the_page(
    browse: Browse, add: Any, client: redis.Redis
) -> None:
    lead(client)
    for number in range(70):
        add(f"entry {number}")
    add("rests").pause("a note")
    client.zadd("redbeat::schedule", {"redbeat:gone": time.time() + 1000})
    browser = browse("read")
    page = eventually(lambda: "72 of 72 counted" in (found := browser.read("/")) and found)
    for state, count in (("scheduled", 70), ("paused", 1), ("missing", 1)):
        assert f'{state}</span></span></a> <span class="number">{count}</span>' in page
    found = eventually(lambda: "looked" in (again := browser.read("/")).split("<h2>Doctor")[1] and again)
    assert "redbeat:gone" in found


def test_without_redis_it_says_so_and_asks_again(
    browse: Browse, valkey: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = browse("read")

    def refuse(_app: Celery) -> Any:
        raise StoreUnavailable("Redis is away.")

    monkeypatch.setattr(overview, "read_status", refuse)
    page = browser.read("/", status=503)
    assert "Unreachable: Redis is away." in page
    assert "Look whether it runs" in page
    assert 'hx-get="/"' in page
    part = browser.get("/", headers={"HX-Request": "true"})
    assert part.status_code == 200
    assert "<html" not in part.text
