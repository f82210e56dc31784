"""Tokens: texts that carry rights, for programs that use the dashboard's API. Pure.

A token is ``rb_``, an id of eight letters and digits, ``_``, and a secret of 32 random bytes. Only the
SHA-256 of the secret is kept, which is enough: nobody can guess what has 256 bits.

Invariant: nothing that is stored or shown contains a secret, and what can't be read has no rights.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
import string
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from redbeat.access.rights import Right, names_of, rights_of

_ID_LENGTH = 8
_LETTERS = string.ascii_lowercase + string.digits
_TEXT = re.compile(r"rb_([A-Za-z0-9]{8})_([A-Za-z0-9_-]{43})", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True)
class Token:
    """A token, without its secret.

    Attributes:
        id: by which it is found, and named.
        name: what it is for.
        rights: what its holder may do.
        created_at: by the server's clock.
        expires_at: from when on it is worth nothing; None: never.
        created_by: the login name of who has made it; '' where that isn't known.
        digest: the SHA-256 of its secret, in hex digits.
    """

    id: str
    name: str
    rights: frozenset[Right]
    created_at: datetime
    expires_at: datetime | None
    created_by: str
    digest: str = field(repr=False)

    def is_expired(self, now: datetime) -> bool:
        """Return True if it is worth nothing any more."""
        return self.expires_at is not None and self.expires_at <= now

    def has_secret(self, secret: str) -> bool:
        """Return True if ``secret`` is its own; that takes the same time wherever they differ."""
        return hmac.compare_digest(_digest_of(secret), self.digest)

    def to_dict(self) -> dict[str, Any]:
        """Return what may be shown of it, as JSON has it."""
        return {"id": self.id, **self._fields()}

    def to_json(self) -> str:
        """Return what is stored of it."""
        return json.dumps({**self._fields(), "hash": self.digest})

    def _fields(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "rights": names_of(self.rights),
            "created_at": self.created_at.isoformat(),
            "expires_at": None if self.expires_at is None else self.expires_at.isoformat(),
            "created_by": self.created_by,
        }


def make_token(
    name: str, rights: Iterable[str], created_at: datetime, expires_at: datetime | None, created_by: str
) -> tuple[Token, str]:
    """Return a new token, and its text, which nobody can find out later.

    Raises:
        ValueError: there is no such right, or none is given.
    """
    held = rights_of(rights)
    if not held:
        raise ValueError("a token needs a right.")
    token_id = "".join(secrets.choice(_LETTERS) for _ in range(_ID_LENGTH))
    secret = secrets.token_urlsafe(32)
    token = Token(token_id, name, held, created_at, expires_at, created_by, _digest_of(secret))
    return token, f"rb_{token_id}_{secret}"


def parse_token(text: str) -> tuple[str, str] | None:
    """Return the id and the secret in a token's text; None: it is no token."""
    found = _TEXT.fullmatch(text)
    return None if found is None else (found[1], found[2])


def read_token(token_id: str, text: str) -> Token:
    """Return the token that is stored as ``text`` under ``token_id``.

    Raises:
        ValueError: that can't be used.
    """
    try:
        fields = json.loads(text)
        expires_at = fields["expires_at"]
        token = Token(
            token_id,
            str(fields["name"]),
            rights_of(list(fields["rights"])),
            _time_in(fields["created_at"]),
            None if expires_at is None else _time_in(expires_at),
            str(fields.get("created_by") or ""),
            fields["hash"],
        )
    except (KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise ValueError(f"{type(exc).__name__}: {exc}") from exc
    if not isinstance(token.digest, str) or _DIGEST.fullmatch(token.digest) is None:
        raise ValueError("its hash isn't a SHA-256.")
    return token


def _time_in(text: Any) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no offset.")
    return moment


def _digest_of(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
