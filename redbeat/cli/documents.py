"""The option ``--json`` of the commands."""

from __future__ import annotations

from collections.abc import Callable

import click

from redbeat.cli.session import Command


def json_option(what: str) -> Callable[[Command], Command]:
    """Return the option ``--json`` of a command that prints ``what`` then."""
    return click.option("--json", "is_json", is_flag=True, help=f"Print {what}.")


ONE_OBJECT = json_option("one JSON object")
OBJECT_PER_ENTRY = json_option("JSON: one object per entry and line")
