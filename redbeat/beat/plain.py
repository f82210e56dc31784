"""Plain entries: decoded once and kept, so that planning a run of one takes a little arithmetic.

An entry is plain if its schedule is an interval or a crontab, its policy has neither bounds nor jitter nor a
pause, and nothing has happened to it: it hasn't failed, and nobody has asked for a run. Invariant: its plan
is the one that ``plan_run`` makes, and its message the one that Celery makes; where that isn't certain, it
goes the ordinary way.
"""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timezone
from functools import lru_cache
from os import urandom
from sys import getsizeof
from typing import TYPE_CHECKING, Any, NamedTuple

from celery.schedules import crontab, schedule

from redbeat.beat.planner import CompiledRun, options_of
from redbeat.beat.timetable import Timetable, Turn
from redbeat.beat.tracking import read_tracks
from redbeat.delivery.placeholders import NO_HEADERS, Call, RunValues, options_of_task
from redbeat.delivery.templates import MessageTemplate, Templates
from redbeat.entries.due import defaults_for
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.loading import decode_entry
from redbeat.entries.plain_reader import MAX_SHARED, PlainDefinition, PlainReader
from redbeat.log.logger import logger
from redbeat.log.text import joined
from redbeat.policy.expiry import queue_limit_of
from redbeat.policy.headers import headers_of
from redbeat.policy.policy import NO_POLICY, Policy
from redbeat.process.containment import let_through
from redbeat.process.memory import Allowance, Memory
from redbeat.runs.tracking import is_tracked
from redbeat.schedules.timezones import moment_of
from redbeat.store.records import Commit, DueEntry, KeyType
from redbeat.store.store import read_claimed
from redbeat.task_ids import task_id_of
from redbeat.telemetry.metrics.labels import ROUTING, LabelBook
from redbeat.telemetry.sentry.monitors import headers_of_check_in, monitors_of
from redbeat.telemetry.tracing.tracing import Tracing

if TYPE_CHECKING:  # it needs OpenTelemetry
    from redbeat.telemetry.tracing.spans import RunSpan

#: entries with longer definitions aren't kept; characters
MAX_DEFINITION = 65_536

#: calls the scheduler's ``apply_async`` for an entry
Send = Callable[[RedBeatSchedulerEntry], Any]

#: after how long it is tried again whether an entry's message can be compiled; seconds
RETRY_SECONDS = 60.0

#: metas of RedBeat's own are shorter; characters
MAX_META = 300

#: what an entry takes in memory besides its texts, about; bytes
ENTRY_BYTES = 1_700

#: fields of a policy that a plain entry may have
_PLAIN_FIELDS = frozenset(
    {
        "timezone",
        "expires_after",
        "misfire",
        "misfire_limit",
        "misfire_grace_time",
        "run_missed",
        "after_finish",
        # these are about runs that have been sent
        "overlap",
        "max_runtime",
        "revoke_overdue",
        "queue_timeout",
        "pause_after_failures",
        "resume_after",
        "tracks",
        "ping_url",
        "metrics",
    }
)
_BOUNDING_FIELDS = [one.name for one in fields(Policy) if one.name not in _PLAIN_FIELDS]

_INTERVAL, _CRONTAB = schedule(1), crontab()

_META = re.compile(
    r'\{"last_run_at": (?:null|\{"__type__": "datetime", "year": (\d{4}), "month": (\d\d?), "day": (\d\d?), '
    r'"hour": (\d\d?), "minute": (\d\d?), "second": (\d\d?), "microsecond": (\d{1,6}), "timezone": "UTC"\}), '
    r'"total_run_count": (\d{1,15})\}'
)


@dataclass(slots=True)
class PlainEntry:
    """What is kept of an entry.

    Attributes:
        message: its message; None: it goes the ordinary way.
        retry_at: when to try again whether it has a message; monotonic.
        meta, last_run, count: the meta that its last run was planned to leave, and what it says.
        route: the options that say to which queue it goes; None: none does.
        is_asked: it asks for metrics of its own.
        labels, labels_version: the id of the labels under which its runs are counted, by that version of the
            book.
    """

    definition: str
    policy: str | None
    name: str
    task: str
    timetable: Timetable | None
    message: MessageTemplate | None
    retry_at: float
    size_bytes: int
    meta: str | None = None
    last_run: datetime | None = None
    count: int = 0
    route: Mapping[str, Any] | None = None
    is_asked: bool = False
    labels: str = ""
    labels_version: int = -1


class _Decided(NamedTuple):
    """A claimed entry that runs, and when; ``run_count``: how many runs it had."""

    plain: PlainEntry
    message: MessageTemplate
    claimed: DueEntry
    turn: Turn
    run_count: int


class PlainEntries:
    """The plain entries of one beat.

    Arguments:
        app: the Celery app.
        templates: make their messages.
        tracing: begins the spans of their runs.
        allowance: how much memory they may take; those that weren't due for the longest time go first.
        book: under which labels their runs are counted.
    """

    def __init__(
        self,
        app: Any,
        templates: Templates,
        allowance: Allowance,
        book: LabelBook,
        tracing: Tracing | None = None,
    ) -> None:
        self._app = app
        self._templates = templates
        self._allowance = allowance
        self._book = book
        self._tracing = tracing
        self._kept: OrderedDict[str, PlainEntry] = OrderedDict()
        self._timetables = Memory[tuple[int, int], Timetable](MAX_SHARED)
        self._reader = PlainReader(app)
        self._ground: Any = None

    def plan(
        self, rows: Sequence[DueEntry], now: float, send: Send, is_left_out: Callable[[str], bool]
    ) -> tuple[list[CompiledRun], list[DueEntry]]:
        """Return the runs of plain entries, and the rows of the others.

        Arguments:
            now: the server's clock, UNIX seconds.
            send: calls the scheduler's ``apply_async`` for an entry, to see what its message looks like.
            is_left_out: tells whether the entry under a key goes the ordinary way in any case.
        """
        self._check_ground()
        decided, others = self._decide_all(rows, now, send, is_left_out)
        # spans are begun in a loop of their own: amid the other steps that takes longer, up to twice as long
        task_ids = [task_id_of(one.claimed.key, one.turn.due) for one in decided]
        spans = self._begin_spans(decided, task_ids)
        tags = delivery_tags(len(decided))
        runs: list[CompiledRun] = []
        book = self._book
        for one, task_id, span, tag in zip(decided, task_ids, spans, tags, strict=True):
            plain, message = one.plain, one.message
            run = None
            # it is dropped if the message of another entry differs
            has_span = span is not None or not message.is_traced or self._tracing is None
            if has_span and not message.is_dropped:
                try:
                    run = _plan(one, task_id, span, tag)
                except BaseException as exc:  # noqa: BLE001 - plan_run raises it again, if it does so, too
                    let_through(exc)
                    logger.debug("beat: %s isn't planned the quick way: %r", one.claimed.key, exc)
            if run is None:
                others.append(one.claimed)
                continue
            if plain.labels_version != book.version:
                plain.labels = book.id_of(plain.name, plain.task, plain.route or {}, is_asked=plain.is_asked)
                plain.labels_version = book.version
            run.sent.labels = plain.labels
            runs.append(run)
        return runs, others

    def _decide_all(
        self, rows: Sequence[DueEntry], now: float, send: Send, is_left_out: Callable[[str], bool]
    ) -> tuple[list[_Decided], list[DueEntry]]:
        """Return what is decided about plain entries, and the rows of the others."""
        decided: list[_Decided] = []
        others: list[DueEntry] = []
        for claimed in rows:
            plain = self._entry_of(claimed, send)
            one = None
            if plain is not None and plain.message is not None and not is_left_out(claimed.key):
                try:
                    one = _decide(plain, plain.message, claimed, now)
                except BaseException as exc:  # noqa: BLE001 - plan_run raises it again, if it does so, too
                    let_through(exc)
                    logger.debug("beat: %s isn't planned the quick way: %r", claimed.key, exc)
            if one is None:
                others.append(claimed)
            else:
                decided.append(one)
        return decided, others

    def _begin_spans(self, decided: Sequence[_Decided], task_ids: Sequence[str]) -> Sequence[RunSpan | None]:
        tracing = self._tracing
        if tracing is None or tracing.headers is None:
            return [None] * len(decided)
        return [
            tracing.begin(plain.name, plain.task, task_id, turn.due, turn.at.timestamp(), message.destination)
            if message.is_traced
            else None
            for (plain, message, _, turn, _), task_id in zip(decided, task_ids, strict=True)
        ]

    def still_current(self, runs: Sequence[CompiledRun]) -> list[CompiledRun]:
        """Return those of ``runs``, planned in an earlier batch, that would be the same in this one."""
        self._check_ground()
        return [run for run in runs if self._is_current(run)]

    def _is_current(self, run: CompiledRun) -> bool:
        plain = self._kept.get(run.claimed.key)
        return plain is not None and plain.message is run.message and self._templates.is_current(run.message)

    def _check_ground(self) -> None:
        """Forget all if a setting has changed that plans depend on."""
        app = self._app
        defaults = defaults_for(app, _INTERVAL), defaults_for(app, _CRONTAB)
        ground = app.timezone, *defaults, is_tracked(app), monitors_of(app)
        if ground != self._ground:
            self._ground = ground
            self._reader = PlainReader(self._app)
            self._timetables.clear()
            self._allowance.left_bytes += sum(plain.size_bytes for plain in self._kept.values())
            self._kept.clear()

    def _entry_of(self, claimed: DueEntry, send: Send) -> PlainEntry | None:
        """Return the entry with its message as of now; None: it isn't plain now."""
        key = claimed.key
        plain = self._kept.get(key)
        if plain is not None and plain.definition == claimed.definition and plain.policy == claimed.policy:
            message = plain.message
            if message is None and time.monotonic() < plain.retry_at:
                return plain
            try:
                is_current = message is not None and self._templates.is_current(message)
            except BaseException as exc:  # noqa: BLE001 - the ordinary way raises it again
                let_through(exc)
                logger.debug("beat: %s isn't planned the quick way: %r", key, exc)
                return None
            if is_current:
                self._kept.move_to_end(key)
                return plain
        if (
            claimed.type is not KeyType.HASH
            or claimed.error
            or claimed.unread_bytes
            or not claimed.definition
        ):
            return None
        if len(claimed.definition) > MAX_DEFINITION:
            return None
        return self._keep(claimed, send)

    def _keep(self, claimed: DueEntry, send: Send) -> PlainEntry | None:
        before = self._kept.pop(claimed.key, None)
        if before is not None:
            self._allowance.left_bytes += before.size_bytes
        try:
            made = self._make(claimed, send)
        except BaseException as exc:  # noqa: BLE001 - plan_run raises it again, or the ordinary way does
            let_through(exc)
            logger.debug("beat: %s isn't planned the quick way: %r", claimed.key, exc)
            return None
        self._allowance.left_bytes -= made.size_bytes
        self._kept[claimed.key] = made
        self.make_room()
        return made

    def make_room(self) -> None:
        """Forget entries until all that is kept is allowed."""
        while self._allowance.left_bytes < 0 and self._kept:
            _, oldest = self._kept.popitem(last=False)
            self._allowance.left_bytes += oldest.size_bytes

    def _make(self, claimed: DueEntry, send: Send) -> PlainEntry:
        retry_at = time.monotonic() + RETRY_SECONDS
        size_bytes = (
            ENTRY_BYTES + getsizeof(claimed.definition) + getsizeof(claimed.policy) + getsizeof(claimed.key)
        )
        plain = PlainEntry(claimed.definition or "", claimed.policy, "", "", None, None, retry_at, size_bytes)
        read = self._reader.read(claimed) or plain_part_of(self._decode(claimed))
        if read is None or not is_plain(read):
            return plain
        plain.name, plain.task, plain.is_asked = read.name, read.task, read.policy.metrics
        plain.route = {name: read.options[name] for name in ROUTING if name in read.options} or None

        def send_sample(values: RunValues) -> None:
            entry = self._decode(claimed)
            headers = {**call.policy_headers, **values.trace}
            entry.options = options_of(
                entry.options, entry.name, values.task_id, values.due, values.expires, headers
            )
            send(entry)

        call = self._call_of(read)
        message = self._templates.find(call, send_sample)
        if not isinstance(message, str) and self._templates.is_current(message):
            plain.message, plain.timetable = message, self._timetable_of(read)
            plain.size_bytes += message.size_bytes
        return plain

    def _call_of(self, read: PlainDefinition) -> Call:
        policy, app = read.policy, self._app
        queue_seconds = None
        if policy.message_queue_seconds is not None:
            # when it is sent doesn't matter here: entries with times for options aren't plain
            of_task = options_of_task(app.tasks.get(read.task))
            queue_seconds = queue_limit_of(policy, read.options, of_task, moment_of(0), app.timezone)
        return Call(
            read.name,
            read.task,
            read.args,
            read.kwargs,
            read.options,
            policy.expires_after,
            queue_seconds,
            headers_of(policy, queue_seconds) | headers_of_check_in(app, read.name, read.schedule, policy),
        )

    def _decode(self, claimed: DueEntry) -> RedBeatSchedulerEntry:
        return decode_entry(RedBeatSchedulerEntry, read_claimed(claimed), self._app)

    def _timetable_of(self, read: PlainDefinition) -> Timetable:
        key = id(read.schedule), id(read.policy)  # a timetable keeps both, so nothing else has these
        timetable = self._timetables.get(key)
        if timetable is None:
            defaults = defaults_for(self._app, read.schedule)
            is_tracked = read_tracks(self._app)(read.policy)
            timetable = Timetable(read.schedule, read.policy, defaults, is_tracked=is_tracked)
            self._timetables[key] = timetable
        return timetable


#: options whose runs aren't planned here: an id that isn't the due time's, and times, by which the message of
#: a durable task is stored instead of being published
_UNUSUAL_OPTIONS = frozenset({"task_id", "countdown", "eta"})


def plain_part_of(entry: RedBeatSchedulerEntry) -> PlainDefinition | None:
    """Return what a plan needs of an entry; None: its schedule isn't usual, or it doesn't run."""
    schedule_ = entry.schedule
    if type(schedule_) not in (schedule, crontab) or getattr(schedule_, "nowfun", None) or not entry.enabled:
        return None
    if entry.typos or getattr(schedule_, "typos", ""):
        return None
    args, kwargs, options = list(entry.args or ()), entry.kwargs or {}, entry.options
    return PlainDefinition(entry.name, entry.task, schedule_, args, kwargs, options, entry.policy)


def is_plain(read: PlainDefinition) -> bool:
    """Tell whether an entry's policy bounds nothing, and each run's task id follows from its due time."""
    is_usual = _UNUSUAL_OPTIONS.isdisjoint(read.options)
    return is_usual and (read.policy is NO_POLICY or not _find_bounds(read.policy))


def _find_bounds(policy: Policy) -> list[str]:
    """Return the fields of ``policy`` that bound runs, or move them."""
    return [name for name in _BOUNDING_FIELDS if getattr(policy, name) != getattr(NO_POLICY, name)]


def why_not_plain(entry: RedBeatSchedulerEntry) -> str:
    """Return all by which ``entry`` isn't plain, whatever has happened to it; '': it is."""
    if type(entry.schedule) not in (schedule, crontab):
        return "its schedule is neither an interval nor a crontab"
    read = plain_part_of(entry)
    if read is None:
        return "its schedule has a clock of its own, or it has unknown keys" if entry.enabled else ""
    bounds = [name for name in _find_bounds(read.policy) if name != "calendar"]  # it belongs to `exclude`
    stored = getattr(entry, "stored", None)
    is_long = stored is not None and len(stored.definition or "") > MAX_DEFINITION
    return joined(
        joined(*(f"the option {name!r}" for name in sorted(_UNUSUAL_OPTIONS & read.options.keys()))),
        f"its policy has {', '.join(bounds)}" if bounds else "",
        f"its definition is longer than {MAX_DEFINITION:,} characters" if is_long else "",
    )


@lru_cache(maxsize=4096)  # entries that run together share some
def _state_of(meta: str | None) -> tuple[datetime | None, int] | None:
    """Return a meta's last_run_at and total_run_count; None: it isn't written as RedBeat writes it."""
    if not meta:
        return None, 0
    found = _META.fullmatch(meta)
    if found is None:
        return None
    year, month, day, hour, minute, second, microsecond = map(int, found.groups("0")[:7])
    try:
        last_run = (
            datetime(year, month, day, hour, minute, second, microsecond, timezone.utc) if year else None
        )
    except ValueError:
        return None
    return last_run, int(found[8])


def _decide(plain: PlainEntry, message: MessageTemplate, claimed: DueEntry, now: float) -> _Decided | None:
    """Return when a claimed entry runs; None where ``plan_run`` might decide anything else."""
    is_special = claimed.error or claimed.is_asked or claimed.revision or claimed.next_score
    if is_special or len(claimed.meta or "") > MAX_META:
        return None
    if claimed.meta is not None and claimed.meta == plain.meta:
        last_run, count = plain.last_run, plain.count
    else:
        state = _state_of(claimed.meta)
        if state is None:
            return None
        last_run, count = state
    timetable = plain.timetable
    if timetable is None:
        return None
    turn = timetable.turn(claimed.nominal, now)
    if turn is None:
        return None
    is_doubtful = turn.is_whole or claimed.is_meta_foreign
    if last_run and is_doubtful and not timetable.agrees(turn, last_run, has_run=count > 0):
        return None
    return _Decided(plain, message, claimed, turn, count)


def _plan(one: _Decided, task_id: str, span: RunSpan | None, tag: str) -> CompiledRun:
    """Return the run of a claimed entry; ``tag``: the delivery tag of its message."""
    plain, message, claimed, turn, count = one
    trace = NO_HEADERS if span is None else span.headers
    values = RunValues(task_id, turn.due, turn.expires, turn.expiration_seconds, trace)
    new_meta = f'{{"last_run_at": {turn.ran_at_json}, "total_run_count": {count + 1}}}'
    plain.meta, plain.last_run, plain.count = new_meta, turn.ran_at, count + 1
    sent = Commit(claimed, turn.new_score, new_meta, records=(turn.record,), run=turn.run, task_id=task_id)
    sent.counted = claimed.nominal
    pushes = message.fill(values, tag)
    return CompiledRun(
        claimed,
        claimed.nominal,
        sent,
        None,
        plain.name,
        plain.task,
        task_id,
        message,
        pushes,
        _valid_until(turn, message.expires_seconds),
        span=span,
    )


def _valid_until(turn: Turn, expires_seconds: float | None) -> float:
    """Return until when a run may be sent as it was planned: not with a message that has expired, say."""
    if expires_seconds is None:
        return turn.valid_until
    return min(turn.valid_until, turn.at.timestamp() + expires_seconds)


def delivery_tags(count: int) -> list[str]:
    """Return ``count`` random UUIDs of version 4, as kombu gives one to each message."""
    digits = urandom(16 * count).hex()
    return [
        f"{digits[at : at + 8]}-{digits[at + 8 : at + 12]}-4{digits[at + 13 : at + 16]}-"
        f"{'89ab'[int(digits[at + 16], 16) & 3]}{digits[at + 17 : at + 20]}-{digits[at + 20 : at + 32]}"
        for at in range(0, 32 * count, 32)
    ]
