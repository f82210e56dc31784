"""What other people do to a schedule while beats work on it: applications, other languages, operators.

Times are of this module's own making. What is due, is so since the first seconds of 1970, each time since
another one, so that a due time names one run; what isn't, is for decades. The hour of the day plays no part.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import redis
from celery import Celery
from celery.schedules import schedule
from hypothesis import strategies as st

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.errors import EntryNotFound
from tests.integration.beat.witness import Witness
from tests.support.schedule import LOCK, SCHEDULE, meta_json

NAMES = ("one", "two")
STATICS = ("old-static", "static")
#: more than the years since 1970, and no more digits than a score has room for
CENTURIES = 2 * 10**9
LATER = 3.5e9

_names = st.sampled_from(NAMES)
_all_names = st.sampled_from(NAMES + NAMES + STATICS)
_kinds = st.sampled_from(["usable", "usable", "usable", "disabled", "broken", "failing"])

#: entries that are due, as (method of `Others`, arguments …)
due_writes = st.lists(
    st.tuples(st.just("write"), _names, _kinds, st.sampled_from(["due", "due", "now"])), max_size=3
)
#: anything that others do, in the same form
writes = st.one_of(
    st.tuples(st.just("write"), _names, _kinds, st.sampled_from(["due", "due", "now", "later", None])),
    st.tuples(st.just("save"), _names, st.booleans()),
    st.tuples(st.just("save_again"), _all_names),
    st.tuples(st.just("reschedule"), _all_names, st.booleans()),
    st.tuples(st.just("retime"), _all_names, st.sampled_from(["due", "due", "now", "later"])),
    st.tuples(st.sampled_from(["unschedule", "delete", "evict"]), _all_names),
    st.tuples(st.just("recount"), _names),
    st.tuples(st.sampled_from(["drop_lock", "give_lock", "let_time_pass"])),
)


class Others:
    """Everybody who is no beat."""

    def __init__(self, client: redis.Redis, app: Celery, witness: Witness, has_lock: bool) -> None:
        self._client, self._app, self._witness, self._has_lock = client, app, witness, has_lock
        self._times = 0

    def write(self, name: str, kind: str, when: str | None) -> None:
        """In the way of another language: hset and zadd, in one transaction."""
        score = self._time(when)
        fields: dict[str, Any] = {"name": name, "task": "echo", "args": [self._times]}
        fields["schedule"] = {"__type__": "interval", "every": CENTURIES * (1 + self._times % 2)}
        extras = {"disabled": {"enabled": False}, "failing": {"options": {"serializer": "none"}}}
        text = "{oops" if kind == "broken" else json.dumps(fields | extras.get(kind, {}))
        with self._client.pipeline() as pipeline:
            pipeline.hset(f"redbeat:{name}", "definition", text)
            if score is not None:
                pipeline.zadd(SCHEDULE, {f"redbeat:{name}": score})
            pipeline.execute()

    def save(self, name: str, enabled: bool) -> None:
        self._times += 1
        Entry(name, "echo", schedule(CENTURIES), [self._times], enabled=enabled, app=self._app).save()

    def save_again(self, name: str) -> None:
        self._change(name, lambda entry: entry.save())

    def reschedule(self, name: str, is_early: bool) -> None:
        """As if it had just run, or in 1970; then one of the two intervals is over since 2001."""
        seconds = self._time("due") or 0
        since = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=seconds) if is_early else None
        self._change(name, lambda entry: entry.reschedule(since))

    def retime(self, name: str, when: str) -> None:
        self._client.zadd(SCHEDULE, {f"redbeat:{name}": self._time(when)}, xx=True)

    def unschedule(self, name: str) -> None:
        self._client.zrem(SCHEDULE, f"redbeat:{name}")

    def delete(self, name: str) -> None:
        Entry(name, "echo", schedule(CENTURIES), app=self._app).delete()

    def evict(self, name: str) -> None:
        self._client.delete(f"redbeat:{name}")

    def recount(self, name: str) -> None:
        """Its run count is set by hand."""
        self._times += 1
        if self._client.exists(f"redbeat:{name}"):
            self._client.hset(f"redbeat:{name}", "meta", meta_json(None, 100 * self._times))

    def drop_lock(self) -> None:
        self._client.delete(LOCK)

    def give_lock(self) -> None:
        if self._has_lock:
            self._client.set(LOCK, "somebody")

    def let_time_pass(self) -> None:
        self._witness.let_time_pass(self._time("due") or 0)

    def _change(self, name: str, change: Callable[[Entry], object]) -> None:
        try:
            entry = Entry.from_key(name, app=self._app)
        except (EntryNotFound, ValueError):
            return
        change(entry)

    def _time(self, when: str | None) -> float | None:
        self._times += 1
        fraction = self._times + 0.5
        return {"due": fraction, "now": 0.0, "later": LATER + fraction, None: None}[when]
