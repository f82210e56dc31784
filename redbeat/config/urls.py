"""URLs of servers: which are Redis, and how they are shown with their passwords masked."""

from __future__ import annotations

import re

REDIS_SCHEMES = (
    "redis",
    "rediss",
    "unix",
    "redis+socket",
    "valkey",
    "valkeys",
    "sentinel",
    "redis-sentinel",
    "redis-cluster",
)


def scheme_of(url: str) -> str:
    """Return the scheme of ``url``, lower case, or ''."""
    return url.partition("://")[0].lower() if "://" in url else ""


def sanitize_url(url: str) -> str:
    """Return ``url`` with every password masked, also where it lists several servers.

    Everything before the last @ counts as credentials, as people forget to percent-encode them.
    """
    return ";".join(map(_sanitize_server, re.split(r";(?=[\w+-]+://)", url)))


def _sanitize_server(url: str) -> str:
    scheme, separator, rest = url.partition("://") if "://" in url else ("", "", url)
    rest = re.sub(r"^([^:]*):.*@", r"\1:**@", rest, flags=re.DOTALL)
    return (
        scheme + separator + re.sub(r"(?i)([?&]\w*(?:password|passwd|pwd|odbc_connect)=)[^&]*", r"\1**", rest)
    )
