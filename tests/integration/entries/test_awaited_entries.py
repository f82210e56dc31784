"""Entries that are awaited, on a real server: beside programs that block, cancelled, in many event loops."""

from __future__ import annotations

import asyncio
import gc
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat import aio
from redbeat.connection.async_client import MAX_COMMANDS
from redbeat.errors import EntryChanged, EntryCorrupt, EntryTooExpensive, StoreRefused, StoreUnavailable
from tests.conftest import MakeApp
from tests.faults.children import run_child
from tests.faults.rounds import IS_LONG
from tests.support.bad_entries import BAD_DEFINITIONS
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from tests.support.schedule import SCHEDULE, write_raw
from tests.support.servers import Server
from tests.support.spinning import know_spinning, spinning

#: how often each writer changes each entry
CHANGES = 300 if IS_LONG else 25


def entry_of(app: Celery, name: str = "report", **fields: Any) -> Entry:
    return Entry(name, "tasks.report", 60, app=app, **fields)


def count_up(entry: Entry, writer: str) -> Entry:
    """Count one more change of this writer, in the entry itself, and all changes together."""
    for counter in (writer, "all"):
        entry.kwargs[counter] = entry.kwargs.get(counter, 0) + 1
    return entry


def change(app: Celery, name: str, writer: str) -> None:
    """Change what is stored, as often as it takes until nobody else has come between."""
    while True:
        try:
            count_up(Entry.get(name, app), writer).save(if_unchanged=True)
        except EntryChanged:
            continue
        return


async def achange(app: Celery, name: str, writer: str) -> None:
    while True:
        try:
            await count_up(await Entry.aget(name, app), writer).asave(if_unchanged=True)
        except EntryChanged:
            continue
        return


def test_tasks_and_threads_that_change_the_same_entries_lose_no_change_of_each_other(app: Celery) -> None:
    names = ("a", "b", "c")
    tasks, threads = ([f"{kind}-{number}" for number in range(4)] for kind in ("task", "thread"))
    rates: dict[str, float] = {}
    for name in names:
        entry_of(app, name).save()

    async def change_all(writer: str) -> None:
        began_at = time.monotonic()
        for _ in range(CHANGES):
            for name in names:
                await achange(app, name, writer)
        rates[writer] = CHANGES * len(names) / (time.monotonic() - began_at)

    def change_all_blocking(writer: str) -> None:
        began_at = time.monotonic()
        for _ in range(CHANGES):
            for name in names:
                change(app, name, writer)
        rates[writer] = CHANGES * len(names) / (time.monotonic() - began_at)

    async def main() -> None:
        with ThreadPoolExecutor(len(threads)) as pool:
            blocking = [
                asyncio.get_running_loop().run_in_executor(pool, change_all_blocking, writer)
                for writer in threads
            ]
            await asyncio.gather(*map(change_all, tasks), *blocking)

    asyncio.run(main())
    for writers in (tasks, threads):
        print(f"{writers[0][:-2]}s, changes/s each: {', '.join(f'{rates[one]:.0f}' for one in writers)}")
    expected = {**dict.fromkeys([*tasks, *threads], CHANGES), "all": CHANGES * len(tasks + threads)}
    assert {name: Entry.get(name, app).kwargs for name in names} == dict.fromkeys(names, expected)


def test_updates_of_different_fields_keep_each_other_and_the_wake_up_is_sent(
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


def test_a_thousand_at_once_take_no_more_connections_than_are_of_use(
    make_app: MakeApp, client: redis.Redis
) -> None:
    app = make_app(redbeat_redis_options={"client_name": "the-thousand"})

    def connections() -> int:
        return [one["name"] for one in client.client_list()].count("the-thousand")

    async def main() -> int:
        await asyncio.gather(*(entry_of(app, f"e{number}").asave() for number in range(1000)))
        return connections()

    assert 1 < asyncio.run(main()) <= MAX_COMMANDS
    assert client.zcard(SCHEDULE) == 1000
    eventually(lambda: connections() == 0, message="the loop has ended, its connections not")


def test_what_awaiting_costs_beside_blocking(app: Celery) -> None:
    count = 300

    def seconds_of(act: Callable[[], object]) -> float:
        began_at = time.process_time()
        act()
        return time.process_time() - began_at

    async def save_all(name: str, at_once: int) -> None:
        for first in range(0, count, at_once):
            await asyncio.gather(*(entry_of(app, f"{name}{first + one}").asave() for one in range(at_once)))

    entry_of(app).save()
    blocking = seconds_of(lambda: [entry_of(app, f"s{number}").save() for number in range(count)])
    one_by_one = seconds_of(lambda: asyncio.run(save_all("a", 1), debug=False))
    at_once = seconds_of(lambda: asyncio.run(save_all("b", 50), debug=False))
    print(
        f"processor time of {count} saves: save {blocking:.3f} s, asave {one_by_one:.3f} s, 50 at once "
        f"{at_once:.3f} s"
    )
    assert at_once < 10 * blocking, "the ratio is about 1.2 to 2; this is no benchmark"


def test_what_others_have_written_is_read_as_by_code_that_blocks(app: Celery, client: redis.Redis) -> None:
    for name, definition in BAD_DEFINITIONS.items():
        write_raw(client, name, definition)
    write_raw(client, "garbage", b"\xff\xfe{")
    write_raw(client, "bare", score=None)
    client.zadd(SCHEDULE, {b"redbeat:\xff": 2, "bare": 3, "redbeat::lock": 4})

    def shown(entries: Iterable[Entry]) -> list[tuple[str, str | None, str]]:
        return [(entry.name or "", entry.state, entry.problem) for entry in entries]

    async def main() -> list[Entry]:
        return await Entry.alist(app)

    assert shown(asyncio.run(main())) == shown(Entry.list(app))
    with pytest.raises(EntryCorrupt, match="garbage"):
        asyncio.run(Entry.aget("garbage", app))


def test_a_request_that_is_too_large_for_a_proxy_is_named_and_not_sent_for_ever(
    make_app: MakeApp, server: Server
) -> None:
    proxy = Proxy((server.host, server.port))
    app = make_app(redbeat_redis_url=proxy.url(server.url(1)), redbeat_redis_options={"retry_period": -1})
    try:

        async def main() -> None:
            await entry_of(app).asave()
            proxy.cut_beyond(20_000)
            with pytest.raises(StoreRefused, match="may be larger"):
                await entry_of(app, "large", args=["x" * 50_000]).asave()
            assert await Entry.acount(app) == 1

        asyncio.run(main())
    finally:
        proxy.close()


# -- the event loop goes on


async def turns_until(task: asyncio.Task[Any]) -> int:
    """Return how many turns another task has had until this one has ended."""
    turns = 0
    while not task.done():
        turns += 1
        await asyncio.sleep(0.001)
    return turns


def test_a_schedule_that_takes_too_long_does_not_hold_up_the_loop(app: Celery) -> None:
    know_spinning()
    schedule = spinning()
    schedule.app = app

    async def main() -> int:
        task = asyncio.create_task(Entry("endless", "tasks.report", schedule, app=app).asave())
        turns = await turns_until(task)
        with pytest.raises(EntryTooExpensive):
            await task
        return turns

    assert asyncio.run(main()) > 5


def test_a_server_that_is_silent_does_not_hold_up_the_loop(app: Celery, server: Server) -> None:
    proxy = Proxy((server.host, server.port))
    app.conf.redbeat_redis_url = proxy.url(server.url(1))
    try:

        async def main() -> int:
            await entry_of(app).asave()
            proxy.withhold_answers()
            task = asyncio.create_task(Entry.aget("report", app))
            turns = 0
            while turns < 20:
                await asyncio.sleep(0.001)
                turns += 1
            assert not task.done()
            proxy.thaw()
            assert (await task).name == "report"
            return turns

        assert asyncio.run(main()) == 20
    finally:
        proxy.close()


def test_an_outage_is_waited_out_while_other_tasks_go_on(make_app: MakeApp, server: Server) -> None:
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


def test_without_a_period_an_outage_is_told_at_once_and_the_next_call_connects_anew(
    make_app: MakeApp, server: Server
) -> None:
    proxy = Proxy((server.host, server.port))
    app = make_app(redbeat_redis_url=proxy.url(server.url(1)))
    try:

        async def main() -> None:
            await entry_of(app).asave()
            proxy.refuse()
            proxy.drop()
            with pytest.raises(StoreUnavailable):
                await Entry.aget("report", app)
            proxy.accept()
            assert (await Entry.aget("report", app)).name == "report"

        asyncio.run(main())
    finally:
        proxy.close()


# -- cancelled


def test_a_task_that_is_cancelled_leaves_no_reply_to_the_next_one(
    make_app: MakeApp, server: Server, chance: random.Random
) -> None:
    """Two connections, forty readers, and half of them are cancelled at any moment."""
    proxy = Proxy((server.host, server.port))
    proxy.delay_seconds = 0.001
    options = {"max_connections": 2}
    app = make_app(redbeat_redis_url=proxy.url(server.url(1)), redbeat_redis_options=options)
    names = [f"e{number}" for number in range(40)]
    Entry.save_many(entry_of(app, name, args=[name]) for name in names)

    async def read(name: str) -> None:
        entry = await Entry.aget(name, app)
        assert (entry.name, entry.args) == (name, [name])

    async def main() -> tuple[int, int]:
        ended = cancelled = 0
        for _ in range(8):
            tasks = [asyncio.create_task(read(name)) for name in names]
            for task in chance.sample(tasks, len(tasks) // 2):
                asyncio.get_running_loop().call_later(chance.uniform(0, 0.08), task.cancel)
            for task in tasks:
                try:
                    await task
                    ended += 1
                except asyncio.CancelledError:
                    cancelled += 1
        return ended, cancelled

    try:
        ended, cancelled = asyncio.run(main())
    finally:
        proxy.close()
    assert ended + cancelled == 320
    assert min(ended, cancelled) > 20, (ended, cancelled)


def test_a_save_that_is_given_up_is_whole_or_was_not_made(app: Celery, server: Server) -> None:
    proxy = Proxy((server.host, server.port))
    app.conf.redbeat_redis_url = proxy.url(server.url(1))

    async def main() -> Entry:
        await entry_of(app).asave()
        proxy.withhold_answers()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(entry_of(app).aupdate(args=[2], kwargs={"a": 2}), 0.05)
        proxy.thaw()
        return await Entry.aget("report", app)

    try:
        found = asyncio.run(main())
    finally:
        proxy.close()
    assert (list(found.args or ()), found.kwargs) in [([], {}), ([2], {"a": 2})]


# -- loops, processes and threads


def test_event_loops_one_after_the_other_leave_nothing_open(server: Server, client: redis.Redis) -> None:
    script = f"""
import asyncio, gc
from celery import Celery
from redbeat import RedBeatSchedulerEntry as Entry, aio
app = Celery("shop", broker="memory://", set_as_current=False)
app.conf.redbeat_redis_url = {server.url(1)!r}

async def main(name):
    asyncio.get_running_loop().slow_callback_duration = 60  # how long a step takes is the machine's matter
    await Entry(name, "tasks.report", 60, app=app).asave()
    async for entry in Entry.alist(app):
        if name == "b":
            await aio.aclose(app)
            return await Entry.acount(app)
    return len(await Entry.alist(app))

print([asyncio.run(main(name)) for name in "abc"])
gc.collect()
assert not app.redbeat_redis_async_made._kept
"""
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", script]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == ("[1, 2, 3]\n", "", 0)


def test_a_call_that_is_under_way_is_let_finish_before_its_client_is_closed(
    make_app: MakeApp, server: Server, client: redis.Redis
) -> None:
    proxy = Proxy((server.host, server.port))
    options = {"client_name": "to-be-closed"}
    app = make_app(redbeat_redis_url=proxy.url(server.url(1)), redbeat_redis_options=options)

    async def main() -> None:
        await entry_of(app, "before").asave()
        proxy.withhold_answers()
        under_way = asyncio.create_task(entry_of(app, "meanwhile").asave())
        await asyncio.sleep(0.05)
        await aio.aclose(app)
        proxy.thaw()
        await under_way
        eventually(lambda: "to-be-closed" not in [one["name"] for one in client.client_list()])
        assert await Entry.acount(app) == 2

    try:
        asyncio.run(main())
    finally:
        proxy.close()


def test_threads_with_event_loops_of_their_own_share_an_app(app: Celery, client: redis.Redis) -> None:
    def save(thread: int) -> None:
        async def main() -> None:
            await asyncio.gather(*(entry_of(app, f"{thread}-{one}").asave() for one in range(20)))

        for _ in range(3):
            asyncio.run(main())

    threads = [threading.Thread(target=save, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert client.zcard(SCHEDULE) == 80


def test_a_forked_process_has_a_client_of_its_own_and_takes_nothing_from_its_parent(
    app: Celery, client: redis.Redis
) -> None:
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


def test_code_that_blocks_uses_its_own_client_in_the_same_program(app: Celery, client: redis.Redis) -> None:
    async def main() -> tuple[Any, Any]:
        await entry_of(app, "awaited").asave()
        await asyncio.to_thread(entry_of(app, "blocking").save)
        return app.redbeat_redis, aio.get_redis(app)

    blocking, awaited = asyncio.run(main())
    assert isinstance(blocking, redis.Redis)
    assert isinstance(awaited, redis.asyncio.Redis)
    assert client.zcard(SCHEDULE) == 2
