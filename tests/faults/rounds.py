"""The short form of tests and the long one; rounds of kills, how many, and how each is played and counted."""

from __future__ import annotations

import os
import random
from collections import defaultdict
from collections.abc import Callable, Iterable
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import pytest
import redis

from tests.faults.bursts import Burst, Layout, Tally
from tests.support.schedule import messages

IS_LONG = os.environ.get("REDBEAT_FAULTS") == "long"

Case = TypeVar("Case")


def some_of(cases: Iterable[Case], count: int) -> list[Case]:
    """All of them in the long form; else so many, other ones in each run, in their order."""
    known = list(cases)
    if IS_LONG:
        return known
    chosen = random.Random(os.environ["REDBEAT_SEED"]).sample(range(len(known)), count)
    return [known[number] for number in sorted(chosen)]


#: each missed run is sent too, so that the messages tell of every second
EVERY_SECOND = {"every-second": {"task": "echo", "schedule": 1.0, "misfire": "all"}}


def check_every_second(broker: redis.Redis, since: float = 0) -> None:
    """Fail unless each second after `since` has one message on the queue, in order."""
    found = [message["headers"] for message in messages(broker)]
    dues = [datetime.fromisoformat(headers["redbeat_due"]).timestamp() for headers in found]
    gaps = [later - earlier for earlier, later in pairwise(due for due in dues if due > since)]
    assert gaps == pytest.approx([1.0] * len(gaps), abs=0.001), gaps
    assert len({headers["id"] for headers in found}) == len(found)


ROUNDS = range(12 if IS_LONG else 1)
RUNS = 1500 if IS_LONG else 600
KILLS = 10 if IS_LONG else 4


def play_round(
    layout: Layout,
    chance: random.Random,
    directory: Path,
    kill_until_out: Callable[[Burst], int],
    burst_class: type[Burst] = Burst,
) -> Tally:
    """Write the app `module`, and one burst after the other, until KILLS kills have been counted.

    `kill_until_out` starts the beats, kills until the burst is out, and returns how often.
    """
    layout.write_app(directory, redbeat_batch_size=chance.randint(20, 50))
    total = Tally()
    while total.kills < KILLS:
        burst = burst_class(layout, RUNS)
        burst.write()
        total += burst.tally(kill_until_out(burst))
    return total


def await_some_messages(burst: Burst, chance: random.Random) -> None:
    """Wait for so many messages, more or less, that a burst has room for KILLS kills; or until it is out."""
    burst.await_messages(chance.randint(RUNS // KILLS // 2, RUNS // KILLS * 3 // 2))


#: the name of the user property that holds a test's title and its tally's counts
TALLY = "tally"


def lines_of(properties: Iterable[tuple[str, Any]]) -> list[str]:
    """A table of the tallies among tests' user properties; empty when there are none."""
    sums: defaultdict[str, list[int]] = defaultdict(lambda: [0] * 6)
    for name, value in properties:
        if name == TALLY:
            title, counts = value
            sums[title] = [known + more for known, more in zip(sums[title], counts, strict=True)]
    rows = ["".join(f"{count:8}" for count in sums[title]) + f"          {title}" for title in sums]
    return ["   kills    runs    lost doubled another id  out of order", *rows] if rows else []
