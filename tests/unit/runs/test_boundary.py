"""What fails behind the boundary is logged once for each kind, and goes no further."""

from __future__ import annotations

import secrets

import pytest
from billiard.exceptions import SoftTimeLimitExceeded

from redbeat.runs.boundary import Harmless


@pytest.fixture
def what() -> str:
    """Something that no other test has failed to do."""
    return f"doing {secrets.token_hex(4)}"


def test_an_error_is_logged_once_for_each_kind(what: str, caplog: pytest.LogCaptureFixture) -> None:
    for error in (ValueError("one"), ValueError("two"), KeyError("three")):
        with Harmless(what):
            raise error
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
    assert f"{what} failed, and the task goes on: ValueError: one" in caplog.text
    assert "three" in caplog.text


@pytest.mark.parametrize("error", [SoftTimeLimitExceeded, SystemExit, KeyboardInterrupt, GeneratorExit])
def test_what_is_meant_for_the_task_goes_on(error: type[BaseException], what: str) -> None:
    with pytest.raises(error), Harmless(what):
        raise error
