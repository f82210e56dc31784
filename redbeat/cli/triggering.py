"""``celery redbeat trigger`` and ``backfill``: runs that a user asks for, sent by this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, tzinfo
from typing import Any

import click

from redbeat.cli.changes import (
    ask_about,
    check_failures,
    names_in_words,
    refuse_both_or_none,
    select,
    show_names,
)
from redbeat.cli.operations import options_of
from redbeat.cli.parameters import (
    DRY_RUN,
    INSTEAD_OF_NAME,
    NAME,
    OBJECT_PER_ENTRY,
    YES,
    pass_session,
    zone_options,
)
from redbeat.cli.session import INTERRUPTED, Session, SessionCommand, code_of
from redbeat.cli.tables import meter
from redbeat.entries.backfill import told_of_beginnings
from redbeat.entries.documents import iso
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.wording import clock, one_line, when_in
from redbeat.errors import EntryBusy, RunNotSent
from redbeat.log.text import counted
from redbeat.operations.running import (
    Triggered,
    backfill_entries,
    backfill_entry,
    trigger_entries,
    trigger_entry,
)
from redbeat.operations.selection import Selection
from redbeat.process import exit_codes as exits
from redbeat.process.exit_codes import CommandLineError
from redbeat.schedules.times import TypedTime

#: how many runs are sent at most by default, so that a mistyped year doesn't flood the queues
MAX_BACKFILLED = 10_000


@click.command(cls=SessionCommand)
@click.argument("name", type=NAME, required=False)
@INSTEAD_OF_NAME
@options_of(trigger_entry, "args", "kwargs", "queue")
@DRY_RUN
@YES
@OBJECT_PER_ENTRY
@pass_session
def trigger(
    session: Session,
    name: str | None,
    match: str | None,
    args: list[object] | None,
    kwargs: dict[str, object] | None,
    queue: str | None,
) -> None:
    """Send the entry NAME now, once, or all that --match finds. The schedule doesn't change.

    Paused entries are sent, too. --match shows how many entries it finds, and asks first.
    """
    if not session.is_dry_run:
        session.require_application("trigger")
    refuse_both_or_none(name, match)
    names = (
        [RedBeatSchedulerEntry.get(name, session.app).name]
        if name is not None
        else select(session, str(match))[0]
    )
    if session.is_dry_run:
        show_names(session, names, f"{counted(len(names), 'run', 'runs')} would be sent.")
        return

    def show(run: Triggered) -> None:
        if session.is_json:
            session.print_json({"name": run.name, "task": run.task, "task_id": run.task_id})
        elif name is not None:
            session.say(f"Sent {one_line(run.task)} for {one_line(run.name)}; its task id is {run.task_id}.")

    if name is not None:
        show(trigger_entry(session.actor, name, args=args, kwargs=kwargs, queue=queue))
        return
    sent = []
    if names:
        ask_about(session, "Run", names)
    with meter("Sending", len(names)) as progress:

        def count(run: Triggered) -> None:
            sent.append(run)
            show(run)
            progress(len(sent))

        chosen = Selection(names, match, is_whole=True)
        done = trigger_entries(session.actor, chosen, args=args, kwargs=kwargs, queue=queue, sent=count)
    session.summarize(f"Sent {counted(len(sent), 'run', 'runs')}.")
    check_failures(session, done.failed | dict.fromkeys(done.left, done.reason), len(names))


@click.command(cls=SessionCommand)
@click.argument("name", type=NAME, required=False)
@INSTEAD_OF_NAME
@options_of(backfill_entry, "from", "to")
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
@pass_session
def backfill(
    session: Session,
    name: str | None,
    match: str | None,
    begin: TypedTime,
    end: TypedTime | None,
    limit: int,
) -> None:
    """Send the runs that were due in a past span of time, each once.

    They are the runs that the schedule of NAME has between two times. Shows how many there are, and asks
    first. Runs that a backfill has sent before are left out. Times without an offset are in the zone of
    --tz, else in the application's.
    """
    if not session.is_dry_run:
        session.require_application("backfill")
    refuse_both_or_none(name, match)
    first, last = session.time(begin), session.now() if end is None else session.time(end)
    names = [name] if name is not None else []
    if match is not None:
        names, left = select(session, match, lambda one: not one.problem)
        if left:
            session.note(f"{counted(left, 'entry', 'entries')} can't be used, and left out.")
    entries = [RedBeatSchedulerEntry.get(one, session.app) for one in names]
    runs = _carry_out(session, names, match, first, last, limit, dry_run=True)
    if not session.is_dry_run and any(runs.values()):
        session.ask(_question({one: dues for one, dues in runs.items() if dues}, session.zone))
        runs = _carry_out(session, names, match, first, last, limit)
    found = [(entry, runs.get(str(entry.name), ())) for entry in entries]
    for entry, dues in found:
        if session.is_json:
            about = {"name": entry.name, "is_dry_run": session.is_dry_run}
            session.print_json({**about, "runs": [iso(due) for due in dues]})
        elif name is not None:
            for due in dues:
                session.say(when_in(due, session.zone))
        elif session.is_dry_run:
            session.say(f"{one_line(entry.name)}: {counted(len(dues), 'run', 'runs')}")
    if session.is_json:
        return
    what = counted(sum(map(len, runs.values())), "run", "runs")
    done = f"{what} would be sent." if session.is_dry_run else f"Sent {what}."
    session.note(f"{done}{told_of_beginnings(found, first, session.zone)}")
    if last > session.now():
        session.note("Those that are still to come are left to beat.")


def _carry_out(
    session: Session,
    names: Sequence[str],
    match: str | None,
    begin: datetime,
    end: datetime,
    limit: int,
    *,
    dry_run: bool = False,
) -> Mapping[str, Sequence[datetime]]:
    """Return the due times of the runs that were sent, or would be, by the names of entries."""
    actor = session.actor
    span: Any = {"begin": begin, "end": end, "dry_run": dry_run, "limit": limit}
    with meter("Looking" if dry_run else "Sending") as progress:
        try:
            if match is None:
                return {names[0]: backfill_entry(actor, names[0], **span, progress=progress).runs}
            chosen = Selection([*names], match, is_whole=True)
            done = backfill_entries(actor, chosen, **span, progress=progress)
        except (EntryBusy, RunNotSent) as exc:
            raise CommandLineError(f"{exc} {_rest(progress.done)}", code_of(exc)) from None
        except KeyboardInterrupt:
            raise CommandLineError(f"Interrupted. {_rest(progress.done)}", INTERRUPTED) from None
    if done.left and dry_run:
        raise CommandLineError(
            f"These entries have more than {limit} runs together; name a shorter span, or a higher --limit.",
            exits.USAGE,
        )
    if done.left:
        raise CommandLineError(f"{done.reason} {_rest(progress.done)}", exits.UNAVAILABLE)
    if done.failed and not dry_run:
        session.note(_rest(progress.done))
    code = exits.TRY_AGAIN if done.failed.keys() <= {*done.held} else exits.USAGE
    check_failures(session, done.failed, len(names), code)
    return done.runs


def _rest(done: int) -> str:
    were = counted(done, "run was", "runs were")
    return f"{were} sent, and won't be sent again; the same command sends the rest."


def _question(runs: Mapping[str, Sequence[datetime]], zone: tzinfo) -> str:
    """Return the question: how many runs of which entries are to be sent, and from when to when."""
    total = counted(sum(map(len, runs.values())), "run", "runs")
    earliest, latest = min(dues[0] for dues in runs.values()), max(dues[-1] for dues in runs.values())
    last = when_in(latest, zone)
    times = f"due {last}" if earliest == latest else f"due from {clock(earliest, zone)} to {last}"
    return f"Send {total} of {names_in_words([*runs])}, {times}?"
