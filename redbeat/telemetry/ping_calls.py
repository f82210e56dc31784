"""Calls of services that raise the alarm when they aren't called: a GET, whose answer is its status alone.

Invariant: a call goes to the host that was asked for: no redirect is followed, and no proxy is used. What it
raises, and what is logged of it, has no path and no query.
"""

from __future__ import annotations

import math
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from http.client import HTTPConnection, HTTPException, HTTPSConnection

from redbeat.config.ping_urls import PingUrl
from redbeat.log.events import PING_BACK, PING_FAILED
from redbeat.log.logger import logger
from redbeat.log.text import printable, shorten

#: how long connecting to an address of a service may take, and then its answer
CALL_SECONDS = 5.0

#: pause after a failure of a service, which doubles up to the second one; seconds
PAUSE_SECONDS, MAX_PAUSE_SECONDS = 5.0, 60.0

#: statuses below 500 that may change when the call is repeated
_RETRYABLE = (408, 425, 429)


class CallFailed(Exception):
    """A call hasn't succeeded.

    Attributes:
        is_final: the service has answered, and would answer the same again.
    """

    def __init__(self, reason: str, *, is_final: bool = False) -> None:
        super().__init__(reason)
        self.is_final = is_final


def call(url: PingUrl) -> None:
    """Call ``url``.

    Raises:
        CallFailed: it can't be reached, doesn't answer in time, or answers 3xx, 4xx or 5xx.
    """
    client: HTTPConnection
    if url.scheme == "https":
        client = HTTPSConnection(url.host, url.port, timeout=CALL_SECONDS, context=tls_context())
    else:
        client = HTTPConnection(url.host, url.port, timeout=CALL_SECONDS)
    ends_at = math.inf
    try:
        client.connect()
        ends_at = time.monotonic() + CALL_SECONDS
        with _ended_in_time(client.sock):
            client.request("GET", url.target, headers={"User-Agent": "redbeat", "Connection": "close"})
            status = client.getresponse().status
    except (OSError, HTTPException, ValueError) as exc:  # ValueError: an invalid name
        if isinstance(exc, TimeoutError) or time.monotonic() >= ends_at:
            raise CallFailed(f"it hasn't answered within {CALL_SECONDS:g} s") from exc
        # an exception of http.client quotes the service, which may quote the request
        said = "it doesn't answer as HTTP does" if isinstance(exc, HTTPException) else exc
        raise CallFailed(shorten(printable(f"{type(exc).__name__}: {said}"))) from exc
    finally:
        client.close()
    if status >= 300:  # below 200 are hints before an answer that is on its way
        raise CallFailed(f"it answers {status}", is_final=status < 500 and status not in _RETRYABLE)


@contextmanager
def _ended_in_time(connection: socket.socket) -> Iterator[None]:
    """End ``connection`` if the block takes too long: its own timeout is about each part of an answer."""
    timer = threading.Timer(CALL_SECONDS, _end, (connection,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _end(connection: socket.socket) -> None:
    with suppress(OSError):  # it was closed just now
        socket.socket.shutdown(connection, socket.SHUT_RDWR)  # that of TLS isn't for another thread


@lru_cache(maxsize=1)
def tls_context() -> ssl.SSLContext:
    """Return the context that checks certificates: by the system's authorities, or ``SSL_CERT_FILE``."""
    return ssl.create_default_context()


@dataclass
class Service:
    """A service that is called, and its failures.

    Attributes:
        name: scheme, host and port.
        failures: how many calls have failed in a row.
        again_at: when it may be called again, monotonic.
    """

    name: str
    failures: int = 0
    again_at: float = 0.0

    def note_failed(self, exc: CallFailed, entry: str | None = None) -> None:
        """Record that a call has failed; the first one in a row is logged.

        Arguments:
            entry: the name of the entry that it was about; None: it was about the whole schedule.
        """
        self.again_at = time.monotonic() + min(PAUSE_SECONDS * 2 ** min(self.failures, 10), MAX_PAUSE_SECONDS)
        self.failures += 1
        if self.failures == 1:
            about = "that all is well, trying again"
            if entry is not None:
                about = f"of the runs of entries, trying again (last: {printable(entry)})"
            extra = PING_FAILED.of(service=self.name, entry=entry, reason=str(exc))
            logger.warning("beat: The service %s can't be told %s: %s", self.name, about, exc, extra=extra)

    def note_well(self) -> None:
        """Record that a call has succeeded; the first one after failures is logged."""
        if self.failures:
            logger.warning(
                "beat: The service %s answers again.", self.name, extra=PING_BACK.of(service=self.name)
            )
        self.failures = 0
