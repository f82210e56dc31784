"""The tests that docs/testing.rst shows pass as they stand, and fail where the schedule is another one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.deadlines import patience
from tests.support.documents import write_files


def run_pytest(directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "--rootdir", ".", "-q"],
        cwd=directory,
        env={**os.environ, "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=patience(120),
        check=False,
    )


def test_the_tests_of_the_page_pass(tmp_path: Path) -> None:
    files = write_files("docs/testing.rst", tmp_path)
    assert len(files) == 6
    done = run_pytest(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "7 passed" in done.stdout


def test_they_notice_another_schedule(tmp_path: Path) -> None:
    for file in write_files("docs/testing.rst", tmp_path):
        text = file.read_text().replace("30 7 * * mon-fri", "30 8 * * mon-fri")
        file.write_text(text.replace('"proj.report", 3600, args', '"proj.report", 7200, args'))
    done = run_pytest(tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "3 failed" in done.stdout, done.stdout
