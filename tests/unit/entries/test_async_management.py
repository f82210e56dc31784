"""Awaited operations on entries, on a fake that only code without blocking can ask."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import Any

import fakeredis
import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.entries.async_management import LISTED_AT_ONCE, AsyncManaged
from redbeat.entries.management import Managed
from redbeat.errors import EntryChanged, EntryError, EntryNotFound
from tests.support.ticks import memory_app

#: methods without an awaited sibling: they ask nobody, or are for code that blocks
ASK_NOBODY = {
    "to_dict", "from_dict", "describe", "next_runs", "runs_between", "due_by_schedule", "bounds", "score_of",
    "is_due", "is_enabled_at", "plan_save", "encode", "default_now", "generate_key", "decode_definition",
    "decode_meta", "advanced", "following_run",
}  # fmt: skip


#: they send messages, which kombu does without asyncio: docs/fastapi.rst says how
NEED_A_BROKER = {"trigger", "backfill", "rerun"}


#: ``redbeat.aio.run`` runs them
ARE_RUN = {"load_definition", "load_meta", "check_save", "give_up_runs", "next"}


@pytest.fixture
def app() -> Iterator[Celery]:
    """Its schedule is in a fake that only code which waits without blocking can ask."""
    made, server = memory_app(), fakeredis.FakeServer()
    made.redbeat_redis_async = lambda: fakeredis.FakeAsyncRedis(server=server, decode_responses=True)
    yield made
    assert not hasattr(made, "redbeat_redis"), "a client that blocks was made"


def entry_of(app: Celery, name: str = "report", schedule: Any = 60, **fields: Any) -> Entry:
    return Entry(name, "tasks.report", schedule, app=app, **fields)


def methods_of(*classes: type) -> dict[str, Callable[..., Any]]:
    return {
        name: getattr(Entry, name)
        for cls in classes
        for name, value in vars(cls).items()
        if not name.startswith("_")
        and (inspect.isfunction(value) or isinstance(value, (classmethod, staticmethod)))
    }


def test_every_method_has_an_awaited_sibling_with_the_same_arguments() -> None:
    awaited = methods_of(AsyncManaged)
    others = methods_of(Managed, Entry)
    assert {name[1:] for name in awaited} <= others.keys()
    for name, method in awaited.items():
        mine, its = inspect.signature(method), inspect.signature(others[name[1:]])
        assert mine.parameters.keys() == its.parameters.keys(), name
        for one, other in zip(mine.parameters.values(), its.parameters.values(), strict=True):
            assert (one.default, one.kind) == (other.default, other.kind), (name, one.name)
    assert others.keys() - {name[1:] for name in awaited} == ASK_NOBODY | NEED_A_BROKER | ARE_RUN


async def call_all(app: Celery) -> None:
    entry = await entry_of(app).asave()
    assert (await Entry.aget("report", app)).task == "tasks.report"
    assert (await Entry.afrom_key("redbeat:report", app)).name == "report"
    await entry.aupdate(args=[1], schedule="30 7 * * *")
    assert (entry.args, (await Entry.aget("report", app)).args) == ([1], [1])
    await entry.apause("the printer", by="ada")
    assert [one.name for one in await Entry.alist(app, state="paused")] == ["report"]
    await entry.aresume()
    await entry.areschedule(datetime(2026, 1, 1, tzinfo=timezone.utc))
    assert (await Entry.aget("report", app)).last_run_at == datetime(2026, 1, 1, tzinfo=timezone.utc)
    assert [*await entry.ahistory(), *await entry.aruns(), *await entry.arunning()] == []
    assert (await entry.afigures()).success_rate is None
    saved = await Entry.asave_many(entry_of(app, f"many-{number}") for number in range(3))
    assert len(saved.new) == 3
    assert (await Entry.apause_many(["many-0", "many-1", "nobody"], app, by="bob")).changed == (
        "many-0",
        "many-1",
    )
    assert (await Entry.aresume_many(["many-0", "many-2"], app)).left == ("many-2",)
    assert await Entry.acount(app, match="many-*") == 3
    assert await Entry.adelete_many(["many-0", "nobody"], app) == 1
    await entry.adelete()
    with pytest.raises(EntryNotFound):
        await Entry.aget("report", app)
    assert await Entry.aclear(app) == 2


def test_awaited_method_does_what_its_sibling_does(app: Celery) -> None:
    asyncio.run(call_all(app))


def test_awaited_method_raises_what_its_sibling_raises(app: Celery) -> None:
    async def main() -> None:
        mine = await entry_of(app).asave()
        with pytest.raises(EntryChanged, match="there is such an entry by now"):
            await entry_of(app).asave(if_unchanged=True)
        await (await Entry.aget("report", app)).aupdate(args=[2])
        with pytest.raises(EntryChanged, match="somebody has changed it"):
            await mine.asave(if_unchanged=True)
        with pytest.raises(EntryError, match="can't be stored as JSON"):
            await entry_of(app, args=[object()]).asave()
        with pytest.raises(EntryError, match=r"no field 'shedule' to change\. Did you mean schedule"):
            await mine.aupdate(shedule=3)  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="takes a list of names"):
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

    async def main() -> tuple[type, dict[str, Any]]:
        saved = await Audited("report", "tasks.report", 60, app=app).asave()
        return type(saved), (await Audited.aget("report", app)).kwargs

    assert asyncio.run(main()) == (Audited, {"by": "ada"})


def test_alist_is_iterated_or_awaited_in_the_order_of_list(app: Celery) -> None:
    count = 2 * LISTED_AT_ONCE + 1

    async def main() -> tuple[list[str], list[str], int]:
        await Entry.asave_many(entry_of(app, f"{number:03}", 60 + number) for number in range(count))
        names = [entry.name async for entry in Entry.alist(app)]
        return (
            names,
            [entry.name for entry in await Entry.alist(app, offset=1)],
            len(await Entry.alist(app, limit=7)),
        )

    names, rest, few = asyncio.run(main())
    assert names == [f"{number:03}" for number in range(count)]
    assert (rest, few) == (names[1:], 7)
