"""Questions before many entries are changed or anything is removed; without a terminal ``--yes``."""

from __future__ import annotations

import sys

import click

from redbeat.log.text import printable
from redbeat.process import exit_codes as exits
from redbeat.process.exit_codes import CommandLineError

DRY_RUN = click.option("--dry-run", is_flag=True, help="Show what would be done, and change nothing.")
YES = click.option("--yes", is_flag=True, help="Don't ask for confirmation.")


def is_somebody_there() -> bool:
    """Tell whether there is a terminal on which to ask."""
    return sys.stdin.isatty()


def ask(question: str, *, is_yes: bool) -> None:
    """Go on if ``--yes`` was given, or the user agrees; else end the command."""
    if is_yes:
        return
    if not is_somebody_there():
        raise CommandLineError("There is no terminal to ask you on: give --yes.", exits.USAGE)
    try:
        is_yes = click.confirm(printable(question), err=True)
    except click.Abort:
        click.echo(err=True)  # so that the error begins on a new line
        raise
    if not is_yes:
        raise CommandLineError("Nothing was done.", 1)
