"""Which functions count as Sentry's wrappers: its own, around what they wrap, and nobody else's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from redbeat.broker.wrappers import is_known_wrapper

sentrys = pytest.importorskip("sentry_sdk.integrations.celery")
wrap = getattr(sentrys, "_wrap_task_run", None) or sentrys._wrap_apply_async  # noqa: SLF001 - as in 2.0


def original() -> None:
    """What is wrapped."""


def others(function: Callable[[], None]) -> Callable[[], None]:
    """A wrapper of another library, which forgets one of its variables."""
    forgotten = 1

    def wrapper(*args: Any) -> Any:
        return function(*args) if args else forgotten  # noqa: F821

    del forgotten
    return wrapper


def test_only_sentrys_wrapper_around_the_original_is_known() -> None:
    task: Any = type("Task", (), {})()
    wrapped = wrap(original)
    assert is_known_wrapper(wrapped, original)
    assert is_known_wrapper(wrap(wrapped), original)
    assert not is_known_wrapper(wrapped, task)
    assert not is_known_wrapper(others(original), original)
    assert not is_known_wrapper(wrap(others(original)), original)
    assert not is_known_wrapper(original, original)
    assert not is_known_wrapper(None, original)
