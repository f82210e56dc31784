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
from enum import Enum

from redbeat.delivery.broker import Broker
from redbeat.delivery.outbox import Outbox
from redbeat.log.events import DELIVERY
from redbeat.log.logger import logger
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


class Mode(Enum):
    """How the messages of a batch leave."""

    #: recorded first, and sent after that
    RECORD_FIRST = AT_MOST_ONCE
    #: pushed by the script that records them
    SCRIPT = EXACTLY_ONCE
    #: sent by the broker's client, and recorded after that
    CLIENT = AT_LEAST_ONCE
    #: not now: schedule and broker were one server a moment ago, and are two
    IN_DOUBT = "in doubt"


class Delivery:
    """The guarantee of one scheduler's runs, found out when there is something to send.

    Attributes:
        mode: how messages leave, as it was chosen last.
        target: where the script pushes them; None: it does not.
        announced: the mode that was logged last.
    """

    def __init__(self, store: Store, broker: Broker) -> None:
        self._store = store
        self._broker = broker
        self._asked: Outbox | None = None  # the outbox for which the mode was chosen
        self._moved_at: float | None = None
        is_at_most_once = store.config.delivery == "at_most_once"
        self.mode = Mode.RECORD_FIRST if is_at_most_once else Mode.CLIENT
        self.target: Target | None = None
        self.announced: Mode | None = None

    def choose(self) -> Mode:
        """Return how messages leave now; the servers are asked once for each connection to the broker.

        Raises:
            RedBeatError: about the schedule's server.
            Exception: whatever the broker's client raises.
        """
        outbox = self._broker.outbox
        if outbox is not None and outbox.has_given_up:
            outbox = None
        if self.mode is Mode.RECORD_FIRST or (outbox is not None and outbox is self._asked):
            return self.mode
        about = target = None
        if outbox is not None:
            about = Server(self._store).about()
            target = _find_target(about.run_id, self._store, outbox)
        is_doubtful = self._moved_at is not None and time.monotonic() < self._moved_at + DOUBT_SECONDS
        self.target = target
        if target is not None:
            self.mode = Mode.SCRIPT
        else:
            self.mode = Mode.IN_DOUBT if is_doubtful else Mode.CLIENT
        if about is not None and self.mode is not Mode.IN_DOUBT:  # else they are asked again the next time
            self._asked, self._moved_at = outbox, None
            if about.run_id is None and not about.is_in_cluster:
                self.note_refused("INFO isn't allowed")
        return self.mode

    def note_moved(self) -> None:
        """Note that the schedule is on another server than its last commit was for."""
        logger.info("beat: The schedule is on another server now, and the broker is looked for there.")
        self._asked = self.target = None
        self.mode, self._moved_at = Mode.IN_DOUBT, self._moved_at or time.monotonic()
        self._broker.close()

    def note_refused(self, reason: str) -> None:
        """Note that the schedule's user lacks the right to push messages.

        With the next connection to the broker it is tried again.
        """
        self.mode, self.target = Mode.CLIENT, None
        self._store.rights.note(PUSHES, reason)

    def announce(self) -> None:
        """Log the guarantee of the runs that were just sent, if it has changed."""
        is_unknown = self._broker.outbox is None and (self._broker.is_away or self._asked is not None)
        if self.mode in (self.announced, Mode.IN_DOUBT) or (self.mode is Mode.CLIENT and is_unknown):
            return
        guarantee, self.announced = self.mode.value, self.mode
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
