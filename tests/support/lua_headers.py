"""What the scripts' opening comments say, for the tests that compare it with the bodies and the callers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from redbeat.store import scripts as lua
from redbeat.store.scripts.script import Script

FOLDER = Path(lua.__file__).parent
#: not scripts of their own, but put in front of some
FRAGMENTS = [
    *(
        "check_layout",
        "count_figures",
        "entry_texts",
        "find_hold",
        "finish_run",
        "hold_lock",
        "match_calendar",
        "measure_entry",
        "note_run",
    ),
    *("push_messages", "read_scores", "run_records"),
    *("move_keys", "try_rights", "hide_entry", "merge_kept", "receive_entry"),
]
SCRIPTS = sorted({path.stem for path in FOLDER.glob("*.lua")} - set(FRAGMENTS))
NUMBERS = {
    "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9,
    "ten": 10, "eleven": 11, "twelve": 12,
}  # fmt: skip


@dataclass
class Header:
    """What a script's opening comment says. Names by their place in KEYS and ARGV, counted from 1."""

    keys: dict[int, str]
    args: dict[int, str]
    keys_from: int | None  # where the entries' keys begin
    args_from: int | None  # where the entries' groups begin
    group: list[str]
    shared: list[list[str]]  # the groups after these, for each thing that they or the groups before refer to
    returned: list[str] | None  # None: a single value
    described: list[str]  # the returned fields that are explained


def sent_scripts() -> list[Script]:
    """All scripts, as they are made of files."""
    modules = [import_module(f"{lua.__name__}.{path.stem}") for path in FOLDER.glob("[a-z]*.py")]
    values = [value for module in (lua, *modules) for value in vars(module).values()]
    return [*{value.sha1: value for value in values if isinstance(value, Script)}.values()]


def script_of(name: str) -> Script:
    """The script of that name."""
    [script] = [script for script in sent_scripts() if script.names[-1] == name]
    return script


def sha1_of(name: str) -> str:
    """What the script is sent as."""
    return script_of(name).sha1


def code_of(name: str) -> str:
    """The script without its comments."""
    source = (FOLDER / f"{name}.lua").read_text("utf-8")
    return re.sub(r"--.*", "", source)


def header_of(name: str) -> Header:
    source = (FOLDER / f"{name}.lua").read_text("utf-8")
    text = "".join(re.findall(r"^--(.*\n)", source.split("\nlocal ")[0] + "\n", re.MULTILINE))
    assert text.startswith(f" {name}: "), "a script opens with its name and what it does"
    inputs, _, outputs = text.partition("\n Returns ")
    named: dict[str, dict[int, str]] = {"KEYS": {}, "ARGV": {}}
    for kind, place, word in re.findall(r"^ (KEYS|ARGV)\[(\d+)\] (\w+) ", inputs, re.MULTILINE):
        named[kind][int(place)] = word
    keys_from = re.search(r"^ KEYS\[(\d+)\.\.\] ", inputs, re.MULTILINE)
    of_each = r"^ ARGV\[(\d+)\.\.\] (\w+) for each (?:entry|field|calendar|run):\n((?:   .*\n)+)"
    group = re.search(of_each, f"{inputs}\n", re.MULTILINE)
    names = re.findall(r"^   (\w+) ", group[3], re.MULTILINE) if group else []
    assert group is None or len(names) == NUMBERS[group[2]], "the header counts its own group wrongly"
    rest = re.findall(r"^ ARGV\[\.\.\] (\w+) for each .*\n((?:   .*\n)+)", f"{inputs}\n", re.MULTILINE)
    shared = [re.findall(r"^   (\w+) ", lines, re.MULTILINE) for _, lines in rest]
    counted = [NUMBERS[count] for count, _ in rest]
    assert list(map(len, shared)) == counted, "the header counts what is shared wrongly"
    returned = re.match(r"\{(.*?)\}", outputs)
    return Header(
        keys=named["KEYS"],
        args=named["ARGV"],
        keys_from=int(keys_from[1]) if keys_from else None,
        args_from=int(group[1]) if group else None,
        group=names,
        shared=shared,
        returned=returned[1].split(", ") if returned else None,
        described=re.findall(r"^   (\w+) ", outputs, re.MULTILINE),
    )
