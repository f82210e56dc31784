"""Who carries out an operation, and what they may do.

Invariant: a user who may give a task some options can't have another task run by them, nor write to a key of
RedBeat's own, by the name of a queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, tzinfo
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

from redbeat.access import Right
from redbeat.access.users import User
from redbeat.config.config import ensure_conf
from redbeat.entries.audit import audited
from redbeat.errors import AccessDenied
from redbeat.keys import Keys
from redbeat.log.text import shorten
from redbeat.operations.hiding import Hiding, hide_details, hiding_of
from redbeat.schedules.times import TypedTime
from redbeat.store.server import Server
from redbeat.store.store import Store

#: the options with signatures in them, which a worker calls after the task or in place of its result
CALLS = ("link", "link_error", "chain", "chord")
#: the headers that a worker takes for what Celery itself has said: of another task, under another id,
#: with calls behind it, or with these headers once more when it is tried again
HEADERS = ("task", "id", "headers", *("callbacks", "errbacks", "chain", "chord"))
#: the options that name the key of a list, where the broker is Redis
PLACES = ("queue", "routing_key", "reply_to")


@dataclass(frozen=True)
class Actor:
    """A user on one surface.

    Attributes:
        app: the Celery app.
        user: with their rights.
        source: the surface: 'cli', 'web', 'api' or, in Django's admin, 'admin'. Who has a shell may run any
            task, and sees what ``redbeat_web_hide`` hides.
        address: of their browser or program, or the machine of their shell; '' where it isn't known.
        zone: of times without an offset; None: that of the entry they are about.
    """

    app: Any
    user: User
    source: str
    address: str = ""
    zone: tzinfo | None = None

    @property
    def has_shell(self) -> bool:
        """Whether the actor uses the command line."""
        return self.source == "cli"

    @cached_property
    def hiding(self) -> Hiding:
        """Which arguments are hidden from the actor."""
        return Hiding(()) if self.has_shell else hiding_of(self.app)

    @cached_property
    def now(self) -> datetime:
        """The server's clock, UTC, at the first time that it was asked for."""
        return Server(Store(self.app)).now()

    def time(self, given: TypedTime | datetime, zone: tzinfo | None = None) -> datetime:
        """Return a time in UTC; a typed one is read in the actor's zone, else in ``zone`` or the app's."""
        if isinstance(given, datetime):
            return given
        return given.at(self.now, self.zone or zone or self.app.timezone)

    def require(self, right: Right) -> None:
        """Raise AccessDenied unless the actor has ``right``."""
        self.user.require(right)

    def require_call(self, task: str, options: Any) -> None:
        """Raise AccessDenied if this task may not be run or scheduled with these options from here."""
        if self.has_shell:
            return
        config = ensure_conf(self.app)
        if not any(fnmatchcase(task, pattern) for pattern in config.web_tasks):
            raise AccessDenied(
                f"The task {shorten(task, 200)!r} isn't one of redbeat_web_tasks, so it can't be run or "
                "scheduled from here.",
                field="task",
            )
        trick = find_trick(options, config.keys)
        if trick is not None:
            raise AccessDenied(f"{trick} It can't be given from here.", field="options")
        calls = find_calls(options)
        if calls is not None and "*" not in config.web_tasks:
            raise AccessDenied(
                f"options: {calls}: it has further tasks run. As redbeat_web_tasks doesn't allow all, it "
                "can't be given from here, and an entry with it can't be run or changed.",
                field="options",
            )

    def may_call(self, task: str, options: Any) -> bool:
        """Return True if this task may be run with these options from here."""
        try:
            self.require_call(task, options)
        except AccessDenied:
            return False
        return True

    @contextmanager
    def doing(
        self,
        verb: str,
        names: Iterable[str],
        details: Mapping[str, Any] | None = None,
        *tasks: Any,
        before: Mapping[str, Any] | None = None,
    ) -> Iterator[None]:
        """Write into the audit list that they do this, and whether it has failed.

        Arguments:
            tasks: whose arguments are among the details.
            before: what some of the details were before.
        """
        shown, was = (hide_details(one or {}, self.hiding, *tasks) for one in (details, before))
        with audited(
            self.app, self.user.name, self.source, verb, names, shown, host=self.address, before=was
        ):
            yield


def find_calls(options: Any) -> str | None:
    """Return the name of an option that has further tasks run; None: there is none."""
    return next((name for name in CALLS if _fields(options).get(name)), None)


def find_trick(options: Any, keys: Keys) -> str | None:
    """Return a sentence about options that have no good use; None: there are none."""
    given = _fields(options)
    for name in HEADERS:
        if name in _fields(given.get("headers")):
            return f"options: headers: {name!r} is Celery's own."
    for name in PLACES:
        value = given.get(name)
        if isinstance(value, str) and keys.owns(value):
            return f"options: {name}: {value!r} is a key of RedBeat's own in Redis."
    return None


def _fields(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
