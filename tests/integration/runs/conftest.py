"""Runs in progress, on a server."""

from __future__ import annotations

import pytest
import redis
from celery import Celery

from tests.support.progress import Progress


@pytest.fixture
def progress(app: Celery, client: redis.Redis) -> Progress:
    return Progress(app, client)
