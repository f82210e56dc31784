"""Who stands by for the lock: what a standby writes about itself, so that others see it.

Owns ``redbeat::standbys``. Invariant: nothing depends on it. Who ends without a word is forgotten after
``STANDBY_SECONDS``, and the key with the last of them.
"""

from __future__ import annotations

from redbeat.connection.retry import call_briefly, without_retry
from redbeat.store.rights import STANDBYS
from redbeat.store.scripts.script import Script
from redbeat.store.store import STANDBY_MS, Store

_NOTE_STANDBY = Script("note_standby")

#: for how long a standby is known after it has looked at the lock
STANDBY_SECONDS = STANDBY_MS / 1000
#: Redis is waited for no longer when a standby removes itself
LEAVE_SECONDS = 1.0


class Standbys:
    """The standbys of the schedule of ``store``.

    Its methods raise StoreUnavailable, StoreRefused and StoreCorrupt.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def note(self, who: str) -> bool:
        """Note that ``who`` stands by; False: this user may not. It isn't tried again if Redis is away."""

        def note() -> bool:
            keys = self._store.keys
            call = _NOTE_STANDBY.call(keys, who=who, life_ms=STANDBY_MS)
            self._store.ask(lambda client: call.run(without_retry(client)), keys.standbys)
            return True

        return self._store.rights.ask(STANDBYS, lambda: self._store.following(note), lambda: False)

    def remove(self, who: str) -> None:
        """Note that ``who`` doesn't stand by any more; Redis isn't waited for long."""
        key = self._store.keys.standbys

        def remove() -> None:
            self._store.ask(lambda client: without_retry(client).zrem(key, who), key)

        call_briefly(remove, LEAVE_SECONDS)
