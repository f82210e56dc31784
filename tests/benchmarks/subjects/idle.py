"""Ticks with nothing due: options `dbs`, one schedule each, and `rounds`.

The schedules are ticked in turn, so that whatever the machine does at a moment hits all of them.
"""

from __future__ import annotations

import statistics
import time

from subject import RoundTrips, lead, make_app, read_options, report

WARM_UP_ROUNDS = 20

options = read_options()
round_trips = RoundTrips()
leaders = [lead(make_app(options.server, db)) for db in options.dbs]
seconds: list[list[float]] = [[] for _ in leaders]
trips: list[list[int]] = [[] for _ in leaders]
for round_number in range(WARM_UP_ROUNDS + options.rounds):
    for position, leader in enumerate(leaders):
        count = round_trips.count
        started = time.perf_counter()
        delay = leader.tick()
        elapsed = time.perf_counter() - started
        assert delay > 0, "something was due"
        if round_number >= WARM_UP_ROUNDS:
            seconds[position].append(elapsed)
            trips[position].append(round_trips.count - count)
for leader in leaders:
    leader.close()
report(
    seconds=[statistics.median(of_one) for of_one in seconds],
    round_trips=[statistics.median(of_one) for of_one in trips],
)
