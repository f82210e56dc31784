"""``celery redbeat trigger`` and ``backfill``: runs that somebody asks for. They are sent from here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import click
from kombu.exceptions import OperationalError

from redbeat import exits
from redbeat.cli.documents import iso
from redbeat.cli.names import NAME, entry_called
from redbeat.cli.progress import meter
from redbeat.cli.session import INTERRUPTED, Session, SessionCommand
from redbeat.cli.tables import zone_for
from redbeat.cli.values import JSON_ARRAY, JSON_OBJECT, MOMENT, in_zone
from redbeat.cli.words import one_line, when
from redbeat.errors import RedBeatError
from redbeat.exits import CommandLineError
from redbeat.urls import sanitize_url

__all__ = ["backfill", "trigger"]


#: a mistyped year must not flood the queues
MAX_BACKFILLED = 10_000


@contextmanager
def _naming_the_broker(app: Any, name: str) -> Iterator[None]:
    """Say in one sentence why a message can't be sent: the task, its serializer or the broker may object."""
    # kombu counts KeyError among those of Redis, which is anybody's
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
@click.argument("name", type=NAME)
@click.option("--args", type=JSON_ARRAY, metavar="JSON", help="Arguments for this run, as '[1, 2]'.")
@click.option("--kwargs", type=JSON_OBJECT, metavar="JSON", help="And those by name, as '{\"x\": 1}'.")
@click.option("--queue", help="Where its message goes this time.")
@click.option("--json", "is_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def trigger(ctx: click.Context, /, name: str, is_json: bool, **overrides: Any) -> None:
    """Run the entry NAME now, once; its schedule stays as it is. A paused entry runs, too."""
    session = Session.of(ctx)
    session.require_application("trigger")
    given = {option: value for option, value in overrides.items() if value is not None}
    entry = entry_called(session, name)
    with _naming_the_broker(session.app, name):
        task_id = entry.trigger(**given).id
    if is_json:
        session.print_json({"name": name, "task": entry.task, "task_id": task_id})
    else:
        session.say(f"Sent {one_line(entry.task)} for {one_line(name)}; its task id is {task_id}.")


@click.command(cls=SessionCommand)
@click.argument("name", type=NAME)
@click.option("--from", "begin", type=MOMENT, metavar="TIME", required=True, help="From then on.")
@click.option("--to", "end", type=MOMENT, metavar="TIME", help="Until then; default: now.")
@click.option("--dry-run", is_flag=True, help="Only show what would be sent.")
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=MAX_BACKFILLED,
    show_default=True,
    help="Where there are more runs, none is sent.",
)
@click.option("--json", "is_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def backfill(
    ctx: click.Context,
    /,
    name: str,
    begin: datetime,
    end: datetime | None,
    dry_run: bool,
    limit: int,
    is_json: bool,
) -> None:
    """Send the runs that the schedule of NAME has from one time to another, each of them once.

    Those that were sent by this command before are left out. Times without an offset are in the zone that the
    entry goes by.
    """
    session = Session.of(ctx)
    if not dry_run:
        session.require_application("backfill")
    entry = entry_called(session, name)
    zone = zone_for(entry)
    first = in_zone(begin, zone)
    last = session.now() if end is None else in_zone(end, zone)
    if last < first:
        raise CommandLineError("--to must not be before --from.", exits.USAGE)
    with meter("Looking" if dry_run else "Sending") as progress:
        try:
            with _naming_the_broker(session.app, name):
                dues = entry.backfill(first, last, dry_run, limit=limit, progress=progress)
        except CommandLineError as exc:
            raise CommandLineError(f"{exc.message} {_rest(progress.done)}", exc.exit_code) from None
        except KeyboardInterrupt:
            words = "Interrupted." if dry_run else f"Interrupted. {_rest(progress.done)}"
            raise CommandLineError(words, INTERRUPTED) from None
    if is_json:
        session.print_json({"name": name, "is_dry_run": dry_run, "runs": [iso(due) for due in dues]})
        return
    for due in dues:
        session.say(when(due, zone))
    runs = "run" if len(dues) == 1 else "runs"
    session.note(f"{len(dues)} {runs} would be sent." if dry_run else f"Sent {len(dues)} {runs}.")
    if last > session.now():
        session.note("Those that are still to come are left to beat.")


def _rest(done: int) -> str:
    return f"{done} runs were sent, and won't be sent again; the same command sends the rest."
