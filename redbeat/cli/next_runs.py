"""``celery redbeat next``: what runs next, of one entry or of all of them in the order of time."""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta, timezone, tzinfo
from itertools import chain, islice
from typing import Any

import click

from redbeat.cli.documents import iso, json_option
from redbeat.cli.names import NAME, listed_entry
from redbeat.cli.selection import ONLY_MATCHING
from redbeat.cli.session import Session, SessionCommand
from redbeat.cli.tables import clock_changes, runs_lines
from redbeat.cli.values import MOMENT, in_zone
from redbeat.cli.words import local_time, one_line, when_in
from redbeat.cli.zone import zone_options
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.errors import EntryError, EntryTooExpensive
from redbeat.log.text import printable

Run = tuple[datetime, str, Any]
_INSTANT = timedelta(microseconds=1)
_END = datetime.max.replace(tzinfo=timezone.utc)
#: how much processor time the runs of one entry may take; seconds
MOST_SECONDS = 2.0
MOST_NOTED = 3
#: entries in these states are going to run; paused ones if their pause ends by itself
RUNNING = ("scheduled", "due", "failing", "paused")


@click.command("next", cls=SessionCommand)
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
@click.option("--after", type=MOMENT, help="Only runs later than this. Default: now.")
@ONLY_MATCHING
@zone_options
@json_option("JSON: one object per run and line")
@click.pass_context
def next_(
    ctx: click.Context,
    name: str | None,
    wanted: int,
    after: datetime | None,
    match: str | None,
    is_json: bool,
) -> None:
    """Show the next runs of the entry NAME, or of all enabled entries.

    A line between two runs says that clocks change there.
    """
    session = Session.of(ctx)
    now, zone = session.now(), session.zone
    since = None if after is None else in_zone(after, zone)
    if name is None:
        found = first_of_all(session, wanted, since, match)
        runs = [(entry, due) for due, _, entry in found]
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
    for due in entry.next_runs(wanted, after=after, tz=zone):
        yield entry, due


def first_of_all(session: Session, wanted: int, after: datetime | None, match: str | None) -> list[Run]:
    """Return the next runs of all entries together, or those later than ``after``, the first ones first.

    Entries come by their scores, and none is sent before its score, so those that are later than the last run
    that is wanted needn't be looked at.
    """
    found: list[Run] = []
    untold: list[str] = []
    for entry in RedBeatSchedulerEntry.list(session.app, match=match):
        due = entry.next_due_at
        score = -1.0 if entry.stored is None or entry.stored.score is None else entry.stored.score
        if score < 0 or (len(found) == wanted and score > found[-1][0].timestamp()):
            break
        if due is not None and entry.state in RUNNING and entry.schedule is not None:
            try:
                dues = _upcoming(entry, due, wanted, after)
            except (EntryError, ValueError, OverflowError) as exc:  # its calendar is missing, say
                untold.append(reason_of(entry, exc))
                dues = [due] if after is None or due > after else []
            runs = ((local_time(run, session.zone), entry.name, entry) for run in dues)
            found = heapq.nsmallest(wanted, chain(found, runs), key=lambda run: run[:2])
    note_untold(session, untold)
    return found


def reason_of(entry: RedBeatSchedulerEntry, exc: Exception) -> str:
    """Return the name of ``entry``, and why its runs can't be computed."""
    return f"{one_line(entry.name)}: {one_line(str(exc).removeprefix(f'{printable(entry.key)}: '))}"


def note_untold(session: Session, untold: list[str]) -> None:
    """Warn about entries of which not all runs are shown."""
    for words in untold[:MOST_NOTED]:
        session.note(f"Not all of its runs are shown: {words}")
    if len(untold) > MOST_NOTED:
        session.note(f"Nor are those of {len(untold) - MOST_NOTED} more entries.")


def in_time(entry: RedBeatSchedulerEntry, runs: Iterable[datetime]) -> Iterator[datetime]:
    """Yield the ``runs`` of ``entry`` while they don't take too much processor time together.

    Raises:
        EntryTooExpensive: they do.
    """
    until = time.thread_time() + MOST_SECONDS
    for run in runs:
        yield run
        if time.thread_time() > until:
            words = f"its schedule has more of them than {MOST_SECONDS:.0f} s of processor time suffice for."
            raise EntryTooExpensive(words, entry.key)


def _upcoming(
    entry: RedBeatSchedulerEntry, due: datetime, wanted: int, after: datetime | None
) -> list[datetime]:
    """Return the run that ``entry`` has in Redis, at ``due``, and those that its schedule has after it.

    With ``after`` those that are later; they count among the runs that a policy allows from ``due`` on.
    """
    policy = entry.policy
    most = 1 if policy.one_off else policy.max_runs
    left = wanted if most is None else max(most - entry.total_run_count, 0)
    begin = after if after is not None and due <= after else due
    if most is not None and begin > due:
        before = in_time(entry, entry.runs_between(due + _INSTANT, begin))
        left = max(left - 1 - sum(1 for _ in islice(before, left)), 0)
    first = [due] if begin == due and due != after else []
    later = in_time(entry, entry.runs_between(begin + _INSTANT, _END))
    return list(islice(chain(first, later), min(left, wanted)))
