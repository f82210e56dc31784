"""Text that gives orders to a terminal, or forges a line of a log, and what programs may make of it."""

from __future__ import annotations

import re

#: escape, C1, bell, delete, changes of direction, no width, separators, and a line of its own
HOSTILE = (
    "\x1b]0;title\x07\x1b[2J\x9b2J\x7f\u202e\u2066\u200b\u200f\u2028\u2029\x85\x0b\x0c\ufeff"
    "\r\n[2030-01-01 00:00:00,000: CRITICAL/MainProcess] FORGED"
)
#: as it is shown
HOSTILE_SHOWN = HOSTILE.encode("unicode_escape").decode("ascii")

#: colours, which programs of ours may print on a terminal
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def find_orders(output: str, *, is_terminal: bool = False) -> list[str]:
    """Return the lines of ``output`` that have something in them that doesn't print, or are forged."""
    if is_terminal:
        output = _COLOURS.sub("", output).replace("\r\n", "\n")
    return [
        line
        for line in output.split("\n")
        # a terminal's lines are wrapped anywhere
        if not line.isprintable() or (line.startswith("[2030") and "FORGED" in line and not is_terminal)
    ]
