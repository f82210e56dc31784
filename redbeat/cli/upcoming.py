"""``celery redbeat next``: what runs next, of one entry or of all of them in the order of time."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from datetime import datetime, tzinfo
from itertools import chain, islice
from typing import Any

import click

from redbeat.cli.documents import iso
from redbeat.cli.names import NAME, listed_entry
from redbeat.cli.session import Session, SessionCommand
from redbeat.cli.tables import clocks_change, runs_table, zone_for
from redbeat.cli.values import MOMENT, in_zone
from redbeat.cli.words import when
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.errors import EntryError
from redbeat.text import printable

__all__ = ["next_"]

Run = tuple[datetime, str, Any]


@click.command("next", cls=SessionCommand)
@click.argument("name", type=NAME, required=False)
@click.option("-n", "--count", "wanted", type=click.IntRange(1, 10_000), default=10, show_default=True)
@click.option("--after", type=MOMENT, metavar="TIME", help="Runs later than this instead of now; needs NAME.")
@click.option("--json", "is_json", is_flag=True, help="One JSON object a line, a run each.")
@click.pass_context
def next_(ctx: click.Context, name: str | None, wanted: int, after: datetime | None, is_json: bool) -> None:
    """Show the next runs of the entry NAME, or of all entries that run.

    With the offset from UTC, and a word where the clocks change in between.
    """
    session = Session.of(ctx)
    now = session.now()
    if name is None:
        if after is not None:
            raise click.UsageError("--after needs a NAME.")
        runs = [(due, entry) for due, _, entry in first_of_all(session.app, wanted)]
    else:
        runs = [(due, entry) for due, entry in _runs_of_one(session, name, wanted, after)]
    offsets = {entry.name: (after or now).astimezone(zone_for(entry)).utcoffset() for _, entry in runs}
    if is_json:
        for due, entry in runs:
            before, offsets[entry.name] = offsets[entry.name], due.utcoffset()
            session.print_json(
                {
                    "name": entry.name,
                    "due": iso(due),
                    "seconds": (due - now).total_seconds(),
                    "clocks": clocks_change(before, due) or None,
                }
            )
        return
    if runs:
        pairs = ((entry, due) for due, entry in runs)
        session.console.print(runs_table(pairs, now, offsets, with_names=name is None))
    if len(runs) < wanted:
        session.note("There are no more runs." if runs else "Nothing is going to run.")


def _runs_of_one(
    session: Session, name: str, wanted: int, after: datetime | None
) -> Iterator[tuple[datetime, Any]]:
    entry = listed_entry(session, name)
    if entry.schedule is None:
        reason = (entry.error or "").removeprefix(f"{printable(entry.key)}: ")
        raise EntryError(f"{entry.key}: can't be used, so it has no runs: {reason}", entry.key)
    if entry.state == "paused" and entry.next_due_at is not None:
        session.note(f"It is paused until {when(entry.paused_until, zone_for(entry))}.")
    elif entry.state not in ("scheduled", "due"):
        session.note(f"It is {entry.state}; these are the runs that its schedule has.")
    if after is not None:
        after = in_zone(after, zone_for(entry))
    for due in entry.next_runs(wanted, after=after):
        yield due, entry


def first_of_all(app: Any, wanted: int) -> list[Run]:
    """Return the next runs of all entries together, the first ones first.

    Entries come by their scores, and none is sent before its score, so those that are later than the last run
    that is wanted needn't be looked at.
    """
    found: list[Run] = []
    for entry in RedBeatSchedulerEntry.list(app):
        due = entry.next_due_at
        score = -1.0 if entry.stored is None or entry.stored.score is None else entry.stored.score
        if score < 0 or (len(found) == wanted and score > found[-1][0].timestamp()):
            break
        if due is not None and entry.state in ("scheduled", "due", "failing", "paused"):
            runs = ((run, entry.name, entry) for run in runs_from(entry, due, wanted, zone_for(entry)))
            found = heapq.nsmallest(wanted, chain(found, runs), key=lambda run: run[:2])
    return found


def runs_from(entry: Any, due: datetime, wanted: int, zone: tzinfo) -> Iterator[datetime]:
    """Yield the run that ``entry`` has in Redis, at ``due``, and those that its schedule has after it."""
    policy = entry.policy
    most = 1 if policy.one_off else policy.max_runs
    left = wanted if most is None else max(min(most - entry.total_run_count, wanted), 0)
    try:
        later = entry.next_runs(left, after=due, tz=zone) if left > 1 else []
    except (EntryError, ValueError, OverflowError):  # its calendar is missing, say
        later = []
    return islice(chain([due.astimezone(zone)], later), left)
