"""Counting the runs that couldn't be recorded: when an entry pauses, and how much is remembered."""

from __future__ import annotations

from redbeat.beat.contention import MAX_TRIES, Contention


def lose(counted: Contention, key: str, times: int) -> None:
    for _ in range(times):
        counted.note_lost(key)


def test_an_entry_pauses_after_a_few_tries_and_is_tried_again_after_it() -> None:
    counted = Contention()
    for pause in (1, 2, 3):
        lose(counted, "key", MAX_TRIES - 1)
        assert counted.take_pause("key") == 0
        counted.note_lost("key")
        assert counted.take_pause("key") == pause
        assert counted.take_pause("key") == 0
    assert counted.take_pause("another") == 0


def test_a_run_that_was_recorded_starts_the_count_anew() -> None:
    counted = Contention()
    lose(counted, "key", MAX_TRIES)
    assert counted.take_pause("key") == 1
    counted.note_recorded("key")
    lose(counted, "key", MAX_TRIES)
    assert counted.take_pause("key") == 1


def test_the_memory_is_bounded() -> None:
    counted = Contention()
    lose(counted, "key", MAX_TRIES)
    for number in range(10_000):
        counted.note_lost(f"key-{number}")
    assert counted.take_pause("key") == 0, "the first of 10,001 isn't remembered"
