"""Many messages at once: options `way`, `due`, `db`, `limit_seconds`, `server_pid`, and what is connected:
`settings` of Celery's, `log_file` for the log at INFO, `has_receivers` of signals, whether the app
`is_tracked`; and `apart_micros`, which lie between the due times of two entries.

Ways: `scheduler` sends `due` entries twice, first when they have never run, and again when their own schedule
lets all of them be due once more; `raw` sends entries that were written with the score 0, once; `old` sends
entries that have run, once; `loop`, `batched` and `floor` send as many messages.

All connections stand, and all scripts are loaded, before the clock starts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

from celery.schedules import schedule as interval
from celery.signals import after_task_publish, before_task_publish
from fill import TASK, fill
from subject import QUEUE, connect, lead, make_app, measure, read_options, report, send_due, sender

import redbeat
from redbeat import RedBeatSchedulerEntry

options = read_options()
app = make_app(options.server, options.db, **options.settings)
if options.is_tracked:
    redbeat.track_runs(app)
broker, schedule = connect(options)

PIPELINE = 500
#: how long an entry waits between two runs; it was saved that long before its first is due
EVERY = timedelta(hours=1)
#: entries of another task, from whose burst it is estimated how long the first one takes
WARM_UP = 500


def scheduler() -> Iterator[Callable[[], None]]:
    """Tick until nothing is due, and again when all is due once more."""
    send = partial(send_due, lead(app))
    save("bench.another", WARM_UP, datetime.now(timezone.utc) + EVERY / 2)
    started = time.monotonic()
    send()
    seconds = (time.monotonic() - started) * options.due / WARM_UP
    spread = options.due * timedelta(microseconds=options.apart_micros)
    save(TASK, options.due, datetime.now(timezone.utc) + timedelta(seconds=2 + 2 * seconds) + spread)
    assert count_due() == options.due, f"{count_due()} are due"
    yield send
    assert count_due() == 0, f"{count_due()} are due once more before all have been sent"
    forget_runs()
    while count_due() < options.due:
        time.sleep(0.02)
    yield send


def save(task: str, count: int, due_again: datetime) -> None:
    """Write entries that have never run, and are due now; at `due_again` all are due once more."""

    def entry(number: int) -> RedBeatSchedulerEntry:
        saved_at = due_again - 2 * EVERY - number * timedelta(microseconds=options.apart_micros)
        return RedBeatSchedulerEntry(f"{task}-{number}", task, interval(EVERY), last_run_at=saved_at, app=app)

    RedBeatSchedulerEntry.save_many(map(entry, range(count)))


def forget_runs() -> None:
    """Let the runs of the first burst be over, as workers would."""
    running = list(schedule.scan_iter("redbeat::running:*", count=1000))
    for first in range(0, len(running), PIPELINE):
        schedule.delete(*running[first : first + PIPELINE])
    schedule.delete("redbeat::deadlines")


def count_due() -> int:
    seconds, micros = schedule.time()
    return schedule.zcount("redbeat::schedule", 0, f"{seconds}.{micros:06}")


def written(**kind: bool) -> Iterator[Callable[[], None]]:
    """Tick until nothing is due of what `fill` has written. 2.4.2 keeps nothing from run to run."""
    send = partial(send_due, lead(app))
    fill(schedule, 1, **kind)
    send()
    fill(schedule, options.due, **kind)
    yield send


def loop() -> Iterator[Callable[[], None]]:
    """Send the task from a loop, with one producer: what Celery itself costs."""
    yield partial(sender(app), options.due)


def batched() -> Iterator[Callable[[], None]]:
    """The same loop in kombu's `Producer.batch()`."""
    task, producer = app.tasks[TASK], app.amqp.producer_pool.acquire()

    def send(count: int = options.due) -> None:
        with producer.batch():
            for _ in range(count):
                task.apply_async(producer=producer)

    send(1)
    yield send


def floor() -> Iterator[Callable[[], None]]:
    """Put ready-made messages on the queue, in pipelines: what the server and redis-py cost."""
    app.tasks[TASK].apply_async()
    message: Any = broker.lindex(QUEUE, 0)

    def send() -> None:
        for first in range(0, options.due, PIPELINE):
            pipeline = broker.pipeline(transaction=False)
            for _ in range(min(PIPELINE, options.due - first)):
                pipeline.lpush(QUEUE, message)
            pipeline.execute()

    yield send


def receive(**_: Any) -> None:
    """What a receiver does is not counted: that it is called is."""


if options.has_receivers:
    before_task_publish.connect(receive)
    after_task_publish.connect(receive)
if options.log_file:
    app.log.setup_logging_subsystem(loglevel="INFO", logfile=options.log_file)
ways = {"scheduler": scheduler, "loop": loop, "batched": batched, "floor": floor}
ways |= {"raw": partial(written, has_run=False), "old": partial(written, is_due=True)}
bursts = []
for send in ways[options.way]():
    broker.delete(QUEUE)
    bursts.append({**measure(send, options), "sent": broker.llen(QUEUE)})
report(bursts=bursts)
