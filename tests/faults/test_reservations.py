"""Runs that are reserved and never published hold no later run back: their entries are silent for as long as
those without an overlap policy.

Judged by the tasks' own log. A run is reserved before its message leaves where beat can't decide and send in
one step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.policy.policy import Overlap
from tests.faults.bursts import Layout
from tests.support.apps import celery_beat, write_app
from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.proxy import Proxy
from tests.support.tracked import start_worker
from tests.support.worklog import WorkLog, tasks_source

AWAY_SECONDS = 6.0
KILLS = 4
#: how much longer an entry with a policy may be silent: less than the minute that reservations are kept
MORE_SECONDS = 25.0
NAMES: dict[Overlap, list[str]] = {
    policy: [f"{policy}-{number}" for number in range(5)]
    for policy in ("allow", "skip", "buffer_one", "replace")
}

#: ends beat by SIGKILL when runs are reserved and not yet published, once for each file "kill"; and lets
#: Celery build each message by itself
BEAT = """
import os, signal
from celery.signals import before_task_publish
from redbeat.beat.recorder import Recorder

reserve = Recorder.reserve

def reserve_and_die(self, batch, runs, **options):
    found = reserve(self, batch, runs, **options)
    if batch.reserved and os.path.exists("kill"):
        os.unlink("kill")
        os.kill(os.getpid(), signal.SIGKILL)
    return found

Recorder.reserve = reserve_and_die

@before_task_publish.connect
def look(**_):
    pass
"""


class Site:
    """A beat that reaches the broker through `proxy`, and a worker that reaches it directly."""

    def __init__(self, layout: Layout, folder: Path, proxy: Proxy, stack: ExitStack) -> None:
        self.proxy = proxy
        self._folder = folder
        self._stack = stack
        settings = {
            "redbeat_redis_url": layout.server.url(layout.db),
            "redbeat_redis_options": {"retry_period": -1},
            "redbeat_takeover_after": 5,
            "redbeat_lock_lost": "standby",
            **layout.settings,
        }
        lease = "import redbeat.schedulers\nredbeat.schedulers.LEASE_SECONDS = 3\n"
        write_app(folder, "beat", proxy.url(layout.queue.url), extra=BEAT + lease, **settings)
        tasks = tasks_source(0.3, 60, {"succeed": 1}) + "\nimport redbeat\nredbeat.track_runs(app)\n"
        gate = "from redbeat.runs import publishing\npublishing.PATIENCE_SECONDS = 20\n"
        write_app(folder, "tasks", layout.queue.url, extra=tasks + gate, **settings)
        app = layout.make_app(**settings)
        Entry.save_many(
            [
                Entry(name, "tasks.work", 1.0, args=[name], overlap=policy, app=app)
                for policy, names in NAMES.items()
                for name in names
            ]
        )
        stack.enter_context(start_worker(folder, "tasks", "prefork", 6))
        self.beat = self._start_beat()
        self.wait_for_runs(time.time(), NAMES)

    def _start_beat(self) -> Process:
        return self._stack.enter_context(celery_beat(self._folder, "beat"))

    def wait_for_runs(self, since: float, policies: Iterable[str]) -> None:
        """Wait until each entry with one of these policies has run."""
        wanted = {name for policy in policies for name in NAMES[policy]}
        eventually(
            lambda: wanted <= {one.entry for one in self.log.executions if one.began > since}, timeout=120
        )

    @property
    def log(self) -> WorkLog:
        return WorkLog.read(self._folder)

    def lose_broker(self) -> None:
        self.proxy.refuse()
        self.proxy.drop()
        time.sleep(AWAY_SECONDS)
        self.proxy.heal()

    def kill_beats(self) -> None:
        for _ in range(KILLS):
            self._folder.joinpath("kill").touch()
            eventually(lambda: not self.beat.is_running, timeout=60)
            killed_at = time.time()
            self.beat = self._start_beat()
            self.wait_for_runs(killed_at, ["allow"])

    def silence(self) -> dict[str, float]:
        """For how long an entry of each policy was silent at most, seconds."""
        began: dict[str, list[float]] = {}
        for one in self.log.executions:
            began.setdefault(one.entry, []).append(one.began)
        gaps = {name: max(later - earlier for earlier, later in pairwise(at)) for name, at in began.items()}
        return {policy: round(max(gaps[name] for name in names), 1) for policy, names in NAMES.items()}


@pytest.fixture
def site(request: pytest.FixtureRequest, layout: Layout, tmp_path: Path) -> Iterator[Site]:
    url = urlsplit(layout.queue.url)
    assert url.hostname
    assert url.port
    with ExitStack() as stack:
        yield Site(layout, tmp_path, stack.enter_context(Proxy((url.hostname, url.port))), stack)


def check(site: Site, fault: Callable[[], None]) -> None:
    fault()
    site.wait_for_runs(time.time(), NAMES)
    silence = site.silence()
    print(f"silent for at most, seconds: {silence}")
    assert max(silence.values()) < silence["allow"] + MORE_SECONDS, silence
    overlaps = [pair for pair in site.log.overlaps() if not pair[0].entry.startswith("allow")]
    assert overlaps == []


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["two servers", "rabbitmq"], indirect=True)
def test_entries_with_an_overlap_policy_are_silent_no_longer_than_others_when_the_broker_was_away(
    site: Site,
) -> None:
    check(site, site.lose_broker)


@pytest.mark.slow
@pytest.mark.few_cases(2)
@pytest.mark.parametrize("layout", ["one db", "two servers", "no lock", "rabbitmq"], indirect=True)
def test_entries_with_an_overlap_policy_are_silent_no_longer_than_others_when_beats_were_killed(
    site: Site,
) -> None:
    check(site, site.kill_beats)
