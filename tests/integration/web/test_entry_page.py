"""The page of one entry: what it shows of entries that run, and of ones that can't be used."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone

import pytest
import redis
import time_machine
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.calendars import Calendar
from redbeat.history import sent_record, skipped_record, unsent_record
from redbeat.runs.figures import Figures
from redbeat.web.pages.entry import figures_in_words
from tests.integration.conftest import MakeScheduler
from tests.support.dashboards import Browser
from tests.support.forms import form_fields
from tests.support.gallery import HOSTILE
from tests.support.programs import Program
from tests.support.spinning import SPINNING, know_spinning

Browse = Callable[..., Browser]
Add = Callable[..., RedBeatSchedulerEntry]


def run_once(app: Celery, client: redis.Redis, name: str, make_scheduler: MakeScheduler) -> None:
    client.zadd("redbeat::schedule", {f"redbeat:{name}": 0})
    scheduler = make_scheduler(app)
    while not scheduler.tick():
        pass


def test_all_that_is_known_of_an_entry_is_shown(
    app: Celery, client: redis.Redis, browse: Browse, add: Add, make_scheduler: MakeScheduler
) -> None:
    add(
        "report",
        "30 7 * * *",
        args=[1],
        kwargs={"password": "geheim", "to": "a@b"},
        jitter=90,
        timezone="Asia/Tokyo",
    )
    run_once(app, client, "report", make_scheduler)
    browser = browse()
    html = browser.read("/entry", name="report")
    for words in ("At 07:30 (Asia/Tokyo)", "jitter", "1 min 30 s", "scheduled", "a@b", "redbeat:report"):
        assert words in html, words
    assert re.search(r"It was sent at [-0-9:. ]+ UTC, [0-9]+ m?s after its time", html)  # why
    assert re.search(r"task id [-0-9a-f]{36}<", html)
    assert re.search(r"next due <time [^>]*>in [^<]*</time>, 20[-0-9: ]+ UTC", html)
    assert "its schedule goes by Asia/Tokyo, without jitter<" in html
    assert "geheim" not in html
    assert "(hidden)" in html
    shown = browser.read("/entry", name="report", **{"as": "json"})
    assert "geheim" not in shown
    assert "&#34;password&#34;: &#34;(hidden)&#34;" in shown
    part = browser.get("/entry", {"hx-request": "true"}, name="report").text
    assert "<html" not in part
    assert "What became of its runs" in part


def test_a_run_that_was_not_sent_is_no_last_run(
    app: Celery, client: redis.Redis, browse: Browse, add: Add
) -> None:
    def tile() -> str:
        html = browse().read("/entry", name="report")
        return re.sub("<[^>]*>", "", html.partition("Last run</span>")[2].partition("tile-note")[0])

    entry = add("report", 3600)
    assert tile().startswith("never")
    now = datetime.now(timezone.utc).timestamp()
    for record in (unsent_record(f"{now}", "no broker"), skipped_record(f"{now}", "it was disabled")):
        client.lpush("redbeat::history:report", f'{{{record},"at":{now}}}')
        assert tile().startswith("never"), record
    sent = sent_record(f"{now - 60}", is_manual=True)
    client.rpush("redbeat::history:report", f'{{{sent},"at":{now - 60}}}')
    assert tile().startswith("by hand")
    assert entry.history()[0].outcome == "skipped"


def test_next_runs_begin_at_the_servers_time_where_this_machines_clock_is_wrong(
    browse: Browse, add: Add, program: Callable[..., Program]
) -> None:
    now = datetime.now(timezone.utc).replace(microsecond=0)
    add("often", "*/10 * * * *", last_run_at=now)
    browser, one = browse(), program()
    first = now - timedelta(minutes=now.minute % 10 - 10, seconds=now.second)
    soon = {f"{first + timedelta(minutes=minutes):%Y-%m-%d %H:%M:%S}" for minutes in (0, 10)}
    with time_machine.travel(now + timedelta(hours=5)):
        shown = browser.read("/entry", name="often").partition("Next runs")[2]
        fields = form_fields(browser.read("/entry/edit", name="often"), "entry-form")
        previews = [browser.post("/entry/preview", **fields).text]
        fields = form_fields(browser.read("/entry/new"), "entry-form")
        fields |= {"task": "echo", "schedule": "*/10 * * * *", "schedule_kind": "cron"}
        previews.append(browser.post("/entry/preview", **fields).text)
        runs = one.ask("GET", "/entries/often/next").json()["runs"]
    for html in (shown, *previews):
        times = re.findall(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d", html)
        assert times[0] in soon, html
    assert runs[0]["due"].replace("T", " ")[:19] in soon


def test_next_runs_tell_of_clocks_and_of_excluded_days(app: Celery, browse: Browse, add: Add) -> None:
    Calendar("holidays", ["2098-12-25/2098-12-27"], app=app).save()
    begin = datetime(2098, 12, 24, tzinfo=timezone.utc)
    add("feast", "0 9 * * *", timezone="Europe/Berlin", exclude="holidays", start_time=begin)
    assert "holidays excludes 2098-12-25 to 2098-12-27" in browse().read("/entry", name="feast")
    add("summer", "30 2 25-31 3 sun", timezone="Europe/Berlin", start_time=begin)
    html = browse().read("/entry", name="summer", more="yes")
    assert "Europe/Berlin skips 02:00 to 03:00: times in between count as this one" in html
    add("autumn", "30 2 25-31 10 sun", timezone="Europe/Berlin", start_time=begin)
    assert "02:30 comes twice in Europe/Berlin: this is the first" in browse().read(
        "/entry", name="autumn", more="yes"
    )
    add("daily", "30 2 * * *", timezone="Europe/Berlin")
    html = browse().read("/entry", name="daily", after="2098-10-24")
    assert "Next runs after 2098-10-24 00:00:00 UTC" in html
    assert "02:30 comes twice in Europe/Berlin: this is the first" in html
    assert "is no time; write it as" in browse().read("/entry", name="daily", after="easter")


def test_it_is_told_why_a_run_did_not_happen(browse: Browse, add: Add) -> None:
    add("report", "30 7 * * *", timezone="UTC").pause(note="<b>for now</b>")
    browser = browse()
    html = browser.read("/entry", name="report", at="2098-01-01T08:00")
    assert "has no run at 2098-01-01 08:00:00" in html
    assert "no time" in html
    assert "&#39;soon&#39; is no time" in browser.read("/entry", name="report", at="soon")
    assert "&lt;b&gt;for now&lt;/b&gt;" in html


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


@pytest.mark.few_cases(3)
@pytest.mark.parametrize("case", BROKEN)
def test_an_entry_that_can_not_be_used_has_its_page(
    app: Celery, client: redis.Redis, browse: Browse, case: str
) -> None:
    client.hset("redbeat:bad", "definition", BROKEN[case])
    client.zadd("redbeat::schedule", {"redbeat:bad": 5e9})
    browser = browse()
    html = browser.read("/entry", name="bad")
    assert "quarantined" in html
    assert "As it stands in Redis" in html or case == "no JSON, and hidden"
    edit = browser.read("/entry/edit", name="bad")
    assert 'name="document"' in edit
    switched = browser.post("/entry/edit", **form_fields(edit, "entry-form"), to="form")
    assert switched.status_code in (200, 422)
    both = html + edit + switched.text + browser.read("/entry", name="bad", **{"as": "json"})
    assert "geheim" not in both
    assert "<img" not in both
    assert "\u202e" not in html


def test_a_broken_entry_is_mended_as_json(app: Celery, client: redis.Redis, browse: Browse) -> None:
    client.hset("redbeat:bad", "definition", '{"task": "t", "schedule": 0, "kwargs": {"password": "geheim"}}')
    client.zadd("redbeat::schedule", {"redbeat:bad": 5e9})
    browser = browse()
    sent = form_fields(browser.read("/entry/edit", name="bad"))
    document = json.loads(sent["document"])
    assert document["kwargs"] == {"password": "(hidden)"}
    sent["document"] = json.dumps({**document, "schedule": {"every": "1h"}})
    assert "Changed bad" in browser.send("/entry/save", **sent)
    entry = RedBeatSchedulerEntry.get("bad", app)
    assert (entry.kwargs, entry.task) == ({"password": "geheim"}, "t")


def test_an_entry_whose_hash_is_gone_can_be_stored_anew(
    app: Celery, client: redis.Redis, browse: Browse
) -> None:
    client.zadd("redbeat::schedule", {"redbeat:gone": 5e9, "bare": 5e9})
    browser = browse()
    for name in ("gone", "bare"):  # a member may be a name without the prefix
        html = browser.read("/entry", name=name)
        assert "Its definition is missing" in html
        assert "Its time in the schedule is 2128-06-11 08:53:20 UTC" in html
        assert 'href="/doctor/fix?kind=missing-hash"' in html
    assert "Deleted bare" in browser.send("/entry/delete", name="bare", confirmed="yes")
    assert client.zscore("redbeat::schedule", "bare") is None
    assert browser.get("/entry", name="redbeat:gone").status_code == 404, "that is the key of another entry"
    sent = form_fields(browser.read("/entry/edit", name="gone"))
    sent["document"] = json.dumps({"task": "t", "schedule": "1h"})
    assert "Changed gone" in browser.send("/entry/save", **sent)
    assert RedBeatSchedulerEntry.get("gone", app).task == "t"


@pytest.mark.few_cases(3)
@pytest.mark.parametrize(
    "name", [HOSTILE, "../../etc/passwd", "a/b?c=d&e#f%00", "\x1b[31m\r\nSet-Cookie: x=1", " ", "ä" * 2000]
)
def test_any_name_has_its_pages(name: str, browse: Browse, add: Add) -> None:
    add(name, 3600)
    browser = browse()
    for path in ("", "/edit", "/pause", "/run", "/backfill", "/delete"):
        html = browser.read(f"/entry{path}", name=name)
        assert "<img" not in html, path
        assert "\x1b" not in re.sub(r'value="[^"]*"', "", html), path
    assert "Paused until" in browser.send("/entry/pause", name=name, note=HOSTILE)
    shown = browser.read("/entry", name=name)
    assert "<img" not in shown
    assert "\u202e" not in re.sub(r'value="[^"]*"', "", shown)
    assert "Resumed" in browser.send("/entry/resume", name=name)


def test_an_entry_whose_name_no_address_holds_has_its_pages(
    browse: Browse, add: Add, client: redis.Redis
) -> None:
    name = "ä/" * 33_000 + "the end"
    add("report")
    add(name)
    browser = browse()
    for sort in ("next", "name"):
        [link] = re.findall(r'href="(/entry\?name-digest=[0-9a-f]{64})"', browser.read("/entries", sort=sort))
    for there in (browser, browse()):  # the one that has made the link, and one that has to look for the name
        html = there.read(link)
        assert "ä/ä/" in html
        assert all(len(one) < 1000 for one in re.findall(r'(?:href|action|hx-get)="([^"]*)"', html))
        for path in ("edit", "pause", "run", "backfill", "delete"):
            assert f'href="{link.replace("?", f"/{path}?")}"' in html
            assert "ä/ä/" in there.read(link.replace("?", f"/{path}?"))
        assert "has no run at 2098" in there.read(f"{link}&at=2098-01-01T08:00")
    sent = form_fields(browser.read(link.replace("?", "/edit?")), "entry-form")
    assert "Changed ä/ä/" in browser.send("/entry/save", **{**sent, "jitter": "5m"})
    assert "Paused until" in browser.send("/entry/pause", name=name, note="x")
    assert 'value="echo"' in browser.read(link.replace("name-", "like-").replace("?", "/new?"))
    assert "Deleted" in browser.send("/entry/delete", name=name, confirmed="yes")
    assert not client.exists(f"redbeat:{name}")
    for digest in (link, "/entry?name-digest=x"):
        assert browser.get(digest).status_code == 404


def test_what_became_of_runs_is_told_in_a_sentence() -> None:
    told = {
        Figures(1, 0, failures_in_a_row=1): "the only run that is recorded didn't",
        Figures(1, 1): "the only run that is recorded succeeded",
        Figures(20, 17): "17 of the last 20 runs",
        Figures(20, 17, failures_in_a_row=1): "17 of the last 20 runs; the last one failed",
        Figures(20, 0, failures_in_a_row=30): "0 of the last 20 runs; the last 30 failed",
    }
    assert {figures: figures_in_words(figures) for figures in told} == told


def test_an_entry_that_takes_too_long_says_so(app: Celery, client: redis.Redis, browse: Browse) -> None:
    definition = json.dumps({"task": "t", "schedule": SPINNING})
    client.hset("redbeat:slow", "definition", definition)
    client.zadd("redbeat::schedule", {"redbeat:slow": 5e9})
    know_spinning()
    assert "too expensive to compute" in browse().read("/entry", name="slow")


def test_an_entry_that_there_is_not_is_not_found(browse: Browse) -> None:
    browser = browse()
    for path in ("", "/edit", "/pause", "/run", "/backfill", "/delete"):
        assert browser.get(f"/entry{path}", name="nothing").status_code == 404


def test_who_may_only_read_gets_no_buttons_and_may_post_nothing(
    app: Celery, browse: Browse, add: Add
) -> None:
    add("report", 3600)
    browser = browse("read")
    html = browser.read("/entry", name="report")
    for word in ("Run now", "Backfill", "Edit", "Delete", "Pause"):
        assert not re.search(rf">{word}</(a|button)>", html), word
    for path in ("edit", "pause", "run", "backfill", "delete", "new"):
        assert browser.get(f"/entry/{path}", name="report").status_code == 403, path
    for path in (
        "edit",
        "preview",
        "save",
        "pause",
        "resume",
        "run",
        "backfill",
        "rerun",
        "give-up",
        "delete",
    ):
        answer = browser.post(f"/entry/{path}", name="report", confirmed="yes")
        assert answer.status_code == 403, path
    assert RedBeatSchedulerEntry.get("report", app).enabled


def test_the_history_has_outcome_lateness_and_run_time_of_each_run(
    browse: Browse, add: Add, client: redis.Redis
) -> None:
    add("report")
    first = datetime(2026, 3, 1, 9, 30, tzinfo=timezone.utc).timestamp()
    for number, (outcome, late, ran) in enumerate(
        (("succeeded", 0.25, 12.0), ("failed", 0.0, 0.5), ("lost", 240.0, None), ("skipped", 0.0, None))
    ):
        due = first + 3600 * number
        record = {"due": due, "at": due + late, "outcome": outcome}
        record |= {} if ran is None else {"ended": due + late + ran, "ran": ran}
        client.lpush("redbeat::history:report", json.dumps(record))
    table = browse().read("/entry", name="report").partition('<table class="table is-cards history">')[2]
    rows = re.findall(r"<tr>(.*?)</tr>", table.partition("<tbody>")[2].partition("</tbody>")[0], re.DOTALL)
    cells = [
        re.findall(r'<td data-label="(Due|Outcome|Late|Took)"[^>]*>(.*?)</td>', row, re.DOTALL)
        for row in rows
    ]
    assert [{name: re.sub(r"<[^>]+>", "", html).strip() for name, html in row} for row in cells] == [
        {"Due": "2026-03-01 12:30:00", "Outcome": "skipped", "Late": "", "Took": ""},
        {"Due": "2026-03-01 11:30:00", "Outcome": "lost", "Late": "4 min", "Took": ""},
        {"Due": "2026-03-01 10:30:00", "Outcome": "failed", "Late": "", "Took": "500 ms"},
        {"Due": "2026-03-01 09:30:00", "Outcome": "succeeded", "Late": "250 ms", "Took": "12 s"},
    ]
    tones = [re.findall(r"badge tone-(\w+)", row) for row in rows]
    assert tones == [["neutral"], ["danger"], ["danger"], ["good"]]
