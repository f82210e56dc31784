"""A field, or a value of ``overlap``, is added to the table alone: then every surface has it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from redbeat.decoder import DEFINITION_FIELDS
from redbeat.policy.fields import Choice
from redbeat.policy.policy import DEFINITION, ROWS, make_policy
from redbeat.runs.deliveries import read_delivery
from tests.support.documents import ROOT
from tests.support.ticks import memory_app

ROW = """
    colour: str | None = row(
        Kind.CHOICE, RUNS, "The colour of its runs.", label="Colour", default="red",
        choices=(Choice("red", "as usual"), Choice("blue", "for a change", "in blue")),
    )
    cost_center: str | None = row(Kind.TEXT, RUNS, "Who pays for its runs.", most=10)
"""

#: what a program sees of the new field, as JSON
SEEN = """
import json
from celery import Celery
from click.testing import CliRunner
from redbeat import RedBeatSchedulerEntry
from redbeat.cli.editing import add
from redbeat.entries.entry import EntryArguments
from redbeat.errors import EntryError
from redbeat.policy.policy import encode_policy
from redbeat.web.api.schemas import components
from redbeat.web.pages.entry_form import GROUPS, document_of, form_of
from datetime import datetime, timezone

app = Celery(broker="memory://")
app.conf.redbeat_redis_url = "redis://127.0.0.1:1"
entry = RedBeatSchedulerEntry("x", "t", 60, app=app, colour="blue")
try:
    entry.colour = "green"
except EntryError as exc:
    problem = str(exc)
try:
    entry.cost_center = "x" * 11
except EntryError as exc:
    too_long = str(exc)
document = entry.to_dict()
form = form_of(document, timezone.utc)
again, problems = document_of(form, {}, app_zone=timezone.utc, now=datetime.now(timezone.utc), user="")
print(json.dumps({
    "value": entry.colour, "problem": problem, "too_long": too_long, "stored": encode_policy(entry.policy),
    "typed": str(EntryArguments.__annotations__["colour"]),
    "document": document["colour"], "again": again["colour"], "description": entry.describe(),
    "help": CliRunner().invoke(add, ["--help"]).output,
    "label": [one.label for _, fields in GROUPS for one in fields if one.name == "colour"],
    "schema": components()["EntryInput"]["properties"]["colour"],
    "bounds": components()["EntryInput"]["properties"]["cost_center"],
}))
"""


def test_field_that_is_added_to_the_table_is_seen_by_every_surface(tmp_path: Path) -> None:
    for part in ("redbeat", "docs/schema"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "docs" / "generate.py", tmp_path / "docs")
    table = tmp_path / "redbeat" / "policy" / "policy.py"
    table.write_text(table.read_text("utf-8").replace("    # fmt: on\n", ROW, 1), "utf-8")

    def run(*arguments: str) -> str:
        command, environment = [sys.executable, *arguments], {**os.environ, "PYTHONPATH": str(tmp_path)}
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("-m", "docs.generate")
    seen = json.loads(run("-c", SEEN))
    help_ = " ".join(seen.pop("help").split())
    assert (
        "--colour [red|blue] The colour of its runs. red: as usual; blue: for a change. Default: red."
        in help_
    )
    schema = seen.pop("schema")
    assert (schema["enum"], schema["default"]) == (["red", "blue", None], "red")
    assert seen.pop("bounds")["maxLength"] == 10
    assert seen == {
        "too_long": "x: cost_center: must have at most 10 characters, got 11.",
        "value": "blue",
        "problem": "x: colour: must be one of 'red', 'blue', not 'green'.",
        "stored": '{"colour": "blue"}',
        "typed": seen["typed"],
        "document": "blue",
        "again": "blue",
        "description": "Every minute, in blue",
        "label": ["Colour"],
    }
    assert "Colour | None" in seen["typed"]


def test_table_has_the_fields_of_a_definition() -> None:
    assert {*DEFINITION} == {*DEFINITION_FIELDS}


def test_new_value_of_overlap_is_refused_where_no_code_acts_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"^overlap: must be one of 'allow', 'skip', "):
        make_policy({"overlap": "queue"}, memory_app().timezone)
    row = ROWS["overlap"]
    monkeypatch.setitem(ROWS, "overlap", replace(row, choices=(*row.choices, Choice("queue", "queue it"))))
    assert make_policy({"overlap": "queue"}, memory_app().timezone).overlap == "queue"
    assert "queue: queue it" in ROWS["overlap"].help
    headers = {"redbeat_entry": "x", "redbeat_due": "2026-01-01T00:00:00+00:00", "id": "1"}
    delivery = read_delivery({**headers, "redbeat_overlap": "queue"}, "worker", is_soft=False)
    assert delivery is not None
    assert delivery.overlap == "queue", "its gate lets no other run of the entry begin"
