"""``celery redbeat add``, ``set``, ``pause``, ``resume`` and ``delete``: entries made, changed and removed.

Invariant: what is wrong is found before anything is written, and what is written is written in one step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import click

from redbeat.cli.changes import (
    ask_about,
    change_matching,
    change_named,
    nothing_matches,
    refuse_both_or_none,
    report_entry,
    select,
    show_names,
)
from redbeat.cli.operations import options_of
from redbeat.cli.options import POLICY, SCHEDULES, TASK_OPTIONS, changes_of, entry_options
from redbeat.cli.parameters import (
    DRY_RUN,
    INSTEAD_OF_NAME,
    NAME,
    OBJECT_PER_ENTRY,
    ONE_OBJECT,
    YES,
    json_flag,
    pass_session,
    zone_options,
)
from redbeat.cli.session import Session, SessionCommand
from redbeat.cli.tables import meter
from redbeat.diagnostics.hints import hint_at_beat_schedule, hint_at_ping_host, hint_at_task
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.marks import zone_for
from redbeat.entries.pauses import PauseResult
from redbeat.entries.search import read_listed
from redbeat.entries.wording import one_line
from redbeat.errors import EntryChanged
from redbeat.log.text import counted
from redbeat.operations.editing import delete_entries, put_entry, set_entries, set_entry
from redbeat.operations.operation import Seen, given_values
from redbeat.operations.pausing import pause_entries, pause_entry, resume_entries, resume_entry
from redbeat.operations.selection import Selection
from redbeat.policy.policy import PAUSE_FIELDS
from redbeat.process import exit_codes as exits
from redbeat.process.exit_codes import CommandLineError
from redbeat.schedules.times import TypedTime
from redbeat.schedules.timezones import zone_called

#: the fields that ``--unset`` removes
UNSETTABLE = (*POLICY, "args", "kwargs", "options", *TASK_OPTIONS)

NAMES = click.argument("names", type=NAME, nargs=-1, metavar="[NAME]...")


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
    _hint(session, given, hint_at_task(session.app, task) if session.has_own_app else "")


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
    session: Session, name: str | None, match: str | None, unset: tuple[str, ...], **options: Any
) -> None:
    """Change the entry NAME, or all that --match finds. What you don't give stays as it is.

    --match shows how many entries it finds, and asks first. Times without an offset are in the zone of the
    entry's schedule.
    """
    refuse_both_or_none(name, match)
    given, removed = given_values(**options), {field.replace("-", "_") for field in unset}
    for field in removed & given.keys():
        raise CommandLineError(f"--{field.replace('_', '-')} can't be both set and unset.", exits.USAGE)
    if not given and not removed:
        raise CommandLineError("There is nothing to change: give an option, see --help.", exits.USAGE)
    now = session.now()

    def changes(entry: RedBeatSchedulerEntry) -> dict[str, Any]:
        zone = session.app.timezone if "timezone" in removed else zone_for(entry)
        zone = zone_called(given["timezone"]) if "timezone" in given else zone
        made = {**dict.fromkeys(removed - {*TASK_OPTIONS}), **changes_of(given, zone, now, entry.options)}
        if removed & {*TASK_OPTIONS}:
            kept = made.get("options", entry.options) or {}
            made["options"] = {key: value for key, value in kept.items() if key not in removed}
        made |= {field: given[field] for field in ("task", "enabled") if field in given}
        return {**dict.fromkeys(PAUSE_FIELDS), **made} if given.get("enabled") else made

    if name is not None:

        def set_one(name: str) -> str:
            set_entry(session.actor, name, changes=changes, is_merged=False, dry_run=session.is_dry_run)
            return "Changed"

        names = [name]
        change_named(session, names, set_one, "changed")
    else:

        def set_many(entries: Selection, progress: Callable[[int], object]) -> PauseResult:
            record = given_values(match=match, unset=unset or None, **given)
            how: Any = {"changes": changes, "is_merged": False, "record": record, "progress": progress}
            done = set_entries(session.actor, entries, **how)
            return PauseResult((*done.changed,), failed=done.failed | dict.fromkeys(done.left, done.reason))

        names, _ = select(session, str(match))
        fields = ", ".join(sorted(field.replace("_", "-") for field in {*given, *removed}))
        change_matching(session, match, names, set_many, (f"Change {fields} of", "changed"))
    _hint(session, given, hint_at_beat_schedule(session.app, names))


def _hint(session: Session, given: Mapping[str, Any], hint: str) -> None:
    ping = hint_at_ping_host(session.app, given["ping_url"]) if "ping_url" in given else ""
    for words in filter(None, (hint, ping)):
        session.note(words)


@click.command(cls=SessionCommand)
@NAMES
@INSTEAD_OF_NAME
@options_of(pause_entry, "note")
@click.option("--by", metavar="WHO", help="Who pauses the entries. Default: your login name.")
@options_of(pause_entry, "until")
@DRY_RUN
@YES
@zone_options
@OBJECT_PER_ENTRY
@pass_session
def pause(
    session: Session,
    names: tuple[str, ...],
    match: str | None,
    note: str | None,
    by: str | None,
    until: TypedTime | None,
) -> None:
    """Stop entries from running, until resumed or until a time.

    --match shows how many entries it finds, and asks first. Entries that are already paused or disabled stay
    as they are, but a paused entry that you name gets the --note, --by and --until that you give. Times
    without an offset are in the zone of the entry's schedule.
    """
    refuse_both_or_none(names, match)
    for name in names:  # raises before anything is written
        pause_entry(session.actor, name, until=until, dry_run=True)

    def pause_one(name: str) -> str:
        change = pause_entry(session.actor, name, note=note, until=until, by=by, dry_run=session.is_dry_run)
        done = {"paused": "Paused", "changed": "It was paused already; changed"}
        return done.get(change.outcome, f"It is {change.entry.state} already, and stays so:")

    if match is None:
        change_named(session, names, pause_one, "paused")
        return
    pause_many = partial(pause_entries, session.actor, note=note, until=until, by=by)
    plan = pause_many(Selection(match=match, is_whole=True), dry_run=True)
    _change_planned(session, match, plan, pause_many, ("Pause", "paused"), "already paused or disabled")


@click.command(cls=SessionCommand)
@NAMES
@INSTEAD_OF_NAME
@options_of(resume_entries, "note", "paused_by")
@DRY_RUN
@YES
@zone_options
@OBJECT_PER_ENTRY
@pass_session
def resume(
    session: Session, names: tuple[str, ...], match: str | None, note: str | None, by: str | None
) -> None:
    """End the pause of entries.

    --match, --note and --paused-by show how many entries they find, and ask first. Entries that are disabled
    without a pause stay disabled, but an entry that you name is enabled in any case.
    """
    is_chosen_by_pause = note is not None or by is not None
    if is_chosen_by_pause and match is None:
        match = "*"
    if bool(names) == (match is not None):
        raise CommandLineError(
            "Give a NAME, or any of --match PATTERN, --note TEXT and --paused-by WHO.", exits.USAGE
        )

    def resume_one(name: str) -> str:
        resume_entry(session.actor, name, enable=True, dry_run=session.is_dry_run)
        return "Resumed"

    if match is None:
        change_named(session, names, resume_one, "resumed")
        return
    resume_many = partial(resume_entries, session.actor, note=note, by=by)
    plan = resume_many(Selection(match=match, is_whole=True), dry_run=True)
    _change_planned(session, match, plan, resume_many, ("Resume", "resumed"), "not paused")


def _change_planned(
    session: Session,
    match: str,
    plan: PauseResult,
    change: Callable[..., PauseResult],
    words: tuple[str, str],
    resting: str,
) -> None:
    """Change the entries of a plan; ``resting`` says why the others stay as they are."""
    if match != "*" and not (plan.changed or plan.left):  # any entries may have no note, say
        raise nothing_matches(match)
    left = f"{len(plan.left)} {resting}" if plan.left else ""
    change_matching(session, match, sorted(plan.changed), change, words, left)


@click.command(cls=SessionCommand)
@NAMES
@INSTEAD_OF_NAME
@DRY_RUN
@YES
@ONE_OBJECT
@pass_session
def delete(session: Session, names: tuple[str, ...], match: str | None) -> None:
    """Delete entries with their histories. Shows how many there are, and asks first.

    Entries of beat_schedule come back when a beat starts. If there is no entry of one of the
    names, nothing is deleted.
    """
    refuse_both_or_none(names, match)
    for name in names:
        read_listed(session.app, name)  # raises before anything is written
    chosen = [*dict.fromkeys(names)] if match is None else select(session, match)[0]
    what = counted(len(chosen))
    if session.is_dry_run:
        if session.is_json:
            session.print_json({"deleted": 0, "names": chosen, "is_dry_run": True})
        else:
            show_names(session, chosen, f"{what} would be deleted.")
        return
    ask_about(session, "Delete", chosen)
    with meter("Deleting", len(chosen)) as progress:
        done = delete_entries(session.actor, Selection(chosen, match, is_whole=True), progress=progress)
    session.report({"deleted": done.deleted, "names": chosen}, f"Deleted {what}.")
