"""Schedules in a Django project: of Celery's tasks, and of Django's own where their backend is Celery."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.support.apps import celery_beat, celery_worker, stop_worker
from tests.support.command_line import run
from tests.support.polling import eventually
from tests.support.servers import Server

#: backends to what is imported for them, and what its framework is called
BACKENDS = {
    "django_tasks_celery.CeleryBackend": ("django_tasks_celery", "django.tasks"),
    "django_tasks_fennel.CeleryBackend": (
        "django_tasks_fennel",
        "django.tasks" if find_spec("django.tasks") else "django_tasks",
    ),
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

DECLARED = """
import json
from proj.celery import app
from redbeat.declared import declared_entries
from redbeat.declared.modules import load_tasks

load_tasks(app)
print(json.dumps(declared_entries(app)))
"""


def prepare(directory: Path, backend: str, server: Server) -> dict[str, str]:
    """Write the project; return what its programs need in their environment."""
    package, framework = BACKENDS.get(backend, ("", BACKENDS["django_tasks_fennel.CeleryBackend"][1]))
    for needed in (package, framework):
        if needed and find_spec(needed.partition(".")[0]) is None:
            pytest.skip(f"{needed} isn't installed")
    if "." in framework and find_spec(framework) is None:
        pytest.skip(f"this Django has no {framework}")
    for name, text in FILES.items():
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text.replace("FRAMEWORK", framework))
    apps = " ".join([*(["django_tasks"] if framework == "django_tasks" else []), package])
    return {"REDIS_URL": server.url(0), "BACKEND": backend, "APPS": apps}


def declared_in(directory: Path, env: dict[str, str]) -> dict[str, Any]:
    done = run([sys.executable, "-c", DECLARED], directory, env, 60)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("backend", BACKENDS)
def test_they_are_declared_sent_and_run(
    backend: str, server: Server, tmp_path: Path, broker: redis.Redis
) -> None:
    pytest.importorskip("django")
    env = prepare(tmp_path, backend, server)
    found = declared_in(tmp_path, env)
    assert set(found) == {"shop.tasks.plain", "over", "under", "context"}
    assert found["over"]["task"].endswith("shop.tasks.over")
    assert found["over"]["options"]["queue"] == "reports"
    assert found["over"]["options"]["priority"] > found["under"].get("options", {}).get("priority", 0)
    assert found["context"]["options"]["queue"] == "celery"
    queues = ["-Q", "celery,default,reports"]
    with celery_beat(tmp_path, "proj", env=env) as beat:
        with celery_worker(tmp_path, "proj", *queues, env=env) as worker:
            eventually(lambda: broker.scard("ran") == 4 or not (beat.is_running and worker.is_running))
            assert broker.smembers("ran") == {"celery", "over", "under", "context"}, beat.output()
            stop_worker(worker)
        beat.stop()


def test_one_whose_backend_is_not_celery_is_told(server: Server, tmp_path: Path, broker: redis.Redis) -> None:
    pytest.importorskip("django")
    framework = BACKENDS["django_tasks_fennel.CeleryBackend"][1]
    env = prepare(tmp_path, f"{framework}.backends.dummy.DummyBackend", server)
    assert set(declared_in(tmp_path, env)) == {"shop.tasks.plain"}
    with celery_beat(tmp_path, "proj", env=env) as beat:
        beat.wait_for("shop.tasks.under is no task of Celery's, as its backend is DummyBackend")
        eventually(lambda: broker.exists("redbeat:shop.tasks.plain"))
        assert f"{tmp_path / 'shop' / 'tasks.py'}:" in beat.output()
    assert not broker.exists("redbeat:over")


def test_one_with_run_after_is_refused_at_import(server: Server, tmp_path: Path) -> None:
    pytest.importorskip("django")
    framework = BACKENDS["django_tasks_fennel.CeleryBackend"][1]
    env = prepare(tmp_path, f"{framework}.backends.dummy.DummyBackend", server)
    with (tmp_path / "shop" / "tasks.py").open("a") as file:
        file.write(
            "\nfrom datetime import datetime, timezone\n"
            "scheduled(every=5)(under.using(run_after=datetime(2030, 1, 1, tzinfo=timezone.utc)))\n"
        )
    done = run([sys.executable, "-c", DECLARED], tmp_path, env, 60)
    assert "a task with run_after can't be scheduled" in done.stderr.splitlines()[-1], done.stderr
