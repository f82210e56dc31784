"""Thousands of requests at once: the dashboard answers or refuses each and goes on; no run is late for it."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections import Counter
from pathlib import Path

import httpx
import pytest
from celery.schedules import schedule

from redbeat import RedBeatSchedulerEntry
from tests.conftest import MakeApp
from tests.faults.rounds import IS_LONG
from tests.support.apps import celery_beat, write_app
from tests.support.command_line import installed
from tests.support.deadlines import patience
from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.servers import Server

REQUESTS = 10_000 if IS_LONG else 1_500
PATHS = ["/", "/entries", "/login", "/static/redbeat.css"] if IS_LONG else ["/entries"]
ENTRIES = 20
#: how much later the latest runs may be, which the long form asks for on a quiet machine; milliseconds
MAX_RISE_MS = 100.0


async def flood(port: int, path: str, cookie: str, number: int) -> Counter[str]:
    """Ask for a path so many times at once; return how often each status code came."""
    codes: Counter[str] = Counter()
    words = (
        f"GET {path} HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}\r\nConnection: close\r\n\r\n".encode()
    )

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
        cookie = httpx.get(link[0]).headers["set-cookie"].split(";")[0]
        beat.wait_for("Acquired lock")
        started = time.time()
        for path in PATHS:
            before = lateness_ms(app, started)
            began = time.time()
            codes = asyncio.run(flood(int(link[1]), path, cookie, REQUESTS))
            seconds = time.time() - began
            during = lateness_ms(app, began)
            p99s = [times[int(len(times) * 0.99)] for times in (before, during)]
            print(
                f"{path}: {REQUESTS} requests in {seconds:.1f} s: {dict(codes)}; p99 of lateness "
                f"{p99s[0]:.1f} ms before, {p99s[1]:.1f} ms meanwhile"
            )
            assert codes.total() == REQUESTS
            assert set(codes) <= {"200", "503", "closed", "ConnectionResetError"}
            assert codes["503"], "more than it can answer are refused"
            assert not IS_LONG or p99s[1] - p99s[0] < MAX_RISE_MS
        url = f"http://localhost:{link[1]}/"
        assert httpx.get(url, headers={"cookie": cookie}, timeout=patience()).status_code == 200
        assert "Traceback" not in web.output()
        assert web.output().count("concurrency") <= 1 + (time.time() - started) // 60, "the log isn't filled"
