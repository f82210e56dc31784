"""A crontab that celery-redbeat 2.4.2 has stored and never run runs once a minute, on the minute, under ours.

A minute's boundary is brought near by a time zone whose offset isn't of whole minutes: the crontab of every
minute is due when a minute begins there.
"""

from __future__ import annotations

import json
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support.apps import celery_beat, write_app
from tests.support.polling import eventually
from tests.support.schedule import LOCK, score_of
from tests.support.servers import Server

EXTRA = """
from celery.signals import after_task_publish

app.conf.timezone = datetime.timezone(datetime.timedelta(seconds={offset_seconds}))
app.conf.beat_schedule = {{"minutely": {{"task": "echo", "schedule": crontab()}}}}

@after_task_publish.connect
def note_sent(headers=None, **_):
    runs_client().rpush("sent", json.dumps({{"time": time.time(), "due": headers.get("redbeat_due")}}))
"""


@pytest.mark.few_cases(1)
@pytest.mark.parametrize("starts_of_2x", [1, 2])
def test_a_crontab_of_2_4_2_that_never_ran_runs_once_and_on_the_minute(
    valkey: Server, redbeat2_python: Path, tmp_path: Path, starts_of_2x: int
) -> None:
    for lead_seconds in (4 + 3 * starts_of_2x, 25, 50):  # more on a machine that is slow
        valkey.flush()
        if hand_over(valkey, redbeat2_python, tmp_path, starts_of_2x, lead_seconds):
            return
    pytest.fail("this machine doesn't start so many beats within a minute")


def hand_over(
    valkey: Server, redbeat2_python: Path, tmp_path: Path, starts_of_2x: int, lead_seconds: int
) -> bool:
    """Let both be there before a minute begins, in so many seconds; False: that was too soon for them."""
    boundary = int(time.time()) + lead_seconds
    settings = {"redbeat_redis_url": valkey.url(1), "beat_max_loop_interval": 1}
    extra = EXTRA.format(offset_seconds=-boundary % 60)
    write_app(tmp_path, "shared_app", valkey.url(0), extra=extra, **settings)
    with valkey.client(db=0) as broker, valkey.client(db=1) as client:

        def sent() -> list[Any]:
            notes: Any = broker.lrange("sent", 0, -1)
            return [json.loads(note) for note in notes]

        for _ in range(starts_of_2x):
            with celery_beat(tmp_path, "shared_app", python=redbeat2_python) as theirs:
                eventually(lambda: client.exists(LOCK) and score_of(client, "minutely"))
                theirs.wait_for("beat: Acquired lock")
        with celery_beat(tmp_path, "shared_app") as ours:
            ours.wait_for("beat: Acquired lock")
            was_sent = sent()
            if time.time() >= boundary:
                return False
            assert was_sent == []
            eventually(lambda: (score_of(client, "minutely") or 0) >= boundary + 60)
            only, *_ = sent()
            assert datetime.fromisoformat(only["due"]).timestamp() == boundary
            assert boundary <= only["time"] < boundary + 30
            eventually(lambda: time.time() > boundary + 2)
            in_this_minute = [note for note in sent() if note["time"] < boundary + 60]
            assert len(in_this_minute) == 1, ours.output()
    return True
