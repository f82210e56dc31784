"""The other package, celery-redbeat 2.4.2, as something to ask: only its behaviour is looked at."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers import Server

Legacy = Callable[..., dict[str, dict[str, Any]]]

DRIVER = Path(__file__).with_name("legacy.py")


@pytest.fixture
def legacy(redbeat2_python: Path, server: Server) -> Legacy:
    """Call `legacy.py`: legacy("save"), legacy("load", "interval-int"); returns name to description."""

    def call(command: str, *names: str) -> dict[str, dict[str, Any]]:
        words = [redbeat2_python, DRIVER, server.url(1), command, *names]
        env = {"PATH": "/usr/bin:/bin"}  # an inherited PYTHONPATH would lead to our own redbeat
        done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        described: dict[str, dict[str, Any]] = json.loads(done.stdout)
        failed = {name: entry for name, entry in described.items() if "error" in entry}
        assert not failed
        return described

    return call
