"""Which guarantee a run is sent with: what the setting asks for, and what the servers allow.

::

    broker is the schedule's own server       message and record are one step        exactly once
    broker is anything else                   message first, record after it         at least once
    redbeat_delivery = 'at_most_once'         record first, message after it         at most once

Invariant: two connections lead to one server if it tells both the same run id. That is asked again for each
new connection, and the script that pushes checks it in the same step.
"""

from __future__ import annotations

import time

from redbeat.delivery.broker import Broker
from redbeat.delivery.outbox import Outbox
from redbeat.log.events import DELIVERY
from redbeat.log.logger import logger
from redbeat.process.memory import Memory
from redbeat.store.records import Target
from redbeat.store.rights import PUSHES
from redbeat.store.server import Server
from redbeat.store.store import Store

#: schedule and broker that were one server, and are two for longer than this, are taken for two: the first of
#: them to follow a failover has another server for a moment
DOUBT_SECONDS = 10.0

EXACTLY_ONCE = "exactly once"
AT_LEAST_ONCE = "at least once, each run with one task id"
AT_MOST_ONCE = "at most once"


class Delivery:
    """The guarantee of one scheduler's runs, found out when there is something to send."""

    def __init__(self, store: Store, broker: Broker) -> None:
        self._store = store
        self._broker = broker
        self._target: Target | None = None
        self._asked: Outbox | None = None
        self._moved_at: float | None = None
        self._is_refused = False
        self._said = Memory[str, str]()

    @property
    def is_at_most_once(self) -> bool:
        """Whether a run is recorded before it is sent."""
        return self._store.config.delivery == "at_most_once"

    def target(self) -> Target | None:
        """Return where a commit may push messages; None: they are to be sent by the broker's client."""
        outbox = self._broker.outbox
        if self.is_at_most_once or outbox is None or outbox.has_given_up:
            return None
        if self._asked is not outbox:
            about = Server(self._store).about()
            server = about.run_id
            target = _find_target(server, self._store, outbox)
            if target is None and self._is_doubtful():
                return None  # asked again the next time
            self._asked, self._target, self._moved_at = outbox, target, None
            self._is_refused = False  # the right may have been given meanwhile
            if server is None and not about.is_in_cluster:
                self.note_refused("INFO isn't allowed")
        return None if self._is_refused else self._target

    def is_in_doubt(self) -> bool:
        """Tell whether to wait: schedule and broker were one server a moment ago, and aren't now."""
        return self.target() is None and self._is_doubtful()

    def _is_doubtful(self) -> bool:
        return self._moved_at is not None and time.monotonic() < self._moved_at + DOUBT_SECONDS

    def note_moved(self) -> None:
        """Note that the schedule is on another server than its last commit was for."""
        logger.info("beat: The schedule is on another server now, and the broker is looked for there.")
        self._asked = self._target = None
        self._moved_at = self._moved_at or time.monotonic()
        self._broker.close()

    def note_refused(self, reason: str) -> None:
        """Note that the schedule's user lacks the right to push messages.

        With the next connection to the broker it is tried again.
        """
        self._is_refused = True
        self._store.rights.note(PUSHES, reason)

    def announce(self) -> None:
        """Log the guarantee of the runs that were just sent, if it has changed."""
        if self.is_at_most_once:
            self._say(AT_MOST_ONCE)
        elif self._asked is not None:
            self._say(AT_LEAST_ONCE if self._target is None or self._is_refused else EXACTLY_ONCE)
        elif self._broker.outbox is None and not self._broker.is_away and not self._is_doubtful():
            self._say(AT_LEAST_ONCE)

    def _say(self, guarantee: str) -> None:
        if self._said.is_news("guarantee", guarantee):
            logger.info("beat: Delivery: %s.", guarantee, extra=DELIVERY.of(guarantee=guarantee))


def _find_target(server: str | None, store: Store, outbox: Outbox) -> Target | None:
    home_db = Server(store).database()
    if server is None or home_db is None or server != outbox.server_id():
        return None
    return Target(server, home_db, outbox.database)


def describe_delivery(store: Store, broker: Broker) -> str:
    """Return the guarantee in words for the banner; ``broker`` is connected for that."""
    try:
        if store.config.delivery == "at_most_once":
            return AT_MOST_ONCE
        if broker.producer is None or broker.outbox is None:
            return AT_LEAST_ONCE
        if _find_target(Server(store).about().run_id, store, broker.outbox) is None:
            return AT_LEAST_ONCE
        # the broker's user has the right to push; whether another one has shows only when it does
        is_brokers_user = Server(store).configured_user() == broker.outbox.user
        return EXACTLY_ONCE if is_brokers_user else f"{EXACTLY_ONCE}, if the schedule's user may push"
    except Exception as exc:  # noqa: BLE001 - whatever a transport raises: a banner is no place to fail
        logger.debug("beat: The delivery guarantee isn't known yet: %r", exc)
        return "known when schedule and broker can be reached"
