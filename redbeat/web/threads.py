"""The threads in which pages and verbs run, as they wait for Redis: a few, and a bounded queue before them.

Invariant: however many requests come at once, no more than THREADS of them ask Redis at a time, so that the
beats' own requests aren't held up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

from anyio import CapacityLimiter, Semaphore, fail_after, to_thread

from redbeat.connection.client import get_hasty_redis, using_client

Item = TypeVar("Item")

THREADS = 4
#: how long Redis has to answer one command of a page or a verb
PATIENCE_SECONDS = 5.0
#: how many requests wait for a thread at most, and for how long
MAX_WAITING, MAX_WAITING_SECONDS = 200, 20.0


class TooBusy(Exception):
    """There are more requests than can be answered."""


class HastyClient:
    """The client of one dashboard's requests, which gives up soon: who looks at a page doesn't wait for long.

    Arguments:
        app: the Celery app, whose own client may wait for Redis as long as its settings say.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._made: Any = None

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Within this, let it stand in for the app's client."""
        with using_client(self._app, self._get()):
            yield

    def _get(self) -> Any:
        if self._made is None:
            # that of a cluster connects at once: several threads may make one, so that none waits for another
            self._made = get_hasty_redis(self._app, PATIENCE_SECONDS)
        return self._made


class Threads:
    """Some threads of one dashboard. They belong to one event loop, that of its first request.

    Arguments:
        client: what they ask Redis with; None: they ask nothing.
    """

    def __init__(self, client: HastyClient | None) -> None:
        self._client = client
        self._free: Semaphore | None = None  # can't be made before the event loop runs
        self._limiter: CapacityLimiter | None = None
        self._waiting = 0

    async def run(self, call: Callable[..., Item], *arguments: object) -> Item:
        """Return ``call(*arguments)``, made in a thread.

        Raises:
            TooBusy: it would have to wait too long.
        """
        if self._free is None or self._limiter is None:
            self._free, self._limiter = Semaphore(THREADS), CapacityLimiter(THREADS)
        if self._waiting >= MAX_WAITING:
            raise TooBusy
        self._waiting += 1
        try:
            with fail_after(MAX_WAITING_SECONDS):
                await self._free.acquire()
        except TimeoutError:
            raise TooBusy from None
        finally:
            self._waiting -= 1
        # a caller that is cancelled leaves its thread at work, and that still has its place
        return await asyncio.shield(asyncio.create_task(self._run(self._free, call, *arguments)))

    async def _run(self, free: Semaphore, call: Callable[..., Item], *arguments: object) -> Item:
        try:
            return await to_thread.run_sync(self._call, call, *arguments, limiter=self._limiter)
        finally:
            free.release()

    def _call(self, call: Callable[..., Item], *arguments: object) -> Item:
        with self._client.in_place() if self._client is not None else nullcontext():
            return call(*arguments)
