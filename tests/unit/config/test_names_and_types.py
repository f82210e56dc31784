"""Values from users: hints for misspelt names, refused types, unambiguous ping URLs."""

from __future__ import annotations

import json
import random
from typing import Any
from urllib.parse import urlsplit

import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.config.config import ensure_conf
from redbeat.config.ping_urls import MAX_URL, mask_ping_url, parse_ping_host, parse_ping_url
from redbeat.config.suggestions import did_you_mean, find_typos
from redbeat.decoder import RedBeatJSONDecoder
from redbeat.errors import EntryError
from redbeat.policy.policy import FIELDS, NO_POLICY
from redbeat.scheduler.decisions import Send
from redbeat.scheduler.planner import Planner
from redbeat.scheduler.reports import Reports
from tests.support.fetched import fetched

INTERVAL = {"__type__": "interval", "every": 60}


def entry(app: Celery, **fields: Any) -> RedBeatSchedulerEntry:
    return RedBeatSchedulerEntry(**{"name": "x", "task": "t", "schedule": 60, "app": app, **fields})


# -- hints


@pytest.mark.parametrize(("name", "hint"), [("jiter", "Did you mean jitter"), ("zzz", "")])
def test_unknown_field_of_an_entry_or_a_policy_is_refused_with_the_nearest(
    app: Celery, name: str, hint: str
) -> None:
    made = entry(app)
    for give in (lambda: entry(app, **{name: 1}), lambda: made.set_policy({"jitter": 5, name: 1})):
        with pytest.raises(EntryError, match=f"'{name}'.*{hint}") as caught:
            give()
        assert ("Did you mean" in str(caught.value)) is bool(hint)
    assert made.policy == NO_POLICY


def run_of(
    app: Celery,
    name: str = "x",
    policy: dict[str, Any] | None = None,
    extra: dict[str, Any] | None = None,
    reports: Reports | None = None,
) -> Send:
    """Plan a run of an entry with these fields in Redis."""
    reports = reports or Reports(ensure_conf(app))
    definition = {"task": "t", "schedule": INTERVAL, **(extra or {})}
    text = None if policy is None else json.dumps(policy)
    due_entry = fetched(f"redbeat:{name}", "1.5", json.dumps(definition), policy=text)
    run = Planner(app, reports=reports).plan(due_entry, 1_800_000_000)
    assert isinstance(run, Send)
    return run


@pytest.mark.parametrize(
    ("schedule", "typos"),
    [
        ({"__type__": "crontab", "Hour": "1"}, "Hour (did you mean hour?)"),
        ({"__type__": "rrule", "freq": 3, "byweekdays": [1]}, "byweekdays (did you mean byweekday?)"),
    ],
)
def test_typo_in_a_stored_schedule_is_found_with_the_nearest(schedule: dict[str, Any], typos: str) -> None:
    assert json.loads(json.dumps(schedule), cls=RedBeatJSONDecoder).typos == typos


def test_typos_of_a_stored_entry_are_one_warning_for_each_entry_and_news(
    app: Celery, caplog: pytest.LogCaptureFixture
) -> None:
    reports, rule = Reports(ensure_conf(app)), {**INTERVAL, "relativ": True}
    for name in ("x", "x", "y", "x", "y"):
        extra = {"max_run": 1, "schedule": rule}
        run_of(app, name, policy={"jiter": 5}, extra=extra, reports=reports)
    assert [f"entry {name} has" in one for name, one in zip("xy", caplog.messages, strict=True)] == [True] * 2
    for typo in ("jiter (did you mean jitter?)", "max_run (did you mean max_runs?)", "relativ (did you"):
        assert typo in caplog.messages[0]
    run_of(app, "x", policy={"jittr": 1}, reports=reports)
    assert len(caplog.messages) == 3


@pytest.mark.parametrize(
    "keys", [{}, {"tenant": "blue", "": 1, "tags": []}, {"jitter": 5, "timezone": "UTC"}]
)
@pytest.mark.parametrize("rule", [INTERVAL, {"__type__": "crontab"}, {"__type__": "rrule", "freq": 3}])
def test_known_and_foreign_keys_of_a_stored_entry_are_not_reported(
    app: Celery, caplog: pytest.LogCaptureFixture, rule: dict[str, Any], keys: dict[str, Any]
) -> None:
    run_of(app, policy=keys, extra={**keys, "schedule": {**keys, **rule}})
    assert not caplog.records


def test_names_are_compared_up_to_a_length_and_a_number() -> None:
    assert did_you_mean("x" * 64 + "y" * 10_000_000, ["x" * 64]) == f" Did you mean {'x' * 64}?"
    assert find_typos(["x" * 63], ["x" * 64]) == f"{'x' * 63} (did you mean {'x' * 64}?)"
    assert find_typos(["x" * 65], ["x" * 64]) == ""
    assert find_typos(["jitter" * 2_000_000, "jiter"], FIELDS) == "jiter (did you mean jitter?)"
    foreign = [f"{number}" for number in range(20)]
    assert find_typos([*foreign[:19], "jiter"], FIELDS) == "jiter (did you mean jitter?)"
    assert find_typos([*foreign, "jiter"], FIELDS) == ""


# -- wrong types


@pytest.mark.parametrize(
    "fields",
    [
        *({"schedule": every} for every in (float("inf"), 10**20)),
        *({"last_run_at": value} for value in ("x", [1], "x" * 10**6)),
        *({"total_run_count": value} for value in ("x", 1.5, True)),
    ],
    ids=lambda fields: str(fields)[:40],
)
def test_wrong_type_of_an_entry_is_refused_by_its_field(app: Celery, fields: dict[str, Any]) -> None:
    with pytest.raises(EntryError, match=f"^x: {next(iter(fields))}") as caught:
        entry(app, **fields)
    assert len(str(caught.value)) < 200


# -- ping URLs


#: text, to its service, target and mask
URLS = {
    "https://hc-ping.com/abc-123": ("https://hc-ping.com", "/abc-123", "https://hc-ping.com/**"),
    "HTTP://Pings.Local:8000/a/b?c=d": ("http://pings.local:8000", "/a/b?c=d", "http://pings.local:8000/**"),
    "https://h": ("https://h", "/", "https://h/**"),
    "https://h.:443/x": ("https://h", "/x", "https://h/**"),
    "https://h?rid=1": ("https://h", "/?rid=1", "https://h/**"),
    "http://[::1]:9/x": ("http://[::1]:9", "/x", "http://[::1]:9/**"),
    "http://127.0.0.1/a@b": ("http://127.0.0.1", "/a@b", "http://127.0.0.1/**"),
}


#: texts that are not a URL, or that programs read differently
NO_URLS: list[object] = [
    "", "hc-ping.com/x", "//hc-ping.com/x", "ftp://h/x", "file:///etc/passwd", "https:/h/x", "https:h", "https://",
    "https:///x", "http://good@evil/", "http://good:80@evil/", "http://good.example\\@evil/",
    "http://evil\\.good.example/", "http://good.example#@evil/", "http://good/#x", "http://good evil/",
    "http://good/a b", "http://good/\r\nHost: evil", "http://good\r\n/", "http://good/\n", "\nhttp://good/",
    "http://good/x\n", "http://good/\x00", "http://good\x00.evil/", "http://good\t/", "http://good:99999/",
    "http://good:0/", "http://good:/", "http://good:80:90/", "http://go%6fd/", "http://g\u00f6od/", "http://g\u2024d/",
    "http\u017f://good/", "http://\u212aelvin/", "http://[::1/", "http://::1/", "http://[1]/", "http://.good/",
    "http://a..b/", "http://-good/", "http://good/\u2028", "http://good/\udc80", "http://good/'\"", "http://good/<x>",
    "http://good/**", "http://" + "a" * 64 + "/", "http://h/" + "x" * MAX_URL, None, 5, b"http://good/", ["http://h"],
    "http://good/x`", "http://good/{x}", "http://good|evil/", "http://*.good/", "javascript:alert(1)", "http://good;evil/",
]  # fmt: skip


@pytest.mark.parametrize("text", URLS)
def test_ping_url_has_a_service_a_target_and_a_mask(text: str) -> None:
    service, target, masked = URLS[text]
    url = parse_ping_url(text)
    assert (url.service, url.target, url.masked) == (service, target, masked)
    assert mask_ping_url(text) == masked
    assert urlsplit(url.followed_by("fail").target).path == (urlsplit(target).path.rstrip("/") + "/fail")


@pytest.mark.parametrize("text", NO_URLS, ids=lambda text: ascii(text)[:40])
def test_ambiguous_ping_url_is_refused_and_not_shown(text: object) -> None:
    with pytest.raises(ValueError, match=r"^(must|its port|is one that was masked)") as caught:
        parse_ping_url(text)
    assert "evil" not in str(caught.value)
    assert mask_ping_url(text) == (None if text is None else "**")


def test_random_ping_url_is_refused_or_parsed_as_the_standard_library_does(chance: random.Random) -> None:
    letters = "ab.:/@\\#?[]%20\r\n\t *-_\u017f\u3002"
    passed = 0
    for _ in range(20_000):
        text = "http://" + "".join(chance.choices(letters, k=chance.randint(1, 8)))
        try:
            url = parse_ping_url(text)
        except ValueError:
            continue
        passed += 1
        usual = urlsplit(text)
        assert (usual.hostname or "").removesuffix(".") == url.host, text
        assert not usual.username
        assert (usual.port or 80) == url.port
    assert passed > 100


#: host, to URLs and whether it allows them
HOSTS = {
    "hc-ping.com": {
        "https://hc-ping.com/x": True, "http://HC-PING.com:80/x": True, "https://hc-ping.com./x": True,
        "https://hc-ping.com:8443/x": False, "http://hc-ping.com:443/x": False,
        "https://a.hc-ping.com/x": False,
        "https://hc-ping.com.evil.org/x": False, "https://evilhc-ping.com/x": False,
        "http://127.0.0.1/hc-ping.com": False,
    },
    "pings.local:8000": {
        "http://pings.local:8000": True, "https://pings.local:8000": True, "http://pings.local": False,
    },
    "*.Example.com": {
        "https://a.example.com": True, "https://a.b.EXAMPLE.com": True, "https://example.com": False,
        "https://evilexample.com": False, "https://a.example.com:8443": False,
        "https://a.example.com.evil": False,
    },
    "[::1]:9": {"http://[0:0::1]:9/": True, "http://[::2]:9/": False},
    "127.0.0.1": {
        "http://127.0.0.1/": True, "http://2130706433/": False, "http://127.1/": False,
        "http://localhost/": False,
    },
}  # fmt: skip


@pytest.mark.parametrize("text", HOSTS)
def test_ping_host_allows_itself_and_no_lookalike(text: str) -> None:
    host = parse_ping_host(text)
    assert {url: host.allows(parse_ping_url(url)) for url in HOSTS[text]} == HOSTS[text]
