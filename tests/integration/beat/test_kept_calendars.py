"""A large calendar costs once: it stays parsed until it changes, whoever changes it."""

from __future__ import annotations

import time
from datetime import date, datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.calendars import Calendar
from redbeat.entries import calendar_loading as almanac
from redbeat.entries.calendar_loading import KeptCalendars, Unusable
from redbeat.schedules.exclusions import Exclusions
from redbeat.store.records import Claimed
from redbeat.store.store import Store
from tests.support.schedule import SELDOM, field, write_raw
from tests.support.servers import Server
from tests.support.ticks import leader, take_messages

UTC = timezone.utc
CALENDAR = "redbeat::calendar:holidays"
FIRST = date(1800, 1, 1)
ROW = Claimed("redbeat:report", "1", "{}", policy='{"exclude": "holidays"}')


@pytest.fixture
def server(valkey: Server) -> Server:
    """One kind is enough."""
    return valkey


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many fields each calendar had that was parsed."""
    counts: list[int] = []

    class Counted(Exclusions):
        def __init__(self, fields: Any) -> None:
            known = list(fields)
            counts.append(len(known))
            super().__init__(known)

    monkeypatch.setattr(almanac, "Exclusions", Counted)
    return counts


def write_days(client: redis.Redis, count: int, name: str = "holidays") -> None:
    """Every other day."""
    days = {(FIRST + timedelta(days=2 * number)).isoformat(): "" for number in range(count)}
    client.hset(f"redbeat::calendar:{name}", mapping={"about": "", **days})


def is_free(calendar: Any, day: date) -> bool:
    noon = datetime(day.year, day.month, day.day, 12, tzinfo=UTC)
    return calendar.end_of_exclusion(noon, UTC) is None


def test_it_is_parsed_once_until_it_changes(app: Celery, client: redis.Redis, parsed: list[int]) -> None:
    write_days(client, 1000)
    store, kept = Store(app), KeptCalendars()
    first = kept.read_of(store, [ROW, ROW])["holidays"]
    for _ in range(3):
        assert kept.read_of(store, [ROW])["holidays"] is first
    assert parsed == [1000]
    other = FIRST + timedelta(days=1)
    for change, count, is_excluded in (
        (lambda: client.hset(CALENDAR, other.isoformat(), ""), 1001, True),
        (lambda: client.hdel(CALENDAR, other.isoformat()), 1000, False),
        (lambda: Calendar("holidays", [other], app=app).save(), 1, True),
    ):
        change()
        del parsed[:]
        assert is_free(kept.read_of(store, [ROW])["holidays"], other) is not is_excluded
        assert count in parsed
        del parsed[:]
        kept.read_of(store, [ROW])
        assert parsed == []


def test_one_that_goes_or_breaks_is_not_taken_from_what_is_kept(app: Celery, client: redis.Redis) -> None:
    write_days(client, 3)
    store, kept = Store(app), KeptCalendars()
    kept.read_of(store, [ROW])
    client.hset(CALENDAR, "nonsense", "")
    assert isinstance(kept.read_of(store, [ROW])["holidays"], Unusable)
    client.hdel(CALENDAR, "nonsense")
    assert isinstance(kept.read_of(store, [ROW])["holidays"], Exclusions)
    client.delete(CALENDAR)
    assert isinstance(kept.read_of(store, [ROW])["holidays"], Unusable)
    client.set(CALENDAR, "text")
    assert isinstance(kept.read_of(store, [ROW])["holidays"], Unusable)


def test_what_is_known_does_not_travel_again(app: Celery, server: Server, client: redis.Redis) -> None:
    write_days(client, 20_000)
    now = 0.0
    store, kept = Store(app), KeptCalendars(clock=lambda: now)

    def sent_bytes() -> int:
        return int(client.info("stats")["total_net_output_bytes"])

    kept.read_of(store, [ROW])
    before, now = sent_bytes(), 60.0
    kept.read_of(store, [ROW])
    assert sent_bytes() - before < 20_000, "of 300 kB"


def test_a_huge_one_is_asked_about_once_in_a_while_and_a_usual_one_each_time(
    app: Celery, client: redis.Redis
) -> None:
    now, asked = 0.0, 0
    store, kept = Store(app), KeptCalendars(clock=lambda: now)

    def count_asked() -> None:
        nonlocal asked
        asked += 1

    store.on_progress = count_asked
    rows = {name: Claimed(name, "1", "{}", policy=f'{{"exclude": "{name}"}}') for name in ("huge", "usual")}
    write_days(client, 20_000, "huge")
    write_days(client, 1_000, "usual")
    for name, expected in (("huge", 1), ("usual", 3)):
        before = asked
        for _ in range(3):
            assert not is_free(kept.read_of(store, [rows[name]])[name], FIRST)
        assert asked - before == expected

    client.hdel("redbeat::calendar:huge", FIRST.isoformat())
    assert not is_free(kept.read_of(store, [rows["huge"]])["huge"], FIRST)
    now = 2.1
    assert is_free(kept.read_of(store, [rows["huge"]])["huge"], FIRST)


def test_what_is_kept_is_bounded(app: Celery, client: redis.Redis, parsed: list[int]) -> None:
    names = ("a", "b", "c")
    for name in names:
        write_days(client, 100, name)
    store, kept = Store(app), KeptCalendars(max_ranges=200)
    rows = {name: Claimed(name, "1", "{}", policy=f'{{"exclude": "{name}"}}') for name in names}
    for name in ("a", "b", "a", "c", "a"):
        kept.read_of(store, [rows[name]])
    assert len(parsed) == 3, "b was needed longest ago"
    kept.read_of(store, [rows["b"]])
    assert len(parsed) == 4
    write_days(client, 1000, "a")
    for _ in range(3):
        kept.read_of(store, [rows["a"]])
    assert len(parsed) == 5, "one that is larger than all that may be kept is kept alone"


def test_the_first_look_at_a_huge_calendar_quarantines_nobody(
    app: Celery, client: redis.Redis, parsed: list[int]
) -> None:
    write_days(client, 100_000)
    free = FIRST + timedelta(days=2 * 40_000 + 1)
    due = datetime(free.year, free.month, free.day, 12, tzinfo=UTC).timestamp()
    for name in ("report", "other"):
        write_raw(client, name, schedule=SELDOM, score=due)
        client.hset(f"redbeat:{name}", "policy", '{"exclude": "holidays"}')
    with leader(app) as scheduler:
        for _ in range(3):
            scheduler.tick()
            client.zadd("redbeat::schedule", {"redbeat:report": due})
    assert parsed == [100_000]
    assert not client.hexists("redbeat:report", "error")
    assert not client.hexists("redbeat:other", "error")
    assert {message.entry for message in take_messages(app)} >= {"report", "other"}
    assert field(client, "report", "meta")["total_run_count"] >= 1


def test_a_hundred_thousand_overlapping_spans_cost_little_more_than_days() -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    starts = [start + timedelta(minutes=number) for number in range(20_000)]
    spans = [f"{one.isoformat()}/{(one + timedelta(minutes=600)).isoformat()}" for one in starts]
    days = [(FIRST + timedelta(days=number)).isoformat() for number in range(20_000)]

    def cost(fields: list[str]) -> float:
        def once() -> float:
            began = time.process_time()
            Exclusions(fields)
            return time.process_time() - began

        return min(once() for _ in range(3))

    assert cost(spans) < 20 * cost(days), "each was read by a general parser, a hundred times as long"
    merged = Exclusions(spans)
    assert merged.count_ranges() == 1
    assert merged.end_of_exclusion(start, UTC) == start + timedelta(minutes=20_599)


def test_entries_with_calendars_are_saved_as_before(app: Celery, client: redis.Redis) -> None:
    write_days(client, 10)
    entry = Entry("report", "tasks.report", 60, exclude="holidays", app=app).save()
    assert entry.next_runs(2)
