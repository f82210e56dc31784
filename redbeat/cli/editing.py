"""``celery redbeat add``, ``set`` and ``delete``: entries made, changed and removed.

Invariant: what is wrong is found before anything is written, and what is written is written in one step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import click

from redbeat.cli.changes import ask_about, check_failures, refuse_both_or_none, select, show_names
from redbeat.cli.flags import (
    DRY_RUN,
    INSTEAD_OF_NAME,
    MATCH,
    OBJECT_PER_ENTRY,
    ONE_OBJECT,
    YES,
    json_flag,
    pass_session,
    zone_options,
)
from redbeat.cli.names import NAME, listed_entry
from redbeat.cli.options import (
    POLICY,
    SCHEDULES,
    TASK_OPTIONS,
    changes_of,
    entry_options,
)
from redbeat.cli.progress import meter
from redbeat.cli.session import Session, SessionCommand
from redbeat.diagnostics.hints import hint_at_beat_schedule, hint_at_ping_host, hint_at_task
from redbeat.entries.describe import description_of
from redbeat.entries.documents import document_of
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.marks import zone_for
from redbeat.entries.saving import why_never
from redbeat.entries.wording import one_line, relative, when_in
from redbeat.errors import EntryChanged
from redbeat.log.text import counted
from redbeat.operations.editing import delete_entries, put_entry, set_entries, set_entry
from redbeat.operations.operation import Seen, given_values
from redbeat.operations.selection import Selection
from redbeat.policy.policy import PAUSE_FIELDS
from redbeat.process import exit_codes as exits
from redbeat.process.exit_codes import CommandLineError
from redbeat.schedules.timezones import zone_called

#: the fields that ``--unset`` removes
UNSETTABLE = (*POLICY, "args", "kwargs", "options", *TASK_OPTIONS)


@click.command(cls=SessionCommand)
@click.argument("name")
@click.argument("task")
@entry_options
@zone_options
@click.option("--disabled", is_flag=True, help="Store the entry, but don't run it.")
@click.option("--replace", is_flag=True, help="Overwrite an entry of this name; keep its count of runs.")
@json_flag("the entry as one JSON object")
@pass_session
def add(session: Session, name: str, task: str, disabled: bool, replace: bool, **options: Any) -> None:
    """Add the entry NAME, which runs TASK. Give one of --every, --cron, --at, --rrule and --solar.

    If there is an entry of this name, nothing is changed, unless you give --replace. Times without an offset
    are in the zone of --timezone, else in the application's.
    """
    given = given_values(**options)
    if not given.keys() & set(SCHEDULES):
        known = ", ".join(f"--{kind}" for kind in SCHEDULES)
        raise CommandLineError(f"An entry needs a schedule: give one of {known}.", exits.USAGE)
    zone = zone_called(given["timezone"]) if "timezone" in given else session.app.timezone
    values = {"task": task, "enabled": not disabled, **changes_of(given, zone, session.now(), {})}
    try:
        put_entry(session.actor, name, values=values, seen=None if replace else Seen())
    except EntryChanged:
        raise CommandLineError(
            f"There is an entry {one_line(name)!r} already: --replace puts this one in its place, and "
            "celery redbeat set changes parts of it.",
            exits.USAGE,
        ) from None
    report_entry(session, name, "Added")
    hints = [hint_at_task(session.app, task)] if session.has_own_app else []
    _tell(session, [*hints, *_ping_hints(session, given)])


@click.command("set", cls=SessionCommand)
@click.argument("name", type=NAME, required=False)
@INSTEAD_OF_NAME
@entry_options
@zone_options
@click.option("--task", metavar="TASK", help="The name of the task.")
@click.option("--enabled/--disabled", default=None, help="Whether it runs; --enabled also ends a pause.")
@click.option(
    "--unset",
    type=click.Choice([field.replace("_", "-") for field in UNSETTABLE]),
    metavar="FIELD",
    multiple=True,
    help="Remove a field, such as jitter or queue. Can be given several times.",
)
@DRY_RUN
@YES
@OBJECT_PER_ENTRY
@pass_session
def set_(
    session: Session,
    name: str | None,
    match: str | None,
    unset: tuple[str, ...],
    **options: Any,
) -> None:
    """Change the entry NAME, or all that --match finds. What you don't give stays as it is.

    --match shows how many entries it finds, and asks first. Times without an offset are in the zone of the
    entry's schedule.
    """
    refuse_both_or_none(name, match)
    given = given_values(**options)
    removed = {field.replace("-", "_") for field in unset}
    for field in removed & given.keys():
        raise CommandLineError(f"--{field.replace('_', '-')} can't be both set and unset.", exits.USAGE)
    fields = sorted({*given, *(["unset"] if unset else [])})
    if not fields:
        raise CommandLineError("There is nothing to change: give an option, see --help.", exits.USAGE)
    now = session.now()

    def changes(entry: RedBeatSchedulerEntry) -> dict[str, Any]:
        zone = session.app.timezone if "timezone" in removed else zone_for(entry)
        zone = zone_called(given["timezone"]) if "timezone" in given else zone
        made = {**dict.fromkeys(removed - set(TASK_OPTIONS)), **changes_of(given, zone, now, entry.options)}
        if removed & set(TASK_OPTIONS):
            options = made.get("options", entry.options) or {}
            made["options"] = {key: value for key, value in options.items() if key not in removed}
        made |= {field: given[field] for field in ("task", "enabled") if field in given}
        return {**dict.fromkeys(PAUSE_FIELDS), **made} if given.get("enabled") else made

    names = [name] if name is not None else select(session, str(match))[0]
    if name is not None:
        set_entry(session.actor, name, changes=changes, is_merged=False, dry_run=session.is_dry_run)
    if session.is_dry_run:
        show_names(session, names, f"{counted(len(names), 'entry', 'entries')} would be changed.")
    elif name is not None:
        report_entry(session, name, "Changed")
    elif names:
        ask_about(session, f"Change {', '.join(field.replace('_', '-') for field in fields)} of", names)
        with meter("Changing", len(names)) as progress:
            chosen = Selection(names, match, is_whole=True)
            record = given_values(match=match, unset=unset or None, **given)
            done = set_entries(
                session.actor, chosen, changes=changes, is_merged=False, record=record, progress=progress
            )
        for one in done.changed if session.is_json else ():
            report_entry(session, one, "Changed")
        session.summarize(f"{len(done.changed)} changed.")
        check_failures(session, done.failed | dict.fromkeys(done.left, done.reason), len(names))
    _tell(session, [*_ping_hints(session, given), hint_at_beat_schedule(session.app, names)])


def report_entry(session: Session, name: str, done: str) -> None:
    """Say what was done to an entry, and when it runs now."""
    entry = listed_entry(session, name)
    if session.is_json:
        session.print_json(document_of(entry))
        return
    session.say(f"{done} {one_line(name)}: {one_line(description_of(entry, session.zone))}")
    due = entry.next_due_at
    if entry.state not in ("scheduled", "due", "failing"):
        session.say(f"It is {entry.state}{_why_finished(entry, session)}")
    elif due is not None:
        session.say(f"Next run: {when_in(due, session.zone)}, {relative(due, session.now())}")


def _ping_hints(session: Session, given: Mapping[str, Any]) -> list[str]:
    return [hint_at_ping_host(session.app, given["ping_url"])] if "ping_url" in given else []


def _tell(session: Session, hints: Iterable[str]) -> None:
    for hint in filter(None, hints):
        session.note(hint)


def _why_finished(entry: RedBeatSchedulerEntry, session: Session) -> str:
    return f": {why_never(entry, session.now())}" if entry.state == "finished" else "."


@click.command(cls=SessionCommand)
@click.argument("names", type=NAME, nargs=-1, metavar="[NAME]...")
@MATCH
@DRY_RUN
@YES
@ONE_OBJECT
@pass_session
def delete(session: Session, names: tuple[str, ...], match: str | None) -> None:
    """Delete entries with their histories. Shows how many there are, and asks first.

    Entries of beat_schedule come back when a beat starts. If there is no entry of one of the
    names, nothing is deleted.
    """
    if not names and match is None:
        raise CommandLineError("Give a NAME, or --match PATTERN.", exits.USAGE)
    for name in names:
        listed_entry(session, name)  # raises before anything is written
    found = select(session, match)[0] if match is not None else ()
    chosen = Selection([*dict.fromkeys([*names, *found])], match, is_whole=True)
    done = delete_entries(session.actor, chosen, dry_run=True)
    what = counted(len(done.names), "entry", "entries")
    if session.is_dry_run:
        if session.is_json:
            session.print_json({"deleted": 0, "names": done.names, "is_dry_run": True})
        else:
            show_names(session, done.names, f"{what} would be deleted.")
        return
    ask_about(session, "Delete", done.names)
    with meter("Deleting", len(done.names)) as progress:
        done = delete_entries(session.actor, chosen, progress=progress)
    session.report({"deleted": done.deleted, "names": done.names}, f"Deleted {what}.")
