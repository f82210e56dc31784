"""Which client is made for which URL and options. The redis classes are patched, as users patch them."""

from __future__ import annotations

import os
import ssl
import traceback
from types import SimpleNamespace
from typing import Any

import pytest
import redis
import redis.cluster
import redis.connection
import redis.sentinel
from celery import Celery

from redbeat.config import ensure_conf
from redbeat.connection.client import CLIENT_DEFAULTS, CommandPacker, get_redis, naming_the_server
from redbeat.errors import ConfigurationError, StoreRefused, StoreUnavailable

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
def test_a_url_is_put_as_the_client_understands(patched: None, url: str, use_ssl: Any, expected: str) -> None:
    made = client_of(url, use_ssl)
    assert (made.how, made.args) == ("redis", (expected,))


def test_defaults_of_ours_give_way_to_options(patched: None) -> None:
    made = client_of("redis://h", socket_timeout=99, username="me", retry_period=None)
    retry, errors = made.options.pop("retry"), made.options.pop("retry_on_error")
    assert (retry._retries, errors) == (1, [redis.exceptions.ConnectionError])  # noqa: SLF001 - redis-py 4 has no other name for it
    assert isinstance(made.options.pop("command_packer"), CommandPacker)
    assert made.options == {**CLIENT_DEFAULTS, "socket_timeout": 99, "username": "me"}
    assert CLIENT_DEFAULTS["socket_timeout"] != 99


@pytest.mark.parametrize(
    "command",
    [
        ("PING",), ("CONFIG GET", "maxmemory-policy"), (b"CONFIG GET", b"*"),
        ("SET", "käse", "x" * 20_000, "PX", 5, 0.25),
        ("EVALSHA", "0" * 40, 2, *["y" * 3_000] * 7, b"\xff\x00", ""), ("GET", memoryview(b"abc")),
    ],
)  # fmt: skip
def test_a_command_is_written_in_one_piece_as_the_client_writes_it_in_several(command: tuple[Any]) -> None:
    own = redis.connection.Connection(encoding="utf-8")
    assert CommandPacker().pack(*command) == [b"".join(own.pack_command(*command))]


def test_bytes_that_were_no_utf_8_are_written_as_they_were_read() -> None:
    key = b"\xff\xfe".decode("utf-8", CLIENT_DEFAULTS["encoding_errors"])
    assert CommandPacker().pack("GET", key) == CommandPacker().pack("GET", b"\xff\xfe")


def test_what_redis_has_no_form_for_is_refused() -> None:
    with pytest.raises(redis.exceptions.DataError):
        CommandPacker().pack("SET", "key", {"a": 1})


def test_a_unix_socket_gets_no_option_of_tcps(patched: None) -> None:
    assert "socket_keepalive" not in client_of("unix:///tmp/x.sock").options


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (ssl.CERT_NONE, "none"), (ssl.CERT_REQUIRED, "required"), (1, "optional"),
        ("CERT_REQUIRED", "required"), ("Optional", "optional"), ("none", "none"), (None, "none"),
    ],
)  # fmt: skip
def test_certificate_words_of_celery_become_the_clients(patched: None, given: Any, expected: str) -> None:
    assert client_of("redis://h", {"ssl_cert_reqs": given}).options["ssl_cert_reqs"] == expected
    assert client_of("rediss://h", ssl_cert_reqs=given).options["ssl_cert_reqs"] == expected


@pytest.mark.parametrize("given", ["maybe", 7, ""])
def test_another_word_for_certificates_is_refused(patched: None, given: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"must be none, optional or required, not") as caught:
        client_of("rediss://h", {"ssl_cert_reqs": given})
    assert caught.value.setting == "ssl_cert_reqs"


def test_tls_options_may_leave_out_their_prefix(patched: None) -> None:
    made = client_of("redis://h", {"ca_certs": "x", "ssl_keyfile": "y"})
    assert (made.options["ssl_ca_certs"], made.options["ssl_keyfile"]) == ("x", "y")


def test_tls_requires_certificates_unless_told_otherwise() -> None:
    client = get_redis(app_for("rediss://h"))
    assert client.connection_pool.make_connection().cert_reqs == ssl.CERT_REQUIRED


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
def test_every_form_of_a_sentinel_url_is_understood(patched: None, url: str, options: dict[str, Any]) -> None:
    made = client_of(url, **options)
    assert (made.how, made.args, made.service_name) == ("sentinel", (SENTINELS,), "main")
    assert made.options["db"] == 3
    assert not made.options.keys() & {"sentinels", "service_name", "master_name"}


def test_a_sentinel_url_has_the_masters_password_and_the_sentinels_have_their_own(patched: None) -> None:
    made = client_of("sentinel://user:p%40ss@a", sentinel_kwargs={"password": "x", "socket_timeout": 2})
    assert (made.options["username"], made.options["password"]) == ("user", "p@ss")
    own = made.options["sentinel_kwargs"]
    assert (own["password"], own["socket_timeout"], own["socket_connect_timeout"]) == ("x", 2, 1)
    assert made.service_name == "master"
    assert client_of("sentinel://:url@a", password="option").options["password"] == "option"


def test_sentinels_are_reached_with_tls_when_asked(patched: None) -> None:
    assert client_of("sentinel://a", use_ssl=True).options["ssl"] is True
    assert "ssl" not in client_of("sentinel://a").options


@pytest.mark.parametrize(
    ("url", "use_ssl", "options", "expected"),
    [
        ("redis-cluster://user:p@h:1", None, {}, "redis://user:p@h:1"),
        ("redis://h:1", None, {"cluster": True}, "redis://h:1"),
        ("valkeys://h:1", None, {"cluster": True}, "rediss://h:1"),
        ("redis-cluster://h:1", True, {}, "redis://h:1"),
    ],
)
def test_a_cluster_is_made_from_its_url(
    patched: None, url: str, use_ssl: Any, options: dict[str, Any], expected: str
) -> None:
    made = client_of(url, use_ssl, **options)
    assert (made.how, made.args) == ("cluster url", (expected,))
    assert made.options.get("ssl") == use_ssl
    assert "cluster" not in made.options


def test_a_cluster_is_made_from_its_nodes(patched: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis.cluster, "RedisCluster", make("cluster nodes").__func__)
    made = client_of("redis-cluster://", startup_nodes=[{"host": "a", "port": "1"}, {"host": "b", "port": 2}])
    assert (made.how, made.options["startup_nodes"]) == ("cluster nodes", ["a:1", "b:2"])


@pytest.mark.parametrize("url", ["redis://h", "sentinel://h", "unix:///tmp/x"])
def test_an_unknown_option_is_named_before_anything_is_connected(url: str) -> None:
    with pytest.raises(ConfigurationError, match="colour"):
        get_redis(app_for(url, colour="red", password=SECRET))


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
def test_no_error_shows_a_password_nor_does_its_traceback(url: str, options: dict[str, Any]) -> None:
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
def test_client_errors_become_ours_and_name_the_server(error: Exception, expected: type[Exception]) -> None:
    config = ensure_conf(app_for(f"redis://:{SECRET}@some-host"))
    with pytest.raises(expected, match=r"redis://:\*\*@some-host") as caught, naming_the_server(config):
        raise error
    assert caught.value.__cause__ is error
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("reason", ["Redis hasn't answered within 2 s.", "Connection closed by server"])
def test_where_nobody_waits_for_redis_the_advice_is_a_sentence_of_its_own(reason: str) -> None:
    config = ensure_conf(app_for("redis://some-host"))
    with pytest.raises(StoreUnavailable) as caught, naming_the_server(config):
        raise redis.exceptions.ConnectionError(reason)
    said = f"Redis at redis://some-host can't be used: {reason.removesuffix('.')}."
    advice = "(To wait for Redis, set retry_period in redbeat_redis_options.)"
    assert str(caught.value) == f"{said} {advice}"


@pytest.mark.parametrize(
    "words", ["Authentication required.", "HELLO must be called with the client already authenticated, ..."]
)
def test_a_server_that_wants_a_password_names_the_setting_and_no_command(words: str) -> None:
    config = ensure_conf(app_for("redis://some-host"))
    with pytest.raises(StoreRefused, match="it needs a password") as caught, naming_the_server(config):
        raise redis.exceptions.AuthenticationError(words)
    assert "redbeat_redis_url" in str(caught.value)
    assert words not in str(caught.value)


def test_an_app_has_one_client(patched: None) -> None:
    app = app_for("redis://h")
    assert get_redis(app) is get_redis(app) is app.redbeat_redis
    assert get_redis(app_for("redis://h")) is not app.redbeat_redis


@pytest.mark.usefixtures("patched")
def test_a_fork_makes_a_client_of_its_own_but_keeps_an_injected_one(monkeypatch: pytest.MonkeyPatch) -> None:
    app, injected = app_for("redis://h"), app_for("redis://h")
    injected.redbeat_redis = object()
    before, kept = get_redis(app), get_redis(injected)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert get_redis(app) is not before
    assert get_redis(injected) is kept is injected.redbeat_redis
