"""``celery redbeat next``: what runs next, of one entry or of all of them in the order of time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, tzinfo
from typing import Any

import click

from redbeat.cli.documents import json_option
from redbeat.cli.names import NAME, listed_entry
from redbeat.cli.selection import ONLY_MATCHING
from redbeat.cli.session import ReadingCommand, Session
from redbeat.cli.tables import runs_lines
from redbeat.cli.values import AHEAD
from redbeat.cli.zone import zone_options
from redbeat.entries.documents import iso
from redbeat.entries.marks import clock_changes
from redbeat.entries.timeline import first_of_all
from redbeat.entries.upcoming import next_runs
from redbeat.entries.wording import local_time, when_in
from redbeat.errors import EntryError
from redbeat.log.text import printable
from redbeat.schedules.times import TypedTime

MOST_NOTED = 3


@click.command("next", cls=ReadingCommand)
@click.argument("name", type=NAME, required=False)
@click.option(
    "-n",
    "--count",
    "wanted",
    type=click.IntRange(1, 10_000),
    default=10,
    show_default=True,
    help="How many runs to show.",
)
@click.option("--after", type=AHEAD, help="Only runs later than this. Default: now.")
@ONLY_MATCHING
@zone_options
@json_option("JSON: one object per run and line")
@click.pass_context
def next_(
    ctx: click.Context,
    name: str | None,
    wanted: int,
    after: TypedTime | None,
    match: str | None,
    is_json: bool,
) -> None:
    """Show the next runs of the entry NAME, or of all enabled entries.

    A line between two runs says that clocks change there.
    """
    session = Session.of(ctx)
    now, zone = session.now(), session.zone
    since = None if after is None else session.time(after)
    if name is None:
        first, untold, _ = first_of_all(session.app, wanted, since, match)
        note_untold(session, untold)
        runs = [(entry, local_time(due, zone)) for due, _, entry in first]
    elif match is not None:
        raise click.UsageError("Give either a NAME or --match, not both.")
    else:
        runs = list(_runs_of_one(session, name, wanted, since, zone))
    if is_json:
        for (entry, due), changes in zip(runs, clock_changes(runs, zone), strict=True):
            session.print_json(
                {
                    "name": entry.name,
                    "due": iso(due),
                    "seconds": (due - now).total_seconds(),
                    "clocks": "; ".join(changes) or None,
                }
            )
        return
    if runs:
        session.draw(runs_lines(runs, now, zone, session.console, with_names=name is None))
    if len(runs) < wanted:
        session.note("There are no more runs." if runs else "Nothing is going to run.")


def _runs_of_one(
    session: Session, name: str, wanted: int, after: datetime | None, zone: tzinfo
) -> Iterator[tuple[Any, datetime]]:
    entry = listed_entry(session, name)
    if entry.schedule is None:
        reason = (entry.error or "").removeprefix(f"{printable(entry.key)}: ")
        raise EntryError(f"{entry.key}: can't be used, so it has no runs: {reason}", entry.key)
    if entry.state == "paused" and entry.paused_until is not None:
        session.note(f"It is paused until {when_in(entry.paused_until, zone)}.")
    elif entry.state not in ("scheduled", "due"):
        session.note(f"It is {entry.state}; these are the runs that its schedule has.")
    for due in next_runs(entry, wanted, after, zone, session.now()):
        yield entry, due


def note_untold(session: Session, untold: Sequence[str]) -> None:
    """Warn about entries of which not all runs are shown."""
    for words in untold[:MOST_NOTED]:
        session.note(f"Not all of its runs are shown: {words}")
    if len(untold) > MOST_NOTED:
        session.note(f"Nor are those of {len(untold) - MOST_NOTED} more entries.")
