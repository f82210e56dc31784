"""The timeline, calendars and files in a real browser: clicked, judged by axe, and looked up in Redis."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.keys import Keys
from tests.support.browser import axe, overflow, visit
from tests.support.dashboards import dashboard_of, serving
from tests.support.gallery import HOSTILE
from tests.support.schedule import server_now

Add = Callable[..., RedBeatSchedulerEntry]
PHONE = {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark"}


@pytest.fixture
def home(app: Celery) -> Iterator[str]:
    """The address of a dashboard whose user may do everything."""
    with serving(dashboard_of(app)) as address:
        yield address


def test_the_timeline_is_read_with_the_keyboard_and_on_a_phone(
    home: str, browser: Any, add: Add, client: redis.Redis
) -> None:
    add("shop.send", 600)
    add(HOSTILE, "0 3 * * *")
    due = server_now(client) - 3600
    for number, outcome in enumerate(["succeeded", "failed", "lost", "skipped"]):
        record = {"due": due - 600 * number, "at": due, "ended": due, "outcome": outcome}
        client.lpush(Keys().about("shop.send").history, json.dumps(record))
    with visit(browser) as (context, _complaints):
        page = context.new_page()
        page.goto(f"{home}/timeline")
        page.get_by_text("Covers all 2 entries").wait_for()
        assert axe(page) == []
        page.get_by_role("link", name="6 hours").click()
        page.get_by_label("Begins").fill("5h")
        page.keyboard.press("Enter")
        page.get_by_role("img", name="1 lost; 1 failed; 1 skipped; 1 sent").wait_for()
        assert axe(page) == []
        page.get_by_text("All runs, as a table").click()
        page.get_by_role("region", name="All runs by time, as a table").wait_for()
        page.get_by_label("Rows").select_option("task")
        page.get_by_role("link", name="echo", exact=True).wait_for()
        link = page.get_by_role("link", name="echo", exact=True).get_attribute("href")
        assert link == "/entries?task=echo"
    with visit(browser, **PHONE) as (context, _complaints):
        page = context.new_page()
        page.goto(f"{home}/timeline?start=5h")
        page.get_by_role("img", name="1 lost").wait_for()
        assert (overflow(page), axe(page)) == (0, [])
