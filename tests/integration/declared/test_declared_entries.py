"""Schedules beside their tasks become entries of the app, and leave with the code."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from celery.schedules import crontab

from redbeat import RedBeatScheduler, scheduled
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.calendars import Calendar
from redbeat.config import ensure_conf
from redbeat.errors import DeclarationError
from redbeat.policy.policy import FIELDS
from tests.conftest import MakeApp
from tests.integration.conftest import MakeScheduler
from tests.support.apps import celery_beat, celery_worker, run_beat, runs, stop_worker, write_app
from tests.support.command_line import call
from tests.support.logs import errors_in, has_traceback
from tests.support.polling import eventually
from tests.support.schedule import SCHEDULE, STATICS, field, sent_names
from tests.support.servers import Server
from tests.unit.declared.test_declaring import POLICY

HOURLY = {"task": "echo", "schedule": 3600}
OWNERS = "redbeat::static-owners"
Write = Callable[..., Path]


def names_in(client: redis.Redis) -> list[str]:
    return sorted(key.removeprefix("redbeat:") for key in client.zrange(SCHEDULE, 0, -1))


def start(app: Celery, main: str = "main") -> None:
    """Start a beat of the app called `main`, and end it."""
    app.main = main
    app.redbeat_conf = None
    ensure_conf(app)
    RedBeatScheduler(app).close()


@pytest.fixture
def with_task(make_app: MakeApp) -> Callable[..., Celery]:
    """An app without a lock, whose task `echo` has these schedules: names to keywords."""

    def make(settings: dict[str, Any] | None = None, **schedules: dict[str, Any]) -> Celery:
        app = make_app(redbeat_lock_key=None, **(settings or {}))

        def echo(*args: Any, **kwargs: Any) -> None: ...

        task = app.task(name="echo", shared=False)(echo)
        for name, keywords in schedules.items():
            scheduled(name=name, **keywords)(task)
        return app

    return make


def test_they_are_stored_as_entries_of_beat_schedule_are_with_their_owner(
    with_task: Callable[..., Celery], client: redis.Redis
) -> None:
    app = with_task(
        {"beat_schedule": {"hourly": HOURLY}},
        report={
            "cron": "30 7 * * mon-fri",
            "timezone": "Europe/Berlin",
            "jitter": 60,
            "overlap": "skip",
            "args": ("weekly",),
            "options": {"queue": "reports"},
        },
    )
    start(app)
    assert names_in(client) == ["hourly", "report"]
    assert client.smembers(STATICS) == {"hourly", "report"}
    assert client.smembers(OWNERS) == {"main\thourly", "main\treport"}
    definition = field(client, "report", "definition")
    assert (definition["task"], definition["args"]) == ("echo", ["weekly"])
    assert definition["options"] == {"queue": "reports"}
    assert definition["schedule"]["__type__"] == "crontab"
    policy = {"timezone": "Europe/Berlin", "jitter": 60, "overlap": "skip"}
    assert field(client, "report", "policy") == policy


def test_one_that_has_left_the_code_is_removed_and_no_other(
    with_task: Callable[..., Celery], client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    start(with_task(stays={"every": 3600}, leaves={"every": 3600}), "a")
    start(with_task(theirs={"every": 3600}), "b")
    client.hset("redbeat:stays", "meta", '{"last_run_at": null, "total_run_count": 7}')
    app = with_task()
    Entry("saved", "echo", 3600, app=app).save()
    with caplog.at_level(logging.INFO, "celery.beat"):
        start(with_task(stays={"every": 3600}), "a")
    assert names_in(client) == ["saved", "stays", "theirs"]
    assert field(client, "stays", "meta")["total_run_count"] == 7
    assert "beat: Removing old static schedule entry 'leaves'." in caplog.text


def test_one_moves_between_beat_schedule_and_its_task_without_losing_its_past(
    with_task: Callable[..., Celery], client: redis.Redis
) -> None:
    start(with_task({"beat_schedule": {"x": HOURLY}}))
    client.hset("redbeat:x", "meta", '{"last_run_at": null, "total_run_count": 7}')
    start(with_task(x={"every": 3600}))
    assert field(client, "x", "meta")["total_run_count"] == 7
    start(with_task({"beat_schedule": {"x": HOURLY}}))
    assert names_in(client) == ["x"]
    assert field(client, "x", "meta")["total_run_count"] == 7


@pytest.mark.parametrize("settings", [{}, {"redbeat_lock_key": None}], ids=["lock", "no-lock"])
def test_a_beat_whose_code_has_a_name_twice_does_not_start_and_changes_nothing(
    with_task: Callable[..., Celery], client: redis.Redis, settings: dict[str, Any]
) -> None:
    start(with_task(x={"every": 3600}, y={"every": 3600}))
    before = {name: client.hgetall(f"redbeat:{name}") for name in names_in(client)}
    app = with_task({"beat_schedule": {"x": HOURLY}}, x={"every": 60})
    app.conf.update(settings)
    app.redbeat_conf = None
    with pytest.raises(DeclarationError, match="the setting beat_schedule has an entry 'x', too") as caught:
        RedBeatScheduler(app)
    assert caught.value.places[0].startswith(f"{__file__}:")
    assert {name: client.hgetall(f"redbeat:{name}") for name in names_in(client)} == before
    RedBeatScheduler(app, lazy=True)  # beat's banner isn't where it is told


def test_a_program_that_cannot_import_its_modules_removes_nothing_and_says_so(
    with_task: Callable[..., Celery], client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    start(with_task(x={"every": 3600}, y={"every": 3600}))
    broken = with_task({"imports": ["there_is_no_such_module"]}, y={"every": 60})
    start(broken)
    assert names_in(client) == ["x", "y"]
    assert client.smembers(OWNERS) == {"main\tx", "main\ty"}
    assert field(client, "y", "definition")["schedule"]["every"] == 60
    assert "modules can't be imported, so no entry that has left the code is removed" in caplog.text
    assert "there_is_no_such_module" in caplog.text


def test_one_that_belongs_to_no_task_is_an_error_in_the_log_and_the_others_are_stored(
    with_task: Callable[..., Celery], client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    @scheduled(every=5)
    def of_no_task() -> None: ...

    start(with_task(x={"every": 3600}))
    assert names_in(client) == ["x"]
    (told,) = [line for line in errors_in(caplog) if "of_no_task" in line]
    assert f"{__file__}:" in told
    assert "must stand over or under @app.task" in told
    assert of_no_task


def test_one_that_somebody_has_paused_stays_paused(
    with_task: Callable[..., Celery], client: redis.Redis
) -> None:
    app = with_task(x={"every": 3600})
    start(app)
    Entry.get("x", app).pause("the printer is broken", by="ada")
    app = with_task(x={"every": 60, "args": (1,)})
    start(app)
    entry = Entry.get("x", app)
    assert (entry.paused, entry.args) == (True, [1])


def test_each_field_of_a_policy_goes_into_redis_from_the_code_and_from_beat_schedule(
    with_task: Callable[..., Celery], client: redis.Redis
) -> None:
    Calendar("holidays", ["2030-12-25"], app=with_task()).save()
    settings = {"beat_schedule": {"set": {"task": "echo", "schedule": crontab(), "args": (1,), **POLICY}}}
    app = with_task(settings, declared={"cron": "* * * * *", "args": (1,), **POLICY})
    start(app)
    for name in ("set", "declared"):
        entry = Entry.get(name, app)
        assert {one: getattr(entry, one) for one in FIELDS} == POLICY, name
        assert entry.schedule == crontab()
    assert field(client, "set", "policy") == field(client, "declared", "policy")
    assert {**field(client, "set", "definition"), "name": ""} == {
        **field(client, "declared", "definition"),
        "name": "",
    }


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"jiter": 3}, "Did you mean jitter?"),
        ({"overlap": "sikp"}, "overlap: must be one of"),
        ({"timezone": "Mars"}, "timezone"),
    ],
)
def test_a_wrong_field_of_beat_schedule_is_an_error_of_that_entry_and_the_others_are_stored(
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    caplog: pytest.LogCaptureFixture,
    fields: dict[str, Any],
    reason: str,
) -> None:
    make_scheduler(beat_schedule={"wrong": {**HOURLY, **fields}, "right": HOURLY})
    assert names_in(client) == ["right"]
    (told,) = errors_in(caplog)
    assert "'wrong'" in told
    assert reason in told


def test_a_new_leader_stores_them_again(
    make_scheduler: MakeScheduler, with_task: Callable[..., Celery], client: redis.Redis
) -> None:
    app = with_task(x={"every": 3600})
    app.conf.redbeat_lock_key = "redbeat::lock"
    app.redbeat_conf = None
    scheduler = make_scheduler(app)
    client.flushdb()
    scheduler.lock = None
    assert scheduler.stand_for_leader()
    assert names_in(client) == ["x"]


# -- real commands


MODULE = """
from redbeat import scheduled
from celery import shared_task

@scheduled(every=0.3, name="over", args=("over",))
@app.task(name="first", bind=True)
def first(self, word):
    note(self, word)

@app.task(name="second", bind=True)
@scheduled(every=0.3, name="under", args=("under",))
def second(self, word):
    note(self, word)

@scheduled(every=0.3, args=("shared",))
@shared_task(name="third", bind=True)
def third(self, word):
    note(self, word)
"""


def test_a_real_beat_sends_them_a_real_worker_runs_them_and_removed_ones_go(
    server: Server, tmp_path: Path, client: redis.Redis, broker: redis.Redis
) -> None:
    settings = {"redbeat_redis_url": server.url(1)}
    write_app(tmp_path, "module", server.url(0), extra=MODULE, **settings)
    words = {"over", "under", "shared"}
    with celery_beat(tmp_path, "module") as beat:
        with celery_worker(tmp_path, "module") as worker:
            eventually(lambda: {run.args[0] for run in runs(broker)} == words)
            stop_worker(worker)
        beat.stop()
        assert not has_traceback(beat.output()), beat.output()
    assert names_in(client) == ["over", "third", "under"]
    assert client.smembers(OWNERS) == {"module\tover", "module\tthird", "module\tunder"}
    write_app(
        tmp_path, "module", server.url(0), extra=MODULE.replace('name="under"', 'name="new"'), **settings
    )
    with celery_beat(tmp_path, "module") as beat:
        beat.wait_for("Removing old static schedule entry 'under'")
        eventually(lambda: names_in(client) == ["new", "over", "third"])


@pytest.mark.parametrize("where", ["in the code", "in beat_schedule"])
def test_a_real_beat_with_a_name_twice_ends_with_a_sentence_that_names_both_places(
    valkey: Server, tmp_path: Path, where: str
) -> None:
    is_imported = where == "in beat_schedule"
    extra = MODULE if is_imported else MODULE.replace('name="under"', 'name="over"')
    settings = {"beat_schedule": {"over": HOURLY}} if is_imported else {}
    with run_beat(tmp_path, valkey.url(0), extra=extra, redbeat_redis_url=valkey.url(1), **settings) as beat:
        assert beat.wait() == (78 if is_imported else 2)
        output = beat.output()
    source = (tmp_path / "module.py").read_text().splitlines()
    lines = [number for number, line in enumerate(source, 1) if 'name="over"' in line]
    assert all(f"{tmp_path / 'module.py'}:{line}" in output for line in lines), output
    assert ("CRITICAL" in output and "the setting beat_schedule" in output) == is_imported
    assert has_traceback(output) != is_imported
    with valkey.client(db=1) as client:
        assert not client.keys()


def test_a_real_beat_that_cannot_import_a_module_does_not_start_and_removes_nothing(
    valkey: Server, tmp_path: Path
) -> None:
    (tmp_path / "tasks.py").write_text(
        "from celery import shared_task\nfrom redbeat import scheduled\n\n"
        "@shared_task\n@scheduled(every=3600, name='kept')\ndef task(): ...\n"
    )
    settings = {"redbeat_redis_url": valkey.url(1), "imports": ["tasks"]}
    with run_beat(tmp_path, valkey.url(0), **settings) as beat, valkey.client(db=1) as client:
        eventually(lambda: names_in(client) == ["kept"])
        beat.stop()
        (tmp_path / "tasks.py").write_text(
            "from celery import shared_task\nfrom redbeat import scheduled\n\n"
            "@shared_task\n@scheduled(every=3600, jiter=3)\ndef task(): ...\n"
        )
        with celery_beat(tmp_path, "module") as broken:
            assert broken.wait() != 0
            assert f"{tmp_path / 'tasks.py'}:5: @scheduled: there is no keyword 'jiter'" in broken.output()
        assert names_in(client) == ["kept"]


# -- who looks at them


@pytest.fixture
def declared(with_task: Callable[..., Celery]) -> Celery:
    return with_task({"beat_schedule": {"hourly": HOURLY}}, report={"every": 3600, "args": (1,)})


def test_the_doctor_tells_what_is_declared_and_not_stored_and_nothing_when_it_is(declared: Celery) -> None:
    found = kinds_of(declared)
    (note,) = found["not-stored"]
    assert note["about"] == "report"
    assert f"It is declared at {__file__}:" in note["problem"]
    start(declared)
    assert not {"not-stored", "declaration", "orphan-static"} & kinds_of(declared).keys()


def test_the_doctor_names_both_places_of_a_name_that_is_there_twice(
    with_task: Callable[..., Celery],
) -> None:
    app = with_task({"beat_schedule": {"x": HOURLY}}, x={"every": 60})
    (error,) = kinds_of(app)["declaration"]
    assert error["about"].startswith(f"{__file__}:")
    assert "the setting beat_schedule has an entry 'x', too" in error["problem"]


def test_the_doctor_names_a_schedule_that_belongs_to_no_task(with_task: Callable[..., Celery]) -> None:
    @scheduled(every=5)
    def of_no_task() -> None: ...

    found = kinds_of(with_task())["stray-declaration"]
    (error,) = [one for one in found if "of_no_task" in one["problem"]]
    assert error["severity"] == "error"
    assert error["about"].startswith(f"{__file__}:")
    assert of_no_task


def kinds_of(app: Celery) -> dict[str, list[dict[str, Any]]]:
    document = json.loads(call(app, "doctor", "--json").output)
    found: dict[str, list[dict[str, Any]]] = {}
    for finding in document["findings"]:
        found.setdefault(finding["kind"], []).append(finding)
    return found


def test_the_command_line_says_where_an_entry_stands_in_the_code(declared: Celery) -> None:
    start(declared)
    assert f"@scheduled at {__file__}:" in " ".join(
        call(declared, "show", "report", columns=400).output.split()
    )
    assert "from" in call(declared, "show", "hourly").output
    changed = call(declared, "set", "report", "--jitter", "5")
    assert f"report comes from @scheduled at {__file__}:" in " ".join(changed.output.split())
    changed = call(declared, "set", "hourly", "--jitter", "5")
    assert "hourly comes from beat_schedule: this change lasts until" in " ".join(changed.output.split())


def test_a_due_one_is_sent(
    with_task: Callable[..., Celery], client: redis.Redis, broker: redis.Redis
) -> None:
    app = with_task(x={"every": 3600, "args": ("weekly",)})
    scheduler = RedBeatScheduler(app)
    client.zadd(SCHEDULE, {"redbeat:x": 1})
    scheduler.tick()
    scheduler.close()
    assert sent_names(broker) == ["x"]


def test_the_record_of_a_stray_one_has_the_fields_of_its_event(
    with_task: Callable[..., Celery], caplog: pytest.LogCaptureFixture
) -> None:
    @scheduled(every=5, name="stray")
    def of_no_task() -> None: ...

    start(with_task())
    (record,) = [one for one in caplog.records if "of_no_task" in one.getMessage()]
    told = vars(record)["redbeat"]
    assert (told["event"], told["entry"]) == ("redbeat.entry.not_stored", "stray")
    assert "must stand over or under" in told["reason"]
    assert of_no_task
