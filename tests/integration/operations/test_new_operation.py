"""A new operation is one function: the surfaces offer it without a line of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support.servers import Server

ROOT = Path(__file__).parents[3]


def test_new_operation_is_offered_by_every_surface(valkey: Server) -> None:
    program = Path(__file__).with_name("new_operation.py")
    url = valkey.url()
    done = subprocess.run(
        [sys.executable, program, url],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    (status, changed), (invalid, problem), (denied, _) = found["answers"]
    assert (status, changed) == (200, {"name": "report", "count": 7})
    assert (invalid, problem["field"]) == (422, "count")
    assert "0 to 1000" in problem["detail"]
    assert denied == 403
    (code, output), (usage, _), (_, help_text), (_, overview) = found["commands"]
    assert (code, json.loads(output)) == (0, {"name": "report", "count": 8})
    assert usage == 64
    assert "The number of runs from now on." in help_text
    assert "Change the number of runs of an entry" in overview
    body = found["described"]["requestBody"]["content"]["application/json"]["schema"]
    assert body["properties"]["count"]["maximum"] == 1000
    assert found["described"]["x-right"] == "edit"
    assert found["schema"]["properties"].keys() == {"name", "count"}
    assert found["audit"] == [["cli", "recount", {"count": 8}], ["api", "recount", {"count": 7}]]
