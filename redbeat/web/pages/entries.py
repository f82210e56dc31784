"""The list of entries: pages in an order, and searches slice by slice.

Invariant: no request reads more entries than a page has, or than its time allows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import tzinfo
from hashlib import sha256
from typing import Any

from starlette.responses import Response
from starlette.routing import BaseRoute

from redbeat.access import Right
from redbeat.diagnostics.routes import Destinations
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.query import STATES
from redbeat.entries.runs import count_running, read_last
from redbeat.entries.search import (
    NO_RUNS,
    ByNextRun,
    Order,
    Place,
    Row,
    Wanted,
    entries_called,
    search,
)
from redbeat.entries.upcoming import next_run_in_words
from redbeat.entries.wording import in_words_of, one_line, when_in
from redbeat.history import OUTCOMES
from redbeat.keys import Keys
from redbeat.log.text import is_utf8
from redbeat.operations.showing import hide_in_sentence
from redbeat.web.jobs import Result
from redbeat.web.names import ByName, read_names
from redbeat.web.routes import action, page
from redbeat.web.visit import Visit

#: how many entries a page has
ROWS = 50
#: for how long is looked for matches at first, and whenever somebody goes on
FIRST_SECONDS, MORE_SECONDS = 0.06, 0.5
#: a longer name doesn't say in an address where a page begins; nor is a longer one told as a part of others
MAX_IN_ADDRESS = 500
#: how often a page asks that waits for the names, seconds
WAIT_SECONDS = 1
#: how many entries are shown by their names at a time, when they are asked for again
MAX_SHOWN = 500

#: the orders, and how they are called
SORTS = {"next": "next run", "name": "name"}


@dataclass(frozen=True)
class View:
    """What a list shows: what is searched for, in which order, and from where on.

    Attributes:
        after, score: where a search goes on: behind a name by name, or behind a member with its score by next
            run; '': ``offset`` counts.
    """

    wanted: Wanted = Wanted()  # noqa: RUF009 - immutable
    sort: str = "next"
    offset: int = 0
    after: str = ""
    score: float | None = None

    @classmethod
    def of(cls, query: Mapping[str, str]) -> View:
        """Return what a query asks for; what makes no sense in it is left out."""
        offset = query.get("offset", "")
        try:
            score = float(query.get("score", ""))
        except ValueError:
            score = None
        return cls(
            Wanted(**{one.name: query.get(one.name, "").strip() for one in fields(Wanted)}),
            sort=query.get("sort", "") if query.get("sort") in SORTS else "next",
            offset=int(offset[:12]) if offset.isdecimal() and offset.isascii() else 0,
            after=query.get("after", ""),
            score=score,
        )

    @property
    def is_by_name(self) -> bool:
        """Whether it is in the order of names."""
        return self.sort == "name"

    def place(self, keys: Keys) -> Place:
        """Return where it begins."""
        if not self.after or (self.score is None and not self.is_by_name):
            return Place(None, self.offset)
        row = Row(self.after) if self.is_by_name else Row(keys.name(self.after), self.after, self.score)
        return Place(row, self.offset)

    def query(self, **changes: object) -> dict[str, object]:
        """Return the query of this list from its beginning, or of another place in it."""
        given = {**asdict(self.wanted), "sort": self.sort if self.is_by_name else "", **changes}
        return {name: value for name, value in given.items() if value not in ("", None, 0)}

    def here(self) -> dict[str, object]:
        """Return the query of this list as it is shown, from the same place on."""
        return self.query(offset=self.offset, after=self.after, score=self.score)

    def query_from(self, place: Place) -> dict[str, object]:
        """Return the query of this list from ``place`` on."""
        row = place.after
        known = "" if row is None else row.name if self.is_by_name else row.member
        if not known or len(known) > MAX_IN_ADDRESS or not is_utf8(known):
            return self.query(offset=place.offset)
        return self.query(after=known, score=None if row is None else row.score)


# -- showing


def show_entries(visit: Visit) -> Response:
    """Return the page, or the part of it that htmx asks for."""
    view = View.of(visit.query)
    if (problem := view.wanted.problem()) is not None:
        return _page(visit, view, problem=problem)
    order = _order_of(visit, view)
    if isinstance(order, Result):
        if order.problem:
            return _page(visit, view, problem=order.problem)
        return _page(visit, view, reading=order.found or (0, 0), wait_seconds=WAIT_SECONDS)
    if view.wanted:
        return _show_found(visit, view, order)
    count, offset = order.count(), view.offset
    if offset >= count:  # there were more before
        offset = max(count - 1, 0) // ROWS * ROWS
    rows = order.slice(offset, ROWS)
    lines = lines_of(visit, [row.name for row in rows])
    pages = _pages(visit, view, order, offset, rows, count)
    if visit.is_fragment:
        return visit.render("entries_rows.html", lines=lines, pages=pages, view=view)
    return _page(visit, view, lines=lines, pages=pages, source=visit.link("entries", **visit.query))


def show_rows(visit: Visit) -> Response:
    """Return the rows of entries that are shown already, as they are now."""
    try:
        names = json.loads(str(visit.form.get("shown", "[]")))
    except (ValueError, RecursionError):
        names = []
    shown = [str(name) for name in names if is_utf8(str(name))] if isinstance(names, list) else []
    lines = lines_of(visit, shown[:MAX_SHOWN])
    return visit.render("entries_rows.html", lines=lines, pages=None, view=View.of(visit.query))


def _order_of(visit: Visit, view: View) -> Order | Result[Any]:
    """Return the order of a list; a result: the names are being read."""
    if not view.is_by_name:
        return ByNextRun(visit.app)
    result = read_names(visit.app, visit.dashboard.jobs)
    return ByName(result.found or (), result.age_seconds) if result.is_whole else result


def _show_found(visit: Visit, view: View, order: Order) -> Response:
    is_first = not (view.after or view.offset)
    found = search(
        visit.app,
        order,
        view.wanted,
        view.place(visit.dashboard.config.keys),
        limit=ROWS,
        seconds=FIRST_SECONDS if is_first else MORE_SECONDS,
        queue_of=Destinations(visit.app).queue_of,
    )
    more = None if found.place is None else visit.link("entries", **view.query_from(found.place))
    shown: dict[str, Any] = {"lines": _lines(visit, found.entries), "found": found, "more": more}
    if visit.is_fragment:
        return visit.render("entries_more.html", view=view, **shown)
    return _page(visit, view, is_first=is_first, start=visit.link("entries", **view.query()), **shown)


def _page(visit: Visit, view: View, **context: Any) -> Response:
    missing = dict.fromkeys(("pages", "source", "found", "more", "problem", "reading", "start"))
    return visit.render(
        "entries.html",
        title="Entries",
        view=view,
        states=STATES,
        outcomes=(*OUTCOMES, NO_RUNS),
        sorts=SORTS,
        sorted_by={one: visit.link("entries", **view.query(sort=one)) for one in SORTS},
        **{"lines": [], "is_first": True, **missing, **context},
    )


def _pages(
    visit: Visit, view: View, order: Order, offset: int, rows: Sequence[Row], count: int
) -> dict[str, Any]:
    """Return the links to other pages, None where the list ends, and what this one shows."""
    end = offset + len(rows)
    before = {"first": 0, "previous": max(offset - ROWS, 0)}
    behind = {"next": end, "last": (count - 1) // ROWS * ROWS}
    return {
        **dict.fromkeys([*before, *behind]),
        **{
            name: visit.link("entries", **view.query(offset=at))
            for name, at in {**(before if offset else {}), **(behind if end < count else {})}.items()
        },
        "begin": offset + 1 if rows else 0,
        "end": end,
        "count": count,
        "age_seconds": order.age_seconds if isinstance(order, ByName) else None,
    }


def lines_of(visit: Visit, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return what the rows of these entries show; missing ones have none."""
    return _lines(visit, [entry for entry in entries_called(visit.app, names) if entry is not None])


def _lines(visit: Visit, entries: Sequence[RedBeatSchedulerEntry]) -> list[dict[str, Any]]:
    keys = [entry.key for entry in entries]
    lasts, counts = read_last(visit.app, keys), count_running(visit.app, keys)
    return [
        {**_line(visit, entry), "last": last, "outcomes": last.recent, "running": count}
        for entry, last, count in zip(entries, lasts, counts, strict=True)
    ]


def _line(visit: Visit, entry: RedBeatSchedulerEntry) -> dict[str, Any]:
    """Return what a row shows: its ``id`` is the same as long as the name is, and a name that isn't
    ``is_addressable`` can't be written in a form or an address.
    """
    name, state = str(entry.name), entry.state or ""
    due = entry.next_due_at
    if due is not None and due.timestamp() == 0:
        due = None  # a run was asked for: that isn't a date
    is_addressable = is_utf8(name)
    is_usable = is_addressable and not entry.problem and state != "missing"
    may_pause, runs = is_usable and visit.may("pause"), entry.is_enabled_at(visit.now)
    return {
        "entry": entry,
        "name": name,
        "id": sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:12],
        "url": visit.link("entry", name=name) if is_addressable else "",
        "is_addressable": is_addressable,
        "due": due,
        "due_words": "" if due is not None else next_run_in_words(entry, visit.zone, visit.now)[0],
        "state": state,
        "about_state": STATES.get(state, ""),
        "note": note_on(visit.app, entry, visit.zone),
        "can_pause": may_pause and runs,
        "can_resume": may_pause and not runs and bool(entry.paused),
        "can_run": is_usable and visit.may("run") and visit.actor.may_call(str(entry.task), entry.options),
    }


def note_on(app: Any, entry: RedBeatSchedulerEntry, zone: tzinfo) -> str:
    """Return what is to be said about an entry's state."""
    if entry.state == "paused":
        until = entry.paused_until
        parts = (
            entry.pause_note,
            f"by {entry.paused_by}" if entry.paused_by else None,
            f"until {when_in(until, zone)}" if until is not None else None,
        )
        return one_line(", ".join(part for part in parts if part))
    if entry.state == "missing":
        return "its definition is missing"
    error = hide_in_sentence(app, entry.stored, entry.error)
    return one_line(in_words_of(error.removeprefix(f"{entry.key}: "), zone))


ROUTES: list[BaseRoute] = [
    page("/entries", show_entries),
    action("/entries/rows", show_rows, right=Right.READ),  # the names are too long for an address,
]
