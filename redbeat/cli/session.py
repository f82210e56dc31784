"""What every command has: the application or a bare URL, where output goes, and errors in one sentence.

Owns the exit codes of errors. Invariant: no password is printed, and a wrong input ends in one sentence.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import click
from celery import Celery
from rich.console import Console
from rich.segment import Segment

from redbeat import exits
from redbeat.archive import server_now
from redbeat.cli.words import one_line
from redbeat.config import ensure_conf
from redbeat.errors import (
    CalendarError,
    ConfigurationError,
    EntryChanged,
    EntryError,
    EntryNotFound,
    FileError,
    RedBeatError,
    StoreRefused,
    StoreUnavailable,
)
from redbeat.exits import CommandLineError, ExitingCommand
from redbeat.store import Store
from redbeat.text import printable, printable_json, printable_lines
from redbeat.urls import sanitize_url

__all__ = ["Session", "SessionCommand", "stating_errors"]

#: what a shell says of a command that Ctrl-C has ended
INTERRUPTED = 130
#: where output isn't a terminal, nothing is cut
UNLIMITED_WIDTH = 10_000


class SessionCommand(ExitingCommand):
    """A command that says what went wrong in one sentence, whatever it was that may go wrong.

    A reader of its output that has seen enough, as ``head``, ends it without a word.
    """

    def invoke(self, ctx: click.Context) -> Any:
        """Run it."""
        try:
            with stating_errors():
                done = super().invoke(ctx)
                if sys.stdout is not None:  # closed by whoever has called
                    sys.stdout.flush()
                return done
        except (KeyboardInterrupt, click.Abort):
            raise CommandLineError("Interrupted.", INTERRUPTED) from None
        except BrokenPipeError:
            # Python writes what is left at its end, and would complain then
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(0)


class _Paper(Console):
    """A console that prints no orders to the terminal but its own colours.

    What a broken pipe means it leaves to the command, as rich did before 13.8.
    """

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError

    def render(self, *args: Any, **kwargs: Any) -> Iterable[Segment]:
        for segment in super().render(*args, **kwargs):
            is_shown = segment.control or segment.text.isprintable()
            yield segment if is_shown else Segment(printable_lines(segment.text), segment.style)


class Session:
    """One call of ``celery redbeat``.

    Attributes:
        app: the Celery app: that of ``celery -A``, or one made for ``--url`` and ``--prefix``.
        has_own_app: it is that of ``celery -A``, so its tasks and its broker are known.
        no_color: whether colours were refused on the command line.
        console: where tables and words go; no colours where they aren't wanted.
    """

    def __init__(self, app: Any, url: str | None, prefix: str | None, no_color: bool) -> None:
        self.has_own_app = url is None
        self.no_color = no_color
        if url is not None:
            app = Celery("redbeat", set_as_current=False)
            app.conf.redbeat_redis_url = url
        if prefix is not None:
            app.conf.redbeat_key_prefix = prefix
        self.app = app
        for stream in (sys.stdout, sys.stderr):  # a name that the terminal has no letters for
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="backslashreplace")
        self.console = _Paper(no_color=no_color or None, highlight=False, soft_wrap=False, emoji=False)
        if not self.console.is_terminal and "COLUMNS" not in os.environ:
            self.console.width = UNLIMITED_WIDTH

    @classmethod
    def of(cls, ctx: click.Context) -> Session:
        """Return the session of the command that ``ctx`` belongs to."""
        found = ctx.find_object(cls)
        if found is None:  # called without the group, as by a test
            found = ctx.obj = cls(ctx.obj.app, None, None, bool(ctx.obj.no_color))
        return found

    @property
    def server(self) -> str:
        """Where the schedule is, without a password."""
        return sanitize_url(ensure_conf(self.app).redis_url)

    def print_json(self, document: Any) -> None:
        """Print ``document`` as JSON on one line, for programs: no colours, no wrapping."""
        text = printable_json(json.dumps(document, ensure_ascii=False))
        try:
            text.encode(sys.stdout.encoding or "utf-8")
        except UnicodeEncodeError:
            text = json.dumps(document)
        click.echo(text)

    def echo(self, *parts: str | tuple[str, str]) -> None:
        """Print a line that is never wrapped, of words, and words with a colour, one after the other."""
        pieces = [(part, "") if isinstance(part, str) else part for part in parts]
        styled = [
            click.style(printable(text), fg=colour, bold=True) if colour else printable(text)
            for text, colour in pieces
        ]
        click.echo("".join(styled), color=False if self.no_color else None)

    def write(self, document: str) -> None:
        """Print a document of several lines as it is: its form has seen to what doesn't print."""
        click.echo(document.encode(), nl=False)

    def say(self, words: str, style: str = "") -> None:
        """Print a line for people; what stands in brackets or between colons (``:x:``) is no markup."""
        self.console.print(printable(words), style=style or None, markup=False, soft_wrap=True)

    def note(self, words: str) -> None:
        """Print a line for people beside the output proper: to stderr."""
        click.echo(printable(words), err=True)

    def now(self) -> datetime:
        """Return the server's clock, UTC."""
        return server_now(Store(self.app))

    def require_application(
        self, command: str, why: str = "sends messages, and needs the application's broker and tasks"
    ) -> None:
        """Refuse what the application is needed for, as ``why`` says, where only a URL was given."""
        if not self.has_own_app:
            raise CommandLineError(
                f"{command} {why}: call it as celery -A APP redbeat {command}, without --url.", exits.USAGE
            )


@contextmanager
def stating_errors() -> Iterator[None]:
    """End the command with one sentence, and the code that its cause has."""
    try:
        yield
    except RedBeatError as exc:
        raise CommandLineError(one_line(exc, 2000), _code_of(exc)) from None
    except click.UsageError as exc:
        raise CommandLineError(exc.format_message(), exits.USAGE) from None


def _code_of(exc: RedBeatError) -> int:
    if isinstance(exc, EntryNotFound):
        return exits.NO_INPUT
    if isinstance(exc, ConfigurationError):
        return exits.CONFIG
    if isinstance(exc, StoreUnavailable):
        return exits.UNAVAILABLE
    if isinstance(exc, StoreRefused):
        return exits.NO_PERMISSION
    if isinstance(exc, EntryChanged):
        return exits.TRY_AGAIN
    if isinstance(exc, (EntryError, CalendarError, FileError)):
        return exits.USAGE
    return exits.TRY_AGAIN
