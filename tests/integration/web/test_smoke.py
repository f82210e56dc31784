"""Every page, form and operation once: it works, shows what it should, and reaches its operation."""

from __future__ import annotations

import json
import random
import re
from html import unescape
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat.entries.audit import find_records
from redbeat.entries.forms import FORM_FIELDS
from redbeat.web.api.operations import HEADERS, Operation
from redbeat.web.api.resources import OPERATIONS
from tests.faults.rounds import IS_LONG
from tests.integration.web.conftest import Browse, Programs
from tests.integration.web.dashboard_walk import (
    REQUESTS,
    SECRET,
    call_operations,
    fill,
    open_pages,
    send_forms,
)
from tests.support.forms import text_of
from tests.support.programs import API, Program

#: what differs from run to run
VARYING = (
    (r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "ID"),
    (r"\bprogram \d+", "program"),
    (r"\b20[23]\d-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)?", "TIME"),
    (r"\b(in )?\d+ (ms|s|min|h|d|y)\b( \d+ (ms|s|min|h|d)\b)?( ago)?|\bjust now\b", "SPAN"),
    (r"(?<!Run )\bnow(?=$| failed)", "SPAN"),
    ("(counted) SPAN", r"\1"),  # said of what was counted some time ago
)
#: pages whose text doesn't depend on the time of day or the version of the server
SHOWN = (
    "/entries?sort=name", "/entry?name=report", "/entry/edit?name=report", "/entries/delete?name=report",
    "/runs?state=all&since=1d", "/later", "/later/message?task_id=second", "/files", "/calendars",
    "/routes?name=report", "/audit", "/",
)  # fmt: skip
#: what is sent in the place of what is right
VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 5, 2**63, 10**30, 0.5, 1.7e308, "", " ", "report", "closed", "*", "[!", "*a" * 151,
    "\0", "\U0001f600", "x" * 3000, "1d", "-1d", "now", "true", "1e400", "yaml", "failed", "0-0", "W10",
    "9" * 30, "2030-01-01T00:00:00Z", "2030-13-45T99:99:99Z", "0001-01-01T00:00:00+14:00", "30 7 * * *",
    "61 * * * *", [], [1], ["report", "none"], ["\0"], {}, {"a": {"b": []}}, {"2030-01-01": "x"},
    {"every": "0s"}, {"jitter": -1}, {"__type__": "interval", "every": 1e300},
    {"__type__": "rrule", "freq": 0}, {"__type__": "solar", "event": "x", "lat": 1e9, "lon": 0},
    {"__type__": "os.system"},
)  # fmt: skip
NAMES = ("report", "other", "closed", "none", "=cmVwb3J0", "=", "=%20", "%00", "%ff", "a%2Fb", "x" * 400)
RAW = (
    b"", b"{", b"[]", b"null", b"5", b"\xff\xfe", b'{"args": NaN}', b'{"a": 1, "a": 2}', b"[" * 5000,
    b"\xef\xbb\xbf{}",
    b'{"names": ["\\ud800"]}', b"entries: &a {x: *a}", b"--- !!python/object:os.system x", b"2030-01-01\n",
    b"BEGIN:VCALENDAR\r\nEND:VCALENDAR\r\n",
)  # fmt: skip
MEDIA = ("", "text/plain", "application/yaml", "text/calendar", "application/json; charset=latin-1", ";")
TAGS = ("*", '"x"', 'W/"x"', "x", '""', '"a", "b"', '"a" "b"', "")
REQUESTS_MADE = 1000 if IS_LONG else 100


def steady(text: str) -> str:
    """Replace what differs from run to run."""
    for pattern, word in VARYING:
        text = re.sub(pattern, word, text, flags=re.MULTILINE)
    return text


def changes(app: Celery) -> str:
    """Return the audit list, a line for each change, the oldest first."""
    return steady(
        "\n".join(
            f"{one.user} by {one.source}: {one.verb} {', '.join(one.names)} {json.dumps(one.details)}"
            f"{' was ' + json.dumps(one.before) if one.before else ''} {one.outcome}".rstrip()
            for one in reversed([*find_records(app, limit=100)])
        )
    )


@pytest.fixture(autouse=True)
def schedule(app: Celery, client: redis.Redis, broker: redis.Redis) -> None:
    del broker  # runs are sent to it
    fill(app, client)


def test_every_page_opens_with_unique_ids_and_without_secrets(browse: Browse) -> None:
    for path, answer in open_pages(browse()):
        assert answer.status_code in ((404,) if path == "/changing" else (200, 303)), (path, answer.text)
        ids = re.findall(r'\sid="([^"]+)"', answer.text)
        assert len(ids) == len({*ids}), path
        assert SECRET not in answer.text, path


def test_page_shows(browse: Browse, snapshot: Any) -> None:
    browser = browse()
    for path in SHOWN:
        text = text_of(browser.read_whole(path))
        text = steady(re.sub(r"(?s)\nDoctor\n.*All that the doctor says", "", text))
        assert text == snapshot(name=path)


def test_every_form_reaches_its_operation_with_its_fields(app: Celery, browse: Browse, snapshot: Any) -> None:
    for path, answer in send_forms(browse()):
        assert answer.status_code in (200, 303), (path, unescape(answer.text))
    assert changes(app) == snapshot


def test_every_request_reaches_its_operation_with_its_arguments(
    app: Celery, program: Programs, snapshot: Any
) -> None:
    for operation, answer in call_operations(program()):
        assert answer.status_code < 300, (operation.method, operation.path, answer.text)
        assert SECRET not in answer.text, operation.path
    assert changes(app) == snapshot


class Walker:
    """Makes requests that are nearly right: one of the walk's, with parts of it replaced."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance

    def some(self, values: Any, share: float) -> list[Any]:
        return [one for one in values if self.chance.random() < share]

    def body(self, operation: Operation, good: Any) -> bytes | None:
        if operation.body is None or self.chance.random() < 0.15:
            return self.chance.choice((None, *RAW))
        names = [field.name for field in operation.body.fields] or [*FORM_FIELDS, "owner", "entries", "days"]
        share = self.chance.choice((0, 1 / len(names), 0.5))
        changed = {name: self.chance.choice(VALUES) for name in self.some([*names, "unknown"], share)}
        seconds = {"max_seconds": 1} if "max_seconds" in names else {}
        return json.dumps({**(good or {}), **changed, **seconds}).encode()

    def ask(self, program: Program, operation: Operation) -> Any:
        path, good, query = REQUESTS.get(f"{operation.method} {operation.path}", ("", None, {}))
        path = path or re.sub("{name}|{task_id}", self.chance.choice(NAMES), operation.path)
        given = {field.name: str(self.chance.choice(VALUES)) for field in self.some(operation.query, 0.3)}
        given = {**query, **given, **({"max_seconds": "1"} if "max_seconds" in query else {})}
        given.pop("workers", None)  # it waits for them
        headers = {name: self.chance.choice(TAGS) for name in self.some(HEADERS, 0.15)}
        media = self.chance.choice((*([operation.body.media[0]] * 8 if operation.body else []), *MEDIA))
        method = self.chance.choice((*[operation.method] * 20, "HEAD", "OPTIONS", "POST", "X"))
        return program.ask(method, path, None, headers, self.body(operation, good), media, **given)


def test_no_request_gets_an_answer_that_the_description_does_not_have(
    app: Celery, client: redis.Redis, program: Programs, chance: random.Random
) -> None:
    walker, one, statuses = Walker(chance), program(), set[int]()
    for number in range(REQUESTS_MADE):
        if number % len(OPERATIONS) == 0:
            fill(app, client)  # requests may have removed it
        statuses.add(walker.ask(one, OPERATIONS[number % len(OPERATIONS)]).status_code)
    assert {200, 400, 404, 422} <= statuses


def test_the_description_is_served_with_an_id_for_each_operation(program: Programs) -> None:
    described = program("read").get("/openapi.json")
    assert (described["openapi"], described["servers"]) == ("3.1.0", [{"url": API}])
    operations: list[Any] = [one for methods in described["paths"].values() for one in methods.values()]
    assert len({one["operationId"] for one in operations}) == len(operations) == len(OPERATIONS)
