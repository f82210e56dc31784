"""Foreign text as it is shown: on one line, in its order, without orders to a terminal."""

from __future__ import annotations

import json
import random
import sys
import unicodedata
from functools import cache

import pytest
import yaml

from redbeat.errors import EntryCorrupt, LockLost, RedBeatError
from redbeat.log.text import is_utf8, printable, printable_json, printable_lines, shorten
from redbeat.manifest.format import Declared, read_file, write_file
from redbeat.process.exit_codes import CommandLineError
from tests.conftest import SEED
from tests.support.hostile import HOSTILE, HOSTILE_SHOWN

#: control, format (direction, no width), halves of characters, separators of lines and paragraphs
KINDS = ("Cc", "Cf", "Cs", "Zl", "Zp")


@cache
def orders() -> list[str]:
    """Return all characters of these kinds."""
    return [char for char in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(char) in KINDS]


def test_whatever_gives_orders_is_escaped() -> None:
    assert {"\x00", "\x1b", "\x7f", "\x9b", "\u200b", "\u202e", "\u2028", "\u2069", "\udc80"} <= {*orders()}
    for char in orders():
        shown = printable(f"a{char}b")
        assert shown.isascii(), hex(ord(char))
        assert shown == f"a{char.encode('unicode_escape').decode()}b"


def test_what_people_write_stays_and_lines_stay_where_they_are_meant() -> None:
    text = r"Grüße, 日報 🙂, عربي, C:\new"
    assert printable(text) is text
    assert printable_lines("one\ntwo\x1b\r\n") == "one\ntwo\\x1b\\r\n"


def test_escaped_json_is_the_same_json() -> None:
    chance = random.Random(SEED)
    for _ in range(50):
        # two halves of a character are one in JSON
        text = "".join(chance.choices(['"', "\\", "ä", "🙂", *filter(is_utf8, orders())], k=30))
        document = {text: [text, 1]}
        shown = printable_json(json.dumps(document, ensure_ascii=False))
        assert shown.isprintable()
        assert json.loads(shown) == document


@pytest.mark.parametrize("is_json", [False, True])
def test_a_written_file_gives_no_orders_and_is_read_as_it_was(is_json: bool) -> None:
    chance = random.Random(SEED)
    names = [HOSTILE, *("".join(chance.choices(orders(), k=12)) for _ in range(20))]
    names = [name for name in names if is_utf8(name)]
    entries = {
        name: {"task": "echo", "schedule": 60, "kwargs": {name: f"{name} and\nmore " * 9}} for name in names
    }
    text = write_file(Declared(owner="me", entries=entries), is_json=is_json)
    assert all(line.isprintable() for line in text.split("\n"))
    assert read_file(text).entries == entries
    assert (json.loads(text) if is_json else yaml.safe_load(text))["entries"] == entries


@pytest.mark.parametrize(
    "error",
    [
        RedBeatError(f"a {HOSTILE}"),
        EntryCorrupt(f"a {HOSTILE}", HOSTILE),
        LockLost(f"a {HOSTILE}", "redbeat::lock", HOSTILE),
        CommandLineError(f"a {HOSTILE}", 64),
    ],
    ids=lambda error: type(error).__name__,
)
def test_sentences_of_errors_are_printable_and_their_data_is_as_it_was(error: Exception) -> None:
    assert str(error) == f"a {HOSTILE_SHOWN}"
    assert repr(error).isprintable()
    assert getattr(error, "key", HOSTILE) == getattr(error, "holder", HOSTILE) == HOSTILE


def test_a_long_text_is_cut_and_a_short_one_is_not() -> None:
    assert shorten("x" * 500) == "x" * 500
    assert shorten("x" * 501) == "x" * 500 + "..."
    assert shorten("abc", 2) == "ab..."
    assert len(shorten("x" * 3_000_000)) < 600
