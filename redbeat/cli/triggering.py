"""``celery redbeat trigger`` and ``backfill``: runs that somebody asks for, sent by this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import Any

import click
from kombu.exceptions import OperationalError

from redbeat.cli.confirmation import DRY_RUN, YES, ask
from redbeat.cli.documents import OBJECT_PER_ENTRY, iso
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
from redbeat.cli.session import INTERRUPTED, Session, SessionCommand
from redbeat.cli.values import JSON_ARRAY, JSON_OBJECT, MOMENT, in_zone
from redbeat.cli.words import clock, one_line, when_in
from redbeat.cli.zone import zone_options
from redbeat.config.masking import sanitize_url
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.errors import EntryBusy, RedBeatError
from redbeat.log.text import counted
from redbeat.process import exit_codes as exits
from redbeat.process.exit_codes import CommandLineError
from redbeat.schedules.timezones import in_utc

#: how many runs are sent at most by default, so that a mistyped year doesn't flood the queues
MAX_BACKFILLED = 10_000


@contextmanager
def naming_the_broker(app: Any, name: str) -> Iterator[None]:
    """Turn any error of sending a message, of the task, the serializer or the broker, into one sentence."""
    # kombu counts KeyError among the errors of Redis, but any code may raise one
    broken = tuple(kind for kind in app.connection_for_write().connection_errors if kind is not KeyError)
    try:
        yield
    except (RedBeatError, CommandLineError):
        raise
    except (OperationalError, *broken) as exc:
        url = sanitize_url(app.conf.broker_write_url or app.conf.broker_url or "the default broker")
        raise CommandLineError(
            f"The broker {url} can't be used: {one_line(exc)}", exits.UNAVAILABLE
        ) from None
    except Exception as exc:  # noqa: BLE001 - a task's own apply_async may raise anything
        code = exits.USAGE if isinstance(exc, TypeError) else exits.UNAVAILABLE
        raise CommandLineError(f"{one_line(name)} can't be sent: {one_line(repr(exc))}", code) from None


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
        send(name)
        return
    chosen = select(session, str(match)).names if name is None else [entry_called(session, name).name]
    if dry_run:
        say_names(session, chosen, f"{counted(len(chosen), 'run', 'runs')} would be sent.")
        return

    def summary(sent: int) -> str:
        return f"Sent {counted(sent, 'run', 'runs')}."

    change_selected(session, chosen, send, "Run", "Sending", summary, is_yes=yes, is_json=is_json)


@click.command(cls=SessionCommand)
@click.argument("name", type=NAME, required=False)
@INSTEAD_OF_NAME
@click.option(
    "--from", "begin", type=MOMENT, required=True, help="Send runs that were due at this time or later."
)
@click.option("--to", "end", type=MOMENT, help="Send runs that were due by this time. Default: now.")
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
    begin: datetime,
    end: datetime | None,
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
    begin, end = in_zone(begin, session.zone), now if end is None else in_zone(end, session.zone)
    if end < begin:
        raise CommandLineError("--to must not be before --from.", exits.USAGE)
    names = [name] if name is not None else []
    if match is not None:
        found = select(session, match, lambda entry: not entry.problem, lambda entry: bool(entry.problem))
        names = found.names
        if found.left:
            session.note(f"{counted(found.left, 'entry', 'entries')} can't be used, and left out.")
    has_to_look = dry_run or not yes or match is not None
    spans = [_Span(entry_called(session, one), begin, end) for one in names]
    if has_to_look:
        _find_runs(spans, limit)
    total = sum(len(span.dues) for span in spans)
    if total and not dry_run:
        ask(_question(spans, session.zone), is_yes=yes)
    sent = 0
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
    begun = _told_of_beginnings(spans, session.zone)
    session.note(f"{what} would be sent.{begun}" if dry_run else f"Sent {what}.{begun}")
    if end > now:
        session.note("Those that are still to come are left to beat.")


@dataclass
class _Span:
    """Missed runs of an entry, as far as they are known, and the span of time in which they are."""

    entry: RedBeatSchedulerEntry
    first: datetime
    last: datetime
    dues: Sequence[datetime] = ()

    @property
    def start_time(self) -> datetime | None:
        """The entry's start_time, if it is in the span, as there are no runs before it."""
        start: datetime | None = self.entry.policy.start_time
        return start if start is not None and start > self.first else None

    @property
    def begun_at(self) -> datetime | None:
        """When the entry was stored, if known: before its first run that is its last_run_at."""
        began: datetime | None = None if self.entry.total_run_count else self.entry.last_run_at
        return None if began is None else in_utc(began)

    @property
    def early(self) -> int:
        """How many of the runs were due before the entry was stored."""
        begun_at = self.begun_at
        return 0 if begun_at is None else sum(due < begun_at for due in self.dues)


def _find_runs(spans: Sequence[_Span], limit: int) -> None:
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


def _question(spans: Sequence[_Span], zone: tzinfo) -> str:
    """Return the question: how many runs of which entries are to be sent, and from when to when."""
    found = [span for span in spans if span.dues]
    total = counted(sum(len(span.dues) for span in found), "run", "runs")
    earliest, latest = min(span.dues[0] for span in found), max(span.dues[-1] for span in found)
    last = when_in(latest, zone)
    times = f"due {last}" if earliest == latest else f"due from {clock(earliest, zone)} to {last}"
    return f"Send {total} of {names_in_words([str(span.entry.name) for span in found])}, {times}?"


def _told_of_beginnings(spans: Sequence[_Span], zone: tzinfo) -> str:
    """Return the sentence about runs before the entries were stored; '': there are none."""
    words = ""
    started = [span.start_time for span in spans if span.start_time is not None]
    if started and len(spans) == 1:
        words += f" There are none before {when_in(started[0], zone)}, its start_time."
    elif started:
        words += f" There are none before their start_time: {counted(len(started), 'entry', 'entries')}."
    early = sum(span.early for span in spans)
    if not early:
        return words
    is_all = early == sum(len(span.dues) for span in spans)
    are = "All of them are" if is_all else counted(early, "of them is", "of them are")
    begun_at = spans[0].begun_at
    if len(spans) > 1 or begun_at is None:
        return f"{words} {are} from before their entries were stored."
    return f"{words} {are} from before {when_in(begun_at, zone)}, when it was stored."


def _send(session: Session, span: _Span, limit: int, sent: int) -> Sequence[datetime]:
    with meter("Sending", len(span.dues)) as progress:
        try:
            with naming_the_broker(session.app, span.entry.name):
                dues: Sequence[datetime] = span.entry.backfill(
                    span.first, span.last, limit=limit, progress=progress
                )
        except CommandLineError as exc:
            raise CommandLineError(f"{exc.message} {_rest(sent + progress.done)}", exc.exit_code) from None
        except EntryBusy as exc:
            raise CommandLineError(f"{exc} {_rest(sent + progress.done)}", exits.TRY_AGAIN) from None
        except KeyboardInterrupt:
            raise CommandLineError(f"Interrupted. {_rest(sent + progress.done)}", INTERRUPTED) from None
    return dues


def _rest(done: int) -> str:
    were = counted(done, "run was", "runs were")
    return f"{were} sent, and won't be sent again; the same command sends the rest."
