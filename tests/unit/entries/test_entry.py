"""What an entry is made of: constructor, forms, schedules in their written forms, and what is refused."""

from __future__ import annotations

import copy
import json
import pickle
import re
from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery, _state  # no other name
from celery.app import app_or_default
from celery.schedules import BaseSchedule, crontab, schedule, solar
from dateutil.rrule import FR
from hypothesis import given
from hypothesis import strategies as st

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.entries.raw import raw_fields
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


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("hourly", "schedule: cron 'hourly': it has 1 field instead of five"),
        ({"evry": 60}, "schedule: must have just one of {cron: ...}, {every: ...}, "),
        ([60], "schedule must be a schedule, a timedelta, a number of seconds, a cron expression, "),
        *((value, "") for value in (True, 1e300, float("nan"))),
    ],
)
def test_invalid_schedule_is_refused_and_the_old_one_stays(app: Celery, wrong: Any, words: str) -> None:
    made = entry_x(app)
    with pytest.raises(EntryError, match=f"^x: {re.escape(words)}") as caught:
        made.schedule = wrong
    assert caught.value.key == "x"
    assert made.schedule == schedule(60)
    with pytest.raises(EntryError) as at_first:
        entry_x(app, schedule=wrong)
    assert str(at_first.value) == str(caught.value)


def test_entry_without_schedule_is_refused_when_it_is_saved(app: Celery) -> None:
    made = entry_x(app, schedule=None)
    assert made.schedule is None
    made.schedule = 60
    made.schedule = None
    with pytest.raises(EntryError, match="redbeat:x: schedule must be"):
        made.plan_save(Stored("redbeat:x"), NOON)


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
        ({"name": ""}, "An entry must have a name, a non-empty string."),
        ({"task": None}, "redbeat:x: task must be the name of a task, not None."),
        ({"args": "abc"}, "redbeat:x: args must be a list or a tuple, not text."),
        ({"enabled": "maybe"}, "redbeat:x: enabled must be True or False, not 'maybe'."),
        ({"args": [object()]}, "redbeat:x: can't be stored as JSON: .*not JSON serializable"),
        ({"args": [{"__type__": "interval", "every": 0}]}, "redbeat:x: couldn't be read again: interval: "),
        ({"options": {"headers": [1]}}, "redbeat:x: options: headers must be a dict, not a list."),
        ({"schedule": BaseSchedule()}, "redbeat:x: can't be stored as JSON: .*register_schedule"),
        ({"schedule": schedule(0)}, "redbeat:x: its schedule .* can't be used: an interval must be longer"),
    ],
)
def test_invalid_entry_is_refused_with_the_field(app: Celery, change: dict[str, Any], message: str) -> None:
    with pytest.raises(EntryError, match=message):
        entry_x(app, **change).plan_save(Stored("redbeat:x"), NOON)


@pytest.mark.parametrize("meta", ["", None])
def test_missing_meta_means_no_last_run(meta: str | None) -> None:
    assert Entry.decode_meta(meta) == {"last_run_at": None}


@pytest.mark.parametrize(
    "rule", [3600, "0 9 LW * *", crontab(hour=[7, 13]), rrule("DAILY", dtstart=NOON, byhour=7)], ids=repr
)
@pytest.mark.parametrize(
    "duplicate",
    [copy.copy, copy.deepcopy, lambda made: pickle.loads(pickle.dumps(made))],
    ids=["copy", "deepcopy", "pickle"],
)
def test_copy_and_pickle_keep_all_fields(rule: Any, duplicate: Any) -> None:
    made = entry_x(pickled_app, args=[1], options={"headers": {"a": 1}}, enabled=False)
    made.schedule, made.total_run_count = rule, 5
    found = duplicate(made)
    assert type(found) is Entry
    assert found.app.main == "pickled"
    names = "name task schedule args kwargs options enabled total_run_count key last_run_at"
    for name in names.split():
        assert getattr(found, name) == getattr(made, name)
    found.schedule = 5
    assert (found.schedule, made.schedule) == (schedule(5), entry_x(pickled_app, schedule=rule).schedule)


def test_is_due_answers_like_a_celery_entry(app: Celery) -> None:
    tomorrow = datetime.now(timezone.utc) + timedelta(days=1)
    waiting = entry_x(app, last_run_at=tomorrow, total_run_count=1).is_due()
    assert not waiting.is_due
    assert waiting.next == pytest.approx(86_460, abs=60)
    assert entry_x(app, last_run_at=NOON - timedelta(days=4000)).is_due().is_due
    disabled = entry_x(app, last_run_at=NOON - timedelta(days=4000), enabled=False)
    assert tuple(disabled.is_due()) == (False, 5.0)


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
def test_from_dict_restores_what_to_dict_gives(
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


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"nmae": "y"}, "there is no field 'nmae'. Did you mean name"),
        ({"schedule": {"__type__": "moon"}}, "schedule: there is no schedule of the kind 'moon'"),
        ({"args": "abc"}, "args must be a list, not text"),
        ({"enabled": "yes"}, "enabled must be true or false, not 'yes'"),
        ({"last_run_at": "yesterday"}, "last_run_at: 'yesterday' is no time"),
        ({"jitter": "much"}, "jitter: 'much' is no length of time"),
        ({"schedule": {"evry": "1h"}}, r"schedule: must have just one of .* Did you mean every"),
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
def test_written_schedule_means_the_same_everywhere(
    app: Celery, way: str, written: Any, expected: Any
) -> None:
    found = WAYS[way](app, written).schedule
    assert (type(found), encode_schedule(found)) == (type(expected), encode_schedule(expected))


def test_dtstart_without_zone_uses_the_entry_timezone(app: Celery) -> None:
    given = {"rrule": "DTSTART:20260701T090000\nRRULE:FREQ=DAILY"}
    form = {"name": "x", "task": "t", "schedule": given, "timezone": "Europe/Berlin"}
    made = Entry.from_dict(form, app), Entry("x", "t", given, timezone=ZoneInfo("Europe/Berlin"), app=app)
    for entry in made:
        assert [due.isoformat() for due in entry.next_runs(1, NOON)] == ["2026-07-01T09:00:00+02:00"]


def test_durations_may_be_text_in_forms_and_files(app: Celery) -> None:
    lengths = {
        "jitter": "30s", "expires_after": "1h30m", "misfire_grace_time": "0.5", "max_runtime": "5m",
        "queue_timeout": "1d", "resume_after": "2h",
    }  # fmt: skip
    fields = {"task": "t", "schedule": "1d", "pause_after_failures": 1, **lengths}
    in_file = entry_of(read_file(json.dumps({"entries": {"x": fields}})), "x", app)
    for entry in (Entry.from_dict({"name": "x", **fields}, app), in_file):
        assert (entry.jitter, entry.expires_after, entry.misfire_grace_time) == (30, 5400, 0.5)
        assert (entry.max_runtime, entry.queue_timeout, entry.resume_after) == (300, 86400, 7200)


def test_stored_cron_nickname_is_read(app: Celery) -> None:
    given = {"__type__": "cron", "expression": "@daily"}
    assert Entry.from_dict({"name": "x", "task": "t", "schedule": given}, app).schedule == cron("@daily")


def test_raw_fields_reads_what_a_broken_entry_still_has() -> None:
    def fields(definition: str | None, policy: str | None = None) -> dict[str, Any]:
        return raw_fields(Stored("k", definition=definition, policy=policy))

    assert fields('{"name": "n", "task": null, "other": 1}', '{"jitter": "x"}') == {
        "name": "n",
        "jitter": "x",
    }
    assert fields("{", '{"jitter": 5}') == {"jitter": 5}
    assert fields("[" * 100_000) == fields("5") == fields(None) == raw_fields(None) == {}
