"""How an entry is addressed: its name as one segment of a path. Pure.

A name that a path can't carry safely is written as ``=`` and the base64url of its UTF-8. Invariant: every
name has an address, no two names have the same, and no address of a name is that of anything below it.
"""

from __future__ import annotations

import base64
import binascii
import re
from urllib.parse import quote

from starlette.types import Scope

#: what servers and proxies decode, split, drop or replace: such a name is written in base64
_UNSAFE = re.compile(r"[/\\%\ufffd]|\A=|\A\.{1,2}\Z|\A\Z")
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
    if "\ufffd" in segment:
        raise BadAddress("The path isn't UTF-8: write such a name as '=' and its base64url.")
    if not segment.startswith("="):
        return segment
    try:
        if not _BASE64.fullmatch(segment):
            raise binascii.Error
        digits = segment.strip("=")
        data = base64.b64decode(digits + "=" * (-len(digits) % 4), altchars=b"-_", validate=True)
    except binascii.Error:
        raise BadAddress("What follows '=' in the path must be a name in base64url.") from None
    return data.decode("utf-8", "surrogateescape")


def check_slashes(scope: Scope) -> None:
    """Raise BadAddress if a request's path has an encoded slash, as far as the server tells.

    Servers decode it, and then the path would be the address of something else.
    """
    environ = scope.get("wsgi_environ") or {}
    written = environ.get("RAW_URI") or environ.get("REQUEST_URI") or ""  # gunicorn's; uWSGI's
    raw = scope.get("raw_path") or written.encode("latin-1", "replace")
    if b"%2f" in raw.partition(b"?")[0].lower():
        raise BadAddress(
            "The path has an encoded slash: write a name that has one as '=' and the base64url of its UTF-8, "
            "as in the `href` of answers."
        )
