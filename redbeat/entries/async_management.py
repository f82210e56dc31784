"""The methods of an entry for programs with an event loop: those of ``management`` with an a in front.

Each does what the one without the a does, by calling it in a thread (:func:`redbeat.aio.run`), so that the
event loop goes on. So a subclass that overrides ``save`` has overridden ``asave``, too.

Invariants: an entry that was awaited knows its calendar, so computing its due times reads nothing; where no
app is passed, it is the event loop's current one, as Celery has another in each thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from inspect import iscoroutinefunction
from itertools import islice
from types import GeneratorType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from celery.app import app_or_default

from redbeat.entries.bulk import SaveResult
from redbeat.entries.calendar_loading import give_calendars, read_calendars
from redbeat.entries.management import Changes, Managed
from redbeat.entries.pauses import PauseResult
from redbeat.errors import StoreCorrupt, StoreRefused, StoreUnavailable
from redbeat.history import PastRun
from redbeat.runs.figures import Figures
from redbeat.runs.run import Run
from redbeat.schedules.occurrences import Excluded
from redbeat.store.store import Store

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from redbeat.entries.entry import RedBeatSchedulerEntry

Item = TypeVar("Item")
Result = TypeVar("Result")
EntryT = TypeVar("EntryT", bound="AsyncManaged")

#: how many entries are handed over at a time
LISTED_AT_ONCE = 50


async def run(call: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
    """Return ``call(*args, **kwargs)``, made in a thread of the event loop's executor.

    Other tasks go on meanwhile. A task that is cancelled leaves the call at work, until it has ended.

    Raises what the call raises.
    """
    if iscoroutinefunction(call):
        raise TypeError(f"aio.run takes a function that isn't a coroutine; await {call.__name__} itself.")
    result = await asyncio.to_thread(call, *args, **kwargs)
    if isinstance(result, (GeneratorType, islice)):
        raise TypeError(
            "aio.run was given a function that returns an iterator, which would read outside of it, and "
            "block; await aio.run(list, ...) with what it returns."
        )
    return result


class Listing(Generic[Item]):
    """Entries that are read while they are gone through: ``async for entry in listing``.

    ``await listing`` returns all of them, a list. It can be gone through once.
    """

    def __init__(self, entries: Iterator[Item]) -> None:
        self._entries = entries

    def __aiter__(self) -> AsyncIterator[Item]:
        return self._each()

    def __await__(self) -> Generator[Any, None, list[Item]]:
        return self._all().__await__()

    async def _all(self) -> list[Item]:
        return [entry async for entry in self._each()]

    async def _each(self) -> AsyncIterator[Item]:
        calendars: dict[str, Excluded] = {}
        while some := await run(self._take, calendars):
            for entry in some:
                yield entry
            await asyncio.sleep(0)

    def _take(self, calendars: dict[str, Excluded]) -> list[Item]:
        some = [*islice(self._entries, LISTED_AT_ONCE)]
        _learn_calendars(some, calendars)
        return some


class AsyncManaged(Managed):
    """The methods of an entry that are awaited."""

    # -- reading

    @classmethod
    async def aget(cls: type[EntryT], name: str, app: Any = None) -> EntryT:
        """Await :meth:`get`."""
        return await _run_and_learn(partial(cls.get, name, app_or_default(app)))

    @classmethod
    async def afrom_key(cls: type[EntryT], key: str, app: Any = None) -> EntryT:
        """Await :meth:`from_key`."""
        whole: Any = cls
        return await _run_and_learn(partial(whole.from_key, key, app_or_default(app)))

    @classmethod
    def alist(
        cls: type[EntryT],
        app: Any = None,
        *,
        match: str | None = None,
        task: str | None = None,
        enabled: bool | None = None,
        state: str | None = None,
        due_before: datetime | None = None,
        offset: int = 0,
        limit: int | None = None,
    ) -> Listing[EntryT]:
        """Return the entries that :meth:`list` yields: ``await`` all of them, or go through them by ``async
        for``.

        With ``async for`` they are read page after page, so a million entries need no more memory than ten.
        """
        filters: dict[str, Any] = {"match": match, "task": task, "enabled": enabled, "state": state}
        filters |= {"due_before": due_before, "offset": offset, "limit": limit}
        return Listing(cls.list(app_or_default(app), **filters))

    @classmethod
    async def acount(cls, app: Any = None, **filters: Any) -> int:
        """Await :meth:`count`."""
        return await run(cls.count, app_or_default(app), **filters)

    async def ahistory(self, limit: int = 20) -> Sequence[PastRun]:
        """Await :meth:`history`."""
        return await run(self.history, limit)

    async def aruns(self, limit: int = 20) -> Sequence[Run]:
        """Await :meth:`runs`."""
        return await run(self.runs, limit)

    async def arunning(self) -> Sequence[Run]:
        """Await :meth:`running`."""
        return await run(self.running)

    async def afigures(self) -> Figures:
        """Await :meth:`figures`."""
        return await run(self.figures)

    # -- changing

    async def asave(self: EntryT, *, if_unchanged: bool = False) -> EntryT:
        """Await :meth:`save`; return the entry.

        A task that is cancelled meanwhile leaves the entry as it was, or stores the whole of it.
        """
        whole = self._whole
        # one of a subclass may have no arguments, as in celery-redbeat 2.x
        await self._change(lambda: whole.save(if_unchanged=True) if if_unchanged else whole.save())
        return self

    async def adelete(self) -> None:
        """Await :meth:`delete`."""
        await run(self._whole.delete)

    async def areschedule(self, last_run_at: datetime | None = None) -> None:
        """Await :meth:`reschedule`."""
        await self._change(lambda: self._whole.reschedule(last_run_at))

    async def aupdate(self, other: Any = None, **changes: Unpack[Changes]) -> None:
        """Await :meth:`update`."""
        await self._change(lambda: self.update(other, **changes))

    async def apause(
        self, note: str | None = None, until: datetime | None = None, by: str | None = None
    ) -> None:
        """Await :meth:`pause`."""
        await self._change(lambda: self.pause(note, until, by))

    async def aresume(self) -> None:
        """Await :meth:`resume`."""
        await self._change(self.resume)

    async def _change(self, change: Callable[[], object]) -> None:
        def change_this() -> AsyncManaged:
            change()
            return self

        await _run_and_learn(change_this)

    # -- many

    @classmethod
    async def asave_many(
        cls, entries: Iterable[RedBeatSchedulerEntry], *, progress: Callable[[int], object] | None = None
    ) -> SaveResult:
        """Await :meth:`save_many`."""
        return await run(cls.save_many, entries, progress=progress)

    @classmethod
    async def adelete_many(
        cls, names: Iterable[str], app: Any = None, *, progress: Callable[[int], object] | None = None
    ) -> int:
        """Await :meth:`delete_many`."""
        return await run(cls.delete_many, names, app_or_default(app), progress=progress)

    @classmethod
    async def apause_many(
        cls,
        names: Iterable[str],
        app: Any = None,
        *,
        note: str | None = None,
        until: datetime | None = None,
        by: str | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> PauseResult:
        """Await :meth:`pause_many`."""
        given: dict[str, Any] = {"note": note, "until": until, "by": by, "progress": progress}
        return await run(cls.pause_many, names, app_or_default(app), **given)

    @classmethod
    async def aresume_many(
        cls,
        names: Iterable[str],
        app: Any = None,
        *,
        note: str | None = None,
        by: str | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> PauseResult:
        """Await :meth:`resume_many`."""
        given: dict[str, Any] = {"note": note, "by": by, "progress": progress}
        return await run(cls.resume_many, names, app_or_default(app), **given)

    @classmethod
    async def aclear(cls, app: Any = None, *, progress: Callable[[int], object] | None = None) -> int:
        """Await :meth:`clear`."""
        return await run(cls.clear, app_or_default(app), progress=progress)


async def _run_and_learn(call: Callable[[], EntryT]) -> EntryT:
    """Return the entry that ``call()`` returns, with its calendar."""

    def run_and_learn() -> EntryT:
        entry = call()
        _learn_calendars([entry], {})
        return entry

    return await run(run_and_learn)


def _learn_calendars(entries: Sequence[Any], calendars: dict[str, Excluded]) -> None:
    """Give entries their calendars; those that aren't among ``calendars`` are read, and put there.

    Where they can't be read, an entry reads its own when it needs it, and says why it can't be used then.
    """
    named = [entry for entry in entries if entry.policy.exclude is not None]
    unknown = {entry.policy.exclude for entry in named} - calendars.keys()
    with suppress(StoreUnavailable, StoreRefused, StoreCorrupt):
        if unknown:
            calendars.update(read_calendars(Store(named[0].app), unknown))
        give_calendars(named, calendars)
