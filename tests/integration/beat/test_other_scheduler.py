"""A beat that runs another scheduler although RedBeat is configured says so, once."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.beat import PersistentScheduler, Scheduler, Service
from celery.signals import beat_init

from redbeat import RedBeatScheduler
from tests.support.apps import celery_command, write_app
from tests.support.servers import Server

WARNING = "RedBeat is not running"
URL = "redis://127.0.0.1:1/0"


class Other(Scheduler):
    """One of another package."""


class Ours(RedBeatScheduler):
    """A subclass."""


def warnings_of(caplog: pytest.LogCaptureFixture, app: Celery, scheduler: Any) -> list[str]:
    """What is logged when a beat of ``app`` starts with an instance of the class ``scheduler``."""
    service = Service(app, scheduler_cls=scheduler)
    service.scheduler = object.__new__(scheduler)  # what its constructor does doesn't matter
    with caplog.at_level(logging.WARNING, "celery.beat"):
        beat_init.send(sender=service)
    return [record.getMessage() for record in caplog.records if WARNING in record.getMessage()]


@pytest.mark.parametrize("scheduler", [PersistentScheduler, Other])
@pytest.mark.parametrize(
    ("settings", "namespace", "name", "remedy"),
    [
        ({"redbeat_redis_url": URL}, None, "redbeat_redis_url", "set beat_scheduler"),
        ({"broker_url": URL, "redbeat_key_prefix": "x:"}, None, "redbeat_key_prefix", "set beat_scheduler"),
        (
            {"CELERY_BROKER_URL": URL, "CELERY_REDBEAT_REDIS_URL": URL},
            "CELERY",
            "CELERY_REDBEAT_REDIS_URL",
            "set CELERY_BEAT_SCHEDULER",
        ),
        (
            {"BROKER_URL": URL, "CELERY_RESULT_SERIALIZER": "json", "REDBEAT_REDIS_URL": URL},
            None,
            "REDBEAT_REDIS_URL",
            "set CELERYBEAT_SCHEDULER",
        ),
        # a setting that RedBeat would refuse is one all the same
        ({"redbeat_redis_url": URL, "redbeat_lock_timeout": "x"}, None, "redbeat_redis_url", "set beat_"),
    ],
)
def test_another_scheduler_is_reported_with_the_remedy(
    caplog: pytest.LogCaptureFixture, scheduler: Any, settings: Any, namespace: Any, name: str, remedy: str
) -> None:
    app = Celery("app", set_as_current=False)
    app.config_from_object(settings, namespace=namespace)
    [said] = warnings_of(caplog, app, scheduler)
    assert f"{name} is set" in said
    assert scheduler.__qualname__ in said
    assert "-S redbeat.RedBeatScheduler" in said
    assert remedy in said


@pytest.mark.parametrize(
    ("scheduler", "settings"),
    [
        (RedBeatScheduler, {"redbeat_redis_url": URL}),
        (Ours, {"redbeat_redis_url": URL}),
        (PersistentScheduler, {"broker_url": URL}),
        (PersistentScheduler, {"redbeat_redis_url": ""}),
        (PersistentScheduler, {"redbeat_redis_url": None, "redbeat_celery_app": "x"}),
    ],
)
def test_redbeat_and_apps_without_its_settings_get_no_warning(
    caplog: pytest.LogCaptureFixture, scheduler: Any, settings: Any
) -> None:
    app = Celery("app", set_as_current=False, changes=settings)
    assert warnings_of(caplog, app, scheduler) == []


def test_celery_beat_and_an_embedded_beat_without_a_scheduler_warn(tmp_path: Path, server: Server) -> None:
    """The application imports nothing of redbeat."""
    url = server.url(0)
    write_app(tmp_path, "forgotten", url, redbeat_redis_url=url)
    write_app(tmp_path, "configured", url, redbeat_redis_url=url, beat_scheduler="redbeat")
    for module, count in (("forgotten", 1), ("configured", 0)):
        for words in (["beat", "-s", "schedule"], ["worker", "-B", "-P", "solo", "-s", "schedule"]):
            with celery_command(tmp_path, module, *words, "-l", "INFO") as process:
                process.wait_for("beat: Starting...")
                process.wait_for(WARNING if count else "beat: Acquired lock")
                process.stop()
                assert process.output().count(WARNING) == count
