"""What people see on a terminal: the list of entries, one entry, its runs. Values in, rich objects out.

Invariant: no text of an entry's is taken for markup, and a narrow terminal loses columns, not sense.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, tzinfo
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from redbeat.cli.documents import words_of
from redbeat.cli.words import next_run_in_words, offset_of, one_line, relative, seconds_in_words, when
from redbeat.history import PastRun
from redbeat.policy import FIELDS, NO_POLICY
from redbeat.schedules import zone_of
from redbeat.text import printable

__all__ = ["STATE_STYLES", "entries_table", "fields_table", "history_table", "runs_table", "zone_for"]

STATE_STYLES = {
    "scheduled": "green",
    "due": "cyan",
    "failing": "red",
    "paused": "yellow",
    "disabled": "yellow",
    "finished": "dim",
    "quarantined": "bold red",
    "missing": "red",
    "unscheduled": "red",
}

#: from which width on a column is shown
_COLUMNS = {
    "name": 0,
    "task": 110,
    "schedule": 80,
    "next run": 60,
    "": 0,
    "last run": 130,
    "runs": 100,
    "state": 0,
}
#: of a reason in a table
_REASON = 60


def zone_for(entry: Any) -> tzinfo:
    """Return the zone that times of ``entry`` are shown in: whose clocks its schedule goes by."""
    zone: tzinfo = entry.app.timezone if entry.schedule is None else zone_of(entry.schedule, entry.policy)
    return zone


def plain_table() -> Table:
    return Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")


def entries_table(entries: Iterable[Any], now: datetime, width: int) -> Table:
    """Return the table of ``entries``, with the columns for which there is room."""
    shown = [title for title, from_width in _COLUMNS.items() if width >= from_width]
    table = plain_table()
    for title in shown:
        # a date that is broken in two is no date
        is_whole = title in ("next run", "last run", "runs", "state", "")
        right = "right" if title == "runs" else "left"
        table.add_column(title, no_wrap=is_whole, overflow="fold", justify=right)  # type: ignore[arg-type]
    for entry in entries:
        cells = _cells_of(entry, now)
        table.add_row(*(cells[title] for title in shown))
    return table


def _cells_of(entry: Any, now: datetime) -> dict[str, Text]:
    zone = zone_for(entry)
    next_run, until_then = next_run_in_words(entry, zone, now)
    schedule = words_of(entry)
    if entry.state in ("quarantined", "failing") and entry.error:
        reason = one_line(entry.error.removeprefix(f"{printable(entry.key)}: "), _REASON)
        schedule = f"{schedule}: {reason}" if schedule else reason
    return {
        "name": Text(one_line(entry.name)),
        "task": Text(one_line(entry.task or "")),
        "schedule": Text(one_line(schedule)),
        "next run": Text(next_run),
        "": Text(until_then),
        "last run": Text(when(entry.last_run_at, zone) if entry.total_run_count else ""),
        "runs": Text(str(entry.total_run_count)),
        "state": Text(entry.state, style=STATE_STYLES.get(entry.state, "")),
    }


def fields_table(rows: Sequence[tuple[str, str]], state: str = "") -> Table:
    """Return titles with their texts; the one called 'state' in the colour of ``state``."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for title, text in rows:
        style = STATE_STYLES.get(state, "") if title == "state" else ""
        table.add_row(title, Text(text, style=style))
    return table


def policy_rows(entry: Any) -> list[tuple[str, str]]:
    """Return the fields of the policy that say something."""
    zone = zone_for(entry)
    rows = []
    for field in FIELDS:
        value = getattr(entry.policy, field)
        if value != getattr(NO_POLICY, field):
            if isinstance(value, bool):
                text = "yes" if value else "no"
            else:
                text = when(value, zone) if isinstance(value, datetime) else one_line(value)
            rows.append((field, text))
    return rows


def runs_table(
    runs: Iterable[tuple[Any, datetime]], now: datetime, offsets: dict[str, Any], *, with_names: bool
) -> Table:
    """Return the next runs, with a mark where the clocks of an entry have changed since the row before.

    Arguments:
        runs: entries with the due times of theirs, in the zone to show them in.
        offsets: the offsets from UTC at first, by the entries' names.
    """
    rows = []
    for entry, due in runs:
        before, offsets[entry.name] = offsets.get(entry.name), due.utcoffset()
        rows.append((entry, due, clocks_change(before, due)))
    has_change = any(change for _, _, change in rows)
    table = plain_table()
    for title in ("next run", "", *(["name"] if with_names else []), *(["clocks"] if has_change else [])):
        table.add_column(title, no_wrap=title in ("next run", ""), overflow="fold")
    for entry, due, change in rows:
        name = [Text(one_line(entry.name))] if with_names else []
        clocks = [Text(change, style="yellow")] if has_change else []
        table.add_row(when(due, due.tzinfo or zone_for(entry)), relative(due, now), *name, *clocks)
    return table


def clocks_change(before: Any, due: datetime) -> str:
    """Return how the clocks have changed since the run before, whose offset was ``before``; '': not."""
    offset = due.utcoffset()
    if before is None or offset is None or before == offset:
        return ""
    way = "forward" if offset > before else "back"
    hours = seconds_in_words(abs((offset - before).total_seconds()))
    return f"clocks went {way} {hours}, now {offset_of(due)}"


def history_table(history: Sequence[PastRun], zone: tzinfo) -> Table:
    """Return the last runs, the newest first."""
    table = plain_table()
    for title in ("due", "late", "outcome", "why", "task id"):
        table.add_column(title, no_wrap=title in ("due", "late", "outcome"), overflow="fold")
    for run in history:
        outcome = one_line(f"{run.outcome}, by hand" if run.is_manual else run.outcome)
        late = seconds_in_words(run.late_seconds) if run.late_seconds >= 0.0005 else ""
        style = "" if run.outcome == "sent" else "red" if run.outcome == "failed" else "yellow"
        table.add_row(
            when(run.due, zone),
            late,
            Text(outcome, style=style),
            Text(one_line(run.why)),
            Text(one_line(run.task_id or "")),
        )
    return table
