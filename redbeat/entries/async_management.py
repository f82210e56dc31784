"""The methods of an entry for programs with an event loop: those of ``management`` with an a in front.

Each does what the one without the a does, by calling it in a thread (:func:`redbeat.aio.run`), so that the
event loop goes on. So a subclass that overrides ``save`` has overridden ``asave``, too.

Invariants: an entry that was awaited knows its calendar, so computing its due times reads nothing; where no
app is passed, it is the event loop's current one, as Celery has another in each thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial, wraps
from inspect import iscoroutinefunction, signature
from itertools import islice
from types import GeneratorType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from celery.app import app_or_default

from redbeat.entries.calendar_loading import load_calendars
from redbeat.entries.management import Managed
from redbeat.errors import StoreCorrupt, StoreRefused, StoreUnavailable
from redbeat.schedules.occurrences import Excluded
from redbeat.store.store import Store

Given = ParamSpec("Given")
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


class Awaited(Generic[Given, Result]):
    """A method that awaits the one that is called so without an a, also where a subclass overrides it."""

    _name: str

    def __init__(self, method: Callable[Concatenate[Any, Given], Result]) -> None:
        self._method: Any = method

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name.removeprefix("a")

    def __get__(self, entry: Any, owner: type) -> Callable[Given, Coroutine[Any, Any, Result]]:
        method = getattr(owner if entry is None else entry, self._name)

        @wraps(method)
        async def call(*args: Any, **kwargs: Any) -> Any:
            if "app" in signature(method).parameters:  # a thread has another current app than the event loop
                bound = signature(method).bind(*args, **kwargs)
                bound.arguments["app"] = app_or_default(bound.arguments.get("app"))
                args, kwargs = bound.args, bound.kwargs

            return await _run_and_learn(partial(method, *args, **kwargs), entry)

        call.__doc__ = f"Await :meth:`{self._name}`."
        return call


class AwaitedOfClass(Awaited[Given, Result]):
    """The same of a class method."""

    def __init__(self, method: Callable[Given, Result]) -> None:
        super().__init__(method)


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

    acount = AwaitedOfClass(Managed.count)
    ahistory = Awaited(Managed.history)
    aruns = Awaited(Managed.runs)
    arunning = Awaited(Managed.running)
    afigures = Awaited(Managed.figures)

    # -- changing

    async def asave(self: EntryT, *, if_unchanged: bool = False) -> EntryT:
        """Await :meth:`save`; return the entry.

        A task that is cancelled meanwhile leaves the entry as it was, or stores the whole of it.
        """
        whole = self._whole
        # one of a subclass may have no arguments, as in celery-redbeat 2.x
        save = partial(whole.save, if_unchanged=True) if if_unchanged else whole.save
        await _run_and_learn(save, self)
        return self

    async def adelete(self) -> None:
        """Await :meth:`delete`."""
        await run(self._whole.delete)

    async def areschedule(self, last_run_at: datetime | None = None) -> None:
        """Await :meth:`reschedule`."""
        await _run_and_learn(partial(self._whole.reschedule, last_run_at), self)

    aupdate = Awaited(Managed.update)
    apause = Awaited(Managed.pause)
    aresume = Awaited(Managed.resume)

    # -- many

    asave_many = AwaitedOfClass(Managed.save_many)
    adelete_many = AwaitedOfClass(Managed.delete_many)
    apause_many = AwaitedOfClass(Managed.pause_many)
    aresume_many = AwaitedOfClass(Managed.resume_many)
    aclear = AwaitedOfClass(Managed.clear)


async def _run_and_learn(call: Callable[[], Result], entry: Any = None) -> Result:
    """Return ``call()``, made in a thread; ``entry``, or a returned entry, knows its calendar then."""

    def run_and_learn() -> Result:
        result = call()
        found: list[Any] = [one for one in (entry, result) if isinstance(one, AsyncManaged)]
        _learn_calendars([one for one in found if one.policy.calendar is None], {})
        return result

    return await run(run_and_learn)


def _learn_calendars(entries: Sequence[Any], calendars: dict[str, Excluded]) -> None:
    """Give entries their calendars; those that aren't among ``calendars`` are read, and put there.

    Where they can't be read, an entry reads its own when it needs it, and says why it can't be used then.
    """
    with suppress(StoreUnavailable, StoreRefused, StoreCorrupt):
        if entries:
            load_calendars(Store(entries[0].app), entries, calendars)
