"""`@scheduled`: what it takes, what it refuses, and which task and app a schedule belongs to."""

from __future__ import annotations

import gc
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import ModuleType
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import (
    Celery,
    Task,
    _state,  # no other name
    shared_task,
)
from celery.schedules import crontab, schedule

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat import scheduled
from redbeat.declared import declared_entries
from redbeat.declared.collection import collect_declared
from redbeat.declared.decorator import note_owner
from redbeat.errors import DeclarationError


def nothing() -> None: ...


def two(a: int, b: int) -> None: ...


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "needs just one of cron=, every=, at=, rrule=, schedule="),
    ({"every": 5, "cron": "* * * * *"}, "not cron and every"),
    ({"every": 5, "jiter": 3}, "there is no keyword 'jiter'. Did you mean jitter?"),
    ({"every": 5, "queue": "low"}, "queue: is one of the options, options={'queue': ...}."),
    ({"cron": "0 0 * * *", "relative": True}, "relative: goes with every="),
    ({"every": 5, "overlap": "sikp"}, "overlap: must be one of 'allow', 'skip'"),
    ({"every": 5, "args": (object(),)}, "can't be stored as JSON"),
    ({"every": 5, "name": ":lock"}, "that key is RedBeat's own"),
    ({"every": 5, "last_run_at": None, "task": "x"}, "there is no keyword 'task'"),
]


@pytest.mark.parametrize(("keywords", "reason"), REFUSED, ids=[reason for _, reason in REFUSED])
def test_invalid_keywords_are_refused_at_import_with_file_and_line(
    keywords: dict[str, Any], reason: str
) -> None:
    line = inspect.currentframe().f_lineno + 2  # type: ignore[union-attr]
    with pytest.raises(DeclarationError, match="@scheduled: ") as caught:
        scheduled(**keywords)
    assert str(caught.value).startswith(f"{__file__}:{line}: @scheduled: ")
    assert reason in str(caught.value)
    assert caught.value.places == (f"{__file__}:{line}",)


@pytest.mark.parametrize(
    "target",
    [5, object, Celery("x", set_as_current=False).signature("x"), "x".join],
    ids=["number", "class", "signature", "builtin"],
)
def test_target_that_is_not_a_task_is_refused(target: Any) -> None:
    with pytest.raises(DeclarationError, match=r"must stand over or under @app\.task"):
        scheduled(every=5)(target)


def test_arguments_that_the_function_does_not_take_are_refused_at_import() -> None:
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


def test_second_schedule_of_a_task_without_a_name_is_refused_with_both_places(app: Celery) -> None:
    def under(a: int = 1) -> None: ...

    lazy = app.task(name="lazy")(nothing)
    shared = shared_task(name="shared")(nothing)

    class Own(Task):
        name = "own"

    for task in (under, lazy, shared, Own):
        scheduled(every=5)(task)
        first = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
        scheduled(every=6, name="six")(task)
        with pytest.raises(DeclarationError, match="a schedule without a name= already") as caught:
            scheduled(every=7)(task)
        assert caught.value.places == (f"{__file__}:{first + 4}", f"{__file__}:{first}")
        assert all(place in str(caught.value) for place in caught.value.places)
        with pytest.raises(DeclarationError, match="a schedule called 'six' already"):
            scheduled(every=8, name="six")(task)


FORMS: list[tuple[dict[str, Any], Any]] = [
    ({"cron": "30 7 * * mon-fri"}, crontab("30", "7", "mon-fri")),
    ({"every": "1h30m"}, schedule(5400)),
    ({"every": timedelta(minutes=5), "relative": True}, schedule(300, relative=True)),
]


@pytest.mark.parametrize(("keywords", "expected"), FORMS, ids=[str(one) for one, _ in FORMS])
def test_written_schedule_becomes_an_entry(app: Celery, keywords: dict[str, Any], expected: Any) -> None:
    scheduled(**keywords)(app.task(name="proj.report")(nothing))
    (entry,) = entries_of(app)
    assert (entry.name, entry.task) == ("proj.report", "proj.report")
    assert entry.schedule == expected
    assert getattr(entry.schedule, "relative", None) == getattr(expected, "relative", None)
    assert entry.schedule.app is app


def test_times_are_in_the_zone_of_the_entry_or_the_app(app: Celery) -> None:
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


def entries_of(app: Celery) -> list[Entry]:
    make: Callable[..., Entry] = Entry
    return [make(name=name, app=app, **fields) for name, fields in declared_entries(app).items()]


Import = Callable[[str], ModuleType]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Import]:
    """Write a module and import it; a name of its own for each test."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    finalizers = set(_state._on_app_finalizers)  # noqa: SLF001
    _state.connect_on_app_finalize(note_owner)  # all but Celery's own are taken away for tests

    def write_module(text: str, name: str = f"module_{tmp_path.name}") -> ModuleType:
        (tmp_path / f"{name}.py").write_text(HEAD + text)
        importlib.invalidate_caches()
        return importlib.import_module(name)

    yield write_module
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
    _state._on_app_finalizers.intersection_update(finalizers)  # noqa: SLF001
    gc.collect()  # what they have declared goes with them


HEAD = """
#
import functools
from celery import Celery, Task, shared_task
from redbeat import scheduled

def made(name, **options):
    return Celery(name, set_as_current=False, broker="memory://", **options)
"""


def schedules_of(app: Celery) -> dict[str, Any]:
    return {name: fields["schedule"]["every"] for name, fields in declared_entries(app).items()}


def strays_in(module: ModuleType, app: Celery) -> dict[str, str]:
    """Those of the module: its places to what is wrong. Other tests have left functions of theirs."""
    found = collect_declared(app).strays
    return {one.place: why for one, why in found.items() if one.code.co_filename == module.__file__}


WAYS = {
    "under an evaluated task": "@app.task(name='t', lazy=False)\n@scheduled(every=5)\ndef f(): ...",
    "over a bound task": "@scheduled(every=5)\n@app.task(name='t', bind=True)\ndef f(self): ...",
    "under a task with autoretry": (
        "@app.task(name='t', autoretry_for=(OSError,), retry_backoff=True)\n@scheduled(every=5)\ndef f(): ..."
    ),
    "under a decorator": (
        "def wrapped(g):\n"
        "    @functools.wraps(g)\n"
        "    def inner(*args): return g(*args)\n"
        "    return inner\n"
        "@app.task(name='t')\n@wrapped\n@wrapped\n@scheduled(every=5)\ndef f(): ..."
    ),
    "over a class": "@scheduled(every=5)\nclass F(Task):\n    name = 't'\napp.register_task(F())",
    "over a class's run": (
        "class F(Task):\n    name = 't'\n    @scheduled(every=5)\n    def run(self): ...\n"
        "app.register_task(F)"
    ),
    "called afterwards": "@app.task(name='t')\ndef f(): ...\nscheduled(every=5)(f)",
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_schedule_over_or_under_a_task_is_collected_without_finalizing_the_app(
    write: Import, way: str
) -> None:
    module = write(f"app = made('main')\n{WAYS[way]}\n")
    if "register_task" not in WAYS[way]:  # Celery itself finalizes the application then
        assert not module.app.finalized
    assert schedules_of(module.app) == {"t": 5}
    assert not strays_in(module, module.app)


def test_inherited_schedule_is_not_collected(app: Celery) -> None:
    class Base(Task):
        abstract = True

        @scheduled(every=5)
        def run(self) -> None: ...

    class Heir(Base):
        name = "heir"

    app.register_task(Heir())
    assert declared_entries(app) == {}


def test_name_of_two_tasks_is_refused_with_both_places(write: Import) -> None:
    first = "app = made('main')\n@app.task\n@scheduled(every=1, name='x')\ndef f(): ...\n"
    module = write(f"{first}@scheduled(every=1, name='x')\n@shared_task\ndef g(): ...")
    with pytest.raises(DeclarationError, match="another schedule is called 'x', too") as caught:
        declared_entries(module.app)
    assert {place.rpartition(":")[2] for place in caught.value.places} == {"11", "13"}


def test_schedule_belongs_to_the_app_of_its_task(write: Import) -> None:
    module = write(
        "a, b = made('a'), made('b')\n"
        "@a.task(name='under')\n@scheduled(every=1)\ndef f(): ...\n"
        "@scheduled(every=2)\n@a.task(name='over')\ndef g(): ...\n"
        "@b.task(name='theirs')\n@scheduled(every=3)\ndef h(): ...\n"
        "@b.task(name='early', lazy=False)\n@scheduled(every=4)\ndef i(): ...\n"
        "def make():\n    @a.task(name='nested')\n    @scheduled(every=5)\n    def j(): ...\n    return j\n"
        "j = make()\n"
        "@shared_task(name='shared')\n@scheduled(every=6)\ndef k(): ...\n"
        "@scheduled(every=7)\n@shared_task(name='shared too')\ndef m(): ...\n"
    )
    both = {"shared": 6, "shared too": 7}
    assert schedules_of(module.b) == {"theirs": 3, "early": 4, **both}
    assert "under" in module.b.tasks  # Celery gives it to both
    assert not strays_in(module, module.b)
    assert not module.a.finalized
    assert schedules_of(module.a) == {"under": 1, "over": 2, "nested": 5, **both}
    assert schedules_of(Celery("third", set_as_current=False)) == both


@pytest.mark.parametrize(
    "task",
    [
        "@scheduled(every=1)\n@shared_task\ndef f(): ...",
        "@scheduled(every=1, name='x')\n@app.task(name='t')\ndef f(): ...",
        "@scheduled(every=1)\nclass F(Task):\n    name = 't'\napp.register_task(F())",
    ],
)
@pytest.mark.filterwarnings("ignore:Task name")  # Celery keeps the first, and says so
@pytest.mark.parametrize("is_finalized", [True, False], ids=["finalized", "lazy"])
def test_reloaded_module_replaces_its_schedule(
    write: Import, tmp_path: Path, task: str, is_finalized: bool
) -> None:
    base = write("app = made('main')\n", "base_module")
    module = write(f"from base_module import app\n{task}\n", "again")
    if is_finalized:
        base.app.finalize()
    edited = (tmp_path / "again.py").read_text().replace("every=1", "every=20")
    (tmp_path / "again.py").write_text(f"# a line more\n{edited}")
    importlib.reload(module)
    found = schedules_of(base.app)
    assert list(found.values()) == [20]
    assert not strays_in(module, base.app)


def test_schedule_of_no_task_is_reported_with_its_place(write: Import) -> None:
    module = write(
        "app = made('main')\n"
        "@scheduled(every=1)\ndef never(): ...\n"
        "def hides(g):\n    def inner(): return g()\n    inner.__name__ = g.__name__\n    return inner\n"
        "def make():\n"
        "    @app.task(name='hidden')\n    @hides\n    @scheduled(every=2)\n    def f(): ...\n    return f\n"
        "kept = make()\n"
        "@scheduled(every=3)\nclass Unregistered(Task):\n    name = 'u'\n"
    )
    strays = strays_in(module, module.app)
    assert [place.rpartition(":")[2] for place in strays] == ["10", "19", "23"]
    assert ".never is no task" in strays[f"{module.__file__}:10"]
    assert "must use functools.wraps" in strays[f"{module.__file__}:19"]
    assert "call app.register_task for it" in strays[f"{module.__file__}:23"]


def test_arguments_that_the_task_does_not_take_are_refused_when_collected(write: Import) -> None:
    module = write(
        "app = made('main')\n@app.task(name='t')\n@scheduled(every=1, args=(1,))\ndef f(a, b): ..."
    )
    with pytest.raises(DeclarationError, match="t can't be called with its args and kwargs") as caught:
        declared_entries(module.app)
    assert caught.value.places == (f"{module.__file__}:11",)
