"""Run an entry now, and backfill it: pages that ask what to send."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from starlette.responses import Response
from starlette.routing import BaseRoute

from redbeat.access import Right
from redbeat.entries.backfill import told_of_beginnings
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.search import read_listed
from redbeat.entries.wording import in_words_of, one_line
from redbeat.errors import EntryError, LockNotAcquired, RunNotSent
from redbeat.log.text import counted
from redbeat.operations.editing import fields_of
from redbeat.operations.hiding import hide, hiding_of
from redbeat.operations.running import (
    MAX_SENT,
    backfill_entry,
    request_of_form,
    trigger_entry,
)
from redbeat.schedules.times import read_time
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
    return read_listed(visit.app, _name(visit))


def _name(visit: Visit) -> str:
    given = visit.form.get("name", visit.query.get("name", ""))
    return given if isinstance(given, str) else ""


def _typed(visit: Visit, *names: str) -> dict[str, str]:
    return {name: visit.typed(name).strip() for name in names}


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
    begin = _read(problems, "begin", typed["begin"], partial(_past, visit))
    end = _read(problems, "end", typed["end"], partial(_past, visit), visit.now.replace(microsecond=0))
    if begin is None:
        problems.setdefault("begin", "Give the time from which on runs are sent.")
    elif not problems and end < begin:
        problems["end"] = "It is before the beginning."
    name, actor = str(entry.name), visit.actor

    def send(dry_run: bool) -> Sequence[datetime]:
        return backfill_entry(actor, name, begin=begin, end=end, dry_run=dry_run).runs

    def send_all(tell: Tell[str]) -> Ending:
        tell("Sending the runs")
        words = f"Sent {counted(len(send(dry_run=False)), 'run', 'runs')}."
        return Ending(words, ("entry",), {"name": name})

    if not problems and visit.is_confirmed:
        return make_change(visit, f"Backfill: {one_line(name, 200)}", send_all)
    dues, status = None, 422
    if not problems:
        try:
            dues = send(dry_run=True)
        except (EntryError, RunNotSent, LockNotAcquired) as exc:
            problems[""], status = in_words_of(str(exc), visit.zone), status_of(exc)
    return _page(
        *(visit, "entry_backfill.html", "Backfill", entry, problems, status),
        typed=typed,
        dues=dues,
        listed=list(dues or ())[:MOST_LISTED],
        most=MAX_SENT,
        span={"begin": begin.isoformat(), "end": end.isoformat()} if begin else {},
        is_to_come=not problems and end > visit.now,
        begun=told_of_beginnings([(entry, dues)], begin, visit.zone).strip() if dues else "",
    )


def _past(visit: Visit, text: str) -> datetime:
    return read_time(text, visit.now, visit.zone, ahead=False).replace(microsecond=0)


ROUTES: list[BaseRoute] = [
    page("/entry/run", show_run, right=Right.RUN),
    action("/entry/run", run, right=Right.RUN),
    page("/entry/backfill", show_backfill, right=Right.RUN),
    action("/entry/backfill", backfill, right=Right.RUN),
]
