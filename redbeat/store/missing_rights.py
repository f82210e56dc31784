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


def calls_to_save(keys: Keys) -> list[Words]:
    """Return a call of each command that saving and deleting an entry sends; none could do harm."""
    return [
        *_calls_to_write(keys),
        ("HSTRLEN", keys.about(SOME_ENTRY).entry, "definition"),
        ("PUBLISH", keys.wake, "x"),
        ("ZINCRBY", keys.unrun, "no number", "x"),
        ("ZREMRANGEBYRANK", keys.unrun, "1", "0"),
    ]


def _calls_to_write(keys: Keys) -> list[Words]:
    entry = keys.about(SOME_ENTRY).entry
    return [
        ("EVALSHA", "0" * 40, "0"),
        ("EVAL", "return 1", "0"),
        ("TIME",),
        ("TYPE", keys.schedule),
        ("EXISTS", entry),
        ("GET", keys.generation),
        ("HMGET", entry, "definition"),
        ("HSET", entry, "meta", "{}"),
        ("HDEL", entry, "error"),
        ("DEL", entry),
        ("ZADD", keys.schedule, "no score", entry),
        ("ZREM", keys.schedule, entry),
        ("ZSCORE", keys.schedule, entry),
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
    config, keys = store.config, store.parts[0].keys
    entry, history = keys.about(SOME_ENTRY).entry, keys.about(SOME_ENTRY).history
    required: list[Words] = [
        *_calls_to_write(keys),
        ("SMEMBERS", keys.statics),
        ("SADD", entry, "x"),
        ("SREM", keys.statics, "x"),
        ("ZRANGEBYSCORE", keys.schedule, "0", "1"),
    ]
    features: list[Words] = [
        ("PUBLISH", keys.wake, "x"),
        ("HGET", entry, "definition"),
        ("HGETALL", entry),
        ("ZCOUNT", keys.schedule, "0", "1"),
        ("ZRANGE", keys.schedule, "0", "0"),
        ("ZREVRANGE", keys.schedule, "0", "0"),
        ("ZSCAN", keys.schedule, "0"),
        ("PEXPIRE", entry, "1"),
        ("LRANGE", history, "0", "0"),
        ("LSET", history, "0", "x"),
        ("INCR", keys.wake),
        ("HINCRBY", keys.totals, "x", "no number"),
        ("HSETNX", entry, "x", ""),
        ("XADD", keys.events, "no id", "x", "x"),
        ("XREAD", "STREAMS", keys.events, "0"),
        ("XREVRANGE", keys.events, "+", "-"),
    ]
    optional: list[Words] = [("HSTRLEN", entry, "definition"), ("SUBSCRIBE", keys.wake)]
    lock = config.lock_key_in(keys)
    if lock is not None:
        required += [("GET", lock), ("SET", lock, "x", "NX", "XX"), ("DEL", lock), ("PTTL", lock)]
        required.append(("SET", keys.tick, "1", "NX", "XX"))
    if store.parts.is_divided:
        required.append(("HMGET", store.keys.layout, "shards"))
        if lock is not None:
            required.append(("ZADD", store.keys.beats, "no score", SOME_ENTRY))
    if config.history:
        features += [("LPUSH", history, ""), ("LTRIM", history, "0", "0")]
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
    keys, *others = [part.keys for part in store.parts]
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
