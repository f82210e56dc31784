"""What one does with an entry in the dashboard, and what is in Redis and on the queue then."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from html import unescape
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.entries.audit import find_records
from redbeat.store.runs import Delivery, End, Runs
from redbeat.store.store import Store
from tests.integration.conftest import MakeScheduler
from tests.support.dashboards import Browser
from tests.support.forms import form_fields

Browse = Callable[..., Browser]
Add = Callable[..., RedBeatSchedulerEntry]

SECRET = {"password": "geheim", "to": "a@b"}


def sent_calls(broker: redis.Redis, queue: str = "celery") -> list[list[Any]]:
    """The arguments of the messages on a queue, the newest first."""
    import base64

    messages = [json.loads(text) for text in broker.lrange(queue, 0, -1)]
    return [json.loads(base64.b64decode(message["body"])) for message in messages]


def test_an_entry_is_paused_with_a_note_until_a_time_and_resumed(
    app: Celery, browse: Browse, add: Add
) -> None:
    add("report", "30 7 * * *", timezone="Asia/Tokyo")
    browser = browse("pause")
    browser.http.cookies.set("redbeat-zone", "America%2FNew_York")
    assert "In America/New_York." in browser.read("/entry/pause", name="report")
    for fields, words in (
        ({"until": "yesterday"}, "is no time"),
        ({"clock": "2020-01-01T00:00"}, "is in the past"),
        ({"until": "2h", "clock": "2099-01-01T00:00"}, "Give one of the two."),
    ):
        answer = browser.post("/entry/pause", name="report", note="kept", **fields)
        assert answer.status_code == 422
        assert words in answer.text
        assert 'value="kept"' in answer.text
    assert "Paused until 2099-01-01 09:00:00 America/New_York." in browser.send(
        "/entry/pause", name="report", note="why", clock="2099-01-01T09:00"
    )
    entry = RedBeatSchedulerEntry.get("report", app)
    assert entry.paused_until == datetime(2099, 1, 1, 14, tzinfo=timezone.utc)
    assert (entry.state, entry.pause_note, entry.paused_by) == ("paused", "why", "anna")
    assert "It is paused already, and stays so." in browser.send("/entry/pause", name="report")
    entry.update(paused_by="eve")
    assert "has what you gave now" in browser.send("/entry/pause", name="report", note="whyever")
    entry = RedBeatSchedulerEntry.get("report", app)
    assert (entry.paused_until.year, entry.pause_note, entry.paused_by) == (2099, "whyever", "anna")
    assert [record.details["note"] for record in find_records(app)] == ["whyever", "why"]
    assert "Resumed. Next run:" in browser.send("/entry/resume", name="report")
    entry = RedBeatSchedulerEntry.get("report", app)
    assert entry.state == "scheduled"
    entry.update(enabled=False)
    assert "It is disabled already, and stays so." in browser.send("/entry/pause", name="report", note="why")
    entry.update(enabled=True)
    assert "It isn&#39;t paused." in browser.send("/entry/resume", name="report")


def test_a_run_now_has_other_arguments_and_leaves_hidden_ones_as_they_are(
    app: Celery, browse: Browse, broker: redis.Redis, add: Add
) -> None:
    add("report", kwargs=SECRET, args=[1], options={"queue": "celery"})
    browser = browse("run")
    own = form_fields(browser.read("/entry/run", name="report"))
    assert "geheim" not in json.dumps(own)
    html = browser.send("/entry/run", **own)
    [task_id] = set(re.findall(r"its task id is ([\w-]+)", html))
    assert re.search(rf'id="sent" class="is-marked".*?{task_id}', html, re.DOTALL)
    assert f"sent it already, once; its task id is {task_id}" in browser.send("/entry/run", **own)
    browser.send("/entry/run", **own | {"args": "[2, 3]", "kwargs": own["kwargs"].replace("a@b", "c@d")})
    browser.send("/entry/run", **own | {"args": "[]", "kwargs": "", "queue": "other"})
    assert [call[:2] for call in sent_calls(broker)] == [
        [[2, 3], {"password": "geheim", "to": "c@d"}], [[1], SECRET],
    ]  # fmt: skip
    assert [call[:2] for call in sent_calls(broker, "other")] == [[[], {}]]
    assert RedBeatSchedulerEntry.get("report", app).total_run_count == 0
    for field, text in (("args", "{}"), ("kwargs", "["), ("kwargs", '{"x_token": "(hidden)"}')):
        answer = browser.post("/entry/run", **own | {field: text})
        assert answer.status_code == 422
        assert form_fields(answer.text)[field] == text
    assert len(sent_calls(broker)) == 2


def test_a_run_now_has_the_entrys_own_arguments_whatever_they_are(
    browse: Browse, broker: redis.Redis, add: Add
) -> None:
    args = ["\ud800", "\u202e\x00\r\n", float("1e300"), "é\u2028"]
    add("report", args=args, kwargs={"half": "\udfff"})
    browser = browse("run")
    own = form_fields(browser.read("/entry/run", name="report"))
    browser.send("/entry/run", **own)
    browser.send("/entry/run", **own | {"args": own["args"].replace("é", "è"), "once": "another"})
    sent = [call[:2] for call in sent_calls(broker)]
    assert sent == [[[*args[:3], "è\u2028"], {"half": "\udfff"}], [args, {"half": "\udfff"}]]


@pytest.mark.usefixtures("broker")
def test_a_run_that_is_held_back_says_so_in_the_viewers_zone(app: Celery, browse: Browse, add: Add) -> None:
    import redbeat

    redbeat.track_runs(app)
    add("report", 3600, overlap="skip")
    browser = browse("run")
    browser.http.cookies.set("redbeat-zone", "Asia%2FTokyo")
    browser.send("/entry/run", **form_fields(browser.read("/entry/run", name="report")))
    answer = browser.post("/entry/run", **form_fields(browser.read("/entry/run", name="report")))
    assert answer.status_code == 409
    assert re.search(r"is on its queue since \d{4}-\d\d-\d\d \d\d:\d\d:[\d.]+ Asia/Tokyo", answer.text)


def test_a_task_that_is_not_allowed_is_not_run(
    app: Celery, browse: Browse, broker: redis.Redis, add: Add
) -> None:
    app.conf.redbeat_web_tasks = ["mail.*"]
    add("report", 3600)
    browser = browse()
    for path in ("run", "backfill"):
        assert browser.get(f"/entry/{path}", name="report").status_code == 403
    for path in ("run", "backfill", "rerun"):
        fields = {"begin": "1d", "confirmed": "yes", "args": "[]", "kwargs": "{}", "queue": ""}
        answer = browser.post(f"/entry/{path}", name="report", **fields)
        assert answer.status_code in (403, 422)
    assert sent_calls(broker) == []


def test_a_backfill_shows_what_it_would_send_and_sends_it_once(
    app: Celery, browse: Browse, broker: redis.Redis, add: Add
) -> None:
    entry = add("report", 3600)
    entry.reschedule(datetime.now(timezone.utc) - timedelta(hours=5, minutes=30))
    browser = browse("run")
    browser.http.cookies.set("redbeat-zone", "Asia%2FTokyo")
    asked = browser.post("/entry/backfill", name="report", begin="2026-01-31T09:00", end="2026-01-31T10:00")
    assert "in Asia/Tokyo." in asked.text
    assert form_fields(asked.text)["begin"] in ("2026-01-31T09:00", "2026-01-31T00:00:00+00:00")
    assert re.search(r"<time[^>]*>2026-01-31 09:\d\d:\d\d</time>", asked.text)
    answer = browser.post("/entry/backfill", name="report", begin="3h")
    html = unescape(answer.text)
    assert "3 runs would be sent" in html
    assert sent_calls(broker) == []
    confirmed = form_fields(html)
    assert confirmed["confirmed"] == "yes"
    assert "." not in confirmed["begin"] + confirmed["end"], "whole seconds, in the audit list, too"
    assert "Sent 3 runs." in browser.send("/entry/backfill", **confirmed)
    assert len(sent_calls(broker)) == 3
    assert (
        "There is nothing to send" in browser.post("/entry/backfill", **{**confirmed, "confirmed": ""}).text
    )
    # the same click has sent them, and another one finds nothing to send
    assert "Sent 3 runs." in browser.send("/entry/backfill", **confirmed)
    assert "Sent 0 runs." in browser.send("/entry/backfill", **{**confirmed, "once": "another"})
    assert len(sent_calls(broker)) == 3
    add("new", 3600)
    early = browser.post("/entry/backfill", name="new", begin="3h").text
    assert ("from before" in early, "when it was stored" in early) == (True, True)
    for fields, words in (
        ({"begin": ""}, "Give the time"),
        ({"begin": "1h", "end": "2h"}, "before the beginning"),
        ({"begin": "soon"}, "is no time"),
        ({"begin": "1970-01-02T00:00"}, "more than 1000 runs, which is the limit; name a shorter one"),
    ):
        answer = browser.post("/entry/backfill", name="report", **fields)
        assert answer.status_code == 422
        assert words in answer.text
    assert len(sent_calls(broker)) == 3


@pytest.mark.usefixtures("broker")
def test_a_failed_run_is_sent_once_more_and_one_in_progress_is_given_up(
    app: Celery, client: redis.Redis, browse: Browse, add: Add, make_scheduler: MakeScheduler
) -> None:
    import redbeat

    redbeat.track_runs(app)
    add("report", 3600)
    client.zadd("redbeat::schedule", {"redbeat:report": 0})
    scheduler = make_scheduler(app)
    while not scheduler.tick():
        pass
    [run] = RedBeatSchedulerEntry.get("report", app).running()
    delivery = Delivery("report", run.task_id, f"{run.due.timestamp():.6f}", token="t", worker="w1")
    runs = Runs(Store(app))
    runs.begin(delivery, 30_000)
    browser = browse("run")
    html = browser.read("/entry", name="report")
    assert "In progress" in html
    asked = browser.post("/entry/give-up", name="report", task_id=run.task_id)
    assert asked.status_code == 200
    assert "It counts as lost" in asked.text
    runs.end([End(delivery, "failed", "OSError: <b>", 0.5)])
    assert "it wasn&#39;t given up" in browser.send("/entry/give-up", **form_fields(asked.text))
    html = browser.read("/entry", name="report")
    assert "OSError: &lt;b&gt;" in html
    due = re.search(r'name="due" value="([^"]+)"', html)
    assert due is not None
    asked = browser.post("/entry/rerun", name="report", due=unescape(due[1]))
    assert "once more?" in asked.text
    html = browser.send("/entry/rerun", **form_fields(asked.text))
    assert "once more; its task id is" in html
    again, _ = RedBeatSchedulerEntry.get("report", app).runs(5)
    assert again.rerun_of == run.task_id
    asked = browser.post("/entry/give-up", name="report", task_id=again.task_id)
    assert "Given up: it counts as lost." in browser.send("/entry/give-up", **form_fields(asked.text))
    assert browser.post("/entry/rerun", name="report", due="x").status_code == 422


def test_an_entry_is_deleted_after_a_question_only(app: Celery, browse: Browse, add: Add) -> None:
    add("report", "30 7 * * *", task="mail.send")
    browser = browse("delete")
    html = browser.post("/entry/delete", name="report").text
    for words in ("report", "mail.send", "its history go with it"):
        assert words in html
    assert RedBeatSchedulerEntry.get("report", app).name == "report"
    answer = browser.post("/entry/delete", **form_fields(html))
    assert (answer.status_code, answer.headers["location"]) == (303, "/entries")
    assert list(RedBeatSchedulerEntry.list(app)) == []
    assert browser.post("/entry/delete", name="report", confirmed="yes").status_code == 303


def test_whoever_deletes_an_entry_of_beat_schedule_is_told_that_it_comes_back(
    client: redis.Redis, browse: Browse, add: Add
) -> None:
    add("report", 3600)
    browser = browse()
    assert "beat_schedule" not in browser.read("/entry/delete", name="report")
    client.sadd("redbeat::statics", "report")
    assert "comes from the code (beat_schedule or @scheduled)" in browser.read("/entry/delete", name="report")


def test_an_entry_whose_name_has_a_line_break_is_paused_edited_and_deleted(
    app: Celery, browse: Browse, client: redis.Redis, add: Add
) -> None:
    name = "two\nlines"
    add(name)
    browser = browse()
    assert "Paused two" in browser.send("/entries/pause", name=name, confirmed="yes")
    assert "Resumed. Next run:" in browser.send("/entry/resume", name=name)
    fields = form_fields(browser.read("/entry/edit", name=name), "entry-form") | {"args": "[\n1\n]"}
    assert "Changed two" in browser.send("/entry/save", **fields)
    assert RedBeatSchedulerEntry.get(name, app).args == [1]
    files = {"file": ("", b"")}  # sent as multipart/form-data, as by pages with files
    asked = form_fields(browser.read("/entry/delete", name=name))
    assert browser.post("/entry/delete", files=files, **asked).status_code == 303
    assert not client.exists(f"redbeat:{name}")
