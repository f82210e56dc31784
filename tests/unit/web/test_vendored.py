"""The code of others that the dashboard serves: nothing but what is named, and as it was published."""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path

VENDOR = Path(__file__).parents[3] / "redbeat" / "web" / "static" / "vendor"
ROW = re.compile(
    r"   \* - (\S+)\n     - (\S+ [\d.]+).*\n     - .*\n     - .*, (\S+)\n     - ([0-9a-f]{64})\n"
)


def test_each_vendored_file_is_as_it_was_published_and_has_its_licence() -> None:
    rows = ROW.findall((VENDOR / "VENDORED.rst").read_text("utf-8"))
    assert [version for _, version, _, _ in rows] == ["htmx.org 2.0.11", "htmx-ext-sse 2.2.4"]
    for file, _, licence, digest in rows:
        assert sha256((VENDOR / file).read_bytes()).hexdigest() == digest
        assert "Permission to use, copy, modify" in (VENDOR / licence).read_text("utf-8")
    named = {name for file, _, licence, _ in rows for name in (file, licence)}
    assert {path.name for path in VENDOR.iterdir()} == named | {"VENDORED.rst"}
