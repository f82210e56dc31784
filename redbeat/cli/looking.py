"""``celery redbeat list``, ``show`` and ``count``: what stands in the schedule.

Invariant: with ``--json`` a list is printed as it is read, so that it needs no more memory than one page.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any, TypeVar

import click

from redbeat.cli.documents import document_of, iso, words_of
from redbeat.cli.names import NAME, listed_entry
from redbeat.cli.progress import meter
from redbeat.cli.session import Session, SessionCommand
from redbeat.cli.tables import entries_table, fields_table, history_table, policy_rows, runs_table, zone_for
from redbeat.cli.values import MOMENT, in_zone
from redbeat.cli.words import next_run_in_words, one_line, relative, when
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.errors import EntryError, StoreCorrupt
from redbeat.listing import STATES

__all__ = ["count", "list_", "show"]

Command = TypeVar("Command", bound=Callable[..., Any])

#: rows of a table that nobody has limited: it has to be complete before it is drawn
MAX_ROWS = 1000
NEXT_RUNS, LAST_RUNS = 5, 10


def filters(command: Command) -> Command:
    """Give ``command`` the options that choose entries."""
    for option in (
        click.option("--due-before", type=MOMENT, metavar="TIME", help="Due until then, and not later."),
        click.option("--enabled/--disabled", default=None, help="Only those that are, or aren't."),
        click.option("--state", type=click.Choice(list(STATES)), help="Only those in this state."),
        click.option("--task", metavar="PATTERN", help="Only those of this task; * and ? stand for others."),
        click.option(
            "--match", metavar="PATTERN", help="Only those whose names match; * and ?, case counts."
        ),
    ):
        command = option(command)
    return command


def _chosen(session: Session, given: dict[str, Any]) -> dict[str, Any]:
    due_before = given.pop("due_before")
    if due_before is not None:
        due_before = in_zone(due_before, session.app.timezone)
    return {**given, "due_before": due_before}


@click.command("list", cls=SessionCommand)
@filters
@click.option("--limit", type=click.IntRange(0), help="So many entries at the most.")
@click.option("--offset", type=click.IntRange(0), default=0, help="Leave out so many at first.")
@click.option("--json", "is_json", is_flag=True, help="One JSON object a line, an entry each.")
@click.pass_context
def list_(ctx: click.Context, /, limit: int | None, offset: int, is_json: bool, **given: Any) -> None:
    """List the entries by their next run; those that never run again come last.

    Times are on the clocks that the entry goes by. A narrow terminal has fewer columns. A table has
    1000 rows at the most unless --limit says otherwise; --json has no such limit, and prints as it reads.
    """
    session = Session.of(ctx)
    chosen = _chosen(session, given)
    if is_json:
        for entry in RedBeatSchedulerEntry.list(session.app, **chosen, offset=offset, limit=limit):
            session.print_json(document_of(entry))
        return
    rows = MAX_ROWS if limit is None else limit
    listed = RedBeatSchedulerEntry.list(session.app, **chosen, offset=offset, limit=rows + 1)
    now = session.now()
    entries = list(islice(listed, rows))
    if entries:
        session.console.print(entries_table(entries, now, session.console.width))
    else:
        session.note("There are no such entries.")
    if limit is None and next(listed, None) is not None:
        session.note(
            f"There are more than these {rows}: --limit, --offset and --match choose, --json has all."
        )


@click.command(cls=SessionCommand)
@filters
@click.option("--json", "is_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def count(ctx: click.Context, /, is_json: bool, **given: Any) -> None:
    """Count the entries; without options in no time, however many there are."""
    session = Session.of(ctx)
    chosen = {name: value for name, value in _chosen(session, given).items() if value is not None}
    if chosen:
        with meter("Counting") as progress:
            for number, _ in enumerate(RedBeatSchedulerEntry.list(session.app, **chosen), start=1):
                progress(number)
            found = progress.done
    else:
        found = RedBeatSchedulerEntry.count(session.app)
    if is_json:
        session.print_json({"count": found})
    else:
        session.echo(str(found))


@click.command(cls=SessionCommand)
@click.argument("name", type=NAME)
@click.option("--json", "is_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def show(ctx: click.Context, name: str, is_json: bool) -> None:
    """Show all about the entry NAME: its fields, its next runs and its last ones."""
    session = Session.of(ctx)
    entry = listed_entry(session, name)
    try:
        history, spoilt = entry.history(LAST_RUNS), ""
    except StoreCorrupt as exc:
        history, spoilt = [], one_line(exc)
    upcoming, problem = _next_runs(entry)
    if is_json:
        runs = {"next_runs": [iso(due) for due in upcoming], "history": [run.to_dict() for run in history]}
        session.print_json({**document_of(entry), **runs})
        return
    now, zone, console = session.now(), zone_for(entry), session.console
    next_run = dict.fromkeys(filter(None, next_run_in_words(entry, zone, now)))
    last = entry.last_run_at if entry.total_run_count else None
    rows = [
        ("name", one_line(entry.name)),
        ("state", f"{entry.state}: {STATES[entry.state]}"),
        ("error", one_line(entry.error or problem, 2000)),
        ("task", one_line(entry.task or "")),
        ("schedule", one_line(words_of(entry))),
        ("args", one_line(list(entry.args)) if entry.args else ""),
        ("kwargs", one_line(entry.kwargs) if entry.kwargs else ""),
        ("options", one_line(entry.options) if entry.options else ""),
        ("enabled", "yes" if entry.enabled else "no"),
        *policy_rows(entry),
        ("next run", ", ".join(next_run)),
        ("last run", f"{when(last, zone)}, {relative(last, now)}" if last else ""),
        ("runs", str(entry.total_run_count)),
        ("key", one_line(entry.key)),
    ]
    console.print(fields_table([row for row in rows if row[1]], entry.state))
    if upcoming:
        is_at_rest = entry.state in ("paused", "disabled")
        console.print()
        session.say("It would run" if is_at_rest else "It runs", "bold")
        offsets = {entry.name: now.astimezone(zone).utcoffset()}
        console.print(runs_table(((entry, due) for due in upcoming), now, offsets, with_names=False))
    if history:
        console.print()
        session.say("What became of its runs", "bold")
        console.print(history_table(history, zone))
    if spoilt:
        session.note(spoilt)


def _next_runs(entry: RedBeatSchedulerEntry) -> tuple[list[Any], str]:
    """Return the next runs of ``entry``, and why there are none that can be told."""
    if entry.schedule is None:
        return [], ""
    try:
        return entry.next_runs(NEXT_RUNS), ""
    except (EntryError, ValueError, OverflowError) as exc:
        return [], str(exc)
