"""``manage.py redbeat ...``: the command line, ``celery redbeat``, of the project's Celery app.

Invariant: it has the same commands, options, output and exit codes. Besides, Django's own options, such as
``--settings``, may stand anywhere.
"""

from __future__ import annotations

import os
import sys
from argparse import REMAINDER, ArgumentParser
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import click
from celery.bin.base import CLIContext
from django.core.management.base import BaseCommand, CommandError
from django.db import connections

from redbeat.cli import redbeat
from redbeat.contrib.django.celery_app import find_app
from redbeat.errors import ConfigurationError
from redbeat.process.exit_codes import CONFIG, CommandLineError


class Command(BaseCommand):
    """The command."""

    help = "Show and change the schedule that RedBeat keeps in Redis or Valkey; the same as celery redbeat."
    #: none: its own ``doctor`` says what is wrong
    requires_system_checks: Sequence[str] = ()

    def add_arguments(self, parser: Any) -> None:
        """Take everything, for ``call_command``."""
        parser.add_argument("words", nargs=REMAINDER)

    def run_from_argv(self, argv: list[str]) -> None:
        """Do what the command line says, and end with its exit code."""
        parser = ArgumentParser(add_help=False, allow_abbrev=False)
        for option in ("--settings", "--pythonpath"):  # Django has read these
            parser.add_argument(option)
        for option in ("--no-color", "--force-color"):
            parser.add_argument(option, action="store_true")
        options, words = parser.parse_known_args(argv[2:])
        program = Path(argv[0]).name
        name = f"{'python -m django' if program == '__main__.py' else program} {argv[1]}"
        try:
            _call(words, name, options.no_color, options.force_color)
        except CommandLineError as exc:
            exc.show()
            sys.exit(exc.exit_code)
        finally:
            connections.close_all()

    def print_help(self, prog_name: str, subcommand: str) -> None:
        """Print the help, for ``manage.py help redbeat``."""
        self.run_from_argv([prog_name, subcommand, "--help"])

    def handle(self, *_args: Any, **options: Any) -> None:
        """Do what ``call_command`` was given.

        Raises:
            CommandError: the exit code isn't 0; it is the ``returncode``.
        """
        out, err = options.get("stdout") or sys.stdout, options.get("stderr") or sys.stderr
        with redirect_stdout(out), redirect_stderr(err):
            try:
                code = _call(
                    options["words"],
                    "manage.py redbeat",
                    options["no_color"],
                    options["force_color"],
                    standalone_mode=False,
                )
            except click.ClickException as exc:
                raise CommandError(exc.format_message(), returncode=exc.exit_code) from exc
        if isinstance(code, int) and code:
            raise CommandError(f"It has ended with the exit code {code}.", returncode=code)


def _call(
    words: list[str], name: str, no_color: bool, force_color: bool, *, standalone_mode: bool = True
) -> Any:
    if force_color:
        os.environ["FORCE_COLOR"] = "1"  # as rich has it
    try:
        context = CLIContext(app=find_app(), no_color=no_color, workdir=None)
    except ConfigurationError as exc:
        raise CommandLineError(str(exc), CONFIG) from exc
    return redbeat.main(
        words,
        prog_name=name,
        standalone_mode=standalone_mode,
        obj=context,
        auto_envvar_prefix="CELERY_REDBEAT",
    )
