"""Which labels runs are counted under: task, queue and entry, as long as there aren't too many.

An entry has labels of its own if its policy asks for it (``metrics``), or if it is among the first that have
run; all others share those of their task and queue, as the entry ``other``. With
``redbeat_metrics_entries = 0`` no entry has labels of its own. Invariant: the number of labels is bounded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Mapping
from typing import Any

from redbeat.log.logger import logger
from redbeat.log.text import is_utf8, printable
from redbeat.process.signals import let_through
from redbeat.store.figures import ALL_OTHERS as ALL_OTHERS
from redbeat.store.figures import OTHER as OTHER
from redbeat.store.figures import Labels

#: how many entries that ask for it have labels of their own at most
MAX_ASKED = 1000
#: how many pairs of a task and a queue all other entries have at most
MAX_PAIRS = 100
#: a longer name of a task, a queue or an entry isn't a label; the second one if an entry's policy asks for it
MAX_NAME, MAX_ASKED_NAME = 100, 1000

#: the options of a task that say which queue it goes to
ROUTING = ("queue", "exchange", "routing_key")

#: for how many ways of routing it is remembered which queue they lead to
MAX_ROUTES = 10_000


#: of an entry whose labels are those of a task or a queue that it had before
_NO_LONGER = ("\0", "\0", "\0")


class LabelBook:
    """The labels of one schedule, as one beat knows them.

    It belongs to the thread of the tick; others read ``known``, and take from ``unsaved``.

    Arguments:
        queue_of: returns the queue of a task with these options.
        max_entries: how many entries have labels of their own that don't ask for it. 0: no entry has, also
            one that asks.
    """

    def __init__(self, queue_of: Callable[[str, Mapping[str, Any]], str], max_entries: int) -> None:
        self._queue_of = queue_of
        self._max_entries = max_entries
        self._ids: dict[tuple[str, str, str], str] = {}
        self._of_entry: dict[str, tuple[str, str, str]] = {}
        self._queues: dict[Any, str] = {}
        self._asked = self._unasked = self._pairs = 0
        self._has_said = False
        #: those that aren't stored yet, with their ids
        self.unsaved: deque[tuple[str, Labels]] = deque()
        #: all by their ids
        self.known: dict[str, Labels] = {"": ALL_OTHERS}
        #: changes when labels are given to other entries
        self.version = 0

    def load(self, found: Mapping[str, Labels]) -> None:
        """Know the labels that are stored, as those that another beat has given."""
        self._ids, self._of_entry = {}, {}
        self._asked = self._unasked = self._pairs = 0
        self.known = {"": ALL_OTHERS}
        for id_, labels in found.items():
            self._know(id_, labels)
        self.version += 1

    def learn(self, found: Mapping[str, Labels]) -> None:
        """Know these labels, too: another beat has given them in a part that this one leads from now on."""
        for id_, labels in found.items():
            self._know(id_, labels)
        self.version += 1

    def id_of(self, name: str, task: str, options: Mapping[str, Any], *, is_asked: bool) -> str:
        """Return the id of the labels of an entry's runs; '': they are all others'.

        Arguments:
            options: the entry's own.
            is_asked: its policy asks for labels of its own.
        """
        queue = self._find_queue(task, options)
        if not self._max_entries:
            return self._give_pair(task, queue)
        key = self._of_entry.get(name)
        if key is not None and key is not _NO_LONGER and key[:2] == (task, queue):
            return self._ids[key]
        most = MAX_ASKED_NAME if is_asked else MAX_NAME
        is_fit = name != OTHER and len(name) <= most and is_utf8(name + task + queue)
        has_room = self._asked < MAX_ASKED if is_asked else self._unasked < self._max_entries
        if is_asked and not has_room and not self._has_said:
            self._has_said = True
            logger.warning(
                "beat: More than %d entries ask for metrics of their own; %s, and those after it, are "
                "counted under 'other'.",
                MAX_ASKED,
                printable(name),
            )
        if has_room and is_fit:
            return self._give(Labels(task, queue, name, is_asked))
        if key is not None:  # its task or queue is another one now, and the old labels will be free
            self._of_entry[name] = _NO_LONGER
        return self._give_pair(task, queue)

    def _give_pair(self, task: str, queue: str) -> str:
        id_ = self._ids.get((task, queue, OTHER))
        if id_ is not None:
            return id_
        is_unfit = len(task) > MAX_NAME or len(queue) > MAX_NAME or not is_utf8(task + queue)
        if self._pairs >= MAX_PAIRS or is_unfit or (task, queue) == ALL_OTHERS[:2]:
            return ""
        return self._give(Labels(task, queue, OTHER))

    def _give(self, labels: Labels) -> str:
        id_ = labels.id
        self.unsaved.append((id_, labels))
        self._know(id_, labels)
        return id_

    def _know(self, id_: str, labels: Labels) -> None:
        if id_ in self.known:
            return
        if labels.entry == OTHER:
            self._pairs += 1
        elif labels.is_asked:
            self._asked += 1
        else:
            self._unasked += 1
        key = labels.task, labels.queue, labels.entry
        self._ids[key] = id_
        self.known[id_] = labels
        if labels.entry != OTHER:
            self._of_entry[labels.entry] = key

    def _find_queue(self, task: str, options: Mapping[str, Any]) -> str:
        route = (task, *[str(options.get(name)) for name in ROUTING]) if options else (task,)
        queue = self._queues.get(route)
        if queue is None:
            if len(self._queues) >= MAX_ROUTES:
                self._queues.clear()
            queue = self._queues[route] = self._queue_of(task, options)
        return queue

    def is_current(self, labels: Labels) -> bool:
        """Return False if these labels of an entry are obsolete: its task, queue or the setting changed."""
        if not self._max_entries:
            return False
        key = self._of_entry.get(labels.entry)
        return key is None or key == labels[:3]

    def forget(self, ids: Container[str]) -> None:
        """Forget labels, as their entries are gone: others may have them."""
        self.load({id_: labels for id_, labels in self.known.items() if id_ and id_ not in ids})


def queue_finder(app: Any) -> Callable[[str, Mapping[str, Any]], str]:
    """Return what finds the queue that an app sends a task to, by its name; '' where that isn't known."""

    def queue_of(task: str, options: Mapping[str, Any]) -> str:
        try:
            known = app.tasks.get(task)
            given = {**(known._get_exec_options() if known is not None else {}), **options}  # noqa: SLF001 - Celery's own way
            route = app.amqp.router.route(dict(given), task)
            queue = route.get("queue")
            name = getattr(queue, "name", queue) or route.get("routing_key") or app.conf.task_default_queue
            return str(name or "")
        except BaseException as exc:  # noqa: BLE001 - routers may be anybody's
            let_through(exc)
            logger.debug("beat: The queue of %s isn't known for metrics: %r", task, exc)
            return ""

    return queue_of
