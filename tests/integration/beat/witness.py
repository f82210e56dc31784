"""The invariants as a judge: what one beat may have done to the schedule and the queue in one round trip.

A `Witness` looks at Redis between any two round trips, so that what differs from its last look was one atomic
step of one beat, or somebody else's doing. It knows nothing of how a beat decides; it knows what may follow
from what stood there.
"""

from __future__ import annotations

import base64
import functools
import json
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Literal

import redis

from redbeat.decoder import RedBeatJSONDecoder
from redbeat.task_ids import task_id_of
from tests.support.schedule import LOCK, SCHEDULE, STATICS

Guarantee = Literal["exactly once", "at least once", "at most once"]

#: no pause of RedBeat's own (a lease, a retry, a quarantine) is longer, no run in these tests is sooner
SOON_SECONDS = 1000.0
#: none is shorter, less what is lost as times are written
SHORTEST_PAUSE_SECONDS = 0.999


@dataclass(frozen=True)
class Row:
    """One entry; all None where there is none."""

    definition: str | None = None
    meta: str | None = None
    error: str | None = None
    score: float | None = None

    @property
    def kind(self) -> str:
        """What is to become of it when it is due."""
        return "missing" if self.definition is None else _decoded(self.definition)[0]

    @property
    def count(self) -> int:
        return int(json.loads(self.meta)["total_run_count"]) if self.meta else 0

    @property
    def every(self) -> float:
        return float(_decoded(self.definition)[1]["schedule"]["every"])

    @property
    def args(self) -> list[Any]:
        return list(_decoded(self.definition)[1]["args"])

    @property
    def failure(self) -> dict[str, Any]:
        return json.loads(self.error) if self.error else {}

    def is_due(self, now: float) -> bool:
        return self.score is not None and 0 <= self.score <= now


@functools.cache
def _decoded(definition: str | None) -> tuple[str, dict[str, Any]]:
    try:
        fields: dict[str, Any] = json.loads(definition or "")
    except ValueError:
        return "broken", {}
    if not fields.get("enabled", True):
        return "disabled", fields
    return "failing" if fields.get("options") else "usable", fields


@dataclass(frozen=True)
class Look:
    """Redis at one moment; `now` is the server's clock."""

    now: float
    rows: dict[str, Row]
    lock: str | None
    statics: frozenset[str]

    @property
    def state(self) -> tuple[Any, ...]:
        return self.rows, self.lock, self.statics


@dataclass(frozen=True)
class Sent:
    """One message on the queue."""

    entry: str
    due: str
    id: str
    args: list[Any]


@dataclass
class Beat:
    """One beat as its witness knows it.

    `statics` is its beat_schedule, name to definition without what RedBeat adds; `seen` is what has stood in
    Redis since its present tick began; `tokens` are its own values of the lock.
    """

    statics: frozenset[str]
    scheduler: Any = None
    tokens: set[str] = field(default_factory=set)
    seen: list[Look] = field(default_factory=list)
    leases: dict[str, float] = field(default_factory=dict)
    sent: Counter[str] = field(default_factory=Counter)
    recorded: Counter[str] = field(default_factory=Counter)

    def begin(self, look: Look) -> None:
        """A tick begins."""
        self.seen = [look]
        self.sent.clear()
        self.recorded.clear()


class Witness:
    """Watches the entries `names` and the queue `celery`."""

    def __init__(
        self,
        client: redis.Redis,
        broker: redis.Redis,
        names: Iterable[str],
        guarantee: Guarantee,
        has_lock: bool,
    ) -> None:
        self._client = client
        self._broker = broker
        self._names = tuple(names)
        self._guarantee = guarantee
        self._has_lock = has_lock
        #: scores that stand for earlier ones, name and score to that: leases hide when an entry was due
        self._origins: dict[tuple[str, float | None], float] = {}
        self.messages: list[Sent] = []
        self.last = self._look()[0]

    def accept(self) -> Look:
        """Take what stands in Redis as somebody else's doing."""
        self.last, sent = self._look()
        assert not sent, f"nobody was sending: {sent}"
        return self.last

    def judge(self, beat: Beat) -> Look:
        """Raise AssertionError unless `beat` may have done in one step what was done since the last look."""
        before, (after, sent) = self.last, self._look()
        self.last = after
        self.messages += sent
        if self._has_lock:
            self._check_fence(beat, before, after, sent)
        else:
            assert after.lock is None
        for name in self._names:
            step = before.rows[name], after.rows[name], [one for one in sent if one.entry == name]
            assert len(step[2]) <= 1, f"{name}: doubled: {step[2]}"
            try:
                self._check_entry(beat, before, after, name)
                if self._guarantee == "exactly once":
                    self._check_one_step(beat, after.now, name, *step)
                else:
                    self._check_two_steps(beat, after.now, name, *step)
            except AssertionError as exc:
                raise AssertionError(f"{name}: {exc}\n" + "\n".join(map(repr, step))) from exc
        return after

    def let_time_pass(self, score: float) -> None:
        """Let all pauses of RedBeat's own be over: what waits for one is due since `score`."""
        for name, row in self.last.rows.items():
            if row.score is None or not self.last.now < row.score < self.last.now + SOON_SECONDS:
                continue
            key, past = f"redbeat:{name}", score
            lease = (self._client.hget(key, "lease") or "").split()
            is_leased = bool(lease) and float(lease[0]) == row.score
            if is_leased:
                past = max(past, float(lease[1]))  # a lease ends after what it hides was due
            self._client.zadd(SCHEDULE, {key: past})
            if float(row.failure.get("retry_at") or 0) == row.score:
                self._client.hset(key, "error", json.dumps({**row.failure, "retry_at": f"{past:.6f}"}))
            if is_leased:
                self._client.hset(key, "lease", f"{past} {lease[1]}")
            if (name, row.score) in self._origins:
                self._origins[name, past] = self._origins[name, row.score]
            score += 2**-10
        self.accept()

    # -- looking

    def _look(self) -> tuple[Look, list[Sent]]:
        with self._client.pipeline() as pipeline:
            pipeline.time()
            pipeline.zrange(SCHEDULE, 0, -1, withscores=True)
            pipeline.get(LOCK)
            pipeline.smembers(STATICS)
            for name in self._names:
                pipeline.hmget(f"redbeat:{name}", "definition", "meta", "error")
            (seconds, micros), members, lock, statics, *hashes = pipeline.execute()
        scores = dict(members)
        assert scores.keys() <= {f"redbeat:{name}" for name in self._names}, scores
        rows = {
            name: Row(*fields, scores.get(f"redbeat:{name}"))
            for name, fields in zip(self._names, hashes, strict=True)
        }
        waiting: Any = self._broker.lrange("celery", 0, -1 - len(getattr(self, "messages", [])))
        sent = [_sent(json.loads(message)) for message in reversed(waiting)]
        return Look(int(seconds) + int(micros) / 1e6, rows, lock, frozenset(statics)), sent

    # -- judging

    def _check_fence(self, beat: Beat, before: Look, after: Look, sent: list[Sent]) -> None:
        """Only the holder of the lock has written, and nobody took it from another."""
        if after.lock != before.lock:
            if after.lock is None:
                assert before.lock in beat.tokens, "released another beat's lock"
            else:
                assert before.lock is None, "took another beat's lock"
                beat.tokens.add(after.lock)
        elif after.lock not in beat.tokens:
            assert after.state == before.state, f"written without the lock:\n{before}\n{after}"
            assert not sent or self._guarantee != "exactly once", f"sent without the lock: {sent}"

    def _check_entry(self, beat: Beat, before: Look, after: Look, name: str) -> None:
        """A beat neither makes nor changes nor removes an entry, but for its statics."""
        was, now_is = before.rows[name].definition, after.rows[name].definition
        if was is None and now_is is None:
            was_rest, has_rest = before.rows[name], after.rows[name]
            assert (has_rest.meta, has_rest.error) == (was_rest.meta, was_rest.error), "brought back, a part"
        if was == now_is:
            return
        if now_is is None:
            assert name in before.statics - beat.statics, "removed"
        else:
            assert name in beat.statics, "brought back, or changed"

    def _check_one_step(
        self, beat: Beat, now: float, name: str, was: Row, has: Row, sent: list[Sent]
    ) -> None:
        """Message and record are one step, by the entry as it stood in that very moment."""
        if sent:
            assert self._is_for(beat, now, name, was), "wasn't due"
            assert self._is_for_run(name, was, sent[0]), "the entry isn't so"
            assert has.count == was.count + 1, "sent, and not counted"
            assert _is_next(has.score, self._nominal(name, was), was.every, now), "sent, and not recorded"
            assert has.error is None, "sent, and still in error"
            last_run_at = json.loads(has.meta or "", cls=RedBeatJSONDecoder)["last_run_at"]
            assert math.isclose(last_run_at.timestamp(), (has.score or 0) - was.every, abs_tol=1e-3)
        elif not self._is_static_saved(beat, name, was, has):
            assert has.meta == was.meta, "counted, and not sent"
            self._check_moved(beat, now, name, was, has)

    def _check_two_steps(
        self, beat: Beat, now: float, name: str, was: Row, has: Row, sent: list[Sent]
    ) -> None:
        """The message is of a state that the beat has seen; the record changes only what it has read."""
        if sent:
            assert has == was, "sent and recorded at once"
            seen = [look.rows[name] for look in beat.seen]
            assert any(self._is_for_run(name, row, sent[0]) for row in seen), "the entry was never so"
            assert self._guarantee == "at least once" or beat.recorded[name] > beat.sent[name], "sent first"
            beat.sent[name] += 1
        elif not self._is_static_saved(beat, name, was, has):
            self._check_recorded(beat, now, name, was, has)

    def _check_recorded(self, beat: Beat, now: float, name: str, was: Row, has: Row) -> None:
        # recorded before it turns out that it can't be sent: that's what this guarantee means
        is_recorded_first = self._guarantee == "at most once"
        kinds = ("usable", "failing") if is_recorded_first else ("usable",)
        sendable = [look.rows[name] for look in beat.seen if look.rows[name].kind in kinds]
        is_sent = beat.sent[name] > 0 or is_recorded_first
        if has.meta != was.meta:
            assert sendable, "counted, and can't be sent"
            assert is_sent, "counted, and not sent"
            assert has.count == was.count + 1, "counted twice"
        nominal = self._nominal(name, was)
        if has.score != was.score and any(_is_next(has.score, nominal, row.every, now) for row in sendable):
            assert self._is_for(beat, now, name, was), "recorded over a newer time"
            was_disabled = any(look.rows[name].kind == "disabled" for look in beat.seen)
            assert is_sent or (was_disabled and has.meta == was.meta), "recorded, and not sent"
            beat.recorded[name] += is_sent
        else:
            self._check_moved(beat, now, name, was, has)

    def _check_moved(self, beat: Beat, now: float, name: str, was: Row, has: Row) -> None:
        """Due at another time, and not sent: there is a reason for it."""
        if has.score == was.score:
            is_true = not has.error or was.kind in ("broken", "failing")
            assert has.error == was.error or is_true, "in error for what it isn't any more"
            return
        if has.score is None:
            assert was.kind == "missing" or name not in beat.statics, "dropped"
            return
        if not self._has_lock and was.is_due(now):
            assert now < has.score <= now + 31, "moved, and not claimed"
            self._origins[name, has.score] = self._origin(name, was) or self._now_of(name)
            beat.leases[name] = has.score
            return
        if was.score == 0:
            assert now - 60 < has.score <= now, "moved to another time than now"
            return
        assert self._is_for(beat, now, name, was), "moved over a newer time"
        seen = [look.rows[name] for look in beat.seen]
        since = beat.seen[0].now
        reasons = (self._is_reason(row, name, was, has, since, now) for row in seen)
        assert any(reasons), f"lost, or moved: {since} to {now}"

    def _is_reason(self, seen: Row, name: str, was: Row, has: Row, since: float, now: float) -> bool:
        """Tell whether a beat whose tick began at `since`, and that saw `seen`, may have moved the entry so.

        A pause counts from the claim, which came after that; where the tick takes long it may be over by now.
        """
        score, soonest = has.score or 0, since + SHORTEST_PAUSE_SECONDS
        if seen.kind == "missing":
            return has.error == was.error and soonest <= score <= now + 2
        if seen.kind == "disabled":
            return not has.error and _is_next(score, self._nominal(name, was), seen.every, now)
        if seen.kind == "broken":
            return was.kind == "broken" and has.failure["attempts"] == 0 and soonest <= score <= now + 301
        if seen.kind == "failing":
            # a minute at most, and a quarter of it as jitter
            if not has.failure.get("attempts") or not soonest <= score <= now + 76:
                return False
            due, nominal = float(has.failure["due"]), self._nominal(name, was)
            return due == nominal if nominal else now - 60 < due <= now
        # the broker is away, or something about the entry isn't what it was: given back to the other beats
        return not self._has_lock and has.error == was.error and score == self._origin(name, was)

    def _is_for(self, beat: Beat, now: float, name: str, was: Row) -> bool:
        """Tell whether the entry waits for this beat to deal with it."""
        return was.is_due(now) if self._has_lock else was.score == beat.leases.get(name)

    def _is_static_saved(self, beat: Beat, name: str, was: Row, has: Row) -> bool:
        is_off = was.definition != has.definition or was.score is None
        return name in (beat.statics | self.last.statics) and is_off

    def _is_for_run(self, name: str, row: Row, sent: Sent) -> bool:
        """Tell whether `sent` is what is to be sent when an entry stands there as `row`."""
        nominal = self._nominal(name, row)
        is_due = not nominal or sent.due == _iso(nominal)
        return (
            row.kind == "usable" and is_due and (sent.args, sent.id) == (row.args, self._task_id(name, row))
        )

    def _now_of(self, name: str) -> float:
        """When a leased run is due whose score was 0, which is how people write "now"."""
        lease = self._client.hget(f"redbeat:{name}", "lease")
        return float(str(lease).split()[1]) if lease else 0.0  # without a hash there is none

    def _origin(self, name: str, row: Row) -> float:
        """Its score, or the one it had before it was leased."""
        return self._origins.get((name, row.score), row.score or 0)

    def _nominal(self, name: str, row: Row) -> float:
        """When its run was due at first."""
        return float(row.failure["due"]) if self._is_retried(name, row) else self._origin(name, row)

    def _is_retried(self, name: str, row: Row) -> bool:
        """Tell whether it waits to be looked at again: it couldn't be sent, or couldn't be used."""
        return bool(row.failure.get("due")) and float(row.failure["retry_at"]) == self._origin(name, row)

    def _task_id(self, name: str, row: Row) -> str:
        """What every try to send its run must have."""
        return task_id_of(f"redbeat:{name}", _iso(self._nominal(name, row)))


def _is_next(score: float | None, nominal: float, every: float, now: float) -> bool:
    if score is None:
        return False
    if not nominal:  # that's "now"
        return abs(score - now - every) < 60
    following = nominal + (math.floor((now - nominal) / every) + 1) * every
    return math.isclose(score, following, rel_tol=0, abs_tol=1e-5)


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="microseconds")


def _sent(message: dict[str, Any]) -> Sent:
    headers = message["headers"]
    args = json.loads(base64.b64decode(message["body"]))[0]
    return Sent(headers["redbeat_entry"], headers["redbeat_due"], headers["id"], args)
