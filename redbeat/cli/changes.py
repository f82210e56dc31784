"""Commands that change entries: named or found by a pattern, confirmed, changed, and summed up in one line.

Invariant: nothing is changed before the user has agreed, and one of many entries that can't be changed
doesn't stop the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from redbeat.cli.session import Session
from redbeat.cli.tables import meter
from redbeat.entries.describe import description_of
from redbeat.entries.documents import document_of
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.pauses import PauseResult
from redbeat.entries.saving import why_never
from redbeat.entries.search import read_listed
from redbeat.entries.wording import one_line, relative, when_in
from redbeat.errors import EntryError
from redbeat.log.text import counted
from redbeat.operations.selection import Selection
from redbeat.process.exit_codes import NO_INPUT, USAGE, CommandLineError

#: how many names are shown before a question
MAX_SHOWN = 10
#: how many of the entries that couldn't be changed are shown
MAX_FAILURES = 20


def refuse_both_or_none(name: object, match: str | None) -> None:
    """Refuse a call with neither a name nor a pattern, or with both."""
    if bool(name) == (match is not None):
        raise CommandLineError("Give either a NAME or --match PATTERN.", USAGE)


def select(
    session: Session, match: str, is_meant: Callable[[Any], bool] = lambda _entry: True
) -> tuple[list[str], int]:
    """Return the names of the matching entries that are meant, and how many others match.

    Raises:
        CommandLineError: no name matches.
    """
    entries = {str(one.name): is_meant(one) for one in RedBeatSchedulerEntry.list(session.app, match=match)}
    if not entries:
        raise nothing_matches(match)
    names = sorted(name for name, is_chosen in entries.items() if is_chosen)
    return names, len(entries) - len(names)


def nothing_matches(match: str) -> CommandLineError:
    """Return the error about a pattern that no entry's name matches, as changing nothing isn't a success."""
    return CommandLineError(f"No entry's name matches {one_line(match)!r}; nothing was done.", NO_INPUT)


def change_named(session: Session, names: Sequence[str], change: Callable[[str], str], done: str) -> None:
    """Change the named entries, one after the other.

    Arguments:
        change: changes one, unless it is a dry run, and returns the words that say so, as 'Paused'.
        done: the word for all of them, as 'paused'.
    """
    failed = {}
    for name in names:
        read_listed(session.app, name)  # raises before anything is written
    for name in names:
        try:
            words = change(name)
        except EntryError as exc:
            if len(names) == 1:
                raise
            failed[name] = str(exc)
            continue
        if session.is_dry_run:
            _show(session, name)
        else:
            report_entry(session, name, words)
    if session.is_dry_run:
        session.note(f"{counted(len(names) - len(failed))} would be {done}.")
    check_failures(session, failed, len(names))


def change_matching(
    session: Session,
    match: str | None,
    names: Sequence[str],
    change: Callable[..., PauseResult],
    words: tuple[str, str],
    left: str = "",
) -> None:
    """Change entries that a pattern has found, after a question.

    Arguments:
        change: the operation on the selection.
        words: for the question and for what was done, as 'Pause' and 'paused'.
        left: how many others stay as they are, and why; '': none do.
    """
    verb, done = words
    rest = f", {left}, left alone" if left else ""
    if session.is_dry_run:
        show_names(session, names, f"{len(names)} would be {done}{rest}.")
        return
    if names:
        ask_about(session, verb, names)
    with meter(done.capitalize(), len(names)) as progress:
        result = change(Selection([*names], match, is_whole=True), progress=progress)
    for name in result.changed if session.is_json else ():
        _show(session, name)
    session.summarize(f"{len(result.changed)} {done}{rest}.")
    check_failures(session, result.failed, len(names))


def report_entry(session: Session, name: str, done: str) -> None:
    """Say what was done to an entry, and when it runs now."""
    if session.is_json:
        _show(session, name)
        return
    entry = read_listed(session.app, name)
    session.say(f"{done} {one_line(name)}: {one_line(description_of(entry, session.zone))}")
    due, until = entry.next_due_at, entry.paused_until
    if entry.state == "finished":
        session.say(f"It is finished: {why_never(entry, session.now())}")
    elif entry.state == "paused" and until is not None:
        session.say(f"It is paused until {when_in(until, session.zone)}.")
    elif entry.state not in ("scheduled", "due", "failing"):
        session.say(f"It is {entry.state}.")
    elif due is not None:
        session.say(f"Next run: {when_in(due, session.zone)}, {relative(due, session.now())}")


def _show(session: Session, name: str) -> None:
    """Print an entry's document with ``--json``, else its name."""
    if session.is_json:
        session.print_json(document_of(read_listed(session.app, name)))
    else:
        session.say(one_line(name))


def show_names(session: Session, names: Sequence[str], summary: str) -> None:
    """Show what a command is about, one name or document a line, and say on stderr what would be done."""
    for name in names:
        _show(session, name)
    session.note(summary)


def names_in_words(names: Sequence[str]) -> str:
    """Return some of the names, and how many more there are."""
    shown = ", ".join(one_line(name, 80) for name in names[:MAX_SHOWN])
    return f"{shown} and {len(names) - MAX_SHOWN} more" if len(names) > MAX_SHOWN else shown


def ask_about(session: Session, verb: str, names: Sequence[str]) -> None:
    """Ask whether these entries are to be paused, say."""
    session.ask(f"{verb} {counted(len(names))} at {session.server} ({names_in_words(names)})?")


def check_failures(session: Session, failed: Mapping[str, str], total: int, code: int = USAGE) -> None:
    """If entries couldn't be changed, say why, and end the command with an error."""
    for reason in list(failed.values())[:MAX_FAILURES]:
        session.note(f"Error: {one_line(reason)}")
    if len(failed) > MAX_FAILURES:
        session.note(f"And {len(failed) - MAX_FAILURES} more.")
    if failed:
        raise CommandLineError(f"{len(failed)} of {total} entries couldn't be changed.", code)
