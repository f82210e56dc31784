"""Signals are held back in a block, never lost, and never held for long."""

# ruff: noqa: PT012 - it is the block that is interrupted

from __future__ import annotations

import importlib.util
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace

import pytest

from redbeat.process import signals as interrupts
from redbeat.process.signals import Postponed, hold_interrupts
from tests.support.processes import Process


class Ended(Exception):
    """What the handler of these tests raises, as beat's raises SystemExit."""


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    def end(number: int, _frame: object) -> None:
        raise Ended(number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    current = {number: signal.signal(number, handler) for number, handler in before.items()}
    assert set(current.values()) == {end}, "a handler was left behind"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_arrives_at_the_end_of_the_block(number: signal.Signals) -> None:
    done = False
    with pytest.raises(Ended) as ended, hold_interrupts():
        signal.raise_signal(number)
        done = True
    assert done
    assert ended.value.args == (number,)


def test_a_signal_arrives_where_the_block_lets_it() -> None:
    steps: list[int] = []
    with pytest.raises(Ended), hold_interrupts() as let_interrupt:
        for step in range(3):
            let_interrupt()
            steps.append(step)
            if step == 1:
                signal.raise_signal(signal.SIGTERM)
    assert steps == [0, 1]


def test_a_call_that_blocks_is_interrupted_when_the_patience_is_over() -> None:
    steps = ["signal"]
    with pytest.raises(Ended), hold_interrupts(patience_seconds=0.1):
        signal.raise_signal(signal.SIGTERM)
        steps.append("call")
        threading.Event().wait(600)
        steps.append("end of the call")
    assert steps == ["signal", "call"]


def test_the_second_signal_arrives_at_once() -> None:
    with pytest.raises(Ended) as ended, hold_interrupts(patience_seconds=60):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        pytest.fail("it went on")
    assert ended.value.args == (signal.SIGTERM,)


def test_a_firm_block_is_not_cut_by_many_signals() -> None:
    is_done = False
    with pytest.raises(Ended), hold_interrupts(patience_seconds=60, is_firm=True):
        for _ in range(100):
            signal.raise_signal(signal.SIGINT)
        is_done = True
    assert is_done


def test_another_thread_holds_nothing_and_breaks_nothing() -> None:
    errors: list[Exception] = []

    def hold() -> None:
        try:
            with hold_interrupts() as let_interrupt:
                let_interrupt()
        except Exception as exc:  # noqa: BLE001 - the test tells what it was
            errors.append(exc)

    thread = threading.Thread(target=hold)
    thread.start()
    thread.join()
    assert errors == []


#: green threads, of which a handler may find itself in any
PATCHES = {
    "none": "",
    "gevent": "from gevent import monkey; monkey.patch_all()",
    "eventlet": "import eventlet; eventlet.monkey_patch()",
}

HOLDING = """
import signal, sys, time
from redbeat.process.signals import hold_interrupts

marks = []
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
signal.signal(signal.SIGUSR1, lambda *_: marks.append(1))
with hold_interrupts(float(sys.argv[1])):
    print("in the block")
    while not marks:
        time.sleep(0.01)
    print("at its end")
print("after it")
"""


@pytest.mark.few_cases(2)
@pytest.mark.parametrize("library", PATCHES)
@pytest.mark.parametrize("patience_seconds", [600, 0.1])
def test_green_threads_change_nothing_about_that(library: str, patience_seconds: float) -> None:
    if library != "none" and importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} isn't installed")
    program = f"{PATCHES[library]}\n{HOLDING}"
    with Process([sys.executable, "-W", "ignore", "-c", program, str(patience_seconds)]) as process:
        process.wait_for("in the block")
        process.signal(signal.SIGTERM)
        if patience_seconds > 1:
            process.signal(signal.SIGUSR1)
        assert process.wait() == 3, process.output()
        expected = ["in the block"] + ["at its end"] * (patience_seconds > 1)
        assert process.output().splitlines() == expected


def test_a_handler_that_the_block_sets_stays() -> None:
    mine = signal.getsignal(signal.SIGTERM)
    with hold_interrupts():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    assert signal.signal(signal.SIGTERM, mine) is signal.SIG_IGN


def test_nested_blocks_let_a_signal_arrive_after_the_outer_one() -> None:
    steps: list[str] = []
    with pytest.raises(Ended), hold_interrupts():
        with hold_interrupts():
            signal.raise_signal(signal.SIGTERM)
            steps.append("inner")
        steps.append("outer")
    assert steps == ["inner", "outer"]


@pytest.mark.parametrize("step", range(1, 12))
def test_a_signal_that_comes_while_signals_begin_or_end_to_be_postponed_leaves_no_handler_behind(
    monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    arrived: list[int] = []

    def end(number: int, _frame: object) -> None:
        arrived.append(number)
        raise Ended(number)

    numbers = (signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGTERM)
    before = {number: signal.signal(number, end) for number in numbers}
    sent: list[int] = []
    try:
        with monkeypatch.context() as patched:
            interrupt_at_step(patched, step, sent)
            with suppress(Ended):
                Postponed().end()
        assert [signal.getsignal(number) for number in numbers] == [end] * 4
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert sorted(arrived) == sorted(sent), "a signal was lost"


def interrupt_at_step(monkeypatch: pytest.MonkeyPatch, step: int, sent: list[int]) -> None:
    """Let SIGINT and SIGTERM come just before a handler is set for the so manyth time."""
    set_now, steps = interrupts.system.signal, 0

    def set_interrupted(number: int, handler: object) -> object:
        nonlocal steps
        steps += 1
        if steps == step:
            sent.append(signal.SIGINT)
            try:
                signal.raise_signal(signal.SIGINT)
            finally:
                sent.append(signal.SIGTERM)
                signal.raise_signal(signal.SIGTERM)
        return set_now(number, handler)

    system = SimpleNamespace(getsignal=interrupts.system.getsignal, signal=set_interrupted)
    monkeypatch.setattr(interrupts, "system", system)
