"""Names that no message may go by: keys of RedBeat, of the broker itself, and of results.

Where schedule and broker are in one database, a queue of such a name is that key. Whoever may write entries
could make beat overwrite it with beat's rights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from celery.backends.base import KeyValueStoreBackend
from kombu.transport import redis as kombu_redis

from redbeat.config.config import ensure_conf
from redbeat.config.urls import REDIS_SCHEMES, scheme_of
from redbeat.log.text import quoted

#: the options of a task that are names at the broker
_NAMES = ("queue", "exchange", "routing_key", "reply_to")
#: those that are tasks with options of their own; a worker sends them
_TASKS = ("link", "link_error", "chain", "chord")
#: the transport options that name kombu's own keys
_KOMBU_KEYS = ("unacked_key", "unacked_index_key", "unacked_mutex_key")
_KOMBU_BINDINGS = kombu_redis.Channel.keyprefix_queue.removesuffix("%s")
#: how keys of results begin
_RESULTS = (
    KeyValueStoreBackend.task_keyprefix,
    KeyValueStoreBackend.group_keyprefix,
    KeyValueStoreBackend.chord_keyprefix,
)


def find_reserved(app: Any, options: Mapping[str, Any]) -> str | None:
    """Return which name in ``options``, of an entry or of a publish, is reserved, a sentence; None: none."""
    for field, name in _named_in(options):
        problem = _find_problem(app, name)
        if problem:
            return f"options: {field}: {problem}"
    return None


def _named_in(options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the fields of ``options`` that are names, and those of the tasks in it, each with its name."""
    for field in _NAMES:
        yield field, _text(options.get(field))
    for queue in options.get("declare") or ():
        yield from (("declare", name) for name in _names_of(queue))
    left = [(field, options[field]) for field in _TASKS if options.get(field)]
    while left:
        path, value = left.pop()
        if isinstance(value, (list, tuple)):
            left += [(path, one) for one in value]
        elif isinstance(value, Mapping):
            left += [(path, one) for one in value.values()]
            inner = value.get("options")
            if isinstance(inner, Mapping):
                yield from ((f"{path}: {field}", _text(inner.get(field))) for field in _NAMES)


def _text(value: Any) -> str:
    """Return a name, or that of a queue or an exchange; '': it is neither."""
    name = value if isinstance(value, str) else getattr(value, "name", None)
    return name if isinstance(name, str) else ""


def _names_of(queue: Any) -> Iterator[str]:
    yield from map(_text, (queue, getattr(queue, "exchange", None), getattr(queue, "routing_key", None)))


def _find_problem(app: Any, name: str) -> str | None:
    if not name:
        return None
    config, transport = ensure_conf(app), app.conf.broker_transport_options or {}
    # kombu puts this in front of the names of all its keys
    full_name = f"{transport.get('global_keyprefix') or ''}{name}"
    if any(config.base_keys.is_reserved(one) or one == config.lock_key for one in (name, full_name)):
        return f"{quoted(name)} is reserved for a key of RedBeat: use another name."
    entries = config.base_keys.entry("")
    if entries and name.startswith(entries) and name not in _declared_by(app):
        return (
            f"{quoted(name)} begins with {entries!r}, as keys of entries do: use another name, or declare "
            "that queue in task_queues."
        )
    if scheme_of(_broker_url(app)) in REDIS_SCHEMES and _is_of_broker(transport, name):
        return f"{quoted(name)} is reserved for a key of the broker or of a result: use another name."
    return None


def _is_of_broker(transport: Mapping[str, Any], name: str) -> bool:
    keys = [transport.get(option) or getattr(kombu_redis.Channel, option) for option in _KOMBU_KEYS]
    return name in keys or name.startswith((_KOMBU_BINDINGS, *_RESULTS))


def _broker_url(app: Any) -> str:
    url = app.conf.broker_write_url or app.conf.broker_url or ""
    return str(url if isinstance(url, str) else next(iter(url), ""))


def _declared_by(app: Any) -> set[str]:
    """Return the names that the app's own code uses, and no entry has brought."""
    conf, queues = app.conf, app.conf.task_queues or ()
    found = {conf.task_default_queue, conf.task_default_exchange, conf.task_default_routing_key}
    for queue in queues.values() if isinstance(queues, Mapping) else queues:
        found.update(_names_of(queue))
    for task in app.tasks.values():
        found |= {_text(vars(type(task)).get(field)) for field in _NAMES}
    return found.union(_constants_of(conf.task_routes))


def _constants_of(routes: Any) -> Iterator[str]:
    """Yield the texts in ``task_routes``; what a function of it returns may come from an entry."""
    if isinstance(routes, str):
        yield routes
    elif isinstance(routes, (list, tuple, Mapping)):
        for one in routes.values() if isinstance(routes, Mapping) else routes:
            yield from _constants_of(one)
