"""docs/rest.rst and the OpenAPI document have every operation, and the operations every command."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

from redbeat.cli import SECTIONS
from redbeat.entries.forms import FORM_FIELDS, READ_ONLY_FIELDS
from redbeat.web.api.openapi import document_of
from redbeat.web.api.operations import HEADERS
from redbeat.web.api.resources import DESCRIPTION, NOT_HERE, OPERATIONS

PAGE = (Path(__file__).parents[3] / "docs" / "rest.rst").read_text("utf-8")
DOCUMENT = document_of(OPERATIONS, "/api/v1")


def test_the_table_has_every_operation_with_its_right_and_command() -> None:
    rows = re.findall(r"^``([A-Z]+) (/\S+)``\s+(\w+)\s+(?:``(\w+)``)?\s+(\S.*)$", PAGE, re.MULTILINE)
    told = [(one.method, one.path, one.right.value, one.verb, one.about.rstrip(".")) for one in OPERATIONS]
    assert rows[:-1] == told
    assert rows[-1][:3] == ("GET", DESCRIPTION.path, "read")


def test_each_command_has_an_operation_or_a_reason_why_not() -> None:
    commands = {str(command.name) for section in SECTIONS.values() for command in section}
    missing = {words for words in NOT_HERE if " " not in words}  # the others are commands of a group
    assert {one.verb for one in OPERATIONS} | missing == commands
    assert {words.split()[0] for words in NOT_HERE} <= commands
    assert not {one.verb for one in OPERATIONS} & NOT_HERE.keys()
    for command, reason in NOT_HERE.items():
        assert re.search(
            rf"^``{command}``\n    {reason[0].upper()}{re.escape(reason[1:])}\.$", PAGE, re.MULTILINE
        )


def test_the_document_is_openapi() -> None:
    OpenAPIV31SpecValidator(json.loads(json.dumps(DOCUMENT))).validate()
    for schema in DOCUMENT["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


def test_an_entry_in_the_document_has_all_fields_of_the_field_api() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    for name in ("EntryInput", "EntryPatch", "Entry"):
        assert schemas[name]["properties"].keys() == {*FORM_FIELDS, *READ_ONLY_FIELDS, "href", "etag"}, name


def test_nothing_in_the_document_refers_to_what_is_not_there() -> None:
    names = {f"#/components/schemas/{name}" for name in DOCUMENT["components"]["schemas"]}
    names |= {f"#/components/responses/{name}" for name in DOCUMENT["components"]["responses"]}

    def references(value: Any) -> set[str]:
        if isinstance(value, dict):
            inside = set().union(*map(references, value.values())) if value else set()
            return inside | ({value["$ref"]} if isinstance(value.get("$ref"), str) else set())
        return set().union(*map(references, value)) if isinstance(value, list) and value else set()

    used = references(DOCUMENT)
    assert used <= names
    assert {name for name in names if "schemas" in name and "." not in name.rpartition("/")[2]} <= used


@pytest.mark.parametrize("header", HEADERS)
def test_each_header_that_counts_is_told_of(header: str) -> None:
    assert f"``{header}" in PAGE
