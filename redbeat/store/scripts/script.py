"""One script: made from files, and sent by its SHA-1.

Invariant: its source comes from files only; all values of a caller are KEYS and ARGV.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import Any, NamedTuple

from redis.exceptions import NoScriptError

from redbeat.log.text import as_stored, sha1_of_text


class Request(NamedTuple):
    """KEYS and ARGV of one call."""

    keys: Sequence[str]
    args: Sequence[Any]


class Script:
    """A script that is sent by its SHA-1, or as a whole if the server doesn't know it."""

    def __init__(self, *names: str) -> None:
        self.source = "".join(files(__package__).joinpath(f"{name}.lua").read_text("utf-8") for name in names)
        self.sha1 = sha1_of_text(self.source)

    def __call__(self, client: Any, keys: Sequence[str], args: Sequence[Any]) -> Any:
        values = _encoded(keys, args)
        try:
            return client.evalsha(self.sha1, len(keys), *values)
        except NoScriptError:
            return client.eval(self.source, len(keys), *values)

    def command(self, request: Request) -> list[Any]:
        """Return the words of the command for ``request``, for a server that knows the script."""
        return ["EVALSHA", self.sha1, len(request.keys), *_encoded(*request)]

    def call_each(self, client: Any, requests: Sequence[Request]) -> list[Any]:
        """Return what the script returns for each of ``requests``, one after the other."""
        return [self(client, *request) for request in requests]

    def call_all(
        self, client: Any, requests: Sequence[Request], wait: Sequence[Any] = ()
    ) -> tuple[list[Any], Any]:
        """Return what the script returns for each of ``requests``, and what the command ``wait`` does after
        them, on the same connection.

        One round trip. ``wait``'s reply may be an exception. It is None when a script had to be asked for
        again, which is done in the ordinary way: one that was refused, or isn't known to the server yet.
        """
        pipeline = client.pipeline(transaction=False)
        for keys, args in requests:
            pipeline.evalsha(self.sha1, len(keys), *_encoded(keys, args))
        if wait:
            pipeline.execute_command(*wait)
        replies = pipeline.execute(raise_on_error=False)
        waited = replies.pop() if wait else None
        failed = [place for place, reply in enumerate(replies) if isinstance(reply, Exception)]
        for place in failed:
            replies[place] = self(client, *requests[place])
        return replies, None if failed else waited


def _encoded(keys: Sequence[str], args: Sequence[Any]) -> list[Any]:
    # text is sent as the bytes that it was in Redis, also if they aren't UTF-8, which hiredis refuses
    values = [*keys, *args]
    try:
        return [value.encode() if type(value) is str else value for value in values]
    except UnicodeEncodeError:
        return [as_stored(value) if isinstance(value, str) else value for value in values]
