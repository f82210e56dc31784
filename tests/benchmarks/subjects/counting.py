"""What metrics cost: `way`, with options `db`, `limit_seconds`, `server_pid`.

`gathering`: counting all entries by their states, and what is asked each second; `seldom`: how often Redis is
asked after the count. `counting`: bursts with counting and without, in turn, in one process; options `due`,
`rounds` of both, `labelled`: how many entries are counted by themselves, `is_tracked`. Tracked runs are begun
after each burst, and ended as workers end them.

Without counting the lines that count are left out of the program, and of the scripts. The arguments that tell
a script what to count are still there, and empty.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Sequence
from functools import partial
from typing import Any

from again import let_be_due, save
from subject import QUEUE, connect, lead, make_app, measure, read_options, report, send_due

import redbeat
import redbeat.store.runs as run_scripts
import redbeat.store.schedule as commit_scripts
from redbeat.log.text import sha1_of_text
from redbeat.scheduler import planner
from redbeat.store.runs import Delivery, End, Runs

ENDS = 100
LEASE_MS = 600_000

options = read_options()
settings: dict[str, Any] = {"redbeat_http": "127.0.0.1:1"}  # nobody listens: no beat runs
if options.way == "counting":
    settings = {"redbeat_metrics_entries": options.labelled}
app = make_app(options.server, options.db, **settings)
broker, schedule = connect(options)


class Switch:
    """Counting, on or off."""

    def __init__(self) -> None:
        self._states: list[tuple[Any, str, Any, Any]] = []

    def leave_out(self, owner: Any, name: str, *lines: tuple[str, str]) -> None:
        """Have a function without some lines when it is off: they are replaced."""
        function = getattr(owner, name)
        source = replaced(textwrap.dedent(inspect.getsource(function)), lines)
        found: dict[str, Any] = {}
        exec(f"from __future__ import annotations\n{source}", function.__globals__, found)
        self._states.append((owner, name, function, found[name]))

    def leave_out_of_script(self, script: Any, *lines: tuple[str, str]) -> None:
        source = replaced(script.source, lines)
        self._states.append((script, "source", script.source, source))
        self._states.append((script, "sha1", script.sha1, sha1_of_text(source)))

    def turn(self, is_on: bool) -> None:
        for owner, name, with_it, without in self._states:
            setattr(owner, name, with_it if is_on else without)


def replaced(source: str, lines: Sequence[tuple[str, str]]) -> str:
    for old, new in lines:
        assert source.count(old) == 1, f"{source.count(old)} times: {old}"
        source = source.replace(old, new)
    return source


def make_switch() -> Switch:
    switch = Switch()
    is_counted = "if book is not None and (commit.sent or commit.counted):"
    switch.leave_out(planner.Planner, "plan", (is_counted, "if False:"))
    switch.leave_out_of_script(
        commit_scripts._COMMIT_RUNS,  # noqa: SLF001
        ("if new_scores[done] and (due or rows[done].counted) then count_run(done, due) end\n", "\n"),
        ("\npcall(write_counted)\n", "\n"),
    )
    switch.leave_out_of_script(
        run_scripts._END_RUN,  # noqa: SLF001
        ("\n    expect_next(run, record)\n", "\n"),
        ("\n  count_end(run, record)\n", "\n"),
    )
    return switch


def begin_all() -> list[End]:
    """Begin all runs that were sent, as a worker does; return how each is to end."""
    runs, ends = Runs(leader.store), []
    for key, record in runs.all():
        name = key.removeprefix("redbeat:")
        delivery = Delivery(name, record.task_id, record.due, f"{record.task_id}-1", "worker@bench")
        runs.begin(delivery, LEASE_MS)
        ends.append(End(delivery, "succeeded", run_seconds=0.5))
    return ends


def end_all(ends: list[End]) -> None:
    runs = Runs(leader.store)
    for first in range(0, len(ends), ENDS):
        runs.end(ends[first : first + ENDS])


def count_words(what: str) -> int:
    """How many runs were counted by a word."""
    found: Any = schedule.hgetall("redbeat::figures")
    words_of = {field: field.decode().partition(":")[2].split("+") for field in found}
    return sum(int(number) for field, number in found.items() if what in words_of[field])


def run_round(is_counted: bool) -> dict[str, Any]:
    switch.turn(is_counted)
    schedule.delete("redbeat::figures")
    broker.delete(QUEUE)
    let_be_due(schedule, options.due)
    burst = measure(partial(send_due, leader), options)
    sent, counted = broker.llen(QUEUE), count_words("sent")
    assert counted == (sent if is_counted else 0), f"{counted} of {sent} are counted"
    taken: dict[str, Any] = {"is_counted": is_counted, "burst": {**burst, "sent": sent}}
    if options.is_tracked:
        ends = begin_all()
        taken["end"] = {**measure(partial(end_all, ends), options), "sent": len(ends)}
        counted = count_words("succeeded")
        assert counted == (len(ends) if is_counted else 0), f"{counted} of {len(ends)} are counted"
        assert len(ends) == sent, f"{len(ends)} of {sent} have ended"
    return taken


def gather() -> None:
    leader._election.keep_alive()  # noqa: SLF001
    gathering = leader._gathering  # noqa: SLF001
    gathering.gather()  # connections stand, and scripts are loaded
    gathering._parts, gathering._counting = {}, gathering._count_states()  # noqa: SLF001 - as if just made
    times: list[None] = []

    def count() -> None:
        while not gathering.views or gathering.views[0].states is None:
            gathering.gather()
            times.append(None)

    def ask() -> None:
        for _ in range(options.seldom):
            gathering.gather()

    counting = measure(count, options)
    asking = measure(ask, options)
    report(counting=counting, times=len(times), asking=asking, states=dict(gathering.views[0].states))


def send_in_turn() -> None:
    save(app, options.due)
    for is_counted in (True, False):  # connections stand, messages are compiled, scripts are loaded
        run_round(is_counted)
    rounds = [
        run_round(is_counted)
        for number in range(options.rounds)
        for is_counted in ((True, False) if number % 2 else (False, True))
    ]
    report(rounds=rounds)


if options.way == "gathering":
    leader = lead(app)
    gather()
else:
    if options.is_tracked:
        redbeat.track_runs(app)
    switch = make_switch()
    leader = lead(app)
    send_in_turn()
