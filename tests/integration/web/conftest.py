"""The dashboard over a schedule of one server, in this process."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.schedules import clocked
from redbeat.web import asgi_app
from tests.support.dashboards import Browser, dashboard_of
from tests.support.programs import Program
from tests.support.servers import Server

#: types of the fixtures below
Add = Callable[..., RedBeatSchedulerEntry]
Browse = Callable[..., Browser]
Programs = Callable[..., Program]

FAR = datetime(2099, 3, 1, 9, 30, tzinfo=timezone.utc)


@pytest.fixture
def server(valkey: Server) -> Server:
    """One kind is enough."""
    return valkey


@pytest.fixture
def browse(app: Celery) -> Browse:
    """A browser whose user has the rights that are given, by default all."""

    def make(*rights: str, **options: Any) -> Browser:
        return Browser(dashboard_of(app, rights or ("admin",), **options))

    return make


@pytest.fixture
def add(app: Celery) -> Add:
    """Save an entry that is due in many years, unless another schedule is given."""

    def make(name: str, schedule: Any = None, **values: Any) -> RedBeatSchedulerEntry:
        task = values.pop("task", "echo")
        return RedBeatSchedulerEntry(name, task, schedule or clocked(FAR), app=app, **values).save()

    return make


@pytest.fixture
def program(app: Celery) -> Programs:
    """A program whose token has the rights that are given, by default all."""

    def make(*rights: str, **options: Any) -> Program:
        return Program(app, rights or ("admin",), asgi_app(app, **options))

    return make
