"""The number of shards is changed while beats send runs, and all of them are killed now and then."""

from __future__ import annotations

import random
import signal
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis

from tests.support.apps import celery_beat, celery_command, write_app
from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.servers import Server
from tests.support.steady import Steady

#: how often each of these is killed for one change
MOVERS, BEATS = 3, 2
ENTRIES = 1000


@pytest.mark.long_form
@pytest.mark.parametrize("server", ["valkey"], indirect=True)
def test_runs_are_sent_once_whoever_is_killed_while_the_shards_change(
    server: Server, tmp_path: Path, chance: random.Random
) -> None:
    """A mover that is killed leaves at most some entries hidden, which beats move on; the next goes on."""
    steady = Steady(ENTRIES, 5.0)
    with ExitStack() as at_end:
        client = at_end.enter_context(server.client(db=1))
        broker = at_end.enter_context(server.client(db=0))
        steady.write(client, time.time() + 2)
        where = {"redbeat_redis_url": server.url(1)}
        write_app(tmp_path, "module", server.url(0), **where)

        def beat() -> Process:
            process = celery_beat(tmp_path, "module")
            at_end.callback(process.kill)
            return process

        beats = [beat(), beat()]
        eventually(lambda: broker.llen("celery") > ENTRIES, 60, message="they don't begin")
        for shards in (4, 16, 3, None):
            for kill in range(MOVERS + 1):
                command = ("redbeat", "reshard", "--to", str(shards or "none"), "--yes")
                mover = celery_command(tmp_path, "module", *command)
                at_end.callback(mover.kill)
                if kill < MOVERS:
                    before = _moved(client)
                    eventually(lambda: _moved(client) != before or not mover.is_running, 60)  # noqa: B023
                    time.sleep(chance.uniform(0, 0.5))  # the instant of the fault, not a wait for something
                    mover.kill()
                    if kill < BEATS:
                        assert beats.pop(0).kill() == -signal.SIGKILL
                        # one that begins reads settings of its own: by now the new number is right
                        settings = {} if shards is None else {"redbeat_shards": shards}
                        write_app(tmp_path, "module", server.url(0), **where, **settings)
                        beats.append(beat())
                else:
                    eventually(lambda: not mover.is_running, 120, message="it doesn't end")  # noqa: B023
                    assert "in all settings" in mover.output(), mover.output()
        sent = broker.llen("celery")
        eventually(lambda: broker.llen("celery") > sent + 2 * ENTRIES, 60, message="they don't go on")
        assert steady.faults(broker) == []


def _moved(client: redis.Redis) -> object:
    """Something that changes when entries move."""
    return client.hget("redbeat::layout", "state"), client.hget("redbeat::layout", "generation")
