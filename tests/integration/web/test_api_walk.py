"""A walk over all operations of the REST interface with what nobody should send: no answer is a defect.

Each answer is held against the interface's own description by ``Program``: its status, its media type, its
document; and no status is 500. For a longer walk set ``REDBEAT_WALK`` to the number of requests.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from urllib.parse import quote

from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.calendars import Calendar
from redbeat.web.api.operations import HEADERS, Operation
from redbeat.web.api.resources import DESCRIPTION, OPERATIONS
from tests.faults.rounds import IS_LONG
from tests.support.programs import Program

Add = Callable[..., RedBeatSchedulerEntry]
#: how many requests, and which ones
REQUESTS = int(os.environ.get("REDBEAT_WALK", "400" if IS_LONG else "250"))
SEED = os.environ["REDBEAT_SEED"]

NAMES = [
    "report",
    "other",
    "closed",
    "none",
    "=cmVwb3J0",
    "%00",
    "%E2%80%AE",
    "=",
    "=%20",
    "%ff",
    "a%2Fb",
    "x" * 400,
]
TEXTS = [
    *(
        "report",
        "*",
        "[",
        "[!",
        "re*",
        "closed",
        "",
        " ",
        "\0",
        "\ud7ff",
        "\U0001f600",
        "x" * 3000,
        "1d",
        "2h",
        "-1d",
    ),
    *(
        "2030-01-01T00:00:00Z",
        "2020-01-01T00:00:00+00:00",
        "9999-12-31T23:59:59Z",
        "0001-01-01T00:00:00+14:00",
        "now",
    ),
    *(
        "2030-13-45T99:99:99Z",
        "true",
        "null",
        "1e400",
        "json",
        "yaml",
        "failed",
        "load",
        "echo",
        "crontab",
        "{",
        "%s%n",
    ),
    *(
        "12345678-0",
        "0-0",
        "99999999999999999999-0",
        "Infinity",
        "9" * 30,
        "* * * * *",
        "W10",
        "../../x",
        "$(id)",
    ),
]
NUMBERS = [0, 1, -1, 5, 1000, 2**31, 2**63, -(2**63), 2**64, 10**30, 0.5, -0.0, 1e-300, 1.7e308]
SCHEDULES = [
    *(
        "1h",
        "",
        "30 7 * * *",
        5,
        -5,
        1e308,
        None,
        [],
        {"cron": "61 * * * *"},
        {"every": "0s"},
        {"at": "yesterday"},
    ),
    *(
        {"__type__": "interval", "every": 1e300},
        {"__type__": "crontab", "minute": "*/0"},
        {"__type__": "rrule"},
    ),
    *(
        {"__type__": "rrule", "freq": 0, "interval": 10**9},
        {"__type__": "solar", "event": "x", "lat": 1e9, "lon": 0},
    ),
    *(
        {"__type__": "clocked", "clocked_time": 5},
        {"__type__": "os.system"},
        {"rrule": "FREQ=SECONDLY;COUNT=5"},
    ),
]
BODIES = [
    *(
        b"",
        b"{",
        b"[]",
        b"null",
        b"5",
        b'"x"',
        b"\xff\xfe",
        b'{"args": NaN}',
        b'{"args": [-Infinity]}',
        b"{}" * 2,
    ),
    *(
        b'{"a": 1, "a": 2}',
        b"[" * 5000,
        b'{"x": ' * 150 + b"1" + b"}" * 150,
        b'{"names": ["\\ud800"]}',
        b"\xef\xbb\xbf{}",
    ),
    *(
        b"entries: &a {x: *a}",
        b"--- !!python/object:os.system x",
        b"BEGIN:VCALENDAR\r\nEND:VCALENDAR\r\n",
        b"2030-01-01\n",
    ),
]
MEDIA = [
    *(
        "application/json",
        "application/merge-patch+json",
        "application/yaml",
        "text/calendar",
        "text/plain",
        "",
        "x/y",
    ),
    *(
        "application/json; charset=utf-8",
        "application/json; charset=latin-1",
        "multipart/form-data; boundary=x",
        ";",
    ),
]
TAGS = ["*", '"x"', 'W/"x"', "x", '""', '"a", "b"', "", '"' + "x" * 300 + '"', '"\xe9"', "*, *", '"a" "b"']

#: bodies that are right
GOOD: dict[str, Any] = {
    "/entries/{name}": {"task": "echo", "schedule": "1h"},
    "/entries/{name}/backfill": {"from": "2026-01-01T00:00:00Z", "dry_run": True},
    "/set": {"match": "*", "changes": {"jitter": 5}},
    "/trigger": {"match": "re*"},
    "/backfill": {"match": "o*", "from": "2026-01-01T00:00:00Z", "dry_run": True},
    "/plan": {"owner": "ops", "entries": {"a": {"task": "echo", "schedule": "1h"}}},
    "/apply": {"owner": "ops", "entries": {"a": {"task": "echo", "schedule": "1h"}}},
    "/import": {"entries": {"b": {"task": "echo", "schedule": "1h"}}},
    "/calendars/{name}": {"days": {"2030-01-01": "x"}},
} | {path: {"names": ["report"]} for path in ("/pause", "/resume", "/delete")}


class Walker:
    """Makes requests of a seed: most are nearly right."""

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed)

    def one_of(self, values: Any) -> Any:
        return self.random.choice(values)

    def is_so(self, chance: float) -> bool:
        return self.random.random() < chance

    def any(self, depth: int = 0) -> Any:
        kind = self.random.randrange(8 if depth < 3 else 5)
        if kind < 2:
            return self.one_of(TEXTS)
        if kind < 4:
            return self.one_of(NUMBERS)
        if kind == 4:
            return self.one_of([None, True, False])
        if kind == 5:
            return [self.any(depth + 1) for _ in range(self.random.randrange(4))]
        return {self.one_of(TEXTS): self.any(depth + 1) for _ in range(self.random.randrange(4))}

    def of_schema(self, name: str, schema: Any) -> Any:
        """A value that may well be right."""
        if name == "schedule":
            return self.one_of(SCHEDULES)
        if self.is_so(0.3):
            return self.any()
        kind = schema.get("type")
        if "enum" in schema:
            return self.one_of(schema["enum"])
        if kind == "boolean":
            return self.is_so(0.5)
        if kind in ("integer", "number"):
            return self.one_of([schema.get("minimum", 0), schema.get("maximum", 9), 1, 2])
        if kind == "array":
            return [self.one_of(["report", "other", "none"]) for _ in range(self.random.randrange(1, 4))]
        if kind == "object":
            return {"args": [1]} if name == "changes" else {"2030-01-01": "x"}
        if schema.get("format") == "date-time":
            return self.one_of(["2026-01-01T00:00:00Z", "2020-01-01T00:00:00+01:00", "2098-01-01T00:00:00Z"])
        return self.one_of(TEXTS)

    def body(self, operation: Operation) -> bytes:
        if operation.body is None or self.is_so(0.15):
            return bytes(self.one_of(BODIES))
        fields = {field.name: field.schema for field in operation.body.fields}
        if operation.body.component:
            names = (
                "task",
                "schedule",
                "args",
                "kwargs",
                "options",
                "enabled",
                "jitter",
                "timezone",
                "exclude",
            )
            names += (
                "max_runs",
                "end_time",
                "overlap",
                "ping_url",
                "name",
                "href",
                "etag",
                "description",
                "misfire",
            )
            fields = {name: {} for name in names}
        elif operation.body.is_file:
            names = ("owner", "entries", "calendars", "days", "about")
            fields = {name: {"type": "object"} for name in names}
        chosen = {name: schema for name, schema in fields.items() if self.is_so(0.5)}
        values = {name: self.of_schema(name, schema) for name, schema in chosen.items()}
        if self.is_so(0.1):
            values[self.one_of(TEXTS)] = self.any()
        if self.is_so(0.5):  # right, perhaps but for one thing
            right = GOOD.get(operation.path, {"since": "1d"} if "since" in fields else {})
            wrong = self.one_of([*values]) if values and self.is_so(0.3) else ""
            values = {**right, **({wrong: values[wrong]} if wrong else {})}
        if "max_seconds" in fields:
            values["max_seconds"] = 1
        return json.dumps(values).encode()

    def query(self, operation: Operation) -> str:
        chosen = [field for field in operation.query if field.is_needed or self.is_so(0.3)]
        pairs = [
            (field.name, self.of_schema(field.name, field.schema))
            for field in chosen
            if field.name != "workers"
        ]
        if self.is_so(0.05):
            pairs.append((self.one_of(["x", "limit", "match", "\0"]), self.one_of(TEXTS)))
        if "max_seconds" in {field.name for field in operation.query}:
            pairs = [pair for pair in pairs if pair[0] != "max_seconds"] + [("max_seconds", 1)]
        texts = [(name, value if isinstance(value, str) else json.dumps(value)) for name, value in pairs]
        return "&".join(f"{quote(name)}={quote(text, errors='replace')}" for name, text in texts)

    def headers(self, operation: Operation) -> dict[str, Any]:
        known = [name for name in HEADERS if name in operation.headers or self.is_so(0.03)]
        found = {name.lower(): self.one_of(TAGS) for name in known if self.is_so(0.3)}
        if self.is_so(0.05):
            found["content-encoding"] = self.one_of(["gzip", "identity", "br"])
        return {name: value.encode("latin-1") for name, value in found.items()}

    def step(self, program: Program) -> None:
        operation = self.one_of([*OPERATIONS, DESCRIPTION])
        path = operation.path.replace("{task_id}", "one")
        usual = "closed" if "calendars" in path else self.one_of(["report", "other"])
        path = path.replace("{name}", usual if self.is_so(0.8) else self.one_of(NAMES))
        method = (
            operation.method
            if self.is_so(0.95)
            else self.one_of(["GET", "HEAD", "OPTIONS", "POST", "PUT", "X"])
        )
        media = operation.body.media[0] if operation.body is not None else ""
        content: bytes | None = (
            self.body(operation) if operation.body is not None or self.is_so(0.05) else None
        )
        asked = (method, path, self.query(operation), self.headers(operation), content)
        try:
            answer = program.ask(
                method,
                path + (f"?{asked[2]}" if asked[2] else ""),
                headers=asked[3],
                content=content,
                media=media if self.is_so(0.9) else self.one_of(MEDIA),
            )
        except AssertionError as exc:
            raise AssertionError(f"{asked}: {exc}") from None
        if answer.status_code == 405:
            assert answer.headers["allow"], asked
        if method == "HEAD":
            assert answer.content == b"", asked


def test_whatever_is_sent_to_whatever_operation_the_answer_is_as_described(app: Celery, add: Add) -> None:
    walker, program = Walker(SEED), Program(app)
    print(f"REDBEAT_SEED={SEED}")
    for number in range(REQUESTS):
        if number % 20 == 0:  # somebody may have removed them
            Calendar("closed", ["2098-12-25"], app=app).save()
            add("report", exclude="closed", kwargs={"token": "t"})
            add("other", timedelta(hours=1))
        walker.step(program)
    statuses = {status for _, _, status in program.seen}
    assert {200, 400, 404, 422} <= statuses
