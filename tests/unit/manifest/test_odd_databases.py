"""Database URLs and rows that can't be read: a sentence, without the password."""

from __future__ import annotations

import pytest

from redbeat.config.urls import sanitize_url
from redbeat.errors import ConfigurationError, FileError
from redbeat.manifest.django_celery_beat import declare_rows, read_django_celery_beat


@pytest.mark.parametrize(
    "url", ["postgresql://me:hunter2@host:hunter2/db", "postgresql://me:hunter2@[::1/db"]
)
def test_a_url_that_sqlalchemy_can_t_take_apart_is_told_without_its_password(url: str) -> None:
    pytest.importorskip("sqlalchemy")
    with pytest.raises(ConfigurationError, match="is no database URL") as caught:
        read_django_celery_beat(url)
    assert "me:hunter2" not in str(caught.value)


@pytest.mark.parametrize("given", ["passwd=hunter2", "pwd=hunter2", "odbc_connect=UID%3Dme%3BPWD%3Dhunter2"])
def test_passwords_that_drivers_take_from_the_query_are_masked(given: str) -> None:
    url = f"mssql+pyodbc://host/db?charset=utf8&{given}&timeout=5"
    name = given.partition("=")[0]
    assert sanitize_url(url) == f"mssql+pyodbc://host/db?charset=utf8&{name}=**&timeout=5"


def test_arguments_that_are_too_deep_are_told_with_their_task() -> None:
    row = {"id": 1, "name": "deep", "task": "echo", "interval_id": 1, "args": "[" * 100_000, "enabled": 1}
    rows = {"periodictask": [row], "intervalschedule": [{"id": 1, "every": 5, "period": "minutes"}]}
    with pytest.raises(FileError, match="the task 'deep': maximum recursion depth"):
        declare_rows(rows)
