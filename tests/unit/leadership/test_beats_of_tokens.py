"""A lock's token says whose it is: of which beat, by an id that it has for its life."""

from __future__ import annotations

import os
import socket

import pytest

from redbeat.store.lock_tokens import beat_of, holder_of, new_beat, new_token


def test_all_tokens_of_a_beat_say_its_id_and_differ() -> None:
    beat = new_beat()
    tokens = [new_token(beat) for _ in range(100)]
    assert {beat_of(token) for token in tokens} == {beat}
    assert len(set(tokens)) == 100


def test_two_beats_of_one_process_differ() -> None:
    assert len({new_beat() for _ in range(100)}) == 100


def test_a_token_is_as_before() -> None:
    mark, version, host, pid, since, chance = new_token(new_beat()).split(":")
    assert (mark, version, host, int(pid)) == ("redbeat", "3", socket.gethostname(), os.getpid())
    assert since.isdecimal()
    assert len(chance) == len(bytes.fromhex(chance)) * 2 == 16


def test_a_host_may_have_colons() -> None:
    token = "redbeat:3:::1:815:1700000000:0123456789abcdef"
    holder = holder_of(token)
    assert holder is not None
    assert (holder.host, holder.pid) == ("::1", 815)
    assert beat_of(token) == "::1:815:01234567"


@pytest.mark.parametrize("token", ["", "0" * 32, "redbeat:3", "redbeat:3:host:x:1:2", "redbeat:4:h:1:2:3"])
def test_what_is_no_token_of_ours_is_nobody_s(token: str) -> None:
    assert beat_of(token) is None
