"""News for open pages: a stream that says when something has changed, so that a page asks for what it shows.

Owns one look at Redis every LOOK_SECONDS while at least one page is open, however many there are. Invariants:
the stream itself tells nothing of the schedule: what a page may see is decided when it asks; and it ends
after STREAM_SECONDS, or when its server ends: the browser asks for another one, and is let in or not.
"""

from __future__ import annotations

import asyncio
import math
import signal
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from redbeat.access import Right
from redbeat.errors import RedBeatError
from redbeat.leadership.status import status_in
from redbeat.store.audit import read_audit_records
from redbeat.store.events import read_last_ids
from redbeat.store.members import count_members, first_members
from redbeat.store.store import Store
from redbeat.web.jobs import TooBusy

if TYPE_CHECKING:
    from redbeat.web.dashboard import Dashboard

#: how often it is looked whether something has changed, and how often pages are told even if nothing has: the
#: times on them move on; seconds
LOOK_SECONDS, AT_LEAST_SECONDS = 2.0, 15.0
#: for how long a page may be on its way: a change in this time before it asks for news may not be on it
ON_ITS_WAY_SECONDS = 4.0
#: how many pages may be open at a time; more ask by themselves
MAX_STREAMS = 200
#: after how long a stream ends, seconds, and when its page asks for the next one, milliseconds
STREAM_SECONDS, RETRY_MS = 30.0, 1000


class News:
    """The news for the open pages of one dashboard."""

    def __init__(self, dashboard: Dashboard) -> None:
        self._dashboard = dashboard
        self._waiting: set[asyncio.Event] = set()
        self._task: asyncio.Task[None] | None = None
        self._changed_at = -math.inf

    @property
    def is_full(self) -> bool:
        """Whether no more streams are possible."""
        return len(self._waiting) >= MAX_STREAMS

    async def stream(self) -> AsyncIterator[str]:
        """Yield the events for one page."""
        changed, ends_at = asyncio.Event(), time.monotonic() + STREAM_SECONDS
        self._waiting.add(changed)
        try:
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._look())
            elif time.monotonic() - self._changed_at < ON_ITS_WAY_SECONDS:
                changed.set()
            yield f"retry: {RETRY_MS}\n\n"
            while time.monotonic() < ends_at and not is_server_ending():
                try:
                    await asyncio.wait_for(changed.wait(), AT_LEAST_SECONDS)
                    changed.clear()
                    yield "event: change\ndata: \n\n"
                except asyncio.TimeoutError:
                    yield "event: tick\ndata: \n\n"
        finally:
            self._waiting.discard(changed)

    async def _look(self) -> None:
        last: object = None
        while self._waiting:
            try:
                found: object = await self._dashboard.run(self._mark)
            except (RedBeatError, TooBusy) as exc:
                found = type(exc)  # that Redis has gone is news, too, and that it is back
            # the first time, too, as nobody knows what has changed before
            if found != last or is_server_ending():
                self._changed_at = time.monotonic()
                for changed in self._waiting:
                    changed.set()
            last = found
            await asyncio.sleep(LOOK_SECONDS)

    def _mark(self) -> object:
        """Return something that is another value whenever the schedule, a run or a beat has changed."""
        store = Store(self._dashboard.app)
        found = status_in(store)
        return (
            found.leader and found.leader.token,
            [one.leader and one.leader.token for one in found.shards],
            found.silent_leader is not None,
            [(one.host, one.pid) for one in found.standbys],
            found.backlog > 0,
            count_members(store),
            first_members(store, 1),
            read_last_ids(store),
            read_audit_records(store, count=1),  # somebody has changed what isn't due for long
        )


def is_server_ending() -> bool:
    """Return True if uvicorn has got a signal to end: it waits for all answers then, and tells none of it."""
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return getattr(server, "should_exit", False) is True


async def _stream(request: Request) -> Response:
    dashboard: Dashboard = request.scope["redbeat.dashboard"]
    request.scope["redbeat.user"].require(Right.READ)
    if not dashboard.is_live or dashboard.news.is_full or request.method == "HEAD":
        return Response(status_code=204)  # a browser doesn't ask again then, and pages ask for themselves
    headers = {"X-Accel-Buffering": "no"}  # nginx would hold the news back
    return StreamingResponse(dashboard.news.stream(), headers=headers, media_type="text/event-stream")


ROUTES: list[BaseRoute] = [Route("/live", _stream, methods=["GET"])]
