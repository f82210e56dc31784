"""``celery redbeat purge``, ``monitoring`` and ``singleton``."""

from __future__ import annotations

from dataclasses import asdict
from importlib.resources import files
from typing import Any

import click

from redbeat.cli.parameters import DRY_RUN, ONE_OBJECT, YES, pass_session
from redbeat.cli.session import Session, SessionCommand
from redbeat.cli.tables import meter
from redbeat.config.config import ensure_conf
from redbeat.diagnostics.fixes import KINDS, find_orphans
from redbeat.operations import operating
from redbeat.singleton.beatcop import BeatCopSettings
from redbeat.singleton.command import add_options, run_singleton

#: how many orphans are shown of each kind
MAX_SHOWN = 20


@click.command(cls=SessionCommand)
@DRY_RUN
@YES
@ONE_OBJECT
@pass_session
def purge(session: Session) -> None:
    """Remove what deleted entries have left behind; asks first.

    That is: members of the schedule without a hash, histories and records of backfills without an entry,
    and names of beat_schedule without one. No entry is changed.
    """
    with meter("Looking") as progress:
        found = list(find_orphans(session.app, progress))
    for kind, about in KINDS.items():
        names = sorted(one.name for one in found if one.kind == kind)
        if names and not session.is_json:
            session.list_some(f"{kind} ({len(names)}): {about}", names, MAX_SHOWN)
    is_changing = bool(found) and not session.is_dry_run
    if is_changing:
        session.ask(f"Remove these {len(found)} from {session.server}?")
    with meter("Removing") as progress:
        done = operating.purge(session.actor, dry_run=session.is_dry_run, orphans=found, progress=progress)
    if session.is_json or is_changing:
        session.report(asdict(done), f"Removed {done.removed}.")
    elif not found:
        session.say("There is nothing to remove.")


@click.command(cls=SessionCommand)
@pass_session
def monitoring(session: Session) -> None:
    """Print the folder with Prometheus alerts and a Grafana dashboard.

    They are alerts.yml and dashboard.json. alerts.test.yml, beside them, has tests of the alerts for
    promtool.
    """
    session.say(str(files("redbeat.telemetry") / "monitoring"))


@click.command(cls=SessionCommand, context_settings={"allow_interspersed_args": False})
@add_options
@pass_session
def singleton(session: Session, **options: Any) -> None:
    """Run COMMAND on one machine at a time, with the application's Redis.

    The same as redbeat-singleton, whose --help lists the exit codes.
    """
    config = ensure_conf(session.app)
    connection = {
        "redbeat_redis_url": config.redis_url,
        "redbeat_redis_options": config.redbeat_redis_options,
        "redbeat_redis_use_ssl": config.redis_use_ssl,
        "redbeat_key_prefix": config.key_prefix,
    }
    client = getattr(session.app, "redbeat_redis", None)
    run_singleton(connection, BeatCopSettings(), client=client, **options)
