"""A message as the bytes that AMQP 0-9-1 has for it, so that several messages are written together.

py-amqp makes the same bytes, and writes each message by itself. Source: the specification of AMQP 0-9-1,
sections 2.3 (frames) and 4.2.6 (content).
"""

from __future__ import annotations

from struct import Struct
from typing import Any

_METHOD, _HEADER, _BODY, _END = 1, 2, 3, b"\xce"
_BASIC, _PUBLISH = 60, 40

_octet = Struct("B").pack
_frame = Struct(">BHI").pack  # type, channel, bytes
_method = Struct(">HHH").pack  # class, method, reserved
_content = Struct(">HHQ").pack  # class, weight, bytes of the body

#: what a frame has besides its payload, bytes
_OVERHEAD = 8


def publish_frames(
    channel: Any, message: Any, exchange: str, routing_key: str, mandatory: bool, immediate: bool
) -> bytes:
    """Return the frames that publish ``message``, one of py-amqp's, on ``channel``.

    Raises what py-amqp raises when a property can't be written, and UnicodeEncodeError.
    """
    body = message.body
    if isinstance(body, str):
        body = body.encode(message.properties.setdefault("content_encoding", "utf-8"))
    number = channel.channel_id
    method = b"".join(
        (
            _method(_BASIC, _PUBLISH, 0),
            _short_text(exchange),
            _short_text(routing_key),
            _octet(bool(mandatory) + 2 * bool(immediate)),
        )
    )
    header = _content(_BASIC, 0, len(body)) + message._serialize_properties()  # noqa: SLF001 - it has no public name
    parts = [_frame(_METHOD, number, len(method)), method, _END]
    parts += (_frame(_HEADER, number, len(header)), header, _END)
    max_payload = channel.connection.frame_max - _OVERHEAD
    for start in range(0, len(body), max_payload):
        payload = body[start : start + max_payload]
        parts += (_frame(_BODY, number, len(payload)), payload, _END)
    return b"".join(parts)


def _short_text(text: str) -> bytes:
    encoded = (text or "").encode("utf-8", "surrogatepass")
    return _octet(len(encoded)) + encoded
