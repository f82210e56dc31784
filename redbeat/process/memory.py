"""What a process remembers, within bounds: what it has said, what it has met, what it has computed.

Invariant: of too many things all are forgotten. So whoever uses it must be able to say, meet or compute
anything again.
"""

from __future__ import annotations

from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")

_NOTHING = object()


class Memory(dict[Key, Value]):
    """A dict with a limit to its keys; one more empties it first.

    Arguments:
        limit: how many keys.
    """

    def __init__(self, limit: int = 10_000) -> None:
        super().__init__()
        self._limit = limit

    def __setitem__(self, key: Key, value: Value) -> None:
        """Remember ``value``."""
        if len(self) >= self._limit and key not in self:
            self.clear()
        super().__setitem__(key, value)

    def is_news(self, key: Key, value: Value) -> bool:
        """Remember ``value``; tell whether ``key`` had none, or another one, so that it is to be said."""
        if self.get(key, _NOTHING) == value:
            return False
        self[key] = value
        return True
