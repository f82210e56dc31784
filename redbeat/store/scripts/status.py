"""The scripts that look at a schedule and write nothing: the only place that knows their KEYS and replies."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from redbeat.store.records import Head, Vitals, text_of
from redbeat.store.scripts.script import Request, Script
from redbeat.store.scripts.standbys import STANDBY_MS

#: a stored message that should have been sent longer ago is overdue, milliseconds
OVERDUE_MS = 60_000

_READ_HEAD = Script("read_head")
_READ_STATUS = Script("read_status")
_CHECK_RIGHTS = Script("check_rights")


def read_head(client: Any, schedule_key: str, deadlines_key: str, later_key: str) -> Head:
    """Read the server's clock, and what comes first of entries, deadlines and stored messages.

    Nothing is written.
    """
    script, request = head_call(schedule_key, deadlines_key, later_key)
    return head_of(script(client, *request))


def check_rights(client: Any, calls: Sequence[Sequence[Any]]) -> set[int]:
    """Return which of ``calls`` the client's user may not send, by their places from 1."""
    return set(_CHECK_RIGHTS(client, [], [json.dumps(calls)]))


def head_call(schedule_key: str, deadlines_key: str, later_key: str) -> tuple[Script, Request]:
    """Return what ``read_head`` calls."""
    return _READ_HEAD, Request([schedule_key, deadlines_key, later_key], [])


def head_of(reply: Sequence[Any]) -> Head:
    """Return what was read, by the reply to the command."""
    now, *heads = reply
    return Head(float(now), *(float(head) if head else None for head in heads))


def status_call(
    schedule_key: str,
    lock_key: str | None,
    tick_key: str,
    standbys_key: str | None,
    later_key: str | None,
) -> tuple[Script, Request]:
    """Return what reads who leads and how much is due; nothing is written.

    Arguments:
        standbys_key: None: who stands by isn't asked.
        later_key: None: which messages are stored isn't asked.
    """
    keys = [schedule_key, lock_key, tick_key, standbys_key, later_key]
    return _READ_STATUS, Request([key or schedule_key for key in keys], [STANDBY_MS, OVERDUE_MS])


def vitals_of(reply: Any, *, has_standbys: bool) -> Vitals:
    """Return what its reply says.

    Arguments:
        has_standbys: it was asked who stands by.
    """
    now, token, rest_ms, tick, due, oldest, standing, stored, overdue, first, entries = reply
    since = float(oldest) if oldest else None
    standbys = {text_of(who): float(at) for who, at in zip(standing[::2], standing[1::2], strict=True)}
    return Vitals(
        float(now),
        text_of(token),
        int(rest_ms),
        text_of(tick),
        int(due),
        since,
        standbys if has_standbys else None,
        None if int(stored) < 0 else int(stored),
        int(overdue),
        float(first) if first else None,
        int(entries),
    )
