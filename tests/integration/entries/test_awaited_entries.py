"""Awaited operations on a real server: concurrency, outages, forks."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from tests.conftest import MakeApp
from tests.faults.children import run_child
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from tests.support.schedule import SCHEDULE
from tests.support.servers import Server


def entry_of(app: Celery, name: str = "report", **fields: Any) -> Entry:
    return Entry(name, "tasks.report", 60, app=app, **fields)


def test_concurrent_updates_of_different_fields_are_kept_and_wake_beat(
    app: Celery, client: redis.Redis
) -> None:
    entry_of(app).save()
    with client.pubsub(ignore_subscribe_messages=True) as woken:
        woken.subscribe("redbeat::wake")
        woken.get_message(timeout=5)

        async def main() -> None:
            await asyncio.gather(
                *(entry_of(app).aupdate(args=[number]) for number in range(10)),
                asyncio.to_thread(lambda: entry_of(app).update(jitter=5)),
                entry_of(app).aupdate(kwargs={"a": 1}),
                entry_of(app).apause("for now"),
            )

        asyncio.run(main())
        assert eventually(lambda: woken.get_message(timeout=1))
    found = Entry.get("report", app)
    assert (found.jitter, found.kwargs, found.pause_note, found.enabled) == (5, {"a": 1}, "for now", False)
    assert found.args[0] in range(10)


def test_without_an_app_it_is_the_one_of_the_event_loop(app: Celery, client: redis.Redis) -> None:
    async def main() -> None:
        await Entry("report", "tasks.report", 60).asave()
        assert (await Entry.aget("report")).app is app
        assert (await Entry.afrom_key("redbeat:report")).app is app
        assert [entry.app for entry in await Entry.alist()] == [app]
        assert await Entry.acount() == 1
        assert (await Entry.apause_many(["report"])).changed == ("report",)
        assert (await Entry.aresume_many(["report"])).changed == ("report",)
        assert await Entry.adelete_many(["report"]) == 1
        assert await Entry.aclear() == 0

    app.set_current()
    asyncio.run(main())


async def turns_until(task: asyncio.Task[Any]) -> int:
    """Return how many turns another task has had until this one has ended."""
    turns = 0
    while not task.done():
        turns += 1
        await asyncio.sleep(0.001)
    return turns


def test_outage_is_waited_out_while_other_tasks_go_on(make_app: MakeApp, server: Server) -> None:
    proxy = Proxy((server.host, server.port))
    app = make_app(redbeat_redis_url=proxy.url(server.url(1)), redbeat_redis_options={"retry_period": 60})
    try:

        async def main() -> int:
            await entry_of(app).asave()
            proxy.refuse()
            proxy.drop()
            tasks = [asyncio.create_task(entry_of(app, f"e{number}").asave()) for number in range(20)]
            await asyncio.sleep(0.05)
            assert not any(task.done() for task in tasks)
            proxy.accept()
            turns = await turns_until(asyncio.ensure_future(asyncio.gather(*tasks)))
            assert await Entry.acount(app) == 21
            return turns

        assert asyncio.run(main()) > 5
    finally:
        proxy.close()


def test_forked_process_has_its_own_client(app: Celery, client: redis.Redis) -> None:
    async def save(writer: str, count: int) -> None:
        await asyncio.gather(*(entry_of(app, f"{writer}-{number}").asave() for number in range(count)))

    def act_in_child() -> None:
        asyncio.run(save("child", 50))
        gc.collect()

    async def main() -> int:
        await save("before", 20)
        child = asyncio.to_thread(run_child, act_in_child, lambda: None)
        ended, _ = await asyncio.gather(child, save("meanwhile", 20))
        await save("after", 20)
        return ended

    assert asyncio.run(main()) == 0
    assert client.zcard(SCHEDULE) == 110
