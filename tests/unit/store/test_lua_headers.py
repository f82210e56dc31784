"""Each script's header says what its body does."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

import pytest

from redbeat.store import records
from tests.support.lua_headers import FOLDER, FRAGMENTS, SCRIPTS, code_of, header_of

LUA_WORDS = set(
    re.findall(
        r"\w+",
        "and break do else elseif end false for function if in local nil not or repeat return then true "
        "until while KEYS ARGV redis tonumber tostring string table math ipairs pairs type unpack cjson "
        "pcall error python acl_check_cmd "
        "has_nul hold_lock is_meta_foreign match_calendar match_text measure_entry measure_key read_fields "
        "read_scores push_messages revision_of sha1_of_meta sha1hex texts_of "
        "add_event add_figure add_to_history bucket_of decode_record decode_waiting default_queue_seconds "
        "drop_reservation expected_at find_hold find_holder is_void record_published "
        "finish_run is_over is_same_time late_bounds later length_bounds members_of micros_of note_run poke "
        "refusal_of reserve_run seconds_of text_of_error unrecorded with_members "
        "check_mover dump_hidden hide_entry merge_events merge_values place_entry receive_entry take_kinds "
        "take_list try_rights",
    )
)


def locals_of(code: str, table: str) -> dict[int, str]:
    """Place in KEYS or ARGV to the local it is given to, and nothing else may read that place."""
    found: dict[int, str] = {}
    for names, values in re.findall(r"^local ([\w, ]+) = (.+)$", code, re.MULTILINE):
        for local, value in zip(names.split(", "), values.split(", "), strict=False):
            place = re.fullmatch(rf"(?:tonumber\()?{table}\[(\d+)\]\)?", value.strip())
            if place:
                found[int(place[1])] = local
    assert len(re.findall(rf"{table}\[\d+\]", code)) == len(found), f"{table} is read elsewhere, too"
    return found


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("table", ["KEYS", "ARGV"])
def test_a_body_names_its_inputs_as_the_header_does(name: str, table: str) -> None:
    header = header_of(name)
    documented = header.keys if table == "KEYS" else header.args
    assert locals_of(code_of(name), table) == documented
    assert sorted(documented) == list(range(1, len(documented) + 1))


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_inputs_are_named_before_anything_is_done(name: str) -> None:
    lines = [line for line in code_of(name).splitlines() if line.strip()]
    named = [number for number, line in enumerate(lines) if re.search(r"(KEYS|ARGV)\[\d+\]", line)]
    assert named == list(range(len(named)))


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_body_walks_the_entries_as_the_header_says(name: str) -> None:
    header, code = header_of(name), code_of(name)
    if header.keys_from is None:
        assert "KEYS[i]" not in code
        return
    assert header.keys_from == len(header.keys) + 1
    end = f"{len(header.keys)} + count" if "count" in header.args.values() else "#KEYS"
    assert f"for i = {header.keys_from}, {end} do" in code
    stride = re.search(r", (\d+) \+ \(i - (\d+)\) \* (\d+)", code)
    assert (stride is None) == (header.args_from is None)
    if stride:
        assert tuple(map(int, stride.groups())) == (header.args_from, header.keys_from, len(header.group))
        assert header.args_from == len(header.args) + 1
    names = [
        names.split(", ")
        for names, values in re.findall(r"^  local ([\w, ]+) = (ARGV\[.+)$", code, re.MULTILINE)
        if "ARGV[at" in values
    ]
    assert len(re.findall(r"ARGV\[at(?: \+ \d+)?\]", code)) == len(header.group)
    assert [re.sub("^kind$", "type", name) for line in names for name in line] == header.group


def test_a_body_takes_the_states_of_entries_as_the_header_says() -> None:
    header, code = header_of("save_entries"), code_of("save_entries")
    [states] = header.shared
    start = f"for place = {header.args_from} + (#KEYS - {len(header.keys)}) * {len(header.group)}, #ARGV, "
    assert f"{start}{len(states)} do" in code
    assert f"  local {', '.join(states)} = unpack(ARGV, place, place + {len(states) - 1})\n" in code


def test_a_body_takes_decisions_and_their_forms_as_the_header_says() -> None:
    header, code = header_of("commit_runs"), code_of("commit_runs")
    decisions, _forms = header.shared
    first = f"{header.args_from} + {len(header.group)} * count"
    assert f"place = {first}\n" in code
    assert f"place = {{}}, {{}}, {first} + {len(decisions)} * decided\n" in code
    for names in header.shared:
        body = ", ".join(["kind" if name == "type" else name for name in names])
        assert f"  local {body} = unpack(ARGV, place, place + {len(names) - 1})\n" in code
        assert f"place + {len(names)}\n" in code


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_return_has_the_fields_of_the_header(name: str) -> None:
    header = header_of(name)
    returns = re.findall(r"\breturn (.+?)(?: end)?$", code_of(name), re.MULTILINE)
    assert returns
    if header.returned is None:
        assert not any(value.startswith("{") for value in returns)
        return
    assert header.described == header.returned
    for value in returns:
        inner = re.sub(r"[({][^(){}]*[)}]", "", re.sub(r"[({][^(){}]*[)}]", "", value[1:-1]))
        assert len(inner.split(",")) == len(header.returned), value


@pytest.mark.parametrize(("name", "row"), [("claim_due", records.Claimed), ("read_entries", records.Stored)])
def test_a_row_has_the_fields_of_its_class(name: str, row: type[Any]) -> None:
    header = (FOLDER / f"{name}.lua").read_text("utf-8")
    documented = re.search(r"--   rows +\{(.+?)\}", header, re.DOTALL)
    assert documented is not None
    found = re.sub(r"\n-- +", " ", documented[1]).split(", ")
    # these stand elsewhere
    names = [field.name for field in fields(row) if field.name not in ("is_away", "body", "is_own")]
    if name == "claim_due":
        assert found == names
    else:
        assert {*found, "key"} == set(names)


@pytest.mark.parametrize("name", [*SCRIPTS, *FRAGMENTS])
def test_a_body_has_no_global_variables(name: str) -> None:
    code = re.sub(r"'[^']*'", "''", code_of(name))
    while re.search(r"\{[^{}]*\}", code):  # a field's name in a table is no variable
        code = re.sub(r"\{([^{}]*)\}", lambda found: re.sub(r"\w+ = ", "", found[1]), code)
    declared = {
        variable
        for names in re.findall(
            r"\blocal (?!function)([\w, ]+)|\bfor ([\w, ]+) (?:=|in)|\bfunction ?(\w*\([\w, .]*\))", code
        )
        for variable in re.findall(r"\w+", " ".join(names))
    }
    used = set(re.findall(r"(?<![\w.])([A-Za-z_]\w*)", code))
    assert used - declared - LUA_WORDS == set()


#: what a script's keys are besides those of entries: the schedule's own,
OF_SCHEDULE = {
    *("schedule", "lock", "statics", "owners", "away", "tick", "mark", "standbys", "beats", "layout"),
    *("deadlines", "events", "told", "failures", "workers"),
    *("figures", "totals", "minutes", "labels", "expected", "streaks", "later", "other"),
    *("mover", "moving", "left", "arrived", "arriving", "owned"),
    *("layout", "generation"),
}
#: the one that it is about, where that isn't among others,
SINGLE = {"calendar", "history", "running", "failing"}
#: and lists, each of something of the entries that are given, or of nobody's
LISTS = {
    "entries",
    "gone",
    "removed",
    "owned",
    "histories",
    "queues",
    "beside",
    "calendars",
    "running",
    "failing",
    "past",
    "bodies",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_key_is_the_schedule_s_own_or_of_one_entry(name: str) -> None:
    """A new name has to be added above; docs/design.rst says under "Parts" what it must not be."""
    header = (FOLDER / f"{name}.lua").read_text("utf-8").partition("\nlocal ")[0]
    lists = set(re.findall(r"^-- KEYS\[\d*\.\.\] (\w+) ", header, re.MULTILINE))
    assert set(header_of(name).keys.values()) <= OF_SCHEDULE | SINGLE
    assert lists <= LISTS
    assert not lists & {"gone", "owned", "histories", "beside"} or "entries" in lists, "beside which entries?"
