"""Questions before something is removed: asked on a terminal, refused where nobody can answer."""

from __future__ import annotations

import sys

import click

from redbeat import exits
from redbeat.exits import CommandLineError

__all__ = ["ask"]


def ask(question: str, *, is_yes: bool) -> None:
    """Go on if ``--yes`` was given, or somebody says so; else end the command."""
    if is_yes:
        return
    if not sys.stdin.isatty():
        raise CommandLineError("Nobody can be asked here, without a terminal: give --yes.", exits.USAGE)
    try:
        is_yes = click.confirm(question, err=True)
    except click.Abort:
        click.echo(err=True)  # the error isn't to stand behind the question
        raise
    if not is_yes:
        raise CommandLineError("Nothing was done.", 1)
