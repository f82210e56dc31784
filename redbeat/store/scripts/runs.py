"""The scripts about runs in progress, one typed function each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from redbeat.keys import EntryKeys, Keys
from redbeat.store.records import Fence, LockStatus, lock_status_of, text_of
from redbeat.store.scripts import Script
from redbeat.store.scripts.script import Request

_BEGIN_RUN = Script("check_layout", "run_records", "begin_run")
_RENEW_RUNS = Script("check_layout", "run_records", "renew_runs")
_END_RUN = Script("check_layout", "count_figures", "run_records", "finish_run", "end_run")
_NOTE_CHILD = Script("check_layout", "run_records", "note_child")
_GIVE_UP_RUNS = Script("check_layout", "count_figures", "run_records", "finish_run", "give_up_runs")
_SETTLE_RUNS = Script(
    "check_layout", "hold_lock", "count_figures", "run_records", "finish_run", "settle_runs"
)

#: workers that have said nothing for so long are forgotten, seconds
FORGET_SECONDS = 3600


class Delivery(NamedTuple):
    """One delivery of a run's message to a worker.

    Attributes:
        name: of the entry.
        task_id: of the message.
        due: when the run was due, UNIX seconds as text.
        token: differs from delivery to delivery.
        worker: the worker's name.
        attempt: 1, and one more for each of Celery's retries.
        root: the task id of the run whose workflow this task belongs to; '': it is the run itself.
        is_soft: the worker's pool can't terminate a task.
        overlap: the policy that the message names: 'skip', 'buffer_one' or 'replace'; '': runs may overlap.
        follows: the delivery whose task has sent this message, as its retry or its replacement; '': none.
    """

    name: str
    task_id: str
    due: str
    token: str
    worker: str
    attempt: int = 1
    root: str = ""
    is_soft: bool = False
    overlap: str = ""
    follows: str = ""


class End(NamedTuple):
    """What became of a delivery.

    Attributes:
        outcome: 'succeeded', 'failed', 'revoked', 'expired', 'rejected', 'ignored', 'superseded'; if the run
            goes on 'retrying' or 'requeued'.
        error: the exception, in one line.
        run_seconds: how long its task took; None: that isn't known.
        retry_seconds: in how many seconds the next attempt may begin.
    """

    delivery: Delivery
    outcome: str
    error: str = ""
    run_seconds: float | None = None
    retry_seconds: float = 0.0


class Settlement(NamedTuple):
    """What beat does about a run whose deadline has come; see ``settle_runs.lua``."""

    action: str
    name: str
    task_id: str
    member: str
    score: str
    text: str
    word: str = ""
    seconds: float = 0.0


def begin_run(
    client: Any, keys: Keys, delivery: Delivery, lease_ms: int, *, is_expired: bool = False
) -> tuple[str, int]:
    """Take the lease of a run; return the answer, and how many milliseconds another one's lease lives."""
    about = keys.about(delivery.name)
    one = delivery
    answer, rest_ms = _BEGIN_RUN(
        client,
        [about.running, keys.deadlines, about.history, keys.events],
        [
            *(one.name, one.task_id, one.due, one.token, one.worker, one.attempt, one.root, int(one.is_soft)),
            *(one.overlap, lease_ms, int(is_expired), one.follows),
        ],
        keys,
    )
    return text_of(answer), int(rest_ms)


def renew_call(
    keys: Keys, held: Sequence[tuple[Delivery, float]], lease_ms: int, worker: str, row: str
) -> tuple[Script, Request]:
    """Return what renews the leases of runs of one part that are at work for so many seconds.

    It returns the answer for each.
    """
    args: list[Any] = [lease_ms, worker, row, FORGET_SECONDS]
    for one, age_seconds in held:
        args += one.task_id, one.due, one.token, one.attempt, f"{age_seconds:.3f}"
    running = [keys.about(one.name).running for one, _ in held]
    return _RENEW_RUNS, Request([keys.deadlines, keys.workers, *running], args, keys)


def end_call(keys: Keys, end: End) -> tuple[Script, Request]:
    """Return what notes what became of a run; it returns a word about that."""
    one, about = end.delivery, keys.about(end.delivery.name)
    ran = "" if end.run_seconds is None else f"{end.run_seconds:.3f}"
    args: list[Any] = [
        *(keys.wake, one.name, one.task_id, one.due, one.token, one.worker, one.attempt),
        *(end.outcome, end.error, ran, f"{end.retry_seconds:.3f}", one.root),
    ]
    return _END_RUN, Request(_keys_of_end(keys, about), args, keys)


def _keys_of_end(keys: Keys, about: EntryKeys) -> list[str]:
    of_entry = [about.running, keys.deadlines, about.history, keys.events, keys.failures, about.failing]
    return [*of_entry, keys.streaks, keys.figures, keys.expected]


def give_up_runs(
    client: Any, keys: Keys, name: str, runs: Sequence[tuple[str, str, str, int]], problem: str
) -> tuple[str, list[bool]]:
    """End runs of the entry called ``name`` as lost, each by its task id, due time, state and attempt.

    Returns '', or the server's error where something couldn't be recorded; and of each run whether it is
    given up: one that isn't like that any more isn't.
    """
    about = keys.about(name)
    script_keys = _keys_of_end(keys, about)
    args: list[Any] = [keys.wake, name, problem]
    for one in runs:
        args += one
    unrecorded, done = _GIVE_UP_RUNS(client, script_keys, args, keys)
    return text_of(unrecorded), [text_of(one) == "1" for one in done]


def note_child(client: Any, keys: Keys, delivery: Delivery, task_id: str, task: str = "") -> bool:
    """Note a task that a task of a run's workflow is about to send; tell whether it is noted now.

    ``task``: its name; '': that isn't known.
    """
    root = delivery.root or delivery.task_id
    names = [keys.about(delivery.name).running, keys.deadlines]
    return bool(_NOTE_CHILD(client, names, [root, task_id, delivery.due, task], keys))


def settle_runs(
    client: Any, keys: Keys, fence: Fence, settlements: Sequence[Settlement]
) -> tuple[LockStatus, str, list[str]]:
    """Do what was decided about runs whose deadlines have come.

    Returns the lock's status; '', or the server's error where something couldn't be recorded; and of each run
    the outcome that it has ended with now, 'overdue', or '' if neither came to it now.
    """
    about = [keys.about(one.name) for one in settlements]
    script_keys = [
        *fence.keys(keys.schedule),
        *(keys.deadlines, keys.events, keys.failures, keys.streaks, keys.figures, keys.expected),
        *(one.running for one in about),
        *(one.history for one in about),
        *(one.failing for one in about),
        *(one.entry for one in about),
    ]
    args: list[Any] = [*fence.args(), keys.wake, len(settlements)]
    for one in settlements:
        args += *one[:-1], f"{one.seconds:.3f}"
    status, unrecorded, done = _SETTLE_RUNS(client, script_keys, args, keys)
    return lock_status_of(status), text_of(unrecorded), [text_of(one) for one in done]
