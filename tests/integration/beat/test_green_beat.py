"""A beat whose threads are gevent's or eventlet's ends as any other: no traceback, and the lock is free."""

from __future__ import annotations

import importlib.util
import signal
import sys
from pathlib import Path

import pytest
import redis

from tests.support.apps import write_app
from tests.support.logs import has_traceback
from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.schedule import LOCK
from tests.support.servers import Server

PATCHES = {
    "gevent": "from gevent import monkey; monkey.patch_all()",
    "eventlet": "import eventlet; eventlet.monkey_patch()",
}


@pytest.mark.parametrize("every", [0.5, 3600], ids=["busy", "idle"])
@pytest.mark.parametrize("library", PATCHES)
def test_it_ends_on_sigterm_without_a_traceback_and_releases_the_lock(
    valkey: Server, tmp_path: Path, library: str, every: float
) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} isn't installed")
    schedule = {"often": {"task": "echo", "schedule": every}}
    write_app(tmp_path, "module", valkey.url(0), redbeat_redis_url=valkey.url(1), beat_schedule=schedule)
    program = f"{PATCHES[library]}\nfrom celery.__main__ import main\nmain()"
    arguments = ["-A", "module", "beat", "-S", "redbeat.RedBeatScheduler", "-l", "INFO"]
    with (
        valkey.client(db=1) as client,
        Process([sys.executable, "-c", program, *arguments], cwd=tmp_path) as beat,
    ):
        beat.wait_for("Sending due task often" if every < 1 else "beat: Acquired lock")
        eventually(lambda: _is_idle(client))
        beat.signal(signal.SIGTERM)
        assert beat.wait() == 0, beat.output()
        assert "beat: Releasing lock" in beat.output()
        assert not has_traceback(beat.output())
        assert not client.exists(LOCK)


def _is_idle(client: redis.Redis) -> bool:
    """Whether the beat listens: it waits."""
    return bool(client.pubsub_numsub("redbeat::wake")[0][1])
