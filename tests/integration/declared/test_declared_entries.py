"""Entries that `@scheduled` declares: stored, removed, run, and found by the doctor; also with Django."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from importlib.util import find_spec
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
from tests.support.apps import celery_beat, celery_worker, runs, stop_worker, write_app
from tests.support.command_line import call
from tests.support.logs import errors_in, has_traceback
from tests.support.polling import eventually
from tests.support.schedule import SCHEDULE, STATICS, field
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


def test_declared_entry_is_stored_as_a_static_one_with_its_owner(
    with_task: Callable[..., Celery], client: redis.Redis
) -> None:
    report = {"cron": "30 7 * * *", "args": ("weekly",), "options": {"queue": "reports"}, "enabled": False}
    app = with_task({"beat_schedule": {"hourly": HOURLY}}, report=report)
    [note] = kinds_of(app)["not-stored"]
    assert (note["about"], f"declared at {__file__}:" in note["problem"]) == ("report", True)
    start(app)
    assert not {"not-stored", "declaration", "orphan-static"} & kinds_of(app).keys()
    assert set(names_in(client)) == client.smembers(STATICS) == {"hourly", "report"}
    assert client.smembers(OWNERS) == {"main\thourly", "main\treport"}
    entry = Entry.get("report", app)
    assert (entry.task, entry.args, entry.enabled) == ("echo", ["weekly"], False)
    assert (entry.options, entry.schedule) == ({"queue": "reports"}, crontab("30", "7"))


def test_entry_that_has_left_the_code_is_removed(
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


@pytest.mark.parametrize("settings", [{}, {"redbeat_lock_key": None}], ids=["lock", "no-lock"])
def test_name_declared_twice_stops_beat_and_changes_nothing(
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


def test_scheduler_that_cannot_import_a_module_changes_nothing(
    with_task: Callable[..., Celery], client: redis.Redis
) -> None:
    start(with_task(x={"every": 3600}, y={"every": 3600}))
    broken = with_task({"imports": ["there_is_no_such_module"]}, y={"every": 60})
    with pytest.raises(ImportError, match="there_is_no_such_module"):
        RedBeatScheduler(broken)
    assert names_in(client) == ["x", "y"]
    assert field(client, "y", "definition")["schedule"]["every"] == 3600


def test_schedule_of_no_task_is_logged_and_others_are_stored(
    with_task: Callable[..., Celery], client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    @scheduled(every=5)
    def of_no_task() -> None: ...

    start(with_task(x={"every": 3600}))
    assert names_in(client) == ["x"]
    (told,) = [line for line in errors_in(caplog) if "of_no_task" in line]
    assert f"{__file__}:" in told
    assert "must stand over or under @app.task" in told
    [stray] = kinds_of(with_task())["stray-declaration"]
    assert (stray["severity"], stray["about"].startswith(f"{__file__}:")) == ("error", True)
    assert of_no_task


def test_every_policy_field_is_stored_from_code_and_beat_schedule(
    with_task: Callable[..., Celery], client: redis.Redis
) -> None:
    assert set(POLICY) == set(FIELDS)
    Calendar("holidays", ["2030-12-25"], app=with_task()).save()
    settings = {"beat_schedule": {"set": {"task": "echo", "schedule": crontab(), "args": (1,), **POLICY}}}
    app = with_task(settings, declared={"cron": "* * * * *", "args": (1,), **POLICY})
    start(app)
    for name in ("set", "declared"):
        entry = Entry.get(name, app)
        assert {one: getattr(entry, one) for one in FIELDS} == POLICY, name
        assert entry.schedule == crontab()
    assert field(client, "set", "policy") == field(client, "declared", "policy")


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


def test_declared_tasks_run_with_a_real_beat_and_worker(
    server: Server, tmp_path: Path, client: redis.Redis, broker: redis.Redis
) -> None:
    write_app(tmp_path, "module", server.url(0), extra=MODULE, redbeat_redis_url=server.url(1))
    words = {"over", "under", "shared"}
    with celery_beat(tmp_path, "module") as beat:
        with celery_worker(tmp_path, "module") as worker:
            eventually(lambda: {run.args[0] for run in runs(broker)} == words)
            stop_worker(worker)
        beat.stop()
        assert not has_traceback(beat.output()), beat.output()
    assert names_in(client) == ["over", "third", "under"]


@pytest.mark.slow
def test_beat_that_cannot_import_a_declared_module_does_not_start_and_removes_nothing(
    server: Server, tmp_path: Path, client: redis.Redis
) -> None:
    settings = {"redbeat_redis_url": server.url(1), "imports": ["tasks"]}
    write_app(tmp_path, "module", server.url(0), **settings)
    head = "from celery import shared_task\nfrom redbeat import scheduled\n\n"
    text = f"{head}@shared_task\n@scheduled(WORDS)\ndef task(): ...\n"
    (tmp_path / "tasks.py").write_text(text.replace("WORDS", "every=3600, name='kept'"))
    with celery_beat(tmp_path, "module") as beat:
        eventually(lambda: names_in(client) == ["kept"])
        beat.stop()
    (tmp_path / "tasks.py").write_text(text.replace("WORDS", "every=3600, jiter=3"))
    with celery_beat(tmp_path, "module") as broken:
        assert broken.wait() != 0
        assert f"{tmp_path / 'tasks.py'}:5: @scheduled: there is no keyword 'jiter'" in broken.output()
    assert names_in(client) == ["kept"]


def kinds_of(app: Celery) -> dict[str, list[dict[str, Any]]]:
    document = json.loads(call(app, "doctor", "--json").output)
    found: dict[str, list[dict[str, Any]]] = {}
    for finding in document["findings"]:
        found.setdefault(finding["kind"], []).append(finding)
    return found


#: backends to what is imported for them, and what its framework is called
OWN_OR_PACKAGE = "django.tasks" if find_spec("django.tasks") else "django_tasks"
BACKENDS = {
    "django_tasks_celery.CeleryBackend": ("django_tasks_celery", "django.tasks"),
    "django_tasks_fennel.CeleryBackend": ("django_tasks_fennel", OWN_OR_PACKAGE),
}


FILES = {
    "proj/__init__.py": "from .celery import app as celery_app\n",
    "proj/celery.py": """
import os
from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "proj.settings")
app = Celery("proj")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
""",
    "proj/settings.py": """
import os

SECRET_KEY = "for this test only"
INSTALLED_APPS = [*os.environ["APPS"].split(), "shop"]
USE_TZ = True
TASKS = {"default": {"BACKEND": os.environ["BACKEND"], "QUEUES": []}}
CELERY_BROKER_URL = os.environ["REDIS_URL"]
CELERY_RESULT_BACKEND = os.environ["REDIS_URL"]
CELERY_RESULT_EXTENDED = True
CELERY_BEAT_SCHEDULER = "redbeat.RedBeatScheduler"
""",
    "shop/__init__.py": "",
    "shop/tasks.py": """
import os
import redis
from celery import shared_task
from FRAMEWORK import task
from redbeat import scheduled

def note(word):
    redis.Redis.from_url(os.environ["REDIS_URL"]).sadd("ran", word)

@shared_task
@scheduled(every=0.3, args=("celery",))
def plain(word):
    note(word)

@scheduled(every=0.3, args=("over",), name="over")
@task(queue_name="reports", priority=20)
def over(word):
    note(word)

@task
@scheduled(every=0.3, args=("under",), name="under")
def under(word):
    note(word)

@scheduled(every=0.3, args=("context",), name="context", options={"queue": "celery"})
@task(takes_context=True)
def with_context(context, word):
    note(word)
""",
}


def prepare(directory: Path, backend: str, server: Server) -> dict[str, str]:
    """Write the project; return what its programs need in their environment."""
    package, framework = BACKENDS[backend]
    for needed in (package, framework):
        if find_spec(needed.partition(".")[0]) is None:
            pytest.skip(f"{needed} isn't installed")
    if "." in framework and find_spec(framework) is None:
        pytest.skip(f"this Django has no {framework}")
    for name, text in FILES.items():
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text.replace("FRAMEWORK", framework))
    apps = " ".join([*(["django_tasks"] if framework == "django_tasks" else []), package])
    return {"REDIS_URL": server.url(0), "BACKEND": backend, "APPS": apps}


@pytest.mark.parametrize("backend", BACKENDS)
def test_django_tasks_are_declared_sent_and_run(
    backend: str, server: Server, tmp_path: Path, broker: redis.Redis
) -> None:
    pytest.importorskip("django")
    env = prepare(tmp_path, backend, server)
    queues = ["-Q", "celery,default,reports"]
    with celery_beat(tmp_path, "proj", env=env) as beat:
        with celery_worker(tmp_path, "proj", *queues, env=env) as worker:
            eventually(lambda: broker.scard("ran") == 4 or not (beat.is_running and worker.is_running))
            assert broker.smembers("ran") == {"celery", "over", "under", "context"}, beat.output()
            stop_worker(worker)
        beat.stop()
    assert names_in(broker) == ["context", "over", "shop.tasks.plain", "under"]
    options = {name: field(broker, name, "definition")["options"] for name in ("over", "under", "context")}
    assert (options["over"]["queue"], options["context"]["queue"]) == ("reports", "celery")
    assert options["over"]["priority"] > options["under"].get("priority", 0)
