"""A socket that listens at an address, and the file of a unix socket.

Invariant: only the process that opened it holds it: no program that it starts, and nothing that it forks off.
A file is removed only if it is the one that was made here, or is that of a socket that nobody listens on.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from weakref import WeakSet

from redbeat.config.address import Address

#: how many connections may wait to be accepted
BACKLOG = 128

#: who may connect to a unix socket: its owner and its group
SOCKET_MODE = 0o660

_LISTENERS: WeakSet[Listener] = WeakSet()


class Listener:
    """A listening socket.

    Arguments:
        address: where.
        patience_seconds: how long ``accept`` waits for a client.

    Attributes:
        address: where it listens; its port is the one that was free.

    Raises:
        OSError: it is in use, or can't be used.
    """

    def __init__(self, address: Address, patience_seconds: float) -> None:
        self._pid = os.getpid()
        self._file: tuple[int, int] | None = None
        self._socket = self._bind_path(address.path) if address.path else _bind_host(address)
        try:
            self._socket.listen(BACKLOG)
            self._socket.settimeout(patience_seconds)
            self.address = address
            if not address.path:
                self.address = replace(address, port=self._socket.getsockname()[1])
        except BaseException:
            self.close()
            raise
        _LISTENERS.add(self)

    def accept(self) -> socket.socket:
        """Return the next client.

        Raises:
            TimeoutError: there was none.
            OSError: something else is the matter.
        """
        return self._socket.accept()[0]

    @property
    def is_reachable(self) -> bool:
        """Whether clients get here: it isn't closed, and nobody has replaced or removed the file."""
        if self._socket.fileno() < 0:
            return False
        return self._file is None or self._file == _file_at(self._path)

    def close(self) -> None:
        """Close it, and remove its file. Harmless when repeated, and in a process that was forked off."""
        if os.getpid() != self._pid:
            return
        if self._file is not None and self._file == _file_at(self._path):
            with suppress(OSError):
                self._path.unlink()
        self._file = None
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # else a thread that waits in accept() would go on to
        self._socket.close()

    def leave_to_parent(self) -> None:
        """Close it in a process that was forked off, without ending it for the parent."""
        with suppress(Exception):  # whatever gevent or eventlet makes of it here
            os.close(self._socket.detach())

    def _bind_path(self, path: str) -> socket.socket:
        self._path = Path(path)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with suppress(OSError):  # so that on Linux the file never has another mode
                os.fchmod(listening.fileno(), SOCKET_MODE)
            try:
                listening.bind(path)
            except OSError as exc:
                if exc.errno != errno.EADDRINUSE or not _is_stale(self._path):
                    raise
                self._path.unlink(missing_ok=True)
                listening.bind(path)
            self._path.chmod(SOCKET_MODE)
            self._file = _file_at(self._path)
        except BaseException:
            listening.close()
            raise
        return listening


def _bind_host(address: Address) -> socket.socket:
    found = socket.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
    )
    # of a name, such as localhost, what its clients try in any case
    family, kind, protocol, _, place = min(found, key=lambda one: one[0] != socket.AF_INET)
    listening = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":  # elsewhere it would let two listen at one port
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(place)
    except BaseException:
        listening.close()
        raise
    return listening


def _file_at(path: Path) -> tuple[int, int] | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _is_stale(path: Path) -> bool:
    """Tell whether ``path`` is a socket on which nobody listens, as that of a process that was killed."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            return False
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(1)
            probe.connect(str(path))
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


def _leave_all() -> None:
    for listener in list(_LISTENERS):
        listener.leave_to_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_all)
