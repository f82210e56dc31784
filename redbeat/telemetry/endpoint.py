"""The endpoint: a thread of beat that serves some pages over HTTP.

Invariant: no tick waits for it, and it takes little of the processor from them, even from hostile clients:
few connections are open at a time, and few are accepted in a second. The oldest makes room for a new one, so
slow clients don't keep a probe waiting. An invalid address is reported once and tried again.

Threads and plain sockets, and no selector, so that it works where gevent or eventlet has replaced both.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from http import HTTPStatus
from http.client import LineTooLong
from http.server import BaseHTTPRequestHandler
from io import BufferedIOBase
from pathlib import Path
from typing import Any, NamedTuple, cast

from redbeat.config.address import Address
from redbeat.log.events import ENDPOINT_AWAY, ENDPOINT_LISTENS, TELEMETRY_FAILED
from redbeat.log.logger import logger
from redbeat.log.text import printable
from redbeat.process.background import BackgroundThread
from redbeat.process.memory import Memory

#: how many connections may be open, and how many may wait to be accepted
MAX_CONNECTIONS, BACKLOG = 32, 128

#: how much of the headers of a request is read
MAX_HEADER_BYTES = 16_384

#: how long a client may be silent
CLIENT_SECONDS = 10.0

#: pause after each accepted connection
ACCEPT_SECONDS = 0.005

#: how often ``on_look`` is called
LOOK_SECONDS = 0.5

#: how often an invalid address is tried again
RETRY_SECONDS = 5.0

#: permissions of a unix socket: its owner and its group may connect
SOCKET_MODE = 0o660


class Response(NamedTuple):
    """An answer."""

    status: HTTPStatus
    content_type: str
    body: bytes


#: makes an answer to a request with this Accept header
Page = Callable[[str], Response]


class Endpoint:
    """One beat's endpoint; a part of its telemetry.

    Arguments:
        address: where it listens.
        pages: by their paths. They are called in threads of the endpoint.
        on_look: called about twice a second while clients may ask.

    Attributes:
        address: where it listens now, with the port that was free; None: nowhere.
    """

    def __init__(
        self, address: Address, pages: Mapping[str, Page], on_look: Callable[[], None] = lambda: None
    ) -> None:
        self._address = address
        self.address: Address | None = None
        self._pages = pages
        self._on_look = on_look
        self._listening: socket.socket | None = None
        self._open: dict[socket.socket, None] = {}  # the oldest first
        self._changing = threading.Lock()
        self._thread = BackgroundThread("redbeat-http", self._run)
        self._said = Memory[str, str]()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._leave_to_parent)

    def look(self) -> None:
        """Start the thread, unless it runs."""
        self._thread.start()

    def stop(self) -> None:
        """Stop listening, without waiting for answers in progress."""
        self._thread.stop()
        self._close()

    def _close(self) -> None:
        with self._changing:
            listening, self._listening, self.address = self._listening, None, None
        if listening is None:
            return
        if self._address.path:
            Path(self._address.path).unlink(missing_ok=True)
        with suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)  # else a thread that waits in accept() would go on waiting
        listening.close()

    def _leave_to_parent(self) -> None:
        """Let go of the socket in a process that was forked, so that only the parent holds the address."""
        listening, self._listening, self.address = self._listening, None, None
        if listening is not None:
            os.close(listening.detach())  # shutdown() would end it for the parent, too

    # -- in the thread

    def _run(self) -> None:
        while not self._thread.is_over:
            try:
                self._listen()
                self._accept_all()
            except OSError as exc:
                words = exc.strerror or str(exc)
                if not self._thread.is_over and self._said.is_news("address", words):
                    logger.error(  # noqa: TRY400 - the sentence says it all
                        "beat: redbeat_http: can't listen on %s (%s). It is tried again every %g s; "
                        "everything else goes on.",
                        printable(str(self._address)),
                        printable(words),
                        RETRY_SECONDS,
                        extra=ENDPOINT_AWAY.of(address=str(self._address), reason=words),
                    )
            except Exception as exc:  # noqa: BLE001 - if this thread ended, no client would be answered any more
                self._report("The endpoint failed, and goes on", exc)
            finally:
                self._close()
            self._on_look()
            self._thread.wait(RETRY_SECONDS)

    def _listen(self) -> None:
        listening = self._listening = _listen_on(self._address)
        port = self._address.port if self._address.path else listening.getsockname()[1]
        self.address = replace(self._address, port=port)
        address = str(self.address)
        was_away = self._said.pop("address", None) is not None
        logger.log(
            logging.ERROR if was_away else logging.INFO,
            "beat: Listening on %s%s for %s",
            "" if self._address.path else "http://",
            printable(address),
            ", ".join(self._pages),
            extra=ENDPOINT_LISTENS.of(address=address),
        )

    def _accept_all(self) -> None:
        """Accept connections until beat stops.

        Raises:
            OSError: the socket can't be used any more.
        """
        while not self._thread.is_over and (listening := self._listening) is not None:
            self._on_look()
            try:
                client, _ = listening.accept()
            except (TimeoutError, ConnectionAbortedError):
                continue
            client.settimeout(CLIENT_SECONDS)
            with self._changing:
                if len(self._open) >= MAX_CONNECTIONS:
                    oldest = next(iter(self._open))
                    del self._open[oldest]
                    with suppress(OSError):  # it has gone
                        oldest.shutdown(socket.SHUT_RDWR)  # its thread closes it
                self._open[client] = None
            threading.Thread(
                target=self._serve, args=(client,), name="redbeat-http-client", daemon=True
            ).start()
            self._thread.wait(ACCEPT_SECONDS)

    # -- in a connection's thread

    def _serve(self, client: socket.socket) -> None:
        try:
            _Exchange(client, self._pages, self._report)
        except OSError as exc:
            logger.debug("beat: A client of the endpoint has gone: %s", exc)
        except Exception as exc:  # noqa: BLE001 - the boundary of one request
            self._report("A request couldn't be answered", exc)
        finally:
            with self._changing:
                self._open.pop(client, None)
            client.close()

    def _report(self, what: str, exc: Exception) -> None:
        self._thread.report(what, exc, TELEMETRY_FAILED, part="Endpoint")


class _Exchange(BaseHTTPRequestHandler):
    """One request and its answer."""

    protocol_version, default_request_version = "HTTP/1.1", "HTTP/1.0"
    server_version, sys_version = "redbeat", ""
    error_message_format, error_content_type = "%(explain)s\n", "text/plain; charset=utf-8"

    def __init__(
        self, client: socket.socket, pages: Mapping[str, Page], report: Callable[[str, Exception], None]
    ) -> None:
        self._pages, self._report = pages, report
        super().__init__(client, None, cast("Any", None))  # which answers

    def parse_request(self) -> bool:
        """Read the headers, up to a limit; else answer that they are too long."""
        self.rfile = cast("BufferedIOBase", _Headers(self.rfile))
        return super().parse_request()

    def do_GET(self) -> None:
        """Answer with the page of this path."""
        page = self._pages.get(self.path.partition("?")[0])
        if page is None:
            explanation = f"This page is missing. The pages here are {', '.join(self._pages)}."
            self.send_error(HTTPStatus.NOT_FOUND, explain=explanation)
            return
        try:
            response = page(", ".join(self.headers.get_all("Accept", ())))
        except Exception as exc:  # noqa: BLE001 - a page's own
            self._report("A page of the endpoint failed", exc)
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR, explain="This page failed.")
            return
        self.send_response(response.status)
        self.send_header("Content-Type", response.content_type)
        self.send_header("Content-Length", str(len(response.body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(response.body)

    do_HEAD = do_GET  # noqa: N815 - http.server's name

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server's name
        """Log at DEBUG, without lines that the client has made up."""
        logger.debug("beat: The endpoint was asked: %s", format % args)


class _Headers:
    """Lets no more than ``MAX_HEADER_BYTES`` be read; http.server itself reads some megabytes."""

    def __init__(self, file: BufferedIOBase) -> None:
        self._file, self._left = file, MAX_HEADER_BYTES
        self.close = file.close

    def readline(self, _limit: int) -> bytes:
        line = self._file.readline(self._left + 1)
        self._left -= len(line)
        if self._left < 0:
            raise LineTooLong("header line")  # which http.server answers
        return line


def _listen_on(address: Address) -> socket.socket:
    """Return a listening socket.

    Raises:
        OSError: the address is in use, or invalid.
    """
    if address.path:
        listening = _bind_path(Path(address.path))
    else:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        # of a name, such as localhost, the address that its clients try in any case
        family, _, _, _, place = min(found, key=lambda one: one[0] != socket.AF_INET)
        is_dual = family == socket.AF_INET6 and address.host == "::" and socket.has_dualstack_ipv6()
        listening = socket.create_server(place[:2], family=family, backlog=BACKLOG, dualstack_ipv6=is_dual)
    listening.settimeout(LOOK_SECONDS)
    return listening


def _bind_path(path: Path) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX)
    try:
        try:
            listening.bind(str(path))
        except OSError as exc:
            if exc.errno != errno.EADDRINUSE or not _is_stale(path):
                raise
            path.unlink()
            listening.bind(str(path))
        path.chmod(SOCKET_MODE)  # before any client can connect
        listening.listen(BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening


def _is_stale(path: Path) -> bool:
    """Return True if ``path`` is the socket of a process that was killed."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1)
        return probe.connect_ex(str(path)) == errno.ECONNREFUSED and path.is_socket()
