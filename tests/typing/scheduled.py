"""``@scheduled`` as `mypy --strict` sees it. Never run: `make check` reads it.

An ignored error is one that must be there: strict mypy refuses a comment that ignores nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, ParamSpec, TypeVar
from zoneinfo import ZoneInfo

from celery import Celery, shared_task
from celery.schedules import crontab
from typing_extensions import assert_type

from redbeat import scheduled
from redbeat.declared import declared_entries

P = ParamSpec("P")
R = TypeVar("R")

app = Celery("proj", broker="redis://127.0.0.1:6379/0")


class Task:
    """A task as celery-types describes one, as far as it matters here."""

    def __init__(self, function: Callable[P, R]) -> None: ...

    def retry(self, *args: Any, **kwargs: Any) -> Any: ...

    def apply_async(self, *args: Any, **kwargs: Any) -> Any: ...


# -- what is right


@scheduled(cron="30 7 * * mon-fri", timezone="Europe/Berlin", jitter=60, overlap="skip", args=("weekly",))
def report(kind: str, copies: int = 1) -> int:
    return copies


assert_type(report("weekly"), int)


@scheduled(every=timedelta(minutes=5), relative=True)
@scheduled(every="1h30m", name="hourly")
@scheduled(at=datetime(2030, 1, 1), name="once", timezone=ZoneInfo("Asia/Tokyo"))
@scheduled(at="2030-01-01T09:00", name="once more", enabled=False)
@scheduled(rrule="FREQ=WEEKLY;BYDAY=MO", name="mondays", options={"queue": "low"})
@scheduled(schedule=crontab(minute="5"), name="crontab", max_runtime=timedelta(minutes=5))
@scheduled(every=60, args=(3,), name="three")
@scheduled(every=60, args=(3,), kwargs={"count": 4}, name="six")
def clean(days: int = 7, *, count: int = 1) -> None: ...


@scheduled(every=60, args=(1,))
def bound(self: Task, number: int) -> int:
    return number


@scheduled(every=60, args=(1, 2, 3))
async def many(*numbers: float) -> None: ...


@app.task
@scheduled(every=60, args=("weekly",))
def under(kind: str) -> None: ...


@scheduled(every=60)
@shared_task
def over() -> None: ...


over.delay()
assert_type(declared_entries(app), "dict[str, dict[str, Any]]")


# -- what is refused


scheduled(every=60, jiter=3)  # type: ignore[call-overload]
scheduled(every=60, jitter="x")  # type: ignore[call-overload]
scheduled(every=60, overlap="sikp")  # type: ignore[call-overload]
scheduled(cron=5)  # type: ignore[call-overload]
scheduled(rrule=["FREQ=DAILY"])  # type: ignore[call-overload]
scheduled(every=60, args="abc")  # type: ignore[call-overload]
scheduled(every=60, kwargs=[1])  # type: ignore[call-overload]
scheduled(60)  # type: ignore[call-overload]


@scheduled(every=60, args=(5,))  # type: ignore[call-overload]
def takes_text(kind: str) -> None: ...


@scheduled(every=60, args=("weekly",))  # type: ignore[call-overload]
def takes_one_more(kind: str, copies: int) -> None: ...


@scheduled(every=60, args=("weekly", 1, 2))  # type: ignore[call-overload]
def takes_one_less(kind: str, copies: int) -> None: ...


@scheduled(every=60, args=("weekly",))  # type: ignore[call-overload]
def bound_to_its_task(self: Task, number: int) -> None: ...


@scheduled(every=60, args=(1,))  # type: ignore[call-overload]
def needs_a_name(number: int, *, name: str) -> None: ...


scheduled(every=60)(5)  # type: ignore[call-overload]
