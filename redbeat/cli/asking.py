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
    if not click.confirm(question, err=True):
        raise CommandLineError("Nothing was done.", 1)
