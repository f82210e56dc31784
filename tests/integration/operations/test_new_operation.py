"""A new operation is one function: the surfaces offer it without a line of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support.forms import form_fields
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
    (code, output), (usage, _), (_, help_text), (_, overview), (_, touched) = found["commands"]
    assert (code, json.loads(output)) == (0, {"name": "report", "count": 8})
    assert usage == 64
    assert "The number of runs from now on." in help_text
    assert "Change the number of runs of an entry" in overview
    assert json.loads(touched) == {"entry": "report", "outcome": "touched"}
    assert "(report)?" in found["question"]
    body = found["described"]["requestBody"]["content"]["application/json"]["schema"]
    assert body["properties"]["count"]["maximum"] == 1000
    assert found["described"]["x-right"] == "edit"
    assert found["schema"]["properties"].keys() == {"name", "count"}
    pages = found["pages"]
    assert pages["offered"] == [True, False]
    assert "The history stays." in pages["form"]
    assert form_fields(pages["form"]).keys() >= {"name", "count", "reasons", "seconds", "until", "mode"}
    assert [status for status, _ in pages["invalid"]] == [422, 422, 422]
    shown = [text for _, text in pages["invalid"]]
    assert "0 to 1000" in shown[0]
    assert "must not be 999" in shown[1]
    assert "soonish" in shown[2]
    assert 'name="confirmed" value="yes"' in pages["question"]
    assert "count: 9" in pages["done"]
    assert (pages["denied"], pages["missing"]) == ([403, 403], 404)
    by_page, by_command, by_program = found["audit"]
    assert by_page[:2] == ["web", "recount"]
    assert by_page[2].keys() == {"count", "until"}, "neither the question nor a refused value is a change"
    assert by_command == ["cli", "recount", {"count": 8, "reasons": ["a", "b"]}]
    assert by_program == ["api", "recount", {"count": 7}]
