"""A message that is sent later: from what was published to its texts in Redis, and back. Pure.

A stored message is what kombu would have written to the broker: its body as it was serialised, its headers
and properties, and where it goes. Nothing of it is made anew. Invariant: a body that isn't JSON is never
decoded here, and stands in a key of its own, which those who may write entries can't reach.
"""

from __future__ import annotations

import json
import math
import secrets
from base64 import b64decode, b64encode
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from typing import Any

from kombu.utils import json as kombu_json

from redbeat.decoder import encode_definition
from redbeat.errors import EntryCorrupt
from redbeat.log.text import is_utf8, printable, quoted
from redbeat.schedules import clocked
from redbeat.store.messages import MessageTexts, NewMessage

JSON = "application/json"

#: kombu's own JSON, which knows datetimes and the like
_dumps: Any = kombu_json.dumps
_loads: Any = kombu_json.loads

#: the policy of each stored message's entry
ONE_OFF = '{"one_off": true, "after_finish": "delete"}'

_NO_TASK = "its body isn't that of a task."

#: fields of the JSON that have a default, which isn't written
_DEFAULTS: Mapping[str, Any] = {"exchange": "", "queues": [], "expires_at": None}


@dataclass(frozen=True)
class Message:
    """A message of a task.

    Attributes:
        task_id, task: of its task.
        body: serialised.
        content_type, content_encoding: of the body, as kombu has them.
        headers: of the task, as Celery has made them.
        properties: such as ``priority`` and ``correlation_id``.
        exchange, routing_key: where it goes.
        queues: what is declared before that: the names of queues that an app knows, or the arguments of
            others.
        expires_at: when the broker may drop it, UNIX seconds; None: never.
    """

    task_id: str
    task: str
    body: bytes
    content_type: str
    content_encoding: str
    headers: Mapping[str, Any]
    properties: Mapping[str, Any]
    exchange: str
    routing_key: str
    queues: Sequence[str | Mapping[str, Any]] = ()
    expires_at: float | None = None

    @property
    def is_plain(self) -> bool:
        """Whether its body is JSON that a text can hold."""
        return self.content_type == JSON and self.content_encoding == "utf-8" and not self._is_compressed

    @property
    def _is_compressed(self) -> bool:
        return bool(self.headers.get("compression"))

    @cached_property
    def _parts(self) -> Any:
        """The body as Python objects; None: it isn't JSON."""
        if not self.is_plain:
            return None
        try:
            return _loads(self.body.decode())
        except Exception:  # noqa: BLE001 - whatever the decoder of a type raises, kombu's or the app's
            return None

    @property
    def arguments(self) -> tuple[Sequence[Any], Mapping[str, Any]] | None:
        """The task's positional and keyword arguments; None: its body isn't JSON."""
        parts = self._parts
        if isinstance(parts, dict):  # Celery's first protocol
            return parts.get("args") or [], parts.get("kwargs") or {}
        if isinstance(parts, list) and len(parts) > 1 and isinstance(parts[1], dict):
            return parts[0], parts[1]
        return None

    @property
    def request(self) -> dict[str, Any]:
        """What a worker would know of the task: headers and properties, and of a body in JSON its chord and
        what else is embedded.
        """
        parts, known = self._parts, {**self.headers, **self.properties, "id": self.task_id, "task": self.task}
        if isinstance(parts, dict):
            known |= {name: parts.get(name) for name in ("callbacks", "errbacks", "chord", "taskset")}
        elif isinstance(parts, list) and len(parts) > 2 and isinstance(parts[2], dict):
            known |= parts[2]
        args, kwargs = self.arguments or ([], {})
        return {**known, "args": args, "kwargs": kwargs}

    def to_new(self, due: datetime, name: str) -> NewMessage:
        """Return what is stored of it, to be sent at ``due``.

        Arguments:
            name: of its entry.

        Raises TypeError, ValueError or RecursionError if headers or properties have no form in JSON.
        """
        return NewMessage(
            self.task_id,
            due.timestamp(),
            encode_definition(name, self.task, [], {}, {}, clocked(due), enabled=True),
            ONE_OFF,
            secrets.token_hex(8),
            self.to_texts(),
        )

    def to_texts(self) -> MessageTexts:
        """Return it as JSON, the body apart where it isn't plain."""
        known: dict[str, Any] = {
            "task_id": self.task_id,
            "task": self.task,
            "headers": self.headers,
            "properties": self.properties,
            "exchange": self.exchange,
            "routing_key": self.routing_key,
            "queues": list(self.queues),
            "expires_at": self.expires_at,
        }
        known = {name: value for name, value in known.items() if value != _DEFAULTS.get(name, ...)}
        if self.is_plain:
            return MessageTexts(_dumps({**known, "body": self.body.decode()}))
        apart = {
            "content_type": self.content_type,
            "content_encoding": self.content_encoding,
            "body": b64encode(self.body).decode(),
        }
        return MessageTexts(_dumps(known), json.dumps(apart))

    @classmethod
    def from_texts(cls, key: str, texts: MessageTexts, accepted: Collection[str] | None = None) -> Message:
        """Return the message that stands in Redis.

        Arguments:
            key: of its entry.
            accepted: the content types that are allowed; None: all are.

        Raises:
            EntryCorrupt: it can't be used; the sentence says why.
        """
        if not texts.message:
            raise EntryCorrupt(f"{key}: it has no message, though it is among the stored ones.", key)
        try:
            known = _loads(texts.message)
            body, content_type, encoding = _body_of(known, texts.body)
            message = cls(
                task_id=_text(known, "task_id"),
                task=_text(known, "task"),
                body=body,
                content_type=content_type,
                content_encoding=encoding,
                headers=_dict(known, "headers"),
                properties=_dict(known, "properties"),
                exchange=_text(known, "exchange", ""),
                routing_key=_text(known, "routing_key"),
                queues=_queues(known),
                expires_at=_seconds(known, "expires_at"),
            )
        except KeyError as exc:
            raise EntryCorrupt(f"{key}: its message has no {exc}.", key) from exc
        except Exception as exc:  # whatever the decoder of a type raises, kombu's or the app's
            raise EntryCorrupt(f"{key}: its message can't be read: {printable(str(exc))}", key) from exc
        problem = message.find_foreign(is_inline=not texts.body)
        if problem:
            raise EntryCorrupt(f"{key}: {problem}", key)
        if accepted is not None and content_type not in accepted:
            raise EntryCorrupt(
                f"{key}: its body has the type {content_type}, and accept_content of this beat hasn't.",
                key,
            )
        return message

    def find_foreign(self, *, is_inline: bool) -> str:
        """Return why this is no message of a task, as a sentence; '': it is one.

        Whoever may write entries may write messages with a JSON body, too: no orders to workers by them.

        Arguments:
            is_inline: its body stands where whoever may write entries can write; so it must be plain.
        """
        if self.exchange.endswith(".pidbox"):
            return f"its exchange {quoted(self.exchange)} is for orders to workers, and takes no tasks."
        if not self.is_plain:
            return _NO_TASK if is_inline else ""
        return "" if _is_of_task(self._parts or _loaded(self.body)) else _NO_TASK

    def seconds_left(self, now: datetime) -> float | None:
        """Return how long the broker may keep it after ``now``; None: for ever."""
        return None if self.expires_at is None else self.expires_at - now.astimezone(timezone.utc).timestamp()


def _loaded(body: bytes) -> Any:
    """Return the body as it is without the types that kombu and applications have beside JSON's."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _is_of_task(parts: Any) -> bool:
    if isinstance(parts, dict):  # Celery's first protocol; with a method it is an order to workers
        return "task" in parts and "method" not in parts
    return (
        isinstance(parts, list)
        and len(parts) > 1
        and isinstance(parts[0], list)
        and isinstance(parts[1], dict)
    )


def _body_of(known: Any, apart: str) -> tuple[bytes, str, str]:
    """Return the body, its content type and its encoding."""
    if not isinstance(known, dict):
        raise TypeError("it is no JSON object.")
    if "body" in known:  # a text: JSON, whatever it is said to be
        return _text(known, "body").encode(), JSON, "utf-8"
    if not apart:
        raise ValueError(
            "its body isn't in Redis any more, eviction is the usual cause; or it may not be read."
        )
    found = json.loads(apart)
    if not isinstance(found, dict):
        raise TypeError("its body is no JSON object.")
    body = b64decode(_text(found, "body"), validate=True)
    return body, _text(found, "content_type"), _text(found, "content_encoding")


def _text(known: Mapping[str, Any], name: str, *default: str) -> str:
    value = known.get(name, *default) if default else known[name]
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a text, not {quoted(value)}.")
    if not is_utf8(value):
        raise ValueError(f"{name} must be UTF-8, and holds half a character (a surrogate).")
    return value


def _seconds(known: Mapping[str, Any], name: str) -> float | None:
    value = known.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise TypeError(f"{name} must be UNIX seconds, not {quoted(value)}.")
    return float(value)


def _queues(known: Mapping[str, Any]) -> list[str | Mapping[str, Any]]:
    value = known.get("queues", [])
    if not isinstance(value, list) or not all(isinstance(one, (str, dict)) for one in value):
        raise TypeError(f"queues must be a list of names and objects, not {quoted(value)}.")
    return value


def _dict(known: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = known[name]
    if not isinstance(value, dict):
        raise TypeError(f"{name} must be an object, not {quoted(value)}.")
    return value
