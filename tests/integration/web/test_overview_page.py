"""The overview: a verdict, what to do, and figures that say where they come from."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat.errors import StoreUnavailable
from redbeat.store.lock_tokens import new_token
from redbeat.web.pages import overview
from tests.support.dashboards import Browser
from tests.support.polling import eventually
from tests.support.servers import Server

Browse = Callable[..., Browser]


def lead(client: redis.Redis, since: float | None = None) -> None:
    words = new_token().split(":")
    words[-2] = words[-2] if since is None else f"{since:.0f}"
    client.set("redbeat::lock", ":".join(words), px=60_000)


def tile(page: str, label: str) -> str:
    """What a tile shows."""
    begin = rf'<div class="tile[^>]*><span class="tile-label">(?:<a [^>]*>)?{label}(?:</a>)?</span>'
    found = re.search(rf"{begin}(.*?)</div>", page, re.DOTALL)
    assert found, label
    return text_of(found[1])


def panel(page: str, heading: str) -> str:
    """The HTML of a panel below its heading."""
    found = re.search(rf"<h2>{heading}</h2></div>(.*?)</section>", page, re.DOTALL)
    assert found, heading
    return found[1]


def text_of(html: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", html)).split())


def test_a_leader_that_cannot_send_is_blocked(browse: Browse, client: redis.Redis) -> None:
    lead(client)
    client.set("redbeat::tick", f"{time.time():.3f} The broker is unreachable; due runs wait for it.")
    assert "Blocked: The broker is unreachable" in browse("read").read("/")


def test_it_says_who_leads_what_is_late_and_what_to_do(browse: Browse, add: Any, client: redis.Redis) -> None:
    browser = browse("read")
    page = browser.read("/")
    assert "No leader: No beat holds the lock" in page
    assert "celery -A proj beat -S redbeat.RedBeatScheduler" in page
    assert "Nothing was ever counted here" in page
    assert tile(page, "Leader") == "none the lock is free"
    lead(client, since=time.time() - 10_800)
    page = browser.read("/")
    assert "Healthy" in page
    assert tile(page, "Leader").endswith(f"process {os.getpid()}, since 3 h ago")
    assert tile(page, "Backlog") == "0 nothing is late"
    add("late 7")
    client.zadd(
        "redbeat::schedule", {f"redbeat:late {number}": time.time() - 10_800 for number in range(1200)}
    )
    page = browser.read("/")
    assert tile(page, "Backlog") == "1,200 due, the first one since 3 h ago"
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


def test_the_zone_that_a_browser_names_is_taken_if_there_is_one(browse: Browse) -> None:
    known = {"Europe%2FBerlin": "Europe/Berlin", "Asia/Kolkata": "Asia/Kolkata"}
    none = ("", "Mars/Olympus", "../../etc/passwd", "/etc/passwd", "Europe", "x" * 5000, "%00", "%FF%FE", ".")
    browser = browse("read")
    for cookie, name in {**known, **dict.fromkeys(none, "UTC")}.items():
        page = browser.get("/audit", {"cookie": f"redbeat-zone={cookie}"})
        assert (page.status_code, f"Times in {name}<" in page.text) == (200, True), cookie


def test_it_shows_the_last_hour_as_it_was_counted(browse: Browse, client: redis.Redis) -> None:
    lead(client)
    client.hset("redbeat::totals", "leader", "somebody")
    for slot, garbage in (
        ("x", "no JSON"),
        ("y", "[]"),
        ("z", '{"minute": 1e999, "counted": {"sent": "n"}}'),
    ):
        client.hset("redbeat::minutes", slot, garbage)

    def read() -> str | None:
        """The page, if it is of the minute that is counted from."""
        number = int(time.time()) // 60
        minutes = {
            number - 1: {"sent": 42, "late/1": 32, "late/6": 10, "failed": 3, "unsent": 1},
            number - 59: {"sent": 8, "late/1": 8, "nonsense": 1},
            number - 60: {"sent": 1000},  # an hour ago
        }
        for one, counted in minutes.items():
            client.hset("redbeat::minutes", str(one % 60), json.dumps({"minute": one, "counted": counted}))
        page = browse("read").read("/")
        return page if number == int(time.time()) // 60 else None

    page = str(eventually(read))
    assert tile(page, "Lateness, last hour") == "24 s 95 % were less late than that"
    assert tile(page, "Runs a minute") == "42 50 in the last hour"
    assert tile(page, "Failed, last hour") == "4 runs"
    late = panel(page, "How late they were")
    assert [len(re.findall(rf'class="line-{tone}" d="M[^"]', late)) for tone in ("info", "warn")] == [1, 1]
    table = panel(page, "Runs a minute").partition("<tbody>")[2]
    assert re.search(r"<td>42</td><td>4</td><td>[^<]+</td><td>[^<]+</td>", table)
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
    for number in range(2):
        client.hset(f"redbeat:broken {number}", mapping={"definition": "{oops", "error": "{}"})
        client.zadd("redbeat::schedule", {f"redbeat:broken {number}": time.time() + 9999})
    retry_at = f"{time.time() + 60:.6f}"
    failure = {"reason": "no way", "since": "", "definition_sha1": "", "attempts": 3, "due": "1.5"}
    client.hset(add("fails").key, "error", json.dumps({**failure, "retry_at": retry_at}))
    client.zadd("redbeat::schedule", {"redbeat:fails": retry_at})
    client.zadd("redbeat::schedule", {"redbeat:gone": time.time() + 1000})
    browser = browse("read")
    page = eventually(lambda: "75 of 75 counted" in (found := browser.read("/")) and found)
    for state, count in (("scheduled", 70), ("paused", 1), ("missing", 1), ("quarantined", 2)):
        assert f'{state}</span></span></a> <span class="number">{count}</span>' in page
    assert tile(page, "Quarantined") == "2 can't be used"
    assert tile(page, "Failing") == "1 couldn't be sent"
    found = eventually(lambda: "looked" in (again := browser.read("/")).split("<h2>Doctor")[1] and again)
    assert "redbeat:gone" in found
    client.set("redbeat::tick", f"{time.time():.3f}")
    verdict = browser.read("/").partition('<div class="tiles')[0]
    assert ("Healthy; the doctor has found 4 errors" in verdict, "tone-good" in verdict) == (True, False)


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
