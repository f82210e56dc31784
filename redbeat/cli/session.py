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
from contextlib import contextmanager, suppress
from datetime import datetime, tzinfo
from functools import cached_property
from itertools import islice
from threading import Timer
from typing import Any, TypeVar

import click
from celery import Celery
from rich.console import Console
from rich.segment import Segment
from rich.text import Text

from redbeat.access import Right
from redbeat.access.users import User
from redbeat.config.config import ensure_conf
from redbeat.config.masking import sanitize_url
from redbeat.config.suggestions import did_you_mean
from redbeat.entries.query import iter_names
from redbeat.entries.wording import one_line
from redbeat.errors import (
    ArgumentInvalid,
    CalendarError,
    CalendarNotFound,
    CallRefused,
    ConfigurationError,
    EntryBusy,
    EntryChanged,
    EntryError,
    EntryNotFound,
    FileError,
    RedBeatError,
    RunNotSent,
    StoreRefused,
    StoreUnavailable,
)
from redbeat.keys import Keys
from redbeat.layout import LayoutRule
from redbeat.log.text import printable, printable_json, printable_lines
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
#: after this time Redis is asked whether it is there, and has as long as that to answer; seconds
LOOK_AFTER_SECONDS, ANSWER_SECONDS = 3.0, 2.0


def login_name() -> str:
    """Return the name of the user; '': the machine doesn't know it."""
    try:
        return os.environ.get("SUDO_USER") or getpass.getuser()
    except (OSError, KeyError, ImportError):  # a user id without a name, as in a container
        return ""


def is_interactive() -> bool:
    """Return True if there is a terminal on which to ask."""
    return sys.stdin.isatty()


@contextmanager
def ending_unread() -> Iterator[None]:
    """End the block silently if the reader of the output, such as ``head``, stops reading."""
    try:
        yield
        if sys.stdout is not None:  # None: the caller has closed it
            sys.stdout.flush()
    except BrokenPipeError:
        # Python writes the rest of the output when it ends, and would print an error then
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class SessionCommand(ExitingCommand):
    """A command that reports each expected error in one sentence.

    If the reader of its output, such as ``head``, stops reading, it ends silently.

    Attributes:
        layout_rule: what it does if the schedule is divided otherwise than the settings say.
    """

    layout_rule = LayoutRule.REFUSE

    def invoke(self, ctx: click.Context) -> Any:
        """Run it."""
        session = Session.of(ctx)
        session.keep_layout_rule(self.layout_rule)
        try:
            with ending_unread(), telling_of_silence(session), stating_errors(), session.suggesting_names():
                return super().invoke(ctx)
        except (KeyboardInterrupt, click.Abort):
            raise CommandLineError("Interrupted.", INTERRUPTED) from None


class AdoptingCommand(SessionCommand):
    """A command that goes by how the schedule is divided, whatever the settings say."""

    layout_rule = LayoutRule.ADOPT


class ReadingCommand(SessionCommand):
    """A command that shows what it can if a node of a cluster is away.

    It says on stderr which shards it leaves out, and ends with ``exits.UNAVAILABLE`` then.
    """

    def invoke(self, ctx: click.Context) -> Any:
        """Run it."""
        session = Session.of(ctx)
        session.keep_layout_rule(self.layout_rule)
        with stating_errors(), session.leaving_out_unread():
            result = super().invoke(ctx)
        if session.unread_shards:
            ctx.exit(exits.UNAVAILABLE)
        return result


class _Paper(Console):
    """A console whose only control characters are its own colours.

    It leaves a broken pipe to the command, as rich did before 13.8.
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
        console: where tables and words go; no colours where they aren't wanted.
        is_json, is_dry_run, is_yes: the options ``--json``, ``--dry-run`` and ``--yes``.
        unread_shards: the numbers of the shards that the output leaves out, as their node is away.
    """

    def __init__(self, app: Any, url: str | None, prefix: str | None, no_color: bool) -> None:
        self.has_own_app = url is None
        if url is not None:
            app = Celery("redbeat", set_as_current=False)
            app.conf.redbeat_redis_url = url
        if prefix is not None:
            app.conf.redbeat_key_prefix = prefix
        self.app = app
        self.unread_shards: list[int | None] = []
        self.is_json = self.is_dry_run = self.is_yes = False
        self._zone: tzinfo | None = None
        for stream in (sys.stdout, sys.stderr):  # the terminal may be unable to show a name
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="backslashreplace")
        self.console = _Paper(no_color=no_color or None, highlight=False, soft_wrap=False, emoji=False)
        if not self.console.is_terminal and "COLUMNS" not in os.environ:
            self.console.width = UNLIMITED_WIDTH

    @classmethod
    def of(cls, ctx: click.Context) -> Session:
        """Return the session of the command that ``ctx`` belongs to."""
        found = ctx.find_object(cls)
        if found is None:  # the command was called without the group, as in a test
            found = ctx.obj = cls(ctx.obj.app, None, None, bool(ctx.obj.no_color))
        found._zone = ctx.meta.get("redbeat.zone")
        found.is_json, found.is_dry_run, found.is_yes = (
            bool(ctx.meta.get(f"redbeat.{flag}")) for flag in ("is_json", "is_dry_run", "is_yes")
        )
        return found

    def keep_layout_rule(self, rule: LayoutRule) -> None:
        """Do what ``rule`` says if the schedule is divided otherwise than the settings say.

        Where only a URL was given, the settings aren't known.
        """
        with suppress(ConfigurationError):  # whoever needs the settings says what is wrong with them
            ensure_conf(self.app).layout_rule = rule if self.has_own_app else LayoutRule.ADOPT

    @contextmanager
    def leaving_out_unread(self) -> Iterator[None]:
        """Within this, leave out the shards of nodes that are away, if others are there, and say so.

        That costs a round trip a node where the schedule is in shards in a cluster, else nothing.
        """
        config = ensure_conf(self.app)
        unread: dict[Keys, StoreUnavailable] = {}
        if config.is_cluster:
            with Store.hasty(self.app) as store:
                unread = store.find_unread()
                if len(unread) == len(store.parts):
                    unread = {}  # the command itself says why
        layout = config.layout
        self.unread_shards = [layout.shard_of(keys) for keys in unread]
        if unread:
            reason = next(iter(unread.values())).plain
            self.note(f"This leaves out {layout.named(unread)}, which can't be read: {reason}")
        config.unread = frozenset(keys.prefix for keys in unread)
        try:
            yield
        finally:
            config.unread = frozenset()

    @property
    def zone(self) -> tzinfo:
        """The time zone of all times in the output: that of ``--tz`` or ``--utc``, else the app's."""
        if self._zone is not None:
            return self._zone
        try:
            zone: tzinfo = self.app.timezone
        except (ValueError, KeyError, OSError) as exc:
            raise ConfigurationError(f"timezone: {one_line(exc)}") from exc
        return zone

    @property
    def is_on_terminal(self) -> bool:
        """Whether the output is a terminal, on which a thousand rows are too many."""
        return self.console.is_terminal

    @property
    def is_piped(self) -> bool:
        """Whether lines may have any length, as the output isn't a terminal, nor is its width set."""
        return self.console.width >= UNLIMITED_WIDTH

    @property
    def server(self) -> str:
        """The URL of the schedule's server, without its password."""
        return sanitize_url(ensure_conf(self.app).redis_url)

    def print_json(self, document: Any) -> None:
        """Print ``document`` as JSON on one line, for programs: no colours, no wrapping."""
        text = printable_json(json.dumps(document, ensure_ascii=False))
        try:
            text.encode(sys.stdout.encoding or "utf-8")
        except UnicodeEncodeError:
            text = json.dumps(document)
        click.echo(text)

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
        lines = [text]
        if self.is_on_terminal:
            lines = list(text.wrap(self.console, max(self.console.width - indent, 10)))
        for line in lines:
            line.rstrip()
            line.pad_left(indent)
        self.draw(lines)

    def list_some(self, title: str, lines: Sequence[str], most: int | None, rest: str = "--json") -> None:
        """Print a title, and below it at most so many lines; ``rest`` is the option that has all of them."""
        self.say(title, "bold")
        for line in lines[:most]:
            self.say(f"  {one_line(line)}")
        if most is not None and len(lines) > most:
            self.say(f"  and {len(lines) - most} more; {rest} shows them.")

    def draw(self, lines: Iterable[Text]) -> None:
        """Print lines that were fitted to the width already."""
        for line in lines:
            self.console.print(line, soft_wrap=True)

    def note(self, words: str) -> None:
        """Print a line for people beside the output proper: to stderr, on a terminal wrapped at words."""
        lines = [printable(words)]
        if sys.stderr is not None and sys.stderr.isatty():
            wrapped = Text(lines[0]).wrap(self.console, Console(stderr=True).width)
            lines = [line.plain.rstrip() for line in wrapped]
        click.echo("\n".join(lines), err=True)

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
            return TERMINAL_ROWS if self.is_on_terminal and not self.is_json else None
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

    @contextmanager
    def suggesting_names(self) -> Iterator[None]:
        """Within this, end the command with a suggestion if the user names an entry that isn't stored."""
        try:
            yield
        except EntryNotFound as exc:
            layout = ensure_conf(self.app).layout
            if not exc.key.startswith(tuple(layout.by_prefix)):
                raise
            name, hint = layout.name_of(exc.key), ""
            with suppress(StoreRefused):  # the user may not list the names
                hint = one_line(did_you_mean(name, islice(iter_names(self.app), MAX_LOOKED_AT)))
            place = Store(self.app).parts.of(name).schedule
            raise CommandLineError(
                f"There is no entry {one_line(name)!r} in {place} at {self.server}.{hint}", exits.NO_INPUT
            ) from None

    def require_application(
        self, command: str, why: str = "sends messages, and needs the application's broker and tasks"
    ) -> None:
        """End the command if only a URL was given, but it needs the application, as ``why`` says."""
        if not self.has_own_app:
            raise CommandLineError(
                f"{command} {why}: call it as celery -A APP redbeat {command}, without --url.", exits.USAGE
            )


@contextmanager
def stating_errors() -> Iterator[None]:
    """End the command with one sentence, and the exit code that belongs to its cause."""
    try:
        yield
    except ArgumentInvalid as exc:
        option = exc.field.replace("_", "-")
        raise CommandLineError(f"--{option}: {one_line(exc.reason, 2000)}", exits.USAGE) from None
    except RedBeatError as exc:
        said = one_line(exc, 2000)
        raise CommandLineError(said, code_of(exc)) from None
    except click.UsageError as exc:
        raise CommandLineError(exc.format_message(), exits.USAGE) from None


#: the exit codes of errors; of all others it is ``exits.TRY_AGAIN``
_CODES = (
    ((CalendarNotFound, EntryNotFound), exits.NO_INPUT),
    (ConfigurationError, exits.CONFIG),
    (CallRefused, exits.USAGE),
    ((StoreUnavailable, RunNotSent), exits.UNAVAILABLE),
    (StoreRefused, exits.NO_PERMISSION),
    ((EntryBusy, EntryChanged), exits.TRY_AGAIN),
    ((EntryError, CalendarError, FileError), exits.USAGE),
)


def code_of(exc: RedBeatError) -> int:
    """Return the exit code of a command that an error has ended."""
    return next((code for kind, code in _CODES if isinstance(exc, kind)), exits.TRY_AGAIN)


@contextmanager
def telling_of_silence(session: Session) -> Iterator[None]:
    """Within this, tell on stderr once if Redis doesn't answer after some seconds."""
    timer = Timer(LOOK_AFTER_SECONDS, _tell_if_silent, (session,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _tell_if_silent(session: Session) -> None:
    """Ask Redis for the time, on a connection of its own, and say so if it doesn't answer.

    So it isn't said where the command itself takes long, or waits for the user.
    """
    try:
        with Store.hasty(session.app, ANSWER_SECONDS) as store:
            Server(store).now()
    except StoreUnavailable:
        session.note(f"Redis at {one_line(session.server)} doesn't answer yet …")
    except RedBeatError:  # the command itself tells of it
        return
