"""The script that repairs members of the schedule: the only place that knows its KEYS, ARGV and reply."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from redbeat.keys import Keys
from redbeat.store.records import score_text
from redbeat.store.scripts.script import Script

_REPAIR_MEMBERS = Script("check_layout", "repair_members")


class MemberRepair(NamedTuple):
    """One repair: the ``member`` for the entry under ``key`` is removed, or added with ``score``."""

    key: str
    member: str
    score: float | None = None


def repair_members(client: Any, part: Keys, repairs: Sequence[MemberRepair]) -> list[bool]:
    """Make each repair that is still needed; tell of each whether it was made."""
    keys = [part.schedule, *(repair.key for repair in repairs)]
    args: list[Any] = [part.wake]
    for repair in repairs:
        args += repair.member, score_text(repair.score)
    return [bool(done) for done in _REPAIR_MEMBERS(client, keys, args, part)]
