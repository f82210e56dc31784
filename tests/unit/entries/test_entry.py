"""What an entry is made of: constructor, forms, schedules in their written forms, and what is refused."""

from __future__ import annotations

import copy
import json
import pickle
import re
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery, _state  # no other name
from celery.app import app_or_default
from celery.schedules import BaseSchedule, crontab, schedule, solar
from dateutil.rrule import FR
from hypothesis import given
from hypothesis import strategies as st

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.entries.documents import raw_fields
from redbeat.errors import ConfigurationError, EntryError
from redbeat.manifest.format import read_file
from redbeat.manifest.plan import entry_of
from redbeat.schedules import clocked, cron, rrule
from redbeat.schedules.codec import encode_schedule
from redbeat.store.records import Stored
from tests.support.ticks import memory_app

NOON = datetime(2026, 6, 1, 12, tzinfo=timezone.utc)


pickled_app = Celery("pickled", set_as_current=False, broker="redis://127.0.0.1:1")


def entry_x(app: Celery, **fields: Any) -> Entry:
    return Entry(**{"name": "x", "task": "t", "schedule": schedule(60), "app": app, **fields})


def test_constructor_takes_arguments_in_the_order_of_2x(app: Celery) -> None:
    made = Entry("x", "t", schedule(5), [1], {"a": 2}, False, {"queue": "q"}, app=app)
    assert (made.name, made.task, made.schedule) == ("x", "t", schedule(5))
    assert (made.args, made.kwargs, made.enabled, made.options) == ([1], {"a": 2}, False, {"queue": "q"})
    assert made.key == "redbeat:x" == Entry.generate_key(app, "x")


@pytest.mark.parametrize(
    ("value", "made"),
    [(0.5, schedule(0.5)), (timedelta(hours=1), schedule(3600)), ("0 9 LW * *", cron("0 9 LW * *"))],
)
def test_schedule_value_becomes_a_schedule_of_the_app(app: Celery, value: Any, made: Any) -> None:
    changed = entry_x(app)
    changed.schedule = value
    assert changed.schedule == made == entry_x(app, schedule=value).schedule
    assert changed.schedule.app is app


@pytest.mark.parametrize("wrong", ["hourly", {"evry": 60}, [60], True, 1e300, float("nan")])
def test_invalid_schedule_is_refused_and_the_old_one_stays(app: Celery, wrong: Any) -> None:
    made = entry_x(app)
    with pytest.raises(EntryError, match=r"^x: ") as caught:
        made.schedule = wrong
    assert (caught.value.key, made.schedule) == ("x", schedule(60))
    with pytest.raises(EntryError, match=re.escape(str(caught.value))):
        entry_x(app, schedule=wrong)


def test_entry_without_app_raises_configuration_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_state, "default_app", None)
    monkeypatch.setattr(_state._tls, "current_app", None)  # noqa: SLF001 - Celery has no other name for it
    monkeypatch.delenv("CELERY_BROKER_URL", raising=False)
    with pytest.raises(ConfigurationError, match=r"redbeat_redis_url isn't set.*pass app=, or -A to celery"):
        Entry("x", "t", schedule(5)).save()


def test_entry_without_app_uses_the_current_app(monkeypatch: pytest.MonkeyPatch, app: Celery) -> None:
    monkeypatch.setattr(_state._tls, "current_app", app)  # noqa: SLF001 - Celery has no other name for it
    assert app_or_default() is app
    assert Entry("x", "t", schedule(5)).app is app


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": ""}, "name"),
        ({"task": None}, "redbeat:x: task: is missing"),
        ({"args": "abc"}, "redbeat:x: args: "),
        ({"enabled": "maybe"}, "redbeat:x: enabled: .* 'maybe'"),
        ({"args": [object()]}, "redbeat:x: .*not JSON serializable"),
        ({"args": [{"__type__": "interval", "every": 0}]}, "redbeat:x: .*interval: "),
        ({"options": {"headers": [1]}}, "redbeat:x: options: headers: "),
        ({"schedule": None}, "redbeat:x: schedule: "),
        ({"schedule": BaseSchedule()}, "redbeat:x: .*register_schedule"),
        ({"schedule": schedule(0)}, "redbeat:x: its schedule "),
    ],
)
def test_invalid_entry_is_refused_with_the_field(app: Celery, change: dict[str, Any], message: str) -> None:
    with pytest.raises(EntryError, match=message):
        entry_x(app, **change).plan_save(Stored("redbeat:x"), NOON)


@pytest.mark.parametrize(
    "rule", [3600, "0 9 LW * *", crontab(hour=[7, 13]), rrule("DAILY", dtstart=NOON, byhour=7)], ids=repr
)
@pytest.mark.parametrize(
    "duplicate",
    [copy.copy, copy.deepcopy, lambda made: pickle.loads(pickle.dumps(made))],
    ids=["copy", "deepcopy", "pickle"],
)
def test_copy_and_pickle_keep_all_fields(rule: Any, duplicate: Any) -> None:
    made = entry_x(pickled_app, args=[1], options={"headers": {"a": 1}}, enabled=False, schedule=rule)
    made.total_run_count = 5
    found = duplicate(made)
    assert (type(found), found.app.main, parts(found)) == (Entry, "pickled", parts(made))
    found.schedule = 5
    assert (found.schedule, made.schedule) == (schedule(5), entry_x(pickled_app, schedule=rule).schedule)


def test_is_due_answers_like_a_celery_entry(app: Celery) -> None:
    tomorrow, long_ago = datetime.now(timezone.utc) + timedelta(days=1), NOON - timedelta(days=4000)
    waiting = entry_x(app, last_run_at=tomorrow, total_run_count=1).is_due()
    assert (waiting.is_due, waiting.next) == (False, pytest.approx(86_460, abs=60))
    assert entry_x(app, last_run_at=long_ago).is_due().is_due
    assert tuple(entry_x(app, last_run_at=long_ago, enabled=False).is_due()) == (False, 5.0)


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
def test_from_dict_restores_what_to_dict_gives(
    one: Any, args: Any, kwargs: Any, policy: Any, last_run_at: Any, count: int, enabled: bool
) -> None:
    app = memory_app(redbeat_redis_url="redis://nowhere:1")
    fields = {"args": args, "kwargs": kwargs, "options": {"queue": "q"}, "enabled": enabled, **policy}
    entry = Entry("x", "t", one, app=app, total_run_count=count, **fields)
    entry.last_run_at = last_run_at
    form = entry.to_dict()
    assert json.loads(json.dumps(form)) == form, "plain JSON"
    again = Entry.from_dict(form, app)
    assert parts(again) == parts(entry)
    assert again.to_dict() == form


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"nmae": "y"}, "'nmae'. Did you mean name"),
        ({"schedule": {"__type__": "moon"}}, "schedule: .* 'moon'"),
        ({"args": "abc"}, "args: "),
        ({"enabled": "yes"}, "enabled: .* 'yes'"),
        ({"last_run_at": "yesterday"}, "last_run_at: 'yesterday' "),
        ({"jitter": "much"}, "jitter: 'much' "),
        ({"schedule": {"evry": "1h"}}, "schedule: .* Did you mean every"),
    ],
)
def test_form_with_an_invalid_field_is_refused_with_its_name(
    app: Celery, change: dict[str, Any], words: str
) -> None:
    form = {**Entry("x", "t", 60, app=app).to_dict(), **change}
    with pytest.raises(EntryError, match=words):
        Entry.from_dict(form, app)


#: what may be written for a schedule, and what it stands for
WRITTEN: list[tuple[Any, Any]] = [
    ({"cron": "0 9 LW * *"}, cron("0 9 LW * *")),
    ({"cron": "@daily"}, crontab("0", "0")),
    ({"every": "2h", "relative": True}, schedule(7200, relative=True)),
    ("1h 30m", schedule(5400)),
    ({"at": "2026-06-01T12:00+00:00"}, clocked(NOON)),
    ({"rrule": "DTSTART:20260601T120000Z\nRRULE:FREQ=DAILY;COUNT=3"}, rrule("DAILY", dtstart=NOON, count=3)),
    ({"solar": "sunset", "lat": 52.5, "lon": 13.4}, solar("sunset", 52.5, 13.4)),
    ({"__type__": "crontab", "minute": 5}, crontab(5)),
    ({"__type__": "cron", "expression": "@daily"}, cron("@daily")),
]


WAYS = {
    "from_dict": lambda app, written: Entry.from_dict({"name": "x", "task": "t", "schedule": written}, app),
    "constructor": lambda app, written: Entry("x", "t", written, app=app),
    "file": lambda app, written: in_file(app, task="t", schedule=written),
}


def in_file(app: Celery, **fields: Any) -> Entry:
    return entry_of(read_file(json.dumps({"entries": {"x": fields}})), "x", app)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("written", "expected"), WRITTEN, ids=str)
def test_written_schedule_means_the_same_everywhere(
    app: Celery, way: str, written: Any, expected: Any
) -> None:
    found = WAYS[way](app, written).schedule
    assert (type(found), encode_schedule(found)) == (type(expected), encode_schedule(expected))


def test_dtstart_without_zone_uses_the_entry_timezone(app: Celery) -> None:
    given = {"rrule": "DTSTART:20260701T090000\nRRULE:FREQ=DAILY"}
    form = {"name": "x", "task": "t", "schedule": given, "timezone": "Europe/Berlin"}
    for entry in (Entry.from_dict(form, app), entry_x(app, schedule=given, timezone="Europe/Berlin")):
        assert [due.isoformat() for due in entry.next_runs(1, NOON)] == ["2026-07-01T09:00:00+02:00"]


def test_durations_may_be_text_in_forms_and_files(app: Celery) -> None:
    lengths = {
        "jitter": "30s", "expires_after": "1h30m", "misfire_grace_time": "0.5", "max_runtime": "5m",
        "queue_timeout": "1d", "resume_after": "2h",
    }  # fmt: skip
    fields = {"task": "t", "schedule": "1d", "pause_after_failures": 1, **lengths}
    for entry in (Entry.from_dict({"name": "x", **fields}, app), in_file(app, **fields)):
        assert (entry.jitter, entry.expires_after, entry.misfire_grace_time) == (30, 5400, 0.5)
        assert (entry.max_runtime, entry.queue_timeout, entry.resume_after) == (300, 86400, 7200)


def test_raw_fields_reads_what_a_broken_entry_still_has() -> None:
    def fields(definition: str | None, policy: str | None = None) -> dict[str, Any]:
        return raw_fields(Stored("k", definition=definition, policy=policy))

    found = fields('{"name": "n", "task": null, "other": 1}', '{"jitter": "x"}')
    assert found == {"name": "n", "jitter": "x"}
    assert fields("{", '{"jitter": 5}') == {"jitter": 5}
    assert fields("[" * 100_000) == fields("5") == fields(None) == raw_fields(None) == {}
