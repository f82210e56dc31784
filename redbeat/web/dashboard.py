"""One dashboard: its app, its settings, and what all its requests share.

Invariant: however many requests come at once, no more than THREADS of them ask Redis at a time, so that the
beats' own requests aren't held up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, TypeVar

from anyio import CapacityLimiter, to_thread

from redbeat.config.config import RedBeatConfig, ensure_conf
from redbeat.connection.client import get_hasty_redis, using_client
from redbeat.store.changes import ChangeRecords
from redbeat.store.store import Store
from redbeat.web.access.authentication import BasicAuth, Link, WayIn, token_in_cookie
from redbeat.web.jobs import Jobs, TooBusy
from redbeat.web.live import News

Item = TypeVar("Item")

#: how many requests ask Redis at a time, how many wait for that, and how long Redis has for one command
THREADS, MAX_WAITING, PATIENCE_SECONDS = 4, 200, 5.0
#: how old what pages know of the layout may be: they mostly read, so nothing else tells them of a change
LAYOUT_SECONDS = 2.0


class Dashboard:
    """The dashboard of one app in one process, in the event loop of its first request.

    Arguments:
        app: the Celery app.
        ways_in: how its users show who they are; the first that knows one counts.
        is_live: pages get news over a stream; False: they ask for it, as a stream would hold a thread of the
            server.
        is_read_only: users may only read.
        place: tells its cookies from those of another dashboard under the same name.
    """

    def __init__(
        self, app: Any, ways_in: Sequence[WayIn], *, is_live: bool, is_read_only: bool, place: str
    ) -> None:
        self.app = app
        self.config: RedBeatConfig = ensure_conf(app)
        self.config.look_seconds = LAYOUT_SECONDS
        self.ways_in = ways_in
        self.is_live = is_live
        self.is_read_only = is_read_only
        self.place = place
        self._page_limiter = CapacityLimiter(THREADS)
        self._heavy = threading.Lock()
        #: who sends a request is found out without waiting for pages
        self.user_limiter = CapacityLimiter(THREADS)
        self.jobs = Jobs(lambda: ChangeRecords(Store(app)))
        self.news = News(self)
        #: the printed link; None: there is none
        self.link = next((way for way in ways_in if isinstance(way, Link)), None)
        #: an unknown user may type a token, or is asked for a name and a password by their browser
        self.takes_token = token_in_cookie in ways_in
        self.takes_password = any(isinstance(way, BasicAuth) for way in ways_in)

    async def run(
        self, call: Callable[..., Item], *arguments: object, limiter: CapacityLimiter | None = None
    ) -> Item:
        """Return ``call(*arguments)``, made in a thread, with a client of Redis that gives up soon.

        Raises:
            TooBusy: too many requests are waiting.
        """
        limiter = limiter or self._page_limiter
        if limiter.statistics().tasks_waiting >= MAX_WAITING:
            raise TooBusy
        return await to_thread.run_sync(self.in_haste, call, *arguments, limiter=limiter)

    def in_haste(self, call: Callable[..., Item], *arguments: object) -> Item:
        """Return ``call(*arguments)``, with a client of Redis that gives up soon in place of the app's."""
        with using_client(self.app, self._client):
            return call(*arguments)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Carry out a heavy operation, one at a time.

        Raises:
            TooBusy: another one is at work.
        """
        if not self._heavy.acquire(blocking=False):
            raise TooBusy
        try:
            yield
        finally:
            self._heavy.release()

    @cached_property
    def _client(self) -> Any:
        return get_hasty_redis(self.app, PATIENCE_SECONDS)
