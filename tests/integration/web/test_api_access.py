"""Who may do what over the REST interface, and that nothing else gets through."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.access import Right
from redbeat.diagnostics.checks import Diagnosis
from redbeat.entries.audit import find_records
from redbeat.store.server import Server
from redbeat.store.store import Store
from redbeat.store.tokens import Tokens
from redbeat.web import asgi_app
from redbeat.web.access.limits import MAX_BODY_BYTES
from redbeat.web.api.openapi import document_of
from redbeat.web.api.resources import OPERATIONS
from redbeat.web.hiding import MAX_DEPTH
from tests.support.dashboards import Browser
from tests.support.polling import eventually
from tests.support.programs import Program, fault_of, token_of

Add = Callable[..., RedBeatSchedulerEntry]
Programs = Callable[..., Program]
ENTRY = {"task": "echo", "schedule": {"__type__": "interval", "every": 60}}
#: a body with which an operation can begin
BODIES: dict[str, Any] = {
    "/entries/{name}": ENTRY,
    "/entries/{name}/backfill": {"from": "2020-01-01T00:00:00Z", "dry_run": True},
    "/entries/{name}/rerun": {"dry_run": True},
    "/rerun": {"since": "1d", "dry_run": True},
    "/pause": {"names": ["none"]},
    "/resume": {"names": ["none"]},
    "/delete": {"names": ["none"]},
    "/plan": {"owner": "x", "entries": {}},
    "/apply": {"owner": "x", "entries": {}},
    "/import": {"entries": {}},
    "/calendars/{name}": {"days": {"2030-01-01": ""}},
    "/purge": {"dry_run": True},
    "/doctor/fix": {"dry_run": True, "max_seconds": 1},
}


def call(program: Program, operation: Any) -> Any:
    path = re.sub(r"{\w+}", "one", operation.path)
    body = BODIES.get(operation.path) if operation.body is not None else None
    query = {"task": "echo"} if operation.path == "/routes" else {}
    return program.ask(operation.method, path, body, **query)


@pytest.mark.few_cases(3)
@pytest.mark.parametrize("right", list(Right))
def test_exactly_the_right_in_the_table_suffices(
    program: Programs, app: Celery, add: Add, right: Right
) -> None:
    one = program(right.value)
    for operation in OPERATIONS:
        if operation.path == "/entries/{name}" and operation.method != "DELETE":
            add("one")
        answer = call(one, operation)
        may = right is Right.ADMIN or operation.right in (right, Right.READ)
        assert (answer.status_code != 403) is may, (operation.method, operation.path, answer.text)
        if not may:
            assert answer.json()["right"] == operation.right.value
    if right is Right.READ:
        assert find_records(app) == []


def test_where_nobody_may_change_anything_an_admin_may_not(program: Programs, app: Celery, add: Add) -> None:
    add("one")
    one = program(read_only=True)
    for operation in OPERATIONS:
        answer = call(one, operation)
        assert (answer.status_code == 403) is (operation.right is not Right.READ), operation.path
        assert operation.method == "GET" or answer.status_code == 403
    assert find_records(app) == []


def test_tokens_that_have_ended_cookies_and_other_headers_let_nobody_in(
    app: Celery, program: Programs
) -> None:
    store = Store(app)
    one = program()
    Tokens(store).revoke(Tokens(store).list()[-1].name)
    assert one.ask("GET", "/entries").status_code == 401
    soon = Program(app, token=token_of(app, expires_at=Server(store).now() + timedelta(seconds=2)))
    eventually(lambda: soon.ask("GET", "/entries").status_code == 401)
    token = token_of(app)
    http = Browser(asgi_app(app)).http
    assert http.post("/login", data={}).status_code in (401, 403)
    browser = Browser(asgi_app(app))
    browser.post("/login", token=token)
    assert "Overview" in browser.read("/")
    for headers in (
        {},
        {"authorization": f"Basic {token}"},
        {"authorization": token},
        {"authorization": f"Bearer {token}x"},
        {"authorization": "Bearer "},
        {"x-api-key": token},
        {"cookie": f"token={token}"},
    ):
        answer = browser.http.get("/api/v1/entries", headers=headers)
        assert answer.status_code == 401, headers
        assert answer.headers["www-authenticate"].startswith("Bearer")
    assert browser.http.get(f"/api/v1/entries?token={token}").status_code == 401
    assert browser.http.put("/api/v1/purge").status_code == 401


def test_methods_are_what_they_are(program: Programs, app: Celery, add: Add) -> None:
    add("one")
    one = program()
    for headers in (
        {"x-http-method-override": "DELETE"},
        {"x-method-override": "DELETE"},
        {"x-http-method": "DELETE"},
    ):
        assert one.ask("GET", "/entries/one", headers=headers).json()["name"] == "one"
        assert one.ask("POST", "/entries/one", {"_method": "DELETE"}, headers).status_code == 405
    for method, path, allowed in (
        ("POST", "/entries/one", "DELETE, GET, HEAD, PATCH, PUT"),
        ("PUT", "/entries", "GET, HEAD"),
        ("GET", "/pause", "PUT"),
        ("OPTIONS", "/purge", "PUT"),
        ("TRACE", "/purge", "PUT"),
        ("BREW", "/entries", "GET, HEAD"),
    ):
        answer = one.ask(method, path)
        assert (answer.status_code, answer.headers["allow"]) == (405, allowed)
    head = one.ask("HEAD", "/entries/one")
    assert (head.status_code, head.content, "etag" in head.headers) == (200, b"", True)
    for path in ("/", "/nothing", "/entries/one/nothing", "/entries/one/pause/more"):
        assert one.ask("GET", path).status_code in (404, 400, 405), path


BAD_JSON = [
    b"{",
    b"",
    b"\xff",
    b'{"args": NaN}',
    b'{"args": [Infinity]}',
    b'{"args": [1e999]}',
    b'{"args": [1], "args": [2]}',
    b'{"kwargs": {"a": 1, "a": 2}}',
    b'{"args": ["\\ud800"]}',
    b'{"args": [%s1%s]}' % (b"[" * 50_000, b"]" * 50_000),
    b'{"args": %s1%s}' % (b"[" * MAX_DEPTH, b"]" * MAX_DEPTH),
    b'{"args": [%s]}' % (b"9" * 5000),
    b"\x00",
    b"\xef\xbb\xbf{}",
]


@pytest.mark.parametrize("number", range(len(BAD_JSON)))
def test_what_is_no_strict_json_changes_nothing(
    program: Programs, app: Celery, add: Add, number: int
) -> None:
    before = add("one", args=[7]).stored
    one = program()
    for method, path, media in (
        ("PATCH", "/entries/one", "application/merge-patch+json"),
        ("PUT", "/entries/one", "application/json"),
        ("PUT", "/pause", "application/json"),
    ):
        answer = one.ask(method, path, content=BAD_JSON[number], media=media)
        assert answer.status_code == 400, (method, answer.text)
    for value in (b"[]", b"5", b'"x"', b"null"):
        assert one.ask("PATCH", "/entries/one", content=value, media="application/json").status_code == 422
    assert RedBeatSchedulerEntry.get("one", app).stored == before
    assert find_records(app) == []


def test_bodies_of_other_kinds_and_sizes_are_refused(program: Programs, add: Add) -> None:
    add("one")
    one, body = program(), json.dumps(ENTRY).encode()
    for media in (
        "",
        "text/plain",
        "application/x-www-form-urlencoded",
        "application/json; charset=latin-1",
        "a/b/c",
    ):
        answer = one.ask("PUT", "/entries/one", content=body, media=media)
        assert (answer.status_code, "application/json" in answer.json()["detail"]) == (415, True), media
    packed = {"content-encoding": "gzip"}
    answer = one.ask(
        "PUT", "/entries/one", headers=packed, content=gzip.compress(body), media="application/json"
    )
    assert answer.status_code == 415
    large = b'{"args": ["%s"]}' % (b"x" * MAX_BODY_BYTES)
    assert one.ask("PATCH", "/entries/one", content=large, media="application/json").status_code == 413
    answer = one.http.get(f"/api/v1/entries?match={'x' * 20_000}")
    assert (answer.status_code, answer.headers["content-type"]) == (414, "application/problem+json")
    answer = one.http.get("/api/v1/entries", headers={"host": "evil.com"})
    assert (answer.status_code, answer.headers["content-type"]) == (400, "application/problem+json")
    wide = {"kwargs": {str(number): number for number in range(50_000)}}
    assert one.ask("PATCH", "/entries/one", wide).status_code in (200, 422)


def test_unknown_and_wrong_parameters_are_errors(program: Programs, add: Add) -> None:
    add("one")
    one = program()
    for path in (
        "/entries?nonsense=1",
        "/entries?limit=0",
        "/entries?limit=x",
        "/entries?limit=1&limit=2",
        "/entries?state=x",
        "/entries?enabled=yes",
        "/entries?due_before=tomorrow",
        "/entries?limit=1001",
        "/entries?limit=%D9%A1",
        "/count?limit=5",
        "/entries/one?x=1",
        "/entries/one/next?count=100000",
        "/timeline?hours=nan",
        "/timeline?hours=1e9",
        "/timeline?columns=5000",
        "/runs?state=failed,x",
        "/status?late_after=-1",
        "/status?late_after=1_0",
        "/status?late_after=%D9%A1",
        "/status?late_after=inf",
        "/entries/one/why?at=2030-01-01T00:00:00",
        "/audit?since=nonsense",
        "/doctor?max_seconds=1000",
        *(
            f"/{path}={'*a' * 151}"
            for path in ("entries?match", "count?task", "runs?match", "timeline?match")
        ),
        *(f"/{path}={'*a' * 151}" for path in ("next?match", "audit?user", "audit?verb", "export?match")),
    ):
        answer = one.ask("GET", path)
        assert answer.status_code == 400, (path, answer.text)
    span = {"from": "2020-01-01T00:00:00Z", "dry_run": True}
    for value in (5.5, 10**400, 1e300, True, "5"):
        answer = one.ask("PUT", "/entries/one/backfill", {**span, "limit": value})
        assert answer.status_code == 422, value
    assert one.ask("PUT", "/doctor/fix", {"dry_run": True, "max_seconds": 10**400}).status_code == 422
    # JSON has one kind of numbers
    one.put("/entries/one/backfill", {**span, "limit": 5.0})
    for start in ("6h", "2030-12-24T18:00"):
        said = one.ask("GET", "/timeline", start=start).json()["detail"]
        assert one.ask("GET", "/timeline", start=re.findall(r"2030\S+", said)[0]).status_code == 200, said
    assert one.ask("GET", "/runs?since=1970-01-01T00:00:00%2B14:00").status_code == 200
    told = one.ask("GET", "/entries/one/next?most=3").json()["detail"]
    assert told == "There is no 'most' here. It takes count, after."
    assert "openapi.json" in one.ask("GET", "/entries/team/one").json()["detail"]
    assert one.ask("PUT", "/entries/one/pause?note=x", {}).status_code == 400
    for path, body in (
        ("/doctor/fix", {"max_seconds": 10**400, "dry_run": True}),
        ("/doctor/fix", {"max_seconds": None}),
        ("/entries/one/pause", {"until": "2030-12-24T18:00"}),
        ("/delete", {"names": ["one"], "dry_run": None}),
        ("/entries/one/trigger", {"args": [[]] * 100_001}),
        ("/entries/one", {"task": "echo", "schedule": {"cron": f"{'0-59,' * 4000}1 * * * *"}}),
        ("/entries/one", {"task": "echo", "schedule": {"__type__": "crontab", "minute": "0-59," * 4000}}),
        ("/pause", {"match": "*a" * 400_000, "dry_run": True}),
        ("/resume", {"note": "*a" * 151}),
        ("/rerun", {"since": "1d", "match": "*a" * 151}),
    ):
        assert one.ask("PUT", path, body).status_code == 422, path
    assert one.ask("DELETE", "/entries/one/pause", headers={"if-match": '"x"'}).status_code == 400


def test_tasks_that_are_not_allowed_are_neither_scheduled_nor_run(
    program: Programs, app: Celery, add: Add
) -> None:
    add("one", task="proj.secret")
    app.conf.redbeat_web_tasks = ["echo"]
    del app.redbeat_conf
    one = program()
    for method, path, body in (
        ("PUT", "/entries/one", ENTRY),
        ("PUT", "/entries/new", {**ENTRY, "task": "proj.secret"}),
        ("PATCH", "/entries/one", {"task": "echo"}),
        ("PUT", "/entries/one/trigger", {}),
        ("PUT", "/entries/one/rerun", {}),
        ("PUT", "/apply", {"owner": "x", "entries": {"new": {"task": "proj.secret", "schedule": "1h"}}}),
    ):
        answer = one.ask(method, path, body)
        assert answer.status_code == 403, (path, answer.text)
        assert "redbeat_web_tasks" in answer.json()["detail"]
    assert one.ask("PUT", "/entries/new", ENTRY).status_code == 201


def test_while_redis_is_away_the_answer_says_when_to_come_back(
    program: Programs, app: Celery, server: Any
) -> None:
    one = program()
    one.get("/count")
    server.kill()
    answer = one.ask("GET", "/count")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")


def test_one_operation_that_takes_long_is_at_work_at_a_time(
    program: Programs, app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = program()
    found: list[Any] = []
    heavy = (
        ("GET", "/timeline", None),
        ("GET", "/next", None),
        ("PUT", "/calendars/closed", {"2030-01-01": "x"}),  # looks for the entries that name it
        ("PATCH", "/calendars/closed", {"days": {"2030-01-01": "x"}}),
        ("DELETE", "/calendars/closed", None),
    )

    def examine(*_given: Any, **_options: Any) -> Any:
        found.extend(one.copy(same_application=True).ask(*asked) for asked in heavy)
        return Diagnosis()

    monkeypatch.setattr("redbeat.web.api.operating.examine", examine)
    assert one.ask("GET", "/doctor").status_code == 200
    told = [(answer.status_code, answer.headers["retry-after"]) for answer in found]
    assert told == [(503, "5")] * len(heavy)
    assert one.ask("GET", "/timeline").status_code == 200


def test_every_operation_describes_itself_in_the_document() -> None:
    described = document_of(OPERATIONS, "")
    for operation in OPERATIONS:
        one = described["paths"][operation.path][operation.method.lower()]
        assert (one["x-right"], one["x-command"]) == (operation.right.value, operation.verb)
    assert not fault_of(
        {"$ref": "#/components/schemas/Problem"}, {"type": "", "title": "", "status": 1, "detail": ""}
    )
