"""The pages about the whole schedule: overview, shards, timeline, runs, later, doctor, routes, audit."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from html import unescape
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.diagnostics import fixes
from redbeat.diagnostics.routes import survey_routes
from redbeat.entries.audit import audited, find_records
from redbeat.keys import Keys
from redbeat.operations.actor import Actor
from redbeat.operations.editing import put_entry, set_entry
from redbeat.store.lock_tokens import new_token
from redbeat.store.store import Store
from redbeat.web import User
from redbeat.web.pages import timeline
from tests.conftest import MakeApp
from tests.integration.web.conftest import Add, Browse
from tests.integration.web.dashboard_walk import fill
from tests.support.dashboards import HOSTILE, Browser, dashboard_of
from tests.support.deadlines import patience
from tests.support.forms import form_fields
from tests.support.polling import eventually
from tests.support.schedule import server_now
from tests.support.shards import EVERY_PLACE, announce, app_in, lead, names_in_every_shard, parts_of
from tests.support.stored import make_late, store
from tests.support.topologies import ClusterTopology

ANN, BOB = "ann:12:aabbccdd", "bob:7:aabbccde"


@pytest.fixture
def sharded(request: pytest.FixtureRequest, place: str) -> Celery:
    app = app_in(place, request)
    lead(app, parts_of(app)[:9], ANN)
    lead(app, parts_of(app)[9:], BOB)
    announce(app, ANN, BOB)
    return app


def rows_of_shards(page: str) -> list[list[str]]:
    """The cells of the table of shards."""
    table = page.split("<h2>Shards</h2>")[1].split("</table>", maxsplit=1)[0]
    rows = re.findall(r"<tr>(.*?)</tr>", table.split("<tbody>")[1], re.DOTALL)
    cells = (re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL) for row in rows)
    return [[unescape(re.sub(r"<[^>]+>", "", cell)).strip() for cell in row] for row in cells]


def note(app: Celery, user: str, verb: str, names: list[str], **details: Any) -> None:
    with audited(app, user, "cli", verb, names, details, host="web-1"):
        pass


def test_overview_tells_healthy_silent_late_and_blocked_leaders(browse: Browse, client: redis.Redis) -> None:
    browser = browse("read")
    client.set("redbeat::lock", new_token(), px=60_000)

    for seconds_ago, more, verdict in (
        (3, "", "Healthy"), (7, "", "Silent"), (61, "", "Late"), (0, " The broker is away", "Blocked"),
    ):  # fmt: skip
        client.set("redbeat::tick", f"{time.time() - seconds_ago:.3f}{more}")
        assert verdict in browser.read("/").partition('<div class="tiles')[0]
    client.delete("redbeat::lock")
    assert "No leader" in browser.read("/")


@EVERY_PLACE
def test_overview_shows_the_leader_of_each_shard(sharded: Celery, place: str) -> None:
    for name in names_in_every_shard(sharded):
        Entry(name, "tasks.report", 3600, app=sharded).save()
    browser = Browser(dashboard_of(sharded, ("read",)))
    page = browser.read("/")
    rows = rows_of_shards(page)
    assert [row[:2] for row in rows] == [
        [str(shard), "ann, process 12" if shard < 9 else "bob, process 7"] for shard in range(16)
    ]
    assert {row[3] for row in rows} == {"1"}
    eventually(lambda: "16 of 16 counted" in browser.read("/"))
    part = parts_of(sharded)[5]
    Store(sharded).client.delete(part.lock, part.tick)
    page = browser.read("/")
    assert "No beat leads shard 5 of 16." in page
    assert rows_of_shards(page)[5][1] == "none"


@pytest.mark.parametrize("place", ["cluster"])
def test_overview_shows_the_other_shards_while_a_node_is_away(
    sharded: Celery, cluster: ClusterTopology
) -> None:
    for node in cluster.nodes:
        with node.client() as client:
            client.config_set("cluster-require-full-coverage", "no")
    gone = next(node for node in cluster.nodes[1:] if node is not cluster.owner("{redbeat}"))
    nodes = [Store(sharded).node_of(keys) for keys in parts_of(sharded)]
    lost = [shard for shard, node in enumerate(nodes) if node == f"{gone.host}:{gone.port}"]
    browser = Browser(dashboard_of(sharded, ("read",)))
    browser.read("/")
    gone.kill()
    try:
        page = unescape(browser.read("/"))
        refused = browser.get("/entries")
    finally:
        cluster.heal()
    assert [int(row[0]) for row in rows_of_shards(page) if row[1] == "can't be read"] == lost
    assert refused.status_code == 503


def test_timeline_shows_what_happened_beside_what_was_planned(
    add: Add, client: redis.Redis, browse: Browse
) -> None:
    add("shop.send", 600)
    due = server_now(client) - 3600
    for number, outcome in enumerate(["succeeded", "failed", "lost", "skipped"]):
        record = {"due": due - 600 * number, "at": due, "ended": due, "outcome": outcome}
        client.lpush(Keys().about("shop.send").history, json.dumps(record))
    page = browse("read").read_whole("/timeline", start="6h", hours="6")
    assert re.search(r'aria-label="3[567] runs; [^"]*; 1 lost; 1 failed; 1 skipped; 1 sent"', page), page


def test_timeline_that_runs_out_of_time_says_how_much_it_covers(
    app: Celery, browse: Browse, monkeypatch: pytest.MonkeyPatch
) -> None:
    RedBeatSchedulerEntry.save_many([RedBeatSchedulerEntry(f"a{n}", "t", 600, app=app) for n in range(1200)])
    monkeypatch.setattr(timeline, "BUDGET_SECONDS", 0.0)
    page = browse("read").read_whole("/timeline")
    assert re.search(r"Covers \d+ of 1,200 entries", page), "fewer than a thousand"
    assert "more=1" in page


def test_timeline_says_nothing_about_runs_before_it_has_looked_at_any(
    add: Add, browse: Browse, monkeypatch: pytest.MonkeyPatch
) -> None:
    add("a", 600)
    go = threading.Event()

    class Slow(timeline.Counting):
        def steps(self) -> Iterator[None]:
            yield
            assert go.wait(patience(30))
            yield from super().steps()

    monkeypatch.setattr(timeline, "Counting", Slow)
    browser = browse("read")
    page = browser.read("/timeline")
    go.set()
    assert ("The runs are being counted" in page, "Nothing runs" in page) == (True, False)
    assert "Covers its only entry" in browser.read_whole("/timeline")


def test_runs_are_found_by_state_and_name(app: Celery, client: redis.Redis, browse: Browse) -> None:
    fill(app, client)
    browser = browse("read")
    for query, task_ids in (
        ({}, {"one", "two", "three"}),
        ({"state": "running"}, {"two", "three"}),
        ({"state": "failed,lost"}, {"one"}),
        ({"state": "all", "since": "1d", "name": "hourly"}, {"three"}),
        ({"state": "all", "since": "1d", "match": "rep*"}, {"one", "two"}),
    ):
        page = browser.read_whole("/runs", **query)
        assert {one for one in ("one", "two", "three") if re.search(rf">\s*{one}\s*<", page)} == task_ids
    for wrong in ({"state": "faild"}, {"since": "x"}):
        assert browser.get("/runs", **wrong).status_code == 422


def test_stored_message_says_why_it_is_not_sent(app: Celery, client: redis.Redis, browse: Browse) -> None:
    store(app, "failing", "broken", "gone", "never", "ahead")
    failure = {"reason": f"OperationalError: {HOSTILE}", "since": "2030-01-01T00:00:00+00:00", "attempts": 2}
    failure |= {"definition_sha1": "", "due": "1.0", "retry_at": "2.0"}
    client.hset("redbeat::later:failing", "error", json.dumps(failure))
    client.hset("redbeat::later:broken", "message", '{"task_id": "broken"}')
    client.delete("redbeat::later:gone")
    client.zadd("redbeat::later", {"redbeat::later:never": -1, "redbeat::later:ahead": "inf"})
    make_late(client, "failing", server_now(client) - 90)
    browser = browse()
    page = browser.read("/later")
    counts = [page.count(f"{words}<") for words in ("can&#39;t be used", "couldn&#39;t be sent")]
    assert (counts, "OperationalError: &lt;img" in page) == ([2, 1], True)
    why = {"failing": "OperationalError", "broken": "its body isn&#39;t in Redis", "gone": "entry is gone"}
    for task_id, words in why.items():
        assert words in browser.read("/later/message", task_id=task_id)
    for task_id in ("never", "ahead"):
        assert "never<" in browser.read("/later/message", task_id=task_id)


def test_doctor_shows_repairs_before_it_makes_them(
    browse: Browse, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fixes, "MISSING_GRACE_SECONDS", 0)
    browser = browse("admin")
    client.zadd("redbeat::schedule", {"redbeat:gone": time.time() + 1000})
    browser.read_whole("/doctor")
    page = browser.read("/doctor/fix")
    assert ("redbeat:gone: would be taken out" in page, client.zcard("redbeat::schedule")) == (True, 1)
    assert "redbeat:gone: taken out" in browser.send("/doctor/fix", **form_fields(page))
    assert client.zcard("redbeat::schedule") == 0


def test_changes_are_found_by_user_command_and_name(app: Celery, browse: Browse) -> None:
    note(app, "anna", "pause", ["a"])
    note(app, "bob", "calendar set", ["b"])
    with pytest.raises(LookupError), audited(app, "bob", "web", "set", ["a"], {}):
        raise LookupError("<b>there is none</b>")
    browser = browse("read")

    def found(**query: str) -> list[str]:
        page = browser.read_whole("/audit", **query)
        cell = 'data-label="Change"><span class="nowrap">'
        return [part.split("<")[0].strip() for part in page.split(cell)[1:]]

    assert found() == ["set", "set", "calendar set", "pause"]
    assert found(user="b*") == ["set", "set", "calendar set"]
    assert found(verb="calendar") == ["calendar set"]
    assert found(name="a", user="anna") == ["pause"]
    browser.read("/audit", status=422, since="x")
    assert "failed: LookupError: &lt;b&gt;there is none" in browser.read("/audit", verb="set")


def test_hidden_arguments_are_hidden_in_the_audit_list(app: Celery, browse: Browse) -> None:
    app.conf.redbeat_web_hide = ["*ssn*"]
    note(app, "anna", "set", ["a"], kwargs={"SSN_of": "078-05-1120", "shown": "yes"})
    note(app, "anna", "set", ["b"], kwargs={"ssn": "078-05-1121", "more": "x" * 2000})  # cut off
    note(app, "anna", "set", ["gone"], args=["078-05-1122"])  # by which task it was called isn't known
    with audited(app, "anna", "api", "trigger", list("cdefgh"), {"args": ["078-05-1123"]}):
        pass  # of many entries, whose tasks are not in the record
    page = browse("read").read("/audit")
    assert ("078-05-112" in page, "yes" in page, page.count("(hidden)")) == (False, True, 4)


def test_audit_list_shows_what_a_field_was_before_in_the_zone_of_the_viewer(
    app: Celery, browse: Browse
) -> None:
    app.conf.redbeat_web_hide = ["password"]
    anna = Actor(app, User("anna", ["admin"]), "web")
    kwargs = {"password": "0ld", "to": "a"}
    put_entry(anna, "report", values={"task": "echo", "schedule": 60, "kwargs": kwargs})
    changes = {"kwargs": {"password": "n3w", "to": "b"}, "end_time": "2098-01-02T09:30:00+00:00"}
    set_entry(anna, "report", changes={**changes, "schedule": {"cron": "0 9 * * mon-fri"}})
    browser = browse("read")
    browser.http.cookies.set("redbeat-zone", "Asia%2FTokyo")
    page = unescape(browser.read("/audit"))
    for words in (
        "schedule: every 1m -> 0 9 * * mon-fri",
        '{"password": "(hidden)", "to": "a"} -> {"password": "(hidden)", "to": "b"}',
        "end_time: none -> 2098-01-02 18:30:00 Asia/Tokyo",
    ):
        assert words in page, words
    assert "0ld" not in page + str([one.to_dict() for one in find_records(app)])


def route_of(_name: str, args: Any, *_others: Any, **_more: Any) -> Any:
    """A router that looks at the arguments, and doesn't know all of them."""
    if list(args) == ["broken"]:
        raise LookupError("there is no such customer")
    return {"queue": str(args[0])} if args else None


def test_survey_asks_routers_that_look_at_arguments_about_each_entry(make_app: MakeApp, add: Any) -> None:
    app = make_app(task_routes=[route_of])
    for number in range(6):
        add(f"entry {number}", args=[f"queue {number % 2}"])
    add("broken", args=["broken"])
    found = survey_routes(app, max_seconds=1e6)
    assert (found.seen, found.is_whole) == (7, True)
    nowhere, *others = found.destinations
    assert "there is no such customer" in nowhere.problem
    assert [(one.where, one.count) for one in others] == [("the queue queue 0", 3), ("the queue queue 1", 3)]


def test_rerun_of_an_unknown_run_says_why_it_was_not_sent(browse: Browse) -> None:
    run = json.dumps(["never", "2020-01-01T00:00:00+00:00"])
    page = browse("run").post("/runs/rerun-chosen", run=run, confirmed="yes").text
    assert ("What failed" in page, "never: no failed run with this due time" in page) == (True, True)
