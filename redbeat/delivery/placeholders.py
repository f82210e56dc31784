"""Calls, the values of runs, and the placeholders that both fill in a message.

A placeholder is a path in the message's JSON. The values of a call depend on the entry, those of a run on the
run. Everything else is equal in all messages of one kind; :func:`kind_of` returns the kind of a call.
"""

from __future__ import annotations

import base64
import json
import numbers
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from json.encoder import encode_basestring_ascii
from types import MappingProxyType
from typing import Any, NamedTuple

from celery.utils.saferepr import saferepr
from kombu import serialization
from kombu.utils import json as kombu_json

from redbeat.policy import headers as policy_headers

#: keys and positions that lead to a value in a JSON document
Path = tuple[str | int, ...]

NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class UnfitError(Exception):
    """Messages of a kind cannot be made from a template. The text is the reason."""


class Call(NamedTuple):
    """The arguments of ``apply_async`` that are equal in all runs of an entry.

    Attributes:
        name: the entry's name, for the header ``redbeat_entry``.
        options: the options of the entry's definition.
        lifetime_seconds: the policy's ``expires_after``.
        queue_seconds: the policy's ``queue_timeout``; None if unset, or if an option expires earlier.
        policy_headers: headers that tell workers about the policy.
    """

    name: str
    task: str
    args: list[Any]
    kwargs: dict[str, Any]
    options: dict[str, Any]
    lifetime_seconds: float | None
    queue_seconds: float | None = None
    policy_headers: Mapping[str, Any] = MappingProxyType({})

    @property
    def is_expiring(self) -> bool:
        """True if its messages expire by the policy. Else an option ``expires`` counts."""
        return self.lifetime_seconds is not None or self.queue_seconds is not None


class TraceHeaders(NamedTuple):
    """The headers that carry the context of a run's span.

    Attributes:
        names: headers that every message has. Some messages have more headers after these.
        examples: the headers of two messages; only the second one may have more.
    """

    names: tuple[str, ...]
    examples: tuple[Mapping[str, str], Mapping[str, str]]


class RunValues(NamedTuple):
    """The values of one run.

    Attributes:
        due: the header ``redbeat_due``: ISO 8601 in UTC with microseconds.
        expires: when the message expires by the policy, in UTC.
        expiration_seconds: lifetime of the message by the server's clock. Celery warns of a lifetime below 0,
            so such a run is not for a template.
        trace: the headers that carry the context of the run's span.
    """

    task_id: str
    due: str
    expires: datetime | None
    expiration_seconds: float | None
    trace: Mapping[str, str] = NO_HEADERS


def find_difference(one: Any, other: Any, path: str = "") -> str:
    """Return the path of the first difference between two JSON documents, as a text; '': they are equal."""
    if isinstance(one, list) and isinstance(other, list):
        one, other = dict(enumerate(one)), dict(enumerate(other))
    if not isinstance(one, dict) or not isinstance(other, dict):
        return "" if json.dumps(one) == json.dumps(other) else path
    for name in {**one, **other}:
        below = f"{path}.{name}".removeprefix(".")
        if (name in one) != (name in other):
            return below
        found = find_difference(one[name], other[name], below)
        if found:
            return found
    return ""


def json_text(value: Any) -> str:
    """Return ``value`` as kombu writes it in a message."""
    if type(value) is str:
        return encode_basestring_ascii(value)
    text: str = kombu_json.dumps(value)  # type: ignore[no-untyped-call]
    return text


# -- values of a call


#: options whose values are filled in, unless they are falsy: then the task's own value may count
_OPTION_PATHS: Mapping[str, Path] = {
    "shadow": ("headers", "shadow"),
    "time_limit": ("headers", "timelimit", 0),
    "soft_time_limit": ("headers", "timelimit", 1),
}


#: returns args or kwargs as Celery describes them in a header
Describe = Callable[[Any], str]


def find_description(app: Any) -> Describe:
    """Return how this version of Celery describes args and kwargs.

    Raises:
        UnfitError: in an unknown way.
    """
    amqp, max_levels = app.amqp, app.conf.get("task_repr_maxlevels")
    probe = {"a": [[[[[[[["deep"]]]]]]]], "b": ["long " * 500, {}]}
    headers = amqp.create_task_message("", "", [probe], probe).headers
    for more in ({"maxlevels": max_levels}, {}):
        describe = partial(saferepr, maxlen=amqp.argsrepr_maxsize, **more)
        if (headers["argsrepr"], headers["kwargsrepr"]) == (describe([probe]), describe(probe)):
            return describe
    raise UnfitError("this version of Celery describes arguments in a way that RedBeat doesn't know")


class CallPlaceholders(NamedTuple):
    """The placeholders for values of a call.

    Attributes:
        serializer: kombu's name of it.
        encoding: the transport's encoding of bodies, 'base64' or None.
        no_args: Celery's value for empty args.
        embed: Celery's third part of a body.
    """

    serializer: str
    encoding: str | None
    no_args: Any
    embed: Any
    describe: Describe

    def texts(self, call: Call) -> dict[Path, str]:
        """Return the JSON of all values that depend on the entry; the paths are those of the call's kind."""
        texts: dict[Path, str] = {("headers", "redbeat_entry"): json_text(call.name)}
        if call.args or call.kwargs:
            parts = (call.args or self.no_args, call.kwargs, self.embed)
            _, _, body = serialization.dumps(parts, self.serializer)  # type: ignore[no-untyped-call]
            if self.encoding == "base64":
                body = base64.b64encode(body.encode() if isinstance(body, str) else body).decode("ascii")
            texts["body",] = json_text(body)
        if call.args:
            texts["headers", "argsrepr"] = json_text(self.describe(call.args))
        if call.kwargs:
            texts["headers", "kwargsrepr"] = json_text(self.describe(call.kwargs))
        options = call.options
        for name, value in {**(options.get("headers") or {}), **call.policy_headers}.items():
            texts["headers", name] = json_text(value)
        for name, path in _OPTION_PATHS.items():
            if options.get(name):
                texts[path] = json_text(options[name])
        return texts


# -- kinds

#: options whose values are part of the kind
_KIND_OPTIONS = frozenset(
    (
        *("queue", "exchange", "exchange_type", "routing_key", "priority", "delivery_mode", "serializer"),
        *("retry", "retry_policy", "timeout", "confirm_timeout", "mandatory", "immediate", "ignore_result"),
        *("parent_id", "group_id", "group_index", "retries", "reply_to", "add_to_parent"),
        *("app_id", "user_id", "message_id", "type", "cluster_id", "expires", *_OPTION_PATHS),
    )
)

#: headers that an entry cannot have itself: they are placeholders, or mark a message as a run
_RESERVED_HEADERS = frozenset(
    (
        *("id", "root_id", "expires", "argsrepr", "kwargsrepr", "shadow", "timelimit"),
        *("redbeat_entry", "redbeat_due", *policy_headers.NAMES, "celery_beat_task", "compression"),
    )
)

_SIMPLE = (str, int, float, bool, type(None))


def kind_of(call: Call) -> tuple[Any, ...] | str:
    """Return a key that is equal for calls whose messages can share a template; a str: why none can."""
    if type(call.args) is not list or type(call.kwargs) is not dict:
        return "args isn't a list, or kwargs isn't an object"
    options: list[Any] = []
    for name, value in call.options.items():
        found = _kind_of_headers(value) if name == "headers" else _kind_of_option(name, value)
        if isinstance(found, str):
            return found
        options.append((name, found))
    expiry = call.lifetime_seconds is None, call.queue_seconds is None
    return (call.task, not call.args, not call.kwargs, *expiry, tuple(call.policy_headers), tuple(options))


def _kind_of_option(name: str, value: Any) -> tuple[Any, ...] | str:
    kind = type(value)
    if name == "task_id":
        return () if value is None or kind is str else f"the option {name!r} isn't a text"
    if name not in _KIND_OPTIONS:
        return f"the option {name!r}"
    if name in _OPTION_PATHS and value and kind in (str, int, float):
        return (kind,)
    if name == "expires" and value is not None and not is_number(value):
        return f"the option {name!r} isn't a number"
    if kind in _SIMPLE and value == value:
        return kind, repr(value) if kind is float else value  # -0.0 equals 0.0, but is written otherwise
    if name == "retry_policy" and kind is dict and all(type(one) in _SIMPLE for one in value.values()):
        return tuple([(key, type(one), one) for key, one in value.items()])
    return f"the option {name!r} isn't a simple value"


def _kind_of_headers(headers: Any) -> tuple[Any, ...] | str:
    if not headers:
        return ()
    if type(headers) is not dict:
        return "the option 'headers' isn't an object"
    for name, value in headers.items():
        if name in _RESERVED_HEADERS:
            return f"the header {name!r} takes the place of another"
        if not _is_json(value):  # RabbitMQ has a type of its own for a date
            return f"the header {name!r} has a value that JSON hasn't got"
    return tuple(headers)


def _is_json(value: Any) -> bool:
    kind = type(value)
    if kind is dict:
        return all(type(name) is str and _is_json(one) for name, one in value.items())
    return kind in _SIMPLE or (kind is list and all(map(_is_json, value)))


def is_number(value: Any) -> bool:
    """Return True if ``value`` is a number, as Celery takes one for seconds."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def has_own_context(headers: Any, names: Sequence[str]) -> bool:
    """Return True if an entry's own ``headers`` have one of ``names``."""
    return bool(headers) and not set(names).isdisjoint(headers)
