"""The runs of many entries in one chart, and what is drawn of them."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.schedules import crontab

from redbeat import RedBeatSchedulerEntry
from redbeat.entries import load as loads
from redbeat.entries.load import Load
from redbeat.entries.timeline import empty_chart
from redbeat.history import PastRun
from redbeat.store.records import KeyType, Stored
from redbeat.web.charts.heatmap import WIDTH, draw_heat_map

NOON = datetime(2026, 5, 4, 12, tzinfo=timezone.utc)
HOUR = timedelta(hours=1)
APP = Celery("maps", set_as_current=False, broker="memory://")


def made(name: str, schedule: Any, due: datetime, **fields: Any) -> RedBeatSchedulerEntry:
    entry = RedBeatSchedulerEntry(
        name, fields.pop("task", "t"), schedule, app=APP, last_run_at=NOON, **fields
    )
    entry.stored = Stored(entry.key, "{}", "{}", due.timestamp(), type=KeyType.HASH)
    entry.seen_at = NOON
    return entry


def loaded(*entries: RedBeatSchedulerEntry, hours: float = 6, start: datetime = NOON, rows: int = 10) -> Load:
    load = Load(empty_chart(start, timezone.utc, hours, 6), start, NOON, len(entries), rows)
    load.add(load.counted(entry, load.planned(entry)[0], {}) for entry in entries)
    load.looked_at = len(entries)
    return load


def test_entries_that_share_a_crontab_have_the_runs_that_each_would_have_alone() -> None:
    every = crontab(minute="0,30")
    dues = [NOON + timedelta(minutes=30 * number) for number in range(4)]
    together = loaded(*(made(f"a{number}", every, due) for number, due in enumerate(dues)))
    alone = [loaded(made("a", every, due)).taken().total.counts for due in dues]
    assert together.taken().total.counts == [sum(runs) for runs in zip(*alone, strict=True)]
    assert [sum(counts) for counts in alone] == [12, 11, 10, 9]


def test_rows_are_the_busiest_the_next_and_the_sums_of_tasks_and_prefixes() -> None:
    entries = [
        made("shop.a", 3600, NOON + HOUR, task="send"),
        made("shop.b", 600, NOON + 2 * HOUR, task="send"),
        made("news", 1800, NOON, task="mail"),
    ]
    found = loaded(*entries, rows=2).taken()
    names = {group: [row.name for row in rows] for group, rows in found.rows.items()}
    assert names == {
        "load": ["shop.b", "news"], "next": ["news", "shop.a"], "task": ["send", "mail"],
        "prefix": ["shop.*", "news"],
    }  # fmt: skip
    assert (found.row_counts["load"], found.row_counts["task"]) == (3, 2)
    assert found.total.runs == sum(row.runs for row in found.rows["task"])


def test_what_is_kept_does_not_grow_with_the_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loads, "MAX_GROUPS", 2)
    load = loaded()
    for number in range(5):
        entry = made(f"{number}", 3600, NOON, task=f"t{number}")
        load.add([load.counted(entry, load.planned(entry)[0], {})])
    assert [row.name for row in load.taken().rows["task"]] == ["(all others)", "t0", "t1"]


def test_what_happened_stands_beside_what_was_planned_as_far_as_histories_go_back() -> None:
    entry = made("a", crontab(minute="0"), NOON + HOUR)
    load = Load(empty_chart(NOON - 4 * HOUR, timezone.utc, 6, 6), NOON - 4 * HOUR, NOON, 1, 10)
    past = [PastRun(NOON - number * HOUR, NOON, word) for number, word in enumerate(["failed", "succeeded"])]
    happened = load.happened(entry, past, is_cut=True)
    load.add([load.counted(entry, load.planned(entry)[0], happened)])
    found = load.taken()
    assert (found.has_past, found.known_since) == (True, NOON - HOUR)
    assert found.total.counts == [1, 1, 1, 1, 1, 1]
    assert found.total.happened == {"succeeded": [0, 0, 0, 1, 0, 0], "failed": [0, 0, 0, 0, 1, 0]}
    drawn = draw_heat_map(found, found.rows["load"], timezone.utc)
    assert dict(drawn.rows[0].counts) == {"lost": 0, "failed": 1, "skipped": 0, "sent": 1}
    assert "1 failed; 1 sent" in drawn.rows[0].words
    assert {shape.name for shape in drawn.rows[0].fates} == {"fill-danger", "fill-good"}
    assert drawn.now_x == pytest.approx(4 / 6 * WIDTH)


def test_of_an_entry_that_is_done_what_happened_was_planned() -> None:
    entry = made("a", 3600, NOON, max_runs=1)
    entry.total_run_count = 1
    load = Load(empty_chart(NOON - 4 * HOUR, timezone.utc, 6, 6), NOON - 4 * HOUR, NOON, 1, 10)
    load.add([load.counted(entry, load.planned(entry)[0], {"succeeded": Counter({1: 1})})])
    assert load.taken().total.counts == [0, 1, 0, 0, 0, 0]


def test_a_pile_up_is_marked_and_said() -> None:
    entries = [made(f"a{number}", crontab(minute="0", hour="14"), NOON + 2 * HOUR) for number in range(30)]
    found = loaded(*entries, made("b", 3600, NOON)).taken()
    drawn = draw_heat_map(found, found.rows["load"], timezone.utc)
    assert drawn.summary == "36 runs; most: 31 in the 1 h from 14:00."
    assert [column.when for column in drawn.columns if column.is_pile] == ["14:00"]
    assert [shape.name for shape in drawn.bars] == ["fill-accent", "fill-warn"]
    assert [column.label for column in drawn.columns if column.label] == ["31"]
    assert drawn.legend[:2] == ["none", "1"]
    even = loaded(made("b", 3600, NOON)).taken()
    drawn = draw_heat_map(even, even.rows["load"], timezone.utc)
    assert not any(column.is_pile for column in drawn.columns)
    assert [shape.name for shape in drawn.bars] == ["fill-accent"]
    nothing = loaded().taken()
    assert draw_heat_map(nothing, (), timezone.utc).summary == "Nothing runs in this time."


def test_clock_changes_are_marked_where_the_viewer_has_them() -> None:
    night = datetime(2026, 10, 24, 22, tzinfo=timezone.utc)  # midnight in Berlin, the clocks go back at three
    found = loaded(made("a", 600, NOON), start=night).taken()
    berlin, utc = (draw_heat_map(found, (), zone) for zone in (ZoneInfo("Europe/Berlin"), timezone.utc))
    assert [mark.text for mark in berlin.marks if mark.kind == "clocks"] == ["clocks change to +01:00"]
    assert [mark.text for mark in utc.marks if mark.kind == "clocks"] == []
    assert [column.when for column in berlin.columns][2:4] == ["02:00 +02:00", "02:00 +01:00"]
