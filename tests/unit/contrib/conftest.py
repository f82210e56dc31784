"""Django, set up once in a process."""

from __future__ import annotations

from weakref import WeakSet

import pytest
from celery import _state

pytest.importorskip("django")

from tests.support import django_site as django_site  # sets Django up


@pytest.fixture(autouse=True)
def process_without_other_apps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the apps of other tests: one of them may be that of a worker."""
    monkeypatch.setattr(_state, "_apps", WeakSet())
