"""What was planned and what happened of stored entries (redbeat/entries/past.py)."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone

import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.entries.past import read_pasts
from redbeat.entries.timeline import empty_chart
from redbeat.keys import Keys
from tests.support.schedule import server_now


def test_histories_stand_beside_what_schedules_had(app: Celery, client: redis.Redis) -> None:
    Entry.save_many([Entry(name, "echo", 600, app=app) for name in ("a", "b")])
    now = datetime.fromtimestamp(server_now(client), timezone.utc)
    chart = empty_chart(now - timedelta(hours=2), timezone.utc, 2, 2)
    due = (chart.begin + chart.step / 2).timestamp()
    client.lpush(Keys().about("a").history, json.dumps({"due": due, "at": due, "outcome": "lost"}))
    client.lpush(Keys().about("b").history, "no record")
    found = {str(entry.name): past for entry, past in read_pasts(app, Entry.list(app), chart, now)}
    assert dict(found["a"].happened["lost"]) == {0: 1}
    assert found["b"].known_since is None
    for past in found.values():
        assert past.untold == ""
        assert past.planned[0] == 6, "an hour has six times ten minutes"
