"""Runs as people see them on a terminal: those in progress, those past, and their figures."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from redbeat.cli.session import Session
from redbeat.cli.tables import MIDDLE, Column, print_table, styled, titled
from redbeat.entries.runs import remark_on
from redbeat.entries.wording import clock, relative, typed
from redbeat.history import FAILED_OUTCOMES
from redbeat.log.text import printable
from redbeat.runs.figures import Figures
from redbeat.runs.run import Run
from redbeat.schedules.durations import lasting_in_words, seconds_in_words


def style_of(outcome: str) -> str:
    """Return the style of an outcome, or of the state of a run in progress."""
    if outcome in FAILED_OUTCOMES or outcome == "unsent":
        return "red"
    if outcome == "succeeded":
        return "green"
    return "" if outcome in ("sent", "started") else "yellow"


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


def print_runs(session: Session, runs: Sequence[Run], *, with_names: bool = True) -> None:
    """Print the table of runs, in progress and past, with what is wrong with one below its row.

    'for' is how long one is at work, or else on its queue, and how long the task of a past one took. A due
    time is shown as ``rerun --due`` takes it. A task id is never shortened, as ``celery`` needs all of it.
    """
    now, zone = session.now(), session.zone

    def lasts(run: Run) -> str:
        seconds = run.age_seconds if run.is_running else run.run_seconds
        in_words = seconds_in_words if run.is_running else lasting_in_words
        return "" if seconds is None else in_words(seconds)

    def late(run: Run) -> str:
        seconds = 0.0 if run.sent_at is None else (run.sent_at - run.due).total_seconds()
        return seconds_in_words(seconds) if seconds >= 0.0005 else ""

    columns: list[Column[Run]] = [
        Column("state", _state),
        Column("for", lasts),
        Column(titled("due", zone), lambda run: typed(run.due, zone)),
        Column("late", late, rank=3),
        Column("ended", lambda run: relative(run.ended_at, now), rank=1),
        Column(titled("at", zone), lambda run: clock(run.ended_at, zone) if run.ended_at else "", rank=4),
        Column("worker", lambda run: run.worker or "", rank=2, is_below=True),
        Column("task id", lambda run: run.task_id or "", rank=3, is_below=True),
    ]
    if with_names:
        name: Column[Run] = Column("name", lambda run: Text(printable(run.name)), cut=MIDDLE, least=40)
        columns.insert(0, name)
    print_table(session, columns, runs, lambda run: remark_on(run, now, zone), "error")


def _state(run: Run) -> Text:
    attempt = f", attempt {run.attempt}" if run.is_running and (run.attempt or 1) > 1 else ""
    if run.is_overdue:
        return Text(f"overdue{attempt}", "red")
    state, by_hand = run.state or run.outcome or "", ", by hand" if run.is_manual else ""
    return styled(f"{state}{attempt}{by_hand}", style_of(state))
