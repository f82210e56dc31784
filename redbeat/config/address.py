"""Where beat's endpoint listens: ``HOST:PORT``, or a unix socket. Pure."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

#: the longest path that all systems take, bytes
MAX_PATH_BYTES = 103

_UNIX = "unix:"
_HOST_AND_PORT = re.compile(
    r"(?:\[(?P<v6>[^\[\]]+)\]|(?P<host>[^\[\]:/@\s]+)):(?P<port>[0-9]{1,5})", re.ASCII
)
_NAME = re.compile(r"(?!.{254})\w[\w-]{0,62}(\.[\w-]{1,63})*", re.ASCII)


@dataclass(frozen=True)
class Address:
    """A place to listen at.

    Attributes:
        host: an address or a name; '': it is a unix socket.
        port: 0: any that is free.
        path: of the unix socket; '': it is none.
    """

    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return f"{_UNIX}{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_address(text: str) -> Address:
    """Return the address that ``text`` writes.

    Raises:
        ValueError: it writes none.
    """
    if text.startswith(_UNIX):
        path = text.removeprefix(_UNIX)
        if path.startswith("//"):  # as in a URL
            path = "/" + path.lstrip("/")
        if not path.startswith("/") or not path.isprintable() or len(path.encode()) > MAX_PATH_BYTES:
            raise ValueError
        return Address(path=path)
    found = _HOST_AND_PORT.fullmatch(text)
    if found is None or int(found["port"]) > 65_535:
        raise ValueError
    if found["v6"]:
        ipaddress.IPv6Address(found["v6"])
    elif re.fullmatch(r"[0-9.]+", found["host"]):
        ipaddress.IPv4Address(found["host"])
    elif not _NAME.fullmatch(found["host"]):
        raise ValueError
    return Address(host=found["v6"] or found["host"], port=int(found["port"]))
