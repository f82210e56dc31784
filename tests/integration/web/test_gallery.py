"""The look of the dashboard in a real browser: every component, in both themes, wide and on a phone."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any
from urllib.parse import parse_qs
from zoneinfo import ZoneInfo

import pytest

from redbeat.entries.wording import relative
from tests.support.browser import axe, overflow, visit
from tests.support.gallery import HOSTILE, gallery
from tests.support.polling import eventually

PHONE = {"width": 360, "height": 740}
NARROWEST = {"width": 320, "height": 640}  # WCAG 2.2, 1.4.10
SCREEN = {"width": 1280, "height": 800}


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[str, list[str]]]:
    with gallery() as both:
        yield both


@pytest.fixture(scope="module")
def url(served: tuple[str, list[str]]) -> str:
    return served[0]


@pytest.fixture
def posted(served: tuple[str, list[str]]) -> list[str]:
    served[1].clear()
    return served[1]


@pytest.mark.few_cases(1)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everybody_can_read_and_use_all_of_it(browser: Any, url: str, scheme: str) -> None:
    with visit(browser, color_scheme=scheme) as (context, _):
        page = context.new_page()
        page.goto(url)
        for size in (SCREEN, PHONE):
            page.set_viewport_size(size)
            assert axe(page, only=[] if scheme == "light" else ["color-contrast"]) == []
            assert overflow(page) <= 0
        page.set_viewport_size(NARROWEST)
        assert overflow(page) <= 0
        page.get_by_text("Pages", exact=True).first.locator("..").click()  # the menu of a phone
        assert page.get_by_role("link", name="Calendars").is_visible()
        assert axe(page, ".header") == []
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Keys").click()
        assert axe(page, "#help-dialog") == []
        assert overflow(page) <= 0


def test_what_somebody_has_written_is_text_everywhere(page: Any, url: str) -> None:
    page.goto(url)
    shown = page.get_by_role("row").filter(has_text="<img src=x").get_by_role("link").inner_text()
    assert shown == HOSTILE.replace("\u202e", "\\u202e").replace("\x1b", "\\x1b")
    assert page.locator("img").count() == 0
    assert page.locator("#f-args").input_value() == '[1, "a\u202e"]'  # what one edits stays as it is


def test_all_of_it_is_reached_with_the_keyboard_and_its_focus_is_seen(page: Any, url: str) -> None:
    page.goto(url)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    assert page.locator(".skip").bounding_box()["y"] >= 0
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    usable = "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex='0']"
    page.evaluate(
        """(usable) => {
          const seen = (one) => one.checkVisibility() && !one.disabled && !one.closest('dialog');
          window.wanted = new Set([...document.querySelectorAll(usable)].filter(seen));
          document.addEventListener('focusin', ({ target }) => {
            const { outlineStyle, outlineWidth } = getComputedStyle(target);
            if (outlineStyle !== 'none' && outlineWidth !== '0px') wanted.delete(target);
          });
          document.activeElement.blur();
          getSelection().removeAllRanges();
          document.querySelector('.skip').focus();
        }""",
        usable,
    )
    total = page.evaluate("wanted.size")
    assert total > 50
    for _ in range(total + 20):
        page.keyboard.press("Tab")
    left = page.evaluate("[...wanted].map((one) => one.outerHTML.slice(0, 150))")
    assert [html for html in left if "skip" not in html] == []


def test_without_script_all_of_it_is_there_but_what_needs_one(browser: Any, url: str) -> None:
    with visit(browser, java_script_enabled=False, viewport=PHONE) as (context, _):
        page = context.new_page()
        page.goto(url)
        assert page.get_by_role("button", name="Show", exact=True).is_visible()
        assert page.get_by_role("button", name="Pause", exact=True).is_enabled()
        assert not page.get_by_role("group", name="Theme").is_visible()
        assert "in 3 h" in page.get_by_role("row").filter(has_text="billing.report").inner_text()
        page.locator(".nav-menu summary").click()
        assert page.get_by_role("link", name="Doctor").is_visible()


def test_the_theme_is_kept_and_set_before_anything_is_painted(browser: Any, url: str) -> None:
    with visit(browser, color_scheme="dark") as (context, complaints):
        complaints.expected = ["net::ERR_FAILED"]  # the script that this test keeps away
        page = context.new_page()
        page.goto(url)
        ground = "getComputedStyle(document.body).backgroundColor"
        dark = page.evaluate(ground)
        page.get_by_role("button", name="light").click()
        light = page.evaluate(ground)
        assert light != dark
        other = context.new_page()
        other.route("**/redbeat.js*", lambda route: route.abort())
        other.goto(url)
        assert other.evaluate(ground) == light
        other.close()
        page.get_by_role("button", name="auto").click()
        assert page.evaluate(ground) == dark
        page.reload()
        assert page.evaluate(ground) == dark
        assert page.get_by_role("button", name="auto").get_attribute("aria-pressed") == "true"


def test_times_are_told_as_the_command_line_tells_them(page: Any, url: str) -> None:
    page.goto(url)
    now = datetime.now(timezone.utc)
    seconds = [
        0,
        1,
        59,
        89,
        90,
        91,
        119,
        121,
        3599,
        7199,
        7201,
        86_399,
        172_799,
        172_801,
        63_071_999,
        63_072_001,
    ]
    both = [sign * one for one, sign in itertools.product(seconds, (1, -1))]
    told = page.evaluate(
        """([now, seconds]) => {
          document.documentElement.dataset.now = now;
          const region = document.createElement('div');
          document.querySelector('main').append(region);
          const start = performance.timeOrigin + performance.getEntriesByType('navigation')[0].responseStart;
          Date.now = () => start;
          for (const one of seconds) {
            const time = document.createElement('time');
            time.dateTime = new Date(Date.parse(now) + one * 1000).toISOString();
            time.dataset.relative = '';
            region.append(time);
          }
          const script = document.createElement('script');
          script.src = document.querySelector('script[src*="redbeat.js"]').src + '&again';
          return new Promise((resolve) => {
            script.onload = () => resolve([...region.children].map((one) => one.textContent));
            document.head.append(script);
          });
        }""",
        [now.isoformat(), both],
    )
    assert told == [relative(now + timedelta(seconds=one), now) for one in both]


def test_exact_times_are_in_the_viewers_zone_and_a_key_shows_them(page: Any, url: str) -> None:
    page.goto(url)
    time = page.get_by_role("row").filter(has_text="billing.report").locator("time").first
    due = datetime.fromisoformat(time.get_attribute("datetime").replace("Z", "+00:00")).replace(microsecond=0)
    there = due.astimezone(ZoneInfo("Europe/Berlin"))
    shown = f"{there:%Y-%m-%d %H:%M:%S} {there:%z}"
    shown = f"{shown[:-2]}:{shown[-2:]}"
    assert time.get_attribute("title") == f"{shown} Europe/Berlin"
    cookies = {cookie["name"]: cookie["value"] for cookie in page.context.cookies()}
    assert cookies["redbeat-zone"] == "Europe%2FBerlin"
    page.keyboard.press("t")
    assert time.inner_text() == shown
    assert page.locator("#announcer").inner_text() == "Times are exact."


def test_keys_lead_to_pages_and_search_until_they_are_switched_off(page: Any, url: str) -> None:
    page.goto(url)
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "q"
    page.keyboard.type("g o?")
    assert page.locator("#q").input_value() == "g o?"
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("?")
    assert page.locator("#help-dialog").is_visible()
    page.get_by_label("use these keys").uncheck()
    page.get_by_role("button", name="Close").click()
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") != "q"
    page.get_by_role("button", name="Keys").click()
    page.get_by_label("use these keys").check()
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("d")
    page.wait_for_url("**/doctor")


def test_rows_are_chosen_one_by_one_all_at_once_and_by_their_range(
    page: Any, url: str, posted: list[str]
) -> None:
    page.goto(url)
    count, boxes = page.locator("[data-select-count]"), page.locator("[data-select-one]")
    pause = page.locator(".selection").get_by_role("button", name="Pause")
    assert not pause.is_visible()  # there is nothing to do it with
    boxes.nth(1).check()
    boxes.nth(3).click(modifiers=["Shift"])
    assert count.inner_text() == "3 selected"
    page.get_by_label("all of this page").check()
    rows = boxes.count()
    assert count.inner_text() == f"{rows} selected"
    boxes.nth(0).uncheck()
    assert page.evaluate("document.querySelector('[data-select-all]').indeterminate")
    pause.click()
    eventually(lambda: posted)
    sent = parse_qs(posted[0])
    assert sent["verb"] == ["pause"]
    assert len(sent["name"]) == rows - 1
    assert HOSTILE in sent["name"]
    assert sent["csrf_token"] == ["a-token"]


def test_what_cannot_be_undone_is_asked_first(page: Any, url: str, posted: list[str]) -> None:
    page.goto(url)
    page.locator("form[action='/delete'] button").click()
    dialog = page.locator("#confirm-dialog")
    assert dialog.get_by_role("heading").inner_text() == "Delete billing.report?"
    assert page.evaluate("document.activeElement.textContent") == "Cancel"
    assert axe(page, "#confirm-dialog") == []
    page.keyboard.press("Escape")
    assert not dialog.is_visible()
    assert posted == []
    page.locator("form[action='/delete'] button").click()
    with page.expect_navigation():  # chromium doesn't close a page well that is on its way to another
        dialog.get_by_role("button", name="Delete").click()
    assert parse_qs(posted[0])["confirmed"] == ["yes"]
    assert parse_qs(posted[0])["name"] == [HOSTILE]


def test_what_is_swapped_in_gets_the_focus_and_is_told_and_a_failure_is_shown(browser: Any, url: str) -> None:
    with visit(browser) as (context, complaints):
        complaints.expected = ["500", "htmx:responseError", "Response Status Error Code"]
        page = context.new_page()
        page.goto(url)
        page.get_by_role("button", name="Break").click()
        message = page.locator(".toast")
        message.wait_for()
        assert "has refused that (500)" in message.inner_text()
        assert axe(page, ".toasts") == []
        message.get_by_role("button", name="Close").click()
        page.get_by_role("button", name="Load").click()
        page.locator("#confirm-dialog").get_by_role("button", name="Load").click()
        page.get_by_text("swapped in").wait_for()
        eventually(lambda: page.evaluate("document.activeElement.textContent") == "swapped in")
        assert page.locator("#announcer").inner_text() == "It is here."


def test_a_page_that_is_kept_from_something_by_its_policy_is_noticed(browser: Any, url: str) -> None:
    found: list[str] = []

    def look() -> None:
        with visit(browser) as (context, complaints):
            page = context.new_page()
            page.goto(url)
            page.evaluate("document.body.insertAdjacentHTML('beforeend', '<p style=\"color: red\">no</p>')")
            try:
                eventually(lambda: page.evaluate("1") and complaints.found)
            finally:
                found.extend(complaints.found)

    with pytest.raises(AssertionError):
        look()
    assert "Content Security Policy" in found[0] or "style-src" in found[0]


def test_what_the_server_tells_comes_in_and_leaves_the_focus_where_it_is(page: Any, url: str) -> None:
    page.goto(f"{url}?live")
    page.locator("#live-field").focus()
    page.get_by_text("It is told").wait_for()
    assert page.evaluate("document.activeElement.id") == "live-field"
    assert page.locator("#live time").inner_text().startswith("in ")
