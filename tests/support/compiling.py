"""Messages of runs, made by `apply_async` and from templates, as in a batch of a beat.

What tells the two messages apart is a defect, but for the delivery tag, which is taken over from one to the
other. If the time when they are made goes into them, let the app's clock stand still.
"""

from __future__ import annotations

import json
import uuid
from datetime import datetime, timedelta, timezone
from typing import Any

from celery import Celery

from redbeat import RedBeatScheduler
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.delivery.broker import Broker
from redbeat.delivery.guard import find_obstacle
from redbeat.delivery.placeholders import Call, RunValues
from redbeat.delivery.templates import MessageTemplate, Templates
from redbeat.policy.messages import headers_of
from redbeat.policy.policy import Policy
from redbeat.store.records import Push

DUE = datetime(2030, 1, 2, 3, 4, 5, 678_901, tzinfo=timezone.utc)


class Compiling:
    """The templates of an app, and a scheduler that makes the messages to compare with.

    Attributes:
        samples: the values of each sample, in order.
    """

    def __init__(self, app: Celery) -> None:
        self.app = app
        self.samples: list[RunValues] = []
        self.scheduler = RedBeatScheduler(app, lazy=True)
        self.broker = Broker(app, app.amqp.Producer, timeout_seconds=30)
        self.templates = Templates(app)

    def begin_batch(self) -> None:
        producer = self.broker.producer
        self.broker.begin_batch()
        self.templates.begin_batch(producer, self.broker.outbox or self.broker.confirms)

    def compile(self, call: Call) -> MessageTemplate | str:
        """The template of a call, or why there is none, as beat finds out."""
        return find_obstacle(self.app, self.scheduler) or self.compile_only(call)

    def compile_only(self, call: Call) -> MessageTemplate | str:
        """The same, whatever the guard says of the scheduler."""

        def send_sample(values: RunValues) -> Any:
            self.samples.append(values)
            return self.send(call, values)

        return self.templates.find(call, send_sample)

    def send(self, call: Call, values: RunValues) -> Any:
        """Send a run by the scheduler's `apply_async`, as the planner prepares it."""
        run = {"redbeat_entry": call.name, "redbeat_due": values.due, **call.policy_headers}
        headers = {**(call.options.get("headers") or {}), **run}
        options = {**call.options, "headers": headers, "task_id": values.task_id}
        if values.expires is not None:
            options["expires"] = values.expires
        entry = Entry(call.name, call.task, 60, call.args, call.kwargs, options=options, app=self.app)
        return self.scheduler.apply_async(entry, producer=self.broker.producer, advance=False)

    def pushes_of_apply_async(self, call: Call, values: RunValues) -> tuple[Push, ...]:
        """Return the pushes of `apply_async`."""
        with self.broker.sending(values.expiration_seconds) as sent:
            self.send(call, values)
        return tuple(sent.pushes)

    def make_both(self, call: Call, values: RunValues | None = None) -> tuple[Any, Any]:
        """The list writes of a run, by `apply_async` and by a template; or the reason why there is none."""
        values = values or values_of(call)
        message = self.compile(call)
        if isinstance(message, str) or not self.templates.is_current(message):
            return "", message
        made = self.pushes_of_apply_async(call, values)
        tag = json.loads(str(made[0].value))["properties"]["delivery_tag"]
        return made, message.fill(values, tag)


def values_of(call: Call, due: datetime = DUE) -> RunValues:
    """RunValues of a run of `call`, due at `due`."""
    run = call.options.get("task_id") or str(uuid.uuid4()), due.isoformat(timespec="microseconds")
    limits = [one for one in (call.lifetime_seconds, call.queue_seconds) if one is not None]
    if not limits:
        return RunValues(*run, None, None)
    return RunValues(*run, due + timedelta(seconds=min(limits)), min(limits) - 0.25)


def call_of(
    name: str = "entry",
    task: str = "echo",
    args: list[Any] | None = None,
    kwargs: dict[str, Any] | None = None,
    lifetime_seconds: float | None = None,
    queue_seconds: float | None = None,
    **options: Any,
) -> Call:
    """A call of the task, by default without arguments."""
    headers = headers_of(Policy(expires_after=lifetime_seconds), queue_seconds)
    return Call(name, task, args or [], kwargs or {}, options, lifetime_seconds, queue_seconds, headers)
