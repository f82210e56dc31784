"""Entries as plain JSON and back: nothing is lost, and what is wrong is named."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.schedules import crontab, schedule, solar
from dateutil.rrule import FR
from hypothesis import given
from hypothesis import strategies as st

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.entries.forms import FORM_FIELDS
from redbeat.errors import EntryError, FileError
from redbeat.manifest.format import read_file
from redbeat.manifest.plan import entry_of
from redbeat.policy.policy import FIELDS
from redbeat.schedules import clocked, cron, rrule
from redbeat.schedules.codec import encode_schedule
from tests.support.ticks import memory_app

UTC = timezone.utc
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)

schedules = st.one_of(
    st.timedeltas(timedelta(seconds=1), timedelta(days=9)).map(schedule),
    st.sampled_from(["*/5 * * * *", "@daily", "0 9 LW * *", "0 9 * * fri#2"]),
    st.just(crontab("0", "7", "mon-fri")),
    st.just(clocked(NOON)),
    st.just(cron("0 9 L * *")),
    st.just(rrule("MONTHLY", dtstart=NOON, byweekday=FR(-1))),
)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5) | st.just(NOON),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
policies = st.fixed_dictionaries(
    {},
    optional={
        "timezone": st.sampled_from(["Europe/Berlin", "UTC"]), "start_time": st.just(NOON),
        "max_runs": st.integers(1, 9), "one_off": st.booleans(),
        "after_finish": st.sampled_from(["keep", "delete"]), "jitter": st.floats(0, 60),
        "misfire": st.sampled_from(["all", "skip"]), "pause_note": st.text(max_size=5),
        "exclude": st.just("holidays"), "overlap": st.sampled_from(["skip", "buffer_one", "replace"]),
        "max_runtime": st.floats(0.1, 60), "queue_timeout": st.integers(1, 60),
        "pause_after_failures": st.integers(1, 9), "tracks": st.just("workflow"),
        "ping_url": st.just("https://hc-ping.com/abc-123"),
    },
)  # fmt: skip


def parts(entry: Entry) -> dict[str, Any]:
    names = ("name", "task", "kwargs", "options", "enabled", "policy", "last_run_at", "total_run_count")
    own = {name: getattr(entry, name) for name in names}
    return {**own, "args": list(entry.args or ()), "schedule": repr(entry.schedule)}


@given(
    schedules,
    st.lists(values, max_size=3),
    st.dictionaries(st.text(max_size=3), values, max_size=3),
    policies,
    st.none() | st.just(NOON),
    st.integers(0, 5),
    st.booleans(),
)
def test_what_comes_back_from_a_dict_is_the_same_entry(
    one: Any, args: Any, kwargs: Any, policy: Any, last_run_at: Any, count: int, enabled: bool
) -> None:
    app = memory_app(redbeat_redis_url="redis://nowhere:1")
    entry = Entry(
        "x", "t", one, args=args, kwargs=kwargs, options={"queue": "q"}, enabled=enabled, app=app,
        total_run_count=count, **policy,
    )  # fmt: skip
    entry.last_run_at = last_run_at
    form = entry.to_dict()
    assert json.loads(json.dumps(form)) == form, "plain JSON"
    again = Entry.from_dict(form, app)
    assert parts(again) == parts(entry)
    assert again.to_dict() == form


def test_every_field_of_a_policy_is_a_field_of_the_form() -> None:
    assert set(FIELDS) <= set(FORM_FIELDS)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"options": {"priority": 300}}, "options: priority must be from 0 to 255, not 300"),
        ({"nmae": "y"}, "there is no field 'nmae'. Did you mean name"),
        ({"task": None}, "task is missing"),
        ({"schedule": None}, "schedule is missing"),
        ({"schedule": {"__type__": "moon"}}, "schedule: there is no schedule of the kind 'moon'"),
        ({"schedule": {"__type__": "interval"}}, "interval: 'every' is missing"),
        ({"schedule": "* *"}, "2 fields instead of five"),
        ({"args": "abc"}, "args must be a list, not text"),
        ({"kwargs": [1]}, "kwargs must be an object"),
        ({"options": 5}, "options must be an object"),
        ({"enabled": "yes"}, "enabled must be true or false, not 'yes'"),
        ({"name": 5}, "name must be a string"),
        ({"last_run_at": "yesterday"}, "last_run_at: 'yesterday' is no time"),
        ({"total_run_count": "x"}, "total_run_count must be a whole number"),
        ({"jitter": "much"}, "jitter: 'much' is no length of time"),
        ({"jitter": []}, "jitter: must be a number of seconds"),
        ({"schedule": {"evry": "1h"}}, r"schedule: must have just one of .* Did you mean every"),
        ({"schedule": {"every": "1h", "cron": "* * * * *"}}, "schedule: must have just one of"),
        ({"schedule": {"every": "soon"}}, "schedule: every: 'soon' is no length of time"),
        ({"schedule": {"cron": "61 * * * *"}}, "schedule: "),
        ({"schedule": {"at": "noon"}}, "schedule: clocked: "),
    ],
)
def test_what_is_wrong_in_a_form_is_named(app: Celery, change: dict[str, Any], words: str) -> None:
    form = {**Entry("x", "t", 60, app=app).to_dict(), **change}
    with pytest.raises(EntryError, match=words):
        Entry.from_dict(form, app)


def test_a_form_may_be_as_short_as_an_entry(app: Celery) -> None:
    entry = Entry.from_dict({"name": "x", "task": "t", "schedule": "@daily"}, app)
    assert (entry.enabled, entry.kwargs, entry.options, entry.total_run_count) == (True, {}, {}, 0)


@pytest.mark.parametrize(
    ("form", "words"), [({}, "name is missing."), ([], r"an entry must be an object, not \[\].")]
)
def test_a_form_that_is_none_is_refused(app: Celery, form: Any, words: str) -> None:
    with pytest.raises(EntryError, match=f"^{words}$"):
        Entry.from_dict(form, app)


#: what may be written for a schedule, and what it stands for
WRITTEN: list[tuple[Any, Any]] = [
    ({"cron": "0 9 * * mon-fri"}, crontab("0", "9", "mon-fri")),
    ({"cron": "0 9 LW * *"}, cron("0 9 LW * *")),
    ({"cron": "@daily"}, crontab("0", "0")),
    ("0 9 * * mon-fri", crontab("0", "9", "mon-fri")),
    ({"every": "1h30m"}, schedule(5400)),
    ({"every": 0.5}, schedule(0.5)),
    ({"every": "2h", "relative": True}, schedule(7200, relative=True)),
    ("1h 30m", schedule(5400)),
    (90, schedule(90)),
    ({"at": "2026-06-01T12:00+00:00"}, clocked(NOON)),
    ({"rrule": "DTSTART:20260601T120000Z\nRRULE:FREQ=DAILY;COUNT=3"}, rrule("DAILY", dtstart=NOON, count=3)),
    ({"solar": "sunset", "lat": 52.5, "lon": 13.4}, solar("sunset", 52.5, 13.4)),
    ({"__type__": "interval", "every": 60}, schedule(60)),
    ({"__type__": "crontab", "minute": 5}, crontab(5)),
]
WAYS = {
    "from_dict": lambda app, written: Entry.from_dict({"name": "x", "task": "t", "schedule": written}, app),
    "constructor": lambda app, written: Entry("x", "t", written, app=app),
    "attribute": lambda app, written: set_schedule(Entry("x", "t", 1, app=app), written),
    "file": lambda app, written: entry_of(
        read_file(json.dumps({"entries": {"x": {"task": "t", "schedule": written}}})), "x", app
    ),
}


def set_schedule(entry: Entry, written: Any) -> Entry:
    entry.schedule = written
    return entry


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("written", "expected"), WRITTEN, ids=str)
def test_a_schedule_is_written_alike_everywhere(app: Celery, way: str, written: Any, expected: Any) -> None:
    found = WAYS[way](app, written).schedule
    assert (type(found), encode_schedule(found)) == (type(expected), encode_schedule(expected))


def test_a_rule_begins_on_the_clocks_of_its_entry(app: Celery) -> None:
    given = {"rrule": "DTSTART:20260701T090000\nRRULE:FREQ=DAILY"}
    form = {"name": "x", "task": "t", "schedule": given, "timezone": "Europe/Berlin"}
    made = Entry.from_dict(form, app), Entry("x", "t", given, timezone=ZoneInfo("Europe/Berlin"), app=app)
    for entry in made:
        assert [due.isoformat() for due in entry.next_runs(1, NOON)] == ["2026-07-01T09:00:00+02:00"]


def test_lengths_of_time_may_be_text_in_forms_and_files(app: Celery) -> None:
    lengths = {
        "jitter": "30s", "expires_after": "1h30m", "misfire_grace_time": "0.5", "max_runtime": "5m",
        "queue_timeout": "1d", "resume_after": "2h",
    }  # fmt: skip
    fields = {"task": "t", "schedule": "1d", "pause_after_failures": 1, **lengths}
    in_file = entry_of(read_file(json.dumps({"entries": {"x": fields}})), "x", app)
    for entry in (Entry.from_dict({"name": "x", **fields}, app), in_file):
        assert (entry.jitter, entry.expires_after, entry.misfire_grace_time) == (30, 5400, 0.5)
        assert (entry.max_runtime, entry.queue_timeout, entry.resume_after) == (300, 86400, 7200)


def test_a_file_takes_what_to_dict_gives(app: Celery) -> None:
    entry = Entry("x", "t", rrule("DAILY", dtstart=NOON), [1], jitter=5, start_time=NOON, app=app)
    form = entry.to_dict()
    again = entry_of(read_file(json.dumps({"entries": {"x": form}})), "x", app)
    assert parts(again) == parts(entry)
    with pytest.raises(FileError, match="y: name: must be 'y', as above, or be left out, not 'x'"):
        read_file(json.dumps({"entries": {"y": form}}))


@pytest.mark.parametrize(
    ("nickname", "plain"),
    [
        ("@hourly", "0 * * * *"), ("@daily", "0 0 * * *"), ("@midnight", "0 0 * * *"),
        ("@weekly", "0 0 * * 0"), ("@monthly", "0 0 1 * *"), ("@yearly", "0 0 1 1 *"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("form", ["text", "cron"])
def test_a_nickname_is_stored_as_a_crontab_of_2x(app: Celery, nickname: str, plain: str, form: str) -> None:
    stored = []
    for text in (nickname, plain):
        written = text if form == "text" else {"cron": text}
        stored.append(encode_schedule(WAYS["from_dict"](app, written).schedule))
    assert stored[0] == stored[1]
    assert stored[0]["__type__"] == "crontab"


def test_a_nickname_that_is_stored_as_a_cron_of_ours_is_read(app: Celery) -> None:
    given = {"__type__": "cron", "expression": "@daily"}
    assert Entry.from_dict({"name": "x", "task": "t", "schedule": given}, app).schedule == cron("@daily")
