"""What is planned for a fetched entry, what is recorded of it, and when its message expires."""

from __future__ import annotations

import json
import random
import uuid
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery

from redbeat.decoder import encode_meta
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.failures import sha1_of
from redbeat.errors import EntryCorrupt
from redbeat.policy.messages import NAMES
from redbeat.process.memory import Allowance
from redbeat.scheduler.bounds import DISABLED_SECONDS
from redbeat.scheduler.decisions import Decision, Send, quarantine
from redbeat.scheduler.planner import Planner, entry_to_send
from redbeat.store.records import Commit, Ending, Stored, mark_of
from redbeat.task_ids import TASK_ID_NAMESPACE, task_id_of
from tests.support.fetched import fetched

UTC = timezone.utc


NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


NOW = NOON.timestamp() + 5


MINUTELY = {"__type__": "interval", "every": 60}


HOURLY = {"__type__": "crontab", "minute": "0"}


def seconds(offset: float = 0) -> str:
    """Noon and so many seconds, as a score that RedBeat writes."""
    return f"{NOON.timestamp() + offset:.6f}"


def due_entry(
    nominal: str = seconds(), meta: str | None = None, error: str | None = None, **fields: Any
) -> Stored:
    definition = json.dumps({"name": "x", "task": "t", "schedule": MINUTELY, **fields})
    mark = mark_of(meta or "")
    return fetched("redbeat:x", nominal, definition, meta, error=error, meta_mark=mark)


def plan(app: Celery, entry: Stored, now: float = NOW) -> Send:
    decision = Planner(app).plan(entry, now)
    assert isinstance(decision, Send)
    return decision


def options_of(run: Send) -> dict[str, Any]:
    """What ``apply_async`` is given."""
    app = run.known.entry.app
    options: dict[str, Any] = entry_to_send(run, RedBeatSchedulerEntry, app).options
    return options


def skipped(app: Celery, entry: Stored, now: float = NOW) -> Commit:
    decision = Planner(app).plan(entry, now)
    assert not isinstance(decision, Send)
    return decision.commit


def test_run_is_recorded_at_its_due_time(app: Celery) -> None:
    entry = due_entry(meta=encode_meta(NOON - timedelta(minutes=1), 7))
    run = plan(app, entry)
    task_id = options_of(run)["task_id"]
    assert run.commit == Commit(
        entry,
        new_score=seconds(60),
        new_meta=encode_meta(NOON, 8),
        task_id=task_id,
        sent=seconds(),
    )
    assert (run.nominal, run.failure) == (seconds(), None)


@pytest.mark.parametrize("offset", [0.0000004, 0.1234565, 0.5, 0.9999994, 0.9999996, 59.99999971])
def test_due_time_of_any_score_is_rounded_to_the_microsecond_as_python_rounds_it(
    app: Celery, offset: float
) -> None:
    score = NOON.timestamp() + offset
    run = plan(app, due_entry(repr(score), meta=encode_meta(NOON, 7)))
    at = datetime.fromtimestamp(score, UTC)
    assert run.due == at.isoformat(timespec="microseconds")
    assert run.commit.new_meta == encode_meta(at, 8)


def test_run_carries_its_entry_and_due_time_beside_own_headers(app: Celery) -> None:
    entry = due_entry(seconds(0.25), options={"queue": "q", "headers": {"mine": 1}}, name="another")
    assert options_of(plan(app, entry)) == {
        "queue": "q",
        "headers": {"mine": 1, "redbeat_entry": "x", "redbeat_due": "2026-06-01T12:00:00.250000+00:00"},
        "task_id": task_id_of("redbeat:x", "2026-06-01T12:00:00.250000+00:00"),
    }


@pytest.mark.parametrize("enabled", [False, None, 0])
def test_disabled_entry_is_fetched_again_after_a_minute(app: Celery, enabled: Any) -> None:
    entry = due_entry(enabled=enabled, schedule={**MINUTELY, "every": 7})
    commit = skipped(app, entry)
    assert commit == Commit(entry, new_score=seconds(70))
    assert 5 + DISABLED_SECONDS < 70 <= 5 + DISABLED_SECONDS + 7


def test_paused_entry_is_fetched_again_for_its_first_run_after_the_pause(app: Celery) -> None:
    entry = due_entry(enabled=False, schedule={**MINUTELY, "every": 7})
    entry.policy = json.dumps({"paused": True, "paused_until": (NOON + timedelta(seconds=9)).isoformat()})
    assert skipped(app, entry).new_score == seconds(14)


@pytest.mark.parametrize(("late", "is_sent"), [(30, True), (61, False), (3600 + 30, True), (3700, False)])
def test_crontab_past_celerys_starting_deadline_is_skipped(app: Celery, late: int, is_sent: bool) -> None:
    app.conf.beat_cron_starting_deadline = 60
    planned = Planner(app).plan(due_entry(schedule=HOURLY), NOON.timestamp() + late)
    assert isinstance(planned, Send) is is_sent
    assert planned.commit.new_score == seconds(3600 if late < 3600 else 7200)


def test_retry_that_is_too_late_gives_way_to_a_later_run(app: Celery) -> None:
    policy = json.dumps({"expires_after": 30})
    failed = plan(app, due_entry(schedule={"__type__": "crontab"}))
    entry = due_entry(schedule={"__type__": "crontab"})
    entry.error = failed.retry("the broker is away", NOW)[0].commit.new_error
    entry.nominal = entry.score = json.loads(entry.error)["retry_at"]
    for late, due in ((10, NOON), (65, NOON + timedelta(minutes=1))):
        entry.policy = policy
        run = plan(app, entry, NOON.timestamp() + late)
        assert options_of(run)["expires"] == due + timedelta(seconds=30)
        assert run.expiration_seconds == pytest.approx(30 - late % 60, abs=1e-3)
        assert options_of(run)["task_id"] == task_id_of("redbeat:x", due.isoformat(timespec="microseconds"))


@pytest.mark.parametrize("after_finish", ["keep", "disable", "delete"])
@pytest.mark.parametrize(
    ("policy", "schedule", "meta"),
    [
        ({"end_time": "2026-06-01T11:00:00Z"}, HOURLY, encode_meta(NOON - timedelta(hours=1), 3)),
        ({}, {"__type__": "clocked", "clocked_time": "2026-06-01T12:00:00Z"}, "ahead"),
        ({"max_runs": 3}, HOURLY, encode_meta(NOON - timedelta(hours=1), 3)),
    ],
    ids=["end_time moved into the past", "last_run_at moved ahead", "has had its runs"],
)
def test_finished_entry_ends_as_its_policy_says(
    app: Celery, after_finish: str, policy: dict[str, Any], schedule: dict[str, Any], meta: str
) -> None:
    if meta == "ahead":  # by an application: RedBeat's own ends in a space
        meta = encode_meta(NOON + timedelta(hours=1), 3).strip()
    entry = due_entry(schedule=schedule, meta=meta)
    entry.policy = json.dumps({**policy, "after_finish": after_finish})
    commit = skipped(app, entry)
    assert commit.new_score == (Ending.DELETE if after_finish == "delete" else "-1.000000")
    disabled = json.loads(commit.new_definition)["enabled"] if commit.new_definition else True
    assert disabled is (after_finish != "disable")


def test_quarantined_entry_is_postponed_with_its_reason() -> None:
    entry = due_entry()
    decision, is_news = quarantine(entry, "bad", NOW, 300)
    commit = decision.commit
    assert is_news
    assert (commit.new_score, commit.new_meta) == (seconds(305), None)
    assert commit.is_for_this_definition
    assert json.loads(commit.new_error) == {
        "reason": "bad",
        "since": "2026-06-01T12:00:05+00:00",
        "definition_sha1": sha1_of(entry),
        "attempts": 0,
        "due": entry.nominal,
        "retry_at": seconds(305),
        "is_asked": False,
    }


def test_repeated_quarantine_is_not_logged_and_keeps_its_beginning() -> None:
    first = quarantine(due_entry(), "bad", NOW, 300)[0].commit
    again, is_news = quarantine(due_entry(error=first.new_error), "bad", NOW + 300, 300)
    assert not is_news
    assert json.loads(again.commit.new_error) == {**json.loads(first.new_error), "retry_at": seconds(605)}


def test_entry_with_invalid_meta_stays_invalid_though_it_is_kept(app: Celery) -> None:
    planner = Planner(app, allowance=Allowance(10**6))
    planner.plan(due_entry(), NOW)
    invalid = due_entry(meta='{"last_run_at": "2024-01-01", "total_run_count": 2}')
    for late in (0, 300):
        with pytest.raises(EntryCorrupt, match="last_run_at"):
            planner.plan(invalid, NOW + late)


def test_run_of_a_solar_entry_with_jitter_has_one_task_id_on_every_beat(app: Celery) -> None:
    keeping, now = Planner(app, allowance=Allowance(10**6)), NOW
    row = due_entry(schedule={"__type__": "solar", "event": "sunrise", "lat": 52, "lon": 13})
    row.policy = json.dumps({"jitter": 30.5})
    for _ in range(4):
        sent, elsewhere = keeping.plan(row, now), Planner(app).plan(row, now)
        assert isinstance(sent, Send)
        assert isinstance(elsewhere, Send)
        assert sent.task_id == elsewhere.task_id
        commit = sent.commit
        assert commit.new_meta is not None
        row = replace(row, nominal=commit.new_score, score=commit.new_score, meta=commit.new_meta)
        row.meta_mark, now = mark_of(commit.new_meta), float(commit.new_score) + 0.01


def test_run_after_one_that_was_held_back_has_one_task_id_on_every_beat(app: Celery) -> None:
    keeping = Planner(app, allowance=Allowance(10**6))
    before = due_entry(seconds(), encode_meta(NOON - timedelta(seconds=60), 1))
    asked = replace(before, nominal=seconds(4.25), score=seconds(4.25), is_asked=True)
    asked.policy = json.dumps({"jitter": 10, "overlap": "skip"})
    held = keeping.plan(asked, NOW)
    assert isinstance(held, Send)
    row = replace(asked, nominal=held.skip_score, score=held.skip_score, is_asked=False)
    now = float(held.skip_score) + 0.01
    sent, elsewhere = keeping.plan(row, now), Planner(app).plan(row, now)
    assert isinstance(sent, Send)
    assert isinstance(elsewhere, Send)
    assert sent.task_id == elsewhere.task_id


def test_corrected_entry_runs_as_of_its_first_due_time(app: Celery) -> None:
    entry = due_entry(schedule={"__type__": "crontab", "minute": "*/5"})
    for late in (5, 305):
        entry.error = quarantine(entry, "bad", NOW + late, 300)[0].commit.new_error
        entry.nominal = entry.score = json.loads(entry.error)["retry_at"]
    for misfire, due in (("earliest", NOON), ("latest", NOON + timedelta(minutes=10))):
        entry.policy = json.dumps({"misfire": misfire})
        run = Planner(app).plan(entry, NOW + 610)
        assert isinstance(run, Send)
        assert options_of(run)["headers"]["redbeat_due"] == due.isoformat(timespec="microseconds")
    entry.policy = json.dumps({"misfire": "skip", "misfire_grace_time": 2})
    assert not isinstance(Planner(app).plan(entry, NOW + 610), Send)


def test_run_has_one_task_id_at_every_try_and_on_every_beat(app: Celery) -> None:
    first = plan(app, due_entry())
    commit = first.retry("broken", NOW)[0].commit
    again = plan(app, due_entry(commit.new_score, error=commit.new_error), NOW + 1)
    elsewhere = plan(Celery("another", set_as_current=False, broker="redis://"), due_entry(), NOW + 30)
    assert {options_of(run)["task_id"] for run in (first, again, elsewhere)} == {
        str(uuid.uuid5(TASK_ID_NAMESPACE, "redbeat:x\n2026-06-01T12:00:00.000000+00:00"))
    }


def test_run_that_fails_for_another_reason_is_logged_and_goes_on_backing_off(app: Celery) -> None:
    first = plan(app, due_entry()).retry("broken", NOW)[0].commit
    run = plan(app, due_entry(first.new_score, error=first.new_error), NOW + 1)
    again, is_news = run.retry("broken otherwise", NOW + 1)
    assert (is_news, json.loads(again.commit.new_error)["attempts"]) == (True, 2)


def test_failing_entry_moved_to_another_time_is_due_then(app: Celery) -> None:
    failed = plan(app, due_entry()).retry("broken", NOW)[0].commit
    moved = due_entry(seconds(30), error=failed.new_error)
    run = plan(app, moved, NOW + 30)
    assert (run.nominal, run.commit.new_error) == (seconds(30), "")


def test_retry_after_the_next_due_time_covers_that_run(app: Celery) -> None:
    failed = plan(app, due_entry()).retry("broken", NOW)[0].commit
    run = plan(app, due_entry(failed.new_score, error=failed.new_error), NOW + 130)
    assert (run.nominal, run.commit.new_score) == (seconds(), seconds(180))


# -- when a message expires


#: when it is sent, seven seconds late
SENT = NOON + timedelta(seconds=7)


def planned(app: Celery, policy: dict[str, Any], options: dict[str, Any]) -> Send:
    nominal = f"{NOON.timestamp():.6f}"
    definition = {"task": "t", "schedule": {"__type__": "interval", "every": 60}, "options": options}
    due_entry = fetched("redbeat:x", nominal, json.dumps(definition), None, policy=json.dumps(policy))
    run = Planner(app).plan(due_entry, SENT.timestamp())
    assert isinstance(run, Send)
    return run


def headers_of(run: Send) -> dict[str, Any]:
    """What the message tells its worker of the policy."""
    headers = options_of(run)["headers"]
    return {name: headers[name] for name in NAMES if name in headers}


MINUTE = {"queue_timeout": 60}


#: policy, the entry's options, and how long after it is sent its message expires
LIMITED: dict[str, tuple[dict[str, Any], dict[str, Any], float]] = {
    "queue_timeout": (MINUTE, {}, 60),
    "an overlap policy": ({"overlap": "skip"}, {}, 3600),
    "expires_after is earlier": ({**MINUTE, "expires_after": 50}, {}, 43),
    "an option that is later": (MINUTE, {"expires": 61}, 60),
    "an option that expires_after replaces": ({**MINUTE, "expires_after": 90}, {"expires": 5}, 60),
    "countdown": (MINUTE, {"countdown": 100}, 160),
    "eta": (MINUTE, {"eta": "2026-06-01T12:00:17"}, 70),
    "eta with an offset": (MINUTE, {"eta": "2026-06-01T14:00:17+02:00"}, 70),
    "an eta that is none": (MINUTE, {"eta": "soon"}, 60),
}


@pytest.mark.parametrize(("policy", "options", "seconds"), LIMITED.values(), ids=LIMITED)
def test_message_expires_by_the_earliest_limit_of_its_policy(
    app: Celery, policy: dict[str, Any], options: dict[str, Any], seconds: float
) -> None:
    run = planned(app, policy, options)
    assert options_of(run)["expires"] == SENT + timedelta(seconds=seconds)
    assert run.expiration_seconds == seconds
    told = {"redbeat_queue_timeout": 3600, **{f"redbeat_{name}": value for name, value in policy.items()}}
    assert headers_of(run) == told


#: policy and options of messages that don't expire by the policy
OWN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nothing": ({}, {}),
    "tracked without a limit": ({"max_runtime": 5, "pause_after_failures": 3, "tracks": "workflow"}, {}),
    "an option that is earlier": (MINUTE, {"expires": 60}),
    "an option that is earlier after a countdown": (MINUTE, {"countdown": 100, "expires": 150}),
    "an option that is no time": (MINUTE, {"expires": "soon"}),
}


@pytest.mark.parametrize(("policy", "options"), OWN.values(), ids=OWN)
def test_option_that_is_earlier_is_kept(app: Celery, policy: dict[str, Any], options: dict[str, Any]) -> None:
    run = planned(app, policy, options)
    assert {name: options_of(run)[name] for name in options} == options
    assert ("expires" in options_of(run)) == ("expires" in options)
    told = {"redbeat_tracks": "workflow"} if "tracks" in policy else {}
    assert (run.expiration_seconds, headers_of(run)) == (None, told)


@pytest.mark.parametrize(("of_task", "seconds"), [(60, None), (61, 60)])
def test_task_whose_messages_expire_earlier_keeps_that(
    app: Celery, of_task: int, seconds: int | None
) -> None:
    @app.task(name="t", shared=False, expires=of_task)
    def run() -> None:
        """Never runs here."""

    assert planned(app, MINUTE, {}).expiration_seconds == seconds
    assert planned(app, MINUTE, {"expires": None}).expiration_seconds == 60, "an option replaces the task's"


# -- kept entries: planned as those that are read for the first time


POLICIES: list[dict[str, Any]] = [
    {},
    {"expires_after": 60},
    *({"misfire": misfire} for misfire in ("all", "skip", "earliest")),
    {"misfire_grace_time": 2},
    {"one_off": True},
    {"end_time": "2030-01-01"},
    {"exclude": "holidays"},
    {"overlap": "skip", "expires_after": 60},
    {"queue_timeout": 3, "max_runtime": 5},
]


def random_claim(chance: random.Random, now: float) -> Stored:
    """An entry that is due, as RedBeat, celery-redbeat 2.x or another program has written it."""
    every = chance.choice([0.5, 60, 60.25, 3600, 10**9, 0, "x"])
    crontab = {"__type__": "crontab", "minute": chance.choice(["*", "*/5", 30]), "hour": "*"}
    definition = {
        "name": "entry",
        "task": "shop.work",
        "schedule": chance.choice([{"__type__": "interval", "every": every}, crontab, None]),
        "args": chance.choice([[], [1], None]),
        "options": chance.choice([{}, {"queue": "q"}, {"task_id": "mine"}, {"expires": 30}, None]),
        "enabled": chance.choice([True, True, False, None]),
    }
    due = round(now - chance.choice([0, 0.25, 1, 59.5, 60, 4000]), 6)
    nominal = f"{due:.6f}" if chance.random() < 0.8 else str(int(due))
    last_run = datetime.fromtimestamp(due - chance.choice([0, 1, 60, 3600, -30]), UTC)
    metas = [None, "", '{"last_run_at": null}', encode_meta(None, 0), encode_meta(last_run, 3)]
    meta = chance.choice(metas)
    return fetched(
        "redbeat:entry",
        nominal,
        json.dumps(definition),
        meta,
        policy=chance.choice([None, *map(json.dumps, POLICIES)]),
        error=chance.choice([None] * 9 + ["{}"]),
        is_asked=chance.random() < 0.05,
        meta_mark=mark_of(meta or "") if due % 3 > 1 else "",
    )


def decided(planner: Planner, row: Stored, now: float) -> Any:
    """Everything that a decision says, or the error."""
    try:
        found: Decision = planner.plan(replace(row), now)
    except Exception as exc:  # noqa: BLE001 - compared
        return type(exc), str(exc)
    names = (
        "nominal",
        "due",
        "task_id",
        "expires",
        "expiration_seconds",
        "headers",
        "skip_score",
    )
    run = [getattr(found, name) for name in (*names, "valid_until")] if isinstance(found, Send) else []
    return type(found), found.commit, found.dropped, run


def test_kept_entries_and_due_times_change_no_decision(app: Celery, chance: random.Random) -> None:
    keeping = Planner(app, allowance=Allowance(10**6))
    now, rows, sent = NOON.timestamp(), [], 0
    for _ in range(1_000):
        if chance.random() < 0.2:
            now = NOON.timestamp() + chance.choice([0, 0.5, 61.25, 3600.001])
        row = chance.choice(rows) if rows and chance.random() < 0.5 else random_claim(chance, now)
        rows = [*rows[-20:], row]
        found = decided(keeping, row, now)
        assert found == decided(Planner(app), row, now), row
        sent += found[0] is Send
    assert sent > 100, f"only {sent} were sent"
