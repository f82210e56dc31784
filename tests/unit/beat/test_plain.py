"""Plain entries are planned as plan_run plans them, or not at all."""

from __future__ import annotations

import json
import random
import uuid
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from redbeat.beat.plain import PlainEntries, delivery_tags, is_plain, plain_part_of, why_not_plain
from redbeat.beat.planner import CompiledRun, Run, plan_run
from redbeat.broker.compiler import Call, Values
from redbeat.decoder import encode_meta
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.policy.headers import NAMES as HEADERS
from redbeat.process.memory import Allowance
from redbeat.schedules import rrule
from redbeat.store.records import Claimed, Push
from redbeat.telemetry.metrics.labels import LabelBook, queue_finder

NOON = datetime(2026, 6, 1, 12, tzinfo=timezone.utc)


#: those that bound nothing, those that do, and one that can't be used
POLICIES: list[dict[str, Any]] = [
    {},
    {"expires_after": 60},
    *({"misfire": way} for way in ("all", "skip", "earliest", "bad")),
    {"misfire_grace_time": 2},
    *({"timezone": zone} for zone in ("Europe/Berlin", "Asia/Kathmandu")),
    {"jitter": 5},
    {"max_runs": 3},
    {"one_off": True},
    {"start_time": "2026-01-01"},
    {"end_time": "2030-01-01"},
    {"run_missed": True},
    {"paused": True},
    {"after_finish": "delete"},
    {"exclude": "holidays"},
    *({"overlap": overlap} for overlap in ("skip", "buffer_one", "replace")),
    {"max_runtime": 5, "revoke_overdue": True, "pause_after_failures": 3, "resume_after": 9},
    {"ping_url": "https://hc-ping.com/abc-123"},
    {"queue_timeout": 60, "tracks": "workflow"},
    {"queue_timeout": 0.5},
    {"queue_timeout": 3, "expires_after": 60},
    {"overlap": "skip", "expires_after": 60},
]


class Echo:
    """In the compiler's place: a message is what it is made of, and takes a hundred bytes.

    As of the compiler's, the expiry of the policy is in it only where it counts.
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def compile(self, call: Call, _rehearse: Any) -> Any:
        self.calls.append(call)

        def pushes(values: Values, tag: str) -> tuple[Push, ...]:
            expiry = [str(values[2]), values[3]] if call.is_expiring else [str(None), None]
            made = [*values[:2], *expiry, call.policy_headers, bool(tag)]
            return (Push("lpush", "celery", json.dumps(made)),)

        shape = SimpleNamespace(is_dropped=False, is_traced=False)
        return SimpleNamespace(size_bytes=100, expires_seconds=None, pushes=pushes, shape=shape)

    def is_current(self, _message: Any) -> bool:
        return True


def kept_by(app: Celery, compiler: Any, max_bytes: int = 10**6) -> PlainEntries:
    return PlainEntries(app, compiler, Allowance(max_bytes), LabelBook(queue_finder(app), 200))


def plans(entries: PlainEntries, rows: list[Claimed], now: float) -> tuple[list[CompiledRun], list[Claimed]]:
    return entries.plan(rows, now, send=lambda _entry: None, is_left_out=lambda _key: False)


def random_claim(chance: random.Random, number: int, now: float) -> Claimed:
    """An entry that is due, as RedBeat, celery-redbeat 2.x or somebody's hand has written it."""
    crontab = {
        "__type__": "crontab",
        "minute": chance.choice(["*", "*/5", "0", 30]),
        "hour": chance.choice(["*", "12"]),
    }
    every = chance.choice([1, 0.5, 7, 60, 60.25, 3600, 86400, 10**9, 0, -1, "x"])
    interval = {"__type__": "interval", "every": every, "relative": chance.random() < 0.2}
    rule = {"__type__": "rrule", "freq": 5, "dtstart": NOON.timestamp()}
    definition: dict[str, Any] = {
        "name": f"entry-{number}",
        "task": "shop.work",
        "schedule": chance.choice([interval, interval, crontab, crontab, rule, None]),
        "args": chance.choice([[], [1], None]),
        "kwargs": chance.choice([{}, {"a": 1}, None]),
        "options": chance.choice(
            [
                {},
                {},
                {"queue": "q"},
                {"task_id": "mine"},
                None,
                *({"expires": own} for own in (30, 60.5, None)),
            ]
        ),
        "enabled": chance.choice([True, True, True, False, None]),
    }
    if chance.random() < 0.1:
        definition["enbled"] = True
    policy = chance.choice([None, None, *POLICIES])
    late = chance.choice([0, 0, 0.25, 0.000001, 1, 3, 59.5, 60, 90, 4000])
    due = round(now - late, 6) if chance.random() < 0.7 else int(now - late)
    nominal = f"{due:.6f}" if chance.random() < 0.8 else str(int(due))
    since = chance.choice([0, 0.003, 1, 7, 60, 60.25, 3600, 86400, -30, 10**9])
    last_run = datetime.fromtimestamp(due - since, timezone.utc)
    written = [encode_meta(None, 0), *(encode_meta(last_run, count) for count in (0, 3, 3))]
    meta = chance.choice(
        [None, "", '{"last_run_at": null}', written[1][:-1], written[1][:-1] + ', "more": 1}', *written]
    )
    return Claimed(
        f"redbeat:entry-{number}",
        nominal,
        json.dumps(definition),
        meta,
        policy=None if policy is None else json.dumps(policy),
        error=chance.choice([None] * 9 + ["{}"]),
        score=nominal,
        is_asked=chance.random() < 0.05,
        is_meta_foreign=chance.random() < 0.3,
    )


@pytest.mark.few_cases(1)
@pytest.mark.parametrize("_turn", range(4))
def test_a_plain_entry_is_planned_as_any_other(app: Celery, chance: random.Random, _turn: int) -> None:
    entries, quick = kept_by(app, Echo()), 0
    for number in range(4_000):
        now = NOON.timestamp() + chance.choice([0, 0.5, 1, 61.25, 1800, 3600.001])
        rows = [random_claim(chance, number % 300, now)]
        runs, others = plans(entries, rows, now)
        assert len(runs) + len(others) == 1
        if not runs:
            continue
        quick += 1
        expected = plan_run(RedBeatSchedulerEntry, app, rows[0], now)
        assert isinstance(expected, Run), f"{rows[0]}: {expected}"
        [run] = runs
        assert run.sent.labels, "there is room for those of 300 entries, or of their task"
        assert run.sent == replace(expected.sent, labels=run.sent.labels)
        assert (run.nominal, run.name, run.task) == (expected.nominal, expected.name, expected.task)
        options = expected.entry.options
        assert json.loads(run.pushes[0].value) == [
            options["task_id"],
            options["headers"]["redbeat_due"],
            str(options["expires"] if expected.expiration_seconds is not None else None),
            expected.expiration_seconds,
            {name: options["headers"][name] for name in HEADERS if name in options["headers"]},
            True,
        ]
    assert quick > 150, f"only {quick} of 4000 went the quick way"


def claim(number: int, **fields: Any) -> Claimed:
    nominal = f"{NOON.timestamp():.6f}"
    every = {"__type__": "interval", "every": 60}
    definition = json.dumps({"name": f"entry-{number}", "task": "t", "schedule": every, **fields})
    meta = encode_meta(NOON - timedelta(minutes=1), 7)
    return Claimed(f"redbeat:entry-{number}", nominal, definition, meta, score=nominal)


def test_an_entry_is_decoded_and_compiled_once_until_its_definition_changes(app: Celery) -> None:
    compiler = Echo()
    entries = kept_by(app, compiler)
    for fields in ({}, {}, {"args": [1]}, {"args": [1]}, {}):
        assert len(plans(entries, [claim(1, **fields)], NOON.timestamp())[0]) == 1
    assert [call.args for call in compiler.calls] == [[], [1], []]


def test_a_run_goes_the_ordinary_way_where_the_message_of_another_entry_shows_that_its_own_is_wrong(
    app: Celery,
) -> None:
    class Doubting(Echo):
        """Drops what it made of the first entry when it meets the third."""

        def compile(self, call: Call, rehearse: Any) -> Any:
            made = super().compile(call, rehearse)
            if len(self.calls) == 1:
                self.first = made
            elif len(self.calls) == 3:
                self.first.shape.is_dropped = True
            return made

    entries = kept_by(app, Doubting())
    rows = [claim(number) for number in range(4)]
    runs, others = plans(entries, rows, NOON.timestamp())
    assert [run.claimed for run in runs] == rows[1:]
    assert others == rows[:1]


def test_a_changed_setting_takes_effect_at_the_next_batch(app: Celery) -> None:
    entries = kept_by(app, Echo())
    noon_in_berlin = {"__type__": "crontab", "minute": "0", "hour": "14"}
    row = replace(claim(1, schedule=noon_in_berlin), meta=None)
    scores = []
    for zone in ("UTC", "Europe/Berlin"):
        app.conf.timezone = zone
        app.__dict__.pop("timezone", None)
        [run] = plans(entries, [row], NOON.timestamp())[0]
        scores.append(run.sent.new_score)
    assert scores == [f"{NOON.timestamp() + hours * 3600:.6f}" for hours in (2, 24)]


def test_the_memory_is_bounded_and_what_was_not_due_for_longest_is_forgotten(app: Celery) -> None:
    compiler = Echo()
    allowance = Allowance(8_000)
    entries = PlainEntries(app, compiler, allowance, LabelBook(queue_finder(app), 200))
    for number in (*range(4), 0, 4, 5):
        plans(entries, [claim(number)], NOON.timestamp())
    compiled = len(compiler.calls)
    plans(entries, [claim(0), claim(5)], NOON.timestamp())
    assert len(compiler.calls) == compiled, "what was due last was forgotten"
    plans(entries, [claim(1)], NOON.timestamp())
    assert len(compiler.calls) == compiled + 1
    assert 0 <= allowance.left_bytes <= 8_000


def test_delivery_tags_are_uuids_of_version_4() -> None:
    tags = delivery_tags(200)
    assert len(set(tags)) == 200
    assert all(str(uuid.UUID(tag)) == tag and uuid.UUID(tag).version == 4 for tag in tags)
    assert {tag[19] for tag in tags} == set("89ab")


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({}, ""),
        ({"enabled": False}, ""),
        ({"timezone": "Europe/Berlin", "expires_after": 60, "misfire": "all"}, ""),
        ({"overlap": "skip", "max_runtime": 5, "queue_timeout": 60, "pause_after_failures": 3}, ""),
        ({"schedule": rrule("DAILY")}, "its schedule is neither an interval nor a crontab"),
        ({"jitter": 5}, "its policy has jitter"),
        ({"one_off": True}, "its policy has one_off"),
        ({"exclude": "holidays"}, "its policy has exclude"),
        ({"options": {"task_id": "always"}}, "the option 'task_id'"),
    ],
    ids=["plain", "disabled", "plain policy", "tracked", "rrule", "jitter", "one-off", "calendar", "task id"],
)
def test_why_an_entry_is_not_plain_is_said_in_words(app: Celery, given: dict[str, Any], reason: str) -> None:
    entry = RedBeatSchedulerEntry("report", "echo", **{"schedule": 60, **given}, app=app)
    assert why_not_plain(entry) == reason
    read = plain_part_of(entry)
    assert (read is not None and is_plain(read)) == (not reason and entry.enabled)
