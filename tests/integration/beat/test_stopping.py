"""Signals that end a beat, whatever it is doing at that moment."""

from __future__ import annotations

import importlib.util
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from redbeat import RedBeatScheduler
from redbeat.connection.retry import RetryingConnection
from redbeat.errors import StoreUnavailable
from redbeat.keys import Keys
from redbeat.leadership.lock import TAKEN_MS, LeaderLock
from redbeat.store import scripts as lua
from redbeat.store.locks import LockKey
from redbeat.store.records import Commit, Fence, LockStatus
from redbeat.store.store import Store
from tests.conftest import MakeApp
from tests.support.apps import (
    GREENLETS,
    celery_beat,
    celery_worker,
    patched_beat,
    run_beat,
    stop_worker,
    write_app,
)
from tests.support.deadlines import patience
from tests.support.logs import has_traceback
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from tests.support.schedule import (
    LOCK,
    SELDOM,
    calls_of,
    counts_of,
    expected_id,
    field,
    messages,
    score_of,
    server_now,
    write_raw,
)
from tests.support.servers import Server
from tests.support.spikes import LOOKAHEAD, seconds_after, write_prepared_spike

KEYS = Keys()

STATIC = {"often": {"task": "echo", "schedule": 0.2}}
ENTRIES = 2_000
#: entries that fall due at one instant
SPIKE = 6_000


def write_burst(client: redis.Redis, every: float = 1.0) -> None:
    """Entries that are due all the time, at fractions of the second that are RedBeat's own."""
    start = int(server_now(client)) + 0.5
    with client.pipeline(transaction=False) as pipeline:
        for number in range(ENTRIES):
            interval = {"__type__": "interval", "every": every}
            write_raw(pipeline, f"entry-{number}", schedule=interval, score=start + number / (4 * ENTRIES))
        pipeline.execute()


def test_sigterm_ends_a_leader_whose_redis_is_away_for_ever(
    second: Server, server: Server, tmp_path: Path
) -> None:
    options = {"retry_period": -1}
    url = second.url(1)
    with run_beat(
        tmp_path, server.url(0), redbeat_redis_url=url, redbeat_redis_options=options, beat_schedule=STATIC
    ) as beat:
        beat.wait_for("Sending due task often")
        second.kill()
        beat.wait_for("Retrying Redis connection in")
        took = beat.seconds_to_end()
        print(f"it ended in {took:.2f} s")
        assert took < patience(5)


def test_two_sigterms_a_millisecond_apart_leave_no_lock(
    server: Server, client: redis.Redis, broker: redis.Redis, tmp_path: Path
) -> None:
    write_app(tmp_path, "module", server.url(0), redbeat_redis_url=server.url(1))
    write_burst(client)
    for _ in range(3):
        sent = broker.llen("celery")
        with celery_beat(tmp_path, "module") as beat:
            eventually(lambda sent=sent: broker.llen("celery") > sent)
            assert client.get(LOCK)
            beat.signal(signal.SIGTERM)
            time.sleep(0.001)  # what this test is about
            beat.signal(signal.SIGTERM)
            beat.wait()
            assert client.get(LOCK) is None, beat.output()


@pytest.mark.long_form
def test_stops_at_random_moments_of_a_burst_double_and_lose_nothing(
    server: Server, client: redis.Redis, broker: redis.Redis, chance: random.Random, tmp_path: Path
) -> None:
    write_app(tmp_path, "module", server.url(0), redbeat_redis_url=server.url(1))
    write_burst(client)
    stops: list[Any] = []
    for _ in range(6):
        with celery_beat(tmp_path, "module") as beat:
            wanted = broker.llen("celery") + chance.randint(1, ENTRIES)
            eventually(lambda wanted=wanted: broker.llen("celery") >= wanted, interval=0.0005)
            beat.signal(signal.SIGTERM)
            assert beat.wait() == 0, beat.output()
            assert client.get(LOCK) is None, beat.output()
            stops.append(wanted)
    sent = [(run["headers"]["redbeat_entry"], run["headers"]["redbeat_due"]) for run in messages(broker)]
    print(f"{len(sent)} messages, stopped at {stops}")
    doubled = [run for run, times in Counter(sent).items() if times > 1]
    assert not doubled, doubled[:10]
    by_entry = Counter(name for name, _ in sent)
    recorded = {name: field(client, name, "meta")["total_run_count"] for name in by_entry}
    wrong = {name: (times, recorded[name]) for name, times in by_entry.items() if times != recorded[name]}
    assert not wrong, f"messages and recorded runs: {list(wrong.items())[:10]}"
    assert len(by_entry) == ENTRIES


@pytest.fixture
def way(server: Server) -> Iterator[Proxy]:
    with Proxy((server.host, server.port)) as proxy:
        yield proxy


@pytest.mark.long_form
@pytest.mark.parametrize("pool", [["-P", "solo"], ["-P", "prefork", "-c", "1"]], ids=lambda pool: pool[1])
def test_a_worker_whose_beat_is_amid_a_prepared_spike_doubles_and_loses_nothing_when_it_is_stopped(
    server: Server, client: redis.Redis, broker: redis.Redis, way: Proxy, tmp_path: Path, pool: list[str]
) -> None:
    settings = {"redbeat_redis_url": way.url(server.url(1)), "redbeat_lookahead": LOOKAHEAD}
    write_app(tmp_path, "module", server.url(0), **settings)
    embedded = ["-B", "--scheduler", "redbeat.RedBeatScheduler", "-s", str(tmp_path / "none"), *pool]
    with celery_worker(tmp_path, "module", *embedded) as worker:
        worker.wait_for("beat: Acquired lock")
        spike = write_prepared_spike(client, 3, SPIKE, schedule=SELDOM, options={"queue": "kept"})
        way.delay_seconds = 0.1  # so that they haven't all left when the worker tells its beat of the signal
        eventually(lambda: broker.llen("kept"), interval=0.0005)
        stop_worker(worker)
        assert client.get(LOCK) is None, f"it lives {client.pttl(LOCK)} ms more:\n{worker.output()}"
    sent = broker.llen("kept")
    print(f"{sent} of {SPIKE} had left")
    assert 0 < sent < SPIKE
    assert counts_of(client, spike.names) == {1: sent, 0: SPIKE - sent}
    way.heal()
    with celery_beat(tmp_path, "module"):
        eventually(lambda: broker.llen("kept") >= SPIKE)
        eventually(lambda: counts_of(client, spike.names) == {1: SPIKE})
    ids = Counter(message["headers"]["id"] for message in messages(broker, "kept"))
    assert ids == dict.fromkeys((expected_id(name, spike.due) for name in spike.names), 1)
    assert min(seconds_after(client, spike.names, spike.due)) >= 0


# -- no lock is left behind, whatever was on its way to Redis


def test_a_commit_that_arrives_after_the_release_does_nothing(
    scheduler: RedBeatScheduler, client: redis.Redis
) -> None:
    write_raw(client, "entry", score=1)
    fence = scheduler.lock.fence
    [claimed] = scheduler.store.claim_due(fence, 1).rows
    scheduler.close()
    assert client.get(LOCK) is None
    late = lua.commit_runs(client, KEYS, fence, [Commit(claimed, "-1")])
    assert late.status is LockStatus.LOST
    assert client.get(LOCK) is None
    assert score_of(client, "entry") == 1


LATE: dict[str, Callable[[Store, Fence], Any]] = {
    "renewal": lambda store, fence: store.renew_lock(fence),
    "claim": lambda store, fence: store.claim_due(fence, 1),
    "taking": lambda store, fence: LockKey(store, LOCK).take(fence.token, TAKEN_MS, fence.mark),
}


@pytest.mark.parametrize("send", LATE.values(), ids=LATE)
@pytest.mark.parametrize("is_taken", [True, False], ids=["taken", "free"])
def test_commands_that_arrive_after_the_release_leave_the_lock_free(
    make_app: MakeApp,
    server: Server,
    client: redis.Redis,
    way: Proxy,
    send: Callable[[Store, Fence], Any],
    is_taken: bool,
) -> None:
    """The second would give a lock that the first had taken its full time to live."""
    app = make_app(redbeat_redis_url=way.url(server.url(1)))
    lock = LeaderLock(Store(make_app()), LOCK, timeout_seconds=600)
    assert lock.acquire()
    with Store.hasty(app, 0.2) as one, Store.hasty(app, 0.2) as other:
        for store in (one, other):
            send(store, lock.fence)
        way.freeze()
        for store in (one, other):
            with pytest.raises(StoreUnavailable):
                send(store, lock.fence)
    if not is_taken:  # as when the command that takes it is the late one
        client.delete(LOCK)
    assert lock.give_up(lock.fence.mark) is is_taken
    calls = calls_of(client, "evalsha")
    way.thaw()
    eventually(lambda: calls_of(client, "evalsha") == calls + 2)
    assert client.get(LOCK) is None


def test_who_has_released_the_lock_takes_it_again(make_app: MakeApp, client: redis.Redis) -> None:
    """Only a command that was sent before that doesn't: its token is another one."""
    scheduler = RedBeatScheduler(make_app())
    for _ in range(2):
        assert scheduler.stand_for_leader()
        scheduler.close()
    assert 0 < client.pttl(KEYS.released) <= 60_000
    assert scheduler.stand_for_leader()
    scheduler.lock.release()
    assert scheduler.stand_for_leader()
    scheduler.close()
    assert client.get(LOCK) is None


def test_a_lock_that_is_taken_and_not_renewed_soon_ends(
    make_app: MakeApp, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    leadership = LeaderLock(Store(make_app()), LOCK, timeout_seconds=600)
    with monkeypatch.context() as patch:
        patch.setattr(Store, "renew_lock", lambda _store, _fence: None)
        assert leadership.acquire()
    assert client.pttl(LOCK) <= TAKEN_MS
    leadership.release()
    assert leadership.acquire()
    assert client.pttl(LOCK) > 500_000


def test_a_lock_whose_taking_was_not_answered_is_released(
    make_app: MakeApp, server: Server, client: redis.Redis, way: Proxy
) -> None:
    once = {"retry": Retry(NoBackoff(), 0), "retry_on_error": []}  # else the client asks again
    app = make_app(redbeat_redis_url=way.url(server.url(1)), redbeat_redis_options=once)
    cut = way.cut_on(b"redbeat:3:", "reply")
    scheduler = RedBeatScheduler(app)
    with pytest.raises(StoreUnavailable):
        scheduler.stand_for_leader()
    assert cut.is_set()
    assert client.get(LOCK)
    scheduler.close()
    assert client.get(LOCK) is None


def interrupt(patch: pytest.MonkeyPatch) -> None:
    """Let a signal's SystemExit come when the next command was sent, before its reply is read."""
    parse_response = redis.Redis.parse_response

    def interrupted(*_args: Any, **_kwargs: Any) -> None:
        patch.setattr(redis.Redis, "parse_response", parse_response)
        raise SystemExit

    patch.setattr(redis.Redis, "parse_response", interrupted)


def test_a_claim_that_was_interrupted_before_its_reply_does_not_keep_the_lock_from_being_released(
    make_app: MakeApp, server: Server, client: redis.Redis, way: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = RedBeatScheduler(make_app(redbeat_redis_url=way.url(server.url(1))))
    scheduler.stand_for_leader()
    client.script_flush()  # so the script that releases has to be sent
    scheduler.tick()
    way.delay_seconds = 0.1  # the reply comes when the next command is sent already
    interrupt(monkeypatch)
    with pytest.raises(SystemExit):
        scheduler.tick()
    scheduler.close()
    assert client.get(LOCK) is None


CLIENTS: dict[str, Callable[[str], Any]] = {
    "pool": redis.Redis.from_url,
    "blocking pool": lambda url: redis.Redis(connection_pool=redis.BlockingConnectionPool.from_url(url)),
    "one connection": lambda url: redis.Redis(
        connection_pool=redis.ConnectionPool.from_url(url), single_connection_client=True
    ),
    "retrying": lambda url: RetryingConnection(1, redis.Redis.from_url(url)),
}
COMMANDS: dict[str, Callable[[Any], Any]] = {
    "command": lambda client: client.echo("before"),
    "pipeline": lambda client: client.pipeline(transaction=False).echo("before").execute(),
}


@pytest.mark.few_cases(4)
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
@pytest.mark.parametrize("connect", CLIENTS.values(), ids=CLIENTS)
def test_a_reply_that_was_not_read_is_not_taken_for_that_of_the_next_command(
    make_app: MakeApp,
    server: Server,
    way: Proxy,
    monkeypatch: pytest.MonkeyPatch,
    connect: Callable[[str], Any],
    command: Callable[[Any], Any],
) -> None:
    store = Store(make_app(), connect(way.url(server.url(1))))
    store.look()
    way.delay_seconds = 0.1
    interrupt(monkeypatch)
    with pytest.raises(SystemExit):
        store.ask(command)
    assert store.ask(lambda client: client.echo("mine")) in ("mine", b"mine")


@pytest.mark.few_cases(1)
@pytest.mark.parametrize("moment", [0.0, 0.1, 0.2, 0.3])
def test_four_sigterms_to_a_beat_whose_redis_is_far_away_leave_no_lock(
    server: Server, client: redis.Redis, way: Proxy, tmp_path: Path, moment: float
) -> None:
    way.delay_seconds = 0.05  # each way
    with run_beat(
        tmp_path, server.url(0), redbeat_redis_url=way.url(server.url(1)), beat_schedule=STATIC
    ) as beat:
        beat.wait_for("Sending due task often")
        assert client.get(LOCK)
        time.sleep(moment)  # what this test is about, like the pauses between the signals
        for _ in range(4):
            beat.signal(signal.SIGTERM)
            time.sleep(0.06)
        beat.wait()  # not for 0: the last of them may come when Python has no handler any more
        assert client.get(LOCK) is None, beat.output()


@pytest.mark.few_cases(1)
@pytest.mark.parametrize("moment", [0.0, 0.05, 0.1])
def test_a_sigterm_to_a_beat_that_is_taking_the_lock_leaves_none(
    server: Server, client: redis.Redis, way: Proxy, tmp_path: Path, moment: float
) -> None:
    way.delay_seconds = 0.05
    with run_beat(
        tmp_path, server.url(0), redbeat_redis_url=way.url(server.url(1)), beat_schedule=STATIC
    ) as beat:
        beat.wait_for("beat: Acquiring lock...")
        eventually(lambda: client.get(LOCK), interval=0.001)
        time.sleep(moment)
        beat.signal(signal.SIGTERM)
        assert beat.wait() == 0, beat.output()
        assert client.get(LOCK) is None, beat.output()


SWALLOW = """
from celery.signals import before_task_publish

@before_task_publish.connect
def swallow(**kwargs):
    print("the handler begins")
    try:
        time.sleep(2)
    except BaseException:
        print("the handler has swallowed it")
"""


def test_a_sigterm_whose_exit_is_swallowed_by_a_handler_ends_beat_all_the_same(
    server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    write_raw(client, "hourly")
    with run_beat(tmp_path, server.url(0), extra=SWALLOW, redbeat_redis_url=server.url(1)) as beat:
        beat.wait_for("the handler begins")
        beat.signal(signal.SIGTERM)
        assert beat.wait() == 0, beat.output()
        assert "has swallowed it" in beat.output()
        assert client.get(LOCK) is None, beat.output()


GARBAGE = """
from redbeat import RedBeatScheduler

class Garbage:
    def __del__(self):
        print("an object goes")
        # a minute, so that the signal comes amid it on any machine; not in one piece, as it may be given to
        # another thread, and its handler is called only when a sleep of this one ends
        for _ in range(6000):
            time.sleep(0.01)

litter = [Garbage()]

class Littering(RedBeatScheduler):
    def tick(self, *args, **kwargs):
        seconds = super().tick(*args, **kwargs)
        litter.clear()  # Python shows what is raised in its __del__, and goes on
        return seconds
"""


def test_a_sigterm_whose_exit_is_lost_between_two_ticks_ends_beat_all_the_same(
    server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    settings = {"redbeat_redis_url": server.url(1), "beat_schedule": STATIC}
    write_app(tmp_path, "module", server.url(0), extra=GARBAGE, **settings)
    with celery_beat(tmp_path, "module", scheduler="module.Littering") as beat:
        beat.wait_for("an object goes")
        beat.signal(signal.SIGTERM)
        assert beat.wait() == 0, beat.output()
        assert "<function Garbage.__del__" in beat.output(), beat.output()
        assert beat.output().count("beat: Acquired lock") == 1, beat.output()
        assert client.get(LOCK) is None, beat.output()


# -- a beat whose threads are gevent's or eventlet's ends as any other


@pytest.mark.few_cases(2)
@pytest.mark.parametrize("every", [0.5, 3600], ids=["busy", "idle"])
@pytest.mark.parametrize("library", GREENLETS)
def test_it_ends_on_sigterm_without_a_traceback_and_releases_the_lock(
    server: Server, tmp_path: Path, library: str, every: float
) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} isn't installed")
    schedule = {"often": {"task": "echo", "schedule": every}}
    write_app(tmp_path, "module", server.url(0), redbeat_redis_url=server.url(1), beat_schedule=schedule)
    with server.client(db=1) as client, patched_beat(tmp_path, "module", library) as beat:
        beat.wait_for("Sending due task often" if every < 1 else "beat: Acquired lock")
        eventually(lambda: _is_idle(client))
        beat.signal(signal.SIGTERM)
        assert beat.wait() == 0, beat.output()
        assert "beat: Releasing lock" in beat.output()
        assert not has_traceback(beat.output()), beat.output()
        assert client.get(LOCK) is None, f"it lives {client.pttl(LOCK)} ms more:\n{beat.output()}"


LOCKED = """
import threading
from redbeat import RedBeatScheduler, schedulers

# the end of its patience has no part in this, however slow the machine is
hold_interrupts = schedulers.hold_interrupts
schedulers.hold_interrupts = lambda seconds=60.0, **options: hold_interrupts(seconds, **options)

class Locking(RedBeatScheduler):
    def _send_due(self):
        lock, until = threading.RLock(), time.monotonic() + 0.15
        print("it takes a lock again and again")
        while time.monotonic() < until:
            with lock:
                pass
        # whether one may take it that isn't its holder any more
        print("the lock is free" if lock._block.acquire(blocking=False) else "the lock stays locked")
        lock._block.release()
        return super()._send_due()
"""


@pytest.mark.parametrize("library", GREENLETS)
def test_a_sigterm_amid_a_tick_leaves_no_lock_of_greenlets_locked(
    server: Server, client: redis.Redis, tmp_path: Path, library: str
) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} isn't installed")
    settings = {"redbeat_redis_url": server.url(1), "beat_schedule": STATIC}
    write_app(tmp_path, "module", server.url(0), extra=LOCKED, **settings)
    with patched_beat(tmp_path, "module", library, "module.Locking") as beat:
        beat.wait_for("it takes a lock again and again")
        eventually(lambda: client.get(LOCK), interval=0.001)
        beat.signal(signal.SIGTERM)
        assert beat.wait() == 0, beat.output()
        shown = beat.output()  # a tick that the handler had interrupted wouldn't tell of its lock
        assert shown.count("again and again") == shown.count("the lock is free"), shown
        assert client.get(LOCK) is None, shown


def _is_idle(client: redis.Redis) -> bool:
    """Whether the beat listens: it waits."""
    return bool(client.pubsub_numsub("redbeat::wake")[0][1])
