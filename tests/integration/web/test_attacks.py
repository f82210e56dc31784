"""Requests that mean harm: forms of other sites, markup in names, malformed addresses and bodies."""

from __future__ import annotations

import gzip
import json
import re
from html import unescape
from urllib.parse import quote

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.calendars import Calendar
from redbeat.entries.audit import find_records
from redbeat.operations.hiding import MAX_DEPTH
from redbeat.web import asgi_app
from redbeat.web.access.gate import MAX_BODY_BYTES
from tests.integration.web.conftest import Add, Browse, Programs
from tests.integration.web.dashboard_walk import routes
from tests.support.dashboards import HOSTILE, Browser
from tests.support.polling import eventually
from tests.support.schedule import write_raw
from tests.support.stored import store

ENTRY = {"task": "echo", "schedule": {"__type__": "interval", "every": 60}}


#: what every answer says; written out here, as the code's own list would agree with anything
SAFE_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; font-src 'self'; connect-src 'self'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}


def test_markup_that_users_have_written_is_text_on_every_page(
    app: Celery, client: redis.Redis, browse: Browse, add: Add
) -> None:
    Calendar(HOSTILE, {"2098-12-25": HOSTILE}, HOSTILE, app=app).save()
    add(HOSTILE, task=HOSTILE, args=[HOSTILE], kwargs={HOSTILE: HOSTILE}, exclude=HOSTILE).pause(HOSTILE)
    write_raw(client, f"bad {HOSTILE}", {"task": HOSTILE, "schedule": {"__type__": HOSTILE}})
    store(app, HOSTILE, task=HOSTILE, args=[HOSTILE])
    browser = browse()
    browser.send("/entries/pause", name=f"gone {HOSTILE}", note=HOSTILE, confirmed="yes")
    paths = [path for method, path, _ in routes() if method == "GET" and path != "/live"]
    for name, start in ((HOSTILE, "/"), (f"bad {HOSTILE}", "/entry")):
        for path in (path for path in paths if path.startswith(start)):
            answer = browser.get(path, name=name, task_id=name)
            if answer.headers.get("content-type", "").startswith("text/html"):
                typed = r'value="[^"]*"|<textarea.*?</textarea>'  # stays as it is
                page = re.sub(typed, "", answer.text, flags=re.DOTALL)
                assert not re.search("<img|[\u202e\x1b]", page), path


def test_form_of_another_site_or_without_token_is_refused(browse: Browse, add: Add) -> None:
    browser = browse()
    for origin in ("http://evil.com", "https://localhost", "http://localhost:81", "http://[", "://", "\xff"):
        answer = browser.post("/logout", headers={"origin": origin.encode("latin-1")})  # type: ignore[dict-item]
        assert (answer.status_code, "another site" in answer.text) == (403, True), origin
    assert browser.post("/logout", headers={"sec-fetch-site": "cross-site"}).status_code == 403
    for fields in ({"csrf_token": ""}, {"csrf_token": "x" * 43}, {"csrf_token": "x" * 100_000}):
        assert browser.post("/logout", **fields).status_code == 403
    token = browser.token()
    browser.http.cookies.clear()
    assert browser.http.post("/logout", data={"csrf_token": token}).status_code == 403
    assert browser.post("/logout", headers={"origin": "http://localhost"}).status_code == 303


def test_every_answer_has_the_security_headers(app: Celery, browse: Browse) -> None:
    browser = browse()
    paths = ("/", "/nothing", "/static/redbeat.css", "/static/nothing", "/api/v1/entries")
    answers = [
        *(browser.get(path) for path in paths),
        browser.get("/", headers={"host": "evil.com"}),
        browse("read").post("/", token="x"),
        Browser(asgi_app(app)).get("/"),
    ]
    assert {answer.status_code for answer in answers} == {200, 400, 401, 404, 405}
    for answer in answers:
        assert {name: answer.headers[name] for name in SAFE_HEADERS} == SAFE_HEADERS
    assert answers[0].headers["cache-control"] == "no-store"


def test_htmx_may_not_evaluate_text_or_add_scripts(browse: Browse) -> None:
    [told] = re.findall(r"<meta name=\"htmx-config\" content='([^']*)'>", browse().read("/"))
    config = json.loads(unescape(told))
    allowed = {"allowEval": False, "allowScriptTags": False, "includeIndicatorStyles": False}
    assert config.items() >= {**allowed, "selfRequestsOnly": True}.items()


def test_path_does_not_lead_out_of_the_static_files(browse: Browse) -> None:
    for path in ("../application.py", "%2e%2e/application.py", "/etc/passwd", "..%2fserver.py"):
        assert browse().get(f"/static/{path}").status_code == 404, path


def test_long_pattern_is_refused(browse: Browse) -> None:
    browser = browse()
    long = "*a" * 151
    for path, field in (
        *(("/entries", field) for field in ("match", "task", "queue")),
        *((path, "match") for path in ("/runs", "/runs/rerun", "/timeline", "/files/export")),
        *(("/audit", field) for field in ("user", "verb")),
    ):
        page = browser.get(path, **{field: long}).text
        assert f"{field}: must have 300 characters at the most" in page, path
    assert browser.post("/runs/rerun", match=long, since="1d", confirmed="yes").status_code == 422


def test_method_override_is_ignored_and_other_methods_get_405(program: Programs, add: Add) -> None:
    add("one")
    one = program()
    override = {"x-http-method-override": "DELETE", "x-method-override": "DELETE", "x-http-method": "DELETE"}
    assert one.ask("GET", "/entries/one", headers=override).json()["name"] == "one"
    assert one.ask("POST", "/entries/one", {"_method": "DELETE"}, override).status_code == 405
    for method, path, allowed in (
        ("POST", "/entries/one", "DELETE, GET, HEAD, PATCH, PUT"),
        ("PUT", "/entries", "GET, HEAD"),
        ("OPTIONS", "/purge", "PUT"),
        ("BREW", "/entries", "GET, HEAD"),
        ("POST", "/openapi.json", "GET, HEAD"),
    ):
        answer = one.ask(method, path)
        methods = sorted(answer.headers["allow"].split(", "))
        assert (answer.status_code, ", ".join(methods)) == (405, allowed)
    head = one.ask("HEAD", "/entries/one")
    assert (head.status_code, head.content, "etag" in head.headers) == (200, b"", True)


def test_body_that_is_not_strict_json_changes_nothing(program: Programs, app: Celery, add: Add) -> None:
    add("one", args=[7])
    before = RedBeatSchedulerEntry.get("one", app).stored
    one = program()
    for body in (
        b"{", b"", b"\xff", b'{"args": NaN}', b'{"args": [1e999]}', b'{"args": [1], "args": [2]}',
        b'{"kwargs": {"a": 1, "a": 2}}', b'{"args": ["\\ud800"]}', b"\x00", b"\xef\xbb\xbf{}",
        b'{"args": [%s1%s]}' % (b"[" * 50_000, b"]" * 50_000), b'{"args": [%s]}' % (b"9" * 5000),
        b'{"args": %s1%s}' % (b"[" * MAX_DEPTH, b"]" * MAX_DEPTH),
    ):  # fmt: skip
        for method, path in (("PATCH", "/entries/one"), ("PUT", "/entries/one"), ("PUT", "/pause")):
            media = "application/merge-patch+json" if method == "PATCH" else "application/json"
            answer = one.ask(method, path, content=body, media=media)
            assert answer.status_code == 400, (method, body[:50], answer.text)
    for value in (b"[]", b"null"):
        assert one.ask("PATCH", "/entries/one", content=value, media="application/json").status_code == 422
    assert RedBeatSchedulerEntry.get("one", app).stored == before
    assert find_records(app) == []


def test_body_of_another_kind_or_size_is_refused(program: Programs, add: Add) -> None:
    add("one")
    one, body, form = program(), json.dumps(ENTRY).encode(), "application/x-www-form-urlencoded"
    for media in ("", "text/plain", form, "application/json; charset=latin-1", "a/b/c"):
        answer = one.ask("PUT", "/entries/one", content=body, media=media)
        assert (answer.status_code, "application/json" in answer.json()["detail"]) == (415, True), media
    packed, media = {"content-encoding": "gzip"}, "application/json"
    assert one.ask("PUT", "/entries/one", None, packed, gzip.compress(body), media).status_code == 415
    large = b'{"args": ["%s"]}' % (b"x" * MAX_BODY_BYTES)
    assert one.ask("PATCH", "/entries/one", content=large, media=media).status_code == 413
    assert one.http.get("/api/v1/entries", headers={"host": "evil.com"}).status_code == 400


def test_unknown_or_wrong_parameter_is_an_error(program: Programs, add: Add) -> None:
    add("one")
    one, long = program(), "*a" * 151
    for path in (
        "/entries?nonsense=1", "/entries?limit=0", "/entries?limit=1&limit=2", "/entries?limit=1001",
        "/entries?limit=%D9%A1", "/entries?state=x", "/entries?enabled=yes", "/entries?due_before=easter",
        "/entries/one/next?count=100000", "/timeline?hours=nan", "/timeline?columns=5000",
        "/runs?state=failed,x", "/status?late_after=-1", "/status?late_after=inf", "/audit?since=nonsense",
        "/entries/one/why?at=2030-01-01T00:00:00", "/doctor?max_seconds=1000",
        *(f"/{path}={long}" for path in ("entries?match", "count?task", "runs?match", "audit?user")),
    ):  # fmt: skip
        answer = one.ask("GET", path)
        assert answer.status_code == 400, (path, answer.text)
    for path, body in (
        *(("/entries/one/backfill", {"from": "2020-01-01T00:00:00Z", "dry_run": True, "limit": value})
          for value in (5.5, 10**400, 1e300, True, "5")),
        ("/doctor/fix", {"max_seconds": 10**400, "dry_run": True}),
        ("/doctor/fix", {"max_seconds": None}),
        ("/entries/one/pause", {"until": "2030-12-24T18:00"}),
        ("/delete", {"names": ["one"], "dry_run": None}),
        ("/entries/one/trigger", {"args": [[]] * 100_001}),
        ("/entries/one", {"task": "echo", "schedule": {"cron": f"{'0-59,' * 4000}1 * * * *"}}),
        ("/entries/one", {"task": "echo", "schedule": {"__type__": "crontab", "minute": "0-59," * 4000}}),
        ("/pause", {"match": "*a" * 400_000, "dry_run": True}),
        ("/resume", {"note": long}),
        ("/rerun", {"since": "1d", "match": long}),
    ):  # fmt: skip
        assert one.ask("PUT", path, body).status_code == 422, path
    said = one.ask("GET", "/timeline", start="2030-12-24T18:00").json()["detail"]
    assert one.ask("GET", "/timeline", start=re.findall(r"2030\S+", said)[0]).status_code == 200, said
    assert one.ask("PUT", "/entries/one/pause?note=x", {}).status_code == 400
    assert one.ask("DELETE", "/entries/one/pause", headers={"if-match": '"x"'}).status_code == 400


def test_form_in_another_encoding_is_refused(browse: Browse) -> None:
    browser = browse()
    part = f'--b\r\nContent-Disposition: form-data; name="csrf_token"\r\n\r\n{browser.token()}\r\n'
    part += '--b\r\nContent-Disposition: form-data; name="token"\r\n\r\n\\ud800\r\n--b--\r\n'
    kind = "multipart/form-data; boundary=b; charset=unicode_escape"
    answer = browser.http.post("/login", content=part.encode(), headers={"content-type": kind})
    assert (answer.status_code, "UTF-8" in answer.text) == (400, True)


@pytest.mark.parametrize(
    "name", ["x" * 7000, "\0", "\r\nSet-Cookie: x=1", "../..", "=", "%ff", "\U0001f600", "{{ 7 * 7 }}", "[!"]
)
def test_long_or_odd_name_in_an_address_is_never_a_server_error(
    browse: Browse, program: Programs, name: str
) -> None:
    browser, one = browse(), program()
    for path in (path for method, path, _ in routes() if method == "GET" and path != "/live"):
        assert browser.get(path, name=name, task_id=name, like=name).status_code < 500, path
    for path in ("/entry", "/entry/edit", "/entry/run", "/calendar"):
        assert browser.get(path, name=name).status_code in (400, 404), path
    for path in ("entries", "calendars", "later"):
        assert one.ask("GET", f"/{path}/{quote(name, safe='')}").status_code in (400, 404), path
    assert browser.get("/entry?name=%ff%fe").status_code in (400, 404)


def test_huge_numbers_and_stored_names_that_are_not_unicode_are_answered(
    app: Celery, client: redis.Redis, browse: Browse
) -> None:
    Calendar("days", ["2030-12-24"], app=app).save()
    name = b"redbeat:\xff\xfe<b>"
    client.hset(name, "definition", b'{"task": "\\ud800", "schedule": {"__type__": "interval", "every": 60}}')
    client.zadd("redbeat::schedule", {name: 5e9})
    browser, digits = browse(), "9" * 5000
    for path, query in (
        ("/entries", {"offset": digits}),
        ("/timeline", {"more": digits}),
        ("/calendar", {"name": "days", "year": digits}),
        ("/calendar", {"name": "days", "year": "02030999999"}),
        ("/doctor", {"first": digits}),
        ("/runs", {"limit": digits}),
    ):
        assert browser.get(path, **query).status_code == 200, (path, query)
    eventually(lambda: "quarantined" in browser.read("/doctor"))
    for path in ("/", "/entries", "/entries?sort=name", "/routes", "/timeline"):
        assert "defect" not in browser.read(path), path
