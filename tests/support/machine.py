"""The programs that this machine may lack: a test that needs one is skipped without it.

With REQUIRE_SERVICES=1 in the environment, as in CI, it fails. Ask for the program where it is first used.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).parents[2]
# `make` puts into it what tests need besides its Python packages.
_INSTALLED = Path(sys.prefix)

#: whether the test that runs has the marker `services`; set before each test
IS_ALLOWED = True

#: whether a test fails where the program that it needs is missing
IS_COMPLETE = os.environ.get("REQUIRE_SERVICES") == "1"


def require_program(*names: str, purpose: str = "", is_always_allowed: bool = False) -> str:
    """Return the path of the first of these programs on PATH; skip the test if all are missing."""
    if not (IS_ALLOWED or is_always_allowed):
        pytest.fail(f"the test needs {' or '.join(names)}: mark it with `services`", pytrace=False)
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        report_missing(f"{' or '.join(names)} is not on PATH{purpose and f', {purpose}'}")
    return found


def require_node_package(name: str) -> Path:
    """Return the directory of a package for Node; skip the test without it."""
    if not IS_ALLOWED:
        pytest.fail(f"the test needs Node's package {name}: mark it with `services`", pytrace=False)
    return _require(_INSTALLED / "node" / "node_modules" / name, f"Node's package {name}", ", with npm")


def require_redbeat2() -> Path:
    """Return the directory with celery-redbeat 2.4.2; skip the test without it."""
    return _require(_INSTALLED / "redbeat2", "celery-redbeat 2.4.2")


def _require(path: Path, name: str, means: str = "") -> Path:
    if not path.exists():
        report_missing(f"{name} is not in {_INSTALLED}: `make` installs it{means}")
    return path


def report_missing(reason: str) -> NoReturn:
    """Skip the test that runs, or fail it with REQUIRE_SERVICES=1."""
    if IS_COMPLETE:
        pytest.fail(f"REQUIRE_SERVICES=1, but {reason}", pytrace=False)
    pytest.skip(reason)
