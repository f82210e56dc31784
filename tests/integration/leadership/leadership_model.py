"""A model of the lock: two beats, one server, and everything that may happen to them, in every order.

A schedule that is divided into shards has many locks, and no script touches two: each is as this one.

The server is a real one and runs the real scripts. The beats' steps are explored breadth first. No state
holds a time: what takes long may happen at once, so that whatever a clock might do is among the orders.

=================  ========================================================================================
step               stands for
=================  ========================================================================================
looks              ``LeaderLock.acquire``'s PTTL and GET; a holder seen ``SILENT_LOOKS`` times without a
                   renewal in between has been silent for ``redbeat_takeover_after``
takes, takes over  ``take_lock.lua``: the lock is free, or its holder was silent and still is
renews             ``renew_lock.lua``, sent by the heartbeat
claims             ``fetch_due.lua``
commits            ``commit_runs.lua``: pushes the run's message and records it, in one step
releases           ``release_lock.lua``; the process ends. With a start after it, that is a hand-over, too
notices            ``Leadership.check``: the heartbeat was told that another beat leads
=================  ========================================================================================

Each script is also sent without an answer: the command is then late, and arrives at any time or never,
whatever has become of its sender, who may send it again. That stands for a reply that got lost, a connection
that was cut, and a crash or a pause amid a call.

The rest happens to them: a crash, a start, a pause (SIGSTOP) and its end, a clock that jumps (a standby then
takes any silence for a long one), a lock that expires as nobody renews it, and one that is deleted by hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from redbeat.keys import NO_PART, Keys
from redbeat.store.records import Commit, Fence, LockStatus, Push, Target, fetched_of
from redbeat.store.schedule import commit_call
from redbeat.store.scripts.script import Script
from redbeat.store.store import renew_call
from tests.support.fetched import fetched
from tests.support.schedule import LATER, LOCK, SCHEDULE, TICK

KEYS = Keys()
FETCH = {
    "limit": 1,
    "max_bytes": 10**6,
    "entry_bytes": 10**6,
    "lease_ms": 0,
    "pending": 0,
    "last_pending": None,
    "before": None,
    "are_messages": False,
}

__all__ = ["Exploration", "Scripts", "explore"]

RUNS = 2
SILENT_LOOKS = 2
#: so many commands are late at the same time, at the most
MAX_LATE = 2

_BEATS = ("beat 1", "beat 2")


class Beat(NamedTuple):
    """One beat; tokens are numbers, 0 is none.

    Attributes:
        token: the one it leads with, or asks for the lock with.
        silent: the holder it has seen, and ``looks`` how often without a renewal.
        is_stale: that one has renewed the lock since.
        claimed: the run it has claimed, -1 for none.
        is_told: its heartbeat knows that another beat leads.
    """

    phase: str = "standby"  # or leader, or dead
    is_paused: bool = False
    token: int = 0
    silent: int = 0
    looks: int = 0
    is_stale: bool = False
    due_entry: int = -1
    is_told: bool = False


class Command(NamedTuple):
    """A script on its way; ``subject`` is the silent holder, who ``is_stale`` as a Beat's, or the run."""

    script: str
    token: int
    subject: int = -1
    is_stale: bool = False


class State(NamedTuple):
    """Everything: the server's keys (``due`` is the score: the next run), the beats, and what is late.

    ``released`` is the token that the mark of the last release has.
    """

    lock: int = 0
    released: int = 0
    due: int = 0
    pushed: tuple[int, ...] = (0,) * RUNS
    beats: tuple[Beat, ...] = (Beat(), Beat())
    late: tuple[Command, ...] = ()


#: a step's words, the state after it, and what it broke ('' for nothing)
Step = tuple[str, State, str]


@dataclass
class Exploration:
    """What was found.

    Attributes:
        states: how many different ones.
        steps: the words of every step that was taken, without the beats' numbers.
        sent: the most runs that any state has seen sent.
        violation: what was broken, '' for nothing.
        trace: the shortest way there.
    """

    states: int
    steps: set[str]
    sent: int
    violation: str
    trace: list[str]


def explore(depth: int, scripts: Scripts) -> Exploration:
    """Take every step from every state, as many in a row as ``depth``, or until one breaks something."""
    start = State()
    came_from: dict[State, tuple[State, str]] = {start: (start, "")}
    frontier, steps, sent = [start], set(), 0
    for _ in range(depth):
        following: list[State] = []
        for state in frontier:
            for words, after, violation in _steps(state, scripts):
                steps.add(words.removeprefix(_BEATS[0]).removeprefix(_BEATS[1]).lstrip())
                if violation:
                    trace = [*_trace(came_from, state), words]
                    return Exploration(len(came_from), steps, sent, violation, trace)
                if after not in came_from:
                    came_from[after] = state, words
                    following.append(after)
                    sent = max(sent, sum(after.pushed))
        frontier = following
    return Exploration(len(came_from), steps, sent, "", [])


def _trace(came_from: dict[State, tuple[State, str]], state: State) -> list[str]:
    trace: list[str] = []
    while came_from[state][1]:
        state, words = came_from[state]
        trace.append(words)
    return trace[::-1]


def _steps(state: State, scripts: Scripts) -> Iterator[Step]:
    """What may happen next."""
    for number, beat in enumerate(state.beats):
        who = _BEATS[number]
        if beat.phase == "dead":
            yield f"{who} is started", _put(state, number, Beat()), ""
            continue
        yield f"{who} crashes", _put(state, number, Beat("dead")), ""
        if beat.is_paused:
            yield f"{who} goes on", _put(state, number, beat._replace(is_paused=False)), ""
            continue
        yield f"{who} is paused", _put(state, number, beat._replace(is_paused=True)), ""
        if beat.phase == "standby":
            yield from _wait(state, number, scripts)
        else:
            yield from _lead(state, number, scripts)
    for position, command in enumerate(state.late):
        rest = state._replace(late=state.late[:position] + state.late[position + 1 :])
        after, _, violation = _execute(rest, command, scripts)
        yield f"a late command arrives: {command.script}", after, violation
    if state.lock:
        if ("leader", False, state.lock) not in [beat[:3] for beat in state.beats]:
            yield "the lock expires", state._replace(lock=0), ""
        yield "the lock is deleted by hand", state._replace(lock=0), ""


def _wait(state: State, number: int, scripts: Scripts) -> Iterator[Step]:
    """A standby's steps."""
    beat, who = state.beats[number], _BEATS[number]
    is_new = beat.is_stale or beat.silent != state.lock
    looks = 1 if is_new else min(beat.looks + 1, SILENT_LOOKS)
    looking = beat._replace(silent=state.lock, looks=looks if state.lock else 0, is_stale=False)
    yield f"{who} looks", _put(state, number, looking), ""
    if beat.silent:
        yield f"{who}'s clock jumps", _put(state, number, beat._replace(looks=SILENT_LOOKS)), ""
    if beat.silent and beat.looks < SILENT_LOOKS:
        return
    token = beat.token or _new_token(state)
    asking = beat._replace(token=token)
    command = Command("take", token, beat.silent, beat.is_stale)
    verb = "takes over" if beat.silent else "takes the lock"
    yield from _send_late(state, number, asking, command)
    after, reply, violation = _execute(_put(state, number, asking), command, scripts)
    is_refused = reply is LockStatus.LOST
    now = asking._replace(silent=0, looks=0, is_stale=False) if is_refused else Beat("leader", token=token)
    yield f"{who} {verb}" + (", in vain" if is_refused else ""), _put(after, number, now), violation


def _lead(state: State, number: int, scripts: Scripts) -> Iterator[Step]:
    """A leader's steps: those of its two threads."""
    beat, who = state.beats[number], _BEATS[number]
    if not beat.is_told:
        command = Command("renew", beat.token)
        yield from _send_late(state, number, beat, command)
        after, reply, violation = _execute(state, command, scripts)
        yield f"{who} renews", _put(after, number, beat._replace(is_told=reply is LockStatus.LOST)), violation
    if beat.due_entry >= 0:
        command = Command("commit", beat.token, beat.due_entry)
    elif beat.is_told:
        yield f"{who} notices, and stands by", _put(state, number, Beat()), ""
        return
    else:
        command = Command("claim", beat.token)
        yield from _send_late(state, number, Beat("dead"), Command("release", beat.token))
        after, _, violation = _execute(state, Command("release", beat.token), scripts)
        yield f"{who} releases", _put(after, number, Beat("dead")), violation
    yield from _send_late(state, number, beat, command)
    after, reply, violation = _execute(state, command, scripts)
    if reply is LockStatus.LOST:
        now = Beat()
    elif command.script == "claim" and after.due < RUNS:
        now = beat._replace(due_entry=after.due)
    else:
        now = beat._replace(due_entry=-1)
    yield f"{who} {command.script}s", _put(after, number, now), violation


def _send_late(state: State, number: int, sender: Beat, command: Command) -> Iterator[Step]:
    if len(state.late) < MAX_LATE and command not in state.late:
        after = _put(state, number, sender)._replace(late=tuple(sorted((*state.late, command))))
        yield f"{_BEATS[number]} sends, unanswered: {command.script}", after, ""


def _execute(state: State, command: Command, scripts: Scripts) -> tuple[State, LockStatus, str]:
    """Return the state after the script, its reply, and what it broke."""
    answer = scripts.run(state.lock, state.released, state.due, command)
    violation = answer.violation
    if answer.is_pushed:
        run = command.subject
        if state.pushed[run]:
            violation = violation or f"run {run} was sent twice"
        pushed = tuple(count + (number == run) for number, count in enumerate(state.pushed))
        state = state._replace(pushed=pushed)
    state = state._replace(lock=answer.lock, released=answer.released, due=answer.due)
    return _renewed(state) if answer.is_renewed else state, answer.reply, violation


def _renewed(state: State) -> State:
    """What was seen of the lock's time to live doesn't hold any more."""
    beats = tuple(
        beat._replace(is_stale=True) if state.lock and beat.silent == state.lock else beat
        for beat in state.beats
    )
    late = {
        command._replace(is_stale=True)
        if state.lock and command.script == "take" and command.subject == state.lock
        else command
        for command in state.late
    }
    return state._replace(beats=beats, late=tuple(sorted(late)))


def _put(state: State, number: int, beat: Beat) -> State:
    return state._replace(beats=(beat, state.beats[1]) if number == 0 else (state.beats[0], beat))


def _new_token(state: State) -> int:
    """The lowest number that means nothing to anybody any more."""
    used = {state.lock, state.released}
    for beat in state.beats:
        used |= {beat.token, beat.silent}
    for command in state.late:
        used |= {command.token, command.subject if command.script == "take" else 0}
    return next(number for number in range(1, 20) if number not in used)


# -- the server

MARK = "redbeat::released"
KEY, QUEUE, DEFINITION = "redbeat:entry", "celery", "{}"
#: of locks, milliseconds: as the holder renews it, as it is taken, and what is left of it when somebody looks
LOCK_MS, TAKEN_MS, RETAKEN_MS, REST_MS = 30 * 60_000, 15 * 60_000, 10_000, 20 * 60_000
#: times that differ by less are the same
SLACK_MS = 2 * 60_000


class Answer(NamedTuple):
    """What a script did.

    Attributes:
        lock: the token by then.
        released: the mark's token by then.
        due: the next run by then.
        reply: the lock's status; LOST, too, where it couldn't be taken or given up.
        is_renewed: the lock has another time to live.
        is_pushed: a message was sent.
        violation: which promise about the lock was broken, '' for none.
    """

    lock: int
    released: int
    due: int
    reply: LockStatus
    is_renewed: bool
    is_pushed: bool
    violation: str


class Scripts:
    """The real scripts on a real server, which gets the state that they shall find.

    Arguments:
        client: on an empty database, which is the schedule's and the broker's.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._run_id = client.info("server")["run_id"]
        self._known: dict[tuple[int, int, int, Command], Answer] = {}

    def run(self, lock: int, released: int, due: int, command: Command) -> Answer:
        """Let the command find ``lock``, ``released`` and ``due``; the same is asked once only."""
        asked = lock, released, due, command
        if asked not in self._known:
            self._known[asked] = self._run(*asked)
        return self._known[asked]

    def _run(self, lock: int, released: int, due: int, command: Command) -> Answer:
        with self._client.pipeline() as pipeline:
            pipeline.delete(LOCK, MARK, TICK, KEY, QUEUE)
            if lock:
                pipeline.set(LOCK, f"token-{lock}", px=REST_MS)
            if released:
                pipeline.set(MARK, f"token-{released}", px=REST_MS)
            pipeline.hset(KEY, mapping={"definition": DEFINITION, "meta": _meta(due)})
            pipeline.zadd(SCHEDULE, {KEY: _score(due)})
            pipeline.execute()
        before = self._seen()
        reply = self._call(command)
        after = self._seen()
        lives_ms, (token, mark, score, pushed, _, _) = self._client.pttl(LOCK), after
        found, marked = _number_of(token), _number_of(mark)
        is_renewed = abs(lives_ms - REST_MS) > SLACK_MS
        is_written = (is_renewed and lock > 0) or after != before
        violation = _violation(lock, released, command, reply, found, lives_ms, is_written)
        return Answer(found, marked, min(int(score) - 1, RUNS), reply, is_renewed, pushed > 0, violation)

    def _seen(self) -> tuple[Any, ...]:
        with self._client.pipeline() as pipeline:
            pipeline.get(LOCK).get(MARK).zscore(SCHEDULE, KEY).llen(QUEUE).hgetall(KEY).exists(TICK)
            return tuple(pipeline.execute())

    def _call(self, command: Command) -> LockStatus:
        client, token, run = self._client, f"token-{command.token}", command.subject
        fence = Fence(LOCK, token, LOCK_MS, MARK)
        if command.script == "take":
            silent = f"token-{run}" if run else ""
            rest_ms = REST_MS + 2 * SLACK_MS * command.is_stale
            times = {"taken_ms": TAKEN_MS, "rest_ms": rest_ms, "slack_ms": SLACK_MS}
            is_done = (
                Script("take_lock")
                .call(NO_PART, lock=LOCK, mark=MARK, token=token, silent=silent, **times)
                .run(client)
            )
            return LockStatus.HELD if is_done else LockStatus.LOST
        if command.script == "release":
            is_done = Script("release_lock").call(lock=LOCK, mark=MARK, token=token, wake="wake").run(client)
            return LockStatus.HELD if is_done else LockStatus.LOST
        if command.script == "renew":
            return renew_call(KEYS, fence).run(client)
        if command.script == "claim":
            call = Script("fetch_due").call(KEYS, fence=fence, other=LATER, **FETCH)
            return fetched_of(call.run(client)).status
        due_entry = fetched(KEY, _score(run), DEFINITION, _meta(run))
        message = Push("lpush", QUEUE, "message")
        commit = Commit(due_entry, _score(run + 1), _meta(run + 1), pushes=(message,))
        database = client.connection_pool.connection_kwargs["db"]
        target = Target(self._run_id, database, database)
        return commit_call(KEYS, fence, [commit], target).run(client).status


def _number_of(token: str | None) -> int:
    return int(token.removeprefix("token-")) if token else 0


def _violation(
    lock: int, released: int, command: Command, reply: LockStatus, found: int, lives_ms: int, is_written: bool
) -> str:
    """Return which promise was broken: each script's about the lock."""
    script, token, subject, is_stale = command
    is_held = is_stale if script == "take" and lock == subject else lock not in (0, token)
    is_refused = reply is LockStatus.LOST and not is_written
    if lock and is_held:
        return "" if is_refused else f"another beat held the lock, and yet: {script}"
    if script == "release":
        return f"not released by its holder: {found}" if found else ""
    if not lock and token == released:
        return "" if is_refused else f"its beat has released the lock, and yet: {script}"
    status, expected_ms = (LockStatus.HELD, LOCK_MS) if lock else (LockStatus.RETAKEN, RETAKEN_MS)
    if script == "take":
        status, expected_ms = LockStatus.HELD, TAKEN_MS
    if (found, reply) == (token, status) and expected_ms - SLACK_MS < lives_ms <= expected_ms:
        return ""
    return f"not {status.name.lower()} for {expected_ms} ms after: {script}"


def _score(run: int) -> str:
    """When it is due: seconds after the epoch; after the last run never in any test."""
    return str(run + 1 if run < RUNS else 4 * 10**9)


def _meta(run: int) -> str:
    return f'{{"total_run_count": {run}}}'
