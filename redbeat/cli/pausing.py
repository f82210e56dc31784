"""``celery redbeat pause`` and ``resume``: entries stopped for a while, by their names or by filters.

An entry that is named is meant, whatever it is. Of many that are selected, only what runs is paused, and only
what was paused is resumed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from datetime import datetime
from typing import Any

import click

from redbeat.cli.confirmation import DRY_RUN, YES
from redbeat.cli.documents import OBJECT_PER_ENTRY
from redbeat.cli.names import NAME, check_stored, entry_called, listed_entry, no_such_entry
from redbeat.cli.progress import meter
from redbeat.cli.selection import MATCH, Selection, ask_about, change_each, check_failures, select
from redbeat.cli.session import Session, SessionCommand
from redbeat.cli.shell import login_name
from redbeat.cli.values import AHEAD
from redbeat.cli.zone import zone_options
from redbeat.entries.documents import document_of
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.marks import zone_for
from redbeat.entries.pauses import PauseResult, is_paused_for, pause_many, pause_one
from redbeat.entries.wording import one_line, relative, when_in
from redbeat.errors import EntryNotFound
from redbeat.process.exit_codes import USAGE, CommandLineError
from redbeat.schedules.times import TypedTime

#: changes all selected entries
ChangeAll = Callable[[list[str], Callable[[int], object]], PauseResult]


def _common_options(command: Callable[..., None]) -> Callable[..., None]:
    """Let ``command`` have the options that come last in the help of both."""
    for add in (click.pass_context, OBJECT_PER_ENTRY, zone_options, YES, DRY_RUN):
        command = add(command)
    return command


def _end_of(until: TypedTime, entry: RedBeatSchedulerEntry, now: datetime, session: Session) -> datetime:
    end = until.at(now, zone_for(entry))
    if end <= now:
        shown = when_in(end, session.zone)
        raise CommandLineError(f"--until: {shown} is in the past; give a later time.", USAGE)
    return end


@click.command(cls=SessionCommand)
@click.argument("names", type=NAME, nargs=-1, metavar="[NAME]...")
@MATCH
@click.option("--note", metavar="TEXT", help="The reason, which show and why print.")
@click.option("--by", metavar="WHO", help="Who pauses the entries. Default: your login name.")
@click.option(
    "--until",
    type=AHEAD,
    help="When they run again by themselves: 2h, 'tomorrow 9:00', or 2030-12-24T18:00.",
)
@_common_options
def pause(
    ctx: click.Context,
    /,
    names: tuple[str, ...],
    match: str | None,
    note: str | None,
    by: str | None,
    until: TypedTime | None,
    dry_run: bool,
    yes: bool,
    is_json: bool,
) -> None:
    """Stop entries from running, until they are resumed or until a time.

    --match shows how many entries it finds, and asks first. Entries that are already paused or disabled stay
    as they are, but a paused entry that you name gets the --note, --by and --until that you give. Times
    without an offset are in the zone of the entry's schedule.
    """
    session = Session.of(ctx)
    if not names and match is None:
        raise CommandLineError("Give a NAME, or --match PATTERN.", USAGE)
    check_stored(session, names)
    now, who = session.now(), by or login_name()

    def end_for(entry: RedBeatSchedulerEntry, now: datetime = now) -> datetime | None:
        return None if until is None else _end_of(until, entry, now, session)

    def is_running(entry: RedBeatSchedulerEntry) -> bool:
        if entry.state in ("paused", "disabled", "missing"):
            return False
        if not entry.problem:
            end_for(entry)  # raises before anything is changed
        return True

    def rest(name: str) -> None:
        try:
            done = pause_one(RedBeatSchedulerEntry, name, session.app, note, end_for, by=who, changed_by=by)
        except EntryNotFound:
            raise no_such_entry(session, name) from None
        words = {"paused": "Paused", "changed": "It was paused already; changed:"}.get(done)
        state = listed_entry(session, name).state
        _report(session, name, words or f"It is {state} already, and stays so:", is_json)

    def rest_all(chosen: list[str], progress: Callable[[int], object]) -> PauseResult:
        return pause_many(RedBeatSchedulerEntry, chosen, session.app, note, end_for, who, progress)

    found = None
    if match is not None:
        found = select(session, match, is_running, lambda entry: entry.state != "missing", without=names)
    for name in names if until is not None else ():
        entry = listed_entry(session, name)
        if not entry.problem:
            end_for(entry)  # raises before anything is changed
    words = ("pause", "paused", "already paused or disabled")
    details = {"match": match, "note": note, "by": by, "until": until and str(until)}
    _change(
        *(session, names, rest, found, rest_all, words, details),
        is_dry_run=dry_run,
        is_yes=yes,
        is_json=is_json,
    )


@click.command(cls=SessionCommand)
@click.argument("names", type=NAME, nargs=-1, metavar="[NAME]...")
@MATCH
@click.option("--note", metavar="TEXT", help="All entries paused with this note; * and ? are wildcards.")
@click.option(
    "--paused-by", "by", metavar="WHO", help="All entries that this person has paused; * and ? are wildcards."
)
@_common_options
def resume(
    ctx: click.Context,
    /,
    names: tuple[str, ...],
    match: str | None,
    note: str | None,
    by: str | None,
    dry_run: bool,
    yes: bool,
    is_json: bool,
) -> None:
    """End the pause of entries.

    --match, --note and --paused-by show how many entries they find, and ask first. Entries that are disabled
    without a pause stay disabled, but an entry that you name is enabled in any case.
    """
    session = Session.of(ctx)
    is_chosen_by_pause = note is not None or by is not None
    if not names and match is None and not is_chosen_by_pause:
        raise CommandLineError("Give a NAME, --match PATTERN, --note TEXT or --paused-by WHO.", USAGE)
    if names and is_chosen_by_pause:
        raise CommandLineError("Give a NAME, or --note and --paused-by, not both.", USAGE)
    check_stored(session, names)

    def is_resting(entry: RedBeatSchedulerEntry) -> bool:
        if entry.problem:
            return not is_chosen_by_pause
        return entry.state == "paused" and is_paused_for(entry, note, by)

    def go_on(name: str) -> None:
        entry_called(session, name).resume()
        _report(session, name, "Resumed", is_json)

    def go_on_all(chosen: list[str], progress: Callable[[int], object]) -> PauseResult:
        entries = RedBeatSchedulerEntry
        return entries.resume_many(chosen, session.app, note=note, by=by, progress=progress)

    found = None
    if match is not None or is_chosen_by_pause:

        def is_left(entry: RedBeatSchedulerEntry) -> bool:
            return entry.state == "disabled" and not is_chosen_by_pause

        found = select(session, "*" if match is None else match, is_resting, is_left, without=names)
    words = ("resume", "resumed", "disabled without a pause")
    details = {"match": match, "note": note, "by": by}
    _change(
        *(session, names, go_on, found, go_on_all, words, details),
        is_dry_run=dry_run,
        is_yes=yes,
        is_json=is_json,
    )


def _change(
    session: Session,
    names: tuple[str, ...],
    change: Callable[[str], None],
    found: Selection | None,
    change_all: ChangeAll,
    words: tuple[str, str, str],
    details: Mapping[str, Any],
    *,
    is_dry_run: bool,
    is_yes: bool,
    is_json: bool,
) -> None:
    """Change the named entries, and after a question the selected ones."""
    verb, done, resting = words
    chosen = found.names if found is not None else []
    if is_dry_run:
        for name in [*names, *chosen]:
            if is_json:
                session.print_json(document_of(listed_entry(session, name)))
            else:
                session.say(one_line(name))
        session.note(_summary(len(names) + len(chosen), f"would be {done}", found, resting))
        return
    if found is not None and chosen:
        left = f"{found.left} {'is' if found.left == 1 else 'are'} {resting}." if found.left else ""
        ask_about(session, verb.capitalize(), chosen, left, is_yes=is_yes)
    every = [*names, *chosen]
    with session.audited(verb, every, details) if every else nullcontext():
        if len(names) == 1 and found is None:
            change(names[0])
            return
        changed, failed = change_each(names, change, lambda _done: None)
        if found is None:
            check_failures(session, failed, len(names))
            return
        with meter(done.capitalize(), len(chosen)) as progress:
            result = change_all(chosen, progress)
        found.left += len(result.left)
        if is_json:
            for name in result.changed:
                session.print_json(document_of(listed_entry(session, name)))
        summary = _summary(len(changed) + len(result.changed), done, found, resting)
        (session.note if is_json else session.say)(summary)
        check_failures(session, {**failed, **result.failed}, len(every))


def _summary(count: int, done: str, found: Selection | None, resting: str) -> str:
    left = f", {found.left} {resting}, left alone" if found is not None and found.left else ""
    return f"{count} {done}{left}."


def _report(session: Session, name: str, done: str, is_json: bool) -> None:
    entry = listed_entry(session, name)
    if is_json:
        session.print_json(document_of(entry))
        return
    due = entry.next_due_at
    words = f"{done} {one_line(name)}"
    if entry.paused_until is not None:
        words += f" until {when_in(entry.paused_until, session.zone)}"
    elif entry.enabled and due is not None:
        words += f"; next run: {when_in(due, session.zone)}, {relative(due, session.now())}"
    session.say(f"{words}.")
