"""Server programs on free ports of 127.0.0.1, each with a directory of its own.

Invariant: what a `Daemon` starts, `stop()` ends and removes, by its own pid. Until then its port is nobody
else's, also while it is killed: sentinels look for it there, and would make a replica of what they find.
"""

from __future__ import annotations

import random
import re
import shutil
import socket
import tempfile
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, TypeVar

from .processes import Process

Self = TypeVar("Self", bound="Daemon")

_HOST = "127.0.0.1"
# Below the ports that the kernel gives to outgoing connections, so that a restart finds its port free.
_PORTS = range(20_000, 32_000)


#: for each port of a server, running or not, a UDP socket, which no server uses; it ends with this process
_claimed: dict[int, socket.socket] = {}


def pick_port() -> int:
    """Return a port that nobody listens on now and that is not a server's; the own bind has the last word."""
    port = _claim_port()
    _claimed.pop(port).close()
    return port


def _claim_port() -> int:
    while True:
        port = random.choice(_PORTS)
        fetched = socket.socket(type=socket.SOCK_DGRAM)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                fetched.bind((_HOST, port))
                probe.bind((_HOST, port))
            except OSError:
                fetched.close()
                continue
        _claimed[port] = fetched
        return port


class Daemon(ABC):
    """A server that runs from construction until `stop()`; a subclass configures and starts it.

    Its log, and not a connection, tells whether it is ready: another server might answer at the port that it
    failed to get.
    """

    host = _HOST
    port: int
    process: Process

    _name: ClassVar[str]
    #: what it logs when it doesn't get its port
    _port_taken: ClassVar[re.Pattern[str]]

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix=f"redbeat-{self._name}-"))
        try:
            self._start_on_a_free_port()
        except BaseException:
            shutil.rmtree(self.directory, ignore_errors=True)
            raise

    @abstractmethod
    def _configure(self) -> None:
        """Write the configuration for `port` into `directory`."""

    @abstractmethod
    def _launch(self) -> Process:
        """Start it as it was configured; ready on return. AssertionError with its log when it isn't."""

    @property
    def is_running(self) -> bool:
        """Whether its process is there, paused or not."""
        return self.process.is_running

    def kill(self) -> None:
        """End it as a crash would; `restart()` brings it back."""
        self.process.kill()

    def restart(self) -> None:
        """Stop it if need be, and start it on the same port, configuration and data; ready on return."""
        self.process.stop()
        self.process = self._launch()

    def stop(self) -> None:
        """End it for good and remove its data. Harmless when repeated."""
        self.process.kill()  # nothing is worth an orderly end
        if fetched := _claimed.pop(self.port, None):
            fetched.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start_on_a_free_port(self) -> None:
        for _ in range(20):
            self.port = _claim_port()
            try:
                self._configure()
                self.process = self._launch()
                return
            except BaseException as exc:
                _claimed.pop(self.port).close()
                if not isinstance(exc, AssertionError) or not self._port_taken.search(str(exc)):
                    raise
        raise RuntimeError("found no free port in 20 tries")
