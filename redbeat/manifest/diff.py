"""What a file would change: its entries and calendars, compared with the stored ones. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from redbeat.entries.fields import shown_value, without_secrets


@dataclass
class Difference:
    """What a file would change; each attribute has names of entries or calendars.

    Attributes:
        added: new ones, with their fields.
        changed: those that change, with the fields that differ: the values before and after, None for a
            missing one.
        removed: those that are removed, with their fields.
        same: those that stay as they are.
        left: those of the owner that aren't in the file any more; only pruning removes them.
    """

    added: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    changed: dict[str, Mapping[str, tuple[Any, Any]]] = field(default_factory=dict)
    removed: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    same: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.removed)

    @property
    def number(self) -> int:
        """How many entries or calendars change."""
        return len(self.added) + len(self.changed) + len(self.removed)

    def to_dict(self) -> dict[str, Any]:
        """Return it as a dict of plain JSON, without secrets."""
        return {
            "added": {name: without_secrets(fields) for name, fields in self.added.items()},
            "changed": {
                name: {
                    field: {"before": shown_value(field, before), "after": shown_value(field, after)}
                    for field, (before, after) in fields.items()
                }
                for name, fields in self.changed.items()
            },
            "removed": {name: without_secrets(fields) for name, fields in self.removed.items()},
            "same": self.same,
            "left": self.left,
        }


def differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the fields that differ, with both values; None for a missing one."""
    return {
        name: (before.get(name), after.get(name))
        for name in dict.fromkeys([*before, *after])
        if before.get(name) != after.get(name)
    }
