"""Where settings come from: every spelling, the broker's settings, an injected client, a cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fakeredis
import pytest
from celery import Celery

from redbeat.config import RedBeatConfig
from redbeat.connection.client import build_client, get_redis
from redbeat.errors import ConfigurationError

REDIS = "redis://127.0.0.1:1/0"

SETTINGS = {
    "broker_url": REDIS, "redbeat_redis_url": "redis://127.0.0.1:1/1",
    "redbeat_redis_options": {"retry_period": 3}, "redbeat_redis_use_ssl": True, "redbeat_key_prefix": "app:",
    "redbeat_lock_key": None, "redbeat_lock_timeout": 77, "redbeat_key_expiry_check": "warn",
    "redbeat_batch_size": 7,
}  # fmt: skip


UPPER = {name.upper(): value for name, value in SETTINGS.items()}
IN_NAMESPACE = {f"CELERY_{name}": value for name, value in UPPER.items()}
OWN = {name: value for name, value in SETTINGS.items() if name.startswith("redbeat_")}


def bare_app() -> Celery:
    return Celery("test", set_as_current=False)


def configured(**settings: Any) -> RedBeatConfig:
    app = bare_app()
    app.conf.update(settings)
    return RedBeatConfig(app)


def values(app: Celery) -> dict[str, Any]:
    return {
        name: value for name, value in vars(RedBeatConfig(app)).items() if name not in ("app", "_explicit")
    }


def from_object(settings: dict[str, Any], *, is_looked_at: bool = False, **options: Any) -> Celery:
    app = bare_app()
    assert not is_looked_at or app.conf.timezone is None
    app.config_from_object(settings, **options)
    return app


def given_also(app: Celery, settings: dict[str, Any]) -> Celery:
    for name, value in settings.items():
        setattr(app.conf, name, value)
    return app


SPELLINGS: dict[str, Callable[[], Celery]] = {
    "namespace": lambda: from_object(IN_NAMESPACE, namespace="CELERY"),
    "namespace, looked at before": lambda: from_object(IN_NAMESPACE, is_looked_at=True, namespace="CELERY"),
    "lower-case namespace": lambda: from_object({f"my_{n}": SETTINGS[n] for n in SETTINGS}, namespace="my"),
    "celery 3": lambda: from_object(UPPER),
    "mixed case": lambda: from_object({"broker_url": REDIS, **{name.title(): OWN[name] for name in OWN}}),
    "namespace and plain": lambda: given_also(from_object(IN_NAMESPACE, namespace="CELERY"), OWN),
    "attributes": lambda: given_also(bare_app(), SETTINGS),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize(
    "variable", [None, "CELERY_BROKER_URL", "CELERY_BROKER_READ_URL", "CELERY_BROKER_WRITE_URL"]
)
def test_every_spelling_gives_the_same_configuration(
    spelling: str, variable: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if variable is not None:  # `celery -b URL`, or BROKER_URL, sets the first one
        monkeypatch.setenv(variable, REDIS)
    expected = values(from_object(SETTINGS))
    assert (expected["lock_key"], expected["batch_size"]) == (None, 7)
    assert values(SPELLINGS[spelling]()) == expected


def test_what_is_set_later_in_another_spelling_wins() -> None:
    app = from_object({"CELERY_BROKER_URL": REDIS, "CELERY_REDBEAT_KEY_PREFIX": "a:"}, namespace="CELERY")
    app.conf.redbeat_key_prefix = "b:"
    assert RedBeatConfig(app).key_prefix == "b:"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"broker_url": "redis://a"}, "redis://a"),
        ({"broker_url": "redis://a", "redbeat_redis_url": "redis://b"}, "redis://b"),
        ({"broker_url": ["redis://a", "redis://b"]}, "redis://a;redis://b"),
        ({"broker_url": "sentinel://a:1;sentinel://b:2"}, "sentinel://a:1;sentinel://b:2"),
        ({"broker_write_url": "redis://w", "broker_read_url": "redis://r"}, "redis://w"),
        ({"broker_read_url": "redis://r"}, "redis://r"),
    ],
)
def test_without_its_own_url_the_schedule_is_at_the_broker(settings: dict[str, Any], expected: str) -> None:
    assert configured(**settings).redis_url == expected


def test_the_brokers_environment_variable_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELERY_BROKER_URL", "redis://from-environment")
    assert configured().redis_url == "redis://from-environment"


@pytest.mark.parametrize("settings", [{}, {"broker_url": "amqp://user:hunter2@rabbit//"}])
def test_a_broker_that_is_no_redis_asks_for_the_url_in_a_sentence(settings: dict[str, Any]) -> None:
    with pytest.raises(
        ConfigurationError, match=r"^redbeat_redis_url isn't set, and broker_url 'amqp://"
    ) as caught:
        build_client(configured(**settings))
    assert "the app 'test'" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_an_injected_client_needs_no_url_and_is_used() -> None:
    app = bare_app()
    app.conf.broker_url = "memory://"
    app.redbeat_redis = fakeredis.FakeRedis()
    assert RedBeatConfig(app).schedule_key == "redbeat::schedule"
    assert get_redis(app) is app.redbeat_redis


def test_of_the_brokers_options_only_those_redbeat_knows_are_taken() -> None:
    config = configured(
        broker_url=REDIS,
        broker_transport_options={
            "retry_period": 5, "master_name": "main", "sentinel_kwargs": {"password": "x"},
            "visibility_timeout": 3600, "socket_timeout": 1, "global_keyprefix": "x",
        },
    )  # fmt: skip
    assert config.redbeat_redis_options == {
        "retry_period": 5,
        "service_name": "main",
        "sentinel_kwargs": {"password": "x"},
    }


def test_options_of_its_own_replace_the_brokers_and_stay_as_they_were_given() -> None:
    given, of_broker = {"socket_timeout": 1, "master_name": "main"}, {"retry_period": 5}
    config = configured(broker_url=REDIS, broker_transport_options=of_broker, redbeat_redis_options=given)
    assert config.redbeat_redis_options == {"socket_timeout": 1, "service_name": "main"}
    assert given == {"socket_timeout": 1, "master_name": "main"}


@pytest.mark.parametrize(
    ("broker", "expected"),
    [("rediss://h", {"ca": 1}), (["rediss://h"], {"ca": 1}), ("amqps://h", False), ("memory://", False)],
)
def test_the_brokers_tls_is_taken_over_from_a_redis_only(broker: Any, expected: Any) -> None:
    config = configured(broker_url=broker, broker_use_ssl={"ca": 1}, redbeat_redis_url=REDIS)
    assert config.redis_use_ssl == expected


@pytest.mark.parametrize(
    "cluster",
    [
        {"redbeat_redis_url": "redis-cluster://h:1"},
        {"redbeat_redis_options": {"cluster": True}},
        {"redbeat_redis_options": {"startup_nodes": [{"host": "h", "port": 1}]}},
    ],
)
class TestCluster:
    def test_the_prefix_has_a_hash_tag_by_default(self, cluster: dict[str, Any]) -> None:
        config = configured(broker_url=REDIS, **cluster)
        assert config.is_cluster
        assert (config.key_prefix, config.lock_key) == ("{redbeat}:", "{redbeat}::lock")

    def test_a_prefix_with_a_hash_tag_is_used(self, cluster: dict[str, Any]) -> None:
        config = configured(broker_url=REDIS, redbeat_key_prefix="my{app}:", **cluster)
        assert config.schedule_key == "my{app}::schedule"

    @pytest.mark.parametrize("prefix", ["redbeat:", "{}redbeat:", "}redbeat{:"])
    def test_a_prefix_without_is_refused_with_the_way_out(self, cluster: dict[str, Any], prefix: str) -> None:
        with pytest.raises(ConfigurationError, match=r"no hash tag.*one slot.*To move") as caught:
            configured(broker_url=REDIS, redbeat_key_prefix=prefix, **cluster)
        assert caught.value.setting == "redbeat_key_prefix"


def test_a_single_server_is_no_cluster() -> None:
    assert not configured(broker_url=REDIS, redbeat_redis_options={"cluster": False}).is_cluster
