"""The list of entries: what it shows, how one pages and searches in it, and what is done with many."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import timedelta
from html import unescape

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.entries import search
from redbeat.entries.audit import find_records
from redbeat.entries.query import STATES
from redbeat.store.owners import Owners
from redbeat.store.records import Fence
from redbeat.store.store import Store
from redbeat.web.pages import entries as page
from tests.support.applying import apply
from tests.support.dashboards import Browser
from tests.support.polling import eventually

Browse = Callable[..., Browser]
Add = Callable[..., Entry]

SCHEDULE = "redbeat::schedule"
HTMX = {"hx-request": "true"}


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


def link_of(html: str, label: str) -> str | None:
    found = re.search(rf'<a class="button[^"]*" href="([^"]*)"[^>]*>(?:<svg.*?</svg>)?{label}', html)
    return unescape(found[1]) if found else None


def read_all(browser: Browser, label: str, **query: str) -> tuple[list[str], int]:
    """The names on this page and all that follow by its links, and how many pages these were."""
    html = browser.read("/entries", **query)
    names, pages = names_of(html), 1
    while (link := link_of(html, label)) is not None:
        html = browser.read(link)
        names, pages = names + names_of(html), pages + 1
        assert pages < 100
    return names, pages


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


def test_both_orders_show_what_the_command_line_lists(
    app: Celery, client: redis.Redis, browse: Browse, add: Add
) -> None:
    add_all_kinds(app, add, client)
    listed = [(entry.name, entry.state) for entry in Entry.list(app)]
    assert {state for _, state in listed} == {*STATES} - {"failing", "unscheduled"}
    browser = browse()
    for query, expected in (({}, listed), ({"sort": "name"}, sorted(listed))):
        found, link = list[tuple[str, str]](), "/entries"
        html = browser.read(link, **query)
        while True:
            found += zip(names_of(html), states_of(html), strict=True)
            following = link_of(html, "Next")
            if following is None:
                break
            html = browser.read(following)
        assert found == expected
        last = names_of(html)
        before = names_of(browser.read(link_of(html, "Previous") or ""))
        assert before == [name for name, _ in expected][-len(last) - 5 : -len(last)]
        assert names_of(browser.read(link_of(html, "First") or "")) == [name for name, _ in expected[:5]]
        assert names_of(browser.read(link_of(browser.read("/entries", **query), "Last") or "")) == last
    html = browser.read("/entries", sort="name")
    assert "the disk is full, by ada" in html
    assert 'title="Every hour"' in browser.read("/entries", match="report-0")
    assert names_of(browser.read("/entries", offset="999999")) != []
    assert names_of(browser.read("/entries", offset="-1", sort="nonsense", after="x", score="y")) != []


FILE = """
entries:
  filed: {task: echo, schedule: {every: 60}, options: {queue: own}}
"""
FILTERS: list[tuple[dict[str, str], list[str]]] = [
    ({"match": "REPORT-"}, [f"report-{number}" for number in range(7)]),
    ({"match": "report-[0-2]?*"}, []),
    ({"match": "report-?"}, [f"report-{number}" for number in range(7)]),
    ({"match": "REPORT-?"}, []),
    ({"match": "b"}, ["Backup", "bare", "broken"]),
    ({"task": "ops."}, ["Backup"]),
    ({"task": "billing.*", "match": "3"}, ["report-3"]),
    ({"state": "paused"}, ["Backup"]),
    ({"state": "quarantined"}, ["broken"]),
    ({"state": "missing"}, ["lost"]),
    ({"state": "downgraded"}, ["away"]),
    ({"queue": "slow"}, [f"report-{number}" for number in range(7)]),
    ({"queue": "own"}, ["filed"]),
    ({"owner": "team"}, ["filed"]),
    ({"owner": "shop"}, ["off"]),
    ({"owner": "nobody"}, []),
    ({"outcome": "failed"}, ["report-1"]),
    ({"outcome": "succeeded"}, ["report-0", "report-2"]),
    ({"outcome": "none", "match": "rep"}, ["report-3", "report-4", "report-5", "report-6"]),
]


@pytest.mark.few_cases(2)
@pytest.mark.parametrize("is_hasty", [False, True])
@pytest.mark.parametrize("many", [5000, 0])
def test_each_filter_finds_what_it_says_at_once_or_bit_by_bit(
    app: Celery,
    client: redis.Redis,
    browse: Browse,
    add: Add,
    monkeypatch: pytest.MonkeyPatch,
    is_hasty: bool,
    many: int,
) -> None:
    """Without time each answer looks through one slice; the entries of an owner of many are found so, too."""
    app.conf.task_routes = {"billing.*": {"queue": "slow"}}
    add_all_kinds(app, add, client)
    apply(app, FILE, "team")
    Owners(Store(app)).change_statics(Fence(), "add", "shop", ["off"])
    for number, outcomes in enumerate((["succeeded"], ["failed", "succeeded"], ["skipped", "succeeded"])):
        records = [json.dumps({"at": 1e9, "due": 1e9, "outcome": one, "ended": 1e9}) for one in outcomes]
        client.rpush(f"redbeat::history:report-{number}", *records)
    monkeypatch.setattr(search, "MAX_OWNED", many)
    if is_hasty:
        monkeypatch.setattr(search, "SLICE", 3)
        monkeypatch.setattr(search, "SLICE_OF_NAMES", 4)
        monkeypatch.setattr(page, "FIRST_SECONDS", 0)
        monkeypatch.setattr(page, "MORE_SECONDS", 0)
    browser = browse()
    for sort in ("next", "name"):
        for query, expected in FILTERS:
            names, pages = read_all(browser, "Go on", sort=sort, **query)
            assert sorted(names) == expected, (sort, query)
            assert names == expected or sort == "next"
            assert pages > 2 or not is_hasty or ("owner" in query and many), (query, pages)
    assert "There is no state" in browser.read("/entries", state="tired")
    assert "There is no outcome" in browser.read("/entries", outcome="tired")


def test_a_search_that_goes_on_appends_and_misses_nothing_that_stays(
    app: Celery, client: redis.Redis, browse: Browse, add: Add, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile half of what was seen runs, and is due later than all the others."""
    for number in range(12):
        add(f"same-{number:02}")
    monkeypatch.setattr(search, "SLICE", 4)
    monkeypatch.setattr(page, "FIRST_SECONDS", 0)
    browser = browse()
    html = browser.read("/entries", task="echo")
    assert names_of(html) == [f"same-{number:02}" for number in range(4)]
    assert "looked through 33 %" in html
    client.zadd(SCHEDULE, {f"redbeat:same-{number:02}": 5e9 + number for number in range(4)})
    answer = browser.get(link_of(html, "Go on") or "", headers=HTMX)
    assert "<html" not in answer.text
    assert names_of(answer.text) == [f"same-{number:02}" for number in range(4, 9)]  # a page is full
    rest = browser.get(link_of(answer.text, "Go on") or "", headers=HTMX).text
    assert names_of(rest) == ["same-09", "same-10", "same-11", "same-00", "same-01"]
    end = browser.get(link_of(rest, "Go on") or "", headers=HTMX).text
    assert names_of(end) == ["same-02", "same-03"]
    assert "That is all. Looked through 12 entries." in end


def test_parts_of_the_page_are_asked_for_again(app: Celery, browse: Browse, add: Add) -> None:
    for name in ("one", "two", "gone"):
        add(name)
    browser = browse()
    whole = browser.get("/entries", headers=HTMX).text
    assert "<html" not in whole
    assert names_of(whole) == ["gone", "one", "two"]
    assert 'hx-swap-oob="true"' in whole
    found = browser.read("/entries", match="o")
    [told] = re.findall(r"hx-vals='([^']*)'", found)
    shown = json.loads(unescape(told))["shown"]
    Entry.delete_many(["gone"], app)
    Entry.pause_many(["one"], app)
    answer = browser.post("/entries/rows", headers=HTMX, shown=shown)
    assert (names_of(answer.text), states_of(answer.text)) == (["one", "two"], ["paused", "scheduled"])
    for nonsense in ("", "{", "5", '{"a": 1}', '["\\ud800"]', "[[]]", "[" * 5000):
        assert browser.post("/entries/rows", headers=HTMX, shown=nonsense).status_code == 200


def test_many_are_paused_resumed_run_and_deleted_after_a_question(
    app: Celery, client: redis.Redis, broker: redis.Redis, browse: Browse, add: Add
) -> None:
    for name in ("one", "two", "three", "off"):
        add(name, enabled=name != "off")
    browser = browse()
    names, view = ["one", "two", "off"], "?match=o&sort=name"
    asked = browser.send(f"/entries/pause{view}", name=names)
    assert "Pause 3 entries?" in asked
    assert all(f">{name}</a>" in asked for name in names)
    assert not Entry.get("one", app).paused
    refused = browser.post(f"/entries/pause{view}", name=names, confirmed="yes", until="someday", note="why")
    assert refused.status_code == 422
    assert "someday" in refused.text
    assert 'value="why"' in refused.text
    assert browser.post("/entries/pause", name=names, confirmed="yes", until="2001-01-01").status_code == 422
    answer = browser.post(
        f"/entries/pause{view}", name=names, confirmed="yes", until="2h", note="the <b>disk</b>"
    )
    assert answer.headers["location"] == "/entries?match=o&sort=name"
    shown = browser.read(answer.headers["location"])
    assert "Paused 2 entries; 1 entry was paused or disabled already." in shown
    assert "the &lt;b&gt;disk&lt;/b&gt;, by anna, until" in shown
    found = Entry.get("one", app)
    assert (found.pause_note, found.paused_by) == ("the <b>disk</b>", "anna")
    assert found.paused_until is not None
    assert found.seen_at is not None
    assert timedelta(minutes=110) < found.paused_until - found.seen_at <= timedelta(hours=2)
    assert not Entry.get("off", app).paused

    assert "Resumed 2 entries; 1 entry was not paused." in browser.send(
        "/entries/resume", name=names, confirmed="yes"
    )
    assert "Run now 2 entries?" in browser.send("/entries/trigger", name=["one", "two"])
    assert broker.llen("celery") == 0
    assert "Sent a run of 2 entries." in browser.send(
        "/entries/trigger", name=["one", "two"], confirmed="yes", once="a click"
    )
    again = browser.send("/entries/trigger", name=["one", "two", "three"], confirmed="yes", once="a click")
    assert "Sent a run of three; 2 entries were sent a run by this form before." in again
    assert broker.llen("celery") == 3

    client.hset("redbeat:broken", "definition", "{oops")
    client.zadd(SCHEDULE, {"redbeat:broken": 7})
    for verb, done in (
        ("pause", "Paused one."),
        ("resume", "Resumed one."),
        ("trigger", "Sent a run of one."),
    ):
        told = browser.send(f"/entries/{verb}", name=["one", "broken", "never-was"], confirmed="yes")
        assert done in told, verb
        assert "no valid JSON" in told, verb
        assert "never-was" in told, verb

    assert "Delete 2 entries?" in browser.send("/entries/delete", name=["two", "broken"])
    assert Entry.count(app) == 5
    assert "Deleted 2 entries." in browser.send("/entries/delete", name=["two", "broken"], confirmed="yes")
    assert [entry.name for entry in Entry.list(app)] == ["off", "one", "three"]
    some = browser.send("/entries/delete", name=["three", "two", "never-was"], confirmed="yes")
    assert "Deleted three" in some
    assert ("two" in some, "never-was" in some) == (True, True)
    assert "Nothing was chosen." in browser.send("/entries/delete")
    records = find_records(app)
    assert {(one.verb, one.user, one.source) for one in records} == {
        (verb, "anna", "web") for verb in ("pause", "resume", "trigger", "delete")
    }


def test_a_button_of_a_row_answers_with_the_row(
    app: Celery, broker: redis.Redis, browse: Browse, add: Add
) -> None:
    add("one")
    browser = browse()
    answer = browser.post("/entries/pause", headers=HTMX, name="one", confirmed="yes")
    assert states_of(answer.text) == ["paused"]
    toast = {"text": "Paused one.", "tone": "good"}
    assert json.loads(answer.headers["hx-trigger"]) == {"redbeat-toast": toast}
    assert states_of(browser.post("/entries/resume", headers=HTMX, name="one", confirmed="yes").text) == [
        "scheduled"
    ]
    browser.post("/entries/trigger", headers=HTMX, name="one", confirmed="yes")
    assert broker.llen("celery") == 1
    gone = browser.post("/entries/pause", headers=HTMX, name="никогда", confirmed="yes")
    assert rows_of(gone.text) == []
    assert json.loads(gone.headers["hx-trigger"])["redbeat-toast"]["text"] == "никогда is gone."
    gone = browser.post("/entries/delete", headers=HTMX, name="никогда", confirmed="yes")
    assert json.loads(gone.headers["hx-trigger"])["redbeat-toast"]["text"] == "никогда is gone."
    gone = browser.post("/entries/trigger", headers=HTMX, name="never", confirmed="yes")
    toast = json.loads(gone.headers["hx-trigger"])["redbeat-toast"]
    assert toast == {"text": "redbeat:never: there is no such entry.", "tone": "danger"}


def test_without_a_script_a_button_of_a_row_leads_back_to_the_same_place_in_the_list(
    browse: Browse, add: Add
) -> None:
    for number in range(8):
        add(f"job-{number}")
    browser = browse()
    second = link_of(browser.read("/entries", sort="name"), "Next") or ""
    html = browser.read(second)
    action = re.search(r'<form class="inline-form" method="post" action="([^"]*/pause[^"]*)"', html)
    assert action is not None
    shown = browser.send(unescape(action[1]), name="job-5", confirmed="yes")
    assert "Paused job-5." in shown
    assert names_of(shown) == names_of(html) == ["job-5", "job-6", "job-7"]


def test_who_may_only_read_has_no_buttons_and_is_refused(app: Celery, browse: Browse, add: Add) -> None:
    app.conf.redbeat_web_tasks = ["ops.*"]
    add("one")
    reader, runner = browse("read"), browse("run", "pause")
    html = reader.read("/entries")
    assert "data-select-one" not in html
    assert "/entries/pause" not in html
    assert "Add entry" not in html
    for verb in ("pause", "resume", "trigger", "delete"):
        answer = reader.post(f"/entries/{verb}", headers=HTMX, name="one", confirmed="yes")
        assert answer.status_code == 403
        assert "takes%20the%20right" in answer.headers["x-redbeat-error"]
    html = runner.read("/entries")
    assert 'id="pause-' in html
    assert 'id="trigger-' not in html
    assert "/entries/delete" not in html
    told = runner.send("/entries/trigger", name=["one"], confirmed="yes")
    assert "isn&#39;t one of redbeat_web_tasks" in told
    assert Entry.get("one", app).paused is not True


def test_names_that_are_hostile_long_or_no_text_are_shown_and_paged_past(
    app: Celery, client: redis.Redis, browse: Browse, add: Add
) -> None:
    names = [
        '"><script>alert(1)</script>',
        "a/../b?c#d&e=f",
        "x" * 3000,
        *(f"{'y' * 2000}{number}" for number in range(8)),
    ]
    for name in names:
        add(name)
    client.zadd(SCHEDULE, {b"redbeat:\xff\xfe": 9e9, b"redbeat:\xff\xfd": 9e9})
    browser = browse()
    for sort in ("next", "name"):
        # by name, the first page may say for a moment that the names are being read
        found, _ = eventually(lambda sort=sort: (all_ := read_all(browser, "Next", sort=sort))[0] and all_)
        assert len(found) == len(set(found)) == len(names) + 2
        assert {*names} < {*found}
    html = browser.read("/entries", match="script")
    assert "<script>alert" not in html
    assert [*names_of(html)] == names[:1]
    quoted = browser.send("/entries/pause", name=names[:3], confirmed="yes")
    assert "Paused 3 entries." in quoted


def test_names_are_read_in_the_background_and_the_page_says_how_far_it_is(
    app: Celery, client: redis.Redis, browse: Browse, add: Add, monkeypatch: pytest.MonkeyPatch
) -> None:
    add("template")
    text = client.hget("redbeat:template", "definition")
    with client.pipeline() as pipeline:
        for number in range(30_000):
            pipeline.hset(f"redbeat:many-{number:05}", "definition", text)
            pipeline.zadd(SCHEDULE, {f"redbeat:many-{number:05}": 5e9})
        pipeline.execute()
    monkeypatch.setattr("redbeat.web.names.QUICK_SECONDS", 0.0)
    browser = browse()
    html = browser.read("/entries", sort="name")
    assert '<noscript><meta http-equiv="refresh" content="1"></noscript>' in html
    assert "The names are being read" in html

    def ready() -> str:
        html = browser.read("/entries", sort="name")
        return "" if "The names are being read" in html else html

    html = eventually(ready)
    assert names_of(html) == [f"many-{number:05}" for number in range(5)]
    assert "of 30,001" in html
    last = browser.read(link_of(html, "Last") or "")
    assert names_of(last)[-1] == "template"


def test_a_row_shows_the_next_run_and_the_last_twenty(client: redis.Redis, browse: Browse, add: Add) -> None:
    add("report")
    add("over")
    client.zadd(SCHEDULE, {"redbeat:over": -1})
    for number in range(23):
        outcome = "failed" if number == 4 else "succeeded"
        record = {"due": 1e9 + number, "at": 1e9 + number, "ended": 1e9 + number, "outcome": outcome}
        client.lpush("redbeat::history:report", json.dumps(record))
    rows = dict(zip(names_of(html := browse().read("/entries")), rows_of(html), strict=True))
    cells = {
        name: dict(re.findall(r'<td data-label="([^"]+)">(.*?)</td>', row, re.DOTALL))
        for name, row in rows.items()
    }
    due = '<time datetime="2099-03-01T09:30:00Z" data-relative title="2099-03-01 09:30:00 UTC">in '
    assert cells["report"]["Next run"].startswith(due)
    assert re.sub(r"<[^>]+>", "", cells["over"]["Next run"]) == "never"
    sparkline = cells["report"]["Last runs"]
    assert "<title>Last 20: 19 succeeded, 1 failed</title>" in sparkline
    [failed] = re.findall(r'<path class="tone-danger" d="([^"]*)"', sparkline)
    [succeeded] = re.findall(r'<path class="tone-good" d="([^"]*)"', sparkline)
    assert (failed.count("M"), succeeded.count("M")) == (1, 19)
    assert "No runs yet</title>" in cells["over"]["Last runs"]
