"""The doctor in the dashboard: what it says, what it hides, and what it repairs."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat.diagnostics import fixes
from redbeat.diagnostics.checks import Diagnosis, Finding, Severity
from redbeat.entries.audit import find_records
from redbeat.web import background
from redbeat.web.pages import doctor
from redbeat.web.pages.doctor import counts_of, groups_of
from tests.support.dashboards import Browser
from tests.support.deadlines import patience
from tests.support.forms import form_fields
from tests.support.polling import eventually
from tests.support.progress import Progress

Browse = Callable[..., Browser]


def looked(browser: Browser, **query: Any) -> str:
    return str(eventually(lambda: "looked at" in (page := browser.read("/doctor", **query)) and page))


def spoil(client: redis.Redis, name: str, **kwargs: Any) -> None:
    schedule = {"__type__": "crontab", "minute": "77"}
    definition = {"name": name, "task": "echo", "schedule": schedule, "kwargs": kwargs}
    client.hset(f"redbeat:{name}", "definition", json.dumps(definition))
    client.zadd("redbeat::schedule", {f"redbeat:{name}": time.time() + 1000})


def test_it_says_what_the_command_line_says_and_hides_what_is_hidden(
    browse: Browse, client: redis.Redis
) -> None:
    spoil(client, "broken", customer=1)
    spoil(client, "<b>secretive</b>", db_password="hunter2")
    page = looked(browse("read"))
    assert 'href="/entry?name=broken"' in page
    assert "Invalid end range: 77" in page
    finding = page.partition('href="/entry?name=broken"')[2].partition("</li>")[0]
    assert '<p class="muted">Correct it and save it again.</p>' in finding
    assert "customer" in page.split("broken")[1] or '"minute": "77"' in page.replace("&#34;", '"')
    assert "hunter2" not in page
    assert page.count('class="mono small muted"') == 1
    assert "<b>secretive" not in page
    assert page.index('"error: quarantined"') < page.index('"warning: persistence"')
    assert "Show what would be repaired" not in page
    assert browse("edit").get("/doctor/fix").status_code == 403


def test_it_repairs_what_it_has_shown_and_writes_who_did(
    browse: Browse, app: Celery, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fixes, "MISSING_GRACE_SECONDS", 0)
    client.zadd("redbeat::schedule", {"redbeat:gone": time.time() + 1000})
    browser = browse("admin")
    page = looked(browser)
    assert "Show what would be repaired" in page
    assert ("a repair takes what is left" in page, "--fix" in page) == (True, False)
    dry = browser.read("/doctor/fix", kind="missing-hash")
    assert "redbeat:gone: would be taken out of the schedule" in dry
    assert "Make 1 repair?" in dry
    assert browser.post("/doctor/fix", kind="missing-hash").status_code == 303  # it isn't confirmed
    assert client.zcard("redbeat::schedule") == 1
    assert find_records(app) == []
    assert "new=yes" in browser.post("/doctor/fix", kind="missing-hash", confirmed="yes").headers["location"]
    assert client.zcard("redbeat::schedule") == 1, "it isn't what was seen"
    done = browser.send("/doctor/fix", **form_fields(dry))
    assert "redbeat:gone: taken out of the schedule" in done
    assert client.zcard("redbeat::schedule") == 0
    [record] = find_records(app)
    assert (record.user, record.verb, record.names) == ("anna", "doctor --fix", ("redbeat:gone",))
    assert "redbeat:gone" not in looked(browser)


def test_a_process_that_has_not_found_what_was_seen_shows_what_it_finds_now(
    browse: Browse, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fixes, "MISSING_GRACE_SECONDS", 0)
    first, second = browse("admin"), browse("admin")
    assert "Show what would be repaired" not in looked(second), "it has found nothing, and remembers that"
    client.zadd("redbeat::schedule", {"redbeat:gone": time.time() + 1000})
    looked(first)
    asked = form_fields(first.read("/doctor/fix"))
    del asked["csrf_token"]  # that of its cookies, which both have in a browser
    client.zadd("redbeat::schedule", {"redbeat:other": time.time() + 1000})
    assert second.post("/doctor/fix", **asked).headers["location"] == "/doctor/fix?new=yes"
    page = eventually(lambda: "redbeat:other" in (now := second.read("/doctor/fix", new="yes")) and now)
    assert "so nothing was repaired" in page
    assert client.zcard("redbeat::schedule") == 2
    done = second.send("/doctor/fix", **form_fields(page))
    assert "redbeat:gone: taken out" in done
    assert client.zcard("redbeat::schedule") == 0


def test_findings_about_runs_lead_to_their_entry_and_their_advice_is_for_this_page(
    browse: Browse, add: Any, app: Celery, client: redis.Redis
) -> None:
    add("bad")
    progress = Progress(app, client)
    for number in range(3):
        progress.end(progress.started("bad", f"bad-{number}", 1000.0 + number), "failed", error="oh")
    page = looked(browse("read"))
    assert "Its last 3 runs have failed" in page
    assert '<a class="name" href="/entry?name=bad"' in page
    assert "Its page has the last ones; Rerun there sends one once more" in page


def test_what_would_be_repaired_is_looked_for_beside_the_page(
    browse: Browse, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fixes, "MISSING_GRACE_SECONDS", 0)
    client.zadd("redbeat::schedule", {"redbeat:gone": time.time() + 1000})
    real, may_look = doctor.examine, threading.Event()

    def examine(*given: Any, **options: Any) -> Diagnosis:
        assert may_look.wait(patience(30))
        return real(*given, **options)

    monkeypatch.setattr(doctor, "examine", examine)
    first, second = browse("admin"), browse("admin")
    assert "The doctor looks at the schedule" in first.read("/doctor/fix")
    may_look.set()
    page = eventually(lambda: "would be taken out" in (found := first.read("/doctor/fix")) and found)
    asked = form_fields(page)
    del asked["csrf_token"]
    may_look.clear()
    answer = second.post("/doctor/fix", **asked)  # a process that doesn't know it
    assert answer.headers["location"] == "/doctor/fix?new=yes"
    assert "The doctor looks at the schedule" in second.read("/doctor/fix", new="yes")
    may_look.set()
    eventually(lambda: "would be taken out" in second.read("/doctor/fix", new="yes"))
    assert "redbeat:gone: taken out" in second.send("/doctor/fix", **asked)


def test_workers_are_asked_on_request_only(browse: Browse, add: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "WORKERS_SECONDS", 0.1)
    add("a")
    browser = browse("read")
    assert "workers weren&#39;t asked" in looked(browser) or "workers weren't asked" in looked(browser)
    answer = browser.get("/doctor/look", workers="yes")
    assert answer.headers["location"] == "/doctor?workers=yes"
    assert "No worker has answered within 0.1 s" in looked(browser, workers="yes")


def test_who_opens_it_sees_what_is_so_now_and_the_younger_look_counts(
    browse: Browse, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "REST", 0)
    monkeypatch.setattr(doctor, "WORKERS_SECONDS", 0.1)
    browser = browse("read")
    assert "broken" not in looked(browser)
    spoil(client, "broken")
    eventually(lambda: "broken" in browser.read("/doctor"))
    spoil(client, "another")
    eventually(lambda: "another" in browser.read("/doctor", workers="yes"))
    overview = browser.read("/").partition("<h2>Doctor")[2]
    assert "And 1 more." in overview, "it needs no look of its own then"


def test_findings_of_a_kind_are_shown_page_by_page() -> None:
    def finding(severity: Severity, kind: str, number: int) -> Finding:
        return Finding(severity, kind, f"{number}", "Problem.", "Advice.")

    found = Diagnosis()
    found.add(finding(Severity.NOTE, "note", number) for number in range(5))
    found.add(finding(Severity.ERROR, "bad", number) for number in range(250))
    found.more["bad"] = 1000
    bad, note = groups_of(found)
    assert (bad.kind, bad.count, len(bad.shown)) == ("bad", 1250, 10)
    assert (note.kind, note.count, len(note.shown)) == ("note", 5, 3)
    assert counts_of(found) == {"error": 1250, "note": 5}
    [page] = groups_of(found, "bad", 200)
    assert [one.about for one in page.shown] == [f"{number}" for number in range(200, 250)]
