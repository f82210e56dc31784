"""A server with the users that the documentation describes, or with one that has few rights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
import redis

from tests.integration.store.rights import CLAIMS, Ground, documented_rights
from tests.support.servers import Server


def rights_on(server: Server, user: str) -> list[str]:
    """The words of a user for this server: Redis 6.2 has no selectors."""
    if not server.version.startswith("6."):
        return documented_rights(user)
    rule = documented_rights("dashboard_6_2" if user == "dashboard" else user)
    return [word for word in rule if word not in ("(", ")")]


@pytest.fixture
def ground(server: Server) -> Iterator[Ground]:
    """All documented users, with their rights; the test's own is the writer."""
    with server.client(db=0) as admin:
        ground = Ground(server, admin, "writer")
        for user in CLAIMS:
            ground.let(rights_on(server, user), user)
        yield ground


#: connects to the database of the schedule as a user who has these rights
MakeLimited = Callable[..., redis.Redis]


@pytest.fixture
def limited(server: Server) -> Iterator[MakeLimited]:
    with server.client() as admin, ExitStack() as made:

        def make(*rights: str) -> redis.Redis:
            admin.execute_command("ACL SETUSER", "limited", "reset", "on", ">secret", *rights)
            return made.enter_context(server.client(db=1, username="limited", password="secret"))

        yield make
        admin.execute_command("ACL DELUSER", "limited")
