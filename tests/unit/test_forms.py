"""Entries as plain JSON and back: nothing is lost, and what is wrong is named."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery
from celery.schedules import crontab, schedule
from dateutil.rrule import FR
from hypothesis import given
from hypothesis import strategies as st

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.errors import EntryError
from redbeat.forms import FORM_FIELDS
from redbeat.policy import FIELDS
from redbeat.schedules import clocked, cron, rrule
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
        "timezone": st.sampled_from(["Europe/Berlin", "UTC"]),
        "start_time": st.just(NOON),
        "max_runs": st.integers(1, 9),
        "one_off": st.booleans(),
        "after_finish": st.sampled_from(["keep", "delete"]),
        "jitter": st.floats(0, 60),
        "misfire": st.sampled_from(["all", "skip"]),
        "pause_note": st.text(max_size=5),
        "exclude": st.just("holidays"),
    },
)


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
        ({"nmae": "y"}, "there is no field 'nmae'. Did you mean name"),
        ({"task": None}, "task is missing"),
        ({"schedule": None}, "schedule is missing"),
        ({"schedule": {"__type__": "moon"}}, "schedule: there is no kind 'moon'"),
        ({"schedule": {"__type__": "interval"}}, "interval: 'every' is missing"),
        ({"schedule": "* *"}, "2 fields instead of five"),
        ({"args": "abc"}, "args must be a list, not 'abc'"),
        ({"kwargs": [1]}, "kwargs must be an object"),
        ({"options": 5}, "options must be an object"),
        ({"enabled": "yes"}, "enabled must be true or false, not 'yes'"),
        ({"name": 5}, "name must be a string"),
        ({"last_run_at": "yesterday"}, "last_run_at: 'yesterday' is no time"),
        ({"total_run_count": "x"}, "total_run_count must be a whole number"),
        ({"jitter": "much"}, "jitter: must be a number of seconds"),
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
