"""Commands that change entries: named or found by a pattern, confirmed, changed, and summed up in one line.

Invariant: nothing is changed before the user has agreed, and one of many entries that can't be changed
doesn't stop the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from redbeat.cli.names import listed_entry, nothing_matches
from redbeat.cli.progress import meter
from redbeat.cli.session import Session
from redbeat.entries.documents import document_of
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.pauses import PauseResult
from redbeat.entries.wording import one_line
from redbeat.errors import EntryError
from redbeat.log.text import counted
from redbeat.operations.selection import Selection
from redbeat.process.exit_codes import USAGE, CommandLineError

#: how many names are shown before a question
MAX_SHOWN = 10
#: how many of the entries that couldn't be changed are shown
MAX_FAILURES = 20


def select(
    session: Session,
    match: str,
    is_meant: Callable[[Any], bool] = lambda _entry: True,
    is_left: Callable[[Any], bool] = lambda _entry: False,
) -> tuple[list[str], int]:
    """Return the names of the matching entries that are meant, and how many others are left as they are.

    Raises:
        CommandLineError: no name matches, as changing nothing isn't a success.
    """
    names, left, is_match = list[str](), 0, False
    for entry in RedBeatSchedulerEntry.list(session.app, match=match):
        is_match = True
        if is_meant(entry):
            names.append(str(entry.name))
        elif is_left(entry):
            left += 1
    if not is_match:
        raise nothing_matches(match)
    return sorted(names), left


def refuse_both_or_none(name: str | None, match: str | None) -> None:
    """Refuse a call with neither a name nor a pattern, or with both."""
    if (name is None) == (match is None):
        raise CommandLineError("Give a NAME, or --match PATTERN.", USAGE)


def change_entries(
    session: Session,
    names: Sequence[str],
    change: Callable[[str], str],
    selection: Selection | None,
    change_many: Callable[..., PauseResult],
    words: tuple[str, str, str],
) -> None:
    """Change the named entries, and after a question those that a selection finds.

    Arguments:
        change: changes one, and returns the sentence that says so.
        change_many: the operation that changes those of a selection.
        words: what the question says, what was done, and what is left alone, as 'Pause', 'paused' and
            'already paused or disabled'.
    """
    verb, done, resting = words
    found = PauseResult()
    if selection is not None:
        found = change_many(selection, dry_run=True)
        if not (found.changed or found.left or found.failed):
            select(session, selection.match or "*")  # raises, unless it matches entries that aren't meant
    chosen = [name for name in sorted(found.changed) if name not in names]
    every, left = [*names, *chosen], len(found.left)
    if session.is_dry_run:
        show_names(session, every, _summary(len(every), f"would be {done}", left, resting))
        return
    if chosen:
        if left and not session.is_yes:
            session.note(f"{left} {'is' if left == 1 else 'are'} {resting}.")
        ask_about(session, verb, chosen)
    if len(every) == 1 and selection is None:
        _show(session, names[0], change(names[0]))
        return
    failed = {}
    for name in names:
        try:
            _show(session, name, change(name))
        except EntryError as exc:
            failed[name] = str(exc)
    if selection is not None:
        result = PauseResult()
        if chosen:
            with meter(done.capitalize(), len(chosen)) as progress:
                confirmed = Selection(chosen, selection.match, is_whole=True)
                result = change_many(confirmed, progress=progress)
        for name in result.changed if session.is_json else ():
            _show(session, name, "")
        count = len(names) - len(failed) + len(result.changed)
        session.summarize(_summary(count, done, left + len(result.left), resting))
        failed |= result.failed
    check_failures(session, failed, len(every))


def _summary(count: int, done: str, left: int, resting: str) -> str:
    return f"{count} {done}" + (f", {left} {resting}, left alone." if left else ".")


def _show(session: Session, name: str, sentence: str) -> None:
    """Show an entry: its document with ``--json``, else a sentence about it."""
    if session.is_json:
        session.print_json(document_of(listed_entry(session, name)))
    else:
        session.say(sentence)


def show_names(session: Session, names: Sequence[str], summary: str) -> None:
    """Show what a command is about, one name or document a line, and say on stderr what would be done."""
    for name in names:
        _show(session, name, one_line(name))
    session.note(summary)


def names_in_words(names: Sequence[str]) -> str:
    """Return some of the names, and how many more there are."""
    shown = ", ".join(one_line(name, 80) for name in names[:MAX_SHOWN])
    return f"{shown} and {len(names) - MAX_SHOWN} more" if len(names) > MAX_SHOWN else shown


def ask_about(session: Session, verb: str, names: Sequence[str]) -> None:
    """Ask whether these entries are to be paused, say."""
    what = counted(len(names), "entry", "entries")
    session.ask(f"{verb} {what} at {session.server} ({names_in_words(names)})?")


def check_failures(session: Session, failed: Mapping[str, str], total: int) -> None:
    """If entries couldn't be changed, say why, and end the command with an error."""
    for reason in list(failed.values())[:MAX_FAILURES]:
        session.note(f"Error: {one_line(reason)}")
    if len(failed) > MAX_FAILURES:
        session.note(f"And {len(failed) - MAX_FAILURES} more.")
    if failed:
        raise CommandLineError(f"{len(failed)} of {total} entries couldn't be changed.", USAGE)
