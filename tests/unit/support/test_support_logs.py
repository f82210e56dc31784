"""What tests tell of a program's output."""

from __future__ import annotations

from tests.support.logs import has_traceback

IN_A_DESTRUCTOR = """\
[2030-01-01 00:00:00,793: WARNING/MainProcess] Exception ignored in:\x20
[2030-01-01 00:00:00,793: WARNING/MainProcess] <function Connection.__del__ at 0x7f>
[2030-01-01 00:00:00,793: WARNING/MainProcess] Traceback (most recent call last):
[2030-01-01 00:00:00,793: WARNING/MainProcess]   File "connection.py", line 1, in __del__
[2030-01-01 00:00:00,793: WARNING/MainProcess] SystemExit
[2030-01-01 00:00:00,793: WARNING/MainProcess] :
"""
PROPER = "Traceback (most recent call last):\n  File ...\nValueError: no\n"


def test_a_signal_in_a_destructor_is_no_error_and_everything_else_is() -> None:
    assert not has_traceback(IN_A_DESTRUCTOR)
    assert has_traceback(PROPER)
    assert has_traceback(IN_A_DESTRUCTOR + PROPER)
    assert has_traceback(IN_A_DESTRUCTOR.replace("SystemExit", "ValueError"))
    assert has_traceback(IN_A_DESTRUCTOR.replace("SystemExit", "ValueError") + IN_A_DESTRUCTOR)
