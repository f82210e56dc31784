"""Settings: defaults, allowed and refused values, masked passwords, and where they come from."""

from __future__ import annotations

import logging
import random
import re
import traceback
from collections.abc import Callable
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from redbeat.config import SETTINGS, RedBeatConfig, ensure_conf
from redbeat.config.address import Address
from redbeat.config.masking import sanitize_url
from redbeat.config.timing import CONNECT_SECONDS, MIN_LOCK_SECONDS, MIN_TAKEOVER_SECONDS, Timing
from redbeat.connection import get_redis
from redbeat.connection.client import build_client
from redbeat.errors import ConfigurationError
from tests.support.ticks import memory_app

REDIS = "redis://127.0.0.1:1/0"


ROOT = Path(__file__).parents[3]


#: setting to values that its attribute has as they are given
TAKEN: dict[str, list[Any]] = {
    "redbeat_redis_url": ["valkeys://h:1/2", "Sentinel://a:1;sentinel://b:2"],
    "redbeat_redis_options": [{"retry_period": -1}, {"retry_period": 2.5}, {"any": "thing"}],
    "redbeat_redis_use_ssl": [True, {"ca_certs": "x"}],
    "redbeat_lock_key": ["redbeat:mine", None],
    "redbeat_lock_timeout": [1, None],
    "redbeat_takeover_after": [5, None],
    "redbeat_lock_lost": ["standby"],
    "redbeat_key_expiry_check": ["raise"],
    "redbeat_log_format": ["json"],
    "redbeat_batch_size": [5000],
    "redbeat_lookahead": [0, 0.5, 60],
    "redbeat_templates": ["auto", False],
    "redbeat_message_cache_bytes": [0, 1, 2**40],
    "redbeat_max_entry_bytes": [1000, 512 * 1024 * 1024],
    "redbeat_ping_url": [None, "https://hc-ping.com/abc"],
    "redbeat_ping_late_after": [1, 3600],
    "redbeat_ping_hosts": [(), ("hc-ping.com", "*.example.com", "[::1]:8000")],
    "redbeat_web_hosts": [(), ("redbeat.example.com", "*.example.com", "[::1]")],
    "redbeat_web_tasks": [("*",), (), ("reports.*", "billing.send")],
    "redbeat_web_hide": [(), ("*password*",)],
    "redbeat_misfire": ["all"],
    "redbeat_misfire_limit": [1],
    "redbeat_misfire_grace_time": [1.5, None],
    "redbeat_history": [0, 50],
    "redbeat_run_lease": [1, 2.5, 3600],
    "redbeat_sentry": [False, True],
    "redbeat_metrics_entries": [0, 200, 2000],
    "redbeat_durable_after": [0, 0.5, 600, 10**9],
    "redbeat_delivery": ["at_most_once"],
    "redbeat_publish_timeout": [2],
    "redbeat_wait_replicas": [0, 2],
}


ALLOWED: list[tuple[str, Any, str, Any]] = [
    *((name, value, SETTINGS[name].attribute, value) for name in TAKEN for value in TAKEN[name]),
    ("redbeat_redis_url", None, "redis_url", REDIS),
    ("redbeat_redis_options", {"master_name": "m"}, "redbeat_redis_options", {"service_name": "m"}),
    ("redbeat_redis_use_ssl", None, "redis_use_ssl", False),
    ("redbeat_key_prefix", "app-", "schedule_key", "app-:schedule"),
    ("redbeat_lock_key", "mine", "lock_key", "redbeat:mine"),
    ("redbeat_lock_timeout", 0, "lock_timeout", None),
    ("redbeat_statics_owner", None, "statics_owners", ("test",)),
    ("redbeat_statics_owner", ["billing", "invoices"], "statics_owners", ("billing", "invoices")),
    ("redbeat_web_proxies", ["10.0.0.0/8", "unix"], "web_proxies", (ip_network("10.0.0.0/8"), "unix")),
    ("redbeat_shards", None, "shards", None),
    ("redbeat_shards", 4096, "shards", 4096),
    ("redbeat_http", None, "http", None),
    ("redbeat_http", "[fe80::1%eth0]:1", "http", Address("fe80::1%eth0", 1)),
    ("redbeat_http", "beat-1.example.com:0", "http", Address("beat-1.example.com", 0)),
    ("redbeat_http", "unix:/run/redbeat/beat.sock", "http", Address(path="/run/redbeat/beat.sock")),
]


REFUSED: dict[str, list[Any]] = {
    "redbeat_redis_url": ["amqp://h", "no URL", ["redis://h"]],
    "redbeat_redis_options": ["retry", {1: 2}, *({"retry_period": n} for n in (-2, "soon", float("nan")))],
    "redbeat_redis_use_ssl": ["perhaps"],
    "redbeat_key_prefix": ["", None, b"redbeat:"],
    "redbeat_lock_key": [5],
    "redbeat_lock_timeout": [-1, 0.9, True, "soon", float("inf"), "inf"],
    "redbeat_takeover_after": [4.9, 0, "4"],
    "redbeat_lock_lost": ["raise", None],
    "redbeat_key_expiry_check": ["loud", None],
    "redbeat_log_format": ["text", "JSON", None],
    "redbeat_ping_url": ["hc-ping.com", "ftp://h/", "https://user:word@h/", "https://h/a b", 5, ""],
    "redbeat_ping_late_after": [0, None, "a minute"],
    "redbeat_web_hosts": [
        "a.example",
        ["http://a"],
        ["a:8080"],
        ["*"],
        ["*.*.a"],
        [5],
        5,
        None,
        ["a b"],
        [""],
    ],
    "redbeat_web_proxies": ["10.0.0.0/8", ["10.0.0.1/8"], ["proxy.local"], [5], 5, None, [""]],
    "redbeat_web_tasks": ["reports.*", [""], [5], 5, None],
    "redbeat_web_hide": ["*password*", [""], [5], 5, None],
    "redbeat_ping_hosts": ["https://hc-ping.com", ["*"], ["*.com"], ["h:0"], ["h/"], [5], 5, None, ["a b"]],
    "redbeat_misfire": ["never"],
    "redbeat_misfire_limit": [0, True],
    "redbeat_misfire_grace_time": [-1],
    "redbeat_batch_size": [0, 5001, 10.0, True],
    "redbeat_lookahead": [-1, 61, None, "61"],
    "redbeat_templates": [True, None, "always"],
    "redbeat_message_cache_bytes": [-1, None, "64 MB", 1e6],
    "redbeat_max_entry_bytes": [999, None, "8 MB", 1e6],
    "redbeat_history": [-1, 1001, True, "1001"],
    "redbeat_run_lease": [0.9, 3601, None, True, "x"],
    "redbeat_sentry": [None, 2, "auto"],
    "redbeat_metrics_entries": [-1, 2001, 1.5, None, True],
    "redbeat_durable_after": [-1, 10**10, "-1", None, True],
    "redbeat_delivery": ["twice", None],
    "redbeat_publish_timeout": [0, -1, "0"],
    "redbeat_wait_replicas": [-1, 1.0, True, None],
    "redbeat_statics_owner": ["", [], "a\tb", 7],
    "redbeat_shards": [0, -1, 4097, 1.5, "0", True, [4], {}],
    "redbeat_http": [
        *("", ":9808", "9808", 9808, True, "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1"),
        *("256.1.1.1:1", "[::1]", "::1:80", "[1.2.3.4]:80", "[x]:1", "a b:1", "host:1\n", "*:9808"),
        *("http://127.0.0.1:9808", "me:secret@host:1", "x" * 64 + ":1", "host:\uff11", "h\udcff:1"),
        *("unix:", "unix:beat.sock", "unix:/" + "x" * 103, "unix:/a\nb", "unix:/\0", "/run/beat.sock"),
    ],
}


def bare_app() -> Celery:
    return Celery("test", set_as_current=False)


def configured(**settings: Any) -> RedBeatConfig:
    app = bare_app()
    app.conf.update({"broker_url": REDIS, **settings})
    return RedBeatConfig(app)


@pytest.mark.parametrize(("setting", "value", "attribute", "expected"), ALLOWED)
def test_allowed_value_is_used(setting: str, value: Any, attribute: str, expected: Any) -> None:
    assert getattr(configured(**{setting: value}), attribute) == expected


def test_tables_of_values_have_every_setting() -> None:
    assert {row[0] for row in ALLOWED} == REFUSED.keys() == SETTINGS.keys()


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("redbeat_redis_url", "http://user:hunter2@h"),
        ("redbeat_redis_url", "user:hunter2@h"),
        ("redbeat_redis_url", "redis://:hunter2@h:1/abc"),
        ("redbeat_redis_url", "redis://user:hunter2@h/1x"),
        ("redbeat_redis_url", "rediss://:more/hunter2@h/abc?password=hunter2"),
        ("redbeat_redis_url", ["redis://:hunter2@h"]),
        ("redbeat_redis_options", {"password": "hunter2", "retry_period": -5}),
        ("redbeat_redis_use_ssl", "hunter2"),
        ("broker_use_ssl", "hunter2"),
        ("broker_transport_options", {"sentinel_kwargs": "hunter2", "retry_period": "hunter2"}),
    ],
)
def test_error_shows_no_secret(setting: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=setting) as caught:
        get_redis(memory_app(**{"broker_url": REDIS, setting: value}))
    shown = "".join(traceback.format_exception(caught.value, chain=True))
    assert "hunter2" not in shown + repr(caught.value)


@pytest.mark.parametrize("password", ["pass", "p:ss", "p#ss", "p/ss", "p;ss", "p?ss", "p@ss", "p[ss", "%2F"])
@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("redis://:{}@h:6379/0", "redis://:**@h:6379/0"),
        ("rediss://user:{}@h/0?ssl_cert_reqs=none", "rediss://user:**@h/0?ssl_cert_reqs=none"),
        ("sentinel://:{0}@a:1;sentinel://:{0}@b:2/1", "sentinel://:**@a:1;sentinel://:**@b:2/1"),
        ("sentinel://:{}@a:1;b:2", "sentinel://:**@a:1;b:2"),
    ],
)
def test_password_is_masked_in_a_badly_quoted_url(password: str, template: str, expected: str) -> None:
    assert sanitize_url(template.format(password)) == expected


@pytest.mark.parametrize(
    ("setting", "nearest"),
    [
        ("redbeat_lock_timout", "did you mean redbeat_lock_timeout?"),
        ("REDBEAT_KEYPREFIX", "did you mean redbeat_key_prefix?"),
        ("redbeat_zzzzzzzzzzzzzzzzzz", "RedBeat has no such setting."),
    ],
)
def test_unknown_setting_is_one_warning_with_the_nearest_name(
    caplog: pytest.LogCaptureFixture, setting: str, nearest: str
) -> None:
    app = configured().app
    app.conf[setting] = 1
    with caplog.at_level(logging.WARNING, "celery.beat"):
        assert ensure_conf(app) is ensure_conf(app) is app.redbeat_conf
        assert caplog.records == []  # beat's banner reads the configuration before there is a log
        for _ in range(2):
            ensure_conf(app).warn_of_unknown()
    assert [record.getMessage() for record in caplog.records] == [
        f"beat: Unknown setting {setting.lower()} is ignored; {nearest}"
    ]


def test_exampleconf_has_every_setting_with_its_default() -> None:
    source = (ROOT / "exampleconf.py").read_text("utf-8")
    shown = dict(re.findall(r"^#? ?(redbeat_\w+) = (.+)$", source, re.MULTILINE))
    defaults = {name: setting.default for name, setting in SETTINGS.items()}
    defaults["redbeat_lock_key"] = "redbeat::lock"  # it depends on the prefix
    assert {name: eval(text) for name, text in shown.items()} == defaults


@pytest.mark.parametrize(("setting", "value"), [(name, value) for name in REFUSED for value in REFUSED[name]])
def test_refused_value_is_an_error_that_names_setting_and_value(setting: str, value: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        configured(**{setting: value})
    assert caught.value.setting == setting
    assert SETTINGS[setting].is_secret or repr(value) in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://h:1/0", "redis://h:1/0"),
        ("redis://user@h", "redis://user@h"),
        ("redis://h?password=hunter2&db=1", "redis://h?password=**&db=1"),
        ("rediss://h:1/2?db=1&SSL_Password=hunter2", "rediss://h:1/2?db=1&SSL_Password=**"),
        ("redis://h?sentinel_password=hunter2", "redis://h?sentinel_password=**"),
        ("mssql+pyodbc://h/db?a=b&odbc_connect=PWD%3Dhunter2", "mssql+pyodbc://h/db?a=b&odbc_connect=**"),
        ("mysql://h/db?passwd=hunter2&pwd=hunter2", "mysql://h/db?passwd=**&pwd=**"),
    ],
)
def test_url_is_shown_but_for_passwords(url: str, shown: str) -> None:
    assert sanitize_url(url) == shown


@pytest.mark.parametrize("name", ["lock_key", "redbeat_lock_key", "REDBEAT_LOCK_KEY"])
def test_setting_is_read_by_the_methods_of_2x(name: str) -> None:
    config = configured(redbeat_lock_key="mine")
    assert config.is_key_in_conf(name) is name.lower().startswith("redbeat_")
    assert config.either_or(name, "other") == ("mine" if config.is_key_in_conf(name) else "other")
    assert config.schedule == config.app.conf.beat_schedule


# -- sources


GIVEN = {
    "broker_url": REDIS, "redbeat_redis_url": "redis://127.0.0.1:1/1",
    "redbeat_redis_options": {"retry_period": 3}, "redbeat_redis_use_ssl": True, "redbeat_key_prefix": "app:",
    "redbeat_lock_key": None, "redbeat_lock_timeout": 77, "redbeat_key_expiry_check": "warn",
    "redbeat_batch_size": 7,
}  # fmt: skip
UPPER = {name.upper(): value for name, value in GIVEN.items()}
IN_NAMESPACE = {f"CELERY_{name}": value for name, value in UPPER.items()}
OWN = {name: value for name, value in GIVEN.items() if name.startswith("redbeat_")}


def values(app: Celery) -> dict[str, Any]:
    return {**vars(RedBeatConfig(app)), "app": None, "_explicit": None}


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
    "celery 3": lambda: from_object(UPPER),
    "mixed case": lambda: from_object({"broker_url": REDIS, **{name.title(): OWN[name] for name in OWN}}),
    "namespace and plain": lambda: given_also(from_object(IN_NAMESPACE, namespace="CELERY"), OWN),
    "attributes": lambda: given_also(bare_app(), GIVEN),
}


@pytest.mark.parametrize("variable", [None, "CELERY_BROKER_URL"])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_gives_the_same_configuration(
    spelling: str, variable: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if variable is not None:  # `celery -b URL` sets it
        monkeypatch.setenv(variable, REDIS)
    expected = values(from_object(GIVEN))
    assert (expected["lock_key"], expected["batch_size"]) == (None, 7)
    assert values(SPELLINGS[spelling]()) == expected


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"broker_url": "redis://a", "redbeat_redis_url": "redis://b"}, "redis://b"),
        ({"broker_url": ["redis://a", "redis://b"]}, "redis://a;redis://b"),
        ({"broker_url": "", "broker_write_url": "redis://w", "broker_read_url": "redis://r"}, "redis://w"),
    ],
)
def test_redis_url_is_that_of_the_broker_by_default(settings: dict[str, Any], expected: str) -> None:
    assert configured(**settings).redis_url == expected


@pytest.mark.parametrize("url", ["", "amqp://user:hunter2@rabbit//"])
def test_broker_other_than_redis_needs_redbeat_redis_url(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^redbeat_redis_url .*'amqp://") as caught:
        build_client(configured(broker_url=url))
    assert "hunter2" not in str(caught.value)


def test_broker_options_are_taken_over_unless_there_are_own_ones() -> None:
    known = {"retry_period": 5, "sentinel_kwargs": {"password": "x"}}
    of_broker = {**known, "master_name": "main", "visibility_timeout": 3600, "global_keyprefix": "x"}
    taken = configured(broker_transport_options=of_broker).redbeat_redis_options
    assert taken == {**known, "service_name": "main"}
    own = {"socket_timeout": 1, "master_name": "main"}
    config = configured(broker_transport_options=of_broker, redbeat_redis_options=own)
    assert config.redbeat_redis_options == {"socket_timeout": 1, "service_name": "main"}
    assert own == {"socket_timeout": 1, "master_name": "main"}


@pytest.mark.parametrize(
    ("broker", "expected"),
    [("rediss://h", {"ca": 1}), (["rediss://h"], {"ca": 1}), ("amqps://h", False), ("memory://", False)],
)
def test_broker_use_ssl_is_taken_over_from_redis_brokers_only(broker: Any, expected: Any) -> None:
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
def test_cluster_has_a_prefix_with_a_hash_tag(cluster: dict[str, Any]) -> None:
    config = configured(**cluster)
    assert config.is_cluster
    assert (config.key_prefix, config.lock_key) == ("{redbeat}:", "{redbeat}::lock")
    mine = configured(redbeat_key_prefix="my{app}:", **cluster)
    assert mine.schedule_key == "my{app}::schedule"
    for prefix in ("redbeat:", "{}redbeat:", "}redbeat{:"):
        with pytest.raises(ConfigurationError, match="hash tag") as caught:
            configured(redbeat_key_prefix=prefix, **cluster)
        assert caught.value.setting == "redbeat_key_prefix"


# -- times that follow from the lock


SEED = random.randrange(10**9)


def timings() -> list[Timing]:
    print(f"seed {SEED}")
    rng = random.Random(SEED)
    locks = [MIN_LOCK_SECONDS, 1.5, 2, 2.9, 3, 5, 7.9, 8, 10, 60, 1500, 10**9]
    locks += [10 ** rng.uniform(0, 9) for _ in range(2_000)]
    takeovers = [None, MIN_TAKEOVER_SECONDS, 8, 10**9, MIN_TAKEOVER_SECONDS * 10 ** rng.uniform(0, 8)]
    return [Timing(lock, takeover) for lock in locks for takeover in takeovers]


def test_times_keep_their_order_for_every_lock() -> None:
    for timing in timings():
        lock, renewal = timing.lock_seconds, timing.renewal_seconds
        may_be_replaced = timing.replaced_after_seconds
        assert 3 * renewal < lock, timing
        assert renewal < timing.fresh_seconds <= may_be_replaced / 2, timing
        assert timing.slack_seconds < renewal, timing
        assert renewal + timing.look_seconds + timing.slack_seconds < may_be_replaced, timing
        assert 2 * timing.look_seconds <= timing.look_gap_seconds <= may_be_replaced / 2, timing
        assert 3 * timing.look_seconds < timing.stuck_seconds, timing
        for wanted in (0.1, 10, 3600):
            assert timing.fresh_seconds + timing.publish_seconds(wanted) < lock, timing
            assert min(timing.publish_seconds(wanted), CONNECT_SECONDS) < timing.stuck_seconds, timing


@pytest.mark.parametrize(("lock_seconds", "expected"), [(1, (0.25, 0.5, 0.25, 0.5)), (1500, (2, 4, 1, 4))])
def test_times_shrink_with_short_locks_only(lock_seconds: float, expected: tuple[float, ...]) -> None:
    timing = Timing(lock_seconds, takeover_seconds=8)
    found = (timing.renewal_seconds, timing.fresh_seconds, timing.look_seconds, timing.look_gap_seconds)
    assert found == expected
