"""``celery redbeat monitoring``: where the package has its files for Prometheus and Grafana."""

from __future__ import annotations

from importlib.resources import files

import click

from redbeat.cli.session import Session, SessionCommand


@click.command(cls=SessionCommand)
@click.pass_context
def monitoring(ctx: click.Context, /) -> None:
    """Print the folder with alerts.yml for Prometheus and dashboard.json for Grafana.

    alerts.test.yml, beside them, has tests of the alerts for promtool.
    """
    Session.of(ctx).say(str(files("redbeat.telemetry") / "monitoring"))
