"""An entry's document as a form and back: what is sent back untouched is the same."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.schedules import crontab

from redbeat import RedBeatSchedulerEntry
from redbeat.decoder import DEFINITION_FIELDS
from redbeat.entries.documents import find_problems
from redbeat.entries.saving import encode_entry
from redbeat.policy.policy import FIELDS
from redbeat.schedules import clocked, rrule
from redbeat.store.records import Stored
from redbeat.web.pages.entry_form import GROUPS, document_of, editable, form_of

BERLIN = ZoneInfo("Europe/Berlin")


NOW = datetime(2026, 3, 14, 9, 26, 53, tzinfo=timezone.utc)


ENTRIES: dict[str, dict[str, Any]] = {
    "plain": {"schedule": 30},
    "a fraction": {"schedule": timedelta(seconds=0.25)},
    "a crontab": {"schedule": crontab(minute="*/5", day_of_week="mon-fri"), "timezone": "Europe/Berlin"},
    "cron": {"schedule": "@daily"},
    "once": {"schedule": clocked(datetime(2026, 12, 24, 18, tzinfo=BERLIN)), "one_off": True},
    "a rule": {"schedule": rrule("WEEKLY", dtstart=NOW, byweekday=0)},
    "solar": {"schedule": {"solar": "sunset", "lat": 52.5, "lon": 13.4}},
    "relative": {"schedule": {"every": "2h", "relative": True}},
    "much": {
        "schedule": "1h30m",
        "args": [1, "x", None, {"password": "(hidden)"}],
        "kwargs": {"name": "<b>\u202e", "deep": [[{}]]},
        "options": {"queue": "mail", "priority": 0, "expires": 60, "headers": {"a": 1}},
        "timezone": "America/New_York", "start_time": NOW, "end_time": NOW + timedelta(days=400, seconds=1),
        "max_runs": 3, "after_finish": "delete", "jitter": 60, "expires_after": 3600.5, "misfire": "all",
        "misfire_limit": 5, "misfire_grace_time": 90, "run_missed": True, "exclude": "holidays",
        "overlap": "skip", "max_runtime": 600, "revoke_overdue": True, "queue_timeout": 60,
        "pause_after_failures": 3, "resume_after": 7200, "tracks": "workflow", "metrics": True,
        "ping_url": "https://hc-ping.com/abc",
    },
    "paused": {
        "schedule": 60, "enabled": False, "paused": True, "pause_note": "why?\nso", "paused_by": "eve",
        "paused_until": NOW + timedelta(days=2),
    },
    "disabled": {"schedule": 60, "enabled": False},
    "enabled by 2.x in its pause": {"schedule": 60, "enabled": True, "paused": True, "pause_note": "for now"},
    "odd values": {
        "schedule": 60, "args": ["\ud800", float("inf")], "kwargs": {"deep": ["\ud800"]},
        "options": {"priority": "5", "queue": 5, "headers": {"x": "\udfff"}},
    },
    "other odd values": {"schedule": 60, "options": {"priority": True, "queue": ""}},
}  # fmt: skip


AREAS = {one.name for _, fields in GROUPS for one in fields if one.kind in ("note", "schedule", "json")}


def there_and_back(document: dict[str, Any], **typed: str) -> tuple[dict[str, Any], dict[str, str]]:
    zone = ZoneInfo(document.get("timezone") or "UTC")
    form = {**form_of(document, zone), **typed}
    for name, text in form.items():  # as a browser sends it
        lines = text.encode("utf-8", "replace").decode().splitlines()
        form[name] = ("\r\n" if name in AREAS else "").join(lines)
    return document_of(form, document, app_zone=timezone.utc, now=NOW, user="anna")


def shown_problems(app: Celery, document: dict[str, Any], problems: dict[str, str]) -> dict[str, str]:
    """What the page shows: what can't be read, and what isn't valid."""
    return {**find_problems(document, app), **problems}


#: what is typed: kind and text; and what the form shows of it the next time, if that is something else
TYPED = {
    ("every", "30s"): "", ("every", "1h30m"): "90m", ("every", "0.25"): "",
    ("cron", "0 9 * * mon-fri"): "", ("cron", "@daily"): "0 0 * * *", ("cron", "*/5 6-20 * * fri#2"): "",
    ("rrule", "FREQ=MONTHLY;INTERVAL=2;BYDAY=1MO,-1FR;BYHOUR=9,17;BYSETPOS=1;WKST=SU"): "",
    ("rrule", "DTSTART:20300101T090000Z RRULE:FREQ=DAILY;COUNT=3"): "",
    ("rrule", "DTSTART;TZID=America/New_York:20300101T090000\nRRULE:FREQ=HOURLY;INTERVAL=5"):
        "DTSTART:20300101T090000-0500 RRULE:FREQ=HOURLY;INTERVAL=5",
    ("rrule", "DTSTART:20300701T090000 RRULE:FREQ=YEARLY;BYEASTER=0,1"):  # in the entry's zone
        "DTSTART:20300701T090000+0200 RRULE:FREQ=YEARLY;BYEASTER=0,1",
    ("solar", "dawn_astronomical,-33.9,18.0"): "",
    ("at", "2030-12-24T18:00:00+01:00"): "", ("at", "2030-07-01T18:00"): "2030-07-01T18:00:00+02:00",
    ("json", '{"every": "5s", "relative": true}'): "every 5s", ("json", '"@hourly"'): "cron 0 * * * *",
    ("json", '{"__type__": "crontab", "minute": 5, "hour": [1, 2]}'): "cron 5 1,2 * * *",
    ("json", '{"__type__": "rrule", "freq": 3, "byhour": 9, "byweekday": 0, "dtstart": 0}'):
        "rrule FREQ=DAILY;BYDAY=MO;BYHOUR=9",
}  # fmt: skip


@pytest.mark.parametrize(("kind", "text"), TYPED)
def test_typed_schedule_comes_back_as_text(kind: str, text: str, app: Celery) -> None:
    document = {"name": "n", "task": "t", "timezone": "Europe/Berlin"}
    document, problems = there_and_back(document, schedule_kind=kind, schedule=text)
    assert problems == {}
    entry = RedBeatSchedulerEntry.from_dict(document, app)
    definition, _ = encode_entry(entry, Stored(entry.key))
    again = editable({**document, "schedule": json.loads(definition)["schedule"]})
    form = form_of(again, BERLIN)
    expected = TYPED[kind, text] or text
    shown = f"{form['schedule_kind']} {form['schedule']}"
    assert shown == (expected if kind == "json" else f"{kind} {expected}")
    [first, second] = (RedBeatSchedulerEntry.from_dict(one, app).schedule for one in (document, again))
    assert first == second or kind == "json"  # which may have one value for a list of one


@pytest.mark.parametrize("name", ENTRIES)
def test_form_sent_back_untouched_is_the_same_document(name: str, app: Celery) -> None:
    entry = RedBeatSchedulerEntry(name, "t", app=app, **ENTRIES[name])
    document = editable(entry.to_dict())
    assert there_and_back(document) == (document, {})
    made = RedBeatSchedulerEntry.from_dict(document, app)
    assert editable(made.to_dict()) == document


@pytest.mark.parametrize("name", ["odd values", "other odd values"])
def test_value_that_a_form_cannot_show_stays_when_another_field_changes(name: str, app: Celery) -> None:
    document = editable(RedBeatSchedulerEntry(name, " t ", app=app, **ENTRIES[name]).to_dict())
    options = {**document["options"], "queue": "mail"}
    typed = {"jitter": "5s", "queue": "mail"}
    assert there_and_back(document, **typed) == ({**document, "jitter": 5, "options": options}, {})


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", ""])
def test_untouched_times_stay_the_same_moments_in_another_zone(zone: str) -> None:
    before = {"name": "a", "task": "t", "schedule": "@daily", "timezone": "Asia/Tokyo", "enabled": False}
    times = {"start_time": NOW.isoformat(), "end_time": (NOW + timedelta(days=90)).isoformat()}
    pause = {"paused": True, "paused_until": (NOW + timedelta(days=2)).isoformat()}
    document, problems = there_and_back({**before, **times, **pause}, timezone=zone)
    assert problems == {}
    assert document.get("timezone", "") == zone
    assert {name: document[name] for name in (*times, *pause)} == {**times, **pause}


def test_every_field_of_an_entry_is_in_the_form() -> None:
    shown = {field.name for _, fields in GROUPS for field in fields} | {"name"}
    elsewhere = {"enabled": "state", "paused": "state", "paused_by": "state"}
    assert {elsewhere.get(name, name) for name in (*DEFINITION_FIELDS, *FIELDS)} <= shown
    assert shown == set(form_of({}, timezone.utc))


def test_emptied_field_is_missing() -> None:
    entry = {"name": "n", "task": "t", "schedule": {"every": "5s"}}
    before = {**entry, "jitter": 3, "one_off": True, "args": [1]}
    after = {**entry, "args": [], "kwargs": {}, "options": {}, "enabled": True}
    assert there_and_back(before, jitter="", one_off="", args="") == (after, {})


@pytest.mark.parametrize(
    ("field", "text", "kind"),
    [
        ("args", "{}", ""), ("args", "[NaN]", ""), ("kwargs", "[" * 50_000, ""), ("jitter", "soon", ""),
        ("kwargs", f"[{'1,' * 100_000}1]", ""), ("max_runs", "many", ""), ("start_time", "9 o'clock", ""),
        ("priority", "300", ""), ("paused_until", "someday", ""), ("schedule", "", ""),
        *(("schedule", text, kind) for kind, text in (
            ("cron", "61 * * * *"), ("every", "soon"), ("every", "0"), ("at", "noon"), ("solar", "moon,1,2"),
            ("rrule", "FREQ=NEVER"), ("json", "[]"), ("json", '{"every": "1s", "at": "x"}'), ("nothing", "5"),
        )),
    ],
)  # fmt: skip
def test_invalid_value_is_a_problem_of_its_field(field: str, text: str, kind: str, app: Celery) -> None:
    typed = {"task": "t", "schedule_kind": kind or "cron", "schedule": "@daily", "state": "paused"}
    found = there_and_back({"name": "n"}, **{**typed, field: text})
    assert shown_problems(app, *found).keys() == {field}
