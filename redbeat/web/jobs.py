"""The jobs of one dashboard: work that takes longer than a page, in threads, and what it has returned.

There are two kinds. A *read* is begun by a page that shows its result, which other pages share while it is
fresh; it ends when no page asks any more. A *change* is begun once by the form that asks for it, and goes on
whether a page asks or not; other processes of the same server see its record in Redis. Invariants: a key has
one job at a time; a read that took long rests ten times as long before it begins again unasked; only the user
who has begun a change sees its outcome.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from math import inf
from secrets import token_urlsafe
from typing import Any, Generic, TypeVar, cast

from starlette.exceptions import HTTPException

from redbeat.errors import RedBeatError
from redbeat.log.logger import web_logger as logger
from redbeat.log.text import shorten
from redbeat.store.changes import KEPT_SECONDS, ChangeRecord, ChangeRecords
from redbeat.web.routes import sentence_of, status_of

Found = TypeVar("Found")

#: for how many times as long as a read took it rests before it begins again, and for how long after an error,
#: seconds
REST, RETRY_SECONDS = 10, 5.0
#: a read ends that no page has asked for since, and sooner if another one waits; seconds. Pages that wait ask
#: every second
LEFT_SECONDS, LEFT_FOR_ANOTHER_SECONDS = 20.0, 3.0
#: how many reads work at a time, as Python does one thing at a time anyway; how many results are kept; and
#: how many reads have a thread, those that wait for the others included
MAX_READS, MAX_RESULTS, MAX_QUEUED = 2, 50, 20
#: how many changes work at a time, and how many outcomes are kept
MAX_CHANGES, MAX_OUTCOMES = 4, 20
#: how long a page waits for a read and for a change, so that a short one is shown at once; seconds
READ_WAIT_SECONDS, CHANGE_WAIT_SECONDS = 0.06, 1.0
#: how often a change at work writes its record, and how old that is when its process has ended; seconds
RECORD_SECONDS, SILENT_SECONDS = 1.0, 15.0
#: how long a read computes at a time, of processor time, and how long it rests then, so that pages stay quick
SLICE_SECONDS, REST_SECONDS = 0.02, 0.02
#: how many characters of an outcome a record has
MAX_WORDS = 1000

#: tells the progress of a job: of a read its result so far, of a change some words
Tell = Callable[[Found], None]


class TooBusy(HTTPException):
    """There are more requests or changes than can be answered."""

    def __init__(self) -> None:
        super().__init__(503, "There are too many requests at the moment. Try again in a few seconds.")


class State(Enum):
    """The state of a job. IDLE: it hasn't begun, or has ended early, as no page asked any more."""

    IDLE = auto()
    QUEUED = auto()
    RUNNING = auto()
    DONE = auto()
    FAILED = auto()


@dataclass
class Job:
    """One job, which may run several times. Times are monotonic.

    Attributes:
        progress: what it has told so far.
        result: what it has returned at ``found_at``, the last time that it was done.
        problem: the error of the last time, and ``sentence`` what users are told of it.
        asked_at: when a page has asked for it last.
        is_queued: it waits while MAX_READS others work.
    """

    state: State = State.IDLE
    is_queued: bool = True
    progress: Any = None
    result: Any = None
    found_at: float = 0.0
    problem: Exception | None = None
    sentence: str = ""
    asked_at: float = field(default_factory=time.monotonic)
    began_at: float = field(default_factory=time.monotonic)
    ended_at: float = 0.0

    @property
    def is_at_work(self) -> bool:
        """Whether it runs, or waits for others to end."""
        return self.state in (State.QUEUED, State.RUNNING)

    @property
    def seconds(self) -> float:
        """How long it has run, or runs so far."""
        return (time.monotonic() if self.is_at_work else self.ended_at) - self.began_at

    @property
    def rests_until(self) -> float:
        """When it may begin again unasked."""
        rest = {State.DONE: REST * self.seconds, State.FAILED: RETRY_SECONDS}.get(self.state, 0.0)
        return self.ended_at + rest

    def is_over(self, now: float) -> bool:
        """Return True if its result isn't kept any longer."""
        return not self.is_at_work and now - max(self.asked_at, self.ended_at) >= KEPT_SECONDS

    def as_result(self) -> Result[Any]:
        """Return what pages show of a read."""
        is_whole = self.found_at > 0
        return Result(
            self.result if is_whole else self.progress if self.is_at_work else None,
            time.monotonic() - self.found_at if is_whole else 0.0,
            is_whole,
            self.is_at_work or not (is_whole or self.problem),
            self.sentence if self.problem else "",
        )


@dataclass(frozen=True)
class Result(Generic[Found]):
    """The result of a read.

    Attributes:
        found: None: nothing yet.
        age_seconds: how long ago it was found.
        is_whole: the read was done; else this is its progress.
        is_awaited: it is at work: ask again in a moment.
        problem: why it has failed the last time; '': it hasn't.
    """

    found: Found | None = None
    age_seconds: float = 0.0
    is_whole: bool = False
    is_awaited: bool = False
    problem: str = ""


@dataclass(frozen=True)
class Ending:
    """The outcome of a change, without anything that is hidden.

    Attributes:
        words: a sentence or two.
        place: the parts of the path of the page to go to, and ``query`` what stands behind it.
        status: the status code of the page that says it.
        page: shows more than the words, to the visit that it gets, instead of another page with the words as
            its notice; only the process that has made the change can do that.
        forgets: of which kind reads have found what isn't so any more.
    """

    words: str
    place: tuple[str, ...] = ()
    query: Mapping[str, str | None] = field(default_factory=dict)
    status: int = 303
    page: Callable[[Any], Any] | None = None
    forgets: tuple[str, ...] = ()


@dataclass
class Change(Job):
    """A change, whose result is an :class:`Ending`.

    Attributes:
        id: by which it is found again.
        user: who has begun it.
        title: what it is.
        maker: tells its thread from those of other processes.
    """

    id: str = ""
    user: str = ""
    title: str = ""
    maker: str = field(default_factory=lambda: token_urlsafe(8))

    def to_record(self) -> ChangeRecord:
        """Return what other processes are told of it."""
        record = ChangeRecord(self.maker, self.user, self.title, self.progress or "", self.seconds)
        if self.is_at_work:
            return record
        if self.problem is not None:
            return replace(record, told=shorten(self.sentence, MAX_WORDS), status=status_of(self.problem))
        ending: Ending = self.result
        return replace(
            record,
            told=shorten(ending.words, MAX_WORDS),
            status=ending.status,
            place=ending.place,
            query={name: value for name, value in ending.query.items() if value is not None},
            forgets=ending.forgets,
            has_page=ending.page is not None,
        )


class _Left(BaseException):
    """No page asks for the read any more. No part of a job should catch it."""


class Jobs:
    """The jobs of one dashboard.

    Arguments:
        records: returns the records of changes that all processes share.
    """

    def __init__(self, records: Callable[[], ChangeRecords]) -> None:
        self._records = records
        self._news = threading.Condition()
        self._reads: dict[tuple[str, Hashable], Job] = {}
        self._changes: dict[str, Change] = {}
        self._slots = threading.BoundedSemaphore(MAX_READS)

    # -- reads

    def read(
        self,
        kind: str,
        key: Hashable,
        work: Callable[[Tell[Found]], Found],
        *,
        fresh_seconds: float = 0.0,
        is_wanted: bool = False,
        wait_seconds: float = READ_WAIT_SECONDS,
        is_queued: bool = True,
    ) -> Result[Found]:
        """Return the result of a read, and begin it again if that is old.

        Arguments:
            kind, key: the same ones, the same read.
            work: the read. It calls its argument with its result so far, now and then, and returns its
                result; it writes nothing.
            fresh_seconds: how old a result may be.
            is_wanted: begin again, however young the result is.
            wait_seconds: how long to wait for a read that begins now, as it may be short.
            is_queued: wait while MAX_READS others work, which may take a minute.
        """
        with self._news:
            now = time.monotonic()
            job = self._reads.pop((kind, key), None)
            if job is None or job.is_over(now):
                job = Job(is_queued=is_queued)
            self._reads[kind, key] = job  # the last one that was asked for goes last
            job.asked_at = now
            _forget_old(self._reads, MAX_RESULTS, now)
            is_old = not job.found_at or now - job.found_at >= fresh_seconds
            is_due = not job.is_at_work and (is_wanted or (is_old and now >= job.rests_until))
            # each has a thread; pages of a read that isn't begun ask again
            if is_due and sum(one.is_at_work for one in self._reads.values()) < MAX_QUEUED:
                self._start(f"redbeat-web-{kind}", job, work)
                self._news.wait_for(lambda: not job.is_at_work, wait_seconds)
            return cast("Result[Found]", job.as_result())

    def last(self, kind: str, key: Hashable) -> Result[Any]:
        """Return the result of a read that was done, and begin none."""
        with self._news:
            job = self._reads.get((kind, key))
            return job.as_result() if job is not None and (job.found_at or job.problem) else Result()

    def forget(self, kind: str, *keys: Hashable) -> None:
        """Forget the results of reads of a kind, as something was changed; with keys, those alone."""
        with self._news:
            for name in [name for name in self._reads if name[0] == kind and (not keys or name[1] in keys)]:
                del self._reads[name]

    # -- changes

    def change(
        self,
        user: str,
        title: str,
        work: Callable[[Tell[str]], Ending],
        *,
        once: str = "",
        wait_seconds: float = CHANGE_WAIT_SECONDS,
    ) -> Change:
        """Begin a change, unless the same form has begun it, and wait a moment for it.

        Arguments:
            work: makes it, and returns the outcome; called once, in a thread.
            once: tells one form from another; '': each call is one.

        Raises:
            TooBusy: too many are at work.
            StoreUnavailable, StoreRefused, StoreCorrupt: it isn't known whether another process makes it.
        """
        digest = hashlib.sha256(f"{user}\n{once}".encode("utf-8", "surrogateescape")).hexdigest()[:32]
        id_ = digest if once else token_urlsafe(16)
        with self._news:
            _forget_old(self._changes, MAX_OUTCOMES, time.monotonic())
            change = self._changes.get(id_)
            if change is None and sum(one.is_at_work for one in self._changes.values()) >= MAX_CHANGES:
                raise TooBusy
        if change is None:
            change = Change(id=id_, user=user, title=title, state=State.QUEUED, is_queued=False)
            if not self._records().claim(id_, change.to_record()):
                return change  # another process, or another request to this one, has begun it
            with self._news:
                self._changes[id_] = change
                self._start("redbeat-web-change", change, work)
            threading.Thread(
                target=self._write, args=(change,), name="redbeat-web-record", daemon=True
            ).start()
        with self._news:
            self._news.wait_for(lambda: not change.is_at_work, wait_seconds)
        return change

    def find(self, id_: str, user: str) -> Change | ChangeRecord | None:
        """Return a change of this user's; None: it isn't known, or not any more.

        Raises:
            StoreUnavailable, StoreRefused, StoreCorrupt: it isn't known whether another process makes it.
        """
        change: Change | ChangeRecord | None = self._changes.get(id_)
        if change is None:
            change = self._records().read(id_)
        return change if change is not None and change.user == user else None

    def _write(self, change: Change) -> None:
        """Write the record of a change until it has ended, and then its outcome."""
        while change.is_at_work or time.monotonic() < change.ended_at + KEPT_SECONDS:
            with self._news:
                self._news.wait_for(lambda: not change.is_at_work, RECORD_SECONDS)
                record = change.to_record()
            try:
                self._records().write(change.id, record)
                if record.is_done:
                    return
            except RedBeatError as exc:  # Redis is unreachable, say; it is tried again
                logger.debug("The record of a change can't be written now: %s", exc)
                time.sleep(RECORD_SECONDS)

    # -- running

    def _start(self, name: str, job: Job, work: Callable[[Tell[Any]], Any]) -> None:
        job.state, job.progress = State.QUEUED, None
        try:
            threading.Thread(target=self._run, args=(job, work), name=name, daemon=True).start()
        except RuntimeError:  # this process has no more threads
            job.state = State.IDLE
            raise

    def _run(self, job: Job, work: Callable[[Tell[Any]], Any]) -> None:
        result, problem, state = None, None, State.DONE
        with self._slots if job.is_queued else nullcontext():
            job.state, job.began_at = State.RUNNING, time.monotonic()
            try:
                self._tell(job, None)  # perhaps no page asks for it any more
                result = work(lambda told: self._tell(job, told))
            except _Left:
                state = State.IDLE
            except Exception as exc:  # noqa: BLE001 - whatever it is, pages that wait are told
                problem, state = exc, State.FAILED
        with self._news:
            job.ended_at, job.state = time.monotonic(), state
            if state is State.DONE:
                job.result, job.found_at = result, job.ended_at
            if state is not State.IDLE:
                job.problem, job.sentence = problem, "" if problem is None else sentence_of(problem)
            self._news.notify_all()

    def _tell(self, job: Job, told: Any) -> None:
        job.progress = told
        if isinstance(job, Change):
            return
        with self._news:
            is_waited_for = any(one.state is State.QUEUED for one in self._reads.values())
        if time.monotonic() > job.asked_at + (LEFT_FOR_ANOTHER_SECONDS if is_waited_for else LEFT_SECONDS):
            raise _Left


def _forget_old(jobs: dict[Any, Any], most: int, now: float) -> None:
    """Drop jobs whose results aren't kept any longer, and all but the last ``most``."""
    idle = [name for name, job in jobs.items() if not job.is_at_work]
    for name in {*(name for name in idle if jobs[name].is_over(now)), *idle[:-most]}:
        del jobs[name]


class Pace:
    """The slices of one read, until its budget of processor time is used up. Belongs to one thread."""

    def __init__(self, budget_seconds: float = inf) -> None:
        self._began = self._slice = time.thread_time()
        self._budget_seconds = budget_seconds

    @property
    def is_over(self) -> bool:
        """Whether the budget is used up."""
        return time.thread_time() - self._began > self._budget_seconds

    def rest(self) -> None:
        """Rest, if a slice is over."""
        if time.thread_time() - self._slice > SLICE_SECONDS:
            time.sleep(REST_SECONDS)
            self._slice = time.thread_time()
