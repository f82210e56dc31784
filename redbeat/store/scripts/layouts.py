"""The scripts about the layout of a schedule: the only place that knows their KEYS, ARGV and replies."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from redbeat.keys import Keys
from redbeat.store.records import text_of
from redbeat.store.scripts.script import Request, Script

_CREATE_LAYOUT = Script("create_layout")
_RAISE_GENERATION = Script("raise_generation")

#: how a script that checks the layout is refused: the key, and what it holds
_REFUSAL = re.compile(r'RESHARDED (.*) holds "([^"]*)", not ', re.DOTALL)


def create_layout(client: Any, base: Keys, shards: int, after: int) -> str:
    """Note that a schedule without entries is divided into so many shards, in a later generation than
    ``after``.

    Returns 'created'; 'known': there is a layout; 'undivided': there are entries under the keys ``base``.
    """
    keys = [base.layout, base.generation, base.schedule, base.later, base.downgraded]
    return str(text_of(_CREATE_LAYOUT(client, keys, [shards, after])))


def raise_generation(client: Any, part: Keys) -> str:
    """Let a part be written by those who know the layout of ``part``; return what its key holds then."""
    return str(text_of(_RAISE_GENERATION(client, [part.generation], [part.guard])))


def raising_of(part: Keys) -> tuple[Script, Request]:
    """Return the call that :func:`raise_generation` makes."""
    return _RAISE_GENERATION, Request([part.generation], [part.guard])


class Refusal(NamedTuple):
    """That a script was refused which checks the layout.

    Attributes:
        generation_key: of the part where it was.
        held: what that key holds; '': there is no such key.
    """

    generation_key: str
    held: str


def refusal_of(error: BaseException | None) -> Refusal | None:
    """Return what ``check_layout`` says of a refusal; None: the error is another one."""
    found = _REFUSAL.match(str(error))
    return Refusal(found[1], found[2]) if found else None
