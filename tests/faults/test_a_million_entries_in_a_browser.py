"""A browser goes through the dashboard of a schedule of a million entries: each page, a search to its end.

It prints the server's time of each answer, and what was seen. In the long form only: a browser takes its time
for a few entries, too, and what a list of many takes is tested elsewhere. REDBEAT_ENTRIES is another number.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
from playwright.sync_api import Page, Response, expect

from tests.support.apps import write_app
from tests.support.browser import axe, overflow, visit
from tests.support.deadlines import patience
from tests.support.logs import has_traceback
from tests.support.processes import Process
from tests.support.servers import Server

pytestmark = pytest.mark.long_form

ENTRIES = int(os.environ.get("REDBEAT_ENTRIES", "1000000"))
#: how long what isn't there at once may take on a quiet machine: names, a search, a count
LONG_SECONDS = 240.0
#: the server's time of a page that reads nothing but what it shows, on a quiet machine
PAGE_MS = 250.0
PAGES = ("/", "/entries", "/timeline", "/runs", "/doctor", "/files", "/calendars", "/routes", "/audit")

#: in one step in the server, as a million HSETs would take minutes
MAKE_ENTRIES = """
local definition, now, policy = ARGV[1], tonumber(ARGV[2]), ARGV[5]
for number = tonumber(ARGV[3]), tonumber(ARGV[4]) do
  local key = string.format('redbeat:team-%02d.job-%07d', number % 50, number)
  local text = string.gsub(definition, 'TASK', string.format('team.task_%02d', number % 40))
  if number % 1000 == 999 then
    text = string.gsub(text, '"enabled": true', '"enabled": false')
    redis.call('HSET', key, 'policy', policy)
  end
  redis.call('HSET', key, 'definition', text, 'meta', '{"last_run_at": null, "total_run_count": 7}')
  redis.call('ZADD', 'redbeat::schedule', now + 600 + number % 86400, key)
end
"""


def make_entries(client: redis.Redis, count: int) -> None:
    """Write them: of 40 tasks in 50 teams, one in a thousand paused, all due within a day, and daily then."""
    definition = {"task": "TASK", "schedule": {"__type__": "interval", "every": 86_400}, "enabled": True}
    policy = json.dumps({"paused": True, "pause_note": "the move"})
    for first in range(0, count, 10_000):
        last = min(first + 10_000, count) - 1
        client.eval(MAKE_ENTRIES, 0, json.dumps(definition), client.time()[0], first, last, policy)


class Times:
    """The server's times of the answers that a browser got, in milliseconds, by path and kind."""

    def __init__(self) -> None:
        self.found: dict[str, list[float]] = {}

    def note(self, response: Response) -> None:
        match = re.search(r"dur=([\d.]+)", response.headers.get("server-timing", ""))
        if match:
            kind = " (part)" if "hx-request" in response.request.headers else ""
            self.found.setdefault(f"{urlsplit(response.url).path}{kind}", []).append(float(match[1]))

    def tell(self, when: str) -> None:
        print(f"{when}:")
        for path, times in sorted(self.found.items()):
            middle = sorted(times)[len(times) // 2]
            print(f"  {path}: {len(times)}, {middle:.0f} ms at the median, {max(times):.0f} ms at most")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[str]:
    """The link of a dashboard over a server of its own."""
    with Server() as server:
        with server.client(db=1) as client:
            began = time.monotonic()
            make_entries(client, ENTRIES)
            print(f"\n{ENTRIES:,} entries written in {time.monotonic() - began:.0f} s")
        write_app(tmp_path, "project", server.url(0), redbeat_redis_url=server.url(1))
        command = [sys.executable, "-m", "celery", "-A", "project", "redbeat", "web", "--port=0"]
        with Process(command, tmp_path) as web:
            yield web.wait_for(re.compile(r"http://127\.0\.0\.1:\d+/login\?token=\S+"))[0]
            status = Path(f"/proc/{web.pid}/status").read_text()
            peak = re.search(r"VmHWM:\s+(\d+) kB", status)
            print(f"the dashboard's memory: {int(peak[1]) // 1024 if peak else 0} MB at most")
            assert not has_traceback(web.output())


@contextmanager
def seen(what: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    print(f"{what}: {time.monotonic() - began:.1f} s")


def go_on_until_found(page: Page, timeout_ms: float) -> int:
    """Press 'Go on' until a row is there, or there is no more to look through; return how often."""
    link, clicks = page.locator("#go-on"), 0
    page.locator("#more").wait_for()
    while not page.locator("tbody th a").count() and link.count():
        place = link.get_attribute("href")
        link.click()
        expect(page.locator(f'#go-on[href="{place}"]')).to_have_count(0, timeout=timeout_ms)
        clicks += 1
    return clicks


def test_every_page_is_quick_and_a_search_comes_to_its_end(home: str, browser: Any) -> None:
    link, home = home, home.partition("/login")[0]
    times, long_ms = Times(), patience(LONG_SECONDS) * 1000
    with visit(browser) as (context, _):
        context.on("response", times.note)
        page: Page = context.new_page()
        page.goto(link)
        for path in PAGES:
            with seen(f"{path} opened"):
                page.goto(f"{home}{path}")
            assert axe(page, only=["wcag2a", "wcag2aa"]) == []
            assert overflow(page) <= 0
        rows, count = page.locator("tbody th a"), f"{ENTRIES:,}"

        # in the order of next runs: from page to page, and to the last one
        page.goto(f"{home}/entries")
        expect(rows).to_have_count(50)
        expect(page.locator("#pages")).to_contain_text(re.compile(f"1.50 of {count}"))
        page.get_by_role("link", name="Next", exact=True).click()
        expect(page.locator("#pages")).to_contain_text(re.compile(f"51.100 of {count}"))
        page.get_by_role("link", name="Last", exact=True).click()
        expect(page.locator("#pages")).to_contain_text(re.compile(f".{count} of {count}"))
        page.get_by_role("link", name="Previous", exact=True).click()
        expect(rows).to_have_count(50)

        # by name, once the names are read
        with seen("names read, and sorted by them"):
            page.get_by_label("Sorted by").select_option("name")
            expect(rows.first).to_have_text("team-00.job-0000000", timeout=long_ms)
        page.get_by_role("link", name="Last", exact=True).click()
        expect(rows.last).to_have_text(f"team-49.job-{ENTRIES - 1:07}")

        # a search begins at once, and goes on to its end
        with seen("the first of what is paused"):
            page.goto(f"{home}/entries")
            page.get_by_label("State").select_option("paused")
            page.wait_for_url("**state=paused**")
            clicks = go_on_until_found(page, long_ms)
        print(f"'Go on' was pressed {clicks} times, {page.locator('#more').inner_text()!r}")
        with seen("a name found by a part of it"):
            page.goto(f"{home}/entries")
            page.get_by_label("Search").fill(f"JOB-{ENTRIES - 7:07}")
            page.keyboard.press("Enter")
            page.wait_for_url("**match=JOB**")
            clicks = go_on_until_found(page, long_ms)
            expect(rows.first).to_have_text(f"team-{(ENTRIES - 7) % 50:02}.job-{ENTRIES - 7:07}")
        print(f"'Go on' was pressed {clicks} times")
        rows.first.click()
        expect(page.get_by_role("heading", name="Nothing is recorded")).to_be_visible()

        # what is found out beside the pages
        page.goto(f"{home}/")
        with seen("all entries counted by their states"):
            counted = page.get_by_text(re.compile(rf"[\d,]+ of {count} counted .* ago"))
            expect(counted).to_be_visible(timeout=long_ms)
        print(page.locator("ul.states").inner_text().replace("\n", " "), counted.inner_text())
        page.goto(f"{home}/doctor")
        with seen("the doctor"):
            expect(page.get_by_text("entries looked at")).to_be_visible(timeout=long_ms)
        print(page.get_by_text("entries looked at").inner_text())
        page.goto(f"{home}/timeline")
        with seen("the timeline"):
            expect(page.get_by_text("Covers")).to_be_visible(timeout=long_ms)
            done = page.get_by_role("link", name="Go on").or_(page.get_by_text("Covers all"))
            expect(done).to_be_visible(timeout=long_ms)
        print(page.locator(".timeline-summary").inner_text())
        page.goto(f"{home}/runs?state=all&since=1h")
        with seen("runs of an hour"):
            there_are_none = page.get_by_role("heading", name="There are no such runs")
            expect(there_are_none).to_be_visible(timeout=long_ms)
        page.goto(f"{home}/routes")
        with seen("routes"):
            expect(page.get_by_role("region", name="Destinations")).to_be_visible(timeout=long_ms)

        # the background rests now: what pages take by themselves
        times.tell("while much was looked through")
        times.found.clear()
        for _ in range(3):
            for path in PAGES:
                page.goto(f"{home}{path}")
        times.tell("afterwards")
        for path in PAGES:
            assert min(times.found[path]) < patience(PAGE_MS), path
        page.goto("about:blank")
