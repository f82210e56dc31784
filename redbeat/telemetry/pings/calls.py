"""One call of a service: a GET, of whose answer nothing is read but its status.

Invariant: a call takes no longer than its time, whatever the other side does; only the system's look-up of a
name may. It goes to the host that was asked for: no redirect is followed, and no proxy is used. What it
raises, and what is logged of it, has no path and no query.
"""

from __future__ import annotations

import re
import socket
import ssl
import time
from functools import lru_cache

from redbeat.config.ping_urls import PingUrl
from redbeat.log.events import PING_BACK, PING_FAILED
from redbeat.log.logger import logger
from redbeat.log.text import counted, printable, shorten
from redbeat.process.memory import Memory

#: how long a call may take
CALL_SECONDS = 5.0

#: how much of an answer is read at the most, bytes
MAX_READ_BYTES = 8_192

_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9][0-9])[ \r\n]")
_CANT_HELP = (408, 425, 429)


class CallFailed(Exception):
    """A call hasn't succeeded.

    Attributes:
        is_final: the service has answered, and would answer the same again.
    """

    def __init__(self, reason: str, *, is_final: bool = False) -> None:
        super().__init__(reason)
        self.is_final = is_final


def call(url: PingUrl, seconds: float = CALL_SECONDS) -> None:
    """Call ``url``.

    Raises:
        CallFailed: it can't be reached, doesn't answer in time, or answers anything but 2xx.
    """
    try:
        status = _ask(url, time.monotonic() + seconds)
    except (OSError, ValueError) as exc:  # ValueError: a name that can't be one, or a zero byte in it
        raise CallFailed(_reason_of(exc, seconds)) from exc
    if 300 <= status < 400:
        raise CallFailed(f"it answers {status}, and redirects aren't followed", is_final=True)
    if not 200 <= status < 300:
        raise CallFailed(f"it answers {status}", is_final=status < 500 and status not in _CANT_HELP)


def _reason_of(exc: Exception, seconds: float) -> str:
    if isinstance(exc, TimeoutError):
        return f"it hasn't answered within {seconds:g} s"
    return shorten(printable(f"{type(exc).__name__}: {exc}"))


def _ask(url: PingUrl, deadline: float) -> int:
    """Return the status of the answer.

    Raises:
        OSError, ValueError: there is none.
    """
    client = _connect(url, deadline)
    try:
        if url.scheme == "https":
            client.settimeout(_left(deadline))
            client = tls_context().wrap_socket(client, server_hostname=url.host)
        client.settimeout(_left(deadline))
        client.sendall(
            f"GET {url.target} HTTP/1.1\r\nHost: {url.authority}\r\nUser-Agent: redbeat\r\nAccept: */*\r\n"
            "Connection: close\r\n\r\n".encode("ascii")
        )
        return _read_status(client, deadline)
    finally:
        client.close()


def _connect(url: PingUrl, deadline: float) -> socket.socket:
    failure: OSError | None = None
    found = socket.getaddrinfo(url.host, url.port, type=socket.SOCK_STREAM)
    for untried, (family, kind, protocol, _, address) in zip(range(len(found), 0, -1), found, strict=True):
        client = socket.socket(family, kind, protocol)
        try:
            # one that says nothing, as of IPv6 where that leads nowhere, leaves time for the others
            client.settimeout(_left(deadline) / untried)
            client.connect(address)
        except OSError as exc:
            client.close()
            failure = exc
        except BaseException:
            client.close()
            raise
        else:
            return client
    raise failure or OSError("the host has no address")


def _read_status(client: socket.socket, deadline: float) -> int:
    answer, received = b"", 0
    while received < MAX_READ_BYTES:
        client.settimeout(_left(deadline))
        part = client.recv(1_024)
        if not part:
            break
        answer, received = answer + part, received + len(part)
        while (found := _STATUS.match(answer)) is not None:
            if found[1][:1] != b"1":
                return int(found[1])
            _, end, answer_after = answer.partition(b"\r\n\r\n")  # the real answer follows
            if not end:
                break
            answer = answer_after
    raise ConnectionError("it doesn't answer as HTTP does")


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


@lru_cache(maxsize=1)
def tls_context() -> ssl.SSLContext:
    """Return what certificates are checked by: the system's authorities, or those in ``SSL_CERT_FILE``."""
    return ssl.create_default_context()


class Services:
    """What was said of each service: once that it fails, and once that it answers again."""

    def __init__(self) -> None:
        self._failing = Memory[str, bool](limit=1_000)

    def note_failed(self, url: PingUrl, exc: CallFailed, entry: str | None = None) -> None:
        """Note that a call hasn't succeeded.

        Arguments:
            entry: the name of the entry that it was about; None: it was about the whole schedule.
        """
        if self._failing.is_news(url.service, True):
            logger.warning(
                "beat: The service %s can't be told %s: %s",
                url.service,
                f"of the runs of entries, trying again (last: {printable(entry)})"
                if entry is not None
                else "that all is well, trying again",
                exc,
                extra=PING_FAILED.of(service=url.service, entry=entry, reason=str(exc)),
            )

    def note_well(self, url: PingUrl, left_out: int = 0, entry: str | None = None) -> None:
        """Note that one has.

        Arguments:
            left_out: how many calls were given up meanwhile.
            entry: as for ``note_failed``.
        """
        if self._failing.pop(url.service, False):
            logger.warning(
                "beat: The service %s answers again%s%s.",
                url.service,
                "" if entry is None else f", and is told of the runs of entries (last: {printable(entry)})",
                f"; {counted(left_out, 'call was', 'calls were')} left out" if left_out else "",
                extra=PING_BACK.of(service=url.service, entry=entry, count=left_out),
            )
