"""Ticks of a leader: options `way`, and what it needs.

`due`: entries that are due are sent once, for the round trips and the memory; options `due`, `db`. `idle`:
nothing is due; options `dbs`, one schedule each, which are ticked in turn, so that whatever the machine does
at a moment hits all of them, and `rounds`.
"""

from __future__ import annotations

import statistics
import time

from fill import fill
from subject import QUEUE, RoundTrips, connect, lead, make_app, peak_rss_bytes, read_options, report, send_due

WARM_UP_ENTRIES, WARM_UP_ROUNDS = 600, 20

options = read_options()
round_trips = RoundTrips()


def due() -> None:
    broker, schedule = connect(options)
    leader = lead(make_app(options.server, options.db))
    for _ in range(2):  # more than one batch, twice: then all connections stand
        fill(schedule, WARM_UP_ENTRIES, is_due=True)
        send_due(leader)
    fill(schedule, options.due, is_due=True)
    broker.delete(QUEUE)
    round_trips.count = 0
    before_bytes = peak_rss_bytes()
    send_due(leader)
    peak_bytes = peak_rss_bytes()
    report(
        round_trips=round_trips.count,
        sent=broker.llen(QUEUE),
        peak_rss_bytes=peak_bytes,
        gained_bytes=peak_bytes - before_bytes,
    )


def idle() -> None:
    leaders = [lead(make_app(options.server, db)) for db in options.dbs]
    taken: list[list[tuple[float, int]]] = [[] for _ in leaders]
    for _ in range(WARM_UP_ROUNDS + options.rounds):
        for leader, of_one in zip(leaders, taken, strict=True):
            count, started = round_trips.count, time.perf_counter()
            delay = leader.tick()
            of_one.append((time.perf_counter() - started, round_trips.count - count))
            assert delay > 0, "something was due"
    for leader in leaders:
        leader.close()
    medians = [[*map(statistics.median, zip(*of_one[WARM_UP_ROUNDS:], strict=True))] for of_one in taken]
    report(seconds=[seconds for seconds, _ in medians], round_trips=[trips for _, trips in medians])


{"due": due, "idle": idle}[options.way]()
