"""The task id of a run: it follows from entry and due time, the same on every beat and at every try."""

from __future__ import annotations

import hashlib
import uuid

from redbeat.keys import identity_of

__all__ = ["TASK_ID_NAMESPACE", "request_id_of", "rerun_id_of", "task_id_of"]

#: task ids are UUIDs of version 5 in this namespace
TASK_ID_NAMESPACE = uuid.UUID("6f0d8a52-3a5c-4e0b-9d0e-2c1f5f3b7a41")
_NAMESPACE = TASK_ID_NAMESPACE.bytes


def task_id_of(key: str, due: str) -> str:
    """Return the task id of an entry's run.

    Arguments:
        key: the entry's key in Redis; in a shard that which it has without shards counts.
        due: when the run is due, ISO 8601 in UTC with microseconds, as in the header ``redbeat_due``.
    """
    if key[:1] == "{":
        key = identity_of(key)
    name = _NAMESPACE + f"{key}\n{due}".encode("utf-8", "surrogateescape")
    made = hashlib.sha1(name, usedforsecurity=False).hexdigest()
    # the same as uuid.uuid5(), which takes five times as long
    variant = "89ab"[int(made[16], 16) & 3]
    return f"{made[:8]}-{made[8:12]}-5{made[13:16]}-{variant}{made[17:20]}-{made[20:32]}"


def rerun_id_of(key: str, due: str, number: int) -> str:
    """Return the task id of a rerun of an entry's run.

    Arguments:
        key, due: as of :func:`task_id_of`.
        number: 1 for the first rerun of what was due then, 2 for the second, and so on.
    """
    return task_id_of(key, f"{due}\n{number}")


def request_id_of(key: str, request: str) -> str:
    """Return the task id of a run of an entry that a request has asked for.

    Arguments:
        key: as of :func:`task_id_of`.
        request: what tells the request from others.
    """
    return task_id_of(key, f"request\n{request}")
