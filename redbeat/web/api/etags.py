"""ETags: compare and set. Pure.

An ETag tells versions of what is stored, not of what runs have made of it.
"""

from __future__ import annotations

import re

from redbeat.operations.operation import Seen
from redbeat.web.api.operations import IF_MATCH, IF_NONE_MATCH, Call
from redbeat.web.api.problems import Refusal

_TAGS = re.compile(r'\s*(W/)?"([\x21\x23-\x7e]*)"\s*(?:,|\Z)')


def etag_of(revision: str) -> str:
    """Return the ETag of a revision."""
    return f'"{revision}"'


def seen_by(call: Call) -> Seen | None:
    """Return what the caller relies on; None: on nothing.

    Raises:
        Refusal: the headers are invalid.
    """
    match, none_match = call.headers[IF_MATCH].strip(), call.headers[IF_NONE_MATCH].strip()
    if match and none_match:
        raise Refusal(400, f"Give either {IF_MATCH} or {IF_NONE_MATCH}.")
    if none_match not in ("", "*"):
        raise Refusal(400, f"{IF_NONE_MATCH} must be '*' here.")
    if match == "*":
        return Seen(is_any=True)
    return Seen(_tags_in(match)) if match or none_match else None


def _tags_in(given: str) -> list[str]:
    """Return the revisions in If-Match; a weak one stays what it is, and never matches."""
    tags, at = list[str](), 0
    while at < len(given):
        found = _TAGS.match(given, at)
        if found is None:
            raise Refusal(400, f"{IF_MATCH} must be an ETag in quotes, as in \"0a1b2c\", or '*'.")
        tags.append(f"{found[1] or ''}{found[2]}")
        at = found.end()
    return tags
