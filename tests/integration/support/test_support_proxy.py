"""The proxy of the tests, before a real server."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support.daemons import pick_port
from tests.support.polling import eventually
from tests.support.proxy import Loss, Proxy
from tests.support.servers import Server

TIMEOUT_SECONDS = 0.2


@pytest.fixture
def proxy(valkey: Server) -> Iterator[Proxy]:
    with Proxy((valkey.host, valkey.port)) as between:
        yield between


@pytest.fixture
def patient(proxy: Proxy) -> Iterator[redis.Redis]:
    """A client through the proxy that never tries twice, and waits as long as it takes."""
    with connect(proxy) as client:
        yield client


def is_connected(server: Server, name: str) -> bool:
    """Whether the server has a connection that called itself so."""
    with server.client() as direct:
        return name in [connection["name"] for connection in direct.client_list()]


def connect(proxy: Proxy, **options: Any) -> redis.Redis:
    return redis.Redis(host=proxy.host, port=proxy.port, retry=Retry(NoBackoff(), 0), **options)


def test_a_proxy_forwards_in_both_directions_whatever_the_size(valkey: Server, proxy: Proxy) -> None:
    client = redis.Redis.from_url(proxy.url(valkey.url(1)))
    value = bytes(range(256)) * 20_000
    with client:
        client.set("key", value)
        assert client.get("key") == value
        assert client.client_info()["db"] == 1
        client.client_setname("name")
        assert proxy.connections == 1
        client.connection_pool.disconnect()  # not every client does that when it is closed
    eventually(lambda: not is_connected(valkey, "name"), message="the end was not passed on")
    eventually(lambda: proxy.connections == 0, message="nor was it noticed")


def test_a_frozen_connection_is_silent_and_thaws_with_nothing_lost(
    valkey: Server, proxy: Proxy, patient: redis.Redis
) -> None:
    impatient = connect(proxy, socket_timeout=TIMEOUT_SECONDS)
    impatient.ping()
    patient.ping()
    proxy.freeze()
    with (
        ThreadPoolExecutor() as pool,
        valkey.client() as direct,
        impatient,
        socket.create_connection((proxy.host, proxy.port), timeout=TIMEOUT_SECONDS) as new,
    ):
        withheld = pool.submit(patient.incr, "counter")
        with pytest.raises(redis.TimeoutError):
            impatient.incr("counter")
        new.sendall(b"INCR counter\r\n")
        with pytest.raises(TimeoutError):
            new.recv(100)
        assert not withheld.done()
        assert direct.get("counter") is None
        proxy.thaw()
        withheld.result(10)
        eventually(lambda: direct.get("counter") == "3", message="a withheld call was lost")


def test_the_end_of_a_frozen_connection_is_withheld_until_it_thaws(
    valkey: Server, proxy: Proxy, patient: redis.Redis
) -> None:
    patient.client_setname("name")
    proxy.freeze()
    patient.connection_pool.disconnect()
    time.sleep(TIMEOUT_SECONDS)  # nothing to wait for: that the server does not notice is the claim
    assert is_connected(valkey, "name")
    proxy.thaw()
    eventually(lambda: not is_connected(valkey, "name"), message="the end never came")


def test_what_was_withheld_is_lost_when_dropped(valkey: Server, proxy: Proxy) -> None:
    impatient = connect(proxy, socket_timeout=TIMEOUT_SECONDS)
    proxy.freeze()
    with pytest.raises(redis.TimeoutError):
        impatient.incr("counter")
    proxy.drop()
    proxy.thaw()
    assert impatient.incr("counter") == 1
    impatient.close()


def test_dropped_connections_are_reset_on_both_sides(
    valkey: Server, proxy: Proxy, patient: redis.Redis
) -> None:
    with socket.create_connection((proxy.host, proxy.port)) as raw:
        raw.sendall(b"CLIENT SETNAME name\r\n")
        assert raw.recv(100) == b"+OK\r\n"
        proxy.drop()
        with pytest.raises(ConnectionResetError):
            raw.recv(100)
        eventually(lambda: not is_connected(valkey, "name"), message="the server was not told")
    assert proxy.connections == 0
    assert patient.ping()


def test_refusing_spares_open_connections_and_accepting_takes_the_same_port(
    proxy: Proxy, patient: redis.Redis
) -> None:
    patient.ping()
    for _ in range(2):
        proxy.refuse()
    assert patient.ping()
    with connect(proxy) as other:
        with pytest.raises(redis.ConnectionError, match="refused"):
            other.ping()
        for _ in range(2):
            proxy.accept()
        assert other.ping()


def test_a_delay_counts_in_each_direction(proxy: Proxy, patient: redis.Redis) -> None:
    patient.ping()
    proxy.delay_seconds = 0.1
    started = time.monotonic()
    patient.ping()
    assert time.monotonic() - started >= 0.2


def test_a_healed_proxy_is_an_ordinary_one(proxy: Proxy, patient: redis.Redis) -> None:
    cut = proxy.cut_on(b"PING", "request")
    proxy.delay_seconds = 60
    proxy.freeze()
    proxy.refuse()
    proxy.heal()
    assert patient.ping()
    assert proxy.delay_seconds == 0
    assert not cut.is_set()


@pytest.mark.parametrize(("loss", "value"), [("request", None), ("reply", "1")])
def test_a_call_is_cut_before_or_after_it_has_reached_the_server(
    valkey: Server, proxy: Proxy, patient: redis.Redis, loss: Loss, value: str | None
) -> None:
    cut = proxy.cut_on(b"INCR", loss)
    patient.set("other", "1")
    assert not cut.is_set()
    with pytest.raises(redis.ConnectionError):
        patient.incr("counter")
    assert cut.wait(10)
    with valkey.client() as direct:
        assert direct.get("counter") == value
        patient.incr("counter")  # once is enough
        assert direct.get("counter") == ("2" if value else "1")


def test_a_pattern_is_found_across_chunks(proxy: Proxy) -> None:
    cut = proxy.cut_on(b"12345\r\n", "reply")
    with socket.create_connection((proxy.host, proxy.port)) as raw:
        for piece in (b"ECHO 1", b"23", b"45", b"\r\n"):
            raw.sendall(piece)
            time.sleep(0.02)  # so that they are, most likely, chunks of their own
        with pytest.raises(ConnectionResetError):
            raw.recv(100)
    assert cut.wait(10)


def test_a_server_that_is_away_resets_the_client() -> None:
    with (
        Proxy(("127.0.0.1", pick_port())) as proxy,
        connect(proxy) as client,
        pytest.raises(redis.ConnectionError),
    ):
        client.ping()


def test_a_closed_proxy_leaves_neither_threads_nor_connections(valkey: Server) -> None:
    threads = threading.active_count()
    with Proxy((valkey.host, valkey.port)) as proxy, connect(proxy) as client:
        client.ping()
        proxy.freeze()
        proxy.close()
        with pytest.raises(redis.ConnectionError):
            client.ping()
    assert threading.active_count() == threads
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((proxy.host, proxy.port))
