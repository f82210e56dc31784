"""A leader that is replaced amid a batch, as after a pause: it asks before what no script can refuse.

``test_fences`` is about the messages that a script refuses.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import redis

from redbeat import RedBeatScheduler
from redbeat.config import timing
from redbeat.errors import LockLost
from tests.integration.conftest import MakeScheduler
from tests.support.schedule import LOCK, messages, score_of, write_burst
from tests.support.servers import Server
from tests.support.ticks import take_messages

NAMES = ["first", "second"]


class Replaced(RedBeatScheduler):
    """Another beat takes the lock as soon as this one has done ``last_act``."""

    client: redis.Redis
    last_act: str

    def act(self, name: str, result: Any) -> Any:
        self.acts = [*getattr(self, "acts", []), name]
        if self.acts.count(self.last_act) == 1:
            self.client.set(LOCK, "another")
        return result

    @property
    def producer(self) -> Any:
        return self.act("connect", super().producer)

    def apply_async(self, entry: Any, *args: Any, **kwargs: Any) -> Any:
        return self.act(f"send {entry.name}", super().apply_async(entry, *args, **kwargs))


@pytest.fixture
def make_replaced(make_scheduler: MakeScheduler, client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> Any:
    # what it knows of its lock is out of date at once, as after a pause
    monkeypatch.setattr(timing, "FRESH_SECONDS", -1)

    def make(last_act: str, broker_url: str) -> Replaced:
        kind = type("Replaced", (Replaced,), {"client": client, "last_act": last_act})
        scheduler = make_scheduler(scheduler=kind, broker_url=broker_url, task_default_queue="a queue")
        assert isinstance(scheduler, Replaced)
        scheduler.run_under(SimpleNamespace())  # it has a heartbeat only under a beat
        scheduler.stand_for_leader()
        write_burst(client, NAMES)
        with pytest.raises(LockLost):
            scheduler.tick()
        assert [score_of(client, name) for name in NAMES] == [1, 2]  # nothing is recorded, either
        return scheduler

    return make


@pytest.mark.parametrize(
    ("last_act", "acts", "sent"),
    [("connect", ["connect"], 0), ("send first", ["connect", "send first", "connect"], 1)],
    ids=["the-first-message", "each-later-one"],
)
def test_it_looks_at_the_lock_before(make_replaced: Any, last_act: str, acts: list[str], sent: int) -> None:
    scheduler = make_replaced(last_act, "memory://")
    assert scheduler.acts == acts
    assert len(take_messages(scheduler.app)) == sent


def test_it_looks_at_the_lock_before_a_pipeline_of_messages(make_replaced: Any, other_broker: Server) -> None:
    scheduler = make_replaced("send second", other_broker.url(0))
    assert scheduler.acts == ["connect", "send first", "connect", "send second"]
    with other_broker.client() as broker:
        assert messages(broker, "a queue") == []


@pytest.fixture
def other_broker(server: Server, request: pytest.FixtureRequest) -> Server:
    """A server that isn't the schedule's."""
    chosen: Server = request.getfixturevalue("redis" if server.kind == "valkey" else "valkey")
    return chosen
