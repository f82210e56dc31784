"""A service that is called: it notes what comes, and answers well, badly, or not at all, as the path says."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable
from types import TracebackType

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK"


class Receiver:
    """Listens on a free port of 127.0.0.1 from its making until `close()`.

    `paths` are those of all requests, in their order; `requests` the requests as they came. What is answered
    is what `behave(path)` says: bytes; or a callable that is given the connection.
    """

    def __init__(
        self,
        behave: Callable[[str], bytes | Callable[[socket.socket], None]] = lambda path: OK,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self.behave = behave
        self.requests: list[str] = []
        self._context = context
        self._closed = threading.Event()
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._listen, daemon=True).start()

    def url(self, path: str = "") -> str:
        return f"{'http' if self._context is None else 'https'}://127.0.0.1:{self.port}/{path}"

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def paths(self) -> list[str]:
        return [request.split()[1] for request in self.requests]

    def close(self) -> None:
        self._closed.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for client in self._open:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
            client.close()

    def __enter__(self) -> Receiver:
        return self

    def __exit__(self, _kind: object, _error: object, _trace: TracebackType | None) -> None:
        self.close()

    def wait(self, seconds: float) -> bool:
        """Wait, and tell whether the receiver was closed: for behaviours that take long."""
        return self._closed.wait(seconds)

    def hang(self, _client: socket.socket) -> None:
        """Answer nothing, and keep the connection."""
        self._closed.wait()

    def drip(self, client: socket.socket) -> None:
        """Answer a header's letter now and then, for ever."""
        client.sendall(b"HTTP/1.1 100 Continue\r\nX: ")
        while not self.wait(0.05):
            client.sendall(b"x")

    def announce(self, client: socket.socket) -> None:
        """Say for ever that the answer will come."""
        while not self._closed.is_set():
            client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)

    def stream(self, client: socket.socket) -> None:
        """Answer well, and then send for ever."""
        client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while not self._closed.is_set():
            client.sendall(b"x" * 65_536)

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._open.append(client)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), client:
            if self._context is not None:
                client = self._context.wrap_socket(client, server_side=True)
            request = b""
            while b"\r\n\r\n" not in request:
                part = client.recv(65_536)
                if not part:
                    return
                request += part
            self.requests.append(request.decode("latin-1"))
            answer = self.behave(self.requests[-1].split()[1])
            if isinstance(answer, bytes):
                client.sendall(answer)
            else:
                answer(client)
