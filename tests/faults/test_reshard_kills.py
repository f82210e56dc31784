"""The number of shards is changed while beats send runs, and all of them are killed now and then."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest
import redis

from tests.faults.shards import Crew, RedisBroker, Sent, Taker
from tests.support.apps import celery_beat, celery_command, write_app
from tests.support.polling import eventually
from tests.support.servers import Server
from tests.support.steady import Steady

#: how often each of these is killed for one change
MOVERS, BEATS = 3, 2
ENTRIES = 1000
#: after so long a beat leads what no other one does: `redbeat_takeover_after`, and some looks
TAKEOVER_SECONDS = 12.0
#: for how long nothing may come of an entry that is due while such a beat is there: another one that led it
#: has just been killed, what a mover that was killed has hidden is moved on within 8 seconds; a busy machine
SILENT_SECONDS = TAKEOVER_SECONDS + 8.0 + 5.0


@pytest.mark.long_form
def test_runs_are_sent_once_whoever_is_killed_while_the_shards_change(
    server: Server, tmp_path: Path, chance: random.Random
) -> None:
    """A mover that is killed leaves at most some entries hidden, which beats move on; the next goes on."""
    steady = Steady(ENTRIES, 5.0)
    with ExitStack() as at_end:
        client = at_end.enter_context(server.client(db=1))
        broker = RedisBroker(server.url(0), at_end.enter_context(server.client(db=0)))
        taker = at_end.enter_context(Taker(broker))
        steady.write(client, time.time() + 2)
        where = {"redbeat_redis_url": server.url(1)}
        write_app(tmp_path, "module", server.url(0), **where)

        crew = at_end.enter_context(Crew(chance, lambda: celery_beat(tmp_path, "module"), 2))
        crew.start(2)
        eventually(lambda: len(taker.sent) > ENTRIES, 60, message="they don't begin")
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
                        crew.kill(crew.beats[0])
                        # one that begins reads settings of its own: by now the new number is right
                        settings = {} if shards is None else {"redbeat_shards": shards}
                        write_app(tmp_path, "module", server.url(0), **where, **settings)
                        crew.start()
                else:
                    eventually(lambda: not mover.is_running, 120, message="it doesn't end")  # noqa: B023
                    assert mover.returncode == 0, mover.output()
                    # the one before may have come to its end, and was killed for nothing
                    assert client.hmget("redbeat::layout", "shards", "state") == [str(shards or 0), None]
        count = len(taker.sent)
        eventually(lambda: len(taker.sent) > count + 2 * ENTRIES, 60, message="they don't go on")
        sent = [*taker.sent]
        able = crew.able(TAKEOVER_SECONDS)
        by_name: defaultdict[str, list[Sent]] = defaultdict(list)
        for one in sent:
            by_name[one.entry].append(one)
        silent = max(
            run.silent_seconds(able, before.at) for runs in by_name.values() for before, run in pairwise(runs)
        )
        late = max(one.at - one.due for one in sent)
        print(f"{len(sent)} runs, {late:.2f} s late at most, silent for {silent:.2f} s with a beat")
        assert steady.faults({name: [one.due for one in runs] for name, runs in by_name.items()}) == []
        assert silent < SILENT_SECONDS


def _moved(client: redis.Redis) -> object:
    """Something that changes when entries move."""
    return client.hget("redbeat::layout", "state"), client.hget("redbeat::layout", "generation")
