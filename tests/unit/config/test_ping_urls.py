"""A URL to call has one reading, names an allowed host, and is never shown."""

from __future__ import annotations

import random
from urllib.parse import urlsplit

import pytest

from redbeat.config.ping_urls import MAX_URL, mask_ping_url, parse_ping_host, parse_ping_url

#: text, and the service, the target and the mask that it means
URLS = {
    "https://hc-ping.com/abc-123": ("https://hc-ping.com", "/abc-123", "https://hc-ping.com/**"),
    "HTTP://Pings.Local:8000/a/b?c=d": ("http://pings.local:8000", "/a/b?c=d", "http://pings.local:8000/**"),
    "https://h": ("https://h", "/", "https://h/**"),
    "https://h.:443/x": ("https://h", "/x", "https://h/**"),
    "https://h?rid=1": ("https://h", "/?rid=1", "https://h/**"),
    "http://[::1]:9/x": ("http://[::1]:9", "/x", "http://[::1]:9/**"),
    "http://127.0.0.1/a@b": ("http://127.0.0.1", "/a@b", "http://127.0.0.1/**"),
}

#: what isn't one, or what two programs could read as two
NO_URLS: list[object] = [
    "", "hc-ping.com/x", "//hc-ping.com/x", "ftp://h/x", "file:///etc/passwd", "https:/h/x", "https:h", "https://",
    "https:///x", "http://good@evil/", "http://good:80@evil/", "http://good.example\\@evil/",
    "http://evil\\.good.example/", "http://good.example#@evil/", "http://good/#x", "http://good evil/",
    "http://good/a b", "http://good/\r\nHost: evil", "http://good\r\n/", "http://good/\n", "\nhttp://good/",
    "http://good/x\n", "http://good/\x00", "http://good\x00.evil/", "http://good\t/", "http://good:99999/",
    "http://good:0/", "http://good:/", "http://good:80:90/", "http://go%6fd/", "http://g\u00f6od/", "http://g\u2024d/",
    "http\u017f://good/", "http://\u212aelvin/", "http://[::1/", "http://::1/", "http://[1]/", "http://.good/",
    "http://a..b/", "http://-good/", "http://good/\u2028", "http://good/\udc80", "http://good/'\"", "http://good/<x>",
    "http://good/**", "http://" + "a" * 64 + "/", "http://h/" + "x" * MAX_URL, None, 5, b"http://good/", ["http://h"],
    "http://good/x`", "http://good/{x}", "http://good|evil/", "http://*.good/", "javascript:alert(1)", "http://good;evil/",
]  # fmt: skip


@pytest.mark.parametrize("text", URLS)
def test_a_url_is_taken_apart_as_everybody_does(text: str) -> None:
    service, target, masked = URLS[text]
    url = parse_ping_url(text)
    assert (url.service, url.target, url.masked) == (service, target, masked)
    assert mask_ping_url(text) == masked
    usual = urlsplit(text)
    assert (url.scheme, url.host) == (usual.scheme, (usual.hostname or "").removesuffix("."))
    assert url.port == (usual.port or {"http": 80, "https": 443}[url.scheme])


@pytest.mark.parametrize("text", NO_URLS, ids=lambda text: ascii(text)[:40])
def test_what_could_be_read_in_two_ways_is_refused_without_being_shown(text: object) -> None:
    with pytest.raises(ValueError, match=r"^(must|its port|is one that was masked)") as caught:
        parse_ping_url(text)
    assert "evil" not in str(caught.value)
    assert mask_ping_url(text) == (None if text is None else "**")


def test_whatever_passes_is_read_alike_by_the_standard_library(chance: random.Random) -> None:
    letters = "ab.:/@\\#?[]%20\r\n\t *-_\u017f\u3002"
    passed = 0
    for _ in range(20_000):
        text = "http://" + "".join(chance.choices(letters, k=chance.randint(1, 8)))
        try:
            url = parse_ping_url(text)
        except ValueError:
            continue
        passed += 1
        usual = urlsplit(text)
        assert (usual.hostname or "").removesuffix(".") == url.host, text
        assert not usual.username
        assert (usual.port or 80) == url.port
    assert passed > 100


def test_words_follow_the_path_and_not_the_query() -> None:
    ends = {"https://h/a": "/a/fail", "https://h/a/?b=c": "/a/fail?b=c", "https://h": "/fail"}
    assert {text: parse_ping_url(text).followed_by("fail").target for text in ends} == ends


#: host, and of which URLs it allows which
HOSTS = {
    "hc-ping.com": {
        "https://hc-ping.com/x": True, "http://HC-PING.com:80/x": True, "https://hc-ping.com./x": True,
        "https://hc-ping.com:8443/x": False, "http://hc-ping.com:443/x": False,
        "https://a.hc-ping.com/x": False,
        "https://hc-ping.com.evil.org/x": False, "https://evilhc-ping.com/x": False,
        "http://127.0.0.1/hc-ping.com": False,
    },
    "pings.local:8000": {
        "http://pings.local:8000": True, "https://pings.local:8000": True, "http://pings.local": False,
    },
    "*.Example.com": {
        "https://a.example.com": True, "https://a.b.EXAMPLE.com": True, "https://example.com": False,
        "https://evilexample.com": False, "https://a.example.com:8443": False,
        "https://a.example.com.evil": False,
    },
    "[::1]:9": {"http://[0:0::1]:9/": True, "http://[::2]:9/": False},
    "127.0.0.1": {
        "http://127.0.0.1/": True, "http://2130706433/": False, "http://127.1/": False,
        "http://localhost/": False,
    },
}  # fmt: skip


@pytest.mark.parametrize("text", HOSTS)
def test_a_host_allows_itself_and_nothing_that_looks_like_it(text: str) -> None:
    host = parse_ping_host(text)
    assert {url: host.allows(parse_ping_url(url)) for url in HOSTS[text]} == HOSTS[text]
