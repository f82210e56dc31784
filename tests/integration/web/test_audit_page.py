"""The audit list in the dashboard: filters, pages, failures, and nothing that is hidden."""

from __future__ import annotations

from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.entries.audit import audited, find_records
from redbeat.web import User
from redbeat.web.verbs import editing, pausing
from redbeat.web.verbs.actor import Actor
from tests.support.command_line import call
from tests.support.dashboards import Browser
from tests.support.polling import eventually

Browse = Callable[..., Browser]


def note(app: Celery, user: str, verb: str, names: list[str], **details: Any) -> None:
    with audited(app, user, "cli", verb, names, details, host="web-1"):
        pass


def test_it_shows_who_has_changed_what_page_by_page(app: Celery, browse: Browse) -> None:
    browser = browse("read")
    assert "Nobody has changed anything yet" in browser.read("/audit")
    for number in range(60):
        note(app, "anna", "pause", [f"entry {number}"])
    page = browser.read("/audit")
    assert "entry 59<" in page
    assert "entry 10<" in page
    assert "entry 9<" not in page
    older = page.split('rel="next"')[0].rpartition('href="')[2].split('"')[0].replace("&amp;", "&")
    page = browser.read(older)
    assert "entry 9<" in page
    assert "entry 0<" in page
    assert "entry 10<" not in page
    assert browser.read("/audit", before="nonsense").count("entry ") > 50


def test_changes_are_found_by_user_command_and_name(app: Celery, browse: Browse) -> None:
    note(app, "anna", "pause", ["a"])
    note(app, "bob", "calendar set", ["b"])
    with pytest.raises(LookupError), audited(app, "bob", "web", "set", ["a"], {}):
        raise LookupError("<b>there is none</b>")
    browser = browse("read")

    def found(**query: str) -> str:
        def read() -> str:
            page = browser.read("/audit", **query)
            return "" if "Looking for changes" in page else page

        return eventually(read)

    def verbs(**query: str) -> list[str]:
        page = found(**query)
        cell = 'data-label="Change"><span class="nowrap">'
        return [part.split("<")[0].strip() for part in page.split(cell)[1:]]

    assert verbs() == ["set", "set", "calendar set", "pause"]
    assert verbs(user="b*") == ["set", "set", "calendar set"]
    assert verbs(verb="calendar") == ["calendar set"]
    assert 'href="/calendar?name=b"' in found(verb="calendar")
    assert 'href="/entry?name=a"' in found(user="anna")
    assert verbs(name="a", user="anna") == ["pause"]
    assert verbs(name="nothing") == []
    assert "is no length of time" in browser.read("/audit", status=422, since="x")
    page = found(verb="set")
    assert page.count("<span>failed</span>") == 1
    assert "failed: LookupError: &lt;b&gt;there is none" in page


def test_arguments_that_are_hidden_are_hidden_here_too(app: Celery, browse: Browse) -> None:
    app.conf.redbeat_web_hide = ["*ssn*"]
    note(app, "anna", "set", ["a"], kwargs={"SSN_of": "078-05-1120", "shown": "yes"})
    note(app, "anna", "set", ["b"], kwargs={"ssn": "078-05-1121", "more": "x" * 2000})  # cut off
    note(app, "anna", "set", ["gone"], args=["078-05-1122"])  # by which task it was called isn't known
    page = browse("read").read("/audit")
    assert "078-05-112" not in page
    assert "yes" in page
    assert page.count("(hidden)") == 3


def test_a_time_that_is_too_long_ago_or_no_place_in_the_list_is_told(browse: Browse) -> None:
    browser = browse()
    for path in ("/audit", "/runs", "/runs/rerun"):
        answer = browser.get(path, since="800000d")
        assert "is more than a hundred years" in unescape(answer.text), path
        assert answer.status_code < 500
    assert browser.post("/runs/rerun", since="800000d", confirmed="yes").status_code == 422
    for before in ("99999999999999999999-0", "1-18446744073709551616", "5-5"):
        assert browser.get("/audit", before=before).status_code == 200


def test_it_shows_what_a_field_was_before_without_what_is_hidden_and_times_in_the_zone_of_the_page(
    app: Celery, browse: Browse
) -> None:
    app.conf.redbeat_web_hide = ["password"]
    anna = Actor(app, User("anna", ["admin"]), "web")
    values = {"name": "report", "task": "echo", "schedule": 60, "kwargs": {"password": "0ld", "to": "a"}}
    editing.add(anna, values)
    end = "2098-01-02T09:30:00+00:00"
    changes = {
        "schedule": {"cron": "0 9 * * mon-fri"},
        "kwargs": {"password": "n3w", "to": "b"},
        "jitter": 90,
        "end_time": end,
        "args": [end],
    }
    editing.set_(anna, "report", changes)
    pausing.pause(anna, ["report"], "first", None)
    pausing.pause_one(anna, "report", "second", None)
    changed, [set_, *_] = find_records(app, verb="pause")[0], find_records(app, verb="set")
    assert (changed.details, changed.before) == ({"note": "second"}, {"note": "first"})
    assert set_.before["end_time"] is None
    [added] = find_records(app, verb="add")
    assert added.details.keys() == {"task", "schedule", "kwargs"}, "what wasn't given is left out"
    browser = browse("read")
    browser.http.cookies.set("redbeat-zone", "Asia%2FTokyo")
    page = unescape(browser.read("/audit"))
    for words in (
        "note: first -> second",
        "schedule: every 1m",
        "schedule: every 1m -> 0 9 * * mon-fri",
        "jitter: none -> 90",
        '{"password": "(hidden)", "to": "a"} -> {"password": "(hidden)", "to": "b"}',
        "end_time: none -> 2098-01-02 18:30:00 Asia/Tokyo",
        f'args: [] -> ["{end}"]',
    ):
        assert words in page, words
    assert "0ld" not in page + str([one.to_dict() for one in find_records(app)])


def test_what_a_command_has_changed_is_shown_without_what_is_hidden_of_before(
    app: Celery, browse: Browse
) -> None:
    app.conf.redbeat_web_hide = ["to"]
    RedBeatSchedulerEntry("report", "echo", 60, kwargs={"to": "secret@b"}, jitter=5, app=app).save()
    done = call(app, "set", "report", "--kwargs", '{"to": "new@b"}', "--every", "90s", "--unset", "jitter")
    assert done.exit_code == 0, done.output
    page = unescape(browse("read").read("/audit"))
    assert "every: every 1m -> 90" in page
    assert "jitter: 5 -> none" in page
    assert "secret@b" not in page
    [record] = find_records(app, verb="set")
    assert record.before["kwargs"] == {"to": "secret@b"}, "the command line hides nothing"
    assert '{"to": "secret@b"} -> {"to": "new@b"}' in " ".join(call(app, "audit").stdout.split())
