"""What the command line derives from an operation: the options of a command, or the whole command."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, is_dataclass
from datetime import date
from typing import Any, Literal, get_args, get_origin

import click

from redbeat.cli.parameters import (
    AHEAD,
    BACK,
    DATE,
    DRY_RUN,
    JSON_ARRAY,
    JSON_OBJECT,
    ONE_OBJECT,
    YES,
    pass_session,
    zone_options,
)
from redbeat.cli.session import Command, Session, SessionCommand
from redbeat.cli.tables import print_fields
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.wording import one_line
from redbeat.operations.operation import Operation, Parameter
from redbeat.schedules.times import TypedTime


def options_of(operation: Operation[..., Any], *names: str) -> Callable[[Command], Command]:
    """Return a decorator that gives a command the options of an operation's parameters, by their names."""
    parameters = {one.name: one for one in operation.parameters}

    def add(command: Command) -> Command:
        for name in reversed(names):
            command = _option_of(parameters[name], parameters[name].argument)(command)
        return command

    return add


def command_of(operation: Operation[..., Any]) -> click.Command:
    """Return the command of an operation, of which no module of the command line has a command of its own.

    What stands in the braces of its path are arguments, other parameters are options. It asks first if the
    operation is destructive, and prints the fields of the result.
    """
    arguments = {one.name for one in operation.parameters if f"{{{one.name}}}" in operation.rest}

    def call(session: Session, **given: Any) -> None:
        if operation.is_destructive and not session.is_dry_run:
            named = ", ".join(one_line(given[name], 200) for name in given if name in arguments)
            place = f"{session.server} ({named})" if named else session.server
            session.ask(f"{operation.summary.rstrip('.')} at {place}?")
        values = {name: value for name, value in given.items() if value is not None}
        for name, value in given.items():
            if isinstance(value, tuple):  # an option that may be repeated: empty if it isn't given
                values[name] = [*value] or None
        if any(one.name == "dry_run" for one in operation.parameters):
            values["dry_run"] = session.is_dry_run
        _print_result(session, operation(session.actor, **operation.arguments(values)))

    call.__doc__ = operation.__doc__
    made: Any = pass_session(call)
    for add in (ONE_OBJECT, zone_options, *([YES] if operation.is_destructive else [])):
        made = add(made)
    for one in reversed(operation.parameters):
        if one.name in arguments:
            made = click.argument(one.name)(made)
        elif one.name == "dry_run":
            made = DRY_RUN(made)
        elif not one.option.header:
            made = _option_of(one, one.name)(made)
    return click.command(operation.command, cls=SessionCommand, short_help=operation.summary)(made)


def _print_result(session: Session, result: Any) -> None:
    fields = asdict(result) if is_dataclass(result) and not isinstance(result, type) else {"result": result}
    document = json.loads(json.dumps(fields, default=_text_of))
    if session.is_json:
        session.print_json(document)
    else:
        texts = {
            name: one if isinstance(one, str) else json.dumps(one, ensure_ascii=False)
            for name, one in document.items()
        }
        print_fields(session, [(name.replace("_", " "), one_line(text)) for name, text in texts.items()])


def _text_of(value: Any) -> str:
    if isinstance(value, RedBeatSchedulerEntry):
        return str(value.name)
    return value.isoformat() if isinstance(value, date) else str(value)


def _option_of(parameter: Parameter, argument: str) -> Callable[[Command], Command]:
    option, flag = parameter.option, f"--{parameter.name.replace('_', '-')}"
    if parameter.type is bool:
        return click.option(flag, argument, is_flag=True, help=option.help)
    is_list = get_origin(parameter.type) is list and parameter.type != list[Any]
    # click takes a default of None for a value, and requires none then
    default: dict[str, Any] = {} if parameter.is_required else {"default": parameter.default}
    return click.option(
        *(flag, argument),
        multiple=is_list,
        type=_type_of(parameter),
        help=option.help,
        **default,
        required=parameter.is_required,
        show_default=parameter.default is not None,
        metavar=("PATTERN" if option.is_pattern else "TEXT")
        if parameter.type is str and not option.choices
        else None,
    )


def _type_of(parameter: Parameter) -> Any:
    kind, option = parameter.type, parameter.option
    if kind is TypedTime:
        return AHEAD if option.ahead else BACK
    if kind is int:
        least, most = (None if one is None else int(one) for one in (option.least, option.most))
        return click.IntRange(least, most)
    if kind is float:
        return click.FloatRange(option.least, option.most)
    choices = get_args(kind) if get_origin(kind) is Literal else option.choices
    if choices:
        return click.Choice(choices)
    return {list[Any]: JSON_ARRAY, dict[str, Any]: JSON_OBJECT, date: DATE}.get(kind, str)
