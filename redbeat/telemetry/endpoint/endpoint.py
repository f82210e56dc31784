"""The endpoint: a thread of beat that serves some pages over HTTP.

Invariant: no tick waits for it, and it takes little of the processor from them, whatever its clients do: few
connections are open at a time (``connections``), and not many are accepted in a second. A client that has to
wait for that waits in the kernel's queue. An address that can't be used is told once and tried again.

Threads and plain sockets, and no selector, so that it works where gevent or eventlet has replaced both.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus

from redbeat.config.address import Address
from redbeat.log.events import ENDPOINT_AWAY, ENDPOINT_LISTENS, TELEMETRY_FAILED
from redbeat.log.logger import logger
from redbeat.log.text import printable
from redbeat.process.background import BackgroundThread
from redbeat.process.memory import Memory
from redbeat.telemetry.endpoint.connections import Connection, Connections
from redbeat.telemetry.endpoint.exchange import Page, RequestRefused, read_head, respond, text_response, write
from redbeat.telemetry.endpoint.listener import Listener

#: how many connections may be open
MAX_CONNECTIONS = 32

#: how long one of them may take in all
CONNECTION_SECONDS = 10.0

#: so many connections are accepted in this time at most
BURST, BURST_SECONDS = 20, 0.1

#: how often it is looked whether connections are overdue, or the listener has ended
LOOK_SECONDS = 0.5

#: how often an address that can't be used is tried again
RETRY_SECONDS = 5.0

#: how long accepting is stopped when the system has no memory, files or threads left for a connection
SHORTAGE_SECONDS = 0.5


class Endpoint:
    """One beat's endpoint; a part of its telemetry.

    Arguments:
        address: where it listens.
        pages: what it serves, by path. They are called in threads of the endpoint.
        on_look: called about twice a second while clients may ask.
    """

    def __init__(
        self, address: Address, pages: Mapping[str, Page], on_look: Callable[[], None] = lambda: None
    ) -> None:
        self._address = address
        self._pages = pages
        self._on_look = on_look
        self._connections = Connections(MAX_CONNECTIONS, CONNECTION_SECONDS)
        self._listener: Listener | None = None
        self._thread = BackgroundThread("redbeat-http", self._run)
        self._said = Memory[str, str]()

    @property
    def address(self) -> Address | None:
        """Where it listens now; None: nowhere."""
        return None if self._listener is None else self._listener.address

    def look(self) -> None:
        """Start the thread, unless it runs."""
        self._thread.start()

    def stop(self) -> None:
        """Stop listening; what is being answered isn't waited for."""
        self._thread.stop()
        listener = self._listener
        if listener is not None:
            listener.close()

    # -- in the thread

    def _run(self) -> None:
        while not self._thread.is_over:
            try:
                self._listen()
            except Exception as exc:  # noqa: BLE001 - if this thread ended, nobody would be answered any more
                self._report("The endpoint failed, and goes on", exc)
            self._on_look()
            self._thread.wait(RETRY_SECONDS)

    def _listen(self) -> None:
        """Listen for as long as that works."""
        try:
            listener = self._listener = Listener(self._address, LOOK_SECONDS)
        except OSError as exc:
            words = exc.strerror or str(exc)
            if self._said.is_news("address", words):
                logger.error(  # noqa: TRY400 - the sentence says it all
                    "beat: redbeat_http: can't listen on %s (%s). It is tried again every %g s; everything "
                    "else goes on.",
                    printable(str(self._address)),
                    printable(words),
                    RETRY_SECONDS,
                    extra=ENDPOINT_AWAY.of(address=str(self._address), reason=words),
                )
            return
        try:
            if self._thread.is_over:
                return
            was_away = self._said.pop("address", None) is not None
            scheme = "" if listener.address.path else "http://"
            pages = ", ".join(self._pages)
            logger.log(
                logging.ERROR if was_away else logging.INFO,
                "beat: Listening on %s%s for %s",
                scheme,
                printable(str(listener.address)),
                pages,
                extra=ENDPOINT_LISTENS.of(address=str(listener.address)),
            )
            self._accept_all(listener)
        finally:
            self._listener = None
            listener.close()

    def _accept_all(self, listener: Listener) -> None:
        """Accept connections until the listener has ended."""
        accepted, began_at, look_at = 0, time.monotonic(), 0.0
        while not self._thread.is_over:
            now = time.monotonic()
            if now >= look_at:
                look_at = now + LOOK_SECONDS
                self._on_look()
                self._connections.end_overdue()
                if not listener.is_reachable:
                    reason = self._said["address"] = "another process removed or replaced it"
                    logger.error(
                        "beat: redbeat_http: %s: %s.",
                        printable(str(listener.address)),
                        reason,
                        extra=ENDPOINT_AWAY.of(address=str(listener.address), reason=reason),
                    )
                    return
            try:
                self._begin(listener.accept())
            except TimeoutError:
                continue
            except (OSError, RuntimeError) as exc:  # no files, memory or threads; or a client that has gone
                logger.debug("beat: A connection can't be accepted: %s", exc)
                self._thread.wait(SHORTAGE_SECONDS)
                continue
            accepted += 1
            if accepted >= BURST:
                self._thread.wait(began_at + BURST_SECONDS - time.monotonic())
                accepted, began_at = 0, time.monotonic()

    def _begin(self, client: socket.socket) -> None:
        connection = self._connections.add(client)
        try:
            client.settimeout(CONNECTION_SECONDS)
            threading.Thread(
                target=self._serve, args=(connection,), name="redbeat-http-client", daemon=True
            ).start()
        except BaseException:
            self._connections.close(connection)
            raise

    # -- in a connection's thread

    def _serve(self, connection: Connection) -> None:
        try:
            self._answer(connection)
        except OSError as exc:
            logger.debug("beat: A client has gone, or took too long: %s", exc)
        except Exception as exc:  # noqa: BLE001 - the boundary of one request
            self._report("A request couldn't be answered", exc)
        finally:
            self._connections.close(connection)

    def _answer(self, connection: Connection) -> None:
        client = connection.peer
        try:
            head = read_head(client)
        except RequestRefused as exc:
            write(client, exc.response)
            return
        connection.has_asked = True
        try:
            response, has_body = respond(head, self._pages)
        except Exception as exc:  # noqa: BLE001 - a page's own
            self._report("A page of the endpoint failed", exc)
            response = text_response(HTTPStatus.INTERNAL_SERVER_ERROR, "This page failed.")
            has_body = not head.startswith(b"HEAD ")
        write(client, response, has_body=has_body)

    def _report(self, what: str, exc: Exception) -> None:
        self._thread.report(what, exc, TELEMETRY_FAILED, part="Endpoint")
