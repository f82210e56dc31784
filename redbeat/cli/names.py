"""Names of entries on the command line: looked up, suggested, completed, matched by a pattern."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any

import click
from celery import current_app
from celery.app.utils import find_app
from click.shell_completion import CompletionItem

from redbeat.cli.session import Session
from redbeat.config.config import ensure_conf
from redbeat.config.suggestions import did_you_mean
from redbeat.connection.retry import call_briefly
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.query import iter_names, read_listed
from redbeat.entries.wording import one_line
from redbeat.errors import EntryNotFound, StoreRefused
from redbeat.process import exit_codes as exits
from redbeat.process.exit_codes import CommandLineError
from redbeat.store.entries import read_entries
from redbeat.store.store import Store

#: how many names are looked at for a suggestion, and for completion
MAX_LOOKED_AT = 5000
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
    url = prefix = None
    app: Any = None
    context: click.Context | None = ctx
    while context is not None:
        url, prefix = url or context.params.get("url"), prefix or context.params.get("prefix")
        app = app or context.params.get("app")
        context = context.parent
    if app is None or isinstance(app, str):
        app = find_app(app) if app else current_app
    return Session(app, url, prefix, no_color=True).app


def no_such_entry(session: Session, name: str) -> CommandLineError:
    """Return the error about a name that isn't stored, with the nearest one that is."""
    try:
        hint = one_line(did_you_mean(name, islice(iter_names(session.app), MAX_LOOKED_AT)))
    except StoreRefused:  # the user may not list the names
        hint = ""
    place = Store(session.app).parts.of(name).schedule
    sentence = f"There is no entry {one_line(name)!r} in {place} at {session.server}.{hint}"
    return CommandLineError(sentence, exits.NO_INPUT)


def nothing_matches(match: str) -> CommandLineError:
    """Return the error about a pattern that no entry's name matches, as changing nothing isn't a success."""
    return CommandLineError(f"No entry's name matches {one_line(match)!r}; nothing was done.", exits.NO_INPUT)


def entry_called(session: Session, name: str) -> RedBeatSchedulerEntry:
    """Return the stored entry called ``name``, one that can be used."""
    try:
        return RedBeatSchedulerEntry.from_key(ensure_conf(session.app).keys.entry(name), session.app)
    except EntryNotFound:
        raise no_such_entry(session, name) from None


def listed_entry(session: Session, name: str) -> RedBeatSchedulerEntry:
    """Return the stored entry called ``name`` with its state, also one that can't be used."""
    try:
        return read_listed(RedBeatSchedulerEntry, session.app, name)
    except EntryNotFound:
        raise no_such_entry(session, name) from None


def chosen_names(session: Session, names: Sequence[str], match: str | None) -> list[str]:
    """Return the names given, all of which are stored, and those that match a pattern."""
    if not names and match is None:
        raise CommandLineError("Give a NAME, or --match PATTERN.", exits.USAGE)
    check_stored(session, names)
    chosen = dict.fromkeys(names)
    if match is not None:
        matching = sorted(_matching(iter_names(session.app), match))
        if not matching:
            raise nothing_matches(match)
        chosen.update(dict.fromkeys(matching))
    return list(chosen)


def check_stored(session: Session, names: Iterable[str]) -> None:
    """Raise the error about the first name that isn't stored, before anything is changed."""
    store = Store(session.app)
    given = list(names)
    _, found = read_entries(store, [store.keys.entry(name) for name in given])
    for name, stored in zip(given, found, strict=True):
        if not stored.exists:
            listed_entry(session, name)  # it may be in the schedule all the same


def _matching(names: Iterable[str], pattern: str) -> Iterable[str]:
    return (name for name in names if fnmatchcase(name, pattern))
