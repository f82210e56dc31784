"""Who may do what: every page, form and operation, with every right. The tables here are written by hand."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from redbeat.access import Right
from redbeat.entries.audit import find_records
from redbeat.web import asgi_app
from tests.integration.web.conftest import Browse, Programs
from tests.integration.web.dashboard_walk import call_operations, routes
from tests.support.dashboards import Browser, dashboard_of

#: pages and forms that take more than the right to read
OF_PAGES = {
    "pause": (
        "GET /entries/pause", "POST /entries/pause", "GET /entries/resume", "POST /entries/resume",
    ),
    "run": (
        "GET /entries/trigger", "POST /entries/trigger", "GET /entry/run", "POST /entry/run",
        "GET /entry/backfill", "POST /entry/backfill", "GET /runs/rerun", "POST /runs/rerun",
        "POST /runs/rerun-one", "POST /runs/rerun-chosen", "POST /runs/give-up",
    ),
    "edit": (
        "GET /entry/new", "GET /entry/edit", "POST /entry/edit", "POST /entry/preview", "POST /entry/save",
        "GET /files/export", "POST /files/plan", "POST /files/apply", "POST /calendar/set",
        "POST /calendar/import",
    ),
    "delete": (
        "GET /entries/delete", "POST /entries/delete", "POST /later/cancel",
        "POST /calendar/delete",
    ),
    "admin": ("GET /doctor/fix", "POST /doctor/fix"),
}  # fmt: skip
#: operations that do
OF_OPERATIONS = {
    "pause": ("PUT /entries/{name}/pause", "DELETE /entries/{name}/pause", "PUT /pause", "PUT /resume"),
    "run": (
        "DELETE /entries/{name}/runs/{task_id}", "DELETE /entries/{name}/runs", "PUT /rerun", "PUT /trigger",
        "PUT /backfill", "PUT /entries/{name}/trigger", "PUT /entries/{name}/backfill",
        "PUT /entries/{name}/rerun",
    ),
    "edit": (
        "PUT /entries/{name}", "PATCH /entries/{name}", "PUT /set", "PUT /calendars/{name}",
        "PATCH /calendars/{name}", "PUT /plan", "PUT /apply", "GET /export", "PUT /import",
    ),
    "delete": (
        "DELETE /entries/{name}", "PUT /delete", "DELETE /later/{task_id}", "DELETE /calendars/{name}",
    ),
    "admin": ("PUT /doctor/fix", "PUT /purge"),
}  # fmt: skip
#: forms that anybody may send, and one that changes nothing: its names may be too long for an address
OPEN = {"GET /login", "POST /login", "POST /logout"}
QUESTION = "POST /entries/rows"


def right_of(what: str, table: dict[str, tuple[str, ...]]) -> str:
    """Return the right that the table has for a page, form or operation."""
    [found] = [right for right, those in table.items() if what in those] or ["read"]
    assert found != "read" or what.startswith("GET ") or what == QUESTION, f"{what} is not in the table"
    return found


def visit(browser: Browser) -> dict[str, Any]:
    """Open each page, and send each form with its token and nothing else; return the answers."""
    token, answers = browser.token(), {}
    for method, path, _ in routes():
        if path != "/live" and f"{method} {path}" not in OPEN:
            ask = browser.get if method == "GET" else browser.post
            answers[f"{method} {path}"] = ask(path, **({} if method == "GET" else {"csrf_token": token}))
    return answers


@pytest.mark.parametrize("right", list(Right), ids=lambda right: right.value)
def test_page_or_form_takes_its_right(browse: Browse, app: Celery, right: Right) -> None:
    for what, answer in visit(browse(right.value)).items():
        needed = right_of(what, OF_PAGES)
        may = needed in ("read", right.value) or right is Right.ADMIN
        assert (answer.status_code != 403) is may, (what, answer.text)
        assert may or "takes the right" in answer.text
    assert find_records(app) == []


@pytest.mark.parametrize("right", list(Right), ids=lambda right: right.value)
def test_operation_takes_its_right(program: Programs, app: Celery, right: Right) -> None:
    for operation, answer in call_operations(program(right.value)):
        needed = right_of(f"{operation.method} {operation.path}", OF_OPERATIONS)
        may = needed in ("read", right.value) or right is Right.ADMIN
        assert (answer.status_code != 403) is may, (operation.method, operation.path, answer.text)
        assert may or answer.json()["right"] == needed
    if right is Right.READ:
        assert find_records(app) == []


def test_read_only_dashboard_refuses_every_change_of_an_admin(
    browse: Browse, program: Programs, app: Celery
) -> None:
    for what, answer in visit(browse(read_only=True)).items():
        assert (answer.status_code == 403) is (right_of(what, OF_PAGES) != "read"), what
    for operation, answer in call_operations(program(read_only=True)):
        needed = right_of(f"{operation.method} {operation.path}", OF_OPERATIONS)
        assert (answer.status_code == 403) is (needed != "read"), operation.path
    assert find_records(app) == []


def test_stranger_sees_and_changes_nothing(app: Celery) -> None:
    application = asgi_app(app)
    for what, answer in visit(Browser(application)).items():
        assert answer.status_code == 401, (what, answer.text)
    for path in ("/live", "/api/v1/entries", "/api", "/api/v1/../../", "/nothing"):
        assert Browser(application).get(path).status_code == 401, path
    assert find_records(app) == []


def test_user_without_rights_sees_nothing(app: Celery) -> None:
    for what, answer in visit(Browser(dashboard_of(app, rights=()))).items():
        assert answer.status_code == 403, what
