"""Runs in the dashboard: which are shown, and what becomes of those that are rerun or given up."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import timedelta

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry, track_runs
from redbeat.entries.run_search import search_runs
from redbeat.entries.runs import SOUGHT, find_runs
from redbeat.runs.run import Run
from redbeat.store.server import Server as Clock
from redbeat.store.store import Store
from tests.conftest import MakeApp
from tests.support.dashboard_pictures import Became, run_now
from tests.support.dashboards import Browser
from tests.support.polling import eventually
from tests.support.screenshots import fill

Browse = Callable[..., Browser]


@pytest.fixture
def app(make_app: MakeApp, client: redis.Redis) -> Celery:
    """Of a schedule in which three runs have ended, one of them badly, and one is in progress."""
    app = make_app(redbeat_lock_key=None)
    app.redbeat_redis = client
    track_runs(app)
    fill(app)
    return app


def names_in(page: str) -> list[str]:
    return [part.split('"')[0] for part in page.split('<a class="cut" href="/entry?name=')[1:]]


def read(browser: Browser, **query: str) -> str:
    """The page, when what it looks for is there."""

    def whole() -> str | None:
        page = browser.read("/runs", **query)
        return None if 'hx-trigger="load' in page else page

    return str(eventually(whole))


def marks_of(runs: Iterable[Run]) -> list[object]:
    """What doesn't change from one look to the next."""
    return [replace(run, age_seconds=None) for run in runs]


def test_it_shows_what_the_command_line_does(app: Celery, browse: Browse) -> None:
    browser = browse("read")
    assert names_in(read(browser)) == ["catalog.sync-prices", "cleanup"]
    assert names_in(read(browser, state="running")) == ["catalog.sync-prices"]
    page = read(browser, state="failed,lost,never_started")
    assert names_in(page) == ["cleanup"]
    assert "OSError: No space left on device" in page
    whole = ["catalog.sync-prices", "cleanup", "heartbeat", "report"]
    assert sorted(names_in(read(browser, state="all", since="1d"))) == whole
    assert names_in(read(browser, state="succeeded", match="re*")) == ["report"]
    assert names_in(read(browser, state="all", since="1d", name="report")) == ["report"]
    assert names_in(read(browser, state="overdue")) == []
    assert "did you mean" in browser.read("/runs", status=422, state="faild").lower()
    assert "is no length of time" in browser.read("/runs", status=422, since="yesterday<b>")
    assert "Rerun" not in page  # who only reads sees no button
    part = browser.get("/runs", headers={"HX-Request": "true"}).text
    assert "<html" not in part
    assert names_in(part) == ["catalog.sync-prices", "cleanup"]


def test_a_search_finds_what_the_command_line_does_within_its_bounds(app: Celery) -> None:
    now = Clock(Store(app)).now()
    for states in (None, *([state] for state in SOUGHT), ["failed", "succeeded", "started"]):
        for since in (None, now - timedelta(days=1), now + timedelta(days=1)):
            expected = find_runs(app, states, since=since)
            found = search_runs(app, states, since=since, most=100, max_seconds=1e6)
            assert marks_of(found.runs) == marks_of(expected), (states, since)
            assert (found.count, found.is_whole) == (len(expected), True)
            few = search_runs(app, states, since=since, most=2, max_seconds=1e6)
            assert marks_of(few.runs) == marks_of(expected[:2])
            assert few.count == len(expected)
    for number in range(200):
        RedBeatSchedulerEntry(f"other {number:03}", "echo", 3600, app=app).save()
    told: list[int] = []
    hurried = search_runs(app, ["succeeded"], most=5, max_seconds=0, tell=lambda one: told.append(one.seen))
    assert not hurried.is_whole
    assert 0 < hurried.percent < 100
    whole = search_runs(app, ["succeeded"], most=5, max_seconds=1e6, tell=lambda one: told.append(one.seen))
    assert (whole.is_whole, whole.percent, whole.count) == (True, 100, 2)
    assert told == sorted(told) != []


def test_one_run_is_sent_once_more_and_all_that_failed_once(
    app: Celery, browse: Browse, broker: redis.Redis
) -> None:
    browser = browse("run")
    queued = broker.llen("celery")
    page = read(browser, state="failed")
    assert 'data-confirm="Send this run of cleanup once more?"' in page
    [run] = find_runs(app, ["failed"])
    given = {"name": "cleanup", "due": run.due.isoformat(), "kept_state": "failed"}
    asked = browser.post("/runs/rerun-one", **given)  # without a script it is asked first
    assert "Send this run once more?" in asked.text
    assert broker.llen("celery") == queued
    # what is still being looked for is shown a moment later
    eventually(lambda: "Send 1 run of 1 entry once more?" in browser.read("/runs/rerun", since="1d"))
    assert broker.llen("celery") == queued
    assert "Sent 1 run once more." in browser.send("/runs/rerun", since="1d", confirmed="yes")
    assert broker.llen("celery") == queued + 1
    eventually(lambda: "There is nothing to send" in browser.read("/runs/rerun", since="1d"))
    assert "its task id is" in browser.send("/runs/rerun-one", confirmed="yes", **given)
    assert broker.llen("celery") == queued + 2
    # of what is ticked each run is sent once, and not at all if that was done already
    ticked = {"run": json.dumps(["cleanup", run.due.isoformat()]), "kept_state": "failed"}
    assert "Send 1 run once more?" in browser.post("/runs/rerun-chosen", **ticked).text
    assert "Sent 0 runs once more." in browser.send("/runs/rerun-chosen", confirmed="yes", **ticked)
    assert broker.llen("celery") == queued + 2
    wrong = browser.post("/runs/rerun-chosen", run='["cleanup", 5]', confirmed="yes")
    assert "must be a name and a due time" in wrong.text
    refused = browse("pause").post("/runs/rerun", since="1d", confirmed="yes")
    assert refused.status_code == 403
    assert broker.llen("celery") == queued + 2


def test_a_run_is_given_up_when_that_was_confirmed(app: Celery, browse: Browse) -> None:
    browser = browse("run")
    [run] = find_runs(app, ["running"])
    given = {"name": run.name, "task_id": str(run.task_id), "kept_since": "1d"}
    assert "Give up 1 run of catalog.sync-prices?" in browser.post("/runs/give-up", **given).text
    assert find_runs(app, ["running"]) != []
    answer = browser.post("/runs/give-up", confirmed="yes", **given)
    assert answer.headers["location"] == "/runs?since=1d"
    assert find_runs(app, ["running"]) == []
    [lost] = find_runs(app, ["lost"])
    assert (lost.task_id, lost.error) == (run.task_id, "given up by anna")
    assert "1 run has gone on or ended meanwhile" in browser.send("/runs/give-up", confirmed="yes", **given)


def test_the_overview_names_what_has_failed_lately_and_what_fails_in_a_row(
    app: Celery, browse: Browse
) -> None:
    run_now(app, {"cleanup": Became("lost", 0.5)})
    page = browse("read").read("/")
    panels = dict(re.findall(r"<h2>(Fail[^<]*)</h2></div>(.*?)</section>", page, re.DOTALL))
    words = {name: " ".join(re.sub(r"<[^>]+>", " ", html).split()) for name, html in panels.items()}
    lately = (
        r"cleanup lost (\d+ m?s ago|now) cleanup failed (\d+ m?s ago|now) OSError: No space left on device"
    )
    assert re.fullmatch(lately, words["Failed lately"]), words
    assert words["Failed in a row"] == "cleanup 2 runs"
    assert panels["Failed in a row"].count('href="/entry?name=cleanup"') == 1
