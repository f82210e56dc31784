"""Signals are held back in a block."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator

import pytest

from redbeat.process.signals import hold_interrupts
from tests.support.processes import Process

# ruff: noqa: PT012 - it is the block that is interrupted


class Ended(Exception):
    """Raised by the handler of these tests, as SystemExit is by beat's."""


@pytest.fixture
def handlers() -> Iterator[None]:
    def end(number: int, _frame: object) -> None:
        raise Ended(number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    current = {number: signal.signal(number, handler) for number, handler in before.items()}
    assert set(current.values()) == {end}, "a handler was left behind"


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_arrives_at_the_end_of_the_block(number: signal.Signals) -> None:
    done = False
    with pytest.raises(Ended) as ended, hold_interrupts():
        signal.raise_signal(number)
        done = True
    assert done
    assert ended.value.args == (number,)


@pytest.mark.usefixtures("handlers")
def test_signal_interrupts_a_blocking_call_after_a_while() -> None:
    steps = ["signal"]
    with pytest.raises(Ended), hold_interrupts(patience_seconds=0.1):
        signal.raise_signal(signal.SIGTERM)
        steps.append("call")
        threading.Event().wait(600)
        steps.append("end of the call")
    assert steps == ["signal", "call"]


HOLDING = """
from gevent import monkey; monkey.patch_all()
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


@pytest.mark.slow
@pytest.mark.parametrize("patience_seconds", [600, 0.1])
def test_signal_under_gevent_arrives_at_the_end_of_the_block_or_after_a_while(
    patience_seconds: float,
) -> None:
    pytest.importorskip("gevent")
    command = [sys.executable, "-W", "ignore", "-c", HOLDING, str(patience_seconds)]
    with Process(command) as process:
        process.wait_for("in the block")
        process.signal(signal.SIGTERM)
        if patience_seconds > 1:
            process.signal(signal.SIGUSR1)
        assert process.wait() == 3, process.output()
        expected = ["in the block"] + ["at its end"] * (patience_seconds > 1)
        assert process.output().splitlines() == expected


@pytest.mark.usefixtures("handlers")
def test_many_signals_do_not_interrupt_the_block() -> None:
    is_done = False
    with pytest.raises(Ended), hold_interrupts(patience_seconds=60):
        for _ in range(100):
            signal.raise_signal(signal.SIGINT)
        is_done = True
    assert is_done
