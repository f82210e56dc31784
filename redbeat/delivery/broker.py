"""The broker as the scheduler sees it: its producer and outbox, whether it answers, the delivery guarantee.

A tick must end in time to keep the lock, so nothing here waits for the broker longer than
``redbeat_publish_timeout``; runs stay due until it is back.

::

    broker is the schedule's own server       message and record are one step        exactly once
    broker is anything else                   message first, record after it         at least once
    redbeat_delivery = 'at_most_once'         record first, message after it         at most once

Invariant: two connections lead to one server if it tells both the same run id. That is asked again for each
new connection, and the script that pushes checks it in the same step.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any, NamedTuple

from amqp.exceptions import MessageNacked
from kombu.exceptions import OperationalError
from kombu.messaging import Producer

from redbeat.config.config import ensure_conf
from redbeat.config.timing import CONNECT_SECONDS
from redbeat.connection.retry import is_refusal, send_once
from redbeat.delivery.amqp import Confirms, Frames, Publication
from redbeat.delivery.failures import cause_of, reason_of
from redbeat.delivery.outbox import Outbox
from redbeat.delivery.producer import BoundedProducer, declare_exchanges
from redbeat.log.events import BROKER_AWAY, BROKER_BACK, DELIVERY, RIGHT_MISSING
from redbeat.log.logger import logger
from redbeat.process.signals import let_through
from redbeat.store.records import Push, Target
from redbeat.store.server import Server
from redbeat.store.store import Store

#: what OpenTelemetry calls a broker of kombu's, where that is another name
_SYSTEMS = {"amqp": "rabbitmq", "sqs": "aws_sqs", "azureservicebus": "servicebus", "gcpubsub": "gcp_pubsub"}

#: how long the broker may take to answer when its connection is closed
CLOSE_SECONDS = 0.5


class Peer(NamedTuple):
    """Which broker it is, without a password.

    Attributes:
        system: ``redis``, ``rabbitmq``, or what kombu calls it; '': unknown yet.
        address: the name of its host; '': unknown.
        port: None: unknown.
    """

    system: str = ""
    address: str = ""
    port: int | None = None


class Broker:
    """One connection to the broker, made when it is first needed.

    Arguments:
        app: the Celery app.
        producer_class: kombu's, or one made from it.
        timeout_seconds: how long the sending of one batch may take.

    Attributes:
        is_away: the last attempt to send or to connect found no broker.
        is_reported_away: that was logged, and not yet that it is back.
        timeout_seconds: as it was given.
        connect_seconds: how long one attempt to connect may take.
        deadline: until when this batch may be sent, monotonic.
        outbox: collects the messages of ``producer``; None: they are sent at once, or there is no producer
            yet.
        confirms: those of the messages of ``producer``; None: it has none, or there is no producer yet.
        peer: the broker of the last connection.
    """

    def __init__(self, app: Any, producer_class: Any, timeout_seconds: float) -> None:
        self._app = app
        self._class = type("BoundedProducer", (BoundedProducer, producer_class), {})
        self._is_plain = all(
            getattr(producer_class, name) is getattr(Producer, name) for name in ("publish", "_publish")
        )
        self.timeout_seconds = timeout_seconds
        self.connect_seconds = min(timeout_seconds, CONNECT_SECONDS)
        # no message may be sent twice, not even by a client that got no answer
        self._sends_once = ensure_conf(app).delivery == "at_most_once"
        self.deadline = 0.0
        self._connection: Any = None
        self._producer: Any = None
        self._is_blocked = False
        self._has_lost_events = False  # which was logged
        self.outbox: Outbox | None = None
        self.confirms: Confirms | None = None
        self.is_away = self.is_reported_away = False
        self.peer = Peer()

    @property
    def producer(self) -> Any:
        """A producer, on a new connection where there is none; raises what the transport raises."""
        if self._producer is None or self._producer.connection is None:  # its channel has ended
            self.close(is_polite=False)
            self._connect()
        return self._producer

    def _connect(self) -> None:
        connection, connect_seconds = self._app.connection_for_write(), self.connect_seconds
        connection.connect_timeout = min(connection.connect_timeout or connect_seconds, connect_seconds)
        connection.transport_options = {
            **self._options(connection),
            **(connection.transport_options or {}),
            **({"retry_on_timeout": False} if self._sends_once else {}),
        }
        other_hosts = max(len(connection.alt) - 1, 0)
        connection.ensure_connection(
            max_retries=other_hosts, interval_start=0, interval_step=0, timeout=connect_seconds
        )
        self._connection = connection
        system = str(connection.get_transport_cls().driver_type)
        self.peer = Peer(_SYSTEMS.get(system, system), connection.hostname or "", connection.port)
        channel = connection.channel()
        self.outbox = Outbox.of(channel, self._app.conf.event_exchange)
        if self.outbox is not None:
            declare_exchanges(channel, self._app)
            if self._sends_once:
                send_once(self.outbox.kombu_client)
        producer = self._class(channel, auto_declare=False)
        self.confirms = producer.begin(self._app, self.publish_seconds, is_redis=self.outbox is not None)
        self._producer = producer

    def begin_batch(self) -> None:
        """Begin a batch: what is remembered for one batch only is forgotten."""
        self.deadline = time.monotonic() + self.timeout_seconds
        if self.outbox is not None:
            self.outbox.tables.clear()
        if self.confirms is not None:
            self.confirms.is_first = True

    def seconds_left(self) -> float:
        """Return how long the sending of this batch may still take; 0: its time is spent."""
        return max(self.deadline - time.monotonic(), 0)

    def has_time(self) -> bool:
        """Return True if there is time for another run: half of it is kept to wait for the answer."""
        return self.seconds_left() > self.timeout_seconds / 2

    def publish_seconds(self) -> float:
        """Return how long publishing one message may take."""
        return self.seconds_left() or self.timeout_seconds

    @contextmanager
    def sending(
        self, expiration_seconds: float | None, *, is_deferrable: bool = False
    ) -> Iterator[Publication]:
        """Yield what one run publishes in the block.

        Its list writes are left to be done; and, only if it ``is_deferrable``, its messages are still to be
        confirmed.

        ``expiration_seconds``: after how long the message expires; None: its own expiration counts.
        """
        publication = Publication()
        if self._producer is not None:  # else a producer of the user's sends it
            self._producer.expiration_seconds = expiration_seconds
        if self.outbox is not None:
            with self.outbox.collecting() as publication.pushes:
                yield publication
        elif is_deferrable and self.confirms is not None and self._is_plain:  # else publish handles errors
            confirms, self.confirms.publication = self.confirms, publication
            try:
                yield publication
            finally:
                confirms.publication = None
        else:
            yield publication

    def publish(self, message: Frames, publication: Publication | None, seconds: float) -> None:
        """Publish a message from a template on RabbitMQ, as ``Confirms.send`` does."""
        if self.confirms is None:
            raise ConnectionError("the connection to the broker has ended")
        self.confirms.send(message, publication, seconds)

    def write(self) -> None:
        """Write to RabbitMQ what was published, and read the confirms that have come."""
        if self.confirms is not None:
            self.confirms.write(self.publish_seconds())
            self.confirms.read()

    def settle(self, seconds: float | None = None) -> None:
        """Wait until all messages are confirmed.

        ``seconds``: how long at most; None: as long as the batch may take. Raises TimeoutError, and what
        py-amqp raises.
        """
        if self.confirms is not None:
            self.confirms.settle(self.seconds_left() if seconds is None else seconds)

    @property
    def destination(self) -> str:
        """The name of the queue that the last run went to; '': unknown."""
        return "" if self._producer is None else str(self._producer.destination)

    def send(self, pushes: Sequence[Push]) -> None:
        """Make the list writes of one run on a Redis broker.

        Raises:
            Exception: the error of the server, or of the connection.
        """
        if self.outbox is None:
            raise ConnectionError("the connection to the broker has ended")
        [failure] = self.outbox.send([tuple(pushes)])
        if failure is not None:
            raise failure

    def send_events(self, events: Sequence[Push]) -> None:
        """Send ``events`` in one round trip. Events that cannot be sent are lost, which is logged once until
        events are sent again.
        """
        is_known, self._has_lost_events = self._has_lost_events, False
        try:
            self.send(events)
        except Exception as exc:  # noqa: BLE001 - whatever the client raises: the runs themselves are sent
            self._has_lost_events = True
            if not is_known:
                message = (
                    "beat: Couldn't send the task-sent events of %d runs, which were sent themselves: %s"
                )
                logger.warning(message, len(events), reason_of(exc))

    # -- errors

    def recover(self, exc: BaseException) -> bool:
        """Mend the connection after a run has raised ``exc``; return whether to try that run once more."""
        cause = cause_of(exc)
        if is_refusal(cause):
            self.note_away(cause)
        elif isinstance(cause, MessageNacked):
            return False
        elif isinstance(cause, self._usual_connection.channel_errors):
            if self.outbox is None:  # the broker or py-amqp has closed the channel
                self.close()
        elif self.is_of_connection(cause):
            if self._is_blocked or not self.seconds_left():
                self.note_away(cause)
            elif isinstance(cause, TimeoutError) or not self.drop_stale():
                if not self.is_back():
                    self.note_away(cause)
                return not self.is_away
        return False

    def is_of_connection(self, cause: BaseException) -> bool:
        """Return True if the connection may have raised ``cause``; the task's own code may have, too."""
        is_of_other_code = isinstance(cause, LookupError) or getattr(cause, "filename", None) is not None
        kinds = OSError, OperationalError, *self._usual_connection.connection_errors
        return isinstance(cause, kinds) and not is_of_other_code

    @property
    def _usual_connection(self) -> Any:
        """The connection, or one like it that does not connect."""
        return self._connection or self._app.connection_for_write()

    def drop_stale(self) -> bool:
        """Drop a connection that RabbitMQ has closed; return True if one is left.

        A run that is sent only once would be lost on it. Kombu's transport for Redis finds that out itself.
        """
        if self._connection is None or self._connection.transport.driver_name != "py-amqp":
            return False
        was_blocked = self._is_blocked
        try:
            while self._connection.connected:  # else kombu would make a new connection
                self._connection.drain_events(timeout=0)
        except TimeoutError:
            return True
        except Exception as exc:  # noqa: BLE001 - whatever the transport raises: a new connection is made
            logger.debug("beat: An idle connection has ended: %r", exc)
        if was_blocked or not self._is_blocked:
            self.close(is_polite=False)
        return self._connection is not None

    def note_away(self, exc: BaseException) -> None:
        """Record that nothing can be sent because of ``exc``; logged once until runs are sent again."""
        self.is_away = True
        if not self.is_reported_away:
            self.is_reported_away = True
            name, reason = self._usual_connection.as_uri(), reason_of(exc)
            message = "beat: The broker %s can't be reached, due runs wait for it: %s"
            logger.error(message, name, reason, extra=BROKER_AWAY.of(broker=name, reason=reason))
        if not self._is_blocked:
            self.close(is_polite=False)

    def note_well(self) -> None:
        """Record that runs have been sent again."""
        if self.is_reported_away:
            self.is_reported_away = False
            logger.error("beat: The broker is back.", extra=BROKER_BACK.of())

    def is_back(self) -> bool:
        """Try to connect; return whether the broker can be reached."""
        if self._is_blocked:
            self.drop_stale()
        self.is_away = True
        if not self._is_blocked:
            self.close(is_polite=False)
            try:
                self._connect()
                self.is_away = False
            except BaseException as exc:  # noqa: BLE001 - whatever a transport raises: there is no broker
                let_through(exc)
                logger.debug("beat: The broker can't be reached: %r", exc)
                self.close(is_polite=False)
        return not self.is_away

    def close(self, *, is_polite: bool = True) -> None:
        """Close the connection, and tell the broker if that ``is_polite``: it may never answer."""
        connection, self._connection, self._producer, self.outbox = self._connection, None, None, None
        self._is_blocked = False
        if self.confirms is not None:
            self.confirms.lose()
            self.confirms = None
        if connection is None:
            return
        try:
            if is_polite and connection.connected and hasattr(connection.connection, "sock"):
                connection.connection.sock.settimeout(CLOSE_SECONDS)  # RabbitMQ answers
            (connection.release if is_polite else connection.collect)()
        except Exception as exc:  # noqa: BLE001 - what is broken may fail in any way when closed
            logger.debug("beat: Closing a connection to the broker failed: %r", exc)

    def _options(self, connection: Any) -> dict[str, Any]:
        """Return transport options: a silent broker is an error, and publishes are confirmed."""
        transport, seconds = connection.get_transport_cls(), self.timeout_seconds
        if transport.driver_name == "py-amqp":
            return {
                "confirm_publish": True,
                "read_timeout": seconds,
                "write_timeout": seconds,
                "on_blocked": self._note_blocked,
                "on_unblocked": self._note_unblocked,
            }
        if transport.driver_type == "redis":
            return {"socket_timeout": seconds, "socket_connect_timeout": self.connect_seconds}
        return {}

    # -- Under an alarm RabbitMQ blocks a connection that publishes: it reads nothing from it until the alarm
    # is over. What was written to it before does arrive then. So the connection is kept: on each new one the
    # message would be written again, and arrive once more.

    def _note_blocked(self, reason: str) -> None:
        self._is_blocked = True
        raise ConnectionError(reason)  # ends the wait for a confirm

    def _note_unblocked(self) -> None:
        self._is_blocked = False


# -- the guarantee

#: schedule and broker that were one server, and are two for longer than this, are taken for two: the first of
#: them to follow a failover has another server for a moment
DOUBT_SECONDS = 10.0


class Mode(Enum):
    """How the messages of a batch leave."""

    #: recorded first, and sent after that
    RECORD_FIRST = "at most once"
    #: pushed by the script that records them
    SCRIPT = "exactly once"
    #: sent by the broker's client, and recorded after that
    CLIENT = "at least once, each run with one task id"
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
        if self.mode is Mode.RECORD_FIRST or (outbox is not None and outbox is self._asked):
            return self.mode
        is_doubtful = self._moved_at is not None and time.monotonic() < self._moved_at + DOUBT_SECONDS
        self.mode, self.target = Mode.IN_DOUBT if is_doubtful else Mode.CLIENT, None
        if outbox is None:
            return self.mode
        server = Server(self._store)
        about, home_db = server.about(), server.database()
        if about.run_id is not None and home_db is not None and about.run_id == outbox.server_id():
            self.mode, self.target = Mode.SCRIPT, Target(about.run_id, home_db, outbox.database)
        if self.mode is not Mode.IN_DOUBT:  # else they are asked again the next time
            self._asked, self._moved_at = outbox, None
            if about.run_id is None and not about.is_in_cluster:
                self.note_refused("INFO isn't allowed")
        return self.mode

    def note_moved(self) -> None:
        """Record that the schedule is on another server than its last commit was for."""
        if self._moved_at is None:  # else it was said, of another recording of this batch
            logger.info("beat: The schedule is on another server now, and the broker is looked for there.")
        self._asked = self.target = None
        self.mode, self._moved_at = Mode.IN_DOUBT, self._moved_at or time.monotonic()
        self._broker.close()

    def note_refused(self, reason: str) -> None:
        """Record that the schedule's user lacks the right to push messages.

        With the next connection to the broker it is tried again.
        """
        self.mode, self.target = Mode.CLIENT, None
        if self._store.config.said.is_news("pushes", ""):
            logger.warning(
                "beat: Runs are delivered at least once, each run with one task id, as the schedule's user "
                "may not push messages (docs: delivery, The rights it takes): %s",
                reason,
                extra=RIGHT_MISSING.of(reason=reason),
            )

    def announce(self) -> None:
        """Log the guarantee of the runs that were just sent, if it has changed."""
        is_unknown = self._broker.outbox is None and (self._broker.is_away or self._asked is not None)
        if self.mode in (self.announced, Mode.IN_DOUBT) or (self.mode is Mode.CLIENT and is_unknown):
            return
        guarantee, self.announced = self.mode.value, self.mode
        logger.info("beat: Delivery: %s.", guarantee, extra=DELIVERY.of(guarantee=guarantee))


def describe_delivery(store: Store, broker: Broker) -> str:
    """Return the guarantee in words for the banner; ``broker`` is connected for that."""
    delivery = Delivery(store, broker)
    try:
        if delivery.mode is not Mode.RECORD_FIRST and broker.producer:  # it connects
            delivery.choose()
        # the broker's user has the right to push; whether another one has shows only when it does
        is_same = broker.outbox is not None and Server(store).configured_user() == broker.outbox.user
        condition = "" if is_same or delivery.target is None else ", if the schedule's user may push"
        return f"{delivery.mode.value}{condition}"
    except Exception as exc:  # noqa: BLE001 - whatever a transport raises: a banner is no place to fail
        logger.debug("beat: The delivery guarantee isn't known yet: %r", exc)
        return "known when schedule and broker can be reached"
