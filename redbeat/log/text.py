"""Text from elsewhere: what can be sent as UTF-8, and how it is shown in a log or on a terminal.

Invariant: what ``printable`` returns stays on one line, in its order, and gives no orders to a terminal.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable


def printable(text: str) -> str:
    r"""Return ``text`` on one line: what doesn't print is escaped, as ``\x1b``, ``\n`` or ``\u202e``.

    That is control characters (C0, DEL, C1), separators of lines and paragraphs, what changes the direction
    of text or takes no room, halves of characters, and every space but the usual one.
    """
    if text.isprintable():
        return text
    return text.translate({ord(char): _escaped(char) for char in set(text) if not char.isprintable()})


def printable_lines(text: str) -> str:
    """Return ``text`` of several lines, each of them printable."""
    return text if text.isprintable() else escape(text, _escaped)


def printable_json(text: str) -> str:
    """Return ``text``, which is JSON of one line or several, as the same JSON without what doesn't print.

    JSON itself asks only for control characters below U+0020 to be escaped.
    """
    return escape(text, lambda char: json.dumps(char)[1:-1])


def escape(text: str, escaped: Callable[[str], str]) -> str:
    """Return ``text`` of several lines, with what doesn't print as ``escaped`` says."""
    found = {char for char in set(text) if not char.isprintable()} - {"\n"}
    return text.translate({ord(char): escaped(char) for char in found}) if found else text


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def shorten(text: str, limit: int = 500) -> str:
    """Return ``text``, cut to ``limit`` characters: bad values may be megabytes, a log line mustn't."""
    return text if len(text) <= limit else f"{text[:limit]}..."


def is_utf8(text: str) -> bool:
    """Tell whether ``text`` can be written as UTF-8: bytes that are none, and half characters, can't."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def as_stored(text: str) -> bytes:
    """Return ``text`` as it stands in Redis, with bytes that are no UTF-8: not every client writes them."""
    return text.encode("utf-8", "surrogateescape")


def sha1_of_text(text: str) -> str:
    """Return the SHA-1, in hex digits, of ``text`` as it stands in Redis; to compare, not to trust."""
    return hashlib.sha1(as_stored(text), usedforsecurity=False).hexdigest()


def counted(number: int, one: str = "entry", many: str = "entries") -> str:
    """Return how many there are in words: '1 entry', '2 entries'."""
    return f"{number} {one if number == 1 else many}"
