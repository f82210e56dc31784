"""The timeline: counted in the background, shown as far as it is."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.calendars import Calendar
from redbeat.entries.load import Load, LoadChart
from redbeat.keys import Keys
from redbeat.web.verbs import timelines
from tests.support.dashboards import Browser
from tests.support.polling import eventually
from tests.support.schedule import server_now

Add = Callable[..., RedBeatSchedulerEntry]
HOSTILE = "<img src=x onerror=alert(1)>\u202e"


def read_whole(browser: Browser, **query: object) -> str:
    def page() -> str | None:
        text = browser.read("/timeline", **query)
        return None if 'hx-trigger="load delay:1s"' in text else text

    return eventually(page)


def test_the_next_hours_are_shown_with_their_totals_and_a_link_for_each_row(
    add: Add, browse: Callable[..., Browser]
) -> None:
    add("shop.send", 600)
    add(HOSTILE, 3600)
    page = read_whole(browse("read"))
    assert "Covers all 2 entries" in page
    assert "/entry?name=shop.send" in page
    assert "<img src=x" not in page
    assert "\u202e" not in page
    runs = re.search(r'aria-label="(\d+) runs; the most, (\d+), from', page)
    assert runs is not None
    assert (141 <= int(runs[1]) <= 145, runs[2]) == (True, "2")  # its first column began up to 15 minutes ago
    by_task = read_whole(browse("read"), by="task", hours="6", match="shop*")
    assert ("/entries?task=echo" in by_task, "onerror" in by_task) == (True, False)
    assert "is no time" in browse("read").read("/timeline", start="someday", hours="x", by="y", more="\u0663")


def test_the_past_has_what_happened_beside_what_was_planned(
    add: Add, client: redis.Redis, browse: Callable[..., Browser]
) -> None:
    add("shop.send", 600)
    due = server_now(client) - 3600
    for number, outcome in enumerate(["succeeded", "failed", "lost", "skipped"]):
        record = {"due": due - 600 * number, "at": due, "ended": due, "outcome": outcome}
        client.lpush(Keys().about("shop.send").history, json.dumps(record))
    page = read_whole(browse("read"), start="6h", hours="6")
    row = re.search(r'aria-label="(\d+) runs; [^"]*; 1 lost; 1 failed; 1 skipped; 1 sent"', page)
    assert row is not None, page
    assert 35 <= int(row[1]) <= 37


def test_a_chart_that_takes_too_long_says_how_much_it_covers(
    app: Celery, browse: Callable[..., Browser], monkeypatch: pytest.MonkeyPatch
) -> None:
    RedBeatSchedulerEntry.save_many([RedBeatSchedulerEntry(f"a{n}", "t", 600, app=app) for n in range(1200)])
    monkeypatch.setattr(timelines, "BUDGET_SECONDS", 0.0)
    browser = browse("read")
    page = read_whole(browser)
    found = re.search(r"Covers ([\d,]+) of 1,200 entries", page)
    assert found is not None
    assert 0 < int(found[1].replace(",", "")) < 1200
    assert "more=1" in page
    monkeypatch.setattr(timelines, "BUDGET_SECONDS", 60.0)
    assert "Covers all 1,200 entries" in read_whole(browser, more="1")


def test_a_second_look_computes_only_what_has_changed(
    app: Celery, add: Add, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[str] = []
    planned = Load.planned

    def noting(load: Load, entry: RedBeatSchedulerEntry) -> Any:
        computed.append(str(entry.name))
        return planned(load, entry)

    monkeypatch.setattr(Load, "planned", noting)
    Calendar("closed", ["2098-01-01"], app=app).save()
    for name in ("a", "b", "c"):
        add(name, 3600, task=name)
    add("d", 3600, exclude="closed")
    wanted = timelines.Wanted(24 * 7, None, timezone.utc)

    def look() -> LoadChart:
        computed.clear()
        return timelines._count(app, wanted, lambda _found: None)  # noqa: SLF001

    while (first := look()).begin != (second := look()).begin:  # another span began in between
        pass
    assert (computed, second.total.counts, second.rows) == (["d"], first.total.counts, first.rows)
    add("b", 1800, task="other")
    RedBeatSchedulerEntry.get("c", app).delete()
    third = look()
    assert sorted(computed) in (["b", "d"], ["a", "b", "d"])
    assert [row.name for row in third.rows["load"]] == ["b", "a", "d"]
    assert {row.name for row in third.rows["task"]} == {"a", "other", "echo"}


def test_viewers_in_zones_with_the_same_full_hours_share_a_chart() -> None:
    now = datetime.now(timezone.utc)
    zones = [timezone(timedelta(hours=hours)) for hours in (0, 2, 5.5)]
    phases = [timelines._phase_of(timelines.Wanted(24, now, zone)) for zone in zones]  # noqa: SLF001
    assert phases[0] == phases[1] == phases[2]
    by_hours = [timelines._phase_of(timelines.Wanted(24 * 7, now, zone)) for zone in zones]  # noqa: SLF001
    assert by_hours[0] == by_hours[1] != by_hours[2]


def test_what_piles_up_is_seen_in_the_bars_the_rows_and_a_sentence(
    app: Celery, browse: Callable[..., Browser], client: redis.Redis
) -> None:
    hour = datetime.fromtimestamp(server_now(client) + 12 * 3600, timezone.utc).hour
    entries = [RedBeatSchedulerEntry(f"daily-{n}", "t", f"0 {hour} * * *", app=app) for n in range(40)]
    RedBeatSchedulerEntry.save_many([RedBeatSchedulerEntry("often", "t", 600, app=app), *entries])
    page = read_whole(browse("read"))
    [summary] = re.findall(r'class="timeline-summary">([^<]*)', page)
    assert re.match(rf"18\d runs; most: 4[12] in the 15 min from {hour:02}:00\.", summary), summary
    rows = dict(re.findall(r'<th scope="row".*?title="([^"]*)".*?(<svg.*?</svg>)', page, re.DOTALL))
    assert len(rows) >= 10
    for name, row in rows.items():
        cells = "".join(re.findall(r'<path class="heat-[1-5]" d="([^"]*)"', row))
        assert (cells.count("M") == 1) == (name != "often"), name
        assert cells, name
        assert row.count('<rect class="pile"') == 1, name
    bars = page.partition('<svg class="chart"')[2].partition("</svg>")[0]
    assert len(re.findall(r'<path class="fill-warn" d="M[^M"]*"', bars)) == 1
    assert re.search(r'class="is-peak is-warn"[^>]*>4[12]</text>', bars)
    table = page.partition("All runs, as a table")[2]
    assert f'{hour:02}:00 <span class="badge tone-warn">many</span></th><td class="number">4' in table
    assert "runs pile up" in page
