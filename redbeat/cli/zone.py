"""The zone of the times that a command shows: ``--tz``, else ``--utc``, else the application's ``timezone``.

The same options on every command that shows times. Where a command has them, times that are typed without an
offset are on the same clocks: what is read can be typed.
"""

from __future__ import annotations

from datetime import timezone, tzinfo

import click

from redbeat.cli.session import ZONE_GIVEN, Command
from redbeat.cli.values import ZONE


def zone_options(command: Command) -> Command:
    """Give ``command`` the options ``--tz`` and ``--utc``, for ``Session.zone``."""
    for option in (
        click.option(
            "--utc", is_flag=True, expose_value=False, callback=_note_utc, help="Show times in UTC."
        ),
        click.option(
            "--tz",
            type=ZONE,
            expose_value=False,
            is_eager=True,
            callback=_note,
            help="Show times in this zone, such as Europe/Berlin. Default: the application's.",
        ),
    ):
        command = option(command)
    return command


def _note(ctx: click.Context, _parameter: click.Parameter, zone: tzinfo | None) -> None:
    if zone is not None:
        ctx.meta[ZONE_GIVEN] = zone


def _note_utc(ctx: click.Context, _parameter: click.Parameter, is_utc: bool) -> None:
    if is_utc:  # --tz takes precedence
        ctx.meta.setdefault(ZONE_GIVEN, timezone.utc)
