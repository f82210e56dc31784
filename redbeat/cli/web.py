"""``celery redbeat web``: the dashboard, served by this process."""

from __future__ import annotations

import os
import re
from contextlib import suppress

import click

from redbeat.cli.parameters import pass_session
from redbeat.cli.session import Session, SessionCommand, login_name
from redbeat.config.address import parse_address
from redbeat.config.config import ensure_conf
from redbeat.errors import StoreUnavailable
from redbeat.process import exit_codes as exits
from redbeat.process.exit_codes import CommandLineError
from redbeat.store.layouts import look_up_layout
from redbeat.store.store import Store


@click.command(cls=SessionCommand)
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=8555,
    show_default=True,
    help="The port; 0: any that is free.",
)
@click.option("--read-only", is_flag=True, help="Refuse all changes.")
@click.option(
    "--root-path",
    metavar="PATH",
    default="",
    help="The path under which a reverse proxy has it, such as /redbeat; the proxy may cut it off, or not.",
)
@pass_session
def web(session: Session, host: str, port: int, read_only: bool, root_path: str) -> None:
    """Serve the dashboard, until Ctrl-C. It prints the link to open.

    The link has a token, and works on this machine alone. To let other machines in, set REDBEAT_WEB_USER,
    REDBEAT_WEB_PASSWORD and REDBEAT_WEB_RIGHTS in the environment, and put a proxy with HTTPS in front.
    """
    try:
        from redbeat.web.server import find_basic_auth, serve
    except ModuleNotFoundError as exc:
        raise CommandLineError(
            f"The dashboard needs {exc.name}, which isn't installed: pip install 'celery-redbeat[web]'.",
            exits.UNAVAILABLE,
        ) from None
    if root_path and not re.fullmatch(r"(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)+", root_path):
        raise CommandLineError("--root-path must be a path such as /redbeat.", exits.USAGE)
    try:
        address = parse_address(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    except ValueError:
        raise CommandLineError(f"--host: {host!r} is no host to listen at.", exits.USAGE) from None
    config = ensure_conf(session.app)
    config.require_redis()
    with suppress(StoreUnavailable), Store.hasty(session.app) as store:  # its pages say so, too
        look_up_layout(store, is_slot_checked=True)
    basic = find_basic_auth(os.environ)
    # as a beat or a worker does: nobody else would say what has gone wrong in a request
    session.app.log.setup(loglevel="WARNING", redirect_stdouts=False)

    def tell(link: str) -> None:
        session.echo(f"The dashboard is at {link}")
        if basic is None:
            session.note("The link is for you alone: anyone with it has your rights. Ctrl-C ends it.")
        else:
            names = ", ".join(config.web_hosts) or "none"
            session.note(f"It can be asked for as localhost, and by the names in redbeat_web_hosts: {names}.")

    try:
        serve(session.app, address, login_name(), basic, tell, is_read_only=read_only, root_path=root_path)
    except OSError as exc:
        reason = exc.strerror or exc
        raise CommandLineError(f"Can't listen at {address}: {reason}", exits.UNAVAILABLE) from None
