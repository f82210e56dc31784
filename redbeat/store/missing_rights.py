"""Which rights the user of the schedule lacks: all of them at once, as an ACL rule has them.

Invariant: nothing is written. Each command is queued in a transaction, which shows whether the user may send
it, and the transaction is dropped with its connection. For a user without MULTI a script asks, if
the server has ``redis.acl_check_cmd`` (Redis 7.0 and Valkey).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, suppress
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from redis.exceptions import NoPermissionError, RedisError, ResponseError

from redbeat.config.masking import sanitize_url
from redbeat.connection.client import user_of
from redbeat.connection.retry import is_no_permission, without_retry
from redbeat.errors import RedBeatError, StoreRefused
from redbeat.keys import Keys, glob_of
from redbeat.store.scripts.script import Script

if TYPE_CHECKING:
    from redbeat.store.store import Store

_CHECK_RIGHTS = Script("check_rights")

#: an entry's name that stands for any in what is asked for
SOME_ENTRY = "rights-probe"

Words = tuple[Any, ...]


def _on(key: str, *commands: str) -> list[Words]:
    """Return calls about a key: of each command its name, and what follows the key."""
    return [(name, key, *rest) for name, *rest in map(str.split, commands)]


def calls_to_save(keys: Keys) -> list[Words]:
    """Return a call of each command that saving and deleting an entry sends; none could do harm."""
    return [
        *_calls_to_write(keys),
        *_on(keys.about(SOME_ENTRY).entry, "HSTRLEN definition"),
        *_on(keys.wake, "PUBLISH x"),
        *_on(keys.unrun, "ZINCRBY none x", "ZREMRANGEBYRANK 1 0"),
    ]


def _calls_to_write(keys: Keys) -> list[Words]:
    return [
        ("EVALSHA", "0" * 40, "0"),
        ("EVAL", "return 1", "0"),
        ("TIME",),
        *_on(keys.schedule, "TYPE"),
        *_on(keys.about(SOME_ENTRY).entry, "EXISTS"),
        *_on(keys.generation, "GET"),
        *_on(keys.about(SOME_ENTRY).entry, "HMGET definition", "HSET meta {}", "HDEL error", "DEL"),
        *_on(keys.schedule, "ZADD none x", "ZREM x", "ZSCORE x"),
    ]


class CallsOfBeat(NamedTuple):
    """A call of each command that beat sends; none could do harm.

    Attributes:
        required: beat ends without one of them.
        features: each is for a feature that is off without it.
        optional: beat does the same without them, more slowly or less surely.
    """

    required: list[Words]
    features: list[Words]
    optional: list[Words]


def calls_of_beat(store: Store) -> CallsOfBeat:
    """Return a call of each command that beat sends with the settings of ``store``."""
    config, keys = store.config, store.parts[0]
    entry, history = keys.about(SOME_ENTRY).entry, keys.about(SOME_ENTRY).history
    required = [*_calls_to_write(keys), *_on(keys.statics, "SMEMBERS", "SREM x"), *_on(entry, "SADD x")]
    required += _on(keys.schedule, "ZRANGEBYSCORE 0 1")
    features: list[Words] = [
        *_on(keys.wake, "PUBLISH x"),
        *_on(entry, "HGET definition", "HGETALL"),
        *_on(keys.schedule, "ZCOUNT 0 1", "ZRANGE 0 0", "ZREVRANGE 0 0", "ZSCAN 0"),
        *_on(entry, "PEXPIRE 1"),
        *_on(history, "LRANGE 0 0", "LSET 0 x"),
        *_on(keys.wake, "INCR"),
        *_on(keys.totals, "HINCRBY x none"),
        *_on(entry, "HSETNX x x"),
        *_on(keys.events, "XADD none x x", "XREVRANGE + -"),
        ("XREAD", "STREAMS", keys.events, "0"),
    ]
    optional = [*_on(entry, "HSTRLEN definition"), *_on(keys.wake, "SUBSCRIBE")]
    lock = config.lock_key_in(keys)
    if lock is not None:
        required += [*_on(lock, "GET", "SET x NX XX", "DEL", "PTTL"), *_on(keys.tick, "SET 1 NX XX")]
    if store.parts.is_divided:
        required += _on(store.keys.layout, "HMGET shards")
        required += _on(store.keys.beats, "ZADD none x") if lock is not None else []
    if config.history:
        features += _on(history, "LPUSH x", "LTRIM 0 0")
    if config.wait_replicas:
        features.append(("WAIT", "1", "1"))
    if config.key_expiry_check != "ignore":
        optional.append(("CONFIG", "GET", "maxmemory-policy"))
    return CallsOfBeat(required, features, optional)


def naming_missing_rights(store: Store, exc: StoreRefused, *, of_beat: bool = False) -> StoreRefused:
    """Return ``exc``; where it is a refusal for want of a right, one that names all rights this user lacks.

    Arguments:
        of_beat: those that beat needs; else those that saving an entry needs.
    """
    if exc.is_login or not is_no_permission(exc.__cause__):
        return exc
    missing: list[str] = []
    with suppress(RedBeatError, RedisError, OSError):
        missing = find_missing(store, of_beat=of_beat)
    if not missing:
        return exc
    who, what = user_of(without_retry(store.client)), "beat" if of_beat else "saving an entry"
    named = StoreRefused(
        f"Redis at {sanitize_url(store.config.redis_url)} refused a command: its user {who} lacks these "
        f"rights that {what} needs: {' '.join(missing)}. Add them to its ACL rule (docs: upgrading, "
        "Rights)."
    )
    named.__cause__ = exc.__cause__
    return named


def find_missing(store: Store, *, of_beat: bool) -> list[str]:
    """Return the rights that the user of the schedule lacks, as an ACL rule has them; [] if that isn't known.

    Raises StoreUnavailable, StoreRefused, and the client's errors.
    """
    config = store.config
    keys, *others = store.parts
    calls = [(keys, words) for words in (chain(*calls_of_beat(store)) if of_beat else calls_to_save(keys))]
    # a missing right to a key shows only where the command is allowed: ask each shard by several
    calls += [
        (other, words)
        for other in others
        for words in (*_calls_to_write(other), ("PUBLISH", other.wake, "x"))
    ]
    with type(store).hasty(config.app) as hasty:
        client = without_retry(hasty.client)
        if config.is_cluster:
            client = client.get_redis_connection(client.get_node_from_key(keys.schedule))
        database = int(client.connection_pool.connection_kwargs.get("db") or 0)
        if of_beat and database:
            calls.append((keys, ("SELECT", str(database))))
        refusals = _refusals_of(client, [words for _, words in calls])
    missing = dict.fromkeys(
        right
        for (part, words), said in zip(calls, refusals, strict=True)
        if said
        for right in _rights_to(words, said, part)
    )
    return list(missing)


def _refusals_of(client: Any, calls: Sequence[Words]) -> list[str]:
    """Return what the server says to each of ``calls``: the text of its refusal, '' if it is allowed."""
    with closing(client.client()) as single:  # one connection
        connection = single.connection
        try:
            connection.send_command("MULTI", check_health=False)
            connection.read_response()
            # in one piece, as nothing may be sent again by another connection, outside the transaction
            connection.send_packed_command(connection.pack_commands(calls), check_health=False)
            return [_refusal_in(connection) for _ in calls]
        except NoPermissionError:
            denied = _CHECK_RIGHTS.call(calls=calls).run(single)
            return ["the command" if place in denied else "" for place in range(1, len(calls) + 1)]
        finally:
            connection.disconnect()  # which ends the transaction


def _refusal_in(connection: Any) -> str:
    """Return the text of a refusal for want of a right; '': the reply is another one."""
    try:
        connection.read_response()
    except NoPermissionError as exc:
        return str(exc)
    except ResponseError:  # the command isn't for transactions
        pass
    return ""


def _rights_to(words: Words, said: str, keys: Keys) -> list[str]:
    """Return what an ACL rule needs for a call, by the text of the refusal."""
    if "channel" in said:
        return [f"&{keys.wake}"]
    if " key" in said:
        return [f"~{glob_of(keys.prefix)}*"]
    command = "|".join(words[:2]) if words[0] == "CONFIG" else words[0]
    # whether the channel is allowed isn't known then
    return [f"+{command}".lower(), *([f"&{keys.wake}"] if words[0] == "PUBLISH" else [])]
