"""A client of asyncio's as code sees it that isn't written for asyncio: what would be awaited is returned.

Invariant: no more commands are on their way than the client has turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from inspect import isawaitable
from typing import Any

import redis.exceptions

from redbeat.connection.waiting import wait_for


class WaitingClient:
    """A proxy of a client of asyncio's, for code that a task drives (``waiting.drive``).

    Arguments:
        turns: of all that use the client.
    """

    #: our code looks for none of these where the connections aren't its own: the client ends a connection
    #: itself if it is interrupted before the reply has been read
    connection = connection_pool = None

    def __init__(self, client: Any, turns: asyncio.Semaphore) -> None:
        self._client = client
        self._turns = turns

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._client, name)
        return partial(self._call, value) if callable(value) else value

    def _call(self, method: Any, *args: Any, **kwargs: Any) -> Any:
        return wait_for(in_turn(self._turns, partial(method, *args, **kwargs)))

    def pipeline(self, *args: Any, **kwargs: Any) -> WaitingPipeline:
        """Return a pipeline; its ``execute`` is waited for."""
        return WaitingPipeline(self._client.pipeline(*args, **kwargs), self._turns)

    def close(self) -> None:
        """Do nothing: other tasks use the client, too."""


class WaitingPipeline:
    """The same of a pipeline, whose commands are only noted until it is executed."""

    def __init__(self, pipeline: Any, turns: asyncio.Semaphore) -> None:
        self._pipeline = pipeline
        self._turns = turns

    def __enter__(self) -> WaitingPipeline:
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Do nothing: a pipeline has a connection while it is executed only."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pipeline, name)

    def execute(self, raise_on_error: bool = True) -> Any:
        """Send the commands, and return their replies."""
        execute = partial(self._pipeline.execute, raise_on_error=raise_on_error)
        return wait_for(in_turn(self._turns, execute))


#: a client of asyncio's says of whatever keeps it from connecting that it can't connect. What was refused, or
#: is a wrong option, needn't be tried again
_TOLD_AS_ITS_CAUSE = (redis.exceptions.RedisError, TypeError, ValueError)


async def in_turn(turns: asyncio.Semaphore, call: Callable[[], Any]) -> Any:
    """Return what ``call`` returns, or what that returns when it is awaited, as soon as it is its turn."""
    async with turns:
        try:
            answer = call()
            return await answer if isawaitable(answer) else answer
        except redis.exceptions.ConnectionError as exc:
            if not isinstance(exc.__cause__, _TOLD_AS_ITS_CAUSE) or isinstance(exc.__cause__, OSError):
                raise
            cause = exc.__cause__
    raise cause  # here, as there it would get ``exc`` for its context, of which it is the cause
