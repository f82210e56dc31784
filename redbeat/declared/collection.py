"""What the code of an application declares: an entry for each ``@scheduled`` at one of its tasks, and those
of ``beat_schedule``.

Invariant: a schedule belongs to the application whose ``@app.task`` has made its task, and with
``@shared_task`` to each that has the task. Celery gives the tasks of an application to the others of the
process as well; their schedules stay where they are, or each of these beats would run them.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet

from celery import Task, _state
from celery.local import PromiseProxy, Proxy

from redbeat.config.config import ensure_conf
from redbeat.declared.declaration import Declaration
from redbeat.declared.decorator import (
    Shared,
    all_declared,
    is_noted_for_another,
    read_shared,
    read_unevaluated,
    targets_of,
)
from redbeat.declared.django_tasks import is_django_task, options_of
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.validation import find_entry_problem, find_name_problem
from redbeat.errors import EntryError, RedBeatError
from redbeat.log.text import quoted


@dataclass(frozen=True)
class DeclaredEntry:
    """An entry that the code declares.

    Attributes:
        fields: the arguments of :class:`redbeat.RedBeatSchedulerEntry` but ``name`` and ``app``.
    """

    name: str
    fields: dict[str, Any]
    declaration: Declaration


@dataclass
class Declarations:
    """What the code of an application declares.

    Attributes:
        entries: by their names.
        strays: declarations that belong to no task of any application; each to what is wrong.
    """

    entries: dict[str, DeclaredEntry] = field(default_factory=dict)
    strays: dict[Declaration, str] = field(default_factory=dict)


def declared_entries(app: Any) -> dict[str, dict[str, Any]]:
    """Return what ``@scheduled`` has declared for ``app``: names to the arguments of their entries.

    They are those of :class:`redbeat.RedBeatSchedulerEntry` but ``name`` and ``app``, as in
    ``beat_schedule``. The application is finalized; its modules have to be imported before.

    Raises:
        DeclarationError: two schedules have the same name, or ``beat_schedule`` has it, too; or a task can't
            be called with the arguments.
    """
    return {name: entry.fields for name, entry in collect_declared(app).entries.items()}


def collect_declared(app: Any) -> Declarations:
    """Return all that is declared for ``app``; see :func:`declared_entries`."""
    if isinstance(app, Proxy):
        app = app._get_current_object()  # noqa: SLF001
    found = Declarations()
    tasks_of = _tasks_by_target(app)
    for target, declared in all_declared():
        for declaration in declared:
            holder = declaration.over if declaration.over is not None else _holder_of(target)
            tasks, stray = _find_tasks(app, target, declaration, holder, tasks_of.get(id(target), []))
            if stray:
                found.strays[declaration] = stray
            for task in tasks:
                _add(found.entries, _entry_of(task, declaration, holder))
    for declaration in list(found.strays):
        if any(entry.declaration.is_again(declaration) for entry in found.entries.values()):
            del found.strays[declaration]
    for name in sorted(found.entries.keys() & app.conf.beat_schedule.keys()):
        fault = found.entries[name].declaration.fault
        raise fault(f"the setting beat_schedule has an entry {name!r}, too; change one.", "beat_schedule")
    return found


def _add(entries: dict[str, DeclaredEntry], new: DeclaredEntry) -> None:
    one = entries.get(new.name)
    if one is not None:
        place = one.declaration.place
        is_same = new.declaration is one.declaration or new.declaration.is_again(one.declaration)
        if not is_same or one.fields["task"] != new.fields["task"]:
            raise new.declaration.fault(
                f"another schedule is called {new.name!r}, too, that of {one.fields['task']} at {place}. "
                "Give one of them another name=, or none: each has the name of its task then.",
                place,
            )
    entries[new.name] = new


def _entry_of(task: Any, declaration: Declaration, holder: Any) -> DeclaredEntry:
    fields = {"task": task.name, **declaration.entry_fields()}
    if is_django_task(holder):
        options = {**options_of(holder), **(declaration.fields.get("options") or {})}
        fields.update({"options": options} if options else {})
    elif getattr(task, "typing", False) and hasattr(task, "__header__"):
        try:
            task.__header__(*declaration.args, **declaration.kwargs)
        except TypeError as exc:
            raise declaration.fault(f"{task.name} can't be called with its args and kwargs: {exc}.") from exc
    return DeclaredEntry(declaration.name or task.name, fields, declaration)


# -- whose they are


def _find_tasks(
    app: Any, target: Any, declaration: Declaration, holder: Any, tasks: list[Any]
) -> tuple[list[Any], str]:
    """Return the tasks of ``app`` that a declaration is for; or what is wrong, '' if they are another's.

    Arguments:
        target: what was decorated: a function, a class or a task.
        holder: what a function is known as: a task, as a rule; None: not known.
        tasks: those that are ``target`` or run it.
    """
    if isinstance(declaration.over, Shared):
        tasks = []  # its function may be that of other tasks, too
    if _is_anothers(app, target, declaration, holder):
        return [], ""
    name = _name_in(app, target, holder)
    if name in app.tasks:  # Celery keeps the task of a module that is imported again, with the old function
        return [app.tasks[name]], ""
    if tasks or _do_others_run(app, target):
        return tasks, ""
    if isinstance(target, Task) or inspect.isclass(target):
        return [], f"{quoted(target)} is no task of an application: call app.register_task for it."
    what = f"{target.__module__}.{getattr(target, '__qualname__', target)}"
    if is_django_task(holder):
        backend = type(holder.get_backend()).__name__
        return [], f"{what} is no task of Celery's, as its backend is {backend}, so beat can't run it."
    return [], (
        f"{what} is no task: @scheduled must stand over or under @app.task or @shared_task, and a decorator "
        "in between must use functools.wraps."
    )


def _tasks_by_target(app: Any) -> dict[int, list[Any]]:
    """Return the tasks of ``app`` that are, or run, a thing with a given id."""
    found: dict[int, list[Any]] = {}
    for task in list(app.tasks.values()):
        for target in targets_of(task):
            found.setdefault(id(target), []).append(task)
    return found


def _holder_of(target: Any) -> Any:
    """Return what the name of a function stands for in its module, the task as a rule; None: not known."""
    if isinstance(target, Task) or inspect.isclass(target):
        return None
    found: Any = sys.modules.get(getattr(target, "__module__", None) or "")
    for part in getattr(target, "__qualname__", "<locals>").split("."):
        try:
            found = vars(found).get(part)
        except TypeError:
            return None
    return found


def _is_anothers(app: Any, target: Any, declaration: Declaration, holder: Any) -> bool:
    """Return True if the ``@app.task`` of another application has made the task of ``target``."""
    if isinstance(target, Task):
        return target.app is not app
    if declaration.over is not None or inspect.isclass(target):
        return False
    if type(holder) is PromiseProxy and not holder.__evaluated__():
        return read_unevaluated(holder).app is not app
    if type(holder) is PromiseProxy or (type(holder) is not Proxy and isinstance(holder, Task)):
        return holder.app is not app
    return is_noted_for_another(target, app)


def _name_in(app: Any, function: Any, holder: Any) -> str | None:
    """Return the name of the task of ``app`` that ``holder`` stands for; None: for none that is known."""
    if type(holder) is Proxy:
        _, given = read_shared(holder) or (None, None)
        holder = Shared(given)
    if isinstance(holder, Shared):
        return holder.name or str(app.gen_task_name(function.__name__, function.__module__))
    if is_django_task(holder):
        return str(holder.module_path)
    is_unevaluated = type(holder) is PromiseProxy and not holder.__evaluated__()
    return str(holder.name) if not is_unevaluated and isinstance(holder, Task) else None


def _do_others_run(app: Any, target: Any) -> bool:
    """Return True if another application of this process has a task that is or runs ``target``."""
    others = (one for one in _state._get_active_apps() if one is not app)  # noqa: SLF001
    return any(
        target is one
        for other in others
        for task in list(other._tasks.values())  # noqa: SLF001 - `tasks` would finalize it
        for one in targets_of(task)
    )


# -- beat_schedule


@dataclass(frozen=True)
class StaticEntry:
    """An entry of ``beat_schedule``.

    Attributes:
        entry: None: it is invalid, and ``problem`` says why.
    """

    name: str
    entry: RedBeatSchedulerEntry | None
    problem: str


def read_static_entries(app: Any) -> list[StaticEntry]:
    """Return the entries of the ``beat_schedule`` of ``app``."""
    return [_read(app, name, fields) for name, fields in dict(app.conf.beat_schedule).items()]


def _read(app: Any, name: Any, fields: Any) -> StaticEntry:
    problem = find_name_problem(name, ensure_conf(app).reserved_names)
    try:
        if not isinstance(fields, Mapping) and not hasattr(fields, "schedule"):
            raise EntryError(f"{name}: must be a dict with task and schedule, got {fields!r}.", str(name))
        given = dict(fields) if isinstance(fields, Mapping) else dict(fields.__dict__)
        entry = RedBeatSchedulerEntry(**{**given, "name": name, "app": app})
        problem = problem or find_entry_problem(entry)
    except Exception as exc:  # noqa: BLE001 - the per-entry boundary
        said = str(exc) if isinstance(exc, RedBeatError) else f"{type(exc).__name__}: {exc}"
        problem = problem or said.removeprefix(f"{name}: ")
    return StaticEntry(str(name), None if problem else entry, problem or "")


# -- the modules with the tasks, imported once, as a worker and a beat do

_loaded = WeakSet[Any]()


def load_tasks(app: Any) -> None:
    """Import the modules with the tasks of ``app`` if this process has not; raise what they raise.

    Celery's import runs the system checks of a Django project, so a check that calls this would run itself.
    """
    if not is_worker_or_beat(app) and app.loader not in _loaded:
        app.loader.import_default_modules()
        _loaded.add(app.loader)
    app.finalize()


def is_worker_or_beat(app: Any) -> bool:
    """Return True if Celery imports, or has imported, the modules for a worker or beat of ``app``."""
    return bool(getattr(app.loader, "worker_initialized", False))
