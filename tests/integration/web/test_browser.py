"""Journeys through the dashboard in a real browser: real commands, and pages that renew themselves."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from playwright.sync_api import Browser, Page, expect
from starlette.responses import HTMLResponse

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat import track_runs
from redbeat.entries.audit import find_records
from redbeat.entries.wording import relative
from redbeat.store.lock_tokens import new_token
from redbeat.web import User, asgi_app, wsgi_app
from redbeat.web.pages.rendering import navigation
from tests.faults.rounds import some_of
from tests.integration.web.conftest import Add
from tests.integration.web.dashboard_walk import routes
from tests.support.apps import celery_beat, celery_worker, write_app
from tests.support.browser import NAME, axe, axe_source, overflow, visit
from tests.support.dashboards import HOSTILE, dashboard_of, serving, serving_wsgi
from tests.support.deadlines import patience
from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.programs import token_of
from tests.support.progress import Progress
from tests.support.schedule import server_now
from tests.support.servers import Server

pytestmark = pytest.mark.services

#: the project's module: it tracks runs, and has an entry of its own
_EXTRA = """\
import redbeat
redbeat.track_runs(app)
app.conf.beat_schedule = {"hourly": {"task": "echo", "schedule": 3600.0}}
"""
DESKTOP, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}


class Whole:
    """One Redis, a beat, a worker that tracks runs, and the server of the dashboard.

    Attributes:
        link: what the command has printed.
        home: the dashboard's address, without a slash at its end.
        app: for looks into Redis.
        leader: the first beat.
    """

    def __init__(self, server: Server, directory: Path, stack: ExitStack) -> None:
        self._directory, self._stack, self._broker_url = directory, stack, server.url(0)
        self._settings = {"redbeat_redis_url": server.url(1), "redbeat_takeover_after": 5}
        self._settings |= {"redbeat_lock_timeout": 120, "beat_max_loop_interval": 1}
        write_app(directory, "project", server.url(0), extra=_EXTRA, **self._settings)
        self.renew_app()
        words = [sys.executable, "-m", "celery", "-A", "project", "redbeat", "web", "--port=0"]
        web = stack.enter_context(Process(words, directory))
        self.leader = self.start_beat("one")
        stack.enter_context(celery_worker(directory, "project", concurrency=4))
        self.link = web.wait_for(re.compile(r"http://127\.0\.0\.1:\d+/login\?token=[\w-]+"))[0]
        self.home = self.link.partition("/login")[0]
        eventually(lambda: Entry.count(self.app) == 1)

    def renew_app(self) -> None:
        """Make another app for the next test: kombu's connections end with each test."""
        self.app = Celery("whole", broker=self._broker_url, set_as_current=False)
        self.app.conf.update(self._settings)
        track_runs(self.app)

    def start_beat(self, name: str) -> Process:
        return self._stack.enter_context(celery_beat(self._directory, "project", "-s", name))

    def add(self, name: str, schedule: Any = 86_400, **fields: Any) -> Entry:
        return Entry(name, "echo", schedule, app=self.app, **fields).save()

    def get(self, name: str) -> Entry:
        return Entry.get(name, self.app)

    @contextmanager
    def visitor(self, browser: Browser, *expected: str, **options: Any) -> Iterator[Page]:
        """Somebody who has opened the link; at the end they complain about nothing but what is expected."""
        with visit(browser, **options) as (context, complaints):
            complaints.expected += expected
            page = context.new_page()
            page.goto(self.link)
            yield page


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whole]:
    with Server() as server, ExitStack() as stack:
        made = Whole(server, tmp_path_factory.mktemp("whole"), stack)
        made.add("seen", "30 7 * * *")
        yield made


@pytest.fixture
def page(whole: Whole, browser: Any) -> Iterator[Page]:
    """A page of somebody who has opened the link."""
    whole.renew_app()
    with whole.visitor(browser, "404", "412", "422") as page:
        yield page


def wrong_of(page: Page) -> list[str]:
    """What is wrong with a page on a screen in the light, and on a phone in the dark."""
    found = axe(page)
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size(PHONE)
    found += axe(page, only=["color-contrast", "target-size", "scrollable-region-focusable", "region"])
    if (pixels := overflow(page)) > 0:
        found.append(f"on a phone it is {pixels} pixels too wide")
    page.emulate_media(color_scheme="light")
    page.set_viewport_size(DESKTOP)
    return found


def fill(page: Page, **fields: str) -> None:
    """Fill fields by their labels: an underscore is a space."""
    for label, value in fields.items():
        page.get_by_label(label.replace("_", " "), exact=True).fill(value)


def press(page: Any, name: str) -> None:
    page.get_by_role("button", name=name, exact=True).click()


def follow(page: Page, name: str) -> None:
    page.get_by_role("link", name=name, exact=True).click()


def sees(page: Page, text: str) -> None:
    expect(page.get_by_text(text).first).to_be_visible(timeout=patience(20) * 1000)


def confirm(page: Page, name: str) -> None:
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name=name, exact=True).click()


def test_every_page_is_reached_by_keys_and_accessible(whole: Whole, page: Page) -> None:
    """In both themes, on a screen and on a phone: as axe judges it."""
    whole.add("walked", "30 7 * * *", kwargs={"note": HOSTILE})
    page.context.add_init_script(axe_source())  # else it is put into each page anew, which takes longer
    nav = page.get_by_role("navigation", name="Pages", exact=True)
    labels = [link.label for link in navigation("", "/")]
    others = [
        path for method, path, _ in routes() if method == "GET" and path not in ("/live", "/files/export")
    ]
    for label in labels:
        for key in str(
            nav.get_by_role("link", name=label, exact=True).get_attribute("data-shortcut")
        ).split():
            page.keyboard.press(key)
        expect(nav.locator("[aria-current=page]")).to_have_text(label)
        expect(page.get_by_role("heading", level=1)).to_have_text(label)
    examined = some_of(others, 12)  # which takes a second for each
    for path in others:
        page.goto(f"{whole.home}{path}?name=walked")
        expect(page.get_by_role("heading", level=1)).not_to_be_empty()
        assert path not in examined or wrong_of(page) == [], path


def test_entry_is_added_edited_with_a_preview_and_paused(whole: Whole, page: Page) -> None:
    page.goto(f"{whole.home}/entries")
    follow(page, "Add entry")
    fill(page, Name="report", Task="echo", Schedule="61 7 * * *")
    expect(page.locator("#f-schedule-problem")).to_contain_text("61")
    fill(page, Schedule="30 7 * * *")
    sees(page, "At 07:30")
    press(page, "Add")
    sees(page, "Added report. Next run:")
    assert whole.get("report").describe() == "At 07:30 (UTC)"

    follow(page, "Edit")
    press(page, "JSON")
    document = json.loads(page.get_by_label("The entry as JSON").input_value())
    document |= {"args": [1, "two"], "kwargs": {"password": "geheim"}}
    page.get_by_label("The entry as JSON").fill(json.dumps(document))
    expect(page.locator("#preview")).to_contain_text("args")
    press(page, "Save")
    sees(page, "Changed report. Next run:")
    assert whole.get("report").args == [1, "two"]
    expect(page.locator("#fields")).to_contain_text("(hidden)")

    follow(page, "Pause")
    fill(page, Note=f"the feast {HOSTILE}", Until="2h")
    press(page, "Pause")
    sees(page, "the feast <img")
    assert wrong_of(page) == []
    assert whole.get("report").pause_note == f"the feast {HOSTILE}"
    press(page, "Resume")
    sees(page, "Resumed report.")


def test_entries_are_chosen_searched_and_changed_in_their_list_while_another_looks_on(
    whole: Whole, page: Page
) -> None:
    names = [f"listed-{number}" for number in range(3)]
    for name in names:
        whole.add(name)
    page.goto(f"{whole.home}/entries?sort=name")
    row = page.get_by_role("row").filter(has_text="listed-0")
    row.get_by_role("button", name="Run now").click()
    confirm(page, "Cancel")
    row.get_by_role("button", name="Run now").click()
    confirm(page, "Run now")
    sees(page, "Sent a run of listed-0.")
    with whole.visitor(page.context.browser) as other:
        other.goto(f"{whole.home}/entries")
        other.get_by_label("Search").fill("LISTED")
        other.keyboard.press("Enter")
        other.wait_for_url("**match=LISTED**")
        theirs = other.get_by_role("row").filter(has_text="listed-1")
        theirs.get_by_role("button", name="Pause").click()
        mine = page.get_by_role("row").filter(has_text="listed-1")
        expect(mine.get_by_role("button", name="Resume")).to_be_visible(timeout=patience(10) * 1000)
        mine.get_by_role("button", name="Resume").click()
        expect(theirs.get_by_role("button", name="Pause")).to_be_visible(timeout=patience(10) * 1000)
    page.get_by_label(names[0], exact=True).check()
    page.get_by_label(names[2], exact=True).click(modifiers=["Shift"])
    chosen = page.get_by_role("form", name="What to do with the chosen entries")
    chosen.get_by_role("button", name="Pause").click()
    fill(page, Note="moving house", Until="tomorrow 9:00")
    press(page, "Pause")
    sees(page, "Paused 3 entries.")
    page.get_by_role("search").get_by_label("Last outcome").select_option("succeeded")
    expect(page.locator("tbody th a")).to_have_text(names[:1])


#: another site's page
FORGERY = """
<form method="post" action="{home}/entries/pause">
<input name="name" value="seen"><input name="confirmed" value="yes"><input name="csrf_token" value="{guess}">
<button>Win</button></form>
<iframe src="{home}/entry?name=seen"></iframe>
"""


#: what its script tries: what became of each
FETCHES = """async home => {
    const form = new URLSearchParams({name: 'seen', confirmed: 'yes'});
    const tries = {
        read: fetch(`${home}/entries`, {credentials: 'include'}).then(answer => answer.text()),
        form: fetch(`${home}/entries/pause`, {
            method: 'POST', body: form, mode: 'no-cors', credentials: 'include'}).then(answer => answer.type),
        token: fetch(`${home}/entries/pause`, {
            method: 'POST', body: form, credentials: 'include', headers: {'X-CSRF-Token': 'x'.repeat(43)}}),
        api: fetch(`${home}/api/v1/pause`, {
            method: 'PUT', body: '{"names": ["seen"]}', credentials: 'include'}),
        stream: new Promise((done, fail) => {
            const source = new EventSource(`${home}/live`, {withCredentials: true});
            source.onopen = done; source.onerror = () => { source.close(); fail(); };
        }),
    };
    const became = {};
    for (const [name, one] of Object.entries(tries))
        became[name] = await one.then(found => found ?? 'done', () => 'refused');
    return became;
}"""


def test_page_of_another_origin_sees_and_changes_nothing(whole: Whole, browser: Any) -> None:
    """Once of another port of this machine, to which the cookies are sent, and once of another site."""
    whole.get("seen").resume()
    records = find_records(whole.app)
    forgery = HTMLResponse(FORGERY.format(home=whole.home, guess="x" * 43))
    # the browser complains of all that it is kept from
    with serving(forgery, lifespan="off") as address, whole.visitor(browser, "") as page:
        for place, answer in (
            (address.replace("localhost", "127.0.0.1"), "This request comes from another site"),
            (address, "Log in"),
        ):
            page.goto(place)
            assert [one.url for one in page.frames[1:]] == ["chrome-error://chromewebdata/"]
            found = page.evaluate(FETCHES, whole.home)
            assert {*found.values()} == {"refused"}, found
            press(page, "Win")
            sees(page, answer)
        assert not whole.get("seen").paused
        assert find_records(whole.app) == records
        page.goto(f"{whole.home}/entry?name=seen")
        expect(page.get_by_role("heading", level=1)).to_contain_text("seen")


def test_open_pages_tell_when_their_leader_dies_and_who_follows(whole: Whole, browser: Any) -> None:
    whole.add("ticks", 1.0)
    with whole.visitor(browser) as page:
        other = page.context.new_page()
        other.goto(f"{whole.home}/entry?name=ticks")
        for one in (page, other):
            one.evaluate("window.isStillOpen = true")
        tile = page.locator(".tile", has=page.get_by_text("Leader", exact=True))
        standbys = page.locator(".tile", has=page.get_by_text("Standbys", exact=True))

        def says(tile: Any, text: str) -> None:
            expect(tile).to_contain_text(text)

        says(tile, f"process {whole.leader.pid}")
        says(standbys, "nobody would take over")
        follower = whole.start_beat("two")
        says(standbys, f"process {follower.pid}")
        whole.leader.kill()
        says(tile, f"process {follower.pid}")
        says(standbys, "nobody would take over")
        sees(page, "Healthy")
        # the page of an entry goes on, too: its runs do
        count = whole.get("ticks").total_run_count
        last = other.locator("#past tbody tr").first
        shown = last.inner_text()
        eventually(lambda: whole.get("ticks").total_run_count > count)
        expect(last).not_to_have_text(shown, use_inner_text=True)
        follower.kill()
        sees(page, "if none runs, start one")
        says(page.get_by_role("main"), f"Silent: Process {follower.pid} on")
        says(tile, "last seen")
        assert wrong_of(page) == []
        assert [one.evaluate("window.isStillOpen") for one in (page, other)] == [True, True]


def fail_runs(app: Celery, client: redis.Redis, name: str, count: int = 1) -> None:
    """Have runs of an entry fail_runs, one after the other."""
    progress = Progress(app, client)
    for _ in range(count):
        due = server_now(client)
        progress.end(progress.started(name, f"{name} {due}", due), "failed", error="no disk")


def renew(page: Page, part: str) -> None:
    """Have a part of a page asked for again, and wait until nothing of it is as it was."""
    page.evaluate("(part) => htmx.find(part).firstElementChild.dataset.old = ''", part)
    with page.expect_response(lambda answer: "hx-request" in answer.request.headers):
        page.evaluate(
            "(part) => htmx.ajax('GET', htmx.find(part).getAttribute('hx-get'), "
            "{source: part, target: part}).then(() => {})",
            part,
        )
    expect(page.locator(f"{part} > [data-old]")).to_have_count(0)


def test_focus_ticks_and_scroll_stay_when_a_page_renews_itself(
    app: Celery, client: redis.Redis, browser: Any, add: Add
) -> None:
    name = "marketing-pull-carrier-status-for-each-country-and-warehouse"
    add(name, 60)
    fail_runs(app, client, name, 40)
    with serving(dashboard_of(app)) as home, visit(browser) as (context, complaints):
        page = context.new_page()
        page.goto(f"{home}/runs?name={name}")
        rows = page.locator("#runs tbody tr")
        expect(rows).to_have_count(40)
        for field in ("[name=run]", "button"):
            row = rows.nth(9)
            due = row.locator("[name=due]").get_attribute("value")
            row.locator("[name=run]").check()
            row.locator(field).focus()
            page.evaluate("() => htmx.find('[aria-label=Runs]').scrollTo(0, 300)")
            fail_runs(app, client, name)  # a row comes before it
            renew(page, "#runs")
            again = rows.filter(has=page.locator(f"[name=due][value='{due}']"))
            expect(again.locator(field)).to_be_focused()
            expect(again.locator("[name=run]")).to_be_checked()
            expect(rows.nth(10).locator("[name=due]")).to_have_attribute("value", str(due))
            assert page.evaluate("() => htmx.find('[aria-label=Runs]').scrollTop") == 300
        assert complaints.found == []


def test_open_page_under_wsgi_polls_for_news(
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


def test_forms_over_plain_http_count_from_own_pages_only(app: Celery, browser: Any, add: Add) -> None:
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
        for site, policy, guess in (
            ("localhost", "img-src *", token), ("localhost", "sandbox allow-forms", token),
            (NAME, "sandbox allow-forms", "x" * 43),
        ):  # fmt: skip
            headers = {"Content-Security-Policy": policy, "Referrer-Policy": "no-referrer"}
            form = f"""<form method="post" action="{home}/logout">
                <input name="csrf_token" value="{guess}"><button>Send</button></form>"""
            with serving(HTMLResponse(form, headers=headers), lifespan="off") as evil:
                page.goto(evil.replace("localhost", site))
                with page.expect_response(f"{home}/logout") as answered:
                    page.get_by_role("button", name="Send").click()
            assert answered.value.status in (401, 403), (site, policy)
        page.goto(f"{home}/")
        page.get_by_role("button", name="Log out").click()
        page.get_by_role("heading", name="Log in").wait_for()


#: a browser without windows shows all of its tabs
HIDING = """
    let isHidden = false;
    Object.defineProperty(Document.prototype, "hidden", { get: () => isHidden });
    window.setHidden = (value) => {
      isHidden = value;
      document.dispatchEvent(new Event("visibilitychange"));
    };
"""


def test_hidden_tabs_keep_no_stream_and_are_up_to_date_when_seen(whole: Whole, page: Page) -> None:
    entries = [whole.add(f"tab-{number}") for number in range(2)]
    page.context.add_init_script(HIDING)
    for number in range(8):  # a browser opens six connections to a server
        tab = page if number == 0 else page.context.new_page()
        tab.goto(f"{whole.home}/{'entries?match=tab-' if number == 0 else 'entry?name=seen'}")
        expect(tab.get_by_role("heading", level=1)).to_be_visible()
        tab.evaluate("setHidden(true)")
    entries[0].pause("the move")
    page.evaluate("window.isStillOpen = true; setHidden(false)")
    sees(page, "the move")
    entries[1].pause("and later")  # its stream is open again
    sees(page, "and later")
    assert page.evaluate("isStillOpen")


#: how a page tells times relative to one
RELATIVE = """([now, moments]) => {
  document.documentElement.dataset.now = now;
  const region = document.createElement('div');
  document.querySelector('main').append(region);
  const start = performance.timeOrigin + performance.getEntriesByType('navigation')[0].responseStart;
  Date.now = () => start;
  for (const moment of moments) {
    const time = document.createElement('time');
    time.dateTime = moment;
    time.dataset.relative = '';
    region.append(time);
  }
  const script = document.createElement('script');
  script.src = document.querySelector('script[src*="redbeat.js"]').src + '&again';
  return new Promise((resolve) => {
    script.onload = () => resolve([...region.children].map((one) => one.textContent));
    document.head.append(script);
  });
}"""


def test_times_theme_and_forms_work_with_and_without_scripts(app: Celery, browser: Any, add: Add) -> None:
    now = datetime.now(timezone.utc)
    moments = [
        now + sign * timedelta(seconds=one) for one in (0, 59, 90, 3599, 7201, 172_801) for sign in (1, -1)
    ]
    add("report")
    with (
        serving(dashboard_of(app)) as home,
        visit(browser, color_scheme="dark") as (context, _),
        visit(browser, java_script_enabled=False, viewport=PHONE) as (phone, _),
    ):
        page = context.new_page()
        page.goto(f"{home}/entries")
        told = page.evaluate(RELATIVE, [now.isoformat(), [moment.isoformat() for moment in moments]])
        assert told == [relative(moment, now) for moment in moments]
        page.reload()
        time = page.locator("time").first
        expect(time).to_have_attribute("title", "2099-03-01 10:30:00 +01:00 Europe/Berlin")
        page.keyboard.press("t")
        expect(time).to_have_text("2099-03-01 10:30:00 +01:00")
        ground = "getComputedStyle(document.body).backgroundColor"
        dark = page.evaluate(ground)
        page.get_by_role("button", name="light").click()
        assert page.evaluate(ground) != dark
        page.reload()
        assert page.evaluate(ground) != dark
        page = phone.new_page()
        page.goto(f"{home}/entries")
        press(page, "Pause report")
        sees(page, "Paused report.")
        page.locator(".nav-menu summary").click()
        assert page.get_by_role("link", name="Doctor").is_visible()
