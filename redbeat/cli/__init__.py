"""``celery redbeat …``: the command line, which Celery loads through the entry point group celery.commands.

One file for commands that belong together; what they show comes from the modules below.
"""

from __future__ import annotations

from typing import Any

import click

from redbeat.cli.changing import add, delete, set_
from redbeat.cli.diagnosis import doctor, why
from redbeat.cli.files import apply, export, import_, plan
from redbeat.cli.looking import count, list_, show
from redbeat.cli.purging import purge
from redbeat.cli.resting import pause, resume
from redbeat.cli.routing import route
from redbeat.cli.running import backfill, trigger
from redbeat.cli.session import Session
from redbeat.cli.singleton import singleton
from redbeat.cli.status import status
from redbeat.cli.timeline import timeline
from redbeat.cli.upcoming import next_
from redbeat.exits import ExitingGroup

__all__ = ["redbeat"]


@click.group(cls=ExitingGroup)
@click.option(
    "--url", metavar="URL", help="Redis or Valkey with the schedule; then no application is needed."
)
@click.option(
    "--prefix", metavar="PREFIX", help="What the schedule's keys begin with, instead of redbeat_key_prefix."
)
@click.pass_context
def redbeat(ctx: click.Context, /, url: str | None, prefix: str | None, **_preload_options: Any) -> None:
    """The schedule that RedBeat keeps in Redis."""
    ctx.obj = Session(ctx.obj.app, url, prefix, bool(ctx.obj.no_color))


for command in (
    add,
    apply,
    backfill,
    count,
    delete,
    doctor,
    export,
    import_,
    list_,
    next_,
    pause,
    plan,
    purge,
    resume,
    route,
    set_,
    show,
    singleton,
    status,
    timeline,
    trigger,
    why,
):
    redbeat.add_command(command)
