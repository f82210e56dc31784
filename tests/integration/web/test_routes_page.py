"""Routes in the dashboard: of one entry, and of all of them by where they go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery

from redbeat.diagnostics.route_survey import NAMES, Survey, survey_routes
from redbeat.web.pages import routing
from tests.conftest import MakeApp
from tests.support.dashboards import Browser, dashboard_of
from tests.support.polling import eventually

Browse = Callable[..., Browser]


def route_of(_name: str, args: Any, *_others: Any, **_more: Any) -> Any:
    """A router that looks at the arguments, and doesn't know all of them."""
    if list(args) == ["broken"]:
        raise LookupError("there is no such customer")
    return {"queue": str(args[0])} if args else None


def test_it_shows_the_route_of_an_entry_and_of_a_task(make_app: MakeApp, add: Any) -> None:
    app = make_app(task_routes={"billing.*": {"queue": "billing", "priority": 3}})
    browser = Browser(dashboard_of(app, ["read"]))
    add("report", task="billing.report")
    page = browser.read("/routes", name="report")
    assert "billing.report goes to <strong>the queue billing</strong>" in page
    assert "task_routes[&#39;billing.*&#39;]" in page
    page = browser.read("/routes", name="report", queue="other", priority="7")
    assert "goes to <strong>the queue other</strong>" in page
    assert "the option priority" in page
    assert "priority: must be a whole number" in browser.read("/routes", name="report", priority="-1")
    assert "There is no such entry, and the application has no such task" in browser.read(
        "/routes", name="<b>nothing</b>"
    )
    page = browser.read("/routes")
    assert "the queue billing" in page
    assert "1 entry looked at" in page


def test_a_survey_asks_routers_that_look_at_arguments_about_each_entry(make_app: MakeApp, add: Any) -> None:
    app = make_app(task_routes=[route_of])
    for number in range(30):
        add(f"entry {number:02}", args=[f"queue {number % 2}"])
    add("broken", args=["broken"])
    add("plain")
    found = survey_routes(app, max_seconds=1e6)
    assert (found.seen, found.is_whole, found.percent) == (32, True, 100)
    nowhere, *others = found.destinations
    assert "there is no such customer" in nowhere.problem
    assert [(one.where, one.count) for one in others] == [
        ("the queue queue 0", 15),
        ("the queue queue 1", 15),
        ("the queue celery", 1),
    ]
    assert others[0].rules == {f"task_routes, {__name__}.route_of": 15}
    assert len(others[0].names) == min(NAMES, 15)


def test_a_survey_ends_in_time_and_says_how_far_it_came(app: Celery, add: Any) -> None:
    for number in range(250):
        add(f"entry {number}")
    told: list[Survey] = []
    found = survey_routes(app, max_seconds=0, tell=told.append)
    assert not found.is_whole
    assert found.seen == told[-1].seen < found.total
    assert 0 < found.percent < 100


def test_queues_without_workers_are_told_if_workers_were_asked(
    browse: Browse, add: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routing, "WORKERS_SECONDS", 0.1)
    add("a", options={"queue": "lonely"})
    browser = browse("read")
    eventually(lambda: "workers weren" in browser.read("/routes"))
    assert browser.get("/routes/look", workers="yes").headers["location"] == "/routes?workers=yes"
    page = eventually(lambda: "answered" in (one := browser.read("/routes", workers="yes")) and one)
    assert "no worker that has answered takes from lonely" in page
