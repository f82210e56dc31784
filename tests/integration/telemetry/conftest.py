"""A provider of spans for one test, as if the process had been made with it."""

from __future__ import annotations

import pytest

from tests.support.spans import Spans


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Spans:
    """What this process records; its provider may be set once in a process, but for a test."""
    recorded = Spans()
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", recorded.provider())
    return recorded
