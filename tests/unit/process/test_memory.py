"""What is remembered is bounded, and news is what wasn't remembered so."""

from __future__ import annotations

from redbeat.process.memory import Memory


def test_a_thing_is_news_until_it_is_said_and_again_when_its_words_change() -> None:
    memory = Memory[str, str]()
    told = [memory.is_news("lock", words) for words in ("gone", "gone", "", "", "gone")]
    assert told == [True, False, True, False, True]
    assert memory.is_news("broker", "gone")


def test_one_key_too_many_empties_it_and_a_key_that_is_there_does_not() -> None:
    memory = Memory[int, str](limit=3)
    for number in (1, 2, 3, 3, 2, 1):
        memory[number] = "again"
    assert sorted(memory) == [1, 2, 3]
    memory[4] = "one more"
    assert list(memory) == [4]
    assert memory.is_news(1, "again")
