"""Calls keep their order, no service waits for another, and a service that is away costs little memory."""

from __future__ import annotations

import random

from redbeat.config.ping_urls import parse_ping_url
from redbeat.telemetry.pings.waiting_calls import (
    LIFE_SECONDS,
    MAX_CALLS,
    MAX_PAUSE_SECONDS,
    MAX_SERVICES,
    PAUSE_SECONDS,
    Call,
    WaitingCalls,
)


def call(path: str, host: str = "a", entry: str = "", since: float = 0.0) -> Call:
    return Call(parse_ping_url(f"http://{host}/{path}"), entry or path, since)


def taken(waiting: WaitingCalls, now: float = 0.0) -> list[str]:
    found = iter(lambda: waiting.take(now), None)
    return [one.url.target[1:] for one in found]


def test_calls_of_a_service_keep_their_order_and_services_take_turns() -> None:
    waiting = WaitingCalls()
    for path in ("1", "2", "3"):
        waiting.add(call(f"a{path}", "a"))
    waiting.add(call("b1", "b"))
    assert taken(waiting) == ["a1", "b1", "a2", "a3"]
    assert waiting.seconds_to_next(0.0) is None
    assert len(waiting) == 0


def test_a_service_that_fails_is_left_alone_and_the_others_are_called() -> None:
    waiting = WaitingCalls()
    for path in ("start", "fail"):
        waiting.add(call(path, "a", entry="x"))
    waiting.add(call("other", "a"))
    first = waiting.take(0.0)
    assert first is not None
    waiting.note_failed(first, 0.0)
    waiting.add(call("b1", "b"))
    assert taken(waiting) == ["b1"]
    assert waiting.seconds_to_next(1.0) == PAUSE_SECONDS - 1.0
    assert taken(waiting, PAUSE_SECONDS) == ["fail", "other"], "the newer call about x is what counts"
    assert waiting.note_well("http://a") == 1
    assert waiting.note_well("http://a") == 0


def test_pauses_grow_up_to_a_limit_and_of_each_entry_the_newest_call_is_kept() -> None:
    waiting, now, pauses = WaitingCalls(), 0.0, []
    waiting.add(call("0", entry="x", since=now))
    for number in range(1, 12):
        one = waiting.take(now)
        assert one is not None
        waiting.note_failed(one, now)
        waiting.add(call(str(number), entry="x", since=now))
        assert len(waiting) == 1
        pauses.append(waiting.seconds_to_next(now))
        now += pauses[-1] or 0.0
    assert pauses[:4] == [5.0, 10.0, 20.0, 40.0]
    assert pauses[-1] == MAX_PAUSE_SECONDS
    assert taken(waiting, now) == ["11"]
    assert waiting.note_well("http://a") == 11


def test_what_has_waited_for_long_is_left_out() -> None:
    waiting = WaitingCalls()
    waiting.add(call("old", since=0.0))
    waiting.add(call("new", since=LIFE_SECONDS))
    assert taken(waiting, LIFE_SECONDS + 1) == ["new"]
    assert waiting.note_well("http://a") == 1


def test_their_number_is_bounded_whatever_happens(chance: random.Random) -> None:
    waiting, now, most = WaitingCalls(), 0.0, 0
    for number in range(5_000):
        now += chance.random() / 100
        host = chance.choice(["a", "a", "b", f"h{chance.randint(0, 3 * MAX_SERVICES)}"])
        waiting.add(call(str(number), host, entry=str(chance.randint(0, 5_000)), since=now))
        one = waiting.take(now) if chance.random() < 0.2 else None
        if one is not None and chance.random() < 0.7:
            waiting.note_failed(one, now)
        elif one is not None:
            waiting.note_well(one.url.service)
        services = waiting._services  # noqa: SLF001
        assert len(waiting) == sum(len(service.calls) for service in services.values()) <= MAX_CALLS
        assert len(services) <= MAX_SERVICES + 1
        most = max(most, len(waiting))
    assert most == MAX_CALLS, "else nothing was tried"


def test_the_oldest_of_the_service_with_the_most_is_left_out() -> None:
    waiting = WaitingCalls()
    waiting.add(call("b", "b"))
    for number in range(MAX_CALLS):
        waiting.add(call(str(number)))
    assert len(waiting) == MAX_CALLS
    assert taken(waiting)[:3] == ["b", "1", "2"]
