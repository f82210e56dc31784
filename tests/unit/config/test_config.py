"""What each setting may be, what it is when unset, and what is said about a wrong value."""

from __future__ import annotations

import logging
import re
import traceback
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from redbeat.config import SETTINGS, RedBeatConfig, ensure_conf
from redbeat.config.address import Address
from redbeat.config.masking import sanitize_url
from redbeat.connection import get_redis
from redbeat.errors import ConfigurationError
from tests.support.ticks import memory_app

REDIS = "redis://127.0.0.1:1/0"
ROOT = Path(__file__).parents[3]

#: attribute of RedBeatConfig, value when nothing is set
DEFAULTS = {
    "key_prefix": "redbeat:", "schedule_key": "redbeat::schedule", "statics_key": "redbeat::statics",
    "shards": None, "lock_key": "redbeat::lock", "lock_timeout": None, "takeover_after": 8,
    "lock_lost": "exit", "redis_url": REDIS, "redis_use_ssl": False, "redbeat_redis_options": {},
    "key_expiry_check": "error",
    "batch_size": 500, "max_entry_bytes": 1_048_576, "message_cache_bytes": 67_108_864, "lookahead": 5,
}  # fmt: skip

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
    "redbeat_message_cache_bytes": [0, 1, 2**40],
    "redbeat_max_entry_bytes": [1000, 512 * 1024 * 1024],
    "redbeat_ping_url": [None, "https://hc-ping.com/abc"],
    "redbeat_ping_late_after": [1, 3600],
    "redbeat_ping_hosts": [(), ("hc-ping.com", "*.example.com", "[::1]:8000")],
    "redbeat_web_hosts": [(), ("redbeat.example.com", "*.example.com", "tower:8080", "[::1]:8555")],
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
    ("redbeat_statics_owner", "billing", "statics_owners", ("billing",)),
    ("redbeat_statics_owner", ["billing", "invoices"], "statics_owners", ("billing", "invoices")),
    ("redbeat_web_proxies", ["10.0.0.0/8", "unix"], "web_proxies", (ip_network("10.0.0.0/8"), "unix")),
    ("redbeat_shards", None, "shards", None),
    ("redbeat_shards", 1, "shards", 1),
    ("redbeat_shards", 4096, "shards", 4096),
    ("redbeat_http", None, "http", None),
    ("redbeat_http", "127.0.0.1:9808", "http", Address("127.0.0.1", 9808)),
    ("redbeat_http", "[::1]:9808", "http", Address("::1", 9808)),
    ("redbeat_http", "[fe80::1%eth0]:1", "http", Address("fe80::1%eth0", 1)),
    ("redbeat_http", "beat-1.example.com:0", "http", Address("beat-1.example.com", 0)),
    ("redbeat_http", "unix:/run/redbeat/beat.sock", "http", Address(path="/run/redbeat/beat.sock")),
    ("redbeat_http", "unix:///run/beat.sock", "http", Address(path="/run/beat.sock")),
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
    "redbeat_web_hosts": ["a.example", ["http://a"], ["a:b"], ["*"], ["*.*.a"], [5], 5, None, ["a b"], [""]],
    "redbeat_web_proxies": ["10.0.0.0/8", ["10.0.0.1/8"], ["proxy.local"], [5], 5, None, [""]],
    "redbeat_web_tasks": ["reports.*", [""], [5], 5, None],
    "redbeat_web_hide": ["*password*", [""], [5], 5, None],
    "redbeat_ping_hosts": ["https://hc-ping.com", ["*"], ["*.com"], ["h:0"], ["h/"], [5], 5, None, ["a b"]],
    "redbeat_misfire": ["never"],
    "redbeat_misfire_limit": [0, True],
    "redbeat_misfire_grace_time": [-1],
    "redbeat_batch_size": [0, 5001, 10.0, True],
    "redbeat_lookahead": [-1, 61, None, "61"],
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


def configured(**settings: Any) -> RedBeatConfig:
    app = Celery("test", set_as_current=False)
    app.conf.update({"broker_url": REDIS, **settings})
    return RedBeatConfig(app)


@pytest.mark.parametrize(("attribute", "expected"), DEFAULTS.items())
def test_an_attribute_of_2x_has_its_default(attribute: str, expected: Any) -> None:
    assert getattr(configured(), attribute) == expected


@pytest.mark.parametrize(("setting", "value", "attribute", "expected"), ALLOWED)
def test_an_allowed_value_is_used(setting: str, value: Any, attribute: str, expected: Any) -> None:
    assert getattr(configured(**{setting: value}), attribute) == expected


@pytest.mark.parametrize(("setting", "value"), [(name, value) for name in REFUSED for value in REFUSED[name]])
def test_a_wrong_value_is_refused_in_words(setting: str, value: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        configured(**{setting: value})
    message = str(caught.value)
    assert caught.value.setting == setting
    assert message.startswith(f"{setting}: ")
    assert SETTINGS[setting].allowed in message
    assert SETTINGS[setting].is_secret or repr(value) in message


def test_every_setting_is_tried_with_allowed_and_with_wrong_values() -> None:
    assert {row[0] for row in ALLOWED} == REFUSED.keys() == SETTINGS.keys()


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("redbeat_redis_url", "http://user:hunter2@h"),
        ("redbeat_redis_url", "user:hunter2@h"),
        ("redbeat_redis_url", ["redis://:hunter2@h"]),
        ("redbeat_redis_options", {"password": "hunter2", "retry_period": -5}),
        ("redbeat_redis_use_ssl", "hunter2"),
        ("broker_use_ssl", "hunter2"),
        ("broker_transport_options", {"sentinel_kwargs": "hunter2", "retry_period": "hunter2"}),
    ],
)
def test_an_error_shows_no_secret(setting: str, value: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        configured(**{setting: value})
    assert setting in str(caught.value)
    assert "hunter2" not in str(caught.value)


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
def test_a_password_is_masked_in_a_badly_quoted_url(password: str, template: str, expected: str) -> None:
    assert sanitize_url(template.format(password)) == expected


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://h:1/0", "redis://h:1/0"),
        ("unix:///tmp/x.sock?db=1", "unix:///tmp/x.sock?db=1"),
        ("redis://user@h", "redis://user@h"),
        ("redis://h?password=hunter2&db=1", "redis://h?password=**&db=1"),
        ("redis://h?db=1&password=hunter2", "redis://h?db=1&password=**"),
    ],
)
def test_a_url_is_shown_as_it_is_but_for_the_password(url: str, shown: str) -> None:
    assert sanitize_url(url) == shown


@pytest.mark.parametrize(
    "name", ["password", "Password", "PASSWORD", "ssl_password", "SSL_Password", "sentinel_password"]
)
@pytest.mark.parametrize("separator", ["?", "?db=1&"])
def test_a_password_in_the_query_of_a_url_is_masked(name: str, separator: str) -> None:
    masked = sanitize_url(f"rediss://h:1/2{separator}{name}=hunter2&ssl_cert_reqs=none")
    assert masked == f"rediss://h:1/2{separator}{name}=**&ssl_cert_reqs=none"


@pytest.mark.parametrize(
    "url",
    [
        "redis://:hunter2@h:1/abc", "redis://user:hunter2@h/1x", "redis://:hunter2@h/abc?password=hunter2",
        "redis://:hunter2/more@h:1/1", "rediss://:more/hunter2@h/abc",
    ],
)  # fmt: skip
def test_a_database_that_is_no_number_is_refused_without_the_password(url: str) -> None:
    with pytest.raises(ConfigurationError, match="redbeat_redis_url") as caught:
        get_redis(memory_app(redbeat_redis_url=url))
    shown = "".join(traceback.format_exception(caught.value, chain=True))
    assert "number" in str(caught.value)
    assert "hunter2" not in shown + repr(caught.value)


@pytest.mark.parametrize(
    ("setting", "nearest"),
    [
        ("redbeat_lock_timout", "did you mean redbeat_lock_timeout?"),
        ("REDBEAT_KEYPREFIX", "did you mean redbeat_key_prefix?"),
        ("redbeat_zzzzzzzzzzzzzzzzzz", "RedBeat has no such setting."),
    ],
)
def test_an_unknown_setting_is_warned_of_once_with_the_nearest_name(
    caplog: pytest.LogCaptureFixture, setting: str, nearest: str
) -> None:
    app = Celery("test", broker=REDIS, set_as_current=False)
    app.conf[setting] = 1
    with caplog.at_level(logging.WARNING, "celery.beat"):
        assert ensure_conf(app) is ensure_conf(app) is app.redbeat_conf
        assert caplog.records == []  # beat's banner reads the configuration before there is a log
        for _ in range(2):
            ensure_conf(app).warn_of_unknown()
    assert [record.getMessage() for record in caplog.records] == [
        f"beat: Unknown setting {setting.lower()} is ignored; {nearest}"
    ]


def test_known_settings_are_not_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    configured(redbeat_lock_timeout=5, redbeat_batch_size=1, beat_max_loop_interval=5)
    assert caplog.records == []


@pytest.mark.parametrize("name", ["lock_key", "redbeat_lock_key", "REDBEAT_LOCK_KEY"])
def test_2x_ways_to_ask_for_a_setting_work(name: str) -> None:
    config = configured(redbeat_lock_key="mine")
    assert config.is_key_in_conf(name) is name.lower().startswith("redbeat_")
    assert config.either_or(name, "other") == ("mine" if config.is_key_in_conf(name) else "other")
    assert config.schedule == config.app.conf.beat_schedule


def test_every_setting_is_a_declared_attribute_and_every_attribute_a_setting() -> None:
    of_the_app = {"app", "schedule_key", "statics_key"}
    attributes = {setting.attribute for setting in SETTINGS.values()}
    assert set(RedBeatConfig.__annotations__) == attributes | of_the_app
    assert vars(configured()).keys() >= attributes | of_the_app


def test_the_example_shows_every_setting_with_its_default() -> None:
    source = (ROOT / "exampleconf.py").read_text("utf-8")
    shown = dict(re.findall(r"^#? ?(redbeat_\w+) = (.+)$", source, re.MULTILINE))
    lock_key = {"redbeat_lock_key": "redbeat::lock"}  # its default depends on the prefix
    assert {name: eval(text) for name, text in shown.items()} == {
        name: lock_key.get(name, setting.default) for name, setting in SETTINGS.items()
    }


def test_the_documentation_renders_the_table_itself() -> None:
    page = (ROOT / "docs" / "configuration.rst").read_text("utf-8")
    directive = (ROOT / "docs" / "_ext" / "settings.py").read_text("utf-8")
    names = re.findall(r'add_directive\("([\w-]+)"', directive)
    assert any(f".. {name}::" in page for name in names)
    assert "SETTINGS" in directive
