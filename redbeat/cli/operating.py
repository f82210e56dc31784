"""``celery redbeat purge``, ``monitoring`` and ``singleton``."""

from __future__ import annotations

from dataclasses import asdict
from importlib.resources import files
from typing import Any

import click

from redbeat.cli.flags import DRY_RUN, ONE_OBJECT, YES, pass_session
from redbeat.cli.progress import meter
from redbeat.cli.session import Session, SessionCommand, stating_errors
from redbeat.config.config import ensure_conf
from redbeat.diagnostics.fixes import KINDS, find_orphans
from redbeat.operations import operating
from redbeat.process.exit_codes import ExitingCommand
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
    by_kind = {kind: sorted(one.name for one in found if one.kind == kind) for kind in KINDS}
    if not session.is_json:
        _show(session, by_kind)
    is_changing = bool(found) and not session.is_dry_run
    if is_changing:
        session.ask(f"Remove these {len(found)} from {session.server}?")
    with meter("Removing") as progress:
        done = operating.purge(session.actor, dry_run=session.is_dry_run, orphans=found, progress=progress)
    if session.is_json:
        session.print_json(asdict(done))
    elif is_changing:
        session.echo(f"Removed {done.removed}.")


def _show(session: Session, by_kind: dict[str, list[str]]) -> None:
    if not any(by_kind.values()):
        session.say("There is nothing to remove.")
    for kind, names in by_kind.items():
        if names:
            session.list_some(f"{kind} ({len(names)}): {KINDS[kind]}", names, MAX_SHOWN)


@click.command(cls=SessionCommand)
@pass_session
def monitoring(session: Session) -> None:
    """Print the folder with Prometheus alerts and a Grafana dashboard.

    They are alerts.yml and dashboard.json. alerts.test.yml, beside them, has tests of the alerts for
    promtool.
    """
    session.say(str(files("redbeat.telemetry") / "monitoring"))


@click.command(cls=ExitingCommand, context_settings={"allow_interspersed_args": False})
@add_options
@pass_session
def singleton(session: Session, **options: Any) -> None:
    """Run COMMAND on one machine at a time, with the application's Redis.

    The same as redbeat-singleton, whose --help lists the exit codes.
    """
    app = session.app
    with stating_errors():
        config = ensure_conf(app)
    connection = {
        "redbeat_redis_url": config.redis_url,
        "redbeat_redis_options": config.redbeat_redis_options,
        "redbeat_redis_use_ssl": config.redis_use_ssl,
        "redbeat_key_prefix": config.key_prefix,
    }
    client = getattr(app, "redbeat_redis", None)
    run_singleton(connection, BeatCopSettings(), client=client, **options)
