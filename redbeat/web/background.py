"""What takes longer than a page may: jobs in threads, and what they have found last.

Owns what was found, in the memory of this process. Invariants: there is one job of a kind at a time, and only
while somebody asks for it; a job that took long rests ten times as long before it is made again unasked; what
is shown says how old it is, and whether it is all.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from math import inf
from typing import Any, Generic, TypeVar, cast

from starlette.exceptions import HTTPException

from redbeat.errors import RedBeatError
from redbeat.log.logger import web_logger as logger

Found = TypeVar("Found")

#: for how many times as long as a job took it isn't made again, unless somebody wants it anew
REST = 10
#: after how long a job that has failed is made again, seconds
RETRY_SECONDS = 5.0
#: a job ends that nobody has asked for since, and sooner if another of its kind waits; seconds. Pages that
#: wait ask every second
LEFT_SECONDS, LEFT_FOR_ANOTHER_SECONDS = 20.0, 3.0
#: how many results are kept, the latest
MAX_KEPT = 50
#: how many jobs, of different kinds, work at a time; Python does one thing at a time anyway
MAX_AT_WORK = 2
#: how long a page waits for a job, so that what is quick is shown at once; seconds
WAIT_SECONDS = 0.06

#: tells what a job has found so far; ends the job if nobody asks any more
Tell = Callable[[Found], None]


class TooBusy(HTTPException):
    """There are more requests or changes than can be answered."""

    def __init__(self) -> None:
        super().__init__(503, "There are too many requests at the moment. Try again in a few seconds.")


@dataclass(frozen=True)
class Result(Generic[Found]):
    """What a job has found, as far as it is.

    Attributes:
        found: None: nothing yet.
        age_seconds: how long ago it was found.
        is_whole: the job was done; else this is what it has told on its way.
        is_awaited: a job is at work, or will be: ask again in a moment.
        problem: why the last job has failed; '': it hasn't.
    """

    found: Found | None = None
    age_seconds: float = 0.0
    is_whole: bool = False
    is_awaited: bool = False
    problem: str = ""


class _Left(BaseException):
    """Nobody asks for the job any more. No part of a job should catch it."""


@dataclass
class _Kept:
    """What is known of one job. Times are monotonic."""

    asked_at: float
    found: Any = None
    found_at: float = 0.0
    is_whole: bool = False
    partly: Any = None
    problem: str = ""
    is_at_work: bool = False
    #: the job that somebody wants, until it begins: another one of its kind may be at work
    wanted: Callable[[Tell[Any]], Any] | None = None
    #: it isn't made again before
    rests_until: float = 0.0
    #: for how long what was found stays
    kept_seconds: float = inf

    def is_over(self, now: float) -> bool:
        return self.is_whole and not self.is_at_work and now - self.found_at >= self.kept_seconds


class Background:
    """The jobs of one dashboard."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._kept: dict[tuple[str, Hashable], _Kept] = {}
        self._busy: set[str] = set()
        self._waited_for: dict[str, float] = {}
        self._slots = threading.BoundedSemaphore(MAX_AT_WORK)

    def result_of(
        self,
        kind: str,
        key: Hashable,
        work: Callable[[Tell[Found]], Found],
        *,
        fresh_seconds: float = 0.0,
        is_wanted: bool = False,
        wait_seconds: float = WAIT_SECONDS,
        kept_seconds: float = inf,
    ) -> Result[Found]:
        """Return what the last job has found, and begin the next one if that is old.

        Arguments:
            kind: of these one is made at a time, such as 'doctor'.
            key: what it is about: the same key, the same job.
            work: the job. It calls its argument with what it has found so far, now and then, and returns
                what it has found; it writes nothing.
            fresh_seconds: what is younger isn't old.
            is_wanted: somebody wants it anew, however young it is.
            wait_seconds: how long to wait for a job that begins now, as it may be quick.
            kept_seconds: for how long what is found stays in memory; it may be large.
        """
        deadline = time.monotonic() + wait_seconds
        with self._changed:
            now = time.monotonic()
            kept = self._kept.pop((kind, key), None)
            if kept is None or kept.is_over(now):
                kept = _Kept(now)
            self._kept[kind, key] = kept  # the last one that was asked for goes last
            self._forget_old(now)
            kept.asked_at, kept.kept_seconds = now, kept_seconds
            was_at_work = kept.is_at_work
            if is_wanted and not was_at_work:
                kept.wanted = work
            is_old = not kept.is_whole or now - kept.found_at >= fresh_seconds
            if kept.wanted or (is_old and now >= kept.rests_until):
                while kind in self._busy and not kept.is_at_work and self._wait_until(deadline):
                    pass
                if kind not in self._busy:
                    self._start(kind, kept, kept.wanted or work)
                elif not kept.is_at_work:
                    self._waited_for[kind] = time.monotonic()
            while kept.is_at_work and not was_at_work and self._wait_until(deadline):
                pass
            is_awaited = kept.is_at_work or bool(kept.wanted) or not (kept.is_whole or kept.problem)
            found = kept.found if kept.is_whole else kept.partly
            age_seconds = max(time.monotonic() - kept.found_at, 0.0) if kept.is_whole else 0.0
            return Result(cast("Found | None", found), age_seconds, kept.is_whole, is_awaited, kept.problem)

    def last(self, kind: str, key: Hashable) -> Result[Any]:
        """Return what the last job has found, and begin none."""
        with self._changed:
            kept = self._kept.get((kind, key))
            if kept is None or not kept.is_whole:
                return Result(problem="" if kept is None else kept.problem)
            return Result(kept.found, time.monotonic() - kept.found_at, True, kept.is_at_work, kept.problem)

    def forget(self, kind: str, *keys: Hashable) -> None:
        """Forget what jobs of a kind have found, as something was changed; with keys, those alone."""
        with self._changed:
            for name in [name for name in self._kept if name[0] == kind and (not keys or name[1] in keys)]:
                del self._kept[name]

    def _forget_old(self, now: float) -> None:
        over = [name for name, kept in self._kept.items() if kept.is_over(now)]
        idle = [name for name, kept in self._kept.items() if not kept.is_at_work]
        for name in {*over, *idle[:-MAX_KEPT]}:
            del self._kept[name]

    def _wait_until(self, deadline: float) -> bool:
        """Wait for a change; return False when it is too late to wait any longer."""
        return self._changed.wait(max(deadline - time.monotonic(), 0.0))

    def _start(self, kind: str, kept: _Kept, work: Callable[[Tell[Any]], Any]) -> None:
        name, arguments, kept.wanted = f"redbeat-web-{kind}", (kind, kept, work), None
        try:
            threading.Thread(target=self._work, args=arguments, name=name, daemon=True).start()
        except RuntimeError as exc:  # this process has no more threads, or ends
            kept.problem = f"It can't be found out now: {exc}."
            return
        self._busy.add(kind)
        kept.is_at_work = True

    def _work(self, kind: str, kept: _Kept, work: Callable[[Tell[Any]], Any]) -> None:
        def tell(found: Any) -> None:
            kept.partly = found
            now = time.monotonic()
            is_waited_for = now < self._waited_for.get(kind, 0.0) + LEFT_FOR_ANOTHER_SECONDS
            if now > kept.asked_at + (LEFT_FOR_ANOTHER_SECONDS if is_waited_for else LEFT_SECONDS):
                raise _Left

        try:
            with self._slots:
                began = time.monotonic()
                kept.found = work(tell)
            kept.found_at, kept.is_whole, kept.problem = time.monotonic(), True, ""
            kept.rests_until = kept.found_at + REST * (kept.found_at - began)
        except _Left:
            pass
        except RedBeatError as exc:
            kept.problem = exc.plain
        except Exception:  # whatever it is, those who wait are told
            logger.exception("The job %s has failed", kind)
            kept.problem = "This is a defect of the dashboard; its log says more."
        finally:
            with self._changed:
                kept.is_at_work, kept.partly = False, None
                if kept.problem:
                    kept.rests_until = time.monotonic() + RETRY_SECONDS
                self._busy.discard(kind)
                self._changed.notify_all()
