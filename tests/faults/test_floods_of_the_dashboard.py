"""Thousands of requests at once: the dashboard answers or refuses each and goes on; no run is late for it."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections import Counter
from html import unescape
from itertools import product
from pathlib import Path

import httpx
import pytest
from celery.schedules import schedule

from redbeat import RedBeatSchedulerEntry
from tests.conftest import MakeApp
from tests.support.apps import celery_beat, write_app
from tests.support.command_line import installed
from tests.support.deadlines import patience
from tests.support.logs import has_traceback
from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.programs import token_of
from tests.support.servers import Server

#: fewer than it holds connections, so that some are answered; and so many that each may be refused
NUMBERS = (900, 10_000)
#: what is asked for: pages, a form that is a change, and a program's list
REQUESTED = {
    "GET /": "", "GET /entries": "", "GET /login": "", "GET /static/redbeat.css": "",
    "POST /entries/resume": "name=entry-0&confirmed=yes&csrf_token={csrf_token}",
    "GET /api/v1/entries": "",
}  # fmt: skip
ENTRIES = 20
#: how much later the latest runs may be, on a quiet machine; milliseconds
MAX_RISE_MS = 100.0


async def flood(port: int, words: bytes, number: int) -> Counter[str]:
    """Send a request so many times at once; return how often each status code came."""
    codes: Counter[str] = Counter()

    async def ask() -> None:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(words)
            head = await asyncio.wait_for(reader.read(64), patience(60))
            codes[head[9:12].decode() or "closed"] += 1
            writer.close()
        except (OSError, TimeoutError, asyncio.TimeoutError) as exc:
            codes[type(exc).__name__] += 1

    await asyncio.gather(*(ask() for _ in range(number)))
    return codes


def words_of(request: str, body: str, **headers: str) -> bytes:
    """A request as it is sent."""
    head = {"Host": "localhost", **headers, "Connection": "close"}
    if body:
        head |= {"Content-Type": "application/x-www-form-urlencoded", "Content-Length": str(len(body))}
    lines = [f"{request} HTTP/1.1", *(f"{name}: {value}" for name, value in head.items()), "", body]
    return "\r\n".join(lines).encode()


def lateness_ms(app: object, since: float) -> list[float]:
    """How late runs were sent since a time, in order; of two of each entry at least."""
    eventually(lambda: len(_lateness_ms(app, since)) >= 2 * ENTRIES, timeout=60)
    return _lateness_ms(app, since)


def _lateness_ms(app: object, since: float) -> list[float]:
    return sorted(
        (past.at - past.due).total_seconds() * 1000
        for number in range(ENTRIES)
        for past in RedBeatSchedulerEntry.get(f"entry-{number}", app).history(100)
        if past.outcome == "sent" and past.at.timestamp() >= since
    )


@pytest.fixture
def server(valkey: Server) -> Server:
    """One kind is enough."""
    return valkey


@pytest.mark.long_form
def test_a_flood_of_requests_is_answered_or_refused_and_delays_no_run(
    server: Server, make_app: MakeApp, tmp_path: Path
) -> None:
    settings = {"redbeat_redis_url": server.url(1), "redbeat_history": 100, "beat_max_loop_interval": 1}
    write_app(tmp_path, "project", server.url(0), **settings)
    app = make_app(**settings)
    for number in range(ENTRIES):
        RedBeatSchedulerEntry(f"entry-{number}", "echo", schedule(1.0), app=app).save()
    command = [sys.executable, "-m", "celery", "-A", "project", "redbeat", "web", "--port=0"]
    with celery_beat(tmp_path, "project") as beat, Process(command, tmp_path, installed(tmp_path)) as web:
        link = web.wait_for(re.compile(r"http://127\.0\.0\.1:(\d+)/login\?token=\S+"))
        with httpx.Client(base_url=f"http://localhost:{link[1]}", timeout=patience()) as browser:
            browser.get(link[0].replace("127.0.0.1", "localhost"))
            found = re.search(r'"X-CSRF-Token": "([\w-]{43})"', unescape(browser.get("/login").text))
            cookie = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
        assert found
        token = token_of(app, ["read"])
        beat.wait_for("Acquired lock")
        started = time.time()
        for number, request in product(NUMBERS, REQUESTED):
            form = REQUESTED[request]
            known = {"Authorization": f"Bearer {token}"} if "/api/" in request else {"Cookie": cookie}
            words = words_of(request, form.format(csrf_token=found[1]), **known)
            before = lateness_ms(app, started)
            began = time.time()
            codes = asyncio.run(flood(int(link[1]), words, number))
            seconds = time.time() - began
            during = lateness_ms(app, began)
            p99s = [times[int(len(times) * 0.99)] for times in (before, during)]
            print(
                f"{request}: {number} times in {seconds:.1f} s: {dict(codes)}; p99 of lateness "
                f"{p99s[0]:.1f} ms before, {p99s[1]:.1f} ms meanwhile"
            )
            assert codes.total() == number
            assert codes["303" if form else "200"] or number > NUMBERS[0]
            assert set(codes) <= {"200", "303", "503", "closed", "ConnectionResetError"}
            assert codes["503"] or "/static/" in request, "more than it can answer are refused"
            assert p99s[1] - p99s[0] < MAX_RISE_MS
        url = f"http://localhost:{link[1]}/"
        assert httpx.get(url, headers={"cookie": cookie}, timeout=patience()).status_code == 200
        assert not has_traceback(web.output())
        assert web.output().count("more than 1000 connections") <= 1 + (time.time() - started) // 60, (
            "the log isn't filled"
        )
