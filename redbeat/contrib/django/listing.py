"""The admin's list of entries: a page of the schedule, or what a search finds in the time that it has.

Invariant: no request reads more entries than a page has, or than its time allows, however large the schedule
is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

from redbeat.contrib.django.access import AdminVisit
from redbeat.contrib.django.addresses import part_for
from redbeat.entries.describe import description_of
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.query import STATES
from redbeat.entries.runs import read_last
from redbeat.entries.search import NO_RUNS, ByNextRun, read_rows, search
from redbeat.entries.wording import next_run_in_words, one_line
from redbeat.history import OUTCOMES
from redbeat.web.pages.entries import View, note_on
from redbeat.web.queues import Queues

#: how many entries a page has
ROWS = 100
#: for how long is looked for matches
SEARCH_SECONDS = 2.0
#: the search box's name, as in all lists of the admin
SEARCH = "q"


@dataclass(frozen=True)
class Line:
    """A row of the table.

    Attributes:
        part: what stands for the name in an address; None: nothing can.
        due: its next run, in words; ``due_in`` the time until then.
        note: what is to be said about its state.
    """

    name: str
    part: str | None
    task: str
    words: str
    due: str
    due_in: str
    is_enabled: bool
    state: str
    about_state: str
    note: str
    outcome: str


@dataclass(frozen=True)
class Choice:
    """A link of a filter."""

    title: str
    query: str
    is_selected: bool


@dataclass(frozen=True)
class Listing:
    """What the page shows.

    Attributes:
        told: which entries these are, a sentence.
        links: titles and queries of other pages.
        filters: the choices of each filter, by its title.
        search: what stands in the search box; ``kept`` are the other filters, as fields of its form.
        clear: the query without filters; '' where none is set.
    """

    lines: Sequence[Line]
    told: str
    links: Sequence[tuple[str, str]]
    filters: Sequence[tuple[str, Sequence[Choice]]]
    search: str
    task: str
    kept: Mapping[str, object]
    clear: str


def read_listing(visit: AdminVisit, query: Mapping[str, str]) -> Listing:
    """Return the entries that a query asks for.

    Raises:
        StoreUnavailable, StoreRefused, StoreCorrupt.
    """
    view = View.of({**query, "match": query.get(SEARCH, ""), "sort": ""})
    problem = view.wanted.problem()
    lines: Sequence[Line] = ()
    links: Sequence[tuple[str, str]] = ()
    if problem is not None:
        told = problem
    elif view.wanted:
        lines, told, links = _found(visit, view)
    else:
        lines, told, links = _page(visit, view)
    kept = {name: value for name, value in view.query().items() if name not in ("match", "task")}
    return Listing(
        lines,
        told,
        links,
        [
            ("state", _choices(view, "state", [*STATES])),
            ("last outcome", _choices(view, "outcome", [*OUTCOMES, NO_RUNS])),
        ],
        view.wanted.match,
        view.wanted.task,
        kept,
        "?" if view.wanted else "",
    )


def _page(visit: AdminVisit, view: View) -> tuple[list[Line], str, list[tuple[str, str]]]:
    order = ByNextRun(visit.app)
    count, offset = order.count(), view.offset
    if offset >= count:  # there were more before
        offset = max(count - 1, 0) // ROWS * ROWS
    rows = order.slice(offset, ROWS)
    end = offset + len(rows)
    places = {
        "First": 0 if offset else None,
        "Previous": max(offset - ROWS, 0) if offset else None,
        "Next": end if end < count else None,
        "Last": (count - 1) // ROWS * ROWS if end < count else None,
    }
    links = [(title, _query(view.query(offset=at))) for title, at in places.items() if at is not None]
    told = f"{offset + 1:,} to {end:,} of {count:,}, by the next run." if rows else "There are no entries."
    return _lines(visit, read_rows(visit.app, rows)), told, links


def _found(visit: AdminVisit, view: View) -> tuple[list[Line], str, list[tuple[str, str]]]:
    found = search(
        visit.app,
        ByNextRun(visit.app),
        view.wanted,
        view.place,
        limit=ROWS,
        seconds=SEARCH_SECONDS,
        queue_of=Queues(visit.app).of,
    )
    links = []
    if view.after or view.offset:
        links.append(("From the beginning", _query(view.query())))
    told = f"{len(found.entries):,} found among {found.total:,}, by the next run."
    if found.place is not None:
        links.append(("Look further", _query(view.query_from(found.place))))
        among = f"the first {found.seen:,} of {found.total:,}"
        told = f"{len(found.entries):,} found among {among}, by the next run."
    return _lines(visit, found.entries), told, links


def _choices(view: View, field: str, values: Sequence[str]) -> list[Choice]:
    chosen = getattr(view.wanted, field)

    def choice(title: str, value: str) -> Choice:
        wanted: Any = {field: value}
        return Choice(
            title, _query(replace(view, wanted=replace(view.wanted, **wanted)).query()), value == chosen
        )

    return [choice("All", ""), *(choice(value, value) for value in values)]


def _query(given: Mapping[str, object]) -> str:
    """Return a query as it stands in an address, with the search box's name as the admin has it."""
    named = {SEARCH if name == "match" else name: value for name, value in given.items()}
    return f"?{urlencode(named, errors='replace')}"


def _lines(visit: AdminVisit, read: Sequence[RedBeatSchedulerEntry | None]) -> list[Line]:
    entries = [entry for entry in read if entry is not None]
    lasts = read_last(visit.app, [entry.key for entry in entries])
    return [
        _line(visit, entry, last.outcome or "", last.failures or 0)
        for entry, last in zip(entries, lasts, strict=True)
    ]


def _line(visit: AdminVisit, entry: RedBeatSchedulerEntry, outcome: str, failures: int) -> Line:
    name, state = str(entry.name), entry.state or ""
    due, due_in = next_run_in_words(entry, visit.zone, visit.now)
    return Line(
        name=one_line(name, 120),
        part=part_for(name),
        task=one_line(entry.task or "", 120),
        words=one_line(description_of(entry, visit.zone)),
        due=due,
        due_in=due_in,
        is_enabled=not entry.problem and entry.is_enabled_at(visit.now),
        state=state,
        about_state=STATES.get(state, ""),
        note=note_on(visit.app, entry, visit.zone),
        outcome=f"{outcome}, {failures} failed in a row" if failures > 1 else outcome,
    )
