"""How many wrong passwords may be tried, and that nobody is locked out by others for long."""

from __future__ import annotations

import pytest

from redbeat.web.access.attempts import (
    ALL_TRIES,
    MAX_KEPT,
    SAID_EVERY_SECONDS,
    SECONDS_EACH,
    TRIES,
    Attempts,
    TooManyAttempts,
)


class Door:
    """Somebody tries passwords; 'right' is right."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.attempts = Attempts(lambda: self.now)
        self.looked_at: list[str] = []

    def tries(self, password: str, address: str = "10.0.0.9", mark: str = "") -> bool | int:
        """Whether it lets in; or for how long it isn't even looked at."""

        def is_right() -> bool:
            self.looked_at.append(password)
            return password == "right"

        try:
            return self.attempts.check(address, mark, password.encode(), is_right)
        except TooManyAttempts as exc:
            return exc.seconds

    def use_up(self, address: str = "10.0.0.9", mark: str = "") -> None:
        for number in range(TRIES):
            assert self.tries(f"wrong {number}", address, mark) is False


def test_after_some_wrong_passwords_not_even_the_right_one_is_looked_at_until_the_time_that_is_told() -> None:
    door = Door()
    door.use_up()
    door.looked_at.clear()
    assert door.tries("right") == SECONDS_EACH
    door.now += SECONDS_EACH - 1.5
    assert door.tries("right") == 2
    assert door.looked_at == []
    door.now += 1.5
    assert door.tries("right") is True
    assert door.tries("wrong") is False
    assert door.tries("right") == SECONDS_EACH
    door.now += 3600
    door.use_up()
    assert door.tries("right") == SECONDS_EACH, "a long rest allows no more than at first"


def test_an_hour_allows_no_more_guesses_than_one_each_few_seconds() -> None:
    door, guesses = Door(), 0
    for number in range(3600):
        door.now += 1
        guesses += door.tries(f"guess {number}") is False
    assert guesses <= TRIES + 3600 / SECONDS_EACH + 1


def test_others_go_on_from_their_own_addresses() -> None:
    door = Door()
    door.use_up("10.0.0.9")
    assert door.tries("right", "10.0.0.8") is True
    door.use_up("2001:db8::1")
    assert door.tries("right", "2001:db8::2") == SECONDS_EACH, "somebody has all of these addresses"
    assert door.tries("right", "2001:db8:0:1::1") is True
    door.use_up("::ffff:10.0.0.7")
    assert door.tries("right", "10.0.0.7") == SECONDS_EACH
    for odd in ("", "unix", "fe80::1%eth0", "x" * 100_000):
        assert door.tries("right", odd) is True


def test_many_addresses_together_have_few_tries_and_who_was_there_before_goes_on() -> None:
    door = Door()
    assert door.tries("right", "192.0.2.1") is True
    mark = door.attempts.mark_of("")
    for number in range(ALL_TRIES):
        assert door.tries(f"wrong {number}", f"10.1.0.{number}") is False
    assert door.tries("right", "10.2.0.1") == 1
    assert door.tries("right", "192.0.2.1") is True
    assert door.tries("right", "10.2.0.1", mark) is True
    door.now += 1
    assert door.tries("right", "10.2.0.1") is True


def test_strangers_however_many_do_not_make_it_forgotten_who_has_got_in() -> None:
    door = Door()
    assert door.tries("right", "192.0.2.1") is True
    for number in range(MAX_KEPT + 1):
        door.tries(f"wrong {number}", f"10.{number >> 16}.{(number >> 8) & 255}.{number & 255}")
    assert door.tries("right", "10.200.0.1") == 1
    assert door.tries("right", "192.0.2.1") is True


def test_a_browser_that_is_known_shares_no_tries_with_its_address() -> None:
    door = Door()
    mark = door.attempts.mark_of("")
    assert door.attempts.mark_of(mark) == mark
    door.use_up("10.0.0.9")
    assert door.tries("right", "10.0.0.9", mark) is True
    door.use_up("10.0.0.9", mark)
    assert door.tries("right", "10.0.0.9", mark) == SECONDS_EACH, "its own are limited likewise"
    for forged in (f"{mark}x", "x.y", ".", mark.partition(".")[0], Door().attempts.mark_of(""), "é.é"):
        assert door.tries("right", "10.0.0.9", forged) == SECONDS_EACH, forged


def test_the_same_wrong_password_again_counts_once() -> None:
    door = Door()
    for _ in range(10 * TRIES):
        assert door.tries("old password") is False
    assert door.looked_at == ["old password"]
    assert door.tries("right") is True


def test_a_million_addresses_need_no_more_memory_than_some(caplog: pytest.LogCaptureFixture) -> None:
    door = Door()
    for number in range(MAX_KEPT + 500):
        door.tries("wrong", f"10.{number >> 16}.{(number >> 8) & 255}.{number & 255}")
    assert len(door.attempts._kept) == MAX_KEPT  # noqa: SLF001
    assert len(caplog.records) == 1, "told once a minute"
    door.now += SAID_EVERY_SECONDS
    door.use_up("\n10.0.0.1")
    while door.tries("secret", "\n10.0.0.1") is False:
        pass
    assert len(caplog.records) == 2
    assert "secret" not in caplog.text
    assert "\\n10.0.0.1" in caplog.text
