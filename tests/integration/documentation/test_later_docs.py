"""The files that docs/later.rst shows do what the page says, and its commands exist."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from redbeat.cli.later import later
from tests.support.command_line import run
from tests.support.documents import ROOT, write_files
from tests.support.servers import Server

PAGE = (ROOT / "docs" / "later.rst").read_text("utf-8")


def test_the_files_of_the_page_print_what_it_says(server: Server, tmp_path: Path) -> None:
    for file in write_files("docs/later.rst", tmp_path):
        file.write_text(file.read_text().replace("redis://localhost:6379/0", server.url(0)))
    printed = {}
    for name in ("call", "call_many", "cancel"):
        done = run([sys.executable, f"{name}.py"], tmp_path, {}, 60)
        assert done.returncode == 0, done.stderr
        printed[name] = done.stdout.split("\n")[0]
    assert re.fullmatch(r"[0-9a-f-]{36} PENDING", printed["call"])
    assert printed["call_many"] == "4"
    assert printed["cancel"] == "REVOKED []"


def test_its_commands_exist() -> None:
    named = set(re.findall(r"redbeat later (\w+)", PAGE))
    assert named == set(later.commands)
