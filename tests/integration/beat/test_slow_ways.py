"""Beats that don't go the quick way, as they have no lock, or send at most once: each run leaves once."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.support.apps import celery_beat, write_app
from tests.support.deadlines import patience
from tests.support.polling import eventually
from tests.support.schedule import SELDOM, counts_of, messages, sent_names, server_now, write_burst
from tests.support.servers import Server
from tests.support.spikes import seconds_after, write_spike

BURST = 3_000
SPIKE = 500

WAYS: dict[str, tuple[int, dict[str, Any]]] = {
    "three without a lock": (3, {"redbeat_lock_key": None}),
    "three without a lock, at most once": (
        3,
        {"redbeat_lock_key": None, "redbeat_delivery": "at_most_once"},
    ),
    "a leader and two that wait, at most once": (3, {"redbeat_delivery": "at_most_once"}),
}


@pytest.mark.few_cases(1)
@pytest.mark.parametrize("way", WAYS)
def test_a_burst_and_a_spike_are_sent_once_each(
    server: Server, client: redis.Redis, broker: redis.Redis, tmp_path: Path, way: str
) -> None:
    count, settings = WAYS[way]
    write_app(tmp_path, "module", server.url(0), redbeat_redis_url=server.url(1), **settings)
    with ExitStack() as stack:
        beats = [stack.enter_context(celery_beat(tmp_path, "module")) for _ in range(count)]
        for beat in beats:
            beat.wait_for("beat: Starting...")
        names = write_burst(client, [f"of-the-burst-{number}" for number in range(BURST)])
        due = round(server_now(client) + patience(2), 6)
        later = write_spike(client, due, SPIKE, schedule=SELDOM)
        eventually(lambda: broker.llen("celery") >= BURST + SPIKE)
        eventually(lambda: counts_of(client, [*names, *later]) == {1: BURST + SPIKE})
        assert all(beat.is_running for beat in beats)
    logs = [beat.output() for beat in beats]
    sent = [log.count("Sending due task") for log in logs]
    print(f"{way}: {sent}")
    assert Counter(sent_names(broker)) == dict.fromkeys([*names, *later], 1)
    assert len({message["headers"]["id"] for message in messages(broker)}) == BURST + SPIKE
    assert min(seconds_after(client, later, due)) >= 0
    assert sum(map(bool, sent)) > 1 or "redbeat_lock_key" not in settings, "they share the work"
    assert sum(sent) == BURST + SPIKE
    assert not any("Traceback" in log or "Messages: compiled" in log for log in logs)
