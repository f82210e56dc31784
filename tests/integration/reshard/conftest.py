"""A client for keys that are no text."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from tests.support.servers import Server


@pytest.fixture
def raw(server: Server) -> Iterator[redis.Redis]:
    """A client on the database of the schedule that decodes nothing."""
    with server.client(db=1, decode_responses=False) as client:
        yield client
