"""The script that drops members of the schedule: the only place that knows its KEYS, ARGV and reply."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from redbeat.keys import Keys
from redbeat.store.scripts.script import Script

_DROP_MEMBERS = Script("check_layout", "drop_members")


class Member(NamedTuple):
    """A member of the schedule, for the entry under ``key``."""

    key: str
    member: str


def drop_members(client: Any, part: Keys, members: Sequence[Member]) -> list[bool]:
    """Remove the members whose entries don't exist; tell of each whether it was removed."""
    keys = [part.schedule, *(one.key for one in members)]
    return [bool(done) for done in _DROP_MEMBERS(client, keys, [one.member for one in members], part)]
