"""The holes of a message: the table of what differs from entry to entry and from run to run.

Each hole is where a value stands in the message, and how the value's JSON is made. What isn't in the table is
the same for all messages of a shape. Which names and values of options tell shapes apart is here, too.
"""

from __future__ import annotations

import base64
import numbers
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from json.encoder import encode_basestring_ascii
from types import MappingProxyType
from typing import Any, NamedTuple

from celery.app import amqp as celery_amqp
from celery.utils.saferepr import saferepr
from kombu import serialization
from kombu.utils import json as kombu_json

from redbeat.broker.template import Path
from redbeat.policy import headers as policy_headers


class Call(NamedTuple):
    """What ``apply_async`` is called with for an entry, but for what differs from run to run.

    Attributes:
        name: the entry's, for the header ``redbeat_entry``.
        options: the entry's own, as they stand in its definition.
        lifetime_seconds: the policy's ``expires_after``; None: its messages don't expire by that.
        queue_seconds: how long after they are sent its messages expire by the policy's ``queue_timeout``;
            None: they don't, or earlier by an option.
        policy_headers: what they tell workers of the policy.
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
        """Whether its messages expire by the policy; else an option ``expires`` counts."""
        return self.lifetime_seconds is not None or self.queue_seconds is not None


#: of messages without any
NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class TraceHeaders(NamedTuple):
    """What messages carry of the spans of their runs, where these are traced.

    Attributes:
        names: the headers that each message has. Some may have others after these.
        examples: of two messages: one has only those, and the other may have more.
    """

    names: tuple[str, ...]
    examples: tuple[Mapping[str, str], Mapping[str, str]]


class Values(NamedTuple):
    """What differs from run to run.

    Attributes:
        due: as in the header ``redbeat_due``: ISO 8601 in UTC with microseconds.
        expires: when the message expires by the policy, in UTC; None: it doesn't.
        expiration_seconds: how long the message lives, by the server's clock; None: for ever.
            Celery warns of messages that have expired already, so such a run isn't for a compiled message.
        trace: the headers by which a worker's spans are below that of the run.
    """

    task_id: str
    due: str
    expires: datetime | None
    expiration_seconds: float | None
    trace: Mapping[str, str] = NO_HEADERS


#: returns args or kwargs as they are shown in a header
Describe = Callable[[Any], str]


class RunHole(NamedTuple):
    """A value that differs from run to run: made from the run's values and the delivery tag.

    Attributes:
        accepts: tells whether a JSON text may stand there, if that also depends on when it was made.
    """

    paths: tuple[Path, ...]
    text: Callable[[Values, str], str]
    accepts: Callable[[str], bool] | None = None


class CallHole(NamedTuple):
    """A value that differs from entry to entry."""

    path: Path
    text: Callable[[Call], str]


def json_text(value: Any) -> str:
    """Return ``value`` as kombu writes it in a message."""
    if type(value) is str:
        return encode_basestring_ascii(value)
    text: str = kombu_json.dumps(value)  # type: ignore[no-untyped-call]
    return text


# -- from run to run


def _task_id(values: Values, _tag: str) -> str:
    return encode_basestring_ascii(values.task_id)


def _due(values: Values, _tag: str) -> str:
    return encode_basestring_ascii(values.due)


def _delivery_tag(_values: Values, tag: str) -> str:
    return encode_basestring_ascii(tag)


def _expires(values: Values, _tag: str) -> str:
    assert values.expires is not None  # noqa: S101 - the messages of the shape expire
    return f'"{values.expires.isoformat()}"'


def _expiration(values: Values, _tag: str) -> str:
    assert values.expiration_seconds is not None  # noqa: S101 - the messages of the shape expire
    return f'"{int(values.expiration_seconds * 1000)}"'


EXPIRES: Path = ("headers", "expires")
DELIVERY_TAG: Path = ("properties", "delivery_tag")

#: of each message
OF_RUN = (
    RunHole((("headers", "id"), ("headers", "root_id"), ("properties", "correlation_id")), _task_id),
    RunHole((("headers", "redbeat_due"),), _due),
    RunHole((DELIVERY_TAG,), _delivery_tag),
)

#: of messages that expire by the entry's policy
OF_LIFETIME = (
    RunHole((EXPIRES,), _expires),
    RunHole((("properties", "expiration"),), _expiration),
)


def holes_of_trace(names: Sequence[str]) -> list[RunHole]:
    """Return the holes of the headers ``names``. What a run has after these follows the last one."""

    def text_of(name: str) -> Callable[[Values, str], str]:
        return lambda values, _tag: encode_basestring_ascii(values.trace[name])

    def last(values: Values, _tag: str) -> str:
        text = encode_basestring_ascii(values.trace[names[-1]])
        if len(values.trace) == len(names):
            return text
        for name, value in list(values.trace.items())[len(names) :]:
            text += f", {json_text(name)}: {json_text(value)}"
        return text

    if not names:
        return []
    return [
        *[RunHole((("headers", name),), text_of(name)) for name in names[:-1]],
        RunHole((("headers", names[-1]),), last),
    ]


#: how long making a message may take, seconds
_MAKING_SECONDS = 60.0


def hole_of_expires(app: Any, seconds: float) -> RunHole:
    """Return the hole of messages that expire ``seconds`` after they are sent, by this machine's clock."""

    def text(values: Values, _tag: str) -> str:
        # it is sent when it is due, if it is made before
        sent_at = max(app.now(), datetime.fromisoformat(values.due).astimezone(app.timezone))
        return f'"{_later(sent_at, seconds).isoformat()}"'

    def accepts(text: str) -> bool:
        try:
            expires = datetime.fromisoformat(text.strip('"'))
        except ValueError:
            return False
        made_at = _later(expires.astimezone(app.timezone), -seconds)
        is_same = f'"{_later(made_at, seconds).isoformat()}"' == text
        return is_same and abs((app.now() - made_at).total_seconds()) < _MAKING_SECONDS

    return RunHole((EXPIRES,), text, accepts)


def _later(at: datetime, seconds: float) -> datetime:
    """Return ``at`` and a number of seconds as this version of Celery adds them."""
    add = getattr(celery_amqp, "add_seconds_to_datetime", None)
    return at + timedelta(seconds=seconds) if add is None else add(at, seconds)


# -- from entry to entry


class Body(NamedTuple):
    """How the bodies of a shape are made.

    Attributes:
        serializer: kombu's name of it.
        encoding: how the transport encodes the body, 'base64' or None.
        no_args: what stands for empty args.
        embed: what Celery adds to args and kwargs.
    """

    serializer: str
    encoding: str | None
    no_args: Any
    embed: Any

    def text(self, call: Call) -> str:
        """Return the body of the messages of ``call``."""
        body = (call.args or self.no_args, call.kwargs, self.embed)
        _, _, payload = serialization.dumps(body, self.serializer)  # type: ignore[no-untyped-call]
        if self.encoding == "base64":
            payload = payload.encode() if isinstance(payload, str) else payload
            return f'"{base64.b64encode(payload).decode("ascii")}"'
        return json_text(payload)


def holes_of(call: Call, body: Body, describe: Describe) -> list[CallHole]:
    """Return the holes that entries like ``call`` fill in; ``describe``: as Celery describes arguments."""
    holes = [CallHole(("headers", "redbeat_entry"), lambda call: json_text(call.name))]
    if call.args or call.kwargs:
        holes.append(CallHole(("body",), body.text))
    if call.args:
        holes.append(CallHole(("headers", "argsrepr"), lambda call: json_text(describe(call.args))))
    if call.kwargs:
        holes.append(CallHole(("headers", "kwargsrepr"), lambda call: json_text(describe(call.kwargs))))
    headers, options = call.options.get("headers") or {}, call.options
    holes += [CallHole(("headers", name), _header(name)) for name in headers]
    holes += [CallHole(("headers", name), _policy_header(name)) for name in call.policy_headers]
    holes += [CallHole(path, _option(name)) for name, path in OPTION_HOLES.items() if options.get(name)]
    return holes


def _header(name: str) -> Callable[[Call], str]:
    return lambda call: json_text(call.options["headers"][name])


def _policy_header(name: str) -> Callable[[Call], str]:
    return lambda call: json_text(call.policy_headers[name])


def _option(name: str) -> Callable[[Call], str]:
    return lambda call: json_text(call.options[name])


#: options whose values are filled in, unless they are falsy: Celery may take another value then
OPTION_HOLES: Mapping[str, Path] = {
    "shadow": ("headers", "shadow"),
    "time_limit": ("headers", "timelimit", 0),
    "soft_time_limit": ("headers", "timelimit", 1),
}

#: options that are the same in all messages of a shape
SHAPE_OPTIONS = frozenset(
    (
        *("queue", "exchange", "exchange_type", "routing_key", "priority", "delivery_mode", "serializer"),
        *("retry", "retry_policy", "timeout", "confirm_timeout", "mandatory", "immediate", "ignore_result"),
        *("parent_id", "group_id", "group_index", "retries", "reply_to", "add_to_parent"),
        *("app_id", "user_id", "message_id", "type", "cluster_id"),
    )
)

#: headers that can't be an entry's own: a hole, or what makes a message a run of an entry
TAKEN_HEADERS = frozenset(
    (
        *("id", "root_id", "expires", "argsrepr", "kwargsrepr", "shadow", "timelimit"),
        *("redbeat_entry", "redbeat_due", *policy_headers.NAMES, "celery_beat_task", "compression"),
    )
)

_SIMPLE = (str, int, float, bool, type(None))


def is_traced(call: Call, trace: TraceHeaders | None) -> bool:
    """Tell whether messages of ``call`` carry what ``trace`` says: not over a context of the entry's own."""
    return trace is not None and not has_own_context(call.options.get("headers"), trace.names)


def has_own_context(headers: Any, names: Sequence[str]) -> bool:
    """Tell whether an entry's own ``headers`` have one of ``names``."""
    return bool(headers) and not set(names).isdisjoint(headers)


def key_of(call: Call) -> tuple[Any, ...] | str:
    """Return what tells the shape of ``call`` from others; a str: why its messages aren't compiled."""
    if type(call.args) is not list or type(call.kwargs) is not dict:
        return "args isn't a list, or kwargs isn't an object"
    options = _key_of_options(call.options) if call.options else ()
    if isinstance(options, str):
        return options
    expiry = call.lifetime_seconds is None, call.queue_seconds is None
    return (call.task, not call.args, not call.kwargs, *expiry, tuple(call.policy_headers), options)


def _key_of_options(options: Mapping[str, Any]) -> tuple[Any, ...] | str:
    parts: list[Any] = []
    for name, value in options.items():
        kind = type(value)
        if name == "headers":
            part = _key_of_headers(value)
            if isinstance(part, str):
                return part
        elif name == "task_id":
            if value is not None and kind is not str:
                return f"the option {name!r} isn't a text"
            part = ()
        elif name in OPTION_HOLES and value and kind in (str, int, float):
            part = (kind,)
        elif name == "expires" and value is not None and not is_number(value):
            return f"the option {name!r} isn't a number"
        elif name not in SHAPE_OPTIONS and name not in OPTION_HOLES and name != "expires":
            return f"the option {name!r}"
        elif kind in _SIMPLE and value == value:
            part = (
                kind,
                repr(value) if kind is float else value,
            )  # -0.0 is equal to 0.0, and is written otherwise
        elif name == "retry_policy" and kind is dict and all(type(one) in _SIMPLE for one in value.values()):
            part = tuple([(key, type(one), one) for key, one in value.items()])
        else:
            return f"the option {name!r} isn't a simple value"
        parts.append((name, part))
    return tuple(parts)


def _key_of_headers(headers: Any) -> tuple[Any, ...] | str:
    if not headers:
        return ()
    if type(headers) is not dict:
        return "the option 'headers' isn't an object"
    for name, value in headers.items():
        if name in TAKEN_HEADERS:
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
    """Tell whether ``value`` is a number of seconds, as Celery takes it."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


# -- how Celery describes arguments in the headers argsrepr and kwargsrepr


def find_description(app: Any) -> Describe | None:
    """Return how this version of Celery describes args and kwargs; None: in a way that isn't known here."""
    maxsize = app.amqp.argsrepr_maxsize
    if app.amqp.kwargsrepr_maxsize != maxsize:
        return None
    levels = app.conf.get("task_repr_maxlevels")
    candidates: list[Describe] = [lambda value: str(saferepr(value, maxsize))]
    if levels is not None:
        candidates.insert(0, lambda value: str(saferepr(value, maxsize, maxlevels=levels)))
    for describe in candidates:
        if all(_is_right(app, describe, args) for args in _PROBES):
            return describe
    return None


def _is_right(app: Any, describe: Describe, args: list[Any]) -> bool:
    kwargs = {"a": args, "b": {}}
    headers = app.amqp.as_task_v2("id", "name", args, kwargs).headers
    return bool((headers["argsrepr"], headers["kwargsrepr"]) == (describe(args), describe(kwargs)))


_deep: Any = "deepest"
for _ in range(8):
    _deep = [_deep]

_PROBES: tuple[list[Any], ...] = (
    [1, "it's\n\u00e4", None, 2.5, True, {"k": [{}]}, datetime(2000, 1, 2, tzinfo=timezone.utc)],
    [_deep, {"k": _deep}],
    ["long " * 500, "more"],
    [["long " * 500], list(range(2000))],
)
