"""Where the messages of runs go, by which rule, and whether they are compiled.

Celery decides about the route, by ``task_routes``, the options of the call and the attributes of the task;
this module asks it. What it says of compiled messages is judged by this program's code, which may be another
than beat's.
Invariant: nothing is sent or declared, and no code of the application's is called but its routes.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from celery.app.routes import MapRoute, Router
from celery.exceptions import QueueNotFound
from celery.utils.imports import load_extension_class_names
from kombu.common import Broadcast
from kombu.transport.virtual.exchange import STANDARD_EXCHANGE_TYPES
from kombu.utils.imports import symbol_by_name

from redbeat.config.suggestions import did_you_mean
from redbeat.declared.collection import load_tasks
from redbeat.delivery import guard
from redbeat.delivery.placeholders import Call, kind_of
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.query import Coverage
from redbeat.entries.saving import is_missing
from redbeat.entries.search import read_listed, scan_entries
from redbeat.entries.wording import one_line
from redbeat.errors import ConfigurationError, EntryCorrupt, EntryError, EntryNotFound, RedBeatError
from redbeat.log.logger import logger
from redbeat.log.text import joined
from redbeat.scheduler.encoder import why_no_template
from redbeat.schedulers import RedBeatScheduler
from redbeat.store.members import count_members
from redbeat.store.store import Store

_EXCHANGE_TYPES: Mapping[str, Any] = STANDARD_EXCHANGE_TYPES
_FIELDS = ("queue", "exchange", "exchange_type", "routing_key", "priority")
#: how many entries a destination names, and how many destinations are listed
NAMES, MAX_DESTINATIONS = 4, 1000
#: how often a survey reports what it has found so far, in entries
REPORTED_EVERY = 200


@dataclass(frozen=True)
class Route:
    """Where a message goes.

    Attributes:
        queues: the names of the app's queues that it reaches; a broker may know more.
        declared: the queue that Celery declares before, which may be none of these; None: none, as for a
            Broadcast.
        exchange: the exchange to which it is published; '': the broker's default one, which sends it to the
            queue named by the routing key.
        exchange_type: 'direct', 'topic', 'fanout', 'headers', or a type of the broker's.
        routing_key: the routing key with which it is published.
        priority: its priority; None: it has none.
        rules: each of these to the rule that has decided it, in words.
    """

    queues: tuple[str, ...]
    declared: str | None
    exchange: str
    exchange_type: str
    routing_key: str
    priority: int | None
    rules: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Destination:
    """Where the runs of an entry go, or a call of a task.

    Attributes:
        name: what was asked about.
        task: the name of the task.
        is_entry: an entry is called so; else it was taken for the name of a task.
        is_task_known: the app has this task.
    """

    name: str
    task: str
    is_entry: bool
    is_task_known: bool
    route: Route

    def to_dict(self) -> dict[str, Any]:
        """Return it as a dict of plain JSON."""
        about = {"name": self.name, "task": self.task, "is_task_known": self.is_task_known}
        return {**about, **asdict(self.route)}


def find_destination(app: Any, name: str, tried: Mapping[str, Any]) -> Destination:
    """Return where the runs of the entry ``name`` go; if there is none, a call of the task ``name``.

    The modules with the tasks of ``app`` are imported.

    Arguments:
        tried: options that replace the entry's.

    Raises:
        ConfigurationError: they can't be imported, or the routes of the application don't know.
        EntryError: the entry is invalid, or its options are.
    """
    _load_tasks(app)
    try:
        entry: Any = read_listed(app, name)
    except EntryNotFound:
        entry = None
    if entry is None:
        return find_destination_of_task(app, name, tried)
    if entry.problem:
        raise EntryCorrupt(f"{one_line(name)} is invalid: {one_line(entry.problem)}", entry.key)
    options = {**(entry.options or {}), **tried}
    return _destination(app, entry.task, entry.args or [], entry.kwargs or {}, options, name)


def find_destination_of_task(app: Any, task: str, tried: Mapping[str, Any]) -> Destination:
    """Return where a call of a task goes; see :func:`find_destination`."""
    _load_tasks(app)
    return _destination(app, task, (), {}, tried, None)


def _destination(
    app: Any, task: str, args: Any, kwargs: Any, options: Mapping[str, Any], entry: str | None
) -> Destination:
    try:
        route = find_route(app, task, args, kwargs, options)
    except RedBeatError:
        raise
    except Exception as exc:
        words = f"{one_line(task)} goes: {one_line(repr(exc))}"
        raise ConfigurationError(f"The application's routes don't know where {words}") from exc
    return Destination(entry or task, task, entry is not None, task in app.tasks, route)


def _load_tasks(app: Any) -> None:
    try:
        load_tasks(app)
    except Exception as exc:
        raise ConfigurationError(f"Its tasks can't be imported: {one_line(repr(exc))}") from exc


def hint_at_nothing(app: Any, task: str) -> str:
    """Return the warning about a name that is neither an entry's nor a task's."""
    return (
        "There is no such entry, and the application has no such task: it is taken for one that is sent by "
        f"its name.{did_you_mean(task, app.tasks)}"
    )


def in_words(found: Route) -> str:
    """Return where a message goes, as the end of a sentence."""
    if found.queues:
        names = " and ".join(one_line(queue) for queue in found.queues)
        return f"the queue {names}" if len(found.queues) == 1 else f"the queues {names}"
    if found.exchange_type == "fanout":
        return f"all workers that listen to the exchange {one_line(found.exchange)}"
    if found.exchange_type == "headers":
        return f"the headers exchange {one_line(found.exchange)}, which goes by the message's headers"
    return (
        f"the {one_line(found.exchange_type)} exchange {one_line(found.exchange)}; the application knows no "
        f"queue that is bound there with {one_line(found.routing_key)!r}"
    )


def parts_of(found: Route) -> list[tuple[str, object, str]]:
    """Return each part of a route that a rule has decided: what it is, its value, and the rule."""
    values = {
        "queue": found.declared or found.exchange,
        "exchange": found.exchange or "the broker's own",
        "exchange_type": found.exchange_type,
        "routing_key": found.routing_key,
        "priority": found.priority,
    }
    return [
        (field.replace("_", " "), value, found.rules[field])
        for field, value in values.items()
        if field in found.rules
    ]


def find_route(
    app: Any, task: str, args: Sequence[Any], kwargs: Mapping[str, Any], options: Mapping[str, Any]
) -> Route:
    """Return where Celery sends the message of a call of ``task``.

    Arguments:
        options: the entry's; the task's own are added as in Celery, if ``app`` has the task.

    Raises:
        EntryError: one of the options that decide can't be one.
        ConfigurationError: the queue is missing, and Celery may not create it. The application's routes may
            raise anything.
    """
    for name in _FIELDS:
        if isinstance(options.get(name), (Mapping, list, tuple)):
            raise EntryError(f"{one_line(task)}: options: {name} can't be an object or a list.", "")
    known = app.tasks.get(task)
    own = {} if known is None else known._get_exec_options()  # noqa: SLF001 - what its apply_async begins with
    given = {**own, **options}
    routed, rule = _ask_routes(app, task, args, kwargs, given, known)
    answered = Router([lambda *_, **__: dict(routed) or None], app.amqp.queues, app=app)  # asked once only
    try:
        final = answered.route(dict(given), task, args, dict(kwargs), known)
    except QueueNotFound as exc:
        names = (given.get("queue"), routed.get("queue"), app.conf.task_default_queue)
        name = next(str(name) for name in names if is_missing(app, name))
        hint = did_you_mean(name, app.amqp.queues)
        raise ConfigurationError(
            f"There is no queue {name!r} in task_queues, and task_create_missing_queues is off.{hint}",
            "task_queues",
        ) from exc
    rules = {}
    for name in _FIELDS:
        if options.get(name) not in (None, ""):  # Celery ignores an empty one
            rules[name] = f"the option {name}"
        elif own.get(name) not in (None, ""):
            # a task without a priority of its own is given the default one
            is_default = name == "priority" and own[name] == app.conf.task_default_priority
            rules[name] = "task_default_priority" if is_default else f"the attribute {name} of the task"
        elif routed.get(name) not in (None, ""):
            rules[name] = rule
    return _resolve(app, final, rules)


def _ask_routes(
    app: Any,
    task: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any],
    known: Any,
) -> tuple[Mapping[str, Any], str]:
    """Return the answer of the first of ``task_routes`` that knows ``task``, and which of them it is."""
    router, given = app.amqp.router, app.conf.task_routes or ()
    routers = given if isinstance(given, (list, tuple)) else [given]
    for number, (route, written) in enumerate(zip(router.routes, routers, strict=True)):
        found = router.query_router(route, task, args, dict(kwargs), dict(options), known)
        if found is not None:
            where = "task_routes" if len(routers) == 1 else f"task_routes[{number}]"
            shown = f"{where}{_shown(written, task)}"
            # a copy, as Celery removes the queue from the route's own dictionary
            return {"queue": found} if isinstance(found, str) else dict(found), shown
    return {}, ""


def _shown(router: Any, task: str) -> str:
    """Return the part of ``router`` that knows ``task``, in words."""
    if isinstance(router, str):
        return f", {router}"
    if not isinstance(router, (Mapping, list, tuple)):
        name = getattr(router, "__qualname__", None) or type(router).__qualname__
        return f", {router.__module__}.{name}"
    keys = [key for key, _ in (router.items() if isinstance(router, Mapping) else router)]
    if task in keys:
        return f"[{task!r}]"
    patterns = (key for key in keys if isinstance(key, re.Pattern) or "*" in key)
    matching = next(key for key in patterns if MapRoute({key: "any"})(task) is not None)
    return f"[{matching!r}]"


def _resolve(app: Any, options: Mapping[str, Any], rules: dict[str, str]) -> Route:
    """Return the route of ``options`` that Celery's router has returned, as in its ``send_task_message``."""
    exchange, routing_key = options.get("exchange"), options.get("routing_key")
    exchange = getattr(exchange, "name", exchange)
    queue: Any = options.get("queue")
    if queue is None and exchange is None:
        queue = app.amqp.default_queue
    # of a Broadcast each listener has a queue of its own, and none listens to the application's
    declared = None if queue is None or isinstance(queue, Broadcast) else queue.name
    of_queue = f"the queue {declared or getattr(queue, 'alias', None)}"
    kind = options.get("exchange_type")
    if kind is None:
        kind = getattr(getattr(queue, "exchange", None), "type", None) or "direct"
        rules["exchange_type"] = of_queue if queue is not None else "Celery's default"
    if (not exchange or not routing_key) and kind == "direct":
        exchange, routing_key = "", declared
        rules.update(exchange=of_queue, routing_key=of_queue)
    elif exchange is None:
        exchange = queue.exchange.name or app.conf.task_default_exchange
        rules["exchange"] = of_queue
        if not routing_key:
            routing_key = queue.routing_key or app.conf.task_default_routing_key
            rules["routing_key"] = of_queue
    if rules.get("exchange") == of_queue:
        rules.setdefault("queue", "task_default_queue")
    else:
        rules.pop("queue", None)  # it is declared, but doesn't decide
    routing_key = str(routing_key or "")
    queues = tuple(_find_bound(app, queue, exchange, routing_key)) if exchange else (routing_key,)
    return Route(queues, declared, exchange, kind, routing_key, options.get("priority"), rules)


def _find_bound(app: Any, declared: Any, exchange: str, routing_key: str) -> Iterator[str]:
    """Yield the names of the app's queues to which an exchange sends a message with this routing key.

    ``declared``, the queue of the call, may be one of them, also if a router has created it.
    """
    queues = {queue.name: queue for queue in app.amqp.queues.values()}
    if declared is not None:
        queues.setdefault(declared.name, declared)
    for queue in queues.values():
        if isinstance(queue, Broadcast):
            continue
        bound = [one for one in queue.bindings or [queue] if getattr(one.exchange, "name", None) == exchange]
        if any(_matches(one.exchange, one.routing_key, routing_key) for one in bound):
            yield queue.name


def _matches(exchange: Any, binding_key: str, routing_key: str) -> bool:
    """Return True if a binding takes a message, as kombu does it for brokers that don't match themselves."""
    if exchange.type not in _EXCHANGE_TYPES:
        return False  # that one looks at headers, or at whatever
    matcher = _EXCHANGE_TYPES[exchange.type](None)
    row = matcher.prepare_bind("queue", exchange.name, str(binding_key or ""), None)
    return exchange.type == "fanout" or bool(matcher.lookup([row], exchange.name, routing_key, None))


@dataclass
class Group:
    """Entries whose runs go to one destination.

    Attributes:
        where: in words, as the end of 'it goes to'.
        queues: the names of the queues; none, where only the broker knows them.
        problem: why there is no route; '': there is one.
        count: how many entries there are.
        names: of the first ones.
        rules: which rules have decided, and for how many entries.
        is_fanout: each worker that listens has a queue of its own.
    """

    where: str
    queues: Sequence[str] = ()
    problem: str = ""
    is_fanout: bool = False
    count: int = 0
    names: list[str] = field(default_factory=list)
    rules: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Survey(Coverage):
    """Where the runs of entries go, as far as they were looked at.

    Attributes:
        destinations: entries without a route first, then the destinations of most entries.
        unusable: how many entries are invalid.
        more: how many go elsewhere, which isn't listed.
        workers: how many workers take from each queue; None: they weren't asked.
        answered: how many workers have answered.
        problem: why they couldn't be asked; '': they could.
    """

    destinations: Sequence[Group] = ()
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
    _load_tasks(app)
    seen, unusable, total, groups = 0, 0, count_members(Store(app)), Destinations(app)
    for entry in scan_entries(app):
        seen += 1
        if entry.problem:
            unusable += 1
        else:
            groups.add(entry)
        if seen % REPORTED_EVERY == 0:
            tell(Survey(seen=seen, total=total))
            if time.monotonic() >= deadline:
                break
    else:
        total = seen
    listed = list(groups)
    more = sum(one.count for one in listed[MAX_DESTINATIONS:])
    found = Survey(listed[:MAX_DESTINATIONS], seen, total, unusable, more)
    if workers_seconds is None:
        return found
    try:
        workers, answered = ask_workers(app, workers_seconds)
    except Exception as exc:  # noqa: BLE001 - whatever the broker's transport raises
        return replace(found, problem=f"The workers can't be asked: {one_line(repr(exc))}")
    return replace(found, workers=workers, answered=answered)


def ask_workers(app: Any, seconds: float) -> tuple[Mapping[str, int], int]:
    """Return how many workers take from each queue, and how many have answered; the transport may raise."""
    replies = app.control.inspect(timeout=seconds).active_queues() or {}
    return Counter(str(queue["name"]) for queues in replies.values() for queue in queues or ()), len(replies)


class Destinations:
    """The destinations of an app's entries; a route is computed once for equal calls."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._groups: dict[Any, Group] = {}
        self._routes: dict[str, Route] = {}

    def __iter__(self) -> Iterator[Group]:
        """Yield the groups without a route first, then the groups of most entries."""
        groups = self._groups.values()
        return iter(sorted(groups, key=lambda one: (not one.problem, -one.count, one.where)))

    def add(self, entry: RedBeatSchedulerEntry) -> None:
        """Add an entry to the group of its destination."""
        try:
            route = self._route_of(entry)
        except Exception as exc:  # noqa: BLE001 - the application's own routers, and queues it doesn't have
            problem = one_line(exc if isinstance(exc, RedBeatError) else repr(exc))
            group = self._groups.setdefault(problem, Group("nowhere", problem=problem))
        else:
            key = (route.queues, route.exchange, route.exchange_type)
            is_fanout = route.exchange_type == "fanout"
            new = Group(in_words(route), route.queues, is_fanout=is_fanout)
            group = self._groups.setdefault(key, new)
            rule = next(filter(None, map(route.rules.get, ("queue", "exchange", "routing_key"))), "")
            group.rules.update([rule] if rule else [])
        group.count += 1
        if len(group.names) < NAMES:
            group.names.append(str(entry.name))

    def queue_of(self, entry: RedBeatSchedulerEntry) -> str:
        """Return the name of the queue that an entry's runs go to; '' if that isn't known."""
        try:
            route = None if entry.problem else self._route_of(entry)
        except Exception:  # noqa: BLE001 - a route may be any function of the application's
            route = None
        return "" if route is None else next(iter(route.queues), route.declared or "")

    def _route_of(self, entry: RedBeatSchedulerEntry) -> Route:
        task, options = str(entry.task), entry.options or {}
        # a function may look at the arguments of each call
        is_simple = all(isinstance(router, MapRoute) for router in self._app.amqp.router.routes)
        call = repr((task, options)) if is_simple else ""
        if call in self._routes:
            return self._routes[call]
        route = find_route(self._app, task, entry.args or (), entry.kwargs or {}, options)
        if is_simple:
            self._routes[call] = route
        return route


def find_obstacle(app: Any, entry: RedBeatSchedulerEntry) -> str:
    """Return all that keeps messages of ``entry`` from being compiled; '': nothing does.

    The modules with the tasks of ``app`` are imported, and may raise anything. No server is asked.
    """
    load_tasks(app)
    scheduler = scheduler_of(app)
    if not (isinstance(scheduler, type) and issubclass(scheduler, RedBeatScheduler)):
        scheduler = RedBeatScheduler
    args, kwargs, options = list(entry.args or ()), entry.kwargs or {}, entry.options or {}
    kind = kind_of(Call(entry.name, entry.task, args, kwargs, options, entry.policy.expires_after))
    return joined(
        guard.find_obstacle(app, scheduler),
        guard.find_broker_obstacle(app),
        why_no_template(entry),
        guard.find_task_obstacle(app.tasks.get(entry.task)),
        *(kind.split("; ") if isinstance(kind, str) else ()),
    )


def way_of(app: Any, entry: RedBeatSchedulerEntry | None) -> dict[str, Any] | None:
    """Return as plain JSON whether messages of ``entry`` are compiled, and why not; None: not known."""
    if entry is None:
        return None
    try:
        obstacle = find_obstacle(app, entry)
    except Exception as exc:  # noqa: BLE001 - the application's own code
        logger.debug("The way of the messages of %s is unknown: %r", entry.name, exc)
        return None
    return {"compiled": not obstacle, "reason": obstacle or None}


def scheduler_of(app: Any) -> Any:
    """Return what the setting ``beat_scheduler`` names; its module may raise anything."""
    resolve: Any = symbol_by_name
    aliases = dict(load_extension_class_names("celery.beat_schedulers"))
    return resolve(app.conf.beat_scheduler, aliases=aliases)
