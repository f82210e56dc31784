"""What ``@scheduled`` refuses, and that it does so at import, with the file and the line."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery, Task, shared_task
from celery.schedules import crontab, schedule, solar

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat import scheduled
from redbeat.declared import declared_entries
from redbeat.errors import ConfigurationError, DeclarationError, EntryError
from redbeat.policy.policy import FIELDS


def nothing() -> None: ...


def numbered(number: int) -> None: ...


def two(a: int, b: int) -> None: ...


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "needs just one of cron=, every=, at=, rrule=, schedule="),
    ({"every": 5, "cron": "* * * * *"}, "not cron and every"),
    ({"every": 5, "jiter": 3}, "there is no keyword 'jiter'. Did you mean jitter?"),
    ({"evry": 5}, "Did you mean every?"),
    ({"every": 5, "queue": "low"}, "queue: is one of the options, options={'queue': ...}."),
    ({"every": 0}, "every must be more than 0 seconds"),
    ({"every": True}, "every must be a number of seconds"),
    ({"every": "soon"}, "'soon' is no length of time"),
    ({"cron": "* *"}, "it has 2 fields instead of five"),
    ({"cron": 5}, "cron: must be text"),
    ({"cron": "0 0 * * *", "relative": True}, "relative: goes with every="),
    ({"at": "soon"}, "'soon' is no time"),
    ({"at": 5}, "at: must be a time"),
    ({"rrule": "FREQ=SOMETIMES"}, "rrule"),
    ({"schedule": object()}, "schedule must be a schedule"),
    ({"every": 5, "timezone": "Europe/Berln"}, "timezone"),
    ({"every": 5, "overlap": "sikp"}, "overlap: must be one of 'allow', 'skip'"),
    ({"every": 5, "jitter": "60s"}, "jitter: must be a number of seconds"),
    ({"every": 5, "revoke_overdue": True}, "revoke_overdue: needs max_runtime"),
    ({"every": 5, "args": "abc"}, "args must be a list or a tuple"),
    ({"every": 5, "args": (object(),)}, "can't be stored as JSON"),
    ({"every": 5, "kwargs": [1]}, "kwargs and options must be dicts"),
    ({"every": 5, "options": {"priority": 300}}, "options: priority must be from 0 to 255"),
    ({"every": 5, "enabled": "maybe"}, "enabled must be True or False"),
    ({"every": 5, "name": ""}, "must have a name"),
    ({"every": 5, "name": ":lock"}, "that key is RedBeat's own"),
    ({"every": 5, "name": True}, "must have a name"),
    ({"every": 5, "last_run_at": None, "task": "x"}, "there is no keyword 'task'"),
]


@pytest.mark.parametrize(("keywords", "reason"), REFUSED, ids=[reason for _, reason in REFUSED])
def test_what_no_entry_can_be_made_of_is_an_error_at_import_with_file_and_line(
    keywords: dict[str, Any], reason: str
) -> None:
    line = inspect.currentframe().f_lineno + 2  # type: ignore[union-attr]
    with pytest.raises(DeclarationError, match="@scheduled: ") as caught:
        scheduled(**keywords)
    assert str(caught.value).startswith(f"{__file__}:{line}: @scheduled: ")
    assert reason in str(caught.value)
    assert "unnamed" not in str(caught.value)
    assert caught.value.places == (f"{__file__}:{line}",)
    assert isinstance(caught.value, EntryError)
    assert isinstance(caught.value, ConfigurationError)


def test_an_error_names_the_line_on_which_the_decorator_of_several_lines_begins(tmp_path: Path) -> None:
    file = tmp_path / "tasks.py"
    file.write_text(
        "from redbeat import scheduled\n\n\n@scheduled(\n    every=5,\n    jitter=-1,\n)\ndef f(): ...\n"
    )
    with pytest.raises(DeclarationError) as caught:
        exec(compile(file.read_text(), str(file), "exec"), {})
    assert str(caught.value).startswith(f"{file}:4: ")


def test_without_parentheses_it_says_how_it_is_used() -> None:
    with pytest.raises(DeclarationError, match="takes keywords only, such as every=60"):
        scheduled(nothing)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    "target",
    [5, "task", None, object, int, Celery("x", set_as_current=False).signature("x"), "x".join, Celery.mro],
    ids=["number", "text", "nothing", "class", "int", "signature", "builtin", "method"],
)
def test_what_is_no_task_is_refused(target: Any) -> None:
    with pytest.raises(DeclarationError, match=r"must stand over or under @app\.task"):
        scheduled(every=5)(target)


def test_arguments_that_a_function_does_not_take_are_an_error_at_import() -> None:
    for args, kwargs in [((), {}), ((1, 2, 3, 4), {}), ((1, 2), {"c": 3}), ((), {"a": 1})]:
        with pytest.raises(DeclarationError, match=r"two can't be called with its args and kwargs"):

            @scheduled(every=5, args=args, kwargs=kwargs)
            def two(a: int, b: int) -> None: ...

    @scheduled(every=5, args=(1,))  # it may get the task as its first argument: beat knows that later
    def one_too_few(a: int, b: int) -> None: ...

    @scheduled(every=5, args=(1, 2))
    def bound(self: Any, a: int, b: int) -> None: ...

    @scheduled(every=5, args=(1,), kwargs={"b": 2})
    def by_name(a: int, *, b: int) -> None: ...


def test_arguments_of_a_task_are_compared_without_the_one_it_is_given_itself(app: Celery) -> None:
    @app.task(bind=True)
    def bound(self: Any, a: int) -> None: ...

    @app.task
    def plain(a: int) -> None: ...

    for task in (bound, plain):
        scheduled(every=5, args=(1,), name="right")(task)
        with pytest.raises(DeclarationError, match="can't be called with"):
            scheduled(every=5, args=(1, 2), name="wrong")(task)
        assert app.tasks  # it is finalized
        scheduled(every=5, args=(1,), name="also right")(task)
        with pytest.raises(DeclarationError, match="can't be called with"):
            scheduled(every=5, name="also wrong")(task)


def test_two_schedules_of_one_task_need_names_and_the_error_names_both_places(app: Celery) -> None:
    def under(a: int = 1) -> None: ...

    lazy = app.task(name="lazy")(nothing)
    evaluated = app.task(name="evaluated", lazy=False)(nothing)
    shared = shared_task(name="shared")(nothing)

    class Own(Task):
        name = "own"

    for task in (under, lazy, evaluated, shared, Own):
        scheduled(every=5)(task)
        first = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
        scheduled(every=6, name="six")(task)
        with pytest.raises(DeclarationError, match="a schedule without a name= already") as caught:
            scheduled(every=7)(task)
        assert caught.value.places == (f"{__file__}:{first + 4}", f"{__file__}:{first}")
        assert all(place in str(caught.value) for place in caught.value.places)
        with pytest.raises(DeclarationError, match="a schedule called 'six' already"):
            scheduled(every=8, name="six")(task)


def test_a_loop_that_gives_one_task_the_same_name_each_time_is_an_error(app: Celery) -> None:
    task = app.task(name="loop")(numbered)

    def schedule_each() -> None:
        for number in (1, 2):
            scheduled(every=60, args=(number,))(task)

    with pytest.raises(DeclarationError, match="already, at"):
        schedule_each()


FORMS: list[tuple[dict[str, Any], Any]] = [
    ({"cron": "30 7 * * mon-fri"}, crontab("30", "7", "mon-fri")),
    ({"every": 60}, schedule(60)),
    ({"every": "1h30m"}, schedule(5400)),
    ({"every": timedelta(minutes=5), "relative": True}, schedule(300, relative=True)),
    ({"schedule": crontab(minute="5")}, crontab(minute="5")),
    ({"schedule": solar("sunset", 52.5, 13.4)}, solar("sunset", 52.5, 13.4)),
    ({"schedule": {"every": "5m"}}, schedule(300)),
    ({"schedule": "0 9 * * *"}, crontab("0", "9")),
]


@pytest.mark.parametrize(("keywords", "expected"), FORMS, ids=[str(one) for one, _ in FORMS])
def test_each_form_becomes_the_schedule_that_it_says(
    app: Celery, keywords: dict[str, Any], expected: Any
) -> None:
    scheduled(**keywords)(app.task(name="proj.report")(nothing))
    (entry,) = entries_of(app)
    assert (entry.name, entry.task) == ("proj.report", "proj.report")
    assert entry.schedule == expected
    assert getattr(entry.schedule, "relative", None) == getattr(expected, "relative", None)
    assert entry.schedule.app is app


def test_times_are_those_of_the_entrys_zone_or_of_the_applications(app: Celery) -> None:
    app.conf.timezone = "Europe/Berlin"
    once = app.task(name="once")(nothing)
    scheduled(at="2030-12-24T18:00")(once)
    scheduled(at="2030-12-24T18:00", timezone="Asia/Tokyo", name="tokyo")(once)
    scheduled(at=datetime(2030, 12, 24, 18, tzinfo=timezone.utc), name="utc")(once)
    rule = "DTSTART:20300101T090000 RRULE:FREQ=DAILY;COUNT=2"
    scheduled(rrule=rule, timezone="Asia/Tokyo", name="rule")(once)
    found = {entry.name: entry for entry in entries_of(app)}
    assert found["once"].next_runs(1)[0] == datetime(2030, 12, 24, 18, tzinfo=ZoneInfo("Europe/Berlin"))
    assert found["tokyo"].next_runs(1)[0] == datetime(2030, 12, 24, 18, tzinfo=ZoneInfo("Asia/Tokyo"))
    assert found["utc"].next_runs(1)[0] == datetime(2030, 12, 24, 18, tzinfo=timezone.utc)
    assert found["rule"].next_runs(1)[0] == datetime(2030, 1, 1, 9, tzinfo=ZoneInfo("Asia/Tokyo"))


#: a value for each field of a policy that differs from its default
POLICY: dict[str, Any] = {
    "timezone": "Europe/Berlin",
    "start_time": datetime(2030, 1, 1, tzinfo=timezone.utc),
    "end_time": datetime(2031, 1, 1, tzinfo=timezone.utc),
    "max_runs": 7,
    "one_off": True,
    "after_finish": "disable",
    "jitter": 60,
    "expires_after": 600,
    "misfire": "all",
    "misfire_limit": 9,
    "misfire_grace_time": 120,
    "run_missed": True,
    "paused": True,
    "pause_note": "not yet",
    "paused_by": "ada",
    "paused_until": datetime(2030, 2, 1, tzinfo=timezone.utc),
    "exclude": "holidays",
    "overlap": "skip",
    "max_runtime": 300,
    "revoke_overdue": True,
    "queue_timeout": 900,
    "pause_after_failures": 3,
    "resume_after": 3600,
    "tracks": "workflow",
    "ping_url": "https://hc-ping.com/abc-123",
    "metrics": True,
}


def test_each_field_of_a_policy_and_of_an_entry_is_a_keyword(app: Celery) -> None:
    assert set(POLICY) == set(FIELDS)
    scheduled(
        every=60, name="all", args=[1], kwargs={"b": 2}, options={"queue": "q"}, enabled=False, **POLICY
    )(app.task(name="full")(two))
    (entry,) = entries_of(app)
    assert {field: getattr(entry, field) for field in FIELDS} == POLICY
    assert (entry.args, entry.kwargs, entry.options, entry.enabled) == ([1], {"b": 2}, {"queue": "q"}, False)


def test_none_is_as_if_it_was_not_given(app: Celery) -> None:
    absent: dict[str, Any] = dict.fromkeys(["cron", "args", "options", "enabled", "name", "jitter"])
    scheduled(every=60, **absent)(app.task(name="t")(nothing))
    assert declared_entries(app) == {"t": {"task": "t", "schedule": {"every": 60}}}


def test_a_schedule_that_was_given_stays_the_users_own(app: Celery) -> None:
    mine = crontab(minute="5")
    scheduled(schedule=mine)(app.task(name="t")(nothing))
    entries_of(app)
    assert mine._app is None  # noqa: SLF001 - it would know an application it isn't for


def entries_of(app: Celery) -> list[Entry]:
    make: Callable[..., Entry] = Entry
    return [make(name=name, app=app, **fields) for name, fields in declared_entries(app).items()]
