"""Lua scripts and their calls. The header of a script is its binding; it is parsed once.

::

    -- write_entries: store entries, all of them or none.
    --
    -- Uses check_layout, hold_lock     files that are put in front of this one
    -- KEYS schedule    zset of entry keys
    -- KEYS entries[]   the entries' keys: a list, after all single keys
    -- ARGV wake        channel: a member of the JSON object that is the last of ARGV
    -- BYTES dumps      texts of any bytes: a list, the others of ARGV
    -- Returns ...

    WRITE_ENTRIES = Script("write_entries")
    WRITE_ENTRIES.call(part, fence=fence, entries=[...], dumps=[...])

The body, and the files in front of it, find each of them in a local variable of that name: a number is a
number, a list a table, a row a table with named fields (``as_row``), and None is nil. Scores are texts, as
Lua's numbers lose microseconds.
What a caller doesn't name is the part's own: ``schedule`` and ``wake`` are attributes of its ``Keys``.
``fence`` is for scripts that use ``hold_lock``, which finds the ``status`` of the lock for them.
Those that use ``check_layout`` do nothing where entries aren't where their caller takes them to be.

A ``Call`` is a value: it is run on a client, on several nodes (``store.nodes``), or written to a stream.
Invariant: the source of a script comes from files only; all values of a caller are KEYS and ARGV.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Generic, TypeVar

from redis.exceptions import NoScriptError

from redbeat.keys import UNGUARDED, Keys
from redbeat.log.text import as_stored, sha1_of_text
from redbeat.store.records import Fence

Reply = TypeVar("Reply")
Other = TypeVar("Other")

#: files that scripts use by which their callers pass a part of the schedule, and a fence
CHECK, HOLD = "check_layout", "hold_lock"
#: what a fence gives to a script
FENCE_KEYS, FENCE_ARGS = ("lock", "mark"), ("token", "lock_ms")

_to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode

_LINE = re.compile(r"^-- (Uses|KEYS|ARGV|BYTES) (.*)$", re.MULTILINE)
_NAME = re.compile(r"([a-z_]+)(\[\])?(?: .*)?")


class Header:
    """What the header of a script declares.

    Attributes:
        uses: the files that are put in front of it.
        keys, key_lists: the names in KEYS: single keys, and after them lists of keys.
        args: the names of the members of the JSON object that is the last of ARGV.
        texts: the name of the others of ARGV; '': there are none.
    """

    def __init__(self, name: str, text: str) -> None:
        self.uses, self.texts = tuple[str, ...](), ""
        self.keys, self.key_lists, self.args = list[str](), list[str](), list[str]()
        header = re.match(r"(?:--(?! Returns).*\n)*", text)
        for kind, declared in _LINE.findall(header[0] if header else ""):
            if kind == "Uses":
                self.uses = tuple(declared.split(", "))
                continue
            found = _NAME.fullmatch(declared)
            if found is None or (found[2] and kind != "KEYS"):
                raise ValueError(f"{name}.lua: invalid line in its header: {kind} {declared}")
            if kind == "BYTES":
                self.texts = found[1]
            else:
                {"KEYS": self.keys, "KEYS[]": self.key_lists, "ARGV": self.args}[
                    kind + (found[2] or "")
                ].append(found[1])
        self.names = {*self.keys, *self.key_lists, *self.args, *filter(None, [self.texts])}
        if HOLD in self.uses:
            self.keys += FENCE_KEYS
            self.args += FENCE_ARGS

    def variables(self) -> str:
        """Return the Lua statements that give the body its variables."""
        lines = []
        if self.args or self.key_lists:
            lines.append("local args = cjson.decode(table.remove(ARGV))")
        if self.keys:
            places = ", ".join(f"KEYS[{place}]" for place in range(1, len(self.keys) + 1))
            lines.append(f"local {', '.join(self.keys)} = {places}")
        if self.args:
            lines.append(f"local {', '.join(self.args)} = {', '.join(f'args.{name}' for name in self.args)}")
        if self.key_lists:
            lines.append(f"local place = {len(self.keys)}")
        lines += [
            f"local {name} = {{}} for i = 1, args.{name} do {name}[i] = KEYS[place + i] end "
            f"place = place + args.{name}"
            for name in self.key_lists
        ]
        if self.texts:
            lines.append(f"local {self.texts} = ARGV")
        return "\n".join([*lines, ""])


class Script:
    """A script that is sent by its SHA-1, or as a whole if the server doesn't know it.

    Arguments:
        is_raw: its replies aren't decoded, whatever the client's settings are.
    """

    def __init__(self, name: str, *, is_raw: bool = False) -> None:
        self.name = name
        self.header = Header(name, _read(name))
        uses = self.header.uses
        self.options: Mapping[str, Any] = {"NEVER_DECODE": []} if is_raw else {}
        self.is_checking, self.is_fenced = CHECK in uses, HOLD in uses
        texts = [*map(_read, uses), _read(name)]
        texts.insert(1 if self.is_checking else 0, self.header.variables())
        self.source = "".join(texts)
        self.sha1 = sha1_of_text(self.source)

    def call(self, *sources: Any, fence: Fence | None = None, **values: Any) -> Call[Any]:
        """Return a call with the keys and arguments that the header declares, by their names.

        In the place of a single key that is missing (None, '') stands the first one: a script can't be sent
        without it.

        Arguments:
            sources: what isn't among ``values`` is an attribute of the first of them that has it. A script
                that checks the layout is within the part of the schedule whose ``Keys`` come first.

        Raises:
            TypeError: some are missing, or not declared.
        """
        header = self.header
        for name in header.names - values.keys():
            for source in sources:
                if not callable(value := getattr(source, name, _missing)):
                    values[name] = value
                    break
        within = sources[0] if self.is_checking and sources else None
        problems = sorted(header.names ^ values.keys())
        if (fence is not None) != self.is_fenced:
            problems.append("fence")
        if self.is_checking and not isinstance(within, Keys):
            problems.append("part")
        if problems:
            raise TypeError(f"{self.name}: missing or unknown: {', '.join(problems)}.")
        if fence is not None:
            values |= {"lock": fence.lock_key, "mark": fence.mark or fence.lock_key}
            values |= {"token": fence.token, "lock_ms": fence.lock_ms}
        keys = [values[name] or values[header.keys[0]] for name in header.keys]
        args = {}
        for name in header.args:
            if values[name] is not None:  # nil in Lua
                args[name] = values[name]
        for name in header.key_lists:
            keys += values[name]
            args[name] = len(values[name])
        has_args = header.args or header.key_lists
        texts = values[header.texts] if header.texts else ()
        return Call(self, keys, args if has_args else None, texts, within)


def as_row(**fields: Any) -> dict[str, Any]:
    """Return a row of an argument without the fields that are None, which are nil in Lua then."""
    return {name: value for name, value in fields.items() if value is not None}


def _missing() -> None:
    """Stand for an attribute that isn't there."""


def _as_it_is(reply: Any) -> Any:
    return reply


@dataclass(slots=True)  # not frozen, as making one would take twice as long
class Call(Generic[Reply]):
    """One call of a script, and what its reply means.

    Attributes:
        args: the members of the JSON object; None: there is none.
        texts: the other ARGV.
        within: the part of the schedule that it is about; None: the script checks no layout.
        read: makes of the reply what the caller wants to know.
    """

    script: Script
    keys: Sequence[str]
    args: Mapping[str, Any] | None = None
    texts: Sequence[Any] = ()
    within: Keys | None = None
    read: Callable[[Any], Reply] = _as_it_is

    @property
    def strings(self) -> Sequence[str]:
        """Those keys that must hold strings, whatever their names are."""
        names = self.script.header.keys
        name_of = dict(zip(reversed(self.keys[: len(names)]), reversed(names), strict=True))
        return [key for key, name in name_of.items() if name in FENCE_KEYS]

    def within_part(self, part: Keys) -> Call[Reply]:
        """Return the same call if the part is ``part``, whose layout may be another one by now."""
        if self.within is None or self.within == part:
            return self
        return Call(self.script, self.keys, self.args, self.texts, part, self.read)

    def reading(self, read: Callable[[Any], Other]) -> Call[Other]:
        """Return the same call whose reply is read by ``read``."""
        return Call(self.script, self.keys, self.args, self.texts, self.within, read)

    def run(self, client: Any) -> Reply:
        """Call the script, and return what its reply means."""
        return self.read(self.send(client))

    def send(self, client: Any) -> Any:
        """Send it by ``client``, or add it to a pipeline; return the reply."""
        words, options = self.words(), self.script.options
        if options:  # only this passes them on
            try:
                return client.execute_command(*words, **options)
            except NoScriptError:
                return client.execute_command("EVAL", self.script.source, *words[2:], **options)
        try:
            return client.evalsha(*words[1:])
        except NoScriptError:
            return client.eval(self.script.source, *words[2:])

    def words(self) -> list[Any]:
        """Return the words of the command, for a server that knows the script."""
        part, values = self.within, [*self.keys]
        if part is not None:  # a call must have that key all the same
            values.append(values[0] if part.guard == UNGUARDED else part.generation)
        count = len(values)
        values += self.texts
        if self.args is not None:
            values.append(_to_json(self.args))
        if part is not None:
            values.append(part.guard)
        try:
            encoded = [value.encode() if type(value) is str else value for value in values]
        except UnicodeEncodeError:
            encoded = _as_stored(values)
        return ["EVALSHA", self.script.sha1, count, *encoded]


@cache
def _read(name: str) -> str:
    return files(__package__).joinpath(f"{name}.lua").read_text("utf-8")


def _as_stored(values: Sequence[Any]) -> list[Any]:
    """Return values as they are sent: text as the bytes that it was in Redis, also if they aren't UTF-8."""
    try:
        return [as_stored(value) if isinstance(value, str) else value for value in values]
    except UnicodeEncodeError as exc:
        if exc.object.startswith('{"'):  # JSON: this raises the same about the one text that is at fault
            start = exc.object.rfind('"', 0, exc.start) + 1
            as_stored(exc.object[start : exc.object.find('"', start)])
        raise
