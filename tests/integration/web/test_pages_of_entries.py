"""The list of entries and the page of one: paged, searched, renewed, and what they say of odd entries."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from html import unescape
from typing import Any

import pytest
import redis
import time_machine
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.calendars import Calendar
from redbeat.entries import search
from redbeat.store.changes import ChangeRecords
from redbeat.store.store import Store
from redbeat.web import names
from redbeat.web.jobs import Jobs
from redbeat.web.pages import entries as page
from tests.integration.web.conftest import Add, Browse, Programs
from tests.support.applying import apply
from tests.support.dashboards import HOSTILE, Browser
from tests.support.forms import form_fields
from tests.support.polling import eventually

SCHEDULE = "redbeat::schedule"


HTMX = {"hx-request": "true"}


FILE = """
entries:
  filed: {task: echo, schedule: {every: 60}, options: {queue: own}}
"""


REPORTS = [f"report-{number}" for number in range(7)]
FILTERS: list[tuple[dict[str, str], list[str]]] = [
    ({"match": "REPORT-"}, REPORTS),
    ({"match": "report-[0-2]?*"}, []),
    ({"match": "b"}, ["Backup", "bare", "broken"]),
    ({"task": "billing.*", "match": "3"}, ["report-3"]),
    ({"state": "paused"}, ["Backup"]),
    ({"state": "quarantined"}, ["broken"]),
    ({"state": "missing"}, ["lost"]),
    ({"state": "downgraded"}, ["away"]),
    ({"queue": "slow"}, REPORTS),
    ({"owner": "team"}, ["filed"]),
    ({"outcome": "failed"}, ["report-1"]),
    ({"outcome": "none", "match": "rep"}, ["report-3", "report-4", "report-5", "report-6"]),
]


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of five rows, so that a few entries have several."""
    monkeypatch.setattr(page, "ROWS", 5)


def rows_of(html: str) -> list[str]:
    return re.findall(r"<tr data-row=.*?</tr>", html, re.DOTALL)


def names_of(html: str) -> list[str]:
    """The names in the table, as they are shown."""
    cells = (re.findall(r'<th scope="row"><span class="cut" title="([^"]*)"', row) for row in rows_of(html))
    return [unescape(found[0]) for found in cells]


def states_of(html: str) -> list[str]:
    badge = re.compile(r'class="states"><span class="badge.*?</svg>(?:<span>)?(\w+)', re.DOTALL)
    return [badge.findall(row)[0] for row in rows_of(html)]


def read_all(browser: Browser, **query: str) -> Iterator[str]:
    """Yield the HTML of this page, and of all that follow by their links."""
    html = browser.read("/entries", **query)
    yield html
    while found := re.search(r'<a class="button[^"]*" href="([^"]*)"[^>]*>(?:<svg.*?</svg>)?Go on', html):
        html = browser.get(unescape(found[1]), headers=HTMX).text
        yield html


def add_all_kinds(app: Celery, add: Add, client: redis.Redis) -> None:
    """One entry at least in each state but 'failing'."""
    for number in range(7):
        add(f"report-{number}", timedelta(hours=number + 1), task="billing.report")
    add("Backup", "15 2 * * *", task="ops.backup").pause("the disk is full", by="ada")
    add("due")
    client.zadd(SCHEDULE, {"redbeat:due": 5})
    add("off", enabled=False)
    add("over")
    client.hset("redbeat:broken", "definition", "{oops")
    client.zadd(SCHEDULE, {"redbeat:broken": 7, "redbeat:lost": 8, "redbeat:over": -1})
    add("bare")
    client.zadd(SCHEDULE, {"bare": client.zscore(SCHEDULE, "redbeat:bare")})
    client.zrem(SCHEDULE, "redbeat:bare")
    add("away", timedelta(minutes=5), jitter=3)
    client.hset("redbeat::downgraded", "redbeat:away", "1893456000")
    client.zrem(SCHEDULE, "redbeat:away")


@pytest.mark.parametrize(("is_hasty", "sort"), [(True, "next"), (True, "name"), (False, "name")])
def test_filter_finds_its_entries_at_once_or_in_slices(
    app: Celery, client: redis.Redis, browse: Browse, add: Add, monkeypatch: pytest.MonkeyPatch,
    is_hasty: bool, sort: str,
) -> None:  # fmt: skip
    """Without time each answer looks through one slice."""
    app.conf.task_routes = {"billing.*": {"queue": "slow"}}
    add_all_kinds(app, add, client)
    apply(app, FILE, "team")
    for number, outcomes in enumerate((["succeeded"], ["failed", "succeeded"], ["skipped", "succeeded"])):
        records = [json.dumps({"at": 1e9, "due": 1e9, "outcome": one, "ended": 1e9}) for one in outcomes]
        client.rpush(f"redbeat::history:report-{number}", *records)
    if is_hasty:
        monkeypatch.setattr(search, "SLICE", 3)
        monkeypatch.setattr(search, "SLICE_OF_NAMES", 4)
        monkeypatch.setattr(page, "FIRST_SECONDS", 0)
        monkeypatch.setattr(page, "MORE_SECONDS", 0)
    browser = browse()
    for query, expected in FILTERS:
        pages = [names_of(html) for html in read_all(browser, sort=sort, **query)]
        names = [name for those in pages for name in those]
        assert sorted(names) == expected, query
        assert names == expected or sort == "next"
        assert len(pages) > 2 or not is_hasty, (query, pages)
    assert "There is no outcome" in browser.read("/entries", outcome="tired")


def test_search_in_slices_misses_no_entry_that_moves_meanwhile(
    app: Celery, client: redis.Redis, browse: Browse, add: Add, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile half of what was seen runs, and is due later than all the others."""
    for number in range(12):
        add(f"same-{number:02}")
    monkeypatch.setattr(search, "SLICE", 4)
    monkeypatch.setattr(page, "FIRST_SECONDS", 0)
    pages = read_all(browse(), task="echo")
    first = next(pages)
    assert "looked through 33 %" in first
    client.zadd(SCHEDULE, {f"redbeat:same-{number:02}": 5e9 + number for number in range(4)})
    found = [[int(name[-2:]) for name in names_of(html)] for html in (first, *pages)]
    assert found == [[0, 1, 2, 3], [4, 5, 6, 7, 8], [9, 10, 11, 0, 1], [2, 3]]


def test_rows_are_renewed_as_they_are_now(app: Celery, browse: Browse, add: Add) -> None:
    for name in ("one", "two", "gone"):
        add(name)
    browser = browse()
    part = browser.get("/entries", headers=HTMX).text
    assert ("<html" in part, names_of(part)) == (False, ["gone", "one", "two"])
    [told] = re.findall(r"hx-vals='([^']*)'", browser.read("/entries", match="o"))
    shown = json.loads(unescape(told))["shown"]
    Entry.delete_many(["gone"], app)
    Entry.pause_many(["one"], app)
    answer = browser.post("/entries/rows", headers=HTMX, shown=shown)
    assert (names_of(answer.text), states_of(answer.text)) == (["one", "two"], ["paused", "scheduled"])
    for nonsense in ("", "{", "5", '{"a": 1}', '["\\ud800"]', "[[]]", "[" * 5000):
        assert browser.post("/entries/rows", headers=HTMX, shown=nonsense).status_code == 200


def test_button_of_a_row_answers_with_the_row_and_a_message(
    app: Celery, broker: redis.Redis, browse: Browse, add: Add
) -> None:
    add("one")
    browser = browse()

    def press(verb: str, name: str = "one") -> tuple[list[str], Any]:
        answer = browser.post(f"/entries/{verb}", headers=HTMX, name=name, confirmed="yes")
        return states_of(answer.text), json.loads(answer.headers["hx-trigger"])["redbeat-toast"]

    assert press("pause") == (["paused"], {"text": "Paused one.", "tone": "good"})
    assert press("resume")[0] == ["scheduled"]
    press("trigger")
    assert broker.llen("celery") == 1
    assert press("delete", "никогда")[1]["text"] == "никогда is gone."
    assert press("trigger", "never")[1]["tone"] == "danger"


def test_reader_sees_no_buttons(browse: Browse, add: Add) -> None:
    add("report", 3600)
    pages = "".join(browse("read").read(path, name="report") for path in ("/entries", "/entry"))
    changing = r"data-select-one|Add entry|/entries/pause|/entry/(edit|run|pause|delete|backfill)"
    assert not re.search(changing, pages)


def test_names_in_memory_are_renewed(app: Celery, add: Add, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "FRESH_SECONDS", 0.01)
    add("beta")
    jobs = Jobs(lambda: ChangeRecords(Store(app)))

    def show(*expected: bytes) -> bool:
        result = names.read_names(app, jobs)
        return result.is_whole and tuple(result.found) == expected

    eventually(lambda: show(b"beta"))
    add("alpha")
    eventually(lambda: show(b"alpha", b"beta"))
    RedBeatSchedulerEntry.delete_many(["beta"], app)
    eventually(lambda: show(b"alpha"))


def test_next_runs_begin_at_the_time_of_the_server(browse: Browse, add: Add, program: Programs) -> None:
    now = datetime.now(timezone.utc).replace(microsecond=0)
    add("often", "*/10 * * * *", last_run_at=now)
    browser, one = browse(), program()
    first = now - timedelta(minutes=now.minute % 10 - 10, seconds=now.second)
    soon = {f"{first + timedelta(minutes=minutes):%Y-%m-%d %H:%M:%S}" for minutes in (0, 10)}
    with time_machine.travel(now + timedelta(hours=5)):
        shown = browser.read("/entry", name="often").partition("Next runs")[2]
        fields = form_fields(browser.read("/entry/new"), "entry-form")
        fields |= {"task": "echo", "schedule": "*/10 * * * *", "schedule_kind": "cron"}
        preview = browser.post("/entry/preview", **fields).text
        listed = one.get("/entries/often/next")["runs"][0]["due"].replace("T", " ")
    for text in (shown, preview, listed):
        assert re.findall(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d", text)[0] in soon, text


def test_next_runs_name_clock_changes_and_excluded_days(app: Celery, browse: Browse, add: Add) -> None:
    Calendar("holidays", ["2098-12-25/2098-12-27"], app=app).save()
    berlin = {"timezone": "Europe/Berlin", "start_time": datetime(2098, 12, 24, tzinfo=timezone.utc)}
    add("feast", "0 9 * * *", exclude="holidays", **berlin)
    add("summer", "30 2 25-31 3 sun", **berlin)
    add("autumn", "30 2 25-31 10 sun", **berlin)
    add("daily", "30 2 * * *", timezone="Europe/Berlin")
    browser = browse()
    for query, words in (
        ({"name": "feast"}, "holidays excludes 2098-12-25 to 2098-12-27"),
        ({"name": "summer", "more": "yes"}, "Europe/Berlin skips 02:00 to 03:00"),
        ({"name": "autumn", "more": "yes"}, "02:30 comes twice in Europe/Berlin: this is the first"),
        ({"name": "daily", "after": "2098-10-24"}, "Next runs after 2098-10-24 00:00:00 UTC"),
        ({"name": "daily", "after": "easter"}, "is not a time; write it as"),
    ):
        assert words in browser.read("/entry", **query), query


BROKEN = {
    "no JSON": '{"task": "t", "kwargs": {"a": 1',
    "no JSON, and hidden": '{"task": "t", "kwargs": {"password": "geheim"',
    "hidden": json.dumps({"task": "t", "schedule": 5, "kwargs": [{"password": "geheim"}]}),
    "no task": json.dumps({"schedule": {"__type__": "interval", "every": 5}, "args": [7], "extra": 1}),
    "a class of others": json.dumps({"task": "t", "schedule": {"__type__": "moon"}}),
    "no UTF-8": '{"task": "\\ud800", "schedule": 5}',
    "deep": '{"task": "t", "schedule": 5, "args": ' + "[" * 900 + "]" * 900 + "}",
    "markup": json.dumps({"task": HOSTILE, "schedule": HOSTILE}),
}


def test_quarantined_entry_has_its_pages_without_secrets_or_markup(
    app: Celery, client: redis.Redis, browse: Browse
) -> None:
    browser = browse()
    client.zadd("redbeat::schedule", {"redbeat:bad": 5e9})
    for case, definition in BROKEN.items():
        client.hset("redbeat:bad", "definition", definition)
        html = browser.read("/entry", name="bad")
        assert "quarantined" in html, case
        edit = browser.read("/entry/edit", name="bad")
        switched = browser.post("/entry/edit", **form_fields(edit, "entry-form"), to="form")
        assert switched.status_code in (200, 422)
        both = html + edit + switched.text + browser.read("/entry", name="bad", **{"as": "json"})
        assert ("geheim" in both, "<img" in both, "\u202e" in html) == (False, False, False), case


def test_entry_without_hash_is_stored_anew_or_deleted(
    app: Celery, client: redis.Redis, browse: Browse
) -> None:
    client.zadd("redbeat::schedule", {"redbeat:gone": 5e9, "bare": 5e9})
    browser = browse()
    for name in ("gone", "bare"):  # a member may be a name without the prefix
        assert 'href="/doctor/fix?kind=missing-hash"' in browser.read("/entry", name=name)
    assert "Deleted bare" in browser.send("/entries/delete?back=entry", name="bare", confirmed="yes")
    assert client.zscore("redbeat::schedule", "bare") is None
    assert browser.get("/entry", name="redbeat:gone").status_code == 404, "that is the key of another entry"
    sent = form_fields(browser.read("/entry/edit", name="gone"))
    sent["document"] = json.dumps({"task": "t", "schedule": "1h"})
    assert "Changed gone" in browser.send("/entry/save", **sent)
    assert RedBeatSchedulerEntry.get("gone", app).task == "t"
