"""What all commands have in common: the application or a URL, the output, and errors in one sentence.

Owns the exit codes of errors. Invariant: no password is printed, and a wrong input ends in one sentence.
"""

from __future__ import annotations

import getpass
import json
import os
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from datetime import datetime, timezone, tzinfo
from functools import cached_property
from itertools import islice
from typing import Any, TypeVar, cast

import click
from celery import Celery
from rich.console import Console
from rich.text import Text

from redbeat import errors
from redbeat.access import Right
from redbeat.access.users import User
from redbeat.config.config import ensure_conf
from redbeat.config.masking import sanitize_url
from redbeat.config.suggestions import did_you_mean
from redbeat.entries.query import iter_names
from redbeat.entries.wording import one_line
from redbeat.layout import LayoutRule
from redbeat.log.text import printable, printable_json
from redbeat.operations.actor import Actor
from redbeat.process import exit_codes as exits
from redbeat.process.exit_codes import CommandLineError, ExitingCommand
from redbeat.schedules.times import TypedTime
from redbeat.store.server import Server
from redbeat.store.store import Store

Command = TypeVar("Command", bound=Callable[..., Any])

#: the exit code of a command that was ended by Ctrl-C
INTERRUPTED = 130
#: how many names are looked at for a suggestion
MAX_LOOKED_AT = 5000
#: how many rows are shown on a terminal by default
TERMINAL_ROWS = 50
#: the width where the output isn't a terminal
UNLIMITED_WIDTH = 10_000


def login_name() -> str:
    """Return the name of the user; '': the machine doesn't know it."""
    try:
        return os.environ.get("SUDO_USER") or getpass.getuser()
    except (OSError, KeyError, ImportError):  # a user id without a name, as in a container
        return ""


def is_interactive() -> bool:
    """Return True if there is a terminal on which to ask."""
    return sys.stdin.isatty()


class SessionCommand(ExitingCommand):
    """A command that reports each expected error in one sentence.

    If the reader of its output, such as ``head``, stops reading, it ends silently.

    Attributes:
        layout_rule: what it does if the schedule is divided otherwise than the settings say.
        leaves_out_unread: if a node of a cluster is away, it shows the rest, says on stderr which shards it
            leaves out, and ends with ``exits.UNAVAILABLE``.
    """

    layout_rule = LayoutRule.REFUSE
    leaves_out_unread = False

    def invoke(self, ctx: click.Context) -> Any:
        """Run it."""
        session = Session.of(ctx)
        session.keep_layout_rule(self.layout_rule)
        try:
            with session.leaving_out_unread() if self.leaves_out_unread else nullcontext():
                result = super().invoke(ctx)
            if sys.stdout is not None:  # None: the caller has closed it
                sys.stdout.flush()
        except BrokenPipeError:
            # Python writes the rest of the output when it ends, and would print an error then
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(0)
        except errors.RedBeatError as exc:
            raise session.error_of(exc) from None
        except (KeyboardInterrupt, click.Abort):
            raise CommandLineError("Interrupted.", INTERRUPTED) from None
        if session.unread_shards:
            ctx.exit(exits.UNAVAILABLE)
        return result


class AdoptingCommand(SessionCommand):
    """A command that goes by how the schedule is divided, whatever the settings say."""

    layout_rule = LayoutRule.ADOPT


class ReadingCommand(SessionCommand):
    """A command that shows what it can if a node of a cluster is away."""

    leaves_out_unread = True


class Session:
    """One call of ``celery redbeat``.

    Attributes:
        app: the Celery app: that of ``celery -A``, or one made for ``--url`` and ``--prefix``.
        has_own_app: it is that of ``celery -A``, so its tasks and its broker are known.
        console: where tables and words go; no colours where they aren't wanted.
        is_json, is_dry_run, is_yes: the options ``--json``, ``--dry-run`` and ``--yes``.
        chosen_zone, is_utc: the options ``--tz`` and ``--utc``.
        unread_shards: the numbers of the shards that the output leaves out, as their node is away.
    """

    is_json = is_dry_run = is_yes = is_utc = False
    chosen_zone: tzinfo | None = None

    def __init__(self, app: Any, url: str | None, prefix: str | None, no_color: bool) -> None:
        self.has_own_app = url is None
        if url is not None:
            app = Celery("redbeat", set_as_current=False)
            app.conf.redbeat_redis_url = url
        if prefix is not None:
            app.conf.redbeat_key_prefix = prefix
        self.app = app
        self.unread_shards: list[int | None] = []
        for stream in (sys.stdout, sys.stderr):  # the terminal may be unable to show a name
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="backslashreplace")
        self.console = _console(no_color)
        self._notes = _console(no_color, stderr=True)

    @classmethod
    def of(cls, ctx: click.Context) -> Session:
        """Return the session of the command that ``ctx`` belongs to."""
        return cast("Session", ctx.find_object(cls))  # the group has made it

    def keep_layout_rule(self, rule: LayoutRule) -> None:
        """Do what ``rule`` says if the schedule is divided otherwise than the settings say.

        Where only a URL was given, the settings aren't known.
        """
        with suppress(errors.ConfigurationError):  # a command that needs the settings reports the error
            ensure_conf(self.app).layout_rule = rule if self.has_own_app else LayoutRule.ADOPT

    @contextmanager
    def leaving_out_unread(self) -> Iterator[None]:
        """Within this, leave out the shards of nodes that are away, if others are there, and say so.

        That costs a round trip a node where the schedule is in shards in a cluster, else nothing.
        """
        config = ensure_conf(self.app)
        with Store.hasty(self.app) as store:
            unread = store.find_unread()
            if unread and len(unread) < len(store.parts):  # else the command itself reports the error
                reason = next(iter(unread.values())).plain
                self.note(f"This leaves out {config.layout.named(unread)}, which can't be read: {reason}")
                self.unread_shards = [config.layout.shard_of(keys) for keys in unread]
                config.unread = frozenset(keys.prefix for keys in unread)
        try:
            yield
        finally:
            config.unread = frozenset()

    @property
    def zone(self) -> tzinfo:
        """The time zone of all times in the output: that of ``--tz`` or ``--utc``, else the app's."""
        if self.chosen_zone is not None:
            return self.chosen_zone
        if self.is_utc:
            return timezone.utc
        try:
            zone: tzinfo = self.app.timezone
        except (ValueError, KeyError, OSError) as exc:
            raise errors.ConfigurationError(f"timezone: {one_line(exc)}") from exc
        return zone

    @cached_property
    def is_piped(self) -> bool:
        """Whether lines may have any length, as the output isn't a terminal, nor is its width set."""
        return self.console.width >= UNLIMITED_WIDTH

    @property
    def server(self) -> str:
        """The URL of the schedule's server, without its password."""
        return sanitize_url(ensure_conf(self.app).redis_url)

    def print_json(self, document: Any) -> None:
        """Print ``document`` as JSON on one line, for programs: no colours, no wrapping."""
        is_ascii = (sys.stdout.encoding or "utf-8").lower() not in ("utf-8", "utf8")
        click.echo(printable_json(json.dumps(document, ensure_ascii=is_ascii)))

    def echo(self, words: str) -> None:
        """Print a line that is never wrapped."""
        click.echo(printable(words))

    def write(self, document: str) -> None:
        """Print a document of several lines as it is; it is printable already."""
        click.echo(document.encode(), nl=False)

    def say(self, words: str | Text, style: str = "", indent: int = 0) -> None:
        """Print a sentence for people, on a terminal wrapped at words; brackets and ``:x:`` are no markup.

        Arguments:
            words: with styles of their own, or a text, of which control characters are made visible.
            indent: spaces in front of each line.
        """
        text = Text(printable(words), style) if isinstance(words, str) else words
        self.draw(self.wrapped(text, indent) if self.console.is_terminal else [text], indent)

    def wrapped(self, text: Text, indent: int) -> list[Text]:
        """Return a text in lines that have ``indent`` less than the width."""
        lines = list(text.wrap(self.console, max(self.console.width - indent, 10)))
        for line in lines:
            line.rstrip()
        return lines

    def draw(self, lines: Iterable[Text], indent: int = 0) -> None:
        """Print lines that were fitted to the width already."""
        for line in lines:
            line.pad_left(indent)
            self.console.print(line, soft_wrap=True)

    def list_some(self, title: str, lines: Sequence[str], most: int | None, rest: str = "--json") -> None:
        """Print a title, and below it at most so many lines; ``rest`` is the option that has all of them."""
        self.say(title, "bold")
        for line in lines[:most]:
            self.say(f"  {one_line(line)}")
        if most is not None and len(lines) > most:
            self.say(f"  and {len(lines) - most} more; {rest} shows them.")

    def note(self, words: str) -> None:
        """Print a line for people beside the output proper: to stderr, on a terminal wrapped at words."""
        self._notes.print(Text(printable(words)), soft_wrap=not self._notes.is_terminal)

    def report(self, document: Any, words: str) -> None:
        """Print ``document`` with ``--json``, else a sentence."""
        if self.is_json:
            self.print_json(document)
        else:
            self.say(words)

    def summarize(self, words: str) -> None:
        """Print a sentence after the output proper, which is JSON with ``--json``."""
        (self.note if self.is_json else self.say)(words)

    def ask(self, question: str) -> None:
        """Go on if ``--yes`` was given, or the user agrees; else end the command."""
        if self.is_yes:
            return
        if not is_interactive():
            raise CommandLineError("There is no terminal to ask you on: give --yes.", exits.USAGE)
        try:
            is_agreed = click.confirm(printable(question), err=True)
        except click.Abort:
            click.echo(err=True)  # so that the error begins on a new line
            raise
        if not is_agreed:
            raise CommandLineError("Nothing was done.", 1)

    def rows(self, limit: int | None) -> int | None:
        """Return how many rows ``--limit`` lets a command show; None: all."""
        if limit is None:
            return TERMINAL_ROWS if self.console.is_terminal and not self.is_json else None
        return limit or None

    def now(self) -> datetime:
        """Return the time of the server's clock, in UTC."""
        return Server(Store(self.app)).now()

    def time(self, typed: TypedTime) -> datetime:
        """Return the time that the user typed, by the server's clock and in the zone shown."""
        return typed.at(self.now(), self.zone)

    @cached_property
    def actor(self) -> Actor:
        """The user of this shell, who may do everything."""
        return Actor(self.app, User(login_name(), [Right.ADMIN]), "cli", socket.gethostname())

    def error_of(self, exc: errors.RedBeatError) -> CommandLineError:
        """Return an error in one sentence, with a suggestion for a missing entry."""
        words = one_line(exc, 2000)
        if isinstance(exc, errors.ArgumentInvalid):
            words = f"--{exc.field.replace('_', '-')}: {one_line(exc.reason, 2000)}"
        elif isinstance(exc, errors.CalendarNotFound):
            words = f"{self.server}: {words}"
        elif isinstance(exc, errors.EntryNotFound):
            layout, hint = ensure_conf(self.app).layout, ""
            if not exc.key.startswith(tuple(layout.by_prefix)):
                return CommandLineError(words, code_of(exc))
            name = layout.name_of(exc.key)
            with suppress(errors.RedBeatError):  # the user may not list the names
                hint = one_line(did_you_mean(name, islice(iter_names(self.app), MAX_LOOKED_AT)))
            place = Store(self.app).parts.of(name).schedule
            words = f"There is no entry {one_line(name)!r} in {place} at {self.server}.{hint}"
        return CommandLineError(words, code_of(exc))

    def require_application(
        self, command: str, why: str = "sends messages, and needs the application's broker and tasks"
    ) -> None:
        """End the command if only a URL was given, but it needs the application, as ``why`` says."""
        if not self.has_own_app:
            raise CommandLineError(
                f"{command} {why}: call it as celery -A APP redbeat {command}, without --url.", exits.USAGE
            )


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave it to the command, as rich did before 13.8."""
        raise BrokenPipeError


def _console(no_color: bool, *, stderr: bool = False) -> Console:
    console = _Console(no_color=no_color or None, stderr=stderr, highlight=False, emoji=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = UNLIMITED_WIDTH
    return console


#: the exit codes of errors; of all others it is ``exits.TRY_AGAIN``
_CODES = (
    ((errors.CalendarNotFound, errors.EntryNotFound), exits.NO_INPUT),
    (errors.ConfigurationError, exits.CONFIG),
    ((errors.ArgumentInvalid, errors.CallRefused), exits.USAGE),
    ((errors.StoreUnavailable, errors.RunNotSent), exits.UNAVAILABLE),
    (errors.StoreRefused, exits.NO_PERMISSION),
    ((errors.EntryBusy, errors.EntryChanged), exits.TRY_AGAIN),
    ((errors.EntryError, errors.CalendarError, errors.FileError), exits.USAGE),
)


def code_of(exc: errors.RedBeatError) -> int:
    """Return the exit code of a command that an error has ended."""
    return next((code for kind, code in _CODES if isinstance(exc, kind)), exits.TRY_AGAIN)
