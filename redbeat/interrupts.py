"""Holding back the signals that end beat, for steps that mustn't be cut in two."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["hold_interrupts"]


@contextmanager
def hold_interrupts() -> Iterator[None]:
    """Let SIGTERM and SIGINT arrive when the block is done, where the platform can."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
