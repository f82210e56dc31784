"""Metrics of runs, entries and stored messages: counted by scripts, gathered and shown by one beat."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any
from unittest.mock import Mock

import pytest
import redis
from celery import Celery

from redbeat import RedBeatScheduler, track_runs
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.entries.query import list_entries
from redbeat.store.figures import WORDS, Labels, read_labels, take_figures
from redbeat.store.store import Store
from redbeat.telemetry.gathering import Gathering
from redbeat.telemetry.labels import LabelBook, queue_finder
from redbeat.telemetry.overdue import Overdue, find_overdue, streaks_of
from tests.integration.conftest import EVERY_KIND_OF_LOCK, MakeScheduler
from tests.integration.store.rights import gathering_of, shown_by, view_of
from tests.support.progress import NAMES, Progress
from tests.support.schedule import SCHEDULE, monitoring, server_now, write_raw
from tests.support.servers import Server
from tests.support.stored import make_late, store

HOURLY = {"__type__": "interval", "every": 3600}


#: an entry whose messages no queue takes
UNROUTABLE = json.dumps(
    {"name": "fails", "task": "t", "schedule": HOURLY, "options": {"exchange": "none", "routing_key": "x"}}
)


def words_of(name: str) -> list[str]:
    """Return the words under which a field of the figures counts."""
    return name.partition(":")[2].split("+")


def counted(client: redis.Redis) -> Counter[str]:
    """Return the counts of all labels together, without those of histograms."""
    found: Counter[str] = Counter()
    for name, number in client.hgetall(NAMES.figures).items():  # type: ignore[union-attr]
        for word in WORDS.keys() & set(words_of(name)):
            found[word] += int(number)
    return found


def observations(client: redis.Redis, histogram: str) -> int:
    """Return how many values a histogram has, under all labels together."""
    found: Any = client.hgetall(NAMES.figures)
    words = [(word, int(found[name])) for name in found for word in words_of(name)]
    return sum(
        number for word, number in words if word.startswith(f"{histogram}/") and word != f"{histogram}/sum"
    )


def overdue_of(store: Store, now: float) -> Overdue:
    return find_overdue(store, [store.keys], now)[store.keys]


def write_due(client: redis.Redis, name: str, ago: float = 5, **policy: Any) -> float:
    """Write an hourly entry that has been due for some seconds; return its due time."""
    due = round(server_now(client) - ago, 6)
    write_raw(client, name, score=due, schedule=HOURLY)
    if policy:
        client.hset(f"redbeat:{name}", "policy", json.dumps(policy))
    return due


def tick_all(scheduler: RedBeatScheduler) -> None:
    while scheduler.tick() == 0:
        pass


# -- counting


@EVERY_KIND_OF_LOCK
def test_sent_runs_are_counted_with_their_lateness(scheduler: RedBeatScheduler, client: redis.Redis) -> None:
    for number in range(7):
        write_due(client, f"e{number}", ago=0.2 if number else 120)
    tick_all(scheduler)
    assert counted(client) == {"sent": 7}
    assert observations(client, "late") == 7
    found: Any = client.hgetall(NAMES.figures)
    late_seconds = sum(int(number) for name, number in found.items() if name.endswith(":late/sum")) / 1e6
    assert 120 + 6 * 0.2 <= late_seconds < 130 + 6 * 10


def test_runs_not_sent_are_counted_once_by_their_reason(
    make_scheduler: MakeScheduler, client: redis.Redis, app: Celery
) -> None:
    scheduler, progress = make_scheduler(app), Progress(app, client)
    write_due(client, "late", ago=3600 * 3 - 60, misfire="skip")
    write_due(client, "merged", ago=3600 * 2 + 60)
    write_due(client, "ended", ago=60, end_time="2020-01-01T00:00:00")
    for name, overlap in (("skips", "skip"), ("waits", "buffer_one")):
        progress.started(name, "other", write_due(client, name, overlap=overlap) - 60, overlap=overlap)
    write_due(client, "fails")
    client.hset("redbeat:fails", "definition", UNROUTABLE)
    tick_all(scheduler)
    for _ in range(2):  # a second and a third attempt at the same run
        client.zadd(SCHEDULE, {"redbeat:fails": server_now(client) - 1})
        scheduler.tick()
    skipped = {"skipped/late": 3, "skipped/end_time": 1, "skipped/overlap": 1}
    assert counted(client) == {"sent": 1, "merged": 2, "unsent": 1, **skipped}


def test_outcomes_are_counted_once_under_the_labels_of_the_sent_run(
    make_scheduler: MakeScheduler, client: redis.Redis, app: Celery
) -> None:
    track_runs(app)
    scheduler, progress = make_scheduler(app), Progress(app, client)
    outcomes = ["succeeded", "failed", "ignored", "rejected", "revoked"]
    dues = {outcome: write_due(client, outcome) for outcome in outcomes}
    tick_all(scheduler)
    for outcome in outcomes:
        [task_id] = client.hkeys(NAMES.about(outcome).running)  # type: ignore[misc]
        delivery = progress.delivery(outcome, task_id, dues[outcome])
        progress.begin(delivery)
        for _ in range(2):  # a worker that heard no answer tells twice
            progress.end(delivery, outcome, run_seconds=2.0)
    assert counted(client) == {"sent": 5, **dict.fromkeys(outcomes, 1)}
    assert observations(client, "ran") == observations(client, "wait") == 5
    found: Any = client.hkeys(NAMES.figures)
    of_failed = {name.partition(":")[0] for name in found if "failed" in words_of(name)}
    assert of_failed < {name.partition(":")[0] for name in found if "sent" in words_of(name)}
    assert client.zscore(NAMES.streaks, NAMES.about("failed").running) == 1


# -- gathering


def test_figures_are_taken_once_by_one_of_several_beats_without_a_lock(
    make_app: Callable[..., Celery], client: redis.Redis
) -> None:
    gatherings = [gathering_of(make_app()) for _ in range(3)]
    for turn in range(5):
        client.hset(NAMES.figures, ":sent", 10)
        for gathering in gatherings:
            gathering.gather()
        [view] = [found for one in gatherings if (found := view_of(one))]
        assert view.totals[":sent"] == 10 * (turn + 1)
    client.delete(NAMES.teller)  # as if that beat had been away for long
    gatherings[2].gather()
    for gathering in gatherings[:2]:
        gathering.gather()
    assert [view_of(one) is not None for one in gatherings] == [False, False, True]
    assert shown_by(gatherings[2]).totals[":sent"] == 50, "totals survive it"


def test_schedule_metrics_are_shown_only_while_no_other_beat_can_lead(
    make_scheduler: MakeScheduler, make_app: Callable[..., Celery], client: redis.Redis
) -> None:
    scheduler = make_scheduler(make_app(redbeat_takeover_after=5))
    leadership = scheduler._shards.first.leadership  # noqa: SLF001 - it has no name outside
    scheduler._election.keep_alive()  # noqa: SLF001
    gathering = Gathering(
        scheduler.app, lambda: (leadership,), LabelBook(queue_finder(scheduler.app), 1), is_shown=True
    )
    gathering.gather()
    assert shown_by(gathering).totals[":led"] == 1
    scheduler._election.heartbeat.stop()  # noqa: SLF001
    leadership.confirmed_at = time.monotonic() - 5.1  # as after a pause of the process
    assert view_of(gathering) is None
    leadership.confirmed_at = time.monotonic()
    assert view_of(gathering) is not None
    client.set(NAMES.lock, "another beat")
    gathering.gather()
    assert view_of(gathering) is None, "the lock says who leads, whatever this beat thinks"
    client.set(NAMES.lock, leadership.fence.token)


def test_schedule_metrics_without_a_lock_expire(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    gathering, later = gathering_of(app), time.monotonic() + 60
    gathering.gather()
    assert view_of(gathering) is not None
    monkeypatch.setattr("redbeat.telemetry.gathering.time", Mock(monotonic=lambda: later))
    assert view_of(gathering) is None


def test_garbage_in_the_figures_is_ignored(app: Celery, client: redis.Redis) -> None:
    client.hset(
        NAMES.figures, mapping={"": "x", "nonsense": "1", ":sent": "NaN", ":failed": "3", "\xff:a": "1"}
    )
    client.hset(NAMES.labels, mapping={"x": "{", "y": '["t", "q", "e", false]', "z": "[1]"})
    client.hset(NAMES.totals, mapping={"unknown:sent": "7", ":lost": "9" * 30, ":failed": "1"})
    client.hset(NAMES.minutes, mapping={str(minute): "garbage" for minute in range(60)})
    gathering = gathering_of(app)
    gathering.gather()
    view = view_of(gathering)
    assert view is not None
    assert view.totals[":failed"] == 4
    assert set(view.labels) == {""}
    assert not client.hexists(NAMES.totals, "unknown:sent"), "what nobody knows is forgotten"
    client.hset(NAMES.figures, ":sent", "2")
    client.hset(NAMES.totals, ":sent", "garbage")
    gathering.gather()
    assert shown_by(gathering).totals[":sent"] == 2
    assert client.hget(NAMES.totals, ":sent") == "2", "a total that was no number begins anew"
    client.delete(NAMES.figures)
    client.set(NAMES.figures, "no hash")
    gathering.gather()
    client.delete(NAMES.figures)
    gathering.gather()
    assert view_of(gathering) is not None


def test_counts_whose_labels_were_never_stored_go_to_the_total_of_others(
    app: Celery, client: redis.Redis
) -> None:
    labels, gathering = Labels("tasks.report", "celery", "stored in time"), gathering_of(app)
    client.hset(NAMES.figures, mapping={f"{labels.id}:sent": 3, "dead:sent": 4, ":sent": 1})
    gathering.gather()
    assert shown_by(gathering).totals == {":sent": 1}, "the labels may be on their way"
    client.hset(NAMES.labels, labels.id, json.dumps(labels))
    gathering.gather()
    assert shown_by(gathering).totals == {":sent": 5, f"{labels.id}:sent": 3}
    assert not counted(client), "nothing is left"


def test_labels_are_stored_again_after_redis_lost_its_data(app: Celery, client: redis.Redis) -> None:
    gathering = gathering_of(app)
    write_due(client, "report")
    id_ = gathering.book.id_of("report", "tasks.report", {}, is_asked=False)
    for lost in (False, True):
        if lost:
            client.delete(NAMES.labels, NAMES.totals, NAMES.minutes, NAMES.figures)
        client.hincrby(NAMES.figures, f"{id_}:sent", 2)
        gathering.gather()
        gathering.gather()
        stored: Any = client.hgetall(NAMES.totals)
        assert {name: int(number) for name, number in stored.items() if "sent" in name} == {f"{id_}:sent": 2}
        assert list(read_labels(Store(app), [NAMES])[0]) == [id_]
    assert shown_by(gathering).totals[f"{id_}:sent"] == 4


def test_labels_of_deleted_entries_are_removed_with_their_totals(app: Celery, client: redis.Redis) -> None:
    store, gathering, book = Store(app), gathering_of(app), LabelBook(queue_finder(app), 5)
    write_due(client, "there")
    there, gone = (book.id_of(name, "tasks.report", {}, is_asked=False) for name in ("there", "gone"))
    client.hset(NAMES.totals, mapping={f"{there}:sent": 4, f"{gone}:sent": 4})
    labels = {id_: book.known[id_] for id_ in (there, gone)}
    gathering.book.load(labels)
    take_figures(store, [(store.keys, "nobody", labels)], has_lock=True)
    gathering.gather()
    assert {one.entry for one in shown_by(gathering).labels.values()} == {"other", "there"}
    assert read_labels(store, [store.keys])[0] == {there: Labels("tasks.report", "celery", "there")}
    assert client.hgetall(NAMES.totals) == {f"{there}:sent": "4"}
    gathering.look()
    gathering.stop()
    assert "gone" not in {one.entry for one in gathering.book.known.values()}


# -- entries


def test_entries_are_counted_by_the_states_that_the_list_shows(
    app: Celery, client: redis.Redis, chance: random.Random
) -> None:
    now = server_now(client)
    definitions: list[dict[str, Any]] = [{}, {"enabled": False}, {"kwargs": {"enabled": False}}]
    policies = [None, {"paused": True}, {"paused": False}, {"max_runs": 1}, {"end_time": "2020-01-01"}]
    failed = json.dumps({"reason": "x", "attempts": 2, "retry_at": f"{now + 9:.6f}"})
    for number in range(400):
        score = chance.choice([now + 60, now - 60, -1, 0, now + 10**6])
        write_raw(client, f"e{number}", score=score, schedule=HOURLY, **chance.choice(definitions))
        policy, error = chance.choice(policies), chance.choice([None, None, None, "garbage", failed])
        if policy is not None:
            client.hset(f"redbeat:e{number}", "policy", json.dumps(policy))
        if error is not None:
            client.hset(f"redbeat:e{number}", "error", error)
    client.zadd(SCHEDULE, {"redbeat:gone": now, "bare-name": now, "redbeat::lock": now})
    client.rename("redbeat:e7", "redbeat:bare-name")
    expected = Counter(str(entry.state) for entry in list_entries(Entry, app))
    gathering, view = gathering_of(app), None
    while view is None or view.states is None:
        gathering.gather()
        view = view_of(gathering)
    assert {state: number for state, number in view.states.items() if number} == expected


def test_entry_is_overdue_until_a_run_succeeds(
    make_scheduler: MakeScheduler, client: redis.Redis, app: Celery
) -> None:
    track_runs(app)
    scheduler, progress, store = make_scheduler(app), Progress(app, client), Store(app)
    due = write_due(client, "payroll", ago=5)
    tick_all(scheduler)
    now = server_now(client)
    [task_id] = client.hkeys(NAMES.about("payroll").running)  # type: ignore[misc]
    delivery = progress.delivery("payroll", task_id, due)
    assert overdue_of(store, now + 3500).not_succeeded == 0
    late = overdue_of(store, now + 3700)
    assert (late.not_succeeded, list(late.names)) == (1, ["payroll"])
    progress.begin(delivery)
    assert overdue_of(store, now + 3700).not_succeeded == 0, "it is at work"
    progress.end(delivery, "failed")
    assert overdue_of(store, now + 3700 + 60).not_succeeded == 1
    again = progress.delivery("payroll", "by-hand", due)
    progress.send("payroll", "by-hand", due)
    progress.begin(again)
    progress.end(again, "succeeded")
    assert overdue_of(store, now + 3700).not_succeeded == 0, "somebody has run it again"
    assert overdue_of(store, now + 7300).not_succeeded == 1, "the next one should have run by then"
    Entry.get("payroll", app).pause("holidays")
    assert overdue_of(store, now + 7300).not_succeeded == 0
    assert client.zcard(NAMES.expected) == 0


def test_entry_is_not_overdue_for_runs_that_were_skipped_or_never_due(
    make_scheduler: MakeScheduler, client: redis.Redis, app: Celery
) -> None:
    track_runs(app)
    make_scheduler(app)
    now = server_now(client)

    def write(name: str, ended: str, *after: str, failing: int = 0, **policy: Any) -> None:
        write_raw(client, name, score=now + 1800, schedule=HOURLY)
        client.hset(f"redbeat:{name}", "policy", json.dumps(policy))
        history = NAMES.about(name).history
        if ended:  # three hours ago: by its present schedule there should have been two more
            record = {"at": now - 10800, "due": now - 10800, "outcome": ended, "ended": now - 10790}
            client.lpush(history, json.dumps(record))
        for outcome in after:
            client.lpush(history, json.dumps({"at": now - 7200, "due": now - 7200, "outcome": outcome}))
        if failing:
            client.set(NAMES.about(name).failing, failing)
        client.zadd(NAMES.expected, {NAMES.about(name).running: now - 60})

    write("was paused", "succeeded")
    write("skipped only", "", *["skipped"] * 20, overlap="skip")
    write("without history", "")
    write("fails always", "failed", "failed", failing=2)
    write("failed since", "succeeded", "failed", failing=1)
    write("never started", "succeeded", "never_started")
    write("failed without history", "", failing=1)
    found = overdue_of(Store(app), now)
    expected = {"fails always", "failed since", "never started", "failed without history"}
    assert (found.not_succeeded, set(found.names)) == (4, expected)


def test_late_entries_are_overdue_and_the_oldest_is_named_first(app: Celery, client: redis.Redis) -> None:
    for number in range(150):
        write_due(client, f"e{number}", ago=61 + number)
    write_due(client, "soon", ago=5)
    found = overdue_of(Store(app), server_now(client))
    assert (found.not_sent, len(found.names), found.names[0]) == (150, 100, "e149")


def test_success_sets_when_the_next_one_is_expected(
    make_scheduler: MakeScheduler, client: redis.Redis, app: Celery
) -> None:
    track_runs(app)
    scheduler, progress = make_scheduler(app), Progress(app, client)
    due = write_due(client, "hourly", max_runtime=600)
    last = write_due(client, "last", one_off=True)
    tick_all(scheduler)
    for name, at in (("hourly", due), ("last", last)):
        [task_id] = client.hkeys(NAMES.about(name).running)  # type: ignore[misc]
        delivery = progress.delivery(name, task_id, at)
        progress.begin(delivery)
        progress.end(delivery, "succeeded")
    assert client.zscore(NAMES.expected, NAMES.about("hourly").running) == pytest.approx(
        due + 3600 + 600, abs=1
    )
    assert client.zscore(NAMES.expected, NAMES.about("last").running) is None


def test_failures_in_a_row_are_shown_for_entries_that_run(app: Celery, client: redis.Redis) -> None:
    store, now = Store(app), server_now(client)

    def failing(at: float) -> Mapping[str, int]:
        return streaks_of(store, [store.keys], 10, at)[store.keys]

    for name, count in {"runs": 3, "paused": 5, "disabled": 4, "until": 6, "broken": 7}.items():
        about = NAMES.about(name)
        client.zadd(NAMES.streaks, {about.running: count})
        client.set(about.failing, count)
        Entry(name, "t", 60, app=app, enabled=name != "disabled").save()
    Entry.get("paused", app).pause()
    Entry.get("until", app).pause(until=datetime.fromtimestamp(now + 60, timezone.utc))
    client.hset("redbeat:broken", "definition", "{")
    assert failing(now) == {"runs": 3}
    assert failing(now + 61) == {"runs": 3, "until": 6}
    Entry.get("paused", app).resume()
    assert failing(now) == {"runs": 3, "paused": 5}


# -- stored messages


def test_stored_messages_are_counted_without_another_round_trip(
    app: Celery, client: redis.Redis, server: Server
) -> None:
    gathering = gathering_of(app)
    gathering.gather()

    def gather() -> tuple[int | None, int, int]:
        with monitoring(server) as commands:
            gathering.gather()
        vitals = shown_by(gathering).vitals
        assert vitals is not None
        return vitals.stored, vitals.overdue, len(commands)

    before = gather()
    store(app, "one", "two", "three")
    make_late(client, "one", server_now(client) - 61)
    make_late(client, "two", server_now(client) - 5)
    assert (before[:2], gather()) == ((0, 0), (3, 1, before[2]))
