"""Tables of the documentation are those of the program: operations, signals, exit codes, keys, checksums."""

from __future__ import annotations

import json
import re
from pathlib import Path

from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator
from syrupy.assertion import SnapshotAssertion

from redbeat import signals
from redbeat.cli import SECTIONS
from redbeat.cli.session import INTERRUPTED
from redbeat.entries.forms import FORM_FIELDS, READ_ONLY_FIELDS
from redbeat.keys import RESERVED_BEGINNINGS, RESERVED_NAMES
from redbeat.layout import shard_of
from redbeat.log.events import EVENTS
from redbeat.process import exit_codes as exits
from redbeat.telemetry.metrics import METRICS
from redbeat.web.api.openapi import document_of
from redbeat.web.api.resources import NOT_HERE, OPERATIONS

DOCS = Path(__file__).parents[3] / "docs"
DOCUMENT = document_of(OPERATIONS, "/api/v1")


def read(page: str) -> str:
    return (DOCS / f"{page}.rst").read_text("utf-8")


def test_every_command_has_an_operation_or_a_reason_why_not() -> None:
    commands = {str(command.name) for section in SECTIONS.values() for command in section}
    missing = {words for words in NOT_HERE if " " not in words}  # the others are commands of a group
    assert {one.verb.partition(" ")[0] for one in OPERATIONS} | missing == commands
    assert not {one.verb for one in OPERATIONS} & NOT_HERE.keys()


def test_description_of_the_api_is_openapi_with_every_field_of_an_entry() -> None:
    OpenAPIV31SpecValidator(json.loads(json.dumps(DOCUMENT))).validate()
    schemas = DOCUMENT["components"]["schemas"]
    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)
    known = {*FORM_FIELDS, *READ_ONLY_FIELDS, "history", "href", "etag"}
    for name in ("EntryInput", "EntryPatch", "Entry"):
        assert schemas[name]["properties"].keys() == known, name
    for operation in OPERATIONS:
        described = DOCUMENT["paths"][operation.path][operation.method.lower()]
        assert (described["x-right"], described["x-command"]) == (operation.right.value, operation.verb)


def rows_of(title: str) -> dict[str, str]:
    """The table under a title of the page: the first column's names to the rest."""
    section = read("runs").partition(f"\n{title}\n")[2]
    table = re.search(r"\.\. list-table::.*?\n((?:\n|   .*\n)+)", section)
    assert table
    cells = re.split(r"\n   \* - ", table[1])[1:]
    return {name: rest for cell in cells for name, _, rest in [cell.partition("\n     - ")] if "``" in name}


def test_table_of_signals_is_that_of_the_program() -> None:
    rows = rows_of("Signals")
    documented = {
        re.sub(r"\W", "", name): re.findall(r"``(\w+)``", rest.partition("\n     - ")[0])
        for name, rest in rows.items()
    }
    given = {name: sorted(signal.providing_args) for name, signal in signals.ALL.items()}
    assert {name: sorted(arguments) for name, arguments in documented.items()} == given


def test_table_of_exit_codes_is_that_of_the_program() -> None:
    page = read("cli")
    table = re.search(r"^====  =+\n((?:\d+ .*\n)+)====  =+$", page, re.MULTILINE)
    assert table
    documented = {int(line.split()[0]) for line in table[1].splitlines()}
    named = {code for name, code in vars(exits).items() if name.isupper() and type(code) is int}
    assert documented == {0, 1, INTERRUPTED, *named}


def test_table_of_keys_names_every_reserved_key() -> None:
    page = read("data-model")
    names = {*RESERVED_NAMES, *RESERVED_BEGINNINGS}
    assert sorted(name for name in names if f"``redbeat:{name}" not in page) == []


def test_table_of_checksums_is_that_of_the_program() -> None:
    text = read("data-model")
    rows = re.findall(r"^``(\S+)`` +(0x[0-9A-F]{4}) +(\d+) +(\d+) +(\d+)$", text, re.MULTILINE)
    assert len(rows) == 5
    for name, checksum, *shards in rows:
        assert shard_of(name, 0x10000) == int(checksum, 16), name
        assert [shard_of(name, count) for count in (7, 16, 48)] == [int(shard) for shard in shards], name


def test_names_of_metrics_and_log_events_are_kept(snapshot: SnapshotAssertion) -> None:
    """The documentation generates its tables of these from the code, so they would follow any change."""
    metrics = [" ".join((one.shown_name, one.type, *one.labels)) for one in METRICS.values()]
    events = [" ".join((one.name, *one.fields)) for one in EVENTS.values()]
    assert sorted(metrics + events) == snapshot
