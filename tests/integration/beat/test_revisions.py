"""What was decided about an entry by a calendar that is another one by now isn't recorded, nor sent."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import RedBeatScheduler
from redbeat.calendars import Calendar
from redbeat.diagnostics.downgrade import examine, put_all_away
from redbeat.errors import EntryChanged
from redbeat.manifest.format import read_file
from redbeat.manifest.plan import commit, make_plan
from redbeat.store.records import Commit, Fence, Stored, Write
from redbeat.store.store import Store
from tests.integration.conftest import EVERY_KIND_OF_LOCK
from tests.support.schedule import field, score_of, sent_names, server_now, write_raw

KEY = "redbeat:report"

#: where a program has written the name of the calendar: 3.0.0.dev0 wrote a newline behind one of the two
PLACES = pytest.mark.parametrize("where", ["policy", "policy\n", "definition", "definition\n"])


def around_today() -> str:
    """Yesterday included, so that midnight may pass while a test runs."""
    now = datetime.now(timezone.utc)
    return f"{now - timedelta(days=1):%Y-%m-%d}/{now + timedelta(days=1):%Y-%m-%d}"


def write_due(client: redis.Redis, app: Celery, where: str = "policy") -> None:
    """An entry that names a calendar without days, and is due."""
    Calendar("holidays", {}, app=app).save()
    definition = (
        '{"name": "report", "task": "echo", "schedule": {"__type__": "interval", "every": 3600}'
        + (', "exclude": "holidays"' if "definition" in where else "")
        + "}"
        + ("\n" if where == "definition\n" else "")
    )
    write_raw(client, "report", definition, score=int(server_now(client)) - 5 + 0.25)
    if "policy" in where:
        client.hset(KEY, "policy", '{"exclude": "holidays"}' + where.removeprefix("policy"))


def exclude_today(app: Celery) -> None:
    Calendar("holidays", {around_today(): "closed"}, app=app).save()


def exclude_and_think_again(app: Celery) -> None:
    """Two changes in a row: what was decided by the first calendar holds again, but for the one between."""
    exclude_today(app)
    Calendar("holidays", {}, app=app).save()


@EVERY_KIND_OF_LOCK
@PLACES
def test_a_run_decided_on_before_its_day_was_excluded_is_not_sent(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, where: str
) -> None:
    write_due(client, scheduler.app, where)
    commit_runs = scheduler.store.commit_runs
    changes: list[str] = []

    def commit_late(*args: Any) -> Any:
        if not changes:
            changes.append("once")
            exclude_today(scheduler.app)
        return commit_runs(*args)

    scheduler.store.commit_runs = commit_late
    texts = {name: client.hget(KEY, name) for name in ("definition", "policy")}
    scheduler.tick()
    assert changes == ["once"]
    assert sent_names(broker) == []
    assert client.hget(KEY, "meta") is None
    assert {name: client.hget(KEY, name) for name in texts} == texts, "its own texts are left alone"


@pytest.mark.parametrize("change", [exclude_today, exclude_and_think_again])
def test_no_decision_from_before_a_change_of_the_calendar_is_recorded(
    app: Celery, client: redis.Redis, change: Callable[[Celery], None]
) -> None:
    write_due(client, app)
    store = Store(app)
    [claimed] = store.claim_due(Fence(), 10).rows
    before = score_of(client, "report")
    change(app)
    put_off = Commit(claimed, "4000000000.5", is_for_this_definition=True)
    assert store.commit_runs(Fence(), [put_off]).results == [False]
    assert score_of(client, "report") == before
    [claimed] = store.claim_due(Fence(), 10).rows
    put_off = Commit(claimed, "4000000000.5", is_for_this_definition=True)
    assert store.commit_runs(Fence(), [put_off]).results == [True]


def test_an_entry_whose_pause_ends_keeps_its_texts_when_its_calendar_changes_meanwhile(
    app: Celery, client: redis.Redis
) -> None:
    write_due(client, app)
    store = Store(app)
    [claimed] = store.claim_due(Fence(), 10).rows
    exclude_today(app)
    goes_on = Commit(claimed, "4000000000.5", new_definition='{"new": 1}', new_policy='{"new": 2}')
    assert store.commit_runs(Fence(), [goes_on]).results == [True]
    assert field(client, "report", "definition")["name"] == "report"
    assert field(client, "report", "policy") == {"exclude": "holidays"}


def test_a_save_that_read_the_entry_before_decides_again(app: Celery, client: redis.Redis) -> None:
    write_due(client, app)
    seen: list[str] = []

    def decide(stored: Stored, _now: datetime) -> Write:
        seen.append(stored.revision)
        if len(seen) == 1:
            exclude_today(app)
        return Write(score=4e9)

    Store(app).write_entries([KEY], decide)
    assert (len(seen), len(set(seen))) == (2, 2)


def test_a_file_that_was_planned_before_is_not_applied(app: Celery, client: redis.Redis) -> None:
    write_due(client, app)
    text = "entries: {report: {task: other, schedule: {every: 1h}, exclude: holidays}}"
    plan = make_plan(app, read_file(text), "me")
    exclude_today(app)
    with pytest.raises(EntryChanged, match="report has changed meanwhile"):
        commit(plan)
    commit(make_plan(app, read_file(text), "me"))
    assert field(client, "report", "definition")["task"] == "other"


def test_an_entry_is_not_put_away_for_what_was_found_before(app: Celery, client: redis.Redis) -> None:
    write_due(client, app)
    client.hset(
        KEY, "definition", '{"task": "echo", "schedule": {"__type__": "cron", "expression": "@daily"}}'
    )
    [obstacle] = examine(app).obstacles
    exclude_today(app)
    assert [done for _, done in put_all_away(app, [obstacle])] == [False]
    assert [done for _, done in put_all_away(app, examine(app).obstacles)] == [True]


@pytest.mark.parametrize("size", [8, 3_000_000])
def test_a_revision_of_others_counts_by_its_last_letter_however_long_it_is(
    app: Celery, client: redis.Redis, size: int
) -> None:
    write_due(client, app)
    client.hset(KEY, mapping={"revision": "x" * size, "meta_sha1": "y" * size})
    store = Store(app)
    sent_before = client.info("stats")["total_net_output_bytes"]
    [claimed] = store.claim_due(Fence(), 10).rows
    store.read_entry(KEY)
    assert client.info("stats")["total_net_output_bytes"] - sent_before < 100_000
    put_off = Commit(claimed, "4000000000.5", is_for_this_definition=True)
    client.hset(KEY, "revision", "x" * (size - 1) + "y")
    assert store.commit_runs(Fence(), [put_off]).results == [False]
    client.hset(KEY, "revision", "x" * size)
    assert store.commit_runs(Fence(), [put_off]).results == [True]
