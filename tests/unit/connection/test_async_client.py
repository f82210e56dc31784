"""One client of asyncio's for each app and event loop: injected, or made by the settings."""

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
from redbeat.connection.async_client import MAX_COMMANDS, AsyncRetryUnlessRefused
from redbeat.connection.client import CLIENT_DEFAULTS
from redbeat.errors import ConfigurationError, StoreRefused, StoreUnavailable
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


def test_an_event_loop_has_one_client_and_another_loop_has_another() -> None:
    app = memory_app(redbeat_redis_url="redis://127.0.0.1:1/0")

    async def twice() -> tuple[Any, Any]:
        return aio.get_redis(app), aio.get_redis(app)

    first, same = asyncio.run(twice())
    other, _ = asyncio.run(twice())
    assert first is same
    assert first is not other
    assert isinstance(first, redis.asyncio.Redis)


def test_a_client_is_made_by_the_settings_as_that_of_beat_is() -> None:
    options = {"client_name": "shop", "socket_timeout": 3, "ssl_cert_reqs": ssl.CERT_NONE}
    app = memory_app(redbeat_redis_url="valkeys://u:p%40ss@h:7/2", redbeat_redis_options=options)

    async def made() -> Any:
        return aio.get_redis(app).connection_pool

    pool = asyncio.run(made())
    assert issubclass(pool.connection_class, redis.asyncio.SSLConnection)
    found = pool.connection_kwargs
    assert isinstance(found.pop("retry"), AsyncRetryUnlessRefused)
    assert {name: found[name] for name in CLIENT_DEFAULTS} == {**CLIENT_DEFAULTS, "socket_timeout": 3}
    assert [found[name] for name in ("username", "password", "host", "port", "db", "client_name")] == [
        "u", "p@ss", "h", 7, 2, "shop",
    ]  # fmt: skip
    assert found["ssl_cert_reqs"] == "none"


def test_the_retry_of_the_options_becomes_one_of_asyncios() -> None:
    options = {"retry": Retry(ConstantBackoff(0), 7)}
    app = memory_app(redbeat_redis_url="redis://127.0.0.1:1/0", redbeat_redis_options=options)

    async def made() -> Any:
        return aio.get_redis(app).connection_pool.connection_kwargs["retry"]

    retry = asyncio.run(made())
    assert isinstance(retry, redis.asyncio.retry.Retry)
    assert retry._retries == 7  # noqa: SLF001 - it has no other name


def test_other_settings_make_another_client_also_in_the_same_event_loop() -> None:
    app = memory_app(redbeat_redis_url="redis://127.0.0.1:1/0")

    async def ports() -> list[int]:
        found = [aio.get_redis(app).connection_pool.connection_kwargs["port"]]
        del app.redbeat_conf  # as in tests of the user's own, which give an app another server
        app.conf.redbeat_redis_url = "redis://127.0.0.1:2/0"
        return [*found, aio.get_redis(app).connection_pool.connection_kwargs["port"]]

    assert asyncio.run(ports()) == [1, 2]


def test_an_injected_client_is_used_and_left_open() -> None:
    app = memory_app()

    async def main() -> str | None:
        app.redbeat_redis_async = fakeredis.FakeAsyncRedis()
        await entry_of(app).asave()
        assert aio.get_redis(app) is app.redbeat_redis_async
        await aio.aclose(app)
        assert await app.redbeat_redis_async.exists("redbeat:report")
        return (await Entry.aget("report", app)).task

    assert asyncio.run(main()) == "tasks.report"


def test_a_function_is_called_once_in_each_event_loop(async_app: Celery) -> None:
    made: list[Any] = []
    make = async_app.redbeat_redis_async
    async_app.redbeat_redis_async = lambda: made.append(make()) or made[-1]

    async def save(name: str) -> None:
        await asyncio.gather(*(entry_of(async_app, f"{name}-{number}").asave() for number in range(3)))

    asyncio.run(save("a"))
    asyncio.run(save("b"))
    assert len(made) == 2
    assert asyncio.run(Entry.acount(async_app)) == 6


def test_another_client_that_is_injected_later_takes_its_place(async_app: Celery) -> None:
    async def main() -> list[int]:
        await entry_of(async_app).asave()
        before = await Entry.acount(async_app)
        async_app.redbeat_redis_async = fakeredis.FakeAsyncRedis(server=fakeredis.FakeServer())
        return [before, await Entry.acount(async_app)]

    assert asyncio.run(main()) == [1, 0]


def test_a_fake_that_was_injected_for_beat_is_enough(fake_app: Celery) -> None:
    async def main() -> list[str]:
        await entry_of(fake_app).asave()
        return [entry.name async for entry in Entry.alist(fake_app)]

    assert asyncio.run(main()) == ["report"]
    assert Entry.get("report", fake_app).task == "tasks.report"


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
def test_a_real_client_that_was_injected_for_beat_has_a_copy(client: redis.Redis) -> None:
    app = memory_app(redbeat_redis_url="redis://127.0.0.1:1/0")
    app.redbeat_redis = client

    async def copied() -> Any:
        assert aio.get_redis(app) is aio.get_redis(app)
        return aio.get_redis(app).connection_pool

    pool, given = asyncio.run(copied()), client.connection_pool.connection_kwargs
    assert pool.connection_class.__name__ == client.connection_pool.connection_class.__name__
    names = [
        "db",
        "username",
        "password",
        "host",
        "port",
        "path",
        "client_name",
        "ssl_cert_reqs",
        "socket_timeout",
    ]
    shown = {name: given[name] for name in (*names, "decode_responses") if given.get(name) is not None}
    assert shown.items() <= pool.connection_kwargs.items()
    pool.make_connection()


def reconnecting(connection: Any) -> None:
    connection.on_connect()


@pytest.mark.parametrize(
    "client",
    [
        type("Own", (redis.Redis,), {})(port=1),
        redis.Redis(port=1, redis_connect_func=reconnecting),
        redis.sentinel.Sentinel([("h", 1)]).master_for("master"),
    ],
    ids=["subclass", "redis_connect_func", "sentinel"],
)
def test_one_that_has_no_copy_is_refused_as_it_would_block(client: Any) -> None:
    app = memory_app(redbeat_redis_url="redis://127.0.0.1:1/0")
    app.redbeat_redis = client
    with pytest.raises(
        ConfigurationError, match=r"set app\.redbeat_redis_async to a client of redis\.asyncio"
    ):
        asyncio.run(entry_of(app).asave())


def test_the_client_of_code_that_blocks_is_no_injected_one() -> None:
    app = memory_app(redbeat_redis_url="redis://127.0.0.1:1/0")
    with pytest.raises(StoreUnavailable):
        entry_of(app).save()
    with pytest.raises(StoreUnavailable):
        asyncio.run(entry_of(app).asave())


def test_apps_have_clients_of_their_own_also_within_one_call(async_app: Celery) -> None:
    other = memory_app()
    other.redbeat_redis_async = fakeredis.FakeAsyncRedis

    def copy() -> int:
        for entry in Entry.list(async_app):
            Entry(entry.name, entry.task, entry.schedule, app=other).save()
        return Entry.count(other)

    async def main() -> int:
        await entry_of(async_app).asave()
        return await aio.run(copy)

    assert asyncio.run(main()) == 1


def test_no_more_commands_are_on_their_way_than_a_client_has_connections(async_app: Celery) -> None:
    most, now = 0, 0
    make = async_app.redbeat_redis_async

    class Counting:
        def __init__(self) -> None:
            self._client = make()

        def __getattr__(self, name: str) -> Any:
            return getattr(self._client, name)

        async def evalsha(self, *words: Any) -> Any:
            nonlocal most, now
            now += 1
            most = max(most, now)
            try:
                await asyncio.sleep(0)
                return await self._client.evalsha(*words)
            finally:
                now -= 1

    async_app.redbeat_redis_async = Counting

    async def main() -> None:
        await asyncio.gather(*(entry_of(async_app, f"e{number}").asave() for number in range(100)))

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
def test_what_cannot_be_reached_is_told_in_the_words_that_beat_uses(
    settings: dict[str, Any], error: type[Exception], words: str
) -> None:
    app = memory_app(**{"redbeat_redis_url": "redis://127.0.0.1:1/0", **settings})
    with pytest.raises(error, match=words) as told:
        asyncio.run(Entry.aget("report", app))
    assert "s3cret" not in str(told.value)


def test_an_option_with_a_wrong_value_is_a_wrong_setting_and_not_waited_for() -> None:
    options = {"socket_connect_timeout": "soon", "retry_period": -1}
    app = memory_app(redbeat_redis_url="redis://127.0.0.1:1/0", redbeat_redis_options=options)
    with pytest.raises(ConfigurationError, match="socket_connect_timeout must be a number"):
        asyncio.run(Entry.aget("report", app))


def test_a_coroutine_is_awaited_and_not_run() -> None:
    with pytest.raises(TypeError, match="await asave itself"):
        asyncio.run(aio.run(entry_of(memory_app()).asave))


def test_what_would_read_after_the_call_is_refused(async_app: Celery) -> None:
    async def main() -> list[str | None]:
        await entry_of(async_app).asave()
        with pytest.raises(TypeError, match=r"await aio\.run\(list, \.\.\.\)"):
            await aio.run(Entry.list, async_app)
        return [entry.name for entry in await aio.run(list, Entry.list(async_app))]

    assert asyncio.run(main()) == ["report"]


def test_where_no_loop_of_asyncios_runs_that_is_said() -> None:
    coroutine = Entry.aget("report", memory_app())
    with pytest.raises(RuntimeError, match="an event loop of asyncio, and none runs here"):
        coroutine.send(None)


def test_a_refusal_of_the_server_is_one_of_the_store(async_app: Celery) -> None:
    class Refusing(fakeredis.FakeAsyncRedis):
        async def evalsha(self, *words: Any) -> Any:
            raise redis.exceptions.NoPermissionError("no permissions")

    async_app.redbeat_redis_async = Refusing
    with pytest.raises(StoreRefused, match="no permissions"):
        asyncio.run(entry_of(async_app).asave())
