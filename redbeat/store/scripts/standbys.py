"""The script that notes who stands by: the only place that knows its KEYS, ARGV and reply."""

from __future__ import annotations

from typing import Any

from redbeat.store.scripts.script import Script

_NOTE_STANDBY = Script("note_standby")

#: for how long a standby is known after it has looked at the lock, milliseconds
STANDBY_MS = 15_000


def note_standby(client: Any, standbys_key: str, who: str) -> int:
    """Note that ``who`` stands by; return how many beats do."""
    return int(_NOTE_STANDBY(client, [standbys_key], [who, STANDBY_MS]))
