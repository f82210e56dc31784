"""A Redis broker without a server: kombu's own transport, on a fake one of this process."""

from __future__ import annotations

from typing import Any

import fakeredis
from kombu.transport import redis as kombu_redis

#: for `kombu.transport.TRANSPORT_ALIASES`
FAKE_TRANSPORT = f"{__name__}:FakeTransport"

_SERVER = fakeredis.FakeServer()


class FakeChannel(kombu_redis.Channel):
    """kombu's channel, but for the server."""

    def _create_client(self, asynchronous: bool = False) -> Any:
        return fakeredis.FakeRedis(server=_SERVER)


class FakeTransport(kombu_redis.Transport):
    Channel = FakeChannel


def empty_broker() -> fakeredis.FakeRedis:
    """A client of the fake broker, which holds nothing any more."""
    client = fakeredis.FakeRedis(server=_SERVER, decode_responses=True)
    client.flushall()
    return client
