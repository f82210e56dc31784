"""What one does with an entry: pause, resume, run, backfill and delete it, repeat or give up one of its runs.

Each has a page of its own that asks, and works without a script.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from starlette.responses import Response
from starlette.routing import BaseRoute

from redbeat.access import Right
from redbeat.diagnostics.hints import hint_at_beat_schedule
from redbeat.entries.backfill_wording import Span, told_of_beginnings
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.query import read_listed
from redbeat.entries.runs import read_running
from redbeat.entries.wording import in_words_of, one_line, relative, when_in
from redbeat.errors import ArgumentInvalid, EntryError, EntryNotFound, LockNotAcquired, RunNotSent
from redbeat.log.text import counted
from redbeat.operations import editing, running
from redbeat.operations.editing import fields_of
from redbeat.operations.hiding import hide, hiding_of
from redbeat.operations.pausing import pause_entry, resume_entry
from redbeat.operations.running import (
    MAX_SENT,
    backfill_entry,
    request_of_form,
    rerun_entry,
    trigger_entry,
)
from redbeat.schedules.times import read_time
from redbeat.schedules.timezones import time_of
from redbeat.web.jobs import Ending, Tell
from redbeat.web.pages.changing import make_change
from redbeat.web.pages.entry import see_entry
from redbeat.web.pages.entry_form import json_of, read_json
from redbeat.web.routes import action, page, status_of
from redbeat.web.visit import Visit

#: how many due times of a backfill are listed
MOST_LISTED = 200

Problems = Mapping[str, str]


def _entry(visit: Visit) -> RedBeatSchedulerEntry:
    return read_listed(RedBeatSchedulerEntry, visit.app, _name(visit))


def _name(visit: Visit) -> str:
    given = visit.form.get("name", visit.query.get("name", ""))
    return given if isinstance(given, str) else ""


def _typed(visit: Visit, *names: str) -> dict[str, str]:
    found = {name: visit.form.get(name, "") for name in names}
    return {name: value.strip() if isinstance(value, str) else "" for name, value in found.items()}


def _page(
    visit: Visit,
    template: str,
    title: str,
    entry: RedBeatSchedulerEntry,
    problems: Problems | None = None,
    status: int = 422,
    **context: Any,
) -> Response:
    return visit.render(
        template,
        status if problems else 200,
        title=title,
        entry=entry,
        name=str(entry.name),
        problems=problems or {},
        **context,
    )


def _read(
    problems: dict[str, str], field: str, text: str, read: Callable[[str], Any], otherwise: Any = None
) -> Any:
    """Return the value of a field, ``otherwise`` where it is empty; note what is wrong with it."""
    if not text:
        return otherwise
    try:
        return read(text)
    except (ValueError, OverflowError) as exc:
        words = str(exc)
        problems[field] = f"{words[:1].upper()}{words[1:]}"
        return otherwise


def _time(visit: Visit, *, ahead: bool) -> Callable[[str], datetime]:
    return lambda text: read_time(text, visit.now, visit.zone, ahead=ahead)


# -- pause and resume


def show_pause(visit: Visit) -> Response:
    """Ask for the note and the end of a pause."""
    return _page(
        visit, "entry_pause.html", "Pause", _entry(visit), typed=_typed(visit, "note", "until", "clock")
    )


def pause(visit: Visit) -> Response:
    """Pause the entry."""
    entry, typed, problems = _entry(visit), _typed(visit, "note", "until", "clock"), dict[str, str]()
    field = "until" if typed["until"] else "clock"
    if typed["until"] and typed["clock"]:
        problems["clock"] = "Give one of the two."
    until = _read(problems, field, typed[field], _time(visit, ahead=True))
    if not problems:
        try:
            change = pause_entry(visit.actor, str(entry.name), note=typed["note"] or None, until=until)
        except ArgumentInvalid as exc:
            problems[field] = in_words_of(exc.reason, visit.zone)
    if problems:
        return _page(visit, "entry_pause.html", "Pause", entry, problems, typed=typed)
    words = f"It is {entry.state} already, and stays so."
    if change.outcome == "changed":
        words = "It was paused already, and has what you gave now."
    elif change.outcome == "paused":
        end = change.entry.paused_until
        words = f"Paused until {'somebody resumes it' if end is None else when_in(end, visit.zone)}."
    return see_entry(visit, str(entry.name), words)


def resume(visit: Visit) -> Response:
    """End the entry's pause; one that is disabled without a pause is enabled by editing it."""
    entry = _entry(visit)
    change = resume_entry(visit.actor, str(entry.name))
    if change.outcome == "left":
        words = (
            "It isn't paused." if entry.enabled else "It is disabled, not paused: edit it, so that it runs."
        )
        return see_entry(visit, str(entry.name), words)
    due = change.entry.next_due_at
    when = "" if due is None else f" Next run: {when_in(due, visit.zone)}, {relative(due, visit.now)}."
    return see_entry(visit, str(entry.name), f"Resumed.{when}")


# -- run now


def show_run(visit: Visit) -> Response:
    """Show the arguments with which the entry would be run now."""
    entry = _entry(visit)
    visit.actor.require_call(str(entry.task), entry.options)
    return _page(visit, "entry_run.html", "Run now", entry, typed=_arguments_of(visit, entry))


def _arguments_of(visit: Visit, entry: RedBeatSchedulerEntry) -> dict[str, str]:
    shown = hide(fields_of(entry), hiding_of(visit.app))
    options = shown.get("options")
    queue = options.get("queue") if isinstance(options, Mapping) else None
    return {
        "args": json_of(shown.get("args") or []),
        "kwargs": json_of(shown.get("kwargs") or {}),
        "queue": str(queue or ""),
    }


def run(visit: Visit) -> Response:
    """Send the entry's task once, now. What was left as it stood is the entry's own."""
    entry, problems, status = _entry(visit), dict[str, str](), 422
    typed = _typed(visit, "args", "kwargs", "queue", "once")
    own = _arguments_of(visit, entry)
    overrides: dict[str, Any] = {}
    for field, kind, what in (
        ("args", list, "an array, as [1, 2]"),
        ("kwargs", dict, 'an object, as {"x": 1}'),
    ):
        if typed[field] != own[field]:
            read = partial(read_json, kind=kind, what=what)
            overrides[field] = _read(problems, field, typed[field], read, kind())
    if typed["queue"] and typed["queue"] != own["queue"]:
        overrides["queue"] = typed["queue"]
    if not problems:
        try:
            request = request_of_form(typed["once"], overrides)
            sent = trigger_entry(visit.actor, str(entry.name), **overrides, request=request)
        except (EntryError, RunNotSent) as exc:
            problems[""], status = in_words_of(str(exc), visit.zone), status_of(exc)
    if problems:
        return _page(visit, "entry_run.html", "Run now", entry, problems, status, typed=typed)
    words = f"Sent {one_line(entry.task, 200)}; its task id is {sent.task_id}."
    if sent.is_repeated:
        words = f"This form has sent it already, once; its task id is {sent.task_id}."
    return see_entry(visit, str(entry.name), words, sent=sent.task_id or "")


# -- backfill


def show_backfill(visit: Visit) -> Response:
    """Ask for the span of a backfill."""
    entry = _entry(visit)
    visit.actor.require_call(str(entry.task), entry.options)
    typed = {"begin": visit.query.get("begin", ""), "end": visit.query.get("end", "")}
    return _page(visit, "entry_backfill.html", "Backfill", entry, typed=typed, dues=None, most=MAX_SENT)


def backfill(visit: Visit) -> Response:
    """Show which runs a span has that weren't sent, and after a confirmation send them."""
    entry, typed, problems = _entry(visit), _typed(visit, "begin", "end"), dict[str, str]()
    begin = _read(problems, "begin", typed["begin"], _time(visit, ahead=False))
    end = _read(problems, "end", typed["end"], _time(visit, ahead=False), visit.now)
    begin, end = begin and begin.replace(microsecond=0), end.replace(microsecond=0)
    if begin is None:
        problems.setdefault("begin", "Give the time from which on runs are sent.")
    elif not problems and end < begin:
        problems["end"] = "It is before the beginning."
    name, actor, zone = str(entry.name), visit.actor, visit.zone
    span = {"begin": "" if begin is None else begin.isoformat(), "end": end.isoformat()}

    def attempt(*, dry_run: bool) -> Sequence[datetime] | Exception:
        if begin is None:
            return ()
        try:
            return backfill_entry(actor, name, begin=begin, end=end, dry_run=dry_run).runs
        except (EntryError, RunNotSent, LockNotAcquired) as exc:
            return exc

    def send(tell: Tell[str]) -> Sequence[datetime] | Exception:
        tell("Sending the runs")
        return attempt(dry_run=False)

    def show(visit: Visit, found: Sequence[datetime] | Exception) -> Response:
        dues = None if isinstance(found, Exception) else found
        begun = told_of_beginnings([Span(entry, begin, end, dues)], visit.zone) if begin and dues else ""
        return _page(
            visit,
            "entry_backfill.html",
            "Backfill",
            entry,
            {"": in_words_of(str(found), visit.zone)} if isinstance(found, Exception) else problems,
            status_of(found) if isinstance(found, Exception) else 422,
            typed=typed,
            dues=None if problems else dues,
            listed=list(dues or ())[:MOST_LISTED],
            most=MAX_SENT,
            span=span,
            is_to_come=not problems and end > visit.now,
            begun=begun.strip(),
        )

    def ending_of(found: Sequence[datetime] | Exception) -> Ending:
        place, query = ("entry",), {"name": name}
        if isinstance(found, Exception):
            return Ending(
                in_words_of(str(found), zone),
                place,
                query,
                status_of(found),
                lambda visit: show(visit, found),
            )
        return Ending(f"Sent {counted(len(found), 'run', 'runs')}.", place, query)

    if problems:
        return show(visit, ())
    if visit.form.get("confirmed") != "yes":
        return show(visit, attempt(dry_run=True))
    return make_change(visit, f"Backfill: {one_line(name, 200)}", send, ending_of)


# -- single runs


def rerun(visit: Visit) -> Response:
    """Send a run once more, after a question."""
    entry, text = _entry(visit), _typed(visit, "due")["due"]
    try:
        due = time_of(text) if text else None
    except ValueError as exc:
        raise EntryError(f"{entry.key}: {text!r} is no time.", entry.key) from exc
    if visit.form.get("confirmed") != "yes":
        which = (
            "its last run that has failed"
            if due is None
            else f"the run that was due {when_in(due, visit.zone)}"
        )
        return _page(
            visit,
            "entry_confirm.html",
            "Rerun",
            entry,
            question=f"Send {which} once more?",
            label="Send it",
            action="rerun",
            fields={"due": text},
        )
    run = rerun_entry(visit.actor, str(entry.name), due=due)
    when = when_in(run.due, visit.zone)
    words = f"Sent the run that was due {when} once more; its task id is {run.task_id}."
    return see_entry(visit, str(entry.name), words, sent=run.task_id or "")


def give_up(visit: Visit) -> Response:
    """End a run in progress as lost, after a question."""
    entry, task_id = _entry(visit), _typed(visit, "task_id")["task_id"]
    if visit.form.get("confirmed") != "yes":
        return _page(
            visit,
            "entry_confirm.html",
            "Give up",
            entry,
            question=f"Give up the run {one_line(task_id, 200)}? It counts as lost, and holds none back.",
            label="Give it up",
            action="give-up",
            fields={"task_id": task_id},
        )
    done = running.give_up(visit.actor, str(entry.name), [task_id]).runs
    words = (
        "Given up: it counts as lost."
        if done
        else "It has ended meanwhile, or begun anew: it wasn't given up."
    )
    return see_entry(visit, str(entry.name), words)


# -- delete


def show_delete(visit: Visit) -> Response:
    """Ask whether the entry is to be deleted, and say what goes with it."""
    entry = _entry(visit)
    running_now = read_running(entry) if not entry.problem else None
    return _page(
        visit,
        "entry_delete.html",
        "Delete",
        entry,
        hint=hint_at_beat_schedule(visit.app, [str(entry.name)]),
        running=running_now or [],
    )


def delete(visit: Visit) -> Response:
    """Delete the entry, if that was confirmed."""
    if visit.form.get("confirmed") != "yes":
        return show_delete(visit)
    name = _name(visit)
    try:
        was_there = _entry(visit).name == name
    except EntryNotFound:
        was_there = False
    done = editing.delete(visit.actor, [name])
    words = f"Deleted {one_line(name, 200)}." if done or was_there else "It was removed already."
    return visit.see("entries", notice=words)


ROUTES: list[BaseRoute] = [
    page("/entry/pause", show_pause, right=Right.PAUSE),
    action("/entry/pause", pause, right=Right.PAUSE),
    action("/entry/resume", resume, right=Right.PAUSE),
    page("/entry/run", show_run, right=Right.RUN),
    action("/entry/run", run, right=Right.RUN),
    page("/entry/backfill", show_backfill, right=Right.RUN),
    action("/entry/backfill", backfill, right=Right.RUN),
    action("/entry/rerun", rerun, right=Right.RUN),
    action("/entry/give-up", give_up, right=Right.RUN),
    page("/entry/delete", show_delete, right=Right.DELETE),
    action("/entry/delete", delete, right=Right.DELETE),
]
