"""The audit list, and tokens of the API."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from socket import gethostname
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.access import Right
from redbeat.entries.audit import MAX_NAMES, AuditRecord, find_records
from redbeat.errors import StoreCorrupt
from redbeat.store.audit import add_audit_record, read_audit_records
from redbeat.store.store import Store
from redbeat.store.tokens import add_token, find_token, read_tokens, revoke_tokens
from tests.integration.cli.conftest import Call
from tests.support.hostile import HOSTILE, find_orders
from tests.support.logs import warnings_in
from tests.support.progress import Progress

AUDIT = "redbeat::audit"


@pytest.fixture(autouse=True)
def user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_USER", "ann")


def records(app: Celery) -> list[AuditRecord]:
    """All of them, the oldest first."""
    return find_records(app)[::-1]


def test_every_changing_command_writes_one_audit_record(
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
        yield ["pause", "a", "--note", "why", "--until", "2h"], "pause", ["a"], {"note": "why"}
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
        assert (record.user, record.source, record.host) == ("ann", "cli", gethostname())
        assert {name: record.details.get(name) for name in details} == details, verb
        seen = len(records(app))
    kept = str(client.xrange(AUDIT))
    assert "topsecret" not in kept
    assert "hc.example/abc" not in kept


def test_command_that_changes_nothing_writes_no_audit_record(
    ask: Call, add: Callable[..., Any], app: Celery
) -> None:
    add("a")
    for arguments, code in (
        (["set", "a", "--jitter", "1", "--dry-run"], 0),
        (["set", "none", "--jitter", "1"], 66),
        (["set", "a", "--exclude", "none"], 64),
        (["add", "a", "echo", "--every", "1h"], 64),
        (["pause", "--match", "a*"], 64),  # there is no terminal to ask on
        (["resume", "--match", "*", "--yes"], 0),  # none is paused
        (["delete", "--match", "b*", "--yes"], 66),
        (["trigger", "none"], 66),
        (["rerun", "--all-failed", "--since", "1d", "--yes"], 0),
        (["runs", "a", "--give-up", "--yes"], 0),
        (["doctor", "--fix"], 1),
        (["purge", "--yes"], 0),
    ):
        ask(*arguments, code=code)
        assert records(app) == [], arguments


def test_audit_record_of_a_changed_field_has_its_former_value(
    ask: Call, add: Callable[..., Any], app: Celery
) -> None:
    add("a", jitter=5)
    ask("set", "a", "--jitter", "7")
    [record] = records(app)
    assert (record.before["jitter"], record.details["jitter"]) == (5, 7)


def test_audit_record_is_written_before_the_change(
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


def test_audit_record_of_many_entries_has_the_first_hundred_names(
    ask: Call, app: Celery, client: redis.Redis
) -> None:
    Entry.save_many([Entry(f"n{number:03}", "echo", 60, app=app) for number in range(150)])
    ask("pause", "--match", "n*", "--yes")
    [record] = records(app)
    assert (record.count, len(record.names), record.names[0]) == (150, MAX_NAMES, "n000")
    assert len(find_records(app, name="n000")) == len(find_records(app, name="n149")) == 1, "by its pattern"
    assert find_records(app, name="m") == []
    assert "and 145 more" in ask("audit", "n149", columns=300).stdout


def test_audit_list_is_filtered_and_paged(ask: Call, app: Celery) -> None:
    store = Store(app)
    for number in range(7):
        verb = "calendar set" if number % 2 else "set"
        add_audit_record(store, AuditRecord(f"u{number}", "cli", verb, ("a" if number < 3 else "b",), 1))

    def users(*arguments: str) -> list[str]:
        return [json.loads(line)["user"] for line in ask("audit", "--json", *arguments).stdout.splitlines()]

    assert users("a") == ["u2", "u1", "u0"]
    assert users("--verb", "c*t", "--limit", "1") == ["u5"]
    assert users("--user", "u[56]") == ["u6", "u5"]
    assert users("--since", "2099-01-01") == []
    first = read_audit_records(store, count=3)
    assert [one.user for one in read_audit_records(store, first[-1].id, 10)] == ["u3", "u2", "u1", "u0"]
    for bad in ("x", "1-x", f"{2**64}"):
        with pytest.raises(ValueError, match="not an id"):
            read_audit_records(store, bad)


def test_audit_key_of_another_type_refuses_changes(
    ask: Call, add: Callable[..., Any], app: Celery, client: redis.Redis
) -> None:
    add("a")
    client.set(AUDIT, "x")
    assert "redbeat::audit holds something that is no stream" in ask("delete", "a", "--yes", code=75).stderr
    assert client.exists("redbeat:a")
    with pytest.raises(StoreCorrupt):
        find_records(app)


def test_delete_works_without_memory_for_an_audit_record(
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


TOKENS = "redbeat::tokens"


@pytest.fixture
def store(app: Celery) -> Store:
    return Store(app)


def test_token_is_printed_once_and_valid_until_revoked(
    ask: Call, store: Store, app: Celery, client: redis.Redis
) -> None:
    done = ask("token", "add", "ci", "--right", "pause", "--right", "run")
    text = done.stdout.removesuffix("\n")
    assert re.fullmatch(r"rb_[a-z0-9]{8}_[\w-]{43}", text)
    found = find_token(store, text)
    assert found
    assert (found.name, found.created_by) == ("ci", "ann")
    assert found.rights == {Right.READ, Right.PAUSE, Right.RUN}
    assert found.expires_at
    assert abs((found.expires_at - datetime.now(timezone.utc)).total_seconds() / 86_400 - 90) < 0.1
    other = json.loads(ask("token", "add", "all", "--right", "admin", "--expires", "never", "--json").stdout)
    assert (other["rights"], other["expires_at"]) == (["admin"], None)
    shown = ask("token", "list").stdout + ask("token", "list", "--json").stdout
    ask("token", "revoke", "ci", code=64)  # there is no terminal to ask on
    ask("token", "revoke", "ci", "--yes")
    assert (find_token(store, text), [one and one.name for one in read_tokens(store).values()]) == (
        None,
        ["all"],
    )
    ask("token", "revoke", other["id"], "--yes")
    assert not client.exists(TOKENS)
    changes = [(one.verb, one.names) for one in records(app)]
    assert changes == [(f"token {verb}", (name,)) for verb in ("add", "revoke") for name in ("ci", "all")]
    kept = str(client.xrange(AUDIT)) + shown
    assert [one for one in (text, other["token"]) if one.split("_", 2)[2] in kept] == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["add", "ci", "--right", "read"], "There is a token 'ci' already"),
        (["add", "x", "--right", "root"], "'root' is not one of"),
        (["add", "x", "--right", "read", "--expires", "2020-01-01"], "expired already"),
        (["add", "x\ty", "--right", "read"], "no control characters"),
    ],
)
def test_invalid_token_is_refused(
    ask: Call, store: Store, app: Celery, arguments: list[str], said: str
) -> None:
    add_token(store, "ci", ["read"], None)
    assert said in ask("token", *arguments, code=64).stderr
    assert len(read_tokens(store)) == 1
    assert find_records(app) == []


def test_token_expires_by_the_server_clock(ask: Call, store: Store, client: redis.Redis) -> None:
    token, text = add_token(store, "ci", ["read"], datetime.now(timezone.utc) + timedelta(days=1))
    fields = json.loads(token.to_json())
    fields["expires_at"] = (datetime.now(timezone.utc) - timedelta(hours=1)).isoformat()
    client.hset(TOKENS, token.id, json.dumps(fields))
    assert find_token(store, text) is None
    assert "expired" in ask("token", "list").stdout
    assert revoke_tokens(store, "ci") == [token.id]


def test_token_with_another_secret_or_id_is_not_found(store: Store) -> None:
    (one, text), (other, _) = add_token(store, "a", ["read"], None), add_token(store, "b", ["admin"], None)
    secret = text[12:]
    assert find_token(store, text) == one
    for wrong in (f"rb_{other.id}_{secret}", f"rb_00000000_{secret}", f"rb_{one.id}_{secret[::-1]}", "", "x"):
        assert find_token(store, wrong) is None


def test_invalid_stored_token_is_ignored_and_can_be_revoked(
    ask: Call, store: Store, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    token, text = add_token(store, "ci", ["read"], None)
    client.hset(TOKENS, mapping={token.id: "{oops", HOSTILE: HOSTILE, "[bold]": "5"})
    client.hset(TOKENS, b"\xff", b"\xff")
    for _ in range(2):
        assert find_token(store, text) is None
        assert not any(read_tokens(store).values())
    assert len([one for one in warnings_in(caplog) if token.id in one]) == 1, "warned once"
    assert find_orders(caplog.text) == []
    ask("token", "revoke", token.id, "--yes")
    assert not client.hexists(TOKENS, token.id)
    hostile = {**json.loads(token.to_json()), "name": HOSTILE, "created_by": HOSTILE}
    client.hset(TOKENS, "12345678", json.dumps(hostile))
    assert find_orders(ask("token", "list").stdout + ask("token", "revoke", HOSTILE, "--yes").stdout) == []
