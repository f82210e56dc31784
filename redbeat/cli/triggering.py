"""``celery redbeat trigger`` and ``backfill``: runs that somebody asks for, sent by this process."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from datetime import datetime, tzinfo
from typing import Any

import click

from redbeat.cli.confirmation import DRY_RUN, YES, ask
from redbeat.cli.documents import OBJECT_PER_ENTRY
from redbeat.cli.names import NAME, entry_called
from redbeat.cli.progress import meter
from redbeat.cli.selection import (
    INSTEAD_OF_NAME,
    change_selected,
    names_in_words,
    refuse_both_or_none,
    say_names,
    select,
)
from redbeat.cli.session import INTERRUPTED, Session, SessionCommand, code_of
from redbeat.cli.values import BACK, JSON_ARRAY, JSON_OBJECT
from redbeat.cli.zone import zone_options
from redbeat.entries.backfill_wording import Span, told_of_beginnings
from redbeat.entries.documents import iso
from redbeat.entries.sending import naming_the_broker
from redbeat.entries.wording import clock, one_line, when_in
from redbeat.errors import EntryBusy, RunNotSent
from redbeat.log.text import counted
from redbeat.process import exit_codes as exits
from redbeat.process.exit_codes import CommandLineError
from redbeat.schedules.times import TypedTime

#: how many runs are sent at most by default, so that a mistyped year doesn't flood the queues
MAX_BACKFILLED = 10_000


@click.command(cls=SessionCommand)
@click.argument("name", type=NAME, required=False)
@INSTEAD_OF_NAME
@click.option(
    "--args", type=JSON_ARRAY, help="Positional arguments for this run: '[1, 2]'. Default: the entry's."
)
@click.option(
    "--kwargs", type=JSON_OBJECT, help="Keyword arguments for this run: '{\"x\": 1}'. Default: the entry's."
)
@click.option("--queue", help="The queue for this run. Default: the entry's.")
@DRY_RUN
@YES
@OBJECT_PER_ENTRY
@click.pass_context
def trigger(
    ctx: click.Context,
    /,
    name: str | None,
    match: str | None,
    dry_run: bool,
    yes: bool,
    is_json: bool,
    **overrides: Any,
) -> None:
    """Send the entry NAME now, once, or all that --match finds. The schedule doesn't change.

    Paused entries are sent, too. --match shows how many entries it finds, and asks first.
    """
    session = Session.of(ctx)
    if not dry_run:
        session.require_application("trigger")
    refuse_both_or_none(name, match)
    given = {option: value for option, value in overrides.items() if value is not None}

    def send(name: str) -> None:
        entry = entry_called(session, name)
        with naming_the_broker(session.app, name):
            task_id = entry.trigger(**given).id
        if is_json:
            session.print_json({"name": name, "task": entry.task, "task_id": task_id})
        elif match is None:
            session.say(f"Sent {one_line(entry.task)} for {one_line(name)}; its task id is {task_id}.")

    if name is not None and not dry_run:
        entry_called(session, name)  # raises before anything is written
        with session.audited("trigger", [name], given):
            send(name)
        return
    chosen = select(session, str(match)).names if name is None else [entry_called(session, name).name]
    if dry_run:
        say_names(session, chosen, f"{counted(len(chosen), 'run', 'runs')} would be sent.")
        return

    def summary(sent: int) -> str:
        return f"Sent {counted(sent, 'run', 'runs')}."

    audited = session.audited("trigger", chosen, {"match": match, **given})
    change_selected(session, chosen, send, "Run", "Sending", summary, audited, is_yes=yes, is_json=is_json)


@click.command(cls=SessionCommand)
@click.argument("name", type=NAME, required=False)
@INSTEAD_OF_NAME
@click.option(
    "--from", "since", type=BACK, required=True, help="Send runs that were due at this time or later."
)
@click.option("--to", "until", type=BACK, help="Send runs that were due by this time. Default: now.")
@DRY_RUN
@YES
@zone_options
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=MAX_BACKFILLED,
    show_default=True,
    help="Send nothing if there are more runs than this.",
)
@OBJECT_PER_ENTRY
@click.pass_context
def backfill(
    ctx: click.Context,
    /,
    name: str | None,
    match: str | None,
    since: TypedTime,
    until: TypedTime | None,
    dry_run: bool,
    yes: bool,
    limit: int,
    is_json: bool,
) -> None:
    """Send the runs that the schedule of NAME has between two times, each once.

    Shows how many there are, and asks first. Runs that a backfill has sent before are left out. Times without
    an offset are in the zone of --tz, else in the application's.
    """
    session = Session.of(ctx)
    if not dry_run:
        session.require_application("backfill")
    refuse_both_or_none(name, match)
    now = session.now()
    begin, end = since.at(now, session.zone), until.at(now, session.zone) if until else now
    if end < begin:
        raise CommandLineError("--to must not be before --from.", exits.USAGE)
    names = [name] if name is not None else []
    if match is not None:
        found = select(session, match, lambda entry: not entry.problem, lambda entry: bool(entry.problem))
        names = found.names
        if found.left:
            session.note(f"{counted(found.left, 'entry', 'entries')} can't be used, and left out.")
    has_to_look = dry_run or not yes or match is not None
    spans = [Span(entry_called(session, one), begin, end) for one in names]
    if has_to_look:
        _find_runs(spans, limit)
    total = sum(len(span.dues) for span in spans)
    if total and not dry_run:
        ask(_question(spans, session.zone), is_yes=yes)
    sent = 0
    about = [str(span.entry.name) for span in spans if not dry_run and (span.dues or not has_to_look)]
    details = {"match": match, "from": begin, "to": end, "runs": total if has_to_look else None}
    with session.audited("backfill", about, details) if about else nullcontext():
        for span in spans:
            if not dry_run and (span.dues or not has_to_look):
                span.dues = _send(session, span, limit, sent)
                sent += len(span.dues)
            if is_json:
                runs = [iso(due) for due in span.dues]
                session.print_json({"name": span.entry.name, "is_dry_run": dry_run, "runs": runs})
            elif name is not None:
                for due in span.dues:
                    session.say(when_in(due, session.zone))
            elif dry_run:
                session.say(f"{one_line(span.entry.name)}: {counted(len(span.dues), 'run', 'runs')}")
    if is_json:
        return
    what = counted(total if dry_run else sent, "run", "runs")
    begun = told_of_beginnings(spans, session.zone)
    session.note(f"{what} would be sent.{begun}" if dry_run else f"Sent {what}.{begun}")
    if end > now:
        session.note("Those that are still to come are left to beat.")


def _find_runs(spans: Sequence[Span], limit: int) -> None:
    """Note in each of ``spans`` which runs it has, at most ``limit`` together."""
    total = 0
    with meter("Looking") as progress:
        for span in spans:
            span.dues = span.entry.backfill(span.first, span.last, True, limit=limit, progress=progress)
            total += len(span.dues)
            if total > limit:
                raise CommandLineError(
                    f"These entries have more than {limit} runs together; name a shorter span, or a "
                    "higher --limit.",
                    exits.USAGE,
                )


def _question(spans: Sequence[Span], zone: tzinfo) -> str:
    """Return the question: how many runs of which entries are to be sent, and from when to when."""
    found = [span for span in spans if span.dues]
    total = counted(sum(len(span.dues) for span in found), "run", "runs")
    earliest, latest = min(span.dues[0] for span in found), max(span.dues[-1] for span in found)
    last = when_in(latest, zone)
    times = f"due {last}" if earliest == latest else f"due from {clock(earliest, zone)} to {last}"
    return f"Send {total} of {names_in_words([str(span.entry.name) for span in found])}, {times}?"


def _send(session: Session, span: Span, limit: int, sent: int) -> Sequence[datetime]:
    with meter("Sending", len(span.dues)) as progress:
        try:
            with naming_the_broker(session.app, span.entry.name):
                dues: Sequence[datetime] = span.entry.backfill(
                    span.first, span.last, limit=limit, progress=progress
                )
        except RunNotSent as exc:
            raise CommandLineError(f"{exc} {_rest(sent + progress.done)}", code_of(exc)) from None
        except EntryBusy as exc:
            raise CommandLineError(f"{exc} {_rest(sent + progress.done)}", exits.TRY_AGAIN) from None
        except KeyboardInterrupt:
            raise CommandLineError(f"Interrupted. {_rest(sent + progress.done)}", INTERRUPTED) from None
    return dues


def _rest(done: int) -> str:
    were = counted(done, "run was", "runs were")
    return f"{were} sent, and won't be sent again; the same command sends the rest."
