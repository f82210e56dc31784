"""Lua passes about 8000 values to a call at most, so no script unpacks as many as somebody else decides."""

from __future__ import annotations

import re

import pytest

from tests.support.lua_headers import FRAGMENTS, SCRIPTS, code_of

#: each use of unpack that takes a whole table, and why that is short
SHORT = {
    "change_statics": "as many names as a chunk has: 500",
    "claim_due": "redbeat_batch_size is 5000 at most, and HMGET has two fields",
    "check_rights": "a command and its few arguments",
    "commit_runs": "as many commits as one call makes: 100",
    "measure_entry": "HMGET has three fields",
    "merge_kept": "rows of a stream with more fields than most_fields are refused, or left out",
    "read_entries": "as many entries as a chunk has: 500",
    "read_upcoming": "as many entries as a slice of the look-ahead has",
    "save_entries": "as many entries as a chunk has: 500",
}
#: an end that is a few places after the beginning, or that math.min has found
BOUNDED = re.compile(
    r"unpack\(\w+, .+, (?:place \+ \d+|math\.min\(.+\)|last|first \+ size - 1|length|.*\+ 2)\)"
)


@pytest.mark.parametrize("name", [*SCRIPTS, *FRAGMENTS])
def test_a_script_unpacks_short_tables_only(name: str) -> None:
    found = [line for line in code_of(name).splitlines() if "unpack(" in line]
    unbounded = [line for line in found if not BOUNDED.search(line)]
    assert not unbounded or name in SHORT, unbounded
