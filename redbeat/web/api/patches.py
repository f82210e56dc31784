"""JSON Merge Patch (RFC 7396), for entries. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from redbeat.entries.notation import SCHEDULE_FORMS


def merged(stored: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that ``patch`` changes, as JSON Merge Patch (RFC 7396) has it.

    A schedule of another type replaces the whole schedule.
    """
    changes: dict[str, Any] = {}
    for name, value in patch.items():
        was = stored.get(name)
        if name == "schedule" and not _is_part(was, value):
            was = None
        changes[name] = merge_patch(was, value) if isinstance(value, dict) else value
    return changes


def _is_part(was: Any, value: Any) -> bool:
    """Tell whether ``value`` changes parts of the schedule ``was``, and isn't another one."""
    if not isinstance(was, dict) or not isinstance(value, dict):
        return False
    if "__type__" in value:
        return bool(value["__type__"] == was.get("__type__"))
    return value.keys() <= was.keys() and not value.keys() & SCHEDULE_FORMS.keys()


def merge_patch(was: Any, patch: Any) -> Any:
    """Return ``was`` with what ``patch`` changes (RFC 7396)."""
    if not isinstance(patch, dict):
        return patch
    made = dict(was) if isinstance(was, dict) else {}
    for name, value in patch.items():
        if value is None:
            made.pop(name, None)
        else:
            made[name] = merge_patch(made.get(name), value)
    return made
