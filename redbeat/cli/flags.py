"""The options that many commands share.

A command doesn't take ``--json``, ``--tz``, ``--dry-run`` and ``--yes`` as parameters: its session has them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import click

from redbeat.cli.session import TERMINAL_ROWS, Session
from redbeat.cli.values import ZONE as ZONE_TYPE

Command = TypeVar("Command", bound=Callable[..., Any])
Decorator = Callable[[Command], Command]


def pass_session(command: Callable[..., Any]) -> Callable[..., Any]:
    """Call ``command`` with its session first."""

    @click.pass_context
    @wraps(command)
    def call(ctx: click.Context, /, *args: Any, **kwargs: Any) -> Any:
        return command(Session.of(ctx), *args, **kwargs)

    return call


def _note(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
    session = ctx.find_object(Session)
    if value is not None and session is not None:  # None: the shell completes the line
        setattr(session, str(parameter.name), value)


def _flag(*names: str, text: str) -> Decorator[Any]:
    return click.option(*names, is_flag=True, expose_value=False, callback=_note, help=text)


def json_flag(what: str) -> Decorator[Any]:
    """Return the option ``--json`` of a command that prints ``what`` then."""
    return _flag("--json", "is_json", text=f"Print {what}.")


ONE_OBJECT = json_flag("one JSON object")
OBJECT_PER_ENTRY = json_flag("JSON: one object per entry and line")
OBJECT_PER_RUN = json_flag("JSON: one object per run and line")
DRY_RUN = _flag("--dry-run", "is_dry_run", text="Show what would be done, and change nothing.")
YES = _flag("--yes", "is_yes", text="Don't ask for confirmation.")
LIMIT = click.option(
    "--limit",
    type=click.IntRange(0),
    help=f"Show at most this many rows; 0 shows all. Default: {TERMINAL_ROWS} on a terminal, else all.",
)


def zone_options(command: Command) -> Command:
    """Give ``command`` the options ``--tz`` and ``--utc``."""
    tz = click.option(
        "--tz",
        "chosen_zone",
        type=ZONE_TYPE,
        expose_value=False,
        callback=_note,
        help="Show times in this zone, such as Europe/Berlin. Default: the application's.",
    )
    utc: Decorator[Command] = _flag("--utc", "is_utc", text="Show times in UTC.")
    return tz(utc(command))


def _match_option(which: str) -> Decorator[Any]:
    text = f"{which} entries whose name matches; * and ? are wildcards, case-sensitive."
    return click.option("--match", metavar="PATTERN", help=text)


#: of commands that change entries; of those that show entries
INSTEAD_OF_NAME, ONLY_MATCHING = map(_match_option, ("Instead of NAME, all", "Only"))
