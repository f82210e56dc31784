"""Operations about one entry: a form, a question, and the result.

All of it follows from the operation: its parameters are the fields, and a destructive one asks first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from typing import Any, get_args, get_origin

from starlette.responses import Response
from starlette.routing import BaseRoute

from redbeat.access import Right
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.search import read_listed
from redbeat.entries.wording import in_words_of, one_line
from redbeat.errors import ArgumentInvalid, RedBeatError
from redbeat.operations.operation import Operation, Parameter
from redbeat.operations.running import request_of_form
from redbeat.schedules.times import TypedTime
from redbeat.web.api.parameters import field_of
from redbeat.web.jobs import Ending, Tell
from redbeat.web.pages.changing import REFUSALS, make_form_change
from redbeat.web.pages.entry_form import LABELS, json_of, read_json
from redbeat.web.routes import action, page, status_of
from redbeat.web.visit import Visit

_NOT_SHOWN = ("name", "dry_run")
#: the types of fields with JSON, and what they take
_JSON = {list[Any]: "an array, as [1, 2]", dict[str, Any]: 'an object, as {"x": 1}'}
Query = dict[str, str | None]


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
    def kind(self) -> str:
        if self.options:
            return "choice"
        kind = self.parameter.type
        return "json" if kind in _JSON else {bool: "flag", TypedTime: "time"}.get(kind, "text")


@dataclass(frozen=True)
class EntryAction:
    """An operation about one entry, as the dashboard shows it.

    Attributes:
        path: the parts of the path of its page.
        label: of its button.
        start: returns what fields show at first; one that comes back so isn't given.
        words: returns what is said of its result, and the query of the entry's page; None: its plain values.
        preview: the template that shows what would be done; '': it asks only if it is destructive.
        show: returns what that template shows of a dry run's result, made with these arguments: ``count`` and
            ``what`` of it, and more.
    """

    operation: Operation[..., Any]
    path: Sequence[str]
    label: str
    icon: str | None = None
    start: Callable[[Visit, RedBeatSchedulerEntry], Mapping[str, str]] = lambda _visit, _entry: {}
    words: Callable[[Any], tuple[str, Query]] | None = None
    preview: str = ""
    show: Callable[[Visit, RedBeatSchedulerEntry, Any, Mapping[str, Any]], Mapping[str, Any]] = lambda *_: {}


def _parameters(operation: Operation[..., Any]) -> Sequence[Parameter]:
    return [
        one
        for one in operation.parameters
        if one.name not in _NOT_SHOWN and not (one.option.header or one.option.component or one.option.media)
    ]


def _value_in(visit: Visit, parameter: Parameter, started: Mapping[str, str]) -> str:
    """Return what a field of the form shows: what was typed, else what it starts with, else the default."""
    if visit.form:
        return visit.typed(parameter.name)
    default = parameter.default
    if isinstance(default, bool):
        return "yes" if default else ""
    return started.get(parameter.name, default if isinstance(default, str) else json_of(default))


def _read(parameter: Parameter, text: str) -> Any:
    """Return the value of a field; None where it is empty.

    Raises:
        ValueError: it is invalid, or empty although it is required.
    """
    if parameter.type is bool:
        return text == "yes"
    if not text and parameter.is_required:
        raise ValueError("Give a value.")
    if parameter.type in _JSON:
        kind = get_origin(parameter.type)
        return read_json(text, kind, _JSON[parameter.type]) if text else kind()
    if not text:
        return None
    if parameter.type is TypedTime:
        return TypedTime(text, parameter.option.ahead)
    field = field_of(parameter)
    return field.read(field.read_text(text))


def _entry(shown: EntryAction, visit: Visit) -> RedBeatSchedulerEntry:
    entry = read_listed(visit.app, visit.typed("name") or visit.query.get("name", ""))
    if shown.operation.right is Right.RUN:
        visit.actor.require_call(str(entry.task), entry.options)
    return entry


def _form(
    shown: EntryAction,
    visit: Visit,
    problems: Mapping[str, str] | None = None,
    status: int = 422,
    question: Mapping[str, str] | None = None,
    **found: Any,
) -> Response:
    """Show the form of an operation, with what was typed and what is wrong with it.

    Arguments:
        question: the fields of the form that confirms it, and ``found`` what is shown with them.
    """
    entry = _entry(shown, visit)
    problems, started = problems or {}, shown.start(visit, entry)
    parameters = {one.name: one for one in _parameters(shown.operation)}
    return visit.render(
        "entry_more.html",
        status if problems else 200,
        title=shown.label,
        action=shown,
        operation=shown.operation,
        name=str(entry.name),
        problem=next((text for field, text in problems.items() if field not in parameters), ""),
        fields=[
            _Field(one, _value_in(visit, one, started), problems.get(field, ""))
            for field, one in parameters.items()
        ],
        labels=LABELS,
        question=question,
        **found,
    )


def _call(shown: EntryAction, visit: Visit) -> Response:
    """Carry out the operation with the values of the form, or ask first."""
    entry, problems = _entry(shown, visit), dict[str, str]()
    operation, started, actor = shown.operation, shown.start(visit, entry), visit.actor
    name, values = str(entry.name), dict[str, Any]()
    for one in _parameters(operation):
        text = visit.typed(one.name).strip()
        if text == started.get(one.name, "") and not one.is_required and one.type is not bool:
            continue
        try:
            values[one.name] = _read(one, text)
        except (ValueError, OverflowError, RecursionError) as exc:
            problems[one.name] = f"{str(exc)[:1].upper()}{str(exc)[1:]}"
    if problems:
        return _form(shown, visit, problems)
    times = {field: actor.time(one) for field, one in values.items() if isinstance(one, TypedTime)}
    arguments = operation.arguments({"name": name, **values, **times})
    if any(one.name == "request" for one in operation.parameters):
        arguments["request"] = request_of_form(visit.typed("once"), values)

    if not visit.is_confirmed and (shown.preview or operation.is_destructive):
        found: Mapping[str, Any] = {"count": 1, "what": ""}
        if shown.preview:
            try:
                found = shown.show(visit, entry, operation(actor, **arguments, dry_run=True), arguments)
            except REFUSALS as exc:
                return _refuse(shown, visit, exc, status_of(exc))
        given = {one.name: visit.typed(one.name) for one in _parameters(operation)}
        given |= {field: moment.isoformat() for field, moment in times.items()}
        return _form(shown, visit, question={"name": name, **given}, **found)

    title = f"{operation.summary.rstrip('.')}: {one_line(name, 200)}"

    def change(_tell: Tell[str]) -> Ending:
        result, query = operation(actor, **arguments), Query()
        if shown.words is not None:
            told, query = shown.words(result)
        else:
            words = _words_of(result)
            told = f"Done. {title}{words and f' ({words})'}."
        return Ending(told, ("entry",), {"name": name, **query})

    return make_form_change(visit, title, change, partial(_refuse, shown), ("entry",), {"name": name})


def _refuse(shown: EntryAction, visit: Visit, error: RedBeatError, status: int) -> Response:
    field, words = "", error.plain
    if isinstance(error, ArgumentInvalid):
        field, words = error.field, error.reason
    return _form(shown, visit, {field: in_words_of(words, visit.zone)}, status)


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


def routes_of(shown: EntryAction) -> Sequence[BaseRoute]:
    """Return the routes of its page, and of the form there."""
    path, right = f"/{'/'.join(shown.path)}", shown.operation.right
    return [page(path, partial(_form, shown), right=right), action(path, partial(_call, shown), right=right)]
