"""Events of a schedule in shards: each shard has its own stream, and all are read together."""

from __future__ import annotations

import pytest

from redbeat.store.events import Events
from redbeat.store.records import Fence
from redbeat.store.store import Store
from tests.support.shards import EVERY_PLACE, app_in, at_most, names_in_every_shard, parts_of


@EVERY_PLACE
def test_what_happens_in_all_shards_is_told_of_once(
    request: pytest.FixtureRequest, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = app_in(place, request)
    events, names = Events(Store(app)), names_in_every_shard(app, 2)
    fences = dict.fromkeys(parts_of(app), Fence())
    assert all(not news.events for news in events.read(fences, "a").values())
    with at_most(1, place, monkeypatch):
        events.add_quarantined((name, "why") for name in names)
    with at_most(1, place, monkeypatch):
        found = events.read(fences, "a")
    assert [event.fields["entry"] for news in found.values() for event in news.events] == names
    assert events.read(fences, "b") == {}, "another beat tells"
    for keys, news in found.items():
        assert events.note_told(keys, "a", news.told, news.events[-1].id, is_done=True)
    assert all(not news.events for news in events.read(fences, "b").values())
    assert len(events.last_ids()) == len(fences)
