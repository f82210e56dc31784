"""The HTTP endpoint without a beat: answers, hostile and slow clients, addresses."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from unittest.mock import Mock

import pytest

from redbeat.config.address import Address
from redbeat.telemetry import endpoint as module
from redbeat.telemetry.endpoint import MAX_CONNECTIONS, MAX_HEADER_BYTES, Endpoint, Response
from tests.support.http import connect, fetch, send
from tests.support.logs import errors_in
from tests.support.polling import eventually

#: more than all buffers between the endpoint and a client that does not read
LARGE = b"x" * 20_000_000


def echo(accept: str) -> Response:
    return Response(HTTPStatus.OK, "text/plain", f"echo {accept}".encode())


def fail(_accept: str) -> Response:
    raise RuntimeError("a bug")


ANY_PORT = Address("127.0.0.1")
PAGES = {"/echo": echo, "/fail": fail, "/large": lambda _: Response(HTTPStatus.OK, "text/plain", LARGE)}
Start = Callable[..., Endpoint]


@pytest.fixture
def start() -> Iterator[Start]:
    """Return endpoints that listen, unless their address is taken."""
    with contextlib.ExitStack() as at_end:

        def make(address: Address = ANY_PORT, *, is_free: bool = True) -> Endpoint:
            made = Endpoint(address, PAGES)
            at_end.callback(made.stop)
            made.look()
            if is_free:
                eventually(lambda: made.address is not None)
            return made

        yield make


@pytest.fixture
def port(start: Start) -> int:
    address = start().address
    assert address is not None
    return address.port


def clients_served() -> int:
    """Return how many connections have a thread."""
    return [one.name for one in threading.enumerate()].count("redbeat-http-client")


# -- answers


def test_page_is_answered_with_safe_headers(port: int) -> None:
    found = fetch(port, "/echo?a=b", Accept="hello")
    assert (found.status, found.body) == (200, b"echo hello")
    assert found.headers.pop("date").endswith(" GMT")
    assert found.headers.pop("server").strip() == "redbeat"
    assert found.headers == {
        "content-type": "text/plain",
        "content-length": "10",
        "cache-control": "no-store",
        "x-content-type-options": "nosniff",
        "connection": "close",
    }
    head = fetch(port, "/echo", method="HEAD")
    assert (head.status, head.body, head.headers["content-length"]) == (200, b"", "5")


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /echo HTTP/1.0\r\n\r\n", 200),
        (b"GET /echo HTTP/1.1\r\n\r\nGET /echo HTTP/1.1\r\n\r\n", 200),  # pipelined: the first only
        *((b"GET %s HTTP/1.1\r\n\r\n" % path, 404) for path in (
            b"/x/../echo", b"/%65cho", b"*", b"http://127.0.0.1/echo", b"/../../../etc/passwd",
        )),
        (b"POST /echo HTTP/1.1\r\n\r\n", 501),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"GET /echo HTTP/x\r\n\r\n", 400),
        (b"GET /echo HTTP/1.1\r\n" + b"X: y\r\n" * 101 + b"\r\n", 431),
        (b"GET /echo HTTP/1.1\r\nX: " + b"y" * 16_000 + b"\r\n\r\n", 200),
        (b"GET /echo HTTP/1.1\r\n" + b"X: " + b"y" * MAX_HEADER_BYTES, 431),
    ],
    ids=lambda value: repr(value)[:40],
)  # fmt: skip
def test_request_is_answered_or_refused_by_its_status(port: int, data: bytes, status: int) -> None:
    answer = send(port, data)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), answer[:200]
    assert body.startswith(b"echo") if status == 200 else re.fullmatch(rb".+\n", body), body
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"etc/passwd" not in answer
    assert b"Python" not in head


def test_page_that_raises_is_500_and_one_error(port: int, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        found = fetch(port, "/fail")
        assert (found.status, found.body) == (500, b"This page failed.\n")
    assert b"failed" not in send(port, b"HEAD /fail HTTP/1.1\r\n\r\n")
    assert ["RuntimeError: a bug" in one for one in errors_in(caplog)] == [True]


# -- slow clients


def test_probe_is_answered_beside_slow_and_deaf_clients(port: int) -> None:
    with contextlib.ExitStack() as clients:
        slow = [clients.enter_context(connect(port)) for _ in range(MAX_CONNECTIONS + 8)]
        over = threading.Event()

        def trickle() -> None:
            for byte in b"GET /echo HTTP/1.1\r\n" + b"x" * 1_000:
                for client in slow:
                    with contextlib.suppress(OSError):
                        client.send(bytes([byte]))
                if over.wait(0.1):
                    return

        thread = threading.Thread(target=trickle)
        thread.start()
        try:
            assert fetch(port, "/echo").status == 200
            for client in [clients.enter_context(connect(port)) for _ in range(MAX_CONNECTIONS + 8)]:
                client.sendall(b"GET /large HTTP/1.1\r\n\r\n")  # and never reads
            for _ in range(2):
                assert fetch(port, "/echo").status == 200
        finally:
            over.set()
            thread.join()
        assert clients_served() <= 2 * MAX_CONNECTIONS


def test_silent_connection_is_closed(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLIENT_SECONDS", 0.1)
    address = start().address
    assert address is not None
    with connect(address.port) as silent, connect(address.port) as deaf:
        deaf.sendall(b"GET /large HTTP/1.1\r\n\r\n")
        silent.sendall(b"GET /echo HTTP/1.1\r\n")
        assert silent.recv(1) == b""
        eventually(lambda: clients_served() == 0)


# -- addresses


def test_port_in_use_is_one_error_and_is_tried_again(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="celery.beat")
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.01)
    listen = Mock(wraps=module._listen_on)  # noqa: SLF001
    monkeypatch.setattr(module, "_listen_on", listen)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        made = start(Address("127.0.0.1", port), is_free=False)
        eventually(lambda: listen.call_count > 5)
        [error] = errors_in(caplog)
        assert f"127.0.0.1:{port} (Address already in use" in error
    eventually(lambda: made.address is not None)
    assert fetch(port, "/echo").status == 200
    assert f"http://127.0.0.1:{port}" in errors_in(caplog)[1], "at the same level: both are seen, or none"


def test_unix_socket_is_for_owner_and_group_and_removed_at_the_end(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "beat.sock"
    before = os.umask(0)
    try:
        made = start(Address(path=str(path)))
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o660
    assert fetch(path, "/echo").status == 200
    start(Address(path=str(path)), is_free=False)  # another beat: this one is in use
    eventually(lambda: errors_in(caplog), message="no error")
    assert fetch(path, "/echo").status == 200
    made.stop()
    assert not path.exists()


def test_forked_child_keeps_neither_port_nor_socket(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "beat.sock"
    endpoints = [start(Address(path=str(path))), start()]
    child_ends, parent_ends = os.pipe()
    child = os.fork()
    if child == 0:
        for one in endpoints:
            one.stop()
        os.close(parent_ends)
        os.read(child_ends, 1)  # until the parent closes it
        os._exit(0)
    try:
        for one in endpoints:
            assert one.address is not None
            place = one.address.port or path
            with connect(place) as client:
                client.sendall(b"GET /echo HTTP/1.1\r\n\r\n")
                assert b" 200 " in client.recv(1_000)
            one.stop()
            with pytest.raises(OSError, match=r"refused|No such file"):
                connect(place)
    finally:
        os.close(parent_ends)
        os.waitpid(child, 0)
        os.close(child_ends)


def test_stale_socket_is_replaced_and_another_file_is_not(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, file = tmp_path / "beat.sock", tmp_path / "important.txt"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
        killed.listen()
    assert path.exists()
    start(Address(path=str(path)))
    assert fetch(path, "/echo").status == 200
    file.write_text("important")
    start(Address(path=str(file)), is_free=False)
    eventually(lambda: errors_in(caplog), message="no error")
    assert file.read_text() == "important"
