"""The names of a task's positional arguments, where this process has the task.

Invariant: asking for them raises nothing, whatever the application's own code does.
"""

from __future__ import annotations

import inspect
import threading
from typing import Any, NamedTuple
from weakref import WeakSet

from redbeat.declared.collection import load_tasks
from redbeat.log.logger import web_logger as logger


class Parameters(NamedTuple):
    """What positional arguments are called.

    Attributes:
        names: of the first ones, in order.
        rest: of all that follow, which ``*rest`` takes; '': there are none.
    """

    names: tuple[str, ...] = ()
    rest: str = ""

    def name_at(self, place: int) -> str:
        """Return the name of the argument at this place, counted from 0; '': it isn't known."""
        return self.names[place] if place < len(self.names) else self.rest


UNKNOWN = Parameters()

#: the applications whose modules were imported, or couldn't be: that takes long, and is tried once
_TRIED: WeakSet[Any] = WeakSet()
_LOCK = threading.Lock()


def parameters_of(app: Any, task: str) -> Parameters:
    """Return what the positional arguments of a task are called; ``UNKNOWN``: the app doesn't have it."""
    _load_once(app)
    try:
        known = app.tasks.get(task)
        # a bound task gets itself first, which a bound method's signature doesn't have
        given = () if known is None else inspect.signature(known.run).parameters.values()
    except Exception as exc:  # noqa: BLE001 - the application's own code
        logger.debug("The arguments of %s aren't known: %r", task, exc)
        return UNKNOWN
    names = [one.name for one in given if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    rest = next((one.name for one in given if one.kind is one.VAR_POSITIONAL), "")
    return Parameters(tuple(names), rest)


def _load_once(app: Any) -> None:
    with _LOCK:  # who comes second waits, as nothing is hidden before the tasks are there
        if app in _TRIED:
            return
        try:
            load_tasks(app)
        except Exception as exc:  # noqa: BLE001 - the application's own code
            logger.warning("web: tasks can't be imported, so their arguments have no names: %r", exc)
        _TRIED.add(app)
