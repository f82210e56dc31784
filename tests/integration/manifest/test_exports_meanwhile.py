"""Exports while others change the schedule."""

from __future__ import annotations

import time
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.manifest.transfer import export_entries
from redbeat.store.store import Store
from tests.support.schedule import SCHEDULE


def test_entries_whose_times_are_moved_meanwhile_are_all_in_an_export(
    app: Celery, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    Entry.save_many([Entry(f"entry-{number}", "echo", 86_400 + number, app=app) for number in range(2000)])
    read, moved = Store.read_entries, iter(range(1900, 2000))

    def read_and_move(self: Store, keys: Any) -> Any:
        found = read(self, keys)
        for number in (next(moved), next(moved)):  # what isn't due for long becomes due soon
            client.zadd(SCHEDULE, {f"redbeat:entry-{number}": time.time() + 60})
        return found

    monkeypatch.setattr(Store, "read_entries", read_and_move)
    declared = export_entries(app).declared
    assert len(declared.entries) == 2000
