"""``celery redbeat …``: the command line, which Celery loads through the entry point group celery.commands.

One file for commands that belong together; what they show comes from the rooms below.

Never: a decision.
"""

from __future__ import annotations

from typing import Any

import click

from redbeat.cli.calendars import calendar
from redbeat.cli.diagnostics import doctor, why
from redbeat.cli.downgrading import downgrade
from redbeat.cli.editing import add, delete, set_
from redbeat.cli.files import apply, export, import_, plan
from redbeat.cli.listing import count, list_, show
from redbeat.cli.next_runs import next_
from redbeat.cli.pausing import pause, resume
from redbeat.cli.purging import purge
from redbeat.cli.routing import route
from redbeat.cli.session import Session
from redbeat.cli.singleton import singleton
from redbeat.cli.status import status
from redbeat.cli.timeline import timeline
from redbeat.cli.triggering import backfill, trigger
from redbeat.process.exit_codes import ExitingGroup

__all__ = ["redbeat"]


#: what ``--help`` shows under which heading, each on one line of 80 columns
SECTIONS: dict[str, dict[click.Command, str]] = {
    "See the schedule": {
        list_: "the entries by their next run, or sorted otherwise",
        count: "how many entries there are",
        show: "all about one entry: its fields, next runs and last ones",
        next_: "the next runs of one entry or of all",
        timeline: "who runs when, and where runs pile up, as a chart",
        why: "why a run did or did not happen",
        route: "where an entry's messages go, and which rule says so",
    },
    "Change it": {
        add: "a new entry",
        set_: "change some fields of an entry",
        pause: "let entries rest, until they are resumed or until a time",
        resume: "let paused entries go on",
        delete: "remove entries; asks first",
        calendar: "the days on which nothing runs: list, show, set, import, delete",
    },
    "Run by hand": {
        trigger: "run an entry now, once",
        backfill: "send the runs of a time in the past",
    },
    "Files": {
        plan: "what applying a file would change",
        apply: "store the entries of a file in the schedule",
        export: "write the entries to a file",
        import_: "store what export has written",
    },
    "Operate": {
        status: "who leads, and whether the schedule is late",
        doctor: "what is wrong, and what to do about it",
        downgrade: "what celery-redbeat 2.x can't run; take it out of its way",
        purge: "remove what is left over of entries that are gone; asks first",
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
    "--url", metavar="URL", help="Redis or Valkey with the schedule, in place of the application (-A)."
)
@click.option(
    "--prefix", metavar="PREFIX", help="What the schedule's keys begin with, instead of redbeat_key_prefix."
)
@click.pass_context
def redbeat(ctx: click.Context, /, url: str | None, prefix: str | None, **_preload_options: Any) -> None:
    """The schedule that RedBeat keeps in Redis."""
    ctx.obj = Session(ctx.obj.app, url, prefix, bool(ctx.obj.no_color))


for section in SECTIONS.values():
    for command, line in section.items():
        command.short_help = line
        redbeat.add_command(command)
