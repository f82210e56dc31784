"""The rights that a user or a token may have, and which of them include others. Pure.

Invariant: an unknown right is an error, never ignored.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum


class Right(str, Enum):
    """What a user may do. ``ADMIN`` includes all others, and each of them includes ``READ``."""

    READ = "read"
    PAUSE = "pause"
    RUN = "run"
    EDIT = "edit"
    DELETE = "delete"
    ADMIN = "admin"


def rights_of(names: Iterable[str]) -> frozenset[Right]:
    """Return the rights that are called so, with all that they include.

    Arguments:
        names: texts or rights; one text stands for itself.

    Raises:
        ValueError: there is no such right.
    """
    given = set()
    for name in [names] if isinstance(names, str) else names:
        try:
            given.add(Right(name))
        except ValueError:
            known = ", ".join(right.value for right in Right)
            raise ValueError(f"there is no right {name!r}. The rights: {known}.") from None
    if Right.ADMIN in given:
        return frozenset(Right)
    return frozenset(given | {Right.READ}) if given else frozenset()


def names_of(rights: Iterable[str]) -> list[str]:
    """Return the names from which ``rights_of`` makes these rights, in their order."""
    held = set(rights)
    return [Right.ADMIN.value] if Right.ADMIN in held else [right.value for right in Right if right in held]
