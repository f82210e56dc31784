"""``check --deploy`` asks the doctor; a plain ``check`` asks no server."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from tests.integration.conftest import ONE_SERVER
from tests.support.schedule import write_raw

pytestmark = ONE_SERVER
pytest.importorskip("django")


def found(*, deploy: bool) -> dict[str, Any]:
    from django.core import checks

    messages = checks.run_checks(tags=["redbeat"], include_deployment_checks=deploy)
    return {str(one.id): one for one in messages}


def test_what_the_doctor_finds_has_its_kind_as_id_and_its_severity_as_level(
    app: Celery, client: redis.Redis
) -> None:
    Entry("report", "echo", 60, app=app).save()
    write_raw(client, "bad", {"name": "bad", "task": "echo", "schedule": {"__type__": "nonsense"}})
    assert found(deploy=False) == {}
    messages = found(deploy=True)
    [bad] = [one for one in messages.values() if one.msg.startswith("bad: ")]
    assert bad.id.startswith("redbeat.doctor.")
    assert bad.is_serious()
    assert bad.hint


def test_while_redis_is_away_that_is_a_warning_and_no_error(make_app: Any, app: Celery) -> None:
    from django.test import override_settings

    away = make_app(redbeat_redis_url="redis://:s3cret@127.0.0.1:1/0", timezone="Europe/Berlin")
    with override_settings(REDBEAT_CELERY_APP=away):
        assert found(deploy=False) == {}
        [(number, message)] = found(deploy=True).items()
    assert number == "redbeat.W006"
    assert not message.is_serious()
    assert "s3cret" not in message.msg
