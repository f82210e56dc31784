"""Many entries changed, run or backfilled by one request, one entry after the other.

Invariant: one that fails doesn't stop the others; a request ends after some seconds, and says how far it got,
so that the next one goes on there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from redbeat.access import Right
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.query import read_listed
from redbeat.entries.saving import retry_when_changed
from redbeat.errors import (
    AccessDenied,
    BrokerUnavailable,
    EntryError,
    LockNotAcquired,
    RunNotSent,
    StoreRefused,
    StoreUnavailable,
)
from redbeat.operations import editing
from redbeat.operations.editing import revision_of
from redbeat.web.api.choices import DRY_RUN, ONE_CHOICE, choice_of, chosen_one_by_one
from redbeat.web.api.entries import without_added
from redbeat.web.api.kinds import OBJECT, Field
from redbeat.web.api.operations import Answer, Body, Call, Operation
from redbeat.web.api.patches import merged
from redbeat.web.api.schemas import of

#: how many entries one request is about, and for how long it goes on, seconds
MOST, MOST_SECONDS = 100, 5.0


class Enough(Exception):
    """The request has done as much as it may; this entry is left to the next one."""


@dataclass
class Done:
    """What became of entries.

    Attributes:
        done: what was made of each, by its name.
        failed: why others weren't changed.
        left: names that were given and weren't looked at.
        next: where a look for more goes on; None: that was all.
    """

    done: dict[str, Any] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    left: Sequence[str] = ()
    next: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return what every answer has."""
        return {"failed": self.failed, "left": [*self.left], "next": self.next}


def _each(call: Call, act: Callable[[str], object]) -> Done:
    """Call ``act`` with the name of each entry that the body means, as far as time allows.

    Raises:
        StoreUnavailable, StoreRefused, BrokerUnavailable: nothing can be done at all.
    """
    chosen, ends_at = chosen_one_by_one(call, MOST), time.monotonic() + MOST_SECONDS
    result = Done(next=chosen.following)
    for place, name in enumerate(chosen.names):
        try:
            if place and time.monotonic() >= ends_at:
                raise Enough
            result.done[name] = act(name)
        except (StoreUnavailable, StoreRefused, BrokerUnavailable, Enough):
            if not place:
                raise
            if chosen.cursors:
                result.next = chosen.cursors[place - 1]
            else:
                result.left = chosen.names[place:]
            break
        except (AccessDenied, EntryError, LockNotAcquired, RunNotSent) as exc:  # the others go on
            result.failed[name] = str(exc)
    return result


def set_entries(call: Call) -> Answer:
    """Change the same fields of many entries."""
    patch, dry_run = without_added(call.body["changes"]), call.body["dry_run"]
    call.actor.require(Right.EDIT)
    result = _each(call, lambda name: _change(call, name, patch, dry_run=dry_run))
    return Answer({"changed": [*result.done], **result.to_dict()})


def _change(call: Call, name: str, patch: Mapping[str, Any], *, dry_run: bool) -> None:
    def change() -> None:
        entry = read_listed(RedBeatSchedulerEntry, call.app, name)
        changes = merged(editing.fields_of(entry), patch)
        editing.set_(call.actor, name, changes, revision_of(entry), dry_run=dry_run)

    retry_when_changed(change)


_CHOICE = choice_of(MOST)

OPERATIONS: Sequence[Operation] = (
    Operation(
        *("PUT", "/set", "set", Right.EDIT, "Change the same fields of many entries.", set_entries),
        {200: of("Changed")},
        body=Body(
            (
                *_CHOICE,
                Field("changes", OBJECT, "As the body of a PATCH of one entry has them.", is_needed=True),
                DRY_RUN,
            ),
            is_needed=True,
            exactly_one=ONE_CHOICE,
        ),
    ),
)
