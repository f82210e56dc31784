"""The URLs that RedBeat calls to say that all is well: their form, the hosts they may name, and their mask.

Invariant: a URL has one reading. Whatever two programs could read in two ways (credentials, backslashes,
control characters, a fragment) isn't a URL here, and what is called is what was checked. Whoever knows such a
URL can call it, too, so no sentence contains one. Pure.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from redbeat.config.masking import MASK

#: the longest URL
MAX_URL = 2_000

_PORTS = {"http": 80, "https": 443}
_HOST = r"(?P<host>[A-Za-z0-9_.-]+)|\[(?P<v6>[0-9A-Fa-f:.]+)\]"
_URL = re.compile(
    rf"(?P<scheme>[Hh][Tt][Tt][Pp][Ss]?)://(?:{_HOST})(?::(?P<port>[0-9]{{1,5}}))?"
    r"(?P<target>(?:[/?][A-Za-z0-9._~:/?\[\]@!$&'()*+,;=%-]*)?)"
)
_NAME = re.compile(r"(?!.{254})[A-Za-z0-9_]([A-Za-z0-9_-]{0,62})(\.[A-Za-z0-9_-]{1,63})*\.?")
_PATTERN = re.compile(rf"(?P<wild>\*\.)?(?:{_HOST})(?::(?P<port>[0-9]{{1,5}}))?")


@dataclass(frozen=True)
class PingUrl:
    """A URL to call.

    Attributes:
        scheme: 'http' or 'https'.
        host: lower case, without a dot at its end; an IPv6 address without brackets.
        target: path and query, which begin with '/'.
    """

    scheme: str
    host: str
    port: int
    target: str

    @property
    def authority(self) -> str:
        """The host, and the port where it isn't the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def service(self) -> str:
        """What may be shown of it: all but path and query."""
        return f"{self.scheme}://{self.authority}"

    @property
    def masked(self) -> str:
        """The URL as lists show it."""
        return f"{self.service}/{MASK}"

    def followed_by(self, word: str) -> PingUrl:
        """Return the URL with ``/word`` at the end of its path."""
        path, mark, query = self.target.partition("?")
        return replace(self, target=f"{path.rstrip('/')}/{word}{mark}{query}")


def parse_ping_url(text: Any) -> PingUrl:
    """Return the URL that ``text`` is.

    Raises:
        ValueError: it isn't one; the sentence doesn't contain it.
    """
    if not isinstance(text, str):
        raise ValueError("must be text: a URL that starts with https:// or http://.")
    if len(text) > MAX_URL:
        raise ValueError(f"must have {MAX_URL} characters at the most.")
    found = _URL.fullmatch(text)
    host = _host_of(found) if found is not None else ""
    if found is None or not host:
        raise ValueError(
            "must be a URL such as https://hc-ping.com/your-uuid: https or http, a host, perhaps a port and "
            "a path; with no user name, no '#', no space and no backslash, and other letters as %XX. (It "
            "isn't shown here.)"
        )
    scheme, target = found["scheme"].lower(), found["target"]
    port = int(found["port"] or _PORTS[scheme])
    if not 0 < port < 65_536:
        raise ValueError("its port must be from 1 to 65535.")
    target = target if target.startswith("/") else f"/{target}"
    if target == f"/{MASK}":
        raise ValueError(f"is one that was masked: write the URL itself, which 'export' shows, not /{MASK}.")
    return PingUrl(scheme, host, port, target)


def _host_of(found: re.Match[str]) -> str:
    """Return the host, '' for what is none."""
    if found["v6"] is not None:
        try:
            return str(ipaddress.IPv6Address(found["v6"]))
        except ValueError:
            return ""
    return found["host"].lower().removesuffix(".") if _NAME.fullmatch(found["host"]) else ""


def mask_ping_url(value: Any) -> Any:
    """Return the mask of a URL, whole or broken; None for None."""
    if value is None:
        return None
    try:
        return parse_ping_url(value).masked
    except ValueError:
        return MASK


@dataclass(frozen=True)
class PingHost:
    """One row of ``redbeat_ping_hosts``.

    Attributes:
        host: lower case.
        port: None: that of the URL's scheme.
        is_wild: it stands for all hosts below ``host``, and not for ``host`` itself.
    """

    host: str
    port: int | None
    is_wild: bool

    def allows(self, url: PingUrl) -> bool:
        """Return True if ``url`` may be called."""
        if url.port != (_PORTS[url.scheme] if self.port is None else self.port):
            return False
        return url.host.endswith(f".{self.host}") if self.is_wild else url.host == self.host


def parse_ping_host(text: Any) -> PingHost:
    """Return the host that ``text`` names: ``hc-ping.com``, ``pings.local:8000`` or ``*.example.com``.

    Raises:
        ValueError: it names none.
    """
    found = _PATTERN.fullmatch(text) if isinstance(text, str) else None
    host = _host_of(found) if found is not None else ""
    port = None if found is None or found["port"] is None else int(found["port"])
    if found is None or not host or (port is not None and not 0 < port < 65_536):
        raise ValueError
    is_wild = found["wild"] is not None
    if is_wild and ("." not in host or re.fullmatch(r"[0-9.:]+", host)):  # all of .com, or no name at all
        raise ValueError
    return PingHost(host, port, is_wild)


def is_allowed(url: PingUrl, hosts: Iterable[str]) -> bool:
    """Return True if ``url`` may be called where ``redbeat_ping_hosts`` is ``hosts``."""
    return any(parse_ping_host(host).allows(url) for host in hosts)
