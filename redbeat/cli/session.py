"""What every command has: the application or a bare URL, where output goes, and errors in one sentence.

Owns the exit codes of errors. Invariant: no password is printed, and a wrong input ends in one sentence.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
from celery import Celery
from rich.console import Console

from redbeat import exits
from redbeat.config import ensure_conf
from redbeat.errors import (
    CalendarError,
    ConfigurationError,
    EntryError,
    EntryNotFound,
    RedBeatError,
    StoreRefused,
    StoreUnavailable,
)
from redbeat.exits import CommandLineError
from redbeat.keys import printable
from redbeat.urls import sanitize_url

__all__ = ["Session", "stating_errors"]


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
        self.console = Console(no_color=no_color or None, highlight=False, soft_wrap=False, emoji=False)

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
        """Print ``document`` as JSON, for programs: no colours, no wrapping."""
        click.echo(printable(json.dumps(document, ensure_ascii=False)))  # what is no UTF-8 stays an escape

    def say(self, words: str, style: str = "") -> None:
        """Print a line for people; what stands in brackets or between colons (``:x:``) is no markup."""
        words = printable(words).replace("\x1b", "\\x1b")  # a name may hold what moves the cursor
        self.console.print(words, style=style or None, markup=False, soft_wrap=True)


@contextmanager
def stating_errors() -> Iterator[None]:
    """End the command with one sentence, and the code that its cause has."""
    try:
        yield
    except RedBeatError as exc:
        raise CommandLineError(str(exc), _code_of(exc)) from None


def _code_of(exc: RedBeatError) -> int:
    if isinstance(exc, EntryNotFound):
        return exits.NO_INPUT
    if isinstance(exc, ConfigurationError):
        return exits.CONFIG
    if isinstance(exc, StoreUnavailable):
        return exits.UNAVAILABLE
    if isinstance(exc, StoreRefused):
        return exits.NO_PERMISSION
    if isinstance(exc, (EntryError, CalendarError)):
        return exits.USAGE
    return exits.TRY_AGAIN
