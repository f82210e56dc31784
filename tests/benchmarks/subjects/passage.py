"""How much code a warm tick with one due entry passes through: `way` is plain, jitter or shards.

Counted by a profiler: files of redbeat, functions in them, how deep they call each other, and how often the
tick returns to a file that it has left. Nothing is prepared, so the tick does the whole work.
"""

from __future__ import annotations

import sys
import time
from types import FrameType
from typing import Any

from fill import TASK
from subject import QUEUE, connect, lead, make_app, read_options, report

import redbeat
from redbeat import RedBeatSchedulerEntry

WAYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "jitter": ({}, {"jitter": 0.001}),
    "shards": ({"redbeat_shards": 4}, {}),
}
WARM_TICKS = 3

options = read_options()
settings, policy = WAYS[options.way]
app = make_app(options.server, options.db, redbeat_lookahead=0, **settings)
broker, schedule = connect(options)
RedBeatSchedulerEntry("entry", TASK, 3600, app=app, **policy).save()
scheduler = lead(app)


def make_due() -> None:
    for key in schedule.scan_iter("*:schedule"):
        for member, _ in schedule.zscan_iter(key):
            schedule.zadd(key, {member: f"{time.time() - 0.5:.6f}"})


for _ in range(WARM_TICKS):
    make_due()
    before = broker.llen(QUEUE)
    while broker.llen(QUEUE) == before:
        scheduler.tick()

ROOT = f"{redbeat.__path__[0]}/"


class Passage:
    """What a profiled tick has passed through."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.functions: set[tuple[str, int, str]] = set()
        self.depth = self.deepest = self.returns = 0
        self._last = ""

    def profile(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if not code.co_filename.startswith(ROOT):
            return
        if event == "return":
            self.depth -= 1
        elif event == "call":
            self.depth += 1
            self.deepest = max(self.deepest, self.depth)
            self.functions.add((code.co_filename, code.co_firstlineno, code.co_name))
            if code.co_filename != self._last:
                self.returns += code.co_filename in self.files
                self._last = code.co_filename
                self.files.add(self._last)


make_due()
passage = Passage()
sys.setprofile(passage.profile)
scheduler.tick()
sys.setprofile(None)
counts = {"files": len(passage.files), "functions": len(passage.functions)}
report(**counts, depth=passage.deepest, returns=passage.returns)
