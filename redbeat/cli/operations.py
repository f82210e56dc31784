"""What commands derive from operations: options, and the steps of a change of named or matching entries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args, get_origin

import click

from redbeat.cli.names import nothing_matches
from redbeat.cli.progress import meter
from redbeat.cli.selection import ask_about, check_failures
from redbeat.cli.session import Command, Session
from redbeat.cli.values import AHEAD, BACK, JSON_ARRAY, JSON_OBJECT
from redbeat.entries.documents import document_of
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.pauses import PauseResult
from redbeat.entries.wording import one_line
from redbeat.errors import EntryError
from redbeat.operations.operation import Operation, Parameter
from redbeat.operations.selection import Selection
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
    return {list[Any]: JSON_ARRAY, dict[str, Any]: JSON_OBJECT}.get(kind, str)


def change_entries(
    session: Session,
    names: Sequence[str],
    change: Callable[[str], str],
    selection: Selection | None,
    change_many: Callable[..., PauseResult],
    words: tuple[str, str, str],
    *,
    is_dry_run: bool,
    is_yes: bool,
    is_json: bool,
) -> None:
    """Change the named entries, and after a question those that a selection finds.

    Arguments:
        change: changes one, and returns the sentence that says so.
        change_many: the operation that changes those of a selection.
        words: what the question says, what was done, and what is left alone, as 'Pause', 'paused' and
            'already paused or disabled'.
    """
    verb, done, resting = words
    found = PauseResult()
    if selection is not None:
        found = change_many(selection, dry_run=True)
        if not (found.changed or found.left or found.failed):
            raise nothing_matches(selection.match or "*")
    chosen = [name for name in sorted(found.changed) if name not in names]
    every = [*names, *chosen]
    left = len(found.left)
    if is_dry_run:
        for name in every:
            _show(session, name, one_line(name), is_json=is_json)
        session.note(_summary(len(every), f"would be {done}", left, resting))
        return
    if chosen:
        are = f"{left} {'is' if left == 1 else 'are'} {resting}." if left else ""
        ask_about(session, verb, chosen, are, is_yes=is_yes)
    if len(every) == 1 and selection is None:
        _show(session, names[0], change(names[0]), is_json=is_json)
        return
    failed = {}
    for name in names:
        try:
            _show(session, name, change(name), is_json=is_json)
        except EntryError as exc:
            failed[name] = str(exc)
    if selection is not None:
        result = PauseResult()
        if chosen:
            with meter(done.capitalize(), len(chosen)) as progress:
                confirmed = Selection(chosen, selection.match, is_whole=True)
                result = change_many(confirmed, progress=progress)
        for name in result.changed if is_json else ():
            _show(session, name, "", is_json=True)
        count = len(names) - len(failed) + len(result.changed)
        (session.note if is_json else session.say)(_summary(count, done, left + len(result.left), resting))
        failed |= result.failed
    check_failures(session, failed, len(every))


def _summary(count: int, done: str, left: int, resting: str) -> str:
    return f"{count} {done}" + (f", {left} {resting}, left alone." if left else ".")


def _show(session: Session, name: str, sentence: str, *, is_json: bool) -> None:
    if is_json:
        session.print_json(document_of(RedBeatSchedulerEntry.get(name, session.app)))
    else:
        session.say(sentence)
