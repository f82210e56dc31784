"""Addresses of trusted machines, as settings have them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

#: a range of addresses, or 'unix' for whoever asks over a unix socket
Network = IPv4Network | IPv6Network | str


def parse_networks(value: object) -> tuple[Network, ...]:
    """Return the networks in a list such as ``["10.0.0.0/8", "::1", "unix"]``.

    Raises:
        ValueError: one of them is none.
    """
    if not isinstance(value, (list, tuple)):
        raise ValueError
    return tuple(one if one == "unix" else ip_network(_text(one)) for one in value)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


def is_in(address: str, networks: Sequence[Network]) -> bool:
    """Return True if ``address`` is in one of ``networks``; what isn't an address is in none."""
    if address == "unix":
        return "unix" in networks
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None) or parsed
    return any(not isinstance(one, str) and mapped in one for one in networks)


def is_loopback(address: str | None) -> bool:
    """Return True if ``address`` is of this machine: a unix socket has none, and is."""
    if not address:
        return True
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    return bool((getattr(parsed, "ipv4_mapped", None) or parsed).is_loopback)


def is_any(address: str) -> bool:
    """Return True if ``address`` stands for all addresses of this machine, as 0.0.0.0 does."""
    try:
        return ip_address(address).is_unspecified
    except ValueError:
        return False
