"""``celery redbeat route``: where the message of a run would go, and which rule says so. Nothing is sent."""

from __future__ import annotations

from typing import Any

import click
from rich.text import Text

from redbeat.cli.documents import ONE_OBJECT
from redbeat.cli.names import NAME
from redbeat.cli.options import routing_options
from redbeat.cli.session import Session, SessionCommand
from redbeat.cli.tables import plain_table
from redbeat.cli.words import one_line
from redbeat.config.suggestions import did_you_mean
from redbeat.diagnostics.routes import Route, find_route, load_tasks
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.query import read_listed
from redbeat.errors import EntryNotFound, RedBeatError
from redbeat.process import exit_codes as exits
from redbeat.process.exit_codes import CommandLineError


@click.command(cls=SessionCommand)
@click.argument("name", metavar="NAME|TASK", type=NAME)
@routing_options
@ONE_OBJECT
@click.pass_context
def route(ctx: click.Context, /, name: str, is_json: bool, **given: Any) -> None:
    """Show where the runs of the entry NAME go, or a call of TASK; nothing is sent.

    Each part comes with the rule that has decided it: task_routes, an option of the entry, an
    attribute of the task, or the queue. Options given here are tried in place of the entry's.
    """
    session = Session.of(ctx)
    session.require_application("route", "shows the application's routes, and needs its tasks")
    try:
        load_tasks(session.app)
    except Exception as exc:  # noqa: BLE001 - the application's own code
        raise CommandLineError(f"Its tasks can't be imported: {one_line(repr(exc))}", exits.CONFIG) from None
    tried = {option: value for option, value in given.items() if value is not None}
    try:
        entry = read_listed(RedBeatSchedulerEntry, session.app, name)
    except EntryNotFound:
        found, task, hint = _route_of(session.app, name, [], {}, tried), name, _hint(session.app, name)
    else:
        if entry.problem:
            raise CommandLineError(f"{one_line(name)} can't be used: {one_line(entry.problem)}", exits.USAGE)
        options = {**(entry.options or {}), **tried}
        found = _route_of(session.app, entry.task, entry.args or [], entry.kwargs or {}, options)
        task, hint = entry.task, ""
    if is_json:
        is_known = task in session.app.tasks
        session.print_json({"name": name, "task": task, "is_task_known": is_known, **found.to_dict()})
        return
    session.say(f"{one_line(task)} goes to {_in_words(found)}.")
    _show(session, found)
    if hint:
        session.note(hint)


def _route_of(app: Any, task: str, args: Any, kwargs: Any, options: dict[str, Any]) -> Route:
    try:
        return find_route(app, task, args, kwargs, options)
    except RedBeatError:
        raise
    except Exception as exc:  # noqa: BLE001 - the application's own routes
        words = one_line(repr(exc))
        raise CommandLineError(
            f"The application's routes don't know where {one_line(task)} goes: {words}", exits.CONFIG
        ) from None


def _hint(app: Any, task: str) -> str:
    """Return the warning about a name that is neither an entry's nor a task's; '': it is one."""
    if task in app.tasks:
        return ""
    return (
        "There is no such entry, and the application has no such task: it is taken for one that is sent by "
        f"its name.{did_you_mean(task, app.tasks)}"
    )


def _in_words(found: Route) -> str:
    if found.queues:
        names = " and ".join(one_line(queue) for queue in found.queues)
        return f"the queue {names}" if len(found.queues) == 1 else f"the queues {names}"
    if found.exchange_type == "fanout":
        return f"everybody who listens to the exchange {one_line(found.exchange)}"
    if found.exchange_type == "headers":
        return f"the headers exchange {one_line(found.exchange)}, which goes by the message's headers"
    return (
        f"the {one_line(found.exchange_type)} exchange {one_line(found.exchange)}; the application knows no "
        f"queue that is bound there with {one_line(found.routing_key)!r}"
    )


def _show(session: Session, found: Route) -> None:
    table = plain_table()
    for title in ("", "", "decided by"):
        table.add_column(title, overflow="fold")
    values = {
        "queue": found.declared or found.exchange,
        "exchange": found.exchange or "the broker's own",
        "exchange_type": found.exchange_type,
        "routing_key": found.routing_key,
        "priority": found.priority,
    }
    for field, value in values.items():
        if field in found.rules:
            table.add_row(field.replace("_", " "), Text(one_line(value)), Text(one_line(found.rules[field])))
    session.console.print(table)
