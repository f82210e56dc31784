"""How passwords are masked: in URLs of servers, and in text from elsewhere.

Invariant: masking takes time in proportion to the text, whatever the text is. Rather too much is masked than
too little.
"""

from __future__ import annotations

import re

MASK = "**"

#: a name that has one of these in it is that of a secret
_SECRET_NAME = re.compile(
    r"(?i)passwd|passphrase|passcode|password|pwd|pass$|pass[_-]|secret|token|credential|odbc_connect|"
    r"(?:api|access|account|private|auth)[_-]?key"
)
#: the rest of the line belongs to it, as it has several words
_LINE_NAME = re.compile("(?i)authorization")
#: a name, perhaps in quotes, and what parts it from its value. It begins where a word does, so that no part
#: of a long word is looked at twice
_NAME = re.compile(r"(?<![\w-])([\w-]+)(?:\\*[\"'])?\s*(?:=>|[=:])\s*")
#: a value in quotes, which perhaps aren't closed, or in quotes that are quoted themselves; else one word
_VALUE = re.compile(
    r"""[A-Za-z]?(?:'(?:[^'\\]|\\.)*(?:'|\\?$)|"(?:[^"\\]|\\.)*(?:"|\\?$)|\\+["'].*?(?:\\+["']|$))|[^\s,;&)}]+"""
)
_BEARER = re.compile(r"(?i)\b(bearer\s+)[^\s,;&)}\"']+")
_URL = re.compile(r"(?<![\w+.-])[\w+.-]+://\S+")
#: the credentials of a URL up to an @ that comes after a space, and no further than the next URL. What looks
#: like a port is none
_SPACED_URL = re.compile(
    r"((?<![\w+.-])[\w+.-]+://[^\s:/@\[]*:)(?!\d*(?:[\s/?#,;)\]\"']|$))(?:(?!://)[^@])*@(?:\S*@)?"
)


def is_secret_name(name: str) -> bool:
    """Return True if a value of this name, an argument's say, may be a password."""
    return bool(_SECRET_NAME.search(name) or _LINE_NAME.search(name))


def sanitize_url(url: str) -> str:
    """Return ``url`` with every password masked, also where it lists several servers.

    Everything before the last @ counts as credentials, as people forget to percent-encode them.
    """
    return ";".join(map(_sanitize_server, re.split(r";(?=[\w+-]+://)", url)))


def _sanitize_server(url: str) -> str:
    scheme, separator, rest = url.partition("://") if "://" in url else ("", "", url)
    rest = re.sub(r"^([^:]*):.*@", rf"\1:{MASK}@", rest, flags=re.DOTALL)
    return scheme + separator + re.sub(r"([?&])([\w-]+)=([^&]*)", _mask_parameter, rest)


def _mask_parameter(found: re.Match[str]) -> str:
    return f"{found[1]}{found[2]}={MASK}" if _SECRET_NAME.search(found[2]) else found[0]


def mask_secrets(line: str) -> str:
    """Return ``line``, one line of text, without what looks like a password."""
    line = _SPACED_URL.sub(rf"\1{MASK}@", line)
    line = _URL.sub(lambda url: sanitize_url(url[0]), line)
    parts: list[str] = []
    place = 0
    while (found := _NAME.search(line, place)) is not None:
        parts.append(line[place : found.end()])
        place = found.end()
        is_line = _LINE_NAME.search(found[1]) is not None
        if not is_line and not _SECRET_NAME.search(found[1]):
            continue
        value = _VALUE.match(line, place)
        if value is not None:
            parts.append(MASK)
            place = len(line) if is_line and value[0][:1] not in ("'", '"', "\\") else value.end()
    return _BEARER.sub(rf"\1{MASK}", "".join([*parts, line[place:]]))
