"""``celery redbeat calendar …``: the days on which nothing runs, shown, changed, imported and removed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import click

from redbeat.calendars import entries_in_words
from redbeat.cli.changes import names_in_words
from redbeat.cli.files import read_bytes
from redbeat.cli.operations import options_of
from redbeat.cli.parameters import DRY_RUN, ONE_OBJECT, YES, Value, json_flag, pass_session
from redbeat.cli.session import Session, SessionCommand
from redbeat.cli.tables import END, Column, meter, print_table, styled
from redbeat.entries.calendar_loading import read_one
from redbeat.entries.wording import one_line
from redbeat.log.text import counted
from redbeat.operations import calendars
from redbeat.operations.calendars import CalendarChange, days_in_words
from redbeat.operations.operation import Seen
from redbeat.process import exit_codes as exits
from redbeat.process.exit_codes import CommandLineError, ExitingGroup, not_empty
from redbeat.schedules.exclusions import spelled
from redbeat.store.store import Store

#: how wide the column with names is at most
MAX_NAME = 40
#: how many days are shown on a terminal; --json has all of them
MAX_DAYS_SHOWN = 100


def _read_day(text: str) -> tuple[str, str]:
    """Return the day or span of 'DAY=LABEL', and the label."""
    day, _, label = text.partition("=")
    return spelled(day.strip()), label.strip()


DAY = Value("day", lambda text: spelled(text.strip()))
LABELLED_DAY = Value("day", _read_day)


@click.group(cls=ExitingGroup)
def calendar() -> None:
    """Days on which entries with --exclude NAME don't run."""


@calendar.command("list", cls=SessionCommand, short_help="all calendars, and the next day that each excludes")
@json_flag("JSON: one object per calendar and line")
@pass_session
def list_(session: Session) -> None:
    """List the calendars: how many days and spans each has, how many entries name it, and which day or
    span it excludes next."""
    with meter("Reading"):
        found, is_complete = calendars.list_all(session.actor)
    if not is_complete:
        session.note("Calendars that no entry names aren't seen: this user may not look at every key (SCAN).")
    if session.is_json:
        for document in found.values():
            session.print_json({**document, "entries": len(document["entries"])})
        return
    columns: list[Column[Mapping[str, Any]]] = [
        Column("name", lambda one: one["name"], cut=END, least=MAX_NAME),
        Column("days", lambda one: str(one["days"]), is_right=True),
        Column("spans", lambda one: str(one["spans"]), is_right=True),
        Column("entries", lambda one: str(len(one["entries"])), is_right=True),
        Column("next excluded", lambda one: (one["next_excluded"] or "none").replace("T", " ")[:16]),
        Column("about", lambda one: one["about"] or "", rank=1, cut=END),
    ]
    if not print_table(
        session, columns, [*found.values()], lambda one: styled(one["error"] or "", "red"), "error"
    ):
        session.say("There are no calendars.")


@calendar.command(cls=SessionCommand, short_help="the days of one, and the entries that name it")
@click.argument("name")
@ONE_OBJECT
@pass_session
def show(session: Session, name: str) -> None:
    """Show the days and spans of the calendar NAME, and the entries that name it."""
    with meter("Reading"):
        document = calendars.show(session.actor, name)
    if session.is_json:
        session.print_json(document)
        return
    session.say(one_line(name), "bold")
    if document["error"]:
        session.say(document["error"], "red")
    if document["about"]:
        session.say(one_line(document["about"]))
    days = document["days"]
    for day, label in list(days.items())[:MAX_DAYS_SHOWN]:
        session.say(f"  {_day_in_words(day, label)}")
    if len(days) > MAX_DAYS_SHOWN:
        session.say(f"  and {len(days) - MAX_DAYS_SHOWN} more; --json has all of them")
    session.say(f"Next excluded: {document['next_excluded'] or 'none'}")
    session.say(f"Named by {entries_in_words(document['entries'])}")


@calendar.command("set", cls=SessionCommand, short_help="add days, or remove some")
@click.argument("name", callback=not_empty)
@click.argument("days", type=LABELLED_DAY, nargs=-1, metavar="[DAY[=LABEL]]...")
@click.option(
    "--remove",
    "without",
    type=DAY,
    metavar="DAY",
    multiple=True,
    help="Remove this day or span. Can be given several times.",
)
@options_of(calendars.set_calendar, "about")
@ONE_OBJECT
@pass_session
def set_(session: Session, name: str, days: Any, without: Sequence[str], about: str | None) -> None:
    """Add days and spans to the calendar NAME, or remove some. If it doesn't exist, it is created.

    A DAY is a date (2026-12-25), the days from one date to another, both included (2026-12-24/2026-12-31), or
    a span between two times with offsets (2026-12-24T18:00+01:00/2026-12-25T06:00+01:00). The next runs of
    entries that name the calendar are computed again.
    """
    changes = {**dict(days), **dict.fromkeys(without)}
    if not changes and about is None and not read_one(Store(session.app), name).is_missing:
        raise CommandLineError("There is nothing to change; give a DAY, --remove or --about.", exits.USAGE)
    _report(session, calendars.set_calendar(session.actor, name, days=changes, about=about))


@calendar.command("import", cls=SessionCommand, short_help="store the days of a file, such as .ics")
@click.argument("name", callback=not_empty)
@click.argument("file", metavar="FILE", callback=not_empty)
@click.option(
    "--replace", "is_replacing", is_flag=True, help="Store the days of the file instead of the stored ones."
)
@click.option("--add", "is_adding", is_flag=True, help="Add the days of the file to the stored ones.")
@options_of(calendars.put_calendar, "about", "until")
@DRY_RUN
@YES
@ONE_OBJECT
@pass_session
def import_(
    session: Session, name: str, file: str, is_replacing: bool, is_adding: bool, **given: Any
) -> None:
    """Store the days of FILE as the calendar NAME; - is stdin.

    FILE is an iCalendar file (.ics), which needs celery-redbeat[calendar]; a file of entries with a section
    'calendars'; YAML or JSON with a list of days, or with a mapping of days to labels; or text with a day in
    each line, and its label behind it. Where --replace would remove stored days, it shows how many, and asks
    first.
    """
    if is_replacing and is_adding:
        raise CommandLineError("Give either --replace or --add.", exits.USAGE)
    origin, data = read_bytes(file)
    change = partial(calendars.put_calendar, session.actor, name, file=data, origin=origin, **given)
    days, stored = change(dry_run=True).document["days"], read_one(Store(session.app), name)
    if not (stored.is_missing or is_replacing or is_adding):
        raise CommandLineError(
            f"The calendar {one_line(name, 200)!r} exists already: replace its days (--replace), or add the "
            "file's days to them (--add).",
            exits.USAGE,
        )
    if session.is_dry_run:
        for day, label in days.items():
            session.say(_day_in_words(day, label))
        session.note(f"{days_in_words(days)} would be stored.")
        return
    gone = [day for day in stored.days if is_replacing and day not in days]
    if gone:
        what = f"{days_in_words(gone)} from the calendar {one_line(name)}"
        session.ask(f"Remove {what} at {session.server} ({names_in_words(gone)})?")
    _report(session, change(add=is_adding, seen=None if is_adding or is_replacing else Seen()))


@calendar.command(cls=SessionCommand, short_help="remove calendars; asks first")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@options_of(calendars.delete_calendar, "force")
@DRY_RUN
@YES
@ONE_OBJECT
@pass_session
def delete(session: Session, names: tuple[str, ...], force: bool) -> None:
    """Delete calendars; asks first. One that entries still name is only deleted with --force."""
    dry_run, chosen = session.is_dry_run, [*dict.fromkeys(names)]
    for name in chosen:
        calendars.delete_calendar(session.actor, name, force=force, dry_run=True)
    what = counted(len(chosen), "calendar", "calendars")
    if not dry_run:
        session.ask(f"Delete {what} at {session.server} ({names_in_words(chosen)})?")
        for name in chosen:
            calendars.delete_calendar(session.actor, name, force=force)
    if session.is_json:
        session.print_json({"deleted": 0 if dry_run else len(chosen), "names": chosen, "is_dry_run": dry_run})
    elif dry_run:
        session.note(f"{what} would be deleted: {names_in_words(chosen)}.")
    else:
        session.say(f"Deleted {what}.")


def _day_in_words(day: str, label: str) -> str:
    return f"{one_line(day)}  {one_line(label)}".rstrip()


def _report(session: Session, change: CalendarChange) -> None:
    name = change.document["name"]
    if session.is_json:
        session.print_json(calendars.show(session.actor, name))
    else:
        session.say(f"Stored the calendar {one_line(name)}: {days_in_words(change.document['days'])}.")
