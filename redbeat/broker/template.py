"""JSON text with holes: what differs from message to message is filled in, the rest stays as it was written.

Invariant: filled with the values of the text that it was made from, a template returns that text.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from operator import itemgetter
from sys import getsizeof
from typing import Any

#: where a value stands in JSON: the keys and positions that lead to it
Path = tuple[str | int, ...]


class Template:
    """One text with holes.

    Arguments:
        text: a JSON object.
        holes: where the holes are, and which value is filled in there: its position among those that
            ``fill`` takes. A value may be filled in at several places.

    Raises:
        ValueError: ``text`` isn't what ``json.dumps`` writes, or has no holes.
        LookupError: ``text`` has nothing at one of the places.
    """

    def __init__(self, text: str, holes: Mapping[Path, int]) -> None:
        document = json.loads(text)
        if json.dumps(document) != text:
            raise ValueError("the text isn't written as json.dumps() writes it")
        mark = uuid.uuid4().hex
        for path, position in holes.items():
            *before, last = path
            place = find(document, tuple(before))
            if not has(place, (last,)):
                raise LookupError(f"there is no {name_of(path)}")
            place[last] = f"{mark}{position}{mark}"
        # constant, position, constant, position, ..., constant
        parts = json.dumps(document).replace(f'"{mark}', mark).replace(f'{mark}"', mark).split(mark)
        if len(parts) < 5:
            raise ValueError("the text has fewer than two holes")
        self._constants = tuple(parts[::2])
        count = 1 + max(holes.values())
        order = [count]
        for number, digits in enumerate(parts[1::2], start=1):
            order += [int(digits), count + number]
        self._arrange = itemgetter(*order)

    @property
    def size_bytes(self) -> int:
        """How much memory its texts take."""
        return sum(map(getsizeof, self._constants))

    def fill(self, values: tuple[str, ...]) -> str:
        """Return the text with ``values``, which are JSON themselves, in its holes."""
        return "".join(self._arrange(values + self._constants))


def find(document: Any, path: Path) -> Any:
    """Return what stands at ``path``; raises LookupError or TypeError if nothing does."""
    for step in path:
        document = document[step]
    return document


def has(document: Any, path: Path) -> bool:
    """Tell whether something stands at ``path``."""
    try:
        find(document, path)
    except (LookupError, TypeError):
        return False
    return True


def find_difference(one: Any, other: Any) -> Path | None:
    """Return where two documents differ first; None: nowhere."""
    if type(one) is not type(other):
        return ()
    if isinstance(one, dict):
        if list(one) != list(other):
            keys = [key for key in [*one, *other] if (key in one) != (key in other)]
            return tuple(keys[:1])
        steps: Any = one
    elif isinstance(one, list) and len(one) == len(other):
        steps = range(len(one))
    else:
        return None if json.dumps(one) == json.dumps(other) else ()
    for step in steps:
        below = find_difference(one[step], other[step])
        if below is not None:
            return (step, *below)
    return None


def name_of(path: Path) -> str:
    """Return ``path`` as one reads it, such as ``headers.timelimit.0``."""
    return ".".join(map(str, path)) or "text"
