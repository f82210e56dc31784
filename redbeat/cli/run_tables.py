"""Runs as people see them on a terminal: those in progress, those past, and their figures.

Invariant: as in :mod:`redbeat.cli.tables`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, tzinfo

from rich.console import Console
from rich.text import Text

from redbeat.cli.grid import UNLIMITED_WIDTH, Column, Row, cut_end, cut_middle, least_width, lines_of
from redbeat.cli.tables import WITH_DATES, style_of, titled
from redbeat.entries.runs import reason_of_run, remark_on
from redbeat.entries.wording import clock, in_words_of, one_line, relative, typed
from redbeat.history import PastRun
from redbeat.log.text import printable
from redbeat.runs.figures import Figures
from redbeat.runs.run import Run
from redbeat.schedules.durations import lasting_in_words, seconds_in_words

#: the width from which on the due time of a past run is whole, as somebody may want to send it once more
WITH_DUE_DATES = 80


def figures_rows(figures: Figures) -> list[tuple[str, str]]:
    """Return what is known of an entry's last runs, as fields; none where they aren't tracked."""
    rows = []
    if figures.success_rate is not None:
        rate = f"{figures.succeeded} of the last {figures.runs} ({figures.success_rate:.0%})"
        rows.append(("succeeded", rate))
    if figures.failures_in_a_row:
        rows.append(("failed", f"{figures.failures_in_a_row} in a row"))
    if figures.median_run_seconds is not None and figures.p95_run_seconds is not None:
        median, most = map(lasting_in_words, (figures.median_run_seconds, figures.p95_run_seconds))
        rows.append(("run time", f"{median} at the median, {most} at the 95th percentile"))
    if figures.median_wait_seconds is not None:
        rows.append(("wait", f"{seconds_in_words(figures.median_wait_seconds)} at the median"))
    return rows


def run_lines(
    runs: Sequence[Run], now: datetime, zone: tzinfo, console: Console, *, with_names: bool
) -> Iterator[Text]:
    """Yield the table of runs, in progress and past, with what is wrong with one below its row.

    'for' is how long one is at work, or else on its queue, and how long the task of a past one took. A task
    id is never cut, as one needs all of it: where there is no room it stands below its row, and so does the
    worker where names would be cut. When past runs were due is shown as ``rerun --due`` takes it; on a very
    narrow terminal it is left out.
    """
    width = console.width
    with_dates = width >= WITH_DATES
    with_due_dates = with_dates or (width >= WITH_DUE_DATES and not all(run.is_running for run in runs))
    columns = _columns(zone, with_dates=with_dates, with_due_dates=with_due_dates)
    cells = [_cells(run, now, zone, with_dates=with_dates, with_due_dates=with_due_dates) for run in runs]
    if not with_names:
        del columns["name"]
    if not with_due_dates and all(run.ended_at for run in runs):
        del columns["due"]
    for title in ("for", "ended", "worker"):
        if not any(one[title] for one in cells):
            del columns[title]

    def rows(words: Sequence[str]) -> list[Row]:
        found = zip(cells, words, strict=True)
        return [Row([one[title] for title in columns], below=Text(below)) for one, below in found]

    words = [remark_on(run, now, zone) for run in runs]
    moved = []
    for title in ("task id", "worker"):
        if (
            title in columns
            and width < UNLIMITED_WIDTH
            and least_width([*columns.values()], rows(words)) > width
        ):
            del columns[title]
            moved.append(title)
    places = [" on ".join(filter(None, (one[title].plain for title in moved))) for one in cells]
    words = ["; ".join(filter(None, both)) for both in zip(places, words, strict=True)]
    return lines_of([*columns.values()], rows(words), console, beside="error" if any(words) else "")


def _columns(zone: tzinfo, *, with_dates: bool, with_due_dates: bool) -> dict[str, Column]:
    return {
        "name": Column("name", share=2, cut=cut_middle),
        "state": Column("state"),
        "for": Column("for"),
        "due": Column(titled("due", zone, with_due_dates)),
        "ended": Column(titled("ended", zone, with_dates)),
        "worker": Column("worker", share=2, cut=cut_middle),
        "task id": Column("task id"),
    }


def _cells(
    run: Run, now: datetime, zone: tzinfo, *, with_dates: bool, with_due_dates: bool
) -> dict[str, Text]:
    seconds = run.age_seconds if run.is_running else run.run_seconds
    in_words = seconds_in_words if run.is_running else lasting_in_words
    ended = run.ended_at and (clock(run.ended_at, zone) if with_dates else relative(run.ended_at, now))
    return {
        "name": Text(printable(run.name)),
        "state": _state_cell(run),
        "for": Text("" if seconds is None else in_words(seconds)),
        "due": Text(typed(run.due, zone) if with_due_dates else relative(run.due, now)),
        "ended": Text(ended or ""),
        "worker": Text(printable(run.worker or "")),
        "task id": Text(printable(run.task_id or "")),
    }


def _state_cell(run: Run) -> Text:
    attempt = f", attempt {run.attempt}" if run.is_running and (run.attempt or 1) > 1 else ""
    if run.is_overdue:
        return Text(f"overdue{attempt}", style="red")
    state = one_line(run.state or run.outcome or "")
    return Text(state + attempt, style=style_of(state))


def history_lines(
    history: Sequence[PastRun], now: datetime, zone: tzinfo, console: Console
) -> Iterator[Text]:
    """Yield the table of the last runs, the newest first, with reasons below their rows.

    How long they took, and on which worker, is shown where that is known.
    """
    with_dates, with_due_dates = console.width >= WITH_DATES, console.width >= WITH_DUE_DATES
    are_tracked = any(run.ended is not None for run in history)
    columns = [Column(titled("due", zone, with_due_dates)), Column("late"), Column("outcome")]
    columns += [Column("took")] if are_tracked else []
    columns += [Column("worker", share=1, cut=cut_middle)] if are_tracked and with_dates else []
    columns += [Column("task id", share=1, cut=cut_end)]
    rows = []
    for run in history:
        outcome = one_line(f"{run.outcome}, by hand" if run.is_manual else run.outcome)
        late = seconds_in_words(run.late_seconds) if run.late_seconds >= 0.0005 else ""
        cells = {
            "due": Text(typed(run.due, zone) if with_due_dates else relative(run.due, now)),
            "late": Text(late),
            "outcome": Text(outcome, style=style_of(run.outcome)),
            "took": Text("" if run.run_seconds is None else lasting_in_words(run.run_seconds)),
            "worker": Text(printable(run.worker or "")),
            "task id": Text(printable(run.task_id or "")),
        }
        shown = [cells[column.title.partition(",")[0]] for column in columns]
        rows.append(Row(shown, below=Text(in_words_of(one_line(reason_of_run(run, zone)), zone))))
    return lines_of(columns, rows, console, beside="why" if any(row.below for row in rows) else "")
