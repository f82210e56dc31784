"""Django, set up once in a process, with the app of a test as the project's Celery app."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from celery import Celery
from django.test import override_settings

from tests.conftest import MakeApp
from tests.support import django_site as django_site  # sets Django up


@pytest.fixture
def app(make_app: MakeApp) -> Iterator[Celery]:
    """The project's app, which has the task ``echo``."""
    made = make_app(timezone="Europe/Berlin")

    @made.task(name="echo")
    def echo(*args: object, **kwargs: object) -> None:
        """Do nothing."""

    with override_settings(REDBEAT_CELERY_APP=made):
        yield made
