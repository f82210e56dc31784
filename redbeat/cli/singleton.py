"""``celery redbeat singleton``: any command on one machine at a time, with the application's Redis."""

from __future__ import annotations

from typing import Any

import click

from redbeat.cli.session import Session, stating_errors
from redbeat.config.config import ensure_conf
from redbeat.process.exit_codes import ExitingCommand
from redbeat.singleton.beatcop import BeatCopSettings
from redbeat.singleton.command import add_options, run_singleton


@click.command(cls=ExitingCommand, context_settings={"allow_interspersed_args": False})
@add_options
@click.pass_context
def singleton(ctx: click.Context, /, **options: Any) -> None:
    """Run COMMAND on one machine at a time, with the application's Redis.

    The same as redbeat-singleton, whose --help lists the exit codes.
    """
    app = Session.of(ctx).app
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
