"""The text of a token, and what is stored of it."""

from __future__ import annotations

import hashlib
import hmac
import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from redbeat.access import Right
from redbeat.access.tokens import Token, make_token, parse_token, read_token

NOW = datetime(2030, 1, 1, tzinfo=timezone.utc)


def made(**given: Any) -> tuple[Token, str]:
    values = {"rights": ["pause"], "created_at": NOW, "expires_at": NOW + timedelta(days=1), **given}
    return make_token("ci", created_by="ann", **values)


def test_what_is_stored_or_shown_has_no_secret_and_is_read_again() -> None:
    token, text = made()
    found = parse_token(text)
    assert found is not None
    token_id, secret = found
    assert (token_id, token.has_secret(secret)) == (token.id, True)
    stored = token.to_json()
    assert read_token(token.id, stored) == token
    assert json.loads(stored)["hash"] == hashlib.sha256(secret.encode()).hexdigest()
    for shown in (stored, repr(token), str(token.to_dict())):
        assert secret not in shown
    assert token.digest not in repr(token) + str(token.to_dict())
    assert token.rights == {Right.READ, Right.PAUSE}


def test_no_two_tokens_are_alike_and_each_can_be_typed_as_an_argument() -> None:
    texts = [made()[1] for _ in range(200)]
    assert len({text[3:11] for text in texts}) == len({text[12:] for text in texts}) == 200
    for text in texts:
        assert parse_token(text) is not None
        assert text[3] != "-"


@pytest.mark.parametrize("place", [0, 20, 42])
def test_another_secret_is_another_token(place: int) -> None:
    token, text = made()
    secret = text[12:]
    other = secret[:place] + ("a" if secret[place] != "a" else "b") + secret[place + 1 :]
    assert not token.has_secret(other)


def test_secrets_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    monkeypatch.setattr(hmac, "compare_digest", lambda *both: compared.append(both) or both[0] == both[1])
    token, text = made()
    assert token.has_secret(text[12:])
    assert not token.has_secret("x")
    assert len(compared) == 2


def test_a_token_ends_at_its_time() -> None:
    token, _ = made()
    assert not token.is_expired(NOW + timedelta(hours=23))
    assert token.is_expired(NOW + timedelta(days=1))
    assert not made(expires_at=None)[0].is_expired(NOW + timedelta(days=40_000))


@pytest.mark.parametrize("rights", [[], ["reed"], ["read", "root"]])
def test_a_token_needs_rights_that_there_are(rights: list[str]) -> None:
    with pytest.raises(ValueError, match="right"):
        made(rights=rights)


@pytest.mark.parametrize(
    "text", ["", "rb_", "x", "rb_12345678_", "rb_12345678_" + "a" * 42, "rb_1234567_" + "a" * 43]
)
def test_what_is_no_token_is_none(text: str) -> None:
    good = "rb_12345678_" + "a" * 43
    assert parse_token(good) == ("12345678", "a" * 43)
    for wrong in (text, f"{good}{text}\n", f" {good}", good.replace("a", "ä"), good.replace("rb", "RB")):
        assert parse_token(wrong) is None


WRONG: list[Any] = [
    *("", "{", "[]", "5", "null", "[" * 5000, "{}"),
    *({"hash": None}, {"hash": "x"}, {"hash": "A" * 64}, {"hash": 5}, {"rights": ["root"]}, {"rights": 5}),
    *({"rights": "admin"}, {"rights": [["read"]]}, {"expires_at": "soon"}, {"expires_at": 5}),
    *({"expires_at": "2030-01-01T00:00:00"}, {"created_at": None}, {"expires_at": ...}, {"name": ...}),
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_what_is_stored_and_can_not_be_read_is_a_value_error(wrong: Any) -> None:
    text = wrong
    if isinstance(wrong, dict):
        fields = {**json.loads(made()[0].to_json()), **wrong}
        text = json.dumps({name: value for name, value in fields.items() if value is not ...})
    with pytest.raises(ValueError):  # noqa: PT011 - whatever it says
        read_token("12345678", text)
