"""Options of ``apply_async`` that reach further than an entry's own task. Pure.

Invariant: whoever may give a task some options can't have another task run by them, nor write to a key of
RedBeat's own, by the name of a queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from redbeat.keys import Keys

#: the options with signatures in them, which a worker calls after the task or in place of its result
CALLS = ("link", "link_error", "chain", "chord")
#: the headers that a worker takes for what Celery itself has said: of another task, under another id,
#: with calls behind it, or with these headers once more when it is tried again
HEADERS = ("task", "id", "headers", *("callbacks", "errbacks", "chain", "chord"))
#: the options that name the key of a list, where the broker is Redis
PLACES = ("queue", "routing_key", "reply_to")


def find_calls(options: Any) -> str | None:
    """Return the name of an option that has further tasks run; None: there is none."""
    return next((name for name in CALLS if _fields(options).get(name)), None)


def find_trick(options: Any, keys: Keys) -> str | None:
    """Return what is wrong with options that nobody has a good reason for, a sentence; None: nothing is."""
    given = _fields(options)
    for name in HEADERS:
        if name in _fields(given.get("headers")):
            return f"options: headers: {name!r} is Celery's own."
    for name in PLACES:
        value = given.get(name)
        if isinstance(value, str) and keys.owns(value):
            return f"options: {name}: {value!r} is a key of RedBeat's own in Redis."
    return None


def _fields(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
