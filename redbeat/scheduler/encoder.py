"""Encoders: the message of a run is filled into a template, or made by Celery.

Invariant: a message from a template is the one that Celery would make, byte for byte.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from logging import INFO, WARNING
from typing import Any

from celery.beat import SchedulingError

from redbeat.delivery.amqp import Publication
from redbeat.delivery.broker import Broker
from redbeat.delivery.failures import reason_of
from redbeat.delivery.guard import in_words
from redbeat.delivery.placeholders import NO_HEADERS, Call, RunValues, UnfitError, has_own_context
from redbeat.delivery.templates import CHECK_SECONDS, MessageTemplate, Templates
from redbeat.delivery.tracers import find_provider
from redbeat.entries.entry import RedBeatSchedulerEntry, load_entry
from redbeat.errors import EntryError, RedBeatError
from redbeat.log.events import MESSAGES_COMPILED, MESSAGES_ONE_BY_ONE
from redbeat.log.logger import logger
from redbeat.process.signals import let_through
from redbeat.scheduler.decisions import Send
from redbeat.scheduler.overrides import RunDeclined
from redbeat.scheduler.planner import entry_to_send, options_of_run
from redbeat.telemetry.figures import BeatFigures
from redbeat.telemetry.tracing import Tracing

#: an obstacle that is not reported, because something else is
AWAY = "the broker is away"


class Encoder:
    """Makes the messages of one beat.

    Arguments:
        hooks: the scheduler, whose ``apply_async`` makes messages.
    """

    def __init__(self, hooks: Any, broker: Broker, tracing: Tracing, figures: BeatFigures) -> None:
        self._hooks = hooks
        self._broker = broker
        self._tracing = tracing
        self._figures = figures
        self._templates = Templates(hooks.app, hooks)
        self._producer: Any = None
        self._reported = AWAY

    def begin(self) -> None:
        """Begin a batch: connect to the broker, and find out whether templates may be used."""
        broker, templates = self._broker, self._templates
        if find_provider() is not None or self._tracing.provider is not None:
            self._tracing.refresh()
        if broker.is_away:
            templates.obstacle = AWAY
            return
        try:
            producer = self._producer = self._hooks.producer  # it connects, and makes the outbox
            templates.begin_batch(producer, broker.outbox or broker.confirms, self._tracing.headers)
        except RedBeatError:  # about the lock
            raise
        except BaseException as exc:  # noqa: BLE001 - sending raises it again, and knows what to do
            let_through(exc)
            logger.debug("beat: Templates cannot be used now: %r", exc)
            templates.obstacle = AWAY if broker.is_of_connection(exc) else reason_of(exc)
        obstacle = templates.obstacle
        if obstacle not in (AWAY, self._reported):
            extra = MESSAGES_ONE_BY_ONE.of(reason=obstacle) if obstacle else MESSAGES_COMPILED.of()
            level = INFO if self._reported else WARNING  # '': they were compiled until now, which is quicker
            logger.log(level, "beat: Messages: %s.", in_words(obstacle), extra=extra)
            self._reported = obstacle

    @property
    def uses_templates(self) -> bool:
        """Whether messages of this batch may have templates."""
        return not self._templates.obstacle

    # -- from a template

    def fill(self, sends: Sequence[Send]) -> bool:
        """Make the messages of those runs that have a template: their ``pushes``.

        Returns True if all are made, and nothing else is called for them.
        """
        if self._templates.obstacle:
            return False
        # spans are begun in a loop of their own: amid the other steps that takes longer, up to twice as long
        found = list[Send]()
        for send in sends:
            known, expires_in = send.known, send.expiration_seconds
            if known is None or (expires_in is not None and expires_in <= 0):  # Celery warns of that
                continue
            template = known.template
            if template is None or not self._templates.is_current(template, CHECK_SECONDS):
                template = known.template = self._make_template(send)
            if template is not None:
                send.template = template
                found.append(send)
        if self._tracing.headers is not None:
            for send in found:
                if send.template.kind.run.trace_names is not None and send.span is None:
                    self._begin_span(send, send.template.kind.destination)
        made, confirms = 0, self._broker.confirms
        tag = str(uuid.uuid4())[:24]  # of version 4; the last twelve digits differ
        for number, send in enumerate(found):
            template, run = send.template, send.template.kind.run
            trace = NO_HEADERS if send.span is None else send.span.headers
            values = RunValues(send.task_id, send.due, send.expires, send.expiration_seconds, trace)
            try:
                if not self._templates.is_current(template) or (run.trace_names and send.span is None):
                    raise UnfitError("the message of another entry differs")
                if confirms is None:
                    send.pushes = template.fill(values, f"{tag}{number:012x}")
                else:
                    send.frames = template.frames(confirms, values)
            except Exception as exc:  # noqa: BLE001 - Celery raises it again
                logger.debug("beat: %s has no template: %r", send.name, exc)
                send.template = None
                continue
            if run.expires_seconds is not None:
                expires_at = float(send.nominal) + run.expires_seconds
                send.valid_until = min(send.valid_until, expires_at)
            made += 1
        self._figures.compiled += made
        return made == len(sends)

    def _begin_span(self, send: Send, queue: str = "") -> None:
        due = float(send.nominal)
        send.span = self._tracing.begin(send.name, send.task, send.task_id, send.due, due, queue)

    def is_current(self, send: Send) -> bool:
        """Return True if a message that was made in an earlier batch would be the same in this one."""
        known, template = send.known, send.template
        is_same = known is not None and known.template is template
        return is_same and self._templates.is_current(template)

    def _make_template(self, send: Send) -> MessageTemplate | None:
        known = send.known
        entry = known.entry
        if why_no_template(entry):
            return None
        call = Call(
            entry.name,
            entry.task,
            list(entry.args or ()),
            entry.kwargs or {},
            entry.options,
            known.timetable.bounds.expires_after,
            known.limit_seconds,
            send.headers,
        )

        def send_sample(values: RunValues) -> None:
            sample = load_entry(RedBeatSchedulerEntry, send.due_entry, self._hooks.app)
            run = replace(
                send,
                due=values.due,
                task_id=values.task_id,
                expires=values.expires,
                headers={**send.headers, **values.trace},
            )
            sample.options = options_of_run(run, sample.options)
            with self._tracing.sending():
                self._hooks.apply_async(sample, producer=self._producer, advance=False)

        try:
            found = self._templates.find(call, send_sample)
        except EntryError as exc:
            logger.debug("beat: %s has no template: %r", send.name, exc)
            return None
        return None if isinstance(found, str) else found

    # -- by Celery

    def make(self, send: Send, producer: Any, *, is_deferrable: bool = False) -> Publication:
        """Let Celery make the message of a run, and send it by ``producer``; return what is left to be done.

        Raises:
            RunDeclined: a subclass does not send it now.
            Exception: whatever Celery, kombu and the application's code raise.
        """
        entry = entry_to_send(send, self._hooks.Entry, self._hooks.app)
        is_asking = entry.message is None and self._hooks.asks_subclass
        with (
            self._broker.sending(send.expiration_seconds, is_deferrable=is_deferrable) as sent,
            self._tracing.sending(self._span_of(send, entry)),
        ):
            try:
                if is_asking:
                    score = send.commit.new_score
                    seconds = max(float(score) - float(send.nominal), 0.0) if isinstance(score, str) else 0.0
                    self._hooks.send_planned(entry, producer, seconds)
                else:
                    self._hooks.apply_async(entry, producer=producer, advance=False)
            except RunDeclined:
                raise
            except RedBeatError as exc:  # one that the application's code has raised, or let through
                raise SchedulingError(str(exc)) from exc
        self._figures.one_by_one += 1
        if send.span is not None:
            send.span.queue = self._broker.destination or send.span.queue
        send.events = [] if self._broker.outbox is None else self._broker.outbox.events
        return sent

    def _span_of(self, send: Send, entry: Any) -> Any:
        """Let the message carry its span's context; the one that it has, if it is sent again."""
        trace, options = self._tracing.headers, entry.options
        if entry.message is not None:  # it continues the trace in which it was stored
            return None
        if trace is not None and not has_own_context(options["headers"], trace.names):
            if send.span is None:
                self._begin_span(send)
            if send.span is not None:
                options["headers"] = {**options["headers"], **send.span.headers}
        return send.span


def why_no_template(entry: RedBeatSchedulerEntry) -> str:
    """Return why the messages of an entry have no template, whatever its task is; '': they may have one."""
    if type(entry) is not RedBeatSchedulerEntry:
        return f"its class is {type(entry).__qualname__}"
    return "the option 'task_id'" if "task_id" in entry.options else ""
