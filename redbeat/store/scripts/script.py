"""One script: made from files, and sent by its SHA-1.

Invariant: its source comes from files only; all values of a caller are KEYS and ARGV.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from redis.exceptions import NoScriptError

from redbeat.log.text import as_stored, sha1_of_text


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

    def call_and_wait(
        self, client: Any, keys: Sequence[str], args: Sequence[Any], wait: Sequence[Any]
    ) -> tuple[Any, Any]:
        """Return what the script returns, and what the command ``wait`` does, on the same connection.

        One round trip. ``wait``'s reply may be an exception, and is None when the script had to be asked for
        again, which is done in the ordinary way: one that was refused, or isn't known to the server yet.
        """
        pipeline = client.pipeline(transaction=False)
        pipeline.evalsha(self.sha1, len(keys), *_encoded(keys, args))
        pipeline.execute_command(*wait)
        reply, waited = pipeline.execute(raise_on_error=False)
        if isinstance(reply, Exception):
            return self(client, keys, args), None
        return reply, waited


def _encoded(keys: Sequence[str], args: Sequence[Any]) -> list[Any]:
    # text is sent as the bytes that it was in Redis, also if they aren't UTF-8, which hiredis refuses
    return [as_stored(value) if isinstance(value, str) else value for value in (*keys, *args)]
