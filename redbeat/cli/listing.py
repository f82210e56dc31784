"""``celery redbeat list``, ``count``, ``show`` and ``next``: the stored entries and their next runs.

Invariant: a list that isn't sorted is printed as it is read, so that it needs no more memory than one page.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, tzinfo
from heapq import nlargest, nsmallest
from math import inf
from typing import Any

import click
from rich.text import Text

from redbeat.cli.later import print_messages
from redbeat.cli.operations import options_of
from redbeat.cli.parameters import (
    LIMIT,
    NAME,
    OBJECT_PER_ENTRY,
    OBJECT_PER_RUN,
    ONE_OBJECT,
    pass_session,
    zone_options,
)
from redbeat.cli.run_tables import figures_rows, print_runs, style_of
from redbeat.cli.session import ReadingCommand, Session, SessionCommand
from redbeat.cli.tables import (
    END,
    MIDDLE,
    START,
    Column,
    meter,
    print_fields,
    print_page,
    styled,
    titled,
)
from redbeat.diagnostics.hints import source_of
from redbeat.entries.describe import description_of
from redbeat.entries.documents import document_of, iso, outcome_of, overview_of, policy_rows
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.failures import failure_of
from redbeat.entries.marks import clock_changes
from redbeat.entries.query import STATES
from redbeat.entries.runs import Last, with_last
from redbeat.entries.search import read_listed
from redbeat.entries.timeline import first_of_all
from redbeat.entries.upcoming import next_run_in_words, next_runs
from redbeat.entries.wording import (
    clock,
    in_words_of,
    local_time,
    one_line,
    relative,
    when_in,
)
from redbeat.errors import EntryError
from redbeat.history import COUNTED_OUTCOMES
from redbeat.log.text import counted, printable
from redbeat.operations.reading import list_entries, next_of_all
from redbeat.process import exit_codes as exits
from redbeat.process.exit_codes import CommandLineError
from redbeat.runs.run import run_of_past
from redbeat.schedules.times import TypedTime

#: how much of an error is shown below a row; ``show`` has all of it
_ERROR = 300
#: of how many entries the list of next runs says that it is incomplete
MOST_NOTED = 3

#: the states with their styles; states that need attention come first
STATE_STYLES = {
    "quarantined": "bold red",
    "missing": "red",
    "unscheduled": "red",
    "downgraded": "",
    "failing": "red",
    "due": "cyan",
    "scheduled": "green",
    "paused": "yellow",
    "disabled": "yellow",
    "finished": "dim",
}
#: the keys by which a list is sorted, the smallest first
SORT_KEYS: dict[str, Callable[[Any], Any]] = {
    "next": lambda entry: entry.next_due_at.timestamp() if entry.next_due_at else inf,
    "name": lambda entry: str(entry.name),
    "task": lambda entry: str(entry.task or ""),
    "last": lambda entry: -last.timestamp() if (last := _last_run(entry)) else inf,
    "runs": lambda entry: -entry.total_run_count,
    "state": lambda entry: [*STATE_STYLES].index(entry.state),
}


def _last_run(entry: Any) -> datetime | None:
    return entry.last_run_at if entry.total_run_count else None


# -- list and count


def filters(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give ``command`` the options that choose entries."""
    enabled = click.option(
        "--enabled/--disabled", default=None, help="Only enabled entries, or only disabled ones."
    )
    return options_of(list_entries, "match", "task", "state", "due_before")(enabled(command))


def _chosen(session: Session, given: dict[str, Any]) -> dict[str, Any]:
    """Return the filters that were given."""
    chosen = {name: value for name, value in given.items() if value is not None}
    if "due_before" in chosen:
        chosen["due_before"] = session.time(chosen["due_before"])
    return chosen


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
@LIMIT
@click.option("--offset", type=click.IntRange(0), default=0, help="Skip this many entries.")
@click.option(
    "--later", "is_later", is_flag=True, help="Instead, the messages that are stored until their eta."
)
@zone_options
@OBJECT_PER_ENTRY
@pass_session
def list_(
    session: Session,
    order: str,
    reverse: bool,
    limit: int | None,
    offset: int,
    is_later: bool,
    **given: Any,
) -> None:
    """List the entries, the next to run first.

    Those that never run again come last. Where a terminal is too narrow, columns are left out, and after that
    names are shortened. A pipe or file gets all columns; texts other than names end there after 1,000
    characters. --json has everything. --sort and --reverse read all entries before the first one is shown.
    """
    chosen = _chosen(session, given)
    if is_later:
        if reverse or order != "next" or chosen:
            words = "--later lists all stored messages by their etas: leave out --sort and what chooses."
            raise CommandLineError(words, exits.USAGE)
        print_messages(session, limit, offset)
        return
    entries: Iterable[Any] = RedBeatSchedulerEntry.list(session.app, **chosen)
    if order != "next" or reverse:
        rows = session.rows(limit)
        most = sys.maxsize if rows is None else offset + rows + 1  # so that no more of them are held
        entries = (nlargest if reverse else nsmallest)(most, entries, key=SORT_KEYS[order])
    now, zone = session.now(), session.zone

    def next_run(entry: RedBeatSchedulerEntry) -> str:
        when, until_then = next_run_in_words(entry, zone, now)
        return until_then or when

    columns: list[Column[tuple[RedBeatSchedulerEntry, Last]]] = [
        Column("name", lambda one: Text(printable(str(one[0].name))), cut=MIDDLE, least=40),
        Column("task", lambda one: one[0].task or "", rank=4, cut=START),
        Column("schedule", lambda one: description_of(one[0], zone), rank=1, cut=END),
        Column("next run", lambda one: next_run(one[0])),
        Column(
            titled("at", zone),
            lambda one: clock(due, zone) if (due := one[0].next_due_at) and due.timestamp() else "",
            rank=6,
        ),
        Column("last run", lambda one: relative(_last_run(one[0]), now), rank=5),
        Column("runs", lambda one: str(one[0].total_run_count), rank=3, is_right=True),
        Column("outcome", lambda one: _outcome(one[1]), rank=2),
        Column("state", lambda one: Text(state := str(one[0].state), STATE_STYLES[state])),
    ]
    print_page(
        session,
        with_last(entries),
        lambda one: {**document_of(one[0]), **outcome_of(one[1])},
        columns,
        "There are no such entries.",
        lambda one: _error_of(one[0], session),
        "error",
        limit=limit,
        offset=offset,
        total=None if chosen else lambda: RedBeatSchedulerEntry.count(session.app),
    )


def _outcome(last: Last) -> Text:
    """Return the last outcome, and how many runs have failed in a row.

    Others, such as 'revoked', don't count: they are shown with the failures before them.
    """
    outcome = last.outcome or ""
    if not last.failures:
        return styled(outcome, style_of(outcome))
    if outcome in COUNTED_OUTCOMES:
        return styled(f"{outcome} ({last.failures})", "red")
    return styled(f"{outcome}, {counted(last.failures, 'failure', 'failures')} before", "red")


def _error_of(entry: RedBeatSchedulerEntry, session: Session) -> Text:
    """Return why an entry doesn't run, or won't; '': it does."""
    is_told = entry.stored is not None and failure_of(entry.stored) is not None
    is_over = is_told and entry.state not in ("quarantined", "failing")  # a stored error is older than that
    error = "" if is_over else entry.error or ""
    reason = in_words_of(printable(error.removeprefix(f"{printable(entry.key)}: ")), session.zone)
    return styled(one_line(reason, _ERROR) if not session.is_piped else reason, "red")


@click.command(cls=ReadingCommand)
@filters
@zone_options
@ONE_OBJECT
@pass_session
def count(session: Session, **given: Any) -> None:
    """Count the entries. Without options that is quick for any number of them."""
    chosen = _chosen(session, given)
    if chosen:
        with meter("Counting") as progress:
            for number, _ in enumerate(RedBeatSchedulerEntry.list(session.app, **chosen), start=1):
                progress(number)
            found = progress.done
    else:
        found = RedBeatSchedulerEntry.count(session.app)
    if session.is_json:
        left_out = {"unread_shards": session.unread_shards} if session.unread_shards else {}
        session.print_json({"count": found, **left_out})
    else:
        session.echo(str(found))


# -- show


@click.command(cls=SessionCommand)
@click.argument("name", type=NAME)
@zone_options
@ONE_OBJECT
@pass_session
def show(session: Session, name: str) -> None:
    """Show all about one entry: its fields, next runs and last runs."""
    entry = read_listed(session.app, name)
    found = overview_of(entry, session.zone)
    now, zone, state = session.now(), session.zone, str(entry.state)
    if session.is_json:
        session.print_json(found.to_dict())
        return
    next_run = dict.fromkeys(filter(None, next_run_in_words(entry, zone, now, when_in)))
    last = _last_run(entry)
    rows: list[tuple[str, str | Text]] = [
        ("name", str(entry.name)),
        ("state", Text.assemble((state, STATE_STYLES[state]), f": {STATES[state]}")),
        ("error", in_words_of(printable(entry.error or found.problem), zone)),
        ("task", entry.task or ""),
        ("schedule", description_of(entry, zone)),
        ("args", str([*entry.args]) if entry.args else ""),
        ("kwargs", str(entry.kwargs or "")),
        ("options", str(entry.options or "")),
        ("enabled", "yes" if entry.is_enabled_at(now) else "no"),
        *policy_rows(entry, zone),
        ("next run", ", ".join(next_run)),
        ("next look", _next_look(found.looked_at, zone, now) if state == "quarantined" else ""),
        ("last run", f"{when_in(last, zone)}, {relative(last, now)}" if last else ""),
        ("runs", str(entry.total_run_count)),
        *figures_rows(found.figures),
        ("key", entry.key),
        ("from", source_of(session.app, entry.name)),
    ]
    print_fields(session, rows)
    if found.next_runs:
        _print_title(session, "It would run" if state in ("paused", "disabled") else "It runs")
        _print_next(session, [(entry, due) for due in found.next_runs], with_names=False)
    if found.running:
        _print_title(session, "In progress")
        print_runs(session, found.running, with_names=False)
    if found.past:
        _print_title(session, "Last runs")
        print_runs(session, [run_of_past(str(entry.name), past) for past in found.past], with_names=False)
    if found.spoilt:
        session.note(found.spoilt)


def _print_title(session: Session, title: str) -> None:
    session.console.print()
    session.say(title, "bold")


# -- next


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
@options_of(next_of_all, "after", "match")
@zone_options
@OBJECT_PER_RUN
@pass_session
def next_(
    session: Session, name: str | None, wanted: int, after: TypedTime | None, match: str | None
) -> None:
    """Show the next runs of the entry NAME, or of all entries.

    Below a run stands where clocks change before the next one.
    """
    now, zone = session.now(), session.zone
    since = None if after is None else after.at(now, zone)
    if name is None:
        first, untold, _ = first_of_all(session.app, wanted, since, match)
        note_untold(session, untold)
        runs = [(entry, local_time(due, zone)) for due, _, entry in first]
    elif match is not None:
        raise CommandLineError("Give either a NAME or --match, not both.", exits.USAGE)
    else:
        entry = _with_schedule(session, name)
        runs = [(entry, due) for due in next_runs(entry, wanted, since, zone, now)]
    _print_next(session, runs, with_names=name is None)
    if 0 < len(runs) < wanted:
        session.note("There are no more runs.")


def _with_schedule(session: Session, name: str) -> RedBeatSchedulerEntry:
    """Return the entry ``name``; say why its runs won't happen, if they won't."""
    entry = read_listed(session.app, name)
    if entry.schedule is None:
        reason = (entry.error or "").removeprefix(f"{printable(entry.key)}: ")
        raise EntryError(f"{entry.key}: can't be used, so it has no runs: {reason}", entry.key)
    if entry.state not in ("scheduled", "due"):
        session.note(f"It is {entry.state}; these are the runs that its schedule has.")
    return entry


def _next_look(moment: datetime | None, zone: tzinfo, now: datetime) -> str:
    """Return when beat looks at a quarantined entry again; '' for never."""
    words = "" if moment is None else f"{when_in(moment, zone)}, {relative(moment, now)}"
    return f"{words}: beat sees whether it is valid by then" if words else ""


def _print_next(session: Session, runs: list[tuple[Any, datetime]], *, with_names: bool) -> None:
    """Print next runs, in the order of time, with a line where clocks change after one."""
    now, zone = session.now(), session.zone
    changes = ["; ".join(words) for words in clock_changes(runs, zone)]
    following = [*changes[1:], ""]

    def document(place: int) -> Any:
        entry, due = runs[place]
        seconds, clocks = (due - now).total_seconds(), changes[place] or None
        return {"name": entry.name, "due": iso(due), "seconds": seconds, "clocks": clocks}

    columns: list[Column[int]] = [
        Column(titled("next run", zone), lambda place: clock(runs[place][1], zone)),
        Column("", lambda place: relative(runs[place][1], now)),
    ]
    if with_names:
        columns.append(Column("name", lambda place: str(runs[place][0].name), cut=MIDDLE))
    print_page(
        *(session, range(len(runs)), document, columns, "Nothing is going to run."),
        *(lambda place: Text(following[place], "yellow"), "clocks"),
        limit=0,
    )


def note_untold(session: Session, untold: Sequence[str]) -> None:
    """Warn about entries of which not all runs are shown."""
    for words in untold[:MOST_NOTED]:
        session.note(f"Not all of its runs are shown: {words}")
    if len(untold) > MOST_NOTED:
        session.note(f"Nor are those of {len(untold) - MOST_NOTED} more entries.")
