"""URLs of servers: which are Redis."""

from __future__ import annotations

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
