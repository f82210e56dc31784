"""The dashboard as its users have it: real commands, and a browser in which every page and action is taken.

Each test says what the user sees, and what is in Redis then. The last ones end the beats.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from redbeat.calendars import Calendar
from redbeat.entries.audit import find_records
from redbeat.store.store import Store
from redbeat.store.tokens import Tokens
from tests.faults.rounds import some_of
from tests.support.apps import runs
from tests.support.browser import axe, axe_source, overflow
from tests.support.dashboards import serving_wsgi
from tests.support.deadlines import patience
from tests.support.gallery import HOSTILE
from tests.support.polling import eventually
from tests.support.servers import Server
from tests.support.stored import store
from tests.support.whole import Whole

IN_NAVIGATION = (
    "Entries", "Timeline", "Runs", "Later", "Doctor", "Files", "Calendars", "Routes", "Audit", "Overview",
)  # fmt: skip
OTHERS = (
    "/entry?name=seen", "/entry?name=seen&as=json", "/entry/new", "/entry/edit?name=seen",
    "/entry/edit?name=seen&as=json", "/entry/pause?name=seen", "/entry/run?name=seen",
    "/entry/backfill?name=seen", "/entry/delete?name=seen", "/runs/rerun", "/calendar?name=feasts",
    "/doctor/fix", "/changing?id=none", "/routes?name=seen", "/timeline?start=5h",
    "/entries?task=echo", "/later/message?task_id=seen", "/later/message?task_id=none", "/login", "/nothing",
)  # fmt: skip
DESKTOP, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whole]:
    with Server() as server:
        made = Whole(server, tmp_path_factory.mktemp("whole"))
        try:
            made.add("seen", "30 7 * * *")
            yield made
        finally:
            made.stop()


@pytest.fixture(scope="module", autouse=True)
def slow(whole: Whole) -> Iterator[socket.socket]:
    """A connection that has sent a part of a request, and nothing more: others wait for its end meanwhile."""
    port = int(whole.home.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), patience()) as made:
        made.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
        yield made


@pytest.fixture(autouse=True)
def connections_stay_with_their_test(whole: Whole) -> None:
    whole.renew_app()


@pytest.fixture
def page(whole: Whole, browser: Any) -> Iterator[Page]:
    """A page of somebody who has opened the link."""
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


def test_every_page_is_reached_and_can_be_used_by_everybody(whole: Whole, page: Page) -> None:
    Calendar("feasts", ["2098-12-24/2098-12-26"], app=whole.app).save()
    store(whole.app, "seen", task="echo", args=[1], kwargs={"a": HOSTILE})
    page.context.add_init_script(axe_source())  # else it is put into each page anew, which takes longer
    nav = page.get_by_role("navigation", name="Pages", exact=True)
    examined = {*some_of(IN_NAVIGATION, 4), *some_of(OTHERS, 7)}  # which takes a second for each
    for label in IN_NAVIGATION:
        nav.get_by_role("link", name=label, exact=True).click()
        expect(nav.locator("[aria-current=page]")).to_have_text(label)
        expect(page.get_by_role("heading", level=1)).to_have_text(label)
    for label in IN_NAVIGATION:
        keys = str(nav.get_by_role("link", name=label, exact=True).get_attribute("data-shortcut")).split()
        for key in keys:
            page.keyboard.press(key)
        expect(nav.locator("[aria-current=page]")).to_have_text(label)
        assert label not in examined or wrong_of(page) == [], label
    for path in OTHERS:
        page.goto(f"{whole.home}{path}")
        expect(page.get_by_role("heading", level=1)).not_to_be_empty()
        assert path not in examined or wrong_of(page) == [], path


def test_a_stored_message_is_looked_at_and_revoked(whole: Whole, page: Page) -> None:
    store(
        whole.app, f"first {HOSTILE}", "second", task="echo", args=[HOSTILE, 1], kwargs={"password": "geheim"}
    )
    page.goto(f"{whole.home}/later")
    row = page.get_by_role("row", name="first")
    expect(row).to_contain_text("(hidden)")
    expect(row).not_to_contain_text("geheim")
    row.get_by_role("link").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Stored message first <img")
    sees(page, "<img")
    expect(page.get_by_role("main")).not_to_contain_text("geheim")
    assert wrong_of(page) == []
    press(page, "Revoke")
    assert whole.client.zcard("redbeat::later") >= 2
    with whole.doing(page, "later cancel", f"first {HOSTILE}"):
        confirm(page, "Revoke")
        sees(page, "Revoked first")
    page.get_by_role("row", name="second").get_by_role("button").click()
    with whole.doing(page, "later cancel", "second"):
        confirm(page, "Revoke")
        sees(page, "Revoked second")
    fill(page, Task_id="second")
    press(page, "Show")
    sees(page, "second isn't stored: it was sent, cancelled, or never stored.")
    assert not whole.client.exists("redbeat::later:second")


def test_an_entry_is_added_edited_and_paused(whole: Whole, page: Page) -> None:
    key = "redbeat:report"
    page.goto(f"{whole.home}/entries")
    follow(page, "Add entry")
    fill(page, Name="report", Task="echo", Schedule="61 7 * * *")
    expect(page.locator("#f-schedule-problem")).to_contain_text("61")
    fill(page, Schedule="30 7 * * *")
    sees(page, "At 07:30")
    assert not whole.client.exists(key)
    with whole.doing(page, "add", "report"):
        press(page, "Add")
        sees(page, "Added report. Next run:")
    assert json.loads(str(whole.client.hget(key, "definition")))["schedule"]["hour"] == "7"
    assert (whole.client.zscore("redbeat::schedule", key) or 0) > 1e9

    follow(page, "Edit")
    fill(page, Schedule="15 9 * * *")
    sees(page, "At 09:15")
    with whole.doing(page, "set", "report"):
        press(page, "Save")
        sees(page, "Changed report. Next run:")
    assert json.loads(str(whole.client.hget(key, "definition")))["schedule"]["hour"] == "9"

    follow(page, "Edit")
    press(page, "JSON")
    document = json.loads(page.get_by_label("The entry as JSON").input_value())
    document |= {"args": [1, "two"], "kwargs": {"password": "geheim"}}
    page.get_by_label("The entry as JSON").fill(json.dumps(document))
    expect(page.locator("#preview")).to_contain_text("args")
    with whole.doing(page, "set", "report"):
        press(page, "Save")
        sees(page, "Changed report. Next run:")
    assert whole.get("report").args == [1, "two"]
    assert whole.get("report").kwargs == {"password": "geheim"}
    expect(page.locator("#fields")).to_contain_text("(hidden)")
    expect(page.locator("#fields")).not_to_contain_text("geheim")

    follow(page, "Pause")
    fill(page, Why=f"the feast {HOSTILE}", Until="2h")
    with whole.doing(page, "pause", "report"):
        press(page, "Pause")
        sees(page, "the feast <img")
    assert wrong_of(page) == []
    found = whole.get("report")
    assert (found.state, found.pause_note) == ("paused", f"the feast {HOSTILE}")
    assert timedelta(minutes=119) < found.paused_until - datetime.now(timezone.utc) < timedelta(minutes=121)
    with whole.doing(page, "resume", "report"):
        press(page, "Resume")
        sees(page, "Resumed. Next run:")
    assert whole.get("report").state == "scheduled"
    assert whole.get("report").pause_note is None


def test_an_entry_is_run_backfilled_rerun_given_up_and_deleted(whole: Whole, page: Page) -> None:
    key = "redbeat:works"
    half_an_hour_away = (datetime.now(timezone.utc) + timedelta(minutes=30)).minute
    whole.add("works", f"{half_an_hour_away} * * * *", args=[1])
    page.goto(f"{whole.home}/entry?name=works")
    follow(page, "Run now")
    fill(page, Arguments="[7]", Keyword_arguments='{"day": "today"}')
    with whole.doing(page, "trigger", "works"):
        press(page, "Run now")
        sees(page, "its task id is")
    expect(page.locator("#past")).to_contain_text("succeeded")
    assert [(run.args, run.kwargs) for run in runs(whole.broker)] == [([7], {"day": "today"})]
    assert whole.get("works").args == [1]

    follow(page, "Backfill")
    fill(page, From="3h")
    press(page, "See which")
    sees(page, "3 runs would be sent")
    assert not whole.client.exists("redbeat::backfilled:works")
    with whole.doing(page, "backfill", "works"):
        press(page, "Send 3 runs")
        sees(page, "Sent 3 runs.")
    assert whole.client.scard("redbeat::backfilled:works") == 3
    eventually(lambda: len(runs(whole.broker)) == 4)

    # a run that nobody takes is given up; one that is lost so can be sent once more
    follow(page, "Run now")
    fill(page, Queue="nobody")
    with whole.doing(page, "trigger", "works"):
        press(page, "Run now")
        sees(page, "In progress")
    assert whole.client.hlen("redbeat::running:works") == 1
    page.get_by_role("button", name="Give up").click()
    with page.expect_response(lambda answer: "hx-request" in answer.request.headers):
        whole.get("works").trigger()  # while one is asked, the page would be renewed
    with whole.doing(page, "runs --give-up", "works"):
        confirm(page, "Give up")
        sees(page, "Given up: it counts as lost.")
    assert whole.client.hlen("redbeat::running:works") == 0
    page.get_by_role("row").filter(has_text="lost").get_by_role("button", name="Rerun").click()
    with whole.doing(page, "rerun", "works"):
        confirm(page, "Rerun")
        sees(page, "once more; its task id is")
    eventually(lambda: len(runs(whole.broker)) == 6)

    follow(page, "Delete")
    assert whole.client.exists(key)
    with whole.doing(page, "delete", "works"):
        press(page, "Delete")
        sees(page, "Deleted works.")
    assert not whole.client.exists(key, "redbeat::history:works")
    assert whole.client.zscore("redbeat::schedule", key) is None


def test_entries_are_run_paused_resumed_and_deleted_in_their_list(whole: Whole, page: Page) -> None:
    names = [f"listed-{number}" for number in range(3)]
    for name in names:
        whole.add(name)
    before = len(runs(whole.broker))
    page.goto(f"{whole.home}/entries?sort=name")
    row = page.get_by_role("row").filter(has_text="listed-0")
    row.get_by_role("button", name="Run now").click()
    confirm(page, "Cancel")
    row.get_by_role("button", name="Run now").click()
    with whole.doing(page, "trigger", "listed-0"):
        confirm(page, "Run now")
        sees(page, "Sent a run of listed-0.")
    eventually(lambda: len(runs(whole.broker)) == before + 1)
    with whole.doing(page, "pause", "listed-0"):
        row.get_by_role("button", name="Pause").click()
        expect(row.get_by_role("button", name="Resume")).to_be_visible()
    assert whole.get("listed-0").paused
    with whole.doing(page, "resume", "listed-0"):
        row.get_by_role("button", name="Resume").click()
        expect(row.get_by_role("button", name="Pause")).to_be_visible()
    assert not whole.get("listed-0").paused

    # what one does is seen by another, who searches, within seconds
    with whole.visitor(page.context.browser) as other:
        other.goto(f"{whole.home}/entries")
        other.get_by_label("Search").fill("LISTED")
        other.keyboard.press("Enter")
        other.wait_for_url("**match=LISTED**")
        theirs = other.get_by_role("row").filter(has_text="listed-1")
        theirs.get_by_role("button", name="Pause").click()
        expect(theirs.get_by_role("button", name="Resume")).to_be_visible()
        mine = page.get_by_role("row").filter(has_text="listed-1")
        expect(mine.get_by_role("button", name="Resume")).to_be_visible(timeout=patience(10) * 1000)
        mine.get_by_role("button", name="Resume").click()
        expect(theirs.get_by_role("button", name="Pause")).to_be_visible(timeout=patience(10) * 1000)

    def choose(button: str) -> None:
        for name in names:
            page.get_by_label(name, exact=True).check()
        page.get_by_role("form", name="What to do with the chosen entries").get_by_role(
            "button", name=button
        ).click()
        expect(page.get_by_role("region", name="What is meant")).to_contain_text("listed-2")
        assert page.get_by_role("heading", level=1).inner_text().endswith("3 entries?")

    choose("Pause")
    fill(page, Note="moving house", Until="tomorrow 9:00")
    with whole.doing(page, "pause", *names):
        press(page, "Pause")
        sees(page, "Paused 3 entries.")
    assert [whole.get(name).pause_note for name in names] == ["moving house"] * 3
    # they are found by what is chosen of filters, each of which is one more condition
    found, search = page.locator("tbody th a"), page.get_by_role("search")
    search.get_by_label("Search").fill("LISTED")
    search.get_by_label("State").select_option("paused")
    expect(found).to_have_text(names)
    search.get_by_label("Last outcome").select_option("succeeded")
    expect(found).to_have_text(names[:1])
    search.get_by_text("Filters").click()
    search.get_by_label("Task").fill("another")
    page.keyboard.press("Enter")
    sees(page, "Nothing more matches.")
    search.get_by_role("link", name="Clear").click()
    expect(page.get_by_label(names[2], exact=True)).to_be_visible()
    choose("Resume")
    with whole.doing(page, "resume", *names):
        press(page, "Resume")
        sees(page, "Resumed 3 entries.")
    assert [whole.get(name).state for name in names] == ["scheduled"] * 3
    choose("Run now")
    press(page, "Run now")
    sees(page, "Sent a run of 3 entries.")
    eventually(lambda: len(runs(whole.broker)) == before + 4)
    assert [one.names for one in find_records(whole.app, verb="trigger", limit=3)] == [
        (name,) for name in reversed(names)
    ]
    choose("Delete")
    with whole.doing(page, "delete", *names):
        press(page, "Delete")
        sees(page, "Deleted 3 entries.")
    assert [whole.client.exists(f"redbeat:{name}") for name in names] == [0, 0, 0]


def test_runs_are_seen_as_they_happen_sent_once_more_and_given_up(whole: Whole, page: Page) -> None:
    whole.add("fails", task="fail")
    whole.add("waits")
    page.goto(f"{whole.home}/runs?since=1h")
    whole.get("fails").trigger()  # an open page is told
    failed = page.get_by_role("row").filter(has_text="fails").filter(has_text="failed")
    expect(failed).to_have_count(1)
    expect(failed).to_contain_text("this task always fails")
    failed.get_by_role("button", name="Rerun").click()
    with whole.doing(page, "rerun", "fails"):
        confirm(page, "Rerun")
        sees(page, "Sent once more; its task id is")
    expect(failed).to_have_count(2)

    for number in range(2):
        page.get_by_label(re.compile("^fails, due")).nth(number).check()
    sees(page, "2 selected")
    page.locator("#chosen").get_by_role("button", name="Rerun").click()
    with whole.doing(page, "rerun", "fails"):
        confirm(page, "Rerun")
        sees(page, "Sent 1 run once more.")  # the other was sent before
    expect(failed).to_have_count(3)

    whole.get("fails").trigger()
    expect(failed).to_have_count(4)
    follow(page, "Send failed ones once more …")
    page.get_by_label("Of entries called").fill("fails")
    press(page, "Show")
    sees(page, "of 1 entry once more?")
    sent = len(runs(whole.broker))
    with whole.doing(page, "rerun", "fails"):
        press(page, "Send once more")
        sees(page, "once more.")
    eventually(lambda: len(runs(whole.broker)) > sent)

    whole.get("waits").trigger(queue="nobody")
    page.goto(f"{whole.home}/runs?name=waits")
    page.get_by_role("button", name="Give up").click()
    with whole.doing(page, "runs --give-up", "waits"):
        confirm(page, "Give up")
        sees(page, "Gave up 1 run.")
    assert whole.get("waits").running() == []
    page.goto(f"{whole.home}/runs?state=lost&name=waits")
    expect(page.get_by_role("row").filter(has_text="given up by")).to_have_count(1)


def test_a_calendar_is_made_changed_imported_and_deleted(whole: Whole, page: Page, tmp_path: Path) -> None:
    def days() -> set[str]:
        return set(Calendar.load(HOSTILE, whole.app).days)

    (tmp_path / "days.ics").write_text(
        "BEGIN:VCALENDAR\nVERSION:2.0\nPRODID:x\nBEGIN:VEVENT\nUID:1\nDTSTAMP:20300101T000000Z\n"
        "DTSTART;VALUE=DATE:20980501\nSUMMARY:Labour Day\nEND:VEVENT\nEND:VCALENDAR\n"
    )
    page.goto(f"{whole.home}/calendars")
    new = page.locator("form").filter(has=page.get_by_role("button", name="Make it"))
    new.get_by_label("Name", exact=True).fill(HOSTILE)
    new.get_by_label("Days").fill("2098-01-01 New Year")
    with whole.doing(page, "calendar set", HOSTILE):
        press(page, "Make it")
        sees(page, "Stored: 1 day.")
    fill(page, Day="2098-12-24", Label="Christmas Eve")
    page.get_by_label("To, both included").fill("2098-12-26")
    with whole.doing(page, "calendar set", HOSTILE):
        press(page, "Add")
        sees(page, "Stored: 4 days.")
    assert days() == {"2098-01-01", "2098-12-24/2098-12-26"}
    with whole.doing(page, "calendar set", HOSTILE):
        page.get_by_role("button", name="Remove 2098-12-24/2098-12-26").click()
        sees(page, "Stored: 1 day.")
    page.get_by_text("Edit as text").click()
    assert wrong_of(page) == []
    page.get_by_role("group").get_by_label("Days").fill("2098-01-01 New Year\n2098-06-29 stocktaking")
    with whole.doing(page, "calendar set", HOSTILE):
        press(page, "Save")
        sees(page, "Stored: 2 days.")
    assert days() == {"2098-01-01", "2098-06-29"}
    page.get_by_label("File").set_input_files(tmp_path / "days.ics")
    page.get_by_label("Events until").fill("2098-12-31")
    press(page, "Read the file")
    sees(page, "days.ics has 1 day.")
    assert days() == {"2098-01-01", "2098-06-29"}
    with whole.doing(page, "calendar import", HOSTILE):
        press(page, "Store")
        sees(page, "Stored: 3 days.")
    assert "2098-05-01" in days()
    press(page, "Delete")
    confirm(page, "Cancel")
    press(page, "Delete")
    with whole.doing(page, "calendar delete", HOSTILE):
        confirm(page, "Delete")
        sees(page, "Deleted the calendar")
    assert HOSTILE not in Calendar.names(whole.app)


def test_a_file_is_planned_applied_as_it_was_seen_exported_and_imported(whole: Whole, page: Page) -> None:
    secret = "filed: {task: echo, schedule: 1h, kwargs: {password: s3cret}}"
    page.goto(f"{whole.home}/files")
    text = f"{{owner: shop, entries: {{{secret}, filed-too: {{task: echo, schedule: 2h}}}}}}"
    page.get_by_label("or its text").fill(text)
    with whole.holding_plans():
        press(page, "Show the plan")
        sees(page, "It goes on when you leave this page.")
    sees(page, "Entries: 2 to add")
    expect(page.locator(".diff")).to_contain_text("(hidden)")
    assert not whole.client.exists("redbeat:filed", "redbeat:filed-too")
    whole.add("filed")
    press(page, "Apply these 2 changes")
    sees(page, "The schedule has changed since that plan was shown")
    assert wrong_of(page) == []
    assert whole.get("filed").kwargs == {}
    with whole.doing(page, "apply", "filed-too", "filed"):
        press(page, "Apply these 2 changes")
        sees(page, "1 added, 1 changed")
    assert whole.get("filed").kwargs == {"password": "s3cret"}
    assert whole.client.hget("redbeat:filed", "owner") == "shop"

    page.get_by_role("textbox", name=re.compile("^Names")).fill("filed*")
    with page.expect_download() as download:
        press(page, "Download")
    path = Path(download.value.path())
    written = path.read_text("utf-8")
    assert ("filed-too" in written, "s3cret" in written) == (True, False)
    whole.get("filed-too").delete()
    page.goto(f"{whole.home}/files")
    for is_first in (True, False):
        page.get_by_label("File").last.set_input_files(path)
        press(page, "Show what it would store")
        if is_first:
            sees(page, "filed: is stored already; tick 'Replace'")
            page.get_by_role("checkbox", name=re.compile("^Replace")).check()
    sees(page, "Entries: 1 to add")
    with whole.doing(page, "import", "filed-too", "filed"):
        page.get_by_role("button", name=re.compile("^Import th")).click()
        sees(page, "1 added")
    assert whole.get("filed-too").task == "echo"
    assert whole.get("filed").kwargs == {"password": "s3cret"}


def test_the_doctor_repairs_what_it_has_shown_and_asks_workers(whole: Whole, page: Page) -> None:
    later = datetime.now(timezone.utc).timestamp() + 1e6
    whole.client.zadd("redbeat::schedule", {"redbeat:vanished": later})
    page.goto(f"{whole.home}/doctor")
    follow(page, "Look again, and ask workers")
    sees(page, "redbeat:vanished")
    expect(page.get_by_text("workers weren't asked")).to_have_count(0)
    page.get_by_role("region", name="missing hash").get_by_role(
        "link", name="Show what would be repaired"
    ).click()
    sees(page, "redbeat:vanished: would be taken out of the schedule")
    assert whole.client.zscore("redbeat::schedule", "redbeat:vanished") == pytest.approx(later)
    with whole.doing(page, "doctor --fix", "redbeat:vanished"):
        press(page, "Repair")
        sees(page, "redbeat:vanished: taken out of the schedule")
    assert whole.client.zscore("redbeat::schedule", "redbeat:vanished") is None
    page.goto(f"{whole.home}/doctor")
    sees(page, "looked at")
    expect(page.get_by_text("redbeat:vanished")).to_have_count(0)


def test_routes_are_asked_for_and_the_audit_list_is_searched(whole: Whole, page: Page) -> None:
    page.goto(f"{whole.home}/routes")
    follow(page, "Ask workers")
    expect(
        page.get_by_role("region", name="Destinations").get_by_role("columnheader", name="Workers")
    ).to_be_visible(timeout=patience(20) * 1000)
    page.get_by_label("Entry or task").fill("seen")
    page.get_by_label("queue").fill("slow lane")
    press(page, "Show its route")
    expect(page.get_by_role("region", name="Its route")).to_contain_text("slow lane")

    whole.add("noted")
    page.goto(f"{whole.home}/entry/pause?name=noted")
    fill(page, Why="the feast")
    press(page, "Pause")
    sees(page, "Paused until somebody resumes it.")
    press(page, "Resume")
    sees(page, "Resumed.")
    page.goto(f"{whole.home}/audit")
    change = page.get_by_role("region", name="Changes").get_by_role("row")
    page.get_by_role("searchbox").fill("noted")
    press(page, "Search")
    expect(change).to_have_count(3)  # with its head
    page.get_by_label("Command").fill("paus?")
    press(page, "Search")
    expect(change).to_have_count(2)
    expect(change.last).to_contain_text("note: the feast")
    page.get_by_label("Within").select_option("7d")
    page.get_by_label("User").fill("nobody-like-that")
    press(page, "Search")
    sees(page, "There are no such changes")


def test_of_two_who_edit_one_entry_the_second_is_told_and_nothing_is_lost(whole: Whole, browser: Any) -> None:
    whole.add("shared", "30 7 * * *", kwargs={"password": "geheim"}, timezone="Europe/Berlin")
    address = f"{whole.home}/entry/edit?name=shared"
    with whole.visitor(browser) as anna, whole.visitor(browser, "412", "422") as eve:
        for page in (anna, eve):
            page.goto(address)
        anna.get_by_label("Jitter").fill("5m")
        anna.get_by_label("Schedule", exact=True).fill("45 7 * * *")
        eve.get_by_label("Jitter").fill("10m")
        fill(eve, Arguments=json.dumps([HOSTILE]))
        eve.get_by_text("Messages, metrics and pings").click()
        fill(eve, Queue="slow lane")
        with whole.doing(anna, "set", "shared"):
            press(anna, "Save")
            sees(anna, "Changed shared.")
        press(eve, "Save")
        sees(eve, "Somebody else has changed this meanwhile")
        assert wrong_of(eve) == []
        assert whole.get("shared").jitter == 300
        theirs = eve.locator("section").filter(has=eve.get_by_role("heading", name="What they have changed"))
        expect(theirs).to_contain_text("45 7 * * *")
        mine = eve.locator("section").filter(has=eve.get_by_role("heading", name="What you have changed"))
        expect(mine).to_contain_text("slow lane")
        with whole.doing(eve, "set", "shared"):
            press(eve, "Save mine over it")
            sees(eve, "Changed shared.")
        found = whole.get("shared")
        assert (found.jitter, found.args, found.options["queue"]) == (600, [HOSTILE], "slow lane")
        assert found.kwargs == {"password": "geheim"}
        assert "45" in json.dumps(found.to_dict()["schedule"]), (
            "what she hasn't changed stays as the other has it"
        )
        # another time she takes what the other has made of it
        for page in (anna, eve):
            page.goto(address)
            page.get_by_label("Jitter").fill("20m" if page is anna else "30m")
        press(anna, "Save")
        sees(anna, "Changed shared.")
        press(eve, "Save")
        follow(eve, "Discard mine, take theirs")
        assert eve.get_by_label("Jitter").input_value() == "20m"
        # and if the other has deleted it, she can add it once more
        anna.goto(f"{whole.home}/entry/delete?name=shared")
        press(anna, "Delete")
        sees(anna, "Deleted shared.")
        eve.get_by_label("Jitter").fill("40m")
        press(eve, "Save")
        sees(eve, "Somebody else has removed this entry")
        press(eve, "Add it once more")
        sees(eve, "there is no value that this stands for: write one")
        fill(eve, Keyword_arguments="")
        with whole.doing(eve, "add", "shared"):
            press(eve, "Add")
            sees(eve, "Added shared.")
    assert whole.get("shared").jitter == 2400


def test_who_logs_out_is_out_and_comes_back_with_a_token_and_its_rights(whole: Whole, browser: Any) -> None:
    _, token = Tokens(Store(whole.app)).add("deploy", ["pause"], None)
    with whole.visitor(browser, "401", "403") as page:
        press(page, "Log out")
        expect(page.get_by_role("heading", level=1)).to_have_text("Log in")
        assert wrong_of(page) == []
        page.goto(f"{whole.home}/entries")
        expect(page.get_by_role("heading", level=1)).to_have_text("Log in")
        page.get_by_label("Token").fill("nonsense")
        press(page, "Log in")
        sees(page, "There is no such token")
        page.get_by_label("Token").fill(token)
        press(page, "Log in")
        expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
        page.goto(f"{whole.home}/entry?name=seen")
        follow(page, "Pause")
        with whole.doing(page, "pause", "seen"):
            press(page, "Pause")
            sees(page, "Paused until somebody resumes it.")
        assert whole.get("seen").paused_by == "deploy"
        for button in ("Edit", "Delete", "Run now", "Backfill"):
            expect(page.get_by_role("link", name=button, exact=True)).to_have_count(0)
        page.goto(f"{whole.home}/entry/run?name=seen")
        sees(page, "right")
        expect(page.get_by_role("heading", level=1)).to_have_text("Not allowed")
    with whole.visitor(browser, "401") as page:
        page.goto(f"{whole.home}/login?token=old")
        sees(page, "This link is no longer good")


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


def test_a_page_of_another_origin_sees_nothing_and_changes_nothing(whole: Whole, browser: Any) -> None:
    """Once of another port of this machine, to which the cookies are sent, and once of another site."""
    whole.get("seen").resume()
    records = find_records(whole.app)
    forgery = FORGERY.format(home=whole.home, guess="x" * 43).encode()

    def serve(_environ: dict[str, Any], start_response: Any) -> list[bytes]:
        start_response("200 OK", [("Content-Type", "text/html")])
        return [forgery]

    # the browser complains of all that it is kept from
    with serving_wsgi(serve) as address, whole.visitor(browser, "") as page:
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
        sees(page, "No other beat is there to take over: start one")
        says(page.get_by_role("main"), f"Silent: Process {follower.pid} on")
        says(tile, "last seen")
        assert wrong_of(page) == []
        assert [one.evaluate("window.isStillOpen") for one in (page, other)] == [True, True]


def test_a_request_whose_head_never_comes_is_given_up(slow: socket.socket) -> None:
    slow.settimeout(patience())
    assert slow.recv(100) == b""
