"""asyncio: one client for each app and event loop; blocking code waits without blocking the loop."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from typing import Any

import fakeredis
import pytest
import redis
import redis.asyncio
import redis.sentinel
from celery import Celery
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat import aio
from redbeat.connection.async_client import MAX_COMMANDS
from redbeat.connection.client import CLIENT_DEFAULTS
from redbeat.connection.waiting import drive, is_driven, pause
from redbeat.errors import ConfigurationError, StoreUnavailable
from tests.support.ticks import memory_app


@pytest.fixture
def async_app() -> Iterator[Celery]:
    """Its `redbeat_redis_async` is injected: for each event loop a fake, all with the same data."""
    app, server = memory_app(), fakeredis.FakeServer()
    app.redbeat_redis_async = lambda: fakeredis.FakeAsyncRedis(server=server, decode_responses=True)
    yield app
    assert not hasattr(app, "redbeat_redis"), "a client that blocks was made"


def entry_of(app: Celery, name: str = "report", **fields: Any) -> Entry:
    return Entry(name, "tasks.report", 60, app=app, **fields)


def test_event_loop_has_one_client_of_its_own_until_settings_change() -> None:
    app = memory_app(redbeat_redis_url="redis://127.0.0.1:1/0")

    async def twice() -> tuple[Any, Any]:
        return aio.get_redis(app), aio.get_redis(app)

    first, same = asyncio.run(twice())
    other, _ = asyncio.run(twice())
    assert first is same
    assert first is not other

    async def ports() -> list[int]:
        found = [aio.get_redis(app).connection_pool.connection_kwargs["port"]]
        del app.redbeat_conf  # as in tests of the user's own, which give an app another server
        app.conf.redbeat_redis_url = "redis://127.0.0.1:2/0"
        return [*found, aio.get_redis(app).connection_pool.connection_kwargs["port"]]

    assert asyncio.run(ports()) == [1, 2]


def test_apps_on_one_event_loop_have_clients_of_their_own() -> None:
    apps = {"shop": memory_app(), "bank": memory_app()}
    for app in apps.values():
        app.redbeat_redis_async = fakeredis.FakeAsyncRedis(decode_responses=True)

    async def use() -> None:
        await asyncio.gather(*(entry_of(app, name).asave() for name, app in apps.items()))
        for name, app in apps.items():
            assert [entry.name for entry in await Entry.alist(app)] == [name]
            assert aio.get_redis(app) is app.redbeat_redis_async

    asyncio.run(use())


def test_async_client_has_the_settings_of_the_blocking_one() -> None:
    options = {"client_name": "shop", "socket_timeout": 3, "ssl_cert_reqs": ssl.CERT_NONE}
    app = memory_app(redbeat_redis_url="valkeys://u:p%40ss@h:7/2", redbeat_redis_options=options)

    async def made() -> Any:
        return aio.get_redis(app).connection_pool

    pool = asyncio.run(made())
    assert issubclass(pool.connection_class, redis.asyncio.SSLConnection)
    found = pool.connection_kwargs
    assert isinstance(found.pop("retry"), redis.asyncio.retry.Retry)
    assert {name: found[name] for name in CLIENT_DEFAULTS} == {**CLIENT_DEFAULTS, "socket_timeout": 3}
    assert [found[name] for name in ("username", "password", "host", "port", "db", "client_name")] == [
        "u", "p@ss", "h", 7, 2, "shop",
    ]  # fmt: skip
    assert found["ssl_cert_reqs"] == "none"


def test_retry_option_becomes_an_async_one() -> None:
    options = {"retry": Retry(ConstantBackoff(0), 7)}
    app = memory_app(redbeat_redis_url="redis://127.0.0.1:1/0", redbeat_redis_options=options)

    async def made() -> Any:
        return aio.get_redis(app).connection_pool.connection_kwargs["retry"]

    retry = asyncio.run(made())
    assert isinstance(retry, redis.asyncio.retry.Retry)
    assert retry._retries == 7  # noqa: SLF001 - it has no other name


def test_injected_function_is_called_once_in_each_event_loop(async_app: Celery) -> None:
    made: list[Any] = []
    make = async_app.redbeat_redis_async
    async_app.redbeat_redis_async = lambda: made.append(make()) or made[-1]

    async def save(name: str) -> None:
        await asyncio.gather(*(entry_of(async_app, f"{name}-{number}").asave() for number in range(3)))

    asyncio.run(save("a"))
    asyncio.run(save("b"))
    assert len(made) == 2
    assert asyncio.run(Entry.acount(async_app)) == 6


@pytest.mark.parametrize(
    "client",
    [
        redis.Redis.from_url(
            "rediss://u:p@h:7/3", decode_responses=True, ssl_cert_reqs="none", client_name="shop"
        ),
        redis.Redis.from_url("unix://u:p@/h.sock?db=3", decode_responses=True, client_name="shop"),
        redis.Redis(host="h", port=7, db=3, username="u", password="p", socket_timeout=9, client_name="shop"),
    ],
    ids=["TLS", "socket", "TCP"],
)
def test_injected_blocking_client_is_copied(client: redis.Redis) -> None:
    app = memory_app(redbeat_redis_url="redis://127.0.0.1:1/0")
    app.redbeat_redis = client

    async def copied() -> Any:
        assert aio.get_redis(app) is aio.get_redis(app)
        return aio.get_redis(app).connection_pool

    pool, given = asyncio.run(copied()), client.connection_pool.connection_kwargs
    assert pool.connection_class.__name__ == client.connection_pool.connection_class.__name__
    names = "db username password host port path client_name ssl_cert_reqs socket_timeout decode_responses"
    shown = {name: given[name] for name in names.split() if given.get(name) is not None}
    assert shown.items() <= pool.connection_kwargs.items()
    pool.make_connection()


@pytest.mark.parametrize(
    "client",
    [
        type("Own", (redis.Redis,), {})(port=1),
        redis.Redis(port=1, redis_connect_func=lambda connection: connection.on_connect()),
        redis.sentinel.Sentinel([("h", 1)]).master_for("master"),
    ],
    ids=["subclass", "redis_connect_func", "sentinel"],
)
def test_injected_client_that_cannot_be_copied_is_refused(client: Any) -> None:
    app = memory_app(redbeat_redis_url="redis://127.0.0.1:1/0")
    app.redbeat_redis = client
    with pytest.raises(
        ConfigurationError, match=r"set app\.redbeat_redis_async to a client of redis\.asyncio"
    ):
        asyncio.run(entry_of(app).asave())


def test_concurrent_commands_are_limited(async_app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    most = now = 0
    evalsha = fakeredis.FakeAsyncRedis.evalsha

    async def count(*words: Any) -> Any:
        nonlocal most, now
        now += 1
        most = max(most, now)
        await asyncio.sleep(0)
        answer = await evalsha(*words)
        now -= 1
        return answer

    async def main() -> None:
        await asyncio.gather(*(entry_of(async_app, f"e{number}").asave() for number in range(100)))

    asyncio.run(entry_of(async_app).asave())  # the scripts are loaded
    monkeypatch.setattr(fakeredis.FakeAsyncRedis, "evalsha", count)
    asyncio.run(main())
    assert most == MAX_COMMANDS


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"redbeat_redis_options": {"sokcet_timeout": 1}}, ConfigurationError, "sokcet_timeout"),
        (
            {"redbeat_redis_url": "redis://:s3cret@127.0.0.1:1/0"},
            StoreUnavailable,
            r"Redis at redis://:\*\*@127\.0\.0\.1:1/0 can't be used",
        ),
        ({"redbeat_redis_url": "http://x"}, ConfigurationError, "redbeat_redis_url"),
    ],
)
def test_async_errors_are_those_of_blocking_calls(
    settings: dict[str, Any], error: type[Exception], words: str
) -> None:
    app = memory_app(**{"redbeat_redis_url": "redis://127.0.0.1:1/0", **settings})
    with pytest.raises(error, match=words) as told:
        asyncio.run(Entry.aget("report", app))
    assert "s3cret" not in str(told.value)


def test_lazy_result_of_aio_run_is_refused(async_app: Celery) -> None:
    async def main() -> list[str | None]:
        await entry_of(async_app).asave()
        with pytest.raises(TypeError, match=r"await aio\.run\(list, \.\.\.\)"):
            await aio.run(Entry.list, async_app)
        return [entry.name for entry in await aio.run(list, Entry.list(async_app))]

    assert asyncio.run(main()) == ["report"]


def test_async_call_without_an_event_loop_is_refused() -> None:
    coroutine = Entry.aget("report", memory_app())
    with pytest.raises(RuntimeError, match="an event loop of asyncio, and none runs here"):
        coroutine.send(None)


# -- code that waits


def test_other_tasks_run_during_a_pause() -> None:
    seen: list[str] = []

    def two_steps(name: str) -> None:
        seen.append(f"{name} 1")
        pause(0.01)
        seen.append(f"{name} 2")

    async def both() -> None:
        await asyncio.gather(drive(lambda: two_steps("a")), drive(lambda: two_steps("b")))

    asyncio.run(both())
    assert sorted(seen[:2]) == ["a 1", "b 1"]
    assert sorted(seen[2:]) == ["a 2", "b 2"]


def test_cancelled_task_cancels_its_code_and_clean_up_may_wait() -> None:
    steps: list[str] = []

    def work() -> None:
        try:
            pause(60)
        except asyncio.CancelledError:
            steps.append("cancelled")
            pause(0)
            steps.append("cleaned up")
            raise

    async def main() -> None:
        task = asyncio.create_task(drive(work))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert steps == ["cancelled", "cleaned up"]


def test_task_created_by_waiting_code_is_driven_by_itself() -> None:
    made: list[asyncio.Task[Any]] = []

    async def are_driven() -> list[bool]:
        return [is_driven(), await drive(is_driven)]

    def work() -> None:
        made.append(asyncio.get_running_loop().create_task(are_driven()))
        pause(0)

    async def main(is_eager: bool) -> list[bool]:
        if is_eager:
            asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]
        await drive(work)
        return await made.pop()  # type: ignore[no-any-return]

    for is_eager in {False, hasattr(asyncio, "eager_task_factory")}:
        assert asyncio.run(main(is_eager)) == [False, True]
