"""Awaited operations on entries."""

from __future__ import annotations

import asyncio
import inspect
import threading
from datetime import datetime, timezone
from typing import Any

import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat import aio
from redbeat.entries.async_management import LISTED_AT_ONCE, AsyncManaged
from redbeat.errors import EntryChanged, EntryError, EntryNotFound


@pytest.fixture
def app(fake_app: Celery) -> Celery:
    return fake_app


def entry_of(app: Celery, name: str = "report", schedule: Any = 60, **fields: Any) -> Entry:
    return Entry(name, "tasks.report", schedule, app=app, **fields)


def arguments_of(method: str) -> list[tuple[Any, ...]]:
    parameters = inspect.signature(getattr(Entry, method)).parameters.values()
    return [(parameter.name, parameter.default, parameter.kind) for parameter in parameters]


def test_awaited_method_takes_the_arguments_of_its_sibling() -> None:
    awaited = [name for name in vars(AsyncManaged) if name.startswith("a")]
    assert "asave" in awaited
    for name in awaited:
        assert arguments_of(name) == arguments_of(name[1:]), name


async def call_all_methods(app: Celery) -> None:
    entry = await entry_of(app).asave()
    assert (await Entry.aget("report", app)).task == "tasks.report"
    assert (await Entry.afrom_key("redbeat:report", app)).name == "report"
    await entry.aupdate(args=[1], schedule="30 7 * * *")
    assert (entry.args, (await Entry.aget("report", app)).args) == ([1], [1])
    await entry.apause("the printer", by="ada")
    paused = await Entry.alist(app, state="paused")
    assert [(one.name, one.pause_note, one.paused_by) for one in paused] == [("report", "the printer", "ada")]
    await entry.aresume()
    await entry.areschedule(datetime(2026, 1, 1, tzinfo=timezone.utc))
    assert (await Entry.aget("report", app)).last_run_at == datetime(2026, 1, 1, tzinfo=timezone.utc)
    assert [*await entry.ahistory(), *await entry.aruns(), *await entry.arunning()] == []
    assert (await entry.afigures()).success_rate is None
    saved = await Entry.asave_many(entry_of(app, f"many-{number}") for number in range(3))
    assert len(saved.new) == 3
    result = await Entry.apause_many(["many-0", "many-1", "nobody"], app, by="bob")
    assert result.changed == ("many-0", "many-1")
    assert (await Entry.aresume_many(["many-0", "many-2"], app)).left == ("many-2",)
    assert await Entry.acount(app, match="many-*") == 3
    assert await Entry.adelete_many(["many-0", "nobody"], app) == 1
    await entry.adelete()
    with pytest.raises(EntryNotFound):
        await Entry.aget("report", app)
    assert await Entry.aclear(app) == 2


def test_awaited_method_does_what_its_sibling_does(app: Celery) -> None:
    asyncio.run(call_all_methods(app))


def test_awaited_method_raises_what_its_sibling_raises(app: Celery) -> None:
    async def main() -> None:
        mine = await entry_of(app).asave()
        await (await Entry.aget("report", app)).aupdate(args=[2])
        with pytest.raises(EntryChanged):
            await mine.asave(if_unchanged=True)
        with pytest.raises(EntryError, match="shedule"):
            await mine.aupdate(shedule=3)  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="list of names"):
            await Entry.adelete_many("report", app)
        with pytest.raises(ValueError, match="state: must be one of"):
            Entry.alist(app, state="gone")

    asyncio.run(main())


def test_asave_calls_an_overridden_save(app: Celery) -> None:
    class Audited(Entry):
        def save(self) -> Audited:  # type: ignore[override]  # as one for 2.x does
            self.kwargs["by"] = "ada"
            super().save()
            return self

    async def main() -> None:
        saved = await Audited("report", "tasks.report", 60, app=app).asave()
        assert type(saved) is Audited
        assert (await Audited.aget("report", app)).kwargs == {"by": "ada"}

    asyncio.run(main())


def test_alist_is_iterated_or_awaited_in_the_order_of_list(app: Celery) -> None:
    expected = [f"{number:03}" for number in range(2 * LISTED_AT_ONCE + 1)]

    async def main() -> None:
        await Entry.asave_many(entry_of(app, name, 60 + int(name)) for name in expected)
        assert [entry.name async for entry in Entry.alist(app)] == expected
        assert [entry.name for entry in await Entry.alist(app, offset=1)] == expected[1:]
        assert len(await Entry.alist(app, limit=7)) == 7

    asyncio.run(main())


def test_other_tasks_go_on_while_a_call_waits() -> None:
    is_set = threading.Event()

    async def main() -> bool:
        waiting = asyncio.create_task(aio.run(is_set.wait, 60))
        await asyncio.sleep(0)
        is_set.set()
        return await waiting

    assert asyncio.run(main())


def test_lazy_result_of_aio_run_is_refused(app: Celery) -> None:
    async def main() -> list[str | None]:
        await entry_of(app).asave()
        with pytest.raises(TypeError, match=r"await aio\.run\(list, \.\.\.\)"):
            await aio.run(Entry.list, app)
        with pytest.raises(TypeError, match="await aget itself"):
            await aio.run(Entry.aget, "report", app)
        return [entry.name for entry in await aio.run(list, Entry.list(app))]

    assert asyncio.run(main()) == ["report"]
