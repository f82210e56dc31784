"""System checks of the settings: each finds its fault, has a documented id, and connects to nothing."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from django.core import checks
from django.test import override_settings

from redbeat.contrib.django.checks import IDS, TAG

ROOT = Path(__file__).parents[3]
REDIS = "redis://127.0.0.1:1/0"


@pytest.fixture(autouse=True)
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a server was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def found(app: Any = None, **settings: Any) -> list[tuple[str, str]]:
    """The ids and sentences of what is found with these settings of Celery's."""
    if app is None:
        given = {"broker_url": REDIS, "timezone": "Europe/Berlin", **settings}
        app = Celery("proj", set_as_current=False, changes=given)

        @app.task(name="echo", shared=False)
        def echo() -> None:
            """Do nothing."""

    with override_settings(REDBEAT_CELERY_APP=app):
        messages = checks.run_checks(tags=[TAG], include_deployment_checks=True)
        return [(str(one.id), one.msg) for one in messages]


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    schedule = {"report": {"task": "echo", "schedule": 60, "args": [1]}}
    assert found(beat_schedule=schedule, redbeat_lock_timeout=60) == []
    assert found(beat_scheduler="redbeat.RedBeatScheduler") == []
    assert found(beat_scheduler="redbeat") == []


@pytest.mark.parametrize(
    ("settings", "number", "sentence"),
    [
        (
            {"redbeat_lock_timeout": "long"},
            "redbeat.E002",
            "redbeat_lock_timeout: 'long' isn't allowed; use ",
        ),
        ({"broker_url": "memory://"}, "redbeat.W005", "redbeat_redis_url isn't set, and broker_url "),
        ({"timezone": "Mars/Base"}, "redbeat.E002", "The Celery app's configuration is invalid: "),
        (
            {"beat_schedule": {"report": {"task": "echo", "schedule": "61 * * * *"}}},
            "redbeat.E003",
            "beat_schedule: 'report' is invalid: schedule: cron '61 * * * *': minute: '61' is no number",
        ),
        (
            {"beat_schedule": {"report": 5}},
            "redbeat.E003",
            "beat_schedule: 'report' is invalid: must be a dict with task and schedule, got 5.",
        ),
        (
            {"beat_schedule": {"": {"task": "echo", "schedule": 60}}},
            "redbeat.E003",
            "beat_schedule: '' is invalid: An entry must have a name",
        ),
        (
            {"redbeat_lock_timeot": 60},
            "redbeat.W001",
            "Unknown setting redbeat_lock_timeot is ignored; did you mean redbeat_lock_timeout?",
        ),
        (
            {"beat_scheduler": "django_celery_beat.schedulers:DatabaseScheduler"},
            "redbeat.W002",
            "beat_scheduler is 'django_celery_beat.schedulers:DatabaseScheduler', so beat doesn't run what",
        ),
        (
            {"timezone": "UTC"},
            "redbeat.W003",
            "Schedules use Celery's time zone, UTC, and Django's is Europe/Berlin.",
        ),
    ],
)
def test_each_fault_is_found_without_asking_a_server(
    settings: dict[str, Any], number: str, sentence: str
) -> None:
    [(found_number, found_sentence)] = found(**settings)
    assert found_number == number
    assert found_sentence.startswith(sentence)


def test_without_an_app_that_is_an_error() -> None:
    [(number, sentence)] = found("no.such.module")
    assert number == "redbeat.E001"
    assert sentence.startswith("REDBEAT_CELERY_APP: 'no.such.module' can't be used: ModuleNotFoundError")


def test_settings_are_named_as_they_stand_in_djangos(monkeypatch: pytest.MonkeyPatch) -> None:
    class Settings:
        CELERY_BROKER_URL = REDIS
        CELERY_REDBEAT_BACH_SIZE = 5
        CELERY_TIMEZONE = "Europe/Berlin"

    app = Celery("proj", set_as_current=False)
    app.config_from_object(Settings, namespace="CELERY")
    [(_, sentence)] = found(app)
    assert sentence.startswith("Unknown setting CELERY_REDBEAT_BACH_SIZE is ignored")


def test_every_entry_of_beat_schedule_that_is_wrong_is_told() -> None:
    wrong = {f"entry-{number}": {"task": "echo", "schedule": "nonsense"} for number in range(3)}
    assert [number for number, _ in found(beat_schedule=wrong)] == ["redbeat.E003"] * 3


def test_the_documentation_lists_each_id_with_what_it_says() -> None:
    text = (ROOT / "docs" / "django.rst").read_text("utf-8")
    listed = re.findall(r"^   \* - ``(redbeat\.[EW]\d+)``\n     - (.+)$", text, re.MULTILINE)
    assert dict(listed) == IDS
    assert [number for number, _ in listed] == list(IDS)


def test_a_starting_worker_or_beat_skips_the_checks() -> None:
    app = Celery("proj", set_as_current=False, changes={"broker_url": "memory://"})
    assert [number for number, _ in found(app)] == ["redbeat.W005", "redbeat.W003"]
    app.loader.init_worker()
    assert found(app) == []
