"""What a process remembers, within limits: what it has logged, met or computed.

Invariant: when there is too much to remember, all of it is forgotten. So its users must be able to log, meet
or compute anything again.
"""

from __future__ import annotations

from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")

_NOTHING = object()


class Allowance:
    """How much memory several caches may take together.

    Attributes:
        left_bytes: what is left; less than 0: something must be forgotten.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = self.left_bytes = max_bytes


class Memory(dict[Key, Value]):
    """A dict that is emptied before it would get more than ``limit`` keys."""

    def __init__(self, limit: int = 10_000) -> None:
        super().__init__()
        self._limit = limit

    def __setitem__(self, key: Key, value: Value) -> None:
        """Remember ``value``."""
        if len(self) >= self._limit and key not in self:
            self.clear()
        super().__setitem__(key, value)

    def is_news(self, key: Key, value: Value) -> bool:
        """Remember ``value``; tell whether ``key`` had none or another one, so that it is to be logged."""
        if self.get(key, _NOTHING) == value:
            return False
        self[key] = value
        return True
