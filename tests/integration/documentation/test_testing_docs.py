"""The tests that docs/testing.rst shows pass as they stand, and fail where the schedule is another one."""

from __future__ import annotations

import sys
from pathlib import Path
from subprocess import CompletedProcess

from tests.support.command_line import run
from tests.support.documents import write_files


def run_pytest(directory: Path) -> CompletedProcess[str]:
    pytest = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "--rootdir",
        ".",
        "-q",
    ]
    return run(pytest, directory, {"PYTEST_ADDOPTS": ""}, 120)


def test_the_tests_of_the_page_pass(tmp_path: Path) -> None:
    files = write_files("docs/testing.rst", tmp_path)
    assert len(files) == 9
    done = run_pytest(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "12 passed" in done.stdout


def test_they_notice_another_schedule(tmp_path: Path) -> None:
    for file in write_files("docs/testing.rst", tmp_path):
        text = file.read_text().replace("30 7 * * mon-fri", "30 8 * * mon-fri")
        file.write_text(text.replace('"proj.report", 3600, args', '"proj.report", 7200, args'))
    done = run_pytest(tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "3 failed" in done.stdout, done.stdout
