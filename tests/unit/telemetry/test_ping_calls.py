"""Calls of ping URLs: one GET to the named host, in order, retried after growing pauses, bounded."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from pathlib import Path

import pytest

from redbeat.config.ping_urls import parse_ping_url
from redbeat.telemetry.pings import calls
from redbeat.telemetry.pings.calls import CallFailed, Services, call
from redbeat.telemetry.pings.waiting_calls import (
    LIFE_SECONDS,
    MAX_CALLS,
    MAX_PAUSE_SECONDS,
    MAX_SERVICES,
    PAUSE_SECONDS,
    Call,
    WaitingCalls,
)
from tests.support.receivers import OK, Receiver
from tests.support.servers import issue_certificates


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as made:
        yield made


def why_failed(url: str, seconds: float = 5.0) -> CallFailed | None:
    try:
        call(parse_ping_url(url), seconds)
    except CallFailed as exc:
        failure = exc
    else:
        return None
    assert "secret" not in str(failure)
    return failure


def test_call_is_one_get_without_a_proxy(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert why_failed(receiver.url("a/b?c=%20d")) is None
    [request] = receiver.requests
    head, *headers = request.rstrip().split("\r\n")
    assert head == "GET /a/b?c=%20d HTTP/1.1"
    assert dict(header.split(": ") for header in headers) == {
        "Host": receiver.host, "User-Agent": "redbeat", "Accept": "*/*", "Connection": "close",
    }  # fmt: skip


NO_HTTP = ("ConnectionError", False)
#: an answer; None or the beginning of the error and whether it is final
ANSWERS: dict[bytes, tuple[str, bool] | None] = {
    OK: None,
    b"HTTP/1.0 204 No Content\r\n\r\n": None,
    b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\n\r\n": None,
    b"HTTP/1.1 308 Moved\r\nLocation: http://127.0.0.1:1/\r\n\r\n": ("it answers 308", True),
    b"HTTP/1.1 404 Not Found\r\n\r\n": ("it answers 404", True),
    b"HTTP/1.1 429 Too Many\r\n\r\n": ("it answers 429", False),
    b"HTTP/1.1 500 \r\n\r\n": ("it answers 500", False),
    **dict.fromkeys(
        (b"", b"HTTP/2 200\r\n", b"\x00\xff\x1b[31m" * 5000, b"HTTP/1.1 101 Up\r\n\r\n"), NO_HTTP
    ),
    b"HTTP/1.1 100 Continue\r\n" * 5000: NO_HTTP,
}


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: ascii(answer)[:25])
def test_call_succeeds_or_fails_by_the_status(receiver: Receiver, answer: bytes) -> None:
    receiver.behave = lambda _path: answer
    failure, expected = why_failed(receiver.url("secret")), ANSWERS[answer]
    assert (failure is None) is (expected is None)
    if failure and expected:
        assert str(failure).startswith(expected[0])
        assert failure.is_final is expected[1]


def drip(receiver: Receiver) -> Iterator[bytes]:
    """Send a letter of a header now and then, for ever."""
    yield b"HTTP/1.1 100 Continue\r\nX: "
    while not receiver.closed.wait(0.05):
        yield b"x"


@pytest.mark.parametrize(
    ("behaviour", "seconds", "error"),
    [
        (Receiver.hang, 0.3, "0.3 s"),
        (drip, 0.3, "0.3 s"),
        (lambda _: repeat(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000), 60.0, "ConnectionError"),
        (lambda _: chain([b"HTTP/1.1 200 OK\r\n\r\n"], repeat(b"x" * 65_536)), 60.0, ""),
    ],
    ids=["hang", "drip", "announce", "stream"],
)
def test_endless_answer_costs_little(
    receiver: Receiver, behaviour: Callable[[Receiver], Iterator[bytes]], seconds: float, error: str
) -> None:
    receiver.behave = lambda _path: behaviour(receiver)
    failure = why_failed(receiver.url("secret"), seconds)
    assert error in str(failure)
    assert (failure is None) is (error == "")


def test_service_that_is_away_is_logged_once_and_when_it_is_back(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    services, url = Services(), parse_ping_url(receiver.url("secret"))
    receiver.server_close()
    for _ in range(3):
        failure = why_failed(receiver.url("secret"))
        assert failure is not None
        assert (failure.is_final, "refused" in str(failure)) == (False, True)
        services.note_failed(url, failure)
    for _ in range(2):
        services.note_well(url, left_out=3)
    assert [record.redbeat["event"] for record in caplog.records] == [
        "redbeat.ping.failed",
        "redbeat.ping.back",
    ]
    assert "secret" not in caplog.text


def test_certificate_is_verified(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = issue_certificates(tmp_path)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(made.cert, made.key)
    with Receiver(context=server) as receiver:
        failure = why_failed(receiver.url("secret"))
        assert "CERTIFICATE_VERIFY_FAILED" in str(failure)
        assert receiver.requests == []
        monkeypatch.setenv("SSL_CERT_FILE", str(made.ca))
        calls.tls_context.cache_clear()
        try:
            assert why_failed(receiver.url("secret")) is None
        finally:
            calls.tls_context.cache_clear()
        assert receiver.paths == ["/secret"]


# -- waiting calls


def waiting_call(path: str, host: str = "a", entry: str = "", since: float = 0.0) -> Call:
    return Call(parse_ping_url(f"http://{host}/{path}"), entry or path, since)


def taken(waiting: WaitingCalls, now: float = 0.0) -> list[str]:
    found = iter(lambda: waiting.take(now), None)
    return [one.url.target[1:] for one in found]


def test_calls_of_a_service_keep_their_order_and_services_take_turns() -> None:
    waiting = WaitingCalls()
    for path in ("1", "2", "3"):
        waiting.add(waiting_call(f"a{path}", "a"))
    waiting.add(waiting_call("b1", "b"))
    assert taken(waiting) == ["a1", "b1", "a2", "a3"]
    assert waiting.seconds_to_next(0.0) is None
    assert len(waiting) == 0


def test_failing_service_is_paused_while_others_are_called() -> None:
    waiting = WaitingCalls()
    for path in ("start", "fail"):
        waiting.add(waiting_call(path, "a", entry="x"))
    waiting.add(waiting_call("other", "a"))
    first = waiting.take(0.0)
    assert first is not None
    waiting.note_failed(first, 0.0)
    waiting.add(waiting_call("b1", "b"))
    assert taken(waiting) == ["b1"]
    assert waiting.seconds_to_next(1.0) == PAUSE_SECONDS - 1.0
    assert taken(waiting, PAUSE_SECONDS) == ["fail", "other"], "the newer call of x replaces the older one"
    assert waiting.note_well("http://a") == 1
    assert waiting.note_well("http://a") == 0


def test_pauses_grow_to_a_limit_and_the_newest_call_of_an_entry_is_kept() -> None:
    waiting, now, pauses = WaitingCalls(), 0.0, []
    waiting.add(waiting_call("0", entry="x", since=now))
    for number in range(1, 12):
        one = waiting.take(now)
        assert one is not None
        waiting.note_failed(one, now)
        waiting.add(waiting_call(str(number), entry="x", since=now))
        assert len(waiting) == 1
        pauses.append(waiting.seconds_to_next(now))
        now += pauses[-1] or 0.0
    assert pauses[:4] == [5.0, 10.0, 20.0, 40.0]
    assert pauses[-1] == MAX_PAUSE_SECONDS
    assert taken(waiting, now) == ["11"]
    assert waiting.note_well("http://a") == 11


def test_old_calls_are_dropped() -> None:
    waiting = WaitingCalls()
    waiting.add(waiting_call("old", since=0.0))
    waiting.add(waiting_call("new", since=LIFE_SECONDS))
    assert taken(waiting, LIFE_SECONDS + 1) == ["new"]
    assert waiting.note_well("http://a") == 1


def test_service_with_the_fewest_calls_makes_room_for_another_one() -> None:
    waiting = WaitingCalls()
    for number in [*range(MAX_SERVICES + 9), MAX_SERVICES + 8]:
        waiting.add(waiting_call(str(number), f"h{number}"))
    waiting.add(waiting_call("last", "h-last"))
    assert len(waiting) == len(taken(waiting)) == MAX_SERVICES + 1


def test_oldest_call_of_the_busiest_service_is_dropped_first() -> None:
    waiting = WaitingCalls()
    waiting.add(waiting_call("b", "b"))
    for number in range(MAX_CALLS):
        waiting.add(waiting_call(str(number)))
    assert len(waiting) == MAX_CALLS
    assert taken(waiting)[:3] == ["b", "1", "2"]
