"""What a test finds in the log of its own process, and the lines that several tests wait for."""

from __future__ import annotations

import logging
import re

import pytest

#: once for each outage of a broker
AWAY = "can't be reached, due runs wait for it"
BACK = "The broker is back."

#: what Python itself prints of a signal that came in a destructor, or as a weak reference ended: neither can
#: end anything
_IN_A_DESTRUCTOR = re.compile(
    r"Exception ignored in:(?:\s|\[[^]]*\])*<function \S+\.(?:__del__|remove) at "
    r"(?:(?!Error\b|Exception\b).)*?(?:SystemExit|KeyboardInterrupt)",
    re.DOTALL,
)


def has_traceback(output: str) -> bool:
    """Tell whether a program that was sent a signal printed a traceback of anything else than that."""
    return "Traceback" in _IN_A_DESTRUCTOR.sub("", output)


def logged(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    """The messages of this level and above, oldest first."""
    return [record.getMessage() for record in caplog.records if record.levelno >= level]


def errors_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return logged(caplog, logging.ERROR)


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Warnings, and what is worse."""
    return logged(caplog, logging.WARNING)
