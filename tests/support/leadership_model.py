"""A model of the lock: two beats, one server, and everything that may happen to them, in every order.

It has the steps of the real thing, each as atomic as there, and is explored breadth first. No state holds a
time: what takes long may happen at once, so that whatever a clock might do is among the orders explored.

=================  ========================================================================================
step               stands for
=================  ========================================================================================
looks              ``LeaderLock.acquire``'s PTTL and GET; a holder seen ``SILENT_LOOKS`` times without a
                   renewal in between has been silent for ``redbeat_takeover_after``
takes, takes over  ``take_lock.lua``: the lock is free, or its holder was silent and still is
renews             ``renew_lock.lua``, sent by the heartbeat
claims             ``claim_due.lua``
commits            ``commit_runs.lua``: pushes the run's message and records it, in one step
releases           ``release_lock.lua``; the process ends
notices            ``Leadership.check``: the heartbeat was told that another beat leads
=================  ========================================================================================

``renews``, ``claims`` and ``commits`` begin as ``hold_lock.lua`` does. Each script is also sent without an
answer: the command is then late, and arrives at any time or never, whatever has become of its sender, who may
send it again. That stands for a reply that got lost, a connection that was cut, and a crash or a pause amid
a call.

The rest happens to them: a crash, a start, a pause (SIGSTOP) and its end, a clock that jumps (a standby then
takes any silence for a long one), a lock that expires as nobody renews it, and one that is deleted by hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Exploration", "Rules", "explore"]

RUNS = 2
SILENT_LOOKS = 2
#: so many commands are late at the same time, at the most
MAX_LATE = 2

_BEATS = ("beat 1", "beat 2")


class Rules(NamedTuple):
    """What protects the runs; each can be taken away, to see that the model would notice.

    Attributes:
        is_fenced: scripts check the token.
        compares: a commit is made only where the score is the one that was claimed.
    """

    is_fenced: bool = True
    compares: bool = True


class Beat(NamedTuple):
    """One beat; tokens are numbers, 0 is none.

    Attributes:
        token: the one it leads with, or asks for the lock with.
        silent: the holder it has seen, and ``looks`` how often without a renewal.
        claimed: the run it has claimed, -1 for none.
        is_told: its heartbeat knows that another beat leads.
    """

    phase: str = "standby"  # or leader, or dead
    is_paused: bool = False
    token: int = 0
    silent: int = 0
    looks: int = 0
    claimed: int = -1
    is_told: bool = False


class Command(NamedTuple):
    """A script on its way; ``subject`` is the silent holder, or the run."""

    script: str
    token: int
    subject: int = -1


class State(NamedTuple):
    """Everything: the server's keys (``due`` is the score: the next run), the beats, and what is late."""

    lock: int = 0
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


def explore(depth: int, rules: Rules = Rules()) -> Exploration:  # noqa: B008 - immutable
    """Take every step from every state, as many in a row as ``depth``, or until one breaks something."""
    start = State()
    came_from: dict[State, tuple[State, str]] = {start: (start, "")}
    frontier, steps, sent = [start], set(), 0
    for _ in range(depth):
        following: list[State] = []
        for state in frontier:
            for words, after, violation in _steps(state, rules):
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


def _steps(state: State, rules: Rules) -> Iterator[Step]:
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
            yield from _wait(state, number)
        else:
            yield from _lead(state, number, rules)
    for position, command in enumerate(state.late):
        rest = state._replace(late=state.late[:position] + state.late[position + 1 :])
        after, _, violation = _execute(rest, command, rules)
        yield f"a late command arrives: {command.script}", after, violation
    if state.lock:
        renewing = any(
            beat.phase == "leader" and beat.token == state.lock and not beat.is_paused for beat in state.beats
        )
        if not renewing:
            yield "the lock expires", state._replace(lock=0), ""
        yield "the lock is deleted by hand", state._replace(lock=0), ""


def _wait(state: State, number: int) -> Iterator[Step]:
    """A standby's steps."""
    beat, who = state.beats[number], _BEATS[number]
    looks = 1 if beat.silent != state.lock else min(beat.looks + 1, SILENT_LOOKS)
    looking = beat._replace(silent=state.lock, looks=looks if state.lock else 0)
    yield f"{who} looks", _put(state, number, looking), ""
    if beat.silent:
        yield f"{who}'s clock jumps", _put(state, number, beat._replace(looks=SILENT_LOOKS)), ""
    if beat.silent and beat.looks < SILENT_LOOKS:
        return
    token = beat.token or _new_token(state)
    asking = beat._replace(token=token)
    command = Command("take", token, beat.silent)
    verb = "takes over" if beat.silent else "takes the lock"
    yield from _send_late(state, number, asking, command)
    after, reply, violation = _execute(_put(state, number, asking), command, Rules())
    now = Beat("leader", token=token) if reply == "ok" else asking._replace(silent=0, looks=0)
    yield f"{who} {verb}" + ("" if reply == "ok" else ", in vain"), _put(after, number, now), violation


def _lead(state: State, number: int, rules: Rules) -> Iterator[Step]:
    """A leader's steps: those of its two threads."""
    beat, who = state.beats[number], _BEATS[number]
    if not beat.is_told:
        command = Command("renew", beat.token)
        yield from _send_late(state, number, beat, command)
        after, reply, violation = _execute(state, command, rules)
        yield f"{who} renews", _put(after, number, beat._replace(is_told=reply == "lost")), violation
    if beat.claimed >= 0:
        command = Command("commit", beat.token, beat.claimed)
    elif beat.is_told:
        yield f"{who} notices, and stands by", _put(state, number, Beat()), ""
        return
    else:
        command = Command("claim", beat.token)
        yield from _send_late(state, number, Beat("dead"), Command("release", beat.token))
        after, _, violation = _execute(state, Command("release", beat.token), rules)
        yield f"{who} releases", _put(after, number, Beat("dead")), violation
    yield from _send_late(state, number, beat, command)
    after, reply, violation = _execute(state, command, rules)
    if reply == "lost":
        now = Beat()
    elif command.script == "claim" and after.due < RUNS:
        now = beat._replace(claimed=after.due)
    else:
        now = beat._replace(claimed=-1)
    yield f"{who} {command.script}s", _put(after, number, now), violation


def _send_late(state: State, number: int, sender: Beat, command: Command) -> Iterator[Step]:
    if len(state.late) < MAX_LATE and command not in state.late:
        after = _put(state, number, sender)._replace(late=tuple(sorted((*state.late, command))))
        yield f"{_BEATS[number]} sends, unanswered: {command.script}", after, ""


def _execute(state: State, command: Command, rules: Rules) -> tuple[State, str, str]:
    """What the server does; return the state after it, its reply, and what it broke."""
    script, token, subject = command
    before = state.lock
    if script == "take":
        if before and before not in (token, subject):
            return state, "held", ""
        return _renewed(state._replace(lock=token)), "ok", ""
    if script == "release":
        return state._replace(lock=0 if before == token else before), "ok", ""
    if rules.is_fenced or script == "renew":
        if before and before != token:
            return state, "lost", ""
        state = _renewed(state._replace(lock=token))
    if script != "commit" or (rules.compares and state.due != subject):
        return state, "ok", ""
    pushed = tuple(count + (run == subject) for run, count in enumerate(state.pushed))
    violation = f"run {subject} was sent twice" if pushed[subject] > 1 else ""
    if state.lock not in (0, token):  # one that is nobody's is taken back in the same step by who may commit
        violation = violation or f"run {subject} was sent by one beat while the other held the lock"
    return state._replace(due=subject + 1, pushed=pushed), "ok", violation


def _renewed(state: State) -> State:
    """The lock's time to live begins anew: ``take_lock.lua`` sees that it isn't what a standby saw."""
    seen = any(beat.silent == state.lock for beat in state.beats)
    waiting = any(command.script == "take" and command.subject == state.lock for command in state.late)
    if seen:
        beats = tuple(
            beat._replace(silent=0, looks=0) if beat.silent == state.lock else beat for beat in state.beats
        )
        state = state._replace(beats=beats)
    if waiting:
        late = {
            command._replace(subject=0)
            if command.script == "take" and command.subject == state.lock
            else command
            for command in state.late
        }
        state = state._replace(late=tuple(sorted(late)))
    return state


def _put(state: State, number: int, beat: Beat) -> State:
    beats = (beat, state.beats[1]) if number == 0 else (state.beats[0], beat)
    return state._replace(beats=beats)


def _new_token(state: State) -> int:
    """The lowest number that means nothing to anybody any more."""
    used = {state.lock}
    for beat in state.beats:
        used |= {beat.token, beat.silent}
    for command in state.late:
        used |= {command.token, command.subject if command.script == "take" else 0}
    return next(number for number in range(1, 20) if number not in used)
