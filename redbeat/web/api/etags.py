"""ETags: compare and set. Pure.

An ETag tells versions of what is stored, not of what runs have made of it.
"""

from __future__ import annotations

import re

from redbeat.web.api.operations import IF_MATCH, IF_NONE_MATCH, Call
from redbeat.web.api.problems import Refusal

_TAGS = re.compile(r'\s*(W/)?"([\x21\x23-\x7e]*)"\s*(?:,|\Z)')


def etag_of(revision: str) -> str:
    """Return the ETag of a revision."""
    return f'"{revision}"'


def is_conditional(call: Call) -> bool:
    """Tell whether the caller has said what is to be there."""
    return bool(call.headers[IF_MATCH] or call.headers[IF_NONE_MATCH])


def check(call: Call, revision: str | None) -> None:
    """Make sure that what is there is what the caller has seen.

    Arguments:
        revision: of what is there; None: there is nothing.

    Raises:
        Refusal: it isn't, or the headers can't be understood.
    """
    match, none_match = call.headers[IF_MATCH], call.headers[IF_NONE_MATCH]
    if match and none_match:
        raise Refusal(400, f"Give either {IF_MATCH} or {IF_NONE_MATCH}.")
    if none_match and none_match.strip() != "*":
        raise Refusal(400, f"{IF_NONE_MATCH} must be '*' here.")
    if none_match and revision is not None:
        raise changed("It is there already, so nothing was done.", revision)
    if match and (revision is None or not _is_among(revision, match)):
        gone = "It isn't there any more" if revision is None else "It has been changed meanwhile"
        raise changed(f"{gone}, so nothing was done. Look at it again.", revision)


def changed(sentence: str, revision: str | None) -> Refusal:
    """Return the refusal for somebody who has seen another version than ``revision``, which is there."""
    headers = {} if revision is None else {"ETag": etag_of(revision)}
    return Refusal(412, sentence, headers)


def _is_among(revision: str, given: str) -> bool:
    if given.strip() == "*":
        return True
    tags, at = [], 0
    while at < len(given):
        found = _TAGS.match(given, at)
        if found is None:
            raise Refusal(400, f"{IF_MATCH} must be an ETag in quotes, as in \"0a1b2c\", or '*'.")
        if not found[1]:  # a weak one never matches
            tags.append(found[2])
        at = found.end()
    return revision in tags
