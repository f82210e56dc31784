"""What an operation is: a typed function with a name, a right and a result, from which surfaces are derived.

Its parameters are read from its signature: the type says which values are allowed, and an :class:`Option` in
``Annotated`` has the help text and the bounds. A parameter whose type is a dataclass stands for its fields.
Surfaces don't offer a parameter without an option.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from redbeat.access import Right
from redbeat.errors import EntryChanged
from redbeat.operations.actor import Actor
from redbeat.schedules.times import TypedTime

Given = ParamSpec("Given")
Result = TypeVar("Result")

#: a time: as it was typed, to be read by the server's clock and in the actor's zone, or as it is
Moment = TypedTime | datetime


@dataclass(frozen=True)
class Option:
    """What surfaces say about a parameter, and the bounds of its values.

    Attributes:
        help: a sentence.
        least: the smallest number.
        most: the largest number; of a list the largest count.
        ahead: of a time: '2h' and 'monday' are ahead of now; else back from it.
        is_pattern: in the text * and ? are wildcards; case counts.
        may_be_empty: of a text.
        choices: the values that a text, or the items of a list, may have; none: any.
        header: the header of a request that has it; only the REST interface offers it then.
        component: the schema of a request's whole body, which the value is; likewise.
        media: the media types of a request's whole body, the bytes of which the value is; likewise.
        called: its name on the surfaces, where Python has the word for itself, as with ``from``.
    """

    help: str
    least: float | None = None
    most: float | None = None
    ahead: bool = False
    is_pattern: bool = False
    may_be_empty: bool = False
    choices: Sequence[str] = ()
    called: str = ""
    header: str = ""
    component: str = ""
    media: Sequence[str] = ()


def given_values(**values: Any) -> dict[str, Any]:
    """Return the values that aren't None."""
    return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class Seen:
    """What a caller has seen, and relies on: the change is made only if that is still there.

    Attributes:
        revisions: one of these; none: that there is nothing of this name yet.
        is_any: anything of this name.
    """

    revisions: Sequence[str] = ()
    is_any: bool = False

    def check(self, name: str, revision: str | None) -> None:
        """Raise EntryChanged unless ``revision``, that of what is there, is what was seen."""
        if not self.revisions and not self.is_any:
            problem = "" if revision is None else "is there already"
        elif revision is None:
            problem = "isn't there any more"
        else:
            problem = "" if self.is_any or revision in self.revisions else "has been changed meanwhile"
        if problem:
            raise EntryChanged(f"{name}: {problem}, so nothing was done. Look at it again.", name)


SeenOption = Annotated[
    Seen | None,
    Option("The ETag of what was seen: if it has changed since, nothing is done (412).", header="If-Match"),
]


@dataclass(frozen=True)
class Parameter:
    """A parameter of an operation.

    Attributes:
        name: on the surfaces.
        argument: its name in Python.
        type: of its values, without None: ``str``, ``bool``, ``int``, ``float``, ``TypedTime``, ``list``,
            ``dict``, ``list[str]``, a ``Literal`` or ``Seen``.
        group: the parameter whose dataclass has it as a field; '': it is one itself.
        is_required: it has no default.
    """

    name: str
    argument: str
    type: Any
    option: Option
    default: Any = None
    group: str = ""
    is_required: bool = False


@dataclass(frozen=True)
class Operation(Generic[Given, Result]):
    """An operation.

    Attributes:
        name: as ``entry.pause``.
        right: what it takes. Where more depends on the values, the function asks for that.
        function: does it.
        command: the command of the command line that offers it, also its name in the audit list.
        rest: the method and the path below ``/api/v1``; '': the REST interface doesn't offer it.
        is_destructive: surfaces ask before they call it.
        is_heavy: it may take seconds; a server runs one of these at a time.
    """

    name: str
    right: Right
    function: Callable[Concatenate[Actor, Given], Result]
    command: str
    rest: str = ""
    is_destructive: bool = False
    is_heavy: bool = False

    def __call__(self, actor: Actor, /, *args: Given.args, **kwargs: Given.kwargs) -> Result:
        """Carry it out for ``actor``.

        Raises:
            AccessDenied: the actor doesn't have the right.
        """
        actor.require(self.right)
        return self.function(actor, *args, **kwargs)

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        return inspect.getdoc(self.function) or ""

    @property
    def summary(self) -> str:
        """The first sentence of its docstring."""
        return self.__doc__.partition("\n")[0]

    @property
    def details(self) -> str:
        """The paragraph below that sentence; '': there is none."""
        below = self.__doc__.partition("\n\n")[2].partition("\n\n")[0]
        return "" if below.startswith(("Arguments:", "Raises:", "Attributes:")) else below

    @cached_property
    def _hints(self) -> dict[str, Any]:
        return get_type_hints(self.function, include_extras=True)

    @property
    def result(self) -> Any:
        """The type of its result."""
        return self._hints["return"]

    @cached_property
    def parameters(self) -> Sequence[Parameter]:
        """Its parameters, without the actor."""
        found: list[Parameter] = []
        for one in [*inspect.signature(self.function).parameters.values()][1:]:
            kind, option = _read_hint(self._hints[one.name])
            if dataclasses.is_dataclass(kind):
                found += (replace(field, group=one.name) for field in _fields_of(kind))
            if option is None:  # for programs
                continue
            is_required = one.default is inspect.Parameter.empty
            default = None if is_required else one.default
            name = option.called or one.name
            found.append(Parameter(name, one.name, kind, option, default, is_required=is_required))
        return found

    def arguments(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of the function for ``values`` by the names of parameters."""
        made: dict[str, Any] = {}
        grouped: dict[str, dict[str, Any]] = {}
        for one in self.parameters:
            if one.name in values:
                place = grouped.setdefault(one.group, {}) if one.group else made
                place[one.argument] = values[one.name]
        for name, fields in grouped.items():
            made[name] = self._hints[name](**fields)
        return made


def _fields_of(kind: Any) -> Sequence[Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    found = []
    for field in dataclasses.fields(kind):
        type_, option = _read_hint(hints[field.name])
        if option is not None:
            found.append(Parameter(option.called or field.name, field.name, type_, option, field.default))
    return found


def _read_hint(hint: Any) -> tuple[Any, Option | None]:
    """Return the type in a hint, without None, and its option."""
    option = None
    if get_origin(hint) in (Union, UnionType):  # Python 3.10 adds None around the hint of a default of None
        hint = next((one for one in get_args(hint) if get_origin(one) is Annotated), hint)
    if get_origin(hint) is Annotated:
        hint, *extras = get_args(hint)
        option = next((one for one in extras if isinstance(one, Option)), None)
    if get_origin(hint) in (Union, UnionType):
        kinds = [kind for kind in get_args(hint) if kind is not NoneType]
        hint = kinds[0]
    return hint, option


#: every operation, by its name
OPERATIONS: dict[str, Operation[Any, Any]] = {}


def operation(
    name: str,
    right: Right,
    command: str,
    rest: str = "",
    *,
    is_destructive: bool = False,
    is_heavy: bool = False,
) -> Callable[[Callable[Concatenate[Actor, Given], Result]], Operation[Given, Result]]:
    """Return a decorator that makes a function an operation; see :class:`Operation`."""

    def decorate(function: Callable[Concatenate[Actor, Given], Result]) -> Operation[Given, Result]:
        made = Operation(name, right, function, command, rest, is_destructive, is_heavy)
        OPERATIONS[name] = made
        return made

    return decorate
