"""The options of commands, derived from the parameters of operations."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import Any, Literal, get_args, get_origin

import click

from redbeat.cli.session import Command
from redbeat.cli.values import AHEAD, BACK, DATE, JSON_ARRAY, JSON_OBJECT
from redbeat.operations.operation import Operation, Parameter
from redbeat.schedules.times import TypedTime


def options_of(operation: Operation[..., Any], *names: str) -> Callable[[Command], Command]:
    """Return a decorator that gives a command the options of an operation's parameters, by their names."""
    parameters = {one.name: one for one in operation.parameters}

    def add(command: Command) -> Command:
        for name in reversed(names):
            command = _option_of(parameters[name])(command)
        return command

    return add


def _option_of(parameter: Parameter) -> Callable[[Command], Command]:
    option, flag = parameter.option, f"--{parameter.name.replace('_', '-')}"
    if parameter.type is bool:
        return click.option(flag, parameter.argument, is_flag=True, help=option.help)
    return click.option(
        *(flag, parameter.argument),
        type=_type_of(parameter),
        help=option.help,
        default=parameter.default,
        required=parameter.is_required,
        metavar="TEXT" if parameter.type is str else None,
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
    if get_origin(kind) is Literal:
        return click.Choice(get_args(kind))
    return {list[Any]: JSON_ARRAY, dict[str, Any]: JSON_OBJECT, date: DATE}.get(kind, str)
