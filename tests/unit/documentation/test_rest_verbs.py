"""What each command and each option is over REST: none is forgotten, and each exception has its reason."""

from __future__ import annotations

from collections.abc import Iterator

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
}
#: options that are called otherwise, or are an operation of their own, a header, or a field of the entry
ELSEWHERE = {
    "add --disabled": "enabled in the body",
    "apply --dry-run": "PUT /plan",
    "add --replace": "If-Match, or neither it nor If-None-Match",
    "backfill --match": "PUT /backfill",
    "calendar import --add": "add",
    "calendar import --replace": "add=false",
    "calendar set --remove": "null in days",
    "calendar set DAYS": "days",
    "doctor --fix": "PUT /doctor/fix",
    "export --json": "format",
    "list --offset": "cursor",
    "rerun --all-failed": "PUT /rerun",
    "runs --give-up": "DELETE /entries/{name}/runs",
    "set --unset": "null in the body",
    "status --late-after": "late_after",
}
#: options that an operation doesn't have, and why
NOT_THERE = {
    "calendar delete --dry-run": "GET /calendars/{name} says which entries name it",
    "doctor --all": "all findings are in the answer",
    "export FILE": "the answer is the file",
    "import --from-beat-schedule": "it reads the application on the machine that calls it",
    "import --from-django-celery-beat": "it reads a database that the machine that calls it reaches",
    "list --reverse": "what is looked at in slices has one order; programs sort",
    "list --sort": "likewise",
    "pause --by": "it is the name of the token",
    "runs --by": "likewise",
}
#: what is about the terminal, or about the person at it, and what ``names`` in a body stands for
OF_PEOPLE = {"--json", "--yes", "--tz", "--utc", "--help", "NAME", "NAMES", "TASK", "FILE"}


def commands() -> Iterator[tuple[str, click.Command]]:
    """Each command by its words."""
    for section in SECTIONS.values():
        for command in section:
            if isinstance(command, click.Group):
                yield from ((f"{command.name} {name}", one) for name, one in command.commands.items())
            else:
                yield str(command.name), command


COMMANDS = {words: command for words, command in commands() if words.split()[0] not in NOT_HERE}


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


@pytest.mark.parametrize("words", COMMANDS)
def test_each_option_of_a_command_is_given_to_an_operation_or_has_a_reason(words: str) -> None:
    operations = operations_of(words)
    assert operations, words
    names = given_to(operations)
    for option in options_of(COMMANDS[words]):
        if option in OF_PEOPLE or f"{words} {option}" in ELSEWHERE | NOT_THERE:
            continue
        assert option.lstrip("-").replace("-", "_") in names, f"{words} {option}"


def test_each_command_about_many_entries_has_an_operation_about_many() -> None:
    about_many = {words for words, command in COMMANDS.items() if "--match" in options_of(command)}
    for words in about_many:
        assert "match" in given_to(operations_of(words)), words


def test_no_reason_is_about_what_isnt_there() -> None:
    known = {f"{words} {option}" for words, command in COMMANDS.items() for option in options_of(command)}
    assert set(ELSEWHERE) | set(NOT_THERE) <= known
    for words, reason in (ELSEWHERE | NOT_THERE).items():
        assert reason, words
