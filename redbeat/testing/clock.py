"""The clock of a test: that of the process, and so of a Redis in it. It stands still unless it is moved."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any

from celery import Celery

from redbeat.schedules.timezones import moment_of, zone_called
from redbeat.store.schedule import read_head
from redbeat.store.store import Store
from redbeat.testing.beats import SentRun, TestBeat
from redbeat.testing.servers import missing
from redbeat.testing.simulation import Time, instant


class TestClock:
    """Moves time for one app, whose Redis is a fake in this process.

    Arguments:
        moved: what moves the clock of the process, with the method ``move_to``.
    """

    __test__ = False  # it is no test, whatever its name is

    def __init__(self, app: Celery, beat: TestBeat, moved: Any) -> None:
        self._app, self._beat, self._moved = app, beat, moved

    @property
    def now(self) -> datetime:
        """What it shows, in the app's time zone."""
        return datetime.now(timezone.utc).astimezone(self._app.timezone)

    def travel(self, to: Time, tz: str | tzinfo | None = None) -> datetime:
        """Let it show ``to``, and return that; nothing is sent meanwhile, as if beat had been away.

        Arguments:
            to: a datetime, or a text such as '2026-03-29 07:30'; also in the past.
            tz: the time zone of a naive one; default: the app's.

        Raises:
            ValueError: it is no time, or there is no such zone.
        """
        zone = zone_called(tz) if isinstance(tz, str) else tz or self._app.timezone
        self._moved.move_to(instant("travel", to, zone))
        return self.now

    def shift(self, by: timedelta | float | None = None, **lengths: float) -> datetime:
        """Let it show a later time, and return that; nothing is sent meanwhile, as if beat had been away.

        Arguments:
            by: a timedelta, or a number of seconds.
            lengths: instead: ``hours=1``, ``minutes=30`` and so on, as of a timedelta.
        """
        length = by if isinstance(by, timedelta) else timedelta(seconds=by or 0)
        self._moved.move_to(datetime.now(timezone.utc) + length + timedelta(**lengths))
        return self.now

    def run_until(self, end: Time, tz: str | tzinfo | None = None) -> list[SentRun]:
        """Let time pass until ``end``, with a beat that is there all the time; return what it sends.

        The clock goes from one due time to the next, so a year takes no longer than the runs in it.

        Arguments:
            end, tz: as of ``travel``; runs that are due at ``end`` are sent.

        Raises:
            ValueError: ``end`` is over, or no time.
        """
        zone = zone_called(tz) if isinstance(tz, str) else tz or self._app.timezone
        last, first = instant("run_until", end, zone), len(self._beat.sent)
        if last < datetime.now(timezone.utc):
            raise ValueError(f"run_until: {end} is over: the clock shows {self.now}.")
        self._beat.tick()
        while (look_at := self._next_look()) is not None and look_at <= last:
            self._moved.move_to(max(look_at, datetime.now(timezone.utc)))
            self._beat.tick()
        self._moved.move_to(last)
        self._beat.tick()
        return self._beat.sent[first:]

    def _next_look(self) -> datetime | None:
        """Return when beat has something to do next: an entry is due, or a run must be looked after."""
        head = read_head(Store(self._app)).run()
        looks = [at for at in (head.score, head.deadline) if at is not None]
        return moment_of(min(looks)) if looks else None


@contextmanager
def moved_clock() -> Iterator[Any]:
    """Within this, the clock of the process stands still; what this yields moves it.

    Raises:
        ConfigurationError: time-machine isn't installed.
    """
    try:
        import time_machine
    except ImportError as exc:
        raise missing("redbeat_clock", exc.name) from exc
    with time_machine.travel(datetime.now(timezone.utc).replace(microsecond=0), tick=False) as moved:
        yield moved
