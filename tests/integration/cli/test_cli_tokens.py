"""`celery redbeat token`: made, listed and revoked; what Redis and the audit list know of them."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta, timezone

import pytest
import redis
from celery import Celery

from redbeat.access import Right
from redbeat.entries.audit import find_records
from redbeat.errors import StoreCorrupt
from redbeat.store.store import Store
from redbeat.store.tokens import Tokens
from tests.integration.cli.conftest import Call
from tests.support.hostile import HOSTILE, find_orders
from tests.support.logs import warnings_in

TOKENS = "redbeat::tokens"


@pytest.fixture
def tokens(app: Celery) -> Tokens:
    return Tokens(Store(app))


def test_a_token_is_printed_once_found_by_its_text_and_ends_when_it_is_revoked(
    ask: Call, tokens: Tokens, app: Celery, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUDO_USER", "ann")
    done = ask("token", "add", "ci", "--right", "pause", "--right", "run")
    text = done.stdout.removesuffix("\n")
    assert re.fullmatch(r"rb_[a-z0-9]{8}_[\w-]{43}", text)
    assert "isn't shown again" in done.stderr
    found = tokens.find(text)
    assert found is not None
    assert (found.name, found.created_by) == ("ci", "ann")
    assert found.rights == {Right.READ, Right.PAUSE, Right.RUN}
    ninety = datetime.now(timezone.utc) + timedelta(days=90)
    assert found.expires_at is not None
    assert abs(found.expires_at - ninety) < timedelta(minutes=5)
    other = json.loads(ask("token", "add", "all", "--right", "admin", "--expires", "never", "--json").stdout)
    assert (other["rights"], other["expires_at"]) == (["admin"], None)
    assert tokens.find(other["token"]) is not None
    listed = [json.loads(line) for line in ask("token", "list", "--json").stdout.splitlines()]
    assert [(one["name"], one["rights"]) for one in listed] == [
        ("ci", ["read", "pause", "run"]),
        ("all", ["admin"]),
    ]
    shown = ask("token", "list").stdout
    assert "never" in shown
    assert ask("token", "revoke", "ci", code=64).stderr, "nobody is there to say yes"
    assert ask("token", "revoke", "ci", "--yes").stdout == "Revoked the token ci.\n"
    assert tokens.find(text) is None
    assert json.loads(ask("token", "revoke", other["id"], "--yes", "--json").stdout) == {
        "revoked": [other["id"]]
    }
    assert not client.exists(TOKENS)
    changes = [(one.verb, one.names, one.user) for one in find_records(app)[::-1]]
    assert changes == [
        *(("token add", (name,), "ann") for name in ("ci", "all")),
        *(("token revoke", (name,), "ann") for name in ("ci", "all")),
    ]
    secrets = [one.split("_", 2)[2] for one in (text, other["token"])]
    kept = str(client.xrange("redbeat::audit")) + shown + str(listed)
    assert not [secret for secret in secrets if secret in kept]


def test_no_secret_is_in_redis(ask: Call, client: redis.Redis) -> None:
    text = ask("token", "add", "ci", "--right", "read").stdout.strip()
    [stored] = client.hvals(TOKENS)
    assert text[12:] not in stored
    assert len(json.loads(stored)["hash"]) == 64


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["add", "ci", "--right", "read"], "There is a token 'ci' already"),
        (["add", "x"], "Missing option '--right'"),
        (["add", "x", "--right", "root"], "'root' is not one of"),
        (["add", "x", "--right", "read", "--expires", "2020-01-01"], "expired already"),
        (["add", "x", "--right", "read", "--expires", "soon"], "'soon' is no time"),
        (["add", "x\ty", "--right", "read"], "no control characters"),
        (["add", "", "--right", "read"], ""),
        (["add", "x" * 101, "--right", "read"], "100 characters"),
    ],
)
def test_a_wrong_token_is_one_sentence(
    ask: Call, tokens: Tokens, app: Celery, arguments: list[str], said: str
) -> None:
    tokens.add("ci", ["read"], None)
    assert said in ask("token", *arguments, code=64).stderr
    assert len(tokens.list()) == 1
    assert find_records(app) == []


def test_a_token_that_is_not_there_is_66(ask: Call, tokens: Tokens) -> None:
    tokens.add("deploy", ["read"], None)
    assert "Did you mean deploy?" in ask("token", "revoke", "deplyo", "--yes", code=66).stderr


def test_a_token_ends_by_the_clock_of_the_server(ask: Call, tokens: Tokens, client: redis.Redis) -> None:
    token, text = tokens.add("ci", ["read"], datetime.now(timezone.utc) + timedelta(days=1))
    fields = json.loads(token.to_json())
    fields["expires_at"] = (datetime.now(timezone.utc) - timedelta(hours=1)).isoformat()
    client.hset(TOKENS, token.id, json.dumps(fields))
    assert tokens.find(text) is None
    assert "expired" in ask("token", "list").stdout
    assert tokens.revoke("ci") == [token.id]


def test_another_secret_or_another_id_finds_nothing(tokens: Tokens) -> None:
    (one, text), (other, _) = tokens.add("a", ["read"], None), tokens.add("b", ["admin"], None)
    secret = text[12:]
    assert tokens.find(f"rb_{one.id}_{secret}") == one
    for wrong in (f"rb_{other.id}_{secret}", f"rb_00000000_{secret}", f"rb_{one.id}_{secret[::-1]}", "", "x"):
        assert tokens.find(wrong) is None


def test_what_others_write_there_is_no_token_and_can_be_revoked(
    ask: Call, tokens: Tokens, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    token, text = tokens.add("ci", ["read"], None)
    client.hset(TOKENS, mapping={token.id: "{oops", HOSTILE: HOSTILE, "[bold]": "5"})
    client.hset(TOKENS, b"\xff", b"\xff")
    for _ in range(2):
        assert tokens.find(text) is None
        assert tokens.list() == []
    assert len([one for one in warnings_in(caplog) if token.id in one]) == 1, "said once"
    assert find_orders(caplog.text) == []
    for more in ([], ["--json"]):
        shown = ask("token", "list", *more).stdout
        assert find_orders(shown) == []
    assert ask("token", "revoke", token.id, "--yes").exit_code == 0
    assert not client.hexists(TOKENS, token.id)
    hostile = {**json.loads(token.to_json()), "name": HOSTILE, "created_by": HOSTILE}
    client.hset(TOKENS, "12345678", json.dumps(hostile))
    assert find_orders(ask("token", "list").stdout + ask("token", "revoke", HOSTILE, "--yes").stdout) == []


def test_a_key_of_another_type_is_one_sentence(ask: Call, tokens: Tokens, client: redis.Redis) -> None:
    client.set(TOKENS, "x")
    assert "redbeat::tokens holds something that is no hash" in ask("token", "list", code=75).stderr
    with pytest.raises(StoreCorrupt):
        tokens.find(f"rb_12345678_{'a' * 43}")
