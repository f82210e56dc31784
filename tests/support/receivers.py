"""A service that is called: it records requests and answers as the test says."""

from __future__ import annotations

import contextlib
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator
from socketserver import StreamRequestHandler, ThreadingTCPServer

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK"


class Receiver(ThreadingTCPServer):
    """Listens on a free port of 127.0.0.1 until the context ends.

    Attributes:
        behave: returns the answer to a path: bytes, or the parts of an answer that takes its time.
        requests: the heads of the requests, oldest first.
    """

    daemon_threads = True
    request_queue_size = 100

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behave: Callable[[str], bytes | Iterable[bytes]] = lambda _path: OK
        self.requests: list[str] = []
        self.closed = threading.Event()
        self.host = f"127.0.0.1:{self.server_address[1]}"
        self._scheme = "https" if context else "http"
        if context:
            self.socket = context.wrap_socket(self.socket, server_side=True)
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def url(self, path: str = "") -> str:
        return f"{self._scheme}://{self.host}/{path}"

    @property
    def paths(self) -> list[str]:
        return [request.split()[1] for request in self.requests]

    def server_close(self) -> None:
        """End the answers, and refuse connections."""
        self.closed.set()
        self.shutdown()
        super().server_close()

    def hang(self) -> Iterator[bytes]:
        """Answer nothing, and keep the connection."""
        self.closed.wait()
        yield b""


class _Handler(StreamRequestHandler):
    server: Receiver

    def handle(self) -> None:
        with contextlib.suppress(OSError):
            if not (lines := [self.rfile.readline()])[0]:
                return
            lines.extend(iter(self.rfile.readline, b"\r\n"))
            self.server.requests.append(request := b"".join(lines).decode("latin-1"))
            answer = self.server.behave(request.split()[1])
            for part in [answer] if isinstance(answer, bytes) else answer:
                self.wfile.write(part)
