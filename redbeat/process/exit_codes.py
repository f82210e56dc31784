"""How a command ends: exit codes, and errors of the command line that carry them.

Invariant: every mistake of the user's ends with one sentence and a code of sysexits.h. Click's own code for
wrong options, 2, isn't used: it means "late" in ``celery redbeat status``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from redbeat.log.text import printable

# ``os`` has these codes on POSIX only
USAGE = getattr(os, "EX_USAGE", 64)  #: wrong options
NO_INPUT = getattr(os, "EX_NOINPUT", 66)  #: a file that can't be read
UNAVAILABLE = getattr(os, "EX_UNAVAILABLE", 69)  #: a program that is missing
CANNOT_CREATE = getattr(os, "EX_CANTCREAT", 73)  #: a file that can't be written
TRY_AGAIN = getattr(os, "EX_TEMPFAIL", 75)  #: what may work later
NO_PERMISSION = getattr(os, "EX_NOPERM", 77)  #: Redis refuses
CONFIG = getattr(os, "EX_CONFIG", 78)  #: wrong settings

#: the longest time that an option takes: 30 years
MAX_SECONDS = 1e9


class CommandLineError(click.ClickException):
    """A sentence for stderr, and the code with which the command ends."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(printable(message))
        self.exit_code = exit_code  # type: ignore[misc]


class ExitingCommand(click.Command):
    """A command that ends with ``USAGE`` after wrong options."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Parse the options."""
        with _usage_errors_apart():
            return super().make_context(*args, **kwargs)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the options; name the place of one that belongs before the command."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as exc:
            group = ctx.parent
            while group is not None and not any(exc.option_name in one.opts for one in group.command.params):
                group = group.parent
            if group is None:
                raise
            rest = ctx.command_path.removeprefix(group.command_path)
            usage = f"{group.command_path} {exc.option_name} ...{rest}"
            raise click.UsageError(f"{exc.option_name} belongs before the command: {usage}", ctx) from None


class ExitingGroup(ExitingCommand, click.Group):
    """A group of such commands."""

    command_class = ExitingCommand

    def resolve_command(self, *args: Any) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is named."""
        with _usage_errors_apart():
            return super().resolve_command(*args)


@contextmanager
def _usage_errors_apart() -> Iterator[None]:
    try:
        yield
    except click.UsageError as exc:
        if type(exc).__name__ == "NoArgsIsHelpError":  # shows the help; not in every version of click
            exc.exit_code = USAGE  # type: ignore[misc]
            raise
        message = exc.format_message()
        if isinstance(exc, click.MissingParameter):  # click writes a line for each choice
            message = " ".join(message.split())
        raise CommandLineError(message, USAGE) from None


def is_beat_command() -> bool:
    """Return True if this is the program ``celery beat``."""
    context = click.get_current_context(silent=True)
    return context is not None and context.info_name == "beat"


class Seconds(click.FloatRange):
    """A number of seconds, at most ``MAX_SECONDS``."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return it; a usage error if it is out of range, or not a number."""
        try:
            seconds = float(value)
        except ValueError:  # click would say "not a valid seconds"
            seconds = math.nan
        if not seconds <= MAX_SECONDS:
            self.fail(f"{value} is not a number of seconds.", param, ctx)
        return float(super().convert(seconds, param, ctx))


def not_empty(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    """Return ``value``; a usage error if it is '', as from a shell variable that isn't set."""
    if value == "":
        raise click.BadParameter("it is empty.")
    return value
