"""Outages of Redis under a real beat with `retry_period` -1: it lives, and sends again soon after.

One server holds schedule and messages, and forgets nothing when it is killed; beat reaches it through a
proxy. One beat goes through all outages, one after the other. Each second has one message in the end.
"""

from __future__ import annotations

import re
import shlex
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis

from tests.faults.rounds import EVERY_SECOND, IS_LONG, check_every_second
from tests.support.apps import celery_beat, write_app
from tests.support.deadlines import patience
from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.proxy import Loss, Proxy
from tests.support.schedule import LOCK, SCHEDULE, messages
from tests.support.scripts import SCRIPTS
from tests.support.servers import Server

BACK = re.compile(r"Redis is back|Sending again|The broker is back")
OUTAGE_SECONDS = 5.0 if IS_LONG else 1.2
#: how soon after an outage beat is to send; the short form runs beside others on a busy machine
DEADLINE_SECONDS = 2.0 if IS_LONG else 4.0

LOG_LINE = re.compile(r"^\[.*?: (WARNING|ERROR|CRITICAL)/.*$", re.MULTILINE)


@dataclass
class Stage:
    """A beat, the way to its server, and the server."""

    server: Server
    way: Proxy
    beat: Process
    #: older messages are none of the checker's
    since: float = 0

    def count(self) -> int:
        with self.server.client() as broker:
            return int(broker.llen("celery"))

    def await_message(self) -> float:
        """Return how long it took until another message was sent."""
        began, before = time.monotonic(), self.count()
        eventually(lambda: self.count() > before, interval=0.01, message=self.beat.output())
        return time.monotonic() - began


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("outages")


@pytest.fixture(scope="module")
def disk() -> Iterator[Server]:
    """A server that comes back with all it had, and that a test may make slow."""
    options = {"enable_debug_command": True, "busy_reply_threshold": 50}
    options |= {"loading_process_events_interval_bytes": 1024, "appendonly": True}
    with Server(appendfsync="always", **options) as server:
        yield server


@pytest.fixture(scope="module")
def stages(disk: Server, folder: Path) -> Iterator[Stage]:
    with Proxy((disk.host, disk.port)) as way:
        urls = [way.url(disk.url(db)) for db in (0, 1)]
        settings = {"redbeat_redis_url": urls[1], "redbeat_redis_options": {"retry_period": -1}}
        write_app(folder, "module", urls[0], beat_schedule=EVERY_SECOND, **settings)
        with celery_beat(folder, "module") as beat:
            beat.wait_for("Sending due task")
            yield Stage(disk, way, beat)


@pytest.fixture
def stage(stages: Stage, folder: Path, request: pytest.FixtureRequest) -> Iterator[Stage]:
    """The beat in good order: an outage that ends it is one test's fault only."""
    failed = request.session.testsfailed
    if not stages.beat.is_running:
        stages.beat = celery_beat(folder, "module")
        stages.await_message()
        stages.since = time.time()
    yield stages
    stages.way.heal()
    if request.session.testsfailed > failed:  # which is that test's fault, and not of those after it
        stages.await_message()
        stages.since = time.time()


Outage = Callable[[Stage], AbstractContextManager[None]]


@contextmanager
def killed(stage: Stage) -> Iterator[None]:
    stage.server.kill()
    yield
    stage.server.restart()


@contextmanager
def paused(stage: Stage) -> Iterator[None]:
    """The server's kernel takes what is sent, and nobody answers."""
    stage.server.process.signal(signal.SIGSTOP)
    yield
    stage.server.process.signal(signal.SIGCONT)


@contextmanager
def loading(stage: Stage) -> Iterator[None]:
    with stage.server.client(socket_timeout=90) as admin, ThreadPoolExecutor(1) as pool:
        fillers = {f"filler-{number}": "x" * 100 for number in range(1000)}
        admin.mset(fillers)
        admin.config_set("key-load-delay", int(OUTAGE_SECONDS * 1e6 / len(fillers)))
        reloaded = pool.submit(admin.execute_command, "DEBUG", "RELOAD")
        yield
        reloaded.result(60)
        admin.config_set("key-load-delay", 0)
        admin.delete(*fillers)


@contextmanager
def busy(stage: Stage) -> Iterator[None]:
    def run_for_ever() -> None:
        with stage.server.client(socket_timeout=90) as caller, suppress(redis.ResponseError):
            caller.eval("while true do end", 0)

    with stage.server.client() as admin, ThreadPoolExecutor(1) as pool:
        pool.submit(run_for_ever)
        yield
        admin.script_kill()


#: what befalls the way to the server, and how that ends
ON_THE_WAY: dict[str, tuple[list[str], list[str]]] = {
    "refused": (["refuse", "drop"], ["accept"]),
    # packets are dropped for a while, and then repeated
    "withheld": (["freeze"], ["thaw"]),
    # what was sent meanwhile is lost, and its sender told
    "withheld and reset": (["freeze"], ["drop", "thaw"]),
    # connections are half open: what is sent on them is lost, and nobody told; new ones are well
    "silenced": (["silence"], []),
}
THROW_OUT = "CLIENT KILL TYPE normal SKIPME yes"
#: what an administrator does to the server, and how that ends
BY_COMMANDS: dict[str, tuple[list[str], list[str]]] = {
    "scripts flushed": (["SCRIPT FLUSH"], []),
    "clients killed": ([THROW_OUT, "CLIENT KILL TYPE pubsub"], []),
    "read only": (["REPLICAOF 127.0.0.1 1"], ["REPLICAOF NO ONE"]),
    "full": (["CONFIG SET maxmemory 1"], ["CONFIG SET maxmemory 0"]),
    "guarded": (["CONFIG SET requirepass other", THROW_OUT], ["CONFIG SET requirepass ''"]),
    "forbidden": (
        ["ACL SETUSER admin on nopass ~* &* +@all", "AUTH admin any", "ACL SETUSER default -@all"],
        ["ACL SETUSER default +@all"],
    ),
}


def on_the_way(name: str) -> Outage:
    @contextmanager
    def outage(stage: Stage) -> Iterator[None]:
        begin, end = ON_THE_WAY[name]
        for step in begin:
            getattr(stage.way, step)()
        yield
        for step in end:
            getattr(stage.way, step)()

    return outage


def by_commands(name: str) -> Outage:
    @contextmanager
    def outage(stage: Stage) -> Iterator[None]:
        begin, end = BY_COMMANDS[name]
        with stage.server.client() as admin:
            for command in begin:
                admin.execute_command(*shlex.split(command))
            yield
            for command in end:
                admin.execute_command(*shlex.split(command))

    return outage


OUTAGES: dict[str, Outage] = {
    **{outage.__name__: outage for outage in (killed, paused, loading, busy)},
    **{name: on_the_way(name) for name in ON_THE_WAY},
    **{name: by_commands(name) for name in BY_COMMANDS},
}
CASES = [(name, OUTAGE_SECONDS) for name in OUTAGES]
if IS_LONG:
    CASES += [(name, 30.0) for name in ("killed", "withheld", "guarded")]
LOSSES = ["request", "reply"] if IS_LONG else ["reply"]


@pytest.mark.slow
@pytest.mark.few_cases(6)
@pytest.mark.parametrize(("outage", "seconds"), CASES)
def test_beat_outlives_an_outage_and_sends_soon_after(stage: Stage, outage: str, seconds: float) -> None:
    said = len(stage.beat.output())
    with OUTAGES[outage](stage):
        time.sleep(seconds)  # that is the outage
    took = stage.await_message()
    lines: list[str] = []
    recoveries: list[str] = []

    def is_each_told_to_be_over() -> bool:
        told = [line.group() for line in LOG_LINE.finditer(stage.beat.output()[said:])]
        recoveries[:] = [line for line in told if BACK.search(line)]  # at a level that Celery shows
        # a late answer is told of when it has come, and so is over already
        lines[:] = [line for line in told if line not in recoveries and "answered only after" not in line]
        return len(recoveries) == len(lines)

    eventually(is_each_told_to_be_over, message=stage.beat.output()[said:])
    news = stage.beat.output()[said:]
    print(f"{outage}, {seconds} s: sending again {took:.2f} s after it", *lines, *recoveries, sep="\n")
    assert stage.beat.is_running, news
    assert took <= patience(DEADLINE_SECONDS)
    with stage.server.client() as broker:
        check_every_second(broker, stage.since)
    # schedule and broker are noticed to be away, and back, each by itself: the server is both
    about_broker = [line for line in lines if "The broker" in line]
    assert len(about_broker) <= 1, lines
    assert len(lines) - len(about_broker) <= 1, lines
    assert "has done nothing for" not in news
    assert "Traceback" not in news
    with stage.server.client(db=1) as client:
        assert client.pttl(LOCK) > 0


def push_away(stage: Stage) -> None:
    """Let beat wait for so long that it looks at the schedule meanwhile."""
    with stage.server.client(db=1) as client:
        client.zadd(SCHEDULE, {"redbeat:every-second": time.time() + 3.3})


def lose_lock(stage: Stage) -> None:
    """Let beat take its lock back, and store its statics again."""
    with stage.server.client(db=1) as client:
        client.delete(LOCK)


CALLS: dict[str, tuple[bytes, Callable[[Stage], None] | None]] = {
    "claim": (SCRIPTS["fetch_due"].sha1.encode(), None),
    "commit": (SCRIPTS["commit_runs"].sha1.encode(), None),
    "renewal by the heartbeat": (SCRIPTS["renew_lock"].sha1.encode(), None),
    "look": (SCRIPTS["read_head"].sha1.encode(), push_away),
    "names of the statics": (b"SMEMBERS", lose_lock),
    "save of the statics": (SCRIPTS["read_entries"].sha1.encode(), lose_lock),
}


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES)
def test_a_connection_cut_amid_any_call_costs_nothing(stage: Stage, loss: Loss) -> None:
    said = len(stage.beat.output())
    for name, (pattern, prepare) in CALLS.items():
        cut = stage.way.cut_on(pattern, loss)
        if prepare is not None:
            prepare(stage)
        assert cut.wait(patience()), name
        took = stage.await_message()
        print(f"cut amid {name}, {loss} lost: the next message {took:.2f} s later")
        assert took <= patience(DEADLINE_SECONDS) + (3.3 if prepare is push_away else 0)
    news = stage.beat.output()[said:]
    with stage.server.client() as broker:
        dues = [message["headers"]["redbeat_due"] for message in messages(broker)]
    stage.since = time.time()  # the entry was moved
    assert stage.beat.is_running, news
    assert len(dues) == len(set(dues))
    lines = [line.group() for line in LOG_LINE.finditer(news)]
    assert all("was gone and is taken back" in line for line in lines), lines
    assert "Traceback" not in news


@pytest.mark.slow
@pytest.mark.parametrize("outage", ["killed", "forbidden"] if IS_LONG else ["killed"])
def test_without_a_retry_period_beat_ends_with_a_sentence(
    disk: Server, stages: Stage, tmp_path: Path, outage: str
) -> None:
    settings = {"redbeat_key_prefix": "other:", "beat_schedule": EVERY_SECOND}
    write_app(tmp_path, "module", disk.url(0), redbeat_redis_url=disk.url(1), **settings)
    with celery_beat(tmp_path, "module") as beat:
        beat.wait_for("Sending due task")
        with OUTAGES[outage](stages):
            assert beat.wait() not in (0, None)
    critical = [line for line in LOG_LINE.finditer(beat.output()) if line[1] == "CRITICAL"]
    assert critical, beat.output()
    assert f"Redis at {disk.url(1)}" in critical[0].group()
    assert "redis/connection.py" not in beat.output()
