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
from redbeat.cli.editing import add, delete, set_
from redbeat.cli.files import apply, export, import_, plan
from redbeat.cli.later import later
from redbeat.cli.listing import count, list_, next_, show
from redbeat.cli.operating import monitoring, purge, singleton
from redbeat.cli.operations import command_of
from redbeat.cli.pausing import pause, resume
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

#: the sections of ``--help``: commands with a line of at most 80 columns each
SECTIONS: dict[str, dict[click.Command, str]] = {
    "See the schedule": {
        list_: "the entries, the next to run first",
        count: "how many entries there are",
        show: "all about one entry: its fields, next runs and last runs",
        next_: "the next runs of one entry or of all",
        timeline: "a chart of which entries run when, and where runs pile up",
        runs: "the runs in progress, and runs that have failed or were lost",
        why: "why a run did or did not happen",
        route: "which queue an entry's messages go to, and by which rule",
        later: "messages stored until a time far ahead: list, show, cancel, count",
    },
    "Change it": {
        add: "a new entry",
        set_: "change some fields of an entry",
        pause: "stop entries from running, until resumed or until a time",
        resume: "end the pause of entries",
        delete: "remove entries; asks first",
        calendar: "days on which entries don't run: list, show, set, import, delete",
    },
    "Run by hand": {
        trigger: "run an entry now, once",
        backfill: "send the runs that were due in a past span of time",
        rerun: "send a run once more that has failed, or all of them",
    },
    "Files": {
        plan: "what applying a file would change",
        apply: "store the entries of a file in the schedule",
        export: "write the entries to a file",
        import_: "store the entries that export has written",
    },
    "Operate": {
        status: "who leads, and whether the schedule is late",
        doctor: "what is wrong, and what to do about it",
        audit: "who has changed what, and when",
        token: "tokens of the dashboard's API: add, list, revoke",
        web: "the dashboard: see and run the schedule in a browser",
        monitoring: "the folder with alerts for Prometheus and a dashboard for Grafana",
        reshard: "divide the schedule into another number of shards; asks first",
        downgrade: "what celery-redbeat 2.x can't run; take it out of the schedule",
        purge: "remove what deleted entries have left behind; asks first",
        singleton: "run any command on one machine at a time",
    },
}


class SectionedGroup(ExitingGroup):
    """A group whose help has its commands in sections."""

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections."""
        longest = max(map(len, self.commands))
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(str(one.name).ljust(longest), line) for one, line in commands.items()])


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


for section in SECTIONS.values():
    for command, line in section.items():
        command.short_help = line
        redbeat.add_command(command)
for operation in OPERATIONS:
    if operation.command.split()[0] not in redbeat.commands:
        made = command_of(operation)
        SECTIONS["Operate"][made] = operation.summary[0].lower() + operation.summary[1:].rstrip(".")
        redbeat.add_command(made)
