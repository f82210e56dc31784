"""A schedule in shards under several real beats: what befalls these, and what became of every second's run.

Each entry is due once a second, and runs that were missed are made up for (`misfire` "all"): so each second
of each entry must be on the queue once, whoever died, was paused or was cut off meanwhile, and wherever its
entry was moved.
"""

from __future__ import annotations

import random
import re
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.task_ids import task_id_of
from tests.faults.bursts import Queue, Tally
from tests.faults.rounds import TALLY
from tests.integration.reshard.resharded import part_of
from tests.support.apps import celery_beat, write_app
from tests.support.deadlines import patience
from tests.support.logs import has_traceback
from tests.support.polling import eventually
from tests.support.processes import Process

#: after so long without a renewal a lock is free; short, as no test waits for longer than it must
LOCK_SECONDS = 2.0

#: a beat that has been well for so long leads what no other one does: locks have ended, and it has looked
TAKEOVER_SECONDS = 2 * LOCK_SECONDS
#: for how long nothing may come of an entry that is due while such a beat is there: others that lead it are
#: killed one after the other, so their locks must end, and each new one connects to the broker; 12.6 s was
#: the most on a machine with twenty times the work that it can do
SILENT_SECONDS = 4 * TAKEOVER_SECONDS

#: appended to each beat's app: how many shards there are is told to its process, as deployments tell settings
SHARDS_BY_ENVIRONMENT = """
import os
app.conf.redbeat_shards = int(os.environ["SHARDS"]) or None
"""

#: from when until when something was so, UNIX seconds
Stretch = tuple[float, float]

_REFUSED = re.compile(
    r"CRITICAL/MainProcess\] beat: redbeat_shards .* celery redbeat reshard --to (\d+|none)\."
)

_STARTED = re.compile(r"\[([-0-9]+ [:0-9]+,[0-9]+): INFO/MainProcess\] beat: Starting")
_ACQUIRED = re.compile(r"beat: Acquired (?P<count>\d+) locks?: ")


class Sent(NamedTuple):
    """One message; `due` and `at`, when it was taken from the queue, are UNIX seconds."""

    entry: str
    due: float
    id: str
    at: float


class Taker:
    """Takes what is sent, all the time, and keeps it.

    Attributes:
        sent: the runs of entries.
        others: how often each task id came that is no entry's run: stored messages, and what was triggered.
    """

    def __init__(self, broker: Queue) -> None:
        self.sent: list[Sent] = []
        self.others: Counter[str] = Counter()
        self.error: Exception | None = None
        self._broker = broker
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Taker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._has_ended.set()
        self._thread.join()

    def newest(self) -> dict[str, float]:
        """Until when each entry has run."""
        found: dict[str, float] = {}
        for sent in [*self.sent]:
            found[sent.entry] = max(found.get(sent.entry, 0.0), sent.due)
        return found

    def _run(self) -> None:
        try:
            while not self._has_ended.wait(0.01):
                self._take()
            self._take()
        except Exception as exc:  # noqa: BLE001 - the test fails of it
            self.error = exc

    def _take(self) -> None:
        while taken := self._broker.take():
            at = time.time()
            for headers in taken:
                if headers.get("redbeat_entry") is None or headers.get("redbeat_manual"):
                    self.others[headers["id"]] += 1
                else:
                    due = datetime.fromisoformat(headers["redbeat_due"]).timestamp()
                    self.sent.append(Sent(headers["redbeat_entry"], due, headers["id"], at))


# -- the verdict


@dataclass
class Verdict(Tally):
    """What became of the runs of entries that are due once a second.

    Attributes:
        lost: seconds of an entry that have no message, between its first and its next one that is to come.
        strange: messages off an entry's beat, with an id that no layout gives, or doubled with another one.
        silence: for how many seconds nothing came of a due entry at most while a beat was there, and before
            which run that was. What a slow machine sends late, run by run, is no silence.
    """

    silence: tuple[float, str] = (0.0, "")

    def note(self, title: str, record_property: Any, *faults: Counter[str]) -> None:
        """Print it, and take it into the table of all tests with the number of faults."""
        self.kills = sum(found.total() for found in faults)
        print(*map(dict, faults), self)
        record_property(TALLY, [title, self.counts])

    def check(self, *, is_exactly_once: bool, most_silent: float = SILENT_SECONDS) -> None:
        """Fail if a promise was broken, or nothing came for longer than `most_silent` seconds."""
        assert self.runs, "nothing was sent"
        assert not [*self.lost, *self.strange, *self.disordered], self
        assert not (is_exactly_once and self.doubled), self
        assert self.silence[0] <= most_silent, self


def _judge_entry(
    verdict: Verdict, keys: set[str], runs: list[Sent], next_due: float, able: Sequence[Stretch]
) -> None:
    """Add the runs of one entry; `keys` are those that it had by any layout."""
    seen: dict[float, str] = {}
    latest = before = -1.0
    for run in runs:
        what = f"{run.entry} at {datetime.fromtimestamp(run.due, timezone.utc):%H:%M:%S.%f}"
        if run.due in seen:
            (verdict.doubled if seen[run.due] == run.id else verdict.strange).append(what)
            continue
        is_off_beat = abs((run.due - next_due) % 1.0 - 0.5) < 0.499
        if is_off_beat or run.id not in {id_of(key, run.due) for key in keys}:
            verdict.strange.append(what)
        if run.due < latest:
            verdict.disordered.append(what)
        seen[run.due] = run.id
        latest = max(latest, run.due)
        began = max(run.due, before)
        silent = sum(max(min(until, run.at) - max(since, began), 0.0) for since, until in able)
        verdict.silence = max(verdict.silence, (silent, what))
        before = run.at
    verdict.runs += len(seen)
    for earlier, later in pairwise([*sorted(seen), next_due]):
        if round(later - earlier) != 1:
            verdict.lost.append(f"{runs[0].entry}: {round(later - earlier) - 1} after {earlier}")


def id_of(key: str, due: float) -> str:
    return task_id_of(key, datetime.fromtimestamp(due, timezone.utc).isoformat(timespec="microseconds"))


# -- the entries


@dataclass
class Scene:
    """A schedule of one server or cluster, and the entries of it that are due once a second.

    Attributes:
        client: of the schedule; it decodes.
        settings: of the apps of beats and writers, with the broker.
        names: of the entries.
        layouts: how many shards there have been; None: none.
        prefix: of what all shards share.
    """

    client: Any
    settings: dict[str, Any]
    broker: Queue
    names: list[str] = field(default_factory=list)
    layouts: list[int | None] = field(default_factory=list)
    prefix: str = "redbeat:"

    def app(self, **settings: Any) -> Celery:
        """An app in this process."""
        app = Celery("writer", set_as_current=False)
        app.conf.update({"broker_url": self.broker.url, **self.settings, **settings})
        return app

    def save(self, count: int, **settings: Any) -> None:
        """Save so many entries that are due once a second, each at a moment of its own."""
        app = self.app(**settings)
        self.names = [f"entry-{number}" for number in range(count)]
        now = time.time()
        RedBeatSchedulerEntry.save_many(
            RedBeatSchedulerEntry(
                name,
                "echo",
                1.0,
                app=app,
                misfire="all",
                misfire_limit=1000,
                last_run_at=datetime.fromtimestamp(now + number / count, timezone.utc),
            )
            for number, name in enumerate(self.names)
        )

    @property
    def shards(self) -> int | None:
        """How many there are by now, as Redis says."""
        return int(self.client.hget(f"{self.prefix}:layout", "shards") or 0) or None

    def next_dues(self) -> dict[str, float]:
        """When each entry is due next; those that aren't where they belong are left out."""
        shards = self.shards
        found: dict[str, float] = {}
        for name in self.names:
            part = part_of(name.encode(), shards, self.prefix.encode()).decode()
            score = self.client.zscore(f"{part}:schedule", f"{part}{name}")
            if score is not None and self.client.exists(f"{part}{name}"):
                found[name] = score
        return found

    def await_runs_of(self, taker: Taker, at: float) -> None:
        """Wait until each entry has run for what was due then."""

        def has_come() -> bool:
            assert taker.error is None, taker.error
            newest = taker.newest()
            return all(newest.get(name, 0.0) >= at for name in self.names)

        eventually(has_come, 60, 0.1, "not every entry has run again")

    def judge(self, taker: Taker, crew: Crew) -> Verdict:
        """Return what became of the runs, when no beat runs any more.

        Arguments:
            crew: those of the beats that should have sent what others didn't.
        """
        assert taker.error is None, taker.error
        by_entry: defaultdict[str, list[Sent]] = defaultdict(list)
        for one in taker.sent:
            by_entry[one.entry].append(one)
        verdict = Verdict(strange=[*by_entry.keys() - set(self.names)])
        able, next_dues, base = crew.able(), self.next_dues(), self.prefix.encode()
        for name in self.names:
            if name not in next_dues or name not in by_entry:
                verdict.lost.append(f"{name}: gone, or never sent")
                continue
            keys = {part_of(name.encode(), shards, base).decode() + name for shards in self.layouts}
            _judge_entry(verdict, keys, by_entry[name], next_dues[name], able)
        return verdict


# -- the beats


class Crew:
    """Beats, and what befalls them.

    Attributes:
        beats: those that haven't been ended.
        ended: the others.
        faults: how often each has happened.
    """

    def __init__(self, chance: random.Random, start: Callable[[], Process], most: int) -> None:
        self.beats: list[Process] = []
        self.faults: Counter[str] = Counter()
        self._chance, self._start, self._most = chance, start, most
        self.ended: list[Process] = []
        self._paused: dict[Process, float] = {}
        self._spared: Process | None = None
        self._spares_until = 0.0
        self._well_since: dict[Process, float] = {}
        self._stretches: list[tuple[Process, float, float]] = []

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        for beat in self.beats:
            if error is not None:
                print(f"-- a beat, at the end:\n{beat.output()[-3000:]}")
            beat.kill()

    def start(self, count: int = 1) -> None:
        """Let as many come."""
        for _ in range(count):
            beat = self._start()
            self.beats.append(beat)
            self._well_since[beat] = time.time()

    def suffer(
        self,
        seconds: float,
        also: Callable[[], None] = lambda: None,
        until: Callable[[], bool] = lambda: True,
    ) -> None:
        """Let something befall one of them again and again; in between it calls `also`.

        Arguments:
            seconds: for how long at least.
            until: what is to have come true by the end; it is waited for with patience.
        """
        began = time.monotonic()
        while (elapsed := time.monotonic() - began) < seconds or not until():
            assert elapsed < seconds + patience(60), "what was to come of it hasn't"
            self._resume_some()
            self._befall()
            also()
            self.check()
            time.sleep(self._chance.uniform(0.05, 0.8))  # the instant of the fault, not a wait for something

    def _spare(self) -> Process | None:
        """One that is left alone for a while, if any: else nobody is there for long enough to be late."""
        if time.monotonic() >= self._spares_until:
            well = [beat for beat in self.beats if beat not in self._paused]
            self._spared = self._chance.choice([None, *well]) if well else None
            self._spares_until = time.monotonic() + self._chance.uniform(0, 8 * TAKEOVER_SECONDS)
        return self._spared

    def _befall(self) -> None:
        spared = self._spare()
        well = [beat for beat in self.beats if beat not in self._paused and beat is not spared]
        if len(self.beats) < self._most and (not well or self._chance.random() < 0.4):
            self.faults["start"] += 1
            self.start()
            return
        if not well:
            return
        beat = self._chance.choice(well)
        fault = self._chance.choice(["kill", "kill", "pause", "pause", "stop"])
        self.faults[fault] += 1
        if fault == "kill":
            self.kill(beat)
        elif fault == "stop":
            self.stop(beat)
        else:
            self._note_unwell(beat)
            beat.signal(signal.SIGSTOP)
            seconds = self._chance.choice([0.3, LOCK_SECONDS, 2 * LOCK_SECONDS]) * self._chance.uniform(
                0.5, 1.5
            )
            self._paused[beat] = time.monotonic() + seconds

    def _has_refused(self, beat: Process) -> bool:
        if "Acquir" in beat.output() or not _REFUSED.search(beat.output()):
            return False
        self.faults["refused"] += 1
        return True

    def kill(self, beat: Process) -> None:
        """As a crash would."""
        self._note_unwell(beat)
        assert beat.kill() == -signal.SIGKILL or self._has_refused(beat), beat.output()
        self._note_end(beat)

    def stop(self, *beats: Process) -> None:
        """As an operator would."""
        for beat in beats:
            self._note_unwell(beat)
            beat.signal(signal.SIGTERM)
        for beat in beats:
            eventually(partial(_has_ended, beat), interval=0.05, message=beat.output())
            code = beat.wait()
            is_well = code == 0 or (code == -signal.SIGTERM and "beat: Starting" not in beat.output())
            assert is_well or self._has_refused(beat), (code, beat.output())
            self._note_end(beat)

    def _note_unwell(self, beat: Process) -> None:
        since = self._well_since.pop(beat, None)
        if since is not None:
            self._stretches.append((beat, since, time.time()))

    def _note_end(self, beat: Process) -> None:
        self._note_unwell(beat)
        self.beats.remove(beat)
        self.ended.append(beat)
        self._paused.pop(beat, None)

    def _resume_some(self) -> None:
        for beat, until in [*self._paused.items()]:
            if time.monotonic() >= until:
                self._resume(beat)

    def _resume(self, beat: Process) -> None:
        del self._paused[beat]
        beat.signal(signal.SIGCONT)
        self._well_since[beat] = time.time()

    def recover(self) -> None:
        """Let those that are paused go on, and one be there at least."""
        for beat in [*self._paused]:
            self._resume(beat)
        if not self.beats:
            self.start()

    def check(self) -> None:
        """Fail if one has ended by itself, or has raised what it shouldn't.

        One that has been told how many shards there were a moment ago may have refused to start.
        """
        for beat in [*self.beats]:
            if not beat.is_running and self._has_refused(beat):
                self._note_end(beat)
                continue
            assert beat.is_running, beat.output()
            assert not has_traceback(beat.output()), beat.output()

    def end(self) -> None:
        """Stop all of them."""
        self.recover()
        self.check()
        self.stop(*self.beats)
        for beat in self.ended:
            assert not has_traceback(beat.output()), beat.output()

    def able(self, takeover_seconds: float = TAKEOVER_SECONDS) -> list[Stretch]:
        """When one of them was well that had been so for `takeover_seconds`, in order, no time twice.

        What nobody else leads it leads by then, as far as it depends on times that are promised.
        """
        stretches = self._stretches + [(*one, time.time()) for one in self._well_since.items()]
        well = sorted(
            (max(since, started) + takeover_seconds, until)
            for beat, since, until in stretches
            if (started := _started_at(beat)) is not None
        )
        able: list[Stretch] = []
        for since, until in well:
            begins = max(since, able[-1][1]) if able else since
            if begins < until:
                able.append((begins, until))
        return able

    @contextmanager
    def excused(self) -> Iterator[None]:
        """Within this block none of them is well, as something else befalls what all of them need."""
        for beat in [*self._well_since]:
            self._note_unwell(beat)
        try:
            yield
        finally:
            now = time.time()
            self._well_since |= {beat: now for beat in self.beats if beat not in self._paused}

    def outputs(self) -> list[str]:
        """What each has logged, those that have ended too."""
        return [beat.output() for beat in [*self.beats, *self.ended]]

    def count_acquired(self) -> int:
        """How many locks have been acquired by all of them together; a line may tell of several."""
        return sum(int(line["count"]) for output in self.outputs() for line in _ACQUIRED.finditer(output))


def _started_at(beat: Process) -> float | None:
    """When it has said that it starts, UNIX seconds; None: it hasn't."""
    line = _STARTED.search(beat.output())
    return line and datetime.strptime(line[1], "%Y-%m-%d %H:%M:%S,%f").timestamp()


def _has_ended(beat: Process) -> bool:
    if "Exception ignored" in beat.output():
        beat.signal(signal.SIGTERM)  # once more, as Python has lost the first in a destructor
    return not beat.is_running


def starter(
    directory: Path, scene: Scene, module: str = "module", shards: int | None = None, **settings: Any
) -> Callable[[], Process]:
    """Write an app for beats; return what starts one with as many shards as there are, or with `shards`."""
    directory.mkdir(exist_ok=True)
    settings = {"broker_url": scene.broker.url, **scene.settings, **settings}
    write_app(directory, module, extra=SHARDS_BY_ENVIRONMENT, **settings)

    def start() -> Process:
        return celery_beat(directory, module, env={"SHARDS": str(shards or scene.shards or 0)})

    return start
