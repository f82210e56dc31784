"""``celery redbeat …``: the command line, which Celery loads through the entry point group celery.commands.

One file for commands that belong together; what they show comes from the rooms below.

Never: a decision.
"""

from __future__ import annotations

from typing import Any

import click

from redbeat.cli.auditing import audit
from redbeat.cli.calendars import calendar
from redbeat.cli.diagnostics import doctor, route, why
from redbeat.cli.downgrading import downgrade
from redbeat.cli.editing import add, delete, pause, resume, set_
from redbeat.cli.files import apply, export, import_, plan
from redbeat.cli.later import later
from redbeat.cli.listing import count, list_, next_, show
from redbeat.cli.operating import monitoring, purge, singleton
from redbeat.cli.operations import command_of
from redbeat.cli.resharding import reshard
from redbeat.cli.runs import rerun, runs
from redbeat.cli.session import Session
from redbeat.cli.status import status
from redbeat.cli.timeline import timeline
from redbeat.cli.tokens import token
from redbeat.cli.triggering import backfill, trigger
from redbeat.cli.web import web
from redbeat.operations.table import OPERATIONS
from redbeat.process.exit_codes import ExitingGroup

#: the sections of ``--help``
SECTIONS: dict[str, list[click.Command]] = {
    "See the schedule": [list_, count, show, next_, timeline, runs, why, route, later],
    "Change it": [add, set_, pause, resume, delete, calendar],
    "Run by hand": [trigger, backfill, rerun],
    "Files": [plan, apply, export, import_],
    "Operate": [status, doctor, audit, token, web, monitoring, reshard, downgrade, purge, singleton],
}


class SectionedGroup(ExitingGroup):
    """A group whose help has its commands in sections."""

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections."""
        longest = max(map(len, self.commands))
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                lines = [one.get_short_help_str(formatter.width).rstrip(".") for one in commands]
                names = [str(one.name).ljust(longest) for one in commands]
                formatter.write_dl([*zip(names, lines, strict=True)])


@click.group(cls=SectionedGroup)
@click.option(
    "--url",
    metavar="URL",
    help="Redis or Valkey server that has the schedule, instead of the application's (-A).",
)
@click.option(
    "--prefix", metavar="PREFIX", help="Prefix of the schedule's keys, instead of redbeat_key_prefix."
)
@click.pass_context
def redbeat(ctx: click.Context, /, url: str | None, prefix: str | None, **_preload_options: Any) -> None:
    """Show and change the schedule that RedBeat keeps in Redis or Valkey."""
    ctx.obj = Session(ctx.obj.app, url, prefix, bool(ctx.obj.no_color))


for operation in OPERATIONS:
    if not any(operation.command.split()[0] == one.name for section in SECTIONS.values() for one in section):
        SECTIONS["Operate"].append(command_of(operation))
for section in SECTIONS.values():
    for command in section:
        redbeat.add_command(command)
