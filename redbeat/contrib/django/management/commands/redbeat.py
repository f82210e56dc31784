"""``manage.py redbeat ...``: the command line, ``celery redbeat``, of the project's Celery app.

Invariant: it has the same commands, options, output and exit codes. Besides, Django's own options, such as
``--settings``, may stand anywhere.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack, redirect_stderr, redirect_stdout
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

#: the options that Django gives each command; those without a value, and those that it has read already
_COLOURS = ("--no-color", "--force-color")
_READ = ("--settings", "--pythonpath")


class Command(BaseCommand):
    """The command."""

    help = "Show and change the schedule that RedBeat keeps in Redis or Valkey; the same as celery redbeat."
    #: none: its own ``doctor`` says what is wrong
    requires_system_checks: Sequence[str] = ()

    def run_from_argv(self, argv: list[str]) -> None:
        """Do what the command line says, and end with its exit code."""
        words, colours = _parted(argv[2:])
        try:
            self._run(words, _name_of(argv[0], argv[1]), colours, standalone_mode=True)
        finally:
            connections.close_all()

    def print_help(self, prog_name: str, subcommand: str) -> None:
        """Print the help, for ``manage.py help redbeat``."""
        self._run(["--help"], _name_of(prog_name, subcommand), set(), standalone_mode=True)

    def create_parser(self, prog_name: str, subcommand: str, **options: Any) -> Any:
        """Return what takes Django's options out of the arguments, for ``call_command``."""
        parser = super().create_parser(prog_name, subcommand, **options)
        parse = parser.parse_args

        def parse_args(args: Sequence[Any], namespace: Any = None) -> Any:
            words, colours = _parted([str(one) for one in args])
            found = parse([*colours], namespace)
            found.words = words
            return found

        parser.parse_args = parse_args
        return parser

    def handle(self, *_args: Any, **options: Any) -> None:
        """Do what ``call_command`` was given.

        Raises:
            CommandError: it has ended with another exit code than 0, which is the ``returncode``.
        """
        colours = {option for option in _COLOURS if options.get(option.lstrip("-").replace("-", "_"))}
        with ExitStack() as streams:
            if options.get("stdout") is not None:
                streams.enter_context(redirect_stdout(options["stdout"]))
            if options.get("stderr") is not None:
                streams.enter_context(redirect_stderr(options["stderr"]))
            try:
                code = self._run(options["words"], "manage.py redbeat", colours, standalone_mode=False)
            except click.ClickException as exc:
                raise CommandError(exc.format_message(), returncode=exc.exit_code) from exc
        if isinstance(code, int) and code:
            raise CommandError(f"It has ended with the exit code {code}.", returncode=code)

    def _run(self, words: list[str], name: str, colours: set[str], *, standalone_mode: bool) -> Any:
        if "--force-color" in colours:
            os.environ["FORCE_COLOR"] = "1"  # as rich has it
        try:
            app = find_app()
        except ConfigurationError as exc:
            error = CommandLineError(str(exc), CONFIG)
            if not standalone_mode:
                raise error from exc
            error.show()
            sys.exit(CONFIG)
        context = CLIContext(app=app, no_color="--no-color" in colours, workdir=None)
        return redbeat.main(
            words,
            prog_name=name,
            standalone_mode=standalone_mode,
            obj=context,
            auto_envvar_prefix="CELERY_REDBEAT",
        )


def _name_of(program: str, subcommand: str) -> str:
    name = Path(program).name
    return f"{'python -m django' if name == '__main__.py' else name} {subcommand}"


def _parted(arguments: Sequence[str]) -> tuple[list[str], set[str]]:
    """Return the arguments without Django's own, and those of its options that are about colours."""
    words, colours = list[str](), set[str]()
    given = iter(arguments)
    for one in given:
        if one == "--":
            return [*words, one, *given], colours
        if one in _COLOURS:
            colours.add(one)
        elif one in _READ:
            next(given, None)
        elif one.partition("=")[0] not in _READ:
            words.append(one)
    return words, colours
