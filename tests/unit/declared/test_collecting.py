"""Which schedules of the code are an application's: found on its tasks, wherever ``@scheduled`` stands."""

from __future__ import annotations

import copy
import gc
import importlib
import pickle
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from celery import Celery, Task, _state  # no other name
from pydantic import BaseModel

from redbeat import scheduled
from redbeat.declared import declared_entries
from redbeat.declared.collection import collect_declared
from redbeat.declared.targets import note_owner
from redbeat.errors import DeclarationError

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
    return {str(one.place): why for one, why in found.items() if one.place.file == module.__file__}


def lines_of(error: DeclarationError) -> set[str]:
    return {place.rpartition(":")[2] for place in error.places}


WAYS = {
    "under app.task": "@app.task(name='t')\n@scheduled(every=5)\ndef f(): ...",
    "over app.task": "@scheduled(every=5)\n@app.task(name='t')\ndef f(): ...",
    "under shared_task": "@shared_task(name='t')\n@scheduled(every=5)\ndef f(): ...",
    "over shared_task": "@scheduled(every=5)\n@shared_task(name='t')\ndef f(): ...",
    "over an evaluated task": "@scheduled(every=5)\n@app.task(name='t', lazy=False)\ndef f(): ...",
    "under an evaluated task": "@app.task(name='t', lazy=False)\n@scheduled(every=5)\ndef f(): ...",
    "under a task of its own": "@app.task(name='t', shared=False)\n@scheduled(every=5)\ndef f(): ...",
    "under a bound task": "@app.task(name='t', bind=True)\n@scheduled(every=5)\ndef f(self): ...",
    "over a bound task": "@scheduled(every=5)\n@app.task(name='t', bind=True)\ndef f(self): ...",
    "under a task with autoretry": (
        "@app.task(name='t', autoretry_for=(OSError,), retry_backoff=True)\n@scheduled(every=5)\ndef f(): ..."
    ),
    "over a task with autoretry": (
        "@scheduled(every=5)\n@app.task(name='t', autoretry_for=(OSError,))\ndef f(): ..."
    ),
    "under a decorator": (
        "def wrapped(g):\n"
        "    @functools.wraps(g)\n"
        "    def inner(*args): return g(*args)\n"
        "    return inner\n"
        "@app.task(name='t')\n@wrapped\n@wrapped\n@scheduled(every=5)\ndef f(): ..."
    ),
    "over a class": "@scheduled(every=5)\nclass F(Task):\n    name = 't'\napp.register_task(F())",
    "over the task of a class": "class F(Task):\n    name = 't'\nscheduled(every=5)(app.register_task(F()))",
    "over a class's run": (
        "class F(Task):\n    name = 't'\n    @scheduled(every=5)\n    def run(self): ...\n"
        "app.register_task(F)"
    ),
    "in a function": (
        "def make():\n    @app.task(name='t')\n    @scheduled(every=5)\n    def f(): ...\n    return f\n"
        "kept = make()"
    ),
    "under a decorator that hides it": (
        "def hides(g):\n    def inner(): return g()\n    inner.__name__ = g.__name__\n    return inner\n"
        "@app.task(name='t')\n@hides\n@scheduled(every=5)\ndef f(): ..."
    ),
    "called afterwards": "@app.task(name='t')\ndef f(): ...\nscheduled(every=5)(f)",
    "with a filter": (
        "@app.task(name='t', filter=lambda task: task)\n@scheduled(every=5)\ndef f(): ..."
    ),
    "a class as base": (
        "class Base(Task):\n    abstract = True\n"
        "@scheduled(every=5)\n@app.task(name='t', base=Base)\ndef f(): ..."
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_a_schedule_is_found_wherever_it_stands_and_evaluates_no_application(write: Import, way: str) -> None:
    module = write(f"app = made('main')\n{WAYS[way]}\n")
    if "register_task" not in WAYS[way]:  # Celery itself finalizes the application then
        assert not module.app.finalized
    assert schedules_of(module.app) == {"t": 5}
    assert not strays_in(module, module.app)


@pytest.mark.parametrize("where", ["under", "over"])
def test_a_task_with_pydantic_models_keeps_its_schedule(where: str, app: Celery) -> None:
    class Model(BaseModel):
        number: int

    def models(model: Model) -> None: ...

    given = scheduled(every=5, args=({"number": 3},))
    if "pydantic" not in Celery._task_from_fun.__code__.co_varnames:  # noqa: SLF001
        pytest.skip("this Celery has no tasks with models")
    if where == "under":
        app.task(name="t", pydantic=True)(given(models))
    else:
        given(app.task(name="t", pydantic=True)(models))
    assert schedules_of(app) == {"t": 5}


def test_several_stand_on_one_task_over_and_under(write: Import) -> None:
    module = write(
        "app = made('main')\n"
        "@scheduled(every=1, name='one')\n@scheduled(every=2, name='two')\n@app.task(name='t')\n"
        "@scheduled(every=3, name='three')\n@scheduled(every=4)\ndef f(): ..."
    )
    assert schedules_of(module.app) == {"one": 1, "two": 2, "three": 3, "t": 4}


def test_the_default_name_is_that_of_the_task(write: Import) -> None:
    module = write("app = made('main')\n@app.task\n@scheduled(every=5)\ndef f(): ...", "proj_tasks")
    assert schedules_of(module.app) == {"proj_tasks.f": 5}


def test_a_schedule_without_a_name_over_and_another_under_is_an_error_with_both_places(
    write: Import,
) -> None:
    module = write(
        "app = made('main')\n@scheduled(every=1)\n@app.task(name='t')\n@scheduled(every=2)\ndef f(): ..."
    )
    with pytest.raises(DeclarationError, match="another schedule is called 't'") as caught:
        declared_entries(module.app)
    assert lines_of(caught.value) == {"10", "12"}
    assert all(place in str(caught.value) for place in caught.value.places)


SAME = (
    "@app.task\n@scheduled(every=1, name='x')\ndef f(): ...\n"
    "@scheduled(every=1, name='x')\n@shared_task\ndef g(): ..."
)


def test_the_same_name_on_two_tasks_is_an_error_at_import_that_names_both_places(
    write: Import, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_state, "_apps", weakref.WeakSet())  # as in a process that has made none yet
    with pytest.raises(DeclarationError, match="there is a schedule called 'x' already") as caught:
        write(f"app = made('main')\n{SAME}")
    assert lines_of(caught.value) == {"11", "13"}
    assert all(place in str(caught.value) for place in caught.value.places)


def test_with_several_applications_it_is_an_error_when_they_are_collected(write: Import) -> None:
    module = write(f"app, other = made('main'), made('other')\n{SAME}")
    with pytest.raises(DeclarationError, match="another schedule is called 'x', too") as caught:
        declared_entries(module.app)
    assert lines_of(caught.value) == {"11", "13"}
    assert all(place in str(caught.value) for place in caught.value.places)


def test_several_applications_may_have_the_same_name(write: Import) -> None:
    module = write(
        "a, b = made('a'), made('b')\n"
        "@a.task\n@scheduled(every=1, name='x')\ndef f(): ...\n"
        "@scheduled(every=2, name='x')\n@b.task\ndef g(): ..."
    )
    assert (schedules_of(module.a), schedules_of(module.b)) == ({"x": 1}, {"x": 2})


def test_a_name_that_beat_schedule_has_too_is_an_error_that_names_both(write: Import) -> None:
    module = write("app = made('main')\n@app.task\n@scheduled(every=1, name='x')\ndef f(): ...")
    module.app.conf.beat_schedule = {"x": {"task": "y", "schedule": 5}}
    with pytest.raises(DeclarationError, match="the setting beat_schedule has an entry 'x', too") as caught:
        declared_entries(module.app)
    assert caught.value.places == (f"{module.__file__}:11", "beat_schedule")


def test_one_schedule_with_a_name_on_two_tasks_of_one_function_is_an_error(app: Celery) -> None:
    @scheduled(every=5, name="x")
    def f() -> None: ...

    kept = [app.task(name=name)(f) for name in ("a", "b")]
    with pytest.raises(DeclarationError, match="stands for two tasks, a and b"):
        declared_entries(app)
    assert len(kept) == 2


def test_without_a_name_each_task_of_one_function_has_it(app: Celery) -> None:
    @scheduled(every=5)
    def f() -> None: ...

    app.task(name="a")(f)
    over = scheduled(every=6, name="over")(app.task(name="b")(f))
    assert schedules_of(app) == {"a": 5, "b": 5, "over": 6}
    assert declared_entries(app)["over"]["task"] == over.name == "b"


def test_what_a_class_inherits_is_not_its_own(app: Celery) -> None:
    class Base(Task):
        abstract = True

        @scheduled(every=5)
        def run(self) -> None: ...

    class Heir(Base):
        name = "heir"

    app.register_task(Heir())
    assert declared_entries(app) == {}


# -- several applications in one process


def test_a_schedule_belongs_to_the_application_whose_decorator_made_the_task(write: Import) -> None:
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
    assert schedules_of(module.b) == {"theirs": 3, "early": 4, **both}
    third = Celery("third", set_as_current=False)
    assert schedules_of(third) == both


def test_the_current_application_is_found_behind_its_proxy(write: Import) -> None:
    module = write("app = made('main')\n@app.task(name='t')\n@scheduled(every=1)\ndef f(): ...")
    before = _state._tls.current_app  # noqa: SLF001
    module.app.set_current()
    try:
        assert schedules_of(_state.current_app) == {"t": 1}
    finally:
        _state._set_current_app(before)  # noqa: SLF001


def test_a_task_that_was_used_before_its_application_is_finalized_keeps_its_owner(write: Import) -> None:
    module = write(
        "a, b = made('a'), made('b')\n"
        "def make():\n    @a.task(name='nested')\n    @scheduled(every=5)\n    def j(): ...\n    return j\n"
        "j = make()\n"
        "@a.task(name='plain')\n@scheduled(every=6)\ndef k(): ...\n"
        "assert j.name and k.name, 'that evaluates them'\n"
    )
    assert not module.a.finalized
    assert schedules_of(module.b) == {}
    module.a.finalize()
    assert schedules_of(module.b) == {}
    assert schedules_of(module.a) == {"nested": 5, "plain": 6}


def test_a_task_of_an_application_that_is_gone_is_not_anothers(write: Import) -> None:
    module = write(
        "a, b = made('a'), made('b')\n"
        "def make():\n    @a.task(name='nested')\n    @scheduled(every=5)\n    def j(): ...\n    return j\n"
        "make()\n"
        "@scheduled(every=6)\n@a.task(name='over', lazy=False)\ndef k(): ...\n"
        "a.finalize()\na.close()\ndel a\n"
    )
    gc.collect()
    assert schedules_of(module.b) == {}
    assert not strays_in(module, module.b)


@pytest.mark.parametrize("lazy", [True, False])
@pytest.mark.parametrize("option", ["typing=False", "base=Untyped"])
def test_a_task_without_typing_may_be_given_arguments_by_its_class(
    write: Import, option: str, lazy: bool
) -> None:
    module = write(
        "app = made('main')\n"
        "class Untyped(Task):\n    typing = False\n"
        f"@scheduled(every=5, args=(1,))\n@app.task(name='t', {option}, lazy={lazy})\n"
        "def f(database, number): ..."
    )
    assert schedules_of(module.app) == {"t": 5}


# -- modules that are imported again, tasks that are copied


@pytest.mark.parametrize(
    "task",
    [
        "@app.task\n@scheduled(every=1)\ndef f(): ...",
        "@scheduled(every=1)\n@app.task\ndef f(): ...",
        "@shared_task\n@scheduled(every=1)\ndef f(): ...",
        "@scheduled(every=1)\n@shared_task\ndef f(): ...",
        "@app.task(lazy=False)\n@scheduled(every=1)\ndef f(): ...",
        "@scheduled(every=1, name='x')\n@app.task(name='t')\ndef f(): ...",
        "@scheduled(every=1)\nclass F(Task):\n    name = 't'\napp.register_task(F())",
    ],
)
@pytest.mark.filterwarnings("ignore:Task name")  # Celery keeps the first, and says so
@pytest.mark.parametrize("is_finalized", [True, False], ids=["finalized", "lazy"])
def test_a_module_that_is_imported_again_is_no_duplicate_and_the_new_schedule_counts(
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


def test_a_schedule_that_has_left_a_module_is_gone_with_its_function(app: Celery) -> None:
    @scheduled(every=5)
    def f() -> None: ...

    del f
    gc.collect()
    assert declared_entries(app) == {}
    assert not [one for one in collect_declared(app).strays.values() if "has_left_a_module" in one]


def test_tasks_are_called_pickled_and_copied_as_ever(write: Import) -> None:
    module = write("app = made('main')\n@scheduled(every=1)\n@app.task(name='t')\ndef f(): return 7")
    assert module.f() == 7
    before = _state._tls.current_app  # noqa: SLF001
    module.app.set_current()
    try:
        task = module.app.tasks["t"]
        assert pickle.loads(pickle.dumps(task)) is task
        copied = copy.copy(task)
        assert copied.name == "t"
        assert schedules_of(module.app) == {"t": 1}
    finally:
        _state._set_current_app(before)  # noqa: SLF001


def test_a_plain_function_stays_the_same_object() -> None:
    def f() -> None: ...

    before = dict(vars(f))
    assert scheduled(every=5)(f) is f
    assert vars(f) == before


# -- what belongs to no task is told


def test_a_schedule_of_no_task_is_told_with_its_place(write: Import) -> None:
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


def test_arguments_that_only_the_task_itself_can_judge_are_an_error_with_the_place(write: Import) -> None:
    module = write(
        "app = made('main')\n@app.task(name='t')\n@scheduled(every=1, args=(1,))\ndef f(a, b): ..."
    )
    with pytest.raises(DeclarationError, match="t can't be called with its args and kwargs") as caught:
        declared_entries(module.app)
    assert caught.value.places == (f"{module.__file__}:11",)


def test_a_task_that_checks_no_arguments_is_left_to_itself(write: Import) -> None:
    module = write(
        "app = made('main')\n"
        "@app.task(name='t', typing=False)\n@scheduled(every=1, args=(1,))\ndef f(a, b): ..."
    )
    assert schedules_of(module.app) == {"t": 1}
