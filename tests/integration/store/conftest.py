"""A server with the users that the documentation describes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.rights import CLAIMS, Ground, documented_rights
from tests.support.servers import Server


@pytest.fixture
def ground(server: Server) -> Iterator[Ground]:
    """All documented users, with their rights; the test's own is the writer."""
    with server.client(db=0) as admin:
        ground = Ground(server, admin, "writer")
        for user in CLAIMS:
            ground.let(documented_rights(user), user)
        yield ground
