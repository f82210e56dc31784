"""A visibility timeout shorter than ``redbeat_durable_after`` is reported: messages would run twice."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

import redbeat.later
from redbeat.later.visibility import find_short_visibility
from tests.conftest import MakeApp
from tests.support.command_line import call, run

REDIS = "redis://127.0.0.1:1/0"


def timeout(seconds: Any) -> dict[str, Any]:
    return {"broker_transport_options": {"visibility_timeout": seconds}}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"broker_url": REDIS, **timeout(599)}, 599),
        ({"broker_url": REDIS, **timeout("300")}, 300),
        ({"broker_url": ["redis://a", "redis://b"], **timeout(300)}, 300),
        ({"broker_url": "sentinel://a;sentinel://b", **timeout(300)}, 300),
        ({"broker_url": "sqs://", **timeout(300)}, 300),
        ({"broker_url": "a.b", "broker_transport": "redis", **timeout(300)}, 300),
        ({"broker_url": REDIS, **timeout(30), "redbeat_durable_after": 31}, 30),
        # the transports' own defaults
        ({"broker_url": REDIS, "redbeat_durable_after": 3601}, 3600),
        ({"broker_url": "sqs://", "redbeat_durable_after": 1801}, 1800),
        ({"broker_url": REDIS, "redbeat_durable_after": 3600}, None),
        ({"broker_url": REDIS}, None),
        ({"broker_url": REDIS, **timeout(600)}, None),
        ({"broker_url": REDIS, **timeout("soon")}, None),
        ({"broker_url": "amqp://", **timeout(1)}, None),
        ({"broker_url": "memory://", **timeout(1)}, None),
    ],
)
def test_a_timeout_below_durable_after_is_too_short(settings: Any, expected: float | None) -> None:
    found = find_short_visibility(Celery("app", set_as_current=False, changes=settings))
    assert (found and found.timeout) == expected


@pytest.mark.parametrize("is_configured", [False, True])
@pytest.mark.parametrize("seconds", [60, 7200])
def test_install_warns_as_soon_as_the_app_is_configured(
    caplog: pytest.LogCaptureFixture, seconds: int, is_configured: bool
) -> None:
    app = Celery("app", set_as_current=False, broker=REDIS)
    app.conf.update(redbeat_redis_url=REDIS, **timeout(seconds))
    if is_configured:
        app.finalize()
        app.conf.broker_url  # noqa: B018 - reading a setting loads the configuration
    redbeat.later.install(app)
    redbeat.later.install(app)
    app.conf.broker_url  # noqa: B018
    said = [one.getMessage() for one in caplog.records if "visibility_timeout" in one.getMessage()]
    assert len(said) == (seconds == 60)
    assert all("Set redbeat_durable_after to 30 or less" in one for one in said)


def test_a_program_without_logging_shows_the_warning(tmp_path: Path) -> None:
    script = (
        "from celery import Celery\nimport redbeat.later\n"
        f"app = Celery('app', broker={REDIS!r})\nredbeat.later.install(app)\n"
        f"app.conf.update({timeout(60)!r})\napp.finalize()\nprint(app.conf.broker_url)"
    )
    done = run([sys.executable, "-c", script], tmp_path)
    assert done.stderr.count("visibility_timeout is 60 s") == 1


@pytest.mark.parametrize(("is_installed", "severity"), [(True, "warning"), (False, "note")])
def test_the_doctor_reports_it(make_app: MakeApp, is_installed: bool, severity: str) -> None:
    app = make_app(**timeout(60))
    if is_installed:
        redbeat.later.install(app)
    found = json.loads(call(app, "doctor", "--json").stdout)["findings"]
    [finding] = [one for one in found if one["kind"] == "visibility-timeout"]
    assert finding["severity"] == severity
    assert finding["about"] == "broker_transport_options"
    assert "redbeat_durable_after 600 s" in finding["problem"]
