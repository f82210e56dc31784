"""Who does something, and what they may: the first argument of every verb."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from redbeat.access import Right
from redbeat.access.users import User
from redbeat.config.config import ensure_conf
from redbeat.entries.audit import audited
from redbeat.errors import AccessDenied
from redbeat.log.text import shorten
from redbeat.operations.hiding import hide_details, hiding_of
from redbeat.operations.options import find_calls, find_trick


@dataclass(frozen=True)
class Actor:
    """Somebody who does something.

    Attributes:
        app: the Celery app.
        user: who it is.
        source: how they came: 'web', 'api' or, in Django's admin, 'admin'.
        address: of their browser or program; '' where it isn't known.
    """

    app: Any
    user: User
    source: str
    address: str = ""

    def require(self, right: Right) -> None:
        """Raise AccessDenied if they don't have ``right``."""
        self.user.require(right)

    def require_task(self, task: str) -> None:
        """Raise AccessDenied if ``redbeat_web_tasks`` doesn't have this task."""
        if not self.may_task(task):
            raise AccessDenied(
                f"The task {shorten(task, 200)!r} isn't one of redbeat_web_tasks, so it can't be run or "
                "scheduled from here.",
                field="task",
            )

    def require_call(self, task: str, options: Any) -> None:
        """Raise AccessDenied if this task may not be run or scheduled with these options from here."""
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
        """Tell whether this task may be run with these options from here."""
        try:
            self.require_call(task, options)
        except AccessDenied:
            return False
        return True

    def may_task(self, task: str) -> bool:
        """Tell whether ``redbeat_web_tasks`` has this task."""
        return any(fnmatchcase(task, pattern) for pattern in ensure_conf(self.app).web_tasks)

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
        shown, was = (hide_details(one or {}, hiding_of(self.app), *tasks) for one in (details, before))
        with audited(
            self.app, self.user.name, self.source, verb, names, shown, host=self.address, before=was
        ):
            yield
