"""The Redis client: made for each URL and option, without passwords in errors, or an injected fake."""

from __future__ import annotations

import os
import ssl
import traceback
from types import SimpleNamespace
from typing import Any

import fakeredis
import pytest
import redis
import redis.cluster
import redis.connection
import redis.sentinel
from celery import Celery

from redbeat import RedBeatScheduler, RedBeatSchedulerEntry
from redbeat.config import ensure_conf
from redbeat.connection.client import CLIENT_DEFAULTS, get_redis, naming_the_server
from redbeat.errors import (
    ConfigurationError,
    StoreRefused,
    StoreUnavailable,
)
from redbeat.store.executor import Stream
from tests.support.ticks import assert_entry_runs, memory_app

SECRET = "hunter2"


class Made:
    """Records how a client was made, and stands in for it."""

    def __init__(self, how: str, *args: Any, **options: Any) -> None:
        self.how, self.args, self.options = how, args, options
        self.connection_pool = SimpleNamespace(make_connection=lambda: None, reset=lambda: None)
        self.service_name: str | None = None

    def master_for(self, service_name: str) -> Made:
        self.service_name = service_name
        return self


def make(how: str) -> Any:
    return staticmethod(lambda *args, **options: Made(how, *args, **options))


@pytest.fixture
def patched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis.Redis, "from_url", make("redis"))
    monkeypatch.setattr(redis.sentinel, "Sentinel", make("sentinel"))
    monkeypatch.setattr(redis.cluster, "ClusterNode", lambda host, port: f"{host}:{port}")
    cluster = SimpleNamespace(from_url=lambda *args, **options: Made("cluster url", *args, **options))
    monkeypatch.setattr(redis.cluster, "RedisCluster", cluster)


def app_for(url: str, use_ssl: Any = None, **options: Any) -> Celery:
    app = Celery("test", set_as_current=False)
    app.conf.update(broker_url="memory://", redbeat_redis_url=url, redbeat_redis_options=options)
    app.conf.redbeat_redis_use_ssl = use_ssl
    return app


def client_of(url: str, use_ssl: Any = None, **options: Any) -> Made:
    client: Made = get_redis(app_for(url, use_ssl, **options))
    return client


@pytest.mark.parametrize(
    ("url", "use_ssl", "expected"),
    [
        ("redis://h:1/2", None, "redis://h:1/2"),
        ("redis://", None, "redis://"),
        ("redis://h", True, "rediss://h"),
        ("rediss://h", None, "rediss://h"),
        ("RediSS://h", False, "rediss://h"),
        ("valkey://h/3", None, "redis://h/3"),
        ("valkey://h/3", {"ca_certs": "x"}, "rediss://h/3"),
        ("valkeys://h", None, "rediss://h"),
        ("unix:///tmp/x.sock", None, "unix:///tmp/x.sock"),
        ("unix://user:p%40ss@/tmp/x.sock?db=1", None, "unix://user:p%40ss@/tmp/x.sock?db=1"),
        ("redis+socket:///tmp/x.sock?virtual_host=4", None, "unix:///tmp/x.sock?db=4"),
        ("redis://user:p%40%2F%3A%23ss@h/1", None, "redis://user:p%40%2F%3A%23ss@h/1"),
        ("redis://a:1/2;redis://b:1/2", None, "redis://a:1/2"),
        ("rediss://h?ssl_cert_reqs=CERT_NONE&db=1", None, "rediss://h?ssl_cert_reqs=none&db=1"),
    ],
)
def test_url_is_translated_for_redis_py(patched: None, url: str, use_ssl: Any, expected: str) -> None:
    made = client_of(url, use_ssl)
    assert (made.how, made.args) == ("redis", (expected,))


def test_options_override_our_defaults(patched: None) -> None:
    made = client_of("redis://h", socket_timeout=99, username="me", retry_period=None)
    retry, errors = made.options.pop("retry"), made.options.pop("retry_on_error")
    assert (retry._retries, errors) == (1, [redis.exceptions.ConnectionError])  # noqa: SLF001 - redis-py 4 has no other name for it
    assert made.options == {**CLIENT_DEFAULTS, "socket_timeout": 99, "username": "me"}
    assert CLIENT_DEFAULTS["socket_timeout"] != 99


@pytest.mark.parametrize(
    "command",
    [
        ("PING",), (b"GET", b"*"),
        ("SET", "käse", "x" * 20_000, "PX", 5, 0.25),
        ("EVALSHA", "0" * 40, 2, *["y" * 3_000] * 7, b"\xff\x00", ""), ("GET", memoryview(b"abc")),
    ],
)  # fmt: skip
def test_streamed_command_is_what_redis_py_sends_in_one_piece(command: tuple[Any]) -> None:
    connection, sent = redis.connection.Connection(encoding="utf-8"), list[bytes]()
    connection.send_packed_command = lambda pieces, **_: sent.extend(pieces)  # type: ignore[method-assign]
    Stream(None, connection).write_all([command, command])
    assert sent == [2 * b"".join(connection.pack_command(*command))]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (ssl.CERT_NONE, "none"), (ssl.CERT_REQUIRED, "required"), (1, "optional"),
        ("CERT_REQUIRED", "required"), ("Optional", "optional"), ("none", "none"), (None, "none"),
    ],
)  # fmt: skip
def test_ssl_cert_reqs_of_celery_is_translated(patched: None, given: Any, expected: str) -> None:
    assert client_of("redis://h", {"ssl_cert_reqs": given}).options["ssl_cert_reqs"] == expected
    assert client_of("rediss://h", ssl_cert_reqs=given).options["ssl_cert_reqs"] == expected


SENTINELS = [("a", 26379), ("b", 1)]


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("redis-sentinel://ignored:5/3", {"sentinels": SENTINELS, "service_name": "main"}),
        ("sentinel://a;sentinel://b:1/ignored", {"master_name": "main", "db": 3}),
        ("sentinel://a:26379/3;sentinel://b:1", {"service_name": "main"}),
        ("sentinel://a:26379/3;b:1", {"service_name": "main"}),
        ("redis://ignored/3", {"sentinels": [["a", 26379], ["b", 1]], "service_name": "main"}),
    ],
)
def test_sentinel_url_of_any_form_is_understood(patched: None, url: str, options: dict[str, Any]) -> None:
    made = client_of(url, **options)
    assert (made.how, made.args, made.service_name) == ("sentinel", (SENTINELS,), "main")
    assert made.options["db"] == 3
    assert not made.options.keys() & {"sentinels", "service_name", "master_name"}


def test_sentinel_url_has_the_password_of_the_master_and_sentinel_kwargs_that_of_sentinels(
    patched: None,
) -> None:
    made = client_of("sentinel://user:p%40ss@a", sentinel_kwargs={"password": "x", "socket_timeout": 2})
    assert (made.options["username"], made.options["password"]) == ("user", "p@ss")
    own = made.options["sentinel_kwargs"]
    assert (own["password"], own["socket_timeout"], own["socket_connect_timeout"]) == ("x", 2, 1)
    assert made.service_name == "master"
    assert client_of("sentinel://:url@a", password="option").options["password"] == "option"


@pytest.mark.parametrize(
    ("url", "use_ssl", "options", "expected"),
    [
        ("redis-cluster://user:p@h:1", None, {}, "redis://user:p@h:1"),
        ("redis://h:1", None, {"cluster": True}, "redis://h:1"),
        ("valkeys://h:1", None, {"cluster": True}, "rediss://h:1"),
        ("redis-cluster://h:1", True, {}, "redis://h:1"),
    ],
)
def test_cluster_client_is_made_from_its_url(
    patched: None, url: str, use_ssl: Any, options: dict[str, Any], expected: str
) -> None:
    made = client_of(url, use_ssl, **options)
    assert (made.how, made.args) == ("cluster url", (expected,))
    assert made.options.get("ssl") == use_ssl
    assert "cluster" not in made.options


@pytest.mark.parametrize(
    ("url", "options"),
    [
        (f"redis://:{SECRET}#x@h:1", {}),
        (f"redis://:{SECRET}/x@h:1", {}),
        (f"redis://:{SECRET}[x@h:1", {}),
        (f"redis://:{SECRET}@h:port", {}),
        (f"sentinel://:{SECRET}@h:port", {}),
        (f"redis-cluster://:{SECRET}@h", {"startup_nodes": [{"port": 1}]}),
        (f"redis-cluster://:{SECRET}@h", {"startup_nodes": ["h"]}),
        (f"redis://:{SECRET}@h", {"sentinels": ["h"], "password": SECRET}),
        (f"sentinel://:{SECRET}@h", {"sentinel_kwargs": None, "password": SECRET}),
        (f"sentinel://:{SECRET}@h", {"colour": SECRET}),
    ],
)
def test_error_and_its_traceback_show_no_password(url: str, options: dict[str, Any]) -> None:
    app = app_for(url, **options)
    with pytest.raises(ConfigurationError, match=r"no client can be made for |must be a number") as caught:
        get_redis(app)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (redis.exceptions.ConnectionError("away"), StoreUnavailable),
        (redis.exceptions.TimeoutError("slow"), StoreUnavailable),
        (redis.exceptions.RedisClusterException("no node"), StoreUnavailable),
        (redis.exceptions.ResponseError("NOPERM no"), StoreRefused),
    ],
)
def test_client_error_becomes_ours_and_names_the_server(error: Exception, expected: type[Exception]) -> None:
    config = ensure_conf(app_for(f"redis://:{SECRET}@some-host"))
    with pytest.raises(expected, match=r"redis://:\*\*@some-host") as caught, naming_the_server(config):
        raise error
    assert caught.value.__cause__ is error
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "words", ["Authentication required.", "HELLO must be called with the client already authenticated, ..."]
)
def test_missing_password_is_an_error_that_names_the_setting(words: str) -> None:
    config = ensure_conf(app_for("redis://some-host"))
    with pytest.raises(StoreRefused, match="it needs a password") as caught, naming_the_server(config):
        raise redis.exceptions.AuthenticationError(words)
    assert "redbeat_redis_url" in str(caught.value)
    assert words not in str(caught.value)


@pytest.mark.usefixtures("patched")
def test_fork_makes_its_own_client_but_keeps_an_injected_one(monkeypatch: pytest.MonkeyPatch) -> None:
    app, injected = app_for("redis://h"), app_for("redis://h")
    injected.redbeat_redis = object()
    before, kept = get_redis(app), get_redis(injected)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert get_redis(app) is not before
    assert get_redis(injected) is kept is injected.redbeat_redis


@pytest.mark.parametrize(
    ("options", "error"),
    [({"ssl_cert_reqs": "maybe"}, "ssl_cert_reqs"), ({"colour": "red", "password": SECRET}, "colour")],
)
def test_invalid_option_is_an_error_that_names_it(options: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigurationError, match=error):
        get_redis(app_for("rediss://h", **options))


# -- a fake that is injected


@pytest.mark.parametrize("decodes", [True, False])
def test_tick_sends_due_runs_with_a_fake(decodes: bool) -> None:
    app = memory_app()
    app.redbeat_redis = fakeredis.FakeRedis(decode_responses=decodes)
    assert_entry_runs(app)
    RedBeatSchedulerEntry.get("report", app).delete()
    with pytest.raises(KeyError, match="there is no such entry"):
        RedBeatSchedulerEntry.from_key("redbeat:report", app=app)


@pytest.mark.parametrize(
    ("arguments", "settings", "expected"),
    [
        ({}, {}, ("redbeat::lock", 1500, 300)),
        ({"max_interval": 10}, {}, ("redbeat::lock", 50, 10)),
        ({}, {"beat_max_loop_interval": 7}, ("redbeat::lock", 35, 7)),
        ({"lock_timeout": 8}, {"redbeat_lock_timeout": 9}, ("redbeat::lock", 8, 300)),
        ({"lock_timeout": None}, {"redbeat_lock_timeout": 9}, ("redbeat::lock", 9, 300)),
        ({"lock_timeout": 0}, {}, ("redbeat::lock", 1500, 300)),
        ({"lock_key": "mine"}, {}, ("redbeat:mine", 1500, 300)),
        ({"lock_key": "redbeat:mine"}, {"redbeat_lock_key": "other"}, ("redbeat:mine", 1500, 300)),
        ({}, {"redbeat_lock_key": None}, (None, 1500, 300)),
    ],
)
def test_lock_key_and_timeout_come_from_arguments_then_settings(
    fake_app: Celery, arguments: dict[str, Any], settings: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    fake_app.conf.update(settings)
    made = RedBeatScheduler(fake_app, lazy=True, **arguments)
    assert (made.lock_key, made.lock_timeout, made.max_interval) == expected


@pytest.mark.parametrize("lock_timeout", [0.9, "soon", True])
def test_invalid_lock_timeout_argument_is_refused(fake_app: Celery, lock_timeout: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^lock_timeout: .*1 or more"):
        RedBeatScheduler(fake_app, lock_timeout=lock_timeout)
    assert fake_app.redbeat_redis.keys() == []


def test_banner_shows_server_and_lock_without_a_password(fake_app: Celery) -> None:
    fake_app.conf.redbeat_redis_url = "redis://user:hunter2@h:1/0"
    info = RedBeatScheduler(fake_app, lazy=True).info
    assert "    . redis -> redis://user:**@h:1/0\n    . lock -> `redbeat::lock` " in info
    assert "hunter2" not in info
