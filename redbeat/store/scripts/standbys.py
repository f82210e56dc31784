"""The script that notes who stands by: the only place that knows its KEYS, ARGV and reply."""

from __future__ import annotations

from typing import Any

from redbeat.keys import Keys
from redbeat.store.scripts.script import Script

_NOTE_STANDBY = Script("check_layout", "note_standby")

#: for how long a standby is known after it has looked at the lock, milliseconds
STANDBY_MS = 15_000


def note_standby(client: Any, part: Keys, who: str) -> int:
    """Note that ``who`` stands by; return how many beats do."""
    return int(_NOTE_STANDBY(client, [part.standbys], [who, STANDBY_MS], part))
