"""After an outage each run that wasn't sent has its own reason: in the history, in `show`, and in `why`."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import RedBeatScheduler
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.calendars import Calendar
from redbeat.decoder import encode_meta
from redbeat.diagnostics.facts import read_facts
from redbeat.diagnostics.why import explain
from redbeat.history import PastRun
from redbeat.log.text import sha1_of_text
from redbeat.manifest.format import Declared
from redbeat.schedules.timezones import shown
from tests.integration.conftest import EVERY_KIND_OF_LOCK
from tests.support.applying import apply
from tests.support.command_line import call
from tests.support.schedule import SCHEDULE, messages, score_of, sent_dues, server_time, write_raw

EVERY = 100  # seconds between two runs

INTERVAL = {"__type__": "interval", "every": EVERY}


def write_missed(
    client: redis.Redis,
    schedule: Any = INTERVAL,
    runs: int = 8,
    *,
    seconds_ago: float = 30.5,
    is_own: bool = True,
    **policy: Any,
) -> list[datetime]:
    """An entry whose last `runs` runs nobody has sent, the latest so many seconds ago; their times."""
    latest = server_time(client) - timedelta(seconds=seconds_ago)
    dues = [latest - timedelta(seconds=EVERY * back) for back in reversed(range(runs))]
    if schedule is not INTERVAL:
        schedule = {**schedule, "dtstart": dues[0].timestamp() - 10 * EVERY, "dtstart_tz": 0}
        dues = [due.replace(microsecond=0) for due in dues]  # as a rule has them
    ran_at = dues[0] - timedelta(seconds=EVERY)
    enabled = policy.pop("enabled", True)
    meta = encode_meta(ran_at, 5)
    write_raw(client, "entry", schedule=schedule, score=dues[0].timestamp(), meta=meta, enabled=enabled)
    client.hset("redbeat:entry", "policy", json.dumps(policy))
    if is_own:
        client.hset("redbeat:entry", "meta_sha1", sha1_of_text(meta))
    return dues


RULE = {"__type__": "rrule", "freq": 6, "interval": EVERY}


def drain(scheduler: RedBeatScheduler) -> None:
    for _ in range(20):
        scheduler.tick()


def spans(app: Celery) -> list[tuple[str, datetime, datetime, int | None, str]]:
    """The records of what wasn't sent, the earliest first."""
    return [
        (run.outcome, run.due, run.last or run.due, run.count, run.why)
        for run in reversed(Entry.get("entry", app).history())
        if run.outcome != "sent"
    ]


def reasons(app: Celery, dues: list[datetime]) -> list[tuple[str, str]]:
    """Verdict and reason of each run, by `why`."""
    answers = [explain(read_facts(app, "entry"), due) for due in dues]
    return [(answer.verdict, answer.reason) for answer in answers]


ALL: dict[str, Any] = {"misfire": "all"}
GRACE = {"misfire_grace_time": 250}
OLD = ("skipped", 0, 4, "older than misfire_grace_time of 250 s")
#: of the one that is sent
STANDS = "the run of {sent} UTC stands for them"
LIMIT = "older than the limit of"
ONLY_THE_LATEST = "only the latest run is sent (misfire: skip)"
EXPIRED = "its message would have expired (expires_after:"


@pytest.mark.few_cases(26)
@EVERY_KIND_OF_LOCK
@pytest.mark.parametrize("schedule", [INTERVAL, RULE], ids=["interval", "rrule"])
@pytest.mark.parametrize(
    ("policy", "sent", "expected"),
    [
        # which of the eight are sent; and spans of the others: outcome, the first, the last, words
        ({}, [7], [("merged", 0, 6, STANDS)]),
        ({"misfire": "latest"}, [7], [("merged", 0, 6, STANDS)]),
        ({"misfire": "earliest"}, [0], [("merged", 1, 7, STANDS)]),
        ({"misfire": "all"}, [0, 1, 2, 3, 4, 5, 6, 7], []),
        (ALL | {"misfire_limit": 3}, [5, 6, 7], [("skipped", 0, 4, f"{LIMIT} 3 (misfire_limit)")]),
        ({"misfire": "skip"}, [7], [("skipped", 0, 6, "more than 60 s late (misfire: skip)")]),
        ({"misfire": "skip"} | GRACE, [7], [OLD, ("skipped", 5, 6, ONLY_THE_LATEST)]),
        ({"misfire": "latest"} | GRACE, [7], [OLD, ("merged", 5, 6, STANDS)]),
        ({"misfire": "earliest"} | GRACE, [5], [OLD, ("merged", 6, 7, STANDS)]),
        (
            ALL | {"misfire_limit": 2, "misfire_grace_time": 350},
            [6, 7],
            [
                ("skipped", 0, 3, "older than misfire_grace_time of 350 s"),
                ("skipped", 4, 5, f"{LIMIT} 2 (misfire_limit)"),
            ],
        ),
        ({"expires_after": 50}, [7], [("skipped", 0, 6, f"{EXPIRED} 50 s)")]),
        ({"expires_after": 5}, [], [("skipped", 0, 7, f"{EXPIRED} 5 s)")]),
        (
            ALL | {"expires_after": 450, "misfire_grace_time": 120},
            [7],
            [("skipped", 0, 6, "older than misfire_grace_time of 120 s")],
        ),
    ],
)
def test_each_run_that_was_not_sent_has_its_own_reason(
    scheduler: RedBeatScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    schedule: Any,
    policy: dict[str, Any],
    sent: list[int],
    expected: list[tuple[str, int, int, str]],
) -> None:
    dues = write_missed(client, schedule, **policy)
    drain(scheduler)
    told = zip(sent_dues(broker), sent, strict=True)
    assert all(abs(due - dues[number]) < timedelta(seconds=1) for due, number in told)
    assert score_of(client, "entry") == pytest.approx(dues[-1].timestamp() + EVERY, abs=1e-3), "in phase"

    found = spans(scheduler.app)
    shown = [f"{due:%Y-%m-%d %H:%M:%S}" for due in dues]
    assert [(outcome, count) for outcome, _, _, count, _ in found] == [
        (outcome, last - first + 1) for outcome, first, last, _ in expected
    ]
    for (_, due, last, _, why), (_, first_number, last_number, words) in zip(found, expected, strict=True):
        assert abs(due - dues[first_number]) < timedelta(seconds=1)
        assert abs(last - dues[last_number]) < timedelta(seconds=1)
        assert re.sub(r"\.\d+(?= UTC)", "", why) == words.format(sent=shown[sent[0]] if sent else "")

    answers = reasons(scheduler.app, dues)
    for number, (verdict, reason) in enumerate(answers):
        if number in sent:
            assert verdict == "sent", reason
            continue
        [(outcome, words)] = [(one[0], one[3]) for one in expected if one[1] <= number <= one[2]]
        assert verdict == outcome
        if outcome == "skipped":
            assert words in reason
        else:
            assert "stands for it" in reason
            assert f"was due at {shown[sent[0]]}" in reason


def test_a_long_outage_is_one_record_and_the_runs_before_it_stay_known(
    scheduler: RedBeatScheduler, client: redis.Redis
) -> None:
    write_missed(client, runs=5000, misfire="all", misfire_limit=3)
    for number in range(17):
        client.lpush("redbeat::history:entry", json.dumps({"at": number + 1e9, "due": number + 1e9}))
    drain(scheduler)
    history = Entry.get("entry", scheduler.app).history()
    assert [run.outcome for run in history[:5]] == ["sent", "sent", "sent", "skipped", "sent"]
    assert history[3].count == 4997
    assert len(history) == 20
    assert len([run for run in history if run.due.year == 2001]) == 16


def test_what_is_too_much_to_count_has_no_count_and_is_true_otherwise(
    scheduler: RedBeatScheduler, client: redis.Redis
) -> None:
    now = server_time(client).replace(second=0, microsecond=0)
    first = now - timedelta(days=30)
    meta = encode_meta(first - timedelta(seconds=59), 5)
    Calendar("holidays", ["2001-01-01"], app=scheduler.app).save()
    every_minute = {"__type__": "crontab"}
    write_raw(client, "entry", schedule=every_minute, exclude="holidays", score=first.timestamp(), meta=meta)
    scheduler.tick()
    [(outcome, due, last, count, why)] = spans(scheduler.app)
    sent = Entry.get("entry", scheduler.app).history()[0]
    assert (outcome, due, count) == ("merged", first, None)
    assert last == sent.due - timedelta(minutes=1)
    assert why == f"the run of {sent.due:%Y-%m-%d %H:%M:%S} UTC stands for them"
    [(verdict, reason)] = reasons(scheduler.app, [first + timedelta(days=9)])
    assert verdict == "merged"
    assert f"among those from {first:%Y-%m-%d %H:%M:%S} UTC" in reason


@pytest.mark.parametrize("away", [timedelta(hours=8), timedelta(days=400)], ids=["hours", "more than a year"])
def test_the_runs_of_every_minute_are_counted_however_long_nothing_was_sent(
    scheduler: RedBeatScheduler, client: redis.Redis, away: timedelta
) -> None:
    now = server_time(client).replace(second=0, microsecond=0)
    first = now - away
    meta = encode_meta(first - timedelta(seconds=59), 5)
    write_raw(client, "entry", schedule={"__type__": "crontab"}, score=first.timestamp(), meta=meta)
    scheduler.tick()
    [(outcome, due, last, count, _)] = spans(scheduler.app)
    sent = Entry.get("entry", scheduler.app).history()[0]
    assert (outcome, due, last) == ("merged", first, sent.due - timedelta(minutes=1))
    assert count == (sent.due - first) // timedelta(minutes=1) >= away // timedelta(minutes=1)


@pytest.mark.parametrize("policy", [{}, {"after_finish": "disable"}], ids=["kept", "disabled"])
def test_runs_beyond_the_last_one_that_may_be_say_so(
    scheduler: RedBeatScheduler, client: redis.Redis, app: Celery, policy: dict[str, Any]
) -> None:
    dues = write_missed(client, misfire="all", max_runs=7, **policy)  # it has run 5 times
    drain(scheduler)
    assert [run.outcome for run in Entry.get("entry", app).history()] == ["skipped", "sent", "sent"]
    [(_, first, last, count, why)] = spans(app)
    assert (abs(first - dues[2]), abs(last - dues[-1])) < (timedelta(milliseconds=1),) * 2
    assert (count, why) == (6, "it has run 7 times (max_runs)")
    for verdict, told in reasons(app, dues[2:]):
        assert (verdict, why in told) == ("skipped", True), told


@pytest.mark.parametrize("is_own", [True, False], ids=["beats-own-meta", "anothers-meta"])
def test_runs_that_a_calendar_excludes_say_so(
    scheduler: RedBeatScheduler, client: redis.Redis, app: Celery, broker: redis.Redis, is_own: bool
) -> None:
    now = server_time(client)
    Calendar("holidays", [(now - timedelta(seconds=460), now - timedelta(seconds=200))], app=app).save()
    dues = write_missed(
        client, exclude="holidays", is_own=is_own
    )  # of 730, 630, 530, 430, 330, 230, 130 and 30 s ago
    drain(scheduler)
    assert len(messages(broker)) == 1
    verdicts = [verdict for verdict, _ in reasons(app, dues)]
    assert verdicts == ["merged"] * 3 + ["excluded"] * 3 + ["merged", "sent"]
    assert [count for _, _, _, count, _ in spans(app)] == [4], "not counted among those that were merged"

    client.flushdb()
    Calendar("holidays", [(now - timedelta(seconds=900), now - timedelta(seconds=200))], app=app).save()
    dues = write_missed(client, exclude="holidays", is_own=is_own)
    drain(scheduler)
    assert [(outcome, count, why) for outcome, _, _, count, why in spans(app)] == [
        ("skipped", 6, "excluded by its calendar holidays"),
        ("merged", 1, spans(app)[1][4]),
    ]
    assert spans(app)[1][4].endswith("stands for it")
    assert [verdict for verdict, _ in reasons(app, dues)] == ["excluded"] * 6 + ["merged", "sent"]


def test_runs_after_end_time_say_so(scheduler: RedBeatScheduler, client: redis.Redis, app: Celery) -> None:
    end = server_time(client) - timedelta(seconds=800)
    dues = write_missed(client, end_time=end.isoformat())
    drain(scheduler)
    assert [(outcome, count, why) for outcome, _, _, count, why in spans(app)] == [
        ("skipped", 8, f"after its end_time, {end.isoformat()}")
    ]
    assert {verdict for verdict, _ in reasons(app, dues)} == {"outside"}


def test_runs_in_a_pause_that_has_ended_say_so(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, app: Celery
) -> None:
    until = server_time(client) - timedelta(seconds=200)
    paused = {"paused": True, "paused_until": until.isoformat(), "pause_note": "repairs"}
    dues = write_missed(client, enabled=False, **paused)
    drain(scheduler)
    assert len(messages(broker)) == 1
    (outcome, due, last, count, why), merged = spans(app)
    assert (outcome, count, why) == ("skipped", 6, f"paused until {shown(until)}: repairs")
    assert abs(due - dues[0]) < timedelta(milliseconds=1)
    assert abs(last - dues[5]) < timedelta(milliseconds=1)
    assert (merged[0], merged[3]) == ("merged", 1)
    verdicts = reasons(app, dues)
    assert [verdict for verdict, _ in verdicts] == ["skipped"] * 6 + ["merged", "sent"]
    assert "repairs" in verdicts[0][1]
    client.zadd(SCHEDULE, {"redbeat:entry": 0})
    drain(scheduler)
    assert len(spans(app)) == 2, "told once"


@pytest.mark.parametrize("way", ["resume", "save", "resume_many", "apply", "disabled"])
def test_runs_in_a_rest_that_somebody_ends_say_so(
    scheduler: RedBeatScheduler, client: redis.Redis, app: Celery, way: str
) -> None:
    before = server_time(client)
    policy = {} if way == "disabled" else {"paused": True, "pause_note": "repairs"}
    dues = write_missed(client, enabled=False, **policy)
    scheduler.tick()
    entry = Entry.get("entry", app)
    if way == "resume":
        entry.resume()
    elif way == "resume_many":
        assert Entry.resume_many(["entry"], app).changed == ("entry",)
    elif way == "apply":
        fields = {"task": entry.task, "schedule": {"every": EVERY}, "enabled": True}
        apply(app, Declared(entries={"entry": fields}))
    else:
        entry.enabled = True
        entry.save()
    [(outcome, due, last, count, why)] = spans(app)
    assert (outcome, count) == ("skipped", 8)
    assert (abs(due - dues[0]), abs(last - dues[7])) < (timedelta(milliseconds=1),) * 2
    rest, _, until = why.partition(" until ")
    assert rest == ("disabled" if way == "disabled" else "paused")
    assert until.endswith(" UTC" if way == "disabled" else " UTC: repairs")
    assert f"{before:%Y-%m-%d %H:%M}"[:-1] in until
    assert [verdict for verdict, _ in reasons(app, dues)] == ["skipped"] * 8
    Entry.get("entry", app).save()
    assert len(spans(app)) == 1, "told once"


def test_a_rest_that_is_made_up_for_or_had_no_runs_leaves_no_record(
    scheduler: RedBeatScheduler, client: redis.Redis, app: Celery
) -> None:
    write_missed(client, enabled=False, run_missed=True)
    Entry.get("entry", app).resume()
    Entry("quick", "t", 3600, app=app).save().pause()
    Entry.get("quick", app).resume()
    assert not client.exists("redbeat::history:entry", "redbeat::history:quick")


def test_whoever_may_not_write_histories_may_resume_all_the_same(app: Celery, client: redis.Redis) -> None:
    write_missed(client, enabled=False)
    client.set("redbeat::history:entry", "no list")
    Entry.get("entry", app).resume()
    assert Entry.get("entry", app).state == "scheduled"


def test_runs_that_were_sent_in_time_leave_no_other_records(
    scheduler: RedBeatScheduler, client: redis.Redis, app: Celery
) -> None:
    for policy in (
        {},
        {"misfire": "all"},
        {"misfire": "skip"},
        {"misfire_grace_time": 60},
        {"expires_after": 9},
    ):
        write_missed(client, runs=1, seconds_ago=0.25, **policy)
        scheduler.tick()
    assert spans(app) == []


def test_a_run_that_could_not_be_sent_at_first_stands_for_those_that_came_due_meanwhile(
    scheduler: RedBeatScheduler, client: redis.Redis, app: Celery, broker: redis.Redis
) -> None:
    dues = write_missed(client, runs=1)
    broker.set("celery", "no list")
    scheduler.tick()
    broker.delete("celery")
    due = dues[0] - timedelta(seconds=3 * EVERY)
    error = json.loads(client.hget("redbeat:entry", "error"))
    error |= {"due": f"{due.timestamp():.6f}", "retry_at": "1.500000"}
    client.hset("redbeat:entry", "error", json.dumps(error))
    client.zadd(SCHEDULE, {"redbeat:entry": 1.5})
    client.delete("redbeat::history:entry")
    scheduler.tick()
    assert [run.outcome for run in Entry.get("entry", app).history()] == ["sent", "merged"]
    [(_, first, last, count, why)] = spans(app)
    assert abs(first - due - timedelta(seconds=EVERY)) < timedelta(milliseconds=1)
    assert abs(last - dues[0]) < timedelta(milliseconds=1)
    assert count == 3
    assert f"{due:%Y-%m-%d %H:%M:%S}" in why


def test_show_says_what_was_not_sent(scheduler: RedBeatScheduler, client: redis.Redis, app: Celery) -> None:
    dues = write_missed(client, misfire="all", misfire_limit=3)
    drain(scheduler)
    text = " ".join(call(app, "show", "entry", "--utc").stdout.split())
    assert f"until {dues[4]:%Y-%m-%d %H:%M:%S} UTC, 5 runs: older than the limit of 3" in text
    document = json.loads(call(app, "show", "entry", "--json").stdout)
    record = document["history"][-1]
    assert (record["outcome"], record["count"], record["due"], record["last"]) == (
        "skipped",
        5,
        PastRun(dues[0], dues[0]).to_dict()["due"],
        PastRun(dues[4], dues[4]).to_dict()["due"],
    )
