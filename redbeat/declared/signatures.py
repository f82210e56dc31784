"""What type checkers are told of :func:`redbeat.scheduled`. Read by them only, never imported.

A decorator must return what it is given, and refuse a task that can't be called with the given arguments. No
type variable can say both. So the parameter is a protocol with two overloads of ``__call__``: one infers the
signature, which is returned, the other is the call that beat will make.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Generic, Protocol, TypeVar, overload

from celery import Task
from celery.schedules import BaseSchedule
from typing_extensions import ParamSpec, TypeVarTuple, Unpack

from redbeat.policy.policy import PolicyFields

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Returned_co = TypeVar("Returned_co", covariant=True)
Given = TypeVarTuple("Given")
Class = TypeVar("Class", bound=type)
Anything = TypeVar("Anything", bound="Callable[..., Any] | DjangoTask")


class DeclaredFields(PolicyFields, total=False):
    """The keywords of :func:`redbeat.scheduled` but ``args`` and ``kwargs``."""

    cron: str
    every: float | timedelta | str
    relative: bool
    at: datetime | str
    rrule: str
    schedule: BaseSchedule | timedelta | float | str | dict[str, Any]
    name: str
    options: Mapping[str, Any]
    enabled: bool


class TaskItself(Protocol):
    """The first parameter of a task with ``bind=True``, whatever class it is annotated with."""

    def retry(self, *args: Any, **kwargs: Any) -> Any: ...

    def apply_async(self, *args: Any, **kwargs: Any) -> Any: ...


Itself_contra = TypeVar("Itself_contra", bound=TaskItself, contravariant=True)
BoundTo = TypeVar("BoundTo", bound=TaskItself)


class DjangoTask(Protocol):
    """A task of ``django.tasks``."""

    @property
    def func(self) -> Callable[..., Any]: ...

    def enqueue(self, *args: Any, **kwargs: Any) -> Any: ...


AnyDjangoTask = TypeVar("AnyDjangoTask", bound=DjangoTask)


class Function(Protocol[Parameters, Returned_co, Unpack[Given]]):
    """A function that can be called with arguments of the types ``Given``."""

    @overload
    def __call__(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Returned_co: ...

    @overload
    def __call__(self, *args: Unpack[Given]) -> Any: ...


class BoundFunction(Protocol[Itself_contra, Parameters, Returned_co, Unpack[Given]]):
    """The same for a function that is given the task before them."""

    @overload
    def __call__(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Returned_co: ...

    @overload
    def __call__(self, *args: Unpack[tuple[Itself_contra, Unpack[Given]]]) -> Any: ...


class CeleryTask(Protocol[Parameters, Returned_co, Unpack[Given]]):
    """A task of Celery's, typed by celery-types, that can be called with such arguments."""

    def delay(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Any: ...

    def run(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Returned_co: ...

    def __call__(self, *args: Unpack[Given]) -> Any: ...


class Decorator(Generic[Unpack[Given]]):
    """What ``scheduled`` returns: it takes a task, and gives it back."""

    @overload
    def __call__(self, task: Class) -> Class: ...

    @overload
    def __call__(self, task: CeleryTask[Parameters, Result, Unpack[Given]]) -> Task[Parameters, Result]: ...

    @overload
    def __call__(self, task: Function[Parameters, Result, Unpack[Given]]) -> Callable[Parameters, Result]: ...

    @overload
    def __call__(
        self, task: BoundFunction[BoundTo, Parameters, Result, Unpack[Given]]
    ) -> Callable[Parameters, Result]: ...

    @overload
    def __call__(self, task: AnyDjangoTask) -> AnyDjangoTask: ...

    def __call__(self, task: Any) -> Any:
        raise NotImplementedError


class LooseDecorator:
    """The same where the arguments can't be compared: those of a list, and those by name."""

    def __call__(self, task: Anything) -> Anything:
        raise NotImplementedError


@overload
def scheduled(
    *, args: tuple[Unpack[Given]], **fields: Unpack[DeclaredFields]
) -> Decorator[Unpack[Given]]: ...


@overload
def scheduled(*, args: list[Any], **fields: Unpack[DeclaredFields]) -> LooseDecorator: ...


@overload
def scheduled(
    *,
    args: tuple[Any, ...] | list[Any] = ...,
    kwargs: Mapping[str, Any],
    **fields: Unpack[DeclaredFields],
) -> LooseDecorator: ...


@overload
def scheduled(**fields: Unpack[DeclaredFields]) -> Decorator[()]: ...


def scheduled(**fields: Any) -> Any:
    raise NotImplementedError
