"""Who carries out an operation, and what they may do."""

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
from redbeat.log.text import shorten
from redbeat.operations.hiding import Hiding, hide_details, hiding_of
from redbeat.operations.options import find_calls, find_trick
from redbeat.schedules.times import TypedTime
from redbeat.store.server import Server
from redbeat.store.store import Store


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

    def require_task(self, task: str) -> None:
        """Raise AccessDenied unless ``redbeat_web_tasks`` allows this task."""
        if not self.may_task(task):
            raise AccessDenied(
                f"The task {shorten(task, 200)!r} isn't one of redbeat_web_tasks, so it can't be run or "
                "scheduled from here.",
                field="task",
            )

    def require_call(self, task: str, options: Any) -> None:
        """Raise AccessDenied if this task may not be run or scheduled with these options from here."""
        if self.has_shell:
            return
        self.require_task(task)
        config = ensure_conf(self.app)
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

    def may_task(self, task: str) -> bool:
        """Return True if ``redbeat_web_tasks`` has this task."""
        return self.has_shell or any(
            fnmatchcase(task, pattern) for pattern in ensure_conf(self.app).web_tasks
        )

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
