"""Types of values, names of entries that the shell completes, and the options that many commands share.

A command doesn't take ``--json``, ``--tz``, ``--dry-run`` and ``--yes`` as parameters: its session has them.
Invariant: no type asks Redis, so a wrong value is refused before anything is read or written.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from functools import partial, wraps
from itertools import islice
from typing import Any

import click
from celery import current_app
from celery.app.utils import find_app
from click.shell_completion import CompletionItem

from redbeat.cli.session import MAX_LOOKED_AT, TERMINAL_ROWS, Command, Session
from redbeat.connection.retry import call_briefly
from redbeat.decoder import read_json
from redbeat.entries.query import iter_names
from redbeat.schedules.times import TypedTime, read_seconds
from redbeat.schedules.timezones import zone_called
from redbeat.store.store import Store

Decorator = Callable[[Command], Command]

# -- types of values


class Value(click.ParamType):  # type: ignore[type-arg]  # generic in new versions of click only
    """A value that ``read`` makes of its text, or refuses with a ValueError that says why."""

    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value of the text ``value``."""
        if not isinstance(value, str):
            return value
        try:
            return self._read(value)
        except ValueError as exc:
            self.fail(str(exc), param, ctx)


DURATION = Value("duration", read_seconds)
#: times; '2h', 'monday' and '18:30' are ahead of now, or back from it
AHEAD = Value("time", partial(TypedTime, ahead=True))
BACK = Value("time", partial(TypedTime, ahead=False))
DATE = Value("date", date.fromisoformat)
JSON_ARRAY = Value("JSON", partial(read_json, kind=list, what="an array, as [1, 2]"))
JSON_OBJECT = Value("JSON", partial(read_json, kind=dict, what='an object, as {"key": 1}'))
ZONE = Value("zone", zone_called)


# -- names of entries


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


# -- shared options


def pass_session(command: Callable[..., Any]) -> Callable[..., Any]:
    """Call ``command`` with its session first."""

    @click.pass_context
    @wraps(command)
    def call(ctx: click.Context, /, *args: Any, **kwargs: Any) -> Any:
        return command(Session.of(ctx), *args, **kwargs)

    return call


def _note(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
    session = ctx.find_object(Session)
    if value is not None and session is not None:  # None: the shell completes the line
        setattr(session, str(parameter.name), value)


def _flag(*names: str, text: str) -> Decorator[Any]:
    return click.option(*names, is_flag=True, expose_value=False, callback=_note, help=text)


def json_flag(what: str) -> Decorator[Any]:
    """Return the option ``--json`` of a command that prints ``what`` then."""
    return _flag("--json", "is_json", text=f"Print {what}.")


ONE_OBJECT = json_flag("one JSON object")
OBJECT_PER_ENTRY = json_flag("JSON: one object per entry and line")
OBJECT_PER_RUN = json_flag("JSON: one object per run and line")
DRY_RUN = _flag("--dry-run", "is_dry_run", text="Show what would be done, and change nothing.")
YES = _flag("--yes", "is_yes", text="Don't ask for confirmation.")
LIMIT = click.option(
    "--limit",
    type=click.IntRange(0),
    help=f"Show at most this many rows; 0 shows all. Default: {TERMINAL_ROWS} on a terminal, else all.",
)


def zone_options(command: Command) -> Command:
    """Give ``command`` the options ``--tz`` and ``--utc``."""
    tz = click.option(
        "--tz",
        "chosen_zone",
        type=ZONE,
        expose_value=False,
        callback=_note,
        help="Show times in this zone, such as Europe/Berlin. Default: the application's.",
    )
    utc: Decorator[Command] = _flag("--utc", "is_utc", text="Show times in UTC.")
    return tz(utc(command))


def _match_option(which: str) -> Decorator[Any]:
    text = f"{which} entries whose name matches; * and ? are wildcards, case-sensitive."
    return click.option("--match", metavar="PATTERN", help=text)


#: of commands that change entries; of those that show entries
INSTEAD_OF_NAME, ONLY_MATCHING = map(_match_option, ("Instead of NAME, all", "Only"))
