"""Every kind of server is reached from an event loop as by beat, and nothing stays open."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable
from datetime import datetime, timezone

import pytest
from celery import Celery
from redis.credentials import CredentialProvider

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat import aio
from redbeat.calendars import Calendar
from redbeat.errors import StoreRefused, StoreUnavailable
from tests.support.polling import eventually
from tests.support.servers import Server
from tests.support.ticks import memory_app
from tests.support.topologies import ClusterTopology, SentinelTopology

MakeApp = Callable[[pytest.FixtureRequest], Celery]


def plain(request: pytest.FixtureRequest) -> Celery:
    server: Server = request.getfixturevalue("valkey")
    return memory_app(redbeat_redis_url=server.url(3))


def with_undecoded_replies(request: pytest.FixtureRequest) -> Celery:
    server: Server = request.getfixturevalue("valkey")
    options = {"decode_responses": False, "health_check_interval": 1}
    return memory_app(redbeat_redis_url=server.url(3), redbeat_redis_options=options)


def with_tls(request: pytest.FixtureRequest) -> Celery:
    server: Server = request.getfixturevalue("tls")
    assert server.certificates
    use_ssl = {"ssl_cert_reqs": "CERT_REQUIRED", "ssl_ca_certs": str(server.certificates.ca)}
    url = server.url(1).replace("rediss:", "redis:")
    # sixteen at once read certificates and agree on keys: half a second of processor time, and seconds where
    # others want it, too
    options = {"socket_connect_timeout": 60}
    return memory_app(redbeat_redis_url=url, redbeat_redis_use_ssl=use_ssl, redbeat_redis_options=options)


def behind_sentinel(request: pytest.FixtureRequest) -> Celery:
    topology: SentinelTopology = request.getfixturevalue("sentinel")
    return memory_app(
        redbeat_redis_url=topology.url(2), redbeat_redis_options={"service_name": topology.service_name}
    )


def in_a_cluster(request: pytest.FixtureRequest) -> Celery:
    cluster: ClusterTopology = request.getfixturevalue("cluster")
    host, port = cluster.startup_nodes[0]
    return memory_app(redbeat_redis_url=f"redis-cluster://{host}:{port}")


def in_a_cluster_by_its_nodes(request: pytest.FixtureRequest) -> Celery:
    cluster: ClusterTopology = request.getfixturevalue("cluster")
    nodes = [{"host": host, "port": port} for host, port in cluster.startup_nodes]
    options = {"startup_nodes": nodes, "retry_period": 5}
    return memory_app(redbeat_redis_url="redis-cluster://", redbeat_redis_options=options)


def as_an_injected_client_does(request: pytest.FixtureRequest) -> Celery:
    server: Server = request.getfixturevalue("valkey")
    app = memory_app(redbeat_redis_url="redis://127.0.0.1:1/0")
    app.redbeat_redis = server.client(db=3, decode_responses=False)
    return app


WAYS = [
    plain,
    as_an_injected_client_does,
    with_undecoded_replies,
    with_tls,
    behind_sentinel,
    in_a_cluster,
    in_a_cluster_by_its_nodes,
]


async def use(app: Celery) -> None:
    """Everything that is asked in another way: scripts, pipelines, scans, calendars, many at once."""
    await aio.run(Calendar("holidays", ["2033-01-01"], app=app).save)
    await Entry("report", "tasks.report", "30 7 * * *", app=app, exclude="holidays").asave()
    await asyncio.gather(*(Entry(f"e{one}", "tasks.report", 60, app=app).asave() for one in range(40)))
    assert len(await Entry.alist(app)) == await Entry.acount(app) == 41
    found = await Entry.aget("report", app)
    await found.apause("for now", datetime(2033, 1, 1, tzinfo=timezone.utc), "ada")
    assert [entry.name async for entry in Entry.alist(app, state="paused")] == ["report"]
    await found.aresume()
    await found.adelete()
    assert [*await found.ahistory(), *await found.aruns()] == []
    assert await aio.run(lambda: found.rank) is None
    assert await aio.run(Calendar.names, app) == ["holidays"]
    assert await Entry.aclear(app) == 40


@pytest.mark.parametrize("make_app", WAYS)
def test_each_kind_of_server_is_reached_and_nothing_stays_open(
    make_app: MakeApp, request: pytest.FixtureRequest
) -> None:
    app = make_app(request)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(use(app))
        asyncio.run(use(app))
    assert make_app is as_an_injected_client_does or not hasattr(app, "redbeat_redis"), "it has blocked"


def test_a_socket_and_a_provider_of_passwords_are_used() -> None:
    asked: list[str] = []

    class Provider(CredentialProvider):
        def get_credentials(self) -> tuple[str]:
            asked.append("blocking")
            return ("s3cret",)

        async def get_credentials_async(self) -> tuple[str]:
            asked.append("awaited")
            return ("s3cret",)

    with Server("valkey", unix_socket=True, requirepass="s3cret") as server:
        options = {"credential_provider": Provider()}
        app = memory_app(redbeat_redis_url=f"unix://{server.socket_path}", redbeat_redis_options=options)
        asyncio.run(use(app))
        assert len(set(asked)) == 1
        wrong = memory_app(redbeat_redis_url=f"unix://:wrong@{server.socket_path}")
        with pytest.raises(StoreRefused, match="refused the connection"):
            asyncio.run(Entry.aget("report", wrong))


def test_a_certificate_that_cannot_be_verified_is_refused(tls: Server) -> None:
    app = memory_app(redbeat_redis_url=tls.url(1))
    with pytest.raises(StoreUnavailable, match=r"CERTIFICATE_VERIFY_FAILED|Error 1 connecting"):
        asyncio.run(Entry.aget("report", app))


def test_a_server_that_is_no_node_is_told_so(valkey: Server) -> None:
    app = memory_app(redbeat_redis_url=f"redis-cluster://{valkey.host}:{valkey.port}")
    with pytest.raises(StoreRefused, match="it is no node of a cluster"):
        asyncio.run(Entry.aget("report", app))


def test_after_a_failover_the_new_master_is_found(sentinel: SentinelTopology) -> None:
    options = {"service_name": sentinel.service_name, "retry_period": 30}
    app = memory_app(redbeat_redis_url=sentinel.url(2), redbeat_redis_options=options)

    async def main() -> None:
        await Entry("before", "tasks.report", 60, app=app).asave()
        with sentinel.master().client() as master:
            eventually(lambda: int(master.wait(1, 1000)) == 1)
        waiting = asyncio.to_thread(sentinel.fail_over)
        task = asyncio.create_task(waiting)
        while not task.done():
            await asyncio.sleep(0.05)
        await Entry("after", "tasks.report", 60, app=app).asave()
        assert {entry.name for entry in await Entry.alist(app)} == {"before", "after"}

    asyncio.run(main())
