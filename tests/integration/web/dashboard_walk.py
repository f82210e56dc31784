"""A walk over the whole dashboard: every page, form and operation once, in the order of its tables.

A new route or operation is walked over without a line here, unless it needs a field of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.calendars import Calendar
from redbeat.keys import Keys
from redbeat.schedules import clocked
from redbeat.web.api.resources import OPERATIONS
from redbeat.web.application import PAGES
from tests.support.dashboards import Browser
from tests.support.forms import form_fields
from tests.support.polling import eventually
from tests.support.programs import Program
from tests.support.progress import Progress
from tests.support.schedule import server_now
from tests.support.stored import store

FAR = datetime(2099, 3, 1, 9, 30, tzinfo=timezone.utc)
#: the due time of the run that has failed
FAILED = "1970-01-01T00:16:40+00:00"
SECRET = "s3cret"
FILE = "{owner: ops, entries: {mine: {task: tasks.report, schedule: 60}}}"
_ITEM = {"task": "tasks.report", "schedule": "1h"}


def routes() -> Iterator[tuple[str, str, str]]:
    """Each method and path of a page or form, and the right that it takes; '': none."""
    for route in PAGES:
        right = getattr(route.endpoint, "right", None)  # type: ignore[attr-defined]
        for method in sorted(route.methods - {"HEAD"}):  # type: ignore[attr-defined]
            yield method, route.path, right.value if right else ""  # type: ignore[attr-defined]


def fill(app: Celery, client: redis.Redis) -> None:
    """Store a schedule in which something has happened."""
    Calendar("closed", ["2098-12-25"], app=app).save()

    def add(name: str, schedule: Any = None, **fields: Any) -> Entry:
        return Entry(name, "tasks.report", schedule or clocked(FAR), app=app, **fields).save()

    add("report", args=[1], kwargs={"password": SECRET, "to": "ann"}, exclude="closed")
    add("hourly", 3600).reschedule(datetime.now(timezone.utc) - timedelta(hours=5, minutes=30))
    add("other").pause("broken")
    add("extra")
    client.zadd(Keys().schedule, {"redbeat:gone": server_now(client) + 1000})
    client.rpush(Keys().about("past").history, "{}")  # what is left of an entry that is gone
    progress = Progress(app, client)
    progress.end(progress.started("report", "one"), "failed", error="ValueError: no customer")
    progress.started("report", "two", due=2000.0)
    progress.started("hourly", "three", due=3000.0)
    store(app, "first", "second", kwargs={"password": SECRET})
    store(app, "third", args=[object], serializer="pickle", seconds=90_000)


#: what a page is asked for besides the name of an entry
QUERIES: dict[str, dict[str, str]] = {
    "/entry": {"at": "2098-01-01T0800"},
    "/calendar": {"name": "closed", "year": "2098"},
    "/doctor/fix": {"kind": "missing-hash"},
    "/entries": {"sort": "name"},
    "/later/message": {"task_id": "second"},
    "/runs": {"state": "all", "since": "1d"},
    "/runs/rerun": {"since": "1d"},
}
#: what a form sends, and the page whose own fields it sends too
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "/entries/rows": ("", {"shown": "report"}),
    "/entries/pause": ("", {"name": ["report", "extra"], "note": "moving", "until": "2098-01-01T00:00Z"}),
    "/entries/resume": ("", {"name": ["report", "extra"]}),
    "/entries/trigger": ("", {"name": ["extra"]}),
    "/entries/delete": ("/entries/delete?name=extra", {}),
    "/entry/run": ("/entry/run?name=report", {"args": "[7]", "queue": "slow"}),
    "/entry/backfill": ("", {"name": "hourly", "from": "3h"}),
    "/entry/edit": ("/entry/edit?name=report", {"to": "json"}),
    "/entry/preview": ("/entry/edit?name=report", {"jitter": "5m"}),
    "/entry/save": ("/entry/edit?name=report", {"jitter": "5m"}),
    "/runs/rerun-one": ("", {"name": "report", "due": FAILED}),
    "/runs/rerun-chosen": ("", {"run": f'["report", "{FAILED}"]'}),
    "/runs/give-up": ("", {"name": "hourly", "task_id": "three"}),
    "/runs/rerun": ("", {"since": "1d"}),
    "/later/cancel": ("", {"task_id": "first", "revision": ""}),
    "/doctor/fix": ("/doctor/fix?kind=missing-hash", {}),
    "/files/plan": ("", {"text": FILE, "owner": ""}),
    "/files/apply": ("/files/plan", {"text": FILE}),
    "/calendar/set": ("", {"name": "new", "revision": "", "text": "2098-01-01 New Year", "about": "ours"}),
    "/calendar/import": ("", {"name": "read", "files": {"file": ("days.txt", b"2098-07-01", "text/plain")}}),
    "/calendar/delete": ("", {"name": "closed", "force": "yes"}),
}
#: what an operation is asked with: its path, if that isn't one of "report"; its body; its query
REQUESTS: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "PUT /entries/{name}": ("/entries/made", _ITEM, {}),
    "PATCH /entries/{name}": ("", {"jitter": 60}, {}),
    "DELETE /entries/{name}": ("/entries/made", None, {}),
    "PUT /delete": ("", {"names": ["extra"]}, {}),
    "GET /entries/{name}/why": ("", None, {"at": "2098-01-01T08:00:00Z"}),
    "PUT /entries/{name}/pause": ("", {"note": "why", "until": "2098-01-01T00:00:00Z"}, {}),
    "PUT /pause": ("", {"match": "h*", "note": "moving"}, {}),
    "PUT /resume": ("", {"names": ["hourly"], "note": "moving"}, {}),
    "DELETE /entries/{name}/runs/{task_id}": ("/entries/report/runs/two", None, {}),
    "DELETE /entries/{name}/runs": ("/entries/hourly/runs", None, {}),
    "PUT /entries/{name}/trigger": ("", {"args": [7], "queue": "slow"}, {}),
    "PUT /entries/{name}/backfill": ("/entries/hourly/backfill", {"from": "{3h}"}, {}),
    "PUT /entries/{name}/rerun": ("", {"due": FAILED}, {}),
    "PUT /rerun": ("", {"since": "1d", "match": "rep*"}, {}),
    "PUT /set": ("", {"names": ["report"], "changes": {"jitter": 30}}, {}),
    "PUT /trigger": ("", {"names": ["report"], "args": [8]}, {}),
    "PUT /backfill": ("", {"names": ["hourly"], "from": "{5h}"}, {}),
    "DELETE /later/{task_id}": ("/later/first", None, {}),
    "PUT /calendars/{name}": ("/calendars/new", {"days": {"2098-01-01": "New Year"}}, {}),
    "PATCH /calendars/{name}": ("/calendars/new", {"days": {"2098-05-01": ""}}, {}),
    "DELETE /calendars/{name}": ("/calendars/new", None, {"force": "true"}),
    "PUT /plan": ("", {"owner": "ops", "entries": {"mine": _ITEM}}, {}),
    "PUT /apply": ("", {"owner": "ops", "entries": {"mine": _ITEM}}, {}),
    "PUT /import": ("", {"entries": {"read": _ITEM}}, {}),
    "GET /doctor": ("", None, {"max_seconds": 1}),
    "PUT /doctor/fix": ("", {"max_seconds": 1}, {}),
    "GET /routes": ("", None, {"task": "tasks.report"}),
}


def open_pages(browser: Browser) -> Iterator[tuple[str, Any]]:
    """Open each page; yield its path and the answer."""
    for method, path, _ in routes():
        if method == "GET" and path != "/live":  # a stream without an end
            yield path, browser.get(path, **{"name": "report", **QUERIES.get(path, {})})


def send_forms(
    browser: Browser, seen_by: Browser | None = None, confirmed: str = "yes"
) -> Iterator[tuple[str, Any]]:
    """Send each form; yield its path and the answer.

    ``seen_by``: who opens the pages that the forms stand on.
    """
    reader = seen_by or browser
    token = browser.token()
    for method, path, _ in routes():
        if method != "POST" or path in ("/login", "/logout"):
            continue
        page, fields = FORMS.get(path, ("", {"name": "report"}))
        own: dict[str, str] = {}
        if page == "/files/plan":
            own = form_fields(reader.post(page, **FORMS[page][1]).text)
        elif page:
            own = eventually(partial(_fields_of, reader, page))
        sent = {**own, "confirmed": confirmed, **fields, "csrf_token": token}
        yield path, browser.post(path, {"hx-request": "true"} if path == "/entry/preview" else None, **sent)


def _fields_of(browser: Browser, page: str) -> dict[str, str]:
    return form_fields(browser.read(page), "entry-form" if page.startswith("/entry/edit") else None)


def call_operations(
    program: Program, methods: Sequence[str] = ("GET", "PUT", "PATCH", "DELETE")
) -> Iterator[tuple[Any, Any]]:
    """Call each operation that has one of these methods; yield it and the answer."""
    for operation in OPERATIONS:
        if operation.method not in methods:
            continue
        path, body, query = REQUESTS.get(f"{operation.method} {operation.path}", ("", None, {}))
        name = "closed" if "calendars" in operation.path else "report"
        path = path or operation.path.replace("{name}", name).replace("{task_id}", "second")
        if body is None and operation.body is not None:
            body = {}
        if body and str(body.get("from", "")).startswith("{"):
            hours = int(body["from"].strip("{h}"))
            body = {**body, "from": (datetime.now(timezone.utc) - timedelta(hours=hours)).isoformat()}
        yield operation, program.ask(operation.method, path, body, **query)
