"""Files of entries: how they are read, what is wrong with them in words, and how they are written."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from celery import Celery
from hypothesis import given
from hypothesis import strategies as st

from redbeat.errors import FileError
from redbeat.manifest.format import Declared, read_file, write_file
from redbeat.manifest.plan import entry_of

TEXT = """\
owner: billing
x-hourly: &hourly
  task: billing.send
  schedule: {every: 1h}
entries:
  invoices:
    task: billing.send
    schedule: {cron: "0 9 LW * *"}
    args: [1, two]
    timezone: Europe/Berlin
    start_time: 2026-01-01
  reminders:
    <<: *hourly
    enabled: false
calendars:
  holidays:
    about: no work
    days: {2026-12-25: Christmas}
"""


def test_a_file_is_read() -> None:
    found = read_file(TEXT)
    assert found.owner == "billing"
    assert found.entries["invoices"] == {
        "task": "billing.send",
        "schedule": {"cron": "0 9 LW * *"},
        "args": [1, "two"],
        "timezone": "Europe/Berlin",
        "start_time": "2026-01-01",
    }
    assert found.entries["reminders"]["schedule"] == {"every": "1h"}
    assert found.calendars == {"holidays": {"about": "no work", "days": {"2026-12-25": "Christmas"}}}
    assert found.lines[("entries", "invoices", "schedule")] == 8


def test_json_is_the_same(app: Celery) -> None:
    found = read_file(TEXT)
    text = write_file(found, is_json=True)
    assert json.loads(text)["owner"] == "billing"
    assert read_file(text) == found
    assert entry_of(read_file(text), "invoices", app).timezone == "Europe/Berlin"


ENTRY = "entries:\n  report:\n    task: a\n    schedule: {every: 30s}\n"


FAULTS = {
    "": "file.yaml: must begin with 'entries:', and holds nothing.",
    "- a": "file.yaml: must begin with 'entries:', and holds a list.",
    "a: [": "no valid YAML: ",
    '{"entries": {]': "file.yaml, line 1: no valid JSON: ",
    '{"entries": {"a": {}, "a": {}}}': "file.yaml: 'a' appears twice.",
    "entrees: {}": "line 1: entrees: there is no such section. Did you mean entries?",
    "owner: 7": "line 1: owner: must be a name",
    f"entries: 0x{'f' * 4500}": "no valid YAML: a number has more than 4,300 digits.",
    "entries: [a]": "line 1: entries: must be a mapping, not a list.",
    "entries:\n  7: {}": "7 must be text; put it into quotes.",
    "entries:\n  yes: {}": "True must be text; put it into quotes.",
    "entries:\n  report: echo": "line 2: report: must be a mapping, not text.",
    "entries:\n  report:\n    schedule: 60": "line 2: report: task is missing.",
    "entries:\n  report:\n    task: a": "line 2: report: schedule is missing.",
    f"{ENTRY}    tiemzone: UTC": "line 5: report: tiemzone: there is no such field. Did you mean timezone?",
    f"{ENTRY}    args: 7": "line 5: report: args: must be a list, not 7.",
    f"{ENTRY}    kwargs: [7]": "line 5: report: kwargs: must be an object, not a list.",
    f"{ENTRY}    enabled: maybe": "line 5: report: enabled: must be true or false, not 'maybe'.",
    f"{ENTRY}    timezone: Europe/Berln": "line 5: report: timezone: ",
    f"{ENTRY}    max_runs: 0": "line 5: report: max_runs: must be a whole number from 1, not 0.",
    f"{ENTRY}    total_run_count: often": "line 5: report: total_run_count: must be a whole number",
    f"{ENTRY}    last_run_at: soon": "line 5: report: last_run_at: 'soon' is no time.",
    f"{ENTRY}    task: b": "line 5: task appears twice.",
    f"{ENTRY}  report: {{}}": "line 5: report appears twice.",
    f"{ENTRY}  :schedule: {{task: a, schedule: 60}}": "that key is RedBeat's own",
    "entries:\n  report: {task: a, schedule: {evry: 30s}}": "must have just one of {cron: ...}, {every: ",
    "entries:\n  report: {task: a, schedule: {}}": "line 2: report: schedule: must have one of cron, every",
    "entries:\n  report: {task: a, schedule: {every: soon}}": "every: 'soon' is no length of time",
    "entries:\n  report: {task: a, schedule: {every: 0}}": "every must be more than 0 seconds",
    "entries:\n  report: {task: a, schedule: {cron: 61 * * * *}}": "line 2: report: schedule: ",
    "entries:\n  report: {task: a, schedule: {rrule: COUNT=3}}": "schedule: rrule: FREQ: is missing",
    "entries:\n  report: {task: a, schedule: {rrule: FREQ=OFTEN}}": "rrule: FREQ: must be one of",
    "entries:\n  report: {task: a, schedule: {solar: sunrise}}": "schedule: solar: lat is missing.",
    "entries:\n  report: {task: a, schedule: {at: noon}}": "line 2: report: ",
    "entries:\n  a: {task: a, schedule: 5, kwargs: {x: [{b: 1, b: 2}]}}": "line 2: b appears twice",
    "entries:\n  a: {task: a, schedule: {every: .inf}}": "every: inf is no length of time",
    "entries:\n  report: {task: a, schedule: 60, history: [1]}": "history: must be a list of texts",
    "entries:\n  report: {task: a, schedule: 60, backfilled: x}": "backfilled: must be a list of texts",
    "entries:\n  report: {task: a, schedule: {every: 3, relativ: true}}": "no 'relativ' beside 'every'.",
    "calendars: {holidays: {days: 7}}": "holidays: days: must be a list of days",
    "calendars: {holidays: {dates: []}}": "there is no such field.",
}


@pytest.mark.parametrize(
    ("text", "told", "line"),
    [(f"{ENTRY}  report: {{}}", "report", 5), ("entries: {}\nentries: {}", "entries", 2)],
)
def test_a_name_that_stands_there_twice_is_told_once_with_its_line(text: str, told: str, line: int) -> None:
    with pytest.raises(FileError) as caught:
        read_file(text, "file")
    assert (str(caught.value), caught.value.line) == (f"file, line {line}: {told} appears twice.", line)


def read_all(text: str, app: Celery) -> None:
    found = read_file(text, "file.yaml")
    for name in found.entries:
        entry_of(found, name, app)


@pytest.mark.parametrize("text", FAULTS)
def test_a_fault_is_told_with_entry_field_and_line(app: Celery, text: str) -> None:
    with pytest.raises(FileError, match=re.escape(FAULTS[text])) as caught:
        read_all(text, app)
    assert str(caught.value).startswith("file.yaml")
    assert "\n" not in str(caught.value)


def test_only_plain_values_are_made() -> None:
    with pytest.raises(FileError, match="line 1: no valid YAML: could not determine a constructor"):
        read_file("entries: !!python/object/apply:os.system ['true']")


SCHEDULES: list[tuple[Any, dict[str, Any]]] = [
    ({"every": "30s"}, {"__type__": "interval", "every": 30.0, "relative": False}),
    ({"every": "1h 30m"}, {"__type__": "interval", "every": 5400.0, "relative": False}),
    ({"every": "500ms"}, {"__type__": "interval", "every": 0.5, "relative": False}),
    ("2 d", {"__type__": "interval", "every": 172800.0, "relative": False}),
    (90, {"__type__": "interval", "every": 90.0, "relative": False}),
    ({"cron": "0 9 LW * *"}, {"__type__": "cron", "expression": "0 9 LW * *"}),
    ({"rrule": "FREQ=WEEKLY;BYDAY=MO,-1FR;BYHOUR=9"}, {"freq": 2, "byhour": [9]}),
    ({"rrule": "DTSTART:20260101T090000Z\nRRULE:FREQ=DAILY;COUNT=3"}, {"dtstart": 1767258000, "count": 3}),
    (
        {"rrule": "DTSTART;TZID=Europe/Berlin:20260701T090000\nRRULE:FREQ=DAILY;UNTIL=20270101"},
        {"dtstart": 1782889200, "dtstart_tz": 120.0},
    ),
    ({"solar": "sunrise", "lat": 52, "lon": 13}, {"__type__": "solar", "event": "sunrise", "lat": 52}),
    ({"at": "2026-12-24T18:00:00+00:00"}, {"__type__": "clocked"}),
]


@pytest.mark.parametrize(("written", "expected"), SCHEDULES, ids=str)
def test_a_schedule_is_read(app: Celery, written: Any, expected: dict[str, Any]) -> None:
    found = Declared(entries={"one": {"task": "a", "schedule": written}})
    encoded = entry_of(found, "one", app).to_dict()["schedule"]
    assert encoded == {**encoded, **expected}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


NAMES = st.text(st.characters(codec="utf-8"), min_size=1)


@given(
    st.dictionaries(
        NAMES,
        st.fixed_dictionaries(
            {"task": st.text(min_size=1), "schedule": st.just({"every": "30s"})},
            optional={"args": st.lists(JSON, max_size=3), "kwargs": st.dictionaries(st.text(), JSON)},
        ),
        max_size=3,
    ),
    st.booleans(),
)
def test_what_is_written_is_read_as_the_same(entries: dict[str, Any], is_json: bool) -> None:
    declared = Declared("-", "billing", entries)
    text = write_file(declared, is_json=is_json)
    text.encode()
    assert read_file(text) == declared


def bomb(link: str) -> str:
    """Nine times nine values, nine times over, behind aliases."""
    lines = ["x-0: &a0 {k: [1, 2, 3, 4, 5, 6, 7, 8, 9]}"]
    lines += [f"x-{level}: &a{level} {link % ', '.join([f'*a{level - 1}'] * 9)}" for level in range(1, 10)]
    return "\n".join([*lines, "entries: {a: {task: echo, schedule: {every: 1h}, kwargs: *a9}}"])


def of(fields: str) -> str:
    return f"entries:\n  a: {{task: echo, schedule: {{every: 1h}}, {fields}}}"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param(bomb("{k: [%s]}"), "line 7: its aliases (*) expand to too many values.", id="lists"),
        pytest.param(bomb("{<<: [%s]}"), "line 7: its aliases (*) expand to too many", id="merge keys"),
        pytest.param(of("args: &x [*x]"), "line 2: *x contains itself.", id="circle"),
        pytest.param(of(f"args: {'[' * 200_000}"), "line 2: is nested too deeply.", id="depth"),
        pytest.param(f"entries: {'- ' * 200_000}", "line 1:", id="depth of blocks"),
        pytest.param(f'{{"x": {"1" * 5000}}}', "no valid JSON: Exceeds the limit", id="digits"),
        pytest.param(of("kwargs: {on: 1}"), "a: kwargs: True: True must be text; put it", id="key on"),
        pytest.param(of("options: {1: 1}"), "a: options: 1: 1 must be text; put it into", id="key 1"),
        pytest.param("entries: {a: {stored: }}", "a: stored: must be a mapping, as export", id="no state"),
        pytest.param("entries: {a: {stored: {}}}", "a: stored: must be a mapping, as", id="empty state"),
    ],
)
def test_what_can_t_be_read_ends_in_a_sentence(text: str, reason: str) -> None:
    with pytest.raises(FileError) as caught:
        read_file(text, "file")
    assert reason in str(caught.value)


def test_aliases_for_ordinary_use_may_stand_for_much() -> None:
    text = "x-a: &a [1, 2, 3]\nx-b: &b {task: echo, schedule: 5, args: *a}\nentries:\n"
    found = read_file(text + "".join(f"  e{number}: {{<<: *b, enabled: no}}\n" for number in range(5000)))
    assert found.entries["e4999"] == {"task": "echo", "schedule": 5, "args": [1, 2, 3], "enabled": False}


@pytest.mark.parametrize("text", ["12:30", "-1:30", "12:30:45.5", "1:30"])
def test_a_time_of_day_is_text_and_no_number_of_base_60(text: str) -> None:
    entries = read_file(of(f"args: [{text}, 10, -1.5, 0x1f, 1_000, 1.0e+3, .5, .inf]")).entries
    assert entries["a"]["args"] == [text, 10, -1.5, 31, 1000, 1000.0, 0.5, float("inf")]
    declared = Declared(entries=entries)
    assert read_file(write_file(declared)).entries == entries


@pytest.mark.parametrize("depth", [300, 600, 900])
def test_values_that_are_too_deep_for_yaml_are_written_all_the_same(depth: int) -> None:
    deep: Any = json.loads("[" * depth + "]" * depth)
    entries = {"a": {"task": "echo", "schedule": 5, "args": deep}}
    assert read_file(write_file(Declared(entries=entries))).entries == entries


@pytest.mark.parametrize("moment", ["0001-01-01T00:00+23:00", "9999-12-31T23:59-23:00"])
def test_a_time_that_is_out_of_range_is_told(app: Celery, moment: str) -> None:
    declared = Declared(entries={"a": {"task": "echo", "schedule": 5, "last_run_at": moment}})
    with pytest.raises(FileError, match=f"last_run_at: is out of range: {moment[:10]}"):
        entry_of(declared, "a", app)
