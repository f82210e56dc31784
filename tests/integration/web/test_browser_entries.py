"""Pages that renew themselves, in a real browser: what is ticked, focused, open and asked meanwhile stays."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

import pytest
import redis
from celery import Celery
from playwright.sync_api import Page, Route, expect

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.entries import search
from redbeat.store.lock_tokens import new_token
from redbeat.web import User, asgi_app, wsgi_app
from redbeat.web.names import Names
from redbeat.web.pages import entries as entries_page
from tests.support.browser import NAME, axe, overflow, visit
from tests.support.dashboards import dashboard_of, serving, serving_wsgi
from tests.support.gallery import HOSTILE
from tests.support.polling import eventually
from tests.support.programs import token_of
from tests.support.progress import Progress
from tests.support.schedule import server_now

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
        state = page.get_by_label("State", exact=True)
        state.select_option("scheduled")
        page.wait_for_url("**state=scheduled**")
        expect(state).to_be_focused()
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


def fail(app: Celery, client: redis.Redis, name: str, count: int = 1) -> None:
    """Have runs of an entry fail, one after the other."""
    progress = Progress(app, client)
    for _ in range(count):
        due = server_now(client)
        progress.end(progress.started(name, f"{name} {due}", due), "failed", error="no disk")


def ask_anew(page: Page, part: str) -> None:
    """Have a part of a page asked for, as it does by itself, and wait for the answer."""
    with page.expect_response(lambda answer: "hx-request" in answer.request.headers):
        page.evaluate(
            """(part) => {
                const path = htmx.find(part).getAttribute("hx-get");
                htmx.ajax("GET", path, {source: part, target: part});
            }""",
            part,
        )


def renew(page: Page, part: str) -> None:
    """Have a part of a page renewed; it may also do so by itself, so nothing that is in it is held on to."""
    page.evaluate("(part) => htmx.find(part).firstElementChild.dataset.old = ''", part)
    ask_anew(page, part)
    expect(page.locator(f"{part} > [data-old]")).to_have_count(0)


def test_where_one_is_in_a_page_stays_when_its_parts_are_renewed(
    app: Celery, client: redis.Redis, browser: Any, add: Add
) -> None:
    name = "marketing-pull-carrier-status-for-each-country-and-warehouse"
    for other in (name, *(f"job-{number}" for number in range(29))):
        add(other, 60)
    fail(app, client, name, 40)
    with serving(dashboard_of(app)) as home, visit(browser) as (context, complaints):
        page = context.new_page()
        page.goto(f"{home}/runs?name={name}")
        region, rows = page.get_by_role("region", name="Runs"), page.locator("#runs tbody tr")
        expect(rows).to_have_count(40)
        for field in ("[name=run]", "button"):
            row = rows.nth(9)
            due = row.locator("[name=due]").get_attribute("value")
            box = row.locator("[name=run]")
            box.check()
            row.locator(field).focus()
            page.evaluate("() => htmx.find('[aria-label=Runs]').scrollTo(0, 300)")
            fail(app, client, name)  # a row comes before it
            renew(page, "#runs")
            again = rows.filter(has=page.locator(f"[name=due][value='{due}']"))
            expect(again.locator(field)).to_be_focused()
            expect(again.locator("[name=run]")).to_be_checked()
            expect(rows.nth(10).locator("[name=due]")).to_have_attribute("value", str(due))
            assert page.evaluate("() => htmx.find('[aria-label=Runs]').scrollTop") == 300

        page.set_viewport_size({"width": 320, "height": 640})
        assert axe(page, only=["target-size"]) == []
        assert overflow(page) <= 0
        assert region.evaluate("(region) => region.scrollWidth - region.clientWidth") <= 0, "names are cut"
        page.set_viewport_size({"width": 1280, "height": 800})

        page.goto(home)
        page.get_by_text(re.compile("^looked")).wait_for()
        link = page.get_by_role("link", name="Quarantined")
        link.focus()
        renew(page, "#overview")
        expect(link).to_be_focused()

        page.goto(f"{home}/timeline")
        page.get_by_text("Covers all 30 entries").wait_for()
        summary, heat = page.get_by_text("All runs, as a table"), "[role=region][aria-label='Runs by time']"
        page.set_viewport_size(PHONE)
        summary.click()
        page.evaluate("(heat) => htmx.find(heat).scrollTo(100, 0)", heat)
        renew(page, "#timeline")
        expect(summary).to_be_focused()
        expect(page.get_by_role("region", name="All runs by time, as a table")).to_be_visible()
        assert page.evaluate("(heat) => htmx.find(heat).scrollLeft", heat) == 100
        assert complaints.found == []


def test_what_is_asked_about_stays_until_it_is_answered(
    app: Celery, client: redis.Redis, broker: redis.Redis, browser: Any, add: Add
) -> None:
    add("job")
    fail(app, client, "job", 3)
    with serving(dashboard_of(app)) as home, visit(browser) as (context, complaints):
        page = context.new_page()
        dialog = page.locator("#confirm-dialog")
        page.goto(f"{home}/entry?name=job")
        rerun = page.get_by_role("button", name="Rerun").nth(1)
        rerun.click()
        expect(dialog).to_be_visible()
        page.evaluate("() => htmx.find('#entry-live').firstElementChild.dataset.old = ''")
        ask_anew(page, "#entry-live")
        page.keyboard.press("Escape")
        expect(page.locator("#entry-live > [data-old]")).to_have_count(0)  # it is renewed then
        expect(rerun).to_be_focused()

        page.goto(f"{home}/runs?name=job")
        page.get_by_label(re.compile("^job, due")).nth(1).check()
        page.locator("#chosen").get_by_role("button", name="Rerun").click()
        expect(dialog).to_be_visible()
        ask_anew(page, "#runs")
        dialog.get_by_role("button", name="Rerun").click()
        page.get_by_text("Sent 1 run once more.").wait_for()
        assert broker.llen("celery") == 1
        assert complaints.found == []


def test_a_button_of_a_row_and_a_renewal_of_the_rows_do_not_disturb_each_other(
    app: Celery, browser: Any, add: Add
) -> None:
    for name in ("first", "second"):
        add(name)
    with serving(dashboard_of(app)) as home, visit(browser) as (context, complaints):
        page = context.new_page()
        page.goto(f"{home}/entries")
        held = dict[str, Route]()
        page.route(
            re.compile(r"/entries(/pause)?(\?|$)"), lambda route: held.update({route.request.method: route})
        )

        def hold(method: str) -> None:
            eventually(lambda: page.wait_for_timeout(1) or method in held)

        def let_go(method: str) -> None:
            with page.expect_response(lambda answer: answer.request.method == method):
                held.pop(method).continue_()

        page.evaluate("() => void htmx.trigger('#rows', 'sse:tick')")
        hold("GET")
        page.get_by_role("button", name="Pause first").focus()
        page.keyboard.press("Enter")
        hold("POST")
        let_go("GET")
        let_go("POST")
        page.locator(".toast").get_by_text("Paused first.").wait_for()
        expect(page.get_by_role("button", name="Resume first")).to_be_focused()
        page.unroute_all(behavior="ignoreErrors")
        assert Entry.get("first", app).paused
        assert complaints.found == []


def test_a_button_that_is_pressed_while_the_rows_are_renewed_does_what_it_says(
    app: Celery, browser: Any, add: Add
) -> None:
    add("first")
    with serving(dashboard_of(app)) as home, visit(browser) as (context, complaints):
        page = context.new_page()
        page.goto(f"{home}/entries")
        page.get_by_role("button", name="Pause first").hover()
        page.mouse.down()
        page.evaluate("() => htmx.find('#rows').firstElementChild.dataset.old = ''")
        ask_anew(page, "#rows")
        page.mouse.up()
        page.locator(".toast").get_by_text("Paused first.").wait_for()
        assert Entry.get("first", app).paused
        page.get_by_role("button", name="Resume first").hover()
        page.mouse.down()
        page.evaluate("() => htmx.find('#rows').firstElementChild.dataset.old = ''")
        ask_anew(page, "#rows")
        page.mouse.move(0, 0)
        page.mouse.up()
        expect(page.locator("#rows > [data-old]")).to_have_count(0)  # it is renewed then
        assert Entry.get("first", app).paused
        assert complaints.found == []


def test_what_one_types_into_the_search_stays_while_the_names_are_read(
    app: Celery, browser: Any, add: Add, monkeypatch: pytest.MonkeyPatch
) -> None:
    add("report")
    look, are_read = Names.look, threading.Event()
    monkeypatch.setattr(entries_page, "WAIT_SECONDS", 0.1)
    monkeypatch.setattr(Names, "look", lambda names: look(names) if are_read.is_set() else None)
    with serving(dashboard_of(app)) as home, visit(browser) as (context, complaints):
        page = context.new_page()
        page.goto(f"{home}/entries?sort=name")
        page.get_by_text("The names are being read").wait_for()
        search = page.get_by_label("Search")
        search.fill("inv")
        with page.expect_response(re.compile("/entries")):
            search.press_sequentially("oices")
        are_read.set()
        page.get_by_role("link", name="report").wait_for()
        expect(search).to_be_focused()
        assert search.input_value() == "invoices"
        Entry.get("report", app).pause("the disk is full")  # the list renews itself from now on
        page.get_by_text("the disk is full").wait_for()
        assert complaints.found == []


def test_a_dashboard_that_does_not_answer_is_told_of_once(app: Celery, browser: Any, add: Add) -> None:
    with serving(dashboard_of(app)) as home, visit(browser) as (context, complaints):
        complaints.expected += [
            "ERR_INTERNET_DISCONNECTED",
            "htmx:sendError",
            "htmx:afterRequest",
            "[object Event]",  # of the stream
        ]
        page = context.new_page()
        page.goto(f"{home}/entries")
        page.get_by_text("No entries yet").wait_for()
        add("report")  # an empty list renews itself, too
        page.get_by_label("report", exact=True).wait_for()
        toasts = page.locator(".toast")
        context.set_offline(True)
        for _ in range(3):
            with page.expect_event("requestfailed"):
                page.evaluate("() => htmx.trigger('#rows', 'sse:tick')")
        expect(toasts).to_have_count(1)
        expect(toasts).to_contain_text("What this page shows may be old.")
        for _ in range(2):  # somebody has asked for this
            with page.expect_event("requestfailed"):
                page.get_by_role("button", name="Pause report").click()
        expect(toasts).to_have_count(2)
        expect(toasts.last).to_contain_text("Nothing was changed, as far as is known.")
        context.set_offline(False)
        renew(page, "#rows")
        expect(toasts).to_have_count(1)
        expect(toasts).to_contain_text("Nothing was changed, as far as is known.")


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


def test_over_plain_http_under_a_name_forms_of_our_own_pages_count_and_those_of_others_do_not(
    app: Celery, browser: Any, add: Add
) -> None:
    add("report")
    application = asgi_app(app, hosts=[NAME])
    with serving(application) as home, visit(browser) as (context, complaints):
        complaints.expected += ["401", "403", "Cross-Origin-Opener-Policy header has been ignored"]
        home = home.replace("localhost", NAME)
        page = context.new_page()
        page.goto(f"{home}/login")
        page.get_by_label("Token").fill(token_of(app))
        page.get_by_role("button", name="Log in").click()  # Chromium says "Origin: null", and no more
        page.get_by_role("heading", name="Overview").wait_for()
        page.goto(f"{home}/entry?name=report")
        token = page.locator('input[name="csrf_token"]').first.get_attribute("value")
        shown: dict[str, Any] = {}

        def serve(_environ: dict[str, Any], start_response: Any) -> list[bytes]:
            policy = ("Content-Security-Policy", shown["policy"])
            start_response(
                "200 OK", [("Content-Type", "text/html"), ("Referrer-Policy", "no-referrer"), policy]
            )
            form = f"""<form method="post" action="{home}/logout">
                <input name="csrf_token" value="{shown["guess"]}"><button>Send</button></form>"""
            return [form.encode()]

        with serving_wsgi(serve) as evil:
            own, sandbox, none = evil.replace("localhost", NAME), "sandbox allow-forms", "img-src *"
            for site, policy, guess in (
                (evil, none, token), (evil, sandbox, token), (own, sandbox, "x" * 43)
            ):  # fmt: skip
                shown |= {"policy": policy, "guess": guess}
                page.goto(site)
                with page.expect_response(f"{home}/logout") as answered:
                    page.get_by_role("button", name="Send").click()
                assert answered.value.status in (401, 403), (site, policy)
        page.goto(f"{home}/")
        page.get_by_role("button", name="Log out").click()
        page.get_by_role("heading", name="Log in").wait_for()
