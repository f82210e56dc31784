"""``celery redbeat pause`` and ``resume``: entries stopped for a while, by their names or by filters.

An entry that is named is meant, whatever its state. Of many that are selected, only entries that run are
paused, and only paused ones are resumed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import click

from redbeat.cli.changes import change_entries
from redbeat.cli.flags import DRY_RUN, MATCH, OBJECT_PER_ENTRY, YES, pass_session, zone_options
from redbeat.cli.names import NAME, listed_entry
from redbeat.cli.operations import options_of
from redbeat.cli.session import Session, SessionCommand
from redbeat.entries.wording import one_line, relative, when_in
from redbeat.operations.editing import EntryChange
from redbeat.operations.pausing import pause_entries, pause_entry, resume_entries, resume_entry
from redbeat.operations.selection import Selection
from redbeat.process.exit_codes import USAGE, CommandLineError
from redbeat.schedules.times import TypedTime


def _common_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give ``command`` the options that come last in the help of both."""
    for add in (pass_session, OBJECT_PER_ENTRY, zone_options, YES, DRY_RUN):
        command = add(command)
    return command


@click.command(cls=SessionCommand)
@click.argument("names", type=NAME, nargs=-1, metavar="[NAME]...")
@MATCH
@options_of(pause_entry, "note")
@click.option("--by", metavar="WHO", help="Who pauses the entries. Default: your login name.")
@options_of(pause_entry, "until")
@_common_options
def pause(
    session: Session,
    names: tuple[str, ...],
    match: str | None,
    note: str | None,
    by: str | None,
    until: TypedTime | None,
) -> None:
    """Stop entries from running, until resumed or until a time.

    --match shows how many entries it finds, and asks first. Entries that are already paused or disabled stay
    as they are, but a paused entry that you name gets the --note, --by and --until that you give. Times
    without an offset are in the zone of the entry's schedule.
    """
    if not names and match is None:
        raise CommandLineError("Give a NAME, or --match PATTERN.", USAGE)
    for name in names:  # raises before anything is written
        listed_entry(session, name)
        pause_entry(session.actor, name, until=until, dry_run=True)

    def pause_one(name: str) -> str:
        change = pause_entry(session.actor, name, note=note, until=until, by=by)
        done = {"paused": "Paused", "changed": "It was paused already; changed:"}.get(change.outcome)
        return _sentence(session, done or f"It is {change.entry.state} already, and stays so:", change)

    change_entries(
        *(session, names, pause_one),
        None if match is None else Selection(match=match, is_whole=True),
        partial(pause_entries, session.actor, note=note, until=until, by=by),
        ("Pause", "paused", "already paused or disabled"),
    )


@click.command(cls=SessionCommand)
@click.argument("names", type=NAME, nargs=-1, metavar="[NAME]...")
@MATCH
@options_of(resume_entries, "note", "paused_by")
@_common_options
def resume(
    session: Session,
    names: tuple[str, ...],
    match: str | None,
    note: str | None,
    by: str | None,
) -> None:
    """End the pause of entries.

    --match, --note and --paused-by show how many entries they find, and ask first. Entries that are disabled
    without a pause stay disabled, but an entry that you name is enabled in any case.
    """
    is_chosen_by_pause = note is not None or by is not None
    if not names and match is None and not is_chosen_by_pause:
        raise CommandLineError("Give a NAME, --match PATTERN, --note TEXT or --paused-by WHO.", USAGE)
    if names and is_chosen_by_pause:
        raise CommandLineError("Give a NAME, or --note and --paused-by, not both.", USAGE)
    for name in names:
        listed_entry(session, name)  # raises before anything is written

    def resume_one(name: str) -> str:
        return _sentence(session, "Resumed", resume_entry(session.actor, name, enable=True))

    change_entries(
        *(session, names, resume_one),
        None if match is None and not is_chosen_by_pause else Selection(match=match or "*", is_whole=True),
        partial(resume_entries, session.actor, note=note, by=by),
        ("Resume", "resumed", "not paused"),
    )


def _sentence(session: Session, done: str, change: EntryChange) -> str:
    entry = change.entry
    due, words = entry.next_due_at, f"{done} {one_line(entry.name)}"
    if entry.paused_until is not None:
        words += f" until {when_in(entry.paused_until, session.zone)}"
    elif entry.enabled and due is not None:
        words += f"; next run: {when_in(due, session.zone)}, {relative(due, session.now())}"
    return f"{words}."
