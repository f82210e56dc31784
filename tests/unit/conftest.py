"""What the unit tests share: apps that reach no server, and one whose schedule is in a fake Redis."""

from __future__ import annotations

import pytest
from celery import Celery
from hypothesis import settings

from tests.faults.rounds import IS_LONG
from tests.support.ticks import fake_redis_app, memory_app

# What fails at random can be repeated: the failure prints how (`@reproduce_failure`).
settings.register_profile("redbeat", print_blob=True, deadline=None, max_examples=100 if IS_LONG else 40)
settings.load_profile("redbeat")


@pytest.fixture
def app() -> Celery:
    """Nothing listens where its schedule should be: a test that connects fails."""
    return memory_app(redbeat_redis_url="redis://127.0.0.1:1/0")


@pytest.fixture
def fake_app() -> Celery:
    """Its `redbeat_redis` is injected: a fake that runs the scripts."""
    return fake_redis_app()
