"""The pages of an entry in a real browser: what a user sees while they type, and what is in Redis then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from celery import Celery
from playwright.sync_api import expect

import redbeat
from redbeat import RedBeatSchedulerEntry
from redbeat.calendars import Calendar
from tests.support.browser import axe, visit
from tests.support.dashboards import dashboard_of, serving

Add = Callable[..., RedBeatSchedulerEntry]


@pytest.fixture
def home(app: Celery, broker: redis.Redis) -> Iterator[str]:
    """The address of a dashboard whose user may do everything."""
    del broker  # runs are sent to it
    redbeat.track_runs(app)
    with serving(dashboard_of(app)) as address:
        yield address


def entry_called(app: Celery, name: str) -> RedBeatSchedulerEntry:
    return RedBeatSchedulerEntry.get(name, app)


def test_an_entry_is_edited_with_a_preview_as_one_types(
    app: Celery, home: str, browser: Any, add: Add
) -> None:
    Calendar("feasts", ["2098-12-24/2098-12-26"], app=app).save()
    add("report", "30 7 * * *", timezone="Europe/Berlin", start_time="2098-12-22T00:00", exclude="feasts")
    with visit(browser) as (context, complaints):
        page = context.new_page()
        page.goto(f"{home}/entry/edit?name=report")
        page.get_by_text("feasts excludes 2098-12-24 to 2098-12-26").wait_for()
        assert axe(page) == []
        page.get_by_label("Schedule", exact=True).fill("61 9 * * *")
        page.locator("#f-schedule-problem .error").wait_for()
        assert "61" in page.locator("#f-schedule-problem").inner_text()
        schedule = page.get_by_label("Schedule", exact=True)
        expect(schedule).to_have_attribute("aria-invalid", "true")
        assert axe(page) == []
        page.get_by_label("Schedule", exact=True).fill("15 9 * * *")
        page.get_by_text("At 09:15").wait_for()
        assert page.locator("#f-schedule-problem .error").count() == 0
        expect(schedule).not_to_have_attribute("aria-invalid", "true")
        assert page.locator("#preview .runs time").count() >= 10
        assert "schedule:" in page.locator("#preview .diff .is-added").first.inner_text()
        page.get_by_role("button", name="JSON").click()
        assert '"15 9 * * *"' in page.get_by_label("The entry as JSON").input_value()
        page.get_by_text("At 09:15").wait_for()
        assert axe(page) == []
        page.get_by_role("button", name="Save").click()
        page.get_by_text("Changed report. Next run:").wait_for()
        assert axe(page) == []
        assert complaints.found == []
    assert entry_called(app, "report").description.startswith("At 09:15 (Europe/Berlin)")


def test_a_first_page_is_in_the_viewers_zone_and_on_a_phone_a_failed_save_shows_why(
    home: str, browser: Any, add: Add
) -> None:
    add("report", "30 7 * * *")
    with visit(browser, viewport={"width": 390, "height": 800}) as (context, complaints):
        complaints.expected.append("status of 422")
        context.clear_cookies()
        page = context.new_page()
        page.goto(f"{home}/entry/edit?name=report", wait_until="commit")
        page.locator("footer").get_by_text("Times in Europe/Berlin").wait_for()
        page.get_by_text("Missed runs", exact=True).click()
        page.get_by_label("At most", exact=True).fill("bogus")
        page.get_by_role("button", name="Save").click()
        summary = page.get_by_role("alert")
        summary.wait_for()
        assert page.title().startswith("Error: ")
        assert page.evaluate("document.activeElement.id") == "what-is-wrong"
        assert summary.bounding_box()["y"] < 800
        assert axe(page) == []
        summary.get_by_role("link", name="At most").click()
        assert page.evaluate("document.activeElement.id") == "f-misfire_limit"
