"""Where the runs of all entries go: how many to each queue or exchange, and which rules say so.

Invariant: nothing is sent, and it takes no longer than it may.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from celery.app.routes import MapRoute

from redbeat.declared.modules import load_tasks
from redbeat.diagnostics.routes import Route, find_route, in_words
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.query import Coverage, scan_entries
from redbeat.entries.wording import one_line
from redbeat.errors import ConfigurationError, RedBeatError
from redbeat.store.members import count_members
from redbeat.store.store import Store

#: how many names and how many rules are kept of a destination, and how many destinations
NAMES, RULES, MAX_DESTINATIONS = 20, 5, 1000
#: how often it is told what was found so far, in entries
TOLD_EVERY = 200
#: how many routes are remembered
MAX_REMEMBERED = 10_000


@dataclass
class Destination:
    """Where runs of some entries go.

    Attributes:
        where: in words, as the end of 'it goes to'.
        queues: the names of the queues; none, where only the broker knows them.
        problem: why there is no route; '': there is one.
        count: how many entries there are.
        names: of the first ones.
        rules: which rules have decided, and for how many entries.
    """

    where: str
    queues: Sequence[str] = ()
    problem: str = ""
    count: int = 0
    names: list[str] = field(default_factory=list)
    rules: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Survey(Coverage):
    """Where the runs of entries go, as far as they were looked at.

    Attributes:
        destinations: those of most entries first, and those without a route before them.
        seen: how many entries were looked at.
        total: how many there are.
        unusable: how many of those can't be used.
        more: how many go elsewhere, which isn't listed.
        workers: how many workers take from each queue; None: they weren't asked.
        answered: how many workers have answered.
        problem: why they couldn't be asked; '': they could.
    """

    destinations: Sequence[Destination] = ()
    seen: int = 0
    total: int = 0
    unusable: int = 0
    more: int = 0
    workers: Mapping[str, int] | None = None
    answered: int = 0
    problem: str = ""


def survey_routes(
    app: Any,
    *,
    workers_seconds: float | None = None,
    max_seconds: float,
    tell: Callable[[Survey], object] = lambda _found: None,
) -> Survey:
    """Return where the runs of all entries go, as far as that can be found out in this time.

    Arguments:
        workers_seconds: how long to wait for workers to say which queues they take from; None: don't ask.
        tell: is called with what is found so far.

    Raises:
        ConfigurationError: the modules with the tasks of ``app`` can't be imported.
        StoreUnavailable, StoreRefused, StoreCorrupt.
    """
    deadline = time.monotonic() + max_seconds
    try:
        load_tasks(app)
    except Exception as exc:
        raise ConfigurationError(f"Its tasks can't be imported: {one_line(repr(exc))}") from exc
    book, total = _Book(app), count_members(Store(app))
    seen = unusable = 0
    is_over = True
    for entry in scan_entries(RedBeatSchedulerEntry, app):
        seen += 1
        if entry.problem:
            unusable += 1
        else:
            book.add(entry)
        if seen % TOLD_EVERY == 0:
            tell(Survey(book.destinations(), seen, total, unusable, book.more))
            if time.monotonic() >= deadline:
                is_over = False
                break
    found = Survey(book.destinations(), seen, seen if is_over else max(total, seen + 1), unusable, book.more)
    return found if workers_seconds is None else _with_workers(app, found, workers_seconds)


class _Book:
    """The destinations, and what is known of how entries get there."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._found: dict[Any, Destination] = {}
        self._routes: dict[str, Route] = {}
        # a function may look at the arguments of each call
        self._is_simple = all(isinstance(router, MapRoute) for router in app.amqp.router.routes)
        self.more = 0

    def add(self, entry: RedBeatSchedulerEntry) -> None:
        """Add an entry to its destination."""
        try:
            route = self._route_of(entry)
        except Exception as exc:  # noqa: BLE001 - the application's own routers, and queues it doesn't have
            problem = one_line(exc if isinstance(exc, RedBeatError) else repr(exc))
            key: Any = problem
            made, rule = Destination("nowhere", problem=problem), ""
        else:
            key = (route.queues, route.exchange, route.exchange_type)
            made = Destination(in_words(route), route.queues)
            rules = (route.rules.get(part) for part in ("queue", "exchange", "routing_key"))
            rule = next(filter(None, rules), "")
        if key not in self._found and len(self._found) >= MAX_DESTINATIONS:
            self.more += 1
            return
        found = self._found.setdefault(key, made)
        found.count += 1
        if len(found.names) < NAMES:
            found.names.append(str(entry.name))
        if rule and (rule in found.rules or len(found.rules) < RULES):
            found.rules[rule] += 1

    def _route_of(self, entry: RedBeatSchedulerEntry) -> Route:
        task, options = str(entry.task), entry.options or {}
        known = json.dumps([task, options], sort_keys=True, default=repr) if self._is_simple else ""
        route = self._routes.get(known) if known else None
        if route is None:
            route = find_route(self._app, task, entry.args or (), entry.kwargs or {}, options)
            if known and len(self._routes) < MAX_REMEMBERED:
                self._routes[known] = route
        return route

    def destinations(self) -> list[Destination]:
        """Return them, those without a route first, then those of most entries."""
        return sorted(self._found.values(), key=lambda one: (not one.problem, -one.count, one.where))


def _with_workers(app: Any, found: Survey, seconds: float) -> Survey:
    """Return what was found, and how many workers take from each queue."""
    values = {**vars(found)}
    try:
        replies = app.control.inspect(timeout=seconds).active_queues() or {}
    except Exception as exc:  # noqa: BLE001 - whatever the broker's transport raises
        return Survey(**{**values, "problem": f"The workers can't be asked: {one_line(repr(exc))}"})
    taken = Counter(str(queue["name"]) for queues in replies.values() for queue in queues or ())
    return Survey(**{**values, "workers": taken, "answered": len(replies)})
