"""The key of a lock: a string with a time to live that holds its owner's token.

Invariant: a lock is taken and released in the same step that compares its token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from redbeat.connection.retry import call_briefly, without_retry
from redbeat.keys import NO_PART, Keys
from redbeat.store.records import text_of
from redbeat.store.scripts import release_lock, take_lock
from redbeat.store.store import Store

#: the time to live of a key that doesn't exist, and of one that lives for ever
NO_KEY, FOR_EVER = -2, -1


class LockKey:
    """The lock under ``name``; each method is one round trip.

    All raise StoreCorrupt if the key isn't a string.

    Arguments:
        part_of: returns the names in the part of the schedule that it belongs to; by default it belongs to
            none.
    """

    def __init__(self, store: Store, name: str, part_of: Callable[[], Keys] = lambda: NO_PART) -> None:
        self._store = store
        self.name = name
        self._part_of = part_of

    def _ask(self, call: Callable[[Any], Any]) -> Any:
        return self._store.ask(call, self.name, "string")

    def token(self) -> str | None:
        """Return the token in it; None: nobody holds it."""
        token: str | None = text_of(self._ask(lambda client: client.get(self.name)))
        return token

    def rest_ms(self) -> int:
        """Return how long it lives, in milliseconds, or NO_KEY, or FOR_EVER."""
        return int(self._ask(lambda client: client.pttl(self.name)))

    def take(
        self,
        token: str,
        taken_ms: int,
        mark: str = "",
        silent: str = "",
        rest_ms: int = 0,
        slack_ms: int = 0,
    ) -> bool:
        """Take it for ``taken_ms`` when it is free, or ``token`` has it; tell whether it is the caller's.

        Arguments:
            mark: a key that says who has released the lock: ``token`` doesn't take it again; '': none.
            silent: the token of a silent holder, which is replaced; '': there is none.
            rest_ms: how long the silent holder's lock lives if it hasn't been renewed.
            slack_ms: by how much longer or shorter it may live and still count as not renewed.
        """
        times = {"taken_ms": taken_ms, "rest_ms": rest_ms, "slack_ms": slack_ms}

        def take(client: Any) -> bool:
            return take_lock(
                client, self.name, token, mark=mark, silent=silent, part=self._part_of(), **times
            )

        return bool(self._ask(take))

    def release(self, token: str, mark: str = "") -> bool:
        """Release it, and wake the standbys; tell whether ``token`` was its holder's. Redis isn't waited for
        long.

        Arguments:
            mark: a key that says for a minute who has released the lock, so that it doesn't seem to have
                vanished, and no command takes it back that arrives late; '': none.
        """
        part = self._part_of()
        wake = (self._store.config.base_keys if part is NO_PART else part).wake

        def release(client: Any) -> Any:
            return release_lock(without_retry(client), self.name, token, wake=wake, mark=mark)

        return bool(self._ask(lambda client: call_briefly(lambda: release(client))))

    def remove(self) -> None:
        """Remove the key, whatever it holds."""
        self._ask(lambda client: client.delete(self.name))
