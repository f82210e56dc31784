"""For which hosts the dashboard answers, and which proxies it believes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from redbeat.config.networks import is_in, is_loopback, parse_networks
from redbeat.web.access.hosts import AllowedHosts, is_allowed
from redbeat.web.access.proxies import IS_FORWARDED, TrustedProxies

ALLOWED = ["localhost", "127.0.0.1", "[::1]", "tower:8080", "*.example.com"]


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:8555",
        "localhost.",
        "127.0.0.1:1",
        "[::1]:8555",
        "tower:8080",
        "a.b.example.com",
    ],
)
def test_a_host_that_is_named_is_allowed(host: str) -> None:
    assert is_allowed(host, ALLOWED)


@pytest.mark.parametrize(
    "host",
    [
        *(
            "",
            " ",
            "evil.com",
            "localhost.evil.com",
            "localhost@evil.com",
            "evil.com#localhost",
            "tower",
            "tower:80",
        ),
        *(
            "example.com",
            "badexample.com",
            "127.0.0.2",
            "[::2]",
            "localhost:port",
            "localhost/",
            "localhost, a",
        ),
        *("a.example.com\n", "\x00", "ex ample.com", "*.example.com", "ⓛocalhost"),
    ],
)
def test_any_other_host_is_refused(host: str) -> None:
    assert not is_allowed(host, ALLOWED)


def seen(
    middleware: Any, *args: Any, headers: list[tuple[str, str]], client: str | None, path: str = "/x"
) -> Any:
    """What the application behind a middleware is told: its scope, or the answer's status."""
    told: list[Any] = []

    async def inner(scope: Scope, _receive: Receive, _send: Send) -> None:
        told.append(scope)

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            told.append(message["status"])

    scope = {
        "type": "http", "method": "GET", "scheme": "http", "path": path, "root_path": "", "query_string": b"",
        "client": None if client is None else (client, 1),
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers],
    }  # fmt: skip
    asyncio.run(middleware(inner, *args)(scope, None, send))
    return told[0]


@pytest.mark.parametrize(
    "headers", [[], [("host", "localhost"), ("host", "evil.com")], [("host", "evil.com")]]
)
def test_a_request_for_no_host_two_hosts_or_another_one_goes_no_further(
    headers: list[tuple[str, str]],
) -> None:
    assert seen(AllowedHosts, ALLOWED, headers=headers, client="1.2.3.4") == 400


FORWARDED = [
    ("host", "inner"), ("x-forwarded-for", "6.6.6.6, 9.9.9.9, 10.0.0.2"), ("x-forwarded-proto", "https"),
    ("x-forwarded-host", "redbeat.example.com"), ("x-forwarded-prefix", "/tools/redbeat/"),
]  # fmt: skip


def test_a_trusted_proxy_is_believed_and_what_others_have_claimed_before_it_isnt() -> None:
    scope = seen(TrustedProxies, parse_networks(["10.0.0.0/8"]), headers=FORWARDED, client="10.0.0.1")
    assert scope["client"][0] == "9.9.9.9"  # the last one that isn't a proxy of ours
    assert (scope["scheme"], dict(scope["headers"])[b"host"]) == ("https", b"redbeat.example.com")
    assert (scope["root_path"], scope["path"]) == ("/tools/redbeat", "/tools/redbeat/x")


@pytest.mark.parametrize(
    ("said", "address"),
    [
        ("9.9.9.9:50123, 10.0.0.2:443", "9.9.9.9"),
        ("[2001:db8::1]:50123", "2001:db8::1"),
        ("[2001:db8::1]", "2001:db8::1"),
        ("2001:db8::1", "2001:db8::1"),
        ("unknown", "unknown"),
    ],
)
def test_the_port_that_a_proxy_tells_is_no_part_of_an_address(said: str, address: str) -> None:
    headers = [("x-forwarded-for", said)]
    scope = seen(TrustedProxies, parse_networks(["10.0.0.0/8"]), headers=headers, client="10.0.0.1")
    assert scope["client"][0] == address


def test_who_is_said_to_be_on_this_machine_is_not_taken_to_be() -> None:
    own = [("host", "inner"), ("x-forwarded-for", "127.0.0.1, 10.0.0.2")]
    networks = parse_networks(["10.0.0.0/8"])
    for client, headers, wanted in (
        ("10.0.0.1", own, True),
        ("127.0.0.1", own, True),
        ("127.0.0.1", own[:1], False),
        ("10.0.0.1", FORWARDED, True),
        ("10.0.0.1", [("x-real-ip", "127.0.0.1")], True),
        ("127.0.0.1", [("x-forwarded-proto", "https")], True),
        ("127.0.0.1", [("x-forwarded-host", "localhost")], True),
        ("127.0.0.1", [("x-forwarded-prefix", "/redbeat")], True),
        ("127.0.0.1", [("via", "1.1 proxy")], True),
    ):
        scope = seen(TrustedProxies, networks, headers=headers, client=client)
        assert scope[IS_FORWARDED] is wanted, (client, headers)


def test_a_browser_among_the_trusted_addresses_is_where_it_is_said_to_be() -> None:
    networks = parse_networks(["127.0.0.1", "10.0.0.0/8"])
    headers = [("x-forwarded-for", "10.0.0.7, 10.0.0.2")]
    scope = seen(TrustedProxies, networks, headers=headers, client="127.0.0.1")
    assert (scope["client"][0], scope[IS_FORWARDED]) == ("10.0.0.7", True)


@pytest.mark.parametrize("client", ["11.0.0.1", "::1", "127.0.0.1", None])
def test_of_anybody_else_forwarded_headers_mean_nothing(client: str | None) -> None:
    scope = seen(TrustedProxies, parse_networks(["10.0.0.0/8"]), headers=FORWARDED, client=client)
    assert (scope["client"] or [None])[0] == client
    assert (scope["scheme"], scope["root_path"], scope["path"]) == ("http", "", "/x")
    assert dict(scope["headers"])[b"host"] == b"inner"


@pytest.mark.parametrize(
    "prefix", ["//evil.com", "/a/../b", "javascript:x", '/"><script>', "/a b", "x", "/./a"]
)
def test_a_prefix_that_is_no_plain_path_is_ignored(prefix: str) -> None:
    headers = [("x-forwarded-prefix", prefix)]
    scope = seen(TrustedProxies, parse_networks(["unix"]), headers=headers, client=None)
    assert (scope["root_path"], scope["path"]) == ("", "/x")


def test_networks_are_addresses_ranges_and_unix_sockets() -> None:
    networks = parse_networks(["10.0.0.0/8", "::1", "unix"])
    assert all(is_in(one, networks) for one in ("10.255.0.1", "::1", "unix", "::ffff:10.0.0.1"))
    assert not any(is_in(one, networks) for one in ("11.0.0.1", "::2", "localhost", "", "10.0.0.1:80"))
    for wrong in ("10.0.0.0/8", ["10.0.0.1/8"], ["x"], [10], None):
        with pytest.raises((ValueError, TypeError)):
            parse_networks(wrong)


def test_what_counts_as_this_machine() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", None, "")))
    assert not any(map(is_loopback, ("10.0.0.1", "0.0.0.0", "localhost", "testclient", "::ffff:10.0.0.1")))
