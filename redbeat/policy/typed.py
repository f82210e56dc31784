"""The fields of an entry's policy for editors and type checkers.

``make generated`` writes this file: the table of the fields is ``Policy`` in ``policy.py``.
"""

from __future__ import annotations

from datetime import datetime, timedelta, tzinfo
from typing import Literal, TypedDict

from redbeat.policy.fields import PolicyField

AfterFinish = Literal["keep", "disable", "delete"]
Misfire = Literal["latest", "all", "earliest", "skip"]
Overlap = Literal["allow", "skip", "buffer_one", "replace"]
Tracks = Literal["task", "workflow"]


class PolicyFields(TypedDict, total=False):
    """The fields as keyword arguments; None sets the default."""

    timezone: str | tzinfo | None
    start_time: datetime | str | None
    end_time: datetime | str | None
    max_runs: int | None
    one_off: bool | None
    after_finish: AfterFinish | None
    jitter: float | timedelta | None
    expires_after: float | timedelta | None
    misfire: Misfire | None
    misfire_limit: int | None
    misfire_grace_time: float | timedelta | None
    run_missed: bool | None
    paused: bool | None
    pause_note: str | None
    paused_by: str | None
    paused_until: datetime | str | None
    exclude: str | None
    overlap: Overlap | None
    max_runtime: float | timedelta | None
    revoke_overdue: bool | None
    queue_timeout: float | timedelta | None
    pause_after_failures: int | None
    resume_after: float | timedelta | None
    tracks: Tracks | None
    ping_url: str | None
    metrics: bool | None


class PolicyAttributes:
    """The fields as attributes of an entry."""

    timezone = PolicyField[str | None, str | tzinfo | None]()
    start_time = PolicyField[datetime | None, datetime | str | None]()
    end_time = PolicyField[datetime | None, datetime | str | None]()
    max_runs = PolicyField[int | None, int | None]()
    one_off = PolicyField[bool, bool | None]()
    after_finish = PolicyField[str, AfterFinish | None]()
    jitter = PolicyField[float, float | timedelta | None]()
    expires_after = PolicyField[float | None, float | timedelta | None]()
    misfire = PolicyField[str | None, Misfire | None]()
    misfire_limit = PolicyField[int | None, int | None]()
    misfire_grace_time = PolicyField[float | None, float | timedelta | None]()
    run_missed = PolicyField[bool, bool | None]()
    paused = PolicyField[bool, bool | None]()
    pause_note = PolicyField[str | None, str | None]()
    paused_by = PolicyField[str | None, str | None]()
    paused_until = PolicyField[datetime | None, datetime | str | None]()
    exclude = PolicyField[str | None, str | None]()
    overlap = PolicyField[str, Overlap | None]()
    max_runtime = PolicyField[float | None, float | timedelta | None]()
    revoke_overdue = PolicyField[bool, bool | None]()
    queue_timeout = PolicyField[float | None, float | timedelta | None]()
    pause_after_failures = PolicyField[int | None, int | None]()
    resume_after = PolicyField[float | None, float | timedelta | None]()
    tracks = PolicyField[str, Tracks | None]()
    ping_url = PolicyField[str | None, str | None]()
    metrics = PolicyField[bool, bool | None]()
