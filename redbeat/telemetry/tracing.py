"""OpenTelemetry: a span of each run, from when it was due until its message was on its queue.

::

    create <queue>    one for each run; its context is in the message, so workers' spans are below it
    send <queue>      one for each batch, linked with its runs; of a single run it is below that run's span

Only the API is used, and only where the process has a tracer provider. Without one nothing of it is imported,
and nothing happens.

A span is begun when its message is made, and ended, and so told of, when the run has been sent, or couldn't
be. Spans of runs that aren't sent after all are dropped, and never ended. All times are by Redis' clock.

Invariant: no run waits for the end of its span, as a batch's spans are ended once it is recorded. Where the
provider raises, runs are sent without spans.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from redbeat.config.masking import mask_secrets
from redbeat.delivery.broker import Peer
from redbeat.delivery.placeholders import TraceHeaders
from redbeat.delivery.tracers import find_provider, is_apis, sending_run, stand_in, step_aside
from redbeat.log.events import TELEMETRY_FAILED
from redbeat.log.logger import logger
from redbeat.log.text import shorten
from redbeat.process.memory import Memory
from redbeat.process.signals import hold_interrupts, let_through
from redbeat.telemetry.figures import find_version

if TYPE_CHECKING:  # where OpenTelemetry isn't installed, it can't be imported
    from redbeat.telemetry.spans import RunSpan, Spans

#: after how long a provider that has raised is tried again, seconds
RETRY_SECONDS = 60.0


class Tracing:
    """The spans of one beat's runs.

    Arguments:
        find_now: returns the time by Redis' clock, UNIX seconds.
        find_peer: returns which broker messages go to.

    Attributes:
        provider: of OpenTelemetry; None: there is none.
        headers: what messages carry of their spans; None: there are no spans.
        runs: the spans of this batch that are to be ended.
    """

    def __init__(self, find_now: Callable[[], float], find_peer: Callable[[], Peer]) -> None:
        self._find_now = find_now
        self._find_peer = find_peer
        self.provider: Any = None
        self._spans: Spans | None = None
        self.headers: TraceHeaders | None = None
        self._retry_at = 0.0  # monotonic
        self._began_at = 0.0
        self.runs: list[RunSpan] = []
        self._said = Memory[str, str]()

    # -- as a part of what beat shows

    def look(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Give Celery's instrumentor its place back."""
        self._forget()

    # -- in the ticks

    def refresh(self) -> None:
        """Begin a batch: find out whether there are spans, and what messages carry of them."""
        provider = find_provider()
        if provider is None:
            if self.provider is not None:
                self._forget()
            return
        is_known = provider is self.provider
        if is_known and self._spans is None and time.monotonic() < self._retry_at:
            return
        try:
            from redbeat.telemetry import spans

            propagator = spans.current_propagator()
            if not is_known or self._spans is None or self._spans.propagator is not propagator:
                self.provider, self._spans, self.headers = provider, None, None
                tracer = provider.get_tracer("redbeat", find_version(), spans.SCHEMA)
                if is_apis(tracer):  # as with OTEL_SDK_DISABLED
                    self._give_up(None)
                    return
                self._spans = spans.Spans(tracer, propagator)
                self.headers = self._spans.headers
            stand_in()
            self._began_at = self._find_now()
        except BaseException as exc:  # noqa: BLE001 - the provider's code may raise anything
            let_through(exc)
            self._give_up(exc)

    def _forget(self) -> None:
        self.provider = self._spans = self.headers = None
        step_aside()

    def _give_up(self, exc: BaseException | None) -> None:
        """Send runs without spans for a while, as the provider has raised ``exc``, or makes no spans."""
        self._spans = self.headers = None
        self._retry_at = time.monotonic() + RETRY_SECONDS
        if exc is not None:
            self._report("Runs are sent without spans now", exc)

    def begin(
        self, entry: str, task: str, task_id: str, due: str, due_at: float, queue: str = ""
    ) -> RunSpan | None:
        """Begin the span of a run; None: it has none.

        Arguments:
            entry: the entry's name.
            due, due_at: when the run is due, as in its header, and in UNIX seconds.
            queue: '': it isn't known yet.
        """
        spans = self._spans
        if spans is None:
            return None
        try:
            system = self._find_peer().system
            run = spans.begin(system, entry, task, task_id, due, due_at, queue, self._note)
        except BaseException as exc:  # noqa: BLE001 - the provider's code may raise anything
            let_through(exc)
            self._give_up(exc)
            return None
        if run is None:
            self._give_up(None)
        return run

    def _note(self, run: RunSpan) -> float:
        self.runs.append(run)
        return self._find_now()

    @contextmanager
    def sending(self, run: RunSpan | None = None) -> Iterator[None]:
        """Let the span of ``run`` be the current one in the block, which calls ``apply_async``."""
        if self._spans is None:
            yield
            return
        from opentelemetry.trace import use_span

        current: Any = nullcontext()
        if run is not None:
            current = use_span(run.span, record_exception=False, set_status_on_exception=False)
        with sending_run(), current:
            yield

    def end_batch(self) -> None:
        """End the spans of the batch, which hands them to the provider's exporter."""
        runs, self.runs = self.runs, []
        if not runs or self._spans is None:
            return
        try:
            with hold_interrupts():  # not while something is locked
                self._spans.end(runs, self._began_at, self._find_peer())
        except BaseException as exc:  # noqa: BLE001 - the provider's code may raise anything
            let_through(exc)
            self._report("Spans are lost", exc)

    def _report(self, what: str, exc: BaseException) -> None:
        """Log what has become of spans because of ``exc``: once, until its text changes."""
        words = shorten(mask_secrets(f"{type(exc).__name__}: {exc}"))
        if self._said.is_news(what, words):
            extra = TELEMETRY_FAILED.of(part="OpenTelemetry", reason=f"{what}: {words}")
            logger.error("beat: OpenTelemetry: %s: %s", what, words, extra=extra)
