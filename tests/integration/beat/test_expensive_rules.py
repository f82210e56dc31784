"""Schedules that take too long to compute: everything else runs on time, and they are named."""

from __future__ import annotations

import json
import time
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import RedBeatScheduler
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.errors import EntryError, EntryTooExpensive
from redbeat.schedules import register_schedule
from tests.integration.conftest import EVERY_KIND_OF_LOCK, MakeScheduler
from tests.support.apps import celery_beat, run_beat, write_app
from tests.support.command_line import call
from tests.support.deadlines import patience
from tests.support.logs import has_traceback
from tests.support.polling import eventually
from tests.support.schedule import (
    SCHEDULE,
    field,
    meta_json,
    score_of,
    sent_dues,
    sent_names,
    server_now,
    write_raw,
)
from tests.support.servers import Server
from tests.support.spinning import SPINNING, fields_of, know_spinning, spinning


@pytest.fixture(autouse=True)
def _known_kind() -> None:
    know_spinning()


CANARY = {"__type__": "interval", "every": 1}


@EVERY_KIND_OF_LOCK
def test_an_entry_that_never_ends_is_put_off_and_then_quarantined_and_the_rest_is_sent(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    write_raw(client, "hostile", score=1, schedule=SPINNING)
    write_raw(client, "good", score=2)
    began = server_now(client)
    scheduler.tick()
    assert sent_names(broker) == ["good"]
    put_off = score_of(client, "hostile")
    assert began < put_off <= server_now(client) + 2, "one slow moment is no reason to stop it"
    assert [record.levelname for record in caplog.records if "hostile" in record.getMessage()] == ["WARNING"]
    eventually(lambda: server_now(client) > put_off)
    scheduler.tick()
    error = field(client, "hostile", "error")
    assert "redbeat:hostile" in error["reason"]
    assert "too expensive to compute" in error["reason"]
    assert error["due"] == "1", "its run isn't lost"
    assert (score_of(client, "hostile") or 0) > server_now(client) + scheduler.max_interval - 10
    assert sum("too expensive" in record.getMessage() for record in caplog.records) == 2


def test_a_slow_moment_is_forgotten_with_the_next_good_one(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    write_raw(client, "slow", score=1, schedule=SPINNING)
    for _ in range(3):
        register_schedule("spinning", spinning, fields_of, lambda d: spinning(None))
        broker.delete("celery")
        scheduler.tick()
        assert sent_names(broker) == []
        client.zadd(SCHEDULE, {"redbeat:slow": field(client, "slow", "error")["retry_at"]})
        register_schedule("spinning", spinning, fields_of, lambda d: spinning(0))
        eventually(lambda: (scheduler.tick(), sent_names(broker) == ["slow"])[1])
        assert client.hget("redbeat:slow", "error") is None
        client.zadd(SCHEDULE, {"redbeat:slow": 1})


@EVERY_KIND_OF_LOCK
@pytest.mark.parametrize("overruns", [1, 2], ids=["once", "until-quarantined"])
def test_a_run_that_was_asked_for_is_sent_once_its_entry_can_be_computed(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, overruns: int
) -> None:
    """It isn't due by its schedule, neither then nor at the next try."""
    meta = meta_json(datetime.now(timezone.utc), 3)
    write_raw(client, "asked", score=0, schedule=SPINNING, meta=meta)
    for _ in range(overruns):
        scheduler.tick()
        assert sent_names(broker) == []
        client.zadd(SCHEDULE, {"redbeat:asked": 1})
        error = field(client, "asked", "error")
        assert error["is_asked"]
        client.hset("redbeat:asked", "error", json.dumps({**error, "retry_at": "1"}))
    register_schedule("spinning", spinning, fields_of, lambda d: spinning(0))
    eventually(lambda: (scheduler.tick(), sent_names(broker) == ["asked"])[1])
    [due] = sent_dues(broker)
    assert due.timestamp() == pytest.approx(float(error["due"]), abs=1e-5), "so it keeps its id"
    assert client.hget("redbeat:asked", "error") is None


def test_an_entry_that_somebody_gave_another_time_is_not_asked_for_any_more(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    write_raw(client, "asked", score=0, schedule=SPINNING, meta=meta_json(datetime.now(timezone.utc), 3))
    scheduler.tick()
    register_schedule("spinning", spinning, fields_of, lambda d: spinning(0))
    client.zadd(SCHEDULE, {"redbeat:asked": server_now(client)})
    scheduler.tick()
    assert sent_names(broker) == []
    assert (score_of(client, "asked") or 0) > server_now(client) + 60


@EVERY_KIND_OF_LOCK
def test_many_slow_entries_do_not_keep_the_others_waiting(
    make_scheduler: MakeScheduler, client: redis.Redis, broker: redis.Redis, settings: dict[str, Any]
) -> None:
    """Counted in batches: a good one waits for the end of the one that is planned, however many are slow."""
    slow = {**SPINNING, "seconds": 0.005}
    now = server_now(client)
    for number in range(80):
        write_raw(client, f"slow-{number}", score=now - 50 + number / 10, schedule=slow)
    scheduler = make_scheduler(redbeat_batch_size=10, **settings)
    scheduler.tick()
    batches = 1
    assert 0 < len(sent_names(broker)) <= 10
    for number in range(4):
        write_raw(client, f"good-{number}", score=now - 10 + number)
        for _ in range(1 if number else 2):
            scheduler.tick()
            batches += 1
        assert f"good-{number}" in sent_names(broker)
    while len(sent_names(broker)) < 84 and batches < 90:
        scheduler.tick()
        batches += 1
    assert len(set(sent_names(broker))) == len(sent_names(broker)) == 84, "nothing is lost or doubled"


def test_saving_one_says_so(app: Celery, client: redis.Redis) -> None:
    entry = Entry("hostile", "echo", spinning(app=app), app=app)
    for save in (entry.save, lambda: Entry.save_many([entry])):
        with pytest.raises(EntryError, match=r"redbeat:hostile: .*too expensive to compute") as caught:
            save()
        assert isinstance(caught.value, EntryTooExpensive)
    assert not client.exists("redbeat:hostile")
    Entry("slow", "echo", spinning(0.001, app=app), app=app).save()
    assert client.exists("redbeat:slow")


@pytest.mark.parametrize(
    "arguments",
    [
        ("list",),
        ("list", "--json"),
        ("show", "hostile"),
        ("next",),
        ("next", "hostile"),
        ("timeline",),
        ("why", "hostile"),
        ("why", "good"),
        ("doctor",),
        ("export",),
    ],
    ids=" ".join,
)
def test_commands_name_such_an_entry_and_show_the_others(
    app: Celery, client: redis.Redis, arguments: tuple[str, ...]
) -> None:
    now = server_now(client)
    meta = meta_json(datetime.fromtimestamp(now - 50, timezone.utc), 3)
    write_raw(client, "hostile", score=now + 50, meta=meta, schedule=SPINNING)
    write_raw(client, "good", score=now + 50)
    began = time.process_time()
    done = call(app, *arguments)
    assert time.process_time() - began < 20
    said = " ".join((done.stdout + done.stderr).split())
    if "hostile" not in arguments and arguments != ("doctor",):
        assert "good" in said
    if arguments[0] in ("show", "next", "timeline", "why", "doctor") and "good" not in arguments:
        assert "hostile" in said
        assert "too expensive to compute" in said


@pytest.mark.parametrize("width", [None, "80"], ids=["in a pipe", "80 columns"])
def test_before_beat_has_tried_it_it_has_its_error_wherever_it_is_shown(
    app: Celery, client: redis.Redis, width: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if width is not None:
        monkeypatch.setenv("COLUMNS", width)
    write_raw(client, "hostile", score=server_now(client) + 50.25, schedule=SPINNING)
    write_raw(client, "good", score=server_now(client) + 50.25)
    lines = call(app, "list").stdout.splitlines()
    [row] = [number for number, line in enumerate(lines) if line.startswith("hostile")]
    assert "too expensive to compute" in " ".join(lines[row : row + 2])
    assert "too expensive to compute" in call(app, "show", "hostile").stdout
    for command in (("list", "--match", "hostile"), ("show", "hostile")):
        assert "too expensive to compute" in json.loads(call(app, *command, "--json").stdout)["error"]
    assert json.loads(call(app, "show", "good", "--json").stdout)["error"] is None
    Entry.from_key("hostile", app).pause()
    assert Entry.from_key("hostile", app).error == "", "beat doesn't compute for what rests"


def test_such_an_entry_can_be_paused_corrected_and_deleted(app: Celery, client: redis.Redis) -> None:
    meta = meta_json(datetime(2026, 1, 1, tzinfo=timezone.utc), 3)
    write_raw(client, "hostile", score=server_now(client) + 50, meta=meta, schedule=SPINNING)
    done = call(app, "set", "hostile", "--queue", "other")
    assert done.exit_code
    assert "too expensive to compute" in done.stderr
    entry = Entry.from_key("hostile", app)
    entry.pause()
    assert Entry.from_key("hostile", app).enabled is False
    entry.schedule = 60
    entry.save().resume()
    assert Entry.from_key("hostile", app).enabled is True
    entry.delete()
    assert not client.exists("redbeat:hostile")


@EVERY_KIND_OF_LOCK
def test_rules_that_once_took_minutes_are_run_like_any_other(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    now = server_now(client)
    week = [{"__type__": "weekday", "wkday": day} for day in range(7)]
    times = {"byhour": list(range(24)), "byminute": list(range(60)), "bysecond": list(range(60))}
    everything = {"byyearday": list(range(1, 367)), **times}
    rules: dict[str, dict[str, Any]] = {
        "for-ever": {"freq": 6, "count": 10**12, "dtstart": 0},
        "full": {"freq": 0, "dtstart": 0, **everything},
        "positions": {
            "freq": 1,
            "dtstart": 0,
            "bymonthday": list(range(1, 32)),
            **times,
            "bysetpos": [1, -1],
        },
        "weekly": {"freq": 6, "dtstart": 0, "count": 10**10, "byweekday": week},
        "often": {"freq": 0, "dtstart": 0, "byweekday": week, **times},
        "ancient": {"freq": 5, "dtstart": -62135596800, "count": 10**11, "bymonthday": list(range(1, 32))},
    }
    late = meta_json(datetime.fromtimestamp(now - 3 * 86_400, timezone.utc), 3)
    for number, (name, rule) in enumerate(rules.items()):
        write_raw(
            client,
            name,
            score=now - 3 * 86_400 + number,
            meta=late,
            schedule={"__type__": "rrule", **rule},
            misfire="all",
            misfire_limit=1000,
        )
    write_raw(client, "canary", score=now, schedule=CANARY)
    for _ in range(5):
        scheduler.tick()
    assert sent_names(broker).count("canary") >= 1
    for name in rules:
        assert client.hget(f"redbeat:{name}", "error") is None, name
        assert name == "positions" or name in sent_names(broker), "its days are a month's first and last"
    assert not [record for record in caplog.records if "expensive" in record.getMessage()]


MODULE = """
from celery.schedules import BaseSchedule
from redbeat.schedules import register_schedule

class spinning(BaseSchedule):
    def remaining_estimate(self, last_run_at):
        while True:
            try:
                sum(range(1000))
            except Exception:
                pass

register_schedule("spinning", spinning, lambda one: {}, lambda d: spinning())
"""


@pytest.mark.long_form
def test_a_canary_runs_every_second_beside_hostile_schedules_whichever_beat_leads(
    server: Server, client: redis.Redis, broker: redis.Redis, tmp_path: Path
) -> None:
    write_app(tmp_path, "module", server.url(0), extra=MODULE, redbeat_redis_url=server.url(1))
    now = server_now(client)
    for number in range(8):
        write_raw(client, f"hostile-{number}", score=now - 100 + number, schedule=SPINNING)
    write_raw(client, "canary", score=now, schedule=CANARY)

    with celery_beat(tmp_path, "module") as first:
        first.wait_for("beat: Acquired lock")
        with celery_beat(tmp_path, "module") as standby:
            eventually(lambda: sent_names(broker).count("canary") >= 8, timeout=60)
            first.kill()
            standby.wait_for("beat: Acquired lock", timeout=60)
            for number in range(8):
                client.zadd(SCHEDULE, {f"redbeat:hostile-{number}": server_now(client)})
            sent = sent_names(broker).count("canary")
            eventually(lambda: sent_names(broker).count("canary") >= sent + 6, timeout=60)
            output = first.output() + standby.output()
    for number in range(8):
        reason = field(client, f"hostile-{number}", "error")["reason"]
        assert f"hostile-{number}" in reason
        assert "too expensive to compute" in reason
    assert "signal handler" not in output
    gaps = [(later - earlier).total_seconds() for earlier, later in pairwise(sent_dues(broker, "canary"))]
    print(f"gaps between the canary's due times: {gaps}")
    held = [gap for gap in gaps if gap > patience(2)]
    assert len(held) <= 1, "none but the takeover from the beat that was killed"


#: a handler of the user's own, which takes its time and then calls Celery's
SLOW_HANDLER = """
import signal
from celery.schedules import BaseSchedule
from celery.signals import beat_init
from redbeat.schedules import register_schedule


class spinning(BaseSchedule):
    def remaining_estimate(self, last_run_at):
        while True:
            pass


register_schedule("spinning", spinning, lambda rule: {}, lambda fields: spinning())


@beat_init.connect
def handle_slowly(**kwargs):
    celerys = signal.getsignal(signal.SIGTERM)

    def handle(number, frame):
        until = time.thread_time() + 0.15
        while time.thread_time() < until:
            pass
        celerys(number, frame)

    signal.signal(signal.SIGTERM, handle)
"""


def test_a_slow_handler_of_ones_own_ends_beat_beside_schedules_that_never_end(
    server: Server, client: redis.Redis, broker: redis.Redis, tmp_path: Path
) -> None:
    write_raw(client, "canary", score=1)
    with run_beat(tmp_path, server.url(0), redbeat_redis_url=server.url(1), extra=SLOW_HANDLER) as beat:
        eventually(lambda: "canary" in sent_names(broker))
        for number in range(40):
            write_raw(client, f"hostile-{number:02}", score=1, schedule=SPINNING)
        client.publish("redbeat::wake", "x")
        beat.wait_for("too expensive to compute")
        beat.seconds_to_end()
        assert beat.returncode == 0
        assert not has_traceback(beat.output())
