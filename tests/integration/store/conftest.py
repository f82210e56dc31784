"""A server with the users that the documentation describes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.rights import CLAIMS, Ground, documented_rights
from tests.support.servers import Server


def rule_of(user: str, server: Server) -> str:
    """The rule of a user for this server: Redis 6.2 has no selectors."""
    return "dashboard_6_2" if user == "dashboard" and server.version.startswith("6.") else user


@pytest.fixture
def ground(server: Server) -> Iterator[Ground]:
    """All documented users, with their rights; the test's own is the writer."""
    with server.client(db=0) as admin:
        ground = Ground(server, admin, "writer")
        for user in CLAIMS:
            ground.let(documented_rights(rule_of(user, server)), user)
        yield ground
