"""``celery redbeat list``, ``show`` and ``count``: the stored entries.

Invariant: a list that isn't sorted is printed as it is read, so that it needs no more memory than one page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, tzinfo
from heapq import nlargest, nsmallest
from itertools import chain, islice
from math import inf
from typing import Any

import click

from redbeat.cli.documents import OBJECT_PER_ENTRY, ONE_OBJECT
from redbeat.cli.later import LISTED, list_messages
from redbeat.cli.names import NAME, listed_entry
from redbeat.cli.progress import meter
from redbeat.cli.run_tables import figures_rows, history_lines, run_lines
from redbeat.cli.selection import ONLY_MATCHING
from redbeat.cli.session import Command, ReadingCommand, Session, SessionCommand
from redbeat.cli.tables import STATE_STYLES, entries_lines, fields_lines, runs_lines
from redbeat.cli.values import AHEAD
from redbeat.cli.zone import zone_options
from redbeat.diagnostics.hints import source_of
from redbeat.entries.describe import description_of
from redbeat.entries.documents import Overview, document_of, outcome_of, overview_of, policy_rows
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.query import STATES
from redbeat.entries.runs import with_last
from redbeat.entries.wording import due_in_words, in_words_of, next_run_in_words, one_line, relative, when_in
from redbeat.process import exit_codes as exits
from redbeat.process.exit_codes import CommandLineError

#: how many rows are shown on a terminal by default
TERMINAL_ROWS = 50
#: how many entries are counted for "50 of 230 shown"
MOST_COUNTED = 10_000

#: the order of states: those that need attention come first
_BY_URGENCY = (
    *("quarantined", "missing", "unscheduled", "downgraded", "failing", "due"),
    *("scheduled", "paused", "disabled", "finished"),
)
#: the keys by which a list is sorted, the smallest first
SORT_KEYS: dict[str, Callable[[Any], Any]] = {
    "next": lambda entry: _seconds(entry.next_due_at, never=inf),
    "name": lambda entry: str(entry.name),
    "task": lambda entry: str(entry.task or ""),
    "last": lambda entry: -_seconds(entry.last_run_at if entry.total_run_count else None, never=-inf),
    "runs": lambda entry: -entry.total_run_count,
    "state": lambda entry: _BY_URGENCY.index(entry.state),
}


def _seconds(moment: datetime | None, never: float) -> float:
    return never if moment is None else moment.timestamp()


def filters(command: Command) -> Command:
    """Give ``command`` the options that choose entries."""
    for option in (
        click.option(
            "--due-before", type=AHEAD, help="Only entries whose next run is due at this time or before."
        ),
        click.option(
            "--enabled/--disabled", default=None, help="Only enabled entries, or only disabled ones."
        ),
        click.option("--state", type=click.Choice(list(STATES)), help="Only entries in this state."),
        click.option(
            "--task", metavar="PATTERN", help="Only entries whose task matches; * and ? are wildcards."
        ),
        ONLY_MATCHING,
    ):
        command = option(command)
    return command


def _chosen(session: Session, given: dict[str, Any]) -> dict[str, Any]:
    due_before = given.pop("due_before")
    if due_before is not None:
        due_before = session.time(due_before)
    return {**given, "due_before": due_before}


@click.command("list", cls=ReadingCommand)
@filters
@click.option(
    "--sort",
    "order",
    type=click.Choice(list(SORT_KEYS)),
    default="next",
    show_default=True,
    help="Sort by this. last: the latest run first; runs: the most first; state: the worst first.",
)
@click.option("--reverse", is_flag=True, help="Reverse the order.")
@click.option(
    "--limit",
    type=click.IntRange(0),
    help=f"Show at most this many entries; 0 shows all. Default: {TERMINAL_ROWS} on a terminal, else all.",
)
@click.option("--offset", type=click.IntRange(0), default=0, help="Skip this many entries.")
@click.option(
    "--later", "is_later", is_flag=True, help="Instead, the messages that are stored until their eta."
)
@zone_options
@OBJECT_PER_ENTRY
@click.pass_context
def list_(
    ctx: click.Context,
    /,
    order: str,
    reverse: bool,
    limit: int | None,
    offset: int,
    is_later: bool,
    is_json: bool,
    **given: Any,
) -> None:
    """List the entries, the next to run first; those that never run again come last.

    On a terminal of less than 120 columns times are shown as 'in 5 min', names are shortened, and there are
    fewer columns. A pipe or file gets all columns; texts other than names end there after 1,000 characters.
    --json has everything. --sort and --reverse read all entries before the first one is shown.
    """
    session = Session.of(ctx)
    chosen = _chosen(session, given)
    is_whole = limit is not None or is_json or not session.is_on_terminal
    rows = limit or None if is_whole else TERMINAL_ROWS
    if is_later:
        if reverse or order != "next" or any(value is not None for value in chosen.values()):
            raise CommandLineError(
                "Stored messages are listed in the order of their etas, all of them: --later takes --limit, "
                "--offset, --tz, --utc and --json only.",
                exits.USAGE,
            )
        most = LISTED if limit is None and not is_json else limit
        list_messages(session, most or None, offset, is_json=is_json)
        return
    last = None if rows is None else offset + rows
    listed = _Counted(RedBeatSchedulerEntry.list(session.app, **chosen))
    is_sorted = order != "next" or reverse
    entries = islice(_sorted(listed, order, reverse, last) if is_sorted else listed, offset, last)
    if is_json:
        for entry, last_run in with_last(entries):
            session.print_json({**document_of(entry), **outcome_of(last_run)})
        return
    shown = _Counted(with_last(entries))
    lines = entries_lines(shown, session.now(), session.zone, session.console)
    titles = list(islice(lines, 1))  # this reads the first entries
    if not shown.number:
        session.note("There are no such entries.")
        return
    session.draw(chain(titles, lines))
    if is_whole or shown.number < TERMINAL_ROWS:
        return
    if is_sorted or any(value is not None for value in chosen.values()):
        most = listed.number + MOST_COUNTED
        for _ in islice(listed, MOST_COUNTED):
            pass
        total, more = listed.number, "more than " if listed.number == most else ""
    else:
        total, more = RedBeatSchedulerEntry.count(session.app), ""
    if total > offset + shown.number:
        session.note(_more(offset, shown.number, f"{more}{total}"))


def _more(offset: int, shown: int, total: str) -> str:
    which = f"{offset + 1} to {offset + shown}" if offset else str(shown)
    further = f", --offset {offset + shown} for the next" if offset else ""
    return f"{which} of {total} shown; --limit 0 for all{further}, --match PATTERN to choose."


class _Counted(Iterator[Any]):
    """An iterator, and how many items were taken from it."""

    def __init__(self, items: Iterable[Any]) -> None:
        self.number = 0
        self._items = iter(items)

    def __next__(self) -> Any:
        item = next(self._items)
        self.number += 1
        return item


def _sorted(
    entries: Iterable[RedBeatSchedulerEntry], order: str, reverse: bool, last: int | None
) -> Iterable[Any]:
    """Return ``entries`` in their ``order``; no more than ``last`` of them are held."""
    key = SORT_KEYS[order]
    if last is None:
        return sorted(entries, key=key, reverse=reverse)
    return nlargest(last, entries, key=key) if reverse else nsmallest(last, entries, key=key)


@click.command(cls=ReadingCommand)
@filters
@zone_options
@ONE_OBJECT
@click.pass_context
def count(ctx: click.Context, /, is_json: bool, **given: Any) -> None:
    """Count the entries. Without options that is quick for any number of them."""
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
        left_out = {"unread_shards": session.unread_shards} if session.unread_shards else {}
        session.print_json({"count": found, **left_out})
    else:
        session.echo(str(found))


@click.command(cls=SessionCommand)
@click.argument("name", type=NAME)
@zone_options
@ONE_OBJECT
@click.pass_context
def show(ctx: click.Context, name: str, is_json: bool) -> None:
    """Show all about the entry NAME: its fields, figures of its runs, its next runs and its last ones."""
    session = Session.of(ctx)
    entry = listed_entry(session, name)
    found = overview_of(entry, session.zone)
    now, zone, console = session.now(), session.zone, session.console
    if is_json:
        session.print_json(found.to_dict())
        return
    state = str(entry.state)
    next_run = dict.fromkeys(filter(None, next_run_in_words(entry, zone, now, when_in)))
    last = entry.last_run_at if entry.total_run_count else None
    rows = [
        ("name", one_line(entry.name)),
        ("state", f"{state}: {STATES[state]}"),
        ("error", in_words_of(one_line(entry.error or found.problem, 2000), zone)),
        ("task", one_line(entry.task or "")),
        ("schedule", one_line(description_of(entry, zone))),
        ("args", one_line(list(entry.args)) if entry.args else ""),
        ("kwargs", one_line(entry.kwargs) if entry.kwargs else ""),
        ("options", one_line(entry.options) if entry.options else ""),
        ("enabled", "yes" if entry.is_enabled_at(now) else "no"),
        *policy_rows(entry, zone),
        ("next run", ", ".join(next_run)),
        ("next look", _next_look(found, zone, now)),
        ("last run", f"{when_in(last, zone)}, {relative(last, now)}" if last else ""),
        ("runs", str(entry.total_run_count)),
        *figures_rows(found.figures),
        ("key", one_line(entry.key)),
        ("from", source_of(session.app, entry.name)),
    ]
    given = [row for row in rows if row[1]]
    session.draw(fields_lines(given, console, STATE_STYLES.get(state, "")))
    if found.next_runs:
        is_at_rest = state in ("paused", "disabled")
        console.print()
        session.say("It would run" if is_at_rest else "It runs", "bold")
        pairs = [(entry, due) for due in found.next_runs]
        session.draw(runs_lines(pairs, now, zone, console, with_names=False))
    if found.running:
        console.print()
        session.say("In progress", "bold")
        session.draw(run_lines(found.running, now, zone, console, with_names=False))
    if found.past:
        console.print()
        session.say("What became of its runs", "bold")
        session.draw(history_lines(found.past, now, zone, console))
    if found.spoilt:
        session.note(found.spoilt)


def _next_look(found: Overview, zone: tzinfo, now: datetime) -> str:
    """Return when beat looks at a quarantined entry again; '' for all others."""
    if found.entry.state != "quarantined" or found.looked_at is None:
        return ""
    words = ", ".join(due_in_words(found.looked_at, zone, now, when_in))
    return f"{words}: beat sees whether it can be used by then"
