"""Calls, the values of runs, and the placeholders that both fill in a message.

A placeholder is a path in the message's JSON. The values of a call depend on the entry, those of a run on the
run. Everything else is equal in all messages of one kind; :func:`kind_of` returns the kind of a call.
"""

from __future__ import annotations

import base64
import numbers
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from json.encoder import encode_basestring_ascii
from types import MappingProxyType
from typing import Any, NamedTuple

from celery.app import amqp as celery_amqp
from celery.app.defaults import DEFAULTS
from celery.utils.saferepr import saferepr
from kombu import serialization
from kombu.utils import json as kombu_json

from redbeat.policy.messages import NAMES as POLICY_HEADERS

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


def find_difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Return the first field in which two messages differ."""
    for part in ("headers", "properties"):
        for name in {**one[part], **other[part]}:
            if (name in one[part], one[part].get(name)) != (name in other[part], other[part].get(name)):
                return f"{part}.{name}"
    return "the way it writes JSON" if one["body"] == other["body"] else "body"


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

#: the third part of a body, of a task without callbacks
_EMBED = dict.fromkeys(("callbacks", "errbacks", "chain", "chord"))


def texts_of_call(app: Any, call: Call, serializer: str, encoding: str | None) -> dict[Path, str]:
    """Return the JSON of all values that depend on the entry; the paths are those of the call's kind.

    Arguments:
        encoding: the transport's encoding of bodies, 'base64' or None.
    """
    texts: dict[Path, str] = {("headers", "redbeat_entry"): json_text(call.name)}
    if call.args or call.kwargs:
        parts = (call.args or (), call.kwargs, _EMBED)
        _, _, body = serialization.dumps(parts, serializer)  # type: ignore[no-untyped-call]
        if encoding == "base64":
            body = base64.b64encode(body.encode() if isinstance(body, str) else body).decode("ascii")
        texts["body",] = json_text(body)
        # since Celery 5.7
        limits = {"maxlevels": app.conf.task_repr_maxlevels} if "task_repr_maxlevels" in DEFAULTS else {}
        if call.args:
            texts["headers", "argsrepr"] = json_text(saferepr(call.args, app.amqp.argsrepr_maxsize, **limits))
        if call.kwargs:
            shown = saferepr(call.kwargs, app.amqp.kwargsrepr_maxsize, **limits)
            texts["headers", "kwargsrepr"] = json_text(shown)
    for name, value in {**(call.options.get("headers") or {}), **call.policy_headers}.items():
        texts["headers", name] = json_text(value)
    for name, path in _OPTION_PATHS.items():
        if call.options.get(name):
            texts[path] = json_text(call.options[name])
    return texts


# -- values of a run


class RunPlaceholders(NamedTuple):
    """The placeholders for values of a run.

    Attributes:
        is_expiring: messages expire by the policy.
        expires_seconds: the option ``expires``, if they do not.
        trace_names: headers that carry the context of a run's span; None: messages carry none.
    """

    app: Any
    is_expiring: bool
    expires_seconds: float | None
    trace_names: Sequence[str] | None

    @property
    def is_plain(self) -> bool:
        """True if messages of one entry differ only in the run's id, its due time, and their delivery tag."""
        return not self.is_expiring and self.expires_seconds is None and not self.trace_names

    @property
    def paths(self) -> list[Path]:
        """Where the values are."""
        paths: list[Path] = [("headers", name) for name in ("id", "root_id", "redbeat_due")]
        paths += [("properties", "correlation_id"), ("properties", "delivery_tag")]
        if self.is_expiring:
            paths += [("headers", "expires"), ("properties", "expiration")]
        elif self.expires_seconds is not None:
            paths.append(("headers", "expires"))
        return [*paths, *(("headers", name) for name in self.trace_names or ())]

    def texts(self, values: RunValues, delivery_tag: str) -> tuple[str, ...]:
        """Return the JSON of the values, in the order of ``paths``."""
        task_id = encode_basestring_ascii(values.task_id)
        due, tag = encode_basestring_ascii(values.due), encode_basestring_ascii(delivery_tag)
        texts = [task_id, task_id, due, task_id, tag]
        if self.is_expiring:
            milliseconds = int((values.expiration_seconds or 0) * 1000)
            texts += [json_text(values.expires and values.expires.isoformat()), f'"{milliseconds}"']
        elif self.expires_seconds is not None:
            texts.append(f'"{self._expires_at(values, self.expires_seconds).isoformat()}"')
        if self.trace_names:
            texts += [encode_basestring_ascii(values.trace[name]) for name in self.trace_names]
            for name, value in list(values.trace.items())[len(self.trace_names) :]:
                texts[-1] += f", {json_text(name)}: {json_text(value)}"
        return tuple(texts)

    def _expires_at(self, values: RunValues, seconds: float) -> datetime:
        # a message that is made early is sent at its due time
        sent_at = max(self.app.now(), datetime.fromisoformat(values.due).astimezone(self.app.timezone))
        add = getattr(celery_amqp, "add_seconds_to_datetime", None)  # since Celery 5.6
        expires: datetime = sent_at + timedelta(seconds=seconds) if add is None else add(sent_at, seconds)
        return expires


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
        *("redbeat_entry", "redbeat_due", *POLICY_HEADERS, "celery_beat_task", "compression"),
    )
)

_SIMPLE = (str, int, float, bool, type(None))


def kind_of(call: Call) -> tuple[Any, ...] | str:
    """Return a key that is equal for calls whose messages can share a template; a str: why none can."""
    if type(call.args) is not list or type(call.kwargs) is not dict:
        return "args isn't a list, or kwargs isn't an object"
    options, obstacles = list[Any](), list[str]()
    for name, value in call.options.items():
        if name == "headers":
            obstacle, found = _find_header_obstacle(value), tuple(value or ())
        elif name in _OPTION_PATHS and value and type(value) in (str, int, float):
            obstacle, found = "", (type(value),)
        else:
            obstacle, found = _find_option_obstacle(name, value), (repr(value),)
        if obstacle:
            obstacles.append(obstacle)
        options.append((name, found))
    if obstacles:
        return "; ".join(obstacles)
    expiry = call.lifetime_seconds is None, call.queue_seconds is None
    return (call.task, not call.args, not call.kwargs, *expiry, tuple(call.policy_headers), tuple(options))


def _find_option_obstacle(name: str, value: Any) -> str:
    if name not in _KIND_OPTIONS:
        return f"the option {name!r}"
    if name == "expires" and value is not None and not is_number(value):
        return f"the option {name!r} isn't a number"
    return "" if _is_json(value) else f"the option {name!r} isn't a simple value"


def _find_header_obstacle(headers: Any) -> str:
    if headers and type(headers) is not dict:
        return "the option 'headers' isn't an object"
    for name, value in (headers or {}).items():
        if name in _RESERVED_HEADERS:
            return f"the header {name!r} takes the place of another"
        if not _is_json(value):  # RabbitMQ has a type of its own for a date
            return f"the header {name!r} has a value that JSON hasn't got"
    return ""


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
