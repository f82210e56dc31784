"""``celery redbeat calendar …``: the days on which nothing runs, shown, changed, imported and removed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from redbeat.calendars import Calendar, find_users
from redbeat.cli.confirmation import DRY_RUN, YES, ask
from redbeat.cli.documents import ONE_OBJECT, json_option
from redbeat.cli.progress import meter
from redbeat.cli.selection import names_in_words
from redbeat.cli.session import Session, SessionCommand
from redbeat.cli.tables import plain_table
from redbeat.cli.values import Value
from redbeat.config.suggestions import did_you_mean
from redbeat.entries.calendar_loading import ABOUT, Unusable, read_fields
from redbeat.entries.wording import one_line
from redbeat.log.text import counted
from redbeat.manifest.calendar_documents import (
    calendar_documents,
    calendar_exists,
    calendar_names,
    calendar_of_file,
    count_days,
)
from redbeat.process import exit_codes as exits
from redbeat.process.exit_codes import CommandLineError, ExitingGroup, not_empty
from redbeat.schedules.exclusions import spelled
from redbeat.store.store import Store

#: widths in the table: of a name, of all columns with numbers and times, and the least for another column
MAX_NAME, NUMBERS_WIDTH, MIN_ABOUT = 40, 52, 12
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
    """Calendars: named sets of days and spans on which entries with --exclude NAME don't run."""


@calendar.command("list", cls=SessionCommand, short_help="all calendars, and the next day that each excludes")
@json_option("JSON: one object per calendar and line")
@click.pass_context
def list_(ctx: click.Context, /, is_json: bool) -> None:
    """List the calendars: how many days and spans each has, how many entries name it, and which day or
    span it excludes next."""
    session = Session.of(ctx)
    names = _names(session)
    documents = [
        {**document, "days": count_days(document["days"])[0], "spans": count_days(document["days"])[1]}
        for document in _documents(session, names)
    ]
    if is_json:
        for document in documents:
            session.print_json({**document, "entries": len(document["entries"])})
        return
    if not documents:
        session.say("There are no calendars.")
        return
    longest = min(max(len(one_line(document["name"])) for document in documents), MAX_NAME)
    room = session.console.width - longest - NUMBERS_WIDTH
    titles = ["name", "days", "spans", "entries", "next excluded", *(["about"] if room >= MIN_ABOUT else [])]
    table = plain_table()
    for title in titles:
        is_number = title in ("days", "spans", "entries")
        table.add_column(title, no_wrap=True, justify="right" if is_number else "left")
    for document in documents:
        following = (document["next_excluded"] or "none").replace("T", " ")[:16]
        numbers = (document["days"], document["spans"], len(document["entries"]))
        about = _cut(document["error"] or document["about"], room)
        cells = [_cut(document["name"], MAX_NAME), *map(str, numbers), following, about]
        table.add_row(*map(Text, cells[: len(titles)]))
    session.console.print(table)


@calendar.command(cls=SessionCommand, short_help="the days of one, and the entries that name it")
@click.argument("name")
@ONE_OBJECT
@click.pass_context
def show(ctx: click.Context, /, name: str, is_json: bool) -> None:
    """Show the days and spans of the calendar NAME, and the entries that name it."""
    session = Session.of(ctx)
    (document,) = _documents(session, [_existing(session, name)])
    if is_json:
        session.print_json(document)
        return
    session.say(one_line(name), "bold")
    if document["error"]:
        session.say(document["error"], "red")
    if document["about"]:
        session.say(one_line(document["about"]))
    days: Mapping[str, str] = document["days"]
    for day, label in list(days.items())[:MAX_DAYS_SHOWN]:
        session.say(f"  {one_line(day)}{f'  {one_line(label)}' if label else ''}")
    if len(days) > MAX_DAYS_SHOWN:
        session.say(f"  and {len(days) - MAX_DAYS_SHOWN} more; --json has all of them")
    session.say(f"Next excluded: {document['next_excluded'] or 'none'}")
    session.say(f"Named by {_in_words(document['entries'])}")


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
@click.option("--about", metavar="TEXT", help="What the calendar is for.")
@ONE_OBJECT
@click.pass_context
def set_(
    ctx: click.Context,
    /,
    name: str,
    days: tuple[tuple[str, str], ...],
    without: tuple[str, ...],
    about: str | None,
    is_json: bool,
) -> None:
    """Add days and spans to the calendar NAME, or remove some. If it doesn't exist, it is created.

    A DAY is a date (2026-12-25), the days from one date to another, both included (2026-12-24/2026-12-31), or
    a span between two times with offsets (2026-12-24T18:00+01:00/2026-12-25T06:00+01:00). The next runs of
    entries that name the calendar are computed again.
    """
    session = Session.of(ctx)
    if not days and not without and about is None and calendar_exists(session.app, name):
        raise CommandLineError("There is nothing to change; give a DAY, --remove or --about.", exits.USAGE)
    details = {"days": dict(days) or None, "remove": list(without) or None, "about": about}
    with session.audited("calendar set", [name], details):
        changed = _stating_errors(
            lambda: Calendar.change(name, dict(days), without=without, about=about, app=session.app)
        )
    _report(session, changed, is_json)


@calendar.command("import", cls=SessionCommand, short_help="store the days of a file, such as .ics")
@click.argument("name", callback=not_empty)
@click.argument("file", metavar="FILE", callback=not_empty)
@click.option(
    "--replace", "is_replacing", is_flag=True, help="Store the days of the file instead of the stored ones."
)
@click.option("--add", "is_adding", is_flag=True, help="Add the days of the file to the stored ones.")
@click.option("--about", metavar="TEXT", help="What the calendar is for.")
@click.option(
    "--until",
    type=Value("date", date.fromisoformat),
    metavar="DATE",
    help="Take events of an iCalendar file up to this date. Default: five years from now.",
)
@DRY_RUN
@YES
@ONE_OBJECT
@click.pass_context
def import_(
    ctx: click.Context,
    /,
    name: str,
    file: str,
    is_replacing: bool,
    is_adding: bool,
    about: str | None,
    until: date | None,
    dry_run: bool,
    yes: bool,
    is_json: bool,
) -> None:
    """Store the days of FILE as the calendar NAME; - is stdin.

    FILE is an iCalendar file (.ics), which needs celery-redbeat[calendar]; a file of entries with a section
    'calendars'; YAML or JSON with a list of days, or with a mapping of days to labels; or text with a day in
    each line, and its label behind it. Where --replace would remove stored days, it shows how many, and asks
    first.
    """
    session = Session.of(ctx)
    if is_replacing and is_adding:
        raise CommandLineError("Give either --replace or --add.", exits.USAGE)
    read = _stating_errors(lambda: _read(session, name, file, about, until))
    if calendar_exists(session.app, name) and not (is_replacing or is_adding):
        raise CommandLineError(
            f"There is a calendar {one_line(name)!r} already: --replace puts the file's days in place of its "
            "own, and --add adds them.",
            exits.USAGE,
        )
    if dry_run:
        for day, label in read.days.items():
            session.say(f"{one_line(day)}{f'  {one_line(label)}' if label else ''}")
        session.note(f"{_counted(read.days)} would be stored.")
        return
    if is_replacing:
        stored = read_fields(Store(session.app), [name])[name]
        gone = [] if isinstance(stored, Unusable) else sorted(stored.keys() - {ABOUT, *read.days})
        if gone:
            what = f"{_counted(dict.fromkeys(gone, ''))} from the calendar {one_line(name)}"
            ask(f"Remove {what} at {session.server} ({names_in_words(gone)})?", is_yes=yes)
    details = {"file": file, "days": len(read.days), "replace": is_replacing or None}
    with session.audited("calendar import", [name], details):
        if is_replacing:
            _stating_errors(read.save)
        else:
            text = about if about is not None else read.about or None
            read = _stating_errors(lambda: Calendar.change(name, read.days, about=text, app=session.app))
    _report(session, read, is_json)


@calendar.command(cls=SessionCommand, short_help="remove calendars; asks first")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option(
    "--force",
    is_flag=True,
    help="Also delete calendars that entries name. Such an entry is quarantined when it is due.",
)
@DRY_RUN
@YES
@ONE_OBJECT
@click.pass_context
def delete(
    ctx: click.Context, /, names: tuple[str, ...], force: bool, dry_run: bool, yes: bool, is_json: bool
) -> None:
    """Delete calendars; asks first. One that entries still name is only deleted with --force."""
    session = Session.of(ctx)
    chosen = [_existing(session, name) for name in dict.fromkeys(names)]
    for name, entries in _users_of(session, chosen, is_forced=force).items():
        session.note(f"{one_line(name)} is named by {_in_words(entries)}.")
    what = counted(len(chosen), "calendar", "calendars")
    if not dry_run:
        ask(f"Delete {what} at {session.server} ({names_in_words(chosen)})?", is_yes=yes)
        _users_of(session, chosen, is_forced=force)  # again, as the question may have taken long
        with session.audited("calendar delete", chosen, {"force": force or None}):
            for name in chosen:
                Calendar(name, app=session.app).delete()
    if is_json:
        session.print_json({"deleted": 0 if dry_run else len(chosen), "names": chosen, "is_dry_run": dry_run})
    elif dry_run:
        session.note(f"{what} would be deleted: {names_in_words(chosen)}.")
    else:
        session.say(f"Deleted {what}.")


def _users_of(session: Session, names: Sequence[str], *, is_forced: bool) -> Mapping[str, Sequence[str]]:
    """Return which entries name these calendars; an error if there are any, unless ``is_forced``."""
    users = find_users(Store(session.app), names)
    if users and not is_forced:
        name, entries = next(iter(users.items()))
        raise CommandLineError(
            f"The calendar {one_line(name)!r} is named by {_in_words(entries)}: let them name another one, "
            "or none (celery redbeat set --unset exclude); or give --force, and they are quarantined when "
            "they are due.",
            exits.USAGE,
        )
    return users


def _cut(text: str, width: int) -> str:
    line = one_line(text)
    return line if len(line) <= width else f"{line[: max(width - 1, 0)]}…"


def _in_words(entries: Sequence[str]) -> str:
    words = counted(len(entries), "entry", "entries")
    return f"{words}, {names_in_words(entries)}" if entries else words


def _names(session: Session) -> list[str]:
    """Return the names of the calendars; without the right to scan keys, of those that entries name."""
    names, is_complete = calendar_names(session.app)
    if not is_complete:
        session.note("Calendars that no entry names aren't seen: this user may not look at every key (SCAN).")
    return names


def _existing(session: Session, name: str) -> str:
    """Return ``name`` if there is such a calendar."""
    if not calendar_exists(session.app, name):
        hint = one_line(did_you_mean(name, _names(session)))
        raise CommandLineError(
            f"There is no calendar {one_line(name)!r} at {session.server}.{hint}", exits.NO_INPUT
        )
    return name


def _documents(session: Session, names: Iterable[str]) -> list[dict[str, Any]]:
    with meter("Reading"):
        return calendar_documents(session.app, names)


def _counted(fields: Mapping[str, str]) -> str:
    days, spans = count_days(fields)
    words = [counted(days, "day", "days")] if days or not spans else []
    return " and ".join([*words, *([counted(spans, "span", "spans")] if spans else [])])


def _report(session: Session, stored: Calendar, is_json: bool) -> None:
    if is_json:
        session.print_json(_documents(session, [stored.name])[0])
    else:
        session.say(f"Stored the calendar {one_line(stored.name)}: {_counted(stored.days)}.")


def _stating_errors(call: Callable[[], Calendar]) -> Calendar:
    try:
        return call()
    except ValueError as exc:
        raise CommandLineError(one_line(exc), exits.USAGE) from None


def _read(session: Session, name: str, file: str, about: str | None, until: date | None) -> Calendar:
    origin = "stdin" if file == "-" else file
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as exc:
        raise CommandLineError(f"{origin}: can't be read: {exc.strerror}.", exits.NO_INPUT) from None
    return calendar_of_file(name, data, origin, about, until, session.app)
