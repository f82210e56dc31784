"""Files of entries: YAML or JSON, with a line number in each error, and written so that people can read it.
Pure.

Invariant: ``read_file`` reads the same values that ``write_file`` has written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from redbeat.config.suggestions import did_you_mean
from redbeat.entries.forms import PAST_FIELDS
from redbeat.entries.validation import find_problem
from redbeat.errors import FileError
from redbeat.keys import is_owner_name
from redbeat.log.text import escape, printable, printable_json, shorten
from redbeat.schedules.exclusions import bounds_of

_SECTIONS = ("owner", "entries", "calendars")
_CALENDAR_FIELDS = ("about", "days")

#: a line with a day or a span, and its label
_DAY_LINE = re.compile(r"(\d{4}-[^\s,;]*[^\s,;:])(?:[\s,;]+(.*))?", re.ASCII)

#: deeper nesting overflows the stack of the parser
MAX_DEPTH = 1000
#: how many values the aliases of a file may expand to
MAX_ALIASED = 5_000_000

Path = tuple[Any, ...]


@dataclass(frozen=True)
class Declared:
    """The contents of a file.

    Attributes:
        origin: the file's name, for errors.
        owner: the owner of its entries; None: the file doesn't say.
        entries: name to fields, as they are written in the file.
        calendars: name to ``about`` and ``days``, each of these with its label.
        lines: ('entries', name, field) to its line, counted from 1, as far as known.
    """

    origin: str = "-"
    owner: str | None = None
    entries: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    calendars: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    lines: Mapping[Path, int] = field(default_factory=dict, repr=False, compare=False)

    def fault(self, path: Path, reason: str) -> FileError:
        """Return the error that says what is wrong at ``path``, with its line."""
        found = next(
            (self.lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in self.lines), 0
        )
        where = ": ".join(str(part) for part in path[1:]) or (path[0] if path else "")
        line = f", line {found}" if found else ""
        what = printable(f"{where}: {reason}" if where else reason)
        return FileError(f"{self.origin}{line}: {what}", self.origin, found or None)


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Makes plain values only, as ``yaml.safe_load`` does. Dates, and times like 12:30, stay text."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen = set()
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:str" and key.value in seen:
                problem = f"{printable(key.value)} appears twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(key.value if isinstance(key.value, str) else None)
        return super().construct_mapping(node, deep)


#: how many digits a number has at most, as Python has it for decimal ones
MAX_DIGITS = 4300


def _construct_int(loader: Any, node: Any) -> int:
    if len(node.value) > MAX_DIGITS:  # a hexadecimal one could be read, and not be written
        raise ValueError(f"a number has more than {MAX_DIGITS:,} digits")
    return int(loader.construct_yaml_int(node))


_Loader.add_constructor("tag:yaml.org,2002:int", _construct_int)

_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


def _without_times(tag: str, pattern: re.Pattern[str]) -> re.Pattern[str]:
    """Return the pattern of a number, without 12:30, which YAML 1.1 takes for 750 in base 60."""
    return re.compile(f"(?![^:]*:){pattern.pattern}", pattern.flags) if tag in _NUMBERS else pattern


_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, _without_times(tag, pattern)) for tag, pattern in resolvers if not tag.endswith(":timestamp")
    ]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """Writes no anchors. Text that doesn't print is put into double quotes, where it is escaped."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - PyYAML's signature
        return True

    def represent_text(self, text: str) -> Any:
        return self.represent_scalar("tag:yaml.org,2002:str", text, None if text.isprintable() else '"')


_Dumper.add_representer(str, _Dumper.represent_text)


def decode_file(data: bytes, origin: str = "-") -> str:
    """Return the text of a file.

    Raises:
        FileError: it isn't UTF-8.
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line = data[: exc.start].count(b"\n") + 1
        raise FileError(f"{origin}, line {line}: is no UTF-8.", origin, line) from exc


def read_file(text: str, origin: str = "-") -> Declared:
    """Return the contents of ``text``, which is YAML or JSON.

    Raises:
        FileError: it can't be read, or something in it isn't allowed; the message names entry, field and
            line.
    """
    value, lines = _parse(text, origin)
    found = Declared(origin, lines=lines)
    if not isinstance(value, dict):
        raise found.fault((), f"must begin with 'entries:', and holds {_kind(value)}.")
    for section in value:
        if section not in _SECTIONS and not str(section).startswith("x-"):
            raise found.fault((section,), f"there is no such section.{did_you_mean(str(section), _SECTIONS)}")
    owner = value.get("owner")
    _check_owner(found, ("owner",), owner)
    entries = _mapping(found, ("entries",), value.get("entries"))
    for name, fields in entries.items():
        _check_entry(found, name, fields)
    calendars = _mapping(found, ("calendars",), value.get("calendars"))
    for name, fields in calendars.items():
        _check_calendar(found, name, fields)
    return Declared(origin, owner, entries, calendars, lines)


def read_calendar(text: str, name: str, origin: str = "-") -> dict[str, Any]:
    """Return the ``about`` and ``days`` of a file that is about one calendar.

    It may be a file of entries that has a calendar called ``name``; YAML or JSON of these two, of a list of
    days or of a mapping of days to labels; or text with a day in each line, and its label behind it.

    Raises:
        FileError: it is none of these.
    """
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1)]
    days = [(number, line) for number, line in lines if line and not line.startswith("#")]
    if days and _DAY_LINE.fullmatch(days[0][1]):
        return {"days": _days_in(days, origin)}
    value, places = _parse(text, origin)
    if isinstance(value, str):
        _days_in(days, origin)  # says which line is not a day
    if isinstance(value, dict) and value.keys() & {"calendars", "entries"}:
        calendars = read_file(text, origin).calendars
        if name not in calendars:
            known = ", ".join(calendars) or "none"
            raise FileError(f"{origin}: has no calendar {name!r}; those it has: {known}.", origin)
        return calendars[name]
    if not isinstance(value, (dict, list)):
        raise FileError(f"{origin}: holds {_kind(value)}, and no days as 2026-12-25.", origin)
    fields = value if isinstance(value, dict) and value.keys() <= {*_CALENDAR_FIELDS} else {"days": value}
    _check_calendar(Declared(origin, lines=places), name, fields)
    return fields


def _days_in(lines: Sequence[tuple[int, str]], origin: str) -> dict[str, str]:
    """Return the days and spans of numbered lines, each with its label.

    Raises:
        FileError: a line begins with neither.
    """
    days = {}
    for number, line in lines:
        found = _DAY_LINE.fullmatch(line)
        day, label = (found[1], found[2] or "") if found else (shorten(line, 100), "")
        try:
            bounds_of(day)
        except ValueError as exc:
            raise FileError(f"{origin}, line {number}: {exc}", origin, number) from exc
        days[day] = label.strip()
    return days


def _check_entry(found: Declared, name: str, fields: Any) -> None:
    """Check what isn't a field of an entry, but of files; the entry's own are checked when it is made."""
    path = ("entries", name)
    if _mapping(found, path, fields).get("name", name) != name:
        reason = f"must be {name!r}, as above, or be left out, not {fields['name']!r}."
        raise found.fault((*path, "name"), reason)
    for named in ("kwargs", "options"):
        if isinstance(fields.get(named), dict):
            _mapping(found, (*path, named), fields[named])
    if "stored" in fields and not (isinstance(fields["stored"], dict) and fields["stored"]):
        raise found.fault((*path, "stored"), "must be a mapping, as export writes it.")
    problem = find_problem({"total_run_count": fields.get("total_run_count")})
    if problem:
        raise found.fault(path, problem)
    _check_owner(found, (*path, "owner"), fields.get("owner"))
    for past in PAST_FIELDS:
        texts = fields.get(past) or []
        if not (isinstance(texts, list) and all(isinstance(one, str) for one in texts)):
            raise found.fault((*path, past), "must be a list of texts, as export --history writes it.")


def _check_owner(found: Declared, path: Path, owner: Any) -> None:
    if owner is not None and not is_owner_name(owner):
        raise found.fault(path, f"must be a name without control characters, not {owner!r}.")


def _check_calendar(found: Declared, name: str, fields: Any) -> None:
    path = ("calendars", name)
    for field_, value in _mapping(found, path, fields).items():
        if field_ not in _CALENDAR_FIELDS:
            hint = did_you_mean(field_, _CALENDAR_FIELDS)
            raise found.fault((*path, field_), f"there is no such field.{hint}")
        if field_ == "about" and not isinstance(value, str):
            raise found.fault((*path, field_), f"must be text, not {value!r}.")
        if field_ == "days" and not isinstance(value, (dict, list)):
            raise found.fault((*path, field_), "must be a list of days, or a mapping of days to labels.")


def _mapping(found: Declared, path: Path, value: Any) -> dict[str, Any]:
    if value is None and len(path) == 1:
        return {}
    if not isinstance(value, dict):
        raise found.fault(path, f"must be a mapping, not {_kind(value)}.")
    for key in value:
        if not isinstance(key, str):
            raise found.fault((*path, key), f"{key!r} must be text; put it into quotes.")
    return value


def _kind(value: Any) -> str:
    kinds = {dict: "a mapping", list: "a list", str: "text", type(None): "nothing"}
    return kinds.get(type(value), repr(value))


def _parse(text: str, origin: str) -> tuple[Any, Mapping[Path, int]]:
    """Return the value of JSON, or of YAML with the lines of its sections, entries and fields."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) < len(pairs):
            raise ValueError("a key appears twice")
        return made

    try:
        return json.loads(text, object_pairs_hook=unique), {}
    except (ValueError, RecursionError):  # the errors about YAML, of which JSON is a part, have lines
        return _read_yaml(text, origin)


def _read_yaml(text: str, origin: str) -> tuple[Any, Mapping[Path, int]]:
    try:
        _check_size(text, origin)
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            lines = dict(_lines_of(node))
            return (None if node is None else loader.construct_document(node)), lines
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        line = mark.line + 1 if mark else None
        where = f", line {line}" if line else ""
        problem = f"no valid YAML: {exc.problem or exc.context}."
        if "nesting depth" in problem:  # some versions of libyaml look ahead, and have a limit of their own
            problem = "is nested too deeply."
        raise FileError(f"{origin}{where}: {problem}", origin, line) from exc
    except FileError:  # a ValueError, too
        raise
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as exc:
        words = " ".join(str(exc).split())
        raise FileError(f"{origin}: no valid YAML: {words}.", origin) from exc


def _check_size(text: str, origin: str) -> None:
    """Raise FileError, before a file is read, if it is nested too deeply or expands to too much."""
    open_anchors: list[str | None] = []  # of collections that have begun and not ended
    sizes = [0]  # of the whole file, and of the same collections
    known: dict[str | None, int] = {}
    added, reason = 0, ""
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            open_anchors.append(event.anchor)
            sizes.append(1)
            reason = "is nested too deeply." if len(sizes) > MAX_DEPTH else ""
        elif isinstance(event, yaml.CollectionEndEvent):
            size = sizes.pop()
            known[open_anchors.pop()] = size
            sizes[-1] += size
        elif isinstance(event, yaml.AliasEvent):
            size = known.get(event.anchor, 1)
            sizes[-1] += size
            added += size
            reason = "its aliases (*) expand to too many values." if added > MAX_ALIASED else ""
            reason = f"*{event.anchor} contains itself." if event.anchor in open_anchors else reason
        else:
            sizes[-1] += 1
        if reason:
            line = event.start_mark.line + 1
            raise FileError(f"{origin}, line {line}: {reason}", origin, line)


def _lines_of(node: Any, path: Path = ()) -> Iterator[tuple[Path, int]]:
    """Yield the lines of sections, entries and fields."""
    if isinstance(node, yaml.MappingNode) and len(path) < 3:
        for key, value in node.value:
            name = key.value if isinstance(key.value, str) else None
            yield (*path, name), key.start_mark.line + 1
            yield from _lines_of(value, (*path, name))


def write_file(declared: Declared, *, is_json: bool = False) -> str:
    """Return ``declared`` as YAML, or as JSON."""
    document: dict[str, Any] = {} if declared.owner is None else {"owner": declared.owner}
    document["entries"] = dict(declared.entries)
    if declared.calendars:
        document["calendars"] = dict(declared.calendars)
    if is_json:
        return f"{printable_json(json.dumps(document, indent=2, ensure_ascii=False))}\n"
    layout: dict[str, Any] = {"sort_keys": False, "width": 110, "default_flow_style": None}
    try:
        written: str = yaml.dump(document, Dumper=_Dumper, allow_unicode=True, **layout)
    except (UnicodeEncodeError, RecursionError):  # surrogates, or more nesting than PyYAML can write
        return write_file(declared, is_json=True)
    # PyYAML leaves some characters unescaped, such as those that change the direction of text
    return escape(written, lambda char: f"\\U{ord(char):08x}")
