"""The stored messages in the dashboard: page by page, one by one, and taken away."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from html import unescape
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat.entries.audit import find_records
from redbeat.store.later import LaterStore
from redbeat.web.pages import later as page_module
from tests.support.dashboards import Browser
from tests.support.schedule import SCHEDULE, server_now
from tests.support.stored import make_late, store

Browse = Callable[..., Browser]
HOSTILE = "<script>alert(1)</script>\u202e&\x1b"


def cpu_of(client: redis.Redis) -> float:
    """How much processor time the server has used, seconds."""
    found: Any = client.info("cpu")
    return float(found["used_cpu_user"]) + float(found["used_cpu_sys"])


def rows(page: str) -> list[str]:
    """The task ids of a page's rows."""
    return [unescape(part.split('"')[0]) for part in page.split("/later/message?task_id=")[1:]]


def test_messages_are_listed_page_by_page_in_the_order_of_their_etas(app: Celery, browse: Browse) -> None:
    browser = browse("read")
    assert "No message is stored" in browser.read("/later")
    for number in range(5):
        store(app, f"id-{number}", seconds=7200 + number, args=[number])
    store(app, *(f"far-{number:02}" for number in range(50)), seconds=90_000)
    first = browser.read("/later")
    assert rows(first) == [*(f"id-{number}" for number in range(5)), *(f"far-{n:02}" for n in range(45))]
    assert "50 of 55" in first
    assert "in 2 h" in first
    second = browser.read("/later", offset=50)
    assert rows(second) == [f"far-{number}" for number in range(45, 50)]
    assert ("55 of 55" in second, 'rel="next"' in second, 'rel="prev"' in second) == (True, False, True)
    assert "There are no more" in browser.read("/later", offset=500)
    assert rows(browser.read("/later", offset="nonsense")) == rows(first)
    assert "/later/cancel" not in first, "who only reads can't"


def test_entries_and_messages_are_apart(app: Celery, browse: Browse, add: Callable[..., Any]) -> None:
    store(app, "one")
    add("report")
    browser = browse()
    assert ":later:one" not in browser.read("/entries")
    assert rows(browser.read("/later")) == ["one"]


def test_a_message_is_shown_with_all_about_it(app: Celery, client: redis.Redis, browse: Browse) -> None:
    when = datetime(2098, 12, 24, 18)
    store(app, "one", args=[HOSTILE, when], kwargs={"a": 1}, priority=5, headers={"x": 1})
    store(app, "two", args=[object], serializer="pickle")
    browser = browse()
    page = browser.read("/later/message", task_id="one")
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "2098-12-24T18:00:00" in page
    assert "tasks.report" in page
    shown = browser.read("/later/message", task_id="two")
    assert "application/x-python-serialize" in shown
    gone = browser.read("/later/message", status=404, task_id=f"three{HOSTILE}")
    assert "isn&#39;t stored: it was sent, cancelled, or never stored." in gone
    assert "<script>alert" not in gone


def test_why_a_message_is_not_sent_is_said(app: Celery, client: redis.Redis, browse: Browse) -> None:
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
    assert len(rows(page)) == 5
    assert page.count("can&#39;t be used<") == 2
    assert page.count("couldn&#39;t be sent<") == 1
    assert "min ago" in page
    assert "OperationalError: &lt;script&gt;" in page
    why = {"failing": "OperationalError", "broken": "its body isn&#39;t in Redis", "gone": "entry is gone"}
    for task_id, words in why.items():
        assert words in browser.read("/later/message", task_id=task_id)
    for task_id in ("never", "ahead"):
        assert "never<" in browser.read("/later/message", task_id=task_id)


def test_a_message_is_cancelled_when_that_is_confirmed(
    app: Celery, client: redis.Redis, browse: Browse
) -> None:
    app.conf.result_backend = "cache+memory://"
    store(app, "one", "two", task="tasks.report")
    browser = browse("delete")
    asked = browser.send("/later/cancel", task_id="one", revision="")
    assert "Revoke one?" in asked
    assert LaterStore(app).count() == 2
    assert "Revoked one" in browser.send("/later/cancel", task_id="one", revision="", confirmed="yes")
    assert app.AsyncResult("one").state == "REVOKED"
    assert rows(browser.read("/later")) == ["two"]
    assert "one isn&#39;t stored" in browser.send("/later/cancel", task_id="one", confirmed="yes")
    found = {(record.user, record.verb, *record.names) for record in find_records(app)}
    assert found == {("anna", "later cancel", "one")}
    page = browser.read("/audit", verb="later")
    assert "/entry?name=one" not in page


def test_a_message_that_was_stored_anew_is_not_cancelled_by_who_has_seen_the_other(
    app: Celery, client: redis.Redis, browse: Browse
) -> None:
    store(app, "one", args=[1])
    seen = client.hget("redbeat::later:one", "revision")
    store(app, "one", args=[2])
    browser = browse()
    browser.send("/later/cancel", task_id="one", revision=seen, confirmed="yes")
    assert rows(browser.read("/later")) == ["one"]


@pytest.mark.parametrize("right", ["read", "pause", "run", "edit"])
def test_only_who_may_delete_cancels(app: Celery, browse: Browse, right: str) -> None:
    store(app, "one")
    assert browse(right).post("/later/cancel", task_id="one", confirmed="yes").status_code == 403
    assert LaterStore(app).count() == 1
    assert (
        browse("admin", read_only=True).post("/later/cancel", task_id="one", confirmed="yes").status_code
        == 403
    )


def test_a_page_of_very_many_is_as_quick_as_one_of_few(
    app: Celery, client: redis.Redis, browse: Browse
) -> None:
    store(app, "one")
    text = client.hget("redbeat::later:one", "message")
    with client.pipeline(transaction=False) as pipeline:
        for start in range(0, 200_000, 10_000):
            many = {f"redbeat::later:{number:06}": 4e9 + number for number in range(start, start + 10_000)}
            pipeline.zadd("redbeat::later", many)
        for number in (*range(50), *range(150_000, 150_050)):
            pipeline.hset(f"redbeat::later:{number:06}", "message", text)
        pipeline.execute()
    browser = browse()

    def server_seconds(offset: int) -> float:
        """How long the server works for twenty such pages."""
        began = cpu_of(client)
        for _ in range(20):
            assert len(rows(browser.read("/later", offset=offset))) == page_module.SHOWN
        return cpu_of(client) - began

    near, far = (min(server_seconds(offset) for _ in range(2)) for offset in (1, 150_001))
    assert far < 4 * near + 0.02, (near, far)
    assert client.zcard(SCHEDULE) == 0
