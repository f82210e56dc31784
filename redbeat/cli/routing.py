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
from redbeat.diagnostics.routes import Route, find_destination, hint_at_nothing, in_words, parts_of
from redbeat.entries.wording import one_line


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
    tried = {option: value for option, value in given.items() if value is not None}
    found = find_destination(session.app, name, tried)
    if is_json:
        session.print_json(found.to_dict())
        return
    session.say(f"{one_line(found.task)} goes to {in_words(found.route)}.")
    _show(session, found.route)
    if not found.is_entry and not found.is_task_known:
        session.note(hint_at_nothing(session.app, name))


def _show(session: Session, found: Route) -> None:
    table = plain_table()
    for title in ("", "", "decided by"):
        table.add_column(title, overflow="fold")
    for part, value, rule in parts_of(found):
        table.add_row(part, Text(one_line(value)), Text(one_line(rule)))
    session.console.print(table)
