"""One script: made from files, and sent by its SHA-1.

Invariant: its source comes from files only; all values of a caller are KEYS and ARGV. A script that begins
with ``check_layout`` does nothing where entries aren't where its caller takes them to be.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Generic, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from redis.exceptions import NoPermissionError, NoScriptError

from redbeat.connection.retry import without_retry
from redbeat.keys import UNGUARDED, Keys
from redbeat.log.text import as_stored, sha1_of_text

#: what a script that checks the layout begins with
CHECK = "check_layout"

#: for how long a right that was missing isn't asked for again: rules may be changed under running programs
RIGHT_SECONDS = 10.0

#: client to the generation keys that it had no right to, each to when that was, monotonic: before there were
#: shards, no rule had them. What one client may not do, another one of the same process may
_OUT_OF_REACH: WeakKeyDictionary[Any, dict[str, float]] = WeakKeyDictionary()


class Request(NamedTuple):
    """KEYS and ARGV of one call.

    Attributes:
        within: the part of the schedule that a script writes to; None: it checks no layout.
    """

    keys: Sequence[str]
    args: Sequence[Any]
    within: Keys | None = None


Result = TypeVar("Result")


class Script:
    """A script that is sent by its SHA-1, or as a whole if the server doesn't know it.

    Arguments:
        names: of the files that it is made of. Those in front only define functions; ``check_layout`` acts.
        is_raw: its replies aren't decoded, whatever the client's settings are.
    """

    def __init__(self, *names: str, is_raw: bool = False) -> None:
        self.options: Mapping[str, Any] = {"NEVER_DECODE": []} if is_raw else {}
        self.names = names
        self.source = "".join(files(__package__).joinpath(f"{name}.lua").read_text("utf-8") for name in names)
        self.sha1 = sha1_of_text(self.source)
        self.is_checking = names[0] == CHECK

    def __call__(
        self, client: Any, keys: Sequence[str], args: Sequence[Any], within: Keys | None = None
    ) -> Any:
        request = Request(keys, args, within)
        try:
            return self._call(client, request)
        except NoPermissionError:
            if within is None or within.guard or _is_out_of_reach(client, within):
                raise
            found = self._call(client, request, is_checked=False)
            _OUT_OF_REACH.setdefault(without_retry(client), {})[within.generation] = time.monotonic()
            return found

    def _call(self, client: Any, request: Request, *, is_checked: bool = True) -> Any:
        numkeys, values = self._values(client, request, is_checked=is_checked)
        if self.options:  # only this passes them on
            call = client.execute_command
            try:
                return call("EVALSHA", self.sha1, numkeys, *values, **self.options)
            except NoScriptError:
                return call("EVAL", self.source, numkeys, *values, **self.options)
        try:
            return client.evalsha(self.sha1, numkeys, *values)
        except NoScriptError:
            return client.eval(self.source, numkeys, *values)

    def _values(self, client: Any, request: Request, *, is_checked: bool = True) -> tuple[int, list[Any]]:
        """Return how many keys there are, and the keys and arguments."""
        keys, args, within = request
        if not self.is_checking:
            return len(keys), _encoded(keys, args)
        if within is None:
            raise TypeError("a script that checks the layout needs the part that it writes to")
        if is_checked and within.guard != UNGUARDED and not _is_out_of_reach(client, within):
            keys, args = [*keys, within.generation], [*args, within.guard]
        else:  # it must have a key all the same
            keys, args = [*keys, keys[0]], [*args, UNGUARDED]
        return len(keys), _encoded(keys, args)

    def command(self, client: Any, request: Request) -> list[Any]:
        """Return the words of the command for ``request``, for a server that knows the script.

        Arguments:
            client: the one on whose behalf they are sent.
        """
        numkeys, values = self._values(client, request)
        return ["EVALSHA", self.sha1, numkeys, *values]

    def call_each(
        self, client: Any, requests: Sequence[Request], call: Callable[[Request], Any] | None = None
    ) -> list[Any]:
        """Return what the script returns for each of ``requests``, one after the other.

        Arguments:
            call: calls it for one; None: by ``client``.
        """
        return [*map(call, requests)] if call else [self(client, *request) for request in requests]

    def call_all(
        self,
        client: Any,
        requests: Sequence[Request],
        wait: Sequence[Any] = (),
        call: Callable[[Request], Any] | None = None,
    ) -> tuple[list[Any], Any]:
        """Return what the script returns for each of ``requests``, and what the command ``wait`` does after
        them, on the same connection.

        One round trip. ``wait``'s reply may be an exception. It is None when a script had to be asked for
        again, which is done in the ordinary way: one that was refused, or isn't known to the server yet.
        ``call`` is as in :meth:`call_each`.
        """
        pipeline = client.pipeline(transaction=False)
        for request in requests:
            numkeys, values = self._values(client, request)
            pipeline.evalsha(self.sha1, numkeys, *values)
        if wait:
            pipeline.execute_command(*wait)
        replies = pipeline.execute(raise_on_error=False)
        waited = replies.pop() if wait else None
        failed = [place for place, reply in enumerate(replies) if isinstance(reply, Exception)]
        for place in failed:
            [replies[place]] = self.call_each(client, [requests[place]], call)
        return replies, None if failed else waited


@dataclass(frozen=True)
class Question(Generic[Result]):
    """One call of a script, and what its reply means.

    Attributes:
        read: makes of the reply what the caller wants to know.
    """

    script: Script
    request: Request
    read: Callable[[Any], Result]

    @property
    def call(self) -> tuple[Script, Request]:
        """What ``store.nodes`` calls; its reply is for ``read``."""
        return self.script, self.request

    def ask(self, client: Any) -> Result:
        """Call the script, and return what its reply means."""
        return self.read(self.script(client, *self.request))


def _is_out_of_reach(client: Any, part: Keys) -> bool:
    """Tell whether ``client`` has had no right lately to look in which layout ``part`` is."""
    if part.guard or not _OUT_OF_REACH:
        return False
    refused_at = _OUT_OF_REACH.get(without_retry(client), {}).get(part.generation)
    return refused_at is not None and time.monotonic() < refused_at + RIGHT_SECONDS


def _encoded(keys: Sequence[str], args: Sequence[Any]) -> list[Any]:
    # text is sent as the bytes that it was in Redis, also if they aren't UTF-8, which hiredis refuses
    values = [*keys, *args]
    try:
        return [value.encode() if type(value) is str else value for value in values]
    except UnicodeEncodeError:
        return [as_stored(value) if isinstance(value, str) else value for value in values]
