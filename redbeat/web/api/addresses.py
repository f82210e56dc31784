"""How an entry is addressed: its name as one segment of a path, and the segments of a request's path. Pure.

A name that a path can't carry safely is written as ``=`` and the base64url of its UTF-8. Invariant: every
name has an address, no two names have the same, and no address of a name is that of anything below it.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from urllib.parse import quote, unquote_to_bytes

from starlette.types import Scope

from redbeat.web.paths import path_of

#: what servers and proxies decode, split or drop: such a name is written in base64
_UNSAFE = re.compile(r"[/\\%]|\A=|\A\.{1,2}\Z|\A\Z")
_BASE64 = re.compile(r"=[A-Za-z0-9_-]*={0,2}", re.ASCII)


class BadAddress(ValueError):
    """A path that addresses nothing; the message says why."""


def segment_of(name: str) -> str:
    """Return ``name`` as a segment of a path."""
    if _UNSAFE.search(name) or not name.isprintable():
        return "=" + base64.urlsafe_b64encode(name.encode("utf-8", "surrogateescape")).decode().rstrip("=")
    return quote(name, safe="")


def name_of(segment: str) -> str:
    """Return the name that a decoded segment of a path writes.

    Raises:
        BadAddress: it writes none.
    """
    if not segment.startswith("="):
        return segment
    if not _BASE64.fullmatch(segment):
        raise BadAddress("What follows '=' in the path must be a name in base64url.")
    digits = segment.strip("=")
    try:
        data = base64.b64decode(digits + "=" * (-len(digits) % 4), altchars=b"-_", validate=True)
    except binascii.Error:
        raise BadAddress("What follows '=' in the path must be a name in base64url.") from None
    return data.decode("utf-8", "surrogateescape")


def segments_of(scope: Scope) -> list[str]:
    """Return the decoded segments of a request's path, below the interface's root.

    They are cut where the client has cut them, if the server tells: an encoded slash isn't the end of one.

    Raises:
        BadAddress: a segment isn't UTF-8, or has a slash.
    """
    inside = path_of(scope)
    wanted = inside.lstrip("/")
    for raw in _written(scope):
        parts = raw.split(b"/")
        decoded = [unquote_to_bytes(part).decode("utf-8", "replace") for part in parts]
        first, size = len(parts), -1
        while first and size < len(wanted):  # only one end of it can be as long
            first -= 1
            size += 1 + len(decoded[first])
        if "/".join(decoded[first:]) == wanted:
            return [_decoded(part) for part in parts[first:]]
    if "\ufffd" in inside:
        raise BadAddress("The path is no UTF-8: write such a name as '=' and its base64url.")
    return wanted.split("/")


def _decoded(part: bytes) -> str:
    try:
        segment = unquote_to_bytes(part).decode("utf-8")
    except UnicodeDecodeError:
        raise BadAddress("The path is no UTF-8: write such a name as '=' and its base64url.") from None
    if "/" in segment:
        # a proxy may decode it, and then it would be the address of something else
        raise BadAddress(
            "The path has an encoded slash: write a name that has one as '=' and its base64url, here "
            f"{segment_of(segment)}."
        )
    return segment


def _written(scope: Scope) -> Iterator[bytes]:
    """Yield the path as it came, as far as the server tells."""
    if scope.get("raw_path"):
        yield scope["raw_path"].partition(b"?")[0]
    environ = scope.get("wsgi_environ") or {}
    for name in ("RAW_URI", "REQUEST_URI"):  # gunicorn's and Werkzeug's; uWSGI's
        if environ.get(name):
            yield environ[name].partition("?")[0].encode("latin-1", "replace")
