"""`celery redbeat` writes down who changes what, before it is changed; `audit` shows it."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import click
import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.cli import confirmation
from redbeat.cli.session import INTERRUPTED
from redbeat.cli.shell import host_name
from redbeat.entries.audit import MAX_NAMES, AuditRecord, audited, find_records
from redbeat.errors import StoreCorrupt
from redbeat.manifest import plan
from redbeat.store.audit import MAX_RECORDS, Audit
from redbeat.store.store import Store
from tests.integration.cli.conftest import Call
from tests.support.command_line import call
from tests.support.hostile import HOSTILE, find_orders
from tests.support.logs import warnings_in
from tests.support.progress import Progress

AUDIT = "redbeat::audit"


@pytest.fixture(autouse=True)
def user(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("SUDO_USER", "ann")
    return "ann"


def records(app: Celery) -> list[AuditRecord]:
    """All of them, the oldest first."""
    return find_records(app)[::-1]


def test_each_command_that_changes_something_writes_one_record(
    ask: Call, app: Celery, client: redis.Redis, tmp_path: Path
) -> None:
    progress = Progress(app, client)
    file = tmp_path / "file.json"
    file.write_text(json.dumps({"owner": "me", "entries": {"filed": {"task": "t", "schedule": 60}}}))
    exported = tmp_path / "exported.json"
    url = ["--ping-url", "https://hc.example/abc"]
    made = ["add", "a", "echo", "--every", "1h", "--kwargs", '{"x": 1, "password": "topsecret"}', *url]

    def calls() -> Any:
        yield made, "add", ["a"], {"task": "echo", "kwargs": {"x": 1, "password": "**"}}
        yield ["set", "a", "--jitter", "2m"], "set", ["a"], {"jitter": 120.0}
        yield ["set", "--match", "a*", "--queue", "slow", "--yes"], "set", ["a"], {"queue": "slow"}
        yield ["pause", "a", "--note", "why", "--until", "2h"], "pause", ["a"], {"note": "why", "until": "2h"}
        yield ["resume", "--match", "*", "--yes"], "resume", ["a"], {"match": "*"}
        yield ["trigger", "a", "--args", "[1]"], "trigger", ["a"], {"args": [1]}
        past = ["--from", "2001-01-01T00:30", "--to", "2001-01-01T02:30", "--yes"]
        yield ["backfill", "a", *past], "backfill", ["a"], {"from": "2001-01-01T00:30:00+00:00"}
        progress.end(progress.started("a", "one", 1000.0), "failed")
        yield ["rerun", "a"], "rerun", ["a"], {"task_id": "one"}
        progress.end(progress.started("a", "two", 2000.0), "failed")
        yield ["rerun", "--all-failed", "--since", "1d", "--yes"], "rerun", ["a"], {"runs": 1}
        progress.started("a", "three", 3000.0)
        yield ["runs", "a", "--give-up", "--yes"], "runs --give-up", ["a"], {}
        yield ["calendar", "set", "free", "2026-12-25=x"], "calendar set", ["free"], {}
        days = tmp_path / "days.txt"
        days.write_text("2026-12-26 y")
        yield ["calendar", "import", "free", str(days), "--add"], "calendar import", ["free"], {"days": 1}
        yield ["calendar", "delete", "free", "--yes"], "calendar delete", ["free"], {}
        yield ["apply", str(file), "--yes"], "apply", ["filed"], {"file": str(file), "added": 1}
        ask("export", str(exported))
        ask("delete", "filed", "--yes")
        yield ["import", str(exported), "--replace", "--yes"], "import", ["filed", "a"], {"added": 1}
        yield ["delete", "a", "--yes"], "delete", ["a"], {}
        client.sadd("redbeat::statics", "old")
        yield ["purge", "--yes"], "purge", ["old"], {"static": 1}
        client.sadd("redbeat::statics", "older")
        yield ["doctor", "--fix"], "doctor --fix", ["older"], {}

    seen = 0
    for arguments, verb, names, details in calls():
        done = ask(*arguments, code=1) if verb == "doctor --fix" else ask(*arguments)
        first = [one for one in records(app)[seen:] if one.verb == verb]
        assert [(one.verb, list(one.names), one.outcome) for one in first] == [(verb, names, "")], done.output
        [record] = first
        assert (record.user, record.source, record.host) == ("ann", "cli", host_name())
        assert {name: record.details.get(name) for name in details} == details, verb
        seen = len(records(app))
    kept = str(client.xrange(AUDIT))
    assert "topsecret" not in kept
    assert "hc.example/abc" not in kept


def test_what_changes_nothing_writes_nothing(ask: Call, add: Callable[..., Any], app: Celery) -> None:
    add("a")
    for arguments, code in (
        (["set", "a", "--jitter", "1", "--dry-run"], 0),
        (["set", "none", "--jitter", "1"], 66),
        (["set", "a", "--start-time", "2031-01-01", "--end-time", "2030-01-01"], 64),
        (["set", "a", "--exclude", "none"], 64),
        (["add", "a", "echo", "--every", "1h"], 64),
        (["pause", "a", "--until", "2020-01-01"], 64),
        (["pause", "--match", "a*", "--dry-run"], 0),
        (["pause", "--match", "a*"], 64),  # nobody is there to say yes
        (["pause", "none"], 66),
        (["resume", "--match", "*", "--yes"], 0),  # none is paused
        (["delete", "a"], 64),
        (["delete", "--match", "b*", "--yes"], 66),
        (["trigger", "none"], 66),
        (["rerun", "a"], 64),
        (["rerun", "--all-failed", "--since", "1d", "--yes"], 0),
        (["runs", "a", "--give-up", "--yes"], 0),
        (["doctor", "--fix", "--dry-run"], 1),
        (["doctor", "--fix"], 1),
        (["purge", "--yes"], 0),
    ):
        ask(*arguments, code=code)
        assert records(app) == [], arguments


@pytest.mark.parametrize("typed", ["n", ""], ids=["no", "leaves"])
def test_somebody_who_says_no_or_leaves_writes_nothing(
    add: Callable[..., Any], app: Celery, monkeypatch: pytest.MonkeyPatch, typed: str
) -> None:
    add("a")
    monkeypatch.setattr(confirmation, "is_somebody_there", lambda: True)
    if typed:
        monkeypatch.setattr(click, "confirm", lambda *_args, **_options: typed == "y")
    assert call(app, "delete", "a").exit_code == (1 if typed else INTERRUPTED)
    assert records(app) == []


def test_a_change_that_fails_says_so_in_a_second_record(
    ask: Call, add: Callable[..., Any], app: Celery, client: redis.Redis
) -> None:
    add("a")
    client.hset("redbeat:a", "definition", "no json")
    ask("resume", "a", code=64)
    [first, second] = records(app)
    assert (first.outcome, second.of) == ("", first.id)
    assert second.outcome.startswith("failed: redbeat:a: ")
    shown = ask("audit", columns=300).stdout
    assert shown.count("resume") == 2
    assert "failed: redbeat:a: " in shown


def test_the_record_is_there_before_the_change_and_a_second_one_when_it_is_interrupted(
    app: Celery, client: redis.Redis
) -> None:
    def change() -> None:
        with audited(app, "bob", "web", "edit", ["a"], host="10.0.0.1"):
            assert [one.verb for one in records(app)] == ["edit"]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        change()
    [first, second] = records(app)
    assert (first.host, first.outcome, second.outcome) == ("10.0.0.1", "", "failed: interrupted")


def test_no_change_is_made_before_its_record_is_there(
    ask: Call, add: Callable[..., Any], client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Any, Any]] = []

    def look() -> None:
        seen.append((client.hget("redbeat:a", "definition"), client.xlen(AUDIT)))

    changes = (["set", "a", "--queue", "q"], ["pause", "--match", "*", "--yes"], ["delete", "a", "--yes"])
    for arguments in changes:
        client.delete(AUDIT)
        add("a")
        before, seen[:] = client.hget("redbeat:a", "definition"), []
        with monkeypatch.context() as patched:
            patched.setattr(Store, "on_round_trip", staticmethod(look))
            ask(*arguments)
        assert {definition == before for definition, _ in seen} == {True, False}
        assert [seen for seen in seen if seen[0] != before and not seen[1]] == []


def test_a_file_whose_plan_changes_is_written_down_once_more(
    add: Callable[..., Any], app: Celery, client: redis.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file.json"
    file.write_text(json.dumps({"owner": "me", "entries": {"a": {"task": "t", "schedule": 60}}}))
    commit, interferes = plan.commit, iter([lambda: client.hset("redbeat:a", "definition", '{"task": "x"}')])

    def commit_late(made: plan.Plan, *args: Any) -> Any:
        next(interferes, lambda: None)()
        return commit(made, *args)

    monkeypatch.setattr(plan, "commit", commit_late)
    assert call(app, "apply", str(file), "--yes", "--take-over").exit_code == 0
    assert [(one.verb, one.names, bool(one.outcome)) for one in records(app)] == [
        ("apply", ("a",), False),
        ("apply", ("a",), True),
        ("apply", ("a",), False),
    ]


def test_of_many_entries_there_is_one_record_with_their_number_and_the_first_hundred(
    ask: Call, app: Celery, client: redis.Redis
) -> None:
    RedBeatSchedulerEntry.save_many(
        [RedBeatSchedulerEntry(f"n{number:03}", "echo", 60, app=app) for number in range(150)]
    )
    ask("pause", "--match", "n*", "--yes")
    [record] = records(app)
    assert (record.count, len(record.names), record.names[0]) == (150, MAX_NAMES, "n000")
    assert len(find_records(app, name="n000")) == len(find_records(app, name="n149")) == 1, "by its pattern"
    assert find_records(app, name="m") == []
    assert "and 145 more" in ask("audit", "n149", columns=300).stdout


def test_long_names_and_details_are_cut(app: Celery, client: redis.Redis) -> None:
    details = {f"{number}": ["y" * 3_000] for number in range(50)} | {"bad": object(), "deep": {1: {2}}}
    with audited(app, "u" * 1000, "cli", "set", ["x" * 100_000] * 100, details):
        pass
    [record] = records(app)
    assert client.memory_usage(AUDIT, samples=0) < 30_000
    assert record.count == 100
    assert find_records(app, name="x" * 100_000) == [record]


def test_it_is_filtered_and_paged(ask: Call, app: Celery) -> None:
    store = Audit(Store(app))
    for number in range(7):
        verb = "calendar set" if number % 2 else "set"
        store.add(AuditRecord(f"u{number}", "cli", verb, ("a" if number < 3 else "b",), 1))

    def users(*arguments: str) -> list[str]:
        return [json.loads(line)["user"] for line in ask("audit", "--json", *arguments).stdout.splitlines()]

    assert users() == [f"u{number}" for number in range(6, -1, -1)]
    assert users("a") == ["u2", "u1", "u0"]
    assert users("--verb", "calendar") == ["u5", "u3", "u1"]
    assert users("--verb", "c*t", "--limit", "1") == ["u5"]
    assert users("--user", "u[56]") == ["u6", "u5"]
    assert users("--since", "2099-01-01") == []
    first = store.read(count=3)
    rest = store.read(first[-1].id, 10)
    assert [one.user for one in first + rest] == [f"u{number}" for number in range(6, -1, -1)]
    assert store.read("0-0") == []
    assert [one.user for one in store.read("9999999999999-0", 1)] == ["u6"]
    for bad in ("x", "1-x", "-", "1-2-3", f"{2**64}", "-1-1"):
        with pytest.raises(ValueError, match="no id"):
            store.read(bad)
    assert abs(first[0].at - datetime.now(timezone.utc)).total_seconds() < 60


def test_pages_join_where_many_changes_fall_into_one_millisecond(app: Celery, client: redis.Redis) -> None:
    for number in range(12):
        client.xadd(AUDIT, {"user": f"{number}", "verb": "set"}, id=f"5-{number}" if number else "4-1")
    found = [one.user for page in (1, 2, 5) for one in _by_pages(app, page)]
    assert found == [f"{number}" for number in range(11, -1, -1)] * 3


def _by_pages(app: Celery, size: int) -> list[AuditRecord]:
    found: list[AuditRecord] = []
    while page := Audit(Store(app)).read(found[-1].id if found else None, size):
        found += page
    return found


def test_it_is_capped(app: Celery, client: redis.Redis) -> None:
    with client.pipeline(transaction=False) as pipeline:
        for _ in range(MAX_RECORDS + 500):
            pipeline.xadd(AUDIT, {"verb": "set"})
        pipeline.execute()
    with audited(app, "ann", "cli", "set", ["a"]):
        pass
    assert MAX_RECORDS <= client.xlen(AUDIT) < MAX_RECORDS + 300
    assert find_records(app, limit=1)[0].user == "ann"


def test_what_others_write_there_is_shown_as_far_as_it_can_be_and_gives_no_orders(
    ask: Call, app: Celery, client: redis.Redis
) -> None:
    client.xadd(AUDIT, {b"\xff": b"\xff", "names": "{oops", "details": "[1]", "count": "many"})
    client.xadd(AUDIT, {"names": '["a", 5, null]', "details": "[" * 5000, "count": "9" * 5000})
    client.xadd(AUDIT, {"user": "x"}, id=f"{2**63}-1")
    assert ask("audit", "--since", "1d", "--limit", "0").stdout.count("9999-") == 1
    for more in (["--json"], []):
        for columns in (None, 80):
            shown = ask("audit", *more, columns=columns).stdout
            assert find_orders(shown) == []
    with audited(app, HOSTILE, "cli", HOSTILE, [HOSTILE, "half\udc80"], {HOSTILE: HOSTILE}, host=HOSTILE):
        pass


def test_a_change_isn_t_made_where_the_audit_list_is_something_else(
    ask: Call, add: Callable[..., Any], app: Celery, client: redis.Redis
) -> None:
    add("a")
    client.set(AUDIT, "x")
    assert "redbeat::audit holds something that is no stream" in ask("delete", "a", "--yes", code=75).stderr
    assert client.exists("redbeat:a")
    with pytest.raises(StoreCorrupt):
        find_records(app)


def test_where_redis_has_no_memory_left_removing_still_works(
    ask: Call, add: Callable[..., Any], app: Celery, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    add("a")
    client.config_set("maxmemory", 1)
    try:
        ask("delete", "a", "--yes")
    finally:
        client.config_set("maxmemory", 0)
    assert not client.exists("redbeat:a")
    assert [text for text in warnings_in(caplog) if "isn't in the audit list" in text]
