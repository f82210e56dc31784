"""Calls of ping URLs: one GET to the named host, in order, retried after growing pauses, bounded."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, repeat
from pathlib import Path

import pytest

from redbeat.config.ping_urls import parse_ping_url
from redbeat.telemetry import ping_calls as calls
from redbeat.telemetry.ping_calls import (
    MAX_PAUSE_SECONDS,
    CallFailed,
    Service,
    call,
)
from tests.support.receivers import OK, Receiver
from tests.support.servers import issue_certificates


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as made:
        yield made


def why_failed(url: str) -> CallFailed | None:
    try:
        call(parse_ping_url(url))
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
        "Host": receiver.host, "User-Agent": "redbeat", "Accept-Encoding": "identity", "Connection": "close",
    }  # fmt: skip


#: an answer; None or the beginning of the error and whether it is final
ANSWERS: dict[bytes, tuple[str, bool] | None] = {
    OK: None,
    b"HTTP/1.0 204 No Content\r\n\r\n": None,
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\n": None,
    b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\n\r\n": None,
    b"HTTP/1.1 308 Moved\r\nLocation: http://127.0.0.1:1/\r\n\r\n": ("it answers 308", True),
    b"HTTP/1.1 404 Not Found\r\n\r\n": ("it answers 404", True),
    b"HTTP/1.1 429 Too Many\r\n\r\n": ("it answers 429", False),
    b"HTTP/1.1 500 \r\n\r\n": ("it answers 500", False),
    b"": ("RemoteDisconnected", False),
    b"\x00\xff\x1b[31m" * 5000: ("BadStatusLine", False),
    b"GET /secret HTTP/1.1\r\n\r\n": ("BadStatusLine", False),  # an echo
}


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: ascii(answer)[:25])
def test_call_succeeds_or_fails_by_the_status(receiver: Receiver, answer: bytes) -> None:
    receiver.behave = lambda _path: answer
    failure, expected = why_failed(receiver.url("secret")), ANSWERS[answer]
    assert (failure is None) is (expected is None)
    if failure and expected:
        assert str(failure).startswith(expected[0])
        assert failure.is_final is expected[1]


def test_silent_service_fails_and_an_endless_answer_is_not_read(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "CALL_SECONDS", 0.3)
    receiver.behave = lambda _path: receiver.hang()
    assert "0.3 s" in str(why_failed(receiver.url("secret")))
    receiver.behave = lambda _path: chain([b"HTTP/1.1 200 OK\r\n\r\n"], repeat(b"x" * 65_536))
    assert why_failed(receiver.url("secret")) is None


def test_service_that_sends_its_answer_bit_by_bit_fails_in_time(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "CALL_SECONDS", 0.3)

    def drip() -> Iterator[bytes]:
        yield b"HTTP/1.1 "
        while not receiver.closed.wait(0.05):
            yield b"2"

    receiver.behave = lambda _path: drip()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(why_failed, receiver.url("secret"))
        try:
            assert "0.3 s" in str(asked.result(5))
        finally:
            receiver.closed.set()  # else the call never ends


def test_service_that_is_away_is_logged_once_and_when_it_is_back(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    service = Service("http://a")
    receiver.server_close()
    for _ in range(3):
        failure = why_failed(receiver.url("secret"))
        assert failure is not None
        assert (failure.is_final, "refused" in str(failure)) == (False, True)
        service.note_failed(failure)
    for _ in range(2):
        service.note_well()
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


def test_pauses_of_a_failing_service_grow_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls.time, "monotonic", lambda: 0.0)
    service, pauses = Service("http://a"), []
    for _ in range(1200):
        service.note_failed(CallFailed("it answers 500"))
        pauses.append(service.again_at)
    assert pauses[:5] == [5.0, 10.0, 20.0, 40.0, 60.0]
    assert pauses[-1] == MAX_PAUSE_SECONDS
