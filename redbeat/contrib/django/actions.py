"""What is done with entries of the list, or with one: paused, resumed, run, deleted.

Invariant: each is checked for its right and written into the audit list by its verb, and what became of each
entry is told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from redbeat.access import Right
from redbeat.contrib.django.access import AdminVisit
from redbeat.diagnostics.hints import hint_at_beat_schedule
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.query import entries_called
from redbeat.entries.wording import in_words_of, one_line, when_in
from redbeat.errors import AccessDenied, BrokerUnavailable, EntryError, LockNotAcquired, RunNotSent
from redbeat.log.text import counted
from redbeat.operations import editing, pausing, running
from redbeat.operations.selection import Selection
from redbeat.schedules.times import read_time


@dataclass
class Outcome:
    """What has become of an action.

    Attributes:
        done: the names of the entries with which it was done.
        told: a sentence.
        failed: why it wasn't with others, by their names.
        left: sentences about entries with which nothing was to be done.
    """

    done: Sequence[str]
    told: str
    failed: Mapping[str, str] = field(default_factory=dict)
    left: Sequence[str] = ()


Fields = Mapping[str, str]


@dataclass(frozen=True)
class Action:
    """One action.

    Attributes:
        label: in the list of actions; ``short`` on an entry's page.
        done: what Django's log has of it.
        is_asked: the user is asked before; from an entry's page always.
        right: which it takes.
    """

    label: str
    short: str
    done: str
    right: Right
    act: Callable[[AdminVisit, Sequence[str], Fields], Outcome]
    is_asked: bool = False


def _pause(visit: AdminVisit, names: Sequence[str], fields: Fields) -> Outcome:
    until = _until(visit, fields)
    note = fields.get("note", "").strip() or None
    chosen = Selection([*names])
    result = pausing.pause_entries(visit.actor, chosen, note=note, until=until)
    ends = "" if until is None else f" until {when_in(until, visit.zone)}"
    left = _left(result.left, "paused or disabled already")
    return Outcome(result.changed, f"Paused {_entries(result.changed)}{ends}.", result.failed, left)


def _until(visit: AdminVisit, fields: Fields) -> datetime | None:
    text = fields.get("until", "").strip()
    if not text:
        return None
    try:
        until = read_time(text, visit.now, visit.zone, ahead=True)
    except ValueError as exc:
        raise EntryError(f"until: {exc}", "") from exc
    if until <= visit.now:
        raise EntryError(f"until: {when_in(until, visit.zone)} is in the past.", "")
    return until


def _resume(visit: AdminVisit, names: Sequence[str], _fields: Fields) -> Outcome:
    """End the pause of entries, and enable those that are disabled without one."""
    result = pausing.resume_entries(visit.actor, Selection([*names]))
    done, left, failed = list(result.changed), list(result.left), dict(result.failed)
    if left and visit.may("edit"):
        read = entries_called(RedBeatSchedulerEntry, visit.app, left)
        for entry in read:
            if entry is None or entry.problem or entry.is_enabled_at(visit.now):
                continue
            name = str(entry.name)
            left.remove(name)
            try:
                editing.set_(visit.actor, name, {"enabled": True})
            except (AccessDenied, EntryError) as exc:
                failed[name] = str(exc)
            else:
                done.append(name)
    words = "enabled already" if visit.may("edit") else "not paused"
    return Outcome(done, f"Resumed {_entries(done)}.", failed, _left(left, words))


def _run(visit: AdminVisit, names: Sequence[str], fields: Fields) -> Outcome:
    sent, failed = list[str](), dict[str, str]()
    for name in names:
        try:
            running.trigger_by_form(visit.actor, name, fields.get("once", ""), {})
            sent.append(name)
        except BrokerUnavailable as exc:  # it is away for the others, too
            failed[name] = str(exc)
            break
        except (EntryError, RunNotSent, AccessDenied, LockNotAcquired) as exc:
            failed[name] = str(exc)
    left = _left(names[len(sent) + len(failed) :], "not sent, as the broker is away")
    return Outcome(sent, f"Sent a run of {_entries(sent)}.", failed, left)


def _delete(visit: AdminVisit, names: Sequence[str], fields: Fields) -> Outcome:
    revision = fields.get("revision")
    if revision and len(names) == 1:
        count = editing.delete_as_seen(visit.actor, names[0], revision)
    else:
        count = editing.delete(visit.actor, names)
    left = [f"{counted(len(names) - count, 'entry was', 'entries were')} removed already."]
    return Outcome(
        names, f"Deleted {counted(count, 'entry', 'entries')}.", {}, left if count < len(names) else []
    )


ACTIONS: dict[str, Action] = {
    "pause": Action("Pause selected entries", "Pause", "Paused", Right.PAUSE, _pause),
    "resume": Action("Resume or enable selected entries", "Resume", "Resumed", Right.PAUSE, _resume),
    "run_now": Action("Run selected entries now", "Run now", "Run now", Right.RUN, _run, is_asked=True),
    "delete_selected": Action(
        "Delete selected entries", "Delete", "Deleted", Right.DELETE, _delete, is_asked=True
    ),
}


def carry_out(visit: AdminVisit, action: Action, names: Sequence[str], fields: Fields) -> Outcome:
    """Do it.

    Raises:
        AccessDenied: this user may not.
        EntryChanged: an entry that was to be deleted isn't as it was seen.
        EntryError: a field of the question can't be used.
        StoreUnavailable, StoreRefused, StoreCorrupt.
    """
    visit.user.require(action.right)
    found = action.act(visit, names, fields)
    failed = {name: one_line(in_words_of(words, visit.zone)) for name, words in found.failed.items()}
    return Outcome(found.done, found.told, failed, found.left)


def hint_at(visit: AdminVisit, names: Sequence[str]) -> str:
    """Return what is worth knowing before entries are deleted; '' for nothing."""
    return hint_at_beat_schedule(visit.app, names)


def _entries(names: Sequence[str]) -> str:
    return one_line(names[0], 120) if len(names) == 1 else counted(len(names), "entry", "entries")


def _left(names: Sequence[str], words: str) -> list[str]:
    if not names:
        return []
    return [f"{_entries(names)} {'was' if len(names) == 1 else 'were'} {words}."]
