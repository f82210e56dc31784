"""Tokens of programs that use the REST interface: made and revoked."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from redbeat.access import Right
from redbeat.access.rights import names_of, rights_of
from redbeat.access.tokens import Token
from redbeat.errors import ArgumentInvalid
from redbeat.operations.actor import Actor
from redbeat.operations.operation import operation
from redbeat.store.store import Store
from redbeat.store.tokens import add_token as store_token
from redbeat.store.tokens import find_token_problem, read_tokens, revoke_tokens, tokens_called


@operation("token.add", Right.ADMIN, "token add")
def add_token(
    actor: Actor, name: str, rights: Sequence[str], expires_at: datetime | None
) -> tuple[Token, str]:
    """Make a token; return it, and its text, which is not stored.

    Arguments:
        expires_at: None: never.

    Raises:
        ArgumentInvalid: there is a token with this name, or ``expires_at`` is in the past.
    """
    store = Store(actor.app)
    if problem := find_token_problem(store, name, expires_at):
        raise ArgumentInvalid("name", problem)
    details = {"rights": names_of(rights_of(rights)), "expires_at": expires_at or "never"}
    with actor.doing("token add", [name], details):
        try:
            return store_token(store, name, rights, expires_at, actor.user.name)
        except ValueError as exc:  # another call was quicker
            raise ArgumentInvalid("name", str(exc)) from None


@operation("token.revoke", Right.ADMIN, "token revoke", is_destructive=True)
def revoke_token(actor: Actor, id_or_name: str) -> Sequence[str]:
    """End the tokens with this id or name at once; return their ids."""
    store = Store(actor.app)
    chosen = tokens_called(store, id_or_name)
    if not chosen:
        return []
    known = [one for one in read_tokens(store).values() if one is not None]
    names = [one.name for one in known if one.id in chosen] or [id_or_name]
    with actor.doing("token revoke", names, {"ids": list(chosen)}):
        return revoke_tokens(store, id_or_name)
