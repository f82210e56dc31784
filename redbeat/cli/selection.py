"""Many entries at once, selected by filters: counted, confirmed, changed, and summed up in one line.

Owns the steps of such a command. Invariant: nothing is changed before somebody has agreed, and one entry
that can't be changed doesn't stop the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import click

from redbeat.cli.confirmation import ask
from redbeat.cli.names import nothing_matches
from redbeat.cli.progress import meter
from redbeat.cli.session import Command, Session
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.wording import one_line
from redbeat.errors import EntryError, EntryNotFound, RunNotSent
from redbeat.log.text import counted
from redbeat.process.exit_codes import NO_INPUT, USAGE, CommandLineError

#: how many names are shown before a question
MAX_SHOWN = 10
#: how many of the entries that couldn't be changed are shown
MAX_FAILURES = 20


def _match_option(which: str) -> Callable[[Command], Command]:
    wildcards = "matches; * and ? are wildcards, case-sensitive."
    return click.option("--match", metavar="PATTERN", help=f"{which} entries whose name {wildcards}")


#: of commands that change entries; of those that take one name or a pattern; of those that show entries
MATCH = _match_option("All")
INSTEAD_OF_NAME = _match_option("Instead of NAME, all")
ONLY_MATCHING = _match_option("Only")


@dataclass
class Selection:
    """The entries that a command is going to change.

    Attributes:
        names: of the entries that it is about.
        left: how many others were found, and stay as they are.
    """

    names: list[str]
    left: int = 0


def select(
    session: Session,
    match: str,
    is_meant: Callable[[Any], bool] = lambda _entry: True,
    is_left: Callable[[Any], bool] = lambda _entry: False,
    *,
    state: str | None = None,
    without: Iterable[str] = (),
) -> Selection:
    """Return the entries that are selected, by their names; the other matching ones are counted.

    Raises:
        CommandLineError: no name matches, which is no success of a command that is to change something.
    """
    found, named, is_match = Selection([]), set(without), False
    for entry in RedBeatSchedulerEntry.list(session.app, match=match, state=state):
        is_match = True
        if entry.name in named:
            continue
        if is_meant(entry):
            found.names.append(str(entry.name))
        elif is_left(entry):
            found.left += 1
    if not is_match:
        raise nothing_matches(match)
    found.names.sort()
    return found


def names_in_words(names: Sequence[str]) -> str:
    """Return some of the names, and how many more there are."""
    shown = ", ".join(one_line(name, 80) for name in names[:MAX_SHOWN])
    return f"{shown} and {len(names) - MAX_SHOWN} more" if len(names) > MAX_SHOWN else shown


def ask_about(session: Session, verb: str, names: Sequence[str], left: str = "", *, is_yes: bool) -> None:
    """Ask whether these entries are to be paused, say; tell how many stay as they are."""
    if left and not is_yes:
        session.note(left)
    what = counted(len(names), "entry", "entries")
    ask(f"{verb} {what} at {session.server} ({names_in_words(names)})?", is_yes=is_yes)


def say_names(session: Session, names: Iterable[str], summary: str) -> None:
    """Show what a command is about, one name a line, and say on stderr what would be done."""
    for name in names:
        session.say(one_line(name))
    session.note(summary)


def refuse_both_or_none(name: str | None, match: str | None) -> None:
    """Refuse a call with neither a name nor a pattern, or with both."""
    if (name is None) == (match is None):
        raise CommandLineError("Give a NAME, or --match PATTERN.", USAGE)


def change_selected(
    session: Session,
    names: Sequence[str],
    change: Callable[[str], object],
    verb: str,
    title: str,
    summary: Callable[[int], str],
    audited: AbstractContextManager[None],
    *,
    is_yes: bool,
    is_json: bool,
) -> None:
    """Ask, call ``change`` for one entry after the other, and say how many were changed, and which not.

    Arguments:
        verb: begins the question: 'Change queue of'.
        title: of the bar.
        summary: makes the last line from the number of entries that were changed.
        audited: is entered around the changes.
    """
    if names:
        ask_about(session, verb, names, is_yes=is_yes)
    with audited if names else nullcontext():
        with meter(title, len(names)) as progress:
            done, failed = change_each(names, change, progress)
        (session.note if is_json else session.say)(summary(len(done)))
        check_failures(session, failed, len(names))


def change_each(
    names: Iterable[str], change: Callable[[str], object], progress: Callable[[int], object]
) -> tuple[list[str], Mapping[str, str]]:
    """Call ``change`` for one entry after the other; return those that were changed, and why others weren't.

    One that was deleted since it was found is neither.
    """
    done, failed = [], {}
    for number, name in enumerate(names, start=1):
        try:
            change(name)
            done.append(name)
        except EntryNotFound:
            pass
        except (EntryError, RunNotSent) as exc:
            failed[name] = str(exc)
        except CommandLineError as exc:
            if exc.exit_code != NO_INPUT:
                failed[name] = exc.format_message()
        progress(number)
    return done, failed


def check_failures(session: Session, failed: Mapping[str, str], total: int) -> None:
    """If entries couldn't be changed, say why, and end the command with an error."""
    for reason in list(failed.values())[:MAX_FAILURES]:
        session.note(f"Error: {one_line(reason)}")
    if len(failed) > MAX_FAILURES:
        session.note(f"And {len(failed) - MAX_FAILURES} more.")
    if failed:
        raise CommandLineError(f"{len(failed)} of {total} entries couldn't be changed.", USAGE)
