"""Text from elsewhere: how it is shown in a log or on a terminal, cut, measured and hashed.

Invariant: what ``printable`` returns is one line, shown in its order, and controls no terminal.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from datetime import datetime, timezone

#: how sentences have times
_UTC_TIME = re.compile(r"\b(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(\.\d+)? UTC\b", re.ASCII)


def printable(text: str) -> str:
    r"""Return ``text`` on one line: what doesn't print is escaped, as ``\x1b``, ``\n`` or ``\u202e``.

    Escaped are control characters (C0, DEL, C1), separators of lines and paragraphs, characters that change
    the direction of text or have no width, surrogates, and every space but the usual one.
    """
    if text.isprintable():
        return text
    return text.translate({ord(char): _escaped(char) for char in set(text) if not char.isprintable()})


def printable_lines(text: str) -> str:
    """Return ``text`` of several lines, each of them printable."""
    return text if text.isprintable() else escape(text, _escaped)


def printable_json(text: str) -> str:
    """Return ``text``, which is JSON of one or more lines, as the same JSON with what doesn't print escaped.

    JSON itself demands that only of control characters below U+0020.
    """
    return escape(text, lambda char: json.dumps(char)[1:-1])


def escape(text: str, escaped: Callable[[str], str]) -> str:
    """Return ``text`` of several lines; ``escaped`` replaces each character that doesn't print."""
    found = {char for char in set(text) if not char.isprintable()} - {"\n"}
    return text.translate({ord(char): escaped(char) for char in found}) if found else text


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def text_of(value: object) -> str:
    """Return the text of ``value``; if its own code raises an error, a text that says so."""
    try:
        return str(value)
    except Exception as exc:  # noqa: BLE001 - the code of a value's class may raise anything
        return f"<{type(value).__name__} without a text: {type(exc).__name__}>"


def shorten(text: str, limit: int = 500) -> str:
    """Return ``text``, cut to ``limit`` characters, with '...' where it was longer."""
    return text if len(text) <= limit else f"{text[:limit]}..."


def quoted(value: object) -> str:
    """Return ``value`` as error messages quote it, cut to 80 characters.

    What is in an object or a list isn't quoted, as it may be a secret, but the kind that an object claims is.
    """
    if isinstance(value, Mapping):
        members = (
            f"{name!r}: {one!r}" if name == "__type__" else f"{name!r}: ..." for name, one in value.items()
        )
        text = f"{{{', '.join(members)}}}"
    else:
        text = "[...]" if value and isinstance(value, (list, tuple)) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def is_utf8(text: str) -> bool:
    """Return True if ``text`` can be written as UTF-8: surrogates can't, nor bytes that weren't UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def whole_characters(text: str) -> str:
    """Return ``text`` with halves of characters (surrogates) escaped: some readers refuse them in JSON."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def as_stored(text: str) -> bytes:
    """Return the bytes of ``text`` as they are in Redis, also where they aren't UTF-8."""
    return text.encode("utf-8", "surrogateescape")


def sha1_of_text(text: str) -> str:
    """Return the SHA-1 of the bytes of ``text`` in Redis, in hex digits: for comparing, not for security."""
    return hashlib.sha1(as_stored(text), usedforsecurity=False).hexdigest()


def replace_utc_times(text: str, show: Callable[[datetime, str], str]) -> str:
    """Return ``text`` with each time in UTC, such as ``2026-01-31 07:30:00.250 UTC``, replaced.

    Arguments:
        show: returns the text of a time, given in UTC, and of the fraction of its second ('.250' or '').
    """

    def shown(found: re.Match[str]) -> str:
        try:
            moment = datetime.strptime(found[1], "%Y-%m-%d %H:%M:%S").replace(tzinfo=timezone.utc)
            return show(moment, found[2] or "")
        except (ValueError, OverflowError, OSError):  # not a time, or outside the years 1 to 9999 there
            return found[0]

    return _UTC_TIME.sub(shown, text) if " UTC" in text else text


def joined(*reasons: str) -> str:
    """Return reasons as one text, each once; '' isn't one."""
    return "; ".join(filter(None, dict.fromkeys(reasons)))


def closed(sentence: str) -> str:
    """Return a sentence that may lack its full stop with one."""
    return sentence if sentence.endswith((".", "...")) else f"{sentence}."


def counted(number: int, one: str = "entry", many: str = "entries") -> str:
    """Return a number with its noun: '1 entry', '2 entries'."""
    return f"{number} {one if number == 1 else many}"
