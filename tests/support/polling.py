"""Waiting for a condition with a deadline, never for a length of time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from .deadlines import PATIENCE_SECONDS, patience

Value = TypeVar("Value")


def eventually(
    check: Callable[[], Value],
    timeout: float = PATIENCE_SECONDS,
    interval: float = 0.02,
    message: str = "the condition did not come true",
    retry_on: tuple[type[Exception], ...] = (AssertionError,),
) -> Value:
    """Return the first truthy value of `check()`, looking every `interval` seconds for `timeout` seconds.

    `timeout` is for a quiet machine; on one that isn't, it waits longer (`deadlines`).

    An exception of `retry_on` inside `check` counts as "not yet". Raises AssertionError with the last value
    or exception when the time is over; `check` is always called once more after the deadline has passed.
    """
    timeout = patience(timeout)
    deadline = time.monotonic() + timeout
    while True:
        is_last = time.monotonic() >= deadline
        try:
            value = check()
        except retry_on as exc:
            if is_last:
                raise AssertionError(f"{message} within {timeout:g} s; last: {exc!r}") from exc
        else:
            if value:
                return value
            if is_last:
                raise AssertionError(f"{message} within {timeout:g} s; last: {value!r}")
        time.sleep(interval)
