"""Singletons as real processes, and a command of theirs that tells when it was alive."""

from __future__ import annotations

import sys
from pathlib import Path

from .processes import Process

#: appends its pid and the time of a clock that all processes share to a file, every 50 ms
WRITER = """
import os, sys, time
while True:
    with open(sys.argv[1], "a") as file:
        file.write(f"{os.getpid()} {time.monotonic()}\\n")
    time.sleep(0.05)
"""


def start_singleton(
    url: str,
    *command: str,
    lock: str = "the-lock",
    options: tuple[str, ...] = (),
    prefix: tuple[str, ...] = (),
) -> Process:
    """Start `redbeat-singleton`; 10 seconds and a grace of 5 unless the options say otherwise.

    `prefix` is a program that becomes it.
    """
    program = [*prefix, sys.executable, "-m", "redbeat.singleton"]
    return Process([*program, "--url", url, "--lock", lock, *options, "--", *command])


def writer(file: Path) -> list[str]:
    """The command of one who writes into `file`."""
    return [sys.executable, "-S", "-c", WRITER, str(file)]


def writes(file: Path) -> list[tuple[int, float]]:
    """Who has written when: pids and seconds."""
    lines = file.read_text().splitlines() if file.exists() else []
    return [(int(pid), float(moment)) for pid, moment in map(str.split, lines)]
