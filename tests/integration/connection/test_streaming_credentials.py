"""A streaming credential provider renews its token from a thread of its own while beats run.

The module of each app holds such a provider. Every 0.2 s its thread makes a new token on the server, calls
redis-py's re-authentication, and removes the old token. It also ends connections, as a server does when a
token has ended. Those of an injected client it leaves, as redis-py then waits for a reply for ever.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from redis import credentials

from tests.support.apps import celery_beat, write_app
from tests.support.logs import has_traceback
from tests.support.polling import eventually
from tests.support.servers import Server

if not hasattr(credentials, "StreamingCredentialProvider"):
    pytest.skip("this redis-py has no streaming credentials", allow_module_level=True)

ROTATIONS = 25

PROVIDER = """
import os
import threading
import time

import redis
from redis.auth.token import SimpleToken
from redis.credentials import StreamingCredentialProvider

ADMIN = redis.Redis(host={host!r}, port={port}, db=0)


class Rotating(StreamingCredentialProvider):
    def __init__(self):
        self.callbacks = []
        self.token = "first"
        self.thread = None

    def get_credentials(self):
        if self.thread is None:
            self.thread = threading.Thread(target=self.rotate, daemon=True)
            self.thread.start()
        return "beat", self.token

    def on_next(self, callback):
        self.callbacks.append(callback)

    def on_error(self, callback):
        pass

    def is_streaming(self):
        return True

    def rotate(self):
        name = f"rotations:{{os.getpid()}}"
        while True:
            time.sleep(0.2)
            count = ADMIN.incr(name)
            before, token = self.token, f"token-{{os.getpid()}}-{{count}}"
            ADMIN.acl_setuser("beat", enabled=True, passwords=[f"+{{token}}"])
            self.token, now = token, time.time() * 1000
            for callback in list(self.callbacks):
                try:
                    callback(SimpleToken(self.token, now + 60_000, now, {{"oid": "beat"}}))
                except Exception as exc:
                    ADMIN.rpush("refused", repr(exc))
            if count > 1:
                ADMIN.acl_setuser("beat", enabled=True, passwords=[f"-{{before}}"])
            if count % 5 == 0 and is_ending:
                ADMIN.execute_command("CLIENT", "KILL", "USER", "beat")


provider, is_ending = Rotating(), True
"""

OPTIONS = """
app.conf.redbeat_redis_options = {{"credential_provider": provider, "protocol": {protocol}}}
"""

INJECTED = """
is_ending = False
app.redbeat_redis = redis.Redis(
    host={host!r}, port={port}, db=1, protocol={protocol}, credential_provider=provider
)
"""


@pytest.mark.parametrize("given", [OPTIONS, INJECTED], ids=["as an option", "in an injected client"])
@pytest.mark.parametrize("protocol", [2, 3])
def test_rotating_credentials_end_no_beat_and_wake_ups_still_arrive(
    server: Server, tmp_path: Path, protocol: int, given: str
) -> None:
    with server.client() as admin, server.client(db=1) as schedule:
        admin.acl_setuser(
            "beat", enabled=True, passwords=["+first"], keys="*", channels="*", categories=["+@all"]
        )
        source = (PROVIDER + given).format(host=server.host, port=server.port, protocol=protocol)
        url = f"redis://{server.host}:{server.port}/1"
        write_app(tmp_path, "module", server.url(0), extra=source, redbeat_redis_url=url)
        first = celery_beat(tmp_path, "module")
        with first:
            first.wait_for("beat: Acquired lock")
            with celery_beat(tmp_path, "module") as second:
                beats = [first, second]

                def are_rotated() -> bool:
                    assert all(beat.is_running for beat in beats), [beat.output() for beat in beats]
                    counts = [admin.get(f"rotations:{beat.pid}") for beat in beats]
                    return all(int(count or 0) >= ROTATIONS for count in counts)

                eventually(are_rotated, timeout=60)
                eventually(lambda: schedule.publish("redbeat::wake", "x") == 2)
            assert second.returncode == 0
        assert first.returncode == 0
        for beat in beats:
            assert not has_traceback(beat.output()), beat.output()
        admin.acl_deluser("beat")
