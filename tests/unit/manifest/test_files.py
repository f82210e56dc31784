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


@pytest.fixture(scope="module")
def app() -> Celery:
    app = Celery("test", set_as_current=False)
    app.conf.redbeat_redis_url = "redis://127.0.0.1:1"
    return app


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
    "entries: [a]": "line 1: entries: must be a mapping, not a list.",
    "entries:\n  7: {}": "7 must be text; put it into quotes.",
    "entries:\n  yes: {}": "True must be text; put it into quotes.",
    "entries:\n  report: echo": "line 2: report: must be a mapping, not text.",
    "entries:\n  report:\n    schedule: 60": "line 2: report: task is missing.",
    "entries:\n  report:\n    task: a": "line 2: report: schedule is missing.",
    f"{ENTRY}    tiemzone: UTC": "line 5: report: tiemzone: there is no such field. Did you mean timezone?",
    f"{ENTRY}    args: 7": "line 5: report: args: must be a list, not 7.",
    f"{ENTRY}    kwargs: [7]": "line 5: report: kwargs: must be an object, not [7].",
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
    "entries:\n  report: {task: a, schedule: {rrule: FREQ=OFTEN}}": "rrule: FREQ: OFTEN is none of",
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


def test_a_name_that_stands_there_twice_is_told_once() -> None:
    with pytest.raises(FileError) as caught:
        read_file(f"{ENTRY}  report: {{}}", "file.yaml")
    assert str(caught.value) == "file.yaml, line 5: report appears twice."


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
