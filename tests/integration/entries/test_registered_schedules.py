"""Schedules of an application's own, registered: what they must have, and what is not asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from celery import Celery
from celery.schedules import BaseSchedule, crontab, schedstate, schedule

from redbeat import RedBeatSchedulerEntry
from redbeat.errors import ConfigurationError, EntryError
from redbeat.schedules import register_schedule
from redbeat.schedules.occurrences import KINDS


@pytest.fixture(autouse=True)
def _kinds() -> Iterator[None]:
    before = dict(KINDS)
    yield
    KINDS.clear()
    KINDS.update(before)


def is_due(_self: Any, _last_run_at: datetime) -> schedstate:
    return schedstate(True, 60.0)


def remaining_estimate(_self: Any, _last_run_at: datetime) -> timedelta:
    return timedelta(seconds=60)


def registered(base: type[BaseSchedule], **methods: Callable[..., Any]) -> type[BaseSchedule]:
    cls: type[BaseSchedule] = type("Own", (base,), methods)
    register_schedule("own", cls, lambda _own: {}, lambda _given: cls())
    return cls


def test_class_that_is_not_a_schedule_is_refused_and_not_registered() -> None:
    class Duck:
        pass

    with pytest.raises(
        ConfigurationError, match=r"'own' must be a subclass of .*BaseSchedule, got <class .*Duck"
    ):
        register_schedule("own", Duck, vars, lambda _given: Duck())  # type: ignore[arg-type,return-value]
    assert "own" not in KINDS


def test_an_own_is_due_alone_is_refused_with_what_to_write(make_app: Callable[..., Celery]) -> None:
    cls = registered(BaseSchedule, is_due=is_due)
    entry = RedBeatSchedulerEntry("entry", "echo", cls(), app=make_app())
    with pytest.raises(EntryError, match=r"remaining_estimate\(self, last_run_at\)") as caught:
        entry.save()
    assert "is_due() is not asked" in str(caught.value)


@pytest.mark.parametrize(
    ("base", "methods", "warned"),
    [
        (BaseSchedule, {"is_due": is_due, "remaining_estimate": remaining_estimate}, True),
        (schedule, {"is_due": is_due}, True),
        (crontab, {"is_due": is_due}, True),
        (BaseSchedule, {"remaining_estimate": remaining_estimate}, False),
        (schedule, {}, False),
    ],
)
def test_an_own_is_due_beside_remaining_estimate_is_said_not_to_be_asked(
    recwarn: pytest.WarningsRecorder, base: type[BaseSchedule], methods: dict[str, Any], warned: bool
) -> None:
    registered(base, **methods)
    told = [one for one in recwarn if "Own.is_due is not asked" in str(one.message)]
    assert [one.category for one in told] == [RuntimeWarning] * warned
