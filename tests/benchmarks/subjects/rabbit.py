"""Many messages at once to RabbitMQ: options `way`, `broker`, `due`, `db`, `limit_seconds`, `server_pid`.

`way` is `scheduler`; or a loop that waits for each confirm (`confirmed`), or for none (`unconfirmed`).

All connections stand, and the queue is declared, before the clock starts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from fill import fill
from subject import QUEUE, connect, lead, make_app, measure, read_options, report, send_due, sender

#: how long a message that wasn't confirmed may take to its queue
ARRIVAL_SECONDS = 10

options = read_options()
app = make_app(options.server, options.db)
app.conf.broker_url = options.broker
_, schedule = connect(options)
reader = app.connection_for_read()
channel = reader.channel()
app.amqp.queues[QUEUE](channel).declare()


def scheduler() -> Callable[[], None]:
    """Tick until nothing is due: each message is confirmed before its run is recorded."""
    send = partial(send_due, lead(app))
    fill(schedule, 1, is_due=True)
    send()
    fill(schedule, options.due, is_due=True)
    return send


def loop(is_confirmed: bool) -> Callable[[], None]:
    """Send the task from a loop, with one producer: what Celery itself costs."""
    app.conf.broker_transport_options = {"confirm_publish": is_confirmed}
    return partial(sender(app), options.due)


def wait_for(count: int) -> int:
    """How many messages are on the queue when so many are there, or what is there after some seconds."""
    deadline = time.monotonic() + ARRIVAL_SECONDS
    while (waiting := channel.queue_declare(QUEUE, passive=True).message_count) < count:
        if time.monotonic() > deadline:
            break
    return int(waiting)


send = scheduler() if options.way == "scheduler" else loop(options.way == "confirmed")
wait_for(1)  # of the warm-up, which may not have been confirmed
channel.queue_purge(QUEUE)
taken = measure(send, options)
if options.way == "unconfirmed":
    app.pool.force_close_all()  # what has been written to a connection is read before its end
report(sent=wait_for(options.due), **taken)
reader.release()
