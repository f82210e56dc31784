"""Shapes of messages: what the messages of many entries have in common, and a message of one of them.

A shape is made from the message that Celery and kombu made of its first entry. Invariant: whatever it returns
for the values of a message that it was compared with, is that message.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from redbeat.broker.holes import DELIVERY_TAG, Call, CallHole, RunHole, Values
from redbeat.broker.producer import Declaration
from redbeat.broker.template import Path, Template, find, find_difference, has, name_of
from redbeat.store.records import Push

#: what a dropped shape still has: runs of this batch may be on their way already
_OF_DROPPED = {"is_dropped", "declarations", "on_call"}


class DifferenceError(Exception):
    """What would be compiled differs from what Celery makes. Its text names the field."""


class Shape:
    """What the messages of many entries have in common.

    Arguments:
        key: tells it from others.
        call: its first entry.
        pushes: what Celery and kombu have made of a run of this entry, its message first.
        values: of this run.
        of_run, of_call: the holes of the message.

    Attributes:
        first: tells the first entry from others; None: a second one was compared, too.
        check: raises TypeError if args and kwargs don't fit the task's; None: they aren't checked.
        declarations: what is declared before one of these messages is pushed.
        on_call: called with the task id of each run that is sent; None: nothing is.
        expires_seconds: how long after they are sent its messages expire by an option; None: that isn't so.
        is_traced: its messages carry what their runs' spans are known by.
        exchange, routing_key: what its messages are sent with.
        destination: the name of their queue.
        ground: what it rests on, as ``read_ground`` returned it then.
        batch, bindings: when the ground was compared last.
        is_dropped: what it rests on has changed, or the second entry's message differs.

    Raises:
        DifferenceError: the message isn't as the holes say.
    """

    check: Callable[..., Any] | None = None
    declarations: tuple[Declaration, ...] = ()
    on_call: Callable[[str], Any] | None = None
    expires_seconds: float | None = None
    ground: Any = ()
    read_ground: Callable[[], Any]
    batch = bindings = 0
    is_dropped = False
    is_traced = False
    destination = ""

    def __init__(
        self,
        key: Hashable,
        call: Call,
        pushes: Sequence[Push],
        values: Values,
        of_run: Sequence[RunHole],
        of_call: Sequence[CallHole],
    ) -> None:
        self.key = key
        self.first: int | None = None
        message, *pexpires = pushes
        self.queue, self._pexpires = message.queue, tuple(pexpires)
        text = str(message.value)
        document = json.loads(text)
        texts = [(path, hole.text(call)) for hole in of_call for path in [hole.path]]
        for hole, value in zip(of_run, _texts_of_run(of_run, values, document), strict=True):
            texts += [(path, value) for path in hole.paths]
        for path, value in texts:
            if not has(document, path) or json.dumps(find(document, path)) != value:
                raise DifferenceError(f"Celery writes something unexpected as {name_of(path)}")
        places: dict[Path, int] = {}
        for position, hole in enumerate(of_run):
            places |= dict.fromkeys(hole.paths, position)
        for position, of_entry in enumerate(of_call, start=len(of_run)):
            places[of_entry.path] = position
        try:
            self._template = Template(text, places)
        except ValueError as exc:
            raise DifferenceError(f"kombu writes another kind of JSON ({exc})") from exc
        self._of_run = tuple(of_run)
        self._run_texts = tuple([hole.text for hole in of_run])
        self._call_texts = tuple([of_entry.text for of_entry in of_call])
        self.first = hash(tuple([text(call) for text in self._call_texts]))
        delivery = document["properties"]["delivery_info"]
        self.exchange, self.routing_key = delivery["exchange"], delivery["routing_key"]

    @property
    def size_bytes(self) -> int:
        """How much memory its texts take."""
        return self._template.size_bytes

    def drop(self) -> None:
        """Note that its messages, which may be kept for long, aren't used any more: forget its texts."""
        self.is_dropped = True
        for name in vars(self).keys() - _OF_DROPPED:
            delattr(self, name)

    def compile(self, call: Call) -> Message:
        """Return the message of ``call``, which is of this shape.

        Raises:
            Exception: its arguments don't fit the task's, or can't be encoded.
        """
        if self.check is not None:
            self.check(*call.args, **call.kwargs)
        return Message(self, tuple([text(call) for text in self._call_texts]))

    def fill(self, own: tuple[str, ...], values: Values, delivery_tag: str) -> tuple[Push, ...]:
        """Return the list writes of a run; ``own``: the JSON of what is its entry's."""
        texts = tuple([text(values, delivery_tag) for text in self._run_texts])
        return (Push("lpush", self.queue, self._template.fill(texts + own)), *self._pexpires)

    def compare(self, own: tuple[str, ...], values: Values, pushes: Sequence[Push]) -> None:
        """Compare what is compiled with ``pushes``: what Celery and kombu have made of a run with ``values``.

        Raises:
            DifferenceError: they aren't equal.
        """
        text = str(pushes[0].value)
        document = json.loads(text)
        compiled = self._template.fill((*_texts_of_run(self._of_run, values, document), *own))
        if compiled != text:
            path = find_difference(json.loads(compiled), document)
            where = "the way it writes JSON" if path is None else name_of(path)
            raise DifferenceError(f"Celery makes another {where} from run to run, or from entry to entry")
        if list(pushes) != [Push("lpush", self.queue, text), *self._pexpires]:
            raise DifferenceError("kombu writes to another queue from run to run, or from entry to entry")


class Message:
    """The message of one entry; ``shape`` is what it shares with others."""

    __slots__ = ("_own", "shape")

    def __init__(self, shape: Shape, own: tuple[str, ...]) -> None:
        self.shape = shape
        self._own = own

    @property
    def size_bytes(self) -> int:
        """How much memory it takes, without what it shares with others of its shape."""
        return sys.getsizeof(self) + sys.getsizeof(self._own) + sum(map(sys.getsizeof, self._own))

    @property
    def on_call(self) -> Callable[[str], Any] | None:
        """What is to be called with the task id of each run that is sent; None: nothing is."""
        return self.shape.on_call

    @property
    def expires_seconds(self) -> float | None:
        """How long after it is sent it expires by an option; None: that isn't so."""
        return self.shape.expires_seconds

    def is_unproved(self) -> bool:
        """Tell whether it is the first that is made for another entry than its shape's first one."""
        return self.shape.first is not None and self.shape.first != hash(self._own)

    def pushes(self, values: Values, delivery_tag: str) -> tuple[Push, ...]:
        """Return the list writes of one run, its message first; ``delivery_tag``: a new UUID."""
        return self.shape.fill(self._own, values, delivery_tag)

    def compare(self, values: Values, pushes: Sequence[Push]) -> None:
        """Compare it with ``pushes``, as of :meth:`Shape.compare`."""
        self.shape.compare(self._own, values, pushes)


def _texts_of_run(holes: Sequence[RunHole], values: Values, document: Any) -> tuple[str, ...]:
    """Return the JSON of the values of a run, as of its message, which is ``document``."""
    tag = str(find(document, DELIVERY_TAG))
    texts = []
    for hole in holes:
        found = json.dumps(find(document, hole.paths[0])) if has(document, hole.paths[0]) else ""
        is_found = hole.accepts is not None and hole.accepts(found)
        texts.append(found if is_found else hole.text(values, tag))
    return tuple(texts)
