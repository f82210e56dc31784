"""Files on the dashboard: planned, applied, exported and imported, and what is hidden in them."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.entries.audit import find_records
from redbeat.errors import AccessDenied, FileError
from redbeat.manifest.format import Declared, read_file
from redbeat.web import User
from redbeat.web.verbs import files
from redbeat.web.verbs.actor import Actor
from tests.support.dashboards import Browser
from tests.support.deadlines import patience
from tests.support.polling import eventually

Add = Callable[..., RedBeatSchedulerEntry]
TEXT = """
owner: shop
entries:
  report: {task: billing.report, schedule: 1h, kwargs: {api_token: s3cret, size: 3}}
calendars:
  closed: {days: ["2098-01-01"]}
"""


def actor_of(app: Celery, *rights: str) -> Actor:
    return Actor(app, User("anna", rights or ("admin",)), "web", "192.0.2.7")


def apply(actor: Actor, text: str = TEXT, **options: Any) -> files.Applied:
    return files.apply(actor, read_file(text), **options)


def kwargs_of(app: Celery, name: str) -> dict[str, Any]:
    return RedBeatSchedulerEntry.get(name, app).kwargs


def test_a_file_that_would_not_come_back_from_the_page_of_its_plan_is_refused_before(
    browse: Callable[..., Browser],
) -> None:
    text = TEXT.encode() + b"#\n" * 1_400_000  # a browser sends each line break as two bytes
    answer = browse().post("/files/plan", files={"file": ("s.yaml", text)})
    assert answer.status_code == 413
    assert "s.yaml: is too large for this page" in unescape(answer.text)
    assert "celery redbeat apply takes it." in answer.text


def test_a_file_is_planned_applied_and_written_down(app: Celery) -> None:
    actor = actor_of(app)
    plan = files.plan(actor, read_file(TEXT))
    assert files.told(actor, plan)["added"]["report"]["kwargs"] == {"api_token": "(hidden)", "size": 3}
    assert RedBeatSchedulerEntry.count(app) == 0
    done = apply(actor, seen=files.fingerprint(actor, plan))
    assert (done.is_done, kwargs_of(app, "report")) == (True, {"api_token": "s3cret", "size": 3})
    [record] = find_records(app)
    assert (record.user, record.source, record.verb, record.names) == (
        "anna", "web", "apply", ("report", "calendar closed"),
    )  # fmt: skip
    assert apply(actor).plan.number == 0
    assert len(find_records(app)) == 1


def test_another_plan_than_the_one_that_was_seen_is_not_carried_out(app: Celery, add: Add) -> None:
    actor = actor_of(app)
    seen = files.fingerprint(actor, files.plan(actor, read_file(TEXT)))
    add("report", task="billing.report")
    done = apply(actor, seen=seen)
    assert (done.is_done, list(done.plan.difference.changed), kwargs_of(app, "report")) == (
        False, ["report"], {},
    )  # fmt: skip
    assert find_records(app) == []


def test_an_export_hides_arguments_and_comes_back_with_them(app: Celery, add: Add) -> None:
    apply(actor := actor_of(app))
    add("watched", ping_url="https://hc-ping.com/secret-uuid")
    app.redbeat_redis.hset("redbeat:report", "policy", '{"exclude": "closed"}')
    exported = files.export(actor)
    text = json.dumps(exported.declared.entries)
    assert ("s3cret" in text, "secret-uuid" in text, exported.skipped) == (False, False, ())
    assert list(exported.declared.calendars) == ["closed"]
    exported.declared.entries["report"]["kwargs"]["size"] = 4
    given = Declared("export", None, exported.declared.entries, exported.declared.calendars)
    files.import_(actor, given, is_replacing=True)
    assert kwargs_of(app, "report") == {"api_token": "s3cret", "size": 4}
    assert RedBeatSchedulerEntry.get("watched", app).ping_url == "https://hc-ping.com/secret-uuid"


def test_a_mark_that_stands_for_nothing_is_refused(app: Celery) -> None:
    text = "{owner: shop, entries: {a: {task: t, schedule: 1h, kwargs: {password: (hidden)}}}}"
    with pytest.raises(FileError, match="nothing is stored that it could stand for"):
        apply(actor_of(app), text)
    assert RedBeatSchedulerEntry.count(app) == 0


def test_what_may_be_hidden_in_an_unusual_form_is_left_out(app: Celery, client: Any) -> None:
    text = '{"task":"t","x":1,"schedule":{"__type__":"interval","every":60},"kwargs":{"password":"s3cret"}}'
    client.hset("redbeat:odd", "definition", text)
    client.zadd("redbeat::schedule", {"redbeat:odd": 5e9})
    exported = files.export(actor_of(app))
    assert (dict(exported.declared.entries), len(exported.skipped)) == ({}, 1)
    assert "s3cret" not in exported.skipped[0]


def test_each_step_takes_its_right_and_each_task_must_be_allowed(app: Celery, add: Add) -> None:
    app.conf.redbeat_web_tasks = ["billing.*"]
    declared = read_file(TEXT)
    reader, editor = actor_of(app, "read", "run", "pause"), actor_of(app, "edit")
    for call in (files.plan, files.apply, files.import_plan, files.import_):
        with pytest.raises(AccessDenied, match="right 'edit'"):
            call(reader, declared)
    with pytest.raises(AccessDenied, match="right 'edit'"):
        files.export(reader)
    with pytest.raises(AccessDenied, match="right 'delete'"):
        files.apply(editor, declared, prune=True)
    raw = '{"task": "os.system", "schedule": {"__type__": "interval", "every": 60}}'
    for item in ({"task": "os.system", "schedule": "1h"}, {"stored": {"definition": raw}}):
        for call in (files.plan, files.apply, files.import_plan, files.import_):
            with pytest.raises(AccessDenied, match=r"os\.system"):
                call(editor, Declared("f", "shop", {"report": item}))
    add("report", task="os.system")
    with pytest.raises(AccessDenied, match=r"os\.system"):  # the task that it had
        files.apply(editor, declared)
    assert (RedBeatSchedulerEntry.get("report", app).task, find_records(app)) == ("os.system", [])


def test_what_is_applied_is_the_plan_that_was_shown(
    app: Celery, add: Add, browse: Callable[..., Browser]
) -> None:
    browser = browse()
    given = {"file": ("shop.yaml", TEXT.encode(), "text/plain")}
    shown = browser.post("/files/plan", files=given, owner="").text
    assert "Entries: 1 to add, 0 to change, 0 to remove, 0 the same. Calendars: 1 to add" in shown
    # the file itself stands in the form, as whoever sent it gave it
    assert "(hidden)" in shown.partition("<form method")[0]
    assert "s3cret" not in shown.partition("<textarea name")[0]
    seen = re.search(r'name="seen" value="([^"]+)"', shown)
    assert seen is not None
    fields = {"text": TEXT, "origin": "shop.yaml", "seen": seen[1]}
    add("report", task="billing.report")
    changed = browser.post("/files/apply", **fields)
    assert (changed.status_code, "The schedule has changed since" in changed.text) == (412, True)
    assert kwargs_of(app, "report") == {}
    seen = re.search(r'name="seen" value="([^"]+)"', changed.text)
    assert seen is not None
    done = browser.send("/files/apply", **{**fields, "seen": seen[1]})
    assert "Entries: 0 added, 1 changed, 0 removed, 0 the same. Calendars: 1 added" in done
    assert kwargs_of(app, "report")["size"] == 3
    again = browser.post("/files/plan", **{**fields, "text": TEXT.replace("s3cret", "other")}).text
    assert "another value, hidden" in again


def test_a_file_that_cannot_be_used_is_refused_with_a_sentence_and_stays_in_its_form(
    app: Celery, add: Add, browse: Callable[..., Browser]
) -> None:
    browser = browse()
    deep = "{owner: a, entries: {a: {task: t, schedule: 1h, args: " + "[" * 300 + "]" * 300 + "}}}"
    for text, words in (
        ("entries: {<b>: 1}", "must be a mapping"),
        ("", "paste its text"),
        ("entries: {}", "have no owner: fill in Owner"),
        ("a: &a [*a]", "contains itself"),
        ("[" * 2000, "nest"),  # in these words or PyYAML's own
    ):
        answer = browser.post("/files/plan", text=text)
        assert (answer.status_code, words in unescape(answer.text)) == (422, True), answer.text
        assert "<b>:" not in answer.text
    assert browser.post("/files/plan", text=deep).status_code in (200, 422)
    binary = {"file": ("\u202e<b>.yaml", b"\xff\xfe\x00", "text/plain")}
    assert "is no UTF-8" in browser.post("/files/plan", files=binary).text
    file = {"file": ("shop.yaml", b"entries: {}", "application/yaml")}
    both = browser.post("/files/plan", files=file, text="# <mine>")
    assert (both.status_code, 'id="plan-file-error"' in both.text) == (422, True)
    assert ("not both" in both.text, "# &lt;mine&gt;</textarea>" in both.text) == (True, True)
    add("mine", task="t")
    app.redbeat_redis.hset("redbeat:mine", "owner", "other")
    taken = browser.post("/files/plan", text="{owner: a, entries: {mine: {task: t, schedule: 1h}}}")
    assert (taken.status_code, "belongs to other" in taken.text) == (422, True)
    assert ("tick &#39;Take over&#39;" in taken.text, "--take-over" in taken.text) == (True, False)
    reader = browse("read")
    assert "take the right to edit" in reader.read("/files")
    assert reader.post("/files/plan", text=TEXT).status_code == 403
    assert reader.get("/files/export").status_code == 403


def download(browser: Browser, **query: str) -> str:
    """What an export has written, when it is there."""
    answer = browser.get("/files/export", **query)
    where = answer.headers.get("location")

    def ready() -> Any:
        found = answer if where is None else browser.get(where)
        return "attachment" in found.headers.get("content-disposition", "") and found

    return str(eventually(ready).text)


def test_an_export_is_a_download_that_can_be_imported(
    app: Celery, add: Add, browse: Callable[..., Browser]
) -> None:
    apply(actor_of(app))
    add("other", schedule=60)
    browser = browse("edit")

    text = download(browser, match="rep*")
    assert ("s3cret" in text, "(hidden)" in text, "other" in text) == (False, True, False)
    assert "report" in json.loads(download(browser, format="json", owner="shop"))["entries"]
    RedBeatSchedulerEntry.get("other", app).delete()
    fields = {"verb": "import", "text": text, "replace": "yes"}
    shown = browser.post("/files/plan", **fields).text
    seen = re.search(r'name="seen" value="([^"]+)"', shown)
    assert seen is not None
    assert "1 changed" in browser.send("/files/apply", seen=seen[1], **fields)
    assert kwargs_of(app, "report")["api_token"] == "s3cret"


def test_an_export_that_was_left_is_not_given_to_who_asks_later(
    add: Add, browse: Callable[..., Browser], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, is_read = files.export, threading.Event()

    def export(*given: Any, **options: Any) -> Any:
        found = real(*given, **options)
        assert is_read.wait(patience(30))
        return found

    monkeypatch.setattr(files, "export", export)
    browser = browse("edit")
    add("old", schedule=60)
    left = browser.get("/files/export").headers["location"]
    assert "The file is being written" in browser.read(left)
    add("new", schedule=60)
    is_read.set()
    eventually(lambda: "The file is there" in browser.get(left, headers={"HX-Request": "true"}).text)
    assert "new" in download(browser)
    assert "new" not in browser.read(left), "it is the one that was begun"
