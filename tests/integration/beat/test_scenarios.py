"""One table: what a scheduler does with an entry, on each broker, with a lock or none, prepared, in shards.

A row is an entry as a program in another language writes it, and what is then on the queue and stored. A beat
gets all rows at once, each as an entry of its own, and is ticked until nothing is due.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from itertools import product
from typing import Any

import pytest
import redis
from celery import Celery
from redis.crc import key_slot

from redbeat import RedBeatScheduler
from redbeat.store.records import mark_of
from tests.conftest import MakeApp
from tests.integration.conftest import MakeScheduler
from tests.support.deadlines import patience
from tests.support.polling import eventually
from tests.support.schedule import SELDOM, meta_json, server_now, write_raw
from tests.support.ticks import Message, take_messages

EVERY = 100.0
INTERVAL = {"__type__": "interval", "every": EVERY}
#: every 100 seconds, too
RULE = {"__type__": "rrule", "freq": 6, "interval": int(EVERY), "dtstart_tz": 0}
#: the latest of the due times of a row with missed runs is so long ago
LATE_SECONDS = 30.5
#: what is due in time is due so long after it was written, so that a beat can prepare it, or soon
PREPARED_SECONDS, SOON_SECONDS = 1.5, 0.2

#: a record of what was not sent: its outcome, the numbers of its first and last run, words of the reason
Record = tuple[str, int, int, str]


@dataclass(frozen=True)
class Row:
    """An entry that runs every 100 seconds, and what becomes of it.

    Attributes:
        policy: its extensions; a timedelta stands for a time so long from now.
        missed: how many of its runs nobody has sent, the latest half a minute ago; 0: one run, due in time.
        fields: other fields of the definition.
        run_count: runs so far, in a meta of RedBeat's own; None: it has no meta.
        ran_at: seconds from now to its last run in a meta that another program wrote.
        held: another run of it is in progress.
        score: instead of that of the first due time.
        is_bare: the member of the sorted set is the bare name.

        sent: the numbers of the due times that are sent; None: one run that is due now.
        next: seconds from the last due time to the next score; None: unscheduled; -1: never again.
        counted: how often it has run then; None: it has no meta.
        records: what the history says of runs that were not sent.
        expires: seconds from the due time to the expiry of the message.
        is_tracked: there is a record of the run in progress.
        error: words of its error.
        enabled: as it is stored then; None: the entry is gone.
        at_most_once: what is different with ``redbeat_delivery = 'at_most_once'``.
    """

    policy: dict[str, Any] = field(default_factory=dict)
    missed: int = 0
    fields: dict[str, Any] = field(default_factory=dict)
    run_count: int | None = None
    ran_at: float | None = None
    held: bool = False
    score: float | None = None
    is_bare: bool = False

    sent: list[int] | None = field(default_factory=lambda: [0])
    next: float | None = EVERY
    counted: int | None = 1
    records: list[Record] = field(default_factory=list)
    expires: float | None = None
    is_tracked: bool = False
    error: str = ""
    enabled: bool | None = True
    at_most_once: dict[str, Any] = field(default_factory=dict)


def missed(policy: dict[str, Any], sent: list[int], *records: Record, **others: Any) -> Row:
    """A row of an entry that has missed eight runs."""
    return Row(
        **{"policy": policy, "missed": 8, "sent": sent, "records": [*records], "counted": len(sent) or None}
        | others
    )


def held(overlap: str, outcome: str, **others: Any) -> Row:
    """A row of an entry whose run before this one is in progress."""
    words = "" if outcome == "waiting" else "other"
    return Row(
        {"overlap": overlap}, held=True, sent=[], counted=None, records=[(outcome, 0, 0, words)], **others
    )


ALL = {"misfire": "all"}
GRACE = {"misfire_grace_time": 250}
OLD = ("skipped", 0, 4, "older than misfire_grace_time of 250 s")
MERGED = "covered by"
#: not sent, not counted, and not an error
RESTS: dict[str, Any] = {"sent": [], "counted": None}
QUARANTINED: dict[str, Any] = {**RESTS, "records": [("unsent", 0, 0, "")]}
FINISHED: dict[str, Any] = {"next": -1, "counted": 1}


ROWS: dict[str, Row] = {
    "due": Row(),
    "counted before": Row(run_count=5, counted=6),
    "rule": Row(missed=1, fields={"schedule": RULE}),
    "bare name": Row(is_bare=True),
    "headers": Row(fields={"options": {"headers": {"mine": "mine"}}}),
    "task id": Row(fields={"options": {"task_id": "mine"}}),
    "asked for": Row(score=0, sent=None, next=None),
    "negative score": Row(score=-1, next=-1, **RESTS),
    "disabled": Row(fields={"enabled": False}, enabled=False, **RESTS),
    "invalid": Row(fields={"task": None}, next=None, error="task: is missing", **QUARANTINED),
    "invalid policy": Row({"max_runs": 0}, next=None, error="max_runs", **QUARANTINED),
    # missed runs
    "late": missed({}, [7], ("merged", 0, 6, MERGED)),
    "late rule": missed({}, [7], ("merged", 0, 6, MERGED), fields={"schedule": RULE}),
    "earliest": missed({"misfire": "earliest"}, [0], ("merged", 1, 7, MERGED)),
    "all": missed(ALL, [*range(8)]),
    "all of a rule": missed(ALL, [*range(8)], fields={"schedule": RULE}),
    "limit": missed(ALL | {"misfire_limit": 3}, [5, 6, 7], ("skipped", 0, 4, "older than the limit of 3")),
    "skip": missed({"misfire": "skip"}, [7], ("skipped", 0, 6, "more than 60 s late (misfire: skip)")),
    "skip, grace": missed(
        {"misfire": "skip"} | GRACE, [7], OLD, ("skipped", 5, 6, "only the latest run is sent")
    ),
    "earliest, grace": missed({"misfire": "earliest"} | GRACE, [5], OLD, ("merged", 6, 7, MERGED)),
    "late, expires": missed(
        {"expires_after": 50}, [7], ("skipped", 0, 6, "its message would have expired"), expires=50
    ),
    "expired": missed({"expires_after": 5}, [], ("skipped", 0, 7, "its message would have expired")),
    "all, expires, grace": missed(
        ALL | {"expires_after": 450, "misfire_grace_time": 120},
        [7],
        ("skipped", 0, 6, "older than misfire_grace_time of 120 s"),
        expires=450,
    ),
    # windows, pauses and last runs
    "after its end": missed(
        {"end_time": timedelta(seconds=-2000)}, [], ("skipped", 0, 7, "after its end_time"), next=-1
    ),
    "before its end": Row({"end_time": "2999-01-01T00:00:00Z"}),
    "excluded": Row(
        {"exclude": "closed"}, next=None, records=[("skipped", 0, 0, "calendar closed")], **RESTS
    ),
    "calendar missing": Row(
        {"exclude": "nowhere"}, next=None, error="there is no calendar 'nowhere'", **QUARANTINED
    ),
    "paused": Row({"paused": True}, fields={"enabled": False}, enabled=False, **RESTS),
    "pause has ended": missed(
        {"paused": True, "paused_until": timedelta(seconds=-LATE_SECONDS - 50), "pause_note": "repairs"},
        [7],
        ("skipped", 0, 6, "repairs"),
        fields={"enabled": False},
        run_count=5,
        counted=6,
    ),
    "one-off": Row({"one_off": True}, **FINISHED),
    "one-off disabled": Row({"one_off": True, "after_finish": "disable"}, enabled=False, **FINISHED),
    "one-off deleted": Row(
        {"one_off": True, "after_finish": "delete"}, enabled=None, next=None, counted=None
    ),
    "last run": Row({"max_runs": 6}, run_count=5, next=-1, counted=6),
    "last of missed": missed(
        ALL | {"max_runs": 7},
        [0, 1],
        ("skipped", 2, 7, "7 times (max_runs)"),
        run_count=5,
        next=-1,
        counted=7,
    ),
    # messages and tracked runs
    "expires": Row({"expires_after": 60}, expires=60),
    "queue timeout": Row({"queue_timeout": 60}, expires=60, is_tracked=True),
    "max runtime": Row({"max_runtime": 60}, is_tracked=True),
    "overlap": Row({"overlap": "skip"}, is_tracked=True, expires=3600),
    "overlap of missed": missed(
        ALL | {"overlap": "skip"},
        [0],
        *[("skipped", run, run, "") for run in range(1, 8)],
        is_tracked=True,
    ),
    "allow": Row({"overlap": "allow"}, held=True),
    "held, skip": held("skip", "skipped"),
    "held, buffer one": held("buffer_one", "waiting"),
    "held, replace": held("replace", "waiting"),
    "held one-off": Row(
        {"overlap": "skip", "one_off": True},
        held=True,
        sent=[],
        counted=None,
        records=[("skipped", 0, 0, "")],
    ),
    # whose meta it is
    "moved by another program": Row(missed=1, ran_at=-40, sent=[], counted=0, next=EVERY - 40 + LATE_SECONDS),
    # runs that cannot be sent
    "no serializer": Row(
        fields={"options": {"serializer": "no-such"}},
        next=None,
        error="no-such",
        sent=[],
        counted=None,
        records=[("unsent", 0, 0, "no-such")],
        at_most_once={"error": "", "counted": 1, "next": EVERY, "records": []},
    ),
}


@dataclass(frozen=True)
class Kind:
    """One beat.

    Attributes:
        sink: the script that records pushes messages, a pipeline to another Redis does, or kombu's producer.
    """

    sink: str
    has_lock: bool = True
    is_prepared: bool = False
    shards: int | None = None
    is_at_most_once: bool = False

    def __str__(self) -> str:
        words = [self.sink, "" if self.has_lock else "no lock", "prepared" if self.is_prepared else ""]
        words += [
            f"{self.shards} shards" if self.shards else "",
            "at most once" if self.is_at_most_once else "",
        ]
        return ", ".join(word for word in words if word)


SINKS = ["script", "pipeline", "producer"]
#: each sink with a lock and without, each property once with most of the others; `make test-all` has the rest
TELLING = [
    Kind("script"),
    Kind("script", shards=1),
    Kind("script", is_prepared=True),
    Kind("script", is_prepared=True, shards=4),
    Kind("script", has_lock=False),
    Kind("script", has_lock=False, shards=4),
    Kind("script", is_at_most_once=True),
    Kind("pipeline"),
    Kind("pipeline", has_lock=False, is_prepared=True, shards=4),
    Kind("pipeline", is_at_most_once=True),
    Kind("producer", is_prepared=True),
    Kind("producer", has_lock=False),
    Kind("producer", has_lock=False, is_at_most_once=True),
]
ALL_KINDS = [
    *(Kind(*one) for one in product(SINKS, [True, False], [False, True], [None, 4])),
    *(Kind("script", is_prepared=is_prepared, shards=1) for is_prepared in (False, True)),
    *(Kind(sink, has_lock, is_at_most_once=True) for sink, has_lock in product(SINKS, [True, False])),
]
KINDS = [
    *(pytest.param(kind, marks=[] if kind in TELLING else pytest.mark.slow) for kind in ALL_KINDS),
    pytest.param(Kind("rabbitmq"), marks=pytest.mark.services),
]


class Table:
    """All rows, each written as an entry of its own, and what a beat has made of them."""

    def __init__(self, app: Celery, client: redis.Redis, kind: Kind) -> None:
        self.app, self._client, self._kind = app, client, kind
        self.in_time = 0.0
        self.dues: dict[str, list[float]] = {}
        self.messages: dict[str, list[Message]] = {}

    def _prefix(self, name: str) -> str:
        """Each shard has the keys of a whole schedule: that of a name is CRC16 of it modulo their number."""
        shards = self._kind.shards
        return f"{{redbeat:{key_slot(name.encode()) % shards}}}:" if shards else "redbeat:"

    def write(self) -> None:
        wait_seconds = patience(PREPARED_SECONDS) if self._kind.is_prepared else SOON_SECONDS
        self.in_time = round(server_now(self._client) + wait_seconds, 6)
        today = datetime.now(timezone.utc)
        closed = f"{today - timedelta(days=1):%Y-%m-%d}/{today + timedelta(days=1):%Y-%m-%d}"
        self._client.hset("redbeat::calendar:closed", closed, "")
        for name, row in ROWS.items():
            self._write_row(name, row)

    def _write_row(self, name: str, row: Row) -> None:
        prefix, now = self._prefix(name), server_now(self._client)
        latest = round(now - LATE_SECONDS, 6) if row.missed else self.in_time
        if row.fields.get("schedule") is RULE:
            latest //= 1
        dues = self.dues[name] = [latest - EVERY * back for back in reversed(range(row.missed or 1))]
        definition = {"name": name, "task": "echo", "schedule": INTERVAL, **row.fields}
        if definition["schedule"] is RULE:
            definition["schedule"] = {**RULE, "dtstart": dues[0] - 10 * EVERY}
        self._client.hset(f"{prefix}{name}", "definition", json.dumps(definition))
        if row.policy:
            policy = {key: moment(now, value) for key, value in row.policy.items()}
            self._client.hset(f"{prefix}{name}", "policy", json.dumps(policy))
        if row.run_count is not None:
            meta = meta_json(datetime.fromtimestamp(dues[0] - EVERY, timezone.utc), row.run_count)
            self._client.hset(f"{prefix}{name}", mapping={"meta": meta, "meta_crc32": mark_of(meta)})
        if row.ran_at is not None:
            ran_at = datetime.fromtimestamp(now + row.ran_at, timezone.utc)
            self._client.hset(f"{prefix}{name}", "meta", meta_json(ran_at))
        if row.held:
            record = {"due": "5", "state": "started", "started": f"{now:.6f}"}
            self._client.hset(f"{prefix}:running:{name}", "other", json.dumps(record))
        member = name if row.is_bare else f"{prefix}{name}"
        self._client.zadd(f"{prefix}:schedule", {member: dues[0] if row.score is None else row.score})

    def found(self, name: str) -> dict[str, Any]:
        """What became of a row, in the words of `expected`."""
        row, prefix, dues = ROWS[name], self._prefix(name), self.dues[name]
        stored = self._client.hgetall(f"{prefix}{name}")
        score = self._client.zscore(f"{prefix}:schedule", f"{prefix}{name}")
        sent = self.messages.get(name, [])
        records = [json.loads(text) for text in self._client.lrange(f"{prefix}:history:{name}", 0, -1)]
        running = self._client.hkeys(f"{prefix}:running:{name}")
        error = json.loads(stored["error"])["reason"] if "error" in stored else ""
        times = [datetime.fromisoformat(one.due).timestamp() for one in sent]
        expiries = [
            datetime.fromisoformat(one.headers["expires"] or "0001-01-01T00:00+00:00") for one in sent
        ]
        return {
            "sent": [number_of(time, dues) for time in times] if row.sent is not None else len(sent),
            "next": score,
            "counted": json.loads(stored["meta"])["total_run_count"] if "meta" in stored else None,
            "records": [
                (one["outcome"], number_of(one["due"], dues), number_of(one.get("last", one["due"]), dues))
                for one in reversed(records)
                if "outcome" in one
            ],
            "reasons": " | ".join(
                one.get("why", "") or str(one) for one in reversed(records) if "outcome" in one
            ),
            "expires": [one.timestamp() - time for one, time in zip(expiries, times, strict=True)],
            "is_tracked": len(set(running) - {"other", ""}) == 1,
            "error": error,
            "enabled": json.loads(stored["definition"]).get("enabled", True) if stored else None,
            "ids": len({one.id for one in sent}),
            "options": {one.headers.get("mine", one.id) for one in sent},
        }

    def faults(self, name: str) -> list[str]:
        """Return how a row differs from what is expected of it."""
        row, found, dues = ROWS[name], self.found(name), self.dues[name]
        wanted = vars(row) | (row.at_most_once if self._kind.is_at_most_once else {})
        faults = []

        def check(what: str, is_so: object) -> None:
            if not is_so:
                faults.append(f"{what}: {found[what]}, not {wanted.get(what)}")

        count = 1 if wanted["sent"] is None else len(wanted["sent"])
        check("sent", found["sent"] == (1 if wanted["sent"] is None else wanted["sent"]))
        check("ids", found["ids"] == count)
        check("options", name not in ("headers", "task id") or found["options"] == {"mine"})
        for what in ("counted", "is_tracked", "enabled"):
            check(what, found[what] == wanted[what])
        check("records", found["records"] == [(outcome, *span) for outcome, *span, _ in wanted["records"]])
        check("reasons", all(words in found["reasons"] for *_, words in wanted["records"]))
        check("error", wanted["error"] in found["error"] and bool(wanted["error"]) == bool(found["error"]))
        if wanted["next"] is not None:
            score = -1 if wanted["next"] < 0 else dues[-1] + wanted["next"]
            check("next", found["next"] == pytest.approx(score, abs=0.01))
        elif wanted["enabled"] is None:
            check("next", found["next"] is None)
        else:  # some time from now
            check("next", (found["next"] or 0) > server_now(self._client) - 60)
        if wanted["expires"] is not None:
            check("expires", found["expires"] == pytest.approx([wanted["expires"]] * count, abs=60))
        return faults


def moment(now: float, value: Any) -> Any:
    """Return a length of time as the time so long from now, and anything else as it is."""
    is_length = isinstance(value, timedelta)
    return (datetime.fromtimestamp(now, timezone.utc) + value).isoformat() if is_length else value


def number_of(due: float, dues: list[float]) -> int | str:
    """Return which of the due times that is; one that is none of them as it is."""
    near = [number for number, one in enumerate(dues) if abs(one - due) < 0.01]
    return near[0] if near else f"{due - dues[-1]:+.6f} s"


@pytest.fixture
def make_table(
    make_app: MakeApp, make_scheduler: MakeScheduler, client: redis.Redis, request: pytest.FixtureRequest
) -> Callable[[Kind], tuple[Table, RedBeatScheduler]]:
    def make(kind: Kind) -> tuple[Table, RedBeatScheduler]:
        settings: dict[str, Any] = {
            "redbeat_lookahead": 30 if kind.is_prepared else 0,
            "redbeat_history": 50,
            "redbeat_shards": kind.shards,
            "redbeat_delivery": "at_most_once" if kind.is_at_most_once else "exactly_once",
        }
        if kind.sink == "producer":
            settings["broker_url"] = "memory://"
        elif kind.sink != "script":
            server = "other" if kind.sink == "pipeline" else kind.sink
            settings["broker_url"] = request.getfixturevalue(server).url()
        if not kind.has_lock:
            settings["redbeat_lock_key"] = None
        app = make_app(**settings)
        scheduler = make_scheduler(app)
        return Table(app, client, kind), scheduler

    return make


def play(table: Table, scheduler: RedBeatScheduler, kind: Kind, client: redis.Redis) -> None:
    """Tick until nothing is due; what is due in time is prepared before."""
    write_raw(client, "first", schedule=SELDOM)
    scheduler.tick()  # it knows how runs are delivered by now
    table.write()
    is_over, prepared = False, 0

    def tick() -> bool:
        nonlocal is_over, prepared
        if kind.is_prepared:
            scheduler._shards.prepare()  # noqa: SLF001 - a beat does that while it waits
            prepared = max(prepared, scheduler._shards.count_prepared())  # noqa: SLF001
        was_over, is_over = is_over, server_now(client) > table.in_time
        seconds = scheduler.tick()
        for message in take_messages(table.app):
            table.messages.setdefault(message.entry, []).append(message)
            assert datetime.fromisoformat(message.due).timestamp() <= server_now(client), "sent too early"
        return was_over and seconds > 0

    eventually(tick, interval=0.01, retry_on=())
    print(f"{prepared} runs were prepared")
    assert prepared or not kind.is_prepared or kind.sink != "script"


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_entry_is_sent_and_recorded_as_its_row_says(
    make_table: Callable[[Kind], tuple[Table, RedBeatScheduler]], client: redis.Redis, kind: Kind
) -> None:
    table, scheduler = make_table(kind)
    play(table, scheduler, kind, client)
    faults = {name: faults for name in ROWS if (faults := table.faults(name))}
    assert not faults, "\n".join(f"{name}: {one}" for name, found in faults.items() for one in found)
