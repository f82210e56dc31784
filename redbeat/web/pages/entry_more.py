"""Operations about one entry that have no page of their own: a form, a question, and the result.

All of it follows from the operation: its parameters are the fields, and a destructive one asks first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from typing import Any, get_args, get_origin

from starlette.responses import Response
from starlette.routing import BaseRoute

from redbeat.access import Right
from redbeat.entries.search import read_listed
from redbeat.entries.wording import in_words_of, one_line
from redbeat.errors import ArgumentInvalid, RedBeatError
from redbeat.operations.operation import Operation, Parameter
from redbeat.operations.table import OPERATIONS
from redbeat.schedules.times import TypedTime
from redbeat.web.access import csrf
from redbeat.web.api.parameters import field_of
from redbeat.web.jobs import Ending, Tell
from redbeat.web.pages.changing import make_form_change
from redbeat.web.pages.entry_form import json_of, read_json
from redbeat.web.routes import action, page
from redbeat.web.visit import Visit

#: operations with buttons and pages of their own
_WITH_PAGES = {
    f"entry.{name}"
    for name in ("pause", "resume", "put", "set", "delete", "trigger", "backfill", "rerun", "give_up")
}
#: the other operations that change one entry
MORE: Sequence[Operation[..., Any]] = [
    one
    for one in OPERATIONS
    if one.name.startswith("entry.") and one.right is not Right.READ and one.name not in _WITH_PAGES
]
_NOT_SHOWN = ("name", "dry_run")
#: fields of the question that the form has for itself
_OWN_FIELDS = (csrf.FIELD, "once", "confirmed")


@dataclass(frozen=True)
class _Field:
    """A field of the form; only a choice has ``options``."""

    parameter: Parameter
    value: str
    problem: str

    @property
    def options(self) -> Sequence[str]:
        kind = self.parameter.type
        choices = self.parameter.option.choices if kind is str else get_args(kind)
        if not choices or not all(isinstance(one, str) for one in choices):
            return ()
        return choices if self.parameter.is_required or self.parameter.default else ("", *choices)

    @property
    def is_flag(self) -> bool:
        return self.parameter.type is bool


def _parameters(operation: Operation[..., Any]) -> Sequence[Parameter]:
    return [
        one
        for one in operation.parameters
        if one.name not in _NOT_SHOWN and not (one.option.header or one.option.component or one.option.media)
    ]


def _form(
    operation: Operation[..., Any],
    visit: Visit,
    problems: Mapping[str, str] | None = None,
    status: int = 422,
) -> Response:
    """Show the form of an operation, with what was typed and what is wrong with it."""
    name = visit.typed("name") or visit.query.get("name", "")
    read_listed(visit.app, name)
    problems = problems or {}
    shown = {one.name: one for one in _parameters(operation)}
    return visit.render(
        "entry_more.html",
        status if problems else 200,
        title=operation.summary.rstrip("."),
        operation=operation,
        name=name,
        about=operation.__doc__.partition("\n\n")[2].partition("\n\n")[0],
        problem=next((text for field, text in problems.items() if field not in shown), ""),
        fields=[_Field(one, _value_in(visit, one), problems.get(field, "")) for field, one in shown.items()],
    )


def _value_in(visit: Visit, parameter: Parameter) -> str:
    """Return what a field of the form shows: what was typed, else the default."""
    if visit.form:
        return visit.typed(parameter.name)
    default = parameter.default
    if isinstance(default, bool):
        return "yes" if default else ""
    return default if isinstance(default, str) else json_of(default)


def _read(parameter: Parameter, text: str) -> Any:
    """Return the value of a field; None where it is empty.

    Raises:
        ValueError: it is invalid, or empty although it is required.
    """
    if parameter.type is bool:
        return text == "yes"
    if not text:
        if parameter.is_required:
            raise ValueError("Give a value.")
        return None
    if parameter.type is TypedTime:
        return TypedTime(text, parameter.option.ahead)
    if parameter.type in (list[Any], dict[str, Any]):
        kind = get_origin(parameter.type)
        return read_json(text, kind, "an array, as [1, 2]" if kind is list else 'an object, as {"x": 1}')
    field = field_of(parameter)
    return field.read(field.read_text(text))


def _call(operation: Operation[..., Any], visit: Visit) -> Response:
    """Carry out the operation with the values of the form; a destructive one asks first."""
    name, problems = visit.typed("name"), dict[str, str]()
    values: dict[str, Any] = {"name": name}
    for one in _parameters(operation):
        try:
            values[one.name] = _read(one, visit.typed(one.name).strip())
        except (ValueError, OverflowError, RecursionError) as exc:
            problems[one.name] = f"{str(exc)[:1].upper()}{str(exc)[1:]}"
    if problems:
        return _form(operation, visit, problems)
    arguments = operation.arguments({field: value for field, value in values.items() if value is not None})
    actor, title = visit.actor, f"{operation.summary.rstrip('.')}: {one_line(name, 200)}"
    if operation.is_destructive and not visit.is_confirmed:
        read_listed(visit.app, name)
        given = [(field, value) for field, value in visit.form.multi_items() if field not in _OWN_FIELDS]
        path, back = visit.link("entry", "more", operation.name), visit.link("entry", name=name)
        return visit.ask(f"{title}?", operation.command.capitalize(), path, given, back=back)

    def change(_tell: Tell[str]) -> Ending:
        words = _words_of(operation(actor, **arguments))
        return Ending(f"Done. {title}{words and f' ({words})'}.", ("entry",), {"name": name})

    return make_form_change(visit, title, change, partial(_refuse, operation), "entry")


def _refuse(operation: Operation[..., Any], visit: Visit, error: RedBeatError, status: int) -> Response:
    field, words = "", error.plain
    if isinstance(error, ArgumentInvalid):
        field, words = error.field, error.reason
    return _form(operation, visit, {field: in_words_of(words, visit.zone)}, status)


def _words_of(result: Any) -> str:
    """Return the plain values of a result."""
    if not is_dataclass(result):
        return ""
    found = ((one.name, getattr(result, one.name)) for one in fields(result))
    return ", ".join(
        f"{name.replace('_', ' ')}: {one_line(value, 200)}"
        for name, value in found
        if isinstance(value, (str, int, float))
    )


ROUTES: list[BaseRoute] = [
    route
    for one in MORE
    for route in (
        page(f"/entry/more/{one.name}", partial(_form, one), right=one.right),
        action(f"/entry/more/{one.name}", partial(_call, one), right=one.right),
    )
]
