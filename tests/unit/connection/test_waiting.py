"""Code that isn't written for asyncio waits without blocking the event loop that drives it."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
import weakref
from contextvars import ContextVar
from typing import Any

import pytest

from redbeat.connection.waiting import drive, pause, wait_for
from redbeat.errors import ConfigurationError, EntryTooExpensive
from redbeat.process import budget

WORD: ContextVar[str] = ContextVar("word", default="")


async def answer(value: Any) -> Any:
    await asyncio.sleep(0)
    if isinstance(value, BaseException):
        raise value
    return value


def test_it_gets_what_it_waits_for_and_its_result_is_returned() -> None:
    assert asyncio.run(drive(lambda: [wait_for(answer(1)), wait_for(answer(2))])) == [1, 2]
    assert asyncio.run(drive(lambda: "waits for nothing")) == "waits for nothing"
    assert asyncio.run(drive(lambda: None)) is None


def test_an_error_is_raised_where_it_waits_and_what_it_raises_is_raised() -> None:
    def survive() -> str:
        with pytest.raises(KeyError):
            wait_for(answer(KeyError("no")))
        return str(wait_for(answer("still here")))

    assert asyncio.run(drive(survive)) == "still here"
    with pytest.raises(ZeroDivisionError):
        asyncio.run(drive(lambda: 1 / wait_for(answer(0))))


def test_others_run_while_it_pauses() -> None:
    seen: list[str] = []

    def two_steps(name: str) -> None:
        seen.append(f"{name} 1")
        pause(0.01)
        seen.append(f"{name} 2")

    async def both() -> None:
        await asyncio.gather(drive(lambda: two_steps("a")), drive(lambda: two_steps("b")))

    asyncio.run(both())
    assert sorted(seen[:2]) == ["a 1", "b 1"]
    assert sorted(seen[2:]) == ["a 2", "b 2"]


def test_who_cancels_the_task_cancels_the_code_and_its_cleaning_up_may_wait() -> None:
    steps: list[str] = []

    def work() -> None:
        try:
            pause(60)
        except asyncio.CancelledError:
            steps.append("cancelled")
            pause(0)
            steps.append("cleaned up")
            raise

    async def main() -> None:
        task = asyncio.create_task(drive(work))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert steps == ["cancelled", "cleaned up"]


def test_it_sees_the_context_of_its_task_and_changes_only_its_own() -> None:
    def work() -> str:
        word = WORD.get()
        WORD.set("the code's")
        pause(0)
        return f"{word}, then {WORD.get()}"

    async def main() -> tuple[str, str]:
        WORD.set("the task's")
        task = asyncio.create_task(drive(work))
        await asyncio.sleep(0)  # it waits now
        seen = WORD.get()
        return await task, seen

    assert asyncio.run(main()) == ("the task's, then the code's", "the task's")


def test_without_a_task_it_blocks_or_says_that_it_cannot_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    pause(3)
    assert slept == [3]
    coroutine = answer(1)
    with pytest.raises(RuntimeError, match="no task of asyncio's drives this code"):
        wait_for(coroutine)


def test_what_may_take_long_is_computed_in_a_thread_and_may_wait_there_too() -> None:
    def compute() -> tuple[bool, Any]:
        return threading.current_thread() is threading.main_thread(), wait_for(answer("in the loop"))

    assert asyncio.run(drive(lambda: budget.limited("key", compute))) == (False, "in the loop")
    assert budget.limited("key", threading.current_thread) is threading.main_thread()


def test_what_takes_too_long_is_stopped_there_while_the_loop_goes_on() -> None:
    def compute() -> None:
        while True:
            pass

    async def main() -> int:
        turns = 0
        task = asyncio.create_task(drive(lambda: budget.limited("key", compute)))
        while not task.done():
            turns += 1
            await asyncio.sleep(0.001)
        with pytest.raises(EntryTooExpensive):
            await task
        return turns

    assert asyncio.run(main()) > 5, "50 ms in turns of the interpreter's switch interval and more"


def test_a_task_that_the_code_makes_is_a_task_of_its_own() -> None:
    made: list[asyncio.Task[Any]] = []
    slept: list[float] = []

    async def blocks_and_is_driven() -> Any:
        time.sleep = slept.append  # type: ignore[assignment]
        try:
            pause(2)  # it has the context of the code, but isn't that code
            assert budget.limited("key", threading.current_thread) is threading.main_thread()
        finally:
            time.sleep = original
        return await drive(lambda: wait_for(answer("driven by its own task")))

    def work() -> None:
        made.append(asyncio.get_running_loop().create_task(blocks_and_is_driven()))
        pause(0.01)

    async def main(is_eager: bool) -> Any:
        if is_eager:
            asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]
        await drive(work)
        return await made.pop()

    original = time.sleep
    for is_eager in {False, hasattr(asyncio, "eager_task_factory")}:
        assert asyncio.run(main(is_eager)) == "driven by its own task"
    assert set(slept) == {2}


def test_threads_that_all_wait_for_the_loop_do_not_keep_it_from_computing() -> None:
    async def main() -> list[Any]:
        loop = asyncio.get_running_loop()

        def ask() -> Any:
            computed = drive(lambda: budget.limited("key", lambda: "computed"))
            return asyncio.run_coroutine_threadsafe(computed, loop).result(30)

        return await asyncio.gather(*(asyncio.to_thread(ask) for _ in range(64)))

    assert set(asyncio.run(main())) == {"computed"}


def test_nothing_of_it_is_left_when_it_has_ended_or_was_given_up() -> None:
    class Held:
        pass

    found: list[weakref.ref[Held]] = []

    def work() -> None:
        held = Held()
        found.append(weakref.ref(held))
        pause(0 if len(found) == 1 else 60)

    async def main() -> None:
        await drive(work)
        given_up = drive(work)
        given_up.send(None)
        given_up.close()

    asyncio.run(main())
    gc.collect()
    assert [one() for one in found] == [None, None]


def test_without_greenlet_only_who_awaits_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "greenlet", None)
    pause(0)
    with pytest.raises(ConfigurationError, match="pip install greenlet"):
        asyncio.run(drive(lambda: None))
