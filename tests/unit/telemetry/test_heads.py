"""What a request's head costs: no head that may be sent takes much more of the processor than another one."""

from __future__ import annotations

import time
from http import HTTPStatus

import pytest

from redbeat.telemetry.endpoint.exchange import MAX_HEAD_BYTES, Request, Response, respond

START = b"GET /echo HTTP/1.1\r\n"
SPACE = MAX_HEAD_BYTES - len(START) - 20


def echo(request: Request) -> Response:
    return Response(HTTPStatus.OK, "text/plain", request.headers.get("x", "").encode("latin-1"))


def processor_seconds(head: bytes) -> float:
    """How much processor time its answer takes, at best."""
    seconds = []
    for _ in range(5):
        began = time.thread_time()
        respond(head, {"/echo": echo})
        seconds.append(time.thread_time() - began)
    return min(seconds)


@pytest.mark.parametrize(
    "header",
    [
        b"X: x" + b" " * SPACE + b"x",
        b"X:" + b" " * SPACE,
        b"X:" + b"\t" * SPACE + b"x\0",
        b"X" * SPACE + b": x",
    ],
    ids=["spaces within", "spaces only", "tabs before", "a long name"],
)
def test_no_header_costs_much_more_than_many_short_ones(header: bytes) -> None:
    usual = START + b"\r\n".join([b"X: y"] * (SPACE // 6))
    assert processor_seconds(START + header) < 5 * processor_seconds(usual)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        (b"X:a", "a"),
        (b"x: \t a b\t ", "a b"),
        (b"X:", ""),
        (b"X:  ", ""),
        (b"X: a:b", "a:b"),
        (b"X: \xff\r", "\xff\r"),
    ],
)
def test_a_value_is_what_stands_between_the_spaces(line: bytes, value: str) -> None:
    response, _ = respond(START + line, {"/echo": echo})
    assert response.body.decode("latin-1") == value


@pytest.mark.parametrize("line", [b"", b":a", b"X :a", b" X: a", b"X", b"(x): a", b"\xe4: a"])
def test_what_is_no_header_is_refused(line: bytes) -> None:
    response, _ = respond(START + b"A: b\r\n" + line, {"/echo": echo})
    assert response.status is HTTPStatus.BAD_REQUEST
