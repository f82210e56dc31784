"""The tokens of the dashboard, in a hash: id to JSON with everything but the secret.

Invariant: what can't be read is no token, and is said once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from redbeat.access.tokens import Token, make_token, parse_token, read_token
from redbeat.keys import is_owner_name
from redbeat.log.logger import logger
from redbeat.log.text import as_stored, printable, shorten
from redbeat.store.nodes import Command
from redbeat.store.records import text_of
from redbeat.store.server import Server
from redbeat.store.store import Store

#: how many characters a token's name has at most
MAX_NAME = 100


def add_token(
    store: Store, name: str, rights: Iterable[str], expires_at: datetime | None, by: str = ""
) -> tuple[Token, str]:
    """Make a token; return it and its text, which can't be found out later.

    Arguments:
        expires_at: None: never.
        by: who makes it.

    Raises:
        ValueError: the name can't be used, or another token has it; or there is no such right.
    """
    if problem := find_token_problem(store, name, expires_at):
        raise ValueError(problem)
    now, key = Server(store).now(), store.keys.tokens
    made, text = make_token(name, rights, now, expires_at, by)
    store.ask(Command("hset", key, made.id, as_stored(made.to_json())))
    return made, text


def find_token_problem(store: Store, name: str, expires_at: datetime | None) -> str:
    """Return why no token of this name can be made; '': it can be."""
    if not is_owner_name(name) or len(name) > MAX_NAME:
        shown = shorten(printable(name), MAX_NAME)
        return f"A token's name has 1 to {MAX_NAME} characters, and no control characters, not {shown!r}."
    if expires_at is not None and expires_at <= Server(store).now():
        return "The token would have expired already; give a later time."
    if tokens_called(store, name):
        return f"There is a token {name!r} already: revoke it first, or choose another name."
    return ""


def read_tokens(store: Store) -> dict[str, Token | None]:
    """Return all by their ids, the oldest first; None for what can't be used."""
    key = store.keys.tokens
    found = store.ask(Command("hgetall", key))
    texts = {str(text_of(one)): str(text_of(text)) for one, text in found.items()}
    tokens = {one: _decode(store, one, text) for one, text in texts.items()}

    def made_at(one: tuple[str, Token | None]) -> float:
        return 0.0 if one[1] is None else one[1].created_at.timestamp()

    return dict(sorted(tokens.items(), key=made_at))


def tokens_called(store: Store, id_or_name: str) -> Sequence[str]:
    """Return the id of the token with this id, else of those with this name: there is one, or none."""
    tokens = read_tokens(store)
    named = [one for one, token in tokens.items() if token is not None and token.name == id_or_name]
    return [id_or_name] if id_or_name in tokens else named


def revoke_tokens(store: Store, id_or_name: str) -> Sequence[str]:
    """End the token with this id, else those with this name; return their ids."""
    chosen, key = tokens_called(store, id_or_name), store.keys.tokens
    if chosen:
        store.ask(Command("hdel", key, *map(as_stored, chosen)))
    return chosen


def find_token(store: Store, text: str) -> Token | None:
    """Return the token with this text; None: there is none, it was revoked, or it has expired."""
    parsed = parse_token(text)
    if parsed is None:
        return None
    token_id, secret = parsed
    key = store.keys.tokens
    stored = store.ask(Command("hget", key, token_id))
    token = None if stored is None else _decode(store, token_id, str(text_of(stored)))
    if token is None or not token.has_secret(secret):
        return None
    if token.expires_at is not None and token.is_expired(Server(store).now()):
        return None
    return token


def _decode(store: Store, token_id: str, text: str) -> Token | None:
    try:
        return read_token(token_id, text)
    except ValueError as exc:
        if store.config.said.is_news(f"token {token_id}", text):
            logger.warning(
                "beat: The token %s in %s can't be used: %s",
                printable(token_id),
                store.keys.tokens,
                shorten(printable(str(exc)), 200),
            )
        return None
