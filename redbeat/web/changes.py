"""Changes that may take longer than a page, such as a file of 40,000 entries: each in a thread of its own.

Owns what became of them, for a while: in the memory of the process that makes them, and in Redis for the
others of the same server. Invariants: one click begins one change, however often its form is sent, and to
whichever process; a change that has begun goes on whether somebody looks or not, without the bounds that
requests have in asking Redis; only whoever has begun it sees what became of it.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from secrets import token_urlsafe
from typing import Any, Protocol, TypeVar

from redbeat.errors import RedBeatError
from redbeat.log.logger import web_logger as logger
from redbeat.log.text import shorten
from redbeat.store.changes import KEPT_SECONDS, ChangeRecord
from redbeat.web.background import TooBusy

Outcome = TypeVar("Outcome")

#: how long a request waits for its change, so that what is quick is shown at once; seconds
WAIT_SECONDS = 1.0
#: how often other processes are told how far a change is, seconds, and after how long without a word its
#: process counts as ended
TELL_SECONDS, SILENT_SECONDS = 1.0, 15.0
#: of how many changes it is known what became of them
MAX_KEPT = 20
#: how many characters of what became of a change other processes are told
MAX_WORDS = 1000
#: how many are made at a time, and how many of one user: the next one is refused
MAX_AT_WORK, MAX_OF_USER = 4, 3

#: tells how far a change is, in words
Tell = Callable[[str], None]

_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True)
class Ending:
    """What became of a change, without anything that is hidden.

    Attributes:
        words: a sentence or two.
        place: the parts of the path of the page to go to, and ``query`` what stands behind it.
        status: the status code of the page that says it.
        page: shows more than the words, to the visit that it gets, instead of another page with the words as
            its notice; only the process that has made the change can do that.
        forgets: of which kind jobs in the background have found what isn't so any more.
    """

    words: str
    place: tuple[str, ...] = ()
    query: Mapping[str, str | None] = field(default_factory=dict)
    status: int = 303
    page: Callable[[Any], Any] | None = None
    forgets: tuple[str, ...] = ()


class Records(Protocol):
    """What processes know of each other's changes: :class:`redbeat.store.changes.ChangeRecords`."""

    def claim(self, id: str, record: ChangeRecord) -> bool: ...  # noqa: A002 - said there

    def write(self, id: str, record: ChangeRecord) -> None: ...  # noqa: A002

    def read(self, id: str) -> ChangeRecord | None: ...  # noqa: A002


@dataclass
class Change:
    """One change that this process makes.

    Attributes:
        id: by which it is found again.
        maker: tells this process from others.
        user: who has begun it.
        title: what it is.
        began_at: by the monotonic clock.
        told: how far it is; '': it hasn't said.
        ending, problem: what became of it; the error that its work has raised.
        is_elsewhere: another process makes it.
    """

    id: str
    maker: str
    user: str
    title: str
    began_at: float = field(default_factory=time.monotonic)
    told: str = ""
    ending: Ending | None = None
    problem: Exception | None = None
    ended_at: float = 0.0
    is_elsewhere: bool = False

    @property
    def is_done(self) -> bool:
        """Whether it has ended, well or badly."""
        return bool(self.ended_at)

    @property
    def seconds(self) -> float:
        """For how long it has been at work."""
        return (self.ended_at or time.monotonic()) - self.began_at

    def to_record(self) -> ChangeRecord:
        """Return what other processes are told of it."""
        record = ChangeRecord(self.maker, self.user, self.title, self.told, self.seconds)
        if not self.is_done or self.ending is None:
            return record
        return replace(
            record,
            told=shorten(self.ending.words, MAX_WORDS),
            status=self.ending.status,
            place=self.ending.place,
            query={name: value for name, value in self.ending.query.items() if value is not None},
            forgets=self.ending.forgets,
            has_page=self.ending.page is not None,
        )


class Changes:
    """The changes of one dashboard.

    Arguments:
        records: returns what other processes know of, and are told by.
        fail: returns what became of a change whose work has raised an error.
    """

    def __init__(self, records: Callable[[], Records], fail: Callable[[Exception], Ending]) -> None:
        self._records = records
        self._fail = fail
        self._changed = threading.Condition()
        self._kept: dict[str, Change] = {}
        self._maker = token_urlsafe(8)

    def make(
        self,
        user: str,
        title: str,
        work: Callable[[Tell], Outcome],
        end: Callable[[Outcome], Ending],
        *,
        once: str = "",
        wait_seconds: float | None = None,
    ) -> Change:
        """Begin a change, unless the same click has begun it, and wait a moment for it.

        Arguments:
            work: makes it; called once, in a thread.
            end: says what became of it, by what ``work`` has returned.
            once: what tells one click from another; '': each call is one.
            wait_seconds: None: ``WAIT_SECONDS``.

        Raises:
            TooBusy: too many are at work.
            StoreUnavailable, StoreRefused, StoreCorrupt: it isn't known whether another process makes it.
        """
        digest = hashlib.sha256(f"{user}\n{once}".encode("utf-8", "surrogateescape")).hexdigest()[:32]
        name = digest if once else token_urlsafe(16)
        deadline = time.monotonic() + (WAIT_SECONDS if wait_seconds is None else wait_seconds)
        with self._changed:
            self._forget_old()
            change = self._kept.get(name)
            is_new = change is None
            if change is None:
                at_work = [one.user for one in self._kept.values() if not one.is_done]
                if len(at_work) >= MAX_AT_WORK or at_work.count(user) >= MAX_OF_USER:
                    raise TooBusy
                change = self._kept[name] = Change(name, self._maker, user, title)
        if is_new:
            self._start(change, work, end)
        with self._changed:
            while not (change.is_done or change.is_elsewhere):
                if not self._changed.wait(max(deadline - time.monotonic(), 0.0)):
                    break
        return change

    def find(self, name: str, user: str) -> Change | ChangeRecord | None:
        """Return a change of this user's; None: it isn't known, or not any more.

        Raises:
            StoreUnavailable, StoreRefused, StoreCorrupt: it isn't known whether another process makes it.
        """
        change: Change | ChangeRecord | None
        with self._changed:
            change = self._kept.get(name)
        if change is None and _ID.fullmatch(name):
            change = self._records().read(name)
        return change if change is not None and change.user == user else None

    def _forget_old(self) -> None:
        now = time.monotonic()
        done = [one for one in self._kept.values() if one.is_done]
        old = [one for one in done if now - one.ended_at > KEPT_SECONDS]
        for one in {change.id: change for change in [*old, *done[:-MAX_KEPT]]}.values():
            del self._kept[one.id]

    def _start(
        self, change: Change, work: Callable[[Tell], Outcome], end: Callable[[Outcome], Ending]
    ) -> None:
        """Begin a change, unless another process has."""
        try:
            change.is_elsewhere = not self._records().claim(change.id, change.to_record())
            if not change.is_elsewhere:
                _start_thread("redbeat-web-change", self._work, change, work, end)
                _start_thread("redbeat-web-change-told", self._keep_told, change)
        except BaseException:  # also where this process has no more threads
            change.is_elsewhere = True  # perhaps
            raise
        finally:
            if change.is_elsewhere:
                with self._changed:
                    del self._kept[change.id]
                    self._changed.notify_all()

    def _work(self, change: Change, work: Callable[[Tell], Any], end: Callable[[Any], Ending]) -> None:
        def tell(words: str) -> None:
            change.told = words

        try:
            change.ending = end(work(tell))
        except RedBeatError as exc:
            change.problem = exc
        except Exception as exc:  # whatever it is, whoever waits is told
            logger.exception("A change has failed: %s", change.title)
            change.problem = exc
        finally:
            if change.problem is not None:
                change.ending = self._fail(change.problem)
            with self._changed:
                change.ended_at = time.monotonic()
                self._changed.notify_all()

    def _keep_told(self, change: Change) -> None:
        """Tell other processes how far a change is, until they know what became of it."""
        while not change.is_done or time.monotonic() < change.ended_at + KEPT_SECONDS:
            with self._changed:
                self._changed.wait_for(lambda: change.is_done, TELL_SECONDS)
                record = change.to_record()
            try:
                self._records().write(change.id, record)
            except RedBeatError as exc:  # Redis is away, say; it is tried again
                logger.debug("Other processes can't be told of a change now: %s", exc)
                if record.is_done:
                    time.sleep(TELL_SECONDS)
                continue
            if record.is_done:
                return


def _start_thread(name: str, target: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=target, args=arguments, name=name, daemon=True).start()
