"""``@scheduled``: the decorator, and which declarations belong to which function, class or task.

Invariant: nothing is changed about a task, and none is evaluated, which would finalize its application too
early. What isn't used any more is forgotten with its declarations.
"""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from celery import Task, _state
from celery.local import PromiseProxy, Proxy

from redbeat.declared.declaration import Declaration, make_declaration
from redbeat.declared.django_tasks import is_django_task, without_function
from redbeat.log.text import quoted


@dataclass(frozen=True)
class Shared:
    """A ``shared_task``.

    Attributes:
        name: that it was given; None: it has that of its function.
    """

    name: str | None


#: functions, classes and tasks to the declarations of each
_declared: WeakKeyDictionary[Any, list[Declaration]] = WeakKeyDictionary()
#: functions to the application whose ``@app.task`` has taken them
_owners: WeakKeyDictionary[Any, weakref.ref[Any]] = WeakKeyDictionary()
#: tests of what can be called, and isn't a function that becomes a task
_NO_FUNCTIONS = (inspect.isclass, inspect.ismethod, inspect.isbuiltin)
#: what a function is called with before the arguments of a run: the task, or nothing
BOUND: tuple[tuple[None, ...], ...] = ((None,),)
UNBOUND: tuple[tuple[None, ...], ...] = ((),)
#: the attribute of a task that isn't evaluated yet, which must be neither hashed nor compared
_UNEVALUATED = "_redbeat_declared"


if TYPE_CHECKING:
    from redbeat.declared.signatures import scheduled as scheduled
else:

    def scheduled(**fields):
        """Give a task a schedule, over or under ``@app.task``, ``@shared_task`` or Django's ``@task``.

        Beat stores it as an entry when it starts, as those of ``beat_schedule``, and removes it when it has
        left the code. Nothing else is done to the task. It can be used several times on one task.

        Arguments:
            cron: a cron expression, such as "30 7 * * mon-fri".
            every: a number of seconds, a timedelta, or a length of time such as "1h30m".
            relative: with ``every``, as in :class:`celery.schedules.schedule`.
            at: the one time at which it runs: a datetime, or a text such as "2026-12-24T18:00".
            rrule: a recurrence rule, such as "FREQ=WEEKLY;BYDAY=MO", with or without a DTSTART.
            schedule: instead of these, whatever an entry's ``schedule`` may be. One of the five is given.
            name: the entry's; default: the task's. Further schedules of one task need one.
            args, kwargs: for the task; JSON values, datetimes included.
            options: for ``apply_async``: ``queue``, ``priority``, ``expires`` and so on.
            enabled: False keeps the entry, but it doesn't run.
            fields: the fields of the policy by their names: ``timezone``, ``jitter`` and so on (:doc:`time`),
                ``overlap``, ``max_runtime`` and so on (:doc:`runs`).

        Raises:
            DeclarationError: at import; it names the file and the line.
        """
        declaration = make_declaration(fields, sys._getframe(1))  # noqa: SLF001 - the line that calls

        def decorate(task):
            attach(task, declaration)
            return task

        return decorate


def attach(task: Any, declaration: Declaration) -> None:
    """Note that ``declaration`` belongs to ``task``, which is what another decorator has made, or is given.

    Raises:
        DeclarationError: it is not a task, can't be called so, or has a schedule of that name already.
    """
    kind = type(task)  # a Proxy claims to be of the class of what it stands for
    if kind is PromiseProxy and not task.__evaluated__():
        _attach_later(task, declaration)
    elif kind is Proxy:
        function, name = read_shared(task) or (None, None)
        if function is None:
            raise declaration.fault("this shared task hides its function; put @scheduled under @shared_task.")
        check_call(declaration, function, UNBOUND + BOUND)
        _add(function, replace(declaration, over=Shared(name)))
    elif is_django_task(task):
        if task.run_after is not None:
            words = "a task with run_after can't be scheduled: the schedule says when it runs."
            raise declaration.fault(words)
        check_call(declaration, task.func, BOUND if task.takes_context else UNBOUND)
        _add(task.func, replace(declaration, over=without_function(task)))
    else:
        found = task._get_current_object() if kind is PromiseProxy else task  # noqa: SLF001
        if isinstance(found, Task):
            if found.typing:
                check_call(declaration, found.run)
        elif callable(found) and not any(is_other(found) for is_other in _NO_FUNCTIONS):
            check_call(declaration, found, UNBOUND + BOUND)
        elif not (inspect.isclass(found) and issubclass(found, Task)):
            raise declaration.fault(_misplaced(found))
        _add(found, declaration)


def all_declared() -> list[tuple[Any, list[Declaration]]]:
    """Return all functions, classes and tasks, each with its declarations, in the order of the code."""
    # a copy of the references, as another thread may import a module meanwhile
    targets = [target for reference in _declared.keyrefs() if (target := reference()) is not None]
    return [(target, list(_declared.get(target, ()))) for target in targets]


@_state.connect_on_app_finalize  # before it is given the tasks of others
def note_owner(app: Any) -> None:
    """Note which functions are those of tasks of ``app``, as long as that is to be seen."""
    for proxy in app._pending:  # noqa: SLF001
        if type(proxy) is not PromiseProxy:
            continue
        if proxy.__evaluated__():
            functions = targets_of(proxy._get_current_object())  # noqa: SLF001
        else:
            functions = iter([read_unevaluated(proxy).function])
        for function in functions:
            if isinstance(function, Hashable) and function in _declared:
                _owners[function] = weakref.ref(app)


def is_noted_for_another(function: Any, app: Any) -> bool:
    """Return True if this is known to be the function of a task of another application, which may be gone."""
    for one in _state._get_active_apps():  # noqa: SLF001
        if not one.finalized:
            note_owner(one)
    known = _owners.get(function)
    return known is not None and known() is not app


def read_shared(proxy: Any) -> tuple[Callable[..., Any], str | None] | None:
    """Return the function of a ``shared_task``, and the name that the task was given; None: it isn't one."""
    local = object.__getattribute__(proxy, "_Proxy__local")
    if not inspect.isfunction(local):
        return None
    held = inspect.getclosurevars(local).nonlocals
    return (held["fun"], held.get("name")) if callable(held.get("fun")) else None


class Unevaluated(NamedTuple):
    """What is known of a task that isn't evaluated yet.

    Attributes:
        is_bound: its function is given the task.
        is_typed: Celery checks its arguments when it is sent.
    """

    app: Any
    function: Callable[..., Any]
    is_bound: bool
    is_typed: bool


def read_unevaluated(proxy: Any) -> Unevaluated:
    """Return what is known of a task of ``@app.task``, without evaluating it."""
    app = object.__getattribute__(proxy, "_Proxy__local").__self__  # that is the application's method
    (function,) = object.__getattribute__(proxy, "_Proxy__args")
    options = object.__getattribute__(proxy, "_Proxy__kwargs")
    base = options.get("base") or app.task_cls  # that may be the name of one
    said = (options.get("typing"), getattr(base, "typing", None), app.strict_typing)
    is_typed = next((one for one in said if one is not None), True)
    return Unevaluated(app, function, bool(options.get("bind")), bool(is_typed))


def targets_of(task: Any) -> Iterator[Any]:
    """Yield what may have been decorated so that ``task`` has a schedule; nothing that its class inherits.

    That is the task, its class, its function, and those that it wraps.
    """
    yield task
    yield type(task)
    run = vars(type(task)).get("run")
    seen: set[int] = set()
    while run is not None and id(run) not in seen:
        seen.add(id(run))
        yield run
        run = getattr(run, "__wrapped__", None)  # a staticmethod has it, too


def _attach_later(proxy: Any, declaration: Declaration) -> None:
    known = read_unevaluated(proxy)
    if known.is_typed:
        check_call(declaration, known.function, BOUND if known.is_bound else UNBOUND)
    try:
        declared = object.__getattribute__(proxy, _UNEVALUATED)
    except AttributeError:
        declared = []
        object.__setattr__(proxy, _UNEVALUATED, declared)

        def attach_all() -> None:
            for one in declared:
                _add(proxy._get_current_object(), one)  # noqa: SLF001 - it has been evaluated just now

        proxy.__then__(attach_all)
    _add_to(declared, declaration)


def _add(target: Any, declaration: Declaration) -> None:
    try:
        declared = _declared.setdefault(target, [])
    except TypeError as exc:  # it can't be referred to weakly
        raise declaration.fault(_misplaced(target)) from exc
    _add_to(declared, declaration)


def _misplaced(target: Any) -> str:
    return f"must stand over or under @app.task or @shared_task, and not over {quoted(target)}."


def _add_to(declared: list[Declaration], new: Declaration) -> None:
    declared[:] = [one for one in declared if not new.is_again(one)]
    for one in declared:
        if one.name == new.name:
            what = "without a name=" if new.name is None else f"called {new.name!r}"
            raise new.fault(f"this task has a schedule {what} already, at {one.place}.", one.place)
    declared.append(new)


def check_call(
    declaration: Declaration, function: Callable[..., Any], leading: Sequence[tuple[None, ...]] = UNBOUND
) -> None:
    """Raise DeclarationError if ``function`` can't be called with its arguments.

    Arguments:
        leading: what stands before them in a call, as far as that is known: one of these.
    """
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):  # some functions that aren't written in Python tell nothing
        return
    problems = []
    for first in leading:
        try:
            signature.bind(*first, *declaration.args, **declaration.kwargs)
            return
        except TypeError as exc:
            problems.append(exc)
    name = getattr(function, "__qualname__", function)
    raise declaration.fault(
        f"{name} can't be called with its args and kwargs: {problems[0]}. (Where a decorator in "
        "between gives it others, @scheduled must stand above that one.)"
    ) from problems[0]
