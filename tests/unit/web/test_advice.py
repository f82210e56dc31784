"""What the doctor advises, as its page says it: the page has buttons in the place of commands."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from redbeat.diagnostics import checks
from redbeat.web.pages.doctor import on_page

#: commands that have no page, and one that is to be called with the settings of beat
_WITHOUT_A_PAGE = re.compile(
    r"celery redbeat (downgrade|doctor|reshard --to NAME)|redis-cli --scan --pattern"
)


def sentences() -> Iterator[str]:
    """The texts in the checks that name a command or its option; what is filled in is NAME."""
    for path in sorted(Path(checks.__file__).parent.glob("*.py")):
        nodes = [*ast.walk(ast.parse(path.read_text("utf-8")))]
        parts_of_others = {part for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in nodes:
            if node in parts_of_others:
                continue
            if isinstance(node, ast.JoinedStr):
                parts = (one.value if isinstance(one, ast.Constant) else "NAME" for one in node.values)
                text = "".join(map(str, parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value
            else:
                continue
            if re.search(r"celery redbeat [a-z]|(^|\s)--[a-z]", text) and "``" not in text:
                yield text


@pytest.mark.parametrize("text", sorted({*sentences()}))
def test_an_advice_names_no_command_on_the_page_that_has_a_button_for_it(text: str) -> None:
    said = _WITHOUT_A_PAGE.sub("", on_page(text))
    assert "celery redbeat" not in said
    assert "--" not in said
