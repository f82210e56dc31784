"""Which labels runs are counted under: task, queue and entry, as long as there aren't too many.

An entry has labels of its own if its policy asks for it (``metrics``), or if it is among the first that have
run; all others share those of their task and queue, as the entry ``other``. With
``redbeat_metrics_entries = 0`` no entry has labels of its own. Invariant: the number of labels is bounded.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Container, Mapping
from typing import Any

from redbeat.log.logger import logger
from redbeat.log.text import is_utf8
from redbeat.process.memory import Memory
from redbeat.process.signals import let_through
from redbeat.store.figures import ALL_OTHERS, OTHER, Labels

#: how many entries that ask for it have labels of their own at most
MAX_ASKED = 1000
#: how many pairs of a task and a queue all other entries have at most
MAX_PAIRS = 100
#: a longer name of a task, a queue or an entry isn't a label; the second one if an entry's policy asks for it
MAX_NAME, MAX_ASKED_NAME = 100, 1000

#: the options of a task that say which queue it goes to
ROUTING = ("queue", "exchange", "routing_key")


class LabelBook:
    """The labels of one schedule, as one beat knows them.

    It belongs to the thread of the tick; others read ``known``, and take from ``unsaved``.

    Arguments:
        queue_of: returns the queue of a task with these options.
        max_entries: how many entries have labels of their own that don't ask for it. 0: no entry has, also
            one that asks.

    Attributes:
        known: all labels by their ids.
        unsaved: those that aren't stored yet, with their ids.
        version: changes when labels are given to other entries.
    """

    def __init__(self, queue_of: Callable[[str, Mapping[str, Any]], str], max_entries: int) -> None:
        self._queue_of = queue_of
        self._queues = Memory[Any, str]()
        self._room = {
            "asked": MAX_ASKED,
            "unasked": max_entries,
            "pair": MAX_PAIRS + 1,
        }  # and one of all others
        self._max_entries = max_entries
        self.unsaved: deque[tuple[str, Labels]] = deque()
        self.known: dict[str, Labels] = {}
        self.version = 0
        self.load({})

    def load(self, found: Mapping[str, Labels], *, keeps_known: bool = False) -> None:
        """Know the labels that are stored, besides those that are to be stored.

        Arguments:
            keeps_known: and those that are known: these ones are of another shard.
        """
        before = self.known if keeps_known else {"": ALL_OTHERS}
        self._know({**before, **found, **dict(self.unsaved.copy())})

    def forget(self, ids: Container[str]) -> None:
        """Forget labels, as their entries are gone: others may have them."""
        self._know({id_: labels for id_, labels in self.known.items() if id_ not in ids})

    def _know(self, known: dict[str, Labels]) -> None:
        self.known = known
        self._of_entry = {one.entry: one for one in known.values() if one.entry != OTHER}
        self._counts = Counter(map(_kind_of, known.values()))
        self.version += 1

    def id_of(self, name: str, task: str, options: Mapping[str, Any], *, is_asked: bool) -> str:
        """Return the id of the labels of an entry's runs; '' for the labels that all others share.

        Arguments:
            options: the entry's own.
            is_asked: its policy asks for labels of its own.
        """
        queue = self._find_queue(task, options)
        own, pair = Labels(task, queue, name, is_asked), Labels(task, queue, OTHER)
        if self._max_entries and name != OTHER:
            if name in self._of_entry:
                self._of_entry[name] = own  # labels of another task or queue are obsolete from now on
            if self._has(own, is_fit=len(name) <= (MAX_ASKED_NAME if is_asked else MAX_NAME)):
                return own.id
        is_fit = max(len(task), len(queue)) <= MAX_NAME and pair[:2] != ALL_OTHERS[:2]
        return pair.id if self._has(pair, is_fit=is_fit) else ""

    def _has(self, labels: Labels, *, is_fit: bool) -> bool:
        """Return True if these labels are known, or could be added."""
        if not is_utf8("".join(labels[:3])):
            return False
        if labels.id in self.known:
            return True
        kind = _kind_of(labels)
        if not is_fit or self._counts[kind] >= self._room[kind]:
            return False
        self._counts[kind] += 1
        self.known[labels.id] = labels
        self.unsaved.append((labels.id, labels))
        if labels.entry != OTHER:
            self._of_entry[labels.entry] = labels
        return True

    def _find_queue(self, task: str, options: Mapping[str, Any]) -> str:
        route = (task, *[str(options.get(name)) for name in ROUTING]) if options else (task,)
        queue = self._queues.get(route)
        if queue is None:
            queue = self._queues[route] = self._queue_of(task, options)
        return queue

    def is_current(self, labels: Labels) -> bool:
        """Return False if these labels of an entry are obsolete: its task, queue or the setting changed."""
        return bool(self._max_entries) and self._of_entry.get(labels.entry, labels)[:3] == labels[:3]


def _kind_of(labels: Labels) -> str:
    if labels.entry == OTHER:
        return "pair"
    return "asked" if labels.is_asked else "unasked"


def queue_finder(app: Any) -> Callable[[str, Mapping[str, Any]], str]:
    """Return a function that finds the queue of a task with these options, by its name; '': not known."""

    def queue_of(task: str, options: Mapping[str, Any]) -> str:
        try:
            known = app.tasks.get(task)
            given = {**(known._get_exec_options() if known is not None else {}), **options}  # noqa: SLF001 - Celery's own way
            route = app.amqp.router.route(dict(given), task)
            queue = route.get("queue")
            name = getattr(queue, "name", queue) or route.get("routing_key") or app.conf.task_default_queue
            return str(name or "")
        except BaseException as exc:  # noqa: BLE001 - the application's routers may raise anything
            let_through(exc)
            logger.debug("beat: The queue of %s isn't known for metrics: %r", task, exc)
            return ""

    return queue_of
