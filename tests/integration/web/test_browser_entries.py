"""The list of entries in a real browser: what is ticked and focused while its rows renew themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis
from celery import Celery
from playwright.sync_api import expect

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.entries import search
from redbeat.leadership.lock import new_token
from redbeat.web import User, wsgi_app
from redbeat.web.pages import entries as entries_page
from tests.support.browser import axe, overflow, visit
from tests.support.dashboards import dashboard_of, serving, serving_wsgi
from tests.support.gallery import HOSTILE
from tests.support.polling import eventually

Add = Callable[..., Entry]

PHONE = {"width": 360, "height": 740}


def test_entries_are_run_paused_and_chosen_while_the_rows_renew_themselves(
    app: Celery, client: redis.Redis, broker: redis.Redis, browser: Any, add: Add
) -> None:
    for name in ("backup", "cleanup", "report", "a" * 300, HOSTILE):
        add(name)
    with serving(dashboard_of(app)) as home, visit(browser) as (context, complaints):
        page = context.new_page()
        page.goto(f"{home}/entries?sort=name")
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            assert axe(page) == []
        assert overflow(page) <= 0
        row = page.get_by_role("row").filter(has_text="backup")

        # the server renews what is shown: ticks and the focus stay
        page.get_by_label("backup", exact=True).check()
        page.get_by_label("report", exact=True).check()
        page.get_by_label("report", exact=True).focus()
        Entry.get("backup", app).pause("the disk is full")
        row.get_by_text("the disk is full").wait_for()
        expect(page.get_by_label("backup", exact=True)).to_be_checked()
        expect(page.get_by_label("report", exact=True)).to_be_focused()
        expect(page.get_by_text("2 selected")).to_be_visible()

        # a row's own buttons
        row.get_by_role("button", name="Resume").focus()
        page.keyboard.press("Enter")
        page.locator(".toast").get_by_text("Resumed backup.").wait_for()
        expect(row.get_by_role("button", name="Pause")).to_be_visible()
        assert not Entry.get("backup", app).paused
        row.get_by_role("button", name="Run now").click()
        dialog = page.locator("#confirm-dialog")
        expect(dialog.get_by_text("Run backup now?")).to_be_visible()
        assert axe(page, "#confirm-dialog") == []
        dialog.get_by_role("button", name="Cancel").click()
        assert broker.llen("celery") == 0
        row.get_by_role("button", name="Run now").click()
        dialog.get_by_role("button", name="Run now").click()
        eventually(lambda: broker.llen("celery") == 1)

        # many at once
        expect(page.get_by_text("2 selected")).to_be_visible()
        page.locator("#chosen").get_by_role("button", name="Pause").click()
        page.get_by_label("Note").fill("moving house")
        page.get_by_label("Until").fill("tomorrow 9:00")
        assert axe(page) == []
        page.get_by_role("button", name="Pause", exact=True).click()
        page.get_by_text("Paused 2 entries.").wait_for()
        assert page.url == f"{home}/entries?sort=name"
        found = Entry.get("report", app)
        assert (found.pause_note, found.paused_by, str(found.paused_until)[14:19]) == (
            "moving house",
            "anna",
            "00:00",
        )

        page.set_viewport_size(PHONE)
        assert axe(page) == []
        assert overflow(page) <= 0
        page.get_by_label("report", exact=True).check()
        expect(page.locator("#chosen")).to_be_in_viewport()
        page.locator("#chosen").get_by_role("button", name="Delete").click()
        expect(page.locator("#chosen")).to_have_count(0)  # the page that asks
        page.get_by_role("button", name="Delete", exact=True).click()
        page.get_by_text("Deleted report.").wait_for()
        assert not client.exists("redbeat:report")
        assert complaints.found == []


def test_a_search_is_begun_and_gone_on_with_from_the_keyboard(
    app: Celery, browser: Any, add: Add, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(9):
        add(f"job-{number}", task="ops.backup" if number % 2 else "ops.other")
    monkeypatch.setattr(search, "SLICE", 4)
    monkeypatch.setattr(search, "SLICE_OF_NAMES", 4)
    monkeypatch.setattr(entries_page, "FIRST_SECONDS", 0)
    monkeypatch.setattr(entries_page, "MORE_SECONDS", 0)
    with serving(dashboard_of(app)) as home, visit(browser) as (context, complaints):
        page = context.new_page()
        page.goto(f"{home}/entries?task=backup")
        names = page.locator("tbody th a")
        expect(names).to_have_text(["job-1", "job-3"])
        assert axe(page) == []
        page.get_by_label("job-1", exact=True).check()
        page.get_by_role("link", name="Go on").focus()
        page.keyboard.press("Enter")
        expect(names).to_have_text(["job-1", "job-3", "job-5", "job-7"])
        expect(page.get_by_role("link", name="Go on")).to_be_focused()
        Entry.get("job-5", app).pause("found later")
        page.get_by_text("found later").wait_for()
        expect(page.get_by_label("job-1", exact=True)).to_be_checked()
        page.keyboard.press("Enter")
        page.get_by_text("Looked through 9 entries.").wait_for()
        expect(names).to_have_text(["job-1", "job-3", "job-5", "job-7"])
        page.keyboard.press("Escape")
        page.locator("h1").click()
        page.keyboard.press("/")
        page.keyboard.type("JOB-4")
        page.keyboard.press("Enter")
        page.wait_for_url("**match=JOB-4**")
        page.get_by_role("link", name="Clear").click()
        expect(names).to_have_count(9)
        assert complaints.found == []


def test_under_wsgi_an_open_page_asks_for_news_by_itself(
    app: Celery, client: redis.Redis, browser: Any, add: Add
) -> None:
    entry, asked = add("report"), list[str]()
    application = wsgi_app(app, auth=lambda _request: User("anna", ["read"]))
    with serving_wsgi(application) as home, visit(browser) as (context, complaints):
        context.on("request", lambda request: asked.append(request.url))
        page = context.new_page()
        page.clock.install()
        page.goto(f"{home}/entries")
        entry.pause("the disk is full")
        page.clock.fast_forward(5_000)
        page.get_by_text("the disk is full").wait_for()
        page.goto(home)
        page.get_by_text("No leader").first.wait_for()
        client.set("redbeat::lock", new_token(), px=60_000)
        page.clock.fast_forward(5_000)
        page.get_by_text("Healthy").wait_for()
        assert f"{home}/live" not in asked
        assert complaints.found == []
