"""Files that follow from the table of fields, ``redbeat.policy.policy.Policy``: types and JSON Schemas.

``make generated`` writes them; a test compares them with what this makes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from redbeat.config.ping_urls import MAX_URL
from redbeat.policy.fields import MAX_SECONDS, Kind, Row
from redbeat.policy.policy import DEFINITION, ROWS, Policy

ROOT = Path(__file__).parents[1]
TYPED = ROOT / "redbeat" / "policy" / "typed.py"
SCHEMAS = ROOT / "docs" / "schema"

_HEAD = '''"""The fields of an entry's policy for editors and type checkers.

``make generated`` writes this file: the table of the fields is ``Policy`` in ``policy.py``.
"""

from __future__ import annotations

from datetime import datetime, timedelta, tzinfo
from typing import Literal, TypedDict

from redbeat.policy.fields import PolicyField

'''


def typed() -> str:
    """Return the module that types the fields: as keyword arguments, and as attributes of an entry."""
    words = {name: name.title().replace("_", "") for name, row in ROWS.items() if row.choices}
    given = {name: f"{words.get(name, row.kind.given)} | None" for name, row in ROWS.items()}
    values = {one.name: one.type for one in fields(Policy)}
    lines = [f"{word} = Literal{json.dumps(ROWS[name].values)}" for name, word in words.items()]
    lines += ["", "", "class PolicyFields(TypedDict, total=False):"]
    lines += ['    """The fields as keyword arguments; None sets the default."""', ""]
    lines += [f"    {name}: {types}" for name, types in given.items()]
    lines += ["", "", "class PolicyAttributes:", '    """The fields as attributes of an entry."""', ""]
    lines += [f"    {name} = PolicyField[{values[name]}, {types}]()" for name, types in given.items()]
    return _HEAD + "\n".join(lines) + "\n"


_DIGITS = "(?:[01][0-9]|2[0-3])"
_ISO = (
    "^(?:19[7-9][0-9]|[2-8][0-9]{3}|9[0-8][0-9]{2}|99[0-8][0-9]|999[0-8])-(?:0[1-9]|1[0-2])"
    rf"-(?:0[1-9]|[12][0-9]|3[01])(?:[T ]{_DIGITS}(?::[0-5][0-9](?::[0-5][0-9](?:\.[0-9]{{1,6}})?)?)?"
    rf"(?:Z|[+-]{_DIGITS}(?::?[0-5][0-9])?)?)?$"
)
_YEARS = {"properties": {"year": {"minimum": 1970, "maximum": 9998}}}
_NO_ZONES = (
    "^(?:[Ll][Oo][Cc][Aa][Ll][Tt][Ii][Mm][Ee]|[Pp][Oo][Ss][Ii][Xx][Rr][Uu][Ll][Ee][Ss]"
    "|[Ff][Aa][Cc][Tt][Oo][Rr][Yy])$|^[Rr][Ii][Gg][Hh][Tt]/"
)
_URL = (
    r"^[Hh][Tt][Tt][Pp][Ss]?://([A-Za-z0-9_][A-Za-z0-9_.-]*|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?"
    r"([/?][A-Za-z0-9._~:/?\[\]@!$&'()*+,;=%-]*)?$"
)
_SECONDS = {"type": ["number", "null"], "maximum": MAX_SECONDS}
#: the values of each kind
_KINDS: dict[Kind, dict[str, Any]] = {
    Kind.ZONE: {
        "type": ["string", "null"],
        "pattern": "^[A-Za-z][A-Za-z0-9_+-]*(?:/[A-Za-z0-9_+-]+)*$",
        "not": {"type": "string", "pattern": _NO_ZONES},
    },
    Kind.TIME: {
        "anyOf": [
            {"type": "string", "pattern": _ISO},
            {"allOf": [{"$ref": "#/$defs/datetime"}, _YEARS]},
            {"type": "null"},
        ]
    },
    Kind.COUNT: {"type": ["integer", "null"], "minimum": 1},
    Kind.FLAG: {"type": ["boolean", "null"]},
    Kind.CHOICE: {},
    Kind.DELAY: {**_SECONDS, "minimum": 0},
    Kind.LENGTH: {**_SECONDS, "exclusiveMinimum": 0},
    Kind.TEXT: {"type": ["string", "null"]},
    Kind.NAME: {"type": ["string", "null"], "minLength": 1},
    Kind.URL: {"type": ["string", "null"], "maxLength": MAX_URL, "pattern": _URL},
}


def property_of(row: Row) -> dict[str, Any]:
    """Return the JSON Schema of a field."""
    schema = {"title": row.label, "description": f"{row.help} Allowed: {row.kind.words}.", **_KINDS[row.kind]}
    if row.choices:
        schema |= {"description": row.help, "enum": [*row.values, None]}
    if row.most is not None:
        schema["maximum" if row.kind is Kind.COUNT else "maxLength"] = row.most
    return schema if row.default is None else {**schema, "default": row.default}


def schemas() -> dict[str, str]:
    """Return the schemas of the policy and of the definition, which may have its fields, by their names."""
    properties = {name: property_of(row) for name, row in ROWS.items()}
    texts = ((SCHEMAS / f"{name}.json").read_text("utf-8") for name in ("definition", "policy"))
    definition, policy = map(json.loads, texts)
    own = {name: one for name, one in definition["properties"].items() if name not in policy["properties"]}
    for name, given in DEFINITION.items():
        own[name] |= {"title": given.label, "description": given.about}
    definition["properties"] = {**own, **properties}
    policy["properties"] = properties
    policy["$defs"] = {name: definition["$defs"][name] for name in ("datetime", "typed")}
    both = {"definition": definition, "policy": policy}
    return {name: json.dumps(schema, indent=2, ensure_ascii=False) + "\n" for name, schema in both.items()}


def generated() -> dict[Path, str]:
    """Return the texts of all files that follow from the table."""
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(TYPED), "-"]
    module = subprocess.run(command, input=typed(), capture_output=True, text=True, check=True).stdout  # noqa: S603 - ours
    return {TYPED: module} | {SCHEMAS / f"{name}.json": text for name, text in schemas().items()}


if __name__ == "__main__":
    stale = [path for path, text in generated().items() if path.read_text("utf-8") != text]
    if "--check" in sys.argv and stale:
        sys.exit(f"Not what the table of fields has, call make generated: {', '.join(map(str, stale))}")
    for path, text in generated().items():
        path.write_text(text, "utf-8")
