"""What each command and each option is over REST: none is forgotten, and docs/rest.rst has each exception."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from redbeat.cli import SECTIONS
from redbeat.cli.options import SCHEDULES, TASK_OPTIONS
from redbeat.entries.forms import FORM_FIELDS
from redbeat.web.api.operations import Operation
from redbeat.web.api.resources import NOT_HERE, OPERATIONS

#: operations that stand for a subcommand
GROUPS = {
    "calendar list": "GET /calendars",
    "calendar show": "GET /calendars/{name}",
    "calendar set": "PATCH /calendars/{name}",
    "calendar import": "PUT /calendars/{name}",
    "calendar delete": "DELETE /calendars/{name}",
    "later list": "GET /later",
    "later show": "GET /later/{task_id}",
    "later cancel": "DELETE /later/{task_id}",
    "later count": "GET /later",
}
PAGE = (Path(__file__).parents[3] / "docs" / "rest.rst").read_text("utf-8")
#: options that are something else here, or aren't here, each with what it is, or why not
EXCEPTIONS = dict(
    re.findall(r"^``([a-z]+(?: [a-z]+)? (?:--[a-z0-9-]+|[A-Z]+))``\n    (\S.*\.)$", PAGE, re.MULTILINE)
)
#: what is about the terminal, or about the person at it, and what ``names`` in a body stands for
OF_PEOPLE = {"--json", "--tz", "--utc", "--yes"}
IN_PATH_OR_BODY = {"NAME", "NAMES", "TASK", "FILE", "TASK_ID", "TASK_IDS"}


def commands() -> Iterator[tuple[str, click.Command]]:
    """Each command by its words."""
    for section in SECTIONS.values():
        for command in section:
            if isinstance(command, click.Group):
                yield from ((f"{command.name} {name}", one) for name, one in command.commands.items())
            else:
                yield str(command.name), command


COMMANDS = {
    words: command
    for words, command in commands()
    if words not in NOT_HERE and words.split()[0] not in NOT_HERE
}


def operations_of(words: str) -> list[Operation]:
    if words in GROUPS:
        return [one for one in OPERATIONS if f"{one.method} {one.path}" == GROUPS[words]]
    return [one for one in OPERATIONS if one.verb == words]


def given_to(operations: list[Operation]) -> set[str]:
    """The names of all that the operations take."""
    found: set[str] = set()
    for one in operations:
        found |= {field.name for field in one.query} | {"match"} & {field.name for field in one.query}
        if one.body is not None:
            found |= {field.name for field in one.body.fields}
            if one.body.component.startswith("Entry"):
                found |= {*FORM_FIELDS, *SCHEDULES, *TASK_OPTIONS}  # parts of schedule and options
    return found


def options_of(command: click.Command) -> Iterator[str]:
    for one in command.params:
        if isinstance(one, click.Argument):
            yield str(one.name).upper()
        else:
            yield max(one.opts, key=len)


def methods_in(text: str) -> set[tuple[str, str]]:
    """The operations that a sentence names."""
    return set(re.findall(r"``(GET|PUT|PATCH|DELETE) (/[^`]*)``", text))


@pytest.mark.parametrize("words", COMMANDS)
def test_each_option_of_a_command_is_given_to_an_operation_or_has_a_reason(words: str) -> None:
    operations = operations_of(words)
    assert operations, words
    names = given_to(operations)
    for option in options_of(COMMANDS[words]):
        if option in OF_PEOPLE | IN_PATH_OR_BODY or f"{words} {option}" in EXCEPTIONS:
            continue
        assert option.lstrip("-").replace("-", "_") in names, f"{words} {option}"


def test_each_command_about_many_entries_has_an_operation_about_many() -> None:
    about_many = {words for words, command in COMMANDS.items() if "--match" in options_of(command)}
    for words in about_many:
        assert "match" in given_to(operations_of(words)), words


def test_each_operation_that_changes_something_takes_the_dry_run_of_its_command() -> None:
    for words, command in COMMANDS.items():
        if "--dry-run" in options_of(command) and f"{words} --dry-run" not in EXCEPTIONS:
            for one in operations_of(words):
                assert one.method == "GET" or "dry_run" in given_to([one]), (one.method, one.path)


def test_no_exception_is_about_what_isnt_there() -> None:
    known = {f"{words} {option}" for words, command in COMMANDS.items() for option in options_of(command)}
    assert len(EXCEPTIONS) > 15
    assert set(EXCEPTIONS) <= known
    needless = {one for one in EXCEPTIONS if one.split()[-1] in OF_PEOPLE} - {"export --json"}
    assert needless == set()
    operations = {(one.method, one.path) for one in OPERATIONS}
    assert set().union(*map(methods_in, EXCEPTIONS.values())) <= operations
    for option in OF_PEOPLE:
        assert f"``{option}``" in PAGE
