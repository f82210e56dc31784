"""All that is wrong with the values of an entry, each at its field, before anything is stored. Pure.

``from_dict`` names what it finds first. A form shows everything at once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from redbeat.config.config import ensure_conf
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.validation import find_entry_problem, find_name_problem
from redbeat.errors import EntryError
from redbeat.log.text import is_utf8

#: stand for fields that are wrong or missing, so that the others are looked at
_STAND_INS = {"name": "entry", "task": "task", "schedule": 3600}


def find_problems(values: Mapping[str, Any], app: Any) -> dict[str, str]:
    """Return what is wrong with ``values``, as ``from_dict`` takes them: a sentence for each field.

    Under '' is what belongs to no field.
    """
    problems: dict[str, str] = {}
    name = values.get("name")
    words = find_name_problem(name, ensure_conf(app).reserved_names)
    if words or not is_utf8(str(name)):
        problems["name"] = words or "It must be UTF-8."
    for field in ("task", "schedule"):
        if values.get(field) in (None, "", {}):
            problems[field] = "It is missing."
    left = {field: value for field, value in values.items() if field not in (*problems, "name")}
    for _ in range(len(values) + 1):
        words = _first_problem({**_STAND_INS, **left}, app)
        if not words:
            break
        field, sentence = _placed(words, left)
        problems.setdefault(field, sentence)
        if left.pop(field, None) is None:
            break
    return problems


def _first_problem(values: Mapping[str, Any], app: Any) -> str:
    try:
        return find_entry_problem(RedBeatSchedulerEntry.from_dict(values, app)) or ""
    except EntryError as exc:
        return str(exc)


def _placed(words: str, fields: Mapping[str, Any]) -> tuple[str, str]:
    """Return the field that ``words`` are about, and the rest of them as a sentence."""
    rest = words.removeprefix(f"{_STAND_INS['name']}: ")
    named = re.match(r"(\w+)(:? )", rest, re.ASCII)
    if named is None or named[1] not in fields:
        return "", rest
    field = named[1]
    said = rest[named.end() :] if named[2] == ": " else f"It {rest[named.end() :]}"
    said = said[:1].upper() + said[1:]
    return field, said if said.endswith((".", "?")) else f"{said}."
