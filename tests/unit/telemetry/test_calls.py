"""A call goes to the host that it names, ends in its time whatever the other side does, and reads little."""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from redbeat.config.ping_urls import parse_ping_url
from redbeat.telemetry.pings import calls
from redbeat.telemetry.pings.calls import CallFailed, Services, call
from tests.support.receivers import OK, Receiver


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


def test_a_call_is_one_get_of_what_was_written(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert why_failed(receiver.url("a/b?c=%20d")) is None
    [request] = receiver.requests
    head, *headers = request.rstrip().split("\r\n")
    assert head == "GET /a/b?c=%20d HTTP/1.1"
    assert dict(header.split(": ") for header in headers) == {
        "Host": receiver.host, "User-Agent": "redbeat", "Accept": "*/*", "Connection": "close",
    }  # fmt: skip


def test_of_the_addresses_of_a_name_the_one_that_answers_is_called(receiver: Receiver) -> None:
    assert why_failed(receiver.url("x").replace("127.0.0.1", "localhost")) is None  # perhaps ::1 comes first
    assert f"Host: localhost:{receiver.port}" in receiver.requests[0]


def test_an_address_that_says_nothing_leaves_time_for_the_next_one(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)
        addresses = [silent.getsockname(), ("127.0.0.1", receiver.port)]
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in addresses]
        with contextlib.ExitStack() as clients:
            for _ in range(4):  # now the system lets nobody else connect
                waiting = clients.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex(addresses[0])
            monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
            assert why_failed("http://two.example/x", 1.0) is None
    assert receiver.paths == ["/x"]


#: an answer, what is said of it, and whether it is final; None: it is well
ANSWERS: dict[bytes, tuple[str, bool] | None] = {
    OK: None,
    b"HTTP/1.0 204 No Content\r\n\r\n": None,
    b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\n\r\n": None,
    b"HTTP/1.1 404 Not Found\r\n\r\n": ("it answers 404", True),
    b"HTTP/1.1 429 Too Many\r\n\r\n": ("it answers 429", False),
    b"HTTP/1.1 500 \r\n\r\n": ("it answers 500", False),
    b"HTTP/1.1 101 Switching\r\n\r\n": ("ConnectionError: it doesn't answer as HTTP does", False),
    b"": ("ConnectionError: it doesn't answer as HTTP does", False),
    b"HTTP/2 200\r\n": ("ConnectionError: it doesn't answer as HTTP does", False),
    b"\x00\xff\x1b[31m" * 5000: ("ConnectionError: it doesn't answer as HTTP does", False),
    b"HTTP/1.1 100 Continue\r\n" * 5000: ("ConnectionError: it doesn't answer as HTTP does", False),
}


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: ascii(answer)[:25])
def test_the_status_decides(receiver: Receiver, answer: bytes) -> None:
    receiver.behave = lambda _path: answer
    failure = why_failed(receiver.url("secret"))
    assert (failure and (str(failure), failure.is_final)) == ANSWERS[answer]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(receiver: Receiver, status: int) -> None:
    with Receiver() as other:
        answer = f"HTTP/1.1 {status} Moved\r\nLocation: {other.url('stolen')}\r\n\r\n".encode()
        receiver.behave = lambda _path: answer
        failure = why_failed(receiver.url())
        assert failure is not None
        assert str(failure) == f"it answers {status}, and redirects aren't followed"
        assert failure.is_final
        assert other.requests == []


@pytest.mark.parametrize("behaviour", ["hang", "drip"])
def test_a_service_that_never_answers_costs_the_time_of_a_call(receiver: Receiver, behaviour: str) -> None:
    receiver.behave = lambda _path: getattr(receiver, behaviour)
    began = time.monotonic()
    failure = why_failed(receiver.url("secret"), 0.3)
    assert time.monotonic() - began >= 0.3
    assert str(failure) == "it hasn't answered within 0.3 s"


def test_of_a_service_that_only_ever_announces_its_answer_little_is_read(receiver: Receiver) -> None:
    receiver.behave = lambda _path: receiver.announce
    failure = why_failed(receiver.url(), 60.0)
    assert str(failure) == "ConnectionError: it doesn't answer as HTTP does"


def test_of_an_answer_without_an_end_the_status_is_read_and_no_more(receiver: Receiver) -> None:
    receiver.behave = lambda _path: receiver.stream
    assert why_failed(receiver.url()) is None


def test_a_service_that_is_away_is_told_of_once_and_when_it_is_back(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    services, url = Services(), parse_ping_url(receiver.url("secret"))
    receiver.close()
    for _ in range(3):
        failure = why_failed(receiver.url("secret"))
        assert failure is not None
        assert not failure.is_final
        assert "refused" in str(failure)
        services.note_failed(url, failure)
    for _ in range(2):
        services.note_well(url, left_out=3)
    assert [record.redbeat["event"] for record in caplog.records] == [
        "redbeat.ping.failed",
        "redbeat.ping.back",
    ]
    assert "secret" not in caplog.text


def test_of_an_entrys_service_it_is_said_which_entry_the_call_was_about(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    services, url = Services(), parse_ping_url(receiver.url("secret"))
    services.note_failed(url, CallFailed("it answers 500"), "r\n2")
    services.note_well(url, 1, "r3")
    failed, back = (record.getMessage() for record in caplog.records)
    assert "can't be told of the runs of entries, trying again (last: r\\n2): it answers 500" in failed
    assert "answers again, and is told of the runs of entries (last: r3); 1 call was left out." in back
    services.note_failed(url, CallFailed("it answers 500"))
    services.note_well(url)
    assert caplog.records[-1].getMessage().endswith(" answers again.")
    assert [record.redbeat["entry"] for record in caplog.records[:2]] == ["r\n2", "r3"]


def test_names_that_are_none_fail_as_any_other() -> None:
    assert why_failed("http://" + ".".join(["a" * 60] * 4) + "/") is not None


def test_a_certificate_is_checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from tests.support.certificates import issue_certificates

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
