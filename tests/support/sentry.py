"""A Sentry of the test's own: it keeps the check-ins that it is told of, and what else is sent to it."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Sentry:
    """What was received.

    Attributes:
        items: (type, payload) of each item, in the order of their arrival.
        dsn: to be given to `sentry_sdk.init`.
    """

    def __init__(self, port: int) -> None:
        self.items: list[tuple[str, Any]] = []
        self.dsn = f"http://key@127.0.0.1:{port}/42"

    def check_ins(self, name: str = "") -> list[dict[str, Any]]:
        """Those of an entry, or all of them."""
        found = [payload for kind, payload in list(self.items) if kind == "check_in"]
        return [one for one in found if name in ("", one["monitor_slug"])]

    def statuses(self, name: str) -> list[str]:
        return [one["status"] for one in self.check_ins(name)]

    def transactions(self) -> list[str]:
        """What tasks Sentry's code in workers has measured."""
        return [payload["transaction"] for kind, payload in list(self.items) if kind == "transaction"]

    def latencies(self, task_id: str) -> list[float | None]:
        """How long messages have waited, by Sentry's code in workers, ms; None: it doesn't know."""
        measured = [payload for kind, payload in list(self.items) if kind == "transaction"]
        spans = [span.get("data", {}) for one in measured for span in one["spans"]]
        return [
            data.get("messaging.message.receive.latency")
            for data in spans
            if data.get("messaging.message.id") == task_id
        ]

    def ids(self, name: str) -> set[str]:
        """The ids of an entry's check-ins."""
        return {one["check_in_id"] for one in self.check_ins(name)}

    def monitor(self, name: str) -> dict[str, Any]:
        """The monitor that an entry's first check-in has brought along."""
        config: dict[str, Any] = self.check_ins(name)[0]["monitor_config"]
        return config

    def receive(self, envelope: bytes) -> None:
        _, _, rest = envelope.partition(b"\n")
        while rest.strip():
            line, _, rest = rest.partition(b"\n")
            header = json.loads(line)
            length = header.get("length")
            text, rest = (rest[:length], rest[length + 1 :]) if length else rest.partition(b"\n")[::2]
            if header["type"] in ("check_in", "transaction", "event"):
                self.items.append((header["type"], json.loads(text)))


@contextmanager
def receiving() -> Iterator[Sentry]:
    """A Sentry that listens."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # what is sent on a connection that ends just then is lost

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            sentry.receive(gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body)
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    sentry = Sentry(server.server_port)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield sentry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
