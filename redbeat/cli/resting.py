"""``celery redbeat pause`` and ``resume``: entries that rest for a while, by name or by pattern.

Each entry is changed in one step. Of many, one that can't be changed doesn't stop the others.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import click

from redbeat.cli.documents import document_of
from redbeat.cli.names import NAME, chosen_names, entry_called, listed_entry
from redbeat.cli.progress import meter
from redbeat.cli.session import Session, SessionCommand
from redbeat.cli.tables import zone_for
from redbeat.cli.values import MOMENT, in_zone
from redbeat.cli.words import one_line, relative, when
from redbeat.errors import EntryError
from redbeat.exits import NO_INPUT, USAGE, CommandLineError

__all__ = ["pause", "resume"]


@click.command(cls=SessionCommand)
@click.argument("names", type=NAME, nargs=-1, metavar="[NAME]...")
@click.option("--match", metavar="PATTERN", help="All whose names match, too; * and ?, case counts.")
@click.option("--note", metavar="TEXT", help="Why, for whoever looks at it.")
@click.option("--until", type=MOMENT, metavar="TIME", help="When it goes on by itself.")
@click.option("--json", "is_json", is_flag=True, help="One JSON object a line, an entry each.")
@click.pass_context
def pause(
    ctx: click.Context,
    /,
    names: tuple[str, ...],
    match: str | None,
    note: str | None,
    until: datetime | None,
    is_json: bool,
) -> None:
    """Let entries rest until they are resumed, or until a time.

    Times without an offset are in the zone that the entry goes by.
    """

    session = Session.of(ctx)

    def rest(entry: Any) -> None:
        zone = zone_for(entry)
        end = None if until is None else in_zone(until, zone)
        if end is not None and end <= session.now():
            raise CommandLineError(f"--until: {when(end, zone)} is over; it must be still to come.", USAGE)
        entry.pause(note=note, until=end)

    _each(session, names, match, rest, "Paused", is_json)


@click.command(cls=SessionCommand)
@click.argument("names", type=NAME, nargs=-1, metavar="[NAME]...")
@click.option("--match", metavar="PATTERN", help="All whose names match, too; * and ?, case counts.")
@click.option("--json", "is_json", is_flag=True, help="One JSON object a line, an entry each.")
@click.pass_context
def resume(ctx: click.Context, /, names: tuple[str, ...], match: str | None, is_json: bool) -> None:
    """Let entries go on that were paused or disabled."""
    _each(Session.of(ctx), names, match, lambda entry: entry.resume(), "Resumed", is_json)


def _each(
    session: Session,
    names: tuple[str, ...],
    match: str | None,
    change: Callable[[Any], None],
    done: str,
    is_json: bool,
) -> None:
    chosen = chosen_names(session, names, match)
    if not chosen:
        session.note("There are no such entries.")
    failed = 0
    with meter(done, len(chosen)) as progress:
        for number, name in enumerate(chosen, start=1):
            try:
                change(entry_called(session, name))
                _report(session, name, done, is_json)
            except (EntryError, CommandLineError) as exc:
                if getattr(exc, "exit_code", 0) == NO_INPUT and name not in names:
                    continue  # deleted since it was found
                if len(chosen) == 1:
                    raise
                session.note(f"Error: {exc.format_message() if isinstance(exc, CommandLineError) else exc}")
                failed += 1
            progress(number)
    if failed:
        raise CommandLineError(f"{failed} of {len(chosen)} entries are as they were.", USAGE)


def _report(session: Session, name: str, done: str, is_json: bool) -> None:
    entry = listed_entry(session, name)
    if is_json:
        session.print_json(document_of(entry))
        return
    due = entry.next_due_at
    words = f"{done} {one_line(name)}"
    if entry.paused_until is not None:
        words += f" until {when(entry.paused_until, zone_for(entry))}"
    elif entry.enabled and due is not None:
        words += f"; next run: {when(due, zone_for(entry))}, {relative(due, session.now())}"
    session.say(f"{words}.")
