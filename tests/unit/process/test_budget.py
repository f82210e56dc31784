"""The budget of processor time: who goes beyond it is interrupted, and nobody else is."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from redbeat.errors import EntryError, EntryTooExpensive
from redbeat.process import budget
from redbeat.process.budget import limited, limited_steps, limited_twice, postpone_signals, what_is_computed
from tests.support.deadlines import patience
from tests.support.polling import eventually


def spin() -> None:
    while True:
        pass


def compute(seconds: float) -> float:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass
    return seconds


@contextlib.contextmanager
def logging_by(handler: logging.Handler) -> Iterator[logging.Logger]:
    logger = logging.getLogger("tests.budget")
    logger.addHandler(handler)
    try:
        yield logger
    finally:
        logger.removeHandler(handler)


@contextlib.contextmanager
def signals_handled_by(handle: Callable[[int, Any], object], *numbers: int) -> Iterator[None]:
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def started(count: int, work: Callable[[], object]) -> list[threading.Thread]:
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads


def printed_by(code: str) -> str:
    """What a process of its own prints."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience(60), check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_call_that_never_returns_is_interrupted() -> None:
    began = time.process_time()
    with pytest.raises(EntryTooExpensive, match=r"redbeat:a: .* too expensive to .* 50 ms") as caught:
        limited("redbeat:a", spin)
    assert time.process_time() - began < 5
    assert isinstance(caught.value, EntryError)
    assert caught.value.key == "redbeat:a"


def test_what_a_call_returns_or_raises_is_passed_on() -> None:
    assert limited("a", compute, 0.001) == 0.001
    with pytest.raises(ZeroDivisionError):
        limited("a", lambda: 1 / 0)
    with pytest.raises(SystemExit):
        limited("a", sys.exit)


def swallow_exceptions() -> None:
    while True:
        try:
            spin()
        except Exception:  # noqa: BLE001 - just that
            continue


def swallow_everything_thrice() -> str:
    for _ in range(3):
        try:
            spin()
        except BaseException:  # noqa: BLE001 - just that
            continue
    return "well"


def turn_it_into_another() -> None:
    try:
        spin()
    except BaseException as exc:
        raise ValueError("a bad value") from exc


@pytest.mark.parametrize("call", [swallow_exceptions, swallow_everything_thrice, turn_it_into_another])
def test_whoever_swallows_the_interruption_does_not_get_away_with_it(call: Callable[[], object]) -> None:
    with pytest.raises(EntryTooExpensive):
        limited("a", call)


def test_no_interruption_arrives_after_the_call() -> None:
    """Calls that end just when they are to be interrupted."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    chosen, outcomes = random.Random(seed), set[bool]()
    for _ in range(60):
        try:
            limited("a", compute, chosen.uniform(0.005, 0.045), seconds=0.01)
            outcomes.add(True)
        except EntryTooExpensive:
            outcomes.add(False)
        compute(0.002)
    compute(0.1)
    assert outcomes == {True, False}


def test_time_that_a_call_only_waits_is_no_processor_time() -> None:
    limited("a", time.sleep, 0.3, seconds=0.05)


def test_other_threads_are_not_interrupted_and_do_not_count() -> None:
    is_done, results = threading.Event(), list[object]()

    def work() -> None:
        while not is_done.is_set():
            compute(0.01)
        results.append("well")

    threads = started(3, work)
    try:
        with pytest.raises(EntryTooExpensive):
            limited("a", spin)
        assert limited("b", compute, 0.01, seconds=1) == 0.01
    finally:
        is_done.set()
        for thread in threads:
            thread.join()
    assert results == ["well"] * 3


def test_in_any_thread_a_call_is_interrupted() -> None:
    caught: list[BaseException] = []

    def work() -> None:
        try:
            limited("a", spin)
        except EntryTooExpensive as exc:
            caught.append(exc)

    for thread in started(4, work):
        thread.join(timeout=60)
    assert len(caught) == 4


def test_a_call_within_a_call_has_a_limit_of_its_own() -> None:
    def outer() -> str:
        with pytest.raises(EntryTooExpensive, match="inner"):
            limited("inner", spin, seconds=0.01)
        return "well"

    assert limited("outer", outer, seconds=5) == "well"
    with pytest.raises(EntryTooExpensive, match="outer"):
        limited("outer", lambda: (limited("inner", compute, 0.001), spin()))


def test_nothing_is_interrupted_while_it_logs() -> None:
    """A lock of logging that nobody releases would stop the whole process."""
    ends: list[str] = []

    class Slow(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            compute(0.2)
            ends.append("emitted")

    with logging_by(Slow()) as logger, pytest.raises(EntryTooExpensive):
        limited("a", lambda: (logger.error("slow"), spin()))
    assert ends == ["emitted"]


def test_nothing_is_interrupted_that_has_begun_to_log_since_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between a look and what follows from it threads may be switched."""
    may_log, has_begun, ends = threading.Event(), threading.Event(), list[str]()

    class Slow(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            has_begun.set()
            compute(0.1)
            ends.append("emitted")

    def log_then_spin() -> None:
        while not may_log.is_set():
            pass
        logger.error("slow")
        spin()

    is_left_alone = budget._is_left_alone  # noqa: SLF001 - between two steps of the thread that it is about

    def look_before_it_logs(thread_id: int) -> bool:
        if has_begun.is_set():
            return is_left_alone(thread_id)
        may_log.set()
        has_begun.wait(60)
        return False

    with logging_by(Slow()) as logger, monkeypatch.context() as patched:
        patched.setattr(budget, "_is_left_alone", look_before_it_logs)  # see above
        with pytest.raises(EntryTooExpensive):
            limited("a", log_then_spin)
    assert ends == ["emitted"]


def test_no_destructor_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it raises is raised nowhere, only printed."""
    ends, printed = list[str](), list[object]()
    monkeypatch.setattr(sys, "unraisablehook", printed.append)

    class Slow:
        def __del__(self) -> None:
            compute(0.2)
            ends.append("gone")

    def drop_then_spin() -> None:
        slow = Slow()
        del slow
        spin()

    with pytest.raises(EntryTooExpensive):
        limited("a", drop_then_spin)
    assert (ends, printed) == (["gone"], [])


def test_one_slow_moment_is_no_reason_to_refuse() -> None:
    moments = iter([None, 0.001])

    def compute_next() -> None:
        seconds = next(moments)
        spin() if seconds is None else compute(seconds)

    limited_twice("a", compute_next)
    with pytest.raises(EntryTooExpensive):
        limited_twice("a", spin)


def test_each_step_of_an_iterator_is_limited() -> None:
    def steps() -> Iterator[int]:
        for number in range(10):
            yield number
            compute(0.01)
        spin()

    found: list[int] = []
    with pytest.raises(EntryTooExpensive):
        found.extend(limited_steps("a", steps()))
    assert found == list(range(10))
    assert list(limited_steps("a", iter(()))) == []


def test_what_is_computed_is_known_meanwhile() -> None:
    assert what_is_computed() is None
    assert limited("redbeat:a", what_is_computed) == "redbeat:a"


def test_while_nothing_is_computed_no_thread_wakes(monkeypatch: pytest.MonkeyPatch) -> None:
    limited("a", compute, 0.001)
    eventually(lambda: not budget._watchdog.is_awake)  # noqa: SLF001 - what a sleeping thread does shows nowhere else
    waits: list[float] = []
    with monkeypatch.context() as patched:
        patched.setattr(budget.time, "sleep", waits.append)
        compute(5 * budget.LOOK_SECONDS)
    assert waits == []


def test_a_child_of_a_fork_is_looked_after_too() -> None:
    limited("a", compute, 0.001)
    child = os.fork()
    if not child:
        try:
            limited("a", spin)
        except EntryTooExpensive:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_without_a_clock_of_threads_the_wall_s_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(time, "pthread_getcpuclockid")
    with pytest.raises(EntryTooExpensive):
        limited("a", spin)
    # beside other programs it may take longer than it computes
    eventually(lambda: limited("a", compute, 0.01), retry_on=(EntryTooExpensive,))


def test_where_nothing_is_interrupted_a_slow_call_fails_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "_is_preemptive", False)  # as under gevent
    assert limited("a", compute, 0.001) == 0.001
    with pytest.raises(EntryTooExpensive):
        limited("a", compute, 0.3)
    limited("a", time.sleep, 0.3)  # waiting isn't too expensive


PATCHED = """
import _thread, time
from redbeat.process.budget import limited
from redbeat.errors import EntryTooExpensive
_thread.get_ident = lambda: 1  # as gevent and eventlet do
assert limited("a", lambda: 5) == 5
def compute():
    until = time.thread_time() + 0.3
    while time.thread_time() < until:
        pass
limited("a", time.sleep, 0.3)  # it may wait for a server
try:
    limited("a", compute)
except EntryTooExpensive:
    print("well")
"""


def test_threads_that_are_no_threads_are_left_alone() -> None:
    assert printed_by(PATCHED) == "well\n"


class Stopped(BaseException):
    """Raised by a handler, as SystemExit is by Celery's."""


def signalled(number: int, call: Callable[..., Any], *arguments: Any) -> None:
    """Make a call, and send this process a signal a moment after that has begun, or shortly before."""
    threading.Timer(0.03, os.kill, (os.getpid(), number)).start()
    call(*arguments)


def spin_for_ever() -> None:
    """As beat does it: one expensive entry after the other."""
    while True:
        with contextlib.suppress(EntryTooExpensive):
            limited("a", spin)


@pytest.mark.few_cases(2)
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGVTALRM", "SIGIO", "SIGRTMIN"])
def test_a_slow_handler_of_a_signal_is_not_hit_by_the_interruption_of_a_call(name: str) -> None:
    number, handled = getattr(signal, name), 0

    def handle(_number: int, _frame: object) -> None:
        nonlocal handled
        compute(0.15)  # thrice the budget
        handled += 1
        raise Stopped

    with signals_handled_by(handle, number):
        for _ in range(3):
            with pytest.raises(Stopped):
                signalled(number, spin_for_ever)
        assert handled == 3
        assert signal.getsignal(number) is handle


def test_a_call_that_waits_for_another_keeps_a_signal_waiting_for_a_moment_only() -> None:
    def handle(_number: int, _frame: object) -> None:
        compute(0.15)
        raise Stopped

    with signals_handled_by(handle, signal.SIGTERM):
        began = time.monotonic()
        with pytest.raises(Stopped):
            signalled(signal.SIGTERM, limited, "a", time.sleep, 600)
        assert time.monotonic() - began < 300
    with pytest.raises(EntryTooExpensive):  # and the next one has its budget
        limited("a", spin)


def test_a_block_that_waits_between_its_calls_keeps_a_signal_waiting_for_a_moment_only() -> None:
    def handle(_number: int, _frame: object) -> None:
        raise Stopped

    def wait() -> None:
        with postpone_signals():
            limited("a", compute, 0.001)
            time.sleep(600)

    with signals_handled_by(handle, signal.SIGTERM):
        began = time.monotonic()
        with pytest.raises(Stopped):
            signalled(signal.SIGTERM, wait)
        assert time.monotonic() - began < 300
        assert signal.getsignal(signal.SIGTERM) is handle
    assert what_is_computed() is None


def test_a_handler_that_a_waiting_call_lets_through_may_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "HANDLER_SECONDS", 0.05)
    is_handled = False

    class Handler:
        def __call__(self, _number: int, _frame: object) -> None:
            nonlocal is_handled
            compute(0.3)
            is_handled = True
            raise Stopped

    with signals_handled_by(Handler(), signal.SIGTERM), pytest.raises(Stopped):
        signalled(signal.SIGTERM, limited, "a", time.sleep, 600)
    assert is_handled


def test_signals_arrive_between_the_calls_of_a_batch() -> None:
    handled: list[int] = []
    with signals_handled_by(lambda number, _frame: handled.append(number), signal.SIGUSR1):
        with postpone_signals() as let_arrive:
            assert limited("a", lambda: signal.raise_signal(signal.SIGUSR1) or list(handled)) == []
            let_arrive()
            assert handled == [signal.SIGUSR1]
            signal.raise_signal(signal.SIGUSR1)
        assert handled == [signal.SIGUSR1] * 2


def test_whatever_is_interrupted_nothing_of_others_is_cut_in_two() -> None:
    """A log with a lock that isn't taken by `with`, destructors, handlers of signals that come any time."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    chosen, begun, ended = random.Random(seed), Counter[str](), Counter[str]()
    lock = threading.Lock()

    def take_time(what: str) -> None:
        begun[what] += 1
        compute(chosen.uniform(0, 0.004))
        ended[what] += 1

    class Locking(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lock.acquire()
            take_time("log")
            lock.release()

    class Dropped:
        def __del__(self) -> None:
            take_time("destructor")

    def work() -> None:
        for _ in range(chosen.randrange(16)):
            chosen.choice([lambda: logger.error("one"), Dropped, lambda: compute(0.004)])()

    def handle(_number: int, _frame: object) -> None:
        take_time("handler")

    def send_signals() -> None:
        thread = random.Random(seed)
        while not is_done.wait(thread.uniform(0, 0.02)):
            os.kill(os.getpid(), thread.choice(numbers))

    is_done, numbers, outcomes = threading.Event(), [signal.SIGUSR1, signal.SIGVTALRM], Counter[bool]()
    with signals_handled_by(handle, *numbers), logging_by(Locking()) as logger:
        [sender] = started(1, send_signals)
        try:
            until = time.process_time() + 2
            while time.process_time() < until:
                try:
                    limited("a", work, seconds=0.001)
                    outcomes[True] += 1
                except EntryTooExpensive:
                    outcomes[False] += 1
                assert not lock.locked()
        finally:
            is_done.set()
            sender.join()
    print(outcomes, ended)
    assert begun == ended
    assert set(ended) == {"log", "destructor", "handler"}
    assert set(outcomes) == {True, False}


FOLLOWED = """
import sys
from redbeat.process.budget import limited
from redbeat.errors import EntryTooExpensive

def spin():
    while True:
        pass

def follow(frame, event, argument):
    return follow

for _ in range(3):
    try:
        limited("a", spin)
    except EntryTooExpensive as exc:
        print(exc.key)
sys.setprofile(follow)
sys.settrace(follow)
try:
    limited("b", lambda: [number for number in range(5_000_000) if abs(number) < 0])
except EntryTooExpensive as exc:
    print(exc.key)
print(sum(number for number in range(1000)))
"""


def test_a_debugger_or_a_profiler_goes_on_after_an_interruption() -> None:
    assert printed_by(FOLLOWED).split() == ["a", "a", "a", "b", "499500"]


LITTERED = """
import gc, threading, time
from redbeat.process import budget

class Litter:
    def __init__(self):
        self.mine, self.local = self, threading.local()
        self.local.value = 1

def compute(depth):
    return compute(depth - 1) if depth else Litter()

def compute_for(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        compute(20)

budget.LOOK_SECONDS = 0.0001
__name__ = "logging.slow"  # where nothing is interrupted, and each look goes there
for threshold in (1, 2, 5, 10):
    gc.set_threshold(threshold)
    budget.limited("a", compute_for, 0.5, seconds=0.001)
print("done")
"""


def test_a_look_at_a_call_amid_cyclic_garbage_stops_nobody() -> None:
    assert printed_by(LITTERED) == "done\n"
