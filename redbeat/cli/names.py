"""Names of entries on the command line: looked up, suggested, completed, matched by a pattern."""

from __future__ import annotations

from itertools import islice
from typing import Any

import click
from celery import current_app
from celery.app.utils import find_app
from click.shell_completion import CompletionItem

from redbeat.cli.session import MAX_LOOKED_AT, Session
from redbeat.connection.retry import call_briefly
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.query import iter_names
from redbeat.entries.search import read_listed
from redbeat.store.store import Store

#: how many names the shell is given, and how long it waits for them
MAX_COMPLETED = 100
COMPLETION_SECONDS = 2.0


class NameType(click.ParamType):  # type: ignore[type-arg]  # generic in new versions of click only
    """An entry's name, which the shell completes."""

    name = "name"

    def shell_complete(
        self, ctx: click.Context, _param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the stored names with this beginning; [] where Redis is away, as errors can't be shown."""
        try:
            names = call_briefly(lambda: _first_names(ctx), COMPLETION_SECONDS)
        except Exception:  # noqa: BLE001 - an error would disturb the line that is being typed
            return []
        found = sorted(name for name in names if name.startswith(incomplete) and name.isprintable())
        return [CompletionItem(name) for name in found[:MAX_COMPLETED]]


NAME = NameType()


def _first_names(ctx: click.Context) -> list[str]:
    app = _app_of(ctx)
    with Store.hasty(app) as store:
        return list(islice(iter_names(app, store), MAX_LOOKED_AT))


def _app_of(ctx: click.Context) -> Any:
    """Return the app while a shell completes, as the group that sets it hasn't run then."""
    found = ctx.find_object(Session)
    if found is not None:
        return found.app
    given: dict[str, Any] = {}
    context: click.Context | None = ctx
    while context is not None:
        given, context = {**context.params, **given}, context.parent
    app = given.get("app")
    if app is None or isinstance(app, str):
        app = find_app(app) if app else current_app
    return Session(app, given.get("url"), given.get("prefix"), no_color=True).app


def entry_called(session: Session, name: str) -> RedBeatSchedulerEntry:
    """Return the stored entry called ``name``, one that can be used."""
    return RedBeatSchedulerEntry.get(name, session.app)


def listed_entry(session: Session, name: str) -> RedBeatSchedulerEntry:
    """Return the stored entry called ``name`` with its state, also one that can't be used."""
    return read_listed(session.app, name)
